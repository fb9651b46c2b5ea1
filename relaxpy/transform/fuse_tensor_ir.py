"""FuseTensorIR: merge the tensor programs that a function calls into one tensor program."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

from relaxpy.analysis.called_functions import without_unused_programs
from relaxpy.analysis.matched_call import matched_symbols
from relaxpy.analysis.program_group import Part, ProgramGroup, Source, program_group
from relaxpy.ir.accessors import expect
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import (
    BindingBlock,
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    PrimValue,
    SeqExpr,
    ShapeExpr,
    Tuple,
    TupleGetItem,
    Var,
    VarBinding,
)
from relaxpy.ir.module import BaseFunc, IRModule
from relaxpy.ir.names import FreshNames
from relaxpy.ir.visitor import Rewriter
from relaxpy.op.call import CallTIR
from relaxpy.shape.lattice import substitute
from relaxpy.tir.fuse import Value, fuse_programs
from relaxpy.tir.prim_func import LIBRARY_ATTRIBUTES, PrimFunc
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.outline import PRIMITIVE
from relaxpy.transform.rebuild import Rebuilder


@dataclass(frozen=True)
class FuseTensorIR(Pass):
    """Merge the tensor programs called by a function marked `Primitive` into one, and call it in place of the function
    (paper §4.2, figure 9; TVM's `FuseTIR`). Intermediate tensors become local buffers of the new program; schedule
    rules inline them into their uses. Tensor programs without remaining calls are dropped.

    Relations of dimensions that such a function checks are checked before the call. The attributes of a library call
    (`relaxpy.library`) become the program's. A function that does more than a tensor program can loses the mark. A
    function that may be called from elsewhere (it is public, it is used as a value, or its arguments are checked)
    stays, and calls the new program.

    Before:
        @I.ir_module
        class Module:

            @T.prim_func(private=True)
            def exp(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
                n = T.int64()
                for i in range(n):
                    with T.sblock("exp"):
                        vi = T.axis.spatial(n, i)
                        y[vi] = T.exp(x[vi])

            @R.function
            def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
                n = T.int64()
                cls = Module
                with R.dataflow():
                    gv = cls.fused_exp_exp(x)
                    R.output(gv)
                return gv

            @R.function(private=True)
            def fused_exp_exp(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
                R.func_attr({"Primitive": True})
                n = T.int64()
                cls = Module
                with R.dataflow():
                    lv = R.call_tir(cls.exp, (x,), out_ty=R.Tensor((n,), dtype="float32"))
                    gv = R.call_tir(cls.exp, (lv,), out_ty=R.Tensor((n,), dtype="float32"))
                    R.output(gv)
                return gv
    After:
        @I.ir_module
        class Module:

            @R.function
            def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
                n = T.int64()
                cls = Module
                with R.dataflow():
                    gv = R.call_tir(cls.fused_exp_exp, (x,), out_ty=R.Tensor((n,), dtype="float32"))
                    R.output(gv)
                return gv

            @T.prim_func(private=True)
            def fused_exp_exp(x: T.Buffer(("n",), "float32"), gv: T.Buffer(("n",), "float32")):
                T.func_attr({"tirx.noalias": True})
                n = T.int64()
                lv = T.sblock_alloc_buffer((n,))
                for i in range(n):
                    with T.sblock("exp"):
                        vi = T.axis.spatial(n, i)
                        lv[vi] = T.exp(x[vi])
                for i in range(n):
                    with T.sblock("exp_1"):
                        vi = T.axis.spatial(n, i)
                        gv[vi] = T.exp(lv[vi])
    """

    name: ClassVar[str] = "fuse-tensor-ir"
    level: ClassVar[int] = 1
    prerequisites: ClassVar[tuple[str, ...]] = ("fuse-ops",)

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        groups = program_groups(mod)
        if not groups:
            return without_marks(mod)
        programs = {
            name: _program(group, mod.graph_function(name)) for name, group in groups.items()
        }
        graph = mod.graph_functions
        staying = {name for name in groups if "global_symbol" in graph[name].attrs}
        while True:
            names = FreshNames(mod)
            called = {n: names.fresh(f"fused_{n}") if n in staying else n for n in groups}
            caller = _Caller(mod, {n: _Fused(called[n], graph[n], groups[n]) for n in groups})
            changed = caller.run()
            others = {name for name, count in caller.mentioned.items() if count} & groups.keys()
            if others <= staying:
                break
            staying |= others
        functions: dict[str, BaseFunc] = {}
        for name, function in changed.functions.items():
            if name in staying:
                functions[name] = caller.function(_calling_itself(name, graph[name]))
            elif name not in groups:
                functions[name] = function
            if name in groups:
                functions[called[name]] = programs[name]
        return without_unused_programs(without_marks(mod.with_functions(functions)), mod)


def program_groups(mod: IRModule) -> dict[str, ProgramGroup]:
    """The functions marked `Primitive` that can be one tensor program, by name."""
    marked = {name: f for name, f in mod.graph_functions.items() if f.attrs.get(PRIMITIVE)}
    found = {name: program_group(function, mod) for name, function in marked.items()}
    return {name: group for name, group in found.items() if group is not None}


def without_marks(mod: IRModule, but: Collection[str] = ()) -> IRModule:
    """Return the module with the mark `Primitive` removed from all functions except these."""

    def change(name: str, function: Function) -> Function:
        if PRIMITIVE not in function.attrs or name in but:
            return function
        attrs = {key: value for key, value in function.attrs.items() if key != PRIMITIVE}
        return dataclasses.replace(function, attrs=attrs)

    return mod.map_graph_functions(change)


@dataclass(frozen=True)
class _Fused:
    program: str
    """Name of the fused program."""
    function: Function
    group: ProgramGroup


def _program(group: ProgramGroup, function: Function) -> PrimFunc:
    inputs = [source.value for source in group.inputs]
    program = fuse_programs(group.steps, inputs, group.outputs, group.scalars)
    said = {key: function.attrs[key] for key in LIBRARY_ATTRIBUTES if key in function.attrs}
    return PrimFunc(program.func.with_attr(said), program.span) if said else program


def _calling_itself(name: str, function: Function) -> Function:
    """The function with a call of itself as its body."""
    result = Var("gv", function.ret, span=function.body.body.span)
    call = Call(GlobalVar(name), function.params, span=function.span)
    body = SeqExpr((BindingBlock((VarBinding(result, call, span=function.span),)),), result)
    return dataclasses.replace(function, body=body)


class _Caller(Rebuilder):
    """Replaces calls of the fused functions by calls of their programs."""

    def __init__(self, mod: IRModule, fused: Mapping[str, _Fused]) -> None:
        super().__init__(mod)
        self.fused = fused
        self.mentioned: Counter[str] = Counter()
        """Number of mentions of each function, without the calls that were replaced."""

    def use(self, expr: Expr) -> Expr:
        if isinstance(expr, GlobalVar):
            self.mentioned[expr.name] += 1
        return super().use(expr)

    def value(self, value: Expr) -> Expr:
        if not isinstance(value, Call) or not isinstance(value.op, GlobalVar):
            return value
        fused = self.fused.get(value.op.name)
        if fused is None:
            return value
        bound = matched_symbols(fused.function, value.args, self.mod)
        if bound is None:
            return value  # the function checks its arguments
        self.mentioned[value.op.name] -= 1
        return self.call(value, fused, bound)

    def call(self, value: Call, fused: _Fused, bound: Mapping[SymVar, Dim]) -> Expr:
        """Call the program and rebuild the function's result from its outputs."""
        group = fused.group
        for check in group.checks:
            (relation,) = check.args
            relation = expect(PrimValue, relation)
            must = PrimValue(expect(Dim, relation.value).substitute(bound))
            self.emit(dataclasses.replace(check, args=(must,)), "_")
        given = dict(zip(fused.function.params, value.args, strict=True))
        tensors = tuple(self.argument(source, given) for source in group.inputs)
        args: list[Expr] = [GlobalVar(fused.program), Tuple(tensors)]
        if group.scalars:
            args.append(ShapeExpr([bound[s] for s in group.scalars]))
        outs = tuple(substitute(out.type, bound) for out in group.outputs)
        call = Call(CallTIR(), tuple(args), outs, span=value.span)
        if group.result in (group.outputs[0], tuple(group.outputs)):
            return call
        whole = self.emit(call)
        parts: dict[int, Expr] = {}
        for i, out in enumerate(group.outputs):
            parts[id(out)] = whole if len(outs) == 1 else self.emit(TupleGetItem(whole, i))
        symbols = Rewriter()
        symbols.syms.update(bound)

        def rebuilt(part: Part) -> Expr:
            match part:
                case tuple():
                    return Tuple(tuple(map(rebuilt, part)))
                case Value():
                    if id(part) not in parts:
                        parts[id(part)] = self.argument(group.given[id(part)], given)
                    return parts[id(part)]
                case Var():
                    return given[part]
                case _:
                    return symbols.rewrite(part)

        return rebuilt(group.result)

    def argument(self, source: Source, given: Mapping[Var, Expr]) -> Expr:
        """The tensor that a call passes."""
        if isinstance(source.of, Constant):
            return source.of
        arg = given[source.of]
        for index in source.path:
            if isinstance(arg, Tuple):
                arg = arg.fields[index]
            else:
                arg = self.emit(TupleGetItem(arg, index))
        return arg
