"""Recurrent networks are torch's, and by their options ONNX's. The operators' references are compared with both; what is
compiled is compared with the references (`check_op`, `tests/backend/cpu/rules/test_recurrent.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.op.base import OPS
from relaxpy.op.recurrent import Gru, Lstm, Recurrent, Rnn
from tests.sweeps import quick_target

KINDS: dict[str, type[Recurrent]] = {"LSTM": Lstm, "GRU": Gru, "RNN": Rnn}
RNG = np.random.default_rng(0)


def numbers(*shape: int) -> np.ndarray:
    return RNG.uniform(-0.8, 0.8, shape).astype(np.float32)


def near(got: Any, want: Any) -> None:
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-5)


# torch


@pytest.mark.parametrize("with_lengths", [False, True])
@pytest.mark.parametrize(
    ("kind", "made"),
    [
        ("LSTM", {}),
        ("LSTM", {"num_layers": 3, "bidirectional": True, "bias": False}),
        ("LSTM", {"num_layers": 2, "bidirectional": True, "proj_size": 3, "batch_first": True}),
        ("GRU", {"num_layers": 2, "bidirectional": True}),
        ("GRU", {"batch_first": True, "bias": False}),
        ("RNN", {"nonlinearity": "relu", "num_layers": 2}),
        ("RNN", {"bidirectional": True, "batch_first": True}),
    ],
)
def test_torch(kind: str, made: dict[str, Any], with_lengths: bool) -> None:
    torch = pytest.importorskip("torch")
    layer = getattr(torch.nn, kind)(4, 5, **made)
    weights = [value.detach().numpy() for value in layer.parameters()]
    is_wide, first = made.get("bidirectional", False), made.get("batch_first", False)
    options: dict[str, Any] = {
        "num_layers": made.get("num_layers", 1),
        "direction": "bidirectional" if is_wide else "forward",
        "biases": 2 if made.get("bias", True) else 0,
        "batch_first": first,
    }
    if "nonlinearity" in made:
        options["activations"] = (made["nonlinearity"],)
    if "proj_size" in made:
        options["projection"] = True
    x, lengths = numbers(*((3, 7, 4) if first else (7, 3, 4))), np.array([4, 7, 1])
    count = options["num_layers"] * (1 + is_wide)
    states = [numbers(count, 3, made.get("proj_size", 5))]
    states += [numbers(count, 3, 5)] if kind == "LSTM" else []
    given = [torch.from_numpy(each) for each in states]
    rnn, data = torch.nn.utils.rnn, torch.from_numpy(x)
    if with_lengths:
        sizes = torch.from_numpy(lengths)
        data = rnn.pack_padded_sequence(data, sizes, batch_first=first, enforce_sorted=False)
    with torch.no_grad():
        y, last = layer(data, tuple(given) if len(given) > 1 else given[0])
    if with_lengths:
        y, _ = rnn.pad_packed_sequence(y, batch_first=first)
    want: list[Any] = [y, *(last if isinstance(last, tuple) else [last])]
    found = KINDS[kind](**options).reference(x, weights, *states, lengths if with_lengths else None)
    near(found, [each.numpy() for each in want])


# ONNX: the results of its specification, whose outputs are (length, directions, batch, hidden)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


Function = Callable[[np.ndarray], np.ndarray]
ACTIVATIONS: dict[str, Function] = {
    "affine(0.5, 0.1)": lambda x: 0.5 * x + 0.1,
    "elu(1.5)": lambda x: np.where(x < 0, 1.5 * (np.exp(x) - 1), x),
    "hard_sigmoid": lambda x: np.maximum(0, np.minimum(1, 0.2 * x + 0.5)),
    "leaky_relu(0.3)": lambda x: np.where(x < 0, 0.3 * x, x),
    "relu": lambda x: np.maximum(x, 0),
    "scaled_tanh(0.5, 2)": lambda x: 0.5 * np.tanh(2 * x),
    "sigmoid": sigmoid,
    "softplus": lambda x: np.log(1 + np.exp(x)),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "tanh": np.tanh,
    "thresholded_relu(0.1)": lambda x: np.where(x > 0.1, x, 0),
}


class Onnx:
    """A node of the specification, for one batch entry at a time."""

    def __init__(self, kind: str, functions: Any, clip: float | None, **options: Any) -> None:
        self.kind, self.options = kind, options
        bound = np.inf if clip is None else clip

        def clipped(function: Function) -> Function:
            return lambda x: function(np.clip(x, -bound, bound))

        self.functions = [clipped(ACTIVATIONS[name]) for name in functions]
        if kind == "LSTM":  # the cell's own is not clipped, as in ONNX Runtime
            self.functions[2] = ACTIVATIONS[functions[2]]

    def step(self, x: Any, h: Any, c: Any, w: Any, r: Any, b: Any, p: Any) -> tuple[Any, Any]:
        f = self.functions
        wb, rb = np.split(b, 2)
        if self.kind == "RNN":
            return f[0](w @ x + r @ h + wb + rb), c
        if self.kind == "GRU":
            (wz, wr, wh), (rz, rr, rh) = np.split(w, 3), np.split(r, 3)
            (bz, br, bh), (sz, sr, sh) = np.split(wb, 3), np.split(rb, 3)
            z, reset = f[0](wz @ x + rz @ h + bz + sz), f[0](wr @ x + rr @ h + br + sr)
            if self.options["linear_before_reset"]:
                new = f[1](wh @ x + reset * (rh @ h + sh) + bh)
            else:
                new = f[1](wh @ x + rh @ (reset * h) + sh + bh)
            return (1 - z) * new + z * h, c
        wi, wo, wf, wc = np.split(w @ x + r @ h + wb + rb, 4)
        pi, po, pf = np.split(p, 3)
        i = f[0](wi + pi * c)
        forget = 1 - i if self.options["input_forget"] else f[0](wf + pf * c)
        c = forget * c + i * f[1](wc)
        return f[0](wo + po * c) * f[2](c), c

    def run(
        self, x: Any, w: Any, r: Any, b: Any, p: Any, h: Any, c: Any, lengths: Any, backward: Any
    ) -> tuple[Any, ...]:
        y = np.zeros((len(x), len(w), x.shape[1], h.shape[2]), x.dtype)
        h, c = h.copy(), c.copy()
        for d, is_backward in enumerate(backward):
            for n, length in enumerate(lengths):
                for t in range(length)[:: -1 if is_backward else 1]:
                    h[d, n], c[d, n] = self.step(x[t, n], h[d, n], c[d, n], w[d], r[d], b[d], p[d])
                    y[t, d, n] = h[d, n]
        return y, h, c


GATES = {"LSTM": "iofg", "GRU": "zrn", "RNN": "h"}
LIKE_ONNX = {
    "LSTM": [
        {},
        {"activations": ("hard_sigmoid", "softsign", "elu(1.5)"), "clip": 0.4},
        {"input_forget": True, "peepholes": True},
        {"peepholes": True, "clip": 0.3},
    ],
    "GRU": [
        {},
        {"reset_after": False},
        {"reset_after": False, "activations": ("softplus", "scaled_tanh(0.5, 2)"), "clip": 0.2},
    ],
    "RNN": [
        {},
        {"activations": ("leaky_relu(0.3)",), "clip": 0.5},
        {"activations": ("affine(0.5, 0.1)",)},
        {"activations": ("thresholded_relu(0.1)",)},
    ],
}


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("kind", "options"), [(kind, each) for kind, found in LIKE_ONNX.items() for each in found]
)
def test_onnx(kind: str, options: dict[str, Any], direction: str) -> None:
    gates, hidden, count = len(GATES[kind]), 5, 1 + (direction == "bidirectional")
    x, lengths = numbers(6, 3, 4), np.array([6, 0, 3])
    w, r = numbers(count, gates * hidden, 4), numbers(count, gates * hidden, hidden)
    b, p = numbers(count, 2 * gates * hidden), numbers(count, 3 * hidden)
    h, c = numbers(count, 3, hidden), numbers(count, 3, hidden)
    defaults = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}
    node = Onnx(
        kind, options.get("activations", defaults[kind]), options.get("clip"),
        linear_before_reset=options.get("reset_after", True),
        input_forget=options.get("input_forget", False),
    )  # fmt: skip
    has_peepholes = options.get("peepholes", False)
    backward = {"forward": [False], "reverse": [True]}.get(direction, [False, True])
    y, last, cell = node.run(x, w, r, b, p * has_peepholes, h, c, lengths, backward)
    weights = [
        each
        for d in range(count)
        for each in (w[d], r[d], *np.split(b[d], 2), *([p[d]] if has_peepholes else []))
    ]
    op = KINDS[kind](direction=direction, gates=GATES[kind], **options)
    states = (h, c) if kind == "LSTM" else (h,)
    found = op.reference(x, weights, *states, lengths)
    want = np.moveaxis(y, 1, 2).reshape(6, 3, count * hidden), last, cell
    near(found, want[: len(found)])


# What users write


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_are_symbols(kind: str) -> None:
    """The number of units too; one build for all sizes, 0 and 1 among them."""
    name, gates = f"nn.{kind.lower()}", len(GATES[kind])
    source = f"""
