"""Recognisers: which computation a tensor program is, read from its loops, and about what it costs."""
