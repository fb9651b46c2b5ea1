from collections.abc import Sequence
from typing import Any

from tvm_ffi import Array

from tvm.ir import Expr, PrimType, Type, Var

class BufferType(Type):
    dtype: PrimType
    storage_scope: str
    shape: Array[Expr]
    strides: Array[Expr]
    elem_offset: Expr
    data_alignment: int
    offset_factor: int
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

def is_buffer_var(value: object) -> bool: ...
def decl_buffer(shape: Sequence[Any], dtype: Any = ..., name: str = ..., **options: Any) -> Var: ...
def buffer_data(buffer: Var) -> Expr: ...
