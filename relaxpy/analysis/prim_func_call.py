"""Check calls of tensor programs: do the arguments fit the parameters always, never, or is that known only at run time?

Arguments that never fit are an error of the program (`check_prim_func_call`). Arguments that may fit must be checked
before the call, since a tensor program does not check them: `needed_types` returns the types that they must have.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from relaxpy.errors import DeduceError, Span, VerifyError
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, PrimType, TensorType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Call, Expr, GlobalVar, ShapeExpr, Tuple, Var
from relaxpy.ir.module import BufferParam, IRModule, ScalarParam, TensorProgram
from relaxpy.op.call import CallTIR, CallTIRInplace
from relaxpy.op.deduce import deduce
from relaxpy.op.memory import CallDPS
from relaxpy.shape.bounds import assuming_nothing
from relaxpy.shape.lattice import Verdict, accepts, rounds, substitute
from relaxpy.shape.prove import equal

CODE = "wf-prim-func-call"


@dataclass(frozen=True)
class _Argument:
    """A value that a call passes: an argument, or an output that it allocates (without `expr`)."""

    what: str
    annotation: Annotation
    arg: str
    """Source location in the call."""
    expr: Expr | None = None

    @property
    def name(self) -> str:
        """The prefix of symbols for its sizes."""
        return self.expr.name if isinstance(self.expr, Var) else self.what.replace(" ", "_")

    def located(self, error: VerifyError) -> VerifyError:
        """Return the error with the location of this argument or output."""
        if isinstance(self.expr, Var):
            error.show(f"{self.expr.name} is {self.annotation}", self.expr.span)
        return error.about(self.arg)


@dataclass(frozen=True)
class _CallSignature:
    """The arguments and outputs of a call, next to the parameters of its tensor program."""

    name: str
    params: tuple[BufferParam | ScalarParam, ...]
    """Parameters of the program."""
    tensors: Sequence[_Argument]
    """Values for the buffers, in order."""
    scalars: Sequence[PrimType]
    """Values for the scalars, in order."""
    span: Span | None

    @property
    def always_fits(self) -> bool:
        tensors = tuple(given.annotation for given in self.tensors)
        return _always_fits(self.params, tensors, tuple(scalar.value for scalar in self.scalars))

    @property
    def buffers(self) -> list[BufferParam]:
        return [p for p in self.params if isinstance(p, BufferParam)]

    @property
    def variables(self) -> list[ScalarParam]:
        return [p for p in self.params if isinstance(p, ScalarParam)]


def is_program_call(call: Call) -> bool:
    """Does the call run a tensor program?"""
    if isinstance(call.op, CallDPS):
        return bool(call.args) and isinstance(call.args[0], GlobalVar)
    return isinstance(call.op, (CallTIR, CallTIRInplace))


def check_prim_func_call(call: Call, mod: IRModule) -> list[VerifyError]:
    """The errors of a call of a tensor program (`is_program_call`): in its callee, in the number of arguments, outputs
    and scalars, and in each tensor's rank, dtype and dimensions (if they can never be equal)."""
    callee = call.args[0] if call.args else None
    lowered = isinstance(call.op, CallDPS)
    if not isinstance(callee, GlobalVar) or (
        not lowered and (len(call.args) < 2 or not isinstance(call.args[1], Tuple))
    ):
        message = "call_tir takes a tensor program of the module and a tuple of arguments"
        return [VerifyError(CODE, message, span=call.span)]
    program = mod.functions.get(callee.name)
    if not isinstance(program, TensorProgram):
        error = VerifyError(
            CODE,
            f"{callee.name} is not a tensor program",
            span=callee.span or call.span,
            help=f"call a graph function directly: cls.{callee.name}(…)",
        )
        place = getattr(program, "span", None)
        return [error.show(f"{callee.name} is defined here", place) if place else error]
    if program.opaque:
        return []
    try:
        signature = _call_signature(call, callee.name, program, mod)
    except DeduceError as error:
        return [VerifyError(CODE, error.message, span=error.span or call.span, notes=error.notes)]
    if read := _read_before_written(call, program):
        what = f"{callee.name} reads its output {read} before it writes to it"
        error = VerifyError(
            CODE,
            f"{what}: an output is new memory",
            span=call.span,
            help="begin with a value: T.init(), or a store before; R.call_tir_inplace updates a tensor that there is",
        )
        return [error.show(f"{callee.name} is defined here", program.span)]
    if signature.always_fits:
        return []
    takes = f"{callee.name} takes ({', '.join(map(_show, program.params))})"
    if program.span is not None:
        takes = f"{callee.name} is defined here"
    return [error.show(takes, program.span) for error in _compare(signature)]


def _read_before_written(call: Call, program: TensorProgram) -> str | None:
    """The name of an allocated output whose memory the program certainly reads first."""
    if isinstance(call.op, CallDPS):
        return None
    buffers = [i for i, param in enumerate(program.params) if isinstance(param, BufferParam)]
    allocated = sum(place < 0 for place in places_of(call))
    read = program.read_first
    return next(
        (program.params[i].name for i in buffers[len(buffers) - allocated :] if i in read), None
    )


