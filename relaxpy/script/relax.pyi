"""Written from the table of operators by `make stubs`; see tests/stubs.py."""

import builtins
import typing
from collections.abc import Sequence

from relaxpy.ir.expr import Call
from relaxpy.op import abs as abs
from relaxpy.op import acos as acos
from relaxpy.op import acosh as acosh
from relaxpy.op import add as add
from relaxpy.op import all as all
from relaxpy.op import any as any
from relaxpy.op import arange as arange
from relaxpy.op import argmax as argmax
from relaxpy.op import argmin as argmin
from relaxpy.op import argsort as argsort
from relaxpy.op import asin as asin
from relaxpy.op import asinh as asinh
from relaxpy.op import assert_op as assert_op
from relaxpy.op import astype as astype
from relaxpy.op import atan as atan
from relaxpy.op import atan2 as atan2
from relaxpy.op import atanh as atanh
from relaxpy.op import bessel_i0 as bessel_i0
from relaxpy.op import bessel_i0e as bessel_i0e
from relaxpy.op import bessel_i1 as bessel_i1
from relaxpy.op import bessel_i1e as bessel_i1e
from relaxpy.op import bitcast as bitcast
from relaxpy.op import bitwise_and as bitwise_and
from relaxpy.op import bitwise_not as bitwise_not
from relaxpy.op import bitwise_or as bitwise_or
from relaxpy.op import bitwise_xor as bitwise_xor
from relaxpy.op import broadcast_to as broadcast_to
from relaxpy.op import bucketize as bucketize
from relaxpy.op import builtin as builtin
from relaxpy.op import ceil as ceil
from relaxpy.op import clip as clip
from relaxpy.op import collapse_sum_like as collapse_sum_like
from relaxpy.op import collapse_sum_to as collapse_sum_to
from relaxpy.op import concat as concat
from relaxpy.op import cos as cos
from relaxpy.op import cosh as cosh
from relaxpy.op import count_leading_zeros as count_leading_zeros
from relaxpy.op import cumlogsumexp as cumlogsumexp
from relaxpy.op import cummax as cummax
from relaxpy.op import cummin as cummin
from relaxpy.op import cumprod as cumprod
from relaxpy.op import cumsum as cumsum
from relaxpy.op import dequantize as dequantize
from relaxpy.op import digamma as digamma
from relaxpy.op import divide as divide
from relaxpy.op import dynamic_strided_slice as dynamic_strided_slice
from relaxpy.op import dynamic_update_slice as dynamic_update_slice
from relaxpy.op import einsum as einsum
from relaxpy.op import equal as equal
from relaxpy.op import erf as erf
from relaxpy.op import erfc as erfc
from relaxpy.op import erfcx as erfcx
from relaxpy.op import erfinv as erfinv
from relaxpy.op import ewise_fma as ewise_fma
from relaxpy.op import exp as exp
from relaxpy.op import expand_dims as expand_dims
from relaxpy.op import expm1 as expm1
from relaxpy.op import eye as eye
from relaxpy.op import eye_like as eye_like
from relaxpy.op import flatten as flatten
from relaxpy.op import flip as flip
from relaxpy.op import float_arange as float_arange
from relaxpy.op import floor as floor
from relaxpy.op import floor_divide as floor_divide
from relaxpy.op import floor_mod as floor_mod
from relaxpy.op import full as full
from relaxpy.op import full_like as full_like
from relaxpy.op import gather as gather
from relaxpy.op import gather_elements as gather_elements
from relaxpy.op import gather_nd as gather_nd
from relaxpy.op import grad as grad
from relaxpy.op import greater as greater
from relaxpy.op import greater_equal as greater_equal
from relaxpy.op import hamming_window as hamming_window
from relaxpy.op import hint_on_device as hint_on_device
from relaxpy.op import image as image
from relaxpy.op import index_put as index_put
from relaxpy.op import index_tensor as index_tensor
from relaxpy.op import inspect as inspect
from relaxpy.op import isfinite as isfinite
from relaxpy.op import isinf as isinf
from relaxpy.op import isnan as isnan
from relaxpy.op import layout_transform as layout_transform
from relaxpy.op import left_shift as left_shift
from relaxpy.op import less as less
from relaxpy.op import less_equal as less_equal
from relaxpy.op import lgamma as lgamma
from relaxpy.op import linear as linear
from relaxpy.op import log as log
from relaxpy.op import log10 as log10
from relaxpy.op import log1p as log1p
from relaxpy.op import log2 as log2
from relaxpy.op import log_add_exp as log_add_exp
from relaxpy.op import log_ndtr as log_ndtr
from relaxpy.op import logical_and as logical_and
from relaxpy.op import logical_not as logical_not
from relaxpy.op import logical_or as logical_or
from relaxpy.op import logical_xor as logical_xor
from relaxpy.op import matmul as matmul
from relaxpy.op import max as max
from relaxpy.op import maximum as maximum
from relaxpy.op import mean as mean
from relaxpy.op import median as median
from relaxpy.op import meshgrid as meshgrid
from relaxpy.op import min as min
from relaxpy.op import minimum as minimum
from relaxpy.op import mod as mod
from relaxpy.op import multinomial_from_uniform as multinomial_from_uniform
from relaxpy.op import multiply as multiply
from relaxpy.op import ndtri as ndtri
from relaxpy.op import negative as negative
from relaxpy.op import nextafter as nextafter
from relaxpy.op import nn as nn
from relaxpy.op import nonzero as nonzero
from relaxpy.op import not_equal as not_equal
from relaxpy.op import one_hot as one_hot
from relaxpy.op import ones as ones
from relaxpy.op import ones_like as ones_like
from relaxpy.op import outer as outer
from relaxpy.op import permute_dims as permute_dims
from relaxpy.op import population_count as population_count
from relaxpy.op import power as power
from relaxpy.op import print as print
from relaxpy.op import process_logits as process_logits
from relaxpy.op import prod as prod
from relaxpy.op import quantize as quantize
from relaxpy.op import random_uniform as random_uniform
from relaxpy.op import reduce_precision as reduce_precision
from relaxpy.op import reduce_window as reduce_window
from relaxpy.op import repeat as repeat
from relaxpy.op import reshape as reshape
from relaxpy.op import reverse_sequence as reverse_sequence
from relaxpy.op import right_shift as right_shift
from relaxpy.op import round as round
from relaxpy.op import rsqrt as rsqrt
from relaxpy.op import sample_from_logits as sample_from_logits
from relaxpy.op import scalar_to_tensor as scalar_to_tensor
from relaxpy.op import scatter as scatter
from relaxpy.op import scatter_elements as scatter_elements
from relaxpy.op import scatter_nd as scatter_nd
from relaxpy.op import select_and_scatter_add as select_and_scatter_add
from relaxpy.op import shape_of as shape_of
from relaxpy.op import shape_to_tensor as shape_to_tensor
from relaxpy.op import sigmoid as sigmoid
from relaxpy.op import sign as sign
from relaxpy.op import sin as sin
from relaxpy.op import sinh as sinh
from relaxpy.op import size as size
from relaxpy.op import slice_scatter as slice_scatter
from relaxpy.op import sort as sort
from relaxpy.op import split as split
from relaxpy.op import sqrt as sqrt
from relaxpy.op import square as square
from relaxpy.op import squeeze as squeeze
from relaxpy.op import stack as stack
from relaxpy.op import std as std
from relaxpy.op import strided_slice as strided_slice
from relaxpy.op import subtract as subtract
from relaxpy.op import sum as sum
from relaxpy.op import take as take
from relaxpy.op import tan as tan
from relaxpy.op import tanh as tanh
from relaxpy.op import tensor_to_scalar as tensor_to_scalar
from relaxpy.op import tensor_to_shape as tensor_to_shape
from relaxpy.op import threefry as threefry
from relaxpy.op import tile as tile
from relaxpy.op import to_vdevice as to_vdevice
from relaxpy.op import topk as topk
from relaxpy.op import tril as tril
from relaxpy.op import triu as triu
from relaxpy.op import trunc as trunc
from relaxpy.op import unique as unique
from relaxpy.op import variance as variance
from relaxpy.op import vision as vision
from relaxpy.op import where as where
from relaxpy.op import wrap_param as wrap_param
from relaxpy.op import zeros as zeros
from relaxpy.op import zeros_like as zeros_like
from relaxpy.op.function import ExprLike
from relaxpy.script.annotations import Callable_ as Callable
from relaxpy.script.annotations import Object as Object
from relaxpy.script.annotations import Prim as Prim
from relaxpy.script.annotations import Shape as Shape
from relaxpy.script.annotations import Tensor as Tensor
from relaxpy.script.annotations import Tuple as Tuple
from relaxpy.script.calls import call_builtin_with_ctx as call_builtin_with_ctx
from relaxpy.script.calls import call_dps_library as call_dps_library
from relaxpy.script.calls import call_inplace_packed as call_inplace_packed
from relaxpy.script.calls import call_packed as call_packed
from relaxpy.script.calls import call_pure_packed as call_pure_packed
from relaxpy.script.calls import call_tir as call_tir
from relaxpy.script.calls import call_tir_inplace as call_tir_inplace
from relaxpy.script.calls import call_tir_with_grad as call_tir_with_grad
from relaxpy.script.calls import invoke_closure as invoke_closure
from relaxpy.script.calls import invoke_pure_closure as invoke_pure_closure
from relaxpy.script.constants import const_ref as const_ref
from relaxpy.script.data import Type as Type
from relaxpy.script.data import data as data
from relaxpy.script.data import type_param as type_param
from relaxpy.script.data import type_ as type
from relaxpy.script.intrinsics import const as const
from relaxpy.script.intrinsics import cpu as cpu
from relaxpy.script.intrinsics import cuda as cuda
from relaxpy.script.intrinsics import dataflow as dataflow
from relaxpy.script.intrinsics import device as device
from relaxpy.script.intrinsics import func_attr as func_attr
from relaxpy.script.intrinsics import function as function
from relaxpy.script.intrinsics import match_cast as match_cast
from relaxpy.script.intrinsics import output as output
from relaxpy.script.intrinsics import prim_value as prim_value
from relaxpy.script.intrinsics import shape as shape
from relaxpy.script.intrinsics import data_type as dtype
from relaxpy.script.intrinsics import extern_func as ExternFunc
from relaxpy.script.intrinsics import string as str
from relaxpy.script.intrinsics import tuple_ as tuple
from relaxpy.script.intrinsics import tuple_get_item as TupleGetItem
from relaxpy.script.macro import macro as macro
from relaxpy.script.annotations import Object as Any
from relaxpy.script.intrinsics import shape as ShapeExpr
from relaxpy.script.calls import call_dps_library as call_dps_packed

