"""A reference interpreter of whole modules on numpy. It is slow and simple, and is the reference for passes and
kernels.

    mod = relaxpy.parse(text)
    y = interpret(mod, "main", x, w)

Operators run by their `reference`; tensor programs as Python loops (`relaxpy.tir.to_python`); library and packed
functions as registered, or as given by `libraries`. Values are numpy arrays, tuples of values, `relaxpy.runtime.Shape`
for shapes, Python scalars, and callables. The program's annotations are checked: arguments, parameters, `match_cast`,
results and relations of dimensions raise the same errors as in the virtual machine. A value that does not fit the
deduced annotation of its binding is a compiler bug and an error too (about a "binding").

Modules may be lowered by any prefix of the pipeline. Storage is modelled as memory that tensors share according to the
plan, and that is filled with invalid values when a tensor begins.

Calls do not use Python's stack, so the depth of recursion is limited only by memory. Tail calls take the place of their
callers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np

from relaxpy.analysis.in_place import updatable, updated_parameters
from relaxpy.analysis.tail_calls import tail_calls
from relaxpy.build.data_types import data_table, pattern_of
from relaxpy.errors import PassError, RelaxError, RuntimeCheckError, UsageError
from relaxpy.half_bytes import as_bytes
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import (
    TensorType,
    TupleType,
)
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import (
    Binding,
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
from relaxpy.ir.module import CHECK_INDICES, BufferParam, IRModule, TensorProgram
from relaxpy.ir.recursion import deep_recursion
from relaxpy.ir.visitor import free_sym_vars
from relaxpy.op.base import Op
from relaxpy.op.call import (
    CallInplacePacked,
    CallPurePacked,
    CallTIRInplace,
    CrossLevelCall,
    InvokeClosure,
)
from relaxpy.op.memory import (
    AllocStorage,
    AllocTensor,
    BeginGraph,
    CallDPS,
    CheckDim,
    CheckEqual,
    CopyTo,
    EndGraph,
    Intrinsic,
    Kill,
    MakeClosure,
    MakeShape,
    Match,
    ReadScalar,
    Store,
    View,
)
from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime import library
from relaxpy.runtime.check_data import DataCheck, holds_data
from relaxpy.runtime.data import FUNCTIONS as DATA
from relaxpy.runtime.data import Data, replaced
from relaxpy.runtime.library_call import write_all
from relaxpy.runtime.patterns import describe, enter, to_value
from relaxpy.runtime.signature import takes, wrong_count
from relaxpy.runtime.tensor import Shape, Tensor, from_numpy
from relaxpy.runtime.updates import require_own
from relaxpy.testing.memory import allocate, memory_for, unset
from relaxpy.testing.references import Perturbation, References
from relaxpy.testing.values import (
    Checks,
    Scope,
    Subject,
    Value,
    as_number,
    check_fits,
    is_integers,
    shown,
)
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.to_python import to_python
from relaxpy.transform.check_calls import checked
from relaxpy.transform.outline import PRIMITIVE

Observer: TypeAlias = Callable[[str, TensorProgram, Sequence[Value]], Callable[[], None] | None]
Trace: TypeAlias = Callable[[str, Binding, Mapping[Var, Value]], None]
Steps: TypeAlias = Generator["Activation", Value, Value]
"""A running evaluation. It yields the calls that it needs, and receives their results."""


@dataclass(frozen=True, eq=False)
class Closure:
    """A function with the scope of its definition. Callable from Python."""

    machine: Interpreter
    function: Function
    scope: Scope
    name: str

    @property
    def arity(self) -> int:
        """The number of parameters."""
        return len(self.function.params)

    def __call__(self, *args: Value) -> Value:
        return self.machine.run(Activation(self, args))


@dataclass(frozen=True, eq=False)
class Partial:
    """A function value with its last arguments bound (`vm.make_closure`)."""

    function: Closure
    captured: tuple[Value, ...]

    @property
    def arity(self) -> int:
        """The number of remaining parameters."""
        return self.function.arity - len(self.captured)

    def __call__(self, *args: Value) -> Value:
        return self.function(*args, *self.captured)


@dataclass(frozen=True, eq=False)
class Activation:
    """A requested call."""

    callee: Closure
    args: tuple[Value, ...]
    promises: tuple[Promise, ...] | None = None
    """For a tail call: what its caller promises of the result. The caller ends."""


@dataclass(frozen=True)
class Promise:
    """What a caller that has ended promised of its result. Steps of a loop promise the same again and again."""

    subject: Subject
    syms: tuple[tuple[SymVar, int], ...]
    """The symbols of the annotation that have values."""

    def check(self, value: Value) -> None:
        """Raises the caller's error unless the value fits."""
        check_fits(self.subject, value, Scope({}, dict(self.syms), self.subject.function))


