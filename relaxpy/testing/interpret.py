"""A reference interpreter of whole modules on numpy: slow, and obviously right. It judges passes
and kernels.

    mod = relaxpy.parse(text)
    y = interpret(mod, "main", x, w)

Operators run through their `reference`, tensor programs as Python loops
(`relaxpy.tir.to_python`), library and packed functions as they are registered, or as `libraries`
gives them. Values are numpy arrays, tuples of values, `relaxpy.runtime.Shape` for shapes, Python
scalars, and callables. What the program promises is checked: parameters and `match_cast` raise
the `RuntimeCheckError` that the virtual machine raises; a binding whose value does not fit its
deduced annotation is a mistake of the compiler and raises one, too. Modules may be lowered
(explicit allocation, closures made), up to shape lowering, after which symbols are gone.

Calls do not nest on Python's stack: a recursion may be as deep as memory allows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from relaxpy.errors import DeduceError, PassError, RelaxError, RuntimeCheckError, UsageError
from relaxpy.ir.annotation import (
    Annotation,
    PrimType,
    ShapeType,
    TensorType,
    TupleType,
)
from relaxpy.ir.dim import Dim
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import (
    Call,
    Constant,
    DataTypeImm,
    Expr,
    ExternFunc,
    Function,
    GlobalVar,
    If,
    MatchCast,
    PrimValue,
    SeqExpr,
    ShapeExpr,
    StringImm,
    Tuple,
    TupleGetItem,
    Var,
)
from relaxpy.ir.module import BufferParam, IRModule, TensorProgram
from relaxpy.op.base import Deduction, Op
from relaxpy.op.call import CallDPSLibrary, CallPurePacked, CallTIR
from relaxpy.op.deduce import deduce
from relaxpy.op.memory import (
    AllocStorage,
    AllocTensor,
    CallDPS,
    CheckDim,
    CheckEqual,
    Intrinsic,
    Kill,
    MakeClosure,
    MakeShape,
    Match,
    Store,
    View,
)
from relaxpy.runtime import library
from relaxpy.runtime.tensor import Shape, Tensor, from_numpy
from relaxpy.testing.values import (
    Checks,
    Scope,
    Value,
    check_fits,
    check_requirements,
    describe,
    type_of_value,
)
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.to_python import to_python

Steps: TypeAlias = Generator["Activation", Value, Value]
"""An evaluation: it yields the calls that it needs, and is sent their results."""


@dataclass(frozen=True, eq=False)
class Closure:
    """A function with the scope that it was made in. Callable from Python."""

    machine: Interpreter
    function: Function
    scope: Scope
    name: str

    def __call__(self, *args: Value) -> Value:
        return self.machine.run(Activation(self, args))


@dataclass(frozen=True, eq=False)
class Partial:
    """A function value whose last arguments are filled in (`vm.make_closure`)."""

    function: Closure
    captured: tuple[Value, ...]

    def __call__(self, *args: Value) -> Value:
        return self.function(*args, *self.captured)


@dataclass(frozen=True, eq=False)
class Activation:
    """A call to be made."""

    callee: Closure
    args: tuple[Value, ...]


def interpret(
    mod: IRModule | Function,
    name: str = "main",
    *args: Any,
    libraries: Mapping[str, Callable[..., Any]] | None = None,
) -> Value:
    """Run function `name` of a module on numpy and give its value: an array, a tuple of values, a
    Shape, a scalar.

    Arguments are arrays (or what `numpy.asarray` takes), tuples of arguments, tuples of ints for
    shapes, scalars, and Python functions. `libraries` are functions on numpy arrays by name, as
    `call_dps_library` (inputs, then outputs to write) and `call_packed` (inputs; the result is
    returned) call them; others are taken from what is registered with the runtime.

    Raises: RuntimeCheckError for a value that does not fit; UsageError for an unknown function;
    PassError (`interpret`) for what cannot be interpreted.
    """
    if isinstance(mod, Function):
        mod = IRModule({name: mod})
    function = mod.functions.get(name)
    if not isinstance(function, Function):
        raise UsageError(
            "unknown-function",
            f"the module has no graph function {name!r}",
            help=f"it has {', '.join(mod.graph_functions) or 'none'}",
        )
    machine = Interpreter(mod, dict(libraries or {}))
    values = tuple(_argument(a, p.annotation) for a, p in zip(args, function.params, strict=False))
    values += args[len(function.params) :]
    with np.errstate(all="ignore"):
        return machine.run(Activation(Closure(machine, function, Scope(), name), values))


def _argument(value: Any, annotation: Annotation) -> Value:
    match annotation:
        case TensorType(dtype=dtype) if not isinstance(value, (tuple, np.ndarray)) and not callable(
            value
        ):
            return np.asarray(
                value, None if dtype is None or hasattr(value, "dtype") else dtype.numpy
            )
        case ShapeType() if isinstance(value, (tuple, list)):
            return Shape(value)
        case TupleType(fields=fields) if isinstance(value, (tuple, list)):
            return tuple(_argument(v, f) for v, f in zip(value, fields, strict=False))
        case _:
            return value


class Interpreter:
    """Runs the functions of one module."""

    def __init__(self, mod: IRModule, libraries: Mapping[str, Callable[..., Any]]) -> None:
        self.mod = mod
        self.libraries = libraries
        self.deduced: dict[tuple[Op, tuple[Annotation, ...]], Annotation] = {}
        """Results of operators on arguments of these annotations."""

    def run(self, call: Activation) -> Value:
        """Make a call, and all the calls that it makes, on a stack of our own."""
        stack = [self.enter(call)]
        sent: Value = None
        while stack:
            try:
                wanted = stack[-1].send(sent)
            except StopIteration as done:
                stack.pop()
                sent = done.value
            except RelaxError:
                for steps in stack:
                    steps.close()
                raise
            else:
                stack.append(self.enter(wanted))
                sent = None
        return sent

    def enter(self, call: Activation) -> Steps:
        """Check the arguments, evaluate the body, check the result."""
        closure, function = call.callee, call.callee.function
        if len(call.args) != len(function.params):
            raise RuntimeCheckError(
                "arity",
                f"{closure.name} takes {len(function.params)} arguments, got {len(call.args)}",
                span=function.span,
            )
        scope = closure.scope.inner()
        checks = Checks(scope)
        for param, value in zip(function.params, call.args, strict=True):
            scope.vars[param] = value
            checks.match(
                param.annotation, value, f"parameter {param.name} of {closure.name}", param.span
            )
        checks.finish()
        result = yield from self.sequence(function.body, scope)
        check_fits(function.ret, result, scope, f"the result of {closure.name}", function.span)
        return result

    def sequence(self, body: SeqExpr, scope: Scope) -> Steps:
        """Bindings in order, then the value."""
        for binding in body.bindings:
            if isinstance(binding.value, Function):
                closure = Closure(self, binding.value, scope, binding.var.name)
                scope.vars[binding.var] = (
                    closure  # the function may call itself: its scope is this one
                )
                continue
            value = yield from self.value(binding.value, scope)
            if isinstance(binding, MatchCast):
                checks = Checks(scope)
                checks.match(
                    binding.annotation, value, f"match_cast to {binding.var.name}", binding.span
                )
                checks.finish()
            else:
                check_fits(binding.var.annotation, value, scope, binding.var.name, binding.span)
            scope.vars[binding.var] = value
        return (yield from self.value(body.body, scope))

    def value(self, expr: Expr, scope: Scope) -> Steps:
        """The value of what may stand at the right of a binding."""
        match expr:
            case If(cond=cond, then=then, otherwise=otherwise):
                chosen = bool((yield from self.value(cond, scope)))
                return (yield from self.sequence(then if chosen else otherwise, scope))
            case SeqExpr():
                return (yield from self.sequence(expr, scope))
            case Call():
                return (yield from self.call(expr, scope))
            case TupleGetItem(tuple=inner, index=index):
                return (yield from self.value(inner, scope))[index]
            case Tuple(fields=fields):
                items = []
                for item in fields:
                    items.append((yield from self.value(item, scope)))
                return tuple(items)
            case _:
                return self.leaf(expr, scope)

    def leaf(self, expr: Expr, scope: Scope) -> Value:
        match expr:
            case Var():
                return scope.vars[expr]
            case Constant(data=data):
                return data
            case ShapeExpr(dims=dims):
                return Shape(dim.evaluate(scope.syms) for dim in dims)
            case PrimValue(value=value):
                return value.evaluate(scope.syms) if isinstance(value, Dim) else value
            case StringImm(value=value):
                return value
            case DataTypeImm(dtype=dtype):
                return dtype
            case Function():
                return Closure(self, expr, scope, "function")
            case GlobalVar(name=name):
                function = self.mod.functions.get(name)
                if isinstance(function, Function):
                    return Closure(self, function, Scope(), name)
                return function
            case ExternFunc(name=name):
                return self.registered(name, library.find_function)
            case _:
                raise PassError(
                    "interpret", f"a {type(expr).__name__} cannot be interpreted", span=expr.span
                )

    def call(self, call: Call, scope: Scope) -> Steps:
        args = []
        for arg in call.args:
            args.append((yield from self.value(arg, scope)))
        try:
            match call.op:
                case Op() as op:
                    return self.operator(op, call, args, scope)
                case CallTIR() | CallDPSLibrary():
                    return self.cross_level(call, args, scope)
                case CallPurePacked() | ExternFunc():
                    name = call.op if isinstance(call.op, ExternFunc) else call.args[0]
                    values = args if isinstance(call.op, ExternFunc) else args[1:]
                    assert isinstance(name, ExternFunc)
                    return self.registered(name.name, library.find_function)(*values)
                case Intrinsic() as op:
                    return self.intrinsic(op, call, args)
                case _:
                    callee = yield from self.value(call.op, scope)  # type: ignore[arg-type]
        except RelaxError as error:
            raise error.located(call.span) from None
        if isinstance(callee, Partial):
            args, callee = [*args, *callee.captured], callee.function
        if isinstance(callee, Closure) and callee.machine is self:
            return (yield Activation(callee, tuple(args)))
        if callable(callee):
            return _plain(callee(*args))
        raise RuntimeCheckError(
            "not-callable", f"{describe(callee)} is no function", span=call.span
        )

    def operator(self, op: Op, call: Call, args: list[Value], scope: Scope) -> Value:
        """An operator by its reference, after what deduction could not decide has been checked."""
        types = tuple(_concrete(arg, scope, self.mod) for arg in call.args)
        deduced = self.deduced.get((op, types))
        if deduced is None:
            deduced = self.deduced[op, types] = self.deduce(op, call, types, scope)
        given = [None if _left_out(op, i, a) else a for i, a in enumerate(args)]
        result = op.reference(*given)
        if isinstance(deduced, TensorType):
            return np.ascontiguousarray(result).reshape(np.shape(result))
        return Shape(result) if isinstance(deduced, ShapeType) else result

    def deduce(self, op: Op, call: Call, types: Sequence[Annotation], scope: Scope) -> Annotation:
        """The result's annotation with everything known; what was undecided while compiling is
        checked here."""
        known = dict(zip(map(id, call.args), types, strict=True))
        deduction = Deduction(op, call, lambda e: known[id(e)])
        try:
            deduced = deduction.run()
        except DeduceError as error:
            raise RuntimeCheckError(
                "check", error.message, span=call.span, notes=error.notes
            ) from None
        check_requirements(deduction.requirements, scope)
        return deduced

    def cross_level(self, call: Call, args: list[Value], scope: Scope) -> Value:
        """Allocate the outputs, call in destination-passing style, give the outputs (figure 5)."""
        outputs = []
        for out in call.ty_args:
            assert isinstance(out, TensorType)
            assert out.dims is not None
            outputs.append(_unset([d.evaluate(scope.syms) for d in out.dims], out.dtype))
        inputs = args[1] if isinstance(args[1], tuple) else (args[1],)
        extra = args[2] if len(args) > 2 else ()
        self.destination_passing(call.args[0], [*inputs, *outputs, *extra])
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def destination_passing(self, callee: Expr, values: Sequence[Value]) -> None:
        """Run a tensor program or library function on inputs, outputs and scalars."""
        if isinstance(callee, ExternFunc):
            self.registered(callee.name, library.find_library)(*values)
            return
        program = self.mod.functions.get(callee.name) if isinstance(callee, GlobalVar) else None
        if isinstance(program, ExternFunc):
            self.registered(program.name, library.find_library)(*values)
            return
        if not isinstance(program, PrimFunc):
            raise PassError("interpret", f"{callee} is no tensor program")
        run_program(program, values)

    def intrinsic(self, op: Intrinsic, call: Call, args: list[Value]) -> Value:
        """Memory and VM instructions that lowering makes."""
        match op:
            case AllocStorage():
                return None
            case AllocTensor(dtype=dtype):
                return _unset(args[0], DType(dtype))
            case View(dtype=dtype):
                return args[0].view(DType(dtype).numpy).reshape(args[1])
            case Kill():
                return ()
            case CallDPS():
                self.destination_passing(call.args[0], args[1:])
                return ()
            case MakeClosure():
                return Partial(args[0], tuple(args[1:]))
            case Match() | Store():
                return ()  # symbols have their values here from parameters and match_casts; there is no heap
            case MakeShape():
                return args[0]
            case CheckEqual(what=what, of=of, detail=detail):
                if args[0] != args[1]:
                    message = f"{what} {of}: {detail} must be {args[1]}, got {args[0]}"
                    raise RuntimeCheckError("check", message, span=call.span)
                return ()
            case CheckDim(message=message):
                if not args[0]:
                    raise RuntimeCheckError("check", message, span=call.span)
                return ()
            case _:
                raise PassError(
                    "interpret",
                    f"{op.name} cannot be interpreted",
                    span=call.span,
                )

    def registered(
        self, name: str, find: Callable[[str], Callable[..., Any]]
    ) -> Callable[..., Any]:
        """A library or packed function, on numpy arrays."""
        if name in self.libraries:
            return self.libraries[name]
        func = find(name)
        return lambda *values: _plain(func(*map(_to_runtime, values)))


def run_program(program: TensorProgram, values: Sequence[Value]) -> None:
    """Run a tensor program on arrays (inputs, then outputs) and scalars, in the order of its
    parameters of each kind."""
    assert isinstance(program, PrimFunc)
    arrays = iter(v for v in values if isinstance(v, np.ndarray))
    scalars = iter(v for v in values if not isinstance(v, np.ndarray))
    ordered = [
        next(arrays) if isinstance(p, BufferParam) else next(scalars) for p in program.params
    ]
    to_python(program.func)(*ordered)


def _unset(shape: Sequence[int], dtype: DType | None) -> np.ndarray:
    """Memory that nobody has written: NaN, or a number that stands out."""
    kind = dtype or DType("float32")
    return np.full(tuple(shape), np.nan if kind.is_float else 0 if kind.is_bool else 77, kind.numpy)


def _to_runtime(value: Value) -> Any:
    """A value as registered functions take it; arrays share their memory."""
    if isinstance(value, np.ndarray):
        return from_numpy(value)
    if isinstance(value, tuple) and not isinstance(value, Shape):
        return tuple(map(_to_runtime, value))
    return value


def _plain(value: Any) -> Value:
    """What a registered function gave, as a value of the interpreter."""
    if isinstance(value, Tensor):
        return value.numpy()
    if isinstance(value, tuple) and not isinstance(value, Shape):
        return tuple(map(_plain, value))
    return () if value is None else value


def _left_out(op: Op, place: int, value: Value) -> bool:
    """Is this the empty tuple that stands for an optional argument?"""
    spec = op.args[place]
    return (
        spec.optional
        and spec.kind is not TupleType
        and value == ()
        and not isinstance(value, Shape)
    )


def _concrete(expr: Expr, scope: Scope, mod: IRModule) -> Annotation:
    """The annotation of an argument from its value: what deduction says of it, with everything
    known."""
    return (
        type_of_value(scope.vars[expr])
        if isinstance(expr, Var)
        else _bound(deduce(expr, mod), expr, scope)
    )


def _bound(annotation: Annotation, expr: Expr, scope: Scope) -> Annotation:
    if isinstance(expr, Tuple):
        return TupleType(
            _bound(deduce(f), f, scope) if not isinstance(f, Var) else type_of_value(scope.vars[f])
            for f in expr.fields
        )
    if isinstance(annotation, ShapeType) and annotation.dims is not None:
        return ShapeType(d.evaluate(scope.syms) for d in annotation.dims)
    if isinstance(annotation, PrimType) and annotation.value is not None:
        return PrimType(annotation.dtype, annotation.value.evaluate(scope.syms))
    return annotation
