"""OpenCL devices: GPUs, and processors by PoCL."""