@R.function
def main(
    x: R.Tensor(("n", "b", "i"), "float32"), w: R.Tensor(({gates} * h, "i"), "float32"),
    u: R.Tensor(({gates} * h, "h"), "float32"), lengths: R.Tensor(("b",), "int32"),
):
    h = T.int64()
    y = R.{name}(x, (w, u), lengths=lengths, biases=0)
    return y
"""
    vm = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(source), target=quick_target()))
    for n, b, i, h in ((5, 3, 4, 19), (1, 1, 1, 1), (0, 2, 3, 4), (3, 0, 2, 5), (2, 3, 0, 33)):
        x, w, u = numbers(n, b, i), numbers(gates * h, i), numbers(gates * h, h)
        lengths = RNG.integers(0, n + 1, b).astype(np.int32)
        op: Any = OPS[name]
        want = op(biases=0).reference(x, (w, u), lengths=lengths)
        near([each.numpy() for each in vm["main"](x, w, u, lengths)], want)


def test_weights_are_packed_when_building() -> None:
    """Nothing is left of them but what the kernels read."""
    source = """
@R.function
def main(
    x: R.Tensor(("n", "b", 4), "float32"), w: R.Tensor((80, 4), "float32"), u: R.Tensor((80, 20), "float32"),
    v: R.Tensor((80,), "float32"),
):
    y = R.nn.lstm(x, (w, u, v, v, w, u, v, v), direction="bidirectional")
    return y
