"""JoinSizes: tensor programs take a sum of many sizes as one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from relaxpy.ir.accessors import expect
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import Call, GlobalVar, ShapeExpr
from relaxpy.ir.module import IRModule, ScalarParam, TensorProgram
from relaxpy.ir.recursion import deep_recursion
from relaxpy.ir.visitor import Rewriter, Visitor
from relaxpy.op.call import CrossLevelCall
from relaxpy.tir.joined_sizes import with_joined_sizes
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.transform.base import Pass, PassContext


@dataclass(frozen=True)
class JoinSizes(Pass):
    """Where a tensor program needs a sum of many sizes and none of them alone, pass the sum; if it is the size of a
    tensor, not even that. The graph computes it once, and the kernel has one number instead of hundreds, of which LLVM
    makes code in a time that grows with their square. `n + m + k` and `4*n + 4*m + 4*k + j` need one sum.

    Before, with `many=3`:
        @I.ir_module
        class Module:
            @T.prim_func
            def ones(y: T.Buffer(("n + m + k",), "float32"), n: T.int64, m: T.int64, k: T.int64):
                for i in range(n + m + k):
                    with T.sblock("ones"):
                        vi = T.axis.spatial(n + m + k, i)
                        y[vi] = T.float32(1)

            @R.function
            def main(s: R.Shape(["n", "m", "k"])) -> R.Tensor(("n + m + k",), "float32"):
                n, m, k = T.int64(), T.int64(), T.int64()
                cls = Module
                y = R.call_tir(
                    cls.ones, (), out_ty=R.Tensor((n + m + k,), "float32"), tir_vars=R.shape([n, m, k])
                )
                return y
    After:
        @I.ir_module
        class Module:
            @T.prim_func
            def ones(y: T.Buffer(("size0",), "float32")):
                size0 = T.int64()
                for i in range(size0):
                    with T.sblock("ones"):
                        vi = T.axis.spatial(size0, i)
                        y[vi] = T.float32(1)

            @R.function
            def main(s: R.Shape(["n", "m", "k"])) -> R.Tensor(("n + m + k",), "float32"):
                n, m, k = T.int64(), T.int64(), T.int64()
                cls = Module
                y = R.call_tir(cls.ones, (), out_ty=R.Tensor((n + m + k,), "float32"))
                return y
    """

    name: ClassVar[str] = "join-sizes"
    level: ClassVar[int] = 1
    prerequisites: ClassVar[tuple[str, ...]] = ("legalize-ops",)
    many: int = 16
    """The least number of sizes in a sum. What is known of fewer, such as divisors, is kept."""

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        with deep_recursion():
            return _run(mod, self.many)


def _run(mod: IRModule, many: int) -> IRModule:
    programs: dict[str, TensorProgram] = {}
    values: dict[str, tuple[Sequence[SymVar], Sequence[Dim]]] = {}
    uses: _Uses | None = None
    for name, program in mod.functions.items():
        if not isinstance(program, PrimFunc) or program.opaque:
            continue
        found = with_joined_sizes(program, many)
        if found is None:
            continue
        uses = uses or _Uses(mod)
        if name not in uses.otherwise:
            before = [p.var for p in program.params if isinstance(p, ScalarParam)]
            programs[name], after = found
            values[name] = before, [*after.values()]
    if not programs:
        return mod
    mod = mod.map_graph_functions(lambda _, f: _Calls(values).rewrite_Function(f))
    return mod.with_functions({**mod.functions, **programs})


class _Uses(Visitor):
    """How the functions of a module are used."""

    def __init__(self, mod: IRModule) -> None:
        self.otherwise: set[str] = set()
        """Functions that are mentioned elsewhere than in calls whose sizes are replaced here."""
        for function in mod.graph_functions.values():
            self.visit(function)

    def visit_Call(self, node: Call) -> None:
        if isinstance(node.op, CrossLevelCall):
            for each in (*node.args[1:], *node.ty_args):
                self.visit(each)
        else:
            super().visit_Call(node)

    def visit_GlobalVar(self, node: GlobalVar) -> None:
        self.otherwise.add(node.name)


class _Calls(Rewriter):
    """Replaces the sizes that calls pass."""

    def __init__(self, values: Mapping[str, tuple[Sequence[SymVar], Sequence[Dim]]]) -> None:
        super().__init__()
        self.values = values
        """Name of a program → its scalar parameters, and the values of the new ones in terms of them."""

    def rewrite_Call(self, node: Call) -> Any:
        node = self.generic(node)
        callee = node.args[0] if isinstance(node.op, CrossLevelCall) else None
        if not isinstance(callee, GlobalVar) or callee.name not in self.values:
            return node
        sizes = expect(ShapeExpr, node.args[2])
        before, after = self.values[callee.name]
        bound = dict(zip(before, sizes.dims, strict=True))
        dims = [dim.substitute(bound) for dim in after]
        extra = (ShapeExpr(dims, span=sizes.span),) if dims else ()
        return dataclasses.replace(node, args=(*node.args[:2], *extra))
