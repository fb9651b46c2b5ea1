"""ConvertLayout: compute convolutions, and what is between them, in another layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from relaxpy.analysis.called_functions import called_functions
from relaxpy.analysis.called_operators import calls_operator
from relaxpy.analysis.weights import packed_params
from relaxpy.errors import UsageError
from relaxpy.ir.accessors import expect, known_dims
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import Dim
from relaxpy.ir.expr import (
    Binding,
    BindingBlock,
    Call,
    Constant,
    DataflowVar,
    Expr,
    Function,
    ShapeExpr,
    Tuple,
    Var,
    VarBinding,
)
from relaxpy.ir.module import IRModule
from relaxpy.ir.visitor import used_vars
from relaxpy.op.adaptive_pool import AdaptiveAvgPool2d
from relaxpy.op.base import Op
from relaxpy.op.conv import Conv2d
from relaxpy.op.data_layout import Layout
from relaxpy.op.datatype import Astype
from relaxpy.op.deduce import deduce
from relaxpy.op.elementwise import Elementwise
from relaxpy.op.join import Concat
from relaxpy.op.manipulate import PermuteDims
from relaxpy.op.pad import Pad
from relaxpy.op.pool import AvgPool2d, MaxPool2d
from relaxpy.op.quantization import Dequantize, Quantize
from relaxpy.op.reduce import Extreme, Mean, Reduction, Sum
from relaxpy.op.resize import Resize2d
from relaxpy.op.row_major import Reshape
from relaxpy.op.slice import StridedSlice
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.lifted_weights import weights_first
from relaxpy.transform.rebuild import Rebuilder

PLAIN = Layout("NCHW")
"""The layout that is converted."""
KERNEL = Layout("OIHW")
POOLINGS = (MaxPool2d, AvgPool2d, AdaptiveAvgPool2d, Resize2d)
"""Operators with a layout, over the spatial axes."""
REDUCTIONS = (Sum, Mean, Extreme)
DTYPES = ("float32", "float64", "bfloat16")
"""The dtypes of the convolutions that are converted."""
NARROW = ("int8", "uint8", "int16")
"""The dtypes of factors of those whose sums are of int32."""


@dataclass(frozen=True)
class ConvertLayout(Pass):
    """Compute two-dimensional convolutions with known weights in other layouts than NCHW and OIHW, such as NCHW16c and
    OIHW16i16o, which have blocks of 16 channels. What is between them follows: element-wise operators, poolings,
    resizing, concatenation of channels, slices, reductions over pixels. Relayouts are left at the ends, and around
    operators that need the plain layout. A convolution whose input is plain begins a region only if another one follows
    it there: alone it stays. If its channels cannot be divided into blocks, as those of an image, it reads the input as
    it is.

    Without blocks a convolution over windows always reads plain input as it is, and one that stays alone reads its
    weight in the desired layout: kernels transpose what they copy. Then all channels are converted, and the weight of a
    depthwise convolution has the output's channels last. A transposition to the desired layout or from it is left out.

    The weights are converted here if they are constants, and by their packer if the caller packs them
    (`packed_params`). A convolution is converted if its channels can be divided into the blocks, without groups or with
    one channel in each (depthwise, if its input is converted), for float32, float64, bfloat16, and integers of at most
    16 bits whose sums are of int32. Values outside of a dataflow block, and modules for several devices, stay as they
    are. The numbers are the same but for the order of additions.

    `desired_layouts` has the layouts of data and of the weight for an operator, as in TVM. Raises UsageError (code
    `layout-option`) for another operator than `nn.conv2d`, and for layouts that do not fit together.

    Before:
        @R.function
        def main(x: R.Tensor(("n", 1, 8, 8), dtype="float32")) -> R.Tensor(("n", 2, 4, 4), dtype="float32"):
            n = T.int64()
            with R.dataflow():
                y = R.nn.conv2d(x, R.const([[[[2.0, 1.0]]], [[[3.0, 1.0]]]], dtype="float32"))
                z = R.nn.relu(y)
                p = R.nn.conv2d(
                    z, R.const([[[[2.0]], [[3.0]]], [[[4.0]], [[5.0]]]], dtype="float32"), strides=2
                )
                R.output(p)
            return p
    After (with NCHW2c and OIHW2i2o):
        @R.function
        def main(x: R.Tensor(("n", 1, 8, 8), dtype="float32")) -> R.Tensor(("n", 2, 4, 4), dtype="float32"):
            n = T.int64()
            with R.dataflow():
                y1: R.Tensor((n, 1, 8, 7, 2), dtype="float32") = R.nn.conv2d(
                    x,
                    R.const([[[[[2.0, 3.0], [1.0, 1.0]]]]], dtype="float32"),
                    data_layout="NCHW",
                    kernel_layout="OIHW2o",
                    out_layout="NCHW2c",
                )
                z1: R.Tensor((n, 1, 8, 7, 2), dtype="float32") = R.nn.relu(y1)
                p1: R.Tensor((n, 1, 4, 4, 2), dtype="float32") = R.nn.conv2d(
                    z1,
                    R.const([[[[[[2.0, 4.0], [3.0, 5.0]]]]]], dtype="float32"),
                    strides=2,
                    data_layout="NCHW2c",
                    kernel_layout="OIHW2i2o",
                    out_layout="NCHW2c",
                )
                lv: R.Tensor((n, 1, 2, 4, 4), dtype="float32") = R.permute_dims(p1, axes=(0, 1, 4, 2, 3))
                p: R.Tensor((n, 2, 4, 4), dtype="float32") = R.reshape(lv, R.shape([n, 2, 4, 4]))
                R.output(p)
            return p
    """

    name: ClassVar[str] = "convert-layout"
    level: ClassVar[int] = 3
    prerequisites: ClassVar[tuple[str, ...]] = ("convert-to-dataflow",)
    desired_layouts: Mapping[str, Sequence[str]] = field(
        default_factory=dict[str, Sequence[str]], hash=False
    )
    fewest: int = 1
    """Convolutions of fewer output channels stay as they are."""

    def __post_init__(self) -> None:
        for name, layouts in self.desired_layouts.items():
            if name.removeprefix("relax.") != Conv2d.name:
                _refuse(f"layouts of {name!r} cannot be converted", f"convert {Conv2d.name}")
            if len(layouts) != 2:
                _refuse(
                    f"{name} needs two layouts, of data and of the weight, got {list(layouts)}",
                    'as in ["NCHW16c", "OIHW16i16o"]',
                )
            data, kernel = map(Layout.of, layouts)
            same = {data.block("C"), kernel.block("I"), kernel.block("O")}
            letters = (sorted(data.whole), sorted(kernel.whole))
            if (str(data), str(kernel)) != tuple(layouts) or letters != (
                sorted(PLAIN.letters),
                sorted(KERNEL.letters),
            ):
                _refuse(f"{layouts[0]!r} and {layouts[1]!r} are not layouts of data and a weight")
            if len(same) != 1 or len(data.blocks) > 1 or len(kernel.blocks) > 2:
                _refuse(f"{layouts[0]!r} and {layouts[1]!r} have blocks of different sizes")

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        if not self.desired_layouts or mod.vdevices:
            return mod
        (layouts,) = self.desired_layouts.values()
        called = called_functions(mod)

        def change(name: str, function: Function) -> Function:
            if not calls_operator(function, Conv2d):  # it is there that a conversion begins
                return function
            packed = () if name in called else packed_params(function)
            data, kernel = map(Layout.of, layouts)
            return _Converter(mod, data, kernel, packed, self.fewest).function(function)

        return mod.map_graph_functions(change)


def _refuse(message: str, help: str = 'as in ["NCHW16c", "OIHW16i16o"]') -> None:
    raise UsageError("layout-option", message, help=help)


class _Converter(Rebuilder):
    """Converts the dataflow blocks of one function. A value in the desired layout is a new variable; the plain value is
    computed where it is needed first."""

    def __init__(
        self, mod: IRModule, layout: Layout, kernel: Layout, packed: Collection[Var], fewest: int
    ) -> None:
        super().__init__(mod)
        self.layout, self.kernel, self.packed, self.fewest = layout, kernel, packed, fewest
        self.converted: dict[Var, Var] = {}
        """Values of the current block in the desired layout."""
        self.relaid: dict[Var, Expr] = {}
        """Plain values of the current block that were brought to the desired layout."""
        self.weights: dict[tuple[Expr, str], Constant | Var] = {}
        self.leading: set[Var] = set()
        """The values that lead to a convolution."""
        self.first: list[VarBinding] = []
        """The bindings that convert weights which the caller packs."""

    def function(self, function: Function) -> Function:
        self.leading = self.leading_to_convolutions(function)
        return weights_first(super().function(function), self.first)

    def leading_to_convolutions(self, function: Function) -> set[Var]:
        """The values that a convolution reads, perhaps through operators that can be converted."""
        found: set[Var] = set()
        for binding in reversed([*function.body.bindings]):
            value = binding.value
            if not isinstance(value, Call):
                continue
            if isinstance(value.op, Conv2d):
                read = value.args[:1] if self.is_convertible(value) else ()
            elif binding.var in found and any(isinstance(value.op, k) for k, _ in _CONVERSIONS):
                read = value.args
            else:
                continue
            for arg in read:
                found.update(used_vars(arg))
        return found

    def block(self, old: BindingBlock, bindings: tuple[Binding, ...]) -> BindingBlock:
        self.converted, self.relaid = {}, {}
        return super().block(old, bindings)

    def binding(self, binding: Binding) -> None:
        var = binding.var
        call = binding.value if isinstance(binding, VarBinding) and self.in_dataflow else None
        if not isinstance(call, Call) or not isinstance(call.op, Op):
            self.keep(binding)
            return
        if not self.layout.blocks and self.moved(var, call):
            return
        begins = isinstance(call.op, Conv2d) and not self.is_converted(call.args[0])
        if begins and var not in self.leading:
            alone = self.alone(call)
            self.keep(dataclasses.replace(binding, value=alone) if alone is not None else binding)
            return
        new = self.call(call)
        if new is None:
            self.keep(binding)
            return
        made = self.emit(new, var.name)
        if _flattens(call.op):
            self.bindings.append(VarBinding(var, _reshaped(made, self.dims(var)), span=self.span))
            return
        self.converted[var] = made
        if not isinstance(var, DataflowVar):
            self.vars[var] = var
            self.bindings.append(VarBinding(var, self.plain(var), span=self.span))

    def moved(self, var: Var, call: Call) -> bool:
        """Does a transposition lead to the desired layout, or from it? Then it is left out, or is of a value there."""
        match call:
            case Call(
                op=PermuteDims() as op, args=(Var(annotation=TensorType(dims=(_, _, _, _))) as x,)
            ):
                order = op.order(len(PLAIN.letters))
            case _:
                return False
        if x in self.converted:
            letters = [self.layout.letters.index(PLAIN.letters[axis]) for axis in order]
            source = self.converted[x]
            straight = letters == sorted(letters)
            value = source if straight else PermuteDims(tuple(letters))(source)
            self.bindings.append(VarBinding(var, value, span=self.span))
            return True
        if var not in self.leading or not isinstance(var, DataflowVar):
            return False
        if [self.layout.letters[axis] for axis in order] != list(PLAIN.letters):
            return False
        self.converted[var] = x
        return True

    def keep(self, binding: Binding) -> None:
        """Emit a binding that is not converted, after the plain values that it uses."""
        for var in used_vars(binding.value):
            if var in self.converted and var not in self.vars:
                self.vars[var] = self.emit(self.plain(var), var.name)
        super().binding(binding)

    def call(self, call: Call) -> Call | None:
        """The call in the desired layout; None if it stays as it is."""
        for kinds, convert in _CONVERSIONS:
            if isinstance(call.op, kinds):
                result = deduce(call, self.mod)
                if isinstance(result, TensorType) and result.dims is None:
                    return None  # sizes that may be broadcast: it cannot be said in which layout
                return convert(self, call)
        return None

    # Operators

    def is_convertible(self, call: Call) -> bool:
        """Is this a convolution that is converted if what it reads is?"""
        op, (x, w) = expect(Conv2d, call.op), call.args
        if op.layouts() != (PLAIN, KERNEL, PLAIN) or not self.is_known(w):
            return False
        data, result = expect(TensorType, deduce(x, self.mod)), deduce(call, self.mod)
        result = expect(TensorType, result)
        if data.dims is None:
            return False
        if data.dtype in NARROW:
            if result.dtype != "int32":
                return False
        elif data.dtype not in DTYPES or result.dtype != data.dtype:
            return False
        sizes = self.dims(w)
        rows = sizes[0].value
        if any(size.value is None for size in sizes) or not self.divides(sizes[0]):
            return False
        if rows is None or rows < self.fewest:
            return False
        return op.groups == 1 or (sizes[1] == 1 and sizes[0] == op.groups)

    def convolution(self, call: Call) -> Call | None:
        if not self.is_convertible(call):
            return None
        op, (x, w) = expect(Conv2d, call.op), call.args
        source = self.source(x, is_window=any(size != 1 for size in self.dims(w)[2:]))
        if source is None or (op.groups > 1 and not self.is_converted(x)):
            return None
        kernel = self.kernel
        if op.groups > 1 or (source is x and self.layout.blocks):
            kernel = _without(kernel, "i") if self.layout.blocks else _lanes_last(kernel)
        data_layout = str(PLAIN if source is x else self.layout)
        changed = dataclasses.replace(
            op, data_layout=data_layout, kernel_layout=str(kernel), out_layout=str(self.layout)
        )
        return dataclasses.replace(call, op=changed, args=(source, self.weight(w, kernel)))

    def alone(self, call: Call) -> Call | None:
        """A convolution of plain data with a plain result, which reads its weight in the desired layout; None if it
        stays as it is: a product, or one in blocks."""
        op, (x, w) = expect(Conv2d, call.op), call.args
        if self.layout.blocks or not self.is_convertible(call) or op.groups > 1:
            return None
        if all(size == 1 for size in self.dims(w)[2:]):
            return None
        changed = dataclasses.replace(
            op, data_layout=str(PLAIN), kernel_layout=str(self.kernel), out_layout=str(PLAIN)
        )
        return dataclasses.replace(call, op=changed, args=(x, self.weight(w, self.kernel)))

    def source(self, x: Expr, *, is_window: bool) -> Expr | None:
        """The input of a convolution as it reads it: `x` itself for a window over plain data, if it gathers channels
        anyway or if blocks do not divide them. None for a product of such channels, for which there is a better
        kernel."""
        if self.is_converted(x):
            return self.aligned(x)
        if not self.layout.blocks:
            return x if is_window else self.aligned(x)
        if self.divides(self.dims(x)[1]):
            return self.aligned(x)
        return x if is_window else None

    def elementwise(self, call: Call) -> Call | None:
        if not any(self.is_converted(arg) for arg in call.args):
            return None
        args = [self.aligned(arg) for arg in call.args]
        if any(arg is None for arg in args):
            return None
        return dataclasses.replace(call, args=tuple(arg for arg in args if arg is not None))

    def pooling(self, call: Call) -> Call | None:
        op: Any = call.op
        if not self.is_converted(call.args[0]) or op.layout != str(PLAIN):
            return None
        changes: dict[str, Any] = {"layout": str(self.layout)}
        if hasattr(op, "out_layout"):
            if op.out_layout not in (None, str(PLAIN)):
                return None
            changes["out_layout"] = None
        return self.mapped(call, dataclasses.replace(op, **changes))

    def reduction(self, call: Call) -> Call | None:
        op = expect(Reduction, call.op)
        if not self.is_converted(call.args[0]) or op.axes_of(4) != (2, 3):
            return None
        rest = "".join(letter for letter in self.layout.letters if letter not in "HW")
        if not op.keepdims and rest not in ("NC", "NCc"):
            return None
        axes = tuple(sorted(self.layout.letters.index(letter) for letter in "HW"))
        return self.mapped(call, dataclasses.replace(op, axis=axes))

    def concat(self, call: Call) -> Call | None:
        op, (tensors,) = expect(Concat, call.op), call.args
        if not isinstance(tensors, Tuple) or op.axis is None or op.axis % 4 != 1:
            return None
        if not all(self.is_converted(part) for part in tensors.fields):
            return None
        parts = tuple(self.converted[part] for part in tensors.fields if isinstance(part, Var))
        op = dataclasses.replace(op, axis=self.layout.letters.index("C"))
        return dataclasses.replace(call, op=op, args=(Tuple(parts),))

    def quantization(self, call: Call) -> Call | None:
        x, *rest = call.args
        scalars = all(isinstance(arg, Constant) and arg.data.ndim == 0 for arg in rest)
        return self.mapped(call, expect(Op, call.op)) if self.is_converted(x) and scalars else None

    def pad(self, call: Call) -> Call | None:
        op, (x,) = expect(Pad, call.op), call.args
        widths = op.widths()
        if not self.is_converted(x) or self.layout.blocks or len(widths) != len(PLAIN.letters):
            return None
        order = [PLAIN.letters.index(letter) for letter in self.layout.letters]
        flat = tuple(width for axis in order for width in widths[axis])
        return self.mapped(call, dataclasses.replace(op, pad_width=flat))

    def slice(self, call: Call) -> Call | None:
        x, axes, *ends = call.args
        if not isinstance(x, Var) or x not in self.converted or not isinstance(axes, ShapeExpr):
            return None
        letters = [PLAIN.letters[axis.value or 0] for axis in axes.dims]
        if any(self.layout.block(letter) > 1 for letter in letters):
            return None
        places = ShapeExpr(self.layout.letters.index(letter) for letter in letters)
        return dataclasses.replace(call, args=(self.converted[x], places, *ends))

    def mapped(self, call: Call, op: Op) -> Call:
        """The call with another operator, of the first argument in the desired layout."""
        x, *rest = call.args
        x = expect(Var, x)
        return dataclasses.replace(call, op=op, args=(self.converted[x], *rest))

    # Layouts

    def dims(self, x: Expr) -> tuple[Dim, ...]:
        """The dimensions of a tensor of known shape."""
        return known_dims(deduce(x, self.mod))

    def is_converted(self, arg: Expr) -> bool:
        return isinstance(arg, Var) and arg in self.converted

    def is_known(self, weight: Expr) -> bool:
        """Is a weight known before the first call?"""
        return isinstance(weight, Constant) or weight in self.packed

    def divides(self, channels: Dim) -> bool:
        known = channels.value
        return known is not None and known > 0 and known % self.layout.block("C") == 0

    def plain(self, var: Var) -> Call:
        """The plain value of a converted variable."""
        x, sizes = self.converted[var], self.dims(var)
        letters = self.layout.refined(PLAIN.letters)
        order = tuple(self.layout.letters.index(letter) for letter in letters)
        moves = _moves(order, self.dims(x))
        if not self.layout.blocks:
            return PermuteDims(order)(x) if moves else _reshaped(x, sizes)
        return _reshaped(self.emit(PermuteDims(order)(x)) if moves else x, sizes)

    def aligned(self, arg: Expr) -> Expr | None:
        """An operand as it is broadcast in the desired layout; None if its shape does not allow that."""
        if isinstance(arg, Var) and (arg in self.converted or arg in self.relaid):
            return self.converted.get(arg) or self.relaid[arg]
        annotation = deduce(arg, self.mod)
        dims = annotation.dims if isinstance(annotation, TensorType) else ()
        if dims is None or len(dims) > 4:
            return None
        if not dims:  # a scalar
            return arg
        sizes = (*(Dim.of(1),) * (4 - len(dims)), *dims)
        if sizes[1] != 1 and not self.divides(sizes[1]):
            return None
        shape: list[Dim] = []
        for letter, size in zip(PLAIN.letters, sizes, strict=True):
            block = self.layout.block(letter)
            parts = [size] if block == 1 else [Dim.of(1)] * 2 if size == 1 else [size // block]
            shape += parts if len(parts) == 2 or block == 1 else [*parts, Dim.of(block)]
        letters = self.layout.refined(PLAIN.letters)
        order = tuple(letters.index(letter) for letter in self.layout.letters)
        if isinstance(arg, Constant):
            data = arg.data.reshape([size.value or 0 for size in shape]).transpose(order)
            return Constant.shared(np.ascontiguousarray(data), span=arg.span)
        if not isinstance(arg, Var):
            return None
        if not _moves(order, shape):
            found = self.emit(_reshaped(arg, [shape[n] for n in order]))
        else:
            split = arg if shape == list(dims) else self.emit(_reshaped(arg, shape))
            found = self.emit(PermuteDims(order)(split))
        self.relaid[arg] = found
        return found

    def weight(self, weight: Expr, kernel: Layout) -> Constant | Var:
        """A weight in the layout of a kernel."""
        key = weight, str(kernel)
        if key in self.weights:
            return self.weights[key]
        if isinstance(weight, Constant):
            data = np.ascontiguousarray(kernel.divided(weight.data, KERNEL.letters))
            self.weights[key] = Constant.shared(data, span=weight.span)
            return self.weights[key]
        weight = expect(Var, weight)
        shape: list[Dim] = []
        for letter, size in zip(KERNEL.letters, self.dims(weight), strict=True):
            block = kernel.block(letter)
            shape += [size] if block == 1 else [size // block, Dim.of(block)]
        letters = kernel.refined(KERNEL.letters)
        order = tuple(letters.index(letter) for letter in kernel.letters)
        value = _reshaped(weight, shape)
        for made in (value, None):
            value = made or PermuteDims(order)(self.first[-1].var)
            var = DataflowVar(self.fresh_name(weight.name), deduce(value, self.mod))
            self.first.append(VarBinding(var, value))
        self.weights[key] = self.first[-1].var
        return self.first[-1].var


_Conversion = Callable[[_Converter, Call], "Call | None"]
_CONVERSIONS: tuple[tuple[tuple[type[Op], ...], _Conversion], ...] = (
    ((Conv2d,), _Converter.convolution),
    ((Elementwise, Astype), _Converter.elementwise),
    (POOLINGS, _Converter.pooling),
    (REDUCTIONS, _Converter.reduction),
    ((Concat,), _Converter.concat),
    ((Quantize, Dequantize), _Converter.quantization),
    ((Pad,), _Converter.pad),
    ((StridedSlice,), _Converter.slice),
)


def _flattens(op: Op) -> bool:
    """Has the result of a converted call lost the spatial axes? Then it is plain but for the blocks of channels."""
    return isinstance(op, Reduction) and not op.keepdims


def _lanes_last(kernel: Layout) -> Layout:
    """The layout of a weight without blocks, with the output's channels last."""
    return Layout(kernel.letters.replace("O", "") + "O")


def _without(layout: Layout, place: str) -> Layout:
    """The layout without the blocks of one axis."""
    if place not in layout.letters:
        return layout
    places = [letter for letter in layout.letters if letter.islower()]
    kept = tuple(n for n, x in zip(layout.blocks, places, strict=True) if x != place)
    return Layout(layout.letters.replace(place, ""), kept)


def _reshaped(x: Expr, dims: Sequence[Dim]) -> Call:
    return Reshape()(x, ShapeExpr(tuple(dims)))


def _moves(order: Sequence[int], dims: Sequence[Dim]) -> bool:
    """Does a permutation of axes move elements? Axes of size 1 can be anywhere."""
    long = [axis for axis in order if dims[axis] != 1]
    return long != sorted(long)
