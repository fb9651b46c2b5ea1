"""OpenCL: kernels as OpenCL C, which every device's own driver compiles."""
