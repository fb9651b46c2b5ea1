"""Elementary functions and integer arithmetic as tensor-program expressions, with defined results at their edges."""
