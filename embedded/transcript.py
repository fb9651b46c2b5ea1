"""Conversations with the model that ships, as they came: the last section of `docs/embedded.md`.

    python -m embedded.transcript

writes it anew, from the weights in `relaxpy/embedded` and from `figures.json`. `embedded.export` does so, too. The
model runs as `relaxpy chat` and `relaxpy generate` run it: weights of 4 bits, the most probable tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import relaxpy.llm
from embedded.bits import SAMPLE, bits_per_byte, read_documents, tokenizer_of
from relaxpy.embedded import embedded_model
from relaxpy.llm import LanguageModel

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs/embedded.md"
TITLE = "## How far it is"
CHATS = (
    ("Who are you?", "What does textwrap.dedent do?", "What are its arguments?", "How do I import it?", "Thank you!"),
    ("What is the json module?", "What does json.dumps do?", "What does json.loads do?", "And what is pickle?"),
    (
        "What does len do?", "What does math.cos do?", "What does operator.add do?", "What does os.path.join do?",
        "What does str.split do?", "Explain itertools.chain.", "What is pathlib.Path?", "What does heapq.heappush do?",
        "What is the signature of shutil.copytree?", "How do I import functools.lru_cache?",
    ),
    (
        "Hello!", "What is the capital of France?", "Why is the sky blue?", "What is 2 + 2?",
        "Write a poem about the sea.", "How do I sort a list?", "Wer bist du?",
    ),
)  # fmt: skip
"""The questions of each conversation. Most are of the kinds that the model was taught, and some are of none."""
TEXTS = (
    "def read_lines(path):\n",
    'class Stack:\n    """A stack',
    "import os\nimport",
    "if __name__ ==",
)
"""Texts that it continues."""
_MOST_TOKENS = 60


def chat(answer: Callable[[Sequence[Mapping[str, str]]], str], questions: Sequence[str]) -> str:
    """A conversation as a terminal shows it."""
    messages: list[dict[str, str]] = []
    lines: list[str] = []
    for question in questions:
        messages.append({"role": "user", "content": question})
        found = answer(messages)
        messages.append({"role": "assistant", "content": found})
        lines += [f"> {question}", found.strip("\n")]
    return "\n".join(lines)


def section(
    model: LanguageModel, figures: Mapping[str, Any], weights: str, bits_of_4_bits: float
) -> str:
    """The section of the page. `weights` is the digest of those that it is about, `bits_of_4_bits` the bits per byte of
    the sample as the model runs by default."""
    seen, unseen, known = figures["tokens"] / 1e6, figures["held_out"], figures["sample"]
    parts = [
        TITLE,
        f"<!-- python -m embedded.transcript, of weights {weights} -->",
        f"The weights that ship have seen {seen:.2f} million tokens: {unseen['bits_per_byte']:.3f} bits per byte on "
        f"the held-out files, where `xz -9e` needs {unseen['xz_bits_per_byte']:.3f}. They answer "
        f"{figures['right_answers']} of {figures['questions']} questions that they were taught word for word. "
        f"Weights of 4 bits with int8 activations cost {bits_of_4_bits - known['bits_per_byte']:.3f} bits per byte "
        "on the sample.",
        "These are whole conversations, as they came from `relaxpy chat`, the good answers and the bad ones:",
        *(_fenced(chat(lambda messages: _answer(model, messages), each)) for each in CHATS),
        f"And texts that `relaxpy generate` continued, {_MOST_TOKENS} tokens each:",
        *(_fenced(text + model.complete(text, max_tokens=_MOST_TOKENS).rstrip()) for text in TEXTS),
    ]
    return "\n\n".join(parts) + "\n"


def _answer(model: LanguageModel, messages: Sequence[Mapping[str, str]]) -> str:
    return "".join(model.chat(messages, stop_loops=True))


def _fenced(text: str) -> str:
    fence = "````" if "```" in text else "```"
    lines = "\n".join(line.rstrip() for line in text.split("\n"))
    return f"{fence}text\n{lines}\n{fence}"


def digest(directory: Path) -> str:
    """The name of the weights in a directory."""
    return hashlib.sha256((directory / "model.safetensors").read_bytes()).hexdigest()[:16]


def main() -> None:
    directory = embedded_model()
    model = relaxpy.llm.load(directory)
    figures = json.loads((HERE / "figures.json").read_text())
    bits = bits_per_byte(model.decoder, tokenizer_of(directory), read_documents(SAMPLE))
    text = PAGE.read_text(encoding="utf-8")
    page = text[: text.index(TITLE)] + section(model, figures, digest(directory), bits)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
