"""CombineParallel: combine products and convolutions of one input with several weights into one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from relaxpy.analysis.called_functions import called_functions
from relaxpy.analysis.weights import packed_params, weight_only
from relaxpy.ir.accessors import expect, known_dims, known_dtype, tensor_of
from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.expr import (
    Binding,
    BindingBlock,
    Call,
    Constant,
    DataflowBlock,
    DataflowVar,
    Expr,
    Function,
    GlobalVar,
    Tuple,
    Var,
    VarBinding,
)
from relaxpy.ir.module import BaseFunc, IRModule
from relaxpy.ir.names import FreshNames
from relaxpy.ir.visitor import Rewriter, used_vars
from relaxpy.op.base import Op
from relaxpy.op.binary import Add, Multiply
from relaxpy.op.call import CallTIR
from relaxpy.op.conv import Convolution
from relaxpy.op.datatype import Astype
from relaxpy.op.deduce import deduce
from relaxpy.op.elementwise import Unary
from relaxpy.op.join import Concat
from relaxpy.op.linear_algebra import Linear, Matmul
from relaxpy.op.slice import StridedSlice
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.recognise.joined import JoinedProgram, joined_program
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.dataflow_vars import with_outputs
from relaxpy.transform.lifted_weights import weights_first


@dataclass(frozen=True)
class CombineParallel(Pass):
    """Compute `x @ a` and `x @ b`, where a and b are constant matrices, as slices of `x @ [a b]`
    (`CombineParallelMatmul` in TVM): the input is read once, and one wide product keeps more of the machine busy than
    several narrow ones. If every product is used only by the addition of a constant bias vector, the biases are
    concatenated, too; likewise products with vectors, as the scales of a quantised weight, conversions, activations,
    and products or sums with one value for all columns. The pass works on dataflow blocks, in which x cannot be
    modified. Weights that the caller packs (`packed_params`) are combined like constants: a packer concatenates them
    (`LiftPackers`).

    Batched products with weights of the same batch are combined likewise, and, with `convolutions`, convolutions of one
    input with the same window, strides, padding and layouts, without groups (Relay's `CombineParallelConv2D`, §4.6);
    the channels of the result are sliced.

    Weights that a tensor program computes from such matrices, as a dequantised weight from codes and scales, are joined
    as well, in `matmul` and `linear`: the program for all columns reads the parts of all, concatenated.

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

    name: ClassVar[str] = "combine-parallel"
    level: ClassVar[int] = 3
    prerequisites: ClassVar[tuple[str, ...]] = ("convert-to-dataflow",)
    min_products: int = 2
    """Inputs with fewer products stay unchanged."""
    convolutions: bool = True
    """Whether convolutions are combined, too."""

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        called = called_functions(mod)
        programs = _Programs(mod)

        def change(name: str, function: Function) -> Function:
            weights = () if name in called else packed_params(function)
            made = weight_only(mod, function, weights) if weights else []
            first = weights_first(function, made)
            known = {*weights, *(b.var for b in made)}
            combiner = _Combiner(programs, self, first, known)
            combined = combiner.rewrite_Function(first)
            return function if combined is first else with_outputs(combined)

        result = mod.map_graph_functions(change)
        return (
            result.with_functions({**result.functions, **programs.made})
            if programs.made
            else result
        )


class _Programs:
    """The tensor programs of joined weights that the pass adds."""

    def __init__(self, mod: IRModule) -> None:
        self.mod = mod
        self.made: dict[str, BaseFunc] = {}
        self._names = FreshNames(mod.functions)
        self._known: dict[tuple[tuple[str, ...], int], tuple[str, JoinedProgram] | None] = {}

    def joined(self, names: Sequence[str], axis: int) -> tuple[str, JoinedProgram] | None:
        """The program that computes what these compute, concatenated along an axis, and its name; None if there is
        none."""
        key = tuple(names), axis
        if key not in self._known:
            parts = [self.mod.functions.get(name) for name in names]
            programs = [part for part in parts if isinstance(part, PrimFunc)]
            joined = joined_program(programs, axis) if len(programs) == len(parts) else None
            found = None
            if joined is not None:
                found = self._names.fresh(f"{names[0]}_joined"), joined
                self.made[found[0]] = joined.program
            self._known[key] = found
        return self._known[key]


@dataclass
class _Group:
    """The products of one input, in the order of the block."""

    x: Var
    op: Matmul | Convolution
    axis: int
    """The axis of the result, from the last, along which the products are joined: columns or channels."""
    weight_axis: int
    """That of the weights."""
    products: list[int] = field(default_factory=list[int])
    """The positions of their bindings in the block."""
    weights: list[Expr] = field(default_factory=list[Expr])


@dataclass
class _ComputedGroup:
    """The products of one input with weights that tensor programs compute."""

    x: Var
    op: Matmul | Linear
    products: list[int] = field(default_factory=list[int])
    weights: list[int] = field(default_factory=list[int])
    """The positions of the bindings of the weights."""

    axis: ClassVar[int] = -1

    @property
    def weight_axis(self) -> int:
        """The axis of a weight that is the product's columns."""
        return int(isinstance(self.op, Matmul))


class _Combiner(Rewriter):
    def __init__(
        self,
        programs: _Programs,
        options: CombineParallel,
        function: Function,
        weights: Collection[Var],
    ) -> None:
        super().__init__()
        self.programs = programs
        self.mod = programs.mod
        self.options = options
        self.weights = weights
        """Variables that depend on packed weights only. They are bound before all others."""
        self.blocks = {id(block) for block in function.body.blocks}
        """The blocks outside branches and local functions, where weights may be joined."""

    def rewrite_DataflowBlock(self, node: DataflowBlock) -> BindingBlock:
        weights = self.weights if id(node) in self.blocks else ()
        node = self.generic(node)
        groups = [
            group
            for group in _groups(node.bindings, weights, self.options.convolutions)
            if len(group.products) >= self.options.min_products
        ]
        made: dict[int, list[Binding]] = {}
        gone: set[int] = set()
        for computed in _computed_groups(node.bindings, weights):
            found = None
            if len(computed.products) >= self.options.min_products:
                found = self.computed(computed, node.bindings, weights, gone)
            if found is not None:
                made[computed.products[0]] = found
        if not groups and not made:
            return node
        for group in groups:
            made[group.products[0]] = self.combined(group, node.bindings, weights, gone)
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
        found: list[Binding] = []
        weight = self.joined(group.weights, group.weight_axis, found)
        sizes = [_sizes(each)[group.weight_axis] for each in group.weights]
        self.sliced(group, weight, sizes, bindings, weights, gone, found)
        return found

    def computed(
        self,
        group: _ComputedGroup,
        bindings: Sequence[Binding],
        weights: Collection[Var],
        gone: set[int],
    ) -> list[Binding] | None:
        """Likewise for weights that are computed; None if they are not of one program."""
        calls = [bindings[i].value for i in group.weights]
        names: list[str] = []
        parts: list[tuple[Expr, ...]] = []
        for call in calls:
            call = expect(Call, call)
            program, fields = call.args[:2]
            program = expect(GlobalVar, program)
            fields = expect(Tuple, fields)
            names.append(program.name)
            parts.append(fields.fields)
        kinds = [deduce(call, self.mod) for call in calls]
        sizes = [
            size.value or 0
            for kind in kinds
            if isinstance(kind, TensorType) and kind.dims is not None
            for size in (kind.dims[group.weight_axis],)
        ]
        found = self.programs.joined(names, group.weight_axis)
        if found is None or len(sizes) != len(kinds) or not _are_alike(parts):
            return None
        name, joined = found
        made: list[Binding] = []
        fields = tuple(
            self.joined(arrays, axis, made)
            for arrays, axis in zip(zip(*parts, strict=True), joined.axes, strict=True)
        )
        (first, *_) = kinds
        dims = [
            sum(sizes) if n == group.weight_axis else dim for n, dim in enumerate(known_dims(first))
        ]
        kind = TensorType(tuple(dims), known_dtype(first))
        span = bindings[group.products[0]].span
        call = Call(CallTIR(), (GlobalVar(name), Tuple(fields)), (kind,), span=span)
        weight = self.bind(bindings[group.weights[0]].var.name, call, made, kind)
        self.sliced(group, weight, sizes, bindings, weights, gone, made)
        gone.update(group.weights)
        return made

    def sliced(
        self,
        group: _Group | _ComputedGroup,
        weight: Expr,
        sizes: Sequence[int],
        bindings: Sequence[Binding],
        weights: Collection[Var],
        gone: set[int],
        found: list[Binding],
    ) -> None:
        """Add the product with the joined weight, the sum, and the slices of these sizes to `found`. Variables that are
        no longer needed are added to `gone`."""
        span = bindings[group.products[0]].span
        outputs = [bindings[i].var for i in group.products]
        product = group.op(group.x, weight, span=span)
        name = group.op.name.rpartition(".")[2] if isinstance(group.op, Convolution) else "matmul"
        source = self.bind(f"{group.x.name}_{name}", product, found)
        before = {binding.var for binding in bindings[: group.products[0]]}
        bound_here = {binding.var for binding in bindings} - before
        users = _users(bindings)
        while (
            step := _next_step(outputs, bindings, users, weights, bound_here, group.axis)
        ) is not None:
            by = step.by
            if len(by) == len(outputs):
                (first, *_) = by
                ndim = len(_sizes(first))
                by = [self.joined(by, ndim + group.axis, found)]
            name = f"{group.x.name}_{step.op.name.rpartition('.')[2]}"
            source = self.bind(name, step.op(source, *by, span=span), found)
            outputs = [bindings[i].var for i in step.places]
            gone.update(step.places)
        axis, begin = tensor_of(source).ndim + group.axis, 0
        gone.update(group.products)
        for output, size in zip(outputs, sizes, strict=True):
            end = begin + size
            part = StridedSlice()(source, (axis,), (begin,), (end,), span=output.span)
            found.append(VarBinding(output, part, span=span))
            begin = end

    def joined(self, arrays: Sequence[Expr], axis: int, bindings: list[Binding]) -> Expr:
        """Arrays along an axis: a constant, or the variable of a new binding."""
        data = [array.data for array in arrays if isinstance(array, Constant)]
        if len(data) == len(arrays):
            return Constant.shared(np.concatenate(data, axis))
        names = "_".join(dict.fromkeys(a.name for a in arrays if isinstance(a, Var)))
        return self.bind(names, Concat(axis)(Tuple(tuple(arrays))), bindings)

    def bind(
        self, name: str, value: Call, bindings: list[Binding], kind: Annotation | None = None
    ) -> Var:
        var = DataflowVar(name, kind or deduce(value, self.mod), span=value.span)
        bindings.append(VarBinding(var, value, span=value.span))
        return var


def _groups(
    bindings: Sequence[Binding], weights: Collection[Var], convolutions: bool
) -> list[_Group]:
    """The products, and convolutions, of one input with weights that are known, alike but for the axis that is
    joined."""
    found: dict[tuple[object, ...], _Group] = {}
    for i, binding in enumerate(bindings):
        match binding.value:
            case Call(op=op, args=(Var(annotation=TensorType() as x) as var, w)):
                pass
            case _:
                continue
        sizes = _sizes(w) if isinstance(w, Constant) or w in weights else ()
        if x.dims is None or x.ndim < 1 or x.dtype is None or len(sizes) < 2:
            continue
        match op:
            case Matmul():
                axis, weight_axis = -1, len(sizes) - 1
            case Convolution(groups=1) if convolutions:
                _, kernel, result = op.layouts()
                if kernel.block("O") > 1 or result.blocks:
                    continue
                letters = result.letters
                axis, weight_axis = letters.index("C") - len(letters), kernel.letters.index("O")
            case _:
                continue
        others = (*sizes[:weight_axis], *sizes[weight_axis + 1 :])
        key = (var, op, others, _dtype(w), isinstance(w, Constant))
        group = found.setdefault(key, _Group(var, op, axis, weight_axis))
        group.products.append(i)
        group.weights.append(w)
    return list(found.values())


def _computed_groups(bindings: Sequence[Binding], weights: Collection[Var]) -> list[_ComputedGroup]:
    """The products of one input with weights that only they read, and that programs compute of constants, or of weights
    that the caller packs."""
    uses = Counter(var for binding in bindings for var in used_vars(binding.value))
    places = {binding.var: place for place, binding in enumerate(bindings)}
    found: dict[tuple[object, ...], _ComputedGroup] = {}
    for i, binding in enumerate(bindings):
        match binding.value:
            case Call(
                op=(Matmul() | Linear()) as op,
                args=(Var(annotation=TensorType(dims=(*_, _)) as x) as var, DataflowVar() as w),
            ) if w in places and uses[w] == 1 and x.dtype is not None:
                pass
            case _:
                continue
        match bindings[places[w]].value:
            case Call(
                op=made, args=(GlobalVar(), Tuple(fields=parts)), ty_args=(TensorType() as kind,)
            ) if (
                type(made) is CallTIR
                and all(isinstance(p, Constant) or p in weights for p in parts)
                and kind.ndim == 2
            ):
                pass
            case _:
                continue
        depth = kind.dims[int(isinstance(op, Linear))] if kind.dims is not None else None
        group = found.setdefault((var, op, depth, str(kind.dtype)), _ComputedGroup(var, op))
        group.products.append(i)
        group.weights.append(places[w])
    return list(found.values())


def _are_alike(parts: Sequence[Sequence[Expr]]) -> bool:
    """Have all weights as many parts, and is each either a constant of all or a variable of all?"""
    if len({len(each) for each in parts}) != 1:
        return False
    return all(
        len({isinstance(each, Constant) for each in column}) == 1
        for column in zip(*parts, strict=True)
    )


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


@dataclass(frozen=True)
class _Step:
    """The operators on each product alone."""

    op: Op
    by: Sequence[Expr]
    """The vectors of all of them, to be joined; or what they have in common; or nothing."""
    places: Sequence[int]
    """The positions of the bindings."""


def _users(bindings: Sequence[Binding]) -> dict[Var, list[int]]:
    """The positions of the bindings that read each variable."""
    users: dict[Var, list[int]] = {}
    for i, binding in enumerate(bindings):
        for var in used_vars(binding.value):
            users.setdefault(var, []).append(i)
    return users


def _next_step(
    outputs: Sequence[Var],
    bindings: Sequence[Binding],
    users: Mapping[Var, Sequence[int]],
    weights: Collection[Var],
    bound_here: Collection[Var],
    axis: int,
) -> _Step | None:
    """The only use of each product, if it is the same for all: a conversion or another function of each element, or a
    sum or a product with constants (or weights) of its own along the joined axis, or with one value for all of this
    axis that is there before (not `bound_here`)."""
    places: list[int] = []
    for var in outputs:
        if not isinstance(var, DataflowVar) or len(users.get(var, ())) != 1:
            return None
        places += users[var]
    values = [bindings[at].value for at in places]
    first = values[0]
    if isinstance(first, Call) and isinstance(first.op, (Astype, Unary)):
        same = all(isinstance(value, Call) and value.op == first.op for value in values)
        return _Step(first.op, (), places) if same else None
    for kind in (Add, Multiply):
        by = [_other(value, var, kind) for value, var in zip(values, outputs, strict=True)]
        found = [each for each in by if each is not None]
        if len(found) < len(outputs):
            continue
        own = zip(found, outputs, strict=True)
        if all(_is_vector(each, var, weights, axis) for each, var in own):
            constant = {isinstance(each, Constant) for each in found}
            alike = len(constant) == len({len(_sizes(each)) for each in found}) == 1
            return _Step(kind(), found, places) if alike else None
        (one, *others) = found
        if all(_is_one(each, one, bound_here, axis) for each in (one, *others)):
            return _Step(kind(), (one,), places)
    return None


def _other(value: Expr, var: Var, kind: type[Op]) -> Expr | None:
    """The other argument of an operator of this kind on `var`."""
    match value:
        case Call(op=op, args=(x, other)) if x is var and type(op) is kind:
            return other
        case Call(op=op, args=(other, x)) if x is var and type(op) is kind:
            return other
        case _:
            return None


def _is_vector(expr: Expr, var: Var, weights: Collection[Var], axis: int) -> bool:
    """Is it a constant or a weight with a number for each index of this axis of `var` alone?"""
    if not isinstance(expr, Constant) and expr not in weights:
        return False
    annotation, sizes = var.annotation, _sizes(expr)
    if not isinstance(annotation, TensorType) or annotation.dims is None or len(sizes) < -axis:
        return False
    others = (*sizes[:axis], *sizes[len(sizes) + axis + 1 :])
    is_along = all(size == 1 for size in others) and len(sizes) <= annotation.ndim
    return is_along and annotation.dims[axis] == sizes[axis]


def _is_one(expr: Expr, one: Expr, bound_here: Collection[Var], axis: int) -> bool:
    """Is it this value, the same for all of the joined axis, and there before the products?"""
    if isinstance(expr, Constant) and isinstance(one, Constant):
        return expr.data.ndim == 0 and one.data.ndim == 0 and bool(expr.data == one.data)
    if expr is not one or not isinstance(expr, Var) or expr in bound_here:
        return False
    kind = expr.annotation
    if not isinstance(kind, TensorType) or kind.dims is None:
        return False
    return kind.ndim < -axis or kind.dims[axis] == 1
