"""Values whose arithmetic has ends: NaN, infinities, integers that wrap around."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.backend.cpu.compile import compile_source
from relaxpy.runtime.devices.registry import runtime_class
from relaxpy.target import Target
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.lowering.exact import sealed, unsealed, wrapped
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.tvm import te, tirx, tvm, tvm_ffi
from tests.backend.support import HOST, compute, n

Value = Callable[[Any], Any]

FLOATS: dict[str, tuple[Value, Callable[[np.ndarray], np.ndarray]]] = {
    "difference": (lambda x: tirx.Sub(x, x), lambda x: x - x),
    "product": (lambda x: tirx.Mul(x, _const(0, x)), lambda x: x * 0),
    "sum": (lambda x: tirx.Add(x, _const(0, x)), lambda x: x + 0),
    "quotient": (lambda x: tirx.Div(_const(0, x), x), lambda x: 0 / x),
    "same quotient": (lambda x: tirx.Div(x, x), lambda x: x / x),
    "equal": (lambda x: tirx.EQ(x, x).astype(x.ty), lambda x: x == x),
    "unequal": (lambda x: tirx.NE(x, x).astype(x.ty), lambda x: x != x),
    "unequal to another": (lambda x: tirx.NE(x, _const(1, x)).astype(x.ty), lambda x: x != 1),
    "not less": (lambda x: tirx.Not(tirx.LT(x, _const(1, x))).astype(x.ty), lambda x: ~(x < 1)),
    "factored": (
        lambda x: tirx.Sub(tirx.Mul(x, _const(3, x)), tirx.Mul(x, _const(2, x))),
        lambda x: x * 3 - x * 2,
    ),
}  # fmt: skip

INTEGERS: dict[str, tuple[Value, Callable[[np.ndarray], np.ndarray]]] = {
    "successor": (lambda x: (x + _const(1, x) > x).astype(x.ty), lambda x: x + 1 > x),
    "predecessor": (lambda x: (x - _const(1, x) < x).astype(x.ty), lambda x: x - 1 < x),
    "halved": (lambda x: tirx.truncdiv(x * _const(2, x), _const(2, x)), lambda x: _halved(x * 2)),
    "square": (lambda x: (x * x >= _const(0, x)).astype(x.ty), lambda x: x * x >= 0),
    "named": (lambda x: _named(x + _const(1, x), x), lambda x: x + 1 - 1 < x),
    "of another": (lambda x: (x - _const(7, x) >= _const(0, x)).astype(x.ty), lambda x: x - 7 >= 0),
}  # fmt: skip


def _const(value: int, like: Any) -> Any:
    return tirx.const(value, like.ty.dtype)


def _halved(x: np.ndarray) -> np.ndarray:
    """Rounded towards zero."""
    return x // 2 + ((x < 0) & (x % 2 == 1))


def _named(value: Any, x: Any) -> Any:
    """The successor under a name, less one, compared."""
    name = tirx.Var("y", value.ty)
    return tirx.Let(name, value, (name - _const(1, x) < x).astype(x.ty))


def elementwise(value: Value, dtype: str) -> tirx.PrimFunc:
    """The program `out[i] = value(x[i])`. (What te is given, it simplifies.)"""
    x = te.placeholder((n,), dtype, name="x")
    func = te.create_prim_func([x, compute((n,), lambda i: x[i])])

    def store(node: tirx.BufferStore) -> tirx.BufferStore:
        return tirx.BufferStore(node.buffer, value(node.value), node.indices)

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.BufferStore, store)))


@pytest.mark.parametrize("schedule", [False, True], ids=["as it is", "scheduled"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_floats(dtype: str, schedule: bool) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 1.0e4] * 5, dtype)
    check({name: FLOATS[name] for name in FLOATS}, x, schedule)


@pytest.mark.parametrize("schedule", [False, True], ids=["as it is", "scheduled"])
@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint64", "uint32", "uint8"])
def test_integers(dtype: str, schedule: bool) -> None:
    limits = np.iinfo(dtype)
    few = [limits.max, limits.min, 0, 1, 2, limits.max - 1, limits.max // 2 + 1, limits.max // 2]
    check(INTEGERS, np.array(few * 5, dtype), schedule)


def check(
    cases: dict[str, tuple[Value, Callable[[np.ndarray], np.ndarray]]],
    x: np.ndarray, schedule: bool,
) -> None:  # fmt: skip
    """Each case's kernel does what numpy does."""
    programs = {
        f"k{i}": PrimFunc(elementwise(value, x.dtype.name))
        for i, (value, _) in enumerate(cases.values())
    }
    kernels = Kernels(programs, HOST, schedule=schedule)
    wrong: list[str] = []
    for i, (name, (_, reference)) in enumerate(cases.items()):
        got = np.full(x.shape, 77, x.dtype)
        kernels.run(f"k{i}", [x], [got])
        with np.errstate(all="ignore"):
            want = reference(x).astype(x.dtype)
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        signs = np.signbit(got) == np.signbit(want) if x.dtype.kind == "f" else True
        if not np.all(same & (signs | np.isnan(want))):
            wrong.append(f"{name} of {x[:8]}: {got[:8]}, not {want[:8]}")
    assert not wrong, "\n".join(wrong)


