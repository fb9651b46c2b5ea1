"""`relaxpy targets`: list the kinds of targets and devices, without testing them."""

from __future__ import annotations

from collections.abc import Sequence

import click

from relaxpy.cli.outputs import json_option, print_json


@click.command(
    epilog="""
\b
Examples:
  relaxpy targets
  relaxpy targets --json

`relaxpy doctor` compiles and runs a kernel for each. Packages can bring more kinds.
"""
)
@json_option
def targets(as_json: bool) -> None:
    """List the kinds of target that programs can be compiled for, the meaning of each on this machine, and the
    available devices. Nothing is compiled."""
    from relaxpy.backend.registry import backends
    from relaxpy.errors import RelaxError
    from relaxpy.runtime.devices.registry import kinds
    from relaxpy.target import Target

    found: list[dict[str, str | None]] = []
    for each in backends():
        try:
            text, problem = str(Target.parse(each.kind)), None
        except (
            RelaxError
        ) as error:  # a package's backend that does not load, or a kind without a device
            text, problem = None, error.message
        found.append(
            {
                "kind": each.kind,
                "target": text,
                "package": each.package or "relaxpy",
                "problem": problem,
            }
        )
    devices = [
        {"kind": kind, "number": number, "name": name}
        for kind in kinds()
        for number, name in enumerate(devices_of(kind))
    ]
    if as_json:
        print_json({"targets": found, "devices": devices})
        return
    click.echo("Targets")
    for row in found:
        origin = "" if row["package"] == "relaxpy" else f" ({row['package']})"
        click.echo(f"  {row['kind']:<8} {row['target'] or row['problem']}{origin}")
    click.echo("\nDevices")
    for row in devices:
        click.echo(f"  {row['kind']}:{row['number']}  {row['name']}")


def devices_of(kind: str) -> Sequence[str]:
    """The devices of a kind; empty if the package that provides it cannot be imported."""
    from relaxpy.errors import RelaxError
    from relaxpy.runtime.devices.registry import runtime_class

    try:
        return runtime_class(kind).devices()
    except RelaxError:
        return ()
