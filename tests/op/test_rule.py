"""The rules of differentiation: each operator has one or says why not, each rule is checked on the operator's samples,
and what a rule reads is what is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import relaxpy
from relaxpy.errors import PassError, RelaxError
from relaxpy.ir.visitor import used_vars
from relaxpy.op.base import Op, Sample
from relaxpy.testing.grad_check import check_sample
from relaxpy.testing.interpret import interpret
from relaxpy.testing.op_check import module_of
from relaxpy.testing.op_samples import samples
from relaxpy.transform.gradient import Gradient
from tests.op.support import CLASSES
from tests.sweeps import FULL, part, sweep

RULED = [cls for cls in CLASSES if cls.has_vjp()]
STRAIGHT = {"grad.no_grad", "reduce_precision"}
"""Operators whose rule is not the derivative, on purpose."""
PARTIAL = {
    "cummax": "exclusive",
    "cummin": "exclusive",
    "einsum": "a diagonal",
    "gather_nd": "batch_dims",
    "grad.nll_loss_backward": "weights",
    "nn.nll_loss": "weights",
    "nn.pad": "of mode",
    "reduce_window": "base_dilation",
    "scatter": "reduction",
    "scatter_elements": "reduction",
    "scatter_nd": "reduction",
    "take": "mode",
    **dict.fromkeys(
        (
            "grad.avg_pool2d_backward", "grad.max_pool2d_backward", "image.grid_sample",
            *(f"nn.{kind}_pool{n}d" for kind in ("avg", "max", "adaptive_avg") for n in (1, 2, 3)),
            *(f"nn.conv{n}d{kind}" for kind in ("", "_transpose") for n in (1, 2, 3)),
        ),
        "blocks of channels",
    ),
}  # fmt: skip
"""Operators whose rule refuses some calls: a word of the reason."""


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)
def test_each_operator_has_a_rule_or_a_reason(cls: type[Op]) -> None:
    assert cls.has_vjp() != bool(cls.no_vjp), (
        f"{cls.name} needs `vjp`, or `no_vjp`, which says why not"
    )


def seen(cls: type[Op]) -> list[Sample]:
    """The samples that are checked: all of a full sweep; else a few that are small."""
    right = [s for s in samples(cls.name) if not s.code]
    if cls.name == "grad.nll_loss_backward":  # the mean of no losses is NaN
        right = [s for s in right if all(a.size for a in floats(s.inputs))]
    if FULL:
        return right
    small = [s for s in right if sum(a.size for a in floats(s.inputs)) <= 130]
    return list(part(small or right, 4))


def floats(value: Any) -> list[np.ndarray]:
    if type(value) in (tuple, list):
        return [leaf for each in value for leaf in floats(each)]
    array = np.asarray(value)
    return [array] if array.dtype.kind == "f" else []


@sweep(2)
@pytest.mark.parametrize(
    "cls", [c for c in RULED if c.name not in STRAIGHT], ids=lambda cls: cls.name
)
def test_rules_give_the_slopes(cls: type[Op]) -> None:
    """Reverse mode beside finite differences, forward mode beside reverse mode, with symbols, sizes 0 and 1; in a full
    sweep also the derivatives of these."""
    for s in seen(cls):
        try:
            check_sample(
                s, order=2 if FULL else 1, sizes=FULL or cls.name in ("add", "matmul", "sum")
            )
        except AssertionError as error:
            refusal = error.__cause__
            if not isinstance(refusal, RelaxError) or refusal.code != "gradient-rule":
                raise
            assert PARTIAL.get(cls.name, "nothing") in str(refusal)


def kept(source: str) -> set[str]:
    """The names of the variables that the backward pass of a function reads of the forward pass."""
    mod = Gradient(kind="vjp")(relaxpy.parse(source))
    function = mod.graph_functions["main_vjp"]
    own = {b.var.name for b in mod.graph_functions["main"].body.bindings}
    own |= {p.name for p in mod.graph_functions["main"].params}
    names = [b.var.name for b in function.body.bindings]
    last = max(names.index(name) for name in own if name in names)
    backward = list(function.body.bindings)[last + 1 : -1]
    return {v.name for b in backward for v in used_vars(b.value)} & own


ONE = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 4), "float32")):
        with R.dataflow():
            y = R.{op}
            R.output(y)
        return y
"""


@pytest.mark.parametrize(
    ("op", "wanted"),
    [
        ("nn.relu(x)", {"y"}),
        ("exp(x)", {"y"}),
        ("tanh(x)", {"y"}),
        ("nn.softmax(x)", {"y"}),
        ("sin(x)", {"x"}),
        ("sum(x)", set[str]()),
        ("add(x, x)", set[str]()),
        ("permute_dims(x)", set[str]()),
        ("concat((x, x))", set[str]()),
        ("multiply(x, R.const(2.0))", set[str]()),
    ],
)
def test_what_is_kept(op: str, wanted: set[str]) -> None:
    """`relu` reads its result: to read the argument would split the fused product before it."""
    assert kept(ONE.format(op=op)) == wanted


