"""Translations: beside transformers, the tokens of languages by every family, long lines, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from relaxpy.checkpoints.config_file import config_of
from relaxpy.checkpoints.sentencepiece import read_sentencepiece
from relaxpy.cli.translate import translate
from relaxpy.errors import UsageError
from relaxpy.llm import translator
from relaxpy.llm.seq2seq import Written
from relaxpy.llm.translation_languages import Languages, is_same, language_tokens
from relaxpy.llm.translator import Translator, load_translator
from relaxpy.serve import Request
from relaxpy.serve.beams import Beams
from tests.llm.checkpoints import write_tokenizer
from tests.llm.translation_checkpoints import mbart, nllb, pieces, sentencepiece_file
from tests.sweeps import FULL


@dataclass
class Echo:
    """A model that gives back what it reads, but for tokens that control."""

    config: Any
    positions: int = 40
    seen: list[Request] = field(default_factory=list)

    def write_all(self, requests: Sequence[Request]) -> list[Written]:
        self.seen += requests
        texts = [[int(t) for t in each.features.values] for each in requests if each.features]
        return [Written((*text, self.config["eos_token_id"]), (), "stop") for text in texts]

    @property
    def source(self) -> Any:
        return SimpleNamespace(positions=self.positions)

    @property
    def decoder(self) -> Any:
        return SimpleNamespace(config=self.config, positions=self.positions)


def echoing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Translator, Echo]:
    """The translator of a folder without weights."""
    model = Echo(config_of(folder))
    monkeypatch.setattr(translator, "load_seq2seq", lambda *_, **__: model)
    return load_translator(folder), model


def asked(model: Echo) -> list[tuple[tuple[int, ...], list[int]]]:
    """The first tokens of texts, and what was read."""
    found = [(each.prompt, each.features.values.tolist()) for each in model.seen if each.features]
    model.seen.clear()
    return found


def test_beside_transformers(tmp_path: Path) -> None:
    """The most probable tokens, and those of a search; several lines in the same steps."""
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    reference = nllb(tmp_path)
    own = load_translator(tmp_path, target="llvm" if FULL else "llvm -opt-level=0", keep=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path, src_lang="eng_Latn")
    lines = ["the cat.", "how are you?", "a", "one, two and three!"]
    start = torch.tensor([[2, tokenizer.convert_tokens_to_ids("deu_Latn")]])
    for beams in (None, Beams(3)):
        found = [*own.translate(lines, "de", source="en", max_tokens=12, beams=beams)]
        for line, text in zip(lines, found, strict=True):
            given = tokenizer(line, return_tensors="pt")
            written = reference.generate(
                **given, decoder_input_ids=start, max_new_tokens=12, num_beams=beams.num_beams if beams else 1
            )  # fmt: skip
            assert text == tokenizer.decode(written[0], skip_special_tokens=True).strip()
        assert len({*found}) > 1
    assert own.languages == ["deu_Latn", "eng_Latn", "zho_Hans", "zho_Hant"]


def test_mbart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The language of the text comes last, or first; the translation begins with its own."""
    for fifty in (False, True):
        tokenizer = mbart(tmp_path, fifty)
        own, model = echoing(tmp_path, monkeypatch)
        assert [*own.translate(["the cat"], "german", source="en")] == ["the cat"]
        german = tokenizer.convert_tokens_to_ids("de_DE")
        wanted = (2, german) if fifty else (german,)
        assert asked(model) == [(wanted, tokenizer("the cat")["input_ids"])]


