"""The functions of TVM's lowered programs that compute shapes, so that such programs run here.

TVM keeps dimensions in a tensor, the shape heap, which a program allocates and passes to these functions (a program
without symbols passes the null value). A dimension is described by two integers: an action (the codes below), and a
number or a heap index. Our own lowering uses instructions instead (`relaxpy.op.memory`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime.tensor import Shape, Tensor, empty, sizes

EQUALS_NUMBER, STORE, IGNORE, EQUALS_HEAP = 0, 1, 2, 3
"""The actions of `match_shape` for a dimension."""
NUMBER, LOAD = 0, 1
"""The sources of `make_shape` for a dimension."""


def alloc_shape_heap(size: int) -> Tensor:
    """Allocates a heap of `size` integers."""
    heap = empty((int(size),), "int64")
    heap.numpy()[...] = 0
    return heap


def match_shape(value: Any, heap: Tensor | None, count: int, *rest: Any) -> tuple[()]:
    """Compares each of the `count` dimensions of a tensor or shape, or stores it. The last argument is the context for
    errors.

    Raises: RuntimeCheckError (`check`).
    """
    *codes, context = rest
    dims = value.shape if isinstance(value, Tensor) else tuple(value)
    if len(dims) != count:
        _fail(context, f"{count} dimensions are expected, got {len(dims)}")
    for i, (dim, (code, operand)) in enumerate(zip(dims, _pairs(codes), strict=True)):
        _match(int(dim), heap, code, operand, f"{context}dimension {i}")
    return ()


def match_prim_value(
    value: int, heap: Tensor | None, code: int, operand: int, context: str = ""
) -> tuple[()]:
    """Compares a scalar, or stores it."""
    _match(int(value), heap, code, operand, context)
    return ()


def _match(value: int, heap: Tensor | None, code: int, operand: int, what: str) -> None:
    if code == STORE:
        _places(heap)[operand] = value
    elif code in (EQUALS_NUMBER, EQUALS_HEAP):
        expected = operand if code == EQUALS_NUMBER else int(_places(heap)[operand])
        if value != expected:
            _fail(what, f"must be {expected}, got {value}")


def make_shape(heap: Tensor | None, count: int, *codes: int) -> Shape:
    """A shape of `count` dimensions."""
    found = [make_prim_value(heap, code, n) for code, n in _pairs(codes)]
    if len(found) != count:
        raise RuntimeCheckError("check", f"{count} dimensions are expected, got {len(found)}")
    return sizes(found)


def make_prim_value(heap: Tensor | None, code: int, operand: int) -> int:
    """A scalar."""
    return int(_places(heap)[operand]) if code == LOAD else int(operand)


def _places(heap: Tensor | None) -> Any:
    if heap is None:
        raise RuntimeCheckError("check", "the shape heap is the null value, which has no places")
    return heap.numpy()


def check_tensor_info(value: Any, ndim: int, *rest: Any) -> tuple[()]:
    """Checks that a value is a tensor of rank `ndim` (-1: any) and of this dtype (omitted, null or empty: any)."""
    *dtype, context = rest
    if not isinstance(value, Tensor):
        _fail(context, f"a tensor is expected, got {type(value).__name__}")
    if ndim not in (-1, len(value.shape)):
        _fail(context, f"{ndim} dimensions are expected, got {len(value.shape)}")
    if dtype and str(dtype[0] or "") not in ("", "void", value.dtype):
        _fail(context, f"dtype {dtype[0]} is expected, got {value.dtype}")
    return ()


def check_shape_info(value: Any, ndim: int, context: str = "") -> tuple[()]:
    """Checks that a value is a shape of `ndim` dimensions (-1: any)."""
    if not isinstance(value, Shape) or ndim not in (-1, len(value)):
        _fail(context, f"a shape of {ndim} dimensions is expected, got {value!r}")
    return ()


def check_prim_value_info(value: Any, dtype: Any, context: str = "") -> tuple[()]:
    """Checks that a value is a scalar of this kind."""
    kinds: dict[str, type | tuple[type, ...]] = {"i": int, "u": int, "f": (int, float), "b": bool}
    if not isinstance(value, kinds.get(str(dtype)[:1], object)):
        _fail(context, f"a scalar of dtype {dtype} is expected, got {value!r}")
    return ()


def check_tuple_info(value: Any, count: int, context: str = "") -> tuple[()]:
    """Checks that a value is a tuple of `count` fields."""
    if not isinstance(value, tuple) or len(value) != count:
        _fail(context, f"a tuple of {count} is expected")
    return ()


def check_func_info(value: Any, context: str = "") -> tuple[()]:
    """Checks that a value is a function."""
    if not callable(value):
        _fail(context, f"a function is expected, got {type(value).__name__}")
    return ()


def tuple_getitem(value: tuple[Any, ...], index: int) -> Any:
    """A field of a tuple."""
    return value[index]


def _pairs(codes: Sequence[Any]) -> Iterator[tuple[int, int]]:
    return zip(map(int, codes[::2]), map(int, codes[1::2]), strict=True)


def _fail(context: Any, problem: str) -> None:
    text = str(context).strip()
    raise RuntimeCheckError("check", f"{text}: {problem}" if text else problem)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    f"vm.builtin.{function.__name__}": function
    for function in (
        alloc_shape_heap, match_shape, match_prim_value, make_shape, make_prim_value, check_tensor_info,
        check_shape_info, check_prim_value_info, check_tuple_info, check_func_info, tuple_getitem,
    )
}  # fmt: skip
"""These functions by their names in TVM's programs."""
