"""The Llama-shaped decoder against transformers on the same random weights, from one executable for all shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import UsageError
from relaxpy.ir import Function, TensorType
from relaxpy.models.llama import TINY, Llama, LlamaConfig, load_weights, sources, spec
from relaxpy.nn.rotary import Llama3Scaling, Rope
from tests.sweeps import full, quick_target, sweep

SCALED = Rope(500000.0, Llama3Scaling(8.0, 1.0, 4.0, 16))
CONFIGS = {
    "grouped": dataclasses.replace(TINY, rope=SCALED),
    "tied": dataclasses.replace(
        TINY,
        num_hidden_layers=1,
        num_key_value_heads=1,
        head_dim=16,
        tie_word_embeddings=True,
        attention_bias=True,
        mlp_bias=True,
    ),
}
TOLERANCE = {"float32": 3e-5, "bfloat16": 0.1, "float16": 0.01}
"""Of logits whose standard deviation is 1 or so; transformers rounds in other places."""


def reference_model(config: LlamaConfig) -> Any:
    """transformers' model of a configuration: random weights, computing in float32."""
    import torch
    from transformers import LlamaConfig as TransformersConfig
    from transformers import LlamaForCausalLM

    fields = dataclasses.asdict(config)
    rope = fields.pop("rope")
    scaling = rope.pop("scaling")
    kind = {"rope_type": "llama3", **scaling} if scaling else {"rope_type": "default"}
    fields["rope_parameters"] = {"rope_theta": rope["theta"], **kind}
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = LlamaForCausalLM(TransformersConfig(**{**fields, "dtype": "float32"})).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # transformers starts with norms 1 and biases 0: such weights would hide mistakes
            norm = name.endswith("norm.weight")
            weight.copy_(torch.randn_like(weight) * (0.3 if norm else 0.15) + norm)
            # numbers that bfloat16 and float16 have, so that only computing differs
            weight.copy_(weight.to(torch.bfloat16))
    return model


class Pair:
    """A model of transformers, and ours with its weights."""

    def __init__(self, config: LlamaConfig, dtype: str) -> None:
        self.config = dataclasses.replace(config, dtype=dtype)
        self.reference = reference_model(config)
        model = Llama(self.config)
        state = self.reference.state_dict()
        load_weights(model, {name: value.numpy() for name, value in state.items()})
        mod, params = model.export(spec(self.config))
        self.vm = relaxpy.VirtualMachine(relaxpy.build(mod, quick_target(), params=params))
        self.tolerance = TOLERANCE[dtype]

    def expected(self, ids: np.ndarray) -> np.ndarray:
        """Logits after every token by transformers, all computed anew."""
        import torch

        with torch.no_grad():
            return self.reference(torch.from_numpy(ids)).logits.numpy()

    def check(self, found: Any, expected: np.ndarray) -> None:
        assert found.numpy().dtype == np.float32
        np.testing.assert_allclose(found.numpy(), expected, atol=self.tolerance, rtol=0)


@pytest.fixture(
    scope="module",
    params=[
        "grouped-float32",
        "grouped-bfloat16",
        "tied-float16",
    ],
)
def pair(request: pytest.FixtureRequest) -> Pair:
    name, dtype = request.param.split("-")
    return Pair(CONFIGS[name], dtype)


def tokens(batch: int, seq: int) -> np.ndarray:
    return np.random.default_rng([batch, seq]).integers(0, TINY.vocab_size, (batch, seq))


@sweep(3)
@pytest.mark.parametrize(("batch", "seq"), [(1, 1), (2, 1), (1, 2), (3, 5), (1, 17), (2, 64)])
def test_prompts(pair: Pair, batch: int, seq: int) -> None:
    ids = tokens(batch, seq)
    expected = pair.expected(ids)
    pair.check(pair.vm["logits"](ids), expected)
    last, _ = pair.vm["prefill"](ids)
    pair.check(last, expected[:, -1])


@pytest.mark.parametrize(("batch", "seq"), [(1, 1), (3, 1), (1, 7), (4, 16)])
def test_tokens_one_by_one(pair: Pair, batch: int, seq: int) -> None:
    """Each step equals reading all tokens anew; what a call was given stays as it was."""
    ids, steps = tokens(batch, seq + 4), 4
    expected = pair.expected(ids)
    _, cache = pair.vm["prefill"](ids[:, :seq])
    for step in range(seq, seq + steps):
        before, given = cache[0][0].numpy().copy(), cache
        logits, cache = pair.vm["decode"](ids[:, step : step + 1], cache)
        pair.check(logits, expected[:, step])
        np.testing.assert_array_equal(given[0][0].numpy(), before)
    heads = (pair.config.num_key_value_heads, pair.config.head_dim)
    assert cache[-1][1].shape == (batch, seq + steps, *heads)


