"""The processor that runs the machine: what it can do, how many threads run kernels, and the threads themselves."""
