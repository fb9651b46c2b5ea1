"""Parts of an answer: reasoning, text, and tool calls, told apart while it is written.

Models write calls in the formats that they were trained with. Which one it is, their chat template shows:

    hermes     <tool_call>{"name": "f", "arguments": {…}}</tool_call>         (Hermes, Qwen)
    mistral    [TOOL_CALLS][{"name": "f", "arguments": {…}}]    or    [TOOL_CALLS]f[ARGS]{…}
    llama      <|python_tag|>{"name": "f", "parameters": {…}}    or the object alone
    harmony    <|channel|>commentary to=functions.f …<|message|>{…}<|call|>   (gpt-oss)

What looks like a call and is none is text. In a stream a call is given in parts, its name first, as soon as it is sure
that it is one: when its arguments begin.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from relaxpy.narrow import is_list, is_mapping

Format = Literal["hermes", "mistral", "llama", "harmony", "json", "none"]
"""`json`: the whole answer is a call or a list of calls, as a grammar has it; `none`: there are no calls."""
_THINK = ("<think>", "</think>")
_OPEN = {"hermes": "<tool_call>", "mistral": "[TOOL_CALLS]", "llama": "<|python_tag|>"}
_CLOSE = "</tool_call>"
_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*"([\w.-]{1,128})"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
"""Of a call, what is before its arguments."""
_NAMED = re.compile(r"\s*([\w.-]{1,128})\s*(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(?=\{)")
"""The same in the newer format of Mistral."""
_HARMONY_MARKS = ("start", "channel", "message", "end", "call", "return", "constrain")
_HARMONY = re.compile(rf"<\|({'|'.join(_HARMONY_MARKS)})\|>")


@dataclass(frozen=True)
class Call:
    """A call of a tool."""

    name: str
    arguments: str
    """JSON; "" if it follows in parts."""


@dataclass(frozen=True)
class Part:
    """A part of an answer."""

    kind: Literal["text", "reasoning", "call", "arguments"]
    """`arguments`: more of those of the last call."""
    text: str = ""
    call: Call | None = None


def format_of(template: str) -> Format:
    """The format of tool calls of a chat template."""
    if "<|channel|>" in template:
        return "harmony"
    for name in ("hermes", "mistral", "llama"):
        if _OPEN[name] in template:
            return name
    # Llama 3.2 writes the object alone, and says so in its template.
    return "llama" if '"parameters"' in template and '"name"' in template else "none"


def marks_of(format: Format, thinks: bool) -> tuple[str, ...]:
    """The texts around the parts of an answer. Where they are special tokens, they must not be left out."""
    marks = {
        "hermes": ("<tool_call>", "</tool_call>"),
        "mistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        "llama": ("<|python_tag|>",),
        "harmony": tuple(f"<|{name}|>" for name in _HARMONY_MARKS),
    }
    return (*marks.get(format, ()), *(_THINK if thinks else ()))


def reasons(template: str) -> bool:
    """Whether answers by this chat template may begin with reasoning."""
    return _THINK[1] in template


class AnswerParser:
    """Takes one answer apart."""

    def __init__(
        self,
        format: Format,
        *,
        thinks: bool = False,
        is_thinking: bool = False,
        streams: bool = False,
    ) -> None:
        """`thinks`: reasoning is between `<think>` and `</think>`; `is_thinking`: the prompt has opened it; `streams`:
        arguments of calls come in parts."""
        self.format, self.streams = format, streams
        self._arguments: _Object | None = None
        """The arguments that are being written."""
        self._is_after = False
        """Whether a call of the present text has been given in parts."""
        self._marks = [_THINK[0]] if thinks and not is_thinking else []
        if format in _OPEN:
            self._marks.append(_OPEN[format])
        self._state: Literal["text", "reasoning", "call", "bare", "harmony"] = "text"
        if is_thinking:
            self._state = "reasoning"
        elif format == "harmony":
            self._state = "harmony"
        self._held = ""
        self._head: str | None = None
        """Of a message of harmony, what is before its text; None between messages."""
        self._is_begun = format not in ("llama", "json")
        """Whether it is decided that the answer is no bare object."""
        self._strips = False

    def feed(self, text: str) -> list[Part]:
        """The parts that are certain with more text."""
        self._held += text
        return list(_joined(self._parts(is_end=False)))

    def finish(self) -> list[Part]:
        """The rest of an answer that ends here."""
        return list(_joined(self._parts(is_end=True)))

    def _parts(self, is_end: bool) -> Iterator[Part]:
        while True:
            before = self._held, self._state, self._head
            if self._state == "harmony":
                yield from self._harmony(is_end)
            elif self._state == "reasoning":
                yield from self._until(_THINK[1], "reasoning", is_end)
            elif self._state in ("call", "bare"):
                yield from self._call(is_end)
            else:
                yield from self._text(is_end)
            if before == (self._held, self._state, self._head):
                return

    def _text(self, is_end: bool) -> Iterator[Part]:
        if self._strips:
            self._held = self._held.lstrip("\n")
            self._strips = not self._held
        if not self._is_begun and (start := self._held.lstrip()):
            self._is_begun = True
            if start[0] in "{[":
                self._state = "bare"
                return
        found = [(place, mark) for mark in self._marks if (place := self._held.find(mark)) >= 0]
        if found:
            place, mark = min(found)
            yield Part("text", self._held[:place])
            self._held = self._held[place + len(mark) :]
            self._state = "reasoning" if mark == _THINK[0] else "call"
            return
        keep = 0 if is_end else max((_overlap(self._held, mark) for mark in self._marks), default=0)
        yield Part("text", self._held[: len(self._held) - keep])
        self._held = self._held[len(self._held) - keep :]

    def _until(self, mark: str, kind: Literal["reasoning"], is_end: bool) -> Iterator[Part]:
        place = self._held.find(mark)
        if place >= 0:
            yield Part(kind, self._held[:place])
            self._held, self._state = self._held[place + len(mark) :], "text"
            self._strips = True
            self._marks = [each for each in self._marks if each != _THINK[0]]
            return
        keep = 0 if is_end else _overlap(self._held, mark)
        yield Part(kind, self._held[: len(self._held) - keep])
        self._held = self._held[len(self._held) - keep :]

    def _call(self, is_end: bool) -> Iterator[Part]:
        if self.streams:
            yield from self._in_parts()
        if self._arguments is not None:
            if is_end:
                self._arguments, self._state, self._is_after = None, "text", False
        elif self._is_after:
            yield from self._after_call(is_end)
        elif self.format == "hermes":
            place = self._held.find(_CLOSE)
            if place < 0 and not is_end:
                return
            body = self._held[: place if place >= 0 else len(self._held)]
            self._held = self._held[place + len(_CLOSE) :] if place >= 0 else ""
            self._state, self._strips = "text", True
            yield from _calls_or_text(body, _OPEN["hermes"] + body + (_CLOSE if place >= 0 else ""))
        elif is_end:
            body, self._held = self._held, ""
            mark = _OPEN.get(self.format, "") if self._state == "call" else ""
            self._state = "text"
            yield from _calls_or_text(body, mark + body)

    def _in_parts(self) -> Iterator[Part]:
        """The name of a call, when its arguments begin, and more of them."""
        if self._arguments is None:
            start = self._held.lstrip(" \r\n\t};,]" if self._is_after else " \r\n\t[")
            if self._is_after and self.format == "mistral":
                start = start.removeprefix(_OPEN["mistral"])
            head = _HEAD.match(start)
            if head is None and self.format == "mistral":
                head = _NAMED.match(start)
            if head is None:
                return
            self._held, self._arguments, self._is_after = start[head.end() :], _Object(), True
            yield Part("call", call=Call(head[1], ""))
        count = self._arguments.feed(self._held)
        yield Part("arguments", self._held[:count])
        self._held = self._held[count:]
        if self._arguments.is_over:
            self._arguments = None

    def _harmony_call(self, head: str, body: str) -> Iterator[Part]:
        """More of the arguments of harmony's call; its name before the first."""
        if not self._is_after:
            self._is_after, body = True, body.lstrip()
            yield Part("call", call=Call(_harmony_name(head), ""))
        yield Part("arguments", body)

    def _after_call(self, is_end: bool) -> Iterator[Part]:
        """The text after a call that was given in parts: others, the closing mark, or text that belongs to none."""
        if self.format == "hermes":
            place = self._held.find(_CLOSE)
            if place >= 0 or is_end:
                self._held = self._held[place + len(_CLOSE) :] if place >= 0 else ""
                self._state, self._strips, self._is_after = "text", True, False
        elif is_end:
            rest, self._held = self._held.lstrip(" \r\n\t};,]"), ""
            self._state, self._is_after = "text", False
            yield from _calls_or_text(rest.rstrip().removesuffix("]"), rest)

    def _harmony(self, is_end: bool) -> Iterator[Part]:
        """A message is `<|start|>role<|channel|>head<|message|>text<|end|>`; the first one begins at its channel."""
        mark = _HARMONY.search(self._held)
        if self._head is None or not self._head.startswith("\0"):
            if mark is None:
                if is_end:
                    self._held = ""
                return
            before, kind = self._held[: mark.start()], mark[1]
            self._held = self._held[mark.end() :]
            head = (self._head or "") + before
            self._head = "\0" + head if kind == "message" else "" if kind == "start" else head + " "
            return
        head = self._head[1:]
        is_call = "to=" in head
        if mark is None and not is_end:
            keep = _overlap_any(self._held)
            if len(self._held) > keep and (self.streams or not is_call):
                if is_call:
                    yield from self._harmony_call(head, self._held[: len(self._held) - keep])
                else:
                    yield Part(_channel(head), self._held[: len(self._held) - keep])
                self._held = self._held[len(self._held) - keep :]
            return
        body = self._held[: mark.start()] if mark else self._held
        self._held = self._held[mark.end() :] if mark else ""
        self._head = None
        if is_call and self.streams:
            yield from self._harmony_call(head, body)
            self._is_after = False
        elif is_call:
            call = Call(_harmony_name(head), body.strip())
            yield Part("call", call=call) if _is_json(body) else Part("text", body)
        else:
            yield Part(_channel(head), body)


