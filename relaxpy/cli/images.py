"""The kernel images of an executable and which of them run here, for `relaxpy doctor FILE`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

import relaxpy
from relaxpy.errors import ExecutableError

if TYPE_CHECKING:
    from relaxpy.runtime import Executable


def examine(file: str, features: Sequence[str], as_json: bool) -> bool:
    """Prints the images of an executable, and whether it runs on this machine, which is returned too. Features in
    `features` count as missing."""
    from relaxpy.cli.outputs import print_json

    executable = relaxpy.load(file, any_cpu=True)
    problem = _problem(executable, features, file)
    data = _as_data(executable, features, file, problem)
    if as_json:
        print_json(data)
        return problem is None
    click.echo(f"{file}: {_counted(len(executable.kernels))} for {data['target']}")
    for image in data["images"]:
        mark = {True: click.style("yes", fg="green"), False: click.style("no ", fg="yellow")}
        runs = image["lacks"] is None or not image["lacks"]
        click.echo(f"  {mark[runs]}  {image['text']}")
        needs = ", ".join(filter(None, (image["arch"], *image["features"])))
        click.echo(f"       └ needs {needs or 'nothing special'}")
    if problem is not None:
        click.echo(problem.render(), err=True)
    else:
        click.echo(f"{file} runs here.")
    return problem is None


def _counted(kernels: int) -> str:
    return f"{kernels} kernel{'s' * (kernels != 1)}"


def _problem(executable: Executable, features: Sequence[str], file: str) -> ExecutableError | None:
    """The reason why an executable does not run on this machine."""
    try:
        executable.require_host(file)
        executable.images_here(file, features)
    except ExecutableError as error:
        return error
    return None


def _as_data(
    executable: Executable, features: Sequence[str], file: str, problem: ExecutableError | None
) -> dict[str, Any]:
    from relaxpy.runtime.inspect.image_choices import image_choices

    target = executable.target
    return {
        "file": file,
        "target": target.get("text") or target.get("kind"),
        "kernels": len(executable.kernels),
        "images": [
            {
                "name": each.name,
                "device": each.slot,
                "arch": each.arch,
                "features": each.features,
                "kernels": each.images,
                "lacks": each.lacks,
                "chosen": each.chosen,
                "text": str(each),
            }
            for each in image_choices(executable, features)
        ],
        "runs": problem is None,
        "problem": None if problem is None else problem.message,
    }
