"""How many warps of a kernel a multiprocessor of NVIDIA's can hold at once: the rules of the CUDA C++ Programming Guide
(its table of compute capabilities), as NVIDIA's occupancy calculator applies them.
"""

from __future__ import annotations

from dataclasses import dataclass

WARP = 32
"""Threads of a warp."""
REGISTERS = 65_536
"""Of a multiprocessor."""
REGISTER_UNIT = 256
"""Registers are given to a warp in multiples of this."""
PARTITIONS = 4
"""A multiprocessor has as many schedulers; each has a quarter of the registers, and whole warps."""
SHARED_UNIT = 128
"""Shared memory is given to a block in multiples of so many bytes."""
RESERVED = 1024
"""Bytes of shared memory of a block that the system takes."""


@dataclass(frozen=True)
class Multiprocessor:
    """The resources of a multiprocessor of an architecture."""

    warps: int
    blocks: int
    shared: int
    """Bytes."""

    def occupancy(self, threads: int, registers: int, shared: int) -> float:
        """The share of the warps that a kernel's blocks can fill, by the threads of a block, the registers of a thread
        and the bytes of shared memory of a block; 0 for a block that does not fit."""
        own = -(-threads // WARP)
        by_registers = self.warps
        if registers:
            of_warp = _rounded(registers * WARP, REGISTER_UNIT)
            by_registers = REGISTERS // PARTITIONS // of_warp * PARTITIONS
        of_block = _rounded(shared, SHARED_UNIT) + RESERVED
        blocks = min(self.blocks, self.warps // own, by_registers // own, self.shared // of_block)
        return blocks * own / self.warps


MULTIPROCESSORS = {
    "sm_80": Multiprocessor(warps=64, blocks=32, shared=164 << 10),
    "sm_90": Multiprocessor(warps=64, blocks=32, shared=228 << 10),
}


def _rounded(count: int, unit: int) -> int:
    return -(-count // unit) * unit
