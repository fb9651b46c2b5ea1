"""The bytecode verifier: separates facts proved at load time from those that must be checked at run time."""
