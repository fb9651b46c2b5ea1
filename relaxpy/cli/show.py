"""`relaxpy show`: parse, check and print a program, or list an executable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import relaxpy
from relaxpy.cli.options import file_argument, option
from relaxpy.cli.outputs import json_option, print_json
from relaxpy.errors import UsageError

if TYPE_CHECKING:
    from relaxpy.ir.module import IRModule
    from relaxpy.runtime import Executable


@click.command(
    epilog="""
\b
Examples:
  relaxpy show mlp.py             print the program, every binding with its deduced annotation
  relaxpy show mlp.py --plain     without colours and line numbers, so that it can be read back
  cat mlp.py | relaxpy show -     from stdin
  relaxpy show mlp.rxe            the bytecode, constants and kernels of an executable
  relaxpy show mlp.py --after legalize-ops --function matmul
                                  one function, as passes up to this one make it
  relaxpy show mlp.py --before lower-shapes --target opencl
""",
)
@file_argument
@click.option(
    "--plain",
    is_flag=True,
    help="No colours, no line numbers, all data of constants, as if not on a terminal.",
)
@click.option("--kernels", is_flag=True, help="Show the tensor programs of an executable, too.")
@click.option(
    "--function",
    metavar="NAME",
    help="Show only this function or tensor program and its callees.",
)
@click.option(
    "--after", metavar="PASS", help="Show the program after this pass or phase of the pipeline."
)
@click.option(
    "--before", metavar="PASS", help="Show the program before this pass or phase of the pipeline."
)
@option("--target", help="The target of the pipeline.  [default: llvm]", default=None)
@option("--params", help="See `relaxpy compile`; for --after and --before.")
@option("--bound", help="See `relaxpy compile`; for --after and --before.")
@json_option
def show(
    file: str,
    plain: bool,
    kernels: bool,
    function: str | None,
    after: str | None,
    before: str | None,
    target: str | None,
    params: str | None,
    bounds: tuple[str, ...],
    as_json: bool,
) -> None:
    """Parse, check and print FILE: a program (decorated Python or TVMScript) or an executable.

    Only names of the script language and literals are evaluated: showing a file never runs it. All mistakes in the
    program are reported at once, with their locations. The module after a pass can be shown too.
    """

    from relaxpy.analysis.called_functions import with_callees
    from relaxpy.cli.source import is_executable, read_module
    from relaxpy.script import highlight

    if after is not None and before is not None:
        raise click.UsageError("--after and --before exclude each other")
    compiled = after is not None or before is not None
    if not compiled and (target is not None or params is not None or bounds):
        raise click.UsageError("--target, --params and --bound need --after PASS or --before PASS")
    if is_executable(file):
        if compiled or function is not None:
            raise UsageError(
                "not-a-script",
                f"{file} is an executable: --after, --before and --function need the source of a program",
            )
        executable = relaxpy.load(file, any_cpu=True)
        if as_json:
            print_json(as_data(executable))
        else:
            highlight.show(executable.as_text(kernels), "text", plain)
        return
    mod = read_module(file)
    if compiled:
        mod = _at(mod, after, before, target or "llvm", params, bounds)
    if function is not None:
        mod = with_callees(mod, function)
    if as_json:
        print_json(as_data(mod))
    elif plain or not highlight.is_terminal():
        highlight.show(mod.script(), "python", plain)
    else:
        mod.show()


def _at(
    mod: IRModule,
    after: str | None,
    before: str | None,
    target: str,
    params: str | None,
    bounds: tuple[str, ...],
) -> IRModule:
    """The module at a position in the target's pipeline."""

    # Imported on demand: passes and backends would take most of the command's start-up time.
    from relaxpy.build.pipeline import default_pipeline
    from relaxpy.cli.inputs import read_arrays, read_sizes
    from relaxpy.shape.declare import with_bounds
    from relaxpy.transform.base import PassContext

    resolved = relaxpy.Target.parse(target)
    pipeline = default_pipeline(resolved)
    part = pipeline.through(after) if after is not None else pipeline.until(before or "")
    arrays = {} if params is None else read_arrays(params)
    limits = read_sizes(bounds, "--bound")
    return part(with_bounds(mod, limits), PassContext(resolved, arrays))


def as_data(shown: IRModule | Executable) -> dict[str, Any]:
    """A program or an executable as JSON data: its functions, its contents, and the text that is printed without
    --json."""
    from relaxpy.ir.module import IRModule

    if isinstance(shown, IRModule):
        functions = [
            {"name": name, "parameters": [p.name for p in function.params], "kind": "graph"}
            for name, function in shown.graph_functions.items()
        ]
        programs = [
            {"name": name, "parameters": [p.name for p in program.params], "kind": "tensor program"}
            for name, program in shown.prim_funcs.items()
        ]
        return {"kind": "program", "functions": functions + programs, "text": shown.script()}
    return {
        "kind": "executable",
        "target": shown.target,
        "functions": [
            {
                "name": function.name,
                "parameters": [{"name": p.name, "type": p.annotation} for p in function.params],
                "result": function.ret,
                "public": function.public,
            }
            for function in shown.functions
        ],
        "kernels": [kernel.name for kernel in shown.kernels],
        "object_bytes": sum(map(len, shown.objects)),
        "constants": [{"dtype": c.dtype.name, "shape": c.shape} for c in shown.constants],
        "libraries": shown.libraries,
        "text": shown.as_text(),
    }
