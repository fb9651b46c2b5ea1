"""Checks derivatives against finite differences: of programs, and of an operator's rule on its samples.

Everything runs in the reference interpreter, in float64, so that a difference of 1e-6 of the arguments is exact to
about eight digits. Where a result has fewer digits (a cast to float32), steps and tolerances are larger.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from relaxpy.errors import DeduceError, RelaxError
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Function
from relaxpy.ir.module import IRModule
from relaxpy.op.base import Op, Sample
from relaxpy.op.rule import has_gradient
from relaxpy.testing.interpret import interpret
from relaxpy.testing.op_check import module_of, shown
from relaxpy.testing.op_samples import arrays_of, map_arrays, resized, samples, with_dtype
from relaxpy.transform.gradient import Gradient, Kind

ELEMENTS = 60
"""At most so many elements of each argument are moved, one after the other, drawn at random."""


LARGEST = 30.0
"""Samples with larger values are not checked."""


@dataclass(frozen=True)
class Precision:
    """How derivatives are compared."""

    step: float = 1e-6
    rtol: float = 1e-5
    atol: float = 1e-6

    def compare(self, got: Any, want: Any, what: str) -> None:
        np.testing.assert_allclose(got, want, self.rtol, self.atol, err_msg=what)


NARROW = Precision(1e-2, 3e-2, 3e-2)
"""For results with fewer digits than float64."""


def check_grads(
    program: type[Op] | IRModule | Function,
    *args: Any,
    function: str = "main",
    order: int = 2,
    precision: Precision | None = None,
) -> int:
    """Checks the derivatives of a program at these arguments (arrays of float64, and whatever else it takes): reverse
    mode of every element against finite differences, forward mode against reverse mode, and so for the derivatives of
    these, up to `order`. For an operator's class: its rule, on all its samples whose numbers are small, as they are
    and with symbols, also with sizes 0 and 1. Returns the number of comparisons.

    Raises: AssertionError for what differs; the errors of `Gradient`.
    """
    if isinstance(program, type):
        return sum(check_sample(s, order) for s in samples(program.name) if not s.code)
    mod = IRModule({function: program}) if isinstance(program, Function) else program
    return _check(mod, function, list(args), order, precision, np.random.default_rng(0))


def check_sample(s: Sample, order: int = 2, sizes: bool = True) -> int:
    """Checks an operator's derivatives on a sample, cast to float64. Returns the number of comparisons: 0 where a
    number is large or not finite, or is no float."""
    wide = moved(with_dtype(s, "float", "float64"))
    count = 0
    for what, each, symbolic in settings(wide, sizes):
        floats = [a for a in arrays_of(each) if a.dtype.kind == "f"]
        if not all((np.abs(a) < LARGEST).all() for a in floats):
            continue  # differences tell nothing there
        try:
            mod = module_of(each, symbolic)
        except DeduceError:
            continue  # the sizes do not fit
        main = mod.graph_functions["main"]
        if not has_gradient(main.ret) or not any(has_gradient(p.annotation) for p in main.params):
            continue
        found = deduced_shapes(mod, each)
        if found is None:
            continue
        try:
            count += check_grads(mod, *found, order=order if each is wide else 1)
        except (AssertionError, RelaxError) as error:
            raise AssertionError(f"{shown(each)}, {what}: {error}") from error
    return count


def moved(s: Sample) -> Sample:
    """A sample with floats moved a little, those of each array differently: not where a function jumps or bends, as at
    whole numbers and ties."""
    number = itertools.count(1)

    def move(a: np.ndarray) -> np.ndarray:
        if a.dtype != np.float64:
            return a
        ramp = np.linspace(0, 1e-3, a.size).reshape(a.shape)
        return np.asarray(a + 0.00713 * next(number) + ramp)

    return replace(s, inputs=map_arrays(s.inputs, move))


def settings(s: Sample, sizes: bool) -> Iterator[tuple[str, Sample, bool]]:
    """A sample as it is, with symbols, and with symbols that are 1, or 0."""
    yield "as it is", s, False
    if not s.dims:
        return
    yield "with symbols", s, True
    names = {name for group in s.dims.replace("*", " ").split(",") for name in group.split()}
    names -= {name for name in names if name.lstrip("-").isdigit()}
    full = all(a.size for a in arrays_of(s))  # of no elements there are no values to repeat
    for size in (1, 0) if sizes and full else ():
        yield f"sizes {size}", resized(s, dict.fromkeys(names, size)), True


def deduced_shapes(mod: IRModule, s: Sample) -> list[Any] | None:
    """The arguments of the function of a sample; None if it refuses them, or gives no finite numbers."""
    given = iter(arrays_of(s))
    arguments = [
        next(given)
        for p in mod.graph_functions["main"].params
        if isinstance(p.annotation, TensorType)
    ]
    if len(arguments) != len(mod.graph_functions["main"].params):
        return None  # sizes that no argument has
    try:
        with np.errstate(all="ignore"):
            result = interpret(mod, "main", *arguments)
    except RelaxError:
        return None
    finite = all(np.isfinite(np.asarray(leaf, np.float64)).all() for leaf in floats_of(result))
    return arguments if finite else None


def floats_of(value: Any) -> list[np.ndarray]:
    """The arrays of floats in a value."""
    if isinstance(value, (tuple, list)):
        fields: Any = value
        return [leaf for each in fields for leaf in floats_of(each)]
    if not isinstance(value, (np.ndarray, np.generic)) or not DType(value.dtype).is_float:
        return []  # a scalar has no derivative
    return [np.asarray(value)]


def like(value: Any, rng: np.random.Generator) -> Any:
    """Random numbers in place of floats; empty tuples in place of everything else: a cotangent, or tangent."""
    if isinstance(value, (tuple, list)):
        found = tuple(like(each, rng) for each in value)
        return (
            found
            if any(len(each) or isinstance(each, np.ndarray) for each in map(_sized, found))
            else ()
        )
    if not isinstance(value, (np.ndarray, np.generic)) or not DType(value.dtype).is_float:
        return ()
    array = np.asarray(value)
    return np.asarray(rng.uniform(0.5, 1.5, array.shape) * rng.choice([-1, 1], array.shape)).astype(
        array.dtype
    )


def _sized(value: Any) -> Any:
    return np.atleast_1d(value) if isinstance(value, np.ndarray) else value


def dot(a: Any, b: Any) -> float:
    """The sum of the products of corresponding elements."""
    pairs = zip(floats_of(a), floats_of(b), strict=True)
    return float(sum(np.sum(x.astype(np.float64) * y.astype(np.float64)) for x, y in pairs))


def _check(
    mod: IRModule,
    name: str,
    args: list[Any],
    order: int,
    precision: Precision | None,
    rng: np.random.Generator,
) -> int:
    main = mod.graph_functions[name]
    wrt = [i for i, p in enumerate(main.params) if has_gradient(p.annotation)]
    ways: Mapping[Kind, IRModule] = {k: Gradient(name, k)(mod) for k in ("vjp", "jvp")}  # type: ignore[misc]

    def run(given: Sequence[Any], kind: Kind | None = None) -> Any:
        with np.errstate(all="ignore"):
            program = mod if kind is None else ways[kind]
            called = name if kind is None else f"{name}_{kind}"
            return interpret(program, called, *given)

    value = run(args)
    bits = min((DType(leaf.dtype).bits for leaf in floats_of((value, tuple(args)))), default=64)
    narrow = bits < 64
    precision = precision or (NARROW if narrow else Precision())
    ct = like(value, rng)
    again, found = run([*args, ct], "vjp")
    for a, b in zip(floats_of(again), floats_of(value), strict=True):
        np.testing.assert_array_equal(a, b, err_msg="the value beside a derivative")
    count = 1
    for i, each in zip(wrt, found, strict=True):
        for k, (got, at) in enumerate(zip(floats_of(each), floats_of(args[i]), strict=True)):
            assert got.shape == at.shape, (
                f"the cotangent of {main.params[i].name} has shape {got.shape}"
            )
            assert got.dtype == at.dtype, f"the cotangent of {main.params[i].name} is {got.dtype}"
            places = (
                rng.permutation(at.size)[:ELEMENTS] if at.size > ELEMENTS else np.arange(at.size)
            )
            for place in places:
                want = _slope(run, args, i, k, int(place), ct, precision.step)
                where = f"{main.params[i].name}, element {np.unravel_index(place, at.shape)}"
                precision.compare(got.reshape(-1)[place], want, f"the cotangent of {where}")
                count += 1
    tangents = [like(args[i], rng) for i in wrt]
    _, pushed = run([*args, *tangents], "jvp")
    precision.compare(
        dot(pushed, ct), dot(tuple(tangents), tuple(found)), "forward mode beside reverse mode"
    )
    if order > 1:
        count += _check(ways["vjp"], f"{name}_vjp", [*args, ct], order - 1, precision, rng)
    return count + 1


def _slope(run: Any, args: list[Any], i: int, leaf: int, place: int, ct: Any, step: float) -> float:
    """The derivative of the result's product with `ct` by one element, by differences."""
    ends = []
    for move in (step, -step):
        moved = list(args)
        moved[i] = _moved(args[i], [leaf], place, move)
        ends.append(run(moved))
    pairs = zip(floats_of(ends[0]), floats_of(ends[1]), floats_of(ct), strict=True)
    wide = [[x.astype(np.float64) for x in each] for each in pairs]
    return float(sum(np.sum((a - b) * c) for a, b, c in wide)) / (2 * step)


def _moved(value: Any, leaf: list[int], place: int, by: float) -> Any:
    """A value with one element of its leaf number `leaf` moved."""
    if isinstance(value, (tuple, list)):
        return tuple(_moved(each, leaf, place, by) for each in value)
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return value
    leaf[0] -= 1
    if leaf[0] != -1:
        return value
    moved = value.copy()
    moved.reshape(-1)[place] += by
    return moved
