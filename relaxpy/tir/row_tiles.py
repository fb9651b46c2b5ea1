"""Weights of convolutions cut into tiles of rows: how they lie where they are known when building.

A convolution multiplies a tile of channels by a panel of pixels; at each place of the depth it reads one number of
every row of the tile. A weight (O, ...) in tiles is the tensor (ceil(O / height), ..., height), the last tile filled
up with zeros: what a tile holds is contiguous, in the order in which it is read.
"""

from __future__ import annotations

from relaxpy.tir.target import Target


def tile_height(target: Target) -> int:
    """Rows of a tile: with two vectors across all sums fit into the target's registers."""
    return 8 if target.vector_registers >= 32 else 6
