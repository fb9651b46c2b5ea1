"""The data types of a module for the runtime."""

from __future__ import annotations

from relaxpy.ir.annotation import (
    Annotation,
    CallableType,
    DataType,
    PrimType,
    ShapeType,
    TensorType,
    TupleType,
    TypeParam,
)
from relaxpy.ir.data import TypeDecl
from relaxpy.ir.dim import Dim
from relaxpy.ir.module import IRModule
from relaxpy.runtime.check_data import types_of
from relaxpy.runtime.data import Types
from relaxpy.runtime.terms import (
    CallablePattern,
    DataCase,
    DataInfo,
    DataPattern,
    ObjectPattern,
    ParamPattern,
    Pattern,
    PrimPattern,
    ShapePattern,
    TensorPattern,
    TuplePattern,
)


def pattern_of(annotation: Annotation, params: tuple[str, ...] = ()) -> Pattern:
    """The part of an annotation that the runtime checks at once: types, ranks, dtypes, constant dimensions. Symbolic
    dimensions accept any size. `params` are the parameters of the data type that is declared."""

    def sizes(dims: tuple[Dim, ...] | None) -> tuple[int | None, ...] | None:
        return None if dims is None else tuple(dim.value for dim in dims)

    match annotation:
        case TensorType(ndim=ndim, dtype=dtype):
            return TensorPattern(sizes(annotation.dims), ndim, str(dtype or ""))
        case ShapeType(dims=dims, ndim=ndim):
            return ShapePattern(sizes(dims), ndim)
        case PrimType(dtype=dtype, value=value):
            return PrimPattern(str(dtype), None if value is None else value.value)
        case TupleType(fields=fields):
            return TuplePattern(tuple(pattern_of(field, params) for field in fields))
        case CallableType(params=given):
            return CallablePattern(-1 if given is None else len(given))
        case TypeParam(name=name) if name in params:
            return ParamPattern(params.index(name))
        case DataType(name=name, args=args):
            return DataPattern(name, tuple(pattern_of(arg, params) for arg in args))
        case _:
            return ObjectPattern()


def data_table(mod: IRModule) -> tuple[DataInfo, ...]:
    """The data types that a module declares."""
    return tuple(map(_info, mod.data_types))


def _info(decl: TypeDecl) -> DataInfo:
    cases = (
        DataCase(
            case.name, case.fields, tuple(pattern_of(each, decl.params) for each in case.types)
        )
        for case in decl.constructors
    )
    return DataInfo(decl.name, len(decl.params), tuple(cases))


def types_of_module(mod: IRModule) -> Types:
    """The data types of a module, for Python."""
    return types_of(data_table(mod))
