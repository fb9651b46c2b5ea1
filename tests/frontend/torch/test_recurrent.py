"""Recurrent layers keep a length that varies."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import relaxpy
from relaxpy.errors import RelaxError
from tests.sweeps import sweep


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


@sweep(2)
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
