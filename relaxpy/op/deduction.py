"""One run of an operator's `deduce`: the arguments' annotations, the requirements on them, and errors that are located
at the argument at fault. Unknown dtypes and shapes are handled here, for all operators."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import ml_dtypes

from relaxpy.errors import DeduceError, RelaxError, defined_at
from relaxpy.ir.annotation import Annotation, PrimType, ShapeType, TensorType, TupleType
from relaxpy.ir.dim import Dim, DimLike, SymVar, dim_op
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Call, DataTypeImm, Expr, PrimValue, StringImm, Tuple, Var
from relaxpy.ir.known import KnownTensor, as_known, as_plain
from relaxpy.ir.op import crashed
from relaxpy.op.unknown import (
    dims_said,
    is_unranked,
    shape_variable,
    tensors_of,
    unranked_keys,
    with_device,
    with_dtype,
    with_ranks,
    with_shape_variables,
    with_symbols,
    without_dtype,
    without_ranks,
)
from relaxpy.shape.bounds import assumed
from relaxpy.shape.lattice import Verdict, equal_dims, erase, join
from relaxpy.shape.prove import equal, prove

if TYPE_CHECKING:
    from relaxpy.op.base import Op

_deduced: dict[Hashable, Annotation] = {}
"""Cached results of deductions. They hold symbols and shape variables, but no program."""
REMEMBERED = 4096
"""Size limit of the cache; it is cleared when full."""

_GUESSES = ("float32", "int64", "bool", "float16", "int32")
"""Dtypes tried in place of an unknown one."""

RANKS = (0, 1, 2, 3, 4, 5)
"""Ranks tried in place of an unknown one."""
MOST_TRIED = 400
"""Limit on the combinations of ranks tried in one deduction."""

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
    (TensorType, TupleType): "use one of its fields: t[0]",
    (TensorType, PrimType): 'convert it to a tensor: R.full((), value, dtype="float32")',
    (
        TensorType,
        ShapeType,
    ): "for a constant write R.const([1, 2]); convert a shape with R.shape_to_tensor(s)",
    (TupleType, TensorType): "put the tensors into a tuple: (x, y)",
}
"""The advice for an argument of the wrong kind: (wanted, given) → text."""


def _is_of_numbers(annotation: Annotation) -> bool:
    """Is it a tuple of numbers, or of such tuples? As Python's lists of numbers are."""
    if isinstance(annotation, TupleType):
        return bool(annotation.fields) and all(map(_is_of_numbers, annotation.fields))
    return isinstance(annotation, PrimType)


def show_argument(
    error: DeduceError, call: Call, expr: Expr, name: str, annotation: Annotation
) -> None:
    """Add the annotation of an argument to an error. A variable is named, and shown at its definition; an expression
    written inside the call is called `name`."""
    inside = expr.span is not None and expr.span.inside(call.span)
    named = isinstance(expr, Var) and not inside
    error.show(f"{expr.name if named else name} is {annotation}", expr.span)


@dataclass(frozen=True, slots=True)
class Requirement:
    """A condition that holds only for some values of the symbols; it is checked at run time."""

    condition: Dim
    """A 0/1 dimension."""
    message: str


