"""What an operator is: one class, in one place, from which everything else is derived.

An operator class is a frozen dataclass whose fields are its attributes (so `Take(axis=1)` is a
value). Its methods:

* `deduce(d, x, …)`: annotation of the result from those of the arguments. The parameters after `d`
  are the operator's arguments; their types say what is taken: `TensorType`, `ShapeType` (a tuple of
  dimensions will do), `PrimType` (a scalar), `TupleType` (a Python tuple of values will do),
  `Annotation` (anything). `x: TensorType | None = None` may be left out.
* `legalize(out, x, …)`: the tensor program, with `relaxpy.op.te`; gets the deduced annotation and, for
  each argument, a te tensor, a tuple of them, a shape's dimensions, or a scalar's value. None (the
  class attribute) for an operator that is an instruction or is lowered by a pass.
* `reference(x, …)`: the same on numpy arrays: obviously right, and the oracle of the tests.
* `samples()`: calls that must work, and calls that must be refused.

Script namespace, printer, parser, nn functions, generated tests and documentation are derived
from the class. Unknown shapes are handled here, once: see `Op.deduce_call`.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NoReturn, TypeVar, dataclass_transform

import numpy as np

from relaxpy.errors import DeduceError, RelaxError, Span
from relaxpy.ir.annotation import (
    Annotation,
    PrimType,
    ShapeType,
    TensorType,
    TupleType,
)
from relaxpy.ir.dim import Dim, DimLike, SymVar, dim_op
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import (
    Call,
    Constant,
    DataTypeImm,
    Expr,
    PrimValue,
    ShapeExpr,
    StringImm,
    Tuple,
    Var,
)
from relaxpy.ir.op import Operator
from relaxpy.shape.bounds import assumed
from relaxpy.shape.lattice import Verdict, equal_dims, erase, join
from relaxpy.shape.prove import equal, prove

OPS: dict[str, type[Op]] = {}
"""All operators by name; filled by `define_op`."""

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
    """A call that must be refused."""
    return Sample(op, inputs, code=code, match=match)


def rand(*shape: int, dtype: str = "float32", low: float = -2.0, high: float = 2.0) -> np.ndarray:
    """Reproducible test values: uniform in [low, high) for floats, integers in [low, high)
    otherwise."""
    rng = np.random.default_rng([len(shape), *shape])
    kind = DType(dtype)
    if kind.is_bool:
        return rng.integers(0, 2, shape).astype(bool)
    if kind.is_int:
        return rng.integers(int(low), int(high), shape).astype(kind.numpy)
    return rng.uniform(low, high, shape).astype(kind.numpy)


@dataclass_transform(frozen_default=True)
def define_op(cls: OpClass) -> OpClass:
    """Make an operator of a class and register it under its `name`."""
    cls = dataclass(frozen=True, repr=True)(cls)
    for required in ("name", "deduce", "legalize", "reference", "samples"):
        if getattr(cls, required, None) is None and not (
            required == "legalize" and "legalize" in dir(cls)
        ):
            raise TypeError(f"operator {cls.__name__} has no {required}")
    if cls.name in OPS:
        raise TypeError(f"operator {cls.name} is defined twice")
    cls.args = _read_args(cls)
    OPS[cls.name] = cls
    return cls


_KINDS: dict[str, type[Annotation]] = {
    "TensorType": TensorType,
    "ShapeType": ShapeType,
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
        specs.append(ArgSpec(parameter.name, _KINDS[text.removesuffix("|None")], optional))
    return tuple(specs)


class Op(Operator):
    """Base of all operators; see the module's text."""

    args: ClassVar[tuple[ArgSpec, ...]] = ()
    legalize: ClassVar[Callable[..., Any] | None]
    packed: ClassVar[str] = ""
    """Name of the runtime's function that does it, for an operator without a tensor program."""
    scalar_args: ClassVar[bool] = False
    """Python numbers stand for 0-d constants of the other arguments' dtype (element-wise
    operators)."""

    def deduce(self, d: Deduction, /, *args: Any, **kwargs: Any) -> Annotation:
        raise NotImplementedError  # define_op's classes all have their own

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        raise NotImplementedError

    def reference(self, *args: Any) -> Any:
        raise NotImplementedError

    @classmethod
    def attr_names(cls) -> tuple[str, ...]:
        return tuple(f.name for f in attr_fields(cls))

    @classmethod
    def make(cls, *args: Any, **kwargs: Any) -> Call:
        """The call `R.<name>(…)`: arguments, then attributes, by position or keyword as in
        Python."""
        names = [spec.name for spec in cls.args] + list(cls.attr_names())
        given: dict[str, Any] = dict(zip(names, args, strict=False))
        if len(args) > len(names):
            raise DeduceError(
                "op-arguments",
                f"{cls.name} takes at most {len(names)} arguments, got {len(args)}",
                help=cls._usage(),
            )
        for key, value in kwargs.items():
            if key not in names or key in given:
                problem = f"got {key} twice" if key in given else f"has no argument {key!r}"
                raise DeduceError("op-arguments", f"{cls.name} {problem}", help=cls._usage())
            given[key] = value
        missing = [s.name for s in cls.args if not s.optional and given.get(s.name) is None]
        missing += [
            f.name
            for f in attr_fields(cls)
            if f.name not in given and f.default is dataclasses.MISSING
        ]
        if missing:
            raise DeduceError(
                "op-arguments",
                f"{cls.name} needs {', '.join(missing)}",
                help=cls._usage(),
            )
        attrs = {n: freeze_attr(given[n], n, cls) for n in cls.attr_names() if n in given}
        return cls(**attrs)(*(given.get(spec.name) for spec in cls.args))

    @classmethod
    def _usage(cls) -> str:
        """How it is called, as help for an error."""
        shown = [f"{s.name}=None" if s.optional else s.name for s in cls.args]
        for f in attr_fields(cls):
            shown.append(f.name if f.default is dataclasses.MISSING else f"{f.name}={f.default!r}")
        return f"it is called as R.{cls.name}({', '.join(shown)})"

    def __call__(self, *args: Any, span: Span | None = None) -> Call:
        """The call of this operator, arguments made into expressions."""
        numbers = any(isinstance(a, (bool, int, float)) for a in args)
        dtype = (
            next(filter(None, map(_dtype_of, args)), None) if self.scalar_args and numbers else None
        )
        exprs: list[Expr] = []
        values = list(args)
        while values and values[-1] is None:
            values.pop()
        for spec, value in zip(self.args, values, strict=False):
            if value is None:
                value = Tuple(())  # an optional argument left out before one that is given
            exprs.append(self._argument(spec, value, dtype))
        return self.normal(Call(self, tuple(exprs), span=span))

    def _argument(self, spec: ArgSpec, value: Any, dtype: DType | None) -> Expr:
        if isinstance(value, (bool, int, float)) and spec.kind is TensorType and self.scalar_args:
            return self._number(spec, value, dtype)
        try:
            return as_expr(value, spec.kind)
        except TypeError:
            raise DeduceError(
                "op-arguments",
                f"{self.name}: {spec.name} cannot be a Python {type(value).__name__}",
                help=_argument_help(spec, value),
            ).about(spec.name) from None

    def _number(self, spec: ArgSpec, value: float, dtype: DType | None) -> Constant:
        """A Python number as a constant of `dtype`; where that is not known, of the number's
        own."""
        if dtype is None:
            dtype = DType(
                "bool"
                if isinstance(value, bool)
                else "int64"
                if isinstance(value, int)
                else "float32"
            )
        limits = np.iinfo(dtype.numpy) if dtype.is_int else None
        exact = limits is None or (
            not isinstance(value, float) and limits.min <= value <= limits.max
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
                f"{self.name}: {spec.name} cannot be {value!r}: {dtype} does not reach that far",
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
        """As `deduce`, with unknown dtypes and shapes handled here for all operators: an unknown
        dtype is tried with several and kept unknown unless all agree; an unknown shape of known
        rank becomes fresh symbols that are erased from the result; an unknown rank goes to
        `deduce_unranked`."""
        return Deduction(self, call, annotation_of).run()

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        """The result where an argument's rank is unknown: a tensor of the first tensor's dtype."""
        return TensorType(None, next((a.dtype for a in args if isinstance(a, TensorType)), None))


def _dtype_of(value: Any) -> DType | None:
    """The dtype of an argument that is a tensor expression, as far as it is known without a
    module."""
    value = getattr(value, "__relax_expr__", value)
    if isinstance(value, np.ndarray):
        return DType(value.dtype)
    if not isinstance(value, Expr):
        return None
    from relaxpy.op.deduce import (
        deduce,  # deduction is made of operators, which are made of this file
    )

    annotation = deduce(value)
    return annotation.dtype if isinstance(annotation, TensorType) else None


@cache
def attr_fields(cls: type[Op]) -> tuple[dataclasses.Field[Any], ...]:
    """The attributes of an operator."""
    return dataclasses.fields(cls)  # type: ignore[arg-type]


def freeze_attr(value: Any, name: str, cls: type[Op]) -> Any:
    kind = next(str(f.type) for f in attr_fields(cls) if f.name == name)
    if isinstance(value, DataTypeImm):
        value = value.dtype
    if isinstance(value, (StringImm, PrimValue)):
        value = value.value
    if isinstance(value, Dim) and value.value is not None:
        value = value.value
    if "DType" in kind and value is not None:
        try:
            return DType(value)
        except RelaxError as error:
            raise error.about(name) from None
    if isinstance(value, list):
        value = tuple(value)
    checks = [_ATTR_KINDS.get(part.strip().split("[")[0]) for part in kind.split("|")]
    if None not in checks and not any(check(value) for check in checks if check is not None):
        raise DeduceError(
            "op-arguments", f"{cls.name}: {name} must be of type {kind}, got {_shown(value)}"
        ).about(name)
    return float(value) if kind == "float" else value


def _argument_help(spec: ArgSpec, value: Any) -> str | None:
    """What to write instead of a Python value that is no argument of this kind."""
    if spec.kind is TensorType:
        return "wrap numbers and arrays in R.const(…)"
    if spec.kind is ShapeType and isinstance(value, (int, Dim, SymVar)):
        return f"a shape is a tuple, also of one dimension: ({value},)"
    listed = value if spec.kind is ShapeType and isinstance(value, (tuple, list)) else ()
    if any(isinstance(item, str) for item in listed):
        return "dimensions are quoted in annotations only: write n, not 'n'"
    return None


def _shown(value: Any) -> str:
    """A value of Python in a message; of an object that shows its address its class."""
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
    "None": lambda value: value is None,
}
"""Which values an attribute of a type may have; attributes of other types check for themselves."""


