"""Model families, one file each: configuration, modules, and where its weights are in a checkpoint."""
