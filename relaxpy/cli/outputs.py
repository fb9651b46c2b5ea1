"""The output of commands: lists, JSON, files."""

from __future__ import annotations

import fnmatch
import json
import math
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from relaxpy.errors import did_you_mean
from relaxpy.narrow import is_mapping, is_sequence

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
"""The option `--json` of every command that lists something: the same content, for programs."""


def print_json(value: object) -> None:
    """Prints `value` as JSON. It may contain paths; NaN and infinities become the strings "nan", "inf" and "-inf"."""
    click.echo(json.dumps(_plain(value), indent=1, ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    if is_mapping(value):
        return {str(key): _plain(item) for key, item in value.items()}
    if is_sequence(value):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return str(value) if isinstance(value, Path) else value


def first_sentence(doc: str | None) -> str:
    """The first sentence of a docstring, in one line."""
    text = " ".join((doc or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[^a-z])", text, maxsplit=1)[0].removesuffix(":")


def selected(pattern: str, names: Sequence[str]) -> list[str]:
    """Names that match a shell pattern, or contain a text without wildcards."""
    wild = any(character in pattern for character in "*?[")
    return fnmatch.filter(names, pattern) if wild else [name for name in names if pattern in name]


def nothing_matches(kind: str, pattern: str, names: Iterable[str]) -> click.UsageError:
    """The error for a pattern that selects nothing."""
    hint = did_you_mean(pattern, names, str, 3)
    return click.UsageError(f"no {kind} matches {pattern!r}{f': {hint}' if hint else ''}")


class OutputFile(click.Path):
    """The name of an output file. A file that cannot be written is reported before the work begins, if that is known by
    then."""

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