__all__ = ["Any", "Callable", "ExternFunc", "Object", "Prim", "Shape", "ShapeExpr", "Tensor", "Tuple", "TupleGetItem", "Type", "abs", "acos", "acosh", "add", "all", "any", "arange", "argmax", "argmin", "argsort", "asin", "asinh", "assert_op", "astype", "atan", "atan2", "atanh", "bessel_i0", "bessel_i0e", "bessel_i1", "bessel_i1e", "bitcast", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "broadcast_to", "bucketize", "builtin", "call_builtin_with_ctx", "call_dps_library", "call_dps_packed", "call_inplace_packed", "call_packed", "call_pure_packed", "call_tir", "call_tir_inplace", "call_tir_with_grad", "ceil", "clip", "collapse_sum_like", "collapse_sum_to", "concat", "const", "const_ref", "cos", "cosh", "count_leading_zeros", "cpu", "cuda", "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "data", "dataflow", "dequantize", "device", "digamma", "divide", "dtype", "dynamic_strided_slice", "dynamic_update_slice", "einsum", "equal", "erf", "erfc", "erfcx", "erfinv", "ewise_fma", "exp", "expand_dims", "expm1", "eye", "eye_like", "flatten", "flip", "float_arange", "floor", "floor_divide", "floor_mod", "full", "full_like", "func_attr", "function", "gather", "gather_elements", "gather_nd", "grad", "greater", "greater_equal", "hamming_window", "hint_on_device", "image", "index_put", "index_tensor", "inspect", "invoke_closure", "invoke_pure_closure", "isfinite", "isinf", "isnan", "layout_transform", "left_shift", "less", "less_equal", "lgamma", "linear", "log", "log10", "log1p", "log2", "log_add_exp", "log_ndtr", "logical_and", "logical_not", "logical_or", "logical_xor", "macro", "match_cast", "matmul", "max", "maximum", "mean", "median", "memory", "meshgrid", "min", "minimum", "mod", "multinomial_from_uniform", "multiply", "ndtri", "negative", "nextafter", "nn", "nonzero", "not_equal", "one_hot", "ones", "ones_like", "outer", "output", "permute_dims", "population_count", "power", "prim_value", "print", "process_logits", "prod", "quantize", "random_uniform", "reduce_precision", "reduce_window", "repeat", "reshape", "reverse_sequence", "right_shift", "round", "rsqrt", "sample_from_logits", "scalar_to_tensor", "scatter", "scatter_elements", "scatter_nd", "select_and_scatter_add", "shape", "shape_of", "shape_to_tensor", "sigmoid", "sign", "sin", "sinh", "size", "slice_scatter", "sort", "split", "sqrt", "square", "squeeze", "stack", "std", "str", "strided_slice", "subtract", "sum", "take", "tan", "tanh", "tensor_to_scalar", "tensor_to_shape", "threefry", "tile", "to_vdevice", "topk", "tril", "triu", "trunc", "tuple", "type", "type_param", "unique", "variance", "vision", "vm", "where", "wrap_param", "zeros", "zeros_like"]

class Namespace:
    """The operators with a common prefix: `R.nn`."""

    def __init__(self, prefix: typing.Any) -> None:
        ...

    def __getattr__(self, name: typing.Any) -> typing.Any:
        ...

    def __call__(self, function: typing.Any, argnums: typing.Any=0) -> typing.Any:
        """`R.grad(f)`: the gradient of a function. Other namespaces cannot be called."""

    def __repr__(self) -> typing.Any:
        ...

    def __dir__(self) -> typing.Any:
        ...

def operators() -> typing.Any:
    """The complete operator table."""

def find(name: typing.Any) -> typing.Any:
    """The member `R.<name>`: an operator's function, or a namespace of operators. Raises `AttributeError`."""

def known_names() -> typing.Any:
    """All names that can follow `R.`, for suggestions."""

class _memory:
    @staticmethod
    def alloc_storage(*args: ExprLike, vdevice: builtins.str | None = None) -> Call:
        """`memory.alloc_storage(size, vdevice=…)`: `size` bytes that are freed when the call ends."""
    @staticmethod
    def alloc_tensor(
        *args: ExprLike,
        dtype: builtins.str = "float32",
        at: int = -1,
        vdevice: builtins.str | None = None,
        offset: int = 0,
    ) -> Call:
        """`memory.alloc_tensor(shape[, storage], dtype=…, offset=…, vdevice=…)`: an uninitialised tensor, `offset` bytes
        into the storage. Without a storage it has memory of its own, and may be returned. `at` is the heap slot of its
        shape, once lowered.
        """
    @staticmethod
    def copy_to(*args: ExprLike, vdevice: builtins.str) -> Call:
        """`memory.copy_to(x, vdevice=…)`: the tensor x in the memory of a virtual device; x itself if it is already there,
        else a copy.
        """
    @staticmethod
    def kill(*args: ExprLike) -> Call:
        """`memory.kill(x, …)`: end the lifetime of these values."""
    @staticmethod
    def read(*args: ExprLike) -> Call:
        """`memory.read(x)`: the element of the 0-d tensor x, on any device, as a scalar."""
    @staticmethod
    def view(*args: ExprLike, dtype: builtins.str, at: int = -1, offset: int = 0) -> Call:
        """`memory.view(x, shape, dtype=…, offset=…)`: a view of the compact tensor x with another shape, starting at byte
        `offset`.
        """

memory: _memory

class _vm:
    @staticmethod
    def begin_graph(*args: ExprLike) -> Call:
        """`vm.begin_graph()`: the bindings up to the next `vm.end_graph` launch tensor programs of one device on static
        memory. They may be recorded and replayed as a graph. What they bind is not used after them.
        """
    @staticmethod
    def call_dps(*args: ExprLike) -> Call:
        """`vm.call_dps(f, args…)`: run a tensor program, or a library function given by name, on inputs, outputs, and
        symbolic variables.
        """
    @staticmethod
    def check_dim(*args: ExprLike, message: builtins.str = "") -> Call:
        """`vm.check_dim(condition, message=…)`: raise an error unless a relation of dimensions, which could not be decided
        at compile time, holds.
        """
    @staticmethod
    def check_equal(
        *args: ExprLike,
        what: builtins.str = "parameter",
        of: builtins.str = "",
        annotation: builtins.str = "",
        detail: builtins.str = "",
    ) -> Call:
        """`vm.check_equal(came, expected, …)`: raise an error unless two integers are equal. `of` is the annotation,
        `detail` the relation.
        """
    @staticmethod
    def end_graph(*args: ExprLike) -> Call:
        """`vm.end_graph()`: the end of a graph."""
    @staticmethod
    def make_closure(*args: ExprLike) -> Call:
        """`vm.make_closure(f, captured…)`: a function value whose last parameters are bound to these values."""
    @staticmethod
    def make_shape(*args: ExprLike, at: int = -1) -> Call:
        """`vm.make_shape(shape, at=…)`: the shape value whose dimensions are in the heap slots from `at` on."""
    @staticmethod
    def match(
        *args: ExprLike,
        slots: Sequence[int] = (),
        what: builtins.str = "parameter",
        of: builtins.str = "",
        annotation: builtins.str = "",
    ) -> Call:
        """`vm.match(x, slots=[…], what=…)`: check x against its annotation and write its dimensions to heap slots. `slots`
        has an entry for each dimension, in order; -1 is a constant to compare with. `of` and `annotation` are used in error
        messages.
        """
    @staticmethod
    def store(*args: ExprLike, slot: int = 0) -> Call:
        """`vm.store(value, slot=…)`: write an integer to a heap slot."""

vm: _vm
