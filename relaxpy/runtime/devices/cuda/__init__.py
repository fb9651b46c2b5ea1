"""CUDA devices: NVIDIA's GPUs through the driver's API."""
