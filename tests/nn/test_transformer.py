"""Layers of the Transformer are torch's: masks, layouts, and the order of norms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relaxpy import nn
from relaxpy.errors import UsageError
from tests.nn.against_torch import Case, Layers, torch
from tests.sweeps import sweep

LIBRARIES: tuple[Any, Any] = (nn, torch.nn)
SIZES = ({"l": 3, "b": 2, "s": 5}, {"l": 1, "b": 1, "s": 4})


def layer(kind: str, dims: str, options: dict[str, Any] | None = None, **made: Any) -> Case:
    ours, theirs = (getattr(of, kind)(8, 2, 12, **made) for of in LIBRARIES)
    return Case(ours, theirs, dims, SIZES, options or {}, atol=1e-4)


def stack(part: str, dims: str, **made: Any) -> Case:
    ours, theirs = (
        getattr(of, part)(
            getattr(of, f"{part}Layer")(8, 2, 12, batch_first=True), 2, norm=of.LayerNorm(8), **made
        )
        for of in LIBRARIES
    )
    return Case(ours, theirs, dims, SIZES, atol=1e-4)


def masked(l: int, b: int, s: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    left_out = rng.random((b, l)) < 0.3
    left_out[:, 0] = False
    later = np.triu(np.ones((l, l), bool), 1)
    return [rng.standard_normal((b, l, 8)).astype(np.float32), later, left_out]


CASES = {
    "plain": layer("TransformerEncoderLayer", "l b 8"),
    "first": layer(
        "TransformerEncoderLayer", "b l 8", activation="gelu", batch_first=True, norm_first=True, bias=False
    ),
    "masks": Case(
        nn.TransformerEncoderLayer(8, 2, 12, batch_first=True),
        torch.nn.TransformerEncoderLayer(8, 2, 12, batch_first=True),
        "b l 8, l l, b l",
        SIZES,
        atol=1e-4,
        arrays=masked,
        dtypes=["float32", "bool", "bool"],
        names=["src_mask", "src_key_padding_mask"],
    ),
    "decoder": layer("TransformerDecoderLayer", "l b 8, s b 8"),
    "decoder_first": layer("TransformerDecoderLayer", "b l 8, b s 8", batch_first=True, norm_first=True),
    "encoders": stack("TransformerEncoder", "b l 8", enable_nested_tensor=False),
    "decoders": stack("TransformerDecoder", "b l 8, b s 8"),
}  # fmt: skip


@pytest.fixture(scope="module")
def layers() -> Layers:
    return Layers(CASES)


@sweep(2)
@pytest.mark.filterwarnings("ignore:Support for mismatched", "ignore:enable_nested")
@pytest.mark.parametrize("name", CASES)
def test_equals_torch(layers: Layers, name: str) -> None:
    layers.check(name)


def test_causal_without_a_mask() -> None:
    """As with the mask that says the same."""
    ours = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)

    class Both(nn.Module):
        def __init__(self) -> None:
            self.layer = ours

        def forward(self, x: nn.Tensor, mask: nn.Tensor) -> Any:
            return self.layer(x, is_causal=True) - self.layer(x, mask)

    theirs = torch.nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
    ours.load_state_dict(theirs.state_dict())
    spec = {"x": nn.spec.Tensor(("b", "l", 8)), "mask": nn.spec.Tensor(("l", "l"), "bool")}
    mod, params = Both().export({"forward": spec})
    from relaxpy.testing.interpret import interpret

    x, later, _ = masked(5, 2, 1)
    found = interpret(mod, "forward", x, later, *params.values())
    assert np.abs(np.asarray(found)).max() < 1e-5


def test_mistakes() -> None:
    with pytest.raises(UsageError, match="activation must be"):
        nn.TransformerEncoderLayer(8, 2, activation="tanh")
    with pytest.raises(UsageError, match="not a multiple of num_heads"):
        nn.TransformerEncoderLayer(8, 3)
