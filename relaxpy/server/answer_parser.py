"""Parts of an answer: reasoning, text, and tool calls, told apart while it is written.

Models write calls in the formats that they were trained with. Which one it is, their chat template shows:

    hermes     <tool_call>{"name": "f", "arguments": {…}}</tool_call>         (Hermes, Qwen)
               <tool_call><function=f><parameter=a>…</parameter></function></tool_call>    (Qwen3-Coder)
    mistral    [TOOL_CALLS][{"name": "f", "arguments": {…}}]    or    [TOOL_CALLS]f[ARGS]{…}
    llama      <|python_tag|>{"name": "f", "parameters": {…}}    or the object alone
    harmony    <|channel|>commentary to=functions.f …<|message|>{…}<|call|>   (gpt-oss)

Where a call ends, its JSON says: a mark inside of a string is a part of the string. What looks like a call and is none
is text. The parts do not depend on how the answer was cut into pieces: what is not yet certain is held back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from relaxpy.llm.template_probes import Abilities
from relaxpy.llm.thoughts import overlap
from relaxpy.narrow import is_list, is_mapping
from relaxpy.serve.json_schema import pointed, types_of

Format = Literal["hermes", "mistral", "llama", "harmony", "json", "none"]
"""`json`: the whole answer is a call or a list of calls, as a grammar has it; `none`: there are no calls."""
_THINK, _THINK_END = "<think>", "</think>"
_OPEN = {"hermes": "<tool_call>", "mistral": "[TOOL_CALLS]", "llama": "<|python_tag|>"}
_CLOSE = "</tool_call>"
_BETWEEN = " \r\n\t[],;"
"""What may stand between calls."""
_HEAD = re.compile(
    r'\{\s{0,32}"name"\s{0,32}:\s{0,32}"([\w.-]{1,128})"\s{0,32},\s{0,32}'
    r'"(?:arguments|parameters)"\s{0,32}:\s{0,32}(?=\{)'
)
"""Of a call, what is before its arguments."""
_NAMED = re.compile(r"([\w.-]{1,128})\s{0,32}(?:\[CALL_ID\]\w{1,64})?(?:\[ARGS\])?\s{0,32}(?=\{)")
"""The same in the newer format of Mistral."""
_LONGEST_HEAD = 320
"""No name in front of arguments ends later."""
_FUNCTION, _FUNCTION_END = re.compile(r"<function=([\w.-]{1,128})>"), "</function>"
_PARAMETER = re.compile(r"<parameter=([^<>\n]{1,128})>")
_PARAMETER_END = re.compile(r"</parameter>\s*(?=<parameter=|</function>)")
_ANY = "any"
"""The type of a parameter of which its schema says nothing."""
_HARMONY_MARKS = ("start", "channel", "message", "end", "call", "return", "constrain")
_HARMONY = re.compile(rf"<\|({'|'.join(_HARMONY_MARKS)})\|>")


@dataclass(frozen=True)
class Call:
    """A call of a tool."""

    name: str
    arguments: str
    """JSON; "" if it follows in parts."""


@dataclass(frozen=True)
class AnswerPart:
    """A part of an answer."""

    kind: Literal["text", "reasoning", "call", "arguments"]
    """`arguments`: more of those of the last call."""
    text: str = ""
    call: Call | None = None


def format_of(abilities: Abilities) -> Format:
    """The format of tool calls of a chat template, by what it writes."""
    if "<|channel|>" in abilities.chat:
        return "harmony"
    for name in ("hermes", "mistral", "llama"):
        if _OPEN[name] in abilities.chat:
            return name
    return "llama" if abilities.has_parameters else "none"


def marks_of(format: Format, thinks: bool) -> tuple[str, ...]:
    """The texts around the parts of an answer. Where they are special tokens, they must not be left out."""
    marks = {
        "hermes": ("<tool_call>", "</tool_call>"),
        "mistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        "llama": ("<|python_tag|>",),
        "harmony": tuple(f"<|{name}|>" for name in _HARMONY_MARKS),
    }
    return (*marks.get(format, ()), *((_THINK, _THINK_END) if thinks else ()))


class AnswerParser:
    """Takes one answer apart."""

    def __init__(
        self,
        format: Format,
        *,
        thinks: bool = False,
        is_thinking: bool = False,
        streams: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """`thinks`: an answer may begin with reasoning, between `<think>` and `</think>`; `is_thinking`: the prompt has
        opened it; `streams`: arguments of calls come in parts, as they are written. `tools` tell the types of arguments
        in the format that does not (Qwen3-Coder's)."""
        self.format, self.streams = format, streams
        self._types = {each["function"]["name"]: _types_of(each) for each in tools}
        self._thinks = thinks
        self._state: _State = "reasoning" if is_thinking else "start"
        self._held = ""
        self._raw: str = ""
        """What was read of a call that is none as yet: if it is none, it is text."""
        self._has_called = False
        """Whether there was a call since the last opening mark."""
        self._json: _Json | None = None
        """Follows the object that is being read."""
        self._has_tail = False
        """Whether the call's own object goes on after its arguments."""
        self._function = ""
        """The name of the function whose parameters are being read."""
        self._is_first = True
        """Whether nothing of its arguments was read."""
        self._strips = False
        """Whether new lines before the next text are left out."""
        self._head: str | None = None
        """Of a message of harmony, what is before its text; None between messages."""
        self._is_text = False
        """Whether the text of a message of harmony is being read."""
        self._call: Call | None = None
        """The call that is being collected where calls come as a whole."""

    def feed(self, text: str) -> list[AnswerPart]:
        """The parts that are certain with more text."""
        self._held += text
        return list(_joined(self._given(is_end=False)))

    def finish(self) -> list[AnswerPart]:
        """The rest of an answer that ends here."""
        return list(_joined(self._given(is_end=True)))

    def _given(self, is_end: bool) -> Iterator[AnswerPart]:
        """The parts as they are given: calls in parts or as a whole."""
        for part in self._parts(is_end):
            if self.streams:
                yield part
            elif part.kind == "arguments" and self._call is not None:
                self._call = Call(self._call.name, self._call.arguments + part.text)
            elif part.kind == "call" or part.text:
                yield from self._collected()
                self._call = part.call
                if part.call is None:
                    yield part
        if is_end or self._state not in ("arguments", "tail", "function", "harmony"):
            yield from self._collected()

    def _collected(self) -> Iterator[AnswerPart]:
        if self._call is not None:
            yield AnswerPart("call", call=self._call)
            self._call = None

    def _parts(self, is_end: bool) -> Iterator[AnswerPart]:
        steps = {
            "start": self._start,
            "reasoning": self._reasoning,
            "text": self._text,
            "calls": self._calls,
            "arguments": self._arguments,
            "tail": self._tail,
            "function": self._parameters,
            "harmony": self._harmony,
        }
        while True:
            before = self._state, len(self._held), self._head, self._is_text
            yield from steps[self._state](is_end)
            if before == (self._state, len(self._held), self._head, self._is_text):
                return

    def _start(self, is_end: bool) -> Iterator[AnswerPart]:
        """White space, and what decides how the answer begins."""
        self._strip()
        text = self._held.lstrip()
        if self._thinks and text.startswith(_THINK):
            self._held, self._state = text[len(_THINK) :], "reasoning"
        elif is_end or (text and not (self._thinks and _THINK.startswith(text))):
            if self.format == "harmony":
                self._state = "harmony"
            elif self.format in ("llama", "json") and text[:1] in ("{", "["):
                self._raw, self._held = self._held[: len(self._held) - len(text)], text
                self._state, self._has_called = "calls", False
            else:
                self._state = "text"
        yield from ()

    def _strip(self) -> None:
        """Leave out new lines at the beginning of the text."""
        if self._strips:
            self._held = self._held.lstrip("\n")
            self._strips = not self._held

    def _reasoning(self, is_end: bool) -> Iterator[AnswerPart]:
        place = self._held.find(_THINK_END)
        if place >= 0:
            yield AnswerPart("reasoning", self._held[:place])
            self._held, self._strips = self._held[place + len(_THINK_END) :], True
            self._thinks, self._state = False, "start"
            return
        keep = 0 if is_end else overlap(self._held, _THINK_END)
        yield AnswerPart("reasoning", self._held[: len(self._held) - keep])
        self._held = self._held[len(self._held) - keep :]

    def _text(self, is_end: bool) -> Iterator[AnswerPart]:
        self._strip()
        marks = [_OPEN[self.format]] if self.format in _OPEN else []
        if self.format == "hermes" and self._has_called:
            marks.append(_CLOSE)  # of a call that has other text behind its object
        found = [(place, mark) for mark in marks if (place := self._held.find(mark)) >= 0]
        if found:
            place, mark = min(found)
            yield AnswerPart("text", self._held[:place])
            self._held = self._held[place + len(mark) :]
            self._has_called = False
            if mark == _CLOSE:
                self._strips = True
            else:
                self._state, self._raw = "calls", mark
            return
        keep = 0 if is_end else max((overlap(self._held, mark) for mark in marks), default=0)
        yield AnswerPart("text", self._held[: len(self._held) - keep])
        self._held = self._held[len(self._held) - keep :]

    def _calls(self, is_end: bool) -> Iterator[AnswerPart]:
        """Between calls: the next one, the closing mark, or what is no call."""
        opening = _OPEN.get(self.format, "\0")
        closing = _CLOSE if self.format == "hermes" else "\0"
        rest = self._held if self._json else self._skipped(opening)
        if not rest or opening.startswith(rest) or closing.startswith(rest):
            if rest in (opening, closing):
                yield from self._marked(rest)
            elif is_end and self._has_called:
                self._held = ""  # a mark that is cut
            elif is_end:
                yield from self._no_call(rest)
        elif rest.startswith((opening, closing)):
            yield from self._marked(opening if rest.startswith(opening) else closing)
        elif rest[0] == "{":
            yield from self._object(is_end)
        elif self.format == "hermes" and (function := _FUNCTION.match(rest)):
            self._held, self._function, self._is_first = rest[function.end() :], function[1], True
            self._begin("function")
            yield AnswerPart("call", call=Call(function[1], ""))
        elif self.format == "mistral" and (named := _NAMED.match(rest)):
            yield from self._begun(named[1], named.end(), has_tail=False)
        elif is_end or len(rest) > _LONGEST_HEAD or not self._may_begin(rest):
            yield from self._no_call()

    def _skipped(self, opening: str) -> str:
        """What is held, without what may stand between calls."""
        place = 0
        while self._held[place : place + 1] and self._held[place] in _BETWEEN:
            if self._held.startswith(opening, place) or opening.startswith(self._held[place:]):
                break
            place += 1
        self._raw += self._held[:place]
        self._held = self._held[place:]
        return self._held

    def _marked(self, mark: str) -> Iterator[AnswerPart]:
        """A mark between calls: the closing one, or that of further calls."""
        is_closing = mark == _CLOSE
        if not self._has_called:
            yield AnswerPart("text", self._raw + mark * is_closing)
        self._held = self._held[len(mark) :]
        if is_closing:
            self._strips = self._has_called
            self._state, self._raw = "text", ""
        else:
            self._raw = mark
        self._has_called = False

    def _may_begin(self, rest: str) -> bool:
        """Whether more text may make a call of what is no call as yet."""
        if self.format == "hermes":
            return "<function=".startswith(rest) or rest.startswith("<function=")
        return self.format == "mistral" and re.match(r"[\w.-]", rest) is not None

    def _object(self, is_end: bool) -> Iterator[AnswerPart]:
        """An object that is a call by its head, or as a whole."""
        if head := _HEAD.match(self._held):
            yield from self._begun(head[1], head.end(), has_tail=True)
            return
        inner = self._held[1:].lstrip()
        if inner and inner[0] not in '"}' and not self._has_called and not self._raw.strip():
            yield from self._no_call()  # a brace at the beginning of a text
            return
        if self._json is None:
            self._json = _Json(_CLOSE if self.format == "hermes" else "")
        self._json.feed(self._held)
        if not (self._json.is_over or self._json.is_stopped or is_end):
            return
        body = self._held if is_end else self._held[: self._json.place]
        call = _call_of(body, is_marked=self._has_called or bool(self._raw.strip(" \r\n\t[")))
        self._json = None
        if call is None:
            yield from self._no_call(body)
        else:
            self._held = self._held[len(body) :]
            self._begin("calls")
            yield AnswerPart("call", call=Call(call.name, ""))
            yield AnswerPart("arguments", call.arguments)

    def _begin(self, state: _State) -> None:
        self._state, self._raw, self._has_called = state, "", True

    def _begun(self, name: str, end: int, has_tail: bool) -> Iterator[AnswerPart]:
        """The beginning of a call whose arguments follow."""
        self._held = self._held[end:]
        self._json, self._has_tail = _Json(_CLOSE if self.format == "hermes" else ""), has_tail
        self._begin("arguments")
        yield AnswerPart("call", call=Call(name, ""))

    def _no_call(self, body: str = "") -> Iterator[AnswerPart]:
        """What was read is text, and a body that is held; what follows may have calls."""
        yield AnswerPart("text", ("" if self._has_called else self._raw) + body)
        self._held, self._raw, self._state, self._json = self._held[len(body) :], "", "text", None

    def _arguments(self, is_end: bool) -> Iterator[AnswerPart]:
        assert self._json is not None
        self._json.feed(self._held)
        is_done = self._json.is_over or self._json.is_stopped
        yield AnswerPart(
            "arguments", self._taken(None if is_end and not is_done else self._json.place)
        )
        if is_done:
            self._state, self._json = "tail" if self._has_tail else "calls", None

    def _taken(self, count: int | None) -> str:
        """The first characters that are held, which are held no longer."""
        found = self._held[:count]
        self._held = self._held[len(found) :]
        return found if self._json is None else self._json.taken(found)

    def _tail(self, is_end: bool) -> Iterator[AnswerPart]:
        """The end of a call's object: its brace, and perhaps other fields."""
        if self._json is None:
            rest = self._held.lstrip()
            if not rest:
                return
            if rest[0] not in ",}":
                self._state = "calls"  # the brace is missing
                return
            self._json = _Json(_CLOSE if self.format == "hermes" else "", depth=1)
        self._json.feed(self._held)
        self._taken(self._json.place)
        if self._json.is_over or self._json.is_stopped:
            self._json, self._state = None, "calls"
        yield from ()

    def _parameters(self, is_end: bool) -> Iterator[AnswerPart]:
        """The parameters of a function, as an object of JSON: each when it is complete."""
        rest = self._held.lstrip()
        if rest.startswith((_FUNCTION_END, _CLOSE)):
            yield AnswerPart("arguments", "{}" if self._is_first else "}")
            self._held, self._state = rest.removeprefix(_FUNCTION_END), "calls"
            return
        begin = _PARAMETER.match(rest)
        end = _PARAMETER_END.search(rest, begin.end()) if begin else None
        if begin and (end or is_end):
            text = rest[begin.end() : end.start() if end else None].removeprefix("\n")
            types = self._types.get(self._function, {}).get(begin[1], {"string"})
            if end:
                value = _value_of(text.removesuffix("\n"), types)
            else:  # cut
                value = json.dumps(text, ensure_ascii=False)[:-1]
            before = "{" if self._is_first else ", "
            yield AnswerPart("arguments", f"{before}{json.dumps(begin[1])}: {value}")
            self._held, self._is_first = rest[end.end() :] if end else "", False
        elif is_end:
            yield AnswerPart("arguments", "{" * self._is_first)
            self._held, self._is_first = "", False

    def _harmony(self, is_end: bool) -> Iterator[AnswerPart]:
        """A message is `<|start|>role<|channel|>head<|message|>text<|end|>`; the first one begins at its channel."""
        if self._is_text:
            yield from self._message(is_end)
            return
        mark = _HARMONY.search(self._held)
        if mark is None:
            self._held = "" if is_end else self._held
            return
        head = (self._head or "") + self._held[: mark.start()]
        self._held = self._held[mark.end() :]
        self._is_text = mark[1] == "message"
        self._head = head if self._is_text else "" if mark[1] == "start" else head + " "

    def _message(self, is_end: bool) -> Iterator[AnswerPart]:
        """The text of a message, to the next mark. Marks inside of a call's object belong to it."""
        name = _harmony_name(self._head or "")
        if name and self._json is None:
            self._held = self._held.lstrip()
            if not self._held and not is_end:
                return
            self._json, self._is_first = _Json(), True
            self._json.is_over = not self._held.startswith("{")
            yield AnswerPart("call", call=Call(name, ""))
        start = 0
        if self._json is not None and not self._json.is_over:
            self._json.feed(self._held)
            start = self._json.place
        mark = _HARMONY.search(self._held, start)
        is_over = is_end or mark is not None
        body = self._held[
            : mark.start() if mark else len(self._held) - _overlap_any(self._held, start, is_end)
        ]
        if name:
            body = body.rstrip()
        own = self._taken(len(body))
        self._is_first = self._is_first and not body
        if name:
            yield AnswerPart("arguments", "{}" if is_over and self._is_first else own)
        else:
            yield AnswerPart(_channel(self._head or ""), body)
        if mark:
            self._held = self._held[mark.end() - len(body) :]
        if is_over:
            self._held = self._held if mark else ""
            self._head, self._is_text, self._json = None, False, None


_State = Literal["start", "reasoning", "text", "calls", "arguments", "tail", "function", "harmony"]


class _Json:
    """Follows an object of JSON to its end, or to a mark outside of its strings, in a text that somebody else holds."""

    def __init__(self, stop: str = "", depth: int = 0) -> None:
        """`depth`: so many braces are open."""
        self.place = 0
        """How many characters of the text belong to the object so far."""
        self.is_over = self.is_stopped = False
        self._stop, self._depth = stop, depth
        self._in_string = self._is_escaped = False
        self._controls: list[int] = []

    def taken(self, text: str) -> str:
        """The first characters of the text, which its holder gives away. New lines and the like in strings, which JSON
        does not have and models write, are escaped."""
        size = len(text)
        for place in reversed([each for each in self._controls if each < size]):
            text = text[:place] + json.dumps(text[place])[1:-1] + text[place + 1 :]
        self._controls = [each - size for each in self._controls if each >= size]
        self.place = max(self.place - size, 0)
        return text

    def feed(self, text: str) -> None:
        """Go on to the end of a text."""
        while self.place < len(text) and not self.is_over:
            letter = text[self.place]
            if self._in_string:
                if self._is_escaped:
                    self._is_escaped = False
                elif letter == "\\":
                    self._is_escaped = True
                elif letter == '"':
                    self._in_string = False
                elif letter < " ":
                    self._controls.append(self.place)
            elif letter == '"':
                self._in_string = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
                self.is_over = self._depth <= 0
            elif self._stop and letter == self._stop[0]:
                rest = text[self.place : self.place + len(self._stop)]
                self.is_stopped = rest == self._stop
                if self._stop.startswith(rest):
                    return
            self.place += 1


def _call_of(text: str, is_marked: bool) -> Call | None:
    """The call that an object is. One without arguments is a call where a mark says that there are calls."""
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    if not is_mapping(value) or not isinstance(value.get("name"), str):
        return None
    own = [value[key] for key in ("arguments", "parameters") if key in value]
    if not own and not is_marked:
        return None
    arguments: Any = own[0] if own else {}
    if isinstance(arguments, str) and arguments.strip():
        try:
            arguments = json.loads(arguments, strict=False)
        except (ValueError, RecursionError):
            return None
    return Call(value["name"], json.dumps(arguments or {}, ensure_ascii=False))


def _types_of(tool: Mapping[str, Any]) -> dict[str, set[str]]:
    """The types of a tool's parameters, as its schema has them."""
    parameters: Any = tool["function"].get("parameters") or {}
    own = parameters.get("properties")
    if not is_mapping(own):
        return {}
    return {name: _types(each, parameters) or {_ANY} for name, each in own.items()}


def _types(schema: Any, root: Any, depth: int = 8) -> set[str]:
    """The types that a schema names; none if it says nothing of them."""
    if not is_mapping(schema) or not depth:
        return set()
    if "type" in schema:
        own = schema["type"]
        own = own if is_list(own) else [own]
        return {each for each in own if isinstance(each, str)}
    if "const" in schema or is_list(schema.get("enum")):
        values = schema.get("enum") or [schema.get("const")]
        return {min(types_of(each)) for each in values}  # of a whole number, "integer"
    found: list[Any] = []
    for name in ("anyOf", "oneOf", "allOf"):
        found += schema[name] if is_list(schema.get(name)) else ()
    if isinstance(schema.get("$ref"), str):
        with suppress(LookupError, ValueError, TypeError):
            found.append(pointed(root, schema["$ref"]))
    return set[str]().union(*(_types(each, root, depth - 1) for each in found))


def _value_of(text: str, allowed: set[str]) -> str:
    """A parameter that is written as it is, as JSON: by its types, and a string where there are none."""
    if "boolean" in allowed and text.strip().lower() in ("true", "false"):
        return text.strip().lower()
    if allowed != {"string"}:
        try:
            value = json.loads(text, strict=False)
        except (ValueError, RecursionError):
            return json.dumps(text, ensure_ascii=False)
        kinds = {*types_of(value), _ANY}
        if "string" not in allowed or (kinds & allowed and not isinstance(value, str)):
            return json.dumps(value, ensure_ascii=False)
    return json.dumps(text, ensure_ascii=False)


def _harmony_name(head: str) -> str:
    name = re.search(r"to=(?:functions\.)?([^\s<]+)", head)
    return name[1] if name else ""


def _channel(head: str) -> Literal["text", "reasoning"]:
    return "reasoning" if head.split()[:1] == ["analysis"] else "text"


def _overlap_any(text: str, start: int, is_end: bool) -> int:
    """The same for marks of harmony, of at most 13 characters, from a place on."""
    place = -1 if is_end else text.rfind("<", max(len(text) - 13, start))
    return len(text) - place if place >= 0 else 0


def _joined(parts: Iterator[AnswerPart]) -> Iterator[AnswerPart]:
    """Parts without empty ones, neighbours of a kind joined."""
    last: AnswerPart | None = None
    for part in parts:
        if part.kind != "call" and not part.text:
            continue
        if last is not None and last.kind == part.kind != "call":
            last = AnswerPart(part.kind, last.text + part.text)
            continue
        if last is not None:
            yield last
        last = part
    if last is not None:
        yield last
