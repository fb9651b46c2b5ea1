"""LowerShapes: store symbolic dimensions in slots of the integer heap."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from relaxpy.errors import PassError, Span
from relaxpy.ir.annotation import (
    VOID,
    Annotation,
    CallableType,
    DataType,
    ObjectType,
    PrimType,
    ShapeType,
    TensorType,
    TupleType,
)
from relaxpy.ir.dim import Dim, DimOp, SymVar, dim_op
from relaxpy.ir.expr import (
    Binding,
    BindingBlock,
    Call,
    Expr,
    ExternFunc,
    Function,
    If,
    MatchCast,
    PrimValue,
    SeqExpr,
    ShapeExpr,
    Tuple,
    Var,
    VarBinding,
)
from relaxpy.ir.module import IRModule
from relaxpy.ir.visitor import map_annotation
from relaxpy.op.call import CallPurePacked, InvokeClosure
from relaxpy.op.data import Construct, DataField, IsMadeBy
from relaxpy.op.deduce import deduce
from relaxpy.op.memory import (
    AllocStorage,
    AllocTensor,
    CheckDim,
    CheckEqual,
    MakeShape,
    Match,
    Store,
    View,
)
from relaxpy.shape.bounds import requirements
from relaxpy.shape.defined import matched_dims
from relaxpy.shape.lattice import Verdict, accepts
from relaxpy.shape.prove import equal
from relaxpy.shape.solve import solve_linear
from relaxpy.transform.base import Pass, PassContext

HEAP_ATTR = "vm.heap"
"""Function attribute: the number of slots of its heap."""


@dataclass(frozen=True)
class LowerShapes(Pass):
    """Make shape computation explicit (paper §4.7; `VMShapeLower` in TVM). Every symbolic
    variable and every shape that is computed gets slots of the function's int64 heap. At a
    function's start and at a `match_cast`, `vm.match` checks a value against its annotation and
    writes its dimensions to slots; `vm.store` computes one slot from others, where it is first
    needed; `vm.check_equal` compares what came with a relation (`n * 4`). A dimension that occurs
    in no parameter alone is solved for. Declared bounds of variables (`tir_var_upper_bound`) are
    checked where those get their values, the return annotation where it is not proved.

    Before:
        @I.ir_module
        class Module:
            @T.prim_func(private=True)
            def twice(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n * 2",), "float32")):
                n = T.int64()
                for i in range(n * 2):
                    with T.sblock("twice"):
                        vi = T.axis.spatial(n * 2, i)
                        y[vi] = x[vi // 2]

            @R.function
            def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n * 2",), dtype="float32"):
                n = T.int64()
                cls = Module
                gv = R.memory.alloc_tensor(R.shape([n * 2]), dtype="float32")
                _gv = R.vm.call_dps(cls.twice, x, gv)
                return gv
    After:
        @I.ir_module
        class Module:
            @T.prim_func(private=True)
            def twice(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n * 2",), "float32")):
                n = T.int64()
                for i in range(n * 2):
                    with T.sblock("twice"):
                        vi = T.axis.spatial(n * 2, i)
                        y[vi] = x[vi // 2]

            @R.function
            def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n * 2",), dtype="float32"):
                n = T.int64()
                R.func_attr({"vm.heap": 2})
                cls = Module
                _x = R.vm.match(x, slots=[0], of="x", annotation='R.Tensor((n,), dtype="float32")')
                _ = R.vm.store(R.prim_value(n * 2), slot=1)
                gv = R.memory.alloc_tensor(R.shape([n * 2]), dtype="float32", at=1)
                _gv = R.vm.call_dps(cls.twice, x, gv)
                return gv
    """

    name: ClassVar[str] = "lower-shapes"
    mandatory: ClassVar[bool] = True
    prerequisites: ClassVar[tuple[str, ...]] = ("lower-call-tir",)

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        return mod.map_graph_functions(lambda name, f: _Lowerer(mod, name, f).function())


class _Scope:
    """The contents of the heap at a program point: slots of dimensions and of shapes. An arm of a branch inherits the
    scope around it."""

    def __init__(self, outer: _Scope | None = None) -> None:
        self.outer = outer
        self.slots: dict[Dim, int] = {}
        self.shapes: dict[tuple[Dim, ...], int] = {}

    def slot(self, dim: Dim) -> int | None:
        scope: _Scope | None = self
        while scope is not None:
            if dim in scope.slots:
                return scope.slots[dim]
            scope = scope.outer
        return None

    def shape(self, dims: tuple[Dim, ...]) -> int | None:
        scope: _Scope | None = self
        while scope is not None:
            if dims in scope.shapes:
                return scope.shapes[dims]
            scope = scope.outer
        return None

    def knows(self, dim: Dim) -> bool:
        return all(self.slot(var.dim) is not None for var in dim.vars)


@dataclass(frozen=True)
class _Relation:
    """An equality to check: the actual dimension equals the expression in the annotation."""

    var: Var
    annotation: Annotation
    came: Dim
    expected: Dim
    index: int
    span: Span | None


class _SeenDims:
    """Visits the dimensions of an annotation. A symbol without a value is bound, a constant is compared, and any other
    dimension gets a fresh symbol and a relation."""

    def __init__(self, scope: _Scope, name: str) -> None:
        self.scope = scope
        self.name = name
        self.bound: set[Dim] = set()
        self.relations: dict[int, tuple[Dim, Dim]] = {}
        self.count = 0

    def dim(self, dim: Dim) -> Dim:
        index, self.count = self.count, self.count + 1
        if dim.value is not None:
            return dim
        if dim.symbol is not None and self.scope.slot(dim) is None and dim not in self.bound:
            self.bound.add(dim)
            return dim
        came = SymVar(f"{self.name}_{index}").dim
        self.relations[index] = (came, dim)
        return came


class _Lowerer:
    def __init__(self, mod: IRModule, name: str, function: Function) -> None:
        self.mod = mod
        self.name = name
        self.original = function
        self.size = 0
        self.scope = _Scope()
        self.out: list[Binding] = []
        self.span: Span | None = None

    def function(self) -> Function:
        function = self.original
        self.match_all([(p, p.annotation, p.span) for p in function.params], "parameter")
        body = self.body(function.body)
        body = self.check_return(body)
        attrs = {**function.attrs, HEAP_ATTR: self.size}
        seq = SeqExpr(
            (BindingBlock(tuple(self.out)),) if self.out else (), body, span=function.body.span
        )
        return dataclasses.replace(function, body=seq, attrs=attrs)

    def body(self, seq: SeqExpr) -> Expr:
        for binding in seq.bindings:
            self.span = binding.span
            self.binding(binding)
        self.span = seq.body.span or self.span
        return self.leaf(seq.body)

    def check_return(self, body: Expr) -> Expr:
        declared = self.original.ret
        actual = deduce(body, self.mod)
        verdict = accepts(declared, actual, None, equal)
        if verdict is Verdict.NO:
            raise PassError(
                "return-annotation",
                f"{self.name} is declared to return {declared}, but returns {actual}",
                span=self.original.span,
            )
        if verdict is Verdict.YES or not _checkable(declared):
            return body
        # matched against the declared annotation, whose symbols are the parameters'
        if not isinstance(body, Var):
            checked = self.emit(body, "ret", actual)
        else:
            checked = body
        cast = Var(checked.name, declared, span=checked.span)
        self.out.append(MatchCast(cast, checked, declared, span=checked.span or self.original.span))
        self.match_all([(cast, declared, checked.span)], "return value")
        return cast

    # Bindings

    def binding(self, binding: Binding) -> None:
        value = binding.value
        if isinstance(binding, MatchCast):
            self.out.append(dataclasses.replace(binding, value=self.leaf(value)))
            if (condition := binding.condition) is not None:
                self.span = binding.span or self.span
                for var in condition.vars:
                    self.need(var.dim)
                check = CheckDim(message=f"{condition} does not hold")
                self.emit(check(PrimValue(condition)), "_")
                return
            self.match_all([(binding.var, binding.annotation, binding.span)], "match_cast")
            return
        match value:
            case Call(op=AllocTensor() as op, args=(ShapeExpr(dims=dims), *_)):
                value = dataclasses.replace(value, op=dataclasses.replace(op, at=self.shape(dims)))
            case Call(op=View(dtype=dtype, offset=offset), args=(tensor, ShapeExpr(dims=dims))):
                if offset:
                    raise PassError(
                        "op-arguments",
                        "memory.view: a view with an offset cannot be compiled",
                        span=value.span,
                        help="copy a part of the tensor with R.strided_slice",
                    )
                at = self.shape(dims)
                value = Call(View(dtype=dtype, at=at), (tensor, value.args[1]), span=value.span)
            case Call(op=AllocStorage(), args=(PrimValue(value=Dim() as size),)):
                for var in size.vars:
                    self.need(var.dim)
            case Call(op=CheckDim(), args=(PrimValue(value=Dim() as condition),)):
                for var in condition.vars:
                    self.need(var.dim)
            case Call(op=(ExternFunc() | CallPurePacked() | InvokeClosure()), ty_args=types):
                value = self.call(value)
                self.out.append(VarBinding(binding.var, value, span=binding.span))
                what = "field" if isinstance(value.op, DataField) else "result"
                known = isinstance(value.op, Construct | IsMadeBy)
                if types and not known and _checkable(binding.var.annotation):
                    self.match_all([(binding.var, binding.var.annotation, binding.span)], what)
                return
            case Call(op=Var()) if _checkable(binding.var.annotation):
                # The value may be a Python function, which guarantees nothing.
                value = self.call(value)
                self.out.append(VarBinding(binding.var, value, span=binding.span))
                self.match_all([(binding.var, binding.var.annotation, binding.span)], "result")
                return
            case Call():
                value = self.call(value)
            case If(cond=cond):
                arms = [self.arm(value.then), self.arm(value.otherwise)]
                value = If(self.leaf(cond), *arms, span=value.span)
            case _:
                value = self.leaf(value)
        self.out.append(VarBinding(binding.var, value, span=binding.span))

    def call(self, call: Call) -> Call:
        args = tuple(map(self.leaf, call.args))
        if all(a is b for a, b in zip(args, call.args, strict=True)):
            return call
        return dataclasses.replace(call, args=args)

    def arm(self, seq: SeqExpr) -> SeqExpr:
        outer, self.out = self.out, []
        self.scope = _Scope(self.scope)
        body = self.body(seq)
        blocks = (BindingBlock(tuple(self.out)),) if self.out else ()
        self.out = outer
        assert self.scope.outer is not None
        self.scope = self.scope.outer
        return SeqExpr(blocks, body, span=seq.span)

    def leaf(self, expr: Expr) -> Expr:
        """Return a leaf with its shapes read from the heap. Dimensions of scalars are stored."""
        match expr:
            case ShapeExpr(dims=dims):
                at = self.shape(dims)
                return self.emit(MakeShape(at=at)(expr), "shape", ShapeType(dims))
            case PrimValue(value=Dim() as value):
                if value.value is None:
                    self.need(value)
                return expr
            case Tuple(fields=fields):
                new = tuple(map(self.leaf, fields))
                same = all(a is b for a, b in zip(new, fields, strict=True))
                return expr if same else Tuple(new, span=expr.span)
            case _:
                return expr

    def emit(self, value: Expr, name: str, annotation: Annotation = VOID) -> Var:
        var = Var(name, annotation, span=self.span)
        self.out.append(VarBinding(var, value, span=self.span))
        return var

    # The heap

    def reserve(self, count: int) -> int:
        start = self.size
        self.size += count
        return start

    def need(self, dim: Dim) -> int:
        """The slot that holds `dim`, computed here if no slot holds it yet."""
        found = self.scope.slot(dim)
        if found is not None:
            return found
        self.check_known(dim)
        slot = self.reserve(1)
        self.store(dim, slot)
        self.scope.slots[dim] = slot
        return slot

    def shape(self, dims: tuple[Dim, ...]) -> int:
        """The position in the heap where these dimensions lie contiguously."""
        found = self.scope.shape(dims)
        if found is not None:
            return found
        for dim in dims:
            self.check_known(dim)
        if len(dims) == 1 and (slot := self.scope.slot(dims[0])) is not None:
            if not never_negative(dims[0]):
                self.check_size(dims[0])
            self.scope.shapes[dims] = slot
            return slot
        start = self.reserve(len(dims))
        for i, dim in enumerate(dims):
            self.store(dim, start + i)
            if self.scope.slot(dim) is None:
                self.scope.slots[dim] = start + i
            if not never_negative(dim):
                self.check_size(dim)
        self.scope.shapes[dims] = start
        return start

    def check_size(self, dim: Dim) -> None:
        """Check, before any allocation, a size that may be negative."""
        for var in dim.vars:
            self.need(var.dim)
        condition = PrimValue(dim_op("le", 0, dim))
        self.emit(CheckDim(message=f"the dimension {dim} is negative")(condition), "_")

    def store(self, dim: Dim, slot: int) -> None:
        self.emit(Store(slot=slot)(PrimValue(dim)), "_")

    def check_known(self, dim: Dim) -> None:
        for var in dim.vars:
            if self.scope.slot(var.dim) is None:
                raise PassError(
                    "undefined-symbol",
                    f"the symbolic variable {var.name} is used in {dim}, but its value cannot be determined",
                    span=self.span or self.original.span,
                    help=f"a parameter or match_cast must have the dimension {var.name}, or a linear expression of it; "
                    f'or pass it: s: R.Shape(["{var.name}"])',
                )

    # Matching values against annotations

    def match_all(self, values: list[tuple[Var, Annotation, Span | None]], what: str) -> None:
        """Check values and bind new symbols: first those that are a dimension by themselves, then by solving."""
        relations: list[_Relation] = []
        defined: dict[SymVar, Span | None] = {}
        for var, annotation, span in values:
            self.span = span or self.span
            if isinstance(annotation, ObjectType) and not isinstance(annotation, DataType):
                continue
            for symbol in (s for dim in matched_dims(annotation) for s in dim.vars):
                if self.scope.slot(symbol.dim) is None:
                    defined.setdefault(symbol, self.span)
            seen = _SeenDims(self.scope, var.name)
            came = _map_dims(annotation, seen.dim)
            target = var
            if seen.relations:
                # The actual dimensions get fresh symbols; their relations to the annotation are checked below.
                target = Var(f"{var.name}_came", came, span=var.span)
                self.out.append(MatchCast(target, var, came, span=self.span))
            slots: list[int] = []
            for dim in _dims(came):
                known = dim.value is not None
                slots.append(-1 if known else self.reserve(1))
                if not known:
                    self.scope.slots[dim] = slots[-1]
            match = Match(slots=tuple(slots), what=what, of=var.name, annotation=str(annotation))
            self.emit(match(target), "_")
            for index, (symbol, dim) in seen.relations.items():
                relations.append(_Relation(var, annotation, symbol, dim, index, self.span))
        self.solve(relations)
        for relation in relations:
            self.span = relation.span
            for used in relation.expected.vars:
                self.check_known(used.dim)
            check = CheckEqual(
                what=what,
                of=relation.var.name,
                annotation=str(relation.annotation),
                detail=f"dimension {position(relation.annotation, relation.index)} ({relation.expected})",
            )
            self.emit(check(PrimValue(relation.came), PrimValue(relation.expected)), "_")
        for symbol, self.span in defined.items():
            for condition, message in requirements(self.original.attrs, [symbol]):
                self.emit(CheckDim(message=message)(PrimValue(condition)), "_")

    def solve(self, relations: list[_Relation]) -> None:
        """Solve relations with exactly one unknown symbol, until none is left."""
        progress = True
        while progress:
            progress = False
            for relation in relations:
                unknown = [v for v in relation.expected.vars if self.scope.slot(v.dim) is None]
                if len(unknown) != 1:
                    continue
                solution = solve_linear(relation.expected, relation.came, unknown[0])
                if solution is not None:
                    self.need_as(solution, unknown[0])
                    progress = True

    def need_as(self, solution: Dim, symbol: SymVar) -> None:
        """Bind `symbol` to `solution`: as a shape, matched against the symbol, which is how the language defines
        symbols."""
        annotation = ShapeType((symbol,))
        value = self.leaf(ShapeExpr((solution,)))
        cast = Var(f"{symbol.name}_solved", annotation, span=self.span)
        self.out.append(MatchCast(cast, value, annotation, span=self.span))
        slot = self.reserve(1)
        self.emit(Match(slots=(slot,), what="match_cast", of=symbol.name)(cast), "_")
        self.scope.slots[symbol.dim] = slot


def never_negative(dim: Dim) -> bool:
    """Is this at least 0 by its form, given that all variables are sizes?"""

    def atom(a: SymVar | DimOp) -> bool:
        if isinstance(a, SymVar):
            return not a.signed
        match a.op:
            case "floordiv" | "min":
                return all(map(never_negative, a.args))
            case "floormod":
                return never_negative(a.args[1])
            case "max":
                return any(map(never_negative, a.args))
            case "select":
                return all(map(never_negative, a.args[1:]))
            case _:
                return True

    return all(c >= 0 and all(atom(a) for a, _ in monomial) for monomial, c in dim.terms)


def _dims(annotation: Annotation) -> Iterator[Dim]:
    """The dimensions of an annotation in the order of `vm.match`'s slots, without those of function types, which have
    their own scope."""
    match annotation:
        case TensorType(shape=tuple() as dims) | ShapeType(dims=tuple() as dims):
            yield from dims
        case PrimType(value=Dim() as value):
            yield value
        case TupleType(fields=fields):
            for item in fields:
                yield from _dims(item)
        case _:
            pass


def _map_dims(annotation: Annotation, change: Callable[[Dim], Dim]) -> Annotation:
    """Return the annotation with the dimensions that `_dims` lists replaced, in the same order."""
    match annotation:
        case TupleType(fields=fields):
            return TupleType(_map_dims(item, change) for item in fields)
        case CallableType() | DataType():
            return annotation
        case _:
            return map_annotation(annotation, change)


def position(annotation: Annotation, index: int) -> str:
    """The location of dimension `index` in an annotation, as text for messages."""
    match annotation:
        case TupleType(fields=fields):
            for i, item in enumerate(fields):
                count = sum(1 for _ in _dims(item))
                if index < count:
                    return f"{position(item, index)} of field {i}"
                index -= count
        case _:
            pass
    return str(index)


def _checkable(annotation: Annotation) -> bool:
    """Does the annotation need a check at run time?"""
    if isinstance(annotation, TupleType | DataType):
        return True
    return not isinstance(annotation, (ObjectType, CallableType)) or (
        isinstance(annotation, CallableType) and annotation.params is not None
    )
