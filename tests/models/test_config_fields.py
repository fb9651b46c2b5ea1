"""Every field of every family's `config.json` beside transformers: read, known to change nothing, or named."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.checkpoints import open_checkpoint
from relaxpy.checkpoints.config_keys import HARMLESS, PARTS, READ, unread_fields
from relaxpy.checkpoints.unread import UnreadWarning
from relaxpy.errors import UsageError
from relaxpy.models.bert import BertConfig
from relaxpy.models.decoder import Decoder, load_weights
from relaxpy.models.decoder_config import DecoderConfig
from relaxpy.models.families import CTC, ENCODERS, FAMILIES, PICTURES, SEEING, SEQ2SEQ, config_from
from relaxpy.models.tower_config import PictureModelConfig
from relaxpy.runtime.safetensors import map_tensors
from tests.llm.checkpoints import write_model
from tests.models.family_checkpoints import CASES, SIZES, TOKENS
from tests.runtime.test_safetensors import saved
from tests.sweeps import FULL

transformers: Any = pytest.importorskip("transformers")
torch: Any = pytest.importorskip("torch")


def whole_config(name: str) -> dict[str, Any]:
    """A case with every field that transformers has."""
    kind, settings = CASES[name]
    suffix = "Text" if kind == "Gemma3" else ""
    sizes = TOKENS if kind == "GPT2" else SIZES
    made = getattr(transformers, f"{kind}{suffix}Config")(**{**sizes, **settings})
    return json.loads(made.to_json_string(use_diff=False))


def theirs(fields: dict[str, Any]) -> Any:
    """The configuration of transformers; None where it refuses."""
    try:
        own = transformers.CONFIG_MAPPING[fields["model_type"]]
        return own.from_dict(copy.deepcopy(fields))
    except Exception:  # whatever it raises
        return None


def ours(fields: dict[str, Any]) -> DecoderConfig | BertConfig | PictureModelConfig | str:
    """The configuration, or the text of the error."""
    try:
        if fields["model_type"] in PICTURES:
            return PICTURES[fields["model_type"]].from_dict(fields)
        if fields["model_type"] in ENCODERS:
            return BertConfig.from_dict(fields)
        return config_from(fields, "float32")
    except UsageError as error:
        return error.message


REQUIRED = "the configuration lacks"


@pytest.mark.parametrize("name", CASES)
def test_fields_that_are_left_out(name: str) -> None:
    """Without a field, or with null, it is what transformers makes of it; or it is refused."""
    whole, compared = whole_config(name), 0
    for field in whole:
        rest = {key: value for key, value in whole.items() if key != field}
        for fields in (rest, {**rest, field: None}):
            other = theirs(fields) if "model_type" in rest else None
            if other is None:
                continue
            found = ours(fields)
            expected = ours(json.loads(other.to_json_string(use_diff=False)))
            if isinstance(found, str) and (found.startswith(REQUIRED) or "experts" in found):
                continue
            assert found == expected, (field, fields.get(field, "left out"))
            compared += 1
    assert compared > 20


def random_scaling(pick: random.Random, width: int) -> dict[str, Any]:
    kind = pick.choice(["default", "linear", "yarn", "longrope", "llama3"])
    found: dict[str, Any] = {pick.choice(["rope_type", "type"]): kind}
    options: dict[str, tuple[Any, ...]] = {}
    if kind != "default" and (kind != "longrope" or pick.random() < 0.6):
        found["factor"] = pick.choice([1.0, 2.0, 4.0, 7.5])
    if kind in ("yarn", "llama3", "longrope"):
        options["original_max_position_embeddings"] = 16, 32, 64, 128
    if kind == "yarn":
        options |= {
            "beta_fast": (16.0, 40.0),
            "beta_slow": (2.0,),
            "mscale": (0.7, 1.0),
            "truncate": (True, False),
        }
        options |= {"mscale_all_dim": (0.5, 1.0, 0.0), "attention_factor": (1.3,)}
    if kind == "longrope":
        found |= {
            name: [pick.uniform(1, 3) for _ in range(width // 2)]
            for name in ("short_factor", "long_factor")
        }
        options["attention_factor"] = (1.4,)
    if kind == "llama3":
        found |= {"low_freq_factor": 1.0, "high_freq_factor": pick.choice([2.0, 4.0])}
    return found | {n: pick.choice(values) for n, values in options.items() if pick.random() < 0.5}  # fmt: skip


def random_rope(pick: random.Random) -> dict[str, Any]:
    """A configuration of any family, with rotary embeddings as any version of transformers writes them."""
    kind = pick.choice([name for name in FAMILIES if name != "gpt2"])
    fields: dict[str, Any] = {
        **SIZES,
        "model_type": kind,
        "num_experts": 4,
        "num_experts_per_tok": 2,
    }
    share = pick.choice([None, 0.5]) if kind in ("phi3", "llama") else None
    if kind in ("gpt_neox", "phi3"):
        fields["hidden_size"] = 64
        del fields["head_dim"]
    if kind == "gpt_neox":
        del fields["num_key_value_heads"]
        fields |= {"rotary_emb_base": 300} if pick.random() < 0.5 else {}
    if share is not None:
        fields["partial_rotary_factor"] = share
    width = int(16 * (share or (0.25 if kind == "gpt_neox" else 1)))
    if pick.random() < 0.5:
        fields["rope_theta"] = pick.choice([500.0, 1e6])
    if pick.random() < 0.3:
        del fields["max_position_embeddings"]
    if pick.random() < 0.3:
        fields["original_max_position_embeddings"] = pick.choice([16, 48])
    scaling = random_scaling(pick, width)
    if kind == "phi3" and pick.random() < 0.7:
        factors = {"short_factor": [1.5] * (width // 2), "long_factor": [2.5] * (width // 2)}
        scaling = {"type": pick.choice(["longrope", "su", "yarn"]), **factors}
        scaling |= {"factor": 3.0} if pick.random() < 0.5 else {}
    if kind == "gemma3_text" and pick.random() < 0.6:
        local = {"rope_type": "default", "rope_theta": 55.0}
        scaling.pop("truncate", None)  # transformers reads it beside the two
        fields["rope_parameters"] = {"full_attention": scaling, "sliding_attention": local}
    elif pick.random() < 0.7:
        own = {"rope_theta": 333.0} if pick.random() < 0.3 else {}
        fields[pick.choice(["rope_scaling", "rope_parameters"])] = scaling | own
    return fields


def rope_of_transformers(config: Any, kind: str | None) -> tuple[np.ndarray, float]:
    """Frequencies, and the factor of cosines and sines."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = config.rope_parameters if kind is None else config.rope_parameters[kind]
    if rope["rope_type"] != "default":
        more = {} if kind is None else {"layer_type": kind}
        frequencies, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu", **more)
        return frequencies.numpy(), factor
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width = int(head * rope.get("partial_rotary_factor", 1.0))
    return rope["rope_theta"] ** -(np.arange(0, width, 2) / width), 1.0


