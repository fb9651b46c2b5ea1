"""CombineParallelMatmul: combine matrix products of one input with several weights into one product."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from relaxpy.analysis.called_functions import called_functions
from relaxpy.analysis.weights import packed_params, weight_only
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
    Tuple,
    Var,
    VarBinding,
)
from relaxpy.ir.module import IRModule
from relaxpy.ir.visitor import Rewriter, used_vars
from relaxpy.op.binary import Add
from relaxpy.op.deduce import deduce
from relaxpy.op.join import Concat
from relaxpy.op.linear_algebra import Matmul
from relaxpy.op.slice import StridedSlice
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.dataflow_vars import with_outputs
from relaxpy.transform.lifted_weights import weights_first


@dataclass(frozen=True)
class CombineParallelMatmul(Pass):
    """Compute `x @ a` and `x @ b`, where a and b are constant matrices, as slices of `x @ [a b]`
    (`CombineParallelMatmul` in TVM): the input is read once, and one wide product keeps more of the machine busy than
    several narrow ones. If every product is used only by the addition of a constant bias vector, the biases are
    concatenated, too. The pass works on dataflow blocks, in which x cannot be modified. Weights that the caller packs
    (`packed_params`) are combined like constants: a packer concatenates them (`LiftPackers`).

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
        called = called_functions(mod)

        def change(name: str, function: Function) -> Function:
            weights = () if name in called else packed_params(function)
            made = weight_only(mod, function, weights) if weights else []
            first = weights_first(function, made)
            combiner = _Combiner(mod, self.min_products, first, {*weights, *(b.var for b in made)})
            combined = combiner.rewrite_Function(first)
            return function if combined is first else with_outputs(combined)

        return mod.map_graph_functions(change)


@dataclass
class _Group:
    """The products of one input, in the order of the block."""

    x: Var
    op: Matmul
    products: list[int] = field(default_factory=list[int])
    """The positions of their bindings in the block."""
    weights: list[Expr] = field(default_factory=list[Expr])


class _Combiner(Rewriter):
    def __init__(
        self, mod: IRModule, min_products: int, function: Function, weights: Collection[Var]
    ) -> None:
        super().__init__()
        self.mod = mod
        self.min_products = min_products
        self.weights = weights
        """Variables that depend on packed weights only. They are bound before all others."""
        self.blocks = {id(block) for block in function.body.blocks}
        """The blocks outside branches and local functions, where weights may be joined."""

    def rewrite_DataflowBlock(self, node: DataflowBlock) -> BindingBlock:
        weights = self.weights if id(node) in self.blocks else ()
        node = self.generic(node)
        groups = [
            g for g in _groups(node.bindings, weights) if len(g.products) >= self.min_products
        ]
        if not groups:
            return node
        made: dict[int, list[Binding]] = {}
        gone: set[int] = set()
        for group in groups:
            made[group.products[0]] = self.combined(group, node.bindings, weights, gone)
            gone.update(group.products)
        bindings: list[Binding] = []
        for i, binding in enumerate(node.bindings):
            bindings += made.get(i, [])
            if i not in gone:
                bindings.append(binding)
        return DataflowBlock(tuple(bindings), span=node.span)

    def combined(
        self,
        group: _Group,
        bindings: Sequence[Binding],
        weights: Collection[Var],
        gone: set[int],
    ) -> list[Binding]:
        """Return the bindings for a group: the product, the sum, and the slices. Variables that are no longer needed
        are added to `gone`.
        """
        span = bindings[group.products[0]].span
        outputs = [bindings[i].var for i in group.products]
        found: list[Binding] = []
        product = group.op(group.x, self.joined(group.weights, 1, found), span=span)
        source = self.bind(f"{group.x.name}_matmul", product, found)
        sums = _sums(outputs, bindings, weights)
        if sums is not None:
            vectors = self.joined([vector for _, vector in sums], 0, found)
            source = self.bind(f"{group.x.name}_add", Add()(source, vectors, span=span), found)
            outputs = [bindings[i].var for i, _ in sums]
            gone.update(i for i, _ in sums)
        assert isinstance(source.annotation, TensorType)
        axis, begin = source.annotation.ndim - 1, 0
        for output, weight in zip(outputs, group.weights, strict=True):
            end = begin + _sizes(weight)[1]
            part = StridedSlice()(source, (axis,), (begin,), (end,), span=output.span)
            found.append(VarBinding(output, part, span=span))
            begin = end
        return found

    def joined(self, arrays: Sequence[Expr], axis: int, bindings: list[Binding]) -> Expr:
        """Arrays along an axis: a constant, or the variable of a new binding."""
        data = [array.data for array in arrays if isinstance(array, Constant)]
        if len(data) == len(arrays):
            return Constant.shared(np.concatenate(data, axis))
        names = "_".join(dict.fromkeys(a.name for a in arrays if isinstance(a, Var)))
        return self.bind(names, Concat(axis)(Tuple(tuple(arrays))), bindings)

    def bind(self, name: str, value: Call, bindings: list[Binding]) -> Var:
        var = DataflowVar(name, deduce(value, self.mod), span=value.span)
        bindings.append(VarBinding(var, value, span=value.span))
        return var


