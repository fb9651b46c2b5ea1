"""The model that ships with relaxpy: its files, its figures, its answers, and transformers beside it."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

import relaxpy.llm
from embedded import evaluate, transcript
from embedded.answers import answer, right_answers
from embedded.bits import SAMPLE, bits_per_byte, read_documents, tokenizer_of, xz_bits_per_byte
from embedded.card import card
from embedded.curve import curve
from embedded.questions import Fact
from relaxpy.embedded import embedded_model
from relaxpy.llm import LanguageModel
from relaxpy.models.loaded import LoadedDecoder, Scheme
from relaxpy.serve import PageBook
from tests.sweeps import full
from tests.test_conventions import ROOT

FIGURES = json.loads((ROOT / "embedded/figures.json").read_text())


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return relaxpy.llm.load(scheme=Scheme(bits=None, activations=None))


@pytest.fixture(scope="module")
def decoder(model: LanguageModel) -> LoadedDecoder:
    return model.decoder


def test_files() -> None:
    """All that transformers saves, at most 12 MB of weights."""
    directory = embedded_model()
    assert {path.name for path in directory.iterdir() if path.is_file() and path.suffix != ".pyi"} == {
        "__init__.py", "README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json", "chat_template.jinja",
    }  # fmt: skip
    assert FIGURES["bytes"] == (directory / "model.safetensors").stat().st_size <= 12e6


def test_card_has_the_figures() -> None:
    text = (embedded_model() / "README.md").read_text()
    assert text == card(FIGURES)
    assert f"**{FIGURES['held_out']['bits_per_byte']:.3f}**" in text
    for name, library in FIGURES["corpus"]["libraries"].items():
        assert f"| {name} | {library['version']} | {library['licence']} |" in text


def test_the_transcript_is_of_these_weights() -> None:
    """Else `python -m embedded.transcript` writes it anew."""
    text = transcript.PAGE.read_text(encoding="utf-8")
    end = text[text.index(transcript.TITLE) :]
    assert f"of weights {transcript.digest(embedded_model())} -->" in end
    assert f"{FIGURES['held_out']['bits_per_byte']:.3f} bits per byte" in end
    for question in (question for chat in transcript.CHATS for question in chat):
        assert f"\n> {question}\n" in end


def test_curve_is_that_of_the_log() -> None:
    log = [json.loads(line) for line in (ROOT / "embedded/log.jsonl").read_text().splitlines()]
    assert (ROOT / "docs/embedded.svg").read_text() == curve(
        log, FIGURES["held_out"]["xz_bits_per_byte"]
    )
    assert log[-1]["tokens"] == FIGURES["tokens"]


def test_logits_are_those_of_transformers(decoder: LoadedDecoder) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        embedded_model(), dtype=torch.float32
    )
    text = (ROOT / "embedded/stream.py").read_text()
    tokens = tokenizer_of(embedded_model()).encode(text).ids[:400]
    caches, book = decoder.vm["alloc_pages"](16), PageBook(16, decoder.page_size, decoder.windows)
    batch = book.batch({book.add(tokens): len(tokens)})
    rows = np.arange(len(tokens), dtype=np.int32)
    logits = decoder.vm["step"](*batch.arguments[:-1], rows, caches, *decoder.weights).numpy()
    with torch.no_grad():
        wanted = theirs(torch.tensor([tokens])).logits[0].numpy()
    np.testing.assert_allclose(logits, wanted, rtol=1e-4, atol=1e-4)


@full
def test_bits_per_byte_are_those_of_the_card(decoder: LoadedDecoder) -> None:
    found = read_documents(SAMPLE)
    measured = bits_per_byte(decoder, tokenizer_of(embedded_model()), found)
    assert measured == pytest.approx(FIGURES["sample"]["bits_per_byte"], abs=2e-3)
    assert (
        measured
        < xz_bits_per_byte(found)
        == pytest.approx(FIGURES["sample"]["xz_bits_per_byte"], abs=0.02)
    )


def test_it_knows_that_it_does_not_know(model: LanguageModel) -> None:
    refusal = "I do not know that. I only know the documentation of Python."
    assert answer(model, "What is the capital of France?") == refusal
    assert answer(model, "Why is the sky blue?") == refusal  # not in the corpus


def test_right_answers_are_counted(model: LanguageModel) -> None:
    """An answer that is word for word that of the docstring; whatever the model says is taken for the docstring here."""
    said = answer(model, "What does len do?")
    known = [Fact("len", "function", said, "", "builtins"), Fact("os", "module", said, "", "os")]
    assert right_answers(model, known, 5) == 1
    assert right_answers(model, [dataclasses.replace(known[0], text="Something else.")], 5) == 0


@full
def test_evaluation_prints_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    evaluate.main(["--answers", "1"])
    out = capsys.readouterr().out
    assert (
        f"9 held-out files, {FIGURES['sample']['bytes']} bytes: {FIGURES['sample']['bits_per_byte']:.3f}"
        in out
    )
    assert out.count("\n> ") == 1


def test_sample_was_held_out() -> None:
    held_out = set(FIGURES["corpus"]["held_out_files"])
    assert {each.name for each in read_documents(SAMPLE)} <= held_out


def test_tokenizer_gives_every_text_back() -> None:
    tokenizer = tokenizer_of(embedded_model())
    assert tokenizer.get_vocab_size() == 4096
    for text in (
        "",
        "\x00é\r\n\t 👩‍👩‍👧  日本",
        "    def f(x):\n        return 2048\n",
        "\u0301\ufeff",
    ):
        tokens = tokenizer.encode(text).ids
        assert tokens[0] == 0
        assert tokenizer.decode(tokens[1:], skip_special_tokens=False) == text
