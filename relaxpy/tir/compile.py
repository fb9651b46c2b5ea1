"""Tensor programs to machine code: the door through which kernels leave TVM.

`compile_object` turns scheduled PrimFuncs into one relocatable ELF object whose bytes depend on the kernels and the
target only: not on the process, nor on the order of the mapping. `relaxpy.runtime` links it without a compiler.
Every kernel's parameters accept memory aligned to an element (`relax_alignment`): TVM's default is to assume 64 bytes
and end the process, inside a vector move, on anything else.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from relaxpy.errors import BuildError
from relaxpy.tir import pipeline
from relaxpy.tir._tvm import s_tir, tirx, tvm, tvm_ffi
from relaxpy.tir.target import Target

Expr = tvm.ir.Expr

_SYMBOL = re.compile(r"[A-Za-z_]\w*")


def compile_object(kernels: Mapping[str, tirx.PrimFunc], target: Target) -> bytes:
    """One object file with every kernel under its key: the symbol `__tvm_ffi_<key>`, in TVM's calling convention.

    Raises `BuildError`: `kernel-name` for a key that is no C identifier, `kernel-compile` with the kernel's name for
    one that TVM or LLVM refuses, `target-object` for a target that has no object files.
    """
    if target.kind != "llvm":
        raise BuildError(
            "target-object",
            f'a "{target.kind}" target has no object files',
            help='build for "llvm", or take the source text with compile_source',
        )
    library = _build(kernels, target)
    with tempfile.TemporaryDirectory(prefix="relaxpy-") as folder:
        path = Path(folder, "kernels.o")
        library.write_to_file(str(path), "o")
        return path.read_bytes()


def compile_source(kernels: Mapping[str, tirx.PrimFunc], target: Target) -> str:
    """The kernels as text: C for `c`, assembly for `llvm`. For reading; errors as `compile_object`."""
    library = _build(kernels, target)
    return str(library.inspect_source("s" if target.kind == "llvm" else "c"))


def relax_alignment(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The same function, whose buffer parameters ask for no more alignment than their items have."""
    relaxed: dict[tvm.ir.Var, tvm.ir.Var] = {}
    for param in func.params:
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


