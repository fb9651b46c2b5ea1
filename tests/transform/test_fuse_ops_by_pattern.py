"""Regions that match patterns become functions: which, in which order, and that numbers stay."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.pattern_regions import UnmatchedPatternWarning
from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.ir import Function, IRModule, TensorType
from relaxpy.ir.pattern import is_call_tir, is_function, is_op, joined, wildcard
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.testing.pass_check import check_pass
from relaxpy.tir.recognise.pattern_kind import PatternKind
from relaxpy.transform.base import Sequential
from relaxpy.transform.bind_unknown_shapes import BindUnknownShapes
from relaxpy.transform.fuse_ops import FuseOps
from relaxpy.transform.fuse_ops_by_pattern import FuseOpsByPattern, FusionPattern
from relaxpy.transform.fuse_tensor_ir import FuseTensorIR
from relaxpy.transform.legalize_ops import LegalizeOps
from relaxpy.transform.normalize import Normalize
from relaxpy.transform.outline import PRIMITIVE

PARAMS = 'x: R.Tensor(("n", 5), "float32"), w: R.Tensor((5, 4), "float32")'
RNG = np.random.default_rng(0)
ARGS = [RNG.uniform(-1, 1, shape).astype(np.float32) for shape in ((3, 5), (5, 4))]
RELU = FusionPattern("matmul_relu", is_op("nn.relu")(is_op("matmul")))


def program(body: str, params: str = PARAMS) -> IRModule:
    lines = "".join(f"            {line}\n" for line in body.strip().splitlines())
    text = f"@I.ir_module\nclass Module:\n    @R.function\n    def main({params}):\n"
    text += f"        with R.dataflow():\n{lines}            R.output(gv)\n        return gv\n"
    return Normalize()(relaxpy.parse(text))


def fused(
    mod: IRModule,
    *patterns: FusionPattern,
    args: list[np.ndarray] | None = None,
    rows: int = 1,
    machine: bool = False,
) -> IRModule:
    """The module with regions cut out: well formed, and with the same numbers, for several sizes of the first dimension
    of the first `rows` arguments; in the machine too where that is asked for."""
    after = FuseOpsByPattern(patterns)(mod)
    check_well_formed(after)
    given = ARGS if args is None else args
    vm = relaxpy.VirtualMachine(relaxpy.build(after)) if machine else None
    for size in (3, 1, 0):
        some = [*(array[:size] for array in given[:rows]), *given[rows:]]
        want = _flat(interpret(mod, "main", *some))
        for run in (vm["main"],) if vm else (lambda *a: interpret(after, "main", *a),):
            for a, b in zip(want, _flat(run(*some)), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    return after


def _flat(value: object) -> list[np.ndarray]:
    if isinstance(value, tuple):
        return [array for item in value for array in _flat(item)]
    return [np.asarray(value)]


def groups(mod: IRModule) -> dict[str, list[str]]:
    """Function → the operators in it, for all functions but main."""
    return {
        name: [getattr(b.value.op, "name", "?") for b in f.body.bindings]  # type: ignore[attr-defined]
        for name, f in mod.functions.items()
        if isinstance(f, Function) and name != "main"
    }


def test_example() -> None:
    check_example(FuseOpsByPattern((RELU,)))


def test_the_order_of_registration_decides() -> None:
    body = "a = R.matmul(x, w)\nb = R.nn.relu(a)\ngv = R.exp(b)"
    exp = FusionPattern("relu_exp", is_op("exp")(is_op("nn.relu")))
    assert groups(fused(program(body), RELU, exp)) == {"fused_matmul_relu": ["matmul", "nn.relu"]}
    assert groups(fused(program(body), exp, RELU)) == {"fused_relu_exp": ["nn.relu", "exp"]}


def test_the_longest_alternative_is_taken() -> None:
    product = is_op("matmul")
    pattern = is_op("exp")(product) | product
    mod = program("a = R.matmul(x, w)\nb = R.exp(a)\nc = R.matmul(x, w)\ngv = (b, c)")
    after = fused(mod, FusionPattern("mm", pattern))
    assert groups(after) == {"fused_mm": ["matmul", "exp"], "fused_mm1": ["matmul"]}


def test_a_value_used_elsewhere_refuses_the_match_or_becomes_an_output() -> None:
    mod = program("a = R.matmul(x, w)\nb = R.nn.relu(a)\nc = R.exp(a)\ngv = (b, c)")
    assert fused(mod, RELU) is mod
    open_ = FusionPattern("mm", RELU.pattern, further_outputs=True)
    after = fused(mod, open_, machine=True)
    assert groups(after) == {"fused_mm": ["matmul", "nn.relu"]}
    assert "R.Tuple" in str(after["fused_mm"].ret)  # type: ignore[union-attr]


def test_a_region_that_is_left_and_entered_again_is_refused() -> None:
    """b is made of a part of it, and goes into another."""
    mod = program(
        "a = R.exp(x)\nb = R.tanh(a)\ngv = R.add(a, b)", 'x: R.Tensor(("n", 5), "float32")'
    )
    pattern = is_op("add")(is_op("exp"), wildcard())
    twisted = FusionPattern("p", pattern, further_outputs=True)
    assert FuseOpsByPattern((twisted,))(mod) is mod
    whole = FusionPattern("p", is_op("add")(e := is_op("exp"), is_op("tanh")(e)))
    assert groups(fused(mod, whole, args=ARGS[:1])) == {"fused_p": ["exp", "tanh", "add"]}


def test_two_regions_that_need_each_other_are_not_both_taken() -> None:
    """a → b and d → c: {a, c} and {b, d} would each have to come first."""
    mod = program(
        "a = R.exp(x)\nb = R.tanh(a)\nd = R.sin(x)\nc = R.cos(d)\ngv = (b, c)",
        'x: R.Tensor(("n", 5), "float32")',
    )
    first = FusionPattern("first", joined(is_op("exp"), is_op("cos")))
    second = FusionPattern("second", joined(is_op("tanh"), is_op("sin")))
    after = fused(mod, first, second, args=ARGS[:1])
    assert list(groups(after)) == ["fused_first"]


def test_parallel_products_of_one_input_are_one_function() -> None:
    mod = program("a = R.matmul(x, w)\nb = R.matmul(x, w)\nc = R.matmul(x, w)\ngv = (a, b, c)")
    x = wildcard()
    three = joined(*(is_op("matmul")(x, wildcard()) for _ in range(3)))
    assert groups(fused(mod, FusionPattern("qkv", three))) == {"fused_qkv": ["matmul"] * 3}


def test_check_gets_the_names() -> None:
    w = wildcard()
    pattern = is_op("matmul")(wildcard(), w)
    mod = program(
        "a = R.matmul(x, w)\nb = R.matmul(a, v)\ngv = R.exp(b)",
        PARAMS + ', v: R.Tensor((4, 4), "float32")',
    )
    square = FusionPattern(
        "square",
        pattern,
        {"weight": w},
        lambda m, names: m.annotation(names["weight"]) == TensorType((4, 4), "float32"),
    )
    after = fused(mod, square, args=[*ARGS, np.eye(4, dtype=np.float32)])
    assert groups(after) == {"fused_square": ["matmul"]}
    assert "cls.fused_square(a, v)" in after.script()


def test_symbols_that_no_argument_carries_are_passed() -> None:
    mod = program(
        "a = R.exp(x)\nb = R.reshape(a, R.shape([n * 3]))\ngv = R.tanh(b)",
        'x: R.Tensor(("n", 3), "float32")',
    )
    flat = FusionPattern("flat", is_op("tanh")(is_op("reshape")(wildcard(), wildcard())))
    after = fused(mod, flat, args=[ARGS[0][:, :3]], machine=True)
    assert groups(after) == {"fused_flat": ["reshape", "tanh"]}


def test_across_a_match_cast() -> None:
    """The region comes behind the cast that defines its symbol."""
    mod = program(
        'a = R.exp(x)\nb = R.match_cast(y, R.Tensor(("n", 5), "float32"))\nc = R.add(a, b)\ngv = R.tanh(c)',
        'x: R.Tensor(("n", 5), "float32"), y: R.Tensor(ndim=2, dtype="float32")',
    )
    pattern = FusionPattern("p", is_op("add")(is_op("exp"), wildcard()))
    after = FuseOpsByPattern((pattern,))(mod)
    check_well_formed(after)
    assert groups(after) == {"fused_p": ["exp", "add"]}


def test_a_special_fusion_first_then_fuse_ops_takes_the_rest() -> None:
    """Attention as one function; what is around it is grouped by kind; nothing of it is grouped again."""
    heads = '("b", 2, "n", 4)'
    mod = program(
        """