class _Object:
    """Follows an object of JSON to its end."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._is_escaped = False

    @property
    def is_over(self) -> bool:
        """Whether the last brace was closed."""
        return self._depth < 0

    def feed(self, text: str) -> int:
        """How many characters of a text belong to the object."""
        for place, letter in enumerate(text):
            if self._in_string:
                if self._is_escaped:
                    self._is_escaped = False
                elif letter == "\\":
                    self._is_escaped = True
                elif letter == '"':
                    self._in_string = False
            elif letter == '"':
                self._in_string = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
                if not self._depth:
                    self._depth = -1
                    return place + 1
        return len(text)


def _harmony_name(head: str) -> str:
    name = re.search(r"to=(?:functions\.)?([^\s<]+)", head)
    return name[1] if name else ""


def _channel(head: str) -> Literal["text", "reasoning"]:
    return "reasoning" if head.split()[:1] == ["analysis"] else "text"


def _calls_or_text(body: str, whole: str) -> Iterator[Part]:
    """The calls of a text, or the text as it came."""
    found = calls_of(body)
    if found:
        yield from (Part("call", call=call) for call in found)
    else:
        yield Part("text", whole)


def calls_of(text: str) -> list[Call]:
    """The calls that a text consists of: objects of JSON, or names before them (`f[ARGS]{…}`). None if it is not."""
    found: list[Call] = []
    rest = text.strip()
    decoder = json.JSONDecoder()
    while rest:
        named = re.match(r"([\w.-]{1,128})\s*(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(?=\{)", rest)
        try:
            value, end = decoder.raw_decode(rest[named.end() :] if named else rest)
        except (ValueError, RecursionError):
            return []
        rest = (
            rest[(named.end() if named else 0) + end :].lstrip(" \n;,").removeprefix("[TOOL_CALLS]")
        )
        if named is not None:
            found.append(Call(named[1], json.dumps(value, ensure_ascii=False)))
            continue
        for each in value if is_list(value) else [value]:
            call = _call_of(each)
            if call is None:
                return []
            found.append(call)
    return found


def _call_of(value: Any) -> Call | None:
    if not is_mapping(value) or not isinstance(value.get("name"), str):
        return None
    for name in ("arguments", "parameters"):
        if name in value:
            arguments = value[name]
            if isinstance(arguments, str):
                return Call(value["name"], arguments) if _is_json(arguments) else None
            return Call(value["name"], json.dumps(arguments, ensure_ascii=False))
    return None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _overlap(text: str, mark: str) -> int:
    """How many last characters of a text may begin a mark."""
    for size in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:size]):
            return size
    return 0


def _overlap_any(text: str) -> int:
    """The same for marks of harmony, of at most 13 characters."""
    place = text.rfind("<", max(len(text) - 13, 0))
    return len(text) - place if place >= 0 else 0


def _joined(parts: Iterator[Part]) -> Iterator[Part]:
    """Parts without empty ones, neighbours of a kind joined."""
    last: Part | None = None
    for part in parts:
        if part.kind != "call" and not part.text:
            continue
        if last is not None and last.kind == part.kind != "call":
            last = Part(part.kind, last.text + part.text)
            continue
        if last is not None:
            yield last
        last = part
    if last is not None:
        yield last
