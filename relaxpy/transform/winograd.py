"""Winograd: compute convolutions with windows of 3 x 3 by fewer products, with larger errors."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import Call, Constant, Expr, GlobalVar, Tuple
from relaxpy.ir.module import IRModule
from relaxpy.ir.names import FreshNames
from relaxpy.op.call import CallTIR
from relaxpy.op.conv import Conv2d
from relaxpy.op.data_layout import Layout, padding_pairs, per_axis
from relaxpy.op.deduce import deduce
from relaxpy.op.linear_algebra import Matmul
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.rebuild import Rebuilder

DATA, KERNEL = Layout("NHWC"), Layout("HWIO")


@dataclass(frozen=True)
class Winograd(Pass):
    """..."""

    name: ClassVar[str] = "winograd"
    tile: int = 4
    fewest: int = 64
    largest: int = 512*512

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        changer = _Changer(mod, self)
        result = changer.run()
        return result.with_functions({**changer.programs, **result.functions})


class _Changer(Rebuilder):
    def __init__(self, mod: IRModule, options: Winograd) -> None:
        super().__init__(mod)
        self.options = options
        self.programs = {}
        self.program_names = FreshNames(mod)
        self.made: dict[Hashable, str] = {}

    def value(self, value: Expr) -> Expr:
        if not isinstance(value, Call) or not isinstance(value.op, Conv2d):
            return value
        op, (x, w) = value.op, value.args
        data, weight, result = op.layouts()
        if data != DATA or result != DATA or weight.blocks or not isinstance(w, Constant):
            return value
        if op.groups != 1 or set(per_axis(op.strides, 2)) != {1} or set(per_axis(op.dilation, 2)) != {1}:
            return value
        kernel = np.ascontiguousarray(KERNEL.divided(w.data, weight.letters))
        if kernel.shape[:2] != (3, 3) or str(kernel.dtype) != "float32" or op.out_dtype not in (None, "float32"):
            return value
        pads = padding_pairs(op.padding, 2)
        if any(sum(p) > 2 for p in pads):
            return value
        if min(kernel.shape[2:]) < self.options.fewest or kernel.shape[2]*kernel.shape[3] > self.options.largest:
            return value
        xt, yt = deduce(x, self.mod), deduce(value, self.mod)
        assert isinstance(xt, TensorType)
        assert isinstance(yt, TensorType)
        if xt.dims is None or yt.dims is None: return value
        return self.winograd(x, xt.dims, yt.dims, kernel, (pads[0][0], pads[1][0]))

    def winograd(self, x, dims, out, kernel, padding):
        from relaxpy.tir.writer import winograd as w
        from relaxpy.tir.prim_func import PrimFunc
        from relaxpy.tir import te
        m = self.options.tile
        k = (m + 2) ** 2
        tiles = tuple((d + (m - 1)) // m for d in out[1:3])
        ci, co = kernel.shape[2:]
        names = ("n", "h", "w", "p", "q")
        n, h, wd, p, q = (d if d.value is not None else SymVar(nm).dim for nm, d in zip(names, (dims[0], dims[1], dims[2], *tiles)))
        def patches():
            src = te.placeholder((n, h, wd, ci), "float32", "x")
            return PrimFunc.from_te([src], [w.transformed_patches(src, m, padding, (p, q))], [])
        name = self.program("patches", (m, ci, padding, *(None if d.value is None else d.value for d in (n, h, wd, p, q))), patches)
        vt = TensorType((Dim.of(k), dims[0], *tiles, Dim.of(ci)), "float32")
        v = self.emit(Call(CallTIR(), (GlobalVar(name), Tuple((x,))), (vt,)))
        u = Constant.shared(w.transformed_weight(kernel, m).reshape(k, 1, 1, ci, co))
        prod = self.emit(Matmul()(v, u))
        n, oh, ow, p, q = (d if d.value is not None else SymVar(nm).dim for nm, d in zip(names, (*out[:3], *tiles)))
        def pixels():
            src = te.placeholder((k, n, p, q, co), "float32", "products")
            tab = te.placeholder((m, m + 2), "float32", "table")
            return PrimFunc.from_te([src, tab], [w.result_of_products(src, tab, m, (n, oh, ow, Dim.of(co)))], [])
        name = self.program("pixels", (m, co, *(None if d.value is None else d.value for d in (n, oh, ow, p, q))), pixels)
        tab = Constant.shared(w.Matrices.of(m).output.astype('f'))
        return Call(CallTIR(), (GlobalVar(name), Tuple((prod, tab))), (TensorType(out, "float32"),))

    def program(self, hint, key, make):
        key = (hint, *key)
        if key not in self.made:
            name = self.made[key] = self.program_names.fresh(hint)
            self.programs[name] = make()
        return self.made[key]
