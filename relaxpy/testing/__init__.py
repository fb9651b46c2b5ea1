"""What tests, and users who write passes, share: the reference interpreter, kernels by themselves, random programs."""
