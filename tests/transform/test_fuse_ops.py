"""FuseOps and FuseTensorIR: what is grouped, and that numbers stay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.errors import RuntimeCheckError
from relaxpy.ir.expr import DataflowBlock, Function, GlobalVar
from relaxpy.ir.module import IRModule
from relaxpy.testing.agreement import disagreement
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.testing.random_program import random_program
from relaxpy.tir.lowering.workspace import buffer_count
from relaxpy.tir.recognise.cost import length
from relaxpy.transform.base import PassContext
from relaxpy.transform.bind_unknown_shapes import BindUnknownShapes
from relaxpy.transform.fuse_ops import LONGEST_PROGRAM, PRIMITIVE, FuseOps, explain_fusion
from relaxpy.transform.fuse_tensor_ir import FuseTensorIR
from relaxpy.transform.legalize_ops import LegalizeOps
from relaxpy.transform.normalize import Normalize
from tests.sweeps import sweep

HEADER = "from relaxpy.script import ir as I, relax as R, tir as T\n"


def legal(
    body: str, params: str = 'x: R.Tensor(("n", "m"), "float32")', before: str = ""
) -> IRModule:
    """A module with a function `main` whose dataflow block is `body`, legalised."""
    text = HEADER + "@I.ir_module\nclass Module:\n    @R.function\n"
    text += f"    def main({params}):\n"
    text += "".join(f"        {line}\n" for line in before.splitlines())
    text += "        with R.dataflow():\n"
    text += "".join(f"            {line}\n" for line in body.strip().splitlines())
    text += "            R.output(gv)\n        return gv\n"
    mod = Normalize()(relaxpy.parse(text))
    return LegalizeOps()(BindUnknownShapes()(mod))


def groups(mod: IRModule) -> list[str]:
    """The names of the groups that FuseOps makes."""
    fused = FuseOps()(mod)
    check_well_formed(fused)
    return [
        n for n, f in fused.functions.items() if isinstance(f, Function) and f.attrs.get(PRIMITIVE)
    ]


def same_numbers(mod: IRModule, *args: np.ndarray) -> IRModule:
    """The fused module, which computes the same to the last bit."""
    fused = FuseTensorIR()(FuseOps()(mod))
    check_well_formed(fused)
    want, got = interpret(mod, "main", *args), interpret(fused, "main", *args)
    for a, b in zip(_flat(want), _flat(got), strict=True):
        np.testing.assert_array_equal(a, b)
    return fused


def _flat(value: object) -> list[np.ndarray]:
    return (
        [v for item in value for v in _flat(item)]
        if isinstance(value, tuple)
        else [np.asarray(value)]
    )


X = np.random.default_rng(0).uniform(-1, 1, (3, 5)).astype(np.float32)


def test_example() -> None:
    check_example(FuseOps())


def test_a_chain_is_one_group() -> None:
    mod = legal("a = R.exp(x)\nb = R.add(a, R.const(1.0))\ngv = R.nn.relu(b)")
    assert groups(mod) == ["fused_exp_add_relu"]
    assert list(same_numbers(mod, X).prim_funcs) == ["fused_exp_add_relu"]


def test_a_diamond_is_one_group() -> None:
    """a is used twice, and both ways meet."""
    mod = legal("a = R.exp(x)\nb = R.tanh(a)\nc = R.negative(a)\ngv = R.add(b, c)")
    assert groups(mod) == ["fused_exp_tanh_negative_add"]
    same_numbers(mod, X)


def test_a_matrix_product_takes_what_is_element_wise_behind_it() -> None:
    mod = legal(
        "a = R.matmul(x, w)\nb = R.add(a, bias)\nc = R.nn.relu(b)\nd = R.permute_dims(c)\ngv = R.exp(d)",
        'x: R.Tensor(("n", "m"), "float32"), w: R.Tensor(("m", 4), "float32"), bias: R.Tensor((4,), "float32")',
    )
    assert groups(mod) == ["fused_matmul_add_relu", "fused_permute_dims_exp"]
    same_numbers(mod, X, np.ones((5, 4), np.float32), np.ones(4, np.float32))


def test_nothing_goes_in_front_of_a_matrix_product() -> None:
    mod = legal(
        "a = R.exp(x)\ngv = R.matmul(a, w)",
        'x: R.Tensor(("n", "m"), "float32"), w: R.Tensor(("m", 4), "float32")',
    )
    assert groups(mod) == []


def test_element_wise_programs_go_into_a_reduction_and_not_behind_it() -> None:
    mod = legal("a = R.exp(x)\nb = R.sum(a, axis=[1])\ngv = R.sqrt(b)")
    assert groups(mod) == ["fused_exp_sum"]
    same_numbers(mod, X)


def test_two_products_are_two_groups() -> None:
    """Behind both of them there is one addition; the later one takes it."""
    mod = legal(
        "a = R.matmul(x, w)\nb = R.matmul(x, v)\ngv = R.add(a, b)",
        'x: R.Tensor(("n", "m"), "float32"), w: R.Tensor(("m", 4), "float32"), v: R.Tensor(("m", 4), "float32")',
    )
    assert len(groups(mod)) == 1
    same_numbers(mod, X, np.ones((5, 4), np.float32), np.full((5, 4), 2, np.float32))


def test_a_value_that_leaves_ends_its_group() -> None:
    """It is an output of the block, or part of a tuple."""
    mod = legal("a = R.exp(x)\nb = R.tanh(a)\nc = R.negative(b)\ngv = (b, c)")
    assert groups(mod) == ["fused_exp_tanh"]
    same_numbers(mod, X)


def test_equal_groups_are_one_function() -> None:
    mod = legal(
        "a = R.exp(x)\nb = R.tanh(a)\nc = R.sum(b, axis=[1], keepdims=True)\nd = R.subtract(x, c)\ne = R.exp(d)\ngv = R.tanh(e)"
    )
    names = groups(mod)
    assert len(names) == len(set(names))
    same_numbers(mod, X)
    twice = legal(
        "a = R.exp(x)\nb = R.tanh(a)\nc = R.permute_dims(b)\nd = R.permute_dims(c)\ngv = (d, b)"
    )
    same_numbers(twice, X)


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [
        ("R.exp(R.add(x, y))", "R.exp(R.add(y, x))", 1),
        ("R.exp(R.add(x, y))", "R.exp(R.add(x, x))", 2),
        ("R.multiply(R.exp(x), y)", "R.multiply(y, R.exp(x))", 2),
        ("R.exp(R.add(x, R.const(1.0)))", "R.exp(R.add(x, R.const(2.0)))", 1),
        ("R.exp(R.add(x, v))", "R.exp(R.add(x, y))", 2),
        ("R.exp(R.negative(x))", "R.negative(R.exp(x))", 2),
    ],
)
def test_groups_are_equal_where_they_compute_the_same(first: str, second: str, count: int) -> None:
    """Values that are handed over do not count, places and shapes do."""
    params = 'x: R.Tensor(("n", "m"), "float32"), y: R.Tensor(("n", "m"), "float32"), v: R.Tensor(("m",), "float32")'
    mod = legal(
        f"a = {first}\nb = {second}\ngv = (R.cumsum(a, axis=1), R.cumsum(b, axis=1))", params
    )
    assert len(groups(mod)) == count
    same_numbers(mod, X, X[::-1].copy(), X[0])


def test_figure_8_symbols_that_nothing_carries_are_passed() -> None:
    mod = legal(
        "lv = R.add(x, y)\ngv = R.nn.relu(lv)",
        'x: R.Tensor(("n * 2",), "float32"), y: R.Tensor(("n * 2",), "float32"), z: R.Tensor(("n",), "float32")',
    )
    fused = FuseOps()(mod)
    group = fused["fused_add_relu"]
    assert isinstance(group, Function)
    assert [str(p.annotation) for p in group.params] == [
        'R.Tensor((n * 2,), dtype="float32")',
        'R.Tensor((n * 2,), dtype="float32")',
        "R.Shape([n])",
    ]
    assert str(group.ret) == 'R.Tensor((n * 2,), dtype="float32")'
    assert "cls.fused_add_relu(x, y, R.shape([n]))" in fused.script()
    ones = np.ones(6, np.float32)
    same_numbers(mod, ones, -2 * ones, ones[:3])


DECODE = (
    HEADER
    + """
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def decode_q4(data: T.Buffer((64, 8), "uint32"), scale: T.Buffer((64, 2), "float16"), W: T.Buffer((64, 64), "float16")):
        for i, j in T.grid(64, 64):
            with T.sblock("W"):
                vi, vj = T.axis.remap("SS", [i, j])
                W[vi, vj] = (
                    T.Cast("float16", T.bitwise_and(T.shift_right(data[vi, vj // 8], T.Cast("uint32", vj % 8 * 4)), T.uint32(15)))
                    * scale[vi, vj // 32]
                )

    @T.prim_func(private=True)
    def mm(X: T.Buffer(("n", 64), "float16"), W: T.Buffer((64, 64), "float16"), Y: T.Buffer(("n", 64), "float16")):
        n = T.int64()
        for i, j, k in T.grid(n, 64, 64):
            with T.sblock("Y"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    Y[vi, vj] = T.float16(0)
                Y[vi, vj] = Y[vi, vj] + X[vi, vk] * W[vk, vj]

    @R.function
    def main(x: R.Tensor(("n", 64), "float16"), data: R.Tensor((64, 8), "uint32"), scale: R.Tensor((64, 2), "float16")) -> R.Tensor(("n", 64), "float16"):
        n = T.int64()
        cls = Module
        with R.dataflow():
            w = R.call_tir(cls.decode_q4, (data, scale), out_ty=R.Tensor((64, 64), "float16"))
            gv = R.call_tir(cls.mm, (x, w), out_ty=R.Tensor((n, 64), "float16"))
            R.output(gv)
        return gv
"""
)


def test_figure_9_decode_q4_fuses_into_the_product_behind_it() -> None:
    mod = relaxpy.parse(DECODE)
    assert groups(mod) == ["fused_decode_q4_mm"]
    rng = np.random.default_rng(0)
    args = (
        rng.uniform(-1, 1, (3, 64)).astype(np.float16),
        rng.integers(0, 2**32, (64, 8), dtype=np.uint32),
        rng.uniform(0, 1, (64, 2)).astype(np.float16),
    )
    fused = same_numbers(mod, *args)
    assert list(fused.functions) == ["main", "fused_decode_q4_mm"]
    text = fused.script()
    assert "W = T.sblock_alloc_buffer" in text or "w = T.sblock_alloc_buffer" in text
    assert "R.call_tir(cls.fused_decode_q4_mm, (data, scale, x), out_ty=R.Tensor((n, 64)" in text


def test_a_match_cast_in_between() -> None:
    """What follows uses the symbols that it defines, so it cannot go in front of it."""
    mod = legal(
        'a = R.exp(x)\nb = R.match_cast(y, R.Tensor(("k", 5), "float32"))\nc = R.exp(b)\ngv = (R.tanh(a), R.tanh(c))',
        'x: R.Tensor(("n", "m"), "float32"), y: R.Tensor(ndim=2, dtype="float32")',
    )
    assert groups(mod) == ["fused_exp_tanh", "fused_exp1_tanh1"]
    same_numbers(mod, X, X[:2])


def test_a_group_that_nothing_uses_is_dropped() -> None:
    mod = legal("a = R.tanh(x)\nb = R.exp(a)\ngv = R.negative(x)")
    assert groups(mod) == []
    assert "cls.tanh" not in FuseOps()(mod).script()
    same_numbers(mod, X)


def test_a_block_of_which_nothing_is_used_is_dropped() -> None:
    """Found by `relaxpy fuzz`, seed 100357: an empty block was left, which text cannot say."""
    mod = LegalizeOps()(
        relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
    with R.dataflow():
        a = R.exp(x)
        b = R.negative(a)
        R.output()
    return x
""")
    )
    main = FuseOps()(mod)["main"]
    assert isinstance(main, Function)
    assert main.body.blocks == ()


def test_a_part_of_a_tuple_that_stays_outside() -> None:
    """The whole tuple leaves the block, so its parts are inputs of the group."""
    mod = legal(
        "s = R.split(x, 2)\na = s[1]\nb = R.exp(a)\nc = R.add(a, b)\ngv = (s, c)",
        'x: R.Tensor((4, "m"), "float32")',
    )
    assert groups(mod) == ["fused_exp_add"]
    same_numbers(mod, X[[0, 1, 2, 0]])


def test_sizes_0_and_1() -> None:
    mod = legal(
        "a = R.exp(x)\nb = R.sum(a, axis=[0], keepdims=True)\nc = R.subtract(a, b)\ngv = R.tanh(c)"
    )
    for shape in ((0, 3), (1, 1), (3, 0)):
        same_numbers(mod, np.ones(shape, np.float32))


def test_a_function_without_pairs_stays_the_same_object() -> None:
    mod = legal("gv = R.exp(x)")
    assert FuseOps()(mod) is mod
    assert FuseTensorIR()(mod) is mod


@sweep(2)
@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed: int) -> None:
    program = random_program(seed)
    mod = LegalizeOps()(BindUnknownShapes()(Normalize()(program.mod)))
    fused = FuseTensorIR()(FuseOps()(mod))
    check_well_formed(fused)
    for sizes in program.bindings(2):
        args = program.arguments(sizes)
        want, got = outcome(mod, program.name, args), outcome(fused, program.name, args)
        assert disagreement(got, want, atol=0, rtol=0) == ""


def outcome(mod: IRModule, name: str, args: Sequence[object]) -> object:
    """The result, or the error with which a run-time check stops."""
    try:
        return interpret(mod, name, *args)
    except RuntimeCheckError as error:
        return error


def test_what_relies_on_a_check_stays_behind_it() -> None:
    """Before it is known that y has n elements, nothing reads n elements of it: not even together with the exp of x,
    which is computed before the check."""
    mod = legal(
        "a = R.exp(x)\nb = R.reshape(y, (n,))\ngv = R.add(a, b)",
        'x: R.Tensor(("n",), "float32"), y: R.Tensor(("m",), "float32")',
        "n = T.int64()",
    )
    text = FuseOps()(mod).script().split("def main")[1]
    assert 0 < text.index("check_dim") < text.index("cls.fused_exp_reshape_add")
    same_numbers(mod, X[0], X[1])


def test_a_match_cast_that_only_checks_a_symbol() -> None:
    """What it mentions was defined before: the group that it checks the result of stays before it."""
    mod = legal("""
a = R.negative(x)
b = R.exp(a)
c = R.match_cast(b, R.Tensor(ndim=2, dtype="float32"))
d = R.match_cast(c, R.Tensor(("u", "m"), "float32"))
gv = d
""")
    assert groups(mod) == ["fused_negative_exp"]
    same_numbers(mod, np.ones((2, 3), np.float32))


def test_a_symbol_that_depends_on_a_group_is_not_needed_by_it() -> None:
    """u is known when a is: nothing that mentions u can be computed together with a."""
    mod = legal(
        """
a = R.negative(x)
b = R.match_cast(a, R.Tensor(("u", "m"), "float32"))
c = R.full((u,), R.const(2.0, "float32"), dtype="float32")
d = R.sum(a)
gv = R.add(c, d)
""",
        before="u, m = T.int64(), T.int64()",
    )
    assert groups(mod) == ["fused_full_add"]
    same_numbers(mod, np.ones((2, 3), np.float32))


def test_why_pairs_are_fused_or_not() -> None:
    mod = legal(
        """
a = R.exp(x)
b = R.sum(a, axis=[1])
c = R.negative(b)
d = R.matmul(x, w)
e = R.nn.relu(d)
f = R.sum(e, axis=[1])
gv = R.add(c, f)""",
        'x: R.Tensor(("n", 8), "float32"), w: R.Tensor((8, 8), "float32")',
    )
    main = mod["main"]
    assert isinstance(main, Function)
    block = main.body.blocks[0]
    assert isinstance(block, DataflowBlock)
    report = explain_fusion(block, mod)
    names = [binding.var.name for binding in block.bindings]
    told = {(names[d.producer], names[d.consumer]): d for d in report.decisions}
    assert told["a", "b"].fused
    assert not told["b", "c"].fused
    assert "reduction" in told["b", "c"].reason
    assert told["d", "e"].fused
    assert not told["e", "f"].fused
    assert "does not read the product element by element" in told["e", "f"].reason
    assert all(d.fused == (d.reason == "") for d in report.decisions)
    assert sorted(n for group in report.groups for n in group) == list(range(len(names)))


def test_sizes_that_are_known_only_where_programs_meet() -> None:
    """Found by `relaxpy fuzz`, seed 50304: `n * 2` with n = 1 stayed as it was, and the text read as something else."""
    mod = relaxpy.parse(
        HEADER
        + """
@I.ir_module
class Module:
    @T.prim_func
    def spread(x: T.Buffer(("n",), "float32"), o: T.Buffer(("n * 2",), "float32")):
        n = T.int64()
        for i in range(n * 2):
            with T.sblock("b"):
                vi = T.axis.spatial(n * 2, i)
                o[vi] = T.if_then_else(x[vi // 2] < x[vi % n], x[vi % n], x[vi // 2])

    @R.function
    def main(x: R.Tensor((1,), dtype="float32")) -> R.Tensor((2,), dtype="float32"):
        cls = Module
        with R.dataflow():
            y = R.exp(x)
            gv = R.call_tir(cls.spread, (y,), out_ty=R.Tensor((2,), dtype="float32"))
            R.output(gv)
        return gv
"""
    )
    fused = FuseTensorIR()(FuseOps()(LegalizeOps()(mod)))
    assert "fused_exp_spread" in fused.prim_funcs
    relaxpy.assert_structural_equal(relaxpy.parse(fused.script()), fused)


def test_a_group_is_as_long_as_a_kernel_may_be() -> None:
    """A chain becomes kernels of a bounded length, none much shorter than the bound, with the numbers of one."""
    lines = ["v0 = R.exp(x)"] + [f"v{i} = R.sin(v{i - 1})" for i in range(1, 12)]
    mod = legal("\n".join([*lines, "gv = R.negative(v11)"]))
    fused = FuseOps()(mod)
    each = {n: f for n, f in fused.functions.items() if isinstance(f, Function) and n != "main"}
    lengths = [
        sum(length(mod.functions[b.value.args[0].name].func) for b in f.body.bindings)
        for f in each.values()
    ]
    assert len(lengths) > 1
    assert max(lengths) <= LONGEST_PROGRAM < 2 * max(lengths)
    block = mod["main"].body.blocks[0]
    assert isinstance(block, DataflowBlock)
    reasons = [d.reason for d in explain_fusion(block, mod).decisions if not d.fused]
    assert all("too long for one kernel" in reason for reason in reasons)
    assert len(reasons) == len(lengths) - 1
    same_numbers(mod, np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3))


MANY = ", ".join(f'x{i}: R.Tensor(("n", "m"), "float32")' for i in range(40))


def test_a_value_that_is_joined_to_itself_is_not_written_for_each_place() -> None:
    steps = "".join(f"            a{k + 1} = R.concat((a{k}, a{k}))\n" for k in range(40))
    mod = relaxpy.parse(f"""
@I.ir_module
class Module:
    @R.function
    def main(a0: R.Tensor(("n",), "float32")):
        with R.dataflow():
{steps}            y = R.exp(a40)
            R.output(y)
        return y
""")
    legal = LegalizeOps().run(Normalize().run(mod, PassContext()), PassContext())
    block = legal["main"].body.blocks[0]
    groups = explain_fusion(block, legal).groups
    assert max(map(len, groups)) <= 8
    assert sum(len(group) == 1 for group in groups) < 5


@pytest.mark.parametrize("limit", [4, 5, 8])
def test_a_group_takes_as_many_buffers_as_a_launch_may(limit: int) -> None:
    """A sum of forty tensors becomes kernels that take no more, none but the last fewer."""
    lines = ["v0 = R.negative(x0)"] + [f"v{i} = R.add(v{i - 1}, x{i})" for i in range(1, 40)]
    mod = legal("\n".join([*lines, "gv = R.negative(v39)"]), MANY)
    context = PassContext(relaxpy.Target.parse(f"opencl -max-buffers={limit}"))
    fused = FuseTensorIR()(FuseOps()(mod, context), context)
    counts = [buffer_count(program) for program in fused.prim_funcs.values()]
    assert max(counts) == limit
    block = mod["main"].body.blocks[0]
    assert isinstance(block, DataflowBlock)
    report = explain_fusion(block, mod, most_buffers=limit)
    reasons = [d.reason for d in report.decisions if not d.fused]
    assert len(reasons) == len(report.groups) - 1 >= 39 // (limit - 1)
    assert all(f"buffers, but a launch takes at most {limit}" in reason for reason in reasons)
    rng = np.random.default_rng(0)
    args = [rng.random((2, 3), np.float32) for _ in range(40)]
    np.testing.assert_array_equal(interpret(fused, "main", *args), interpret(mod, "main", *args))


@sweep(2)
@pytest.mark.parametrize("seed", range(12))
def test_groups_of_random_programs_fit(seed: int) -> None:
    """Fused programs take no more than the limit, and more of it than they need changes nothing: as processors, which
    have none."""
    program = random_program(seed)
    mod = LegalizeOps()(BindUnknownShapes()(Normalize()(program.mod)))
    plain = FuseOps()(mod)
    wide = FuseOps()(mod, PassContext(relaxpy.Target.parse("opencl -max-buffers=100000")))
    relaxpy.assert_structural_equal(wide, plain)
    relaxpy.assert_structural_equal(FuseOps()(mod, PassContext(relaxpy.Target.host())), plain)
    for limit in (4, 8):
        context = PassContext(relaxpy.Target.parse(f"opencl -max-buffers={limit}"))
        fused = FuseTensorIR()(FuseOps()(mod, context), context)
        check_well_formed(fused)
        for name, made in fused.prim_funcs.items():
            assert buffer_count(made) <= limit or not name.startswith("fused_"), name


def test_what_nothing_uses_may_be_an_error() -> None:
    """A group that nothing uses stays where one of its sizes may be negative: with n = 1 the program is an error."""
    mod = relaxpy.parse(
        """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        with R.dataflow():
            a = R.zeros((n - 2,), "float32")
            b = R.multiply(a, a)
            unused = R.negative(R.exp(x))
            gv = R.exp(x)
            R.output(gv)
        return gv
"""
    )
    fused = FuseOps()(LegalizeOps()(Normalize()(mod)))
    calls = [
        b.value.op.name
        for b in fused["main"].body.blocks[0].bindings
        if isinstance(b.value.op, GlobalVar)
    ]
    assert calls == ["fused_zeros_multiply"]
    for before_or_after in (mod, fused, FuseTensorIR()(fused)):
        with pytest.raises(RuntimeCheckError, match="n - 2 is negative"):
            interpret(before_or_after, "main", np.zeros(1, np.float32))
        np.testing.assert_allclose(
            interpret(before_or_after, "main", np.zeros(2, np.float32)), [1, 1]
        )


@pytest.mark.parametrize(
    ("call", "found"),
    [
        ("R.nn.max_pool2d(a, pool_size=3)", "relu; max_pool2d"),
        ("R.nn.avg_pool2d(a, pool_size=2, strides=2)", "relu; avg_pool2d"),
        (
            "R.nn.max_pool2d(R.permute_dims(a, (0, 1, 3, 2)), pool_size=3)",
            "relu permute_dims; max_pool2d",
        ),
        ("R.mean(a, axis=(2, 3))", "relu mean"),
        ("R.nn.adaptive_avg_pool2d(a, output_size=1)", "relu adaptive_avg_pool2d"),
    ],
)
def test_nothing_goes_in_front_of_a_window(call: str, found: str) -> None:
    """A pooling would compute each element for every window that it is in; what reads each once takes it."""
    mod = relaxpy.parse(f"""
@R.function
def main(x: R.Tensor(("n", 2, 12, 12), "float32")):
    with R.dataflow():
        a = R.nn.relu(x)
        gv = {call}
        R.output(gv)
    return gv
""")
    mod = LegalizeOps()(Normalize()(mod))
    block = mod["main"].body.blocks[0]
    report = explain_fusion(block, mod)
    names = [
        "; ".join(" ".join(str(report.graph.nodes[i].program) for i in g) for g in report.groups)
    ]
    assert names == [found]
    if ";" in found:
        assert "recompute each of its elements" in next(
            d.reason for d in report.decisions if not d.fused
        )
    data = np.random.default_rng(0).standard_normal((2, 2, 12, 12)).astype(np.float32)
    fused = FuseTensorIR()(FuseOps()(mod))
    np.testing.assert_allclose(
        interpret(fused, "main", data), interpret(mod, "main", data), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("words", "fuses"), [("k // 10 + 1", True), ("k // 2 + 1", False), ("k", False)]
)
def test_a_ratio_that_holds_for_sizes_that_are_not_small(words: str, fuses: bool) -> None:
    """Ten codes in a word: for k = 1 there are more bytes of codes than of numbers, and no time to lose."""
    per = words.partition(" // ")[2].partition(" ")[0] or "1"
    mod = relaxpy.parse(f'''
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def decode(data: T.Buffer(("{words}", "m"), "uint32"), W: T.Buffer(("k", "m"), "float16")):
        k, m = T.int64(), T.int64()
        for i, j in T.grid(k, m):
            with T.sblock("W"):
                vi, vj = T.axis.remap("SS", [i, j])
                W[vi, vj] = T.Cast("float16", T.bitwise_and(T.shift_right(data[vi // {per}, vj], T.Cast("uint32", vi % {per} * 3)), T.uint32(7)))

    @T.prim_func(private=True)
    def mm(X: T.Buffer(("n", "k"), "float16"), W: T.Buffer(("k", "m"), "float16"), Y: T.Buffer(("n", "m"), "float16")):
        n, k, m = T.int64(), T.int64(), T.int64()
        for i, j, a in T.grid(n, m, k):
            with T.sblock("Y"):
                vi, vj, va = T.axis.remap("SSR", [i, j, a])
                with T.init():
                    Y[vi, vj] = T.float16(0)
                Y[vi, vj] = Y[vi, vj] + X[vi, va] * W[va, vj]

    @R.function
    def main(x: R.Tensor(("n", "k"), "float16"), data: R.Tensor(("{words}", "m"), "uint32")) -> R.Tensor(("n", "m"), "float16"):
        n, k, m = T.int64(), T.int64(), T.int64()
        cls = Module
        with R.dataflow():
            w = R.call_tir(cls.decode, (data,), out_ty=R.Tensor((k, m), "float16"))
            gv = R.call_tir(cls.mm, (x, w), out_ty=R.Tensor((n, m), "float16"))
            R.output(gv)
        return gv
''')
    assert (groups(mod) == ["fused_decode_mm"]) is fuses
    rng = np.random.default_rng(0)
    for n, k, m in ((3, 1, 5), (0, 9, 2), (2, 10, 1), (1, 73, 4), (2, 0, 3)):
        rows = k // 10 + 1 if per == "10" else k // 2 + 1 if per == "2" else k
        x = rng.uniform(-1, 1, (n, k)).astype(np.float16)
        same_numbers(mod, x, rng.integers(0, 2**32, (rows, m), dtype=np.uint32))
