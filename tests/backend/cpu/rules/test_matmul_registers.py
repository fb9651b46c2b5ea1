"""Products whose sums stay in registers: the same bits as without packed factors, for ragged rows and columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import relaxpy
from relaxpy.backend.cpu.arithmetic import Arithmetic
from relaxpy.backend.cpu.panels import wanted_packing, with_packed
from relaxpy.backend.cpu.rules.matmul import Tiling
from relaxpy.backend.cpu.rules.matmul_registers import divided, stays_in_registers
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.target import Target
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.recognise.matmul import MatmulForm, matmul_of
from relaxpy.transform import LegalizeOps, Normalize
from relaxpy.transform.fuse_ops import FuseOps
from relaxpy.transform.fuse_tensor_ir import FuseTensorIR
from tests.backend.support import LINE, as_tensor, in_lines, load
from tests.sweeps import quick_target, sweep

EPILOGUES = {
    "none": "gv = R.multiply(a, R.const(1.0))",
    "bias_residual": "b = R.add(a, bias)\ngv = R.add(b, y)",
    "hard_swish": "b = R.add(a, bias)\nc = R.clip(b, 0, 6)\ngv = R.multiply(b, c)",
    "row": "gv = R.multiply(a, rows)",
    "gathered": "b = R.take(bias, columns)\ngv = R.add(a, b)",
    "narrow": 'b = R.add(a, y)\nc = R.astype(b, "bfloat16")\ngv = R.astype(c, "float32")',
}


def program(epilogue: str, depth: int, columns: int, dtype: str = "float32") -> PrimFunc:
    """(batch, n, depth) @ (depth, columns), and an epilogue."""
    lines = [
        "a = R.matmul(x, w)",
        *EPILOGUES[epilogue].replace("1.0", f'1.0, "{dtype}"').splitlines(),
    ]
    body = "\n".join(f"        {line}" for line in lines)
    mod = relaxpy.parse(f"""
from relaxpy.script import relax as R
@R.function
def main(x: R.Tensor(("b", "n", {depth}), "{dtype}"), w: R.Tensor(({depth}, {columns}), "{dtype}"),
         bias: R.Tensor(({columns},), "{dtype}"), y: R.Tensor(("b", "n", {columns}), "{dtype}"),
         rows: R.Tensor(("b", "n", 1), "{dtype}"), columns: R.Tensor(({columns},), "int64")):
    with R.dataflow():
{body}
        R.output(gv)
    return gv
