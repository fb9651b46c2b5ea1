"""Attention by tensor cores on the emulated driver, against the operator's reference: lengths beside every limit,
masks, biases, heads that share keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import relaxpy
from relaxpy.backend.cuda.target import CudaTarget
from relaxpy.backend.gpu.schedule.attention import arrange_attention
from relaxpy.op.attention import Attention
from relaxpy.runtime.devices.image import Image
from relaxpy.target import Target
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.transform.base import PassContext
from relaxpy.transform.legalize_ops import LegalizeOps
from tests.e2e.devices import machine
from tests.runtime.devices.cuda import compiled as cuda
from tests.sweeps import FULL, part, sweep

pytestmark = cuda.needs_cuda
DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2}
LENGTHS = (
    (1, 1, 1), (2, 3, 64), (1, 16, 65), (1, 64, 63), (2, 17, 33), (1, 65, 130), (1, 1, 300), (1, 0, 5), (2, 5, 0), (0, 1, 1),
)  # fmt: skip
"""Batch, queries and keys."""


assembled = cuda.assembled


@pytest.fixture(scope="module", autouse=True)
def device() -> Iterator[None]:
    with cuda.emulated_compiled():
        yield


def program(
    dtype: str,
    widths: tuple[int, int],
    heads: tuple[int, int],
    options: Mapping[str, Any],
    bias: str = "",
    after: str = "y",
) -> relaxpy.IRModule:
    """Attention with keys and values of these widths, and so many heads of queries and keys."""
    (width, column), (all_heads, groups) = widths, heads
    mask = f', mask: R.Tensor({bias}, "{dtype}")' if bias else ""
    given = [
        "q",
        "k",
        "v",
        *(["mask"] if bias else []),
        *(f"{n}={v!r}" for n, v in options.items()),
    ]
    return relaxpy.parse(f"""
@R.function
def main(
    q: R.Tensor(("b", "s", {all_heads}, {width}), "{dtype}"),
    k: R.Tensor(("b", "t", {groups}, {width}), "{dtype}"),
    v: R.Tensor(("b", "t", {groups}, {column}), "{dtype}"){mask}
):
    y = R.nn.attention({", ".join(given)})
    z = {after}
    return z
