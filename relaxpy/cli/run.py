"""`relaxpy run`: run a function of an executable or an ONNX model on files or generated inputs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

import relaxpy
from relaxpy.cli.features import feature_option, read_features, warn_about
from relaxpy.cli.functions import called, import_option
from relaxpy.cli.options import function_argument, option
from relaxpy.cli.outputs import OutputFile, json_option, print_json
from relaxpy.errors import ExecutableError, UsageError
from relaxpy.files import replacing
from relaxpy.narrow import is_tuple


@click.command(
    epilog="""
\b
Inputs (repeat --input; names are those of the parameters):
  --input x=x.npy          an array from a file
  --input inputs.npz       every array in it, by its name
  --input 'x=f32[4,64]'    generated: normal floats, integers from 0 to 9, coins for bool
  --input 'x=i64[8]<100'   generated integers below 100
  --input n=3 --input 's=(2,3)' --input flag=true     scalars, shapes

\b
Examples:
  relaxpy run mlp.rxe main --input 'x=f32[4,64]'
  relaxpy run mlp.rxe main --input x=batch.npy --save out.npy
  relaxpy run model.onnx --input x=batch.npy
  relaxpy run mlp.rxe --input x=batch.npy --without-feature avx512f    of several kernel images the AVX2 ones
""",
)
@click.argument("executable", type=click.Path(exists=True, dir_okay=False))
@function_argument
@option("--input", help="An argument; see below.")
@click.option(
    "--save",
    "-s",
    type=OutputFile(),
    help="Save the results: .npy for one array, .npz for any number.",
)
@option("--seed")
@option("--repeat", default=1, help="Repeat the call, and print the median time.")
@feature_option
@import_option
@json_option
def run(
    executable: str,
    function: str | None,
    inputs: tuple[str, ...],
    save: Path | None,
    seed: int,
    repeat: int,
    without_features: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run FUNCTION (if not given: "main", or the only one) of EXECUTABLE, a compiled program or an ONNX
    model, and print its result."""

    import numpy as np

    from relaxpy.cli.inputs import parse_inputs

    if save is not None and save.suffix not in (".npy", ".npz"):
        raise UsageError(
            "bad-output", f"cannot save as {str(save)!r}", help="use the suffix .npy or .npz"
        )
    values = parse_inputs(inputs, seed)
    features = read_features(without_features)
    loaded = load(executable)
    warn_about(features, loaded, executable)
    vm = relaxpy.VirtualMachine(loaded, without_features=features)
    _, call = called(vm, function, values)
    seconds: list[float] = []
    result: object = None
    for _ in range(repeat):
        start = time.perf_counter()
        result = call(**values)
        seconds.append(time.perf_counter() - start)
    leaves = dict(flatten(result, ""))
    if as_json:
        data: dict[str, Any] = {"results": {k or "result": as_data(v) for k, v in leaves.items()}}
        if repeat > 1:
            data |= {"repeat": repeat, "median_seconds": float(np.median(seconds))}
        print_json(data)
    else:
        for path, value in leaves.items():
            click.echo(f"{path or 'result'}: {summary(value)}")
    if repeat > 1 and not as_json:
        click.echo(f"median of {repeat}: {np.median(seconds) * 1e3:.3f} ms", err=True)
    if save is not None:
        save_results(save, leaves)
        click.echo(f"saved {save}", err=as_json)


def load(path: str) -> relaxpy.Executable:
    """The executable in a file; an ONNX model is compiled. For a source program, the error says to compile it
    first."""
    from relaxpy.cli.source import is_onnx, read_program

    if is_onnx(path):
        mod, weights = read_program(path)
        return relaxpy.build(mod, params=weights)
    try:
        return relaxpy.load(path)
    except ExecutableError as error:
        if error.code == "file-format" and path.endswith(".py"):
            compiled = path.removesuffix(".py") + ".rxe"
            error.help = f"compile it first: relaxpy compile {path} -o {compiled}"
        raise


def flatten(value: object, path: str) -> list[tuple[str, object]]:
    """The leaves of a nested tuple with their paths: "0", "1.0", ...; "" for a value that is not a tuple."""

    from relaxpy.runtime.tensor import Shape

    if is_tuple(value) and not isinstance(value, Shape):
        prefix = f"{path}." if path else ""
        return [leaf for i, item in enumerate(value) for leaf in flatten(item, f"{prefix}{i}")]
    return [(path, value)]


def summary(value: object) -> str:
    """One value as text: dtype, shape and (some of) the elements."""

    import numpy as np

    from relaxpy.runtime.tensor import Tensor

    if isinstance(value, Tensor):
        array = value.numpy()
        numbers = np.array2string(array, threshold=12, edgeitems=3, precision=6)
        return f"{value.dtype}{list(array.shape)}\n{numbers}"
    return repr(value)


def as_data(value: object) -> Any:
    """One value as JSON data: a tensor with all of its elements, narrow floats converted to float32."""
    from relaxpy.runtime.tensor import Shape, Tensor

    if isinstance(value, Tensor):
        array = value.numpy()
        numbers = array if array.dtype.kind in "biuf" else array.astype("float32")
        return {"dtype": value.dtype, "shape": array.shape, "values": numbers.tolist()}
    if isinstance(value, Shape):
        return {"shape": tuple(value)}
    return value if isinstance(value, (bool, int, float, str)) else repr(value)


def save_results(path: Path, leaves: dict[str, object]) -> None:
    """Writes the tensors, shapes and numbers in `leaves` to an .npy or .npz file."""

    import numpy as np

    from relaxpy.runtime.tensor import Tensor

    arrays = {
        name or "result": np.asarray(value.numpy() if isinstance(value, Tensor) else value)
        for name, value in leaves.items()
    }
    odd = [name for name, array in arrays.items() if array.dtype.hasobject]
    if odd:
        raise UsageError(
            "bad-output",
            f"result {odd[0]} is neither a tensor, a shape nor a number: it cannot be saved",
        )
    several = path.suffix == ".npz"
    if not several and len(arrays) != 1:
        raise UsageError(
            "bad-output",
            f"there are {len(arrays)} results, but a .npy file contains one array",
            help="save as .npz",
        )
    with replacing(path) as beside, beside.open("wb") as file:
        if several:
            np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
        else:
            np.save(file, next(iter(arrays.values())))
