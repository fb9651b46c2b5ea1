"""The BERT encoder against transformers on the same random weights, from one executable for all shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import UsageError
from relaxpy.models.bert import SPEC, TINY, BertConfig, BertEncoder, load_weights

TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def reference() -> Any:
    """transformers' BERT of the tiny configuration, random weights."""
    import torch
    from transformers import BertConfig as TransformersConfig
    from transformers import BertModel

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = BertModel(
        TransformersConfig(**dataclasses.asdict(TINY)), add_pooling_layer=False
    ).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # transformers starts with biases 0, norms 1: such weights would hide mistakes
            weight.copy_(
                torch.randn_like(weight) * 0.2 + (1.0 if name.endswith("LayerNorm.weight") else 0.0)
            )
    return model


@pytest.fixture(scope="module")
def vm(reference: Any) -> relaxpy.VirtualMachine:
    model = BertEncoder(TINY)
    load_weights(model, {name: value.numpy() for name, value in reference.state_dict().items()})
    mod, params = model.export(SPEC)
    return relaxpy.VirtualMachine(relaxpy.build(mod, params=params))


def expected(reference: Any, ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(hidden states, embeddings) by transformers."""
    import torch

    with torch.no_grad():
        hidden = reference(
            input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)
        ).last_hidden_state
        kept = torch.from_numpy(mask).unsqueeze(-1).float()
        mean = (hidden * kept).sum(1) / kept.sum(1).clamp(min=1e-9)
        return hidden.numpy(), torch.nn.functional.normalize(mean, dim=1).numpy()


def tokens(batch: int, seq: int, ragged: bool = False) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([batch, seq])
    ids = rng.integers(0, TINY.vocab_size, (batch, seq))
    mask = np.ones_like(ids)
    if ragged:
        lengths = rng.integers(1, seq + 1, batch)
        mask = (np.arange(seq) < lengths[:, None]).astype(np.int64)
    return ids, mask


@pytest.mark.slow
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize(
    ("batch", "seq"), [(1, 1), (1, 2), (1, 40), (2, 7), (3, 16), (5, 33), (8, 9), (33, 5)]
)
def test_equals_transformers(
    reference: Any, vm: relaxpy.VirtualMachine, batch: int, seq: int, ragged: bool
) -> None:
    ids, mask = tokens(batch, seq, ragged)
    hidden, vectors = expected(reference, ids, mask)
    real = mask.astype(bool)  # what a padding token's hidden state is does not matter
    np.testing.assert_allclose(
        vm["encode"](ids, mask).numpy()[real], hidden[real], atol=TOLERANCE, rtol=0
    )
    np.testing.assert_allclose(vm["embed"](ids, mask).numpy(), vectors, atol=TOLERANCE, rtol=0)


def test_padding_changes_nothing(vm: relaxpy.VirtualMachine) -> None:
    ids, mask = tokens(2, 6)
    padded = np.pad(ids, ((0, 0), (0, 9)), constant_values=17)
    alone = vm["embed"](ids, mask).numpy()
    together = vm["embed"](padded, np.pad(mask, ((0, 0), (0, 9)))).numpy()
    np.testing.assert_allclose(together, alone, atol=1e-6, rtol=0)


def test_row_of_padding_gives_zeros(vm: relaxpy.VirtualMachine) -> None:
    ids, mask = tokens(3, 5)
    mask[1] = 0
    vectors = vm["embed"](ids, mask).numpy()
    np.testing.assert_array_equal(vectors[1], 0)
    np.testing.assert_allclose(np.linalg.norm(vectors[[0, 2]], axis=1), 1, atol=1e-6)


def test_empty_batch(vm: relaxpy.VirtualMachine) -> None:
    empty = np.zeros((0, 4), np.int64)
    assert vm["embed"](empty, empty).numpy().shape == (0, TINY.hidden_size)


def test_shapes_that_differ_are_refused(vm: relaxpy.VirtualMachine) -> None:
    with pytest.raises(relaxpy.RelaxError, match="attention_mask"):
        vm["embed"](np.zeros((2, 4), np.int64), np.zeros((2, 5), np.int64))


def test_token_ids_out_of_range() -> None:
    """They mean the first or last token, or are an error where the configuration asks for it."""
    mask = np.ones((1, 3), np.int64)
    for check in (False, True):
        model = BertEncoder(dataclasses.replace(TINY, check_inputs=check))
        load_weights(model, random_state(TINY))
        mod, params = model.export(SPEC)
        vm = relaxpy.VirtualMachine(relaxpy.build(mod, params=params))
        vm["embed"](np.array([[0, 1, TINY.vocab_size - 1]]), mask)
        for wrong in (-1, TINY.vocab_size, 2**40):
            ids = np.array([[0, wrong, 1]])
            if not check:
                vm["embed"](ids, mask)
                continue
            told = rf"token ids must be from 0 to {TINY.vocab_size - 1}, got {wrong} at \[0, 1\]"
            with pytest.raises(relaxpy.RelaxError, match=told) as caught:
                vm["embed"](ids, mask)
            assert caught.value.code == "index-range"


def random_state(config: BertConfig) -> dict[str, np.ndarray]:
    from relaxpy.models.bert import sources

    parameters = dict(BertEncoder(config).named_parameters())
    return {
        source.name: np.zeros(parameters[ours].shape[:: -1 if source.transpose else 1], np.float32)
        for ours, source in sources(config).items()
    }


def test_weights_with_a_prefix_and_a_head() -> None:
    state = {f"bert.{name}": value for name, value in random_state(TINY).items()}
    model = BertEncoder(TINY)
    load_weights(model, {**state, "cls.predictions.bias": np.zeros(3, np.float32)})
    assert all(parameter.data is not None for _, parameter in model.named_parameters())


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (lambda s: s.pop("embeddings.LayerNorm.bias"), "missing: embeddings.LayerNorm.bias (32,)"),
        (lambda s: s.update(odd=np.zeros(1)), "unexpected: odd"),
        (
            lambda s: s.update({"encoder.layer.1.output.dense.weight": np.zeros((32, 47))}),
            "wrong shape: encoder.layer.1.output.dense.weight is (32, 47), but the configuration requires (32, 48)",
        ),
    ],
)
def test_weights_that_do_not_fit(change: Callable[[dict[str, np.ndarray]], Any], note: str) -> None:
    state = random_state(TINY)
    change(state)
    with pytest.raises(UsageError) as caught:
        load_weights(BertEncoder(TINY), state)
    assert caught.value.notes == (note,)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"num_attention_heads": 5}, "not a multiple"),
        ({"hidden_act": "swish"}, "unknown activation 'swish'"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"is_decoder": True}, "decoder"),
    ],
)
def test_configurations_that_are_refused(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        BertConfig.from_dict({**dataclasses.asdict(TINY), **fields})


def test_configuration_that_lacks_a_field() -> None:
    with pytest.raises(UsageError, match="lacks hidden_size"):
        BertConfig.from_dict(
            {"num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 1}
        )
