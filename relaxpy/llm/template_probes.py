"""What a chat template reads of messages, judged by what it writes of some that are made for that.

A word in the source of a template tells little: it may be in a comment, or in a branch that is not taken. A template
that does not read what it is given fails, or writes a prompt in which that is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from relaxpy.errors import UsageError
from relaxpy.llm.chat_template import ChatTemplate

_TEXT, _RESULT, _NAME = "probe-of-a-text", "probe-of-a-result", "probe_of_a_name"
_USER = {"role": "user", "content": _TEXT}
_FUNCTION = {
    "name": _NAME,
    "description": "A probe.",
    "parameters": {"type": "object", "properties": {"a": {"type": "string", "description": "a"}}, "required": ["a"]},
}  # fmt: skip
_TOOL = {"type": "function", "function": _FUNCTION}
_CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "probe0000",  # nine characters, as templates of Mistral want
            "type": "function",
            "function": {"name": _NAME, "arguments": {"a": "b"}},
        }
    ],
}
_ANSWER = {"role": "tool", "tool_call_id": "probe0000", "name": _NAME, "content": _RESULT}


@dataclass(frozen=True)
class Abilities:
    """What a template reads."""

    parts: bool
    """Contents as lists of parts, and not as texts."""
    tools: bool
    """It writes descriptions of tools."""
    calls: bool
    """It writes calls of tools, and their results."""

    def shaped(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Messages with contents as the template reads them."""
        found = [dict(each) for each in messages]
        for each in found:
            if self.parts and isinstance(each.get("content"), str):
                each["content"] = [{"type": "text", "text": each["content"]}]
        return found


def abilities(template: ChatTemplate, special: Mapping[str, str]) -> Abilities:
    """What a template reads; `special` are its variables. It may take a while when it is first asked."""
    return _abilities(template, tuple(special.items()))


@lru_cache(maxsize=64)
def _abilities(template: ChatTemplate, special: tuple[tuple[str, str], ...]) -> Abilities:
    def written(messages: Sequence[Mapping[str, Any]], tools: Any = None) -> str:
        variables = dict(special)
        try:
            return template.render(
                messages=shape.shaped(messages), tools=tools, documents=None, add_generation_prompt=True, **variables
            )  # fmt: skip
        except UsageError as error:
            if error.code == "extra-missing":
                raise
            return ""

    shape = plain = Abilities(False, False, False)
    if _TEXT not in written([_USER]):
        shape = Abilities(True, False, False)
        if _TEXT not in written([_USER]):
            shape = plain
    described = written([_USER], [_TOOL]).count(_NAME)
    called = written([_USER, _CALL, _ANSWER], [_TOOL] if described else None)
    calls = called.count(_NAME) > described and _RESULT in called
    return Abilities(shape.parts, described > 0, calls)