def print_attr(value: Any) -> str:
    """An attribute as script."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f'float("{value}")'
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        return "[" + ", ".join(map(print_attr, value)) + "]"
    return repr(value)


def as_expr(value: Any, kind: type[Annotation] = Annotation) -> Expr:
    """`value` as an expression, read as an argument of this kind. Raises `TypeError` if it cannot
    be."""
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


def show_argument(
    error: DeduceError, call: Call, expr: Expr, name: str, annotation: Annotation
) -> None:
    """Add to an error what an argument is: by the name of its variable, at that one's definition; where it is written
    inside the call, by `name`."""
    inside = expr.span is not None and expr.span.inside(call.span)
    named = isinstance(expr, Var) and not inside
    error.show(f"{expr.name if named else name} is {annotation}", expr.span)


@dataclass(frozen=True, slots=True)
class Requirement:
    """Something that holds only for some values of the symbols: to be checked at run time."""

    condition: Dim
    """0 or 1."""
    message: str


class Deduction:
    """One deduction: what `Op.deduce` uses to speak of its arguments, so that errors are located
    and say whose fault it is.

    `exact` is set where a pass needs the result's shape even if it depends on a case that is only
    known at run time (broadcasting n with m); then dimensions may come out as `select`.
    `requirements` are what could not be decided.
    """

    def __init__(
        self, op: Op, call: Call, annotation_of: Callable[[Expr], Annotation], exact: bool = False
    ) -> None:
        self.op = op
        self.call = call
        self.annotation_of = annotation_of
        self.exact = exact
        self.args: Sequence[Annotation | None] = ()
        """The arguments' annotations, once it has run."""
        self.requirements: list[Requirement] = []

    def run(self) -> Annotation:
        """The annotation of the result. It follows from the operator, the arguments' annotations and what is assumed of
        symbols, so it is remembered: the layers of a model ask the same, and every pass asks again."""
        args = self.args = self.arguments()
        key = (self.op, self.exact, tuple(args), tuple(assumed().items()))
        found = _deduced.get(key)
        if found is None:
            found = self._result(args)
            if not self.requirements:  # they name the arguments as the program does
                if len(_deduced) >= REMEMBERED:
                    _deduced.clear()
                _deduced[key] = found
        return found

    def _result(self, args: list[Annotation | None]) -> Annotation:
        dtypes = [a.dtype for a in _tensors(args)]
        return self._unknown_dtype(args) if None in dtypes else self._unknown_shape(args)

    def arguments(self) -> list[Annotation | None]:
        """The arguments' annotations, each checked to be of the kind that the operator takes."""
        call, specs = self.call, self.op.args
        found: list[Annotation | None] = []
        for spec, expr in zip(specs, call.args, strict=False):
            annotation = self.annotation_of(expr)
            if spec.optional and annotation == TupleType(()) and spec.kind is not TupleType:
                found.append(None)
                continue
            literal = isinstance(expr, (StringImm, DataTypeImm)) and spec.kind is not Annotation
            if literal or (
                not isinstance(annotation, spec.kind) and type(annotation).__name__ != "ObjectType"
            ):
                got = _LITERALS.get(type(expr)) or str(annotation)
                self.fail(
                    f"{spec.name} must be a {_KIND_NAMES[spec.kind]}, got {got}",
                    arg=spec.name,
                    help=_KIND_HELP.get((spec.kind, type(annotation))),
                )
            if not isinstance(annotation, spec.kind):
                annotation = spec.kind() if spec.kind is not PrimType else PrimType("int64")
            found.append(annotation)
        if len(call.args) > len(specs):
            self.fail(f"takes {len(specs)} arguments, got {len(call.args)}")
        for spec in specs[len(call.args) :]:
            if not spec.optional:
                self.fail(f"needs {spec.name}")
            found.append(None)
        return found

    def _unknown_dtype(self, args: list[Annotation | None]) -> Annotation:
        results: list[Annotation] = []
        error: DeduceError | None = None
        open_args = [any(t.dtype is None for t in _tensors([a])) for a in args]
        # One dtype for all first; where that never fits (floats at integer places), one for each.
        choices = [[(guess,) * len(args) for guess in _GUESSES]]
        # Of many arguments all combinations are too many: pairs of a float and an integer then.
        few = sum(open_args) <= 3
        pairs = (_GUESSES,) if few else (("float32", "int64"), ("float16", "int32"))
        mixed = (itertools.product(*(pair if o else ("",) for o in open_args)) for pair in pairs)
        choices.append(list(itertools.chain.from_iterable(mixed)))
        for guesses in choices if sum(open_args) > 1 else choices[:1]:
            for guess in guesses if not results else ():
                try:
                    known = [_with_dtype(a, g) for a, g in zip(args, guess, strict=True)]
                    results.append(self._unknown_shape(known))
                except DeduceError as e:
                    error = error or e
        if not results:
            assert error is not None
            raise error
        merged = results[0]
        for other in results[1:]:
            merged = join(merged, other)
        if len(results) == 1 and isinstance(merged, TensorType):
            merged = TensorType(merged.shape, None, merged.ndim, merged.vdevice)
        return merged

    def _unknown_shape(self, args: list[Annotation | None]) -> Annotation:
        if any(_unranked(a) for a in args):
            return self.op.deduce_unranked(self, args)
        fresh: set[SymVar] = set()
        symbols: dict[int, tuple[Dim, ...]] = {}
        known = [_with_symbols(a, fresh, symbols) for a in args]
        result = self.op.deduce(self, *known)
        for tensor in _tensors([result]):
            for dim in tensor.dims or ():
                if dim.value is not None and not 0 <= dim.value < 1 << 63:
                    self.fail(
                        f"the result cannot have {dim} elements along an axis",
                        code="shape-mismatch",
                    )
        return erase(result, lambda var: var not in fresh) if fresh else result

    # What deduce uses

    def fail(
        self,
        message: str,
        *,
        arg: str | None = None,
        code: str = "op-arguments",
        help: str | None = None,
    ) -> NoReturn:
        """Refuse the call; `arg` names the argument at fault."""
        error = DeduceError(code, f"{self.op.name}: {message}", span=self.call.span, help=help)
        for spec, expr in zip(self.op.args, self.call.args, strict=False):
            if type(expr) in _LITERALS:
                continue
            try:
                annotation = self.annotation_of(expr)
            except DeduceError:
                continue
            show_argument(error, self.call, expr, spec.name, annotation)
        raise error.about(arg)

    def require(
        self,
        condition: bool,
        message: str,
        *,
        arg: str | None = None,
        code: str = "op-arguments",
        help: str | None = None,
    ) -> None:
        """Refuse the call unless `condition`."""
        if not condition:
            self.fail(message, arg=arg, code=code, help=help)

    def ensure(
        self,
        condition: Dim,
        message: str,
        *,
        arg: str | None = None,
        code: str = "shape-mismatch",
        help: str | None = None,
    ) -> None:
        """`condition` (0 or 1, made with `dim_op`) must hold: refuse if it never does, check at
        run time if that is unknown."""
        if prove(condition):
            return
        if prove(dim_op("eq", condition, 0)):
            self.fail(message, arg=arg, code=code, help=help)
        self.requirements.append(Requirement(condition, f"{self.op.name}: {message}"))

    def same_dim(self, a: Dim, b: Dim, message: str, *, arg: str | None = None) -> Dim:
        """The two dimensions must be equal: refuse if they cannot be, check at run time if that
        is unknown. Gives the more telling one (a constant)."""
        verdict = equal_dims(a, b)
        if verdict is Verdict.MAYBE:
            verdict = equal(a, b)
        if verdict is Verdict.NO:
            self.fail(f"{message}: {a} and {b}", arg=arg, code="shape-mismatch")
        if verdict is Verdict.MAYBE:
            self.requirements.append(
                Requirement(dim_op("eq", a, b), f"{self.op.name}: {message}: {a} and {b}")
            )
        return a if a.value is not None else b if b.value is not None else a

    def hold(
        self,
        condition: Dim,
        message: str,
        *,
        arg: str | None = None,
        code: str = "shape-mismatch",
    ) -> None:
        """A relation of dimensions (made with `dim_op`) must hold: refuse if it cannot, check at
        run time if that is unknown."""
        if prove(condition):
            return
        if condition.value is not None or prove(dim_op("eq", condition, 0)):
            self.fail(message, arg=arg, code=code)
        self.requirements.append(Requirement(condition, f"{self.op.name}: {message}"))

    def written(self, arg: str) -> str:
        """What the program calls an argument: the name of its variable, else the argument's own."""
        names = [spec.name for spec in self.op.args]
        expr = dict(zip(names, self.call.args, strict=False)).get(arg)
        inside = expr is not None and expr.span is not None and expr.span.inside(self.call.span)
        return expr.name if isinstance(expr, Var) and not inside else arg

    def _last_argument(self, holds: Callable[[TensorType], bool]) -> str | None:
        """The last argument that is, or has in it, such a tensor: the one at fault where two disagree."""
        found = None
        for spec, expr in zip(self.op.args, self.call.args, strict=False):
            if any(map(holds, _tensors([self.annotation_of(expr)]))):
                found = spec.name
        return found

    def same_dtype(self, *tensors: TensorType) -> DType:
        """All must have one dtype."""
        first = tensors[0].dtype
        for tensor in tensors[1:]:
            if tensor.dtype != first:
                self.fail(
                    f"dtypes differ: {first} and {tensor.dtype}",
                    arg=self._last_argument(lambda a, wrong=tensor.dtype: a.dtype == wrong),
                    code="op-dtype",
                    help=f'cast one of them: R.astype(…, "{first}")',
                )
        assert first is not None
        return first

    def need_float(self, x: TensorType, arg: str) -> DType:
        """The dtype, which must be a float's."""
        assert x.dtype is not None
        if not x.dtype.is_float:
            self.fail(
                f"{arg} must have a float dtype, got {x.dtype}",
                arg=arg,
                code="op-dtype",
                help=f'cast it: R.astype({self.written(arg)}, "float32")',
            )
        return x.dtype

    def need_int(self, x: TensorType, arg: str) -> DType:
        """The dtype, which must be an integer's."""
        assert x.dtype is not None
        if not x.dtype.is_int:
            self.fail(f"{arg} must be integers, got {x.dtype}", arg=arg, code="op-dtype")
        return x.dtype

    def axis(self, axis: int, ndim: int, name: str = "axis") -> int:
        """`axis`, counted from the front."""
        if not -ndim <= axis < ndim:
            self.fail(
                f"{name} {axis} is out of range for {ndim} dimensions", code="op-axis", arg=name
            )
        return axis % ndim

    def axes(
        self, axes: int | Sequence[int] | None, ndim: int, name: str = "axis"
    ) -> tuple[int, ...]:
        """Axes counted from the front, sorted, each once; all of them for None."""
        if axes is None:
            return tuple(range(ndim))
        picked = [self.axis(a, ndim, name) for a in ([axes] if isinstance(axes, int) else axes)]
        if len(set(picked)) != len(picked):
            self.fail(f"{name} {list(picked)} names an axis twice", code="op-axis", arg=name)
        return tuple(sorted(picked))

    def broadcast(self, *shapes: tuple[Dim, ...]) -> tuple[Dim, ...] | None:
        """Numpy's broadcasting of shapes; None where it is only known at run time (with `exact`:
        dimensions with `select`)."""
        if len(shapes) == 2 and shapes[0] == shapes[1]:
            return shapes[0]
        result: tuple[Dim, ...] = ()
        undecided = False
        for shape in shapes:
            ndim = max(len(result), len(shape))
            a = (Dim.of(1),) * (ndim - len(result)) + result
            b = (Dim.of(1),) * (ndim - len(shape)) + shape
            merged: list[Dim] = []
            for x, y in zip(a, b, strict=True):
                dim, sure = self._broadcast_dim(x, y, shape)
                merged.append(dim)
                undecided = undecided or not sure
            result = tuple(merged)
        return None if undecided and not self.exact else result

    def _broadcast_dim(self, x: Dim, y: Dim, shape: tuple[Dim, ...]) -> tuple[Dim, bool]:
        """What dimensions x and y come to, and whether that is sure. `shape`: what y is of."""
        if x == y or y == 1:
            return x, True
        if x == 1:
            return y, True
        verdict = equal(x, y)
        if verdict is Verdict.YES:
            return x, True
        fixed = [d for d in (x, y) if d.value is not None]
        if len(fixed) == 2:
            size = len(shape)
            arg = self._last_argument(lambda a: shape in ((d := a.dims or ())[-size:], d[:size]))
            self.fail(f"shapes cannot be broadcast: {x} and {y}", arg=arg, code="shape-mismatch")
        is_one = dim_op("eq", x if y.value is not None else y, 1)
        fits = dim_op("or", dim_op("eq", x, y), is_one)
        if not fixed:
            fits = dim_op("or", fits, dim_op("eq", x, 1))
        self.requirements.append(
            Requirement(fits, f"{self.op.name}: shapes cannot be broadcast: {x} and {y}")
        )
        if fixed:  # n with 4: n is 4 or 1, the result is 4 either way
            return fixed[0], True
        return dim_op("select", dim_op("eq", x, 1), y, x), False

    def tensor(
        self, shape: Sequence[DimLike] | None, dtype: str | None, ndim: int = -1
    ) -> TensorType:
        return TensorType(None if shape is None else tuple(shape), dtype, ndim)


