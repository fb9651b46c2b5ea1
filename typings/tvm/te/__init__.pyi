"""Tensor expressions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm_ffi import Array

from tvm.ir import Expr, Span
from tvm.runtime import Object
from tvm.te import tensor as tensor
from tvm.te.tensor import Tensor as Tensor
from tvm.te.tensor import TensorSlice as TensorSlice
from tvm.tirx import IterVar, PrimFunc
from tvm.tirx import comm_reducer as comm_reducer
from tvm.tirx import max as max
from tvm.tirx import min as min
from tvm.tirx import sum as sum

def placeholder(shape: Sequence[Any], dtype: str | None = ..., name: str = ...) -> Tensor: ...
def compute(
    shape: Sequence[Any],
    fcompute: Callable[..., Any],
    name: str = ...,
    tag: str = ...,
    attrs: Mapping[str, Any] | None = ...,
    varargs_names: Sequence[str] | None = ...,
) -> Any: ...
def reduce_axis(dom: Any, name: str = ..., thread_tag: str = ..., span: Span | None = ...) -> IterVar: ...
def create_prim_func(ops: Sequence[Any], index_dtype_override: str | None = ...) -> PrimFunc: ...