""")
    fused = FuseTensorIR()(FuseOps()(LegalizeOps()(Normalize()(mod))))
    (found,) = fused.prim_funcs.values()
    assert isinstance(found, PrimFunc)
    return found


def form_of(func: PrimFunc) -> MatmulForm:
    form = matmul_of(func.func)
    assert form is not None
    return form


def stays(form: MatmulForm, processor: CpuTarget) -> bool:
    arithmetic = Arithmetic.of_product(form, processor)
    return stays_in_registers(form, arithmetic, Tiling.of(form, arithmetic, processor).deepest)


STREAM = "relaxpy_stream"
QUICK = "quick"
"""This processor, quickly compiled."""


def host(text: str) -> CpuTarget:
    """For other processors than this one, and for `QUICK`, quickly compiled, unless the sweep is in full."""
    found = Target.host() if text == "llvm" else quick_target(text.removeprefix(QUICK) or "llvm")
    assert isinstance(found, CpuTarget)
    if not found.is_host_loadable:
        pytest.skip(f"{text} does not run here")
    return found


@pytest.mark.parametrize(
    ("vectors", "widest", "widths"),
    [
        (1, 3, [1]), (2, 3, [2]), (3, 3, [3]), (4, 3, [2, 2]), (5, 3, [3, 2]), (7, 3, [3, 2, 2]), (42, 3, [3] * 14),
        (13, 4, [4, 3, 3, 3]), (9, 2, [2, 2, 2, 2, 1]),
    ],
)  # fmt: skip
def test_vectors_are_divided_evenly(vectors: int, widest: int, widths: list[int]) -> None:
    groups = divided(vectors, widest)
    assert [group.width for group in groups for _ in range(group.count)] == widths
    number = start = 0
    for group in groups:
        assert (group.first, group.start) == (number, start)
        number, start = number + group.count, start + group.count * group.width


@sweep(3)
@pytest.mark.parametrize(
    ("target", "dtype", "depth", "columns", "epilogues"),
    [
        (QUICK, "float32", 40, 112, tuple(EPILOGUES)),
        (QUICK, "float32", 3, 16, ("bias_residual", "gathered")),
        ("llvm", "float32", 72, 24, ("row", "hard_swish")),
        ("llvm", "float32", 130, 65, ("bias_residual", "gathered")),
        ("llvm", "float32", 17, 192, ("hard_swish", "row")),
        (QUICK, "float32", 1030, 33, ("bias_residual", "narrow")),
        (QUICK, "float64", 24, 40, ("bias_residual", "none")),
        ("llvm -mcpu=haswell", "float32", 40, 72, ("bias_residual", "row", "gathered")),
        ("llvm -mcpu=x86-64", "float32", 24, 20, ("hard_swish", "none")),
    ],
)
def test_the_same_bits(
    target: str, dtype: str, depth: int, columns: int, epilogues: tuple[str, ...]
) -> None:
    """As many rows as need a whole tile, a half of one, both, several tasks; several images; none."""
    processor, rng = host(target), np.random.default_rng(0)
    programs: dict[str, PrimFunc] = {}
    w = rng.normal(size=(depth, columns)).astype(dtype)
    values = {"w": w, "bias": rng.normal(size=columns).astype(dtype), "const": np.array(1, dtype)}
    values |= {"columns": rng.permutation(columns), "packed_w": w}
    for name in epilogues:
        plain = program(name, depth, columns, dtype)
        packing = wanted_packing(plain, processor)
        assert packing is not None
        values["packed_w"] = packing.pack(w)
        programs[name], programs[f"packed_{name}"] = plain, with_packed(plain, packing)
        form = form_of(programs[f"packed_{name}"])
        assert stays(form, processor)
        assert not stays(form_of(plain), processor)
        assert schedule_kernel(programs[f"packed_{name}"].func, processor).rule == "matmul"
    kernels = Kernels(programs, processor)
    for images, rows in (
        (1, 9),
        (1, 12),
        (2, 13),
        (1, 49),
        (3, 25),
        (1, 196),
        (1, 2500),
        (0, 20),
        (2, 0),
    ):
        values |= {
            "x": rng.normal(size=(images, rows, depth)).astype(dtype),
            "y": rng.normal(size=(images, rows, columns)).astype(dtype),
            "rows": rng.normal(size=(images, rows, 1)).astype(dtype),
        }
        for name in epilogues:
            results: list[np.ndarray] = []
            for kind in ("", "packed_"):
                params = [str(p.name) for p in programs[name].params[:-1]]
                args = [values[kind + p if p == "w" else p.rstrip("0123456789")] for p in params]
                results.append(np.full((images, rows, columns), 9, dtype))
                kernels.run(kind + name, args, [results[-1]])
            np.testing.assert_array_equal(*results, err_msg=f"{name} {images, rows}")
            if name == "bias_residual":
                want = values["x"] @ w + values["bias"] + values["y"]
                np.testing.assert_allclose(results[1], want, atol=1e-3)


def test_what_does_not_stay_in_registers() -> None:
    """A depth that is unknown or long; elements that are widened."""
    processor = host("llvm")
    for dtype, depth in (("float32", 8200), ("bfloat16", 40)):
        plain = program("none", depth, 40, dtype)
        packing = wanted_packing(plain, processor)
        assert packing is not None
        form = form_of(with_packed(plain, packing))
        assert not stays(form, processor)


@pytest.mark.parametrize("epilogue", ["none", "bias_residual"])
def test_large_results_are_streamed(epilogue: str, tmp_path: Path) -> None:
    """The bits of ordinary stores, where the result begins with a cache line and where it does not; a last tile that
    begins earlier; a result that is small."""
    depth, columns = 128, 96
    processor, rng = host("llvm"), np.random.default_rng(0)
    plain = program(epilogue, depth, columns)
    packing = wanted_packing(plain, processor)
    assert packing is not None
    func = with_packed(plain, packing)
    streams = processor.vector_bits == LINE * 8
    kernels = {
        name: schedule_kernel(func.func, processor, {"streamed": least}).parallel
        for name, least in (("ordinary", 1 << 25), ("streamed", 1 << 20))
    }
    assert [STREAM in str(kernels[name]) for name in kernels] == [streams, streams]
    library = load(tmp_path, kernels, processor)
    values = {
        "packed_w": packing.pack(rng.normal(size=(depth, columns)).astype("float32")),
        "bias": rng.normal(size=columns).astype("float32"),
        "const": np.array(1, "float32"),
    }
    for rows in (3001, 50):
        values |= {
            "x": rng.normal(size=(1, rows, depth)).astype("float32"),
            "y": rng.normal(size=(1, rows, columns)).astype("float32"),
        }
        names = [str(p.name).rstrip("0123456789") for p in func.params[:-1]]
        args = [as_tensor(values["packed_w" if name == "w" else name]) for name in names]
        for offset in (0, 1):
            memories = [in_lines(rows * columns + LINE, np.dtype("float32")) for _ in kernels]
            for name, memory in zip(kernels, memories, strict=True):
                out = memory[offset : offset + rows * columns].reshape(1, rows, columns)
                library[name](*args, as_tensor(out))
            np.testing.assert_array_equal(*memories)
