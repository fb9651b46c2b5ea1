"""CombineParallelMatmul: combine matrix products of one input with several weights into one product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from relaxpy.ir.annotation import TensorType
from relaxpy.ir.expr import (
    Binding,
    BindingBlock,
    Call,
    Constant,
    DataflowBlock,
    DataflowVar,
    Expr,
    Function,
    Var,
    VarBinding,
)
from relaxpy.ir.module import IRModule
from relaxpy.ir.visitor import Rewriter, used_vars
from relaxpy.op.binary import Add
from relaxpy.op.deduce import deduce
from relaxpy.op.linear_algebra import Matmul
from relaxpy.op.slice import StridedSlice
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.dataflow_vars import with_outputs


@dataclass(frozen=True)
class CombineParallelMatmul(Pass):
    """Compute `x @ a` and `x @ b`, where a and b are constant matrices, as slices of `x @ [a b]`
    (`CombineParallelMatmul` in TVM): the input is read once, and one wide product keeps more of the machine busy than
    several narrow ones. If every product is used only by the addition of a constant bias vector, the biases are
    concatenated, too. The pass works on dataflow blocks, in which x cannot be modified.

    Before:
        @R.function
        def main(x: R.Tensor(("n", 2), dtype="float32")) -> R.Tensor(("n", 1), dtype="float32"):
            with R.dataflow():
                q = R.matmul(x, R.const([[1.0], [2.0]], "float32"))
                k = R.matmul(x, R.const([[3.0], [4.0]], "float32"))
                y = R.multiply(q, k)
                R.output(y)
            return y
    After:
        @R.function
        def main(x: R.Tensor(("n", 2), dtype="float32")) -> R.Tensor(("n", 1), dtype="float32"):
            with R.dataflow():
                x_matmul = R.matmul(x, R.const([[1.0, 3.0], [2.0, 4.0]], "float32"))
                q = R.strided_slice(x_matmul, axes=[1], begin=[0], end=[1])
                k = R.strided_slice(x_matmul, axes=[1], begin=[1], end=[2])
                y = R.multiply(q, k)
                R.output(y)
            return y
    """

    name: ClassVar[str] = "combine-parallel-matmul"
    min_products: int = 2
    """Inputs with fewer products stay unchanged."""

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        def change(_: str, function: Function) -> Function:
            combined = _Combiner(mod, self.min_products).rewrite_Function(function)
            return function if combined is function else with_outputs(combined)

        return mod.map_graph_functions(change)


@dataclass
class _Group:
    """The products of one input, in the order of the block."""

    x: Var
    op: Matmul
    products: list[int] = field(default_factory=list)
    """The positions of their bindings in the block."""
    weights: list[np.ndarray] = field(default_factory=list)


class _Combiner(Rewriter):
    def __init__(self, mod: IRModule, min_products: int) -> None:
        super().__init__()
        self.mod = mod
        self.min_products = min_products

    def rewrite_DataflowBlock(self, node: DataflowBlock) -> BindingBlock:
        node = self.generic(node)
        groups = [g for g in _groups(node.bindings) if len(g.products) >= self.min_products]
        if not groups:
            return node
        made: dict[int, list[Binding]] = {}
        gone: set[int] = set()
        for group in groups:
            made[group.products[0]] = self.combined(group, node.bindings, gone)
            gone.update(group.products)
        bindings: list[Binding] = []
        for i, binding in enumerate(node.bindings):
            bindings += made.get(i, [])
            if i not in gone:
                bindings.append(binding)
        return DataflowBlock(tuple(bindings), span=node.span)

    def combined(self, group: _Group, bindings: Sequence[Binding], gone: set[int]) -> list[Binding]:
        """Return the bindings for a group: the product, the sum, and the slices. Variables that are no longer needed
        are added to `gone`.
        """
        span = bindings[group.products[0]].span
        outputs = [bindings[i].var for i in group.products]
        product = group.op(group.x, _joined(group.weights, 1), span=span)
        found: list[Binding] = []
        source = self.bind(f"{group.x.name}_matmul", product, found)
        sums = _sums(outputs, bindings)
        if sums is not None:
            vectors = _joined([vector for _, vector in sums], 0)
            source = self.bind(f"{group.x.name}_add", Add()(source, vectors, span=span), found)
            outputs = [bindings[i].var for i, _ in sums]
            gone.update(i for i, _ in sums)
        assert isinstance(source.annotation, TensorType)
        axis, begin = source.annotation.ndim - 1, 0
        for output, weight in zip(outputs, group.weights, strict=True):
            end = begin + weight.shape[1]
            part = StridedSlice()(source, (axis,), (begin,), (end,), span=output.span)
            found.append(VarBinding(output, part, span=span))
            begin = end
        return found

    def bind(self, name: str, value: Call, bindings: list[Binding]) -> Var:
        var = DataflowVar(name, deduce(value, self.mod), span=value.span)
        bindings.append(VarBinding(var, value, span=value.span))
        return var


def _groups(bindings: Sequence[Binding]) -> list[_Group]:
    found: dict[tuple[object, ...], _Group] = {}
    for i, binding in enumerate(bindings):
        match binding.value:
            case Call(
                op=Matmul() as op, args=(Var(annotation=TensorType() as x) as var, Constant(data=w))
            ):
                if x.dims is None or x.ndim < 1 or x.dtype is None or w.ndim != 2:
                    continue
                key = (var, op, w.shape[0], str(w.dtype))
                group = found.setdefault(key, _Group(var, op))
                group.products.append(i)
                group.weights.append(w)
            case _:
                pass
    return list(found.values())


def _sums(
    outputs: Sequence[Var], bindings: Sequence[Binding]
) -> list[tuple[int, np.ndarray]] | None:
    """For each product, the addition that is its only use and the constant vector added; None if a product has none."""
    users: dict[Var, list[int]] = {var: [] for var in outputs}
    for i, binding in enumerate(bindings):
        for var in used_vars(binding.value):
            if var in users:
                users[var].append(i)
    found: list[tuple[int, np.ndarray]] = []
    for var in outputs:
        if not isinstance(var, DataflowVar) or len(users[var]) != 1:
            return None
        (at,) = users[var]
        vector = _added(bindings[at].value, var)
        if vector is None:
            return None
        found.append((at, vector))
    return found


def _added(value: Expr, var: Var) -> np.ndarray | None:
    """The constant vector, as long as the last axis of `var`, that a sum adds to `var`."""
    match value:
        case Call(op=Add(), args=(Var() as x, Constant(data=data))) if x is var:
            pass
        case Call(op=Add(), args=(Constant(data=data), Var() as x)) if x is var:
            pass
        case _:
            return None
    annotation = var.annotation
    if not isinstance(annotation, TensorType) or annotation.dims is None or data.ndim != 1:
        return None
    return data if annotation.dims[-1] == data.shape[0] else None


def _joined(arrays: Sequence[np.ndarray], axis: int) -> Constant:
    return Constant.shared(np.concatenate(arrays, axis))
