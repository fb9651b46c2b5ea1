"""The definition of an operator: one class, in one place, from which everything else is derived.

An operator class is a frozen dataclass. Its fields are the operator's attributes, so `Take(axis=1)` is a value. Its
methods:

* `deduce(d, x, …)`: the annotation of the result from those of the arguments. The parameters after `d`
  are the operator's arguments. Their types say what is accepted: `KnownTensor`, `KnownShape` (or a tuple of
  dimensions), `PrimType` (a scalar), `TupleType` (or a Python tuple of values), `Annotation` (anything).
  `x: KnownTensor | None = None` is an optional argument. All dimensions and dtypes are known.
* `legalize(out, x, …)`: the tensor program, written with `relaxpy.op.te`. It gets the deduced annotation and, for
  each argument, a te tensor, a tuple of them, a shape's dimensions, or a scalar's value. The class attribute is
  None for an operator that is an instruction or is lowered by a pass.
* `decompose(emit, x, …)`, in place of `legalize`: the operator as calls of others. It gets an expression for each
  argument (a list of them for a tuple, None for one that is left out); `emit` binds a call to a variable.
* `vjp(b, args, out, ct)`: the gradient, as calls of operators; or `no_vjp`, why there is none.
* `reference(x, …)`: the same on numpy arrays: obviously right, and the oracle of the tests.
* `samples()`: calls that must work, and calls that must be refused.

The script namespace, printer, parser, nn functions, generated tests and documentation are derived from the class.
Unknown shapes are handled once, for all operators: see `Op.deduce_call`.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, dataclass_transform

import numpy as np

from relaxpy.errors import DeduceError, RelaxError, Span, UsageError, defined_at
from relaxpy.ir.annotation import (
    Annotation,
    PrimType,
    ShapeType,
    TensorType,
    TupleType,
)
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import (
    Call,
    Constant,
    DataTypeImm,
    Expr,
    FloatOf,
    PrimValue,
    ShapeExpr,
    StringImm,
    Tuple,
    Var,
)
from relaxpy.ir.op import Operator
from relaxpy.op.deduction import Deduction
from relaxpy.op.familiar import keyword, otherwise
from relaxpy.op.parameters import argument, attributes

if TYPE_CHECKING:
    from relaxpy.op.pair import Pair
    from relaxpy.op.rule import Cotangent, Rule

OPS: dict[str, type[Op]] = {}
"""All operators by name; filled by `define_op`."""

Mixed = Literal["always", "follow", "never"]
"""Whether an operator takes part in mixed precision."""

OpClass = TypeVar("OpClass", bound="type[Op]")


@dataclass(frozen=True, slots=True)
class ArgSpec:
    """One argument of an operator."""

    name: str
    kind: type[Annotation]
    optional: bool


@dataclass(frozen=True)
class Sample:
    """A call for the generated tests: `op` applied to `inputs`.

    Inputs are numpy arrays (tensors), tuples of ints (shapes), tuples or lists of arrays
    (tuples), Python scalars. `dims` names the dimensions of the inputs, e.g. `"n 5, m"`: the
    tests make those that have a name symbolic. `code` (with `match`) marks a sample that must be
    refused with a `DeduceError` of this code and a message containing `match`.
    """

    op: Op
    inputs: tuple[Any, ...]
    dims: str = ""
    code: str = ""
    match: str = ""
    rtol: float = 1e-5
    atol: float = 1e-6
    nan_equal: bool = True


def sample(op: Op, *inputs: Any, dims: str = "", rtol: float = 1e-5, atol: float = 1e-6) -> Sample:
    """A call that must work."""
    return Sample(op, inputs, dims, rtol=rtol, atol=atol)


def wrong(op: Op, *inputs: Any, code: str, match: str = "") -> Sample:
    """A call that must be refused with this error code."""
    return Sample(op, inputs, code=code, match=match)


def rand(*shape: int, dtype: str = "float32", low: float = -2.0, high: float = 2.0) -> np.ndarray:
    """Reproducible test values in [low, high): uniform for floats, integers otherwise."""
    rng = np.random.default_rng([len(shape), *shape])
    kind = DType(dtype)
    if kind.is_bool:
        return rng.integers(0, 2, shape).astype(bool)
    if kind.is_int:
        return rng.integers(int(low), int(high), shape).astype(kind.numpy)
    return rng.uniform(low, high, shape).astype(kind.numpy)


@dataclass_transform(frozen_default=True)
def define_op(cls: OpClass) -> OpClass:
    """Class decorator: turn the class into an operator and register it under its `name`."""
    cls = dataclass(frozen=True, repr=True)(cls)
    for required in ("name", "deduce", "legalize"):
        own, default = (inspect.getattr_static(c, required, _ABSENT) for c in (cls, Op))
        if own is default:
            raise _wrong_class(cls, f"has no {required}", f"define {required}")
    if cls.name in OPS:
        raise _wrong_class(cls, f"is defined twice: {OPS[cls.name].__module__} has it")
    prefix, _, rest = cls.name.rpartition(".")
    if prefix and cls.__module__ == f"{__package__}.{prefix}":
        raise _wrong_class(
            cls, f"clashes with relaxpy.op.{prefix}, which has {rest}", "rename the file"
        )
    cls.args = _read_args(cls)
    OPS[cls.name] = cls
    return cls


_ABSENT = object()


def _wrong_class(cls: type[Op], problem: str, help: str | None = None) -> UsageError:
    """The error for a class that is no operator, at its `deduce`."""
    name = cls.__dict__.get("name", cls.__name__)
    place = defined_at(cls.__dict__.get("deduce"))
    return UsageError("operator-class", f"operator {name} {problem}", span=place, help=help)


_KINDS: dict[str, type[Annotation]] = {
    "TensorType": TensorType,
    "KnownTensor": TensorType,
    "ShapeType": ShapeType,
    "KnownShape": ShapeType,
    "PrimType": PrimType,
    "TupleType": TupleType,
    "Annotation": Annotation,
}


def _read_args(cls: type[Op]) -> tuple[ArgSpec, ...]:
    specs: list[ArgSpec] = []
    for parameter in list(inspect.signature(cls.deduce).parameters.values())[2:]:
        # text, or (without `from __future__ import annotations`) a type
        kind = parameter.annotation
        text = kind.__name__ if isinstance(kind, type) else str(kind).rsplit(".", 1)[-1]
        text = text.replace(" ", "")
        optional = parameter.default is not inspect.Parameter.empty
        kind = _KINDS.get(text.removesuffix("|None"))
        if kind is None:
            found = "no type" if parameter.annotation is inspect.Parameter.empty else f"type {text}"
            raise _wrong_class(
                cls,
                f"has the parameter {parameter.name} of deduce with {found}",
                f"write its kind: {parameter.name}: {', '.join(sorted(_KINDS))}",
            )
        specs.append(ArgSpec(parameter.name, kind, optional))
    return tuple(specs)


class Op(Operator):
    """Base class of all operators; the module docstring describes the methods."""

    args: ClassVar[tuple[ArgSpec, ...]] = ()
    legalize: ClassVar[Callable[..., Any] | None]
    decompose: ClassVar[Callable[..., Any] | None] = None

    def decomposes(self, *args: Any) -> bool:
        """Is this call, with arguments of these annotations, written as calls of others? An operator that says no of
        some calls has `legalize` as well."""
        return self.decompose is not None

    mixed: ClassVar[Mixed] = "never"
    """Where it computes in the narrow dtype of mixed precision: always, where its arguments are narrow already, or
    never (`relaxpy.transform.MixedPrecision`)."""
    packs: ClassVar[bool] = False
    """Whether it orders the elements of a weight for a kernel: with its padding the result may be larger."""
    storage: ClassVar[bool] = False
    """Whether it takes tensors whose elements share bytes. `legalize` gets them, and `out`, as of whole bytes."""
    updates: ClassVar[str] = ""
    """The name of the argument that the result is, but for a part of it. `update`, with the arguments of `legalize`,
    then is a tensor (of `te.serial`) whose program writes that part only, where memory of the argument may be taken."""
    packed: ClassVar[str] = ""
    """Name of the runtime function that computes it, for an operator without a tensor program."""
    scalar_args: ClassVar[bool] = False
    """Whether a scalar (`R.Prim`) is accepted in place of a 0-d tensor, as by elementwise operators. Python numbers and
    sizes (`n * 2`) become scalars of the other arguments' dtype."""
    scalar_dtype: ClassVar[str] = ""
    """The dtype of such numbers, if it is not that of the other arguments."""
    of_data: ClassVar[bool] = False
    """Whether the result has the dtype of the data argument, whatever is known of the others. Otherwise the dtype of
    the result is known only if those of all arguments are, as in TVM."""
    scalar_result: ClassVar[bool] = False
    """Whether the result is a scalar when all arguments are scalars."""
    no_vjp: ClassVar[str] = ""
    """Why it is not differentiable, for an operator without `vjp`."""

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        """The cotangents of the arguments, given that of the result, `ct`: tensors of their shapes and dtypes, a list
        for a tuple, None for zero and for what is no tensor of floats. `b` emits operators. `args` and `out` are
        expressions (a list of them for a tuple, None for an argument that is left out). What the rule reads of these is
        kept for the backward pass, and nothing else. If the result is a tuple, ct is a list, some of it None.

        Forward mode transposes the rule, so that it must be linear in `ct`. It follows torch at ties and edges."""
        raise NotImplementedError

    @classmethod
    def has_vjp(cls) -> bool:
        """Has the operator a rule of differentiation?"""
        return not cls.no_vjp and cls.vjp is not Op.vjp

    def pairs(self) -> Mapping[str, Pair]:
        """By name, the arguments that `relaxpy.transform.Annotate` quantises, and how; none: it computes floats."""
        return {}

    def may_update(self, out: Any) -> bool:
        """Whether `update`, of an operator that has it, computes a result of this annotation."""
        return bool(self.updates)

    def in_groups(self) -> tuple[Op, Op] | None:
        """For an operator on any number of tensors that can be computed in groups: the operator for each group, and the
        operator that joins their results."""
        return None

    def deduce(self, d: Deduction, /, *args: Any, **kwargs: Any) -> Annotation:
        raise NotImplementedError  # define_op's classes all have their own

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        """None, for an operator that is not tested."""
        return iter(())

    def reference(self, *args: Any) -> Any:
        raise UsageError(
            "operator-class",
            f"operator {self.name} has no reference, which the interpreter and check_op run",
            help="define reference: the same on numpy arrays",
        )

    @classmethod
    def attr_names(cls) -> tuple[str, ...]:
        return tuple(f.name for f in attr_fields(cls))

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        """The parameters of `make`; their types are names from `relaxpy.op.function`."""
        given = [
            argument(spec.name, spec.kind, spec.optional, cls.scalar_args) for spec in cls.args
        ]
        return [*given, *attributes(cls, after=given)]

    @classmethod
    def make(cls, *args: Any, **kwargs: Any) -> Call:
        """Make the call `R.<name>(…)`: arguments, then attributes, by position or keyword as in Python."""
        names = [spec.name for spec in cls.args] + list(cls.attr_names())
        given: dict[str, Any] = dict(zip(names, args, strict=False))
        if len(args) > len(names):
            raise DeduceError(
                "op-arguments",
                f"{cls.name} takes at most {len(names)} arguments, got {len(args)}",
                help=_with(cls._usage(), otherwise(cls.name)),
            )
        for key, value in kwargs.items():
            if key not in names or key in given:
                problem = f"got {key} twice" if key in given else f"has no argument {key!r}"
                raise DeduceError(
                    "op-arguments", f"{cls.name} {problem}", help=cls._usage_for(key, names)
                )
            given[key] = value
        missing = [s.name for s in cls.args if not s.optional and given.get(s.name) is None]
        missing += [
            f.name
            for f in attr_fields(cls)
            if f.name not in given and f.default is dataclasses.MISSING
        ]
        if missing:
            empty = [name for name in missing if name in given]
            raise DeduceError(
                "op-arguments",
                f"{cls.name}: {empty[0]} is None"
                if empty
                else f"{cls.name} needs {', '.join(missing)}",
                help=cls._usage(),
            )
        attrs = {n: freeze_attr(given[n], n, cls) for n in cls.attr_names() if n in given}
        return cls(**attrs)(*(given.get(spec.name) for spec in cls.args))

    @classmethod
    def _usage(cls) -> str:
        """The signature as text, for the help of an error."""
        shown = [f"{s.name}=None" if s.optional else s.name for s in cls.args]
        for f in attr_fields(cls):
            shown.append(f.name if f.default is dataclasses.MISSING else f"{f.name}={f.default!r}")
        return f"the signature is R.{cls.name}({', '.join(shown)})"

    @classmethod
    def _usage_for(cls, key: str, names: Sequence[str]) -> str:
        """The help for a keyword that the operator does not have, perhaps torch's."""
        ours = keyword(key, names)
        if ours:
            return f"write {ours}= for {key}=; {cls._usage()}"
        return _with(cls._usage(), otherwise(cls.name, f"{key}="))

    def __call__(self, *args: Any, span: Span | None = None) -> Call:
        """Make a call of this operator; arguments are converted to expressions."""
        dtype = self._number_dtype(args) if self.scalar_args else None
        exprs: list[Expr] = []
        values = list(args)
        while values and values[-1] is None:
            values.pop()
        for spec, value in zip(self.args, values, strict=False):
            if value is None:
                value = Tuple(())  # an optional argument left out before one that is given
            exprs.append(self._argument(spec, value, dtype))
        if self.scalar_result and any(isinstance(e, PrimValue) or _is_scalar(e) for e in exprs):
            exprs = self._scalars(args, exprs)
        return self.normal(Call(self, tuple(exprs), span=span))

    def _number_dtype(self, args: Sequence[Any]) -> DType | None:
        """The dtype of the numbers and sizes among the arguments; None: each has its own."""
        numbers = [a for a in args if isinstance(a, (bool, int, float, Dim, SymVar))]
        if not numbers:
            return None
        if self.scalar_dtype:
            return DType(self.scalar_dtype)
        found = next(filter(None, map(_dtype_of, args)), None)
        if found is None and any(isinstance(a, (Dim, SymVar)) for a in numbers):
            found = DType("float32" if any(isinstance(a, float) for a in numbers) else "int64")
        return found

    def _scalars(self, args: Sequence[Any], exprs: list[Expr]) -> list[Expr]:
        """The arguments with Python numbers as scalars, if no argument is a tensor."""
        numbers = [isinstance(a, (bool, int, float)) for a in args]
        if not all(
            n or isinstance(e, PrimValue) or _is_scalar(e)
            for n, e in zip(numbers, exprs, strict=False)
        ):
            return exprs
        return [
            PrimValue(e.data.item(), str(DType(e.data.dtype))) if isinstance(e, Constant) else e
            for e in exprs
        ]

    def _argument(self, spec: ArgSpec, value: Any, dtype: DType | None) -> Expr:
        if spec.kind is TensorType and self.scalar_args:
            if isinstance(value, (bool, int, float)):
                return self._number(spec, value, dtype)
            if isinstance(value, (Dim, SymVar)):
                return self._size(spec, Dim.of(value), dtype)
        if spec.kind is ShapeType and isinstance(value, Tuple) and not value.fields:
            return value if spec.optional else ShapeExpr(())  # how TVM writes no dimensions
        try:
            return as_expr(value, spec.kind)
        except TypeError:
            raise DeduceError(
                "op-arguments",
                f"{self.name}: {spec.name} cannot be a Python {type(value).__name__}",
                help=_argument_help(spec, value),
            ).about(spec.name) from None

    def _size(self, spec: ArgSpec, value: Dim, dtype: DType | None) -> PrimValue:
        """A size as a scalar of `dtype`; a comparison of sizes is a bool."""
        if value.is_truth:
            return PrimValue(value)
        if dtype is not None and dtype.is_bool:
            raise DeduceError(
                "op-dtype",
                f"{self.name}: {spec.name} cannot be the size {value}, since the other argument is of dtype bool",
                help=f"compare it: {value} > 0",
            ).about(spec.name)
        return PrimValue(value, dtype or "int64")

    def as_array(self, place: int, value: Any, dtype: str | None) -> Any:
        """The value of argument number `place` for `reference`: a scalar given for a tensor becomes an array."""
        is_number = isinstance(value, (bool, int, float))
        if not is_number or dtype is None or self.args[place].kind is not TensorType:
            return value
        return number_array(value, DType(dtype))

    def scalar_value(self, *args: Dim) -> Dim | None:
        """Evaluate the operator on int64 scalars, as a dimension (a comparison gives 0 or 1); None if the result is not
        a dimension."""
        return None

    def _number(self, spec: ArgSpec, value: float, dtype: DType | None) -> Constant:
        """A Python number as a constant of `dtype`; if `dtype` is unknown, of the number's own dtype."""
        if dtype is None:
            dtype = DType(
                "bool"
                if isinstance(value, bool)
                else "int64"
                if isinstance(value, int)
                else "float32"
            )
        exact = not dtype.is_int or (
            not isinstance(value, float) and dtype.limits[0] <= value <= dtype.limits[1]
        )
        if not exact or (dtype.is_bool and not isinstance(value, bool)):
            raise DeduceError(
                "op-dtype",
                f"{self.name}: {spec.name} cannot be {value!r}, since the other argument is of dtype {dtype}",
                help='cast that: R.astype(…, "float32")' if isinstance(value, float) else None,
            ).about(spec.name)
        try:
            with np.errstate(over="ignore"):
                constant = np.asarray(value, dtype.numpy)
        except OverflowError:
            constant = np.asarray(math.inf)
        if (isinstance(value, int) or math.isfinite(value)) and not np.isfinite(
            constant.astype(np.float64)
        ):
            raise DeduceError(
                "op-dtype",
                f"{self.name}: {spec.name} cannot be {value!r}: it is out of range of {dtype}",
            ).about(spec.name)
        return Constant(constant)

    def print_args(self, call: Call, arg: Callable[[Expr], str]) -> list[str]:
        shown = []
        for spec, value in zip(self.args, call.args, strict=False):
            if (
                spec.optional
                and isinstance(value, Tuple)
                and not value.fields
                and spec.kind is not TupleType
            ):
                continue
            keyword = f"{spec.name}=" if len(shown) < self.args.index(spec) else ""
            shown.append(keyword + arg(value))
        for f in attr_fields(type(self)):
            value = getattr(self, f.name)
            if f.default is dataclasses.MISSING or value != f.default:
                shown.append(f"{f.name}={print_attr(value)}")
        return shown

    # Deduction

    def deduce_call(self, call: Call, annotation_of: Callable[[Expr], Annotation]) -> Annotation:
        """Run `deduce` with unknown dtypes, shapes and ranks handled here for all operators. An unknown dtype is tried
        with several dtypes and stays unknown unless all results agree. An unknown shape of known rank becomes fresh
        symbols, which are erased from the result. An unknown rank goes to `deduce_unranked`."""
        return Deduction(self, call, annotation_of).run()

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        """The annotation of the result if an argument's rank is unknown: a tensor of the first tensor's dtype."""
        return TensorType(None, next((a.dtype for a in args if isinstance(a, TensorType)), None))


