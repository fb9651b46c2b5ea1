"""Code shared by the backends of GPUs: launches, threads, and the split into host and device code."""
