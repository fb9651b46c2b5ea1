"""PackWeights: pack the weights of matrix products and convolutions: constants at build time, parameters by packers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from relaxpy.analysis.called_functions import called_functions, without_unused_programs
from relaxpy.analysis.weights import PACKED, PACKERS, packed_params
from relaxpy.backend.cpu.packers import (
    Layout,
    Packers,
    known_shape,
    pack_program,
    packed_type,
    without_unused_packers,
)
from relaxpy.backend.cpu.panels import Packing, wanted_packing, with_packed
from relaxpy.backend.cpu.row_tiles import RowTiles, wanted_channel_tiles, wanted_tiles, with_tiles
from relaxpy.backend.cpu.rules.expert_bytes import wanted_expert_tiles
from relaxpy.backend.cpu.rules.matmul_formula import wanted_formula_tiles
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.backend.slots import slots_of
from relaxpy.ir.accessors import expect, tensor_of
from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.expr import (
    Binding,
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    Tuple,
    Var,
    VarBinding,
)
from relaxpy.ir.module import IRModule
from relaxpy.ir.names import FreshNames
from relaxpy.ir.visitor import Rewriter, free_vars, used_vars
from relaxpy.op.call import CallTIR
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.recognise.pattern_kind import PatternKind, pattern_kind
from relaxpy.tir.schedule import is_scheduled
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.rebuild import Rebuilder


@dataclass(frozen=True)
class PackWeights(Pass):
    """Pack the constant right-hand factors of matrix products into panels as wide as the target's kernels read them
    (`relaxpy.backend.cpu.panels`), so that no kernel copies a factor at run time. Pack the weights of convolutions into
    tiles of rows (`relaxpy.backend.cpu.row_tiles`), and likewise what a product's factor is computed from, as codes and
    scales. The tensor program is rewritten to read the panels or tiles; results are bit-identical. A constant is
    packed once for all its calls. Tensor programs without remaining calls are dropped.

    Where a product reads a packed parameter in tiles, programs that only move or map its elements read the tiles, too:
    a table of embeddings that is the head as well is in memory once.

    What a loop, a local function that calls itself, captures of known extents is packed before it.

    Weights that the caller packs (`packed_params`, an attribute of a function) are packed likewise, by functions of the
    module, the *packers*: `packers`, another attribute, names the one of each parameter. A weight that some calls read
    in panels and others as it is becomes two parameters. (In TVM: `AttachAttrLayoutFreeBuffers`,
    `SplitLayoutRewritePreproc` and a lifted preprocessing; in MKL and oneDNN: prepacked weights.)

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
    level: ClassVar[int] = 3
    prerequisites: ClassVar[tuple[str, ...]] = ("legalize-ops",)

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        target = ctx.target or CpuTarget.host()
        if not isinstance(target, CpuTarget):
            return mod
        packer = _Packer(mod, target)
        result = packer.run()
        if not packer.programs:
            return mod
        functions = {**result.functions, **packer.programs, **packer.packers.functions}
        result = without_unused_packers(result.with_functions(functions), mod)
        return without_unused_programs(result, mod)


@dataclass(eq=False)
class _Loop:
    """A local function that calls itself."""

    captured: frozenset[Var]
    kind: type[Var]
    """The kind of its variable, and of those that are bound before it."""
    names: FreshNames
    packed: dict[tuple[Var, Packing | RowTiles], VarBinding] = field(
        default_factory=dict[tuple[Var, Packing | RowTiles], VarBinding]
    )
    """What is packed before it."""


