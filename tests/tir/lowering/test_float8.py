"""The float8 dtypes: converted as ml_dtypes does, moved as they are, computed in float32."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RelaxError
from relaxpy.ir import Constant
from relaxpy.ir.array import as_array
from relaxpy.ir.dtype import DType
from relaxpy.testing.interpret import interpret
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.prim_func import PrimFunc
from tests.sweeps import part, sweep

NAMES = ("float8_e4m3fn", "float8_e5m2")
each = pytest.mark.parametrize("name", NAMES)


def bits(array: object) -> np.ndarray:
    return np.ascontiguousarray(np.asarray(array)).reshape(-1).view(np.uint8)


def codes(name: str) -> np.ndarray:
    """Every number there is of the dtype."""
    return np.arange(256, dtype=np.uint8).view(DType(name).numpy)


def edges(name: str, wide: str) -> np.ndarray:
    """Numbers of a wider dtype: those of 8 bits, half way between them and a bit beside, and beyond the range."""
    rng, kind = np.random.default_rng(0), DType(wide).numpy
    if DType(wide).bits == 16:
        return np.arange(1 << 16, dtype=np.uint16).view(kind)
    words = rng.integers(0, 1 << DType(wide).bits, 50_000, f"uint{DType(wide).bits}").view(kind)
    exact = codes(name).astype(np.float64)
    exact = np.unique(exact[np.isfinite(exact)])
    half = ((exact[1:] + exact[:-1]) / 2).astype(kind)
    beside = [np.nextafter(half, kind.type(to)) for to in (-np.inf, np.inf)]
    special = [464, 465, 480, 61439, 61440, 61441, 1e30, -1e30, np.inf, -np.inf, np.nan, -np.nan]
    spread = [rng.normal(scale=scale, size=5000) for scale in (1e-6, 1e-3, 1, 100, 1e5)]
    parts = [words, exact, half, *beside, special, *spread]
    return np.concatenate([np.asarray(part).astype(kind) for part in parts])


def compiled(
    body: str, name: str, *, target: str = "llvm", **annotations: str
) -> tuple[relaxpy.IRModule, relaxpy.VirtualMachine]:
    params = ", ".join(f"{k}: R.Tensor({v})" for k, v in annotations.items())
    mod = relaxpy.parse(f"""
@R.function
def main({params.replace("F", name)}):
    with R.dataflow():
        out = {body.replace("F", name)}
        R.output(out)
    return out
