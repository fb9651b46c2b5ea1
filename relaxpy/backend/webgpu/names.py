"""Identifiers in WGSL for the variables of a program."""

from __future__ import annotations

import re
from typing import Any


class Names:
    """Gives each variable a name of its own, close to the one that it has in the program. They end in an underscore and
    a number, as no word of WGSL and no other name in a kernel does."""

    def __init__(self) -> None:
        self._names: dict[Any, str] = {}
        self._used: dict[str, int] = {}

    def __getitem__(self, var: Any) -> str:
        if var not in self._names:
            self._names[var] = self.fresh(str(var.name))
        return self._names[var]

    def fresh(self, wanted: str) -> str:
        """A new name."""
        plain = re.sub(r"\W|[^\x00-\x7f]", "_", wanted).strip("_") or "v"
        if plain[0].isdigit():
            plain = f"v{plain}"
        number = self._used.get(plain, -1) + 1
        self._used[plain] = number
        return f"{plain}_{number}"
