"""May programs that only move data (transpositions, splitting and joining heads, slices) be fused into the matrix
product or the attention before or after them?

These read and write through strides, so they do not need such programs as long as the accesses that must be contiguous
stay contiguous. The test is made on the fused program itself: it must still be recognised as the same, and be as
efficient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import Dim
from relaxpy.ir.expr import Binding, Call, Expr, GlobalVar, ShapeExpr, Tuple
from relaxpy.ir.module import IRModule
from relaxpy.op.call import CallTIR
from relaxpy.op.deduce import deduce
from relaxpy.tir.fuse import Step, Value, fuse_programs
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs.loops import constant
from relaxpy.tir.recognise.attention import AttentionForm, attention_of, is_as_efficient
from relaxpy.tir.recognise.matmul import MatmulForm, matmul_of


class Relayouts:
    """Cached answers for one run of a pass, since the layers of a model repeat."""

    def __init__(self) -> None:
        self._forms: dict[_Chain, MatmulForm | AttentionForm | None] = {}

    def move_for_free(
        self, product: Sequence[Binding], whole: Sequence[Binding], mod: IRModule
    ) -> bool:
        """Is the program of all bindings in `whole` a matrix product, or attention, that accesses memory as efficiently
        as that of `product`, which is a part of it? Both are in the order of their block; the last binding is the
        result."""
        old = self._form(product, mod)
        new = None if old is None else self._form(whole, mod)
        if isinstance(new, MatmulForm) and isinstance(old, MatmulForm):
            return _is_as_good(new, old)
        if isinstance(new, AttentionForm) and isinstance(old, AttentionForm):
            return is_as_efficient(new, old)
        return False

    def _form(
        self, bindings: Sequence[Binding], mod: IRModule
    ) -> MatmulForm | AttentionForm | None:
        chain = _chain(bindings, mod)
        if chain is None:
            return None
        if chain not in self._forms:
            func = _joined(chain).func
            self._forms[chain] = matmul_of(func) or attention_of(func)
        return self._forms[chain]


def _is_as_good(new: MatmulForm, old: MatmulForm) -> bool:
    """Is the new product as efficient as the old one? It must have at least as many loops in its rows and columns, keep
    contiguous factors contiguous, and do no more to the sums. The right-hand factor may become contiguous along the
    depth instead: the kernel transposes tiles in registers, which costs less than a pass over memory."""
    lhs = constant(new.depth.lhs) == 1 or constant(old.depth.lhs) != 1
    rhs = 1 in (constant(new.column.rhs), constant(new.depth.rhs)) or constant(old.column.rhs) != 1
    return (
        len(new.row.axes) >= len(old.row.axes)
        and len(new.column.axes) >= len(old.column.axes)
        and lhs
        and rhs
        and (new.epilogue is None or old.epilogue is not None)
    )


@dataclass(frozen=True)
class _Link:
    """A call of a tensor program with one output."""

    program: PrimFunc
    inputs: tuple[int, ...]
    """By number: first the inputs of the chain, then the outputs of its links, in order of first use."""
    output: int
    scalars: tuple[Dim, ...]


@dataclass(frozen=True)
class _Chain:
    """A sequence of calls of tensor programs, compared by structure."""

    links: tuple[_Link, ...]
    types: tuple[TensorType, ...]
    """The type of each value."""


def _chain(bindings: Sequence[Binding], mod: IRModule) -> _Chain | None:
    """The tensor programs that the bindings call; None if a binding is not a call of a program with one output."""
    numbers: dict[Expr, int] = {}
    types: list[TensorType] = []
    links: list[_Link] = []

    def number(value: Expr, annotation: TensorType) -> int:
        if value not in numbers:
            numbers[value] = len(types)
            types.append(annotation)
        return numbers[value]

    for binding in bindings:
        match binding.value:
            case Call(op=op, args=(GlobalVar(name=name), Tuple(fields=args), *rest)) as call if (
                type(op) is CallTIR
            ):
                program = mod.functions.get(name)
            case _:
                return None
        out = call.ty_args[0]
        if not isinstance(program, PrimFunc) or len(call.ty_args) != 1:
            return None
        inputs: list[int] = []
        for arg in args:
            annotation = deduce(arg, mod)
            if not isinstance(annotation, TensorType) or annotation.dims is None:
                return None
            inputs.append(number(arg, annotation))
        out = expect(TensorType, out)
        scalars = rest[0].dims if rest and isinstance(rest[0], ShapeExpr) else ()
        output = number(binding.var, out)
        links.append(_Link(program, tuple(inputs), output, tuple(scalars)))
    return _Chain(tuple(links), tuple(types))


def _joined(chain: _Chain) -> PrimFunc:
    """The fused program of a chain."""
    if len(chain.links) == 1:
        return chain.links[0].program
    values = [Value(f"x{i}", annotation) for i, annotation in enumerate(chain.types)]
    steps = [
        Step(link.program, [values[i] for i in link.inputs], [values[link.output]], link.scalars)
        for link in chain.links
    ]
    made = {link.output for link in chain.links}
    inputs = [value for i, value in enumerate(values) if i not in made]
    return fuse_programs(steps, inputs, steps[-1].outputs, ())
