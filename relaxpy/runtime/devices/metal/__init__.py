"""GPUs of Macs: the runtime of kind `metal`."""
