"""Preparation of the Python syntax tree of a `T.prim_func` for TVM's parser."""
