"""Annotate: where pairs are put, by which rules, and which rules are refused."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.errors import UsageError
from relaxpy.ir.expr import Call
from relaxpy.ir.module import IRModule
from relaxpy.op.pair import ROW, Pair
from relaxpy.op.quantization import Quantize
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.transform import (
    Annotate,
    CanonicalizeBindings,
    DeadCodeElimination,
    Realize,
    Sequential,
)
from relaxpy.transform.annotate import Rule, Scales

RNG = np.random.default_rng(0)


class Network(nn.Module):
    """Two layers of odd sizes on rows of two axes, and a product of two activations."""

    def __init__(self) -> None:
        self.up = nn.Linear(13, 7)
        self.down = nn.Linear(7, 5, bias=False)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        y = self.down(nn.op.nn.relu(self.up(x)))
        return nn.op.matmul(y, nn.op.permute_dims(y, (0, 2, 1)))


def network() -> tuple[IRModule, dict[str, np.ndarray]]:
    model = Network()
    rng = np.random.default_rng(1)
    model.load(
        {n: rng.standard_normal(p.shape).astype("float32") for n, p in model.named_parameters()}
    )
    mod, params = model.export({"forward": {"x": nn.spec.Tensor(("b", "s", 13), "float32")}})
    return mod, dict(params)


def quantizes(mod: IRModule, name: str = "forward") -> list[Quantize]:
    values = (binding.value for binding in mod.graph_function(name).body.bindings)
    return [v.op for v in values if isinstance(v, Call) and isinstance(v.op, Quantize)]


def reasons(rules: Mapping[str, Rule]) -> dict[str, str]:
    return {p.layer: p.reason for p in Annotate(rules).annotated(network()[0])[1]}


def test_example() -> None:
    check_example(Annotate())


def test_layers_and_reasons() -> None:
    """Layers have the names of their weights; a product of activations has no weight."""
    assert reasons({}) == {"up": "", "down": "", "matmul": "x2 is no weight"}


def test_realised_is_simulated_and_near_the_floats() -> None:
    """In the interpreter and compiled, with sizes that the call brings; a row of zeros is one of zeros."""
    mod, params = network()
    annotated = Annotate()(mod)
    real, places = Realize().realized(annotated)
    assert [p.reason for p in places] == ["", ""]
    x = RNG.standard_normal((2, 3, 13)).astype("float32")
    x[1, 2] = 0
    arguments = [x, *params.values()]
    floats, simulated, integers = (
        interpret(m, "forward", *arguments) for m in (mod, annotated, real)
    )
    np.testing.assert_allclose(integers, simulated, rtol=1e-5, atol=1e-5)
    assert not np.allclose(simulated, floats, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(simulated, floats, atol=0.05 * np.abs(floats).max())
    got = relaxpy.VirtualMachine(relaxpy.build(real, params=params))["forward"](x).numpy()
    np.testing.assert_allclose(got, integers, rtol=1e-4, atol=0.02 * np.abs(floats).max())


def test_weights_are_quantised_when_the_program_is_built() -> None:
    """What depends on a constant weight alone is a constant, in a byte each."""
    mod, params = network()
    text = relaxpy.build(Realize()(Annotate()(mod)), params=params).as_text()
    constants = [line for line in text.splitlines() if line.startswith("const ")]
    sizes = [line for line in constants if "[]" not in line]
    assert sum("int8[" in line for line in sizes) == 2
    assert {line.rpartition("float32")[2] for line in sizes if "float32" in line} <= {"[7]", "[5]"}


def test_a_value_that_is_not_finite_stays_visible() -> None:
    mod, params = network()
    real = Realize()(Annotate()(mod))
    x = RNG.standard_normal((1, 2, 13)).astype("float32")
    x[0, 0, 3], x[0, 1, 5] = np.nan, np.inf
    got = interpret(real, "forward", x, *params.values())
    assert not np.isfinite(got).any()


def test_rules_of_the_user() -> None:
    """Figure 9 of Relay: unsigned codes for what a layer reads, rounded by chance for its weight. The most special rule
    wins: layer, pattern, operator."""

    def figure9(op: object) -> Mapping[str, Pair]:
        return {
            "data": Pair("uint8", axis=ROW),
            "weight": Pair("uint8", axis=0, weight=True, rounding="stochastic", seed=3),
        }

    mod, params = network()
    annotated = Annotate({"linear": figure9, "down": None})(mod)
    assert [(q.out_dtype, q.rounding) for q in quantizes(annotated)] == [
        ("uint8", "half_to_even"), ("uint8", "stochastic"),
    ]  # fmt: skip
    assert reasons({"linear": figure9, "u*": None})["up"] == "its rule says so"
    assert reasons({"u*": None, "up": lambda op: op.pairs()})["up"] == ""
    real, places = Realize().realized(annotated)
    assert [p.reason for p in places] == [""]
    x = RNG.standard_normal((2, 3, 13)).astype("float32")
    want, got = (interpret(m, "forward", x, *params.values()) for m in (annotated, real))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_activations_by_activations() -> None:
    """A rule may quantise what is no weight, with one scale for each factor."""
    rule = {"x1": Pair(), "x2": Pair()}
    mod, params = network()
    annotated = Annotate({"matmul": rule, "linear": None})(mod)
    real, places = Realize().realized(annotated)
    assert [(p.operator, p.reason) for p in places] == [("matmul", "")]
    x = RNG.standard_normal((2, 3, 13)).astype("float32")
    want, got = (interpret(m, "forward", x, *params.values()) for m in (annotated, real))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


CONV = """
from relaxpy.script import relax as R

