"""`check_op`: right operators pass, and each method's mistake is found and named."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RelaxError
from relaxpy.ir import KnownTensor, TensorType
from relaxpy.op import te
from relaxpy.op.base import OPS, Op, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.testing import check_op


def deduce(self: Op, d: Deduction, x: KnownTensor) -> TensorType:
    d.need_float(x, "x")
    return x


def legalize(self: Op, out: KnownTensor, x: te.Tensor) -> te.Tensor:
    return te.compute(out.dims, lambda *i: x(*i) * te.const(0.5, out.dtype))


def reference(self: Op, x: np.ndarray) -> np.ndarray:
    return x * x.dtype.type(0.5)


def samples(cls: type[Op]) -> Iterator[Any]:
    yield sample(cls(), rand(3, 5), dims="n 5")
    yield wrong(cls(), rand(3, dtype="int32"), code="op-dtype", match="float")


RIGHT: dict[str, Any] = {
    "deduce": deduce, "legalize": legalize, "reference": reference, "samples": classmethod(samples),
    "__doc__": "Half of x.", "__module__": __name__,
}  # fmt: skip


LEFT_OUT = object()
Make = Callable[..., type[Op]]
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def operator() -> Iterator[Make]:
    """Makes an operator with some methods replaced or `LEFT_OUT`, for the time of these tests."""
    before = dict(OPS)

    def make(**other: Any) -> type[Op]:
        methods = {**RIGHT, "name": f"mine{next(NUMBERS)}", **other}  # samples are kept by name
        methods = {key: value for key, value in methods.items() if value is not LEFT_OUT}
        return define_op(type("Mine", (Op,), methods))

    yield make
    for name in OPS.keys() - before.keys():
        del OPS[name]


def test_a_right_operator(operator: Make) -> None:
    """Its numbers are compared in all dtypes of floats, and beyond the sizes of its samples."""
    cls = operator()
    assert check_op(cls) > 20
    assert relaxpy.testing.check_op(cls, "llvm -opt-level=0") > 20


def test_an_operator_of_relaxpy() -> None:
    assert check_op(OPS["nn.relu"]) > 20  # type: ignore[arg-type]


def negated(self: Op, emit: Callable[..., Any], x: Any) -> Any:
    return OPS["negative"].make(emit(OPS["abs"].make(x)))


def test_an_operator_of_others(operator: Make) -> None:
    """The calls that it consists of are compared with its reference."""
    of_others = {"legalize": None, "decompose": negated}
    right = operator(**of_others, reference=lambda _, x: -np.abs(x))
    assert check_op(right) > 5
    with pytest.raises(AssertionError, match="the calls of others"):
        check_op(operator(**of_others))


def a_shape_of_less(self: Op, d: Deduction, x: KnownTensor) -> TensorType:
    return TensorType(x.dims[:-1], x.dtype)


def by_a_number(self: Op, out: KnownTensor, x: te.Tensor) -> te.Tensor:
    return te.compute(out.dims, lambda *i: x(*i) * 0.5)


def of_the_next(self: Op, out: KnownTensor, x: te.Tensor) -> te.Tensor:
    """Right for the sample's size only."""
    n = out.dims[0]
    factor = te.select(te.dim(n) == 3, te.const(0.5, out.dtype), te.const(2, out.dtype))
    return te.compute(out.dims, lambda *i: x(*i) * factor)


def nothing(self: Op, out: KnownTensor, x: te.Tensor) -> None:
    return None


def the_same(self: Op, x: np.ndarray) -> np.ndarray:
    return x