def number_array(value: Any, dtype: DType) -> np.ndarray:
    """A scalar of `dtype` as a 0-d array; integers modulo 2**bits."""
    with np.errstate(over="ignore"):
        if dtype.is_int and not dtype.is_bool:
            return np.asarray(int(value) % (1 << 64), np.uint64).astype(dtype.numpy)
        return np.asarray(value).astype(dtype.numpy)


def _with(help: str, more: str | None) -> str:
    return f"{help}; {more}" if more else help


def _is_scalar(expr: Expr) -> bool:
    return isinstance(expr, Var) and isinstance(expr.annotation, PrimType)


def _dtype_of(value: Any) -> DType | None:
    """The dtype of an argument that is a tensor or scalar expression; None if it is unknown without the module."""
    value = getattr(value, "__relax_expr__", value)
    if isinstance(value, np.ndarray):
        return DType(value.dtype)
    if not isinstance(value, Expr):
        return None
    from relaxpy.op.deduce import (
        deduce,  # imported here: deduction depends on operators, which depend on this file
    )

    annotation = deduce(value)
    return annotation.dtype if isinstance(annotation, (TensorType, PrimType)) else None


@cache
def attr_fields(cls: type[Op]) -> tuple[dataclasses.Field[Any], ...]:
    """The attributes of an operator."""
    return dataclasses.fields(cls)  # type: ignore[arg-type]


