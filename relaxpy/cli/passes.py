"""`relaxpy passes`: list the passes of a build."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import click

from relaxpy.cli.options import option
from relaxpy.cli.outputs import first_sentence, json_option, print_json


@click.command(
    epilog="""
\b
Examples:
  relaxpy passes                    for this machine's processor
  relaxpy passes --target opencl    for another target
  relaxpy passes --json

The names are those of `explain --without` and `bisect --without`, and of the methods of a Pipeline. The number is the
level of `compile --opt-level` from which a pass runs: 0 always, 1 fusion, 2 constant folding, 3 all.
"""
)
@option("--target")
@json_option
def passes(target: str, as_json: bool) -> None:
    """List the passes of the pipeline in order, by phase."""
    from relaxpy.build.pipeline import default_pipeline

    rows: list[dict[str, Any]] = [
        {
            "phase": phase.name,
            "pass": step.name,
            "level": 0 if step.mandatory else step.level,
            "summary": first_sentence(step.__doc__),
        }
        for phase in default_pipeline(target).phases
        for step in phase.passes
    ]
    if as_json:
        print_json(rows)
        return
    width = max(len(row["pass"]) for row in rows)
    for phase, members in groupby(rows, key=lambda row: row["phase"]):
        click.echo(phase)
        for row in members:
            click.echo(f"  {row['pass']:<{width}}  {row['level']}  {row['summary']}")
