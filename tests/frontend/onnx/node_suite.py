"""ONNX's own tests of operators (`onnx.backend.test`), beside relaxpy.

`python -m tests.frontend.onnx.node_suite` runs all of them through the interpreter and prints what becomes of each kind;
with `--built` they are built, with `--wide` every size of their inputs is a symbol, and with `--onnxruntime` it is
ONNX Runtime that runs them, for its rate in the same harness.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx.backend.test.loader import load_model_tests

import relaxpy
from relaxpy.errors import RelaxError
from relaxpy.frontend.dtypes import TAKEN
from relaxpy.frontend.onnx.element_types import NAMES
from relaxpy.frontend.onnx.importer import ConstantNeededError, Imported, import_model
from relaxpy.frontend.onnx.table import DRAWING
from relaxpy.testing.interpret import interpret


@dataclass(frozen=True)
class Outcome:
    """What became of a case."""

    name: str
    kind: str
    """equal, rounded (`is_rounded`), wrong, refused, crashed; or `dtype`: of a type that relaxpy has not, sequences and texts among them."""
    text: str = ""
    constants: tuple[str, ...] = ()
    """Inputs whose values had to be known when the model was read."""


@cache
def cases() -> dict[str, Any]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return {case.name: case for case in load_model_tests(kind="node")}


def is_expanded(name: str) -> bool:
    return "_expanded" in name


def has_our_dtypes(case: Any) -> bool:
    """Are all inputs and outputs tensors of dtypes that relaxpy has?"""
    graph = case.model.graph
    return all(
        info.type.HasField("tensor_type") and NAMES.get(info.type.tensor_type.elem_type) in TAKEN
        for info in [*graph.input, *graph.output]
    )


def widened(model: Any) -> Any:
    """The model with a symbol for each size of its inputs."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    for info in wide.graph.input:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            dim.dim_param = f"{info.name}.{axis}"
    return wide


def is_random(case: Any) -> bool:
    """Does it draw random numbers? ONNX says nothing of which."""
    nodes = case.model.graph.node
    trains = (
        any(n.op_type == "Dropout" and len(n.input) > 2 for n in nodes)
        and "training_dropout" in case.name
    )
    return (trains and "zero_ratio" not in case.name) or any(n.op_type in DRAWING for n in nodes)


def as_array(value: Any) -> np.ndarray:
    """A value of the suite as an array."""
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return np.asarray(value)


def imported(case: Any, wide: bool) -> tuple[Imported, list[str]]:
    """The program, and the inputs that had to be constants."""
    model = widened(case.model) if wide else case.model
    names = [info.name for info in model.graph.input]
    given = dict(zip(names, map(as_array, case.data_sets[0][0]), strict=False))
    constants: dict[str, np.ndarray] = {}
    while True:
        try:
            return import_model(model, constants=constants), list(constants)
        except ConstantNeededError as error:
            new = [name for name in error.inputs if name not in constants]
            if not new:
                raise
            constants.update((name, given[name]) for name in new)


def difference(found: Any, expected: Any, case: Any) -> str | None:
    """What is not as ONNX says; None: nothing."""
    array, wanted = np.asarray(found), as_array(expected)
    if array.dtype != wanted.dtype:
        return f"dtype {array.dtype}, not {wanted.dtype}"
    if array.shape != wanted.shape:
        return f"shape {array.shape}, not {wanted.shape}"
    if wanted.dtype.kind in "biu":
        return None if np.array_equal(array, wanted) else _most(array, wanted)
    if np.allclose(
        array.astype(np.float64), wanted.astype(np.float64), case.rtol, case.atol, equal_nan=True
    ):
        return None
    return _most(array, wanted)


def is_rounded(found: Any, expected: Any) -> bool:
    """Do they differ by rounding: narrow floats by two units in the last place of 1 or of the number, sums in float32
    that cancel by two units of the largest result?"""
    array, wanted = np.asarray(found), as_array(expected)
    same = array.shape == wanted.shape and array.dtype == wanted.dtype
    if not same or array.dtype not in (np.float16, ml_dtypes.bfloat16, np.float32):
        return False
    a, b = array.astype(np.float64), wanted.astype(np.float64)
    unit = float(ml_dtypes.finfo(array.dtype).eps)
    size = np.abs(b).max(initial=0) if array.dtype == np.float32 else np.maximum(1, np.abs(b))
    return bool((np.abs(a - b) <= 2 * unit * size).all())


