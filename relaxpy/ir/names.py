"""Unique names."""

from __future__ import annotations

from collections.abc import Iterable


class FreshNames:
    """Generates unique names: `lv`, `lv1`, `lv2`, … in constant time each."""

    def __init__(self, taken: Iterable[str] = (), separator: str = "") -> None:
        self._taken = set(taken)
        self._separator = separator
        self._last: dict[str, int] = {}

    def fresh(self, hint: str) -> str:
        """Return `hint` if it is free, else `hint` with the first number that makes it unique, and reserve the name."""
        name, count = hint, self._last.get(hint, 0)
        while name in self._taken:
            count += 1
            name = f"{hint}{self._separator}{count}"
        self._last[hint] = count
        self._taken.add(name)
        return name

    def copy(self) -> FreshNames:
        """The same names, independent of later ones."""
        other = FreshNames(self._taken, self._separator)
        other._last.update(self._last)
        return other

    def add(self, name: str) -> None:
        """Reserve a name."""
        self._taken.add(name)

    def update(self, names: Iterable[str]) -> None:
        """Reserve several names."""
        self._taken.update(names)

    def __contains__(self, name: object) -> bool:
        return name in self._taken
