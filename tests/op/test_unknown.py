"""Deduction where something of the arguments is not known: dtypes, ranks, shapes that variables hold, virtual devices.
What is deduced is compared with TVM's, which has the same rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tvm import relax
from tvm.ir import Op as TVMOp
from tvm.relax.global_info import VDevice

from relaxpy.errors import DeduceError
from relaxpy.ir.annotation import Annotation, ShapeType, TensorType, TupleType
from relaxpy.ir.dim import SymVar
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Call, Constant, Expr, ShapeExpr, Tuple, Var
from relaxpy.op.base import OPS
from relaxpy.op.deduce import deduce
from relaxpy.op.elementwise import Elementwise
from relaxpy.testing.op_samples import apply, samples
from relaxpy.tir.analyzer import to_tvm
from tests.sweeps import sweep

ELEMENTWISE = [
    cls for name, cls in OPS.items() if issubclass(cls, Elementwise) and not name.startswith("nn.")
]
KEEP_SHAPE = ["nn.relu", "nn.softmax", "nn.silu", "astype", "cumsum", "sort", "flip", "zeros_like"]


def call(name: str, *annotations: Annotation, **attrs: Any) -> Call:
    args = [Var(f"x{i}", annotation) for i, annotation in enumerate(annotations)]
    return OPS[name].make(*args, **attrs)  # type: ignore[attr-defined]


@pytest.mark.parametrize("ndim", [2, -1])
@pytest.mark.parametrize("cls", ELEMENTWISE, ids=lambda cls: cls.name)
def test_a_shape_variable_passes_through_elementwise_operators(
    cls: type[Elementwise], ndim: int
) -> None:
    s = Var("s", ShapeType(None, ndim))
    dtype = next(each for each in ("float32", "int32", "int64", "bool") if cls.accepts(DType(each)))
    attrs: dict[str, Any] = {
        "clip": {"min": 0, "max": 1},
        "reduce_precision": {"exponent_bits": 5, "mantissa_bits": 7},
    }.get(cls.name, {})
    found = deduce(call(cls.name, *[TensorType(s, dtype)] * len(cls.args), **attrs))
    assert isinstance(found, TensorType)
    assert found.shape is s


@pytest.mark.parametrize("name", KEEP_SHAPE)
def test_a_shape_variable_passes_through_all_that_keep_the_shape(name: str) -> None:
    s = Var("s", ShapeType(ndim=2))
    attrs: dict[str, Any] = {"dtype": "int8"} if name == "astype" else {}
    attrs |= {"axis": 1} if name in ("cumsum", "flip") else {}
    found = deduce(call(name, TensorType(s, "float32"), **attrs))
    assert isinstance(found, TensorType)
    assert found.shape is s


def test_two_shape_variables_are_two_shapes() -> None:
    s, t = Var("s", ShapeType(ndim=2)), Var("t", ShapeType(ndim=2))
    assert deduce(call("add", TensorType(s, "int8"), TensorType(t, "int8"))) == TensorType(
        None, "int8", 2
    )


def test_a_shape_that_is_an_argument() -> None:
    for s in (Var("s", ShapeType(ndim=2)), Var("s", ShapeType())):
        x = Var("x", TensorType((), "float32"))
        assert deduce(OPS["zeros"].make(s, "float32")) == TensorType(s, "float32")  # type: ignore[attr-defined]
        assert deduce(OPS["broadcast_to"].make(x, s)) == TensorType(s, "float32")  # type: ignore[attr-defined]
    t = Var("t", ShapeType(ndim=2))
    first = deduce(OPS["zeros"].make(t, "float32"))  # type: ignore[attr-defined]
    assert isinstance(first, TensorType)
    assert first.shape is t  # not that of the call before


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("flatten", [TensorType(None, "int8")], TensorType(None, "int8", 1)),
        ("sum", [TensorType(None, "int8")], TensorType((), "int8")),
        ("argmax", [TensorType()], TensorType((), "int64")),
        ("exp", [TensorType()], TensorType()),
        ("nn.relu", [TensorType(None, None, 2)], TensorType(None, None, 2)),
        ("shape_of", [TensorType()], ShapeType()),
        ("add", [TensorType(None, "int8"), TensorType((2,), "int8")], TensorType(None, "int8")),
    ],
)
def test_unknown_ranks(name: str, arguments: list[Annotation], expected: Annotation) -> None:
    assert deduce(call(name, *arguments)) == expected


@pytest.mark.parametrize(
    ("subscripts", "rank"),
    [
        ("ij,jk->ik", 2),  # the letters tell the rank of the unknown operand
        ("ij,jk", 2),
        ("ij,jkl->", 0),
        ("i...,j->...ij", 4),  # the operand with "..." is known
        ("ij,...j->...i", -1),  # the dots of the other stand for any number of axes
    ],
)
def test_the_rank_of_a_sum_of_unknown_operands(subscripts: str, rank: int) -> None:
    first = TensorType(None, "float32", 3 if "..." in subscripts.partition(",")[0] else 2)
    both = Tuple((Var("x", first), Var("y", TensorType())))
    found = deduce(OPS["einsum"].make(both, subscripts=subscripts))  # type: ignore[attr-defined]
    assert found == TensorType(None, "float32", rank)


def test_the_rank_of_a_median_of_unknown_data() -> None:
    x = Var("x", TensorType(None, "float32"))
    several = OPS["median"].make(x, axis=[0, 2])  # type: ignore[attr-defined]
    assert deduce(several) == TensorType(None, "float32")
    one = OPS["median"].make(x, axis=[2])  # type: ignore[attr-defined]
    assert deduce(one) == TupleType((TensorType(None, "float32"), TensorType(None, "int64")))


def test_what_no_rank_allows_is_refused() -> None:
    with pytest.raises(DeduceError, match="float"):
        deduce(call("exp", TensorType(None, "int32")))


def test_a_dtype_that_is_not_known_is_not_made_up() -> None:
    x = Var("x", TensorType((4,)))
    for dtype in ("int32", "int8", "float64", "bfloat16"):
        found = deduce(OPS["add"].make(x, Constant([1], dtype)))  # type: ignore[attr-defined]
        assert found == TensorType((4,))
    where = call("where", TensorType((4,)), TensorType((4,), "int8"), TensorType((4,), "int8"))
    assert deduce(where) == TensorType((4,), "int8")
    data = call("take", TensorType((4,), "float16"), TensorType((2,)), axis=0)
    assert deduce(data) == TensorType((2,), "float16")


@pytest.mark.parametrize("name", ["add", "maximum", "less", "matmul", "concat", "take", "where"])
def test_one_virtual_device(name: str) -> None:
    here, there = TensorType((2, 2), "int64", vdevice="llvm:0"), TensorType((2, 2), "int64")
    attrs = {"axis": 0} if name == "take" else {}

    def deduced(*annotations: TensorType) -> Annotation:
        args: list[Expr] = [Var(f"x{i}", a) for i, a in enumerate(annotations)]
        given = [Tuple(tuple(args))] if name == "concat" else args
        if name == "where":
            given = [Var("c", TensorType((2, 2), "bool")), *args]
        return deduce(OPS[name].make(*given, **attrs))  # type: ignore[attr-defined]

    for pair in ((here, there), (there, here), (here, here)):
        found = deduced(*pair)
        assert isinstance(found, TensorType)
        assert found.vdevice == "llvm:0:global"
    with pytest.raises(DeduceError, match="different devices: cuda:0:global and llvm:0:global"):
        deduced(here, TensorType((2, 2), "int64", vdevice="cuda:0"))


def test_fields_of_a_tuple_are_on_the_device() -> None:
    parts = deduce(call("split", TensorType((4,), "int8", vdevice="llvm:0"), indices_or_sections=2))
    assert isinstance(parts, TupleType)
    assert parts.fields == (TensorType((2,), "int8", vdevice="llvm:0"),) * 2


def test_a_variable_of_known_dimensions_is_these_dimensions() -> None:
    n = SymVar("n")
    s, t = Var("s", ShapeType((n, 4))), Var("t", ShapeType((n, 4)))
    for shape in (s, t, (n, 4)):
        found = deduce(call("add", TensorType(s, "int8"), TensorType(shape, "int8")))
        assert found == TensorType((n, 4), "int8")
    found = deduce(call("exp", TensorType(s, "float32")))
    assert isinstance(found, TensorType)
    assert found.shape is s


def test_a_variable_says_more_than_a_rank() -> None:
    s = Var("s", ShapeType())
    arguments = TensorType(None, "float32", 4), TensorType(s, "float32")
    found = deduce(call("grad.max_pool2d_backward", *arguments, pool_size=2))
    assert isinstance(found, TensorType)
    assert found.shape is s


def test_known_dimensions_beside_unknown_ones() -> None:
    predictions, targets = TensorType((2, 5, 3), "float32"), TensorType(None, "int64", 2)
    for pair in (
        (predictions, targets),
        (TensorType(None, "float32", 3), TensorType((2, 3), "int8")),
    ):
        found = deduce(call("nn.nll_loss", *pair, reduction="none"))
        assert found == TensorType((2, 3), "float32")


def test_moving_mean_and_variance_keep_their_shapes() -> None:
    one = [TensorType((3,), "float32")] * 3
    data, moving = TensorType((2, 3, 4), "float32"), TensorType(None, "float32", 1)
    assert deduce(call("nn.batch_norm", data, *one, moving, axis=1)) == TupleType(
        (data, one[0], moving)
    )


@pytest.mark.parametrize(
    ("name", "arguments", "attrs", "expected"),
    [
        (
            "vision.roi_align", [TensorType((2, 3, 6, 8), "float16"), TensorType((5, 5))],
            {"pooled_size": 2, "spatial_scale": 0.5}, TensorType((5, 3, 2, 2), "float16"),
        ),
        ("nn.attention", [TensorType((1, 3, 2, 4), "float16"), *[TensorType((1, 3, 2, 4))] * 2], {}, TensorType((1, 3, 2, 4), "float16")),
        ("index_put", [TensorType((3, 4), "int8"), TupleType([TensorType()] * 2), TensorType()], {}, TensorType((3, 4), "int8")),
        ("quantize", [TensorType((3, 4), "float32"), TensorType(), TensorType()], {}, TensorType((3, 4), "int8")),
    ],
)  # fmt: skip
def test_what_is_known_of_data_is_known_of_the_result(
    name: str, arguments: list[Annotation], attrs: dict[str, Any], expected: Annotation
) -> None:
    assert deduce(call(name, *arguments, **attrs)) == expected


@pytest.mark.parametrize(
    ("name", "attrs"),
    [("nn.max_pool2d", {}), ("nn.adaptive_avg_pool2d", {"output_size": (4, 5)}), ("image.resize2d", {"size": (4, 5)})],
)  # fmt: skip
def test_the_size_of_a_block_is_that_of_the_layout(name: str, attrs: dict[str, Any]) -> None:
    n, c, inner = (SymVar(x).dim for x in ("n", "c", "inner"))
    data = TensorType((n, c, 4, 5, inner), "float32")
    shape = attrs.pop("size", None)
    sizes: list[Expr] = [] if shape is None else [ShapeExpr(shape)]
    packed = OPS[name].make(Var("x", data), *sizes, **attrs, layout="NCHW7c")  # type: ignore[attr-defined]
    assert deduce(packed) == TensorType((n, c, 4, 5, 7), "float32")


@pytest.mark.parametrize("name", ["nn.conv2d", "nn.conv2d_transpose"])
def test_a_written_dtype_is_that_of_the_result(name: str) -> None:
    x, w = TensorType((2, 3, 5, 5), "float32"), TensorType((3, 3, 2, 2))
    for arguments in ((x, w), (TensorType(x.shape), TensorType(w.shape, "float32"))):
        found = deduce(call(name, *arguments, out_dtype="float32"))
        assert isinstance(found, TensorType)
        assert found.dtype == "float32"


def test_ewise_fma_takes_one_shape() -> None:
    known, unknown = TensorType((3, 4), "float32"), TensorType(None, "float32")
    assert deduce(call("ewise_fma", known, unknown, unknown)) == known
    with pytest.raises(DeduceError, match="2 dimensions, got 1"):
        deduce(call("ewise_fma", known, known, TensorType((4,), "float32")))


# Beside TVM


LLVM = VDevice("llvm", 0)
"""TVM compares devices by identity."""


def coarser(t: TensorType) -> Iterator[TensorType]:
    s = Var("s", ShapeType(None, t.ndim))
    yield t
    yield TensorType(None, t.dtype, t.ndim)
    yield TensorType(None, t.dtype)
    yield TensorType(t.shape, None)
    yield TensorType()
    yield TensorType(t.shape, t.dtype, vdevice="llvm:0")
    yield TensorType(None, t.dtype, t.ndim, vdevice="llvm:0")
    yield TensorType(s, t.dtype)


def to_peer(t: Annotation, shapes: dict[Var, Any]) -> Any:
    assert isinstance(t, TensorType)
    device = LLVM if t.vdevice else None
    shape: Any = None
    if isinstance(t.shape, Var):
        made = relax.Var("s", relax.ShapeType(ndim=t.shape.annotation.ndim))  # type: ignore[attr-defined]
        shape = shapes.setdefault(t.shape, made)
    elif t.dims is not None:
        shape = [to_tvm(dim) for dim in t.dims]
    return relax.TensorType(
        shape, str(t.dtype or ""), vdevice=device, ndim=t.ndim if shape is None else -1
    )


def shown(t: Any) -> str:
    device = None if t.vdevice is None else f"{t.vdevice.target.kind}:{t.vdevice.vdevice_id}"
    dtype = "" if t.dtype is None else str(t.dtype)
    return f"{t.shape} {dtype if dtype != 'void' else ''} {t.ndim} {device}"


@sweep(2)
@pytest.mark.parametrize("cls", ELEMENTWISE, ids=lambda cls: cls.name)
def test_elementwise_operators_deduce_as_in_tvm(cls: type[Elementwise]) -> None:
    try:
        peer = TVMOp.get(f"relax.{cls.name}")
    except Exception:
        pytest.skip("TVM has it not")
    if cls.name in ("clip", "ewise_fma"):
        pytest.skip("the bounds are arguments there; shapes must be equal there")
    builder = relax.BlockBuilder()
    sample = next(s for s in samples(cls.name) if not s.code)
    first, *others = [
        arg.annotation for arg in apply(sample, True).call.args if isinstance(arg, Var)
    ]
    assert isinstance(first, TensorType)
    for changed in coarser(first):
        both = TensorType(changed.shape, changed.dtype, changed.ndim, changed.vdevice)
        types = [changed, *(both for _ in others)]
        ours = deduce(Call(cls(), tuple(Var(f"x{i}", t) for i, t in enumerate(types))))
        shapes: dict[Var, Any] = {}
        args: list[Any] = [relax.Var(f"x{i}", to_peer(t, shapes)) for i, t in enumerate(types)]
        theirs = builder.normalize(relax.Call(peer, args)).ty
        assert shown(to_peer(ours, shapes)) == shown(theirs), f"{types}: {ours}"


def test_symbols_of_one_deduction_are_not_those_of_another() -> None:
    n = SymVar("n")
    x = TensorType(None, "int8", 1)
    both = deduce(call("concat", TupleType([x, x])))
    assert both == TensorType(None, "int8", 1)
    assert deduce(call("add", x, TensorType((n,), "int8"))) == TensorType(None, "int8", 1)