def test_marian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one language, and of several, which a token before the text names."""
    pieces(tmp_path / "one", "marian", source_lang="eng", target_lang="deu")
    own, model = echoing(tmp_path / "one", monkeypatch)
    assert own.languages == ["deu"]
    assert [*own.translate(["the  cat ", "quiet"], "de")] == ["the cat", "quiet"]
    start = model.config["decoder_start_token_id"]
    ((first, read), _) = asked(model)
    assert first == (start,)
    assert read[0] == 2  # ▁the
    assert read[-1] == 0
    with pytest.raises(UsageError, match="does not know the language 'fr'") as caught:
        own.translate(["a"], "fr")
    assert caught.value.help == "it writes deu"
    with pytest.raises(UsageError, match="does not know the language 'fr'"):
        own.translate(["a"], "de", source="fr")
    pieces(tmp_path / "many", "marian", "fra", "ita")
    own, model = echoing(tmp_path / "many", monkeypatch)
    assert own.languages == ["fra", "ita"]
    [*own.translate(["the cat"], "french")]
    ((first, read),) = asked(model)
    assert (first, read[1:]) == ((model.config["decoder_start_token_id"],), [2, 8, 11, 9, 28, 0])
    with pytest.raises(UsageError) as caught:
        own.translate(["a"], "de")
    assert caught.value.help == "it knows fra, ita"


def test_m2m_100(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of languages come after the vocabulary."""
    pieces(tmp_path, "m2m_100")
    own, model = echoing(tmp_path, monkeypatch)
    assert len(own.languages) == 100
    assert [*own.translate(["the thing"], "de", source="af")] == ["the thing"]
    ((first, read),) = asked(model)
    count = 2 + 6 + 31 + 1
    assert (first[1], read[0]) == (count + 16, count)
    with pytest.raises(UsageError, match="reads many languages, and must be told which one"):
        own.translate(["a"], "de")


def test_t5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words before each part of a text ask for a translation, with the search and the lengths that stand with them."""
    tasks = {
        "translation_en_to_de": {
            "prefix": "e-d: ",
            "num_beams": 4,
            "early_stopping": True,
            "max_length": 30,
        },
        "translation_en_to_fr": {"prefix": "e-f: "},
        "translation_ro_to_fr": {"prefix": "r-f: "},
        "translation_of_rivers": {"prefix": "rivers: "},
        "summarization": {"prefix": "summarize: ", "num_beams": 2},
    }
    config: dict[str, Any] = {"model_type": "t5", "decoder_start_token_id": 0, "eos_token_id": 1}
    write_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, "task_specific_params": tasks}))
    own, model = echoing(tmp_path, monkeypatch)
    assert own.languages == ["de", "fr"]
    assert [*own.translate(["the cat", "\nhow"], "German")] == ["e-d: the cat", "\ne-d: how"]
    assert {(each.prompt, each.max_tokens, each.beams) for each in model.seen} == {
        ((0,), 29, Beams(4, early_stopping=True))
    }
    assert all(read[-1] == 1 for _, read in asked(model))
    assert [*own.translate(["a"], "fr", source="romanian", beams=Beams(2))] == ["r-f: a"]
    assert [(each.max_tokens, each.beams) for each in model.seen] == [(39, Beams(2))]
    (long,) = own.translate(["one two. " * 9], "de")
    assert long.count("e-d: one two.") > 1
    for to, source, match in (
        ("it", None, "has not learned to translate to 'it'"),
        ("de", "ro", "has not learned to translate from 'ro' to 'de'"),
        ("fr", None, "translates several languages to 'fr'"),
    ):
        with pytest.raises(UsageError, match=match) as caught:
            own.translate(["a"], to, source=source)
        assert "it translates en to de, en to fr, ro to fr" in str(caught.value.help)
    for wrong in (None, [], {"summarization": {"prefix": "a"}}, {"translation_en_to_de": {}}):
        (tmp_path / "config.json").write_text(json.dumps({**config, "task_specific_params": wrong}))
        with pytest.raises(UsageError, match="names no translation in task_specific_params"):
            load_translator(tmp_path)


def test_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are kept; one that is too long is cut between sentences, and a sentence that is too long is refused by its
    place."""
    pieces(tmp_path, "marian", source_lang="en", target_lang="de")
    own, model = echoing(tmp_path, monkeypatch)
    given = ["a b\n\nc", "", "  ", "d"]
    assert [*own.translate(given, "de")] == ["a b\n\nc", "", "", "d"]
    assert len(asked(model)) == 3
    long = "abc def. " * 5 + "ghi jkl? " * 4 + "mno"
    assert [*own.translate([long], "de")] == [long]
    lengths = [len(read) for _, read in asked(model)]
    assert max(lengths) <= 40
    assert len(lengths) == 3
    with pytest.raises(UsageError, match=r"line 2 has a sentence of 52 tokens, and .* reads 39"):
        own.translate(["a", "b" * 50 + ". c"], "de")
    many = [f"line {'abcde'[n % 5]}" for n in range(23)]
    assert [*own.translate(many, "de")] == many


