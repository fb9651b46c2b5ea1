"""The models of the benchmarks for GPUs: their modules without the values of weights, and the sizes of their cases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from benchmarks.llm_peers import PAGE, SCHEMES, Cell, Shape, decoder_modules, weight_params

Program: TypeAlias = tuple[Any, Mapping[str, np.ndarray]]
"""A module, and the weights that its build binds; others are parameters."""

SHAPES = {
    "Llama 1.1B": Shape(),
    "Llama 8B": Shape(layers=32, hidden=4096, inner=14336, heads=32, key_heads=8, vocab=128_256),
}
DECODER_SCHEMES = {"fp16": "fp16", "bf16": "bf16", "int4": "int4 (W4A16)"}
"""How tables call a scheme → its name in `llm_peers.SCHEMES`."""
CONTEXT = 1024
"""Tokens before the one that is decoded."""


@dataclass(frozen=True)
class Model:
    """A model whose kernels are compiled."""

    name: str
    program: Callable[[], Program]
    cases: Mapping[str, Mapping[str, int]]
    """Case → the values of the module's symbols."""
    is_family: bool = False
    """Is it one of many like it, of which a table has one row?"""


def models() -> tuple[Model, ...]:
    """Every model of the benchmarks, and every family of decoders in a small size. Decoders have two layers, since the
    others repeat their kernels."""
    decoders = [
        Model(
            f"{shape_name}, {scheme}",
            lambda shape=shape, own=own: decoder_step(replace(shape, layers=2), own),
            {
                "decode, batch 1": step_sizes(Cell(batch=1, context=CONTEXT)),
                "prefill 512": step_sizes(Cell(tokens=512)),
            },
        )
        for shape_name, shape in SHAPES.items()
        for scheme, own in DECODER_SCHEMES.items()
    ]
    images = {"batch": 1, "height": 224, "width": 224}
    return (
        Model("MiniLM", minilm, {"8 × 64": {"batch": 8, "seq": 64}}),
        *decoders,
        Model("ResNet-18", resnet18, {"1 × 224 × 224": images}),
        Model("MobileNetV3 (large)", mobilenet, {"1 × 224 × 224": images}, is_family=True),
        *families(),
    )


_SIZES = {
    "vocab_size": 2048, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 2048,
}  # fmt: skip
_EXPERTS = {"num_experts_per_tok": 2, "sliding_window": 128}
_OWN: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 128},
    "gemma2": {
        "sliding_window": 128, "query_pre_attn_scalar": 64, "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "gemma3_text": {"sliding_window": 128, "query_pre_attn_scalar": 64},
    "gpt2": {"n_embd": 512, "n_inner": 1024, "n_layer": 2, "n_head": 8, "n_positions": 2048},
    "gpt_neox": {"num_key_value_heads": 8},
    "gpt_oss": {**_EXPERTS, "num_local_experts": 8},
    "qwen3_moe": {**_EXPERTS, "num_experts": 8, "moe_intermediate_size": 256},
}  # fmt: skip
"""What the `config.json` of a family has beside, or instead of, the sizes."""


def families() -> list[Model]:
    """The `step` of a small decoder of each family, in bfloat16."""
    from relaxpy.models.families import FAMILIES

    cases = {
        "decode, batch 1": step_sizes(Cell(batch=1, context=CONTEXT)),
        "prefill 512": step_sizes(Cell(tokens=512)),
    }
    return [
        Model(name, lambda name=name: family_step(name), cases, is_family=True) for name in FAMILIES
    ]


def family_step(name: str) -> Program:
    """A family's `step` over paged caches, and what makes and copies pages."""
    from relaxpy.models.decoder import Decoder, step_spec
    from relaxpy.models.families import config_from

    config = config_from({"model_type": name, **_SIZES, **_OWN.get(name, {})}, "bfloat16")
    spec = step_spec(config)
    spec.pop("logits", None)
    return Decoder(config).export(spec)[0], {}


def minilm() -> Program:
    """all-MiniLM-L6-v2's `embed`."""
    from relaxpy.models.bert import SPEC, BertConfig, BertEncoder

    config = BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    return BertEncoder(config).export({"embed": SPEC["embed"]})


def decoder_step(shape: Shape, scheme: str) -> Program:
    """A Llama's `step` over paged caches, and what makes and copies pages; `scheme` is a name in `SCHEMES`."""
    return decoder_modules(shape, SCHEMES[scheme])[1], {}


def step_sizes(cell: Cell) -> dict[str, int]:
    """The values of the symbols of `step`, and of the functions beside it for as many pages."""
    sequences = 1 if cell.tokens else cell.batch
    width = -(-(cell.tokens or cell.context + 1) // PAGE)
    pages = sequences * width
    return {
        "step.count": cell.computed,
        "step.offsets": sequences + 1,
        "step.sequences": sequences,
        "step.outputs": sequences,
        "step.width": width,
        "step.pages": pages,
        "alloc_pages.pages": pages,
        "copy_pages.pages": pages,
        "copy_pages.copies": sequences,
    }


def resnet18() -> Program:
    """ResNet-18's `classify`."""
    from relaxpy.models.resnet import RESNET18, ResNet, spec

    return _classifier(ResNet(RESNET18).export(spec(RESNET18))[0])


def mobilenet() -> Program:
    """MobileNetV3's `classify`, large."""
    from relaxpy.models.mobilenet import LARGE, MobileNet, spec

    return _classifier(MobileNet(LARGE).export(spec())[0])


def _classifier(mod: Any) -> Program:
    """A network of convolutions, its weights bound: batch normalisation is folded into the convolutions then."""
    random = np.random.default_rng(0)
    weights = {
        param.name: random.random([dim.value for dim in param.annotation.dims], np.float32)
        for param in weight_params(mod["classify"])
    }
    return mod, weights