""")


def given(
    dtype: str, widths: tuple[int, int], heads: tuple[int, int], size: tuple[int, int, int]
) -> list[np.ndarray]:
    rng = np.random.default_rng(size)
    batch, queries, keys = size
    shapes = (batch, queries, heads[0], widths[0]), *((batch, keys, heads[1], w) for w in widths)
    return [rng.standard_normal(shape, np.float32).astype(DTYPES[dtype]) for shape in shapes]


def check(found: np.ndarray, wanted: np.ndarray, dtype: str) -> None:
    wide = wanted.astype(np.float32)
    bound = TOLERANCE[dtype] * np.abs(wide).max(initial=1)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found.astype(np.float32), wide, rtol=0, atol=bound)


def images(mod: relaxpy.IRModule, target: str) -> list[Image]:
    return [Image.decode(data) for data in relaxpy.build(mod, target).objects]


def rules(mod: relaxpy.IRModule, target: str) -> set[str]:
    report = relaxpy.build(mod, target, cache=False).build_report
    assert report is not None
    return {kernel.rule for kernel in report.kernels}


CASES = [
    ("float16", (32, 16), (6, 2), {"causal_mask": "BottomRight", "window_size": 20}),
    ("bfloat16", (16, 80), (2, 2), {"scale": 0.3}),
    *(
        [
            ("float16", (64, 64), (8, 1), {"causal_mask": "TopLeft"}),
            ("bfloat16", (128, 128), (4, 1), {"causal_mask": "BottomRight"}),
            ("float16", (48, 112), (3, 3), {}),
            ("float16", (16, 16), (68, 1), {"causal_mask": "TopLeft", "window_size": 1}),
        ]
        if FULL
        else []
    ),
]


@sweep(2)
@pytest.mark.parametrize(("dtype", "widths", "heads", "options"), CASES)
def test_numbers(
    dtype: str, widths: tuple[int, int], heads: tuple[int, int], options: dict[str, Any]
) -> None:
    vm = machine(program(dtype, widths, heads, options), cuda.TARGET)
    assert len(vm.executable.kernels) == 1
    for size in LENGTHS:
        arrays = given(dtype, widths, heads, size)
        check(vm["main"](*arrays).numpy(), Attention(**options).reference(*arrays), dtype)


def test_biases() -> None:
    """A query whose keys all have a bias of minus infinity gives 0, as one whose keys are all masked."""
    options = {"causal_mask": "TopLeft"}
    dtype, widths, heads = "float16", (16, 16), (2, 1)
    mod = program(dtype, widths, heads, options, bias='("b", 1, "s", "t")')
    vm = machine(mod, cuda.TARGET)
    rng = np.random.default_rng(1)
    for batch, queries, keys in ((2, 5, 70), (1, 40, 66), (1, 1, 1)):
        arrays = given(dtype, widths, heads, (batch, queries, keys))
        bias = rng.standard_normal((batch, 1, queries, keys)).astype(np.float16)
        bias[rng.random(bias.shape) < 0.3] = -np.inf
        bias[:, :, queries // 2] = -np.inf
        wanted = Attention(**options).reference(*arrays, bias)
        assert not wanted[:, queries // 2].any()
        check(vm["main"](*arrays, bias).numpy(), wanted, dtype)


def test_what_follows() -> None:
    """In the same launch."""
    dtype, widths, heads = "float16", (16, 16), (2, 2)
    mod = program(dtype, widths, heads, {}, after="R.nn.relu(R.add(y, q))")
    vm = machine(mod, cuda.TARGET)
    assert len(vm.executable.kernels) == 1
    q, k, v = given(dtype, widths, heads, (1, 20, 70))
    check(vm["main"](q, k, v).numpy(), np.maximum(Attention().reference(q, k, v) + q, 0), dtype)


def test_neighbours_are_not_seen() -> None:
    """What is masked for all queries of a tile, or belongs to others, may be anything."""
    dtype, widths, heads = "float16", (16, 16), (2, 1)
    vm = machine(program(dtype, widths, heads, {"causal_mask": "TopLeft"}), cuda.TARGET)
    q, k, v = given(dtype, widths, heads, (2, 40, 200))
    wanted = Attention(causal_mask="TopLeft").reference(q, k, v)
    k[:, 40:], v[:, 40:] = np.nan, np.inf
    check(vm["main"](q, k, v).numpy(), wanted, dtype)
    k[0], v[0] = np.nan, np.nan
    check(vm["main"](q, k, v).numpy()[1:], wanted[1:], dtype)


def test_equal_bits_in_any_batch() -> None:
    """With `-batch-invariant=1`, a query has the bits that it has alone, of few queries and of many."""
    dtype, widths, heads = "float16", (16, 32), (4, 2)
    target = f"{cuda.TARGET} -batch-invariant=1"
    vm = machine(program(dtype, widths, heads, {"causal_mask": "BottomRight"}), target)
    q, k, v = given(dtype, widths, heads, (3, 70, 130))
    together = vm["main"](q, k, v).numpy()
    for first in (0, 5, 62, 69):
        own = q[1:2, first:], k[1:2], v[1:2]
        np.testing.assert_array_equal(vm["main"](*own).numpy()[0], together[1, first:])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_instructions(dtype: str) -> None:
    """The code has those of tensor cores, copies past registers, and one launch."""
    (image,) = images(program(dtype, (64, 64), (4, 2), {}), "cuda -arch=compute_80")
    for instruction in (b"mma.sync.", b"ldmatrix.sync.aligned.m8n8.x4.trans.", b"cp.async.cg."):
        assert instruction in image.code


@pytest.mark.usefixtures("assembled")
@pytest.mark.parametrize(("heads", "mask"), part([((32, 8), "BottomRight"), ((8, 8), None)], 2))
def test_registers(heads: tuple[int, int], mask: str | None) -> None:
    """Nothing is spilled, and three groups fit a multiprocessor."""
    options = {"causal_mask": mask} if mask else {}
    found = images(program("bfloat16", (128, 128), heads, options), "cuda -arch=sm_80,sm_90")
    assert len(found) == 2
    for image in found:
        assert image.resources["spills"] == image.resources["stack"] == 0
        assert image.resources["registers"] <= 168
        assert image.resources["shared"] <= 48 * 1024


@pytest.mark.parametrize(
    ("dtype", "width", "target"),
    [
        ("float32", 64, "cuda -arch=compute_80"),  # is not rounded
        ("float16", 60, "cuda -arch=compute_80"),
        ("float16", 144, "cuda -arch=compute_80"),
        ("float16", 64, "cuda -arch=compute_80 -threads=64"),
        ("float16", 64, "opencl"),
    ],
)
def test_what_is_left_to_rows(dtype: str, width: int, target: str) -> None:
    assert "attention" not in rules(program(dtype, (width, width), (2, 2), {}), target)


@sweep(2)
@pytest.mark.parametrize(
    ("width", "first", "is_aligned"), [(16, 0, True), (24, 8, True), (24, 3, False), (20, 0, False)]
)
def test_aligned_keys(width: int, first: int, is_aligned: bool) -> None:
    """Keys are copied 16 bytes at a time, also parts of a wider tensor, unless they begin elsewhere."""
    target = Target.parse("cuda")
    assert isinstance(target, CudaTarget)
    context = PassContext(target=target)
    text = LegalizeOps().run(program("float16", (16, 16), (2, 2), {}), context).script()
    text = text.replace('key: T.Buffer(("n", "k", 2, 16)', f'key: T.Buffer(("n", "k", 2, {width})')
    text = text.replace("key[v_i0, v_i3, v_i1, v_k]", f"key[v_i0, v_i3, v_i1, v_k + {first}]")
    func = relaxpy.parse(text[: text.index("@R.function")])["attention"]
    assert isinstance(func, PrimFunc)
    assert (arrange_attention(func.func, target) is not None) == is_aligned