@lru_cache(maxsize=4096)
def _always_fits(
    params: tuple[BufferParam | ScalarParam, ...],
    tensors: tuple[Annotation, ...],
    scalars: tuple[Dim | None, ...],
) -> bool:
    """Do these values fit such a program at every call? Cached, since the layers of a model and several passes repeat
    the question.
    """
    call = _CallSignature("", params, [_Argument("", each, "") for each in tensors],
                     [PrimType("int64", value) for value in scalars], None)  # fmt: skip
    with assuming_nothing():
        return not _compare(call) and _is_proved(call)


def _is_proved(call: _CallSignature) -> bool:
    """Are all ranks, dtypes and dimensions proved to be those of the program's parameters?"""
    bound = _bound(call)
    in_shapes = {var for p in call.buffers for dim in p.shape for var in dim.vars}
    open_scalars = any(
        scalar.value is None and param.var in in_shapes
        for param, scalar in zip(call.variables, call.scalars, strict=True)
    )
    return not open_scalars and all(
        accepts(TensorType(p.shape, p.dtype), given.annotation, bound, equal) is Verdict.YES
        for p, given in zip(call.buffers, call.tensors, strict=True)
    )


@dataclass(frozen=True)
class NeededTypes:
    """The types that the values of a call must have for its program."""

    args: tuple[Annotation | None, ...]
    """One for each tensor or scalar argument of the call, in order; None if it is proved to fit."""
    outputs: tuple[Annotation, ...]
    """The types of the outputs, in place of those that the call declares."""


def needed_types(call: Call, mod: IRModule) -> NeededTypes | None:
    """The types that the values of a call of a tensor program must have; None if all are proved to fit. Unknown ranks,
    dtypes and sizes are resolved first, with new symbols for the sizes: after casting to these types, ask again for the
    new call. The call must have no errors (`check_prim_func_call`)."""
    callee = expect(GlobalVar, call.args[0])
    program = expect(TensorProgram, mod.functions[callee.name])
    signature = _call_signature(call, callee.name, program, mod)
    if signature.always_fits:
        return None
    bound = _bound(signature)
    patterns = [TensorType(p.shape, p.dtype) for p in signature.buffers]
    in_shapes = {var for p in signature.buffers for dim in p.shape for var in dim.vars}
    scalars = [
        PrimType(scalar.dtype, SymVar(param.name))
        if scalar.value is None and param.var in in_shapes
        else None
        for param, scalar in zip(signature.variables, signature.scalars, strict=True)
    ]
    named = [_named(p, g) for p, g in zip(patterns, signature.tensors, strict=True)]
    if any(scalars) or any(named):
        return _needed(call, scalars, named, mod)
    if _is_proved(signature):
        return None
    wanted = [substitute(pattern, bound) for pattern in patterns]
    return _needed(call, scalars, wanted, mod)


def in_order(program: TensorProgram, args: Sequence[Expr], mod: IRModule) -> tuple[Expr, ...]:
    """Tensors and scalars in the order of the program's parameters. Those of one kind keep their order."""
    scalars = [isinstance(deduce(arg, mod), PrimType) for arg in args]
    values = iter([arg for arg, scalar in zip(args, scalars, strict=True) if scalar])
    tensors = iter([arg for arg, scalar in zip(args, scalars, strict=True) if not scalar])
    return tuple(next(tensors if isinstance(p, BufferParam) else values) for p in program.params)


def _needed(
    call: Call,
    scalars: Sequence[Annotation | None],
    tensors: Sequence[Annotation | None],
    mod: IRModule,
) -> NeededTypes:
    """The types required for the call's arguments and outputs, from the types required for its program's scalars and
    buffers.
    """
    others, values = iter(scalars), iter(tensors)
    args: list[Annotation | None] = []
    for arg in _arguments(call):
        known = deduce(arg, mod)
        wanted = next(others) if isinstance(known, PrimType) else next(values)
        fits = wanted is None or accepts(wanted, known, None, equal) is Verdict.YES
        args.append(None if fits else wanted)
    outputs: list[Annotation] = []
    for out, place in zip(call.ty_args, places_of(call), strict=True):
        wanted = next(values) if place < 0 else args[place]
        fits = wanted is None or accepts(wanted, out, None, equal) is Verdict.YES
        outputs.append(out if fits or wanted is None else wanted)
    return NeededTypes(tuple(args), tuple(outputs))


def _named(pattern: TensorType, given: _Argument) -> TensorType | None:
    """The type of a tensor with symbols for its unknown sizes; None if everything is known."""
    actual = given.annotation
    if isinstance(actual, TensorType) and actual.dims is not None and actual.dtype is not None:
        return None
    dims = actual.dims if isinstance(actual, TensorType) else None
    if dims is None:
        dims = tuple(SymVar(f"{given.name}_{i}").dim for i in range(pattern.ndim))
    return TensorType(dims, pattern.dtype)


def _arguments(call: Call) -> Sequence[Expr]:
    """The tensors and scalars that a call passes, without the outputs that it allocates."""
    if isinstance(call.op, CallDPS):
        return call.args[1:]
    values = call.args[1]
    return values.fields if isinstance(values, Tuple) else ()


