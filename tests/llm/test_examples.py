"""Examples to train on: lines of JSON as tokens and labels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from relaxpy.embedded import embedded_model
from relaxpy.errors import UsageError
from relaxpy.llm.examples import (
    IGNORED,
    Example,
    batches,
    batches_of,
    cut_examples,
    example,
    read_examples,
)
from relaxpy.llm.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_checkpoint(embedded_model())


def counted(found: Example, tokenizer: Tokenizer) -> str:
    chosen = [token for token, own in zip(found.tokens, found.counted, strict=True) if own]
    return tokenizer.decode(chosen)


def line(**fields: object) -> str:
    return json.dumps(fields)


def test_what_counts(tokenizer: Tokenizer) -> None:
    """The completion and the end, the whole text, and every answer of a chat but no question."""
    found = example(line(prompt="Two and two?", completion=" Four."), tokenizer)
    assert counted(found, tokenizer) == " Four."
    assert found.tokens[-1] in tokenizer.end_tokens
    assert found.counted[-1]
    assert tokenizer.decode(found.tokens) == "Two and two? Four."
    assert counted(example(line(text="All of it."), tokenizer), tokenizer) == "All of it."
    roles = ("user", "assistant") * 2
    words = ("First?", "One.", "Second?", "Two.")
    chat = [{"role": r, "content": w} for r, w in zip(roles, words, strict=True)]
    found = example(line(messages=[*chat, {"role": "user", "content": "Third?"}]), tokenizer)
    said = counted(found, tokenizer)
    assert "One." in said
    assert "Two." in said
    assert "?" not in said
    assert "Third" not in tokenizer.decode(found.tokens)


WRONG = {
    "{": "no JSON", "[1]": "no object", "{}": "it has nothing", line(prompt="a"): "it has prompt",
    line(prompt=1, completion="b"): "prompt is int, no text", line(prompt="a", completion=""): "completion is empty",
    line(messages=[{"role": "user", "content": "a"}]): "no message is the assistant's",
    line(messages="a"): "no list of objects", line(text="a", more=1): "it has more, text",
}  # fmt: skip


def test_wrong_lines(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Each is refused with its reason; a file names all of its wrong lines, and shows the first."""
    for wrong, reason in WRONG.items():
        with pytest.raises(UsageError, match=reason) as error:
            example(wrong, tokenizer)
        assert error.value.code == "bad-example"
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join([line(text="right"), "", "{", line(text="right"), "[1]"]))
    with pytest.raises(UsageError, match=r"line 3: no JSON.*line 5: it is list") as error:
        read_examples(path, tokenizer)
    assert "data.jsonl:3" in error.value.render()
    for content, reason in ((b"\n", "has no examples"), (b"\xff", "no text in UTF-8|not text in")):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=reason):
            read_examples(path, tokenizer)
    path.write_text(
        "\ufeff" + line(text="right"), encoding="utf-8"
    )  # as editors of Windows save it
    assert len(read_examples(path, tokenizer)) == 1
    with pytest.raises(UsageError, match="cannot be read"):
        read_examples(tmp_path / "absent", tokenizer)


def made(count: int) -> list[Example]:
    """Example n has n + 2 tokens, all n, of which the last two count."""
    return [Example([n] * (n + 2), [False] * n + [True] * 2) for n in range(count)]


def test_cut() -> None:
    """An example is cut at its end, and is refused if nothing to learn is left."""
    short, cut = cut_examples(made(3), 3)
    assert ([len(each.tokens) for each in short], cut) == ([2, 3, 3], 1)
    with pytest.raises(
        UsageError, match="1 examples have nothing to learn in their first 2 tokens: number 3"
    ):
        cut_examples(made(3), 2)


def test_batches() -> None:
    """An epoch has each example once, in another order than the next; a later start gives the same batches; labels are
    the tokens after, and what is filled up does not count."""
    examples, size = made(7), 3
    each = batches(examples, size, seed=1)
    found = [next(each) for _ in range(2 * batches_of(examples, size))]
    for epoch in (found[:3], found[3:]):
        rows = [row for tokens, _ in epoch for row in tokens]
        assert sorted(int(row.max()) for row in rows) == list(range(7))
    assert not all(np.array_equal(a[0], b[0]) for a, b in zip(found[:3], found[3:], strict=True))
    later = batches(examples, size, seed=1, start=4)
    for (tokens, labels), (ours, theirs) in zip(found[4:], later, strict=False):
        np.testing.assert_array_equal(tokens, ours)
        np.testing.assert_array_equal(labels, theirs)
    for tokens, labels in found:
        for row, label in zip(tokens, labels, strict=True):
            number = int(row.max())
            wanted = [IGNORED] * max(0, number - 1) + [number] * (2 if number else 1)
            assert label[: number + 1].tolist() == wanted
            assert (label[number + 1 :] == IGNORED).all()