def calls(func: tirx.PrimFunc) -> list[str]:
    found: list[str] = []
    tvm_ffi.structural_walk(func.body, (tvm.ir.Call, lambda c: found.append(str(c.op.name))))
    return found


def test_indices_stay() -> None:
    """Passes reason about indices; only what was read is out of their sight."""
    x = te.placeholder((n,), "int64", name="x")
    shifted = te.create_prim_func([x, compute((n - 1,), lambda i: x[i + 1])])
    assert sealed(shifted).same_as(shifted)
    named = te.create_prim_func([compute((n,), lambda i: i * 3 + 2)])
    assert sealed(named).same_as(named)
    mixed = te.create_prim_func([x, compute((n,), lambda i: x[i] * i)])
    assert calls(sealed(mixed)) == ["relaxpy.mul"]


def test_lanes_that_become_unsigned_are_values() -> None:
    """Else the pass that narrows indices would meet a ramp of unsigned numbers."""
    y = tirx.decl_buffer([8], "uint32", "y")
    lanes = tirx.Ramp(tirx.const(0, "int64"), tirx.const(4, "int64"), 8)
    store = tirx.BufferStore(
        y, tirx.Cast("uint32x8", lanes), [tirx.Ramp(lanes.base, tirx.const(1, "int64"), 8)]
    )
    assert calls(sealed(tirx.PrimFunc([y], store))) == ["relaxpy.named"]
    signed = tirx.BufferStore(y, tirx.Cast("uint32", lanes.base), [tirx.const(0, "int64")])
    assert calls(sealed(tirx.PrimFunc([y], signed))) == []


@pytest.mark.parametrize(("dtype", "found"), [("uint8", ["relaxpy.lt"]), ("int8", [])])
def test_comparisons_of_unsigned_values_are_hidden(dtype: str, found: list[str]) -> None:
    """A pass that solves `a < b` for a computes with -1, which is no unsigned number. Sizes stay visible."""
    x = te.placeholder((n,), dtype, name="x")
    smaller = te.create_prim_func([x, compute((n - 1,), lambda i: x[i] < x[i + 1])])
    assert calls(sealed(smaller)) == found
    seven = tirx.const(7, "uint32")
    sizes = te.create_prim_func([compute((n,), lambda i: i.astype("uint32") < seven)])
    assert "relaxpy.lt" not in calls(sealed(sizes))


def test_indices_that_grow_long_are_values() -> None:
    """Each name twice in the value of the next: written out, 2 ** 12 variables."""
    x, y = (tirx.decl_buffer([64], "float32", name) for name in "xy")
    names = [tirx.Var(f"a{i}", "int64") for i in range(13)]
    binds = [tirx.Bind(names[0], tirx.const(1, "int64"))]
    binds += [tirx.Bind(b, tirx.Max(a * 3, a + 1)) for a, b in pairwise(names)]
    body = tirx.SeqStmt([*binds, tirx.BufferStore(y, x[names[-1]], [names[-1]])])
    assert calls(sealed(tirx.PrimFunc([x, y], body))) == ["relaxpy.named", "relaxpy.named"]


