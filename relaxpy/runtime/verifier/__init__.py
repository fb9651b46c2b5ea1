"""The verifier of bytecode: what is proved of a function when it is loaded, and what must be checked when it runs."""