def _plain_attr(value: Any) -> Any:
    """An attribute's value as plain Python, items of lists included: numpy integers become `int`."""
    match value:
        case list() | tuple():
            items = tuple(map(_plain_attr, value))
            same = isinstance(value, tuple) and all(map(lambda a, b: a is b, items, value))
            return value if same else items
        case DataTypeImm():
            return value.dtype
        case StringImm() | PrimValue():
            return _plain_attr(value.value)
        case FloatOf():
            return float(value)
        case Dim() if value.value is not None:
            return value.value
        case np.generic():
            return value.item()
        case _:
            return value


def freeze_attr(value: Any, name: str, cls: type[Op]) -> Any:
    kind = next(str(f.type) for f in attr_fields(cls) if f.name == name)
    value = _plain_attr(value)
    if kind == "DType | None" and isinstance(value, str) and value == "void":
        return None  # TVM's spelling of a missing dtype
    if "DType" in kind and value is not None:
        try:
            return DType(value)
        except RelaxError as error:
            raise error.about(name) from None
    parts = map(str.strip, kind.split("|"))
    checks = [_ATTR_KINDS.get(part) or _ATTR_KINDS.get(part.split("[")[0]) for part in parts]
    if None not in checks and not any(check(value) for check in checks if check is not None):
        raise DeduceError(
            "op-arguments", f"{cls.name}: {name} must be of type {kind}, got {_shown(value)}"
        ).about(name)
    if kind == "float" and value is not None:
        return float(value)
    return value