def test_languages() -> None:
    tokens = ["deu_Latn", "zho_Hans", "zho_Hant", "fra_Latn", "<s>", "the", "abc_abcd", "eng_Latn"]
    known = Languages(language_tokens((text, n) for n, text in enumerate(tokens)))
    assert [*known.numbers] == ["deu_Latn", "zho_Hans", "zho_Hant", "fra_Latn", "eng_Latn"]
    for given in ("de", "deu", "german", "German ", "deu_Latn"):
        assert known.code(given) == "deu_Latn"
    with pytest.raises(UsageError, match="in several kinds: zho_Hans, zho_Hant"):
        known.code("zh")
    with pytest.raises(UsageError, match="does not know the language 'it'") as caught:
        known.code("it")
    assert caught.value.help == "it knows deu_Latn, eng_Latn, fra_Latn, zho_Hans, zho_Hant"
    assert is_same("de", "deu")
    assert is_same("en_XX", "eng")
    assert not is_same("de", "en")


def test_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UsageError, match="a model of type 'llama' does not translate"):
        load_translator(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    with pytest.raises(UsageError, match=r"neither a tokenizer\.json nor a vocab\.json"):
        load_translator(tmp_path)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces(tmp_path / "m", "marian", source_lang="en", target_lang="de")
    _, model = echoing(tmp_path / "m", monkeypatch)
    (tmp_path / "letter.txt").write_text("the cat.\n\na thing\n")

    def run(*args: str, given: str | None = None) -> Any:
        return CliRunner().invoke(translate, [*args, "--model", str(tmp_path / "m")], input=given)

    assert run("the cat", "--to", "de").stdout == "the cat\n"
    assert run("--file", str(tmp_path / "letter.txt"), "--to", "de").stdout == "the cat.\n\na thing\n"  # fmt: skip
    model.seen.clear()
    assert run("--to", "de", "--beam-size", "3", "-n", "5", given="a\nb").stdout == "a\nb\n"
    assert {(each.beams, each.max_tokens) for each in model.seen} == {(Beams(3), 5)}
    assert "give one" in str(run("a", "--file", "b", "--to", "de").exception.help)  # type: ignore[union-attr]
    assert "does not know the language 'xx'" in str(run("a", "--to", "xx").exception)
    assert "Missing option '--to'" in run("a").stderr


@pytest.mark.parametrize("kind", [1, 2])
def test_sentencepiece(tmp_path: Path, kind: int) -> None:
    """The pieces that the package sentencepiece gives, where it is installed; damage is an error."""
    path = tmp_path / "m.spm"
    path.write_bytes(sentencepiece_file(kind))
    found = read_sentencepiece(path)
    assert found.pieces[:4] == ("<unk>", "<s>", "</s>", "\u2581the")
    assert (found.kind, found.scores[3], found.types[:4]) == (kind, -2.0, (2, 3, 3, 1))
    backend = found.backend()
    # Pairs that make a piece are merged one by one, so that of BPE's words here only those of two letters are found.
    wanted = "_the _qu i e t _ th ing" if kind == 1 else "_ th e _ q u i e t _ th i n g"
    assert backend.encode("  the   quiet thing ").tokens == wanted.replace("_", "\u2581").split()
    data = path.read_bytes()
    for length in (0, 1, 5, 50, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(UsageError, match="cannot be read as a model of SentencePiece"):
            read_sentencepiece(path)
    path.write_bytes(sentencepiece_file(3))
    with pytest.raises(UsageError, match="a model of kind 3"):
        read_sentencepiece(path).backend()
    path.write_bytes(data)
    package: Any = pytest.importorskip("sentencepiece")
    theirs = package.SentencePieceProcessor(model_file=str(path))
    for text in ("the cat", "aathe the", "quiet, nothing!", "a  b ", "", "zebra the\tthing", "xyz\u00e4"):  # fmt: skip
        assert backend.encode(text).ids == theirs.encode(text), text
