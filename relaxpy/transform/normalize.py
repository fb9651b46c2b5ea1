"""Normalize: convert to A-normal form and deduce every variable's annotation anew."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from relaxpy.ir.expr import Call, Expr, If, Tuple, TupleGetItem, is_leaf
from relaxpy.ir.module import IRModule
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.rebuild import Rebuilder


@dataclass(frozen=True)
class Normalize(Pass):
    """Bind every nested call to a variable of its own, and deduce annotations again (`Normalize`
    in TVM).

    Parsed programs are in this form already. The pass is for modules built by hand and for passes that create nested
    calls.

    Before:
        @R.function
        def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
            y = R.exp(R.exp(x))
            return y
    After:
        @R.function
        def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
            lv = R.exp(x)
            y = R.exp(lv)
            return y
    """

    name: ClassVar[str] = "normalize"
    mandatory: ClassVar[bool] = True

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        return _Normalizer(mod).run()


class _Normalizer(Rebuilder):
    def value(self, value: Expr) -> Expr:
        match value:
            case Call():
                args = tuple(self.leaf(arg) for arg in value.args)
                if all(a is b for a, b in zip(args, value.args, strict=True)):
                    return value
                return dataclasses.replace(value, args=args)
            case Tuple():
                fields = tuple(self.leaf(item) for item in value.fields)
                if all(a is b for a, b in zip(fields, value.fields, strict=True)):
                    return value
                return Tuple(fields, span=value.span)
            case TupleGetItem():
                inner = self.leaf(value.tuple)
                return (
                    value
                    if inner is value.tuple
                    else TupleGetItem(inner, value.index, span=value.span)
                )
            case If():
                cond = self.leaf(value.cond)
                return value if cond is value.cond else dataclasses.replace(value, cond=cond)
            case _:
                return value

    def leaf(self, expr: Expr) -> Expr:
        if is_leaf(expr):
            return expr
        return self.emit(self.value(expr))
