"""PackWeights: pack constant weights of matrix products and convolutions at build time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from relaxpy.analysis.called_functions import without_unused_programs
from relaxpy.backend.cpu.panels import Packing, wanted_packing, with_packed
from relaxpy.backend.cpu.row_tiles import RowTiles, wanted_tiles, with_tiles
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.backend.slots import slots_of
from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.expr import Call, Constant, Expr, GlobalVar, Tuple
from relaxpy.ir.module import IRModule
from relaxpy.op.call import CallTIR
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.rebuild import Rebuilder


@dataclass(frozen=True)
class PackWeights(Pass):
    """Pack the constant right-hand factors of matrix products into panels as wide as the target's kernels read them
    (`relaxpy.backend.cpu.panels`), so that no kernel copies a factor at run time. Pack the weights of convolutions into
    tiles of rows (`relaxpy.backend.cpu.row_tiles`). The tensor program is rewritten to read the panels or tiles;
    results are bit-identical. A constant is packed once for all its calls. Tensor programs without remaining calls are
    dropped. (In TVM: `AttachAttrLayoutFreeBuffers`, `SplitLayoutRewritePreproc` and a lifted preprocessing; in MKL and
    oneDNN: prepacked weights.)

    Before (with 4 lanes a vector):
        @I.ir_module
        class Module:

            @T.prim_func(private=True)
            def matmul(
                x: T.Buffer(("n", 1), "float32"), w: T.Buffer((1, 6), "float32"), y: T.Buffer(("n", 6), "float32")
            ):
                n = T.int64()
                for i, j, k in T.grid(n, 6, 1):
                    with T.sblock("matmul"):
                        vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                        with T.init():
                            y[vi, vj] = T.float32(0)
                        y[vi, vj] = y[vi, vj] + x[vi, vk] * w[vk, vj]

            @R.function
            def main(x: R.Tensor(("n", 1), dtype="float32")) -> R.Tensor(("n", 6), dtype="float32"):
                n = T.int64()
                cls = Module
                y = R.call_tir(
                    cls.matmul,
                    (x, R.const([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]], dtype="float32")),
                    out_ty=R.Tensor((n, 6), dtype="float32"),
                )
                return y
    After:
        @I.ir_module
        class Module:

            @R.function
            def main(x: R.Tensor(("n", 1), dtype="float32")) -> R.Tensor(("n", 6), dtype="float32"):
                n = T.int64()
                cls = Module
                y = R.call_tir(
                    cls.matmul_packed,
                    (x, R.const([[[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0, 0.0]]], dtype="float32")),
                    out_ty=R.Tensor((n, 6), dtype="float32"),
                )
                return y

            @T.prim_func(private=True)
            def matmul_packed(
                x: T.Buffer(("n", 1), "float32"), w: T.Buffer((1, 1, 8), "float32"), y: T.Buffer(("n", 6), "float32")
            ):
                n = T.int64()
                for i, j, k in T.grid(n, 6, 1):
                    with T.sblock("matmul"):
                        vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                        with T.init():
                            y[vi, vj] = T.float32(0)
                        y[vi, vj] = y[vi, vj] + x[vi, vk] * w[vj // 8, vk, vj % 8]
    """

    name: ClassVar[str] = "pack-weights"

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        target = ctx.target or CpuTarget.host()
        if not isinstance(target, CpuTarget):
            return mod
        packer = _Packer(mod, target)
        result = packer.run()
        if not packer.programs:
            return mod
        functions = {**result.functions, **packer.programs}
        return without_unused_programs(result.with_functions(functions), mod)


class _Packer(Rebuilder):
    """Replaces calls with a constant factor by calls of programs that read it packed."""

    def __init__(self, mod: IRModule, target: CpuTarget) -> None:
        super().__init__(mod)
        self.target = target
        self.programs: dict[str, PrimFunc] = {}
        """The new programs."""
        self.callees: dict[str, tuple[Packing | RowTiles, str] | None] = {}
        """For each program of the module, the packing that it needs and the name of the program that reads the packed
        weight."""
        self.constants: dict[tuple[Constant, Packing | RowTiles], Constant] = {}
        self.devices = slots_of(mod, target)
        self.elsewhere = len(self.devices.slots) > 1
        """Does the module also run on other devices?"""

    def is_on_host(self, out: Annotation) -> bool:
        """Is an output annotated to live on the host? Without an annotation it may be computed anywhere."""
        vdevice = out.vdevice if isinstance(out, TensorType) else None
        return vdevice is not None and self.devices.number(vdevice) == 0

    def value(self, value: Expr) -> Expr:
        match value:
            case Call(op=op, args=(GlobalVar(name=name), Tuple(fields=fields), *rest)) if type(
                op
            ) is CallTIR and any(isinstance(field, Constant) for field in fields):
                if self.elsewhere and not all(map(self.is_on_host, value.ty_args)):
                    return value
            case _:
                return value
        found = self.packing(name)
        if found is None:
            return value
        packing, packed_name = found
        weight = fields[packing.param]
        if not isinstance(weight, Constant):
            return value
        if packed_name not in self.programs:
            program = self.mod.functions[name]
            assert isinstance(program, PrimFunc)
            self.programs[packed_name] = (
                with_tiles(program, packing)
                if isinstance(packing, RowTiles)
                else with_packed(program, packing)
            )
        args = list(fields)
        args[packing.param] = self.packed(weight, packing)
        new = (GlobalVar(packed_name), Tuple(tuple(args)), *rest)
        return Call(op, new, value.ty_args, span=value.span)

    def packing(self, name: str) -> tuple[Packing | RowTiles, str] | None:
        """The packing that the program of this name needs, and the name of the program that reads it."""
        if name not in self.callees:
            program = self.mod.functions.get(name)
            packing: Packing | RowTiles | None = None
            if isinstance(
                program, PrimFunc
            ):  # convolutions first, as in the order of the kernels' rules
                packing = wanted_tiles(program, self.target)
                packing = packing or wanted_packing(program, self.target)
            packed_name = self.mod.fresh_name(f"{name}_packed")
            self.callees[name] = None if packing is None else (packing, packed_name)
        return self.callees[name]

    def packed(self, weight: Constant, packing: Packing | RowTiles) -> Constant:
        """The constant in panels or tiles: one object for all its calls."""
        key = weight, packing
        if key not in self.constants:
            self.constants[key] = Constant.shared(packing.pack(weight.data), span=weight.span)
        return self.constants[key]