_deduced: dict[Hashable, Annotation] = {}
"""Results of deductions. These hold symbols, and variables of shapes, but no program."""
REMEMBERED = 4096
"""How many there may be: then all are forgotten."""

_GUESSES = ("float32", "int64", "bool", "float16")
"""Dtypes that stand for one that is not known."""

_KIND_NAMES: dict[type[Annotation], str] = {
    TensorType: "tensor",
    ShapeType: "shape",
    PrimType: "scalar",
    TupleType: "tuple",
    Annotation: "value",
}

_LITERALS: dict[type[Expr], str] = {StringImm: "a string", DataTypeImm: "a dtype"}
"""Literals that have no annotation of their own, for messages."""

_KIND_HELP: dict[tuple[type[Annotation], type[Annotation]], str] = {
    (
        ShapeType,
        TensorType,
    ): "write (n, 4), R.shape([n, 4]), or R.shape_of(x) for the shape of a tensor",
    (ShapeType, PrimType): "a shape is a tuple: one dimension is (n,), with a comma",
    (TensorType, TupleType): "take one of its fields: t[0]",
    (TensorType, PrimType): 'make a tensor of it: R.full((), value, "float32")',
    (
        TensorType,
        ShapeType,
    ): "a constant tensor is R.const([1, 2]); a shape's numbers are R.shape_to_tensor(s)",
    (TupleType, TensorType): "put the tensors into a tuple: (x, y)",
}
"""What to write, by the kind that is wanted and the one that is there."""


