"""Declared data types in script: `@R.type`, `R.type_param()`, their names as annotations and constructors, and
`R.data.made_by`, `R.data.field`, with which a `match` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relaxpy.errors import DeduceError, ScriptError
from relaxpy.ir.annotation import Annotation, DataType, PrimType, ShapeType, TypeParam
from relaxpy.ir.data import TypeDecl
from relaxpy.ir.expr import Call, Expr, GlobalVar, PrimValue, ShapeExpr
from relaxpy.op.base import as_expr
from relaxpy.op.data import construct, data_field, find_constructor, made_by
from relaxpy.op.deduce import deduce
from relaxpy.script.annotations import AnnotationFactory, DimReader, as_annotation, as_dim
from relaxpy.script.describe import describe


def type_(cls: Any) -> Any:
    """Decorator of a data type in the class of a module, which is parsed as a whole: `@R.type`, above `class List:`."""
    return _Declared(cls.__name__)


class Kind:
    """The kind of a parameter: `R.Type`."""

    def __repr__(self) -> str:
        return "R.Type"


Type = Kind()
"""The kind of type parameters."""


def type_param(kind: Any = Type) -> Annotation:
    """A type parameter: `A = R.type_param(R.Type)` in the class of a data type, or, for functions, of a module."""
    if kind is not Type:
        raise ScriptError(
            "bad-value",
            f"the kind of a type parameter is R.Type, not {describe(kind)}",
            help='for a size write n = T.int64(), or a name in quotes: R.Tensor(("n",), "float32")',
        )
    return TypeParam("parameter")


class TypeApplication:
    """A function of the module with type arguments: `cls.map[R.Tensor((4,), "float32")]`."""

    def __init__(self, function: GlobalVar, args: tuple[Annotation, ...]) -> None:
        self.function, self.args = function, args


class _Declared:
    """A data type while Python runs the class of its module."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getitem__(self, args: Any) -> Annotation:
        return DataType(self.name)


class TypeRef(AnnotationFactory):
    """The name of a declared type: `List[…]` is an annotation, `List.Cons` a constructor."""

    def __init__(self, name: str, params: tuple[str, ...]) -> None:
        self.params = params
        self.decl = TypeDecl(name, params, ())
        super().__init__(name, self._annotation)

    def _annotation(self, dims: DimReader, *args: Any) -> Annotation:
        if len(args) != len(self.params):
            wanted = f"{len(self.params)} type argument{'s' * (len(self.params) != 1)}"
            shown = f" ({', '.join(self.params)})" if self.params else ""
            raise ScriptError(
                "bad-annotation",
                f"{self.name} takes {wanted}{shown}, got {len(args)}",
                help=f"write {self.name}[{', '.join(['R.Tensor(…)'] * len(self.params))}]"
                if self.params
                else f"write {self.name}",
            )
        return DataType(self.name, tuple(as_annotation(arg, dims) for arg in args))

    def __repr__(self) -> str:
        return self.name


class ConstructorRef:
    """A constructor: `List.Cons`, or `List[R.Tensor((4,), "float32")].Cons`."""

    def __init__(self, decl: TypeDecl, name: str, args: Sequence[Annotation] | None) -> None:
        self.decl, self.index, self.args = decl, find_constructor(decl, name), args

    @property
    def arg_names(self) -> tuple[str, ...]:
        """The names of the fields."""
        return self.decl.constructors[self.index].fields

    def __call__(self, *fields: Any, **named: Any) -> Call:
        given = dict(zip(self.arg_names, fields, strict=False)) | named
        if len(given) < len(fields) + len(named) or set(given) != {*self.arg_names}:
            names = ", ".join(self.arg_names) or "none"
            raise DeduceError(
                "data-type",
                f"{self} takes {len(self.arg_names)} field{'s' * (len(self.arg_names) != 1)} ({names}), "
                f"got {', '.join([*map(str, [len(fields)] if fields or not named else []), *named])}",
            )
        types = self.decl.constructors[self.index].types
        exprs = [
            _field(given[name], kind) for name, kind in zip(self.arg_names, types, strict=True)
        ]
        return construct(self.decl, self.index, exprs, [deduce(each) for each in exprs], self.args)

    def __repr__(self) -> str:
        return f"{self.decl.name}.{self.decl.constructors[self.index].name}"


def _field(value: Any, wanted: Annotation) -> Expr:
    """A field as an expression, by the kind of its annotation."""
    if isinstance(wanted, PrimType) and not isinstance(value, Expr):
        dim = as_dim(value)
        if dim is not None or isinstance(value, (bool, float)):
            return PrimValue(value if dim is None else dim, str(wanted.dtype))
    if isinstance(wanted, ShapeType) and isinstance(value, (tuple, list)):
        return ShapeExpr(value)
    return as_expr(value)


class DataNamespace:
    """`R.data`: what `match` is written with."""

    _prefix = "data"

    @staticmethod
    def made_by(value: Any, constructor: Any) -> Call:
        """Did this constructor make the value? `R.data.made_by(xs, List.Cons)`."""
        found = _constructor(constructor)
        return made_by(found.decl, found.index, as_expr(value))

    @staticmethod
    def field(value: Any, constructor: Any, number: Any) -> Call:
        """Field `number` of a value that this constructor made: `R.data.field(xs, List.Cons, 0)`."""
        found, dim, expr = _constructor(constructor), as_dim(number), as_expr(value)
        if dim is None or dim.value is None:
            raise DeduceError("data-type", "the number of a field is an integer").about("number")
        return data_field(found.decl, found.index, expr, deduce(expr), dim.value)


def _constructor(value: Any) -> ConstructorRef:
    if not isinstance(value, ConstructorRef):
        raise DeduceError("data-type", "a constructor is expected, as List.Cons").about(
            "constructor"
        )
    return value


data = DataNamespace()
"""What a `match` prints as: which constructor made a value, and its fields."""
