"""`relaxpy plan`: show the memory plan of a program, before anything is allocated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import relaxpy
from relaxpy.cli.language_model import (
    CONTEXT_OPTION,
    SCHEME_OPTIONS,
    is_hub_name,
    options,
    scheme_of,
)
from relaxpy.cli.options import option
from relaxpy.cli.outputs import OutputFile, json_option, print_json
from relaxpy.errors import UsageError
from relaxpy.files import write_text

if TYPE_CHECKING:
    from relaxpy.runtime.inspect.memory_plan import MemoryPlan


@click.command(
    epilog="""
\b
Examples:
  relaxpy plan mlp.py --bound n=2048               planned once for all n up to 2048
  relaxpy plan mlp.py --size n=2048                planned at run time, shown for n = 2048
  relaxpy plan mlp.py --bound n=64 --svg plan.svg  and which tensor lies where, from when to when
  relaxpy plan mlp.rxe --size main.n=100           of an executable
  relaxpy plan model.onnx --size batch=8           of an ONNX model, its weights included
  relaxpy plan ./TinyLlama --context 2048 --batch 4    of a language model: weights, pages, activations; does it fit
""",
)
@click.argument("file", type=click.Path(allow_dash=True))
@option("--bound")
@option("--size", help="The value of a symbolic variable, for which the plan is shown.")
@option("--params", help="See `relaxpy compile`.")
@option("--target", help="See `relaxpy compile`.")
@click.option("--svg", type=OutputFile(), help="Draw the plan over time into this file.")
@click.option("--tensors", is_flag=True, help="List all tensors.")
@options(
    CONTEXT_OPTION,
    click.option(
        "--batch",
        type=click.IntRange(min=1),
        metavar="N",
        help="Of a model: N texts of that length at once.",
    ),
    *SCHEME_OPTIONS,
)
@json_option
def plan(
    file: str,
    bounds: tuple[str, ...],
    sizes: tuple[str, ...],
    params: str | None,
    target: str,
    svg: Path | None,
    tensors: bool,
    as_json: bool,
    context: int | None,
    batch: int | None,
    **scheme: Any,
) -> None:
    """Show how much memory FILE takes, a program, an ONNX model or an executable, and for what: planned memory of
    intermediate values, compared with the lower bound for any plan and with the total without sharing; results;
    weights; and the workspaces of kernels. FILE may be the folder of a language model, too, or its name on the
    Hugging Face hub (of which only the headers are read): then its weights, pages of keys and values, and activations
    are shown, whether they fit this machine, and the largest context that does.

    Kernels are not compiled, and nothing is allocated.
    """

    if is_model(file):
        if bounds or sizes or params is not None or svg is not None or tensors:
            raise UsageError(
                "plan-sizes",
                f"{file} is a language model, and --bound, --size, --params, --svg and --tensors are for programs",
                help="leave them out; a language model takes --context, --batch, --bits, --dtype and --cache-dtype",
            )
        plan_model(file, context, batch or 1, target, as_json, **scheme)
        return
    if context is not None or batch is not None:
        raise UsageError(
            "plan-sizes",
            f"--context and --batch are of language models, and {file} is a program",
            help="write --size n=2048 to choose the sizes of the plan",
        )

    if file != "-" and not Path(file).exists():
        raise click.BadParameter(f"Path {file!r} does not exist.", param_hint="'FILE'")

    from relaxpy.build.plan import memory_plan
    from relaxpy.cli.inputs import read_sizes
    from relaxpy.cli.source import is_executable, read_program

    limits, values = read_sizes(bounds, "--bound"), read_sizes(sizes, "--size")
    if is_executable(file):
        if limits or params is not None:
            raise UsageError(
                "plan-sizes",
                "the bounds and parameters of an executable are fixed",
                help="write --size n=2048 to choose the sizes of the plan",
            )
        found = relaxpy.load(file, any_cpu=True).memory_plan(values)
    else:
        mod, weights = read_program(file, params)
        found = memory_plan(mod, target, weights, bounds=limits, sizes=values, inside_kernels=True)
    if as_json:
        print_json(as_data(found, tensors))
    else:
        click.echo(str(found))
    if tensors and not as_json:
        for function in found.functions:
            for tensor in function.tensors:
                where = f"storage {tensor.storage} at {tensor.offset}"
                click.echo(
                    f"{function.name}.{tensor.name}: {tensor.nbytes} bytes, "
                    f"{where if tensor.storage >= 0 else 'separate'}, instructions {tensor.begin}-{tensor.end}"
                )
    if svg is not None:
        write_text(svg, found.svg())
        click.echo(f"{svg}: the timeline", err=as_json)


def is_model(file: str) -> bool:
    """Whether this is the place of a language model, or meant to be one."""
    from relaxpy.cli.source import ONNX_SUFFIXES

    path = Path(file)
    if path.is_dir() or path.suffix in (".gguf", ".safetensors", ".json"):
        return True
    programs = (".py", ".rxe", *ONNX_SUFFIXES)
    return is_hub_name(file) and path.suffix not in programs and not path.exists()


def plan_model(
    file: str, context: int | None, batch: int, target: str, as_json: bool, **scheme: Any
) -> None:
    """Show the plan of a language model."""
    from relaxpy.checkpoints.hub import headers_of
    from relaxpy.models.decoder_plan import plan_decoder

    with headers_of(file) as place:
        found = plan_decoder(
            place, scheme_of(str(place), **scheme), context=context, batch=batch, target=target
        )
    if as_json:
        print_json(found.as_data())
    else:
        click.echo(str(found))


def as_data(plan: MemoryPlan, tensors: bool) -> dict[str, Any]:
    """The plan as JSON data; sizes in bytes. With `tensors`, each tensor is included."""
    functions: list[dict[str, Any]] = []
    for function in plan.functions:
        row: dict[str, Any] = {
            "name": function.name,
            "sizes": function.sizes,
            "planned": function.planned,
            "least": function.least,
            "unshared": function.unshared,
            "workspace": function.workspace,
            "results": function.unplanned,
            "peak": function.peak,
            "kernels": [
                {
                    "name": kernel.name,
                    "bytes": kernel.nbytes(plan.threads) if kernel.known else None,
                }
                for kernel in function.kernels
            ],
        }
        if tensors:
            row["tensors"] = [
                {
                    "name": tensor.name,
                    "bytes": tensor.nbytes,
                    "storage": tensor.storage if tensor.storage >= 0 else None,
                    "offset": tensor.offset,
                    "instructions": [tensor.begin, tensor.end],
                }
                for tensor in function.tensors
            ]
        functions.append(row)
    return {
        "weights": plan.weights,
        "peak": plan.peak,
        "threads": plan.threads,
        "functions": functions,
    }
