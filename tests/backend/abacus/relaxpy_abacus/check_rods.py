"""CheckRods: an abacus holds numbers of so many digits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from relaxpy.errors import BuildError
from relaxpy.ir import DType, IRModule, TensorType, Var, VarBinding, Visitor
from relaxpy.transform.base import Pass, PassContext


@dataclass(frozen=True)
class CheckRods(Pass):
    """Refuse tensors whose numbers have more digits than the target has rods."""

    name: ClassVar[str] = "check-rods"

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        rods = getattr(ctx.target, "rods", 0)
        for function in mod.graph_functions.values():
            looker = _Looker(rods)
            for param in function.params:
                looker.look(param, param)
            looker.visit(function.body)
        return mod


class _Looker(Visitor):
    def __init__(self, rods: int) -> None:
        self.rods = rods

    def visit_VarBinding(self, node: VarBinding) -> None:
        self.look(node.var, node)
        self.generic(node)

    def look(self, var: Var, place: Var | VarBinding) -> None:
        kind = var.annotation
        if isinstance(kind, TensorType) and kind.dtype and digits(kind.dtype) > self.rods:
            raise BuildError(
                "abacus-rods",
                f"{var.name} is {kind.dtype}: {digits(kind.dtype)} digits on {self.rods} rods",
                span=place.span,
                help=f'take narrower numbers, or target="abacus -rods={digits(kind.dtype)}"',
            )


def digits(dtype: DType) -> int:
    """Decimal digits that a number of this type may have."""
    if dtype.is_float:
        return {2: 4, 4: 8, 8: 16}.get(dtype.itemsize, 3)
    return len(str(2 ** (8 * dtype.itemsize) - 1))
