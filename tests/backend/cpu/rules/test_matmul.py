"""Matrix products against numpy: every kind of edge, all targets that run here, both variants of the kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi

from relaxpy.backend.cpu.compile import compile_object
from relaxpy.backend.cpu.rules.matmul import matmul_program
from relaxpy.backend.schedule import schedule_kernel
from relaxpy.ir.dim import SymVar
from relaxpy.runtime.bytecode import KernelImage, KernelInfo
from relaxpy.runtime.devices.cpu.kernels import KernelHandles, load_kernels
from relaxpy.target import Target
from relaxpy.tir import te
from relaxpy.tir.prim_func import PrimFunc
from tests.sweeps import optimised

pytestmark = optimised

TARGETS = ("llvm", "llvm -mcpu=haswell", "llvm -mcpu=x86-64")

Shape = tuple[Any, ...]


def product(a: Shape, b: Shape, *, dtype: str = "float32", transposed: bool = False) -> Any:
    """The TVM program of `a @ b`, batch dimensions broadcast; `b` is read as `(..., n, k)` where transposed."""
    left = te.placeholder(a, dtype, "A")
    right = te.placeholder(b, dtype, "B")
    k = te.reduce_axis(a[-1])
    columns = b[-2] if transposed else b[-1]
    batch = a[:-2]
    if len(a) == len(b):
        batch = tuple(
            right if left == 1 else left for left, right in zip(a[:-2], b[:-2], strict=True)
        )

    def element(*index: Any) -> Any:
        *outer, i, j = index
        at_left = te.broadcast_index(a[:-2], batch, outer)
        at_right = te.broadcast_index(b[:-2], batch, outer)
        right_value = right(*at_right, j, k) if transposed else right(*at_right, k, j)
        return te.sum(left(*at_left, i, k) * right_value, k)

    return PrimFunc.from_te(
        [left, right], [te.compute((*batch, a[-2], columns), element, "C")]
    ).func


def einsum_heads() -> Any:
    """`bshd,bthd->bhst`: heads in the middle, so that rows of both factors are strided; heads of b shared by four."""
    b, s, t = SymVar("b"), SymVar("s"), SymVar("t")
    left = te.placeholder((b, s, 8, 24), "float32", "A")
    right = te.placeholder((b, t, 2, 24), "float32", "B")
    k = te.reduce_axis(24)
    out = te.compute(
        (b, 8, s, t),
        lambda n, h, i, j: te.sum(left(n, i, h, k) * right(n, j, h // 4, k), k),
        "C",
    )
    return PrimFunc.from_te([left, right], [out]).func


def square_of_rows() -> Any:
    """`x @ x.T`: both factors are one buffer."""
    m, d = SymVar("m"), SymVar("d")
    x = te.placeholder((m, d), "float32", "X")
    k = te.reduce_axis(d)
    out = te.compute((m, m), lambda i, j: te.sum(x(i, k) * x(j, k), k), "C")
    return PrimFunc.from_te([x], [out]).func


def swapped() -> Any:
    """`sum(b[k, j] * a[i, k])`: the factors the other way round."""
    m, n = SymVar("m"), SymVar("n")
    a = te.placeholder((m, 40), "float32", "A")
    b = te.placeholder((40, n), "float32", "B")
    k = te.reduce_axis(40)
    out = te.compute((m, n), lambda i, j: te.sum(b(k, j) * a(i, k), k), "C")
    return PrimFunc.from_te([a, b], [out]).func


def programs() -> dict[str, Any]:
    """One program for every form that the tests run."""
    m, k, n, b, s = (SymVar(name) for name in "mknbs")
    return {
        "dynamic": product((m, k), (k, n)),
        "weights": product((b, s, 96), (96, 80)),
        "deep": product((m, 1100), (1100, 33)),
        "static": product((17, 31), (31, 65)),
        "scores": product((b, 3, s, 32), (b, 3, n, 32), transposed=True),
        "values": product((b, 3, s, n), (b, 3, n, 32)),
        "broadcast": product((b, 1, s, k), (1, 4, k, n)),
        "maybe": product((SymVar("b1"), s, k), (SymVar("b1"), k, n)),
        "heads": einsum_heads(),
        "gram": square_of_rows(),
        "swapped": swapped(),
        "double": product((m, k), (k, n), dtype="float64"),
        "integer": product((m, k), (k, n), dtype="int32"),
    }


class Kernels:
    """The programs compiled for one target, each when it is first asked for."""

    def __init__(self, target: str) -> None:
        self.target = Target.parse(target)
        if not self.target.is_host_loadable:
            pytest.skip(f"{target} does not run here")
        self.programs = programs()
        self.known: dict[str, KernelHandles] = {}

    def handle(self, name: str) -> KernelHandles:
        """The compiled program, in both variants."""
        if name not in self.known:
            kernel = schedule_kernel(self.programs[name], self.target)
            assert kernel.rule == "matmul"
            serial = f"{name}_serial"
            code = compile_object({name: kernel.parallel, serial: kernel.serial}, self.target)
            (self.known[name],) = load_kernels(
                [code], [KernelInfo(name, (KernelImage(name, serial),))]
            )
        return self.known[name]

    def __call__(self, name: str, inputs: Sequence[np.ndarray], shape: Shape) -> np.ndarray:
        """The result of the kernel's parallel variant; that the serial one's has the same bits is checked."""
        handle = self.handle(name)
        args = [tvm.runtime.tensor(np.ascontiguousarray(x)) for x in inputs]
        results: list[np.ndarray] = []
        for call in (handle.parallel, handle.serial):
            # Memory that is never written shows as a value that no product has.
            out = tvm.runtime.tensor(np.full(shape, 77, inputs[0].dtype))
            call(*args, out)
            results.append(out.numpy())
        np.testing.assert_array_equal(results[0], results[1])
        return results[0]


@pytest.fixture(scope="module", params=TARGETS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return Kernels(request.param)


@pytest.fixture(scope="module")
def host() -> Kernels:
    """For what does not depend on the width of vectors."""
    return Kernels("llvm")


@pytest.fixture
def random() -> Callable[..., np.ndarray]:
    generator = np.random.default_rng(7)
    return lambda *shape: generator.standard_normal(shape).astype("float32")


def close(actual: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """Equal to the product in double precision, within what summing in the type's precision can lose."""
    expected = a.astype("float64") @ b.astype("float64")
    scale = np.abs(a).astype("float64") @ np.abs(b).astype("float64")
    assert actual.shape == expected.shape
    bound = np.finfo(actual.dtype).eps * max(1, a.shape[-1]) ** 0.5 * 2
    assert np.all(np.abs(actual - expected) <= bound * scale + 1e-30)