def _argument_help(spec: ArgSpec, value: Any) -> str | None:
    """The advice for a Python value that is no argument of this kind."""
    if spec.kind is TensorType:
        return "wrap numbers and arrays in R.const(…)"
    if spec.kind is ShapeType and isinstance(value, (int, Dim, SymVar)):
        return f"a shape is a tuple, also for one dimension: ({value},)"
    listed = value if spec.kind is ShapeType and isinstance(value, (tuple, list)) else ()
    if any(isinstance(item, str) for item in listed):
        return "dimensions are quoted only in annotations: write n, not 'n'"
    return None


def _shown(value: Any) -> str:
    """A Python value as shown in a message; an object whose repr contains its address is shown by its class."""
    text = repr(value)
    return text if " at 0x" not in text else f"a {type(value).__name__}"


def _is_int(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


_ATTR_KINDS: dict[str, Callable[[Any], bool]] = {
    "int": _is_int,
    "float": lambda value: isinstance(value, float) or _is_int(value),
    "bool": lambda value: isinstance(value, bool),
    "str": lambda value: isinstance(value, str),
    "tuple": lambda value: isinstance(value, tuple) and all(map(_is_int, value)),
    "tuple[str, ...]": lambda value: (
        isinstance(value, tuple) and all(isinstance(each, str) for each in value)
    ),
    "None": lambda value: value is None,
}
"""Type of an attribute → test of a value. Attributes of other types check their values themselves."""


def print_attr(value: Any) -> str:
    """An attribute's value as script."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f'float("{value}")'
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        return "[" + ", ".join(map(print_attr, value)) + "]"
    return repr(value)


def as_expr(value: Any, kind: type[Annotation] = Annotation) -> Expr:
    """Convert `value` to an expression, as an argument of this kind. Raises `TypeError` if that is not possible."""
    if hasattr(value, "__relax_expr__"):
        value = value.__relax_expr__
    if isinstance(value, Expr):
        return value
    if isinstance(value, (tuple, list)):
        if kind is ShapeType or (
            kind is not TupleType
            and all(isinstance(v, (Dim, int, SymVar)) for v in value)
            and value
        ):
            return ShapeExpr([_as_dim(v) for v in value])
        return Tuple(tuple(as_expr(v) for v in value))
    if isinstance(value, np.ndarray):
        return Constant(value)
    if kind in (PrimType, Annotation) and isinstance(value, (bool, int, float, Dim, SymVar)):
        return PrimValue(value)
    if isinstance(value, DType):
        return DataTypeImm(value)
    if isinstance(value, str):
        return StringImm(value)
    raise TypeError(f"{_shown(value)} is not an expression")


def _as_dim(value: Any) -> Dim:
    if isinstance(value, PrimValue) and isinstance(value.value, Dim):
        return value.value
    if (
        isinstance(value, Var)
        and isinstance(value.annotation, PrimType)
        and value.annotation.value is not None
    ):
        return value.annotation.value  # a scalar that is known as a dimension
    if isinstance(value, bool) or not isinstance(value, (int, Dim, SymVar, np.integer)):
        raise TypeError(f"{_shown(value)} is not a dimension")
    return Dim.of(value if isinstance(value, (Dim, SymVar)) else int(value))
