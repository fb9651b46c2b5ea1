"""WGSL: declarations of memory and numbers, and values in the types that WGSL has."""

from __future__ import annotations

import re

import pytest

from relaxpy.backend.gpu.threads import bind_threads
from relaxpy.backend.webgpu.kernel_image import kernel_image
from relaxpy.backend.webgpu.target import WebGPUTarget
from relaxpy.errors import BuildError
from relaxpy.runtime.devices.image import Image
from tests.backend.gpu.support import MATMUL, program


def image(text: str) -> Image:
    return kernel_image(bind_threads(program(text).func, 64), "k", "k", WebGPUTarget())[0]


def source(value: str, dtype: str = "float32", result: str = "") -> str:
    """WGSL of a program that computes this of each `x[vi]`."""
    return image(f"""
        def main(x: T.Buffer(("n",), "{dtype}"), y: T.Buffer(("n",), "{result or dtype}")):
            n = T.int64()
            for i in T.serial(n):
                with T.sblock("y"):
                    vi = T.axis.spatial(n, i)
                    y[vi] = {value}
    """).source


def test_a_matrix_product() -> None:
    """Memory that is only read is bound so; indices are `i32`; a total is a variable."""
    found = image(MATMUL)
    bindings = re.findall(r"@binding\((\d)\) var<(.*?)> (\w+)_ptr_0", found.source)
    access = {name: kind.removeprefix("storage, ") for _, kind, name in bindings}
    assert access == {"x": "read", "w": "read", "y": "read_write"}
    assert "y_total_0 = (y_total_0 + (x_ptr_0[" in found.source
    assert found.source.count("@compute @workgroup_size(64, 1, 1)") == 1
    assert {arg["memory"]: arg["access"] for arg in found.args if "memory" in arg} == {
        0: "read", 1: "read", 2: "read-write",
    }  # fmt: skip
    assert all(arg["most"] == (1 << 31) - 1 for arg in found.args if "size" in arg)
    assert found.limits == {
        "max-storage-buffers-per-shader-stage": 3, "max-compute-invocations-per-workgroup": 64,
    }  # fmt: skip


def test_an_image_is_read_back() -> None:
    found = image(MATMUL)
    assert Image.decode(found.encode()) == found


def test_numbers_are_exact() -> None:
    """In digits that represent them, or by their bits where WGSL has no literal."""
    assert "0x1.715476p+0f" in source("x[vi] * T.float32(1.44269502162933349609375)")
    assert "0.5f" in source("x[vi] * T.float32(0.5)")
    assert "from_bits(0x7f800000u)" in source("x[vi] + T.float32(float('inf'))")
    assert "from_bits(0x80000000u)" in source("T.max(x[vi], T.float32(-0.0))")
    assert "from_bits(0x00000001u)" in source("x[vi] + T.float32(1e-45)")
    assert "i32(-2147483648)" in source("T.max(x[vi], T.int32(-2147483648))", "int32")


def test_integers_of_64_bits() -> None:
    """Data are two words, and indices one."""
    text = source("x[vi] * T.int64(4294967299)", "int64")
    assert "wide_mul(x_ptr_0[" in text
    assert "vec2<u32>(3u, 1u)" in text
    assert "array<vec2<u32>>" in text
    assert "wide_of_int(" in source("T.Cast('int64', vi)", result="int64")
    looked_up = source("T.Cast('float32', x[T.max(T.min(x[vi], n - 1), 0)])", "int64", "float32")
    assert "saturated(x_ptr_0[" in looked_up


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "bool", "int16", "uint16", "float16", "bfloat16"]
)
def test_parts_of_words(dtype: str) -> None:
    """They are stored without touching their neighbours."""
    text = source("x[vi]", dtype)
    assert "array<atomic<u32>>" in text
    assert "atomicAnd(&" in text
    assert "atomicOr(&" in text


@pytest.mark.parametrize("dtype", ["int8", "bool", "uint16", "float16"])
def test_the_value_of_a_part_comes_before_it_is_cleared(dtype: str) -> None:
    """It may be computed from the old one."""
    text = source("T.Not(y[vi])" if dtype == "bool" else "y[vi] + x[vi]", dtype)
    assert text.index("atomicLoad(&") < text.index("atomicAnd(&")
    assert "atomicLoad(&" not in text[text.index("atomicAnd(&") :]


@pytest.mark.parametrize(
    ("value", "keeps"),
    [
        ("x[vi] - x[vi]", 1), ("x[vi] + (x[0] - x[vi])", 1), ("x[vi] * x[0] - x[vi] * x[1]", 1), ("x[vi] - x[0]", 0),
        ("T.exp(x[vi]) * T.exp(x[0])", 1), ("x[vi] * x[0] + x[1]", 0), ("(x[vi] + T.float32(2)) - T.float32(3)", 1),
    ],
)  # fmt: skip
def test_sums_that_a_driver_would_simplify(value: str, keeps: int) -> None:
    """Where both sides have a part in common, and only there."""
    assert source(value).count("keep(") - keeps == (1 if keeps else 0)  # and its definition


def test_a_product_stays_one_instruction() -> None:
    assert "keep(" not in image(MATMUL).source


def test_elementary_functions_are_exact() -> None:
    """Their sums are not reassociated."""
    text = source("T.tanh(x[vi])")
    assert "fn relaxpy_tanh(" in text
    assert "keep(" in text


def test_what_has_no_form() -> None:
    """The error names the kernel."""
    with pytest.raises(BuildError, match='the kernel "k" computes exp in float64') as caught:
        source("T.exp(x[vi])", "float64")
    assert caught.value.code == "device-dtype"
    assert caught.value.help == 'compute in float32: R.astype(x, "float32")'


def test_groups_beyond_an_axis() -> None:
    """A grid that is folded ends after its last group."""
    text = source("x[vi]")
    assert "let group_x = group.x + group.z * grid.x;" in text
    assert "if (group_x >= numbers.groups) { return; }" in text


def test_an_author_s_axis_is_not_folded() -> None:
    text = image("""
        def main(x: T.Buffer((8, 8, 8), "float32"), y: T.Buffer((8, 8, 8), "float32")):
            for a in T.thread_binding(8, thread="blockIdx.x"):
                for b in T.thread_binding(8, thread="blockIdx.z"):
                    for c in T.thread_binding(8, thread="threadIdx.x"):
                        with T.sblock("y"):
                            i, j, k = T.axis.remap("SSS", [a, b, c])
                            y[i, j, k] = x[i, j, k]
    """).source
    assert "let group_x = group.x;" in text
    assert "let group_z = group.z;" in text
