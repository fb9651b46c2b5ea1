"""Thoughts and answers, apart, however the text is cut into pieces."""

from __future__ import annotations

import pytest

from relaxpy.llm.thoughts import Thoughts

HARMONY = (
    "<|channel|>analysis<|message|>They greet.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
    "<|constrain|>json<|message|>{}<|call|><|start|>assistant<|channel|>final<|message|>Hello!"
)


def split(text: str, size: int, **options: bool) -> tuple[str, str]:
    """Thoughts and answer of a text in pieces of this size."""
    thoughts = Thoughts(**options, hidden=["<|pad|>"])
    parts = [part for i in range(0, len(text), size) for part in thoughts.feed(text[i : i + size])]
    parts += thoughts.finish()
    assert all(text for _, text in parts)
    thought, answer = (
        "".join(text for kind, text in parts if kind is each) for each in (True, False)
    )
    return thought, answer


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("<think>\nhm < 3\n</think>\n\nSo.\n\nYes <b>", {}, ("hm < 3\n", "So.\n\nYes <b>")),
        ("hm</think>So.", {"begun": True}, ("hm", "So.")),
        ("  no thoughts <thi", {}, ("", "  no thoughts <thi")),
        ("<think>never ended", {}, ("never ended", "")),
        ("a<|pad|>b<think>c</think>d", {}, ("", "ab<think>c</think>d")),
        (" <|pad|>\n<think>c</think>d <think> e</think>", {}, ("c", " \nd <think> e</think>")),
        (HARMONY, {"channels": True}, ("They greet.{}", "Hello!")),
        ("Hello!", {"channels": True}, ("", "Hello!")),
        ("<|message|>Hello!<|pad|>", {"channels": True}, ("", "Hello!")),
        ("<|start|>assistant<|message|>Hi<|end|>x", {"channels": True}, ("", "Hi")),
    ],
)  # fmt: skip
def test_parts(text: str, options: dict[str, bool], expected: tuple[str, str], size: int) -> None:
    assert split(text, size, **options) == expected
