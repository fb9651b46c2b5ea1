"""Checkpoints that are damaged, or made to harm: a located error, or a model that runs; never another exception, a hang,
or the end of the process.

Each case changes one file of a tiny good checkpoint. It is loaded and written with in this process, under an alarm.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import RelaxError, UsageError
from relaxpy.llm import load
from relaxpy.models.decoder_plan import plan_decoder
from tests.llm.checkpoints import KINDS, write_model
from tests.runtime.test_safetensors import saved
from tests.sweeps import part, quick_target, sweep

SECONDS = 120
Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("good") / "tiny")


@pytest.fixture
def alarm() -> Iterator[None]:
    """An exception if a test hangs."""

    def hung(*_: object) -> None:
        raise TimeoutError(f"no end after {SECONDS} s")

    old = signal.signal(signal.SIGALRM, hung)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, old)


def outcome(place: Path) -> str:
    """The code of the error, or what was written."""
    try:
        model = load(place, target=str(quick_target()), context=64)
        if "default" in model.tokenizer.templates:
            "".join(model.chat([{"role": "user", "content": "Hello <|im_end|> 你"}], max_tokens=3))
        model.complete("Hello <|im_end|> 你", max_tokens=3, temperature=1.0)
    except RelaxError as error:
        return error.code if len(error.render()) < 20_000 else "an error that is too long"
    return "text"


def text_of(name: str, data: str | bytes) -> Change:
    def change(place: Path) -> None:
        (place / name).write_bytes(data.encode() if isinstance(data, str) else data)

    return change


def gone(name: str) -> Change:
    return lambda place: (place / name).unlink()


def pipe(name: str) -> Change:
    def change(place: Path) -> None:
        (place / name).unlink(missing_ok=True)
        os.mkfifo(place / name)

    return change


def folder(name: str) -> Change:
    def change(place: Path) -> None:
        (place / name).unlink(missing_ok=True)
        (place / name).mkdir()

    return change


def endless(name: str) -> Change:
    def change(place: Path) -> None:
        (place / name).unlink(missing_ok=True)
        (place / name).symlink_to("/dev/zero")

    return change


def sparse(name: str) -> Change:
    """A terabyte of zeros that takes no place."""

    def change(place: Path) -> None:
        with (place / name).open("wb") as file:
            file.truncate(1 << 40)

    return change


def loop(name: str) -> Change:
    def change(place: Path) -> None:
        (place / name).unlink(missing_ok=True)
        (place / name).symlink_to(name)

    return change


def fields(name: str, **values: Any) -> Change:
    """Fields of a JSON file; `...` removes one."""

    def change(place: Path) -> None:
        path = place / name
        found = json.loads(path.read_text()) if path.exists() else {}
        found = {k: v for k, v in {**found, **values}.items() if v is not ...}
        path.write_text(json.dumps(found))

    return change


JSON_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
TEXTS: dict[str, str | bytes] = {
    "empty": "", "garbage": "\x00\x01{]", "half": '{"a": ', "a list": "[]", "null": "null", "a number": "3",
    "deep": "[" * 100_000, "deep objects": '{"a":' * 50_000, "not UTF-8": b'{"a": "\xff\xfe"}', "UTF-16": '{"a": 1}'.encode("utf-16"),
    "a long number": '{"vocab_size": ' + "9" * 10_000 + "}", "a surrogate": '{"model_type": "\\ud800"}',
}  # fmt: skip
FILES: dict[str, Change] = {
    **{
        f"{name}: {kind}": text_of(name, data)
        for name in JSON_FILES
        for kind, data in TEXTS.items()
    },
    **{
        f"{name}: {make.__name__}": make(name)
        for name in (
            *JSON_FILES,
            "model.safetensors",
            "chat_template.jinja",
            "special_tokens_map.json",
            "model.safetensors.index.json",
        )
        for make in (pipe, folder, endless, loop, sparse)
    },
    **{
        f"{name}: gone": gone(name)
        for name in ("config.json", "tokenizer.json", "model.safetensors")
    },
}


JUNK = {
    "null": None, "zero": 0, "negative": -1, "huge": 1 << 62, "beyond": 1 << 80, "text": "x", "true": True, "list": [1],
    "object": {"a": 1}, "half": 0.5, "nan": float("nan"), "infinite": float("inf"),
}  # fmt: skip
SIZES = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size",
    "max_position_embeddings", "head_dim",
)  # fmt: skip
CONFIGS: dict[str, Change] = {
    **{
        f"{name} {kind}": fields("config.json", **{name: value})
        for name in (
            *SIZES,
            "model_type",
            "rope_theta",
            "torch_dtype",
            "eos_token_id",
            "hidden_act",
        )
        for kind, value in JUNK.items()
        if kind in ("negative", "huge", "text", "list", "nan")
        or name in ("model_type", "eos_token_id")
    },
    "another size": fields("config.json", hidden_size=128),
    "more layers": fields("config.json", num_hidden_layers=2),
    "another family": fields("config.json", model_type="gpt2"),
    "another vocabulary": fields("config.json", vocab_size=321),
    "heads that do not divide": fields("config.json", num_attention_heads=7),
    "a dtype by code": fields("config.json", torch_dtype="__import__('os')"),
    "a million layers": fields("config.json", num_hidden_layers=1_000_000),
    "code of its own": fields(
        "config.json", auto_map={"AutoModel": "modeling.Evil"}, model_type="evil"
    ),
    "a scaling that is not there": fields("config.json", rope_scaling={"rope_type": "evil"}),
    "a scaling of text": fields("config.json", rope_scaling="yarn"),
    "a quantisation that is not there": fields(
        "config.json", quantization_config={"quant_method": "evil"}
    ),
    "a quantisation of text": fields("config.json", quantization_config="awq"),
}


def tensors(change: Callable[[dict[str, np.ndarray]], Any]) -> Change:
    def changed(place: Path) -> None:
        from relaxpy.runtime.safetensors import map_tensors

        path = place / "model.safetensors"
        found = {name: np.array(array) for name, array in map_tensors([path]).items()}
        change(found)
        saved(path, found)

    return changed


def header(change: Callable[[dict[str, Any]], Any]) -> Change:
    """A change of the header of the weights."""

    def changed(place: Path) -> None:
        path = place / "model.safetensors"
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        found = json.loads(data[8 : 8 + length])
        found = change(found) or found
        text = json.dumps(found).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])

    return changed


def entry(**values: Any) -> Change:
    return header(lambda found: found["model.norm.weight"].update(values))


def index(value: Any) -> Change:
    """An index of shards instead of one file."""

    def change(place: Path) -> None:
        (place / "model.safetensors").rename(place / "model-1.safetensors")
        (place / "model.safetensors.index.json").write_text(json.dumps(value))

    return change


def cut(size: int) -> Change:
    def change(place: Path) -> None:
        path = place / "model.safetensors"
        data = path.read_bytes()
        path.write_bytes(data[:size])

    return change


NORM = "model.norm.weight"
WEIGHTS: dict[str, Change] = {
    **{f"cut to {size}": cut(size) for size in (0, 1, 7, 8, 9, 100, 5000, -1)},
    "a header of all bytes": text_of("model.safetensors", b"\xff" * 64),
    "a header that is longer": text_of(
        "model.safetensors", (1 << 40).to_bytes(8, "little") + b"{}"
    ),
    "a header that is a list": header(lambda _: [1]),
    "a header of strings": header(lambda _: {"a": "b"}),
    "no tensors": header(lambda _: {"__metadata__": {}}),
    "negative offsets": entry(data_offsets=[-256, 0]),
    "offsets after the end": entry(data_offsets=[1 << 40, (1 << 40) + 256]),
    "offsets backwards": entry(data_offsets=[256, 0]),
    "offsets of text": entry(data_offsets=["0", "256"]),
    "three offsets": entry(data_offsets=[0, 1, 2]),
    "a negative shape": entry(shape=[-64]),
    "a huge shape": entry(shape=[1 << 62, 4]),
    "a shape of zeros": entry(shape=[0, 1 << 62]),
    "a shape of text": entry(shape="64"),
    "a dtype that is not there": entry(dtype="F7"),
    "a dtype that is a list": entry(dtype=["F32"]),
    "a tensor that is missing": tensors(lambda found: found.pop(NORM)),
    "a tensor too many": tensors(lambda found: found.update(evil=np.zeros(3, np.float32))),
    "a tensor of another shape": tensors(
        lambda found: found.update({NORM: np.zeros(63, np.float32)})
    ),
    "a tensor of integers": tensors(lambda found: found.update({NORM: np.zeros(64, np.int64)})),
    "a tensor of NaN": tensors(
        lambda found: found["model.layers.0.mlp.up_proj.weight"].fill(np.nan)
    ),
    "an infinite tensor": tensors(lambda found: found["lm_head.weight"].fill(np.inf)),
    "a norm of NaN": tensors(lambda found: found[NORM].fill(np.nan)),
    "an embedding of NaN": tensors(lambda found: found["model.embed_tokens.weight"].fill(np.nan)),
    "huge weights": tensors(lambda found: found["lm_head.weight"].fill(3e38)),
    "an index of nothing": index({}),
    "an index that is a list": index([1]),
    "an index of numbers": index({"weight_map": {NORM: 3}}),
    "an index of lists": index({"weight_map": {NORM: ["a"]}}),
    "an index of text": index({"weight_map": "model-1.safetensors"}),
    "an index without tensors": index({"weight_map": {}}),
    "an index that leaves the folder": index(
        {"weight_map": {NORM: "../../../../../../etc/passwd"}}
    ),
    "an index of another place": index({"weight_map": {NORM: "/etc/passwd"}}),
    "an index of a device": index({"weight_map": {NORM: "/dev/zero"}}),
    "an index of a file that is not there": index({"weight_map": {NORM: "model-2.safetensors"}}),
    "an index of a null byte": index({"weight_map": {NORM: "a\0b"}}),
}


def tokenizer(change: Callable[[dict[str, Any]], Any], kind: str = "byte level") -> Change:
    def changed(place: Path) -> None:
        found = json.loads(KINDS[kind]())
        found = change(found) or found
        (place / "tokenizer.json").write_text(json.dumps(found))

    return changed


def replacing(part: str, count: int, length: int) -> Change:
    step = {"type": "Replace", "pattern": {"String": "o"}, "content": "o" * length}
    inner = "decoders" if part == "decoder" else "normalizers"
    return tokenizer(lambda found: {**found, part: {"type": "Sequence", inner: [step] * count}})


def split(regex: str) -> Change:
    step = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    return tokenizer(lambda found: {**found, "pre_tokenizer": step})


ADDED = {
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
    "special": True,
}
TOKENIZERS: dict[str, Change] = {
    "no model": tokenizer(lambda found: found.pop("model") and None),
    "a model of another type": tokenizer(lambda found: found["model"].update(type="Evil")),
    "a model of text": tokenizer(lambda found: found.update(model="BPE")),
    "a vocabulary that is a list": tokenizer(lambda found: found["model"].update(vocab=[1])),
    "an empty vocabulary": tokenizer(lambda found: found["model"].update(vocab={}, merges=[])),
    "negative numbers": tokenizer(lambda found: found["model"]["vocab"].update(a=-1)),
    "huge numbers": tokenizer(lambda found: found["model"]["vocab"].update(zzz=4_000_000_000)),
    "numbers twice": tokenizer(lambda found: found["model"].update(vocab=dict.fromkeys(found["model"]["vocab"], 7))),
    "merges of what is not there": tokenizer(lambda found: found["model"].update(merges=[["x9", "y9"]])),
    "merges of one": tokenizer(lambda found: found["model"].update(merges=["a"])),
    "merges of three": tokenizer(lambda found: found["model"].update(merges=[["a", "b", "c"]])),
    "dropout": tokenizer(lambda found: found["model"].update(dropout=7.0)),
    "no unknown token": tokenizer(lambda found: found["model"].update(unk_token="zzz", vocab={"a": 0}, merges=[])),
    "text that grows": replacing("normalizer", 40, 2),
    "text that grows at once": replacing("normalizer", 1, 1000),
    "text that grows back": replacing("decoder", 40, 2),
    "a prefix of a megabyte": tokenizer(lambda found: found.update(normalizer={"type": "Prepend", "prepend": "x" * 10**6})),
    "replacing nothing": tokenizer(lambda found: found.update(normalizer={"type": "Replace", "pattern": {"String": ""}, "content": "x"})),
    "replacing by nothing's regex": tokenizer(lambda found: found.update(normalizer={"type": "Replace", "pattern": {"Regex": "x*"}, "content": "y"})),
    "an expression that is none": split("(("),
    "an expression that is slow": split("(e+)+$|(l+)+$|(a|aa)+$|(x+x+)+y"),
    "an expression of itself": split("(?<a>\\g<a>)"),
    "an expression that looks back": split("(?<=(a+)+)b"),
    "an expression of nothing": split(""),
    "an expression of a gigabyte": split("a{1000000000}"),
    "added tokens of text": tokenizer(lambda found: found.update(added_tokens="x")),
    "an added token without text": tokenizer(lambda found: found["added_tokens"].append({"id": 500, "content": "", **ADDED})),
    "an added token of a huge number": tokenizer(lambda found: found["added_tokens"].append({"id": 4_294_967_295, "content": "<z>", **ADDED})),
    "an added token of a negative number": tokenizer(lambda found: found["added_tokens"].append({"id": -3, "content": "<z>", **ADDED})),
    "an added token that is a letter": tokenizer(lambda found: found["added_tokens"].append({"id": 500, "content": "e", **ADDED})),
    "an added token that is long": tokenizer(lambda found: found["added_tokens"].append({"id": 500, "content": "e" * 10**6, **ADDED})),
    "many added tokens": tokenizer(lambda found: found["added_tokens"].extend({"id": 500 + i, "content": f"<{i}>", **ADDED} for i in range(20_000))),
    "a decoder of another type": tokenizer(lambda found: found.update(decoder={"type": "Evil"})),
    "no decoder": tokenizer(lambda found: found.update(decoder=None)),
    "a CTC decoder": tokenizer(lambda found: found.update(decoder={"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True})),
    "deep decoders": tokenizer(lambda found: found.update(decoder=nested("decoders", 100))),
    "deep normalizers": tokenizer(lambda found: found.update(normalizer=nested("normalizers", 300))),
    "tokens around a text that are not there": tokenizer(lambda found: found.update(post_processor={
        "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "zzz", "type_id": 0}}], "pair": [], "special_tokens": {},
    })),
    "many tokens around a text": tokenizer(lambda found: found.update(post_processor={
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [0] * 10_000, "tokens": ["<s>"] * 10_000}},
    })),
    "padding of a gigabyte": tokenizer(lambda found: found.update(padding={
        "strategy": {"Fixed": 1 << 40}, "direction": "Left", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "<s>",
    })),
    "truncation to nothing": tokenizer(lambda found: found.update(truncation={
        "direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 0,
    })),
    "truncation with a longer stride": tokenizer(lambda found: found.update(truncation={
        "direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 7,
    })),
    "characters by a damaged table": tokenizer(lambda found: found.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"})),
    "unigrams without any": tokenizer(lambda found: found.update(model={"type": "Unigram", "unk_id": 0, "vocab": []})),
    "unigrams with another unknown": tokenizer(lambda found: found["model"].update(unk_id=99_999), "metaspace"),
    "unigrams of NaN": tokenizer(lambda found: found["model"].update(vocab=[[t, None] for t, _ in found["model"]["vocab"]]), "metaspace"),
    "words without unknown": tokenizer(lambda found: found["model"].update(unk_token="zzz"), "word piece"),
    "words of no characters": tokenizer(lambda found: found["model"].update(max_input_chars_per_word=0), "word piece"),
    "another version": tokenizer(lambda found: found.update(version="99.0")),
    "vocabulary of words": tokenizer(lambda found: found.update(model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "zzz"})),
}  # fmt: skip


def nested(inner: str, depth: int) -> Any:
    found: dict[str, Any] = {"type": "Sequence", inner: []}
    for _ in range(depth):
        found = {"type": "Sequence", inner: [found]}
    return found


SETTINGS: dict[str, Change] = {
    **{
        f"{name} {kind}": fields("tokenizer_config.json", **{name: value})
        for name in ("bos_token", "eos_token", "chat_template", "add_bos_token")
        for kind, value in JUNK.items()
    },
    "a special token with a space": fields(
        "tokenizer_config.json", bos_token="a b:1", add_bos_token=True
    ),
    "a special token that is not there": fields(
        "tokenizer_config.json", bos_token="<zzz>", add_bos_token=True
    ),
    "templates without names": fields("tokenizer_config.json", chat_template=[{"template": "a"}]),
    "templates without texts": fields("tokenizer_config.json", chat_template=[{"name": "default"}]),
    "a template that fails": fields("tokenizer_config.json", chat_template="{{ 1 / 0 }}"),
    "a template that is none": fields("tokenizer_config.json", chat_template="{% if %}"),
    "a template that writes nothing": fields("tokenizer_config.json", chat_template=""),
    "a template that writes too much": fields(
        "tokenizer_config.json", chat_template="{{ 'a ' * 100000 }}"
    ),
    "a template that is not UTF-8": text_of("chat_template.jinja", b"\xff"),
    **{
        f"{name} {kind}": fields("generation_config.json", do_sample=True, **{name: value})
        for name in (
            "eos_token_id",
            "temperature",
            "top_k",
            "top_p",
            "repetition_penalty",
            "do_sample2",
        )
        for kind, value in JUNK.items()
        if name != "do_sample2"
    },
    "an end that is no token": fields("generation_config.json", eos_token_id=[1 << 40, -7]),
}

CASES = {
    f"{group}: {name}": change
    for group, cases in (
        ("files", FILES), ("configs", CONFIGS), ("weights", WEIGHTS), ("tokenizers", TOKENIZERS), ("settings", SETTINGS),
    )
    for name, change in cases.items()
}  # fmt: skip
CODES = {
    "text", "bad-checkpoint", "bad-config", "bad-length", "bad-prompt", "bad-weights", "chat-template", "weight-scheme",
    "weight-values",
}  # fmt: skip


@sweep(2)
@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("name", part([*CASES], 13))
def test_a_located_error_or_text(good: Path, tmp_path: Path, name: str) -> None:
    place = tmp_path / "tiny"
    shutil.copytree(good, place)
    CASES[name](place)
    found = outcome(place)
    if name.startswith(
        ("files: config.json", "files: tokenizer.json", "weights: cut", "weights: an index")
    ):
        assert found == ("bad-weights" if name.endswith("without tensors") else "bad-checkpoint")
    assert found in CODES


@pytest.mark.usefixtures("alarm")
def test_ten_thousand_layers(good: Path, tmp_path: Path) -> None:
    """Refused before any is made, and without a list of all tensors that are missing."""
    shutil.copytree(good, tmp_path / "tiny")
    fields("config.json", num_hidden_layers=10_000)(tmp_path / "tiny")
    for read in (load, plan_decoder):
        with pytest.raises(UsageError, match="says 10000 layers, and has 12 tensors"):
            read(tmp_path / "tiny")