@R.function
def main(x: R.Tensor(("n", 3, 8, 9), "float32"), c1_weight: R.Tensor((5, 3, 3, 3), "float32")):
    R.func_attr({"num_input": 1})
    with R.dataflow():
        y = R.nn.conv2d(x, c1_weight, padding=1)
        R.output(y)
    return y
"""


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_convolutions_take_scales_from_data(dtype: str) -> None:
    """Without them they stay as they are; with them, padding is 0 also where the zero point is not."""
    mod = relaxpy.parse(CONV)
    (place,) = Annotate().annotated(mod)[1]
    assert place.layer == "c1"
    assert "calibrate" in place.reason
    zero = np.array(0 if dtype == "int8" else 117, dtype)
    found = {("c1", "data"): Scales(np.array(0.03, "float32"), zero)}
    rules: Mapping[str, Rule] = {
        "nn.conv2d": lambda op: {**op.pairs(), "data": Pair(dtype, static=True)}
    }
    annotated = Annotate(rules, found)(mod)
    real, places = Realize().realized(annotated)
    assert [p.reason for p in places] == [""]
    x = RNG.standard_normal((2, 3, 8, 9)).astype("float32")
    w = RNG.standard_normal((5, 3, 3, 3)).astype("float32")
    floats, want, got = (interpret(m, "main", x, w) for m in (mod, annotated, real))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(want, floats, atol=0.05 * np.abs(floats).max())
    ran = relaxpy.VirtualMachine(relaxpy.build(real))["main"](x, w).numpy()
    np.testing.assert_allclose(ran, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"upp": None}, "the rule 'upp' matches no layer"),
        ({"conv1d": None}, "matches no layer"),
        ({"up": {"x": Pair()}}, "has a pair for x, which linear does not have"),
    ],
)
def test_rules_that_match_nothing_are_refused(rules: Mapping[str, Rule], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        Annotate(rules)(network()[0])
    assert caught.value.code == "quantization"
    assert caught.value.help


def test_scales_of_no_layer_are_refused() -> None:
    one = Scales(np.array(1, "float32"), np.array(0, "int8"))
    with pytest.raises(UsageError, match="scales for data of the layer 'upp'"):
        Annotate(scales={("upp", "data"): one})(network()[0])


def test_parts_of_a_rule_that_do_not_fit_leave_a_float() -> None:
    assert "has no axis 5" in reasons({"up": {"weight": Pair(axis=5, weight=True)}})["up"]
    assert "no rows" in reasons({"matmul": None, "nn.relu": {"x": Pair(axis=ROW)}})["relu"]


def test_nothing_is_left_over() -> None:
    """Weights are quantised by operators, which are folded; rows by one program each."""
    mod = Sequential((Annotate(), Realize(), CanonicalizeBindings(), DeadCodeElimination()))(
        network()[0]
    )
    assert len(quantizes(mod)) == 2
    assert [name for name in mod.functions if "rows" in name] == ["quantize_rows", "quantize_rows1"]