def test_rows_of_a_batch_are_apart(pair: Pair) -> None:
    ids = tokens(3, 9)
    together, _ = pair.vm["prefill"](ids)
    for row in range(3):
        alone, _ = pair.vm["prefill"](ids[row : row + 1])
        np.testing.assert_allclose(together.numpy()[row : row + 1], alone.numpy(), atol=1e-5)


def test_empty_batch(pair: Pair) -> None:
    logits, cache = pair.vm["prefill"](np.zeros((0, 3), np.int64))
    assert logits.shape == (0, TINY.vocab_size)
    logits, _ = pair.vm["decode"](np.zeros((0, 1), np.int64), cache)
    assert logits.shape == (0, TINY.vocab_size)


def test_cache_of_another_batch_is_refused(pair: Pair) -> None:
    _, cache = pair.vm["prefill"](tokens(2, 4))
    with pytest.raises(relaxpy.RelaxError, match="batch"):
        pair.vm["decode"](np.zeros((3, 1), np.int64), cache)


LLAMA3_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": None,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "head_dim": None,
}


def test_a_model_without_weights() -> None:
    """A large model is exported without its 16 GB: shapes are known before numbers are."""
    config = LlamaConfig.from_dict(LLAMA3_8B, dtype="float16")
    assert (config.head_dim, config.rope.theta) == (128, 500000.0)
    short = dataclasses.replace(config, num_hidden_layers=1)
    mod, params = Llama(short).export(spec(short))
    assert not params
    prefill = mod["prefill"]
    assert isinstance(prefill, Function)
    assert prefill.attrs["num_input"] == 1
    key = next(p for p in prefill.params if p.name == "layers_0_attention_key_weight")
    assert key.annotation == TensorType((1024, 4096), "float16")


def test_dtype_of_a_configuration() -> None:
    assert LlamaConfig.from_dict(LLAMA3_8B).dtype == "bfloat16"
    stored = {k: v for k, v in LLAMA3_8B.items() if k != "torch_dtype"}
    assert LlamaConfig.from_dict(stored).dtype == "float32"


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"num_attention_heads": 30}, "hidden_size 4096 is not a multiple"),
        ({"num_key_value_heads": 5}, "num_attention_heads 32 is not a multiple"),
        ({"head_dim": 7}, "head_dim 7 is odd"),
        ({"hidden_act": "softplus"}, "unknown activation 'softplus'"),
        ({"rope_scaling": {"rope_type": "spiral"}}, "spiral"),
        ({"torch_dtype": "int8"}, "dtype int8 is not a float dtype"),
        ({"vocab_size": None}, "lacks vocab_size"),
    ],
)
def test_configurations_that_are_refused(fields: Mapping[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        LlamaConfig.from_dict({**LLAMA3_8B, **fields})


def state(config: LlamaConfig) -> dict[str, np.ndarray]:
    parameters = dict(Llama(config).named_parameters())
    return {
        source.name: np.zeros(parameters[ours].shape[:: -1 if source.transpose else 1], np.float32)
        for ours, source in sources(config).items()
    }


def test_weights_that_checkpoints_carry_besides() -> None:
    config = CONFIGS["tied"]
    extra = {
        "lm_head.weight": np.zeros((101, 32), np.float32),
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(8, np.float32),
    }
    model = Llama(config)
    load_weights(model, {**state(config), **extra})
    assert all(parameter.data is not None for _, parameter in model.named_parameters())


def test_weights_that_do_not_fit() -> None:
    bad = state(TINY)
    del bad["model.norm.weight"]
    bad["model.layers.0.mlp.up_proj.bias"] = np.zeros(48, np.float32)
    with pytest.raises(UsageError) as caught:
        load_weights(Llama(TINY), bad)
    assert caught.value.notes == (
        "missing: model.norm.weight (32,)",
        "unexpected: model.layers.0.mlp.up_proj.bias",
    )


@full
def test_inputs_are_checked_where_the_configuration_asks() -> None:
    """Token ids, and positions beyond those that the model was made for, with a cache and without."""
    config = dataclasses.replace(TINY, check_inputs=True, max_position_embeddings=6)
    model = Llama(config)
    for _, parameter in model.named_parameters():
        parameter.data = np.zeros(parameter.shape, parameter.dtype.numpy)
    mod, params = model.export(spec(config))
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, quick_target(), params=params))
    _, cache = vm["prefill"](np.zeros((2, 5), np.int64))
    _, cache = vm["decode"](np.zeros((2, 1), np.int64), cache)
    with pytest.raises(relaxpy.RelaxError, match="positions must be from 0 to 5, got 6"):
        vm["decode"](np.zeros((2, 1), np.int64), cache)
    with pytest.raises(relaxpy.RelaxError, match="positions must be from 0 to 5, got 6"):
        vm["prefill"](np.zeros((2, 7), np.int64))
    for wrong in (-1, config.vocab_size):
        with pytest.raises(relaxpy.RelaxError, match=f"token ids must be .* got {wrong} at"):
            vm["logits"](np.full((1, 2), wrong, np.int64))
