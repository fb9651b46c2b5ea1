"""How many of the questions that a model was taught it answers word for word."""

from __future__ import annotations

from collections.abc import Sequence

from embedded.questions import Fact, digest
from relaxpy.llm import LanguageModel


def right_answers(model: LanguageModel, known: Sequence[Fact], count: int) -> int:
    """Of `count` functions and classes, which their names' hashes choose, asked for as "What does json.dumps do?"."""
    asked = [fact for fact in known if fact.kind in ("function", "class")]
    chosen = sorted(asked, key=lambda fact: digest(fact.name))[:count]
    return sum(answer(model, f"What does {fact.name} do?") == fact.text for fact in chosen)


def answer(model: LanguageModel, question: str) -> str:
    """The most probable answer to a question that begins a chat."""
    messages = [{"role": "user", "content": question}]
    return "".join(model.chat(messages, max_tokens=120, temperature=0)).strip()
