"""`POST /v1/messages` and `/v1/messages/count_tokens`, as Anthropic has them."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from relaxpy.serve.grammar import json_schema_grammar
from relaxpy.server import known_fields
from relaxpy.server.blocks import Block, Blocks
from relaxpy.server.bodies import (
    MOST_FIELDS,
    Body,
    Form,
    MaxTokensOrNone,
    SamplingBody,
    Schema,
    StopText,
)
from relaxpy.server.chat import (
    Chat,
    Choice,
    Prepared,
    answers,
    prepare,
    prompt_of,
    with_pictures,
)
from relaxpy.server.chat_completions import Effort, Name, reasoning_variables
from relaxpy.server.contents import content_of
from relaxpy.server.context import Server, answer, event, in_thread, stream, unless_gone
from relaxpy.server.errors import ApiError
from relaxpy.server.pictures import Source
from relaxpy.server.served_model import AnswerUsage, Delta


class _Text(Body):
    others = known_fields.BLOCK
    type: Literal["text"]
    text: str


class _Base64(Body):
    type: Literal["base64"]
    media_type: str
    data: str


class _Address(Body):
    type: Literal["url"]
    url: str


class _Image(Body):
    others = known_fields.BLOCK
    type: Literal["image"]
    source: Annotated[_Base64 | _Address, Field(discriminator="type")]

    def at(self, place: str) -> Source:
        """Where the picture is; `place` is that of the block in the body."""
        own = self.source
        if isinstance(own, _Address):
            return Source(own.url, f"{place}.source.url")
        return Source(f"data:{own.media_type};base64,{own.data}", f"{place}.source.data")


class _Thinking(Body):
    others = known_fields.BLOCK
    type: Literal["thinking"]
    thinking: str


class _Use(Body):
    others = known_fields.BLOCK
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class _Result(Body):
    others = known_fields.BLOCK
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[_Text] | None = None
    is_error: bool = False


_Block = Annotated[_Text | _Image | _Thinking | _Use | _Result, Field(discriminator="type")]


class _Message(Body):
    role: Literal["user", "assistant"]
    content: str | list[_Block]


class _Tool(Body):
    others = known_fields.TOOL
    type: Literal["custom"] = "custom"
    name: Name
    description: str | None = None
    input_schema: dict[str, Any]


class _Choice(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: str = ""
    disable_parallel_tool_use: bool = False


class _ThinkingOption(Body):
    others = known_fields.THINKING
    type: Literal["enabled", "disabled", "adaptive"]


class _OutputFormat(Form):
    type: Literal["json_schema"]
    schema_: Annotated[Schema, Field(alias="schema")]

    def grammar_of(self) -> str:
        return json_schema_grammar(self.schema_)


class _OutputConfig(Form):
    effort: Effort | None = None
    format: _OutputFormat | None = None

    @property
    def is_any(self) -> bool:
        return self.format is None

    def grammar_of(self) -> str:
        return "" if self.format is None else self.format.grammar_of()


class MessagesBody(SamplingBody):
    """The body of a request for the next message, or for the tokens until there."""

    others = known_fields.MESSAGES
    n: Literal[1] = 1
    max_tokens: MaxTokensOrNone | None = None
    messages: Annotated[list[_Message], Field(min_length=1, max_length=MOST_FIELDS)]
    system: str | list[_Text] | None = None
    tools: Annotated[list[_Tool], Field(max_length=128)] | None = None
    tool_choice: _Choice | None = None
    thinking: _ThinkingOption | None = None
    stop_sequences: Annotated[list[StopText], Field(max_length=16)] | None = None
    output_config: _OutputConfig | None = None
    output_format: _OutputFormat | None = None

    @property
    def stops(self) -> tuple[str, ...] | None:
        """The stop strings."""
        stops = super().stops
        return stops if self.stop_sequences is None else (*(stops or ()), *self.stop_sequences)

    def chat(self) -> Chat:
        """Its request."""
        messages: list[dict[str, Any]] = []
        if self.system:
            messages.append({"role": "system", "content": _text(self.system)})
        for number, message in enumerate(self.messages):
            messages += _plain(message, f"messages.{number}")
        begin = ""
        if messages and messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls"):
            begin = messages.pop()["content"].rstrip()
        if all(each["role"] == "system" for each in messages):
            raise ApiError("a chat begins with a message of the user", param="messages")
        choice = self.tool_choice or _Choice(type="auto")
        kinds: dict[str, Choice] = {"any": "required", "none": "none", "tool": (choice.name,)}
        return Chat(
            messages,
            [_openai(tool) for tool in self.tools or ()],
            kinds.get(choice.type, "auto"),
            not choice.disable_parallel_tool_use,
            variables=reasoning_variables(self._effort()),
            max_tokens=self.max_tokens,
            begin=begin,
        )

    def _effort(self) -> str | None:
        if self.thinking is not None and self.thinking.type == "disabled":
            return "none"
        return None if self.output_config is None else self.output_config.effort


def _text(content: str | list[_Text] | None) -> str:
    return content if isinstance(content, str) else "".join(each.text for each in content or ())


def _openai(tool: _Tool) -> dict[str, Any]:
    function = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def _plain(message: _Message, place: str) -> Iterator[dict[str, Any]]:
    """A message, which is at a place of the body, in OpenAI's shape: results of tools are messages of their own."""
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
        return
    parts, thought = list[str | Source](), ""
    calls: list[dict[str, Any]] = []
    for number, block in enumerate(message.content):
        if isinstance(block, _Text):
            parts.append(block.text)
        elif isinstance(block, _Image):
            parts.append(block.at(f"{place}.content.{number}"))
        elif isinstance(block, _Thinking):
            thought += block.thinking
        elif isinstance(block, _Use):
            function = {"name": block.name, "arguments": json.dumps(block.input)}
            calls.append({"id": block.id, "type": "function", "function": function})
        else:
            found = ("Error: " if block.is_error else "") + _text(block.content)
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": found}
    content = content_of(parts, message.role)
    if content or calls or thought:
        yield {
            "role": message.role,
            "content": content,
            **({"tool_calls": calls} if calls else {}),
            **({"reasoning_content": thought} if thought else {}),
        }