"""
    params = {"w": numbers(80, 4), "u": numbers(80, 20), "v": numbers(80)}
    exe = relaxpy.build(relaxpy.parse(source), target=quick_target(), params=params)
    text = exe.as_text()
    assert "float32[2, 2, 20, 4, 16]" in text
    assert not any(f"  {name}" in text for name in ("recurrent_panels", "stack", "concat", "split"))


def test_weights_are_packed_by_the_caller() -> None:
    """Padding makes them larger, and they are packed before the first call all the same."""
    layer = nn.LSTM(4, 19, bidirectional=True)
    mod, _ = layer.export({"forward": {"x": nn.spec.Tensor(("n", "b", 4))}})
    exe = relaxpy.build(mod, target=quick_target(), pack=True)
    main = exe.as_text().split("func forward(")[1].split("\nfunc")[0]
    assert "float32[2, 2, 19, 4, 16] for parameter" in main
    assert "recurrent_panels" not in main


def test_a_call_cannot_have_weights_too_few() -> None:
    with pytest.raises(relaxpy.RelaxError) as caught:
        relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", 2, 4), "float32"), w: R.Tensor((9, 4), "float32")):
    y = R.nn.gru(x, (w, w), biases=0, num_layers=2)
    return y
""")
    message = str(caught.value)
    assert (
        "weights must be 4 tensors: for each layer and direction input weight, state weight"
        in message
    )
    assert "y = R.nn.gru(" in message