def _groups(bindings: Sequence[Binding], weights: Collection[Var]) -> list[_Group]:
    found: dict[tuple[object, ...], _Group] = {}
    for i, binding in enumerate(bindings):
        match binding.value:
            case Call(op=Matmul() as op, args=(Var(annotation=TensorType() as x) as var, w)):
                sizes = _sizes(w) if isinstance(w, Constant) or w in weights else ()
                if x.dims is None or x.ndim < 1 or x.dtype is None or len(sizes) != 2:
                    continue
                key = (var, op, sizes[0], _dtype(w), isinstance(w, Constant))
                group = found.setdefault(key, _Group(var, op))
                group.products.append(i)
                group.weights.append(w)
            case _:
                pass
    return list(found.values())


def _sizes(weight: Expr) -> tuple[int, ...]:
    """The shape of a constant or a variable; empty if it is not known."""
    if isinstance(weight, Constant):
        return weight.data.shape
    known = weight.annotation if isinstance(weight, Var) else None
    dims = known.dims if isinstance(known, TensorType) else None
    sizes = [dim.value for dim in dims or ()]
    return tuple(size for size in sizes if size is not None) if None not in sizes else ()


def _dtype(weight: Expr) -> str:
    if isinstance(weight, Constant):
        return str(weight.data.dtype)
    known = weight.annotation if isinstance(weight, Var) else None
    return str(known.dtype) if isinstance(known, TensorType) else ""


def _sums(
    outputs: Sequence[Var], bindings: Sequence[Binding], weights: Collection[Var]
) -> list[tuple[int, Expr]] | None:
    """For each product, the addition that is its only use and the constant vector, or weight, added; None if a product
    has none, or if some are constants and some are not."""
    users: dict[Var, list[int]] = {var: [] for var in outputs}
    for i, binding in enumerate(bindings):
        for var in used_vars(binding.value):
            if var in users:
                users[var].append(i)
    found: list[tuple[int, Expr]] = []
    for var in outputs:
        if not isinstance(var, DataflowVar) or len(users[var]) != 1:
            return None
        (at,) = users[var]
        vector = _added(bindings[at].value, var, weights)
        if vector is None:
            return None
        found.append((at, vector))
    return found if len({isinstance(vector, Constant) for _, vector in found}) == 1 else None


def _added(value: Expr, var: Var, weights: Collection[Var]) -> Expr | None:
    """The constant vector or weight, as long as the last axis of `var`, that a sum adds to `var`."""
    match value:
        case Call(op=Add(), args=(x, vector)) if x is var:
            pass
        case Call(op=Add(), args=(vector, x)) if x is var:
            pass
        case _:
            return None
    if not isinstance(vector, Constant) and vector not in weights:
        return None
    annotation, sizes = var.annotation, _sizes(vector)
    if not isinstance(annotation, TensorType) or annotation.dims is None or len(sizes) != 1:
        return None
    return vector if annotation.dims[-1] == sizes[0] else None
