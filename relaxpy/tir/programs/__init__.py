"""Builders for loop nests and vector code, used by schedule rules and by some operators."""