def edges(limit: int = 10**6) -> Iterator[tuple[int, int, int]]:
    """Rows, depth, columns around every edge: none, one, tiles and panels of all targets and their neighbours."""
    rows = (0, 1, 2, 3, 5, 6, 7, 8, 9, 13, 23, 24, 25, 97, 211)
    columns = (0, 1, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65, 127, 130)
    for i, m in enumerate(rows):
        for j, n in enumerate(columns):
            k = (0, 1, 2, 17, 64, 511, 513)[(i * 3 + j) % 7]
            if m * n * k <= limit:
                yield m, k, n


def test_every_edge(kernels: Kernels, random: Callable[..., np.ndarray]) -> None:
    """Nothing is read or written outside, and nothing inside is missed, whatever the extents."""
    for m, k, n in edges():
        a, b = random(m, k), random(k, n)
        close(kernels("dynamic", (a, b), (m, n)), a, b)


@pytest.mark.parametrize(
    "columns", [48, 49, 63, 80, 81, 96, 97, 112, 145, 160, 161, 176, 193, 208, 209, 223]
)
def test_panels_of_two_widths(
    kernels: Kernels, random: Callable[..., np.ndarray], columns: int
) -> None:
    """The columns are cut into panels of two widths: none is missed or computed twice, in either layout of the
    right-hand factor, with the last panel whole or ragged."""
    a, b = random(11, 300), random(300, columns)
    close(kernels("dynamic", (a, b), (11, columns)), a, b)
    q, k = random(2, 3, 11, 32), random(2, 3, columns, 32)
    close(kernels("scores", (q, k), (2, 3, 11, columns)), q, k.swapaxes(-1, -2))


@pytest.mark.slow
def test_double_precision(host: Kernels, random: Callable[..., np.ndarray]) -> None:
    for m, k, n in edges(limit=10**5):
        a, b = random(m, k).astype("float64"), random(k, n).astype("float64")
        np.testing.assert_allclose(host("double", (a, b), (m, n)), a @ b, atol=1e-11)


def test_integers_are_exact(host: Kernels) -> None:
    generator = np.random.default_rng(3)
    for m, k, n in ((1, 9, 5), (13, 600, 40), (30, 7, 33)):
        a, b = (generator.integers(-9, 9, s, dtype="int32") for s in ((m, k), (k, n)))
        np.testing.assert_array_equal(host("integer", (a, b), (m, n)), a @ b)


@pytest.mark.parametrize("rows", [(0, 5), (1, 1), (1, 7), (2, 64), (3, 67)])
def test_batch_of_rows_is_one_matrix(
    host: Kernels, random: Callable[..., np.ndarray], rows: tuple[int, int]
) -> None:
    a, b = random(*rows, 96), random(96, 80)
    close(host("weights", (a, b), (*rows, 80)), a, b)


