"""Streaming stores: the numbers of ordinary ones, at every alignment, and only where results are large."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import relaxpy
from relaxpy.backend.cpu.compile import compile_source
from relaxpy.backend.knobs import Choices
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.target import Target
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.tvm import tirx
from relaxpy.transform import LegalizeOps
from tests.backend.support import AVX2, HOST, LINE, as_tensor, in_lines, load
from tests.sweeps import part, sweep

FROM_1_MIB: Choices = {"large": 1 << 20}
"""Kernels that read and write 1 MiB have large results."""
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
X = 'x: R.Tensor(("n", "m"), "float32")'


@dataclass(frozen=True)
class Program:
    params: str
    value: str
    numpy: Callable[..., Any]
    streams: bool = True
    symbols: str = ""

    @property
    def func(self) -> Any:
        """Its tensor program."""
        mod = LegalizeOps()(
            relaxpy.parse(f"""
@R.function
def main({self.params}):
    {self.symbols}
    result = {self.value}
    return result
""")
        )
        return next(func.func for func in mod.functions.values() if isinstance(func, PrimFunc))


PROGRAMS = {
    "one array": Program(f'{X}, y: R.Tensor(("n", "m"), "float32")', "R.add(x, y)", np.add),
    "rows": Program(f'{X}, y: R.Tensor(("m",), "float32")', "R.multiply(x, y)", np.multiply),
    "bfloat16": Program(
        'x: R.Tensor(("n", "m"), "bfloat16"), y: R.Tensor(("n", "m"), "bfloat16")',
        "R.add(x, y)",
        np.add,
    ),
    "rounded": Program(X, 'R.astype(x, "bfloat16")', lambda x: x.astype(BFLOAT16)),
    "widened": Program(X, 'R.astype(x, "float64")', lambda x: x.astype("float64")),
    "bytes": Program(
        'x: R.Tensor(("n", "m"), "int8"), y: R.Tensor(("n", "m"), "int8")', "R.add(x, y)", np.add
    ),
    "side by side": Program(
        f'{X}, y: R.Tensor(("n", 200), "float32")',
        "R.concat((x, y), axis=1)",
        lambda x, y: np.concatenate((x, y), 1),
    ),
    "one after the other": Program(
        'x: R.Tensor((2, "n", "m"), "bfloat16"), y: R.Tensor((2, 3, "m"), "bfloat16")',
        "R.concat((x, y), axis=1)",
        lambda x, y: np.concatenate((x, y), 1),
    ),
    "chosen rows": Program(
        f'{X}, y: R.Tensor((700,), "int64")', "R.take(x, y, axis=0)", lambda x, y: x[y]
    ),
    "a norm": Program(
        f'{X}, y: R.Tensor(("m",), "float32"), z: R.Tensor(("m",), "float32")',
        "R.nn.layer_norm(x, y, z, axes=[1])",
        lambda x, y, z: (
            (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * y + z
        ),
    ),
    "half": Program(X, 'R.astype(x, "float16")', lambda x: x.astype("float16")),
    # Vectors of AVX2 are half a line.
    "turned": Program(X, "R.permute_dims(x)", np.transpose, streams=False),
    "turned bytes": Program(
        'x: R.Tensor((2, "n", "m"), "int8")',
        "R.permute_dims(x, (0, 2, 1))",
        lambda x: x.transpose(0, 2, 1),
        streams=False,
    ),
    # A bool is no vector in memory, and a tangent takes longer to compute than to write.
    "truth": Program(
        f'{X}, y: R.Tensor(("n", "m"), "float32")', "R.less(x, y)", np.less, streams=False
    ),
    "a tangent": Program(X, "R.tanh(x)", np.tanh, streams=False),
}


@sweep(6)
@pytest.mark.parametrize("target", [HOST, AVX2], ids=["this machine", "AVX2"])
@pytest.mark.parametrize("name", part([*PROGRAMS], 3))
def test_numbers_are_those_of_ordinary_stores(name: str, target: Target, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    func = program.func
    both: tuple[Choices, ...] = ({}, FROM_1_MIB)
    kernels = {
        f"kernel{number}": schedule_kernel(func, target, choices).parallel
        for number, choices in enumerate(both)
    }
    library = load(tmp_path, kernels, target)
    # Large ones with rows of whole lines, of other lengths, and of one line; and small ones.
    for n, m in ((601, 640), (601, 643), (1 << 15, 16), (5, 3)):
        inputs = [numbers(p, n, m) for p in func.params[:-1]]
        expected = program.numpy(*inputs)
        for offset in (0, 1):
            memories = []
            for kernel in kernels:
                memory = in_lines(expected.size + LINE, expected.dtype)
                out = memory[offset : offset + expected.size].reshape(expected.shape)
                library[kernel](*(as_tensor(bits(each)) for each in (*inputs, out)))
                memories.append(memory.view("uint8"))
            assert np.array_equal(*memories)
        np.testing.assert_allclose(
            out.astype("float64"), expected.astype("float64"), rtol=1e-5, atol=1e-5
        )


def bits(array: np.ndarray) -> np.ndarray:
    """The array itself; of bfloat16, which has no DLPack in numpy, the integers of its bits."""
    return array.view("uint16") if array.dtype == BFLOAT16 else array


def numbers(param: Any, n: int, m: int) -> np.ndarray:
    """Numbers for a parameter."""
    values = {"n": n, "m": m}
    shape = [values[str(dim)] if str(dim) in values else int(dim) for dim in param.shape]
    rng = np.random.default_rng(len(shape))
    if str(param.dtype).startswith("int"):
        return rng.integers(0, min(n, 50), shape).astype(str(param.dtype))
    return rng.standard_normal(shape).astype(np.dtype(str(param.dtype)))


@sweep(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_stores_stream_where_it_pays(name: str) -> None:
    program = PROGRAMS[name]
    assert ("movnt" in source(program.func)) == program.streams


def test_nothing_that_is_known_to_fit_in_the_caches() -> None:
    """What counts is all that a kernel reads and writes: of a table no more than is taken from it, and both parts of
    what is joined."""

    def streams(value: str, *shapes: Sequence[int], target: Target = AVX2) -> bool:
        params = ", ".join(
            f'{x}: R.Tensor({shape}, "float32")' for x, shape in zip("xy", shapes, strict=False)
        )
        rows = 'i: R.Tensor((1024,), "int64")'
        return "movnt" in source(Program(f"{params}, {rows}", value, np.add).func, target)

    zen = Target.parse("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=znver4")
    assert not streams("R.negative(x)", (2048, 1023))
    assert streams("R.negative(x)", (2048, 1024))
    assert not streams("R.add(x, y)", (1365, 1024), (1365, 1024))
    assert streams("R.add(x, y)", (1366, 1024), (1366, 1024))
    assert not streams("R.add(x, y)", (2048, 1023), (1, 1023))
    assert not streams("R.take(x, i, axis=0)", (1 << 20, 1024))
    assert not streams("R.concat((x, y), axis=1)", (2048, 511), (2048, 512))
    assert streams("R.concat((x, y), axis=1)", (2048, 512), (2048, 512))
    assert not streams("R.negative(x)", (2048, 2047), target=zen)
    assert streams("R.negative(x)", (2048, 2048), target=zen)


def test_a_number_among_the_parameters() -> None:
    value = 'R.arange(k, k + n, dtype="int64")'
    func = Program(f'{X}, s: R.Shape(["k"])', value, np.copy, symbols="k = T.int64()").func
    assert not all(isinstance(param.ty, tirx.BufferType) for param in func.params)
    assert "movnt" in source(func)


def test_no_floats_that_are_integers_in_memory(tmp_path: Path) -> None:
    func = Program(X, 'R.astype(x, "float8_e4m3fn")', np.copy).func
    library = load(tmp_path, {"kernel": schedule_kernel(func, HOST, FROM_1_MIB).parallel})
    x = np.random.default_rng(0).standard_normal((1024, 1100), "float32")
    out = in_lines(x.size, np.dtype("uint8")).reshape(x.shape)
    library["kernel"](as_tensor(x), as_tensor(out))
    np.testing.assert_array_equal(out, x.astype(ml_dtypes.float8_e4m3fn).view("uint8"))


def test_no_other_architecture() -> None:
    arm = Target.parse("llvm -mtriple=aarch64-linux-gnu -mcpu=generic")
    assert "relaxpy_stream" not in str(schedule_kernel(PROGRAMS["rows"].func, arm).serial)


@pytest.mark.parametrize("name", ["turned", "turned bytes"])
def test_vectors_that_are_lines(name: str) -> None:
    wide = Target.parse("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=x86-64-v4")
    assert "movnt" in source(PROGRAMS[name].func, wide)


def source(func: Any, target: Target = AVX2) -> str:
    """Its machine code for an x86-64 processor, in assembly language."""
    return compile_source({"k": schedule_kernel(func, target).serial}, target)