def places_of(call: Call) -> Sequence[int]:
    """For each output, the index of the argument whose memory it takes; -1 if it is allocated."""
    if isinstance(call.op, CallTIRInplace):
        return call.op.inplace_indices
    return (-1,) * len(call.ty_args)


def _call_signature(call: Call, name: str, program: TensorProgram, mod: IRModule) -> _CallSignature:
    """Raises DeduceError where an argument has no annotation."""
    inputs = [(arg, deduce(arg, mod)) for arg in _arguments(call)]
    lowered = isinstance(call.op, CallDPS)
    given = [
        _Argument(f"argument {i}", annotation, "args" if lowered else f"args.{i - 1}", arg)
        for i, (arg, annotation) in enumerate(inputs, 1)
        if not isinstance(annotation, PrimType)
    ]
    places = places_of(call)
    outputs = [out for out, i in zip(call.ty_args, places, strict=False) if i == -1]
    given += [
        _Argument(f"output {i}", annotation, f"out_ty.{call.ty_args.index(annotation)}")
        if len(call.ty_args) > 1
        else _Argument("the output", annotation, "out_ty")
        for i, annotation in enumerate(outputs, 1)
    ]
    scalars = [a for _, a in inputs if isinstance(a, PrimType)]
    if (
        len(call.args) > 2
        and isinstance(call.args[2], ShapeExpr)
        and not isinstance(call.op, CallDPS)
    ):
        scalars += [PrimType("int64", dim) for dim in call.args[2].dims]
    return _CallSignature(name, program.params, given, scalars, call.span)


def _compare(call: _CallSignature) -> list[VerifyError]:
    name, given, scalars = call.name, call.tensors, call.scalars
    buffers, variables = call.buffers, call.variables
    if len(buffers) != len(given):
        outputs = sum(item.expr is None for item in given)
        message = (
            f"{name} takes {_count(len(buffers), 'tensor')}, outputs included, got {len(given)}"
        )
        note = f"{_count(len(given) - outputs, 'argument')} and {_count(outputs, 'output')}"
        return [VerifyError(CODE, message, span=call.span, notes=[f"the call has {note}"])]
    if len(variables) != len(scalars):
        message = f"{name} takes {_count(len(variables), 'scalar')}, got {len(scalars)} in tir_vars"
        names = ", ".join(variable.name for variable in variables)
        help = f"write tir_vars=R.shape([…]) with values for {names}" if names else "remove it"
        return [VerifyError(CODE, message, span=call.span, help=help)]
    for param, scalar in zip(variables, scalars, strict=True):
        if _kind(param.dtype) != _kind(scalar.dtype):
            written = "n" if scalar.value is None else str(scalar.value)
            return [
                VerifyError(
                    CODE,
                    f"scalar {param.name} of {name} must be {param.dtype}, got {scalar}",
                    span=call.span,
                    help=f'write R.prim_value({written}, "{param.dtype}")'
                    if param.dtype.is_float
                    else None,
                )
            ]
    alone = {dim.symbol for p in buffers for dim in p.shape} | {p.var for p in variables}
    for var in itertools.chain.from_iterable(dim.vars for p in buffers for dim in p.shape):
        if var not in alone:
            return [
                VerifyError(
                    CODE,
                    f"the value of {var} in {name} cannot be determined from the arguments",
                    span=call.span,
                    help=f"make {var} itself a dimension of a buffer, or a scalar parameter "
                    f"({var}: T.int64) with a value in tir_vars=R.shape([…])",
                )
            ]
    bound = _bound(call)
    patterns = [TensorType(p.shape, p.dtype) for p in buffers]
    return [
        item.located(
            VerifyError(
                CODE,
                f"{item.what} of {name} must be {_show(param)}, got {item.annotation}",
                span=call.span,
            )
        )
        for pattern, param, item in zip(patterns, buffers, given, strict=True)
        if accepts(pattern, item.annotation, bound, equal) is Verdict.NO
    ]


def _bound(call: _CallSignature) -> dict[SymVar, Dim]:
    """The program's symbols in terms of the caller's, as far as these follow from known dimensions."""
    bound: dict[SymVar, Dim] = {
        param.var: scalar.value
        for param, scalar in zip(call.variables, call.scalars, strict=True)
        if scalar.value is not None
    }
    patterns = [TensorType(p.shape, p.dtype) for p in call.buffers]
    for _ in rounds(bound):
        for pattern, item in zip(patterns, call.tensors, strict=True):
            accepts(pattern, item.annotation, bound, equal)
    return bound


def _kind(dtype: DType) -> str:
    """The Python type of a scalar."""
    return "float" if dtype.is_float else "bool" if dtype.is_bool else "int"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _show(param: BufferParam | ScalarParam) -> str:
    if isinstance(param, ScalarParam):
        return f"{param.name}: {param.dtype}"
    dims = ", ".join(map(str, param.shape)) + ("," if len(param.shape) == 1 else "")
    return f'{param.name}: T.Buffer(({dims}), "{param.dtype}")'
