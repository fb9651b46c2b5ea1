"""The transcript of the page on the embedded model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from embedded.transcript import chat, digest


def test_a_conversation() -> None:
    """Each answer knows the messages before it."""
    seen: list[list[str]] = []

    def answer(messages: Sequence[Mapping[str, str]]) -> str:
        seen.append([f"{each['role']}: {each['content']}" for each in messages])
        return f"\nanswer {len(seen)}\n"

    assert chat(answer, ["a?", "b?"]) == "> a?\nanswer 1\n> b?\nanswer 2"
    assert seen == [["user: a?"], ["user: a?", "assistant: \nanswer 1\n", "user: b?"]]


def test_weights_have_a_name(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"a")
    first = digest(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"b")
    assert first != digest(tmp_path)
