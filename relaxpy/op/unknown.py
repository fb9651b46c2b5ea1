"""Substitutes for the unknown parts of annotations: a dtype, a rank, symbols for dimensions. Deduction tries them
(`relaxpy.op.deduction`), so that operators see only fully known tensors."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from relaxpy.ir.annotation import Annotation, ShapeType, TensorType, TupleType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import Expr, Var


def tensors_of(args: Sequence[Annotation | None]) -> list[TensorType]:
    """The tensors in annotations, in order."""
    found: list[TensorType] = []
    for arg in args:
        if isinstance(arg, TensorType):
            found.append(arg)
        elif isinstance(arg, TupleType):
            found += tensors_of(arg.fields)
    return found


def with_dtype(arg: Any, dtype: str) -> Any:
    """The annotation with unknown dtypes replaced by `dtype`."""
    if isinstance(arg, TensorType) and arg.dtype is None:
        return TensorType(arg.shape, dtype, arg.ndim, arg.vdevice)
    if isinstance(arg, TupleType):
        return TupleType(with_dtype(item, dtype) for item in arg.fields)
    return arg


def without_dtype(found: Annotation, dtype: str) -> Annotation:
    """The annotation with this dtype replaced by an unknown one."""
    if isinstance(found, TensorType) and found.dtype == dtype:
        return TensorType(found.shape, None, found.ndim, found.vdevice)
    if isinstance(found, TupleType):
        return TupleType(without_dtype(item, dtype) for item in found.fields)
    return found


def with_device(found: Annotation, vdevice: str) -> Annotation:
    """The annotation placed on a virtual device, unless it names its own."""
    if isinstance(found, TensorType) and found.vdevice is None:
        return TensorType(found.shape, found.dtype, found.ndim, vdevice)
    if isinstance(found, TupleType):
        return TupleType(with_device(item, vdevice) for item in found.fields)
    return found


# Ranks


def is_unranked(arg: Any) -> bool:
    """Does it contain a tensor or shape of unknown rank?"""
    if isinstance(arg, TupleType):
        return any(map(is_unranked, arg.fields))
    return isinstance(arg, (TensorType, ShapeType)) and arg.ndim < 0


def unranked_keys(args: Sequence[Any], shapes: Sequence[Var | None]) -> Iterator[Hashable]:
    """A key for each unknown rank among the arguments: the shape variable, otherwise the position of the argument."""
    for i, (arg, shape) in enumerate(zip(args, shapes, strict=True)):
        for item in tensors_of([arg]):
            if is_unranked(item):
                yield item.shape if isinstance(item.shape, Var) else i
        if isinstance(arg, ShapeType) and is_unranked(arg):
            yield i if shape is None else shape


def with_ranks(
    args: Sequence[Any], shapes: Sequence[Var | None], ranks: Mapping[Hashable, int]
) -> list[Any]:
    """The arguments with these ranks, given by the keys of `unranked_keys`."""

    def ranked(arg: Any, i: int, shape: Var | None) -> Any:
        if isinstance(arg, TupleType):
            return TupleType(ranked(item, i, shape) for item in arg.fields)
        if not is_unranked(arg):
            return arg
        if isinstance(arg, ShapeType):
            return ShapeType(None, ranks[i if shape is None else shape])
        key = arg.shape if isinstance(arg.shape, Var) else i
        return TensorType(arg.shape, arg.dtype, ranks[key], arg.vdevice)

    return [ranked(arg, i, shapes[i]) for i, arg in enumerate(args)]


def without_ranks(found: Annotation) -> Annotation:
    """The annotation with the tried ranks replaced by those that its shape variables declare."""
    if isinstance(found, TensorType) and isinstance(found.shape, Var):
        return TensorType(found.shape, found.dtype, vdevice=found.vdevice)
    if isinstance(found, TupleType):
        return TupleType(map(without_ranks, found.fields))
    return found


# Shapes


def dims_said(arg: Any) -> Any:
    """The annotation with each shape variable replaced by the dimensions that it declares, if it declares any."""
    if isinstance(arg, TupleType):
        return TupleType(map(dims_said, arg.fields))
    if isinstance(arg, TensorType) and isinstance(arg.shape, Var):
        dims = getattr(arg.shape.annotation, "dims", None)
        return arg if dims is None else TensorType(dims, arg.dtype, vdevice=arg.vdevice)
    return arg


_fresh: list[SymVar] = []
"""Symbols for unknown dimensions. No result contains them, so all deductions share them, and proofs about them are
cached."""


def shape_variable(arg: Any, expr: Expr | None) -> Var | None:
    """The variable that an argument is, if it is a shape of unknown dimensions."""
    is_shape = isinstance(arg, ShapeType) and arg.dims is None
    return expr if is_shape and isinstance(expr, Var) else None


def with_symbols(
    arg: Any, fresh: set[SymVar], symbols: dict[Var, tuple[Dim, ...]], shape: Var | None = None
) -> Any:
    """The annotation with fresh symbols for unknown dimensions. A shape variable always gets the same symbols: two
    tensors of shape s have the same shape."""
    if isinstance(arg, TupleType):
        return TupleType(with_symbols(item, fresh, symbols, shape) for item in arg.fields)
    if isinstance(arg, ShapeType) and arg.dims is None:
        return ShapeType(_dims_of(shape, arg.ndim, fresh, symbols))
    if isinstance(arg, TensorType) and arg.dims is None:
        shape = arg.shape if isinstance(arg.shape, Var) else None
        return TensorType(_dims_of(shape, arg.ndim, fresh, symbols), arg.dtype, vdevice=arg.vdevice)
    return arg


def _dims_of(
    shape: Var | None, ndim: int, fresh: set[SymVar], symbols: dict[Var, tuple[Dim, ...]]
) -> tuple[Dim, ...]:
    known = None if shape is None else symbols.get(shape)
    if known is not None and len(known) == ndim:
        return known
    while len(_fresh) < len(fresh) + ndim:
        _fresh.append(SymVar(f"_{len(_fresh)}"))
    new = _fresh[len(fresh) : len(fresh) + ndim]
    fresh.update(new)
    dims = tuple(var.dim for var in new)
    if shape is not None:
        symbols[shape] = dims
    return dims


def with_shape_variables(found: Annotation, names: Mapping[tuple[Dim, ...], Var]) -> Annotation:
    """The annotation with shape variables in place of the dimensions substituted for them."""
    if isinstance(found, TensorType) and found.dims is not None and found.dims in names:
        return TensorType(names[found.dims], found.dtype, found.ndim, found.vdevice)
    if isinstance(found, TupleType):
        return TupleType(with_shape_variables(item, names) for item in found.fields)
    return found
