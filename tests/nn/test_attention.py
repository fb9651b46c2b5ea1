"""Multi-head attention is torch's: masks, layouts, weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relaxpy import nn
from relaxpy.errors import UsageError
from tests.nn.against_torch import Case, Layers, torch

SIZES = ({"l": 3, "b": 2, "s": 5}, {"l": 1, "b": 1, "s": 4})


def both(dims: str, options: dict[str, Any], **made: Any) -> Case:
    ours, theirs = nn.MultiheadAttention(8, 2, **made), torch.nn.MultiheadAttention(8, 2, **made)
    return Case(ours, theirs, dims, SIZES, options)


def masked(l: int, b: int, s: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((b, l, 8)), rng.standard_normal((b, s, 8))
    left_out = rng.random((b, s)) < 0.3
    left_out[:, 0] = False
    scores = rng.standard_normal((l, s))
    arrays = [q.astype(np.float32), k.astype(np.float32), k.astype(np.float32)]
    return [*arrays, left_out, scores.astype(np.float32)]


CASES = {
    "plain": both("l b 8, s b 8, s b 8", {}),
    "fast": both("b l 8, b s 8, b s 8", {"need_weights": False}, batch_first=True),
    "heads": both("l 8, s 8, s 8", {"average_attn_weights": False}, bias=False),
    "widths": both("l b 8, s b 6, s b 5", {}, kdim=6, vdim=5),
    "masks": Case(
        nn.MultiheadAttention(8, 2, batch_first=True),
        torch.nn.MultiheadAttention(8, 2, batch_first=True),
        "b l 8, b s 8, b s 8, b s, l s",
        SIZES,
        arrays=masked,
        dtypes=["float32", "float32", "float32", "bool"],
        names=["key_padding_mask", "attn_mask"],
    ),
}


@pytest.fixture(scope="module")
def layers() -> Layers:
    return Layers(CASES)


@pytest.mark.filterwarnings("ignore:Support for mismatched")
@pytest.mark.parametrize("name", CASES)
def test_equals_torch(layers: Layers, name: str) -> None:
    layers.check(name)


@pytest.mark.parametrize("need_weights", [False, True])
def test_causal_needs_no_mask(need_weights: bool) -> None:
    """torch wants the mask beside `is_causal`; both ways here leave out later keys."""
    import relaxpy
    from relaxpy.testing.interpret import interpret

    class Causal(nn.Module):
        def __init__(self) -> None:
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            return self.attention(x, x, x, need_weights=need_weights, is_causal=True)[0]

    model, theirs = Causal(), torch.nn.MultiheadAttention(8, 2, batch_first=True)
    model.attention.load_state_dict(theirs.state_dict())
    mod, params = model.export({"forward": {"x": nn.spec.Tensor(("b", "n", 8))}})
    assert relaxpy.parse(mod.script())
    x = np.random.default_rng(0).standard_normal((2, 4, 8), dtype=np.float32)
    given = torch.from_numpy(x)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(4)
    with torch.no_grad():
        expected = theirs(given, given, given, attn_mask=mask, is_causal=True)[0].numpy()
    forward: Any = mod["forward"]
    weights = [params[p.name] for p in forward.params[1:]]
    np.testing.assert_allclose(interpret(mod, "forward", x, *weights), expected, atol=1e-5)


def test_wrong_options() -> None:
    with pytest.raises(UsageError, match="not a multiple of num_heads"):
        nn.MultiheadAttention(8, 3)
    with pytest.raises(UsageError, match="missing: in_proj_weight"):
        nn.MultiheadAttention(8, 2).load_state_dict(
            torch.nn.MultiheadAttention(8, 2, kdim=6).state_dict()
        )