def test_unsealed_is_what_was_sealed() -> None:
    func = elementwise(lambda x: tirx.Sub(x, x) * x, "float32")
    func = func.with_attr("target", Target.parse("llvm").to_tvm())
    assert len(calls(sealed(func))) == 2
    assert tvm_ffi.structural_equal(unsealed(sealed(func)), func)


@pytest.mark.parametrize("target", ["llvm", "c"])
@pytest.mark.parametrize("name", ["successor", "predecessor", "halved", "square", "named"])
def test_wrapped_is_unsealed_at_once(name: str, target: str) -> None:
    """Of a program that no pass rewrites in between."""
    values = {"int64": INTEGERS[name][0], "int16": INTEGERS[name][0], "float32": lambda x: x * x}
    for dtype, value in values.items():
        func = elementwise(value, dtype).with_attr("target", Target.parse(target).to_tvm())
        assert tvm_ffi.structural_equal(wrapped(func), unsealed(sealed(func)))


def test_c() -> None:
    """C has unsigned numbers for it."""
    text = compile_source({"k": elementwise(lambda x: x + x, "int32")}, Target.parse("c"))
    assert "uint32_t" in text


def test_negative_literals_in_c() -> None:
    """They are unsigned numbers, too: TVM refuses to make one of a negative literal."""
    func = elementwise(lambda x: x + tirx.const(-5, "int32"), "int32")
    assert "4294967291" in compile_source({"k": func}, Target.parse("c"))


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_comparisons_of_bools(kind: str) -> None:
    """Of integers of the same truth."""
    signs = ("==", "!=", "<", "<=", ">", ">=")
    stores = "\n".join(f"            o[i, {k}] = x[i] {sign} y[i]" for k, sign in enumerate(signs))
    mod = relaxpy.parse(f"""
@I.ir_module
class M:
    @T.prim_func
    def f(x: T.Buffer(("n",), "bool"), y: T.Buffer(("n",), "bool"), o: T.Buffer(("n", 6), "bool")):
        n = T.int64()
        for i in T.{kind}(n):
{stores}

    @R.function
    def main(x: R.Tensor(("n",), "bool"), y: R.Tensor(("n",), "bool")):
        n = T.int64()
        cls = M
        return R.call_tir(cls.f, (x, y), out_ty=R.Tensor((n, 6), "bool"))
""")
    x, y = np.array([False, False, True, True] * 3), np.array([False, True, False, True] * 3)
    want = np.stack([x == y, x != y, x < y, x <= y, x > y, x >= y], 1)
    np.testing.assert_array_equal(
        relaxpy.VirtualMachine(relaxpy.build(mod))["main"](x, y).numpy(), want
    )


@pytest.mark.parametrize("target", ["llvm", "opencl", "vulkan"])
@pytest.mark.parametrize(
    ("index", "found"),
    [
        ('T.Cast("int64", T.reinterpret("float64", a)) % 7', [0] * 7),
        ('(1 - T.Cast("int64", T.Cast("int8", a * 99))) % 7', [1, 0, 3, 2, 5, 4, 3]),
        ('T.reinterpret("int64", T.reinterpret("uint64", a % 3 + 1)) % 7', [1, 2, 3, 1, 2, 3, 1]),
    ],
    ids=["float", "few bits", "unsigned"],
)
def test_bits_of_indices(index: str, found: list[int], target: str) -> None:
    """The pass that narrows indices leaves too few of them."""
    if not runtime_class(Target.parse(target).device).devices():
        pytest.skip(f"no device for {target}")
    mod = relaxpy.parse(f"""
@I.ir_module
class M:
    @T.prim_func
    def f(x: T.Buffer((7,), "int64"), y: T.Buffer((7,), "int64")):
        for v in range(7):
            with T.sblock("y"):
                a = T.axis.spatial(7, v)
                y[a] = x[{index}]

    @R.function
    def main(x: R.Tensor((7,), "int64")):
        return R.call_tir(M.f, (x,), out_ty=R.Tensor((7,), "int64"))
""")
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, target, cache=False))
    got = vm["main"](np.arange(7) * 10).numpy()
    assert got.tolist() == [each * 10 for each in found]
