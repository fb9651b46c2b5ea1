"""Abilities of a chat template, judged by the prompts that it renders of messages made for that.

A word in the source of a template tells little: it may be in a comment, or in a branch that is not taken. A template
that does not read what it is given fails, or writes a prompt in which that is missing.
"""

from __future__ import annotations

import re
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
_THOUGHT = "probe-of-a-thought"
_THOUGHTFUL = f"<think>\n{_THOUGHT}\n</think>\n\n{_TEXT}"
_ANSWER = {"role": "tool", "tool_call_id": "probe0000", "name": _NAME, "content": _RESULT}


@dataclass(frozen=True)
class Abilities:
    """Contents and features that a chat template supports."""

    parts: bool
    """Contents as lists of parts, and not as texts."""
    tools: bool
    """It writes descriptions of tools."""
    calls: bool
    """It writes calls of tools, and their results."""
    thinks: bool = False
    """Answers may begin with reasoning before `</think>`: it writes such, or leaves them out."""
    chat: str = ""
    """The rendered probes of answers, tools, calls and results, as far as it renders them."""
    has_parameters: bool = False
    """It names arguments of calls `parameters`, as Llama does."""

    def shaped(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Messages with contents as the template reads them."""
        found = [dict(each) for each in messages]
        for each in found:
            if self.parts and isinstance(each.get("content"), str):
                each["content"] = [{"type": "text", "text": each["content"]}]
        return found


def abilities(template: ChatTemplate, special: Mapping[str, str]) -> Abilities:
    """The abilities of a template; `special` are its variables. The first call for a template renders all probes."""
    return _abilities(template, tuple(special.items()))


@lru_cache(maxsize=64)
def _abilities(template: ChatTemplate, special: tuple[tuple[str, str], ...]) -> Abilities:
    def written(messages: Sequence[Mapping[str, Any]], tools: Any = None, **own: bool) -> str:
        variables: dict[str, Any] = {**dict(special), **own}
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
    described = written([_USER], [_TOOL])
    tools = [_TOOL] if _NAME in described else None
    called = written([_USER, _CALL, _ANSWER], tools)
    calls = called.count(_NAME) > described.count(_NAME) and _RESULT in called
    turns = [_USER, {"role": "assistant", "content": _TEXT}, _USER]
    opened = written([_USER])
    reasoned = {"reasoning_content": _THOUGHT, "thinking": _THOUGHT}
    answered = written([_USER, {"role": "assistant", "content": _THOUGHTFUL}, _USER])
    thinks = (
        opened.rstrip().endswith("<think>")
        or any(
            "</think>" in each
            for each in (
                opened,
                written([_USER], enable_thinking=False),
                written([_USER, {**_CALL, **reasoned}, _ANSWER], tools),
            )
        )
        or (_TEXT in answered and _THOUGHT not in answered)
    )
    return Abilities(
        shape.parts,
        tools is not None,
        calls,
        thinks,
        described + called + written(turns),
        re.search(rf'"name": "{_NAME}", "parameters": {{"a"', called) is not None,
    )
