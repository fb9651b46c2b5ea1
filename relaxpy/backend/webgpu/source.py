"""Device functions as WGSL: declarations of memory and numbers around the text of the function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from relaxpy.backend.gpu.half import with_bits_in_memory
from relaxpy.backend.webgpu.functions import definitions
from relaxpy.backend.webgpu.names import Names
from relaxpy.backend.webgpu.writer import WIDE, Writer
from relaxpy.tir.tvm import tirx, tvm

_WORDS = {
    "float32": "f32", "int32": "i32", "uint32": "u32", "int64": WIDE, "uint64": WIDE, "float64": WIDE,
}  # fmt: skip
"""Elements in memory that are not parts of words."""


@dataclass(frozen=True)
class Source:
    """The source of a kernel."""

    text: str
    written: tuple[bool, ...]
    """For each parameter, whether it is memory that the kernel writes to."""
    narrow: tuple[bool, ...]
    """For each parameter, whether it is a number that must fit into 32 bits."""
    shared_bytes: int
    """The memory that a group of threads shares."""


def wgsl_source(func: tirx.PrimFunc, name: str) -> Source:
    """The source of one kernel, under the function's global symbol; errors name it `name`.

    Raises: BuildError (`device-dtype`, `kernel-compile`).
    """
    symbol = str(func.attrs["global_symbol"])
    func = with_bits_in_memory(func)
    names = Names()
    for param in func.params:
        _ = names[param]
    written = Writer(func, name, names).write()
    memory = [p for p in func.params if isinstance(p.ty, tvm.ir.PointerType)]
    numbers = [p for p in func.params if not isinstance(p.ty, tvm.ir.PointerType)]
    parts = [_struct(numbers, names)]
    for place, pointer in enumerate(memory):
        parts.append(_binding(place, pointer, names[pointer], pointer in written.stored))
    parts.append(f"@group(0) @binding({len(memory)}) var<uniform> numbers: Numbers;")
    parts += written.shared
    narrow = [names[p] for p in numbers if p in written.narrow]
    sizes = [f"  let {name} = bitcast<i32>(numbers.{name});" for name in narrow]
    body = "\n".join([*_grid(written.axes), *sizes, *written.body])
    called = "\n".join([*written.functions.values(), body])
    parts += ["", definitions(called), *written.functions.values()]
    threads = ", ".join(str(written.threads.get(axis, 1)) for axis in "xyz")
    parts.append(
        f"@compute @workgroup_size({threads})\nfn {symbol}(\n"
        "  @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) grid: vec3<u32>,\n"
        "  @builtin(local_invocation_id) thread: vec3<u32>\n) {\n" + body + "\n}\n"
    )
    return Source(
        "\n".join(parts),
        tuple(p in written.stored for p in func.params),
        tuple(p in written.narrow for p in func.params),
        written.shared_bytes,
    )


def _struct(numbers: list[Any], names: Names) -> str:
    """The numbers of a launch as words: 0, the number of groups, and the kernel's parameters."""
    words = ["zero", "groups"]
    for param in numbers:
        words.append(names[param])
        if str(param.ty.dtype) in ("int64", "uint64"):
            words.append(f"{names[param]}_high")
    words += [f"unused{i}" for i in range(-len(words) % 4)]
    return "struct Numbers {\n" + "".join(f"  {word}: u32,\n" for word in words) + "}\n"


def _binding(place: int, pointer: Any, name: str, is_written: bool) -> str:
    element = _WORDS.get(str(pointer.ty.element_type.dtype))
    if element is None:
        element = "atomic<u32>" if is_written else "u32"
    access = "read_write" if is_written else "read"
    return f"@group(0) @binding({place}) var<storage, {access}> {name}: array<{element}>;"


def _grid(axes: set[str]) -> list[str]:
    """The group of a thread. A grid that is longer along x than devices allow continues along z."""
    lines: list[str] = []
    folds = "z" not in axes
    lines.append(f"  let group_x = group.x{' + group.z * grid.x' if folds else ''};")
    lines.append("  if (group_x >= numbers.groups) { return; }")
    return lines + [f"  let group_{axis} = group.{axis};" for axis in sorted(axes - {"x"})]
