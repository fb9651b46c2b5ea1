"""Test tools, also for users who write passes: the reference interpreter, single kernels, random programs."""
