"""Model families, one file each: the configuration, the modules, and the mapping of parameters to checkpoint
tensors."""
