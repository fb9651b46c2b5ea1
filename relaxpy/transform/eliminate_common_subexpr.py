"""EliminateCommonSubexpr: compute repeated expressions once."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

from relaxpy.analysis.escape import escaping
from relaxpy.analysis.in_place import state, updated
from relaxpy.analysis.purity import is_pure
from relaxpy.ir.annotation import Annotation, PrimType, ShapeType, TensorType, TupleType
from relaxpy.ir.dim import Dim
from relaxpy.ir.expr import (
    Binding,
    BindingBlock,
    Call,
    Constant,
    DataTypeImm,
    Expr,
    ExternFunc,
    Function,
    GlobalVar,
    MatchCast,
    PrimValue,
    SeqExpr,
    ShapeExpr,
    StringImm,
    Tuple,
    TupleGetItem,
    Var,
)
from relaxpy.ir.module import IRModule
from relaxpy.ir.op import Operator
from relaxpy.ir.visitor import Rewriter, used_vars
from relaxpy.op.base import Op
from relaxpy.op.call import (
    CallDPSLibrary,
    CallPurePacked,
    CallTIR,
    CallTIRWithGrad,
)
from relaxpy.shape.lattice import Verdict, accepts
from relaxpy.shape.prove import equal
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.dataflow_vars import with_outputs

_FUNCTIONS_OF_ARGUMENTS = (CallTIR, CallTIRWithGrad, CallDPSLibrary, CallPurePacked)
"""Cross-level calls that are deterministic and allocate a new result in each call."""
SMALL = 4096
"""Constants of at most this many bytes are compared by value, larger ones by identity of their array."""


@dataclass(frozen=True)
class EliminateCommonSubexpr(Pass):
    """Compute expressions with equal operator and equal arguments once (`EliminateCommonSubexpr` in TVM). Branches and
    pure local functions reuse the expressions computed around them.

    Nothing is merged across a call with an effect, since it may modify a tensor. Two tensors that leave the function,
    or that an in-place call modifies, stay separate.

    Before:
        @R.function
        def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
            a = R.exp(x)
            b = R.tanh(a)
            c = R.exp(x)
            d = R.tanh(c)
            e = R.add(b, d)
            return e
    After:
        @R.function
        def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
            a = R.exp(x)
            b = R.tanh(a)
            e = R.add(b, b)
            return e
    """

    name: ClassVar[str] = "eliminate-common-subexpr"
    level: ClassVar[int] = 3

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        return mod.map_graph_functions(
            lambda _, f: with_outputs(_Eliminator(mod).rewrite_Function(f))
        )


class _Eliminator(Rewriter):
    def __init__(self, mod: IRModule) -> None:
        super().__init__()
        self.mod = mod
        self.scopes: list[dict[Hashable, Var]] = []
        """Expressions computed so far in this body and the bodies around it, by key."""
        self.pure = True
        self.leaving: set[Var] = set()
        """Variables that may leave the function."""
        self.is_local = False
        self.separate: frozenset[Var] = frozenset()
        """Variables that must stay separate tensors because in-place calls modify them."""
        self.state: frozenset[Var] = frozenset()

    def rewrite_Function(self, node: Function) -> Function:
        outer = self.scopes, self.pure, self.leaving, self.is_local, self.state
        if not (self.pure and node.pure):
            self.scopes = []  # tensors may hold other values by the time it runs
        self.pure = self.pure and node.pure
        self.leaving = set(escaping(node))
        if not self.is_local:
            self.separate = updated(node.body)
        self.is_local = True
        self.state |= state(node)
        result = super().rewrite_Function(node)
        self.scopes, self.pure, self.leaving, self.is_local, self.state = outer
        return result

    def rewrite_SeqExpr(self, node: SeqExpr) -> Any:
        self.scopes = [*self.scopes, {}]
        blocks = tuple(b for old in node.blocks if (b := self.block(old)) is not None)
        body = self.rewrite(node.body)
        self.scopes = self.scopes[:-1]
        same = body is node.body and len(blocks) == len(node.blocks)
        if same and all(a is b for a, b in zip(blocks, node.blocks, strict=True)):
            return node
        return SeqExpr(blocks, body, span=node.span)

    def block(self, block: BindingBlock) -> BindingBlock | None:
        bindings: list[Binding] = []
        for old in block.bindings:
            binding = self.rewrite(old)
            first = self.computed(binding)
            if first is None:
                bindings.append(binding)
            else:
                self.vars[old.var] = self.vars[binding.var] = first
        if not bindings:
            return None
        same = len(bindings) == len(block.bindings)
        if same and all(a is b for a, b in zip(bindings, block.bindings, strict=True)):
            return block
        return dataclasses.replace(block, bindings=tuple(bindings))

    def computed(self, binding: Binding) -> Var | None:
        """The variable that already holds the value of this binding; None if there is none."""
        if isinstance(binding.value, Call) and not is_pure(binding.value, self.mod):
            for scope in self.scopes:
                scope.clear()
            return None
        key = self.key(binding)
        if key is None or (self.state and not self.state.isdisjoint(used_vars(binding.value))):
            return None
        first = next((s[key] for s in reversed(self.scopes) if key in s), None)
        if first is None or not self.may_stand_for(first, binding.var):
            self.scopes[-1][key] = binding.var
            return None
        if binding.var in self.leaving:
            self.leaving.add(first)
        return first

    def may_stand_for(self, first: Var, second: Var) -> bool:
        """May all uses of the second variable be replaced by the first?"""
        if first in self.separate or second in self.separate:
            return False
        if first in self.leaving and second in self.leaving and _has_memory(first.annotation):
            return False
        return accepts(second.annotation, first.annotation, None, equal) is Verdict.YES

    def key(self, binding: Binding) -> Hashable:
        """A hashable key of the expression that a binding computes; None if it may differ each time."""
        if isinstance(binding, MatchCast):
            return ("match_cast", _leaf_key(binding.value), binding.annotation)
        match binding.value:
            case Call(op=op, args=args, ty_args=ty_args) as call if self.same_each_time(
                call, binding.var
            ):
                head = (
                    repr(op) if isinstance(op, Operator) else _leaf_key(op)
                )  # distinguishes -0.0 from 0.0
                return (head, type(op), tuple(map(_leaf_key, args)), ty_args)
            case TupleGetItem(tuple=whole, index=index):
                return ("field", _leaf_key(whole), index)
            case Tuple() as fields:
                return _leaf_key(fields)
            case _:
                return None

    def same_each_time(self, call: Call, var: Var) -> bool:
        """Is a pure call deterministic, with a result that nothing else aliases?"""
        match call.op:
            case Op():
                return True
            case op if type(op) in _FUNCTIONS_OF_ARGUMENTS:
                return _is_data(var.annotation)
            case GlobalVar() | Var():
                return _is_data(var.annotation)
            case _:
                return False


def _is_data(annotation: Annotation) -> bool:
    """Is this a tensor, shape or scalar, and not an object that may have state?"""
    if isinstance(annotation, TupleType):
        return all(map(_is_data, annotation.fields))
    return isinstance(annotation, (TensorType, ShapeType, PrimType))


def _has_memory(annotation: Annotation) -> bool:
    return not isinstance(annotation, (ShapeType, PrimType))


def _leaf_key(leaf: Expr) -> Hashable:
    match leaf:
        case Constant(data=data) if data.nbytes <= SMALL:
            return ("constant", str(data.dtype), data.shape, data.tobytes())
        case Constant(data=data):
            return ("constant", str(data.dtype), data.shape, data.__array_interface__["data"])
        case ShapeExpr(dims=dims):
            return ("shape", dims)
        case PrimValue(value=Dim() as value, dtype=dtype):
            return ("scalar", value, dtype)
        case PrimValue(value=value, dtype=dtype):
            return ("scalar", repr(value), dtype)
        case StringImm(value=value):
            return ("string", value)
        case DataTypeImm(dtype=dtype):
            return ("dtype", dtype)
        case ExternFunc(name=name):
            return ("extern", name)
        case Tuple(fields=fields):
            return ("tuple", tuple(map(_leaf_key, fields)))
        case _:
            return leaf