def _most(array: np.ndarray, wanted: np.ndarray) -> str:
    a, b = array.astype(np.float64), wanted.astype(np.float64)
    with np.errstate(all="ignore"):
        apart = np.where(a == b, 0, np.nan_to_num(np.abs(a - b), nan=np.inf))
    place = int(np.argmax(apart))
    return f"{(apart > 1e-3).sum()} of {a.size} apart, by {apart.max():.3g}: {a.flat[place]:.6g}, not {b.flat[place]:.6g}"


def outcome(
    name: str, wide: bool = False, build: bool = False, onnxruntime: bool = False
) -> Outcome:
    """Run a case, here or in ONNX Runtime."""
    case = cases()[name]
    if not has_our_dtypes(case):
        return Outcome(name, "dtype")
    constants: list[str] = []
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            draws = 0
            if onnxruntime:
                run = _of_onnxruntime(case)
            else:
                program, constants = imported(case, wide)
                run, draws = compiled(program) if build else _interpreted(program), program.draws
            for inputs, outputs in case.data_sets:
                names = [info.name for info in case.model.graph.input]
                given = [
                    as_array(v) for n, v in zip(names, inputs, strict=False) if n not in constants
                ]
                given += [np.int64(7)] * draws
                found = run(*given)
                results = list(found) if isinstance(found, (tuple, list)) else [found]
                for result, expected in zip(results, outputs, strict=True):
                    if is_random(case):  # the distribution has a test of its own
                        expected = np.broadcast_to(result, as_array(expected).shape).astype(
                            as_array(expected).dtype
                        )
                    if (problem := difference(result, expected, case)) is not None:
                        kind = "rounded" if is_rounded(result, expected) else "wrong"
                        return Outcome(name, kind, problem, tuple(constants))
    except RelaxError as error:
        return Outcome(name, "refused", f"{error.code}: {error.message}", tuple(constants))
    except Exception as error:
        if type(error).__module__.startswith("onnxruntime"):
            return Outcome(name, "refused", str(error))
        import traceback

        place = traceback.extract_tb(error.__traceback__)[-1]
        text = (
            f"{type(error).__name__}: {error} at {place.filename.rsplit('/', 1)[-1]}:{place.lineno}"
        )
        return Outcome(name, "crashed", text, tuple(constants))
    return Outcome(name, "equal", "", tuple(constants))


def _interpreted(program: Imported) -> Any:
    weights = list(program.params.values())
    return lambda *args: interpret(program.mod, "main", *args, *weights)


def _of_onnxruntime(case: Any) -> Any:
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    session = onnxruntime.InferenceSession(
        case.model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [each.name for each in session.get_inputs()]
    return lambda *args: session.run(None, dict(zip(names, args, strict=False)))


def compiled(program: Imported, target: str = "llvm -opt-level=0") -> Any:
    executable = relaxpy.build(program.mod, target=target, params=program.params)
    main = relaxpy.VirtualMachine(executable)["main"]

    def run(*args: Any) -> Any:
        found = main(*args)
        return [x.numpy() for x in found] if isinstance(found, (tuple, list)) else found.numpy()

    return run


def table(outcomes: Sequence[Outcome]) -> str:
    """How many cases have each outcome, base and expanded ones apart."""
    lines = []
    for title, expanded in (("base", False), ("expanded", True)):
        chosen = [o for o in outcomes if is_expanded(o.name) == expanded]
        ours = [o for o in chosen if o.kind != "dtype"]
        equal = sum(o.kind == "equal" for o in ours)
        with_constants = sum(o.kind == "equal" and bool(o.constants) for o in ours)
        counts = ", ".join(
            f"{n} {kind}" for kind, n in Counter(o.kind for o in chosen).most_common()
        )
        share = equal / max(len(ours), 1)
        lines.append(
            f"{title}: {equal} of {len(ours)} equal ({share:.1%}; {with_constants} with inputs known when read); {counts}"
        )
    return "\n".join(lines)


def main(arguments: Iterable[str]) -> None:
    flags = {a for a in arguments if a.startswith("--")}
    words = [a for a in arguments if not a.startswith("--")]
    chosen = [n for n in cases() if not words or any(w in n for w in words)]
    start = time.monotonic()
    outcomes = []
    for name in chosen:
        found = outcome(
            name, "--wide" in flags, "--built" in flags, onnxruntime="--onnxruntime" in flags
        )
        outcomes.append(found)
        if found.kind not in ("equal", "dtype"):
            print(f"{found.name} {found.kind}: {found.text[:220]}", flush=True)  # noqa: T201
    print(table(outcomes), f"{time.monotonic() - start:.0f} s", sep="\n")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
