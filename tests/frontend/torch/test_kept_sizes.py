"""Functions that torch traces for one size keep all sizes here."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import relaxpy
from relaxpy.errors import RelaxError
from tests.sweeps import full, sweep

Function = Callable[[torch.Tensor], Any]


def filled(x: torch.Tensor) -> torch.Tensor:
    square = torch.zeros(x.shape[1], x.shape[0]).fill_diagonal_(3.0)
    return square.fill_diagonal_(2.0, wrap=False)


FUNCTIONS: dict[str, Function] = {
    "tensor": lambda x: [
        torch.tensor(x.shape[0]) * 2,
        torch.tensor([[x.shape[0], 5], [2, x.shape[1]]]),
        x.new_tensor([x.shape[1], 0.5]),
        torch.tensor([x.shape[0], 0.25]),
    ],
    "linspace": lambda x: [
        torch.linspace(-1, 2.5, x.shape[1]),
        torch.linspace(3, 0, steps=x.shape[0] + 1, dtype=torch.float64),
    ],
    "affine_grid": lambda x: [
        F.affine_grid(torch.ones(2, 2, 3), [2, 3, x.shape[0], x.shape[1]], align_corners=corners)
        for corners in (False, True)
    ],
    "take_along_dim": lambda x: [
        torch.take_along_dim(x, x.argsort(1)[:, :1], 1),
        x.take_along_dim(x.argmax(0, keepdim=True), dim=0),
        torch.take_along_dim(x, x.argmin()),
    ],
    "kron": lambda x: torch.kron(x, torch.arange(6.0).reshape(2, 3)),
    "einsum": lambda x: torch.einsum("ij,kj,kl->il", x, x + 1, x - 1),
    "fill_diagonal_": filled,
    "triangles": lambda x: [
        torch.tril_indices(x.shape[0], x.shape[1], -1),
        x[tuple(torch.triu_indices(*x.shape, offset=1))],
    ],
    "sqrt": lambda x: x / math.sqrt(x.shape[1]) - math.sqrt(16) * math.sqrt(x.shape[0] * 2),
}


@sweep(2)
@pytest.mark.filterwarnings("ignore:Since version 1.3.0")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_build_serves_all_sizes(name: str) -> None:
    function = FUNCTIONS[name]
    compiled = relaxpy.compile(function, torch.randn(3, 7), target="llvm -opt-level=0")
    for shape in ((3, 7), (1, 5), (4, 1), (1, 1), (5, 2)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), function(x))


def test_what_torch_refuses_is_refused() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.take_along_dim(x, x.argmax(1), 1)

    with pytest.raises(RelaxError, match="same number of dimensions"):
        relaxpy.compile(function, torch.randn(3, 7))


@full
def test_a_causal_mask_of_any_length() -> None:
    """Layers of `nn.Transformer` look whether a mask is causal, which torch.export refuses."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(6, 2, 11, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 1).eval()
    other = torch.nn.TransformerDecoderLayer(6, 2, 11, batch_first=True)
    decoder = torch.nn.TransformerDecoder(other, 1).eval()

    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = encoder, decoder

        def forward(self, x, y):
            mask = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1])
            seen = self.encoder(x, mask=mask)
            mask = torch.nn.Transformer.generate_square_subsequent_mask(y.shape[1])
            return self.decoder(y, seen, tgt_mask=mask)

    model = Both().eval()
    varies = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    x, y = torch.randn(2, 5, 6), torch.randn(2, 3, 6)
    compiled = relaxpy.compile(model, x, y, dynamic_shapes=(varies, varies))
    for batch, n, m in ((2, 5, 3), (1, 7, 11), (3, 1, 1)):
        x, y = torch.randn(batch, n, 6), torch.randn(batch, m, 6)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x, y), model(x, y), rtol=1e-5, atol=1e-5)


def test_margin_losses_are_those_of_eager() -> None:
    """Of one row and of several; labels end with the first -1."""

    def losses(x: torch.Tensor, label: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
        return [
            F.multi_margin_loss(x, label, reduction="none"),
            F.multi_margin_loss(x, label, p=2, margin=0.5, reduction="sum"),
            *(
                F.multilabel_margin_loss(x, labels, reduction=each)
                for each in ("none", "mean", "sum")
            ),
        ]

    torch.manual_seed(0)
    row = torch.randn(5), torch.tensor(2), torch.tensor([2, 1, -1, 0, 3])
    labels = torch.tensor([[4, -1, 0, 0, 0], [0, 1, 2, 3, 4], [-1, 2, 2, 2, 2]])
    rows = torch.randn(3, 5), torch.tensor([0, 4, 2]), labels
    for args in (row, rows):
        torch.testing.assert_close(relaxpy.compile(losses, *args)(*args), losses(*args))