def interpret(
    mod: IRModule | Function,
    name: str = "main",
    *args: Any,
    libraries: Mapping[str, Callable[..., Any]] | None = None,
    observe: Observer | None = None,
    perturb: Perturbation | None = None,
    trace: Trace | None = None,
    failures: list[RelaxError] | None = None,
) -> Value:
    """Runs function `name` of a module on numpy and returns its value: an array, a tuple of values, a Shape, or a
    scalar.

    Arguments are those of the virtual machine: arrays, lists of numbers, tuples of arguments, tuples of ints for
    shapes, scalars, and Python functions. `libraries` maps names to functions on numpy arrays, in the conventions of
    `call_dps_library` (inputs, then outputs to write) and `call_packed` (inputs; the result is returned). Other
    functions are those registered with the runtime. `observe(name, program, values)` is called before each tensor
    program and returns a function that is called after it. `perturb(array)` replaces each float array that an operator
    or tensor program computes. `trace(function, binding, values)` is called after each binding, with the values of the
    function's variables. With `failures`, a binding that fails adds its error to that list, and those that do not need
    it are evaluated all the same; KeyError is raised if the result needs it.

    Raises: RuntimeCheckError for a value that does not fit; UsageError for an unknown function or a wrong number of
    arguments; PassError (`interpret`) for code that cannot be interpreted.
    """
    if isinstance(mod, Function):
        mod = IRModule({name: mod})
    mod = _checked(mod)
    function = mod.graph_function(name)
    values = _arguments(name, function, args, mod)
    machine = Interpreter(mod, dict(libraries or {}), observe, perturb, trace, failures)
    with np.errstate(all="ignore"):
        return machine.run(Activation(Closure(machine, function, Scope(), name), values))


@lru_cache(maxsize=2)
def _checked(mod: IRModule) -> IRModule:
    """The module with its checks. It is mostly called again, and often in turn with the one before a pass."""
    with deep_recursion():
        return checked(mod, with_zeros=True)


def _arguments(
    name: str, function: Function, args: Sequence[Any], mod: IRModule
) -> tuple[Value, ...]:
    """Converts arguments to values of the interpreter. Raises the errors of the virtual machine."""
    wanted = len(function.params)
    if len(args) != wanted:
        problem = (
            takes(wanted, len(args))
            if len(args) > wanted
            else f"lacks {', '.join(param.name for param in function.params[len(args) :])}"
        )
        raise UsageError("arguments", f"{name} {problem}")
    values = []
    for param, arg in zip(function.params, args, strict=True):
        try:
            pattern = pattern_of(param.annotation)
            values.append(enter(arg, pattern))
            if holds_data(pattern):
                reason = DataCheck(data_table(mod)).misfit(values[-1], pattern)
                if reason:
                    raise RuntimeCheckError("check", reason)
        except RuntimeCheckError as error:
            error.message = f"{name}: parameter {param.name}: {error.message}"
            error.notes = (*error.notes, f"{param.name} is annotated {param.annotation}")
            raise
    positions = updated_parameters(function, mod)
    if positions:
        try:
            require_own(values, positions, lambda i: function.params[i].name)
        except RuntimeCheckError as error:
            error.message = f"{name}: {error.message}"
            raise
    return tuple(map(_plain, values))


def _apart(result: Value, args: Sequence[Value]) -> Value:
    """The result of an operator in memory of its own: a reference may return a view of an argument, which a call could
    update in place."""
    if type(result) is tuple:  # a `Shape` is a tuple too, and a value
        return tuple(_apart(each, args) for each in result)
    if not isinstance(result, np.ndarray):
        return result
    for arg in args:
        for each in arg if isinstance(arg, tuple) else (arg,):
            if isinstance(each, np.ndarray) and np.may_share_memory(result, each):
                return result.copy()
    return result


