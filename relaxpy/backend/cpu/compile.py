"""Compile tensor programs to machine code: the boundary at which kernels leave TVM.

`compile_object` turns scheduled PrimFuncs into one relocatable ELF object whose bytes depend on the kernels and the
target only: not on the process, nor on the order of the mapping. `relaxpy.runtime` links it without a compiler.
Every kernel's parameters accept memory aligned to an element (`relax_alignment`): TVM's default is to assume 64 bytes
and end the process, inside a vector move, on anything else.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from relaxpy.backend.cpu import lowering as pipeline
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.backend.refused import refused
from relaxpy.errors import BuildError
from relaxpy.tir.lowering.bfloat16 import rounded, rounded_by_instructions, without_bfloat16
from relaxpy.tir.lowering.float8 import FORMATS, without_float8
from relaxpy.tir.lowering.traps import without_traps
from relaxpy.tir.message import informative
from relaxpy.tir.numerics.floats import is_unordered
from relaxpy.tir.programs.elementary import written_out
from relaxpy.tir.schedule import CHECKED, HALVES
from relaxpy.tir.tvm import s_tir, tirx, tvm, tvm_ffi
from relaxpy.tir.walk import contains, element_types, walk

_SYMBOL = re.compile(r"[A-Za-z_]\w*")
_ROOM = 64 << 20
"""Free bytes of a disk that suffice for an object file."""


def compile_object(
    kernels: Mapping[str, tirx.PrimFunc],
    target: CpuTarget,
    *,
    check_arguments: bool = False,
    called: str = "",
) -> bytes:
    """Compile every kernel into one object file, under the symbol `__tvm_ffi_<key>`, in TVM's calling convention.

    With `check_arguments` the kernels compare their arguments with their parameters at every call, as TVM's do;
    without, the caller must do so. `called` has the names of the kernels in errors, if these are not their keys. Raises
    `BuildError`: `kernel-name` for a key that is no C identifier, `kernel-compile` with the kernel's name for one that
    TVM or LLVM refuses, `target-object` for a target that has no object files.
    """
    if target.kind != "llvm":
        raise BuildError(
            "target-object",
            f'a "{target.kind}" target has no object files',
            help='build for "llvm", or get the source text with compile_source',
        )
    return object_of(_build(kernels, target, check_arguments, called))


def object_of(library: tvm.runtime.Module) -> bytes:
    """The object file of a compiled module.

    LLVM ends the process if the disk is full, so the file is created in memory on systems that have in-memory files.
    Raises OSError on other systems if the folder for temporary files is full.
    """
    if hasattr(os, "memfd_create"):
        with open(os.memfd_create("relaxpy-kernels"), "rb") as file:
            library.write_to_file(f"/proc/self/fd/{file.fileno()}", "o")
            return file.read()
    with tempfile.TemporaryDirectory(prefix="relaxpy-") as folder:
        if shutil.disk_usage(folder).free < _ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), folder)
        path = Path(folder, "kernels.o")
        library.write_to_file(str(path), "o")
        return path.read_bytes()


def compile_source(kernels: Mapping[str, tirx.PrimFunc], target: CpuTarget) -> str:
    """The kernels as text: C for `c`, assembly for `llvm`. For inspection. Raises the same errors as
    `compile_object`."""
    library = _build(kernels, target)
    return str(library.inspect_source("s" if target.kind == "llvm" else "c"))


def relax_alignment(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with the required alignment of buffer parameters, and of views of them, reduced to that of an
    item."""
    relaxed: dict[tvm.ir.Var, tvm.ir.Var] = {}
    parts: list[tvm.ir.Var] = []
    walk(func.body, (s_tir.MatchBufferRegion, lambda match: parts.append(match.buffer)))
    for param in [*func.params, *parts]:
        if not tirx.buffer.is_buffer_var(param):
            continue
        item_bytes = max(1, tvm.DataType(param.dtype).bits // 8)
        if param.data_alignment == item_bytes:
            continue
        relaxed[param] = tirx.decl_buffer(
            param.shape,
            param.dtype,
            param.name,
            strides=param.strides,
            elem_offset=param.elem_offset,
            scope=param.scope(),
            data_alignment=item_bytes,
            offset_factor=param.offset_factor,
            layout=param.layout,
        )
    if not relaxed:
        return func
    return tvm_ffi.structural_map(func, (tvm.ir.Var, lambda var: relaxed.get(var, var)))


def _build(
    kernels: Mapping[str, tirx.PrimFunc],
    target: CpuTarget,
    check_arguments: bool = False,
    called: str = "",
) -> tvm.runtime.Module:
    """Build TVM's module of all kernels. On failure, raise a `BuildError` that names the failing kernel."""
    prepared: dict[str, tirx.PrimFunc] = {}
    # TVM emits functions in the order of the module. Sorting makes the bytes independent of the caller's order.
    for name in sorted(kernels):
        if _SYMBOL.fullmatch(name) is None:
            raise BuildError("kernel-name", f"the kernel name {name!r} is not an identifier")
        attrs = {"global_symbol": name, "s_tir": True}
        if check_arguments:
            attrs[CHECKED] = True
        func = written_out(kernels[name], by_avx512=target.has_avx512)
        func, dtypes = _widened(without_traps(func), target)
        scalars = (param.ty for param in func.params if isinstance(param.ty, tvm.ir.PrimType))
        if "float16" in dtypes | {str(scalar.dtype) for scalar in scalars}:
            attrs[HALVES] = True
        prepared[name] = relax_alignment(func.with_attr(attrs))
    if target.is_wasm and any(map(_compares_halves, prepared.values())):
        target = replace(target, opt_level=0)
    try:
        return _tvm_build(prepared, target)
    except Exception as error:
        raise _named(error, prepared, target, called) from error


_COMPARISONS = tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.Min, tirx.Max


def _compares_halves(func: tirx.PrimFunc) -> bool:
    """Does a program with numbers in float16 compare floats? LLVM's optimising code generator for WebAssembly (that of
    TVM 0.27) recurses without an end for vectors of halves that are compared, as such or as float32, and the process
    ends with its stack."""
    return bool(func.attrs.get(HALVES)) and contains(
        func.body, _COMPARISONS, lambda node: str(node.a.ty.dtype).startswith("float")
    )


def _widened(func: tirx.PrimFunc, target: CpuTarget) -> tuple[tirx.PrimFunc, set[str]]:
    """Return the function without arithmetic on narrow floats; most functions have none. And the dtypes that it had."""
    found = element_types(func)
    if not found.isdisjoint(FORMATS):
        func = without_float8(func)
    if "bfloat16" not in found:
        return func, found
    rounding = rounded_by_instructions if target.has_avx512 else _rounded
    return without_bfloat16(func, rounding), found


_rounded = partial(rounded, is_nan=is_unordered)


def _tvm_build(kernels: Mapping[str, tirx.PrimFunc], target: CpuTarget) -> tvm.runtime.Module:
    return tirx.build(tvm.IRModule(dict(kernels)), target=target.to_tvm(), pipeline=pipeline.NAME)


def _named(
    error: Exception, kernels: Mapping[str, tirx.PrimFunc], target: CpuTarget, called: str
) -> BuildError:
    """The error for the first kernel that fails to compile on its own."""
    for name, func in kernels.items():
        try:
            _tvm_build({name: func}, target)
        except Exception as own:
            return refused(own, called or name, target, func)
    names = ", ".join(kernels)
    message = f"the kernels {names} do not compile together for {target}: {informative(error)}"
    return BuildError("kernel-compile", message)
