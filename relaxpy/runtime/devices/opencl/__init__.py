"""OpenCL devices: GPUs, and CPUs through PoCL."""
