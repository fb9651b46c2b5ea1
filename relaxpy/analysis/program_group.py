"""Functions that can become one tensor program: sequences of calls of tensor programs, and tuples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field

from relaxpy.errors import Span
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, PrimType, ShapeType, TensorType, TupleType
from relaxpy.ir.dim import Dim, SymVar, dim_op
from relaxpy.ir.expr import (
    Binding,
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    PrimValue,
    ShapeExpr,
    Tuple,
    TupleGetItem,
    Var,
    VarBinding,
)
from relaxpy.ir.module import IRModule, ScalarParam
from relaxpy.ir.visitor import free_sym_vars
from relaxpy.op.call import CallTIR
from relaxpy.op.deduce import deduce
from relaxpy.op.memory import CheckDim
from relaxpy.shape.bounds import LOWER, UPPER
from relaxpy.shape.defined import matched_dims
from relaxpy.shape.lattice import Verdict, accepts
from relaxpy.shape.prove import equal, prove
from relaxpy.tir.fuse import Step, Value, can_be_fused
from relaxpy.tir.prim_func import PrimFunc

Part = Value | ShapeExpr | PrimValue | Var | tuple["Part", ...]
"""A value in such a function: a tensor, a shape or number over the function's symbols, a parameter that is not a
tensor, or a tuple of parts."""


@dataclass(frozen=True)
class Source:
    """The origin of a tensor that the program reads: a constant, or a parameter or a field of one."""

    value: Value
    of: Var | Constant
    path: tuple[int, ...] = ()


@dataclass(frozen=True)
class ProgramGroup:
    """A function as one tensor program."""

    steps: Sequence[Step]
    inputs: Sequence[Source]
    """Tensors that the program reads."""
    given: Mapping[int, Source]
    """All tensors of the parameters, by the identity of their values."""
    outputs: Sequence[Value]
    """Tensors that the program writes and the function returns, each once."""
    scalars: Sequence[SymVar]
    """Symbols that the program takes as numbers."""
    result: Part
    checks: Sequence[Call]
    """Relations of the function's symbols that must hold (`vm.check_dim`), and that no dimension of a tensor between
    two steps is negative: the caller sees those of inputs and outputs only."""


class _Other(Exception):
    """A value that a tensor program cannot compute."""


def program_group(function: Function, mod: IRModule) -> ProgramGroup | None:
    """The function as one program, and the relations of its symbols that it checks. None if that is not possible: it
    calls something else, has branches, returns a constant (which must be new in every call), or requires another check
    of its arguments, which a program does not make."""
    if UPPER in function.attrs or LOWER in function.attrs:
        return None
    if accepts(function.ret, deduce(function.body, mod), None, equal) is not Verdict.YES:
        return None
    reader = _Reader(mod)
    try:
        for param in function.params:
            reader.values[param] = reader.parameter(param, param.annotation, ())
        for binding in function.body.bindings:
            reader.binding(binding)
        result = reader.part(function.body.body)
        return reader.group(result)
    except _Other:
        return None


@dataclass
class _Reader:
    mod: IRModule
    values: dict[Var, Part] = dataclass_field(default_factory=dict[Var, Part])
    sources: dict[int, Source] = dataclass_field(default_factory=dict[int, Source])
    """Tensors from outside, by the identity of their values."""
    constants: dict[int, Value] = dataclass_field(default_factory=dict[int, Value])
    steps: list[Step] = dataclass_field(default_factory=list[Step])
    spans: list[Span | None] = dataclass_field(default_factory=list["Span | None"])
    """Where the calls of the steps are."""
    checks: list[Call] = dataclass_field(default_factory=list[Call])

    def parameter(self, param: Var, annotation: Annotation, path: tuple[int, ...]) -> Part:
        match annotation:
            case TensorType():
                if annotation.dims is None or annotation.dtype is None:
                    raise _Other
                name = "_".join([param.name, *map(str, path)])
                return self.source(Value(name, annotation), param, path)
            case TupleType(fields=fields):
                return tuple(self.parameter(param, f, (*path, i)) for i, f in enumerate(fields))
            case ShapeType() | PrimType() if not path:
                return param
            case _:
                raise _Other

    def source(self, value: Value, of: Var | Constant, path: tuple[int, ...] = ()) -> Value:
        self.sources[id(value)] = Source(value, of, path)
        return value

    def binding(self, binding: Binding) -> None:
        if not isinstance(binding, VarBinding):
            raise _Other
        value = binding.value
        if isinstance(value, Call) and isinstance(value.op, CheckDim):
            self.checks.append(value)
        elif isinstance(value, Call):
            made = self.call(value, binding.var.name)
            self.values[binding.var] = made[0] if len(value.ty_args) == 1 else made
        else:
            self.values[binding.var] = self.part(value)

    def call(self, call: Call, name: str) -> tuple[Value, ...]:
        """Add a step. Returns its outputs."""
        callee = call.args[0] if call.args else None
        if type(call.op) is not CallTIR or not isinstance(callee, GlobalVar):
            raise _Other
        program, args = self.mod.functions.get(callee.name), call.args[1]
        if not isinstance(program, PrimFunc) or not can_be_fused(program):
            raise _Other
        if not isinstance(args, Tuple):
            raise _Other
        outs = [out for out in call.ty_args if isinstance(out, TensorType)]
        names = [name] if len(outs) == 1 else [f"{name}_{i}" for i in range(len(outs))]
        made = tuple(map(Value, names, outs))
        inputs: list[Value] = []
        scalars: list[Dim] = []
        for arg in args.fields:
            annotation = deduce(arg, self.mod)
            if isinstance(annotation, PrimType):
                scalars += [_known(annotation.value)]
            else:
                inputs += _tensors(self.part(arg, self.constant))
        if len(call.args) > 2:
            annotation = deduce(call.args[2], self.mod)
            dims = annotation.dims if isinstance(annotation, ShapeType) else None
            scalars += map(_known, [None] if dims is None else dims)
        if sum(isinstance(p, ScalarParam) for p in program.params) != len(scalars):
            raise _Other
        self.steps.append(Step(program, inputs, made, scalars))
        self.spans.append(call.span)
        return made

    def part(self, expr: Expr, constant: Callable[[Constant], Value] | None = None) -> Part:
        """The part that an expression denotes. `constant` resolves the constants in it; without it they are refused."""
        match expr:
            case Var() if expr in self.values:
                return self.values[expr]
            case Tuple(fields=fields):
                return tuple(self.part(item, constant) for item in fields)
            case TupleGetItem(tuple=whole, index=index):
                parts = self.part(whole)
                if isinstance(parts, tuple) and index < len(parts):
                    return parts[index]
                raise _Other
            case Constant() if constant is not None:
                return constant(expr)
            case ShapeExpr() | PrimValue():
                return expr
            case _:
                raise _Other

    def constant(self, constant: Constant) -> Value:
        """The value of a constant that a step reads. The caller passes it as an argument."""
        if id(constant) not in self.constants:
            annotation = expect(TensorType, deduce(constant, self.mod))
            value = Value(f"const{len(self.constants)}", annotation)
            self.constants[id(constant)] = self.source(value, constant)
        return self.constants[id(constant)]

    def group(self, result: Part) -> ProgramGroup:
        read = {id(value) for step in self.steps for value in step.inputs}
        inputs = [source for key, source in self.sources.items() if key in read]
        outputs = list({id(v): v for v in _tensors(result) if id(v) not in self.sources}.values())
        if not outputs:
            raise _Other
        types = [value.type for value in (*(i.value for i in inputs), *outputs)]
        alone = {dim.symbol for each in types for dim in matched_dims(each)}
        used = free_sym_vars(
            [
                *types,
                *(v.type for step in self.steps for v in (*step.inputs, *step.outputs)),
                *(ShapeType(step.scalars) for step in self.steps),
            ]
        )
        scalars = [symbol for symbol in used if symbol not in alone]
        checks = [*self.checks, *self.sizes(types)]
        return ProgramGroup(self.steps, inputs, self.sources, outputs, scalars, result, checks)

    def sizes(self, seen: Sequence[TensorType]) -> Iterator[Call]:
        """The checks of dimensions that are of no tensor that the caller sees, and may be negative."""
        checked = {dim for each in seen for dim in each.dims or ()}
        for step, span in zip(self.steps, self.spans, strict=True):
            for dim in (dim for value in step.outputs for dim in value.type.dims or ()):
                condition = dim_op("le", 0, dim)
                if dim not in checked and not prove(condition):
                    check = CheckDim(message=f"the dimension {dim} is negative")(
                        PrimValue(condition)
                    )
                    yield dataclasses.replace(check, span=span)
                checked.add(dim)


def _known(value: object) -> Dim:
    if isinstance(value, Dim):
        return value
    raise _Other


def _tensors(part: Part) -> Iterator[Value]:
    """The tensors of a part, in order."""
    if isinstance(part, Value):
        yield part
    elif isinstance(part, tuple):
        for item in part:
            yield from _tensors(item)
