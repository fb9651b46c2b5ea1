"""The functions in WGSL that kernels call, run on a device: integers and floats of 64 bits are exact."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from relaxpy.backend.webgpu.functions import FUNCTIONS, definitions
from tests.runtime.devices.webgpu.support import needs_vulkan

U64, I64, F64 = np.dtype("u8"), np.dtype("i8"), np.dtype("f8")
WORDS = {
    "u8": "vec2<u32>",
    "i8": "vec2<u32>",
    "f8": "vec2<u32>",
    "f4": "f32",
    "i4": "i32",
    "u4": "u32",
}
"""The types of elements in WGSL."""
INTEGERS = np.array(
    [0, 1, 2, 3, 7, 10, 255, 65535, 65536, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 53) + 1, (1 << 63) - 1, 1 << 63,
     (1 << 63) + 1, (1 << 64) - 2, (1 << 64) - 1], U64
)  # fmt: skip
FLOATS = np.array(
    [0.0, -0.0, 1.0, -1.5, 0.5, 2.5, 3.5, -2.5, 1e-310, 5e-324, -5e-324, 2.2250738585072014e-308, 1e308,
     1.7976931348623157e308, 1e-200, -1e200, np.pi, 1 / 3, 2.0**52 + 1, 2.0**53, 1e18, -9.3e18, 1e19, 3.5e38, 1e-45,
     7e-46, np.inf, -np.inf, np.nan], F64
)  # fmt: skip
SINGLES = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, -2.5, 0.1, 3.0, 1e-38, 1.2e-38, 3e38, -3e38, 1e10, -7.3, 123.456, 2.0**31,
     2.0**40, -(2.0**63), 1e20, np.inf, -np.inf, np.nan], "f4"
)  # fmt: skip


def pairs(special: np.ndarray, seed: int, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of special values, and random bits."""
    a, b = (each.ravel() for each in np.meshgrid(special, special))
    rng = np.random.default_rng(seed)
    size = np.dtype(dtype).itemsize
    drawn = [rng.integers(0, 256, (2000, size), np.uint8).view(dtype).ravel() for _ in range(2)]
    return np.concatenate([a.view(dtype), drawn[0]]), np.concatenate([b.view(dtype), drawn[1]])


