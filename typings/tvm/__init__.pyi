"""The part of TVM that relaxpy uses, typed for the type checker.

TVM has no annotations of its own worth the name: classes get fields and constructors from C++ when they are registered,
and `Expr` its operators from a mixin of some subclasses only. These stubs give the fields that relaxpy reads by name;
any other attribute of a TVM object is `Any`. tests/tir/test_tvm.py compares them with the installed TVM.
"""

from typing import Any

import tvm_ffi

from tvm import error as error
from tvm import ir as ir
from tvm import runtime as runtime
from tvm import s_tir as s_tir
from tvm import script as script
from tvm import sym as sym
from tvm import target as target
from tvm import te as te
from tvm import tirx as tirx
from tvm.ir import IRModule as IRModule
from tvm.ir import transform as transform
from tvm.runtime import Object as Object

DataType = tvm_ffi.dtype

topi: Any

get_global_func = tvm_ffi.get_global_func