def test_rotary_embeddings_of_every_version() -> None:
    """Old and new names, in any mixture: the frequencies and the magnitude of transformers."""
    compared = refused = 0
    for seed in range(10_000 if FULL else 600):
        fields = random_rope(random.Random(seed))
        config = theirs(fields)
        kinds = ["full_attention", "sliding_attention"] if fields["model_type"] == "gemma3_text" else [None]  # fmt: skip
        try:
            assert config is not None
            expected = [rope_of_transformers(config, kind) for kind in kinds]
        except Exception:  # whatever it raises for what it does not take
            continue
        found = ours(fields)
        if isinstance(found, str):  # Gemma 3 with what transformers reads otherwise than it looks
            assert fields["model_type"] == "gemma3_text", (seed, found)
            refused += 1
            continue
        assert isinstance(found, DecoderConfig)
        assert found.max_position_embeddings == config.max_position_embeddings, seed
        for rope, (frequencies, factor) in zip(
            (found.rope, found.local_rope), expected, strict=False
        ):
            assert rope is not None
            magnitude = 1.0 if rope.scaling is None else rope.scaling.magnitude
            own = rope.frequencies(found.head_dim)
            np.testing.assert_allclose(own, frequencies, rtol=1e-5, err_msg=f"seed {seed}")
            assert magnitude == pytest.approx(factor), seed
        compared += 1
    assert compared > 400
    assert refused < compared / 20


def other_values(value: Any) -> Iterator[Any]:
    """Values that a field does not have."""
    if isinstance(value, bool) or value is None:
        yield not value
        yield "something"
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield value * 2 + 1
        yield value + 8
    if isinstance(value, str):
        yield "relu" if value != "relu" else "gelu"
        yield "something"
    if value is None:
        yield 3
    if isinstance(value, list):
        yield [1, 2]
        yield ["full_attention", "sliding_attention", "full_attention"][: len(value)]
    if isinstance(value, dict):
        yield {"rope_type": "linear", "factor": 3.0, "rope_theta": 5.0}


OTHERS = {"bert": "BertConfig", "vit": "ViTConfig", "dinov2": "Dinov2Config"}


