"""Symbolic shape reasoning: accept, join, erase, solve, prove."""
