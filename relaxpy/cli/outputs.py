"""Files that commands write."""

from __future__ import annotations

import os
from pathlib import Path

import click


class OutputFile(click.Path):
    """The name of a file to write. That it cannot be written is said before the work begins, where it is known then."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Path:
        """The path. Raises: click.BadParameter."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        place = path.resolve()
        if not place.parent.is_dir():
            self.fail(f"There is no folder '{path.parent}'.", param, ctx)
        new = place.is_file() or not place.exists()
        if new and not os.access(place.parent, os.W_OK):
            self.fail(f"The folder '{path.parent}' is not writable.", param, ctx)
        return path
