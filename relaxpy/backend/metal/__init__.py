"""Metal: kernels as source in Metal's shading language (MSL), which macOS compiles. Experimental."""