async def messages(server: Server, request: Request) -> Response:
    """Answers a request."""
    body = await server.body(request, MessagesBody)
    if body.max_tokens is None:
        raise ApiError("max_tokens: the field is required", param="max_tokens")
    prepared = await prepare(server, request, body, await in_thread(body.chat))
    tally = server.tally(request, len(prepared.order.prompt))
    name = body.model or prepared.model.name
    if body.stream:
        events = _events(server, prepared, tally, name)
        return await unless_gone(
            request, stream(events, lambda error: event(error.anthropic(), "error"))
        )
    return await unless_gone(request, _whole(server, prepared, tally, name))


async def count_tokens(server: Server, request: Request) -> Response:
    """The number of tokens of a request's prompt."""
    body = await server.body(request, MessagesBody)
    model, _ = server.model_of(body.model)
    chat = await with_pictures(server, request, model, await in_thread(body.chat))
    return answer({"input_tokens": len((await in_thread(prompt_of, model, chat)).tokens)})


def _names() -> Iterator[str]:
    while True:
        yield f"toolu_{secrets.token_hex(12)}"


def _block(block: Block, *, is_empty: bool = False) -> dict[str, Any]:
    text = "" if is_empty else block.text
    if block.call is not None:
        arguments: dict[str, Any] = json.loads(text) if text else {}
        return {"type": "tool_use", "id": block.id, "name": block.call.name, "input": arguments}
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": text, "signature": ""}
    return {"type": "text", "text": text}


def _usage(tally: AnswerUsage) -> dict[str, int]:
    return {
        "input_tokens": tally.prompt_tokens - tally.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": tally.cached_tokens,
        "output_tokens": tally.completion_tokens,
    }


def _reason(last: Delta) -> dict[str, Any]:
    if last.stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": last.stop}
    reasons = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
    return {"stop_reason": reasons[last.finish or "stop"], "stop_sequence": None}


def _message(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": name,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        **fields,
    }


async def _whole(server: Server, prepared: Prepared, tally: AnswerUsage, name: str) -> Response:
    blocks, last = Blocks(_names()), None
    async with aclosing(answers(server, prepared, tally)) as texts:
        async for last in texts:
            for _ in blocks.feed(last.parts):
                pass
    assert last is not None
    content = [_block(each) for each in blocks.all]
    return answer(_message(name, content=content, usage=_usage(tally), **_reason(last)))


async def _events(
    server: Server, prepared: Prepared, tally: AnswerUsage, name: str
) -> AsyncGenerator[str]:
    def written(kind: str, **fields: Any) -> str:
        return event({"type": kind, **fields}, kind)

    def shown(steps: Iterator[tuple[str, Block, str]]) -> str:
        out = ""
        for step, block, text in steps:
            place = {"index": block.number}
            if step == "start":
                start = _block(block, is_empty=True)
                out += written("content_block_start", **place, content_block=start)
            elif step == "more":
                out += written("content_block_delta", **place, delta=_delta(block, text))
            else:
                out += written("content_block_stop", **place)
        return out

    blocks, last = Blocks(_names()), None
    async with aclosing(answers(server, prepared, tally)) as texts:
        async for each in texts:
            out = ""
            if last is None:
                out += written("message_start", message=_message(name, usage=_usage(tally)))
            last = each
            out += shown(blocks.feed(each.parts))
            if out:
                yield out
    assert last is not None
    out = shown(blocks.finish())
    out += written("message_delta", delta=_reason(last), usage=_usage(tally))
    yield out + written("message_stop")


def _delta(block: Block, text: str) -> Mapping[str, str]:
    if block.kind == "call":
        return {"type": "input_json_delta", "partial_json": text}
    if block.kind == "reasoning":
        return {"type": "thinking_delta", "thinking": text}
    return {"type": "text_delta", "text": text}