def run(function: str, result: str, *args: np.ndarray) -> np.ndarray:
    """The function of each element of the arguments, on the first device."""
    import wgpu

    from relaxpy.runtime.devices.webgpu.device import _adapters

    device = _adapters(("Vulkan", "Metal"))[0].request_device_sync()
    lines = [f"struct Numbers {{ zero: u32, count: u32 }}\n{definitions(f'{function}(')}"]
    names = []
    for place, arg in enumerate(args):
        element = WORDS[arg.dtype.str[1:]]
        lines.append(f"@group(0) @binding({place}) var<storage, read> a{place}: array<{element}>;")
        names.append(f"a{place}[i.x]")
    at = len(args)
    lines.append(
        f"@group(0) @binding({at}) var<storage, read_write> found: array<{WORDS[result]}>;"
    )
    lines.append(f"@group(0) @binding({at + 1}) var<uniform> numbers: Numbers;")
    lines.append(
        "@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) i: vec3<u32>) {"
    )
    lines.append(f"if (i.x < numbers.count) {{ found[i.x] = {function}({', '.join(names)}); }} }}")
    size = args[0].size
    data = [*map(np.ascontiguousarray, args), np.zeros(size, result), np.array([0, size], "u4")]
    usage = wgpu.BufferUsage
    kinds = [usage.STORAGE | usage.COPY_SRC] * (at + 1) + [usage.UNIFORM]
    buffers = [
        device.create_buffer_with_data(data=d, usage=k) for d, k in zip(data, kinds, strict=True)
    ]
    module = device.create_shader_module(code="\n".join(lines))
    pipeline = device.create_compute_pipeline(
        layout="auto", compute={"module": module, "entry_point": "main"}
    )
    entries = [
        {"binding": i, "resource": {"buffer": b, "offset": 0, "size": b.size}}
        for i, b in enumerate(buffers)
    ]
    group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
    encoder = device.create_command_encoder()
    step = encoder.begin_compute_pass()
    step.set_pipeline(pipeline)
    step.set_bind_group(0, group)
    step.dispatch_workgroups(-(-size // 64))
    step.end()
    device.queue.submit([encoder.finish()])
    return np.frombuffer(device.queue.read_buffer(buffers[at]), result)


def assert_same(got: np.ndarray, want: np.ndarray, *args: np.ndarray) -> None:
    """Bit by bit; all NaNs are the same."""
    with np.errstate(invalid="ignore"):
        same = (
            (got == want) & (np.signbit(got) == np.signbit(want))
            if got.dtype.kind == "f"
            else got == want
        )
    if got.dtype.kind == "f":
        same |= np.isnan(got) & np.isnan(want)
    wrong = np.flatnonzero(~same)
    shown = [(*(a[i] for a in args), got[i], want[i]) for i in wrong[:5]]
    assert not len(wrong), f"{len(wrong)} of {len(got)}: {shown}"


def _no_zero(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: np.where(b == 0, 0, function(a, np.where(b == 0, 1, b)))


def _towards_zero(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    found = [
        abs(int(x)) // abs(int(y)) * (1 if (x < 0) == (y < 0) else -1)
        for x, y in zip(a, b, strict=True)
    ]
    return np.array([(each + (1 << 63)) % (1 << 64) - (1 << 63) for each in found], I64)


@needs_vulkan
@pytest.mark.parametrize(
    ("function", "dtype", "reference"),
    [
        ("wide_add", U64, np.add),
        ("wide_sub", U64, np.subtract),
        ("wide_mul", U64, np.multiply),
        ("wide_div_unsigned", U64, _no_zero(np.floor_divide)),
        ("wide_floor_div", I64, _no_zero(np.floor_divide)),
        (
            "wide_floor_mod",
            I64,
            lambda a, b: np.where(b == 0, a, np.remainder(a, np.where(b == 0, 1, b))),
        ),
        ("wide_div", I64, _no_zero(_towards_zero)),
        ("f64_add", F64, np.add),
        ("f64_sub", F64, np.subtract),
        ("f64_mul", F64, np.multiply),
        ("f64_div", F64, np.divide),
    ],
)
def test_arithmetic_of_64_bits(function: str, dtype: Any, reference: Callable[..., Any]) -> None:
    a, b = pairs(FLOATS if dtype == F64 else INTEGERS, 0, dtype)
    with np.errstate(all="ignore"):
        want = np.asarray(reference(a, b)).astype(dtype)
    got = run(function, dtype.str[1:], a, b)
    if "floor" in function:  # kernels divide by no 0 (relaxpy.tir.lowering.traps)
        a, b, got, want = (each[b != 0] for each in (a, b, got, want))
    assert_same(got, want, a, b)


def _saturated(x: np.ndarray, low: float, high: float, outside: int) -> np.ndarray:
    inside = (x >= low) & (x < high)
    return np.where(inside, np.where(inside, x, 0).astype("i8"), outside)


@needs_vulkan
@pytest.mark.parametrize(
    ("function", "args", "result", "reference"),
    [
        ("float_of_wide", I64, "f4", lambda x: x.astype("f4")),
        ("float_of_unsigned", U64, "f4", lambda x: x.astype("f4")),
        ("f64_of_wide", I64, "f8", lambda x: x.astype("f8")),
        ("f64_of_unsigned", U64, "f8", lambda x: x.astype("f8")),
        ("f64_to_float", F64, "f4", lambda x: x.astype("f4")),
        ("f64_to_wide", F64, "i8", lambda x: _saturated(x, -(2.0**63), 2.0**63, -(1 << 63))),
        ("f64_round", F64, "f8", np.rint),
        ("f64_floor", F64, "f8", np.floor),
        ("f64_ceil", F64, "f8", np.ceil),
        ("f64_trunc", F64, "f8", np.trunc),
        ("saturated", I64, "i4", lambda x: np.clip(x, -(1 << 31), (1 << 31) - 1)),
    ],
)
def test_conversions_of_64_bits(
    function: str, args: Any, result: str, reference: Callable[..., Any]
) -> None:
    x, _ = pairs(FLOATS if args == F64 else INTEGERS, 1, args)
    with np.errstate(all="ignore"):
        want = np.asarray(reference(x)).astype(result)
    got = run(function, result, x)
    if result == "f4":  # a device may flush what is smaller than the smallest normal number
        small = np.abs(want) < 2.0**-126
        got, want, x = got[~small], want[~small], x[~small]
    assert_same(got, want, x)


def normal(*arrays: np.ndarray) -> np.ndarray:
    """Where no number is subnormal: those a device may take as 0."""
    sizes = [np.abs(each) for each in arrays]
    return np.all([(size == 0) | ~(size < 2.0**-126) for size in sizes], axis=0)


@needs_vulkan
@pytest.mark.parametrize(
    ("function", "reference"),
    [("f_mod", np.fmod), ("copy_sign", np.copysign), ("next_after", np.nextafter)],
)
def test_exact_functions(function: str, reference: Callable[..., Any]) -> None:
    a, b = pairs(SINGLES, 2, np.dtype("f4"))
    with np.errstate(all="ignore"):
        want = reference(a, b)
    kept = normal(a, b, want)
    a, b, want = a[kept], b[kept], want[kept]
    assert_same(run(function, "f4", a, b), want, a, b)


@needs_vulkan
@pytest.mark.parametrize(
    ("function", "reference", "units"),
    [("sine", np.sin, 4), ("cosine", np.cos, 4), ("tangent", np.tan, 8)],
)
def test_trigonometry_of_all_sizes(
    function: str, reference: Callable[..., Any], units: int
) -> None:
    """Angles of any size: the reduction has all digits of pi that are needed."""
    x, _ = pairs(SINGLES, 3, np.dtype("f4"))
    x = x[normal(x)]
    with np.errstate(all="ignore"):
        want = reference(x.astype("f8"))
        got = run(function, "f4", x)
        far = np.abs(got - want) > units * 2.0**-24 * np.maximum(np.abs(want), 2.0**-20)
        odd = np.isnan(got) != np.isnan(want)
    assert not (far | odd).any(), [(x[i], got[i], want[i]) for i in np.flatnonzero(far | odd)[:5]]


@needs_vulkan
def test_powers() -> None:
    """The sign and the special cases are those of C; the digits are right to a few units in the last place."""
    a, b = pairs(SINGLES, 4, np.dtype("f4"))
    with np.errstate(all="ignore"):
        want = np.power(a.astype("f8"), b.astype("f8"))
        single = want.astype("f4")
        kept = normal(a, b) & ~(np.abs(single) < 2.0**-125)
        a, b, want, single = a[kept], b[kept], want[kept], single[kept]
        got = run("power", "f4", a, b)
        finite = np.isfinite(single) & (single != 0)
        far = finite & (np.abs(got - want) > 8 * 2.0**-24 * np.abs(want))
    assert not far.any(), [(a[i], b[i], got[i], want[i]) for i in np.flatnonzero(far)[:5]]
    assert_same(got[~finite], single[~finite], a[~finite], b[~finite])


def test_only_what_is_called() -> None:
    """Directly or through others, in an order in which each comes after what it calls or is independent of it."""
    found = re.findall(r"^fn (\w+)", definitions("let x = wide_floor_div(a, b);"), re.MULTILINE)
    assert {"wide_floor_div", "wide_mod", "wide_div", "wide_sub"} <= set(found)
    assert "f64_add" not in found
    assert definitions("let wider = 1;") == ""
    assert set(FUNCTIONS) >= {"saturated", "keep", "power"}
