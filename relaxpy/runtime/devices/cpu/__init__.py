"""The processor of this machine: its features, kernels, threads."""