@pytest.mark.parametrize("m", [1, 8, 40])
def test_depth_in_blocks(kernels: Kernels, random: Callable[..., np.ndarray], m: int) -> None:
    """A depth above the block's: partial sums are kept, and the last block is short."""
    a, b = random(m, 1100), random(1100, 33)
    close(kernels("deep", (a, b), (m, 33)), a, b)


def test_known_extents(host: Kernels, random: Callable[..., np.ndarray]) -> None:
    a, b = random(17, 31), random(31, 65)
    close(host("static", (a, b), (17, 65)), a, b)


@pytest.mark.parametrize("size", [0, 1, 7, 16, 33, 70])
def test_attention(kernels: Kernels, random: Callable[..., np.ndarray], size: int) -> None:
    """Queries by transposed keys, then weights by values: every extent that depends on the sequence."""
    q, k, v = random(2, 3, size, 32), random(2, 3, size + 2, 32), random(2, 3, size + 2, 32)
    scores = kernels("scores", (q, k), (2, 3, size, size + 2))
    close(scores, q, k.swapaxes(-1, -2))
    close(kernels("values", (scores, v), (2, 3, size, 32)), scores, v)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 5, 20])
def test_broadcast_batches(host: Kernels, random: Callable[..., np.ndarray], size: int) -> None:
    a, b = random(3, 1, size, 19), random(1, 4, 19, 37)
    close(host("broadcast", (a, b), (3, 4, size, 37)), a, b)
    a, b = random(size, 6, 19), random(size, 19, 37)
    close(host("maybe", (a, b), (size, 6, 37)), a, b)


@pytest.mark.parametrize(("s", "t"), [(1, 1), (9, 21), (30, 40)])
def test_heads_between(host: Kernels, random: Callable[..., np.ndarray], s: int, t: int) -> None:
    """Strided rows, and a batch index that is computed (grouped heads)."""
    a, b = random(2, s, 8, 24), random(2, t, 2, 24)
    left = a.transpose(0, 2, 1, 3)
    right = b.transpose(0, 2, 3, 1).repeat(4, axis=1)
    close(host("heads", (a, b), (2, 8, s, t)), left, right)


@pytest.mark.parametrize("m", [0, 1, 8, 35])
def test_one_buffer_twice(host: Kernels, random: Callable[..., np.ndarray], m: int) -> None:
    x = random(m, 50)
    close(host("gram", (x,), (m, m)), x, x.T)


def test_factors_the_other_way_round(host: Kernels, random: Callable[..., np.ndarray]) -> None:
    a, b = random(21, 40), random(40, 70)
    close(host("swapped", (a, b), (21, 70)), a, b)


def test_a_row_depends_on_its_row_only(kernels: Kernels, random: Callable[..., np.ndarray]) -> None:
    """The bits of a row are the same alone, among a few and among many: batching changes no result."""
    a, b = random(100, 700), random(700, 77)
    whole = kernels("dynamic", (a, b), (100, 77))
    for m in (1, 3, 8, 9, 31):
        np.testing.assert_array_equal(kernels("dynamic", (a[:m], b), (m, 77)), whole[:m])


def test_memory_need_not_be_aligned(kernels: Kernels, random: Callable[..., np.ndarray]) -> None:
    """Arguments that begin four bytes into a cache line."""

    def shifted(x: np.ndarray) -> np.ndarray:
        memory = np.empty(x.size + 17, "float32")
        start = (-memory.ctypes.data // 4) % 16 + 1
        view = memory[start : start + x.size].reshape(x.shape)
        view[...] = x
        return view

    a, b = shifted(random(30, 40)), shifted(random(40, 50))
    out = shifted(np.zeros((30, 50), "float32"))
    handle = kernels.handle("dynamic")
    for call in (handle.parallel, handle.serial):
        call(*(tvm_ffi.from_dlpack(x, require_alignment=4) for x in (a, b, out)))
        close(out, a, b)


def test_what_is_no_product_is_left() -> None:
    """A single column, a product of elements, a sum with something after it, other types: not this rule's."""
    m, k, n = SymVar("m"), SymVar("k"), SymVar("n")
    a, b = te.placeholder((m, k), "float32", "A"), te.placeholder((m, k), "float32", "B")
    inner = te.reduce_axis(k)
    rows = te.compute((m,), lambda i: te.sum(a(i, inner) * b(i, inner), inner), "C")
    both = te.compute((m, k), lambda i, j: a(i, j) * b(i, j), "D")
    target = Target.host()
    for program in (
        product((m, k), (k, 1)),
        PrimFunc.from_te([a, b], [rows]).func,
        PrimFunc.from_te([a, b], [both]).func,
        product((m, k), (k, n), dtype="float16"),
    ):
        assert matmul_program(program, target) is None
