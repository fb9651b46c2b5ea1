"""OpenCL: kernels as OpenCL C source, which the device's own driver compiles."""