class _Packer(Rebuilder):
    """Replaces calls with a weight as a factor by calls of programs that read it packed."""

    def __init__(self, mod: IRModule, target: CpuTarget) -> None:
        super().__init__(mod)
        self.target = target
        self.programs: dict[str, PrimFunc] = {}
        """The new programs."""
        self.callees: dict[str, tuple[tuple[Packing | RowTiles, ...], str] | None] = {}
        """For each program of the module, the packings that it needs and the name of the program that reads the packed
        weights."""
        self.constants: dict[tuple[Constant, Packing | RowTiles], Constant] = {}
        self.packers = Packers(mod)
        self.program_names = FreshNames(mod.functions)
        self.called = called_functions(mod)
        self.weights: tuple[Var, ...] = ()
        """The weights that the caller of the current function packs."""
        self.packed_vars: dict[tuple[Var, Packing | RowTiles], Var] = {}
        """The packed forms of these weights."""
        self.loops: list[_Loop] = []
        """The loops around the current binding, the innermost last."""
        self.tiles: dict[Expr, RowTiles] = {}
        """The weights of the current function that only have a form in tiles."""
        self.readers: dict[tuple[str, tuple[RowTiles, ...]], str] = {}
        """By name and tiles: the programs that read parameters in tiles which others wanted."""
        self.devices = slots_of(mod, target)
        self.elsewhere = len(self.devices.slots) > 1
        """Does the module also run on other devices?"""

    def run(self) -> IRModule:
        return self.mod.map_graph_functions(self.public_function)

    def public_function(self, name: str, function: Function) -> Function:
        """A function of the module, with its weights packed."""
        self.weights = () if name in self.called else packed_params(function)
        self.packed_vars, self.tiles = {}, {}
        new = self.function(function)
        forms = [weight for weight, _ in self.packed_vars]
        self.tiles = {
            weight: layout
            for weight, layout in self.packed_vars
            if isinstance(layout, RowTiles) and forms.count(weight) == 1
        }
        new = self.function(new) if self.tiles else new
        return self.with_packed_params(name, new) if self.packed_vars else new

    def with_packed_params(self, name: str, function: Function) -> Function:
        """The function with the packed weights as parameters. One of them takes the place of a weight that is no longer
        read as it is."""
        names = FreshNames(param.name for param in function.params)
        table = {**function.attrs.get(PACKERS, {})}
        used = set(used_vars(function.body))
        params: list[Var] = []
        added: list[Var] = []
        renamed = Rewriter()
        several: dict[tuple[str, tuple[str, ...]], list[tuple[str, int, Layout | None]]] = {}
        """By packer and sources: the parameters that are fields of its result, and their layouts."""
        for param in function.params:
            source = table.get(param.name)
            forms = [(p, var) for (weight, p), var in self.packed_vars.items() if weight is param]
            fields: list[tuple[str, int, Layout | None]] = []
            if source is not None and len(source) == 3:
                fields = several.setdefault((source[0], tuple(source[1])), [])
            if not forms or param in used:
                params.append(param)
                if source is not None and len(source) == 3:
                    fields.append((param.name, source[2], None))
            for i, (packing, var) in enumerate(forms):
                alone = param not in used and i == 0
                label = param.name if alone else names.fresh(f"{param.name}_packed")
                new = Var(label, var.annotation, span=param.span)
                renamed.vars[var] = new
                if source is not None and len(source) == 3:
                    fields.append((label, source[2], packing))
                else:
                    packer = f"{name}_pack_{label}"
                    table[label] = self.packers.add(packer, param, source, packing)
                (params if alone else added).append(new)
        for (packer, sources), fields in several.items():
            if any(layout is not None for _, _, layout in fields):
                entries = self.packers.add_several(
                    f"{packer}_packed", (packer, [*sources]), [each[1:] for each in fields]
                )
                table |= {label: entry for (label, *_), entry in zip(fields, entries, strict=True)}
        kept = [*function.attrs[PACKED], *(var.name for var in added)]
        return dataclasses.replace(
            function,
            params=(*params, *added),
            body=renamed.rewrite(function.body),
            attrs={**function.attrs, PACKED: kept, PACKERS: table},
        )

    def is_on_host(self, out: Annotation) -> bool:
        """Is an output annotated to live on the host? Without an annotation it may be computed anywhere."""
        vdevice = out.vdevice if isinstance(out, TensorType) else None
        return vdevice is not None and self.devices.number(vdevice) == 0

    def binding(self, binding: Binding) -> None:
        value, var = binding.value, binding.var
        if not isinstance(value, Function) or var not in used_vars(value):
            super().binding(binding)
            return
        captured = frozenset(free_vars(value)) - {var}
        self.loops.append(_Loop(captured, type(var), self.names))
        super().binding(binding)
        self.bindings[-1:-1] = self.loops.pop().packed.values()

    def value(self, value: Expr) -> Expr:
        match value:
            case Call(op=op, args=(GlobalVar(name=name), Tuple(fields=fields), *rest)) if type(
                op
            ) is CallTIR and any(map(self.may_be_packed, fields)):
                if self.elsewhere and not all(map(self.is_on_host, value.ty_args)):
                    return value
            case _:
                return value
        found = self.packing(name)
        if found is None:
            return self.reading_tiles(value, name, fields)
        packings, packed_name = found
        if not all(self.may_be_packed(fields[packing.param]) for packing in packings):
            return value
        if packed_name not in self.programs:
            program = expect(PrimFunc, self.mod.functions[name])
            for packing in packings:
                program = (
                    with_tiles(program, packing)
                    if isinstance(packing, RowTiles)
                    else with_packed(program, packing)
                )
            self.programs[packed_name] = program
        args = list(fields)
        for packing in packings:
            args[packing.param] = self.packed(fields[packing.param], packing)
        new = (GlobalVar(packed_name), Tuple(tuple(args)), *rest)
        return Call(op, new, value.ty_args, span=value.span)

    def reading_tiles(self, value: Call, name: str, fields: Sequence[Expr]) -> Call:
        """A call of a program without a packing of its own: it reads the tiles of a weight that others have packed, if
        it only moves or maps elements."""
        program = self.mod.functions.get(name)
        tiles = tuple(
            dataclasses.replace(self.tiles[field], param=number)
            for number, field in enumerate(fields)
            if field in self.tiles
        )
        if not tiles or not isinstance(program, PrimFunc):
            return value
        if is_scheduled(program.func) or pattern_kind(program) > PatternKind.INJECTIVE:
            return value
        key = name, tiles
        if key not in self.readers:
            self.readers[key] = own = self.program_names.fresh(f"{name}_tiles")
            for each in tiles:
                program = with_tiles(program, each)
            self.programs[own] = program
        args = [self.packed(f, self.tiles[f]) if f in self.tiles else f for f in fields]
        new = (GlobalVar(self.readers[key]), Tuple(tuple(args)), *value.args[2:])
        return dataclasses.replace(value, args=new)

    def packing(self, name: str) -> tuple[tuple[Packing | RowTiles, ...], str] | None:
        """The packings that the program of this name needs, and the name of the program that reads them."""
        if name not in self.callees:
            program = self.mod.functions.get(name)
            packings = self.wanted(program) if isinstance(program, PrimFunc) else ()
            packed_name = self.mod.fresh_name(f"{name}_packed")
            self.callees[name] = (packings, packed_name) if packings else None
        return self.callees[name]

    def wanted(self, program: PrimFunc) -> tuple[Packing | RowTiles, ...]:
        """The packings that a program needs: of convolutions first, as in the order of the kernels' rules."""
        packing = (
            wanted_tiles(program, self.target)
            or wanted_packing(program, self.target)
            or wanted_channel_tiles(program, self.target)
        )
        if packing is not None:
            return (packing,)
        return wanted_formula_tiles(program, self.target) or wanted_expert_tiles(
            program, self.target
        )

    def may_be_packed(self, arg: Expr) -> bool:
        """Is an argument a constant, or a weight of known extents that the caller packs, or that a loop captures?"""
        if not isinstance(arg, Var):
            return isinstance(arg, Constant)
        is_weight = arg in self.weights or any(arg in loop.captured for loop in self.loops)
        return is_weight and bool(known_shape(arg.annotation))

    def packed_before(self, loop: _Loop, weight: Var, packing: Packing | RowTiles) -> Expr:
        """What a loop captures, packed before it."""
        form = weight, packing
        if form not in loop.packed:
            annotation = tensor_of(weight)
            program = self.program_names.fresh("pack")
            self.programs[program] = pack_program(annotation, packing)
            out = packed_type(annotation, packing)
            call = Call(CallTIR(), (GlobalVar(program), Tuple((weight,))), (out,))
            var = loop.kind(loop.names.fresh(f"{weight.name}_packed"), out, span=weight.span)
            loop.packed[form] = VarBinding(var, call, span=weight.span)
        return loop.packed[form].var

    def packed(self, weight: Expr, packing: Packing | RowTiles) -> Expr:
        """The weight in panels or tiles: one object for all its calls."""
        if isinstance(weight, Var) and weight not in self.weights:
            loop = next(loop for loop in self.loops if weight in loop.captured)
            return self.packed_before(loop, weight, packing)
        if isinstance(weight, Var):
            form = weight, packing
            if form not in self.packed_vars:
                annotation = packed_type(weight.annotation, packing)
                self.packed_vars[form] = Var(weight.name, annotation, span=weight.span)
            return self.packed_vars[form]
        weight = expect(Constant, weight)
        key = weight, packing
        if key not in self.constants:
            self.constants[key] = Constant.shared(packing.pack(weight.data), span=weight.span)
        return self.constants[key]
