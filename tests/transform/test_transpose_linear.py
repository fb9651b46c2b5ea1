"""TransposeLinear: which weights are transposed, and that nothing is stored twice."""

from __future__ import annotations

import numpy as np

import relaxpy
from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.ir import Call, Constant, Function, IRModule, Visitor
from relaxpy.target import Target
from relaxpy.testing.interpret import interpret
from relaxpy.transform import (
    BindParams,
    CombineParallel,
    LiftPackers,
    Normalize,
    TransposeLinear,
)
from relaxpy.transform.base import PassContext

SOURCE = """
@I.ir_module
class Module:
    @R.function
    def main(i: R.Tensor(("n",), "int64"), table: R.Tensor((4, 3), "float32"), w: R.Tensor((2, 3), "float32")):
        with R.dataflow():
            x = R.take(table, i, axis=0)
            a = R.linear(x, w)
            b = R.linear(x, table)
            R.output(a, b)
        return (a, b)

    @R.function
    def other(x: R.Tensor(("n", 3), "float32"), w: R.Tensor((2, 3), "float32")):
        return R.linear(x, w, out_dtype="float32")
"""


class Found(Visitor):
    def __init__(self) -> None:
        self.operators: list[str] = []
        self.constants: list[Constant] = []

    def visit_Call(self, node: Call) -> None:
        self.operators.append(getattr(node.op, "name", "?"))
        self.generic(node)

    def visit_Constant(self, node: Constant) -> None:
        self.constants.append(node)


def found(mod: IRModule, name: str) -> Found:
    visitor = Found()
    function = mod[name]
    assert isinstance(function, Function)
    visitor.visit(function)
    return visitor


def test_constants_are_transposed_once_and_shared_ones_stay() -> None:
    """A table that `take` reads, too, is not stored twice; a weight of two functions is transposed once."""
    table, w = np.ones((4, 3), np.float32), np.arange(6, dtype=np.float32).reshape(2, 3)
    context = PassContext(target=Target.parse("llvm"), params={"table": table, "w": w})
    mod = TransposeLinear().run(BindParams().run(relaxpy.parse(SOURCE), context), context)
    main, other = found(mod, "main"), found(mod, "other")
    assert main.operators == ["take", "matmul", "linear"]
    assert other.operators == ["matmul"]
    (turned,) = other.constants
    assert any(each is turned for each in main.constants)
    np.testing.assert_array_equal(turned.data, w.T)


PACKED = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 3), "float32"), a: R.Tensor((2, 3), "float32"), b: R.Tensor((2, 3), "float32"),
             c: R.Tensor((2, 3), "float32"), table: R.Tensor((4, 3), "float32"), plain: R.Tensor((2, 3), "float32")):
        R.func_attr({"packed_params": ["a", "b", "c", "table"]})
        with R.dataflow():
            p = R.linear(x, a)
            q = R.linear(x, b)
            once = R.linear(x + 1.0, c)
            twice = R.linear(x + 2.0, c)
            head = R.linear(x, table)
            rows = R.sum(table)
            r = R.linear(x, plain)
            R.output(p, q, once, twice, head, rows, r)
        return (p, q, once, twice, head, rows, r)
"""


def test_weights_that_the_caller_packs_are_transposed_by_packers() -> None:
    """Once each, and joined; a weight that is read elsewhere or not packed stays."""
    rng = np.random.default_rng(0)
    sizes = ((5, 3), (2, 3), (2, 3), (2, 3), (4, 3), (2, 3))
    args = [rng.standard_normal(size, dtype=np.float32) for size in sizes]
    mod = Normalize()(relaxpy.parse(PACKED))
    after = TransposeLinear().run(mod, PassContext(target=Target.parse("llvm")))
    check_well_formed(after)
    operators = found(after, "main").operators
    assert operators.count("permute_dims") == 3
    assert operators.count("matmul") == 4
    assert operators.count("linear") == 2
    for got, wanted in zip(
        interpret(after, "main", *args), interpret(mod, "main", *args), strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
    lifted = LiftPackers()(CombineParallel()(after))
    names = lifted.graph_function("main").attrs["packers"]
    assert sorted(sources for _, sources in names.values()) == [["a", "b"], ["c"]]


def test_parameters_stay() -> None:
    mod = relaxpy.parse(SOURCE)
    assert TransposeLinear().run(mod, PassContext(target=Target.parse("llvm"))) is mod
