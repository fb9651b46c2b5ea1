"""Which programs are attention: masks as intervals of keys, and what differs by one operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from relaxpy import parse
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.op import te
from relaxpy.op.attention import Attention
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Expr
from relaxpy.tir.recognise.attention import AttentionForm, attention_of, heads_of_a_key
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi
from relaxpy.transform import LegalizeOps, Normalize
from relaxpy.transform.fuse_ops import FuseOps
from relaxpy.transform.fuse_tensor_ir import FuseTensorIR

B, S, T = (SymVar(name).dim for name in "bst")
Shape = tuple[Dim | int, ...]


def legalised(
    op: Attention,
    query: Shape = (B, S, 4, 8),
    key: Shape = (B, T, 2, 8),
    after: Callable[[Any], Any] | None = None,
) -> Any:
    inputs = [te.placeholder(s, "float32", n) for s, n in ((query, "q"), (key, "k"), (key, "v"))]
    q, k, v = inputs
    made = op.legalize(TensorType((*query[:3], key[3]), "float32"), q, k, v, None)
    return PrimFunc.from_te(inputs, [made if after is None else after(made)]).func


def form(op: Attention, **more: Any) -> AttentionForm:
    found = attention_of(legalised(op, **more))
    assert found is not None
    return found


def value(expr: Expr, form: AttentionForm, **sizes: int) -> int:
    """An index for these values of its variables, by their names in the program or of its axes."""
    names = {"m": "s", "k": "t"}

    def known(var: Any) -> Any:
        name = names.get(str(var.name), str(var.name))
        return loops.int64(sizes[name]) if name in sizes else var

    found = loops.constant(
        loops.simplify(tvm_ffi.structural_map(expr, (type(form.axes.row), known)))
    )
    assert found is not None
    return found


@pytest.mark.parametrize(
    "op",
    [
        Attention(causal_mask="TopLeft"),
        Attention(causal_mask="BottomRight"),
        Attention(causal_mask="TopLeft", window_size=3),
        Attention(causal_mask="BottomRight", window_size=2),
    ],
)
@pytest.mark.parametrize(("s", "t"), [(5, 5), (3, 7), (7, 3), (1, 4)])
def test_masks_are_intervals(op: Attention, s: int, t: int) -> None:
    """Which keys each query sees, as the operator says it."""
    found = form(op)
    assert found.seen is not None
    for row in range(s):
        low, high = (value(e, found, row=row, s=s, t=t) for e in (found.seen.low, found.seen.high))
        seen = [key for key in range(t) if all(op.is_seen(row, key, s, t, lambda a, b: a or b))]
        assert list(range(low, high)) == seen


def test_no_mask_is_no_interval() -> None:
    assert form(Attention()).seen is None


def test_where_numbers_lie() -> None:
    """Heads in groups are no stride of keys, but part of where they begin."""
    found = form(Attention())
    assert (found.depth, found.columns, found.dtype) == (8, 8, "float32")
    assert [loops.constant(x) if x is not None else None for x in found.query.strides[1:5]] == [
        8,
        32,
        None,
        1,
    ]
    assert [loops.constant(x) if x is not None else None for x in found.key.strides[1:5]] == [
        None,
        None,
        16,
        1,
    ]
    assert "head // T.int64(2) * T.int64(8)" in str(found.key.base)


def test_what_follows_is_part_of_it() -> None:
    """Something done to each element, at another place."""

    def doubled(x: Any) -> Any:
        def element(b: Any, h: Any, i: Any, c: Any) -> Any:
            return te.element(x(b, i, h, c)) * te.const(2.0, "float32")

        return te.compute((B, 4, S, 8), element, "doubled")

    found = form(Attention(), after=doubled)
    assert str(found.result) == "quotient * T.float32(2.0)"
    # of batch, head, row and column
    assert [found.out.strides[n] is not None for n in (0, 1, 2, 5)] == [True] * 4
    assert loops.constant(found.out.strides[2] or 0) == 8


@pytest.mark.parametrize("change", ["exp", "total", "start", "weight"])
def test_one_operation_less(change: str) -> None:
    """A program that differs from the formula at one place is something else."""
    func = legalised(Attention(causal_mask="TopLeft"))
    changes: dict[str, tuple[Any, Callable[[Any], Any]]] = {
        # another elementary function
        "exp": (tvm.ir.Call, lambda n: tirx.exp2(*n.args) if n.op.name == "tirx.exp" else n),
        # an empty row gives 1
        "total": (tirx.Select, lambda n: tirx.Select(n.condition, tirx.FloatImm("float32", 1.0), n.false_value)
                  if isinstance(n.true_value, tirx.FloatImm) else n),
        # the largest of none
        "start": (tirx.FloatImm, lambda n: tirx.FloatImm("float32", -1.0) if n.value < -1e38 else n),
        # other keys weighted than added up
        "weight": (tirx.LE, lambda n: tirx.LT(n.a, n.b)),
    }  # fmt: skip
    kind, changed = changes[change]
    first = [True]

    def once(node: Any) -> Any:
        new = changed(node)
        if change == "weight" and first[0]:
            first[0] = False
            return node
        return new

    other = func.with_body(tvm_ffi.structural_map(func.body, (kind, once)))
    assert not tvm_ffi.structural_equal(other, func)
    assert attention_of(other) is None


@pytest.mark.parametrize(
    ("heads", "groups", "found", "alone"),
    [(8, 2, 4, 4), (6, 6, 1, 1), (8, 1, 8, 1), (48, 1, 8, 1), (20, 1, 5, 1), (17, 1, 1, 1)],
)
def test_heads_of_a_key(heads: int, groups: int, found: int, alone: int) -> None:
    """Those of a group; where all heads share a key head, a divisor of them, if the target takes several together."""
    shared = form(Attention(), query=(B, S, heads, 8), key=(B, T, groups, 8))
    assert heads_of_a_key(shared, 8) == found
    assert heads_of_a_key(shared) == alone


def test_results_that_are_rounded() -> None:
    """Of narrow attention, also if they are widened afterwards, and of float32; not of narrow numbers that were widened
    before."""

    def read(dtype: str, wide: str, *steps: str) -> bool:
        lines = "".join(f"        {step}\n" for step in steps)
        mod = parse(f"""
@R.function
def main(q: R.Tensor(("n", "s", 2, 8), "{dtype}"), k: R.Tensor(("n", "t", 2, 8), "{dtype}")):
    with R.dataflow():
{lines}        R.output(y)
    return y
""")
        fused = FuseTensorIR()(FuseOps()(LegalizeOps()(Normalize()(mod))))
        (program,) = fused.prim_funcs.values()
        assert isinstance(program, PrimFunc)
        found = attention_of(program.func)
        assert found is not None
        assert found.dtype == dtype
        assert str(found.out.buffer.dtype) == wide
        return found.is_rounded

    assert read("float32", "float32", "y = R.nn.attention(q, k, k)")
    assert read("bfloat16", "bfloat16", "y = R.nn.attention(q, k, k)")
    after = "a = R.nn.attention(q, k, k)", 'y = R.astype(a, "float32")'
    assert read("bfloat16", "float32", *after)
    before = 'w = R.astype(q, "float32")', 'v = R.astype(k, "float32")'
    assert not read("bfloat16", "float32", *before, "y = R.nn.attention(w, v, v)")
