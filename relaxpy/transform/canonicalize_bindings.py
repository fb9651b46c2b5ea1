"""CanonicalizeBindings: remove bindings that only alias another value."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from relaxpy.analysis.escape import escaping
from relaxpy.analysis.in_place import state
from relaxpy.analysis.removable import Removable, is_size
from relaxpy.errors import DeduceError
from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import (
    Binding,
    BindingBlock,
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    MatchCast,
    PrimValue,
    SeqExpr,
    ShapeExpr,
    Tuple,
    TupleGetItem,
    Var,
    VarBinding,
)
from relaxpy.ir.module import IRModule
from relaxpy.ir.op import Operator
from relaxpy.ir.visitor import Rewriter, free_sym_vars, symbols_of_local_functions, used_vars
from relaxpy.op.datatype import Astype
from relaxpy.op.deduce import deduce
from relaxpy.op.manipulate import BroadcastTo, ExpandDims, PermuteDims, Squeeze
from relaxpy.op.repetition import Repeat, Tile
from relaxpy.op.row_major import Flatten, Reshape
from relaxpy.shape.bounds import assuming, assuming_nothing, bounds_of
from relaxpy.shape.lattice import Verdict, accepts
from relaxpy.shape.prove import equal
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.dataflow_vars import with_outputs

SAME_WHERE_SHAPED_ALIKE: tuple[type[Operator], ...] = (
    Reshape,
    Flatten,
    BroadcastTo,
    ExpandDims,
    Squeeze,
    Astype,
    Repeat,
    Tile,
)
"""Operators that return their first argument unchanged if it has the shape and dtype of the result."""


@dataclass(frozen=True)
class CanonicalizeBindings(Pass):
    """Replace aliases by the values that they name (`CanonicalizeBindings` in TVM). Aliases are `y = x`, a field of a
    tuple that was built in the same function, and a proved `match_cast` (whose symbols become the dimensions that they
    equal). A `reshape`, `astype`, `broadcast_to`, … that changes nothing becomes its argument. Consecutive
    transpositions become one, or none.

    A function that returns a freshly computed tensor does not return its argument instead. In impure functions,
    distinct tensors stay distinct. A function in which a call turns out to be invalid stays unchanged: the program
    reports the error if it reaches that call.

    Before:
        @R.function
        def main(x: R.Tensor(("n", "m"), dtype="float32")) -> R.Tensor(("n", "m"), dtype="float32"):
            n, m = T.int64(), T.int64()
            k = T.int64()
            y = x
            t = (y, y)
            a = t[0]
            b = R.match_cast(a, R.Tensor((k, m), dtype="float32"))
            c = R.zeros((k,), dtype="float32")
            d = R.permute_dims(b)
            e = R.permute_dims(d)
            f = R.reshape(e, (n, m))
            g = R.exp(f)
            return g
    After:
        @R.function
        def main(x: R.Tensor(("n", "m"), dtype="float32")) -> R.Tensor(("n", "m"), dtype="float32"):
            n, m = T.int64(), T.int64()
            t = (x, x)
            c = R.zeros((n,), dtype="float32")
            d = R.permute_dims(x)
            g = R.exp(x)
            return g
    """

    name: ClassVar[str] = "canonicalize-bindings"
    level: ClassVar[int] = 3

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        def change(_: str, function: Function) -> Function:
            with assuming(bounds_of(function)):
                try:
                    return with_outputs(_Canonical(mod).rewrite_Function(function))
                except DeduceError:
                    return function

        return mod.map_graph_functions(change)


class _Canonical(Rewriter):
    """Walks forward. `vars` maps removed variables, `syms` removed symbols."""

    def __init__(self, mod: IRModule) -> None:
        super().__init__()
        self.mod = mod
        self.removable = Removable(mod)
        self.values: dict[Var, Tuple | Call] = {}
        """Variables bound to tuples and transpositions."""
        self.symbols: set[SymVar] = set()
        """The symbols defined so far."""
        self.results: set[Var] = set()
        """Variables that are the result of a body."""
        self.kept: frozenset[Var] = frozenset()
        """Variables that must stay separate tensors: those that leave the function, and memory of the caller."""
        self.pure = True
        self.inside: frozenset[SymVar] = frozenset()
        """Symbols that local functions mention. A call of such a function can bind a symbol, but not a compound
        expression.
        """

    def rewrite_Function(self, node: Function) -> Function:
        outer = self.symbols, self.kept, self.pure, self.inside
        # Those of a local function's own local functions are among them.
        self.inside = self.inside or symbols_of_local_functions(node)
        self.symbols = self.symbols | set(free_sym_vars(p.annotation for p in node.params))
        self.pure = node.pure
        self.kept = state(node) | escaping(node)
        result = super().rewrite_Function(node)
        self.symbols, self.kept, self.pure, self.inside = outer
        return result

    def rewrite_SeqExpr(self, node: SeqExpr) -> Any:
        symbols = set(self.symbols)
        if isinstance(node.body, Var):
            self.results.add(node.body)
        blocks = tuple(b for old in node.blocks if (b := self.block(old)) is not None)
        body = self.rewrite(node.body)
        self.symbols = symbols
        same = body is node.body and len(blocks) == len(node.blocks)
        if same and all(a is b for a, b in zip(blocks, node.blocks, strict=True)):
            return node
        return SeqExpr(blocks, body, span=node.span)

    def block(self, block: BindingBlock) -> BindingBlock | None:
        bindings: list[Binding] = []
        for old in block.bindings:
            binding = self.rewrite(old)
            if binding.value is not old.value and isinstance(binding.value, Call):
                deduce(binding.value, self.mod)  # raises if the call is invalid
            other = self.named(binding)
            if isinstance(other, GlobalVar) and old.var in self.results:
                other = None  # a function that is a branch's result needs a variable there
            if other is not None:
                # later uses may refer to either variable of the binding, old or new
                self.vars[old.var] = self.vars[binding.var] = other
                continue
            binding = self.simpler(binding)
            if isinstance(binding, MatchCast):
                if binding is not old:
                    self.require_possible(binding)
                self.symbols.update(free_sym_vars([binding.annotation]))
            elif isinstance(binding.value, Tuple) or _transposed(binding.value):
                self.values[binding.var] = binding.value  # type: ignore[assignment]
            bindings.append(binding)
        if not bindings:
            return None
        same = len(bindings) == len(block.bindings)
        if same and all(a is b for a, b in zip(bindings, block.bindings, strict=True)):
            return block
        return dataclasses.replace(block, bindings=tuple(bindings))

    # Aliases

    def named(self, binding: Binding) -> Expr | None:
        """The leaf that a binding's variable aliases; None if the binding computes a value of its own."""
        try:
            return self.cast(binding) if isinstance(binding, MatchCast) else self.value(binding)
        except DeduceError:
            return None

    def cast(self, binding: MatchCast) -> Expr | None:
        """The argument of a proved `match_cast`, whose symbols are replaced; None otherwise. A cast that is proved only
        by the function's declared bounds stays: functions without these bounds (a fused function) rely on it."""
        if not _may_replace(binding.value):
            return None
        bound = {s: s.dim for s in self.symbols}
        actual = deduce(binding.value, self.mod)
        with assuming_nothing():
            verdict = accepts(binding.annotation, actual, bound, equal)
        if verdict is not Verdict.YES:
            return None
        new = {s: bound[s] for s in free_sym_vars([binding.annotation]) if s not in self.symbols}
        if not all(self.symbols.issuperset(dim.vars) for dim in new.values()):
            return None
        compound = {s for s, dim in new.items() if dim.symbol is None and dim.value is None}
        if not self.inside.isdisjoint(compound):
            return None
        self.syms.update(new)
        return binding.value

    def require_possible(self, binding: MatchCast) -> None:
        """Check that a `match_cast` can still succeed now that its symbols have values. A cast that always fails is an
        error of the running program, and a module that contains one is not well formed. Raises DeduceError."""
        actual, bound = deduce(binding.value, self.mod), {s: s.dim for s in self.symbols}
        if accepts(binding.annotation, actual, bound, equal) is Verdict.NO:
            raise DeduceError("wf-annotation", f"{actual} is not a {binding.annotation}")

    def value(self, binding: VarBinding) -> Expr | None:
        match binding.value:
            case value if _may_replace(value):
                return value if self.fits(value, binding.var.annotation) else None
            case TupleGetItem(tuple=whole, index=index):
                fields = self.values.get(whole) if isinstance(whole, Var) else whole
                if not isinstance(fields, Tuple) or not 0 <= index < len(fields.fields):
                    return None
                item = fields.fields[index]
                known = _may_replace(item) and self.fits(item, binding.var.annotation)
                return item if known and self.kept.isdisjoint(used_vars(item)) else None
            case Call() as call if self.pure and binding.var not in self.kept:
                return self.unchanged(binding, call)
            case _:
                return None

    def unchanged(self, binding: VarBinding, call: Call) -> Expr | None:
        """The argument of a call that returns it unchanged; None for other calls."""
        order = _transposed(call)
        if not call.args or not (order or isinstance(call.op, SAME_WHERE_SHAPED_ALIKE)):
            return None
        source = call.args[0]
        if order:
            source, order = self.transposed_twice(call, order)
            if order != tuple(range(len(order))):
                return None
        x, result = deduce(source, self.mod), deduce(call, self.mod)
        if not isinstance(x, TensorType) or x.dims is None or not _may_replace(source):
            return None
        alike = accepts(x, result, None, equal) is Verdict.YES
        alike = alike and accepts(result, x, None, equal) is Verdict.YES
        return source if alike and self.removable(binding) else None

    def transposed_twice(self, call: Call, order: tuple[int, ...]) -> tuple[Expr, tuple[int, ...]]:
        """Compose a transposition with the one that made its argument. Returns the argument of the first and the
        combined order of axes.
        """
        source = call.args[0]
        inner = self.values.get(source) if isinstance(source, Var) else None
        first = _transposed(inner)
        if first is None or not isinstance(inner, Call):
            return source, order
        return inner.args[0], tuple(first[a] for a in order)

    def simpler(self, binding: Binding) -> Binding:
        """Return the binding with two consecutive transpositions combined."""
        order = _transposed(binding.value)
        if order is None or not isinstance(binding.value, Call):
            return binding
        source, both = self.transposed_twice(binding.value, order)
        if source is binding.value.args[0] or not self.kept.isdisjoint(used_vars(source)):
            return binding
        call = Call(PermuteDims(both), (source,), span=binding.value.span)
        return VarBinding(binding.var, call, span=binding.span)

    def fits(self, value: Expr, annotation: Annotation) -> bool:
        """Does the value satisfy the annotation?"""
        return accepts(annotation, deduce(value, self.mod), None, equal) is Verdict.YES


def _transposed(value: Expr | None) -> tuple[int, ...] | None:
    """The axis order of a transposition of known rank."""
    if isinstance(value, Call) and isinstance(value.op, PermuteDims):
        annotation = deduce(value.args[0])
        if isinstance(annotation, TensorType) and annotation.ndim >= 0:
            return value.op.order(annotation.ndim)
    return None


def _may_replace(value: Expr) -> bool:
    """May this value replace a variable everywhere?"""
    match value:
        case PrimValue(value=Dim() as dim):
            return dim.value is not None or dim.symbol is not None
        case ShapeExpr(dims=dims):
            return all(map(is_size, dims))
        case _:
            return isinstance(value, (Var, Constant, GlobalVar))
