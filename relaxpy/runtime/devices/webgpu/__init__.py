"""WebGPU devices of this machine, through wgpu."""
