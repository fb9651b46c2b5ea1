"""The Python tree of a `T.prim_func`: what is done to it before TVM's parser reads it."""
