"""Devices: where tensors live and kernels run. One folder a device."""