class Deduction:
    """One deduction: the interface of `Op.deduce`, through which it checks its arguments, so that errors are located at
    the argument at fault.

    `exact` is set by a pass that needs the shape of the result even if it depends on a case decided at run time
    (broadcasting n with m); dimensions may then be a `select`. `requirements` are the conditions that could not be
    decided.
    """

    def __init__(
        self, op: Op, call: Call, annotation_of: Callable[[Expr], Annotation], exact: bool = False
    ) -> None:
        self.op = op
        self.call = call
        self.annotation_of = annotation_of
        self.exact = exact
        self.args: Sequence[Annotation | None] = ()
        """The arguments' annotations, set by `run`."""
        self.shapes: Sequence[Var | None] = ()
        """The shape variables among the arguments, where their dimensions are unknown."""
        self.requirements: list[Requirement] = []
        self.unknown: AbstractSet[SymVar] = frozenset()
        """Fresh symbols in place of unknown dimensions of the arguments."""
        self.tried = 0
        """Number of rank combinations tried so far."""

    def run(self) -> Annotation:
        """The annotation of the result. It depends only on the operator, the arguments' annotations and the assumed
        bounds of symbols, so it is cached: the layers of a model repeat the same calls, and every pass asks again."""
        args = self.args = self.arguments()
        exprs = itertools.chain(self.call.args, itertools.repeat(None))
        self.shapes = [shape_variable(a, e) for a, e in zip(args, exprs, strict=False)]
        key = (self.op, self.exact, tuple(args), tuple(self.shapes), tuple(assumed().items()))
        found = _deduced.get(key)
        if found is None:
            found = self._result(args)
            if not self.requirements:  # requirements name the arguments as the program does
                if len(_deduced) >= REMEMBERED:
                    _deduced.clear()
                _deduced[key] = found
        return found

    def _result(self, args: list[Annotation | None]) -> Annotation:
        taken = self._scalars_astensors_of(args) if self.op.scalar_args else args
        given = tensors_of(taken)
        _require_bytes(self, given)
        taken = list(map(dims_said, taken))
        is_open = any(tensor.dtype is None for tensor in given)
        found = self._unknown_dtype(taken) if is_open else self._unknown_shape(taken)
        _require_bytes(self, tensors_of([found]))
        if len(given) == 1 and isinstance(given[0].shape, Var):  # the result keeps it
            dims = tensors_of(taken)[0].dims
            found = with_shape_variables(found, {dims: given[0].shape} if dims else {})
        found = self._on_device(found)
        return self._scalar(args, found) if self.op.scalar_result else found

    def _scalars_astensors_of(self, args: list[Annotation | None]) -> list[Annotation | None]:
        """The arguments with 0-d tensors in place of scalars. A size given as a scalar must be representable in the
        dtype."""
        taken = list(args)
        for i, spec in enumerate(self.op.args):
            arg = args[i]
            if spec.kind is not TensorType or not isinstance(arg, PrimType):
                continue
            taken[i] = TensorType((), arg.dtype)
            is_written = i < len(self.call.args) and isinstance(self.call.args[i], PrimValue)
            for limit in _limits(arg) if is_written and arg.value is not None else ():
                message = f"{spec.name} cannot be {arg.value}: it is out of range of {arg.dtype}"
                self.ensure(limit, message, arg=spec.name, code="op-dtype")
        return taken

    def _scalar(self, args: list[Annotation | None], found: Annotation) -> Annotation:
        """The scalar result of an operator whose arguments are all scalars."""
        given = [
            arg for spec, arg in zip(self.op.args, args, strict=True) if spec.kind is TensorType
        ]
        scalars = [arg for arg in given if isinstance(arg, PrimType)]
        if not isinstance(found, TensorType) or found.dtype is None or len(scalars) != len(given):
            return found
        values = [arg.value for arg in scalars if arg.dtype in ("int64", "bool")]
        known = [value for value in values if value is not None]
        is_known = len(known) == len(given) and found.dtype in ("int64", "bool")
        return PrimType(found.dtype, self.op.scalar_value(*known) if is_known else None)

    def arguments(self) -> list[Annotation | None]:
        """The arguments' annotations, each checked against the kind that the operator takes."""
        call, specs = self.call, self.op.args
        found: list[Annotation | None] = []
        for spec, expr in zip(specs, call.args, strict=False):
            annotation = self.annotation_of(expr)
            if spec.optional and annotation == TupleType(()) and spec.kind is not TupleType:
                found.append(None)
                continue
            literal = isinstance(expr, (StringImm, DataTypeImm)) and spec.kind is not Annotation
            scalar = (
                self.op.scalar_args and spec.kind is TensorType and isinstance(annotation, PrimType)
            )
            if scalar and not literal:
                if annotation.value is None and isinstance(expr, PrimValue):
                    # the range of a float size can be checked only here
                    size = expr.value if isinstance(expr.value, Dim) else None
                    annotation = PrimType(expr.dtype, size)
                found.append(annotation)
                continue
            if literal or (
                not isinstance(annotation, spec.kind) and type(annotation).__name__ != "ObjectType"
            ):
                got = _LITERALS.get(type(expr)) or str(annotation)
                help = _KIND_HELP.get((spec.kind, type(annotation)))
                if (
                    spec.kind is TensorType
                    and isinstance(expr, Tuple)
                    and _is_of_numbers(annotation)
                ):
                    help = 'write numbers as a tensor: R.const([1.0, 2.0], "float32")'
                self.fail(
                    f"{spec.name} must be a {_KIND_NAMES[spec.kind]}, got {got}",
                    arg=spec.name,
                    help=help,
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
        used: list[str] = []
        error: DeduceError | None = None
        open_args = [any(t.dtype is None for t in tensors_of([a])) for a in args]
        given = dict.fromkeys(str(t.dtype) for t in tensors_of(args) if t.dtype is not None)
        guesses = tuple(dict.fromkeys((*_GUESSES, *given)))
        # One dtype for all first; if that never fits (float data with integer indices), one for each.
        choices = [[(guess,) * len(args) for guess in guesses]]
        # With many arguments there are too many combinations: then only pairs of a float and an integer are tried.
        few = sum(open_args) <= 3
        pairs = (guesses,) if few else (("float32", "int64"), ("float16", "int32"))
        mixed = (itertools.product(*(pair if o else ("",) for o in open_args)) for pair in pairs)
        choices.append(list(itertools.chain.from_iterable(mixed)))
        for tried in choices if sum(open_args) > 1 else choices[:1]:
            for guess in tried if not results else ():
                before = len(self.requirements)
                try:
                    known = [with_dtype(a, g) for a, g in zip(args, guess, strict=True)]
                    results.append(self._unknown_shape(known))
                    used += [g for g, is_open in zip(guess, open_args, strict=True) if is_open]
                except DeduceError as e:
                    error = error or e
                if len(results) != 1:  # the requirements are the same for each dtype
                    del self.requirements[before:]
        if not results:
            assert error is not None
            raise error
        merged = results[0]
        for other in results[1:]:
            merged = join(merged, other)
        if len(set(used)) > 1 or (used[0] in given and self.op.of_data):
            return merged
        if isinstance(merged, TensorType) and merged.dtype == getattr(self.op, "out_dtype", None):
            return merged  # the program says it
        return without_dtype(merged, used[0])  # its dtype may come from the guess

    def _unknown_shape(self, args: list[Annotation | None]) -> Annotation:
        if any(map(is_unranked, args)):
            return self._unknown_rank(args)
        fresh: set[SymVar] = set()
        symbols: dict[Var, tuple[Dim, ...]] = {}
        known = [
            with_symbols(a, fresh, symbols, var) for a, var in zip(args, self.shapes, strict=True)
        ]
        self.unknown = fresh
        given = [None if a is None else as_known(a) for a in known]
        result = as_plain(self._deduced(given))
        for tensor in tensors_of([result]):
            for dim in tensor.dims or ():
                if dim.value is not None and not 0 <= dim.value < 1 << 63:
                    self.fail(
                        f"the result cannot have {dim} elements along an axis",
                        code="shape-mismatch",
                    )
        if not fresh:
            return result
        named = with_shape_variables(result, {dims: var for var, dims in symbols.items() if dims})
        return erase(named, lambda var: var not in fresh)

    def _deduced(self, given: Sequence[Annotation | None]) -> Annotation:
        """The operator's own answer."""
        try:
            result = self.op.deduce(self, *given)
        except (RelaxError, RecursionError, MemoryError):
            raise
        except Exception as error:
            raise crashed(DeduceError, self.op, "deduce", error) from error
        if isinstance(result, Annotation):
            return result
        raise DeduceError(
            "op-crash",
            f"{self.op.name}: its deduce must return an annotation, got {type(result).__name__}",
        ).show("deduce is defined here", defined_at(type(self.op).deduce))

    def _unknown_rank(self, args: list[Annotation | None]) -> Annotation:
        """The result for arguments of unknown rank: the join of the results for all small ranks that the operator
        accepts."""
        keys = list(dict.fromkeys(unranked_keys(args, self.shapes)))
        small = RANKS if len(keys) <= 2 else RANKS[:-1]
        ranks = [small[1:] if isinstance(key, Var) else small for key in keys]
        self.tried += math.prod(map(len, ranks))
        if self.tried > MOST_TRIED:
            return self.op.deduce_unranked(self, args)
        choices = itertools.product(*ranks)
        found: Annotation | None = None
        errors: dict[tuple[str, str], DeduceError] = {}
        before = len(self.requirements)
        for choice in choices:
            known = with_ranks(args, self.shapes, dict(zip(keys, choice, strict=True)))
            try:
                result = self._unknown_shape(known)
                found = result if found is None else join(found, result)
            except DeduceError as error:
                errors[error.code, error.message] = error
            del self.requirements[before:]
        if found is not None:
            return without_ranks(found)
        if len(errors) == 1:  # whatever the rank is
            raise next(iter(errors.values()))
        return self.op.deduce_unranked(self, args)

    def _on_device(self, found: Annotation) -> Annotation:
        """The result placed on the arguments' virtual device, unless it names its own."""
        devices = {t.vdevice for t in tensors_of(self.args) if t.vdevice is not None}
        if len(devices) > 1:
            first, second = sorted(devices)[:2]
            self.fail(
                f"the arguments are on different devices: {first} and {second}",
                arg=self._last_argument(lambda a: a.vdevice == second),
                code="op-arguments",
                help=f'copy one of them: R.to_vdevice(…, "{first}")',
            )
        return with_device(found, devices.pop()) if devices else found

    # The interface of deduce

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
        """Refuse the call unless `condition` holds."""
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
        """Require `condition` (a 0/1 dimension, made with `dim_op`): refuse the call if it never holds; check it at run
        time if it cannot be decided."""
        if prove(condition):
            return
        if prove(dim_op("eq", condition, 0)):
            self.fail(message, arg=arg, code=code, help=help)
        self.requirements.append(Requirement(condition, f"{self.op.name}: {message}"))

    def same_dim(self, a: Dim, b: Dim, message: str, *, arg: str | None = None) -> Dim:
        """Require two dimensions to be equal: refuse the call if they never are; check at run time if that cannot be
        decided. Return the more precise one: a constant, or the known one."""
        verdict = equal_dims(a, b)
        if verdict is Verdict.MAYBE:
            verdict = equal(a, b)
        if verdict is Verdict.NO:
            self.fail(f"{message}: {a} and {b}", arg=arg, code="shape-mismatch")
        if verdict is Verdict.MAYBE:
            self.requirements.append(
                Requirement(dim_op("eq", a, b), f"{self.op.name}: {message}: {a} and {b}")
            )
        if a.value is None and (b.value is not None or not self.unknown.isdisjoint(a.vars)):
            return b
        return a

    def written(self, arg: str) -> str:
        """The name of an argument in messages: that of its variable in the program, else that of the parameter."""
        names = [spec.name for spec in self.op.args]
        expr = dict(zip(names, self.call.args, strict=False)).get(arg)
        inside = expr is not None and expr.span is not None and expr.span.inside(self.call.span)
        return expr.name if isinstance(expr, Var) and not inside else arg

    def _last_argument(self, holds: Callable[[TensorType], bool]) -> str | None:
        """The last argument that is or contains a tensor for which `holds`: the one at fault where two disagree."""
        found = None
        for spec, expr in zip(self.op.args, self.call.args, strict=False):
            if any(map(holds, tensors_of([self.annotation_of(expr)]))):
                found = spec.name
        return found

    def same_dtype(self, *tensors: KnownTensor) -> DType:
        """Require one dtype of all tensors; return it."""
        first = tensors[0].dtype
        for tensor in tensors[1:]:
            if tensor.dtype != first:
                self.fail(
                    f"dtypes differ: {first} and {tensor.dtype}",
                    arg=self._last_argument(lambda a, wrong=tensor.dtype: a.dtype == wrong),
                    code="op-dtype",
                    help=self._cast_help(first, tensor.dtype),
                )
        return first

    def _cast_help(self, first: DType | None, other: DType | None) -> str:
        """The advice to cast one of two arguments."""
        for spec, arg in zip(self.op.args, self.args, strict=False):
            if isinstance(arg, PrimType):
                wanted = other if arg.dtype == first else first
                return f'convert the scalar to a tensor: R.full((), {self.written(spec.name)}, dtype="{wanted}")'
        return f'cast one of them: R.astype(…, "{first}")'

    def need_float(self, x: KnownTensor, arg: str) -> DType:
        """Require a float dtype; return it."""
        if not x.dtype.is_float:
            self.fail(
                f"{arg} must have a float dtype, got {x.dtype}",
                arg=arg,
                code="op-dtype",
                help=f'cast it: R.astype({self.written(arg)}, "float32")',
            )
        return x.dtype

    def need_int(self, x: KnownTensor, arg: str) -> DType:
        """Require an integer dtype; return it."""
        if not x.dtype.is_int:
            self.fail(f"{arg} must be integers, got {x.dtype}", arg=arg, code="op-dtype")
        return x.dtype

    def axis(self, axis: int, ndim: int, name: str = "axis") -> int:
        """`axis` as a non-negative number."""
        if not -ndim <= axis < ndim:
            self.fail(
                f"{name} {axis} is out of range for {ndim} dimensions", code="op-axis", arg=name
            )
        return axis % ndim

    def axes(
        self, axes: int | Sequence[int] | None, ndim: int, name: str = "axis"
    ) -> tuple[int, ...]:
        """Axes as sorted, non-negative numbers without duplicates; None: all axes."""
        if axes is None:
            return tuple(range(ndim))
        picked = [self.axis(a, ndim, name) for a in ([axes] if isinstance(axes, int) else axes)]
        if len(set(picked)) != len(picked):
            self.fail(f"{name} {list(picked)} repeats an axis", code="op-axis", arg=name)
        return tuple(sorted(picked))

    def broadcast(self, *shapes: tuple[Dim, ...]) -> tuple[Dim, ...] | None:
        """Broadcast shapes by numpy's rules; None if the result is known only at run time (with `exact`: dimensions
        with `select`)."""
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
        """The broadcast of dimensions x and y, and whether it is certain. `shape` is the shape that y belongs to."""
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
        if fixed:  # n with 4: n must be 4 or 1, and the result is 4 either way
            return fixed[0], True
        return dim_op("select", dim_op("eq", x, 1), y, x), False

    def tensor(
        self, shape: Sequence[DimLike] | None, dtype: str | None, ndim: int = -1
    ) -> TensorType:
        return TensorType(None if shape is None else tuple(shape), dtype, ndim)


def _limits(scalar: PrimType) -> list[Dim]:
    """Conditions for a size to be representable in the dtype of its scalar."""
    kind, value = scalar.dtype, scalar.value
    assert value is not None
    if kind.is_bool or kind in ("int64", "float64", "float32", "bfloat16"):
        return []
    if not kind.is_int:
        return [dim_op("le", value, int(ml_dtypes.finfo(kind.numpy).max))]
    low, high = map(int, kind.limits)
    highest = [] if kind == "uint64" else [dim_op("le", value, high)]
    return [*highest, dim_op("le", low, value)]


def _require_bytes(d: Deduction, tensors: Sequence[TensorType]) -> None:
    """Refuse elements that share bytes, unless it is a conversion, which takes and makes them."""
    packed = next((t.dtype for t in tensors if t.dtype and t.dtype.is_packed), None)
    if packed is None or d.op.storage:
        return
    given = zip(d.op.args, d.args, strict=False)
    d.fail(
        f"{packed} is a dtype of storage, two numbers to a byte, and nothing else is computed with it "
        "than conversions",
        arg=next((s.name for s, a in given if getattr(a, "dtype", None) == packed), None),
        code="op-dtype",
        help=f'compute in another dtype: R.dequantize(…), or R.astype(…, "{packed.unpacked}")',
    )
