"""T5, Flan-T5, mT5 and UMT5: their configurations, and buckets of distances; texts are in test_bart.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relaxpy.errors import UsageError
from relaxpy.models.families import SEQ2SEQ
from relaxpy.models.positions import buckets_of


@pytest.mark.parametrize(
    ("count", "most"), [(32, 128), (16, 128), (8, 20), (5, 3), (64, 40), (31, 997)]
)
def test_buckets_are_those_of_transformers(count: int, most: int) -> None:
    torch: Any = pytest.importorskip("torch")
    t5: Any = pytest.importorskip("transformers.models.t5.modeling_t5")
    far = np.arange(2 * most + 3)
    given = -torch.from_numpy(far), False, count, most
    wanted = t5.T5Attention._relative_position_bucket(*given).numpy()
    np.testing.assert_array_equal(buckets_of(far, count, most), wanted)
    assert (wanted[most:] == count - 1).all()


def test_its_configuration() -> None:
    config = SEQ2SEQ["t5"].from_dict({})
    assert (config.hidden_size, config.encoder_layers, config.num_hidden_layers) == (512, 6, 6)
    assert (config.gated, config.hidden_act, config.hidden_scale) == (False, "relu", 512**-0.5)
    assert (config.source_positions, config.max_position_embeddings, config.stride) == (512, 512, 1)
    flan = SEQ2SEQ["t5"].from_dict(
        {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_decoder_layers": 3}
    )
    assert (flan.gated, flan.hidden_act, flan.hidden_scale) == (True, "gelu_new", 1.0)
    assert (flan.encoder_layers, flan.num_hidden_layers) == (6, 3)
    assert SEQ2SEQ["mt5"].from_dict({}).hidden_scale == 1.0
    assert SEQ2SEQ["umt5"].from_dict({"scale_decoder_outputs": False}).hidden_scale == 1.0
    for change, match in (
        ({"is_encoder_decoder": False}, "without its encoder"),
        ({"relative_attention_max_distance": 16}, "more than half of the 32 buckets"),
        ({"feed_forward_proj": "glued-gelu"}, "gated-gelu; got 'glued-gelu'"),
        ({"feed_forward_proj": None}, "gated-gelu; got None"),
        ({"feed_forward_proj": "gated-sine"}, "sine"),
        ({"num_layers": 0}, "num_hidden_layers must be"),
    ):
        with pytest.raises(UsageError, match=match):
            SEQ2SEQ["t5"].from_dict(change)


def test_a_head_of_its_own_is_that_of_the_file() -> None:
    """Whatever the configuration says, as transformers has it."""
    for tied in (True, False):
        config = SEQ2SEQ["t5"].from_dict({"tie_word_embeddings": tied})
        assert "head.weight" in config.fitted({"shared.weight", "lm_head.weight"}).sources()
        assert "head.weight" not in config.fitted({"shared.weight"}).sources()