def slopes(op: str, x: np.ndarray) -> np.ndarray:
    """The cotangent of x, for one of ones."""
    shape = ", ".join(map(str, x.shape))
    source = ONE.format(op=op).replace('("n", 4), "float32"', f'({shape},), "float32"')
    mod = Gradient(kind="vjp")(relaxpy.parse(source))
    with np.errstate(all="ignore"):
        value = interpret(mod, "main", x)
        return interpret(mod, "main_vjp", x, np.ones_like(value))[1][0]  # type: ignore[index]


nan = float("nan")
EDGES: list[tuple[str, Callable[[Any], Any], list[float]]] = [
    ("nn.relu(x)", torch.relu, [0.0, -0.0, nan, 1.0]),
    ("nn.relu6(x)", torch.nn.functional.relu6, [0.0, 6.0, 3.0]),
    ("nn.leakyrelu(x)", torch.nn.functional.leaky_relu, [0.0, -1.0, nan]),
    ("abs(x)", torch.abs, [0.0, -0.0, -2.0]),
    ("sqrt(x)", torch.sqrt, [0.0, 4.0]),
    ("sign(x)", torch.sign, [0.0, 3.0]),
    ("floor(x)", torch.floor, [0.0, 1.5]),
    ("clip(x, min=-1.0, max=1.0)", lambda x: torch.clamp(x, -1, 1), [-1.0, 1.0, 0.5, 2.0]),
    ("max(x)", lambda x: torch.amax(x), [3.0, 1.0, 3.0]),
    ("min(x)", lambda x: torch.amin(x), [1.0, 1.0, 3.0, 1.0]),
    ("maximum(x, R.const(1.0))", lambda x: torch.maximum(x, torch.ones(())), [1.0, 2.0, 0.5]),
    ("minimum(x, R.const(1.0))", lambda x: torch.minimum(x, torch.ones(())), [1.0, 2.0, 0.5]),
    ("prod(x)", torch.prod, [2.0, 0.0, 3.0]),
    ("prod(x)", torch.prod, [0.0, 0.0, 3.0]),
    ("cumprod(x, axis=0)", lambda x: torch.cumprod(x, 0), [2.0, 0.0, 3.0, 0.0, 5.0]),
    ("cummax(x, axis=0)", lambda x: torch.cummax(x, 0).values, [1.0, 1.0, 0.5, 2.0]),
    ("std(x)", lambda x: torch.std(x, correction=0), [2.0, 2.0, 2.0]),
    ("power(x, R.const(0.0))", lambda x: torch.pow(x, torch.zeros(())), [0.0, 2.0]),
    ("power(x, R.const(2.0))", lambda x: torch.pow(x, torch.full((), 2.0)), [0.0, -2.0]),
    ("power(R.const(0.0), x)", lambda x: torch.pow(torch.zeros(()), x), [0.0, 2.0]),
    ("sort(x)", lambda x: torch.sort(x, stable=True).values, [2.0, 1.0, 2.0]),
    ("where(R.less(x, R.const(0.0)), R.const(0.0), R.sqrt(x))",
     lambda x: torch.where(x < 0, torch.zeros(()), torch.sqrt(x)), [-1.0, 4.0]),
]  # fmt: skip
"""Ties and edges, which docs/gradients.md lists."""


@pytest.mark.parametrize(("op", "theirs", "values"), EDGES, ids=[f"{e[0]} {e[2]}" for e in EDGES])
def test_edges_are_torchs(op: str, theirs: Any, values: list[float]) -> None:
    x = torch.tensor(values, requires_grad=True)
    theirs(x).sum().backward()
    assert x.grad is not None
    np.testing.assert_array_equal(slopes(op, np.array(values, np.float32)), x.grad.numpy())


def test_a_size_that_proves_to_be_1_is_summed() -> None:
    """n and m are equal, or one of them is 1: which is known only at run time."""
    mod = relaxpy.parse("""
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n",), "float64"), y: R.Tensor(("m",), "float64")):
        z = R.multiply(x, y)
        return z
""")
    mod = Gradient(kind="vjp")(mod)
    for n, m in ((1, 5), (5, 1), (5, 5), (1, 1), (0, 1), (1, 0)):
        x, y = np.arange(n) + 2.0, np.arange(m) + 3.0
        ct = np.arange(np.broadcast(x, y).size) + 1.0
        _, (of_x, of_y) = interpret(mod, "main_vjp", x, y, ct)  # type: ignore[misc]
        for mine, own, other in ((of_x, x, y), (of_y, y, x)):
            whole = ct * other
            want = whole.sum(keepdims=True) if len(own) == 1 else whole
            np.testing.assert_allclose(mine, want)


def test_a_refused_call_says_why() -> None:
    with pytest.raises(PassError, match="layout_transform is not differentiable: no rule"):
        Gradient(kind="vjp")(
            module_of(next(s for s in samples("layout_transform") if not s.code), symbolic=False)
        )
