"""Recognisers: determine from its loops which computation a tensor program is, and estimate its cost."""
