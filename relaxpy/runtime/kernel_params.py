"""The parameters of a kernel as a file declares them, and the digest of them in the kernel's symbol.

Kernels do not check their arguments. So the symbol of a kernel ends with a digest of the parameters that it was
compiled for. A file that declares other parameters refers to a symbol that is not in its object code.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.codec import encode
from relaxpy.runtime.integers import compute
from relaxpy.runtime.patterns import describe, prim_fits
from relaxpy.runtime.tensor import Tensor
from relaxpy.runtime.terms import Heap, IntExpr, IntOp, KernelImage, KernelInfo, KernelParam

DIGITS = 24
"""The number of digits of each part of a symbol."""
_OURS = re.compile(rf"k[0-9a-f]{{{DIGITS}}}_[0-9a-f]{{{DIGITS}}}")


def symbol_of(program: str, params: Sequence[KernelParam], launch: Sequence[IntExpr] = ()) -> str:
    """The symbol of a kernel that is compiled from this text, with these parameters and this launch configuration."""
    return f"k{hashlib.sha256(program.encode()).hexdigest()[:DIGITS]}_{_digest(params, launch)}"


def launched(symbol: str, launch: Sequence[IntExpr]) -> str:
    """Adds the digest of a launch configuration to the symbol that text and parameters give. For backends, which know
    the launch configuration after scheduling."""
    head, _, digest = symbol.rpartition("_")
    return f"{head}_{_with_launch(digest, launch)}"


def symbol_problem(info: KernelInfo) -> str:
    """The reason why a kernel's symbols do not match its parameters, or ""."""
    return next(filter(None, (_problem(info, image) for image in info.images)), "")


def _problem(info: KernelInfo, image: KernelImage) -> str:
    ours = _OURS.fullmatch(image.symbol) is not None
    if ours and info.params is None:
        return "its parameters are missing"
    if info.params is not None and not (
        ours and image.symbol.endswith(f"_{_digest(info.params, image.launch)}")
    ):
        return "it was compiled with other parameters"
    if image.serial_symbol not in (image.symbol, f"{image.symbol}_serial"):
        return "its serial version is another kernel"
    return ""


def _digest(params: Sequence[KernelParam], launch: Sequence[IntExpr] = ()) -> str:
    text = json.dumps(encode(tuple(params)), separators=(",", ":"))
    return _with_launch(hashlib.sha256(text.encode()).hexdigest()[:DIGITS], launch)


def _with_launch(digest: str, launch: Sequence[IntExpr]) -> str:
    if not launch:
        return digest
    text = json.dumps([digest, encode(tuple(launch))], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def require_fit(info: KernelInfo, args: Sequence[Any]) -> None:
    """Compares arguments, including their sizes, with the parameters of a kernel. For a tensor without memory, only
    type and shape count (`relaxpy.runtime.emit_functions.shown`).

    Raises: RuntimeCheckError (`check`).
    """
    params = info.params
    if params is None or _fit_plainly(params, args):
        return
    sizes: dict[int, int] = {}
    for number, (param, arg) in enumerate(zip(params, args, strict=True)):
        if param.shape is None:
            _require_scalar(info, number, param, arg)
            if param.size >= 0:
                sizes.setdefault(param.size, int(arg))
            continue
        if not isinstance(arg, Tensor) or arg.dtype != param.dtype or arg.ndim != len(param.shape):
            wanted = f"{param.dtype} of {len(param.shape)} dimensions"
            raise _unfit(info, number, f"must be a tensor of {wanted}, got {describe(arg)}")
        if param.written and not arg.writable:
            raise _unfit(info, number, "is updated, but is a constant or read-only")
        for dim, size in zip(param.shape, arg.shape, strict=True):
            if isinstance(dim, Heap):
                sizes.setdefault(dim.index, size)
            if size < 0:
                raise _unfit(info, number, f"has a negative size: {describe(arg)}")
    for number, (param, arg) in enumerate(zip(params, args, strict=True)):
        if param.shape is None:
            if param.size >= 0 and sizes[param.size] != arg:
                raise _unfit(info, number, f"must be {sizes[param.size]}, got {arg}")
            continue
        wanted = tuple(evaluate(dim, sizes) for dim in param.shape)
        if wanted != tuple(arg.shape):
            raise _unfit(info, number, f"must have shape {wanted}, got {tuple(arg.shape)}")


def _fit_plainly(params: Sequence[KernelParam], args: Sequence[Any]) -> bool:
    """A fast path that takes half the time: whether all arguments are tensors that fit, with shapes of numbers and
    plain sizes. That holds for most kernels."""
    sizes: dict[int, int] = {}
    for param, arg in zip(params, args, strict=True):
        if arg.__class__ is not Tensor or param.shape is None or arg.dtype != param.dtype:
            return False
        shape = arg.shape
        if len(shape) != len(param.shape) or (param.written and not arg.writable):
            return False
        for dim, size in zip(param.shape, shape, strict=True):
            wanted = sizes.setdefault(dim.index, size) if isinstance(dim, Heap) else dim
            if wanted != size or size < 0:
                return False
    return True


def _require_scalar(info: KernelInfo, number: int, param: KernelParam, arg: Any) -> None:
    if not prim_fits(arg, param.dtype) or (_is_float(param.dtype) != isinstance(arg, float)):
        raise _unfit(info, number, f"must be a scalar of type {param.dtype}, got {describe(arg)}")


def _is_float(dtype: str) -> bool:
    return dtypes.info(dtype).code not in (0, 1, 6)


def evaluate(expr: IntExpr, sizes: dict[int, int]) -> int | None:
    """The value of a formula over a kernel's sizes; None if a size is unknown or it divides by 0."""
    if isinstance(expr, Heap):
        return sizes.get(expr.index)
    if isinstance(expr, IntOp):
        args = [evaluate(arg, sizes) for arg in expr.args]
        known = [arg for arg in args if arg is not None]
        try:
            return compute(expr.op, known) if len(known) == len(args) else None
        except ZeroDivisionError:
            return None
    return expr


def _unfit(info: KernelInfo, number: int, problem: str) -> RuntimeCheckError:
    return RuntimeCheckError("check", f"argument {number} of the kernel {info.name} {problem}")
