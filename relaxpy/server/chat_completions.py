"""`POST /v1/chat/completions`, as OpenAI, vLLM and llama.cpp have it."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from relaxpy.server.answer_parser import Call, Format
from relaxpy.server.bodies import MOST_FIELDS, Body, ResponseFormat, SamplingBody
from relaxpy.server.chat import Answered, Chat, Choice, Prepared, answers, prepare
from relaxpy.server.context import Server, answer, event, stream, unless_gone
from relaxpy.server.errors import ApiError
from relaxpy.server.served_model import Delta, ServedModel, Tally

Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[\w.-]+$")]


class _Function(Body):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(Body):
    """A tool."""

    type: Literal["function"]
    function: _Function


class _CalledFunction(Body):
    name: str
    arguments: str = "{}"


class _ToolCall(Body):
    id: str = ""
    type: Literal["function"] = "function"
    function: _CalledFunction


class TextPart(Body):
    """A part of a message's content."""

    type: Literal["text", "refusal"] = "text"
    text: str = ""
    refusal: str = ""


class MessageBody(Body):
    """A message."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    def plain(self) -> dict[str, Any]:
        """As templates know messages: with one text, and the role `system`."""
        found = self.model_dump(exclude_none=True)
        if isinstance(self.content, list):
            found["content"] = "".join(part.text or part.refusal for part in self.content)
        if self.role == "developer":
            found["role"] = "system"
        if self.content is None and not self.tool_calls:
            found["content"] = ""
        return found


class _ChosenFunction(Body):
    name: str


class _ChosenTool(Body):
    type: Literal["function"]
    function: _ChosenFunction


class StreamOptions(Body):
    """Options of a stream."""

    include_usage: bool = False


class ChatBody(SamplingBody):
    """The body of a request for a chat's next message."""

    messages: Annotated[list[MessageBody], Field(min_length=1, max_length=MOST_FIELDS)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=1 << 31)] | None = None
    tools: Annotated[list[ToolBody], Field(max_length=128)] | None = None
    tool_choice: Literal["auto", "none", "required"] | _ChosenTool | None = None
    parallel_tool_calls: bool = True
    response_format: ResponseFormat | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def chat(self) -> Chat:
        """Its request. Raises: ApiError, UsageError (`grammar`)."""
        if self.top_logprobs and not self.logprobs:
            raise ApiError("top_logprobs needs logprobs: true", param="top_logprobs")
        choice = self.tool_choice or "auto"
        own: Choice = (choice.function.name,) if isinstance(choice, _ChosenTool) else choice
        return Chat(
            [message.plain() for message in self.messages],
            [tool.model_dump(exclude_none=True) for tool in self.tools or ()],
            own,
            self.parallel_tool_calls,
            self.response_format.grammar_of() if self.response_format else "",
            {**reasoning_variables(self.reasoning_effort), **(self.chat_template_kwargs or {})},
            self.max_completion_tokens or self.max_tokens,
            top=(self.top_logprobs or 0) if self.logprobs else None,
        )


def reasoning_variables(effort: str | None) -> dict[str, Any]:
    """The variables of templates that say how much a model reasons: of gpt-oss, and of Qwen3."""
    if effort is None:
        return {}
    if effort == "none":
        return {"enable_thinking": False}
    return {"reasoning_effort": effort}


async def chat_completions(server: Server, request: Request) -> Response:
    """Answers a request."""
    body = await server.body(request, ChatBody)
    prepared = await prepare(server, request, body, await server.in_thread(body.chat))
    tally = server.tally(request, len(prepared.order.prompt))
    head = {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "created": int(time.time()),
        "model": body.model or prepared.model.name,
        "system_fingerprint": prepared.model.fingerprint,
    }
    if body.stream:
        options = body.stream_options or StreamOptions()
        events = _events(server, prepared, tally, head, options.include_usage)
        return await unless_gone(
            request, stream(events, lambda error: event(error.openai()) + DONE)
        )
    return await unless_gone(request, _whole(server, prepared, tally, head))


DONE = "data: [DONE]\n\n"
"""The last event of a stream."""