def _read_only(value: Value) -> Value:
    """A view of an array that may not be written to."""
    if isinstance(value, np.ndarray):
        value = value.view()
        value.flags.writeable = False
    return value


def _own_constants(values: list[Value], indices: Sequence[int]) -> None:
    """Replaces constants that a function updates by copies, since constants are values."""
    for i in indices:
        if i >= 0 and isinstance(values[i], np.ndarray) and not values[i].flags.writeable:
            values[i] = values[i].copy()


class Interpreter:
    """Runs the functions of one module."""

    def __init__(
        self,
        mod: IRModule,
        libraries: Mapping[str, Callable[..., Any]],
        observe: Observer | None = None,
        perturb: Perturbation | None = None,
        trace: Trace | None = None,
        failures: list[RelaxError] | None = None,
    ) -> None:
        self.failures = failures
        self.mod = mod
        self.libraries = libraries
        self.observe = observe
        self.references = References(mod, perturb)
        self.trace = trace
        self.entered: set[Function] = set()
        self.tails: dict[Call, tuple[Binding, ...]] = {}
        """The tail calls of the functions called so far, with the bindings that name their results."""
        self.updatable: set[tuple[Call, int]] = set()
        """Arguments of calls that may be updated in place, for the functions called so far."""

    def run(self, call: Activation) -> Value:
        """Runs a call and its nested calls on an explicit stack."""
        stack: list[tuple[Steps, dict[Promise, None]]] = [(self.enter(call), {})]
        sent: Value = None
        while stack:
            steps, promised = stack[-1]
            try:
                try:
                    wanted = steps.send(sent)
                except StopIteration as done:
                    sent = done.value
                    for promise in reversed(promised):
                        promise.check(sent)
                    stack.pop()
                    continue
            except RelaxError:
                for steps, _ in stack:
                    steps.close()
                raise
            if wanted.promises is None:
                promised = {}
            else:
                stack.pop()
                steps.close()
                promised.update(dict.fromkeys(wanted.promises))
            stack.append((self.enter(wanted), promised))
            sent = None
        return sent

    def enter(self, call: Activation) -> Steps:
        """Checks the arguments, evaluates the body, and checks the result."""
        closure, function, name = call.callee, call.callee.function, call.callee.name
        if function not in self.entered:
            self.entered.add(function)
            self.updatable |= updatable(function)
            if self.trace is None:  # it is called after each binding
                self.tails |= tail_calls(function)
        if len(call.args) != closure.arity:
            raise wrong_count(name, closure.arity, len(call.args))
        scope = closure.scope.inner()
        scope.function, scope.attrs, scope.definition = name, function.attrs, function
        checks = Checks(scope)
        for param, value in zip(function.params, call.args, strict=True):
            scope.vars[param] = value
            subject = Subject(name, "parameter", param.name, param.annotation, param.span)
            checks.match(subject, value)
        checks.finish()
        result = yield from self.sequence(function.body, scope)
        check_fits(_returned(function, name), result, scope)
        return result

    def sequence(self, body: SeqExpr, scope: Scope) -> Steps:
        """Evaluates the bindings in order, then the result."""
        for binding in body.bindings:
            var = binding.var
            if isinstance(binding.value, Function):
                # The function may call itself, so its scope includes its own variable.
                name = f"{scope.function}_{var.name}"
                scope.vars[var] = Closure(self, binding.value, scope, name)
                continue
            try:
                value = yield from self.value(binding.value, scope)
                self.check(binding, value, scope)
            except RelaxError as error:
                if self.failures is None:
                    raise error.located(binding.span) from None
                self.failures.append(error)
                continue
            except KeyError:
                if not self.failures:
                    raise
                continue  # it needs a variable whose binding failed
            scope.vars[var] = value
            if self.trace is not None:
                self.trace(scope.function, binding, scope.vars)
        return (yield from self.value(body.body, scope))

    def check(self, binding: Binding, value: Value, scope: Scope) -> None:
        """Compares a value with the annotation of the program or the compiler."""
        if isinstance(binding, MatchCast):
            var, checks = binding.var, Checks(scope)
            if (condition := binding.condition) is not None and not value:
                message = f"{scope.function}: {condition} does not hold"
                raise RuntimeCheckError("check", message, span=binding.span)
            checks.match(
                Subject(scope.function, "match_cast", var.name, binding.annotation, binding.span),
                value,
            )
            checks.finish()
            return
        if not _is_made_of_checked(binding):
            check_fits(_bound(binding, scope), value, scope)

    def value(self, expr: Expr, scope: Scope) -> Steps:
        """The value of an expression on the right-hand side of a binding."""
        match expr:
            case If(cond=cond, then=then, otherwise=otherwise):
                chosen = _truth((yield from self.value(cond, scope)))
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
                try:
                    return self.leaf(expr, scope)
                except RelaxError as error:
                    raise error.located(expr.span) from None

    def leaf(self, expr: Expr, scope: Scope) -> Value:
        match expr:
            case Var():
                return scope.vars[expr]
            case Constant(data=data):
                return data
            case ShapeExpr(dims=dims):
                return scope.sizes(dims)
            case PrimValue(value=value, dtype=dtype):
                return as_number(scope.dim(value), dtype) if isinstance(value, Dim) else value
            case StringImm(value=value):
                return value
            case DataTypeImm(dtype=dtype):
                return dtype
            case Function():
                return Closure(self, expr, scope, "function")
            case GlobalVar(name=name):
                function = self.mod.functions.get(name)
                if isinstance(function, Function):
                    # A fused function is a part of its caller, so its errors are reported in the caller.
                    part = PRIMITIVE in function.attrs and scope.function
                    return Closure(self, function, Scope(), part or name)
                return function
            case ExternFunc(name=name):
                return lambda *values: self.registered(name, library.find_function)(*values)
            case _:
                raise PassError(
                    "interpret", f"a {type(expr).__name__} cannot be interpreted", span=expr.span
                )

    def call(self, call: Call, scope: Scope) -> Steps:
        args = []
        for arg in call.args:
            # The name of an external function is looked up by the operator that calls it.
            if isinstance(arg, ExternFunc):
                args.append(arg)
            elif isinstance(call.op, Op) and call.op.legalize is not None and is_integers(arg):
                # No value is created: the operator's code computes in 64 bits, after the checks of sizes.
                args.append(scope.wrapped(arg))
            elif isinstance(arg, ShapeExpr) and isinstance(call.op, CrossLevelCall):
                # No shape value is created from it; these are scalars.
                try:
                    args.append(Shape(map(scope.dim, arg.dims)))
                except RelaxError as error:
                    raise error.located(call.span) from None
            elif (
                isinstance(call.op, (CheckDim, CheckEqual))
                and isinstance(arg, PrimValue)
                and isinstance(arg.value, Dim)
            ):
                args.append(scope.dim(arg.value))
            else:
                args.append((yield from self.value(arg, scope)))
        try:
            match call.op:
                case Op() as op:
                    return _apart(self.references.run(op, call, args, scope), args)
                case CrossLevelCall():
                    return self.cross_level(call, args, scope)
                case CallPurePacked() | ExternFunc():
                    name = call.op if isinstance(call.op, ExternFunc) else call.args[0]
                    values = args if isinstance(call.op, ExternFunc) else args[1:]
                    name = expect(ExternFunc, name)
                    if isinstance(call.op, CallInplacePacked):
                        _own_constants(values, call.op.inplace_indices)
                    function = self.registered(name.name, library.find_function)
                    with _failures("call-failed", f"the function {name.name}", scope):
                        return function(*values)
                case Intrinsic() as op:
                    return self.intrinsic(op, call, args, scope)
                case InvokeClosure():
                    callee, *args = args
                case _:
                    callee = yield from self.value(call.op, scope)  # type: ignore[arg-type]
        except RelaxError as error:
            raise error.located(call.span) from None
        if isinstance(callee, Partial):
            if len(args) != callee.arity:
                raise wrong_count(callee.function.name, callee.arity, len(args))
            args, callee = [*args, *callee.captured], callee.function
        if isinstance(callee, Closure) and callee.machine is self:
            return (yield Activation(callee, tuple(args), self.promises(call, scope)))
        if callable(callee):
            with _failures("callback-failed", "a function that was passed as an argument", scope):
                return _plain(to_value(callee(*map(_to_runtime, args))))
        raise RuntimeCheckError(
            "not-callable", f"expected a function, got {describe(shown(callee))}", span=call.span
        )

    def promises(self, call: Call, scope: Scope) -> tuple[Promise, ...] | None:
        """What the caller promises of the result of a tail call; None for any other call."""
        bindings = self.tails.get(call)
        if bindings is None:
            return None
        function = scope.definition
        assert function is not None
        subjects = [
            _returned(function, scope.function),
            *(_bound(binding, scope) for binding in reversed(bindings)),
        ]
        syms = scope.syms
        return tuple(
            Promise(
                subject,
                tuple((s, syms[s]) for s in free_sym_vars([subject.annotation]) if s in syms),
            )
            for subject in subjects
        )

    def cross_level(self, call: Call, args: list[Value], scope: Scope) -> Value:
        """Allocates the outputs, calls in destination-passing style, and returns the outputs (figure 5)."""
        inputs = list(args[1]) if isinstance(args[1], tuple) else [args[1]]
        indices = call.op.inplace_indices if isinstance(call.op, CallTIRInplace) else ()
        outputs, allocated = [], []
        for i, out in enumerate(call.ty_args):
            out = expect(TensorType, out)
            assert out.dims is not None
            if i < len(indices) and (index := indices[i]) >= 0:
                if (call, index) not in self.updatable or not inputs[index].flags.writeable:
                    # Constants are values, so an update changes a copy.
                    inputs[index] = inputs[index].copy()
                outputs.append(inputs[index])
            else:
                outputs.append(unset(scope.sizes(out.dims), out.dtype))
                allocated.append(outputs[-1])
        extra = args[2] if len(args) > 2 else ()
        self.destination_passing(call.args[0], [*inputs, *allocated, *extra], scope, allocated)
        for output in outputs:
            output[...] = self.references.computed(output)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def destination_passing(
        self, callee: Expr, values: Sequence[Value], scope: Scope, new: Sequence[np.ndarray] = ()
    ) -> None:
        """Runs a tensor program or library function on inputs, outputs and scalars. `new` are outputs that a library
        function must write: it must not write to others."""
        program = self.mod.functions.get(callee.name) if isinstance(callee, GlobalVar) else callee
        if isinstance(program, ExternFunc):
            function = self.registered(program.name, library.find_library)
            with _failures("library-failed", f"the library function {program.name}", scope):
                if new:
                    inputs = map(_read_only, values[: -len(new)])
                    places = [(each.ctypes.data, each.nbytes) for each in new[:1]]
                    write_all(program.name, partial(function, *inputs, *new), places)
                else:
                    function(*values)
        elif isinstance(program, PrimFunc) and isinstance(callee, GlobalVar):
            after = None if self.observe is None else self.observe(callee.name, program, values)
            with _failures("kernel-failed", f"the kernel {callee.name}", scope):
                try:
                    run_program(program, values, callee.name)
                except RuntimeCheckError as error:
                    if error.code == "tir-bounds":
                        error.message = f"{scope.function}: {error.message}"
                    raise
            if after is not None:
                after()
        else:
            raise PassError("interpret", f"{callee} is not a tensor program")

    def intrinsic(self, op: Intrinsic, call: Call, args: list[Value], scope: Scope) -> Value:
        """The memory and VM instructions of lowered programs."""
        match op:
            case AllocStorage():
                size = max(args[0], 0)  # of a tensor with a negative dimension, which is refused
                with memory_for(TensorType((size,), "uint8")):
                    return np.zeros(size, np.uint8)
            case AllocTensor(dtype=dtype, offset=offset):
                return allocate(args[0], DType(dtype), offset, *args[1:])
            case View(dtype=dtype, offset=offset):
                memory = as_bytes(args[0])[offset : offset + dtypes.nbytes(dtype, args[1])]
                return dtypes.from_bytes(memory, dtype, args[1])
            case CopyTo():
                return args[0]
            case ReadScalar():
                return args[0].item()
            case Kill():
                for arg in call.args:
                    if isinstance(arg, Var):
                        del scope.vars[arg]
                return ()
            case CallDPS():
                self.destination_passing(call.args[0], args[1:], scope)
                return ()
            case MakeClosure():
                return Partial(args[0], tuple(args[1:]))
            case BeginGraph() | EndGraph():
                return ()
            case Match() | Store():
                return ()  # symbols have their values here from parameters and match_casts; there is no heap
            case MakeShape():
                return args[0]
            case CheckEqual(what=what, of=of, detail=detail):
                if args[0] != args[1]:
                    message = (
                        f"{scope.function}: {what} {of}: {detail} must be {args[1]}, got {args[0]}"
                    )
                    raise RuntimeCheckError("check", message)
                return ()
            case CheckDim(message=message):
                if not args[0]:
                    raise RuntimeCheckError("check", f"{scope.function}: {message}")
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
        """A library or packed function on numpy arrays."""
        if name in self.libraries:
            return self.libraries[name]
        if name in DATA:  # fields are the interpreter's values
            return lambda *values: _plain(DATA[name](*values))
        func = find(name)
        return lambda *values: _plain(func(*map(_to_runtime, values)))


