"""Examples that a language model is trained on: lines of JSON, as tokens and labels.

    {"prompt": "What is the capital of France?", "completion": " Paris."}
    {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good morning."}]}
    {"text": "A text that is learnt from its first word."}

The loss counts what the model is to write: the completion, the answers of the assistant, the whole text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relaxpy.errors import Source, UsageError
from relaxpy.llm.tokenizer import Tokenizer
from relaxpy.narrow import is_list, is_mapping

IGNORED = -100
"""The label of a position that the loss does not count."""
_FORMS = '{"prompt": …, "completion": …}, {"messages": […]} or {"text": …}'
_MOST_ERRORS = 5


@dataclass(frozen=True)
class Example:
    """A text as tokens, and the tokens of it that the model is to write."""

    tokens: Sequence[int]
    counted: Sequence[bool]

    def cut(self, length: int) -> Example:
        """Its first tokens."""
        return Example(self.tokens[:length], self.counted[:length])

    @property
    def is_learnt(self) -> bool:
        """Does the loss count a token? The first one follows nothing."""
        return any(self.counted[1:])


def read_examples(path: str | Path, tokenizer: Tokenizer) -> list[Example]:
    """The examples of a file with a line of JSON for each. Raises: UsageError (`bad-example`) with the lines that are
    none."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            "bad-example", f"{path} is not text in UTF-8 (byte {error.start})"
        ) from None
    except OSError as error:
        raise UsageError("bad-example", f"{path} cannot be read: {error.strerror}") from None
    found: list[Example] = []
    problems: list[tuple[int, str]] = []
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(example(line, tokenizer))
        except UsageError as error:
            problems.append((number, error.message))
    if problems:
        shown = [f"line {number}: {what}" for number, what in problems[:_MOST_ERRORS]]
        more = len(problems) - len(shown)
        first, line = problems[0][0], lines[problems[0][0] - 1]
        raise UsageError(
            "bad-example",
            f"{path}: " + "; ".join(shown) + (f"; and {more} more lines" if more else ""),
            span=Source(text, str(path)).range(first, 0, first, len(line.encode())),
            help=f"a line is {_FORMS}",
        )
    if not found:
        raise UsageError("bad-example", f"{path} has no examples", help=f"a line is {_FORMS}")
    return found


def example(line: str, tokenizer: Tokenizer) -> Example:
    """The example of a line. Raises: UsageError (`bad-example`, and those of the tokenizer)."""
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise UsageError("bad-example", f"no JSON: {error}") from None
    if not is_mapping(fields):
        raise UsageError("bad-example", f"it is {type(fields).__name__}, no object")
    match sorted(map(str, fields)):
        case ["completion", "prompt"]:
            prompt = tokenizer.encode(_text(fields, "prompt"))
            answer = tokenizer.encode(_text(fields, "completion"), special=False)
            return _ended(prompt, answer, tokenizer)
        case ["text"]:
            return _ended([], tokenizer.encode(_text(fields, "text")), tokenizer)
        case ["messages"]:
            return _chat(fields["messages"], tokenizer)
        case names:
            raise UsageError("bad-example", f"it has {', '.join(names) or 'nothing'}")


def _text(fields: Any, name: str) -> str:
    value = fields[name]
    if not isinstance(value, str):
        raise UsageError("bad-example", f"{name} is {type(value).__name__}, no text")
    if not value and name != "prompt":
        raise UsageError("bad-example", f"{name} is empty")
    return value


def _ended(prompt: Sequence[int], answer: Sequence[int], tokenizer: Tokenizer) -> Example:
    """A text that is written to its end, after a prompt."""
    ends = sorted(tokenizer.end_tokens)[:1]
    answer = [*answer] if answer and answer[-1] in ends else [*answer, *ends]
    return Example([*prompt, *answer], [False] * len(prompt) + [True] * len(answer))


def _chat(messages: Any, tokenizer: Tokenizer) -> Example:
    """A chat, of which the answers count. What a template writes otherwise once more messages follow is not counted."""
    if not is_list(messages) or not all(is_mapping(each) for each in messages):
        raise UsageError("bad-example", "messages are no list of objects")
    answers = [n for n, each in enumerate(messages) if each.get("role") == "assistant"]
    if not answers:
        raise UsageError("bad-example", "no message is the assistant's")
    messages = messages[: answers[-1] + 1]  # nothing is learnt of what follows
    tokens = tokenizer.chat_tokens(messages, add_generation_prompt=False)
    counted = [False] * len(tokens)
    for number in answers:
        before = tokenizer.chat_tokens(messages[:number])
        after = tokenizer.chat_tokens(messages[: number + 1], add_generation_prompt=False)
        if tokens[: len(before)] == before and tokens[: len(after)] == after:
            counted[len(before) : len(after)] = [True] * (len(after) - len(before))
    if not any(counted):
        raise UsageError(
            "bad-example", "the chat template writes no answer as it is asked for: no token counts"
        )
    return Example(tokens, counted)


def cut_examples(examples: Sequence[Example], length: int) -> tuple[list[Example], int]:
    """The examples with at most so many tokens, and how many were cut. Raises: UsageError (`bad-example`) if nothing is
    left of one that counts."""
    found = [each.cut(length) for each in examples]
    empty = [number for number, each in enumerate(found, 1) if not each.is_learnt]
    if empty:
        longest = max(len(examples[number - 1].tokens) for number in empty)
        raise UsageError(
            "bad-example",
            f"{len(empty)} examples have nothing to learn in their first {length} tokens: number "
            + ", ".join(map(str, empty[:_MOST_ERRORS])) + (", …" if len(empty) > _MOST_ERRORS else ""),
            help=f"the longest of them has {longest} tokens: give a greater length, or shorter prompts",
        )  # fmt: skip
    return found, sum(len(each.tokens) > length for each in examples)


def batches(
    examples: Sequence[Example], size: int, seed: int = 0, start: int = 0
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches without end, from number `start`: tokens and labels (rows, length), the token after each. Each epoch has
    an order of its own, which the seed decides; texts of about the same length are together. Shorter ones are filled
    with token 0, whose label is `IGNORED`."""
    per_epoch = batches_of(examples, size)
    while True:
        epoch, number = divmod(start, per_epoch)
        rng = np.random.default_rng([seed, epoch])
        order, together = rng.permutation(len(examples)), size * 16
        about = [len(each.tokens) * rng.uniform(1, 1.5) for each in examples]
        rows: list[int] = [
            int(each)
            for at in range(0, len(order), together)
            for each in sorted(order[at : at + together], key=about.__getitem__)
        ]
        groups = [rows[at : at + size] for at in range(0, len(rows), size)]
        turns: list[int] = rng.permutation(per_epoch).tolist()
        for turn in turns[number:]:
            yield _batch([examples[n] for n in groups[turn]])
            start += 1


def batches_of(examples: Sequence[Example], size: int) -> int:
    """The number of batches of an epoch."""
    return -(-len(examples) // size)


def _batch(rows: Sequence[Example]) -> tuple[np.ndarray, np.ndarray]:
    length = max(len(each.tokens) for each in rows) - 1
    tokens = np.zeros((len(rows), length), np.int64)
    labels = np.full((len(rows), length), IGNORED, np.int64)
    for own, marks, each in zip(tokens, labels, rows, strict=True):
        count = len(each.tokens) - 1
        own[:count] = each.tokens[:-1]
        marks[:count] = np.where(each.counted[1:], each.tokens[1:], IGNORED)
    return tokens, labels