""")
    assert relaxpy.structural_equal(mod, relaxpy.parse(mod.script()))
    return mod, relaxpy.VirtualMachine(relaxpy.build(mod, target=target))


@sweep(3)
@each
@pytest.mark.parametrize("wide", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=x86-64"])
def test_conversions_are_those_of_ml_dtypes(name: str, wide: str, target: str) -> None:
    """Bit by bit, both ways: ties, numbers below the normal range, beyond the range, infinities and NaN."""
    x = edges(name, wide)
    _, narrow = compiled('R.astype(x, "F")', name, x=f'("n",), "{wide}"', target=target)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(bits(narrow(x)), bits(x.astype(DType(name).numpy)))
    _, widened = compiled(f'R.astype(x, "{wide}")', name, x='("n",), "F"', target=target)
    with np.errstate(all="ignore"):
        wanted = codes(name).astype(DType(wide).numpy)
    np.testing.assert_array_equal(bits(widened(codes(name))), bits(wanted))


@sweep(3)
@each
@pytest.mark.parametrize(
    "body",
    [
        "R.reshape(x, (8, 32))",
        "R.permute_dims(x)",
        "R.concat((x, y), axis=1)",
        "R.take(x, i, axis=0)",
        "R.strided_slice(x, [1], [14], [1], [-3])",
        "R.where(c, x, y)",
        "R.tile(x, (2, 1))",
        "R.split(x, 2, axis=1)",
        "R.nn.pad(x, (0, 1, 2, 0))",
        "R.flip(x, axis=1)",
        "R.broadcast_to(R.expand_dims(x, 0), (2, 16, 16))",
        "R.gather_elements(x, R.broadcast_to(i, (16, 4)), axis=1)",
    ],
)
def test_what_moves_numbers_keeps_their_bits(name: str, body: str) -> None:
    """Those of each NaN, too."""
    mod, vm = compiled(
        body, name, x='(16, 16), "F"', y='(16, 16), "F"', c='(16, 16), "bool"', i='(4,), "int64"'
    )
    x = codes(name).reshape(16, 16)
    args = (x, x[::-1].copy(), np.arange(256).reshape(16, 16) % 3 == 0, np.array([3, 0, 15, 7]))
    got, wanted = vm(*args), interpret(mod, "main", *args)
    for g, w in zip(*(v if isinstance(v, tuple) else (v,) for v in (got, wanted)), strict=True):
        assert np.asarray(g).shape == np.asarray(w).shape
        np.testing.assert_array_equal(bits(g), bits(w))


@sweep(3)
@each
@pytest.mark.parametrize(
    "body",
    part([
        "x + y",
        "x * 1.5 - y",
        "R.tanh(x) * y + x",
        "R.nn.silu(R.nn.silu(x))",
        "R.maximum(x, R.exp(y))",
        "R.where(x > y, R.tanh(x), y) + y",
        "R.sum(x, axis=0)",
        "R.max(x, axis=1)",
        "R.sort(x, axis=1)",
        "R.nn.softmax(x)",
        "R.matmul(R.astype(x, 'float16'), R.permute_dims(R.astype(y, 'float16')))",
        "R.matmul(x, R.permute_dims(y), out_dtype='float32')",
        "R.astype(R.astype(x, 'float16') * R.const(0.5, 'float16'), 'F')",
        "R.unique(x)",
    ], 2),
)  # fmt: skip
def test_arithmetic_is_of_float32(name: str, body: str) -> None:
    """And rounded once an operator, fused or not, as the reference does."""
    mod, vm = compiled(body, name, x='("n", 24), "F"', y='("n", 24), "F"')
    rng = np.random.default_rng(0)
    x, y = (rng.normal(scale=2, size=(2, 9, 24))).astype(DType(name).numpy)
    got, wanted = np.asarray(vm(x, y)), np.asarray(interpret(mod, "main", x, y))
    assert got.dtype == wanted.dtype
    step = float(ml_dtypes.finfo(got.dtype).eps)  # a sum in another order may round the other way
    np.testing.assert_allclose(got.astype("float32"), wanted.astype("float32"), rtol=step)
    assert np.mean(got == wanted) > 0.9


@each
@pytest.mark.parametrize("schedule", [True, False])
def test_tensor_programs(name: str, schedule: bool) -> None:
    """Buffers that the program allocates, names, choices and literals."""
    mod = relaxpy.parse(f"""
@I.ir_module
class M:
    @T.prim_func
    def k(x: T.Buffer((8,), "{name}"), y: T.Buffer((8,), "{name}"), z: T.Buffer((8,), "float32")):
        t = T.sblock_alloc_buffer((8,), "{name}")
        for i in range(8):
            with T.sblock("t"):
                v = T.axis.spatial(8, i)
                t[v] = T.Cast("{name}", T.Cast("float32", x[v]) * T.float32(2))
        for i in range(8):
            with T.sblock("y"):
                v = T.axis.spatial(8, i)
                y[v] = t[7 - v] + T.{name}(1.5)
        for i in range(8):
            with T.sblock("z"):
                v = T.axis.spatial(8, i)
                z[v] = T.Cast("float32", T.Select(v < 4, t[v], T.if_then_else(v < 6, x[v], T.{name}(-3))))
