"""What backends of GPUs share: launches, threads, and the split into host and device."""
