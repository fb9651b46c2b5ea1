"""Devices, on which tensors live and kernels run. One folder for each kind."""
