"""`relaxpy devices`: list the devices of this machine with their limits."""

from __future__ import annotations

from typing import Any

import click

from relaxpy.cli.outputs import json_option, print_json


@click.command(
    epilog="""
\b
Examples:
  relaxpy devices
  relaxpy devices --json
  relaxpy devices vulkan

A program runs on another device than the first one with vm = VirtualMachine(exe, device="vulkan:1").
"""
)
@click.argument("kind", required=False)
@json_option
def devices(kind: str | None, as_json: bool) -> None:
    """List the devices of this machine, or those of one KIND, with their limits. Nothing is compiled."""
    from relaxpy.cli.targets import devices_of
    from relaxpy.errors import RelaxError
    from relaxpy.runtime.devices.registry import kinds, runtime_class, runtime_of

    if kind is not None:
        runtime_class(kind)  # raises the error for an unknown one
    found: list[dict[str, Any]] = []
    for each in kinds() if kind is None else (kind,):
        for number, name in enumerate(devices_of(each)):
            try:
                facts = dict(runtime_of(each, number).facts())
            except RelaxError as error:
                facts = {"problem": error.message}
            found.append({"device": f"{each}:{number}", "name": name, "limits": facts})
    if as_json:
        print_json({"devices": found})
        return
    if not found:
        click.echo(
            f"no device{'' if kind is None else f' of kind {kind}'} here: relaxpy doctor says what is missing"
        )
    for row in found:
        click.echo(f"{row['device']}  {row['name']}")
        for name, value in row["limits"].items():
            click.echo(
                f"  {name:<44} {value:,}" if isinstance(value, int) else f"  {name:<44} {value}"
            )
