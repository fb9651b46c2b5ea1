"""TVM's memory and VM instructions, parsed as ours.

TVM has three sets of them, one for each stage of its lowering (`R.builtin`, `R.memory`, `R.vm`); here there is one
(`relaxpy.op.memory`). So the output of any stage of TVM becomes a program in our vocabulary, which the interpreter and
the virtual machine run. Devices and memory scopes are accepted and ignored: the target determines where a program runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from relaxpy.errors import DeduceError, ScriptError
from relaxpy.ir.annotation import ObjectType, ShapeType
from relaxpy.ir.dim import product
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import (
    Call,
    DataTypeImm,
    Expr,
    GlobalVar,
    PrimValue,
    ShapeExpr,
    StringImm,
    Tuple,
    Var,
)
from relaxpy.op.base import as_expr
from relaxpy.op.call import call_pure_packed
from relaxpy.op.intrinsic import AssertOp, Print, ShapeToTensor
from relaxpy.op.memory import AllocStorage, AllocTensor, CallDPS, Kill, MakeClosure, View
from relaxpy.op.set import Nonzero, Unique
from relaxpy.script.annotations import as_dim
from relaxpy.script.devices import numbered_device


def alloc_storage(size: Any = None, *rest: Any, **options: Any) -> Call:
    """`R.memory.alloc_storage(size)`, with the size in bytes; TVM: `(R.shape([bytes]), device, scope, dtype)`. The
    device is the number of an entry of the module's table."""
    if size is None:
        size = options.pop("shape", None)
    if rest:
        options["virtual_device_index"] = rest[0]
    vdevice = _text(options.pop("vdevice", None)) or _device("memory.alloc_storage", options)
    _only_places("memory.alloc_storage", {**options, **dict(zip("23", rest[1:], strict=False))})
    if isinstance(size, ShapeExpr):
        size = PrimValue(product(size.dims))
    return AllocStorage(vdevice=vdevice)(as_expr(size))


def alloc_tensor(*args: Any, **options: Any) -> Call:
    """`R.memory.alloc_tensor(shape[, storage], dtype=…)`; TVM: `(storage, offset, shape, dtype[, device])`."""
    if len(args) < 3 and not {"shape", "storage"} & options.keys():
        if isinstance(options.get("dtype"), (DataTypeImm, StringImm)):
            options["dtype"] = _dtype(options["dtype"])
        return AllocTensor.make(*args, **options)
    names = ("storage", "offset", "shape", "dtype", "runtime_device_ind")
    given = {"offset": 0, **dict(zip(names, args, strict=False)), **options}
    missing = {"storage", "shape", "dtype"} - given.keys()
    if missing:
        problem = f"memory.alloc_tensor: {', '.join(sorted(missing))} is missing"
        raise DeduceError("op-arguments", problem)
    storage, offset, shape, dtype = (given.pop(name) for name in names[:4])
    vdevice = _text(given.pop("vdevice", None)) or _device("memory.alloc_tensor", given)
    _only_places("memory.alloc_tensor", given)
    begin = _constant_offset("memory.alloc_tensor", offset)
    made = AllocTensor(dtype=_dtype(dtype), offset=begin, vdevice=vdevice)
    return made(_shape(shape), as_expr(storage))


def builtin_alloc_tensor(
    shape: Any,
    dtype: Any = None,
    runtime_device_index: Any = 0,
    storage_scope: Any = "global",
    ty_args: Any = (),
) -> Call:
    """TVM's `R.builtin.alloc_tensor(shape, dtype, device, scope)`: a tensor with its own memory. The device is the
    number of an entry of the module's table."""
    del storage_scope, ty_args
    places = {"runtime_device_index": runtime_device_index}
    vdevice = _device("builtin.alloc_tensor", places)
    return AllocTensor(dtype=_dtype(dtype), vdevice=vdevice)(_shape(shape))


def kill(*values: Any) -> Call:
    """TVM's `R.memory.kill_tensor(x)`, `R.memory.kill_storage(s)`, `R.vm.kill_object(x)`."""
    return Kill()(*map(as_expr, values))


def view(
    data: Any = None,
    shape: Any = None,
    dtype: Any = None,
    relative_byte_offset: Any = None,
    **options: Any,
) -> Call:
    """`R.memory.view(x, shape, dtype=…, offset=…)`; TVM: `(x, shape, dtype, relative_byte_offset)`."""
    data = options.pop("x", data)
    known = getattr(as_expr(data), "annotation", None)
    if not _is_given(dtype):
        dtype = getattr(known, "dtype", None) or "float32"
    if not _is_given(shape):
        shape = ShapeExpr(getattr(known, "dims", None) or ())
    if _is_given(relative_byte_offset):
        options["offset"] = _constant_offset("memory.view", relative_byte_offset)
    return View.make(data, _shape(shape), dtype=_dtype(dtype), **options)


def ensure_zero_offset(x: Any) -> Expr:
    """TVM's `R.memory.ensure_zero_offset(x)`: returns x, since tensors here always start at the beginning of their
    memory."""
    return as_expr(x)