s = R.matmul(q, R.permute_dims(k, axes=[0, 1, 3, 2]))
p = R.nn.softmax(R.multiply(s, R.const(0.5)), axis=-1)
o = R.matmul(p, v)
t = R.tanh(o)
gv = R.exp(t)
""",
        ", ".join(f'{name}: R.Tensor({heads}, "float32")' for name in "qkv"),
    )
    scores = is_op("matmul")(wildcard(), is_op("permute_dims"))
    weights = is_op("nn.softmax")(is_op("multiply")(scores, wildcard()))
    attention = FusionPattern("attention", is_op("matmul")(weights, wildcard()))
    args = [RNG.uniform(-1, 1, (3, 2, 6, 4)).astype(np.float32) for _ in range(3)]
    cut = fused(mod, attention, args=args, rows=3)
    assert list(groups(cut)) == ["fused_attention"]
    grouped = FuseOps()(LegalizeOps()(cut))
    check_well_formed(grouped)
    made = [n for n, f in grouped.graph_functions.items() if f.attrs.get(PRIMITIVE)]
    assert "fused_tanh_exp" in made
    np.testing.assert_allclose(
        np.asarray(interpret(mod, "main", *args)),
        np.asarray(interpret(FuseTensorIR()(grouped), "main", *args)),
        rtol=1e-5,
    )


def test_primitive_regions_of_tensor_programs_become_one_program() -> None:
    """What FuseOps would not do: an element-wise program in front of a product. It leaves the group alone."""
    mod = LegalizeOps()(program("a = R.exp(x)\nb = R.matmul(a, w)\ngv = R.tanh(b)"))
    product = is_call_tir(
        kind=PatternKind.OUTPUT_EWISE_FUSIBLE, args=[is_call_tir("exp"), wildcard()]
    )
    prologue = FusionPattern("prologue", product, attrs={PRIMITIVE: True})
    cut = FuseOpsByPattern((prologue,))(mod)
    assert FuseOps()(cut) is cut
    after = FuseTensorIR()(cut)
    check_well_formed(after)
    assert list(after.prim_funcs) == ["tanh", "fused_prologue"]
    np.testing.assert_allclose(
        np.asarray(interpret(mod, "main", *ARGS)),
        np.asarray(interpret(after, "main", *ARGS)),
        rtol=1e-6,
    )


def test_attributes_that_are_made_of_a_match() -> None:
    """As the strides of a convolution, which a library is told."""
    product = is_op("matmul")(wildcard(), wildcard())
    pattern = FusionPattern("mm", product, attrs=lambda m: {"columns": str(m.annotation(product))})
    after = FuseOpsByPattern((pattern,))(
        program("a = R.matmul(x, w)\ngv = R.matmul(a, R.permute_dims(w))")
    )
    said = {f.attrs["columns"] for f in after.graph_functions.values() if "columns" in f.attrs}
    assert len(said) == 2


def test_functions_that_were_cut_out_stay() -> None:
    mod = fused(program("a = R.matmul(x, w)\ngv = R.nn.relu(a)"), RELU)
    assert FuseOpsByPattern((RELU,))(mod) is mod


def test_an_expected_pattern_that_never_matched_is_reported() -> None:
    mod = program("a = R.matmul(x, w)\nb = R.nn.relu(a)\ngv = (a, b)")
    expected = FusionPattern("matmul_relu", RELU.pattern, expected=True)
    with pytest.warns(UnmatchedPatternWarning, match="a is used elsewhere too") as seen:
        FuseOpsByPattern((expected,))(mod)
    warning = seen[0].message
    assert isinstance(warning, UnmatchedPatternWarning)
    assert (warning.report.name, warning.report.matches) == ("matmul_relu", 0)


OPERATOR = ~is_function()
"""What is called, where that is no function: those are what earlier regions became."""


@pytest.mark.parametrize("legalised", [False, True])
def test_random_programs(legalised: bool) -> None:
    """Every call with what it is made of, values used elsewhere becoming outputs; then any two calls."""
    steps = (Normalize(), BindUnknownShapes(), *([LegalizeOps()] if legalised else []))
    if legalised:
        one = is_call_tir()
        pair = is_call_tir(args=[one]) | is_call_tir(args=[wildcard(), one])
    else:
        one = OPERATOR(...)
        pair = OPERATOR(one, ...) | OPERATOR(wildcard(), one, ...)
    step = FuseOpsByPattern(
        (
            FusionPattern("chain", pair, further_outputs=True),
            FusionPattern("two", joined(one, is_call_tir() if legalised else OPERATOR(...))),
        )
    )
    assert check_pass(step, range(13), Sequential(steps)) > 2
