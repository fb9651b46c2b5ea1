"""`relaxpy ops`: list the operators."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from relaxpy.cli.outputs import first_sentence, json_option, nothing_matches, print_json, selected

if TYPE_CHECKING:
    from relaxpy.op.base import Op


@click.command(
    epilog="""
\b
Examples:
  relaxpy ops              all of them, with their parameters
  relaxpy ops pool         those with "pool" in their names
  relaxpy ops 'nn.*'       those whose names match a pattern
  relaxpy ops softmax --json

In a program they are R.NAME(…), and relaxpy.op.NAME and relaxpy.nn.op.NAME in Python.
"""
)
@click.argument("pattern", default="*")
@json_option
def ops(pattern: str, as_json: bool) -> None:
    """List the operators, or those whose names contain or match PATTERN: their parameters (arguments, then attributes
    with their defaults), and a summary of each."""
    from relaxpy.op import OPS, Op

    known = {name: OPS[name] for name in sorted(OPS) if issubclass(OPS[name], Op)}
    names = selected(pattern, list(known))
    if not names:
        raise nothing_matches("operator", pattern, known)
    rows = [as_data(known[name]) for name in names]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        shown = [
            parameter["name"] + (f"={parameter['default']}" if "default" in parameter else "")
            for parameter in row["parameters"]
        ]
        click.echo(f"R.{row['name']}({', '.join(shown)})\n    {row['summary']}")


def as_data(op: type[Op]) -> dict[str, Any]:
    """An operator as JSON data. Defaults are in Python syntax."""
    from relaxpy.op.base import attr_fields

    parameters: list[dict[str, str]] = [
        {"name": spec.name, **({"default": "None"} if spec.optional else {})} for spec in op.args
    ]
    for field in attr_fields(op):
        required = field.default is dataclasses.MISSING
        default = {} if required else {"default": repr(field.default)}
        parameters.append({"name": field.name, **default})
    summary = first_sentence(op.__doc__)
    return {"name": op.name, "parameters": parameters, "summary": summary}
