"""Build tensor programs from annotations: call an operator's `legalize`, or any function on te tensors, for given
arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from relaxpy.errors import PassError, RelaxError, defined_at
from relaxpy.ir.annotation import Annotation, PrimType, ShapeType, TensorType, TupleType
from relaxpy.ir.dim import SymVar
from relaxpy.ir.expr import ShapeExpr
from relaxpy.ir.known import as_known
from relaxpy.ir.op import crashed
from relaxpy.ir.storage import as_whole_type, in_memory, is_packed
from relaxpy.ir.visitor import free_sym_vars
from relaxpy.tir import te
from relaxpy.tir.analyzer import VarTable, to_tvm_var
from relaxpy.tir.numerics.scalar import cast
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs.nibbles import Nibbles, packed


def legal_program(
    op: Any, args: Sequence[Annotation | None], out: Annotation, *, updates: bool = False
) -> tuple[PrimFunc, ShapeExpr | None]:
    """The tensor program of an operator for these arguments, and the symbols that it takes as scalars at the end (those
    that are not a dimension of a parameter by themselves; None if there are none).

    `op.legalize` gets `out` and, for each argument, a te tensor, a tuple of them, the dimensions of a shape, the value
    of a scalar, or None. With `updates` the program is that of `op.update`: its result is memory of the argument that
    it updates, which is no input.
    """
    names = [spec.name for spec in op.args]
    inputs: list[te.Tensor] = []
    values = [_te_value(a, name, inputs) for a, name in zip(args, names, strict=False)]
    for i, spec in enumerate(op.args):
        scalar = args[i] if spec.kind is TensorType else None
        if isinstance(scalar, PrimType) and scalar.value is not None:
            values[i] = te.Scalar(cast(te.dim(scalar.value), scalar.dtype))
    whole = as_whole_type(out) if is_packed(out) and isinstance(out, TensorType) else out
    if updates:
        inputs.remove(values[names.index(op.updates)])
    try:
        results = (op.update if updates else op.legalize)(as_known(whole), *values)
    except (RelaxError, RecursionError, MemoryError):
        raise
    except Exception as error:
        raise crashed(PassError, op, "legalize", error) from error
    outputs = list(results) if isinstance(results, (tuple, list)) else [results]
    _check_results(op, outputs, whole)
    if whole is not out:
        outputs = [packed(outputs[0], whole)]
    outputs = [_copied(o) if any(o.same_as(i) for i in inputs) else o for o in outputs]
    annotations = [in_memory(a) for a in (*args, out) if a is not None]
    symbols = _scalars(annotations, free_sym_vars(annotations))
    program = PrimFunc.from_te(inputs, outputs, symbols)
    return program, ShapeExpr(s.dim for s in symbols) if symbols else None


def _check_results(op: Any, outputs: Sequence[Any], out: Annotation) -> None:
    """Refuse results of an operator's `legalize` that are not those that its `deduce` promised."""
    wanted = out.fields if isinstance(out, TupleType) else (out,)
    got = [_shown(o) for o in outputs]
    if len(outputs) == len(wanted) and all(map(_is_of, outputs, wanted)):
        return
    promised = ", ".join(map(str, wanted))
    raise PassError(
        "op-crash",
        f"{op.name}: its legalize gives {', '.join(got) or 'nothing'}, and its deduce says {promised}",
        help="results have the shape and dtype of `out`; a number has a tensor's dtype: te.const(value, out.dtype)",
    ).show("legalize is defined here", defined_at(type(op).legalize))


def _shown(output: Any) -> str:
    if not isinstance(output, te.Tensor):
        return f"a {type(output).__name__}"
    return f"a tensor of {len(output.shape)} dimensions of {output.dtype}"


def _is_of(output: Any, annotation: Annotation) -> bool:
    """Is it a te tensor with the rank, the dtype and the known sizes of this annotation?"""
    if not isinstance(output, te.Tensor) or not isinstance(annotation, TensorType):
        return False
    dims = annotation.dims or ()
    return (
        str(output.dtype) == str(annotation.dtype)
        and len(output.shape) == len(dims)
        and all(
            dim.value is None or getattr(size, "value", dim.value) == dim.value
            for size, dim in zip(output.shape, dims, strict=True)
        )
    )


def te_program(
    func: Callable[..., Any], annotations: Sequence[Annotation], kwargs: Mapping[str, Any]
) -> tuple[PrimFunc, Annotation | list[Annotation], ShapeExpr | None]:
    """The program of `func` applied to te tensors for these annotations, the annotations of its outputs, and the
    scalars that it takes."""
    inputs: list[te.Tensor] = []
    values = [_te_value(a, f"x{i}", inputs) for i, a in enumerate(annotations)]
    results = func(*values, **kwargs)
    outputs = list(results) if isinstance(results, (tuple, list)) else [results]
    outputs = [_copied(o) if any(o.same_as(i) for i in inputs) else o for o in outputs]
    symbols = free_sym_vars(annotations)
    table = VarTable()
    table.symbols.update({to_tvm_var(s): s for s in symbols})
    out = [TensorType([table.to_dim(d) for d in o.shape], str(o.dtype)) for o in outputs]
    scalars = _scalars([*annotations, *out], symbols)
    program = PrimFunc.from_te(inputs, outputs, scalars)
    tir_vars = ShapeExpr(s.dim for s in scalars) if scalars else None
    return program, out[0] if len(out) == 1 else list(out), tir_vars


def _te_value(annotation: Annotation | None, name: str, inputs: list[te.Tensor]) -> Any:
    match annotation:
        case None:
            return None
        case TensorType() if is_packed(annotation) and annotation.dims is not None:
            codes = Nibbles(annotation, name)
            inputs.append(codes.bytes)
            return codes
        case TensorType() if annotation.dims is not None and annotation.dtype is not None:
            tensor = te.placeholder(annotation.dims, annotation.dtype, name)
            inputs.append(tensor)
            return tensor
        case TupleType(fields=fields):
            return tuple(_te_value(item, f"{name}{i}", inputs) for i, item in enumerate(fields))
        case ShapeType(dims=dims) if dims is not None:
            return dims
        case PrimType(value=value):
            return value
        case _:
            raise PassError(
                "unknown-shape", f"call_te does not support an argument of type {annotation}"
            )


def _copied(tensor: te.Tensor) -> te.Tensor:
    """Copy a result that is an input: destination-passing programs must write their output."""
    return te.compute(list(tensor.shape), lambda *i: tensor[i] if i else tensor(), "out")


def _scalars(annotations: Iterable[Annotation], symbols: Iterable[SymVar]) -> list[SymVar]:
    """The symbols that are not a dimension of any tensor: the program cannot read them from a buffer's shape."""
    alone: set[SymVar] = set()

    def collect(annotation: Annotation) -> None:
        if isinstance(annotation, TensorType):
            for dim in annotation.dims or ():
                if dim.symbol is not None:
                    alone.add(dim.symbol)
        elif isinstance(annotation, TupleType):
            for item in annotation.fields:
                collect(item)

    for annotation in annotations:
        collect(annotation)
    return [s for s in symbols if s not in alone]