""")
    assert relaxpy.structural_equal(mod, relaxpy.parse(mod.script()))
    program = mod["k"]
    assert isinstance(program, PrimFunc)
    x = np.arange(8).astype(DType(name).numpy)
    y, z = np.empty_like(x), np.empty(8, np.float32)
    Kernels({"k": program}, schedule=schedule).run("k", [x], [y, z])
    wanted = (np.arange(0, 16, 2)[::-1].astype(x.dtype).astype("float32") + 1.5).astype(x.dtype)
    np.testing.assert_array_equal(bits(y), bits(wanted))
    np.testing.assert_array_equal(z, [0, 2, 4, 6, 4, 5, -3, -3])


@each
def test_constants_in_files(name: str, tmp_path: Path) -> None:
    """Constants, large ones and small ones, come back out of texts and files with every bit."""
    bb = relaxpy.BlockBuilder()
    parts = (codes(name), *codes(name).reshape(64, 4))
    with bb.function("main", []):
        bb.emit_func_output(tuple(map(Constant, parts)))
    mod = bb.get()
    again = relaxpy.parse(mod.script())
    assert relaxpy.structural_equal(mod, again)
    assert again.script() == mod.script()
    relaxpy.build(again).save(tmp_path / "a.rlx")
    results = relaxpy.VirtualMachine(relaxpy.load(tmp_path / "a.rlx"))["main"]()
    for got, wanted in zip(results, parts, strict=True):
        assert got.dtype == name
        np.testing.assert_array_equal(bits(got), bits(wanted))


@each
def test_weights_keep_their_size(name: str) -> None:
    """A constant that is cast where it is used is kept as it is, not as the cast makes it."""
    bb = relaxpy.BlockBuilder()
    weights = np.resize(codes(name)[:64], (64, 64))
    with bb.function("main", []), bb.dataflow():
        out = bb.emit_output(relaxpy.op.astype(Constant(weights), dtype="float32"))
        bb.emit_func_output(out)
    exe = relaxpy.build(bb.get())
    assert [str(c.dtype) for c in exe.constants] == [name]
    np.testing.assert_array_equal(
        relaxpy.VirtualMachine(exe)["main"]().numpy(), weights.astype("float32")
    )


@each
def test_arrays_of_others(name: str) -> None:
    """From numpy and torch, and to torch; lists; another dtype of 8 bits is refused."""
    torch = pytest.importorskip("torch")
    _, vm = compiled("(R.astype(x, 'float32'), x)", name, x='("n",), "F"')
    x = torch.arange(6, dtype=torch.float32)
    wide, same = vm(x.to(getattr(torch, name)))
    np.testing.assert_array_equal(wide.numpy(), x)
    assert repr(same) == f"Tensor([6], {name})\n[0, 1, 2, 3, 4, 5]"
    back = torch.from_dlpack(same)
    assert back.dtype == getattr(torch, name)
    np.testing.assert_array_equal(back.float(), x)
    np.testing.assert_array_equal(as_array(back).astype("float32"), x)
    np.testing.assert_array_equal(vm([1.5, 2])[0].numpy(), [1.5, 2])
    with pytest.raises(RelaxError, match=f"float8_e5m2fnuz, not {name}"):
        vm(np.zeros(2, ml_dtypes.float8_e5m2fnuz))


@each
@pytest.mark.parametrize(
    "body", ["R.const([1.0, 1e6], 'F')", "x + 1e6", "R.full((2,), R.const(1e6, 'F'), 'F')"]
)
def test_numbers_beyond_the_range(name: str, body: str) -> None:
    with pytest.raises(RelaxError, match=r"too large|is out of range"):
        compiled(body, name, x='(2,), "F"')


def test_float8_e4m3fn_has_no_infinity() -> None:
    with pytest.raises(RelaxError, match="too large for float8_e4m3fn"):
        compiled("R.const(float('inf'), 'F')", "float8_e4m3fn")


@each
def test_sizes_and_scalars(name: str) -> None:
    """A size becomes a number of the dtype, if it is within its range; a parameter may be a scalar of it."""
    _, vm = compiled("x * n", name, x='("n",), "F"')
    x = np.arange(6).astype(DType(name).numpy)
    np.testing.assert_array_equal(bits(vm(x)), bits((np.arange(6) * 6).astype(x.dtype)))
    with pytest.raises(RelaxError, match="is out of range"):
        vm(np.zeros(100_000, x.dtype))
    mod = relaxpy.parse(f"""
@R.function
def main(s: R.Prim("{name}"), x: R.Tensor((6,), "{name}")):
    y = R.add(x, s)
    return y
""")
    got = relaxpy.VirtualMachine(relaxpy.build(mod))["main"](0.5, x)
    np.testing.assert_array_equal(bits(got), bits((np.arange(6) + 0.5).astype(x.dtype)))


@each
def test_neighbours_are_found_by_their_bits(name: str) -> None:
    """The arithmetic is on signed bytes; a choice between such bits and a float8 is one of bytes."""
    x = np.repeat(codes(name), 3)
    y = np.tile(np.array([-300, 0, 300]).astype(DType(name).numpy), 256)
    _, vm = compiled("R.nextafter(x, y)", name, x='("n",), "F"', y='("n",), "F"')
    got = as_array(vm["main"](x, y)).astype(np.float32)
    np.testing.assert_array_equal(got, np.nextafter(x, y).astype(np.float32))
