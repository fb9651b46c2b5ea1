"""Recurrent layers are torch's, for any length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.errors import UsageError
from tests.nn.against_torch import Case, Layers, torch
from tests.sweeps import quick_target, sweep

SIZES = ({"l": 5, "b": 2}, {"l": 1, "b": 1}, {"l": 64, "b": 3})


def both(kind: str, dims: str, sizes: Any = SIZES, **made: Any) -> Case:
    ours, theirs = getattr(nn, kind)(3, 4, **made), getattr(torch.nn, kind)(3, 4, **made)
    return Case(ours, theirs, dims, sizes, atol=1e-4)


class TakesState(nn.Module):
    """An LSTM whose state comes as two arguments."""

    def __init__(self, lstm: Any) -> None:
        self.lstm = lstm

    def forward(self, x: nn.Tensor, h: nn.Tensor, c: nn.Tensor) -> Any:
        return self.lstm(x, (h, c))


class TheirsTakesState(torch.nn.Module):
    def __init__(self, lstm: Any) -> None:
        super().__init__()
        self.lstm = lstm

    def forward(self, x: Any, h: Any, c: Any) -> Any:
        return self.lstm(x, (h, c))


CASES = {
    "lstm": both("LSTM", "l b 3"),
    "lstm_layers": both("LSTM", "b l 3", num_layers=2, bidirectional=True, batch_first=True),
    "lstm_single": both("LSTM", "l 3", bias=False),
    "lstm_state": Case(
        TakesState(nn.LSTM(3, 4)),
        TheirsTakesState(torch.nn.LSTM(3, 4)),
        "l b 3, 1 b 4, 1 b 4",
        SIZES,
        atol=1e-4,
    ),
    "lstm_projection": both("LSTM", "l b 3", num_layers=2, bidirectional=True, proj_size=2),
    "gru": both("GRU", "l b 3", num_layers=2),
    "rnn": both("RNN", "l b 3", nonlinearity="relu", bidirectional=True),
    "gru_cell": both("GRUCell", "b 3, b 4"),
    "gru_cell_first": both("GRUCell", "b 3", bias=False),
    "rnn_cell": both("RNNCell", "3, 4", nonlinearity="relu"),
    "lstm_cell": Case(
        TakesState(nn.LSTMCell(3, 4)),
        TheirsTakesState(torch.nn.LSTMCell(3, 4)),
        "b 3, b 4, b 4",
        SIZES,
        atol=1e-4,
    ),
    "lstm_cell_first": both("LSTMCell", "3"),
}


@pytest.fixture(scope="module")
def layers() -> Layers:
    return Layers(CASES)


@sweep(2)
@pytest.mark.parametrize("name", CASES)
def test_equals_torch(layers: Layers, name: str) -> None:
    layers.check(name)


def test_a_layer_is_one_operator(layers: Layers) -> None:
    assert layers.mod.script().count("R.nn.lstm(") == sum("lstm" in name for name in CASES)


def test_lengths() -> None:
    """As torch's packed sequences."""
    ours, theirs = nn.GRU(3, 4, bidirectional=True), torch.nn.GRU(3, 4, bidirectional=True)
    ours.load_state_dict(theirs.state_dict())

    class Padded(nn.Module):
        def __init__(self) -> None:
            self.gru = ours

        def forward(self, x: nn.Tensor, lengths: nn.Tensor) -> Any:
            return self.gru(x, None, lengths)

    spec = {"x": nn.spec.Tensor(("l", "b", 3)), "lengths": nn.spec.Tensor(("b",), "int64")}
    mod, params = Padded().export({"forward": spec})
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, target=quick_target(), params=params))
    x, lengths = torch.randn(6, 3, 3), torch.tensor([2, 6, 1])
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
    with torch.no_grad():
        y, last = theirs(packed)
    want = torch.nn.utils.rnn.pad_packed_sequence(y)[0], last
    for got, each in zip(vm["forward"](x.numpy(), lengths.numpy()), want, strict=True):
        np.testing.assert_allclose(got.numpy(), each.numpy(), rtol=1e-4, atol=1e-5)


def test_wrong_options() -> None:
    with pytest.raises(UsageError, match="num_layers must be at least 1"):
        nn.LSTM(3, 4, num_layers=0)
    with pytest.raises(UsageError, match="nonlinearity must be"):
        nn.RNN(3, 4, nonlinearity="gelu")
    with pytest.raises(UsageError, match="proj_size must be 0 or below the hidden size 4"):
        nn.LSTM(3, 4, proj_size=4)

    class Wrong(nn.Module):
        def __init__(self) -> None:
            self.lstm = nn.LSTM(3, 4)

        def forward(self, x: nn.Tensor) -> Any:
            return self.lstm(x, x)

    with pytest.raises(UsageError, match="must be 2 tensors") as caught:
        Wrong().export({"forward": {"x": nn.spec.Tensor(("l", 2, 3))}})
    assert caught.value.span is not None
    assert caught.value.span.file == __file__
