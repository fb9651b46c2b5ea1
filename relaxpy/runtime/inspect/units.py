"""Sizes in units that people read."""

from __future__ import annotations


def shown(nbytes: int) -> str:
    """A number of bytes in readable units."""
    if nbytes < 10_000:
        return f"{nbytes} B"
    for power, unit in ((1, "KiB"), (2, "MiB"), (3, "GiB"), (4, "TiB")):
        if nbytes < 10 << 10 * (power + 1) or unit == "TiB":
            break
    return f"{nbytes / (1 << 10 * power):.1f} {unit}"
