"""How many replicas an engine has."""

from __future__ import annotations

from dataclasses import dataclass

from relaxpy.errors import UsageError


@dataclass(frozen=True)
class Scale:
    """From how many to how many replicas, and where."""

    fewest: int
    most: int
    address: str = ""
    """Of a cluster of Ray; "": it is started on this machine."""

    @classmethod
    def of(cls, text: str, address: str = "") -> Scale:
        """The scale of `4`, or `2-8` for a number that follows the requests. Raises: UsageError (`bad-arguments`)."""
        first, dash, last = text.partition("-")
        if (
            first.isascii()
            and first.isdigit()
            and ((last.isascii() and last.isdigit()) or not dash)
        ):
            fewest, most = int(first), int(last or first)
            if 1 <= fewest <= most <= 10_000:
                return cls(fewest, most, address)
        raise UsageError(
            "bad-arguments",
            f"--replicas is a number from 1, or a range of them such as 2-8, got {text!r}",
        )