def without_traps(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The same function, in which an integer divided by a 0 that is known only at run time gives 0, as in numpy.

    The processor ends the process at a division by zero, and LLVM may divide by a symbol before it knows that the
    loop around the division runs at all: sizes of 0 got there in programs that never divide by them.
    """

    def guarded(kind: Callable[..., Expr]) -> Callable[[Expr], Expr]:
        def replace(node: Expr) -> Expr:
            if _may_be_zero(node.b):
                zero, one = (tirx.const(value, node.b.ty.dtype) for value in (0, 1))
                is_zero = tirx.EQ(node.b, zero)
                return tirx.Select(is_zero, zero, kind(node.a, tirx.Select(is_zero, one, node.b)))
            return node

        return replace

    divisions = (tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod)
    body = tvm_ffi.structural_map(func.body, tuple((kind, guarded(kind)) for kind in divisions))
    return func if body.same_as(func.body) else func.with_body(body)


def with_bfloat16_conversions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The same function, whose conversions between bfloat16 and float32 are written out on the bits: to nearest, ties
    to even, NaN kept.

    TVM's own pass computes wrong numbers where such a conversion meets a `Let` (a variable bound to a widened value
    is read as the bits), writes the operand of a narrowing twice, and turns NaN into 0. What it makes float32 itself
    (buffers that the function allocates, results of arithmetic) is left to it: there are no bits to be read.
    """
    allocated = _allocated(func)

    def convert(cast: Expr) -> Expr:
        value = cast.value
        target, source = (tvm.DataType(str(e.ty.dtype)) for e in (cast, value))
        kinds = str(source).split("x", 1)[0], str(target).split("x", 1)[0]
        if kinds == ("bfloat16", "float32"):
            return _widened(value, source.lanes) if _is_stored(value, allocated) else cast
        return _narrowed(value, source.lanes) if kinds == ("float32", "bfloat16") else cast

    body = tvm_ffi.structural_map(func.body, (tirx.Cast, convert))
    return func if body.same_as(func.body) else func.with_body(body)


def _allocated(func: tirx.PrimFunc) -> list[Expr]:
    """The buffers that the function allocates."""
    found: list[Expr] = []
    visits = [
        (s_tir.SBlock, lambda block: found.extend(block.alloc_buffers)),
        (tirx.AllocBuffer, lambda stmt: found.append(stmt.buffer)),
    ]
    tvm_ffi.structural_walk(func.body, visits)
    return found


def _is_stored(value: Expr, allocated: Sequence[Expr]) -> bool:
    """Are there 16 bits in memory, or written out as such?"""
    match type(value).__name__:
        case "TensorLoad":
            return not any(value.source.same_as(buffer) for buffer in allocated)
        case "Call":
            return True  # reinterpret and masked_load
        case _:
            return False


def _widened(value: Expr, lanes: int) -> Expr:
    """bfloat16 as float32: its bits above 16 zeros."""
    bits = tirx.reinterpret(_vector("uint16", lanes), value).astype(_vector("uint32", lanes))
    return tirx.reinterpret(_vector("float32", lanes), bits << _splat(16, "uint32", lanes))


def _narrowed(value: Expr, lanes: int) -> Expr:
    """float32 as the nearest bfloat16."""
    wide = tirx.Var("wide", value.ty)
    bits = tirx.reinterpret(_vector("uint32", lanes), wide)
    sixteen, one = (_splat(number, "uint32", lanes) for number in (16, 1))
    half = _splat(0x7FFF, "uint32", lanes) + ((bits >> sixteen) & one)
    top = ((bits + half) >> sixteen).astype(_vector("uint16", lanes))
    kept = tirx.Select(tirx.NE(wide, wide), _splat(0x7FC0, "uint16", lanes), top)
    return tirx.Let(wide, value, tirx.reinterpret(_vector("bfloat16", lanes), kept))


def _vector(dtype: str, lanes: int) -> str:
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def _splat(number: int, dtype: str, lanes: int) -> Expr:
    scalar = tirx.const(number, dtype)
    return scalar if lanes == 1 else tirx.Broadcast(scalar, lanes)


def _may_be_zero(divisor: Expr) -> bool:
    """Is this an integer that is neither a constant (TVM refuses 0) nor at least 1 by construction?"""
    if "int" not in str(divisor.ty.dtype) or isinstance(divisor, (tirx.IntImm, tirx.Broadcast)):
        return isinstance(divisor, tirx.Broadcast) and _may_be_zero(divisor.value)
    if isinstance(divisor, tirx.Max):
        return not any(isinstance(e, tirx.IntImm) and e.value > 0 for e in (divisor.a, divisor.b))
    return True


def _build(kernels: Mapping[str, tirx.PrimFunc], target: Target) -> tvm.runtime.Module:
    """TVM's module of all kernels; on failure, a `BuildError` that names the kernel at fault."""
    prepared: dict[str, tirx.PrimFunc] = {}
    # TVM emits functions in the order of the module: sorted, the bytes do not depend on the caller's.
    for name in sorted(kernels):
        if _SYMBOL.fullmatch(name) is None:
            raise BuildError("kernel-name", f"the kernel name {name!r} is not an identifier")
        attrs = {"global_symbol": name, "s_tir": True}
        func = with_bfloat16_conversions(without_traps(kernels[name]))
        prepared[name] = relax_alignment(func.with_attr(attrs))
    try:
        return _tvm_build(prepared, target)
    except Exception as error:
        raise _named(error, prepared, target) from error


def _tvm_build(kernels: Mapping[str, tirx.PrimFunc], target: Target) -> tvm.runtime.Module:
    return tirx.build(tvm.IRModule(dict(kernels)), target=target.to_tvm(), pipeline=pipeline.NAME)


def _named(error: Exception, kernels: Mapping[str, tirx.PrimFunc], target: Target) -> BuildError:
    """The error for the first kernel that does not compile by itself."""
    for name, func in kernels.items():
        try:
            _tvm_build({name: func}, target)
        except Exception as own:
            return BuildError(
                "kernel-compile",
                f'the kernel "{name}" does not compile for {target}: {_reason(own)}',
                notes=(f"the tensor program:\n{func.script()}",),
            )
    names = ", ".join(kernels)
    message = f"the kernels {names} do not compile together for {target}: {_reason(error)}"
    return BuildError("kernel-compile", message)


def _reason(error: Exception) -> str:
    """The last telling line of a TVM error, which carries a C++ trace in front of it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
