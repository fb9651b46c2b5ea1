"""The call of an operator as its rule sees it, whatever framework it comes from."""

from __future__ import annotations

import keyword
import re
from typing import Any

from relaxpy.errors import Span, UsageError
from relaxpy.ir import (
    Annotation,
    Constant,
    Dim,
    DType,
    Expr,
    PrimType,
    PrimValue,
    TensorType,
    Var,
)
from relaxpy.ir.accessors import expect
from relaxpy.ir.names import FreshNames
from relaxpy.op import astype, full
from relaxpy.op.block_builder import BlockBuilder
from relaxpy.shape.prove import prove

RESERVED = (
    "R",
    "T",
    "I",
    "cls",
    "metadata",
    *"float int bool str len list tuple range dict".split(),
)
"""Names that have a meaning in script."""

WRITTEN = 1024
"""Constants of so many bytes are written into the program; larger ones are weights."""


class Names:
    """Names of parameters and sizes, each once."""

    def __init__(self) -> None:
        self._taken = FreshNames(RESERVED, separator="_")

    def fresh(self, name: str) -> str:
        """A name of script that is like `name`."""
        return self._taken.fresh(legal(name))


def legal(name: str) -> str:
    """The name of script that is like `name`, which may be any text."""
    name = re.sub(r"\W", "_", name)
    return f"_{name}" if keyword.iskeyword(name) or not name.isidentifier() else name


class Site:
    """A call of an operator, in the function under construction."""

    def __init__(self, builder: BlockBuilder, name: str, span: Span | None) -> None:
        self.builder = builder
        self.name = name
        """The name of what is bound here."""
        self.span = span

    def emit(self, value: Any, name: str | None = None) -> Var:
        """Bind an intermediate value; a variable is bound already."""
        if isinstance(value, Var):
            return value
        return self.builder.emit(value, name or self.name, span=self.span)

    def shape_of(self, x: Expr) -> list[Dim]:
        """The sizes of a tensor."""
        found = self.annotation(x).dims
        assert found is not None, x
        return list(found)

    def ndim(self, x: Expr) -> int:
        return self.annotation(x).ndim

    def dtype_of(self, x: Any) -> DType:
        found = self.annotation(x).dtype
        assert found is not None
        return found

    def annotation(self, x: Expr) -> TensorType:
        if isinstance(x, Constant):
            return TensorType(x.data.shape, str(DType(x.data.dtype)))
        return expect(TensorType, x.annotation if isinstance(x, Var) else self.emit(x).annotation)

    def number(self, value: Any, dtype: DType | str) -> Expr:
        """A number or a size as a tensor without dimensions."""
        return self.emit(full((), value, dtype=DType(dtype)))

    def cast(self, x: Any, dtype: DType | str) -> Any:
        """A tensor in this dtype; a number as it is."""
        if not isinstance(x, Expr) or self.dtype_of(x) == dtype:
            return x
        return self.emit(astype(x, DType(dtype)))

    def match(self, value: Expr, annotation: Annotation, name: str | None = None) -> Var:
        """Bind with an annotation that is checked when the program runs."""
        return self.builder.match_cast(value, annotation, name or self.name, span=self.span)

    def fail(self, code: str, message: str, help: str | None = None) -> UsageError:
        """An error at this call."""
        return UsageError(code, message, span=self.span, help=help)


def check(
    builder: BlockBuilder, condition: Dim, text: str, given: Any, code: str, span: Span | None
) -> None:
    """Check a condition on sizes when the program runs, unless it is proved of sizes in the ranges `given`. Raises
    UsageError (`code`) if it cannot hold."""
    if prove(condition, given):
        return
    if condition.value is not None:
        raise UsageError(code, f"{text} does not hold", span=span)
    builder.match_cast(PrimValue(condition), PrimType("bool", 1), "guard", span=span)