def run_program(program: TensorProgram, values: Sequence[Value], name: str = "main") -> None:
    """Runs a tensor program on arrays (inputs, then outputs) and scalars, each in the order of its parameters. Errors
    refer to it as `name`."""
    program = expect(PrimFunc, program)
    arrays = iter(v for v in values if isinstance(v, np.ndarray))
    scalars = iter(v for v in values if not isinstance(v, np.ndarray))
    ordered = [
        next(arrays) if isinstance(p, BufferParam) else next(scalars) for p in program.params
    ]
    to_python(program.func, program.attrs.get(CHECK_INDICES, name))(*ordered)


def _is_made_of_checked(binding: Binding) -> bool:
    """Is it a tuple of variables, or a field of one, each with the annotation with which it was compared?"""
    annotation = binding.var.annotation
    match binding.value:
        case Tuple(fields=fields) if isinstance(annotation, TupleType):
            pairs = zip(fields, annotation.fields, strict=False)
            return len(fields) == len(annotation.fields) and all(
                isinstance(field, Var) and field.annotation is known for field, known in pairs
            )
        case TupleGetItem(tuple=Var(annotation=TupleType(fields=fields)), index=index):
            return fields[index] is annotation
        case _:
            return False


def _returned(function: Function, name: str) -> Subject:
    """The result of a function."""
    last = function.body.body
    named = last.name if isinstance(last, Var) else "ret"
    return Subject(name, "return value", named, function.ret, last.span or function.span)