@pytest.mark.parametrize("name", [*CASES, *OTHERS])
def test_each_field_is_read_or_changes_nothing(name: str) -> None:
    """Another value of a field that is read changes our configuration, or is an error. All other fields of transformers
    are in the list of those that change nothing."""
    if name in OTHERS:
        made = getattr(transformers, OTHERS[name])()
        fields = json.loads(made.to_json_string(use_diff=False))
    else:
        fields = whole_config(name)
    family = fields["model_type"]
    assert unread_fields(fields) == []
    plain = ours(fields)
    assert not isinstance(plain, str)
    for field, value in fields.items():
        changed = [ours({**fields, field: other}) != plain for other in other_values(value)]
        if field in READ[family] or field == "model_type":
            continue
        assert field in HARMLESS or not value, field
        if field not in ("dtype", "torch_dtype"):
            assert not any(changed), f"{field} is read, and not in the table"


@pytest.mark.parametrize("family", READ)
def test_fields_that_nobody_reads_are_named(family: str, tmp_path: Path) -> None:
    fields = {"model_type": family, "attention_multiplier": 0.5, "clip_qkv": None, "use_mup": False}
    assert unread_fields(fields) == ["attention_multiplier = 0.5"]
    assert {*READ} == {*FAMILIES, *SEQ2SEQ, *ENCODERS, *CTC, *PICTURES, *SEEING}


@pytest.mark.parametrize("family", ["clip", "siglip"])
@pytest.mark.parametrize("part", ["text_config", "vision_config"])
def test_each_field_of_a_part(family: str, part: str) -> None:
    """Another value of a field of a tower changes our configuration, is an error, or is in a table of those that change
    nothing."""
    made = transformers.CONFIG_MAPPING[family]()
    fields = json.loads(made.to_json_string(use_diff=False))
    assert unread_fields(fields) == []
    assert unread_fields({**fields, part: {"rope_theta": 3.0}}) == [f"{part}.rope_theta = 3.0"]
    plain = ours(fields)
    for field, value in fields[part].items():
        changed = [
            ours({**fields, part: {**fields[part], field: other}}) != plain
            for other in other_values(value)
        ]
        known = PARTS[family][part] | {"eos_token_id"}
        assert any(changed) or field in known | HARMLESS or not value, field
        assert field in known or not any(changed), f"{field} is read, and not in the table"


def test_a_warning_names_them(tmp_path: Path) -> None:
    place = write_model(tmp_path / "m")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_checkpoint(place)
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**config, "logit_scale": 0.25}))
    with pytest.warns(UnreadWarning, match=r"config\.json: not followed: logit_scale = 0.25"):
        open_checkpoint(place)


@pytest.mark.parametrize("field", ["is_causal", "use_rope"])
def test_false_where_true_is_usual_is_named(field: str) -> None:
    assert unread_fields({"model_type": "llama", field: False}) == [f"{field} = False"]
    assert unread_fields({"model_type": "llama", field: True}) == []


@pytest.mark.parametrize("family", sorted({*FAMILIES} - {"gpt2"}))
def test_a_part_of_each_head_is_refused_where_transformers_rotates_all(
    family: str, tmp_path: Path
) -> None:
    """Of others, the field changes the frequencies of transformers' own embeddings."""
    place = write_model(tmp_path / "m")
    path = place / "config.json"
    fields = json.loads(path.read_text()) | {"model_type": family}
    for own in (
        {"partial_rotary_factor": 0.5},
        {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.5}},
        {"rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5}}},
    ):  # fmt: skip
        path.write_text(json.dumps(fields | own))
        if family in ("phi3", "gpt_neox"):
            with warnings.catch_warnings(action="ignore"):  # GPT-NeoX reads rotary_pct
                open_checkpoint(place)
        else:
            with pytest.raises(UsageError, match=r"config\.json has partial_rotary_factor 0\.5"):
                open_checkpoint(place)
    if family != "gpt_neox":
        path.write_text(json.dumps(fields | {"partial_rotary_factor": 1.0}))
        open_checkpoint(place)


@pytest.mark.parametrize("same", [True, False])
def test_a_head_beside_an_embedding_that_is_tied(same: bool, tmp_path: Path) -> None:
    """transformers takes the head of the file. The same matrix a second time is none."""
    place = write_model(tmp_path / "m", tie_word_embeddings=True)
    tensors = {
        name: np.array(array) for name, array in map_tensors([place / "model.safetensors"]).items()
    }
    head = tensors["model.embed_tokens.weight"].copy()
    if not same:
        head[-1, -1] += 1
    saved(place / "model.safetensors", {**tensors, "lm_head.weight": head})
    config = open_checkpoint(place).config
    assert config["tie_word_embeddings"] is same
    reference = transformers.AutoModelForCausalLM.from_pretrained(place)
    assert np.array_equal(reference.lm_head.weight.detach().numpy(), head)
    own = dataclasses.replace(DecoderConfig.from_dict(config), tie_word_embeddings=True)
    given = {**tensors, "lm_head.weight": head}
    if same:
        load_weights(Decoder(own), given)
    else:
        with pytest.raises(UsageError, match="the head is the embedding"):
            load_weights(Decoder(own), given)