def wide(self: Op, x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def none(cls: type[Op]) -> Iterator[Any]:
    yield from ()


def nameless(cls: type[Op]) -> Iterator[Any]:
    yield sample(cls(), rand(3, 5))


def misfit(cls: type[Op]) -> Iterator[Any]:
    yield sample(cls(), rand(3, 5), dims="n")


def too_strict(cls: type[Op]) -> Iterator[Any]:
    yield from samples(cls)
    yield wrong(cls(), rand(3), code="op-rank")


def otherwise(cls: type[Op]) -> Iterator[Any]:
    yield sample(cls(), rand(3, 5), dims="n 5")
    yield wrong(cls(), rand(3, dtype="int32"), code="op-rank", match="float")


def fails(self: Op, *args: Any) -> Any:
    raise ArithmeticError("my mistake")


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "deduce: rank": ({"deduce": a_shape_of_less}, "deduce says R.Tensor((3,)"),
    "legalize: dtype": ({"legalize": by_a_number}, "its legalize gives a tensor of 2 dimensions of float32"),
    "legalize: sizes": ({"legalize": of_the_next}, "at {'n': 1}"),
    "legalize: crash": ({"legalize": fails}, "its legalize failed: ArithmeticError: my mistake"),
    "legalize: nothing": ({"legalize": nothing}, "its legalize gives a NoneType"),
    "reference: numbers": ({"reference": the_same}, "legalize, as Python"),
    "reference: dtype": ({"reference": wide}, "the reference gives R.Tensor((3, 5), dtype=\"float64\")"),
    "reference: crash": ({"reference": fails}, "ArithmeticError: my mistake"),
    "samples: none": ({"samples": classmethod(none)}, "no sample must work"),
    "samples: no symbols": ({"samples": classmethod(nameless)}, "no sample names dimensions"),
    "samples: misfit": ({"samples": classmethod(misfit)}, "dims='n' does not fit the shape (3, 5)"),
    "samples: not refused": ({"samples": classmethod(too_strict)}, "it must be refused (op-rank)"),
    "samples: another code": ({"samples": classmethod(otherwise)}, "refused as op-dtype, not as op-rank"),
    "no samples": ({"samples": LEFT_OUT}, "no sample must work"),
    "no reference": ({"reference": LEFT_OUT}, "has no reference"),
    "no docstring": ({"__doc__": ""}, "the class has no docstring"),
}  # fmt: skip


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_found(operator: Make, what: str) -> None:
    other, told = MISTAKES[what]
    cls = operator(**other)
    with pytest.raises(AssertionError) as caught:
        check_op(cls)
    assert told in str(caught.value)
    assert str(caught.value).startswith(f"{cls.name}: ")


def test_the_line_of_a_crash_is_shown(operator: Make) -> None:
    """In the error of a user of the operator, too."""

    def crashes(self: Op, d: Deduction, x: KnownTensor) -> TensorType:
        raise ArithmeticError("my mistake")

    cls = operator(deduce=crashes)
    with pytest.raises(AssertionError, match='raise ArithmeticError\\("my mistake"\\)'):
        check_op(cls)
    with pytest.raises(RelaxError) as caught:
        relaxpy.parse(
            f"@R.function\ndef main(x: R.Tensor((3,), 'float32')):\n    return R.{cls.name}(x)\n"
        )
    assert caught.value.code == "op-crash"
    text = str(caught.value)
    assert 'raise ArithmeticError("my mistake")' in text
    assert f"return R.{cls.name}(x)" in text
    assert "bug in relaxpy" not in text


@pytest.mark.parametrize("missing", ["name", "deduce", "legalize"])
def test_an_unfinished_class_is_refused(operator: Make, missing: str) -> None:
    with pytest.raises(RelaxError, match=f"has no {missing}") as caught:
        operator(**{missing: LEFT_OUT})
    assert caught.value.code == "operator-class"


def test_a_parameter_without_a_type_is_refused(operator: Make) -> None:
    with pytest.raises(RelaxError, match="the parameter x of deduce with no type") as caught:
        operator(deduce=untyped)
    assert "x: Annotation, KnownShape, KnownTensor" in str(caught.value)
    with pytest.raises(RelaxError, match="with type int"):
        operator(deduce=of_a_count)


def untyped(self: Op, d: Deduction, x):  # type: ignore[no-untyped-def]
    return x  # pyright: ignore


def of_a_count(self: Op, d: Deduction, count: int) -> TensorType:
    return TensorType((count,), "float32")


def test_a_name_that_is_taken_is_refused(operator: Make) -> None:
    with pytest.raises(RelaxError, match=r"operator nn\.relu is defined twice"):
        operator(name="nn.relu")


def test_what_is_no_operator_is_refused() -> None:
    with pytest.raises(TypeError, match="@define_op"):
        check_op(3)  # type: ignore[arg-type]
