"""CUDA: kernels as CUDA C, compiled by NVRTC to machine code (cubin) and PTX."""
