"""Device kernels of languages like C, run on the processor: their text is C++ to a compiler that gets a header for it.

`runner.h` runs the threads of a group as fibers, and `*_shim.h` has the names of one language. `runner` compiles and
calls.
"""