async def _events(
    server: Server,
    prepared: Prepared,
    tally: Tally,
    head: Mapping[str, Any],
    with_usage: bool,
) -> AsyncGenerator[str]:
    chunk = {**head, "object": "chat.completion.chunk"}
    usage = {"usage": None} if with_usage else {}

    def written(
        choice: int, delta: Mapping[str, Any], finish: str | None = None, logprobs: Any = None
    ) -> str:
        one = {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return event({**chunk, "choices": [one], **usage})

    begun, calls = set[int](), [0] * prepared.order.n
    async with aclosing(answers(server, prepared, tally)) as texts:
        async for each in texts:
            out = ""
            if each.choice not in begun:
                begun.add(each.choice)
                out += written(each.choice, {"role": "assistant", "content": ""})
            logprobs = _logprobs(prepared, [each.delta])
            for part in each.parts:
                if part.kind == "call" and part.call is not None:
                    number = calls[each.choice]
                    calls[each.choice] += 1
                    call = {"index": number, **call_of(part.call, prepared.format)}
                    out += written(each.choice, {"tool_calls": [call]}, None, logprobs)
                elif part.kind == "arguments":
                    number = calls[each.choice] - 1
                    call = {"index": number, "function": {"arguments": part.text}}
                    out += written(each.choice, {"tool_calls": [call]}, None, logprobs)
                else:
                    name = "content" if part.kind == "text" else "reasoning_content"
                    out += written(each.choice, {name: part.text}, None, logprobs)
                logprobs = None
            if each.finish is not None:
                out += written(each.choice, {}, each.finish, logprobs)
            elif logprobs is not None:
                out += written(each.choice, {"content": ""}, None, logprobs)
            if out:
                yield out
    if with_usage:
        yield event({**chunk, "choices": [], "usage": tally.usage, "timings": tally.timings})
    yield DONE


async def _whole(
    server: Server, prepared: Prepared, tally: Tally, head: Mapping[str, Any]
) -> Response:
    texts: list[list[Answered]] = [[] for _ in range(prepared.order.n)]
    async with aclosing(answers(server, prepared, tally)) as pieces:
        async for each in pieces:
            texts[each.choice].append(each)
    choices = [
        {
            "index": number,
            "message": _message(pieces, prepared.format),
            "logprobs": _logprobs(prepared, [each.delta for each in pieces]),
            "finish_reason": pieces[-1].finish,
        }
        for number, pieces in enumerate(texts)
    ]
    return answer(
        {
            **head,
            "object": "chat.completion",
            "choices": choices,
            "usage": tally.usage,
            "timings": tally.timings,
        }
    )


def _message(pieces: Sequence[Answered], format: Format) -> dict[str, Any]:
    parts = [part for each in pieces for part in each.parts]
    text = "".join(part.text for part in parts if part.kind == "text")
    reasoning = "".join(part.text for part in parts if part.kind == "reasoning")
    calls = [call_of(part.call, format) for part in parts if part.call is not None]
    return {
        "role": "assistant",
        "content": text if text or not calls else None,
        "refusal": None,
        **({"reasoning_content": reasoning} if reasoning else {}),
        **({"tool_calls": calls} if calls else {}),
    }


def call_of(call: Call, format: Format) -> dict[str, Any]:
    """A call as OpenAI writes it, with a name of its own. Templates of Mistral take names of nine characters only."""
    name = secrets.token_hex(5)[:9] if format == "mistral" else f"call_{secrets.token_hex(12)}"
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": name, "type": "function", "function": function}


def _logprobs(prepared: Prepared, deltas: Sequence[Delta]) -> dict[str, Any] | None:
    """The log-probabilities of the tokens of a text, without those that end it."""
    if prepared.order.top is None:
        return None
    model, ends = prepared.model, prepared.order.ends
    content: list[dict[str, Any]] = []
    for delta in deltas:
        for place, (token, logprob) in enumerate(zip(delta.tokens, delta.logprobs, strict=True)):
            if token in ends:
                continue
            others = [
                _probable(model, each, value)
                for top in delta.top[place : place + 1]
                for each, value in top.items()
            ]
            content.append({**_probable(model, token, logprob), "top_logprobs": others})
    return {"content": content, "refusal": None} if content or len(deltas) != 1 else None


def _probable(model: ServedModel, token: int, logprob: float) -> dict[str, Any]:
    text, data = model.token_parts(token)
    return {"token": text, "logprob": max(logprob, LEAST), "bytes": data}


LEAST = -9999.0
"""The log-probability of what is impossible, as OpenAI writes it: JSON has no infinity."""
