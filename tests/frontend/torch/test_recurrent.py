"""Recurrent layers keep a length that varies."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import relaxpy
from relaxpy.errors import RelaxError
from tests.sweeps import full, sweep


class Tagger(nn.Module):
    """A recurrent layer between others, of which some results are used."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.embedding, self.layer, self.head = nn.Embedding(17, 5), layer, nn.Linear(width, 3)

    def forward(self, ids):
        outputs, states = self.layer(self.embedding(ids))
        return self.head(outputs), states


LAYERS = {
    "lstm": lambda: (nn.LSTM(5, 7, num_layers=2, bidirectional=True, batch_first=True), 14),
    "projection": lambda: (nn.LSTM(5, 7, proj_size=3, bias=False), 3),
    "gru": lambda: (nn.GRU(5, 7, num_layers=2), 7),
    "rnn": lambda: (nn.RNN(5, 7, nonlinearity="relu", batch_first=True), 7),
}


@sweep(4)
@pytest.mark.parametrize("name", LAYERS)
def test_one_build_serves_every_length(name: str) -> None:
    torch.manual_seed(0)
    model = Tagger(*LAYERS[name]()).eval()
    compiled = relaxpy.compile(model, torch.zeros(3, 5, dtype=torch.long))
    for shape in ((3, 5), (2, 11), (1, 1)):
        ids = torch.randint(0, 17, shape)
        with torch.no_grad():
            torch.testing.assert_close(compiled(ids), model(ids))
    operators = [
        b.value.op.name
        for b in relaxpy.from_torch(model, (ids,))[0]["main"].body.bindings
        if hasattr(b.value, "op")
    ]
    assert sum(op.startswith("nn.") for op in operators) == 1


class OfLengths(nn.Module):
    """Layers between which the packed rows themselves change."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LSTM(4, 5, num_layers=2, bidirectional=True, batch_first=True)
        self.second, self.narrow = nn.GRU(6, 3), nn.Linear(10, 6)

    def forward(self, x, lengths):
        packed, (hidden, _) = self.first(
            pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        )
        rows = torch.tanh(self.narrow(packed.data))
        narrow = PackedSequence(rows, *packed[1:])
        found, last = self.second(narrow)
        padded, counts = pad_packed_sequence(found, padding_value=-1.0)
        whole, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1] + 2)
        return hidden, last, padded, counts, whole, rows.mean()


@full
def test_packed_sequences() -> None:
    """Of any lengths; those of longer ones than there are steps are refused, as by torch."""
    torch.manual_seed(0)
    model = OfLengths().eval()
    given = torch.randn(3, 7, 4), torch.tensor([3, 7, 2])
    compiled = relaxpy.compile(model, *given)
    for lengths in ([3, 7, 2], [4, 1, 4, 2, 2], [1], [5]):
        x = torch.randn(len(lengths), 7 if len(lengths) == 3 else max(lengths) + 2, 4)
        with torch.no_grad():
            torch.testing.assert_close(
                compiled(x, torch.tensor(lengths)), model(x, torch.tensor(lengths))
            )
    with pytest.raises(RelaxError, match="u0 <= "):
        compiled(x, torch.tensor([9]))


def test_a_state_of_the_caller_and_no_batch() -> None:
    torch.manual_seed(0)
    layer = nn.LSTM(5, 7)
    x, state = torch.randn(4, 5), (torch.randn(1, 7), torch.randn(1, 7))
    compiled = relaxpy.compile(layer, x, state)
    for length in (4, 9):
        x = torch.randn(length, 5)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x, state), layer(x, state))


@pytest.mark.filterwarnings("ignore:The tensor attribute")
def test_a_length_that_torch_froze_is_refused_by_name() -> None:
    program = torch.export.export(nn.GRU(5, 7), (torch.randn(4, 2, 5),))
    with pytest.raises(RelaxError, match="froze the length"):
        relaxpy.from_torch(program)
