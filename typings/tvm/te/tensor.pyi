from typing import Any

from tvm_ffi import Array

from tvm.ir import Expr, _Operators

class TensorSlice(_Operators):
    def asobject(self) -> Expr: ...
    def __getitem__(self, indices: Any) -> TensorSlice: ...

class Tensor(Expr):
    shape: Array[Expr]
    op: Any
    dtype: str
    ndim: int
    value_index: int
    name: str
