"""The option `--without-feature` of commands that run kernels or choose among their images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from relaxpy.errors import did_you_mean

if TYPE_CHECKING:
    from relaxpy.runtime import Executable

feature_option = click.option(
    "--without-feature",
    "without_features",
    multiple=True,
    metavar="NAME",
    help="Run as if this CPU lacked a feature (avx512f): of several images another one is chosen.",
)
"""`VirtualMachine(exe, without_features=…)`, one name for each option, or several with commas."""


def read_features(given: Sequence[str]) -> list[str]:
    """The names of features, by LLVM's names. A leading `+` or `-` is ignored. Raises: click.UsageError."""
    names = [name.strip().lstrip("+-").lower() for text in given for name in text.split(",")]
    if not all(names):
        raise click.UsageError(
            "--without-feature: the name of a CPU feature is expected, avx512f for example"
        )
    return list(dict.fromkeys(names))


def warn_about(features: Sequence[str], executable: Executable, file: str) -> None:
    """Says on stderr which features no kernel image needs: leaving those out changes nothing, and may be a mistyped
    name."""
    needed = {name for each in executable.requirements for name in each.features}
    for name in features:
        if name not in needed:
            hint = did_you_mean(name, sorted(needed), str)
            note = f"no kernel image in {file} needs {name}{f': {hint}' if hint else ''}"
            click.echo(f"note: {note}", err=True)