def _bound(binding: Binding, scope: Scope) -> Subject:
    """The value of a binding."""
    var = binding.var
    what = "result" if _promises_nothing(binding.value) else "binding"
    return Subject(scope.function, what, var.name, var.annotation, binding.span)


def _truth(value: Value) -> bool:
    """The condition of a branch."""
    if isinstance(value, (np.ndarray, np.generic)):
        return bool(value.item())
    if not isinstance(value, bool):
        message = f"a condition must be a bool, got {describe(shown(value))}"
        raise RuntimeCheckError("condition", message)
    return value


def _promises_nothing(value: Expr) -> bool:
    """Whether this is a call of a function that is known only at run time. Its result is checked."""
    return isinstance(value, Call) and isinstance(
        value.op, (Var, ExternFunc, CallPurePacked, InvokeClosure)
    )


@contextmanager
def _failures(code: str, what: str, scope: Scope) -> Iterator[None]:
    """Converts an exception in Python code that a program calls to the error of the virtual machine."""
    try:
        yield
    except RelaxError:
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__
        raise RuntimeCheckError(code, f"{scope.function}: {what} failed: {reason}") from error


def _to_runtime(value: Value) -> Any:
    """Converts a value to an argument of registered functions. Arrays share their memory."""
    if isinstance(value, np.ndarray):
        return from_numpy(value)
    if isinstance(value, Data):
        return replaced(value, _to_runtime)
    if isinstance(value, tuple) and not isinstance(value, Shape):
        return tuple(map(_to_runtime, value))
    return value


def _plain(value: Any) -> Value:
    """Converts the result of a registered function to a value of the interpreter."""
    if isinstance(value, Tensor):
        return value.numpy()
    if isinstance(value, tuple) and not isinstance(value, Shape | Data):
        return tuple(map(_plain, value))
    return () if value is None else value
