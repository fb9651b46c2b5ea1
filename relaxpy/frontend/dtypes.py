"""Dtypes of other frameworks: those that there are tensors of, and the refusal of others."""

from __future__ import annotations

from relaxpy.errors import Span, UsageError
from relaxpy.ir import DType

TAKEN = frozenset(
    (
        "bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
        "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2",
    )
)  # fmt: skip


def taken(name: str, code: str, what: str, convert: str, span: Span | None = None) -> DType:
    """The dtype of this name. UsageError (`code`) for complex numbers, and others that there are no tensors of: keep
    the parts in two of `what`, or `convert` says what to do."""
    if name in TAKEN:
        return DType(name)
    is_complex = name.startswith("complex")
    raise UsageError(
        code,
        f"{'complex numbers are' if is_complex else f'the dtype {name} is'} not supported",
        span=span,
        help=f"keep the real and the imaginary part in two {what}" if is_complex else convert,
    )
