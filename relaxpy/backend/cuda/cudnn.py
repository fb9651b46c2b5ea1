"""Two-dimensional convolutions by cuDNN where there is much to do (`relaxpy.backend.cuda.library`): with their bias, a
residual that is added, and relu.

These are the patterns for which the library has kernels in its package, for any layout. Others are compiled when they
are first called, and only for NHWC.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from relaxpy.analysis.dataflow_match import Match
from relaxpy.backend.arrangement import Arrangement, Rule
from relaxpy.backend.cuda.library import function_of, place_of, product_of, stored, with_library
from relaxpy.backend.cuda.target import CUDNN, CudaTarget
from relaxpy.backend.gpu.schedule.matmul import arrange_matmul
from relaxpy.backend.gpu.schedule.rows import arrange_rows
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import Dim
from relaxpy.ir.expr import Call
from relaxpy.ir.pattern import Pattern, is_op, wildcard
from relaxpy.op.conv import Conv2d
from relaxpy.op.data_layout import padding_pairs
from relaxpy.tir.prim_func import LIBRARY, LIBRARY_OPTIONS
from relaxpy.tir.programs.loops import constant
from relaxpy.tir.recognise.stages import Stage, is_output, loads_of, stages_of
from relaxpy.tir.recognise.windows import with_padding_inlined
from relaxpy.tir.tvm import tirx
from relaxpy.transform.fuse_ops_by_pattern import FusionPattern
from relaxpy.transform.outline import PRIMITIVE
from relaxpy.transform.product_patterns import dims_of

_LEAST = 1 << 22
"""The least multiplications for which a convolution is the library's.

