"""`relaxpy embed`: what it reads, prints, saves and refuses, with a stand-in for the encoder."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from relaxpy.cli.embed import embed, read_sentences
from relaxpy.errors import RelaxError
from relaxpy.models import sentence_embedding


class StandIn:
    """Embeds a sentence as its counts of a, b and c."""

    max_tokens = 20

    def embed(
        self, sentences: Sequence[str], progress: Callable[[int], None] | None = None
    ) -> sentence_embedding.Embeddings:
        counts = np.array([[text.count(c) + 0.01 for c in "abc"] for text in sentences], np.float32)
        if progress is not None:
            progress(len(sentences))
        cut = tuple(i for i, text in enumerate(sentences) if len(text) > 50)
        return sentence_embedding.Embeddings(
            counts / np.linalg.norm(counts, axis=1, keepdims=True), cut
        )


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    def make(*_: Any, **__: Any) -> StandIn:
        return StandIn()

    monkeypatch.setattr(sentence_embedding.SentenceEmbedder, "from_checkpoint", make)

    def invoke(*args: str, text: str | None = None) -> Result:
        return CliRunner().invoke(embed, args, input=text)

    return invoke


def error_of(result: Result) -> str:
    assert isinstance(result.exception, RelaxError)
    return result.exception.render()


def test_prints_vectors_and_similarity(run: Callable[..., Result]) -> None:
    result = run("aab", "aabb", "ccc")
    assert result.exit_code == 0, result.output
    assert "+0.8" in result.stdout
    rows = [line for line in result.stdout.splitlines() if "aabb" in line]
    assert len(rows) == 2  # vector, similarity
    assert "similarity" in result.stdout
    assert "3 sentences × 3 numbers" in result.stderr


@pytest.mark.parametrize("count", [1, 9])
def test_similarity_is_for_a_few(run: Callable[..., Result], count: int) -> None:
    assert "similarity" not in run(*["abc"] * count).stdout


def test_reads_stdin_and_files_line_by_line(run: Callable[..., Result], tmp_path: Path) -> None:
    file = tmp_path / "in.txt"
    file.write_text("a\n\n  b \n", encoding="utf-8")
    for result in (
        run(text="a\n\n b\n"),
        run("--file", str(file)),
        run("--file", "-", text="a\nb"),
    ):
        assert "2 sentences" in result.stderr


def test_saves_npy_and_json(run: Callable[..., Result], tmp_path: Path) -> None:
    array, rows = tmp_path / "out.npy", tmp_path / "out.json"
    run("aa", "ü b", "--save", str(array))
    run("aa", "ü b", "--save", str(rows))
    vectors = np.load(array)
    assert vectors.shape == (2, 3)
    assert vectors.dtype == np.float32
    saved = json.loads(rows.read_text(encoding="utf-8"))
    assert [row["sentence"] for row in saved] == ["aa", "ü b"]
    np.testing.assert_array_equal(
        np.array([row["embedding"] for row in saved], np.float32), vectors
    )


def test_markup_in_sentences_is_text(run: Callable[..., Result]) -> None:
    result = run("[bold]a[/bold]", "[/]")
    assert result.exit_code == 0, result.exception
    assert result.stdout.count("[bold]a[/bold]") == 2


def test_long_sentences_are_noted(run: Callable[..., Result]) -> None:
    result = run("a" * 60, "b")
    assert "note: sentence 1 is longer than 20 tokens" in result.stderr


@pytest.mark.parametrize(
    ("args", "text", "message"),
    [
        ((), "", "no sentence"),
        ((), "\n  \n", "no sentence"),
        (("a", "--file", "b"), None, "both as arguments and with --file"),
        (("--file", "no/such/file"), None, "no/such/file cannot be read: No such file"),
        (("a", "--save", "out.txt"), None, "use the suffix .npy or .json"),
    ],
)
def test_mistakes(
    run: Callable[..., Result], args: tuple[str, ...], text: str | None, message: str
) -> None:
    assert message in error_of(run(*args, text=text))


def test_a_folder_that_is_not_there(run: Callable[..., Result]) -> None:
    result = run("a", "--save", "no/such/out.npy")
    assert result.exit_code == 2
    assert "There is no folder 'no/such'" in result.output


def test_file_that_is_no_text(run: Callable[..., Result], tmp_path: Path) -> None:
    file = tmp_path / "in.bin"
    file.write_bytes(b"ok\n\xff\xfe")
    assert "not text in UTF-8 (byte 3)" in error_of(run("--file", str(file)))


def test_blank_lines_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("one\n\ntwo\n   \n")
    assert read_sentences([], str(file)) == ["one", "two"]
    assert capsys.readouterr().err == "note: 2 blank lines are ignored\n"


def test_an_argument_that_is_not_text() -> None:
    with pytest.raises(RelaxError, match="not text in UTF-8"):
        read_sentences(["a\udc80"], None)


def test_json_says_the_same(run: Callable[..., Result], tmp_path: Path) -> None:
    """Sentences with their vectors, as --save writes them."""
    file = tmp_path / "out.json"
    result = run("aab", "ccc", "--json", "--save", str(file))
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [row["sentence"] for row in rows] == ["aab", "ccc"]
    assert rows == json.loads(file.read_text())
    for row in rows:
        assert " ".join(f"{number:+.4f}" for number in row["embedding"]) in run("aab", "ccc").stdout