def call_tir_dyn(func: Any, args: Any) -> Call:
    """TVM's `R.vm.call_tir_dyn(cls.f, (x, out, R.shape([n])))`: tensors, followed by the program's scalars."""
    if not isinstance(func, GlobalVar):
        raise ScriptError(
            "bad-value",
            "R.vm.call_tir_dyn calls a tensor program of the module",
            help="write cls.f, where f is a @T.prim_func of the same class",
        )
    values = args.fields if isinstance(args, Tuple) else tuple(map(as_expr, args))
    if values and isinstance(values[-1], ShapeExpr):
        values = (*values[:-1], *map(PrimValue, values[-1].dims))
    return CallDPS()(func, *values)


def make_closure(func: Any, args: Any = ()) -> Call:
    """`R.make_closure(f, (captured…))`: f with its last parameters bound."""
    captured = args.fields if isinstance(args, Tuple) else tuple(map(as_expr, args))
    return MakeClosure()(as_expr(func), *captured)


def _make_closure(func: Any, *captured: Any) -> Call:
    return make_closure(func, captured)


def _unique(x: Any, *attrs: Any) -> Call:
    """Four flags, and an axis unless all elements are compared."""
    flags, axis = [bool(_number(attr)) for attr in attrs[:4]], None
    if len(attrs) > 4:
        axis = _number(attrs[4])
    return Unique(*flags, axis=axis)(as_expr(x))


def _number(attr: Any) -> int | None:
    """The value of an attribute that is passed as an argument: a number or a boolean."""
    if isinstance(attr, PrimValue):
        attr = attr.value
    dim = None if isinstance(attr, bool) else as_dim(attr)
    return dim.value if dim is not None else int(attr)


def _print(format: Any, *values: Any) -> Call:
    return Print.make(*values, format=_text(format) or "")


def _assert_op(condition: Any, format: Any = "", *values: Any) -> Call:
    text = _text(format)
    return AssertOp.make(condition, *values, **({"format": text} if text else {}))


def null_value() -> Call:
    """`R.null_value()`: the null value, Python's None."""
    return call_pure_packed("vm.builtin.null_value", ty_args=ObjectType())


def _dtype(value: Any) -> str:
    if isinstance(value, DataTypeImm):
        return str(value.dtype)
    return str(DType(value.value if isinstance(value, StringImm) else value))


def _is_given(value: Any) -> bool:
    """Was this argument given? TVM prints an empty tuple for an omitted one."""
    return value is not None and not (isinstance(value, Tuple) and not value.fields)


def _shape(value: Any) -> Expr:
    if isinstance(value, Var) and isinstance(value.annotation, ShapeType):
        return value
    return as_expr(value, ShapeType)


def _text(value: Any) -> str | None:
    """The name of a virtual device, if given."""
    return value.value if isinstance(value, StringImm) else value


def _constant_offset(name: str, offset: Any) -> int:
    dim = as_dim(offset)
    if dim is None or dim.value is None or dim.value < 0:
        raise DeduceError(
            "op-arguments", f"{name}: the offset must be a constant number of bytes, at least 0"
        )
    return dim.value


def _device(name: str, options: dict[str, Any]) -> str | None:
    """Take the device out of an allocation's options: its name, or None if there is none.

    Raises: DeduceError, ScriptError (`device-name`).
    """
    given = [options.pop(key) for key in _DEVICES if key in options]
    if not given or not _is_given(given[0]):
        return None
    dim = None if isinstance(given[0], (StringImm, DataTypeImm)) else as_dim(given[0])
    if dim is None or dim.value is None or dim.value < -1:
        problem = (
            f"{name}: a device is the number of an entry of the module's table, or -1: the host"
        )
        raise DeduceError("device-name", problem)
    return numbered_device(dim.value)


_DEVICES = ("virtual_device_index", "runtime_device_index", "runtime_device_ind")
"""TVM's keywords for the number of an allocation's device."""


def _only_places(name: str, given: Mapping[str, Any]) -> None:
    """Refuse arguments other than those for the kind of memory, which are ignored."""
    unknown = [key for key in given if key not in ("dtype", "storage_scope") and not key.isdigit()]
    if unknown:
        raise DeduceError("op-arguments", f"{name} has no argument {unknown[0]!r}")


SPELLINGS: dict[str, Callable[..., Any]] = {
    "builtin.alloc_tensor": builtin_alloc_tensor,
    "make_closure": make_closure,
    "memory.alloc_storage": alloc_storage,
    "memory.alloc_tensor": alloc_tensor,
    "memory.ensure_zero_offset": ensure_zero_offset,
    "memory.kill_storage": kill,
    "memory.kill_tensor": kill,
    "memory.view": view,
    "null_value": null_value,
    "vm.alloc_storage": alloc_storage,
    "vm.alloc_tensor": alloc_tensor,
    "vm.call_tir_dyn": call_tir_dyn,
    "vm.kill_object": kill,
}
"""Name after `R.` → function that reads the call. These take precedence over operators of the same names."""

FUNCTIONS: dict[str, Callable[..., Call]] = {
    "relax.run.assert_op": _assert_op,
    "relax.run.nonzero": lambda x: Nonzero()(as_expr(x)),
    "relax.run.print": _print,
    "relax.run.shape_to_tensor": lambda shape: ShapeToTensor()(_shape(shape)),
    "relax.run.unique": _unique,
    "vm.builtin.make_closure": _make_closure,
}
"""TVM's runtime functions, as they are called by name → function that reads the call as our operator."""