Arithmetic: a thread of our kernel reads both factors of each multiplication, of which an H100 can do 2112 a cycle (132
multiprocessors, 32 reads each), so these take 1.2 µs at the least. The library is one launch or, where it has to bring
NCHW into its own layout, three. Measured on an H200 were those of 1e8 and more: there the library takes down to a 17th
of our time.
"""
_DTYPES = "float32", "float16", "bfloat16"
_LAYOUTS = {"NCHW": "OIHW", "NHWC": "OHWI"}
"""Layouts of data, and of the weight that goes with them."""


@dataclass(frozen=True)
class _Convolution:
    """`activation(conv2d(data, weight) + bias + residual)`, of which all but the first may be missing."""

    name: str
    pattern: Pattern
    data: Pattern
    weight: Pattern
    product: Pattern
    added: tuple[Pattern, ...]
    """The operands that are added: a bias and then a residual, in either order."""

    def takes(self, match: Match, _: Mapping[str, Pattern]) -> bool:
        """Whether the library has the function for these tensors."""
        op = _op(match, self.product)
        holes = (self.data, self.weight, *self.added, self.product, self.pattern)
        types = [match.annotation(each) for each in holes]
        dims = [dims_of(each) for each in types]
        dtypes = {str(each.dtype) for each in types if isinstance(each, TensorType)}
        if any(each is None for each in dims) or len(dtypes) != 1 or not dtypes <= {*_DTYPES}:
            return False
        weight, out, whole = (dims[n] or () for n in (1, -2, -1))
        if whole != out or _LAYOUTS.get(op.data_layout) != op.kernel_layout:
            return False
        if op.out_layout not in (None, op.data_layout):
            return False
        if weight[op.kernel_layout.index("I")].value == 1:  # depthwise, or an image of one channel
            return False
        work = product_of((*out, *weight[1:])).value
        if work is not None and work < _LEAST:
            return False
        axis = op.data_layout.index("C")
        added = [dims_of(match.annotation(each)) or () for each in self.added]
        kinds = sorted(_kind(each, out, axis) for each in added)
        return kinds == ["bias", "residual"][: len(added)]

    def attributes(self, match: Match) -> Mapping[str, Any]:
        """The attributes of the function."""
        op = _op(match, self.product)
        (top, bottom), (left, right) = padding_pairs(op.padding, 2)
        options = {
            "strides": [stride for _, stride, _ in op.per_letter()],
            "dilation": [dilation for _, _, dilation in op.per_letter()],
            "before": [top, left],
            "after": [bottom, right],
            "layout": op.data_layout,
        }
        return {PRIMITIVE: True, LIBRARY: self.name, LIBRARY_OPTIONS: json.dumps(options)}


def _op(match: Match, product: Pattern) -> Conv2d:
    binding = next(each for each in match.bindings if each.var is match[product])
    call = expect(Call, binding.value)
    return expect(Conv2d, call.op)


def _kind(dims: tuple[Dim, ...], out: tuple[Dim, ...], axis: int) -> str:
    """The role of an operand that is added to a result of these extents: a bias for each channel, a residual, or "" for
    other broadcasting. `axis` is that of the channels."""
    if dims == out:
        return "residual"
    along = len(dims) - (len(out) - axis)
    others = [each for n, each in enumerate(dims) if n != along]
    is_bias = along >= 0 and dims[along] == out[axis] and all(d.value == 1 for d in others)
    return "bias" if is_bias else ""


def cudnn_patterns() -> tuple[FusionPattern, ...]:
    """The patterns that mark convolutions in dataflow blocks, the longest first."""
    return tuple(
        FusionPattern(each.name, each.pattern, check=each.takes, attrs=each.attributes)
        for each in _convolutions()
    )


def _convolutions() -> Iterator[_Convolution]:
    for adds in ("bias", "residual"), ("bias",):
        for activation in ("relu", ""):
            yield _convolution(adds, activation)
    yield _convolution((), "")


def _convolution(adds: tuple[str, ...], activation: str) -> _Convolution:
    data, weight = wildcard(), stored()
    product = value = is_op("nn.conv2d")(data, weight)
    added = tuple(wildcard() for _ in adds)
    for each in added:
        value = is_op("add")(value, each, any_order=True)
    if activation:
        value = is_op(f"nn.{activation}")(value)
    name = "_".join(("conv2d", *adds, *([activation] if activation else [])))
    return _Convolution(f"{CUDNN}.{name}", value, data, weight, product, added)


def _arrange(func: tirx.PrimFunc, target: CudaTarget) -> Arrangement | None:
    """The schedule of a convolution that is marked, with the library call; None for other programs. Its own schedule is
    one launch: padding is read where it is used."""
    name = function_of(func, CUDNN, target)
    found = stages_of(func) if name else None
    if found is None:
        return None
    stages = with_padding_inlined(found, func)
    own = arrange_matmul(func, target) or arrange_rows(func, target, stages)
    places = _places(func, stages, name)
    if own is None or own.workspaces or places is None:
        return None
    out, weight = ([(tensor, axis) for axis in range(4)] for tensor in ("out", "weight"))
    data = [("data", axis) for axis in range(4)]
    numbers = ([*out, *weight[1:]], *([each] for each in (*data, *weight, *out)))
    dtype = str(func.params[places["data"]].dtype)
    return with_library(func, own, dtype, places, numbers, _LEAST)


def _places(func: tirx.PrimFunc, stages: list[Stage], name: str) -> dict[str, int] | None:
    """The parameters by their names in the call. The reduction reads data and the weight, and later stages what is
    added."""
    product, *later = stages
    if product.combiner is None or not isinstance(product.value, tirx.Mul):
        return None
    factors = [loads_of(each) for each in (product.value.a, product.value.b)]
    if not all(len(each) == 1 for each in factors) or not is_output(stages[-1], func):
        return None
    own = {stage.buffer for stage in stages}
    read = [load.source for stage in later for load in stage.loads if load.source not in own]
    added = sorted({place_of(func, buffer) for buffer in read}, key=lambda n: _extents(func, n))
    names = [each for each in ("bias", "residual") if f"_{each}" in name]
    if len(added) != len(names):
        return None
    data, weight, out = (
        place_of(func, each)
        for each in (factors[0][0].source, factors[1][0].source, stages[-1].buffer)
    )
    return {"data": data, "weight": weight, "out": out, **dict(zip(names, added, strict=True))}


def _extents(func: tirx.PrimFunc, place: int) -> int:
    """How many extents of a parameter are not 1: of a bias at most that of its channels."""
    return sum(constant(extent) != 1 for extent in func.params[place].shape)


CUDNN_RULE = Rule(CUDNN, _arrange)
