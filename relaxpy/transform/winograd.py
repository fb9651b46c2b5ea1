"""Winograd: compute convolutions with windows of 3 x 3 by fewer multiplications, with larger errors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import Call, Constant, Expr, GlobalVar, PrimValue, Tuple
from relaxpy.ir.module import IRModule
from relaxpy.ir.names import FreshNames
from relaxpy.op.call import CallTIR
from relaxpy.op.conv import Conv2d
from relaxpy.op.data_layout import Layout, padding_pairs, per_axis
from relaxpy.op.deduce import deduce
from relaxpy.op.deduction import Deduction
from relaxpy.op.linear_algebra import Matmul
from relaxpy.op.memory import CheckDim
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.rebuild import Rebuilder

if TYPE_CHECKING:
    from relaxpy.tir.prim_func import PrimFunc

DATA, KERNEL = Layout("NHWC"), Layout("HWIO")
TILES = (2, 4)
"""The sizes of tiles that there are."""


@dataclass(frozen=True)
class Winograd(Pass):
    """Compute two-dimensional convolutions with windows of 3 x 3 by tiles of the result, F(4 x 4, 3 x 3) or F(2 x 2,
    3 x 3) (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015, arXiv 1509.09308): a quarter, or
    4/9, of the multiplications. The user asks for it, as results have larger errors
    (docs/decisions/0034-winograd.md), and for it only where convolutions have contiguous channels:

        pipeline = default_pipeline().after("convert-layout", Winograd())

    A convolution `y = R.nn.conv2d(x, w, padding=1, data_layout="NHWC", kernel_layout="OHWI")` becomes

        patches = R.call_tir(cls.patches, (x,), …)          (points, n, tiles down, tiles across, inputs)
        products = R.matmul(patches, factors)                (points, n, tiles down, tiles across, outputs)
        y = R.call_tir(cls.pixels, (products, table), …)     (n, height, width, outputs)

    with 36 or 16 points a tile. The factors are those of the weight, a constant, computed in float64. `pixels` is a
    contraction, with which element-wise operators after the convolution are fused. Images may have any extents, known
    or not; a last tile is cut off. As in other kernels, the numbers of an image do not depend on the others of its
    batch, nor on threads.

    Replaced are float32 convolutions of NHWC to NHWC with constant weights, strides and dilation of 1, one group, and
    at most two rows and two columns of padding. Others stay. Raises UsageError (`winograd-tile`) for other tiles.
    """

    name: ClassVar[str] = "winograd"
    tile: int = 4
    """Pixels of a tile of the result in each direction, 2 or 4."""
    fewest: int = 64
    """Convolutions of fewer input or output channels stay as they are."""
    most: int = 256
    """Convolutions of more channels stay, too. The factors of tiles of 4 are four times as large as the weight: for one
    small image, reading those of 512 channels takes longer than what is saved. For several it pays."""

    def __post_init__(self) -> None:
        if self.tile not in TILES:
            raise UsageError("winograd-tile", f"tiles have 2 or 4 pixels, got {self.tile!r}")

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        changer = _Changer(mod, self)
        result = changer.run()
        return result.with_functions({**changer.programs, **result.functions})


class _Changer(Rebuilder):
    """Replaces convolutions. Calls of equal shapes share their programs."""

    def __init__(self, mod: IRModule, options: Winograd) -> None:
        super().__init__(mod)
        self.options = options
        self.programs: dict[str, PrimFunc] = {}
        self.program_names = FreshNames(mod)
        self.made: dict[Hashable, str] = {}
        """The names of programs by what they are made of."""

    def value(self, value: Expr) -> Expr:
        match value:
            case Call(op=Conv2d() as op, args=(x, Constant() as weight)) if self.is_wanted(op):
                images, result = deduce(x, self.mod), deduce(value, self.mod)
            case _:
                return value
        kernel = KERNEL.divided(weight.data, Layout.of(op.kernel_layout).letters)
        if not isinstance(images, TensorType) or not isinstance(result, TensorType):
            return value
        if images.dims is None or result.dims is None or not self.has_wanted(kernel):
            return value
        if images.dtype != "float32" or images.dtype != result.dtype:
            return value
        self.check(op, value)
        return self.winograd(x, images.dims, result.dims, op, np.ascontiguousarray(kernel))

    def is_wanted(self, op: Conv2d) -> bool:
        """Does a convolution have the layouts, strides and padding of those that are replaced?"""
        data, kernel, result = op.layouts()
        if (data, result) != (DATA, DATA) or kernel.blocks or op.groups != 1:
            return False
        # With more padding there would be tiles of images without pixels.
        is_narrow = all(before + after <= 2 for before, after in padding_pairs(op.padding, 2))
        return is_narrow and {*per_axis(op.strides, 2), *per_axis(op.dilation, 2)} == {1}

    def has_wanted(self, kernel: np.ndarray) -> bool:
        """Is the weight of a size for which tiles pay?"""
        *window, inputs, outputs = kernel.shape
        few, many = self.options.fewest, self.options.most
        return window == [3, 3] and few <= min(inputs, outputs) and max(inputs, outputs) <= many

    def check(self, op: Conv2d, call: Call) -> None:
        """Check at run time what is not known about the sizes of a convolution, as legalising it would."""
        deduction = Deduction(op, call, lambda e: deduce(e, self.mod), exact=True)
        deduction.run()
        for requirement in deduction.requirements:
            self.emit(CheckDim(message=requirement.message)(PrimValue(requirement.condition)), "_")

    def winograd(
        self, x: Expr, images: Sequence[Dim], result: Sequence[Dim], op: Conv2d, kernel: np.ndarray
    ) -> Expr:
        """Emit the transform of the patches and the products; returns the transform of the products."""
        from relaxpy.tir.programs import winograd as w

        tile = self.options.tile
        tiles = tuple((size + (tile - 1)) // tile for size in result[1:3])
        (above, _), (left, _) = padding_pairs(op.padding, 2)
        factors = Constant.shared(w.window_factors(kernel, tile))
        points, *_, inputs, _ = factors.data.shape

        def patches(shape: Sequence[Dim]) -> PrimFunc:
            return w.patches_program(shape[:4], (shape[4], shape[5]), tile, (above, left))

        def pixels(shape: Sequence[Dim]) -> PrimFunc:
            return w.pixels_program(shape[:4], (shape[4], shape[5]), tile)

        program = self.program("patches", patches, (*images, *tiles), (above, left))
        made = TensorType((Dim.of(points), images[0], *tiles, Dim.of(inputs)), "float32")
        patch = self.emit(Call(CallTIR(), (program, Tuple((x,))), (made,)), "patches")
        products = self.emit(Matmul()(patch, factors), "products")
        program = self.program("pixels", pixels, (*result, *tiles))
        table = Constant.shared(w.result_table(tile))
        out = TensorType(tuple(result), "float32")
        return Call(CallTIR(), (program, Tuple((products, table))), (out,), span=self.span)

    def program(
        self,
        name: str,
        make: Callable[[Sequence[Dim]], PrimFunc],
        dims: Sequence[Dim],
        key: Hashable = None,
    ) -> GlobalVar:
        """The program that `make` writes for dimensions. Those that are not known are symbols of the program."""
        sizes = tuple(dim.value for dim in dims)
        if (name, sizes, key) not in self.made:
            own = [SymVar(f"d{n}").dim if d.value is None else d for n, d in enumerate(dims)]
            self.made[name, sizes, key] = self.program_names.fresh(name)
            self.programs[self.made[name, sizes, key]] = make(own)
        return GlobalVar(self.made[name, sizes, key])