def _tensors(args: Sequence[Annotation | None]) -> list[TensorType]:
    found: list[TensorType] = []
    for arg in args:
        if isinstance(arg, TensorType):
            found.append(arg)
        elif isinstance(arg, TupleType):
            found += _tensors(arg.fields)
    return found


def _with_dtype(arg: Any, dtype: str) -> Any:
    if isinstance(arg, TensorType) and arg.dtype is None:
        return TensorType(arg.shape, dtype, arg.ndim, arg.vdevice)
    if isinstance(arg, TupleType):
        return TupleType(_with_dtype(item, dtype) for item in arg.fields)
    return arg


def _unranked(arg: Any) -> bool:
    if isinstance(arg, TupleType):
        return any(map(_unranked, arg.fields))
    return isinstance(arg, (TensorType, ShapeType)) and arg.ndim < 0


def _with_symbols(arg: Any, fresh: set[SymVar], symbols: dict[int, tuple[Dim, ...]]) -> Any:
    if isinstance(arg, TupleType):
        return TupleType(_with_symbols(item, fresh, symbols) for item in arg.fields)
    if isinstance(arg, TensorType) and arg.dims is None:
        # One shape variable is one set of symbols: two tensors of shape s have the same shape.
        key = id(arg.shape) if isinstance(arg.shape, Var) else -len(symbols) - 1
        dims = symbols.get(key)
        if dims is None:
            dims = symbols[key] = _fresh(arg.ndim, fresh)
        return TensorType(dims, arg.dtype, vdevice=arg.vdevice)
    if isinstance(arg, ShapeType) and arg.dims is None:
        return ShapeType(_fresh(arg.ndim, fresh))
    return arg


def _fresh(ndim: int, fresh: set[SymVar]) -> tuple[Dim, ...]:
    new = [SymVar(f"_{i}") for i in range(ndim)]
    fresh.update(new)
    return tuple(var.dim for var in new)
