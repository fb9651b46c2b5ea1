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

from relaxpy.server import known_fields
from relaxpy.server.answer_parser import Call, Format
from relaxpy.server.bodies import MOST_FIELDS, Body, MaxTokens, SamplingBody
from relaxpy.server.chat import (
    Chat,
    Choice,
    Prepared,
    allowed_tools,
    answers,
    prepare,
)
from relaxpy.server.contents import content_of
from relaxpy.server.context import Server, answer, event, stream, unless_gone
from relaxpy.server.errors import ApiError
from relaxpy.server.logprobs import ChatLogprobs, prompt_logprobs
from relaxpy.server.pictures import ImagePart, Source
from relaxpy.server.served_model import AnswerUsage, Delta

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[\w.-]+$")]


class _Function(Body):
    others = known_fields.TOOL
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(Body):
    """A tool."""

    others = known_fields.TOOL
    type: Literal["function"]
    function: _Function


class _CalledFunction(Body):
    others = known_fields.CALL
    name: str
    arguments: str = "{}"


class _ToolCall(Body):
    others = known_fields.CALL
    id: str = ""
    type: Literal["function"] = "function"
    function: _CalledFunction


class TextPart(Body):
    """A part of a message's content."""

    others = known_fields.PART
    type: Literal["text", "refusal"] = "text"
    text: str = ""
    refusal: str = ""


class MessageBody(Body):
    """A message."""

    others = known_fields.MESSAGE
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart | ImagePart] | None = None
    name: str | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None
    refusal: str | None = None

    def plain(self, place: str) -> dict[str, Any]:
        """As templates know messages: with one text, unless there are pictures, and the role `system`. `place` is that
        of the message in the body. Raises: ApiError."""
        found = self.model_dump(exclude_none=True, exclude={"reasoning", "thinking", "refusal"})
        if (thought := self.reasoning_content or self.reasoning or self.thinking) is not None:
            found["reasoning_content"] = thought
        if isinstance(self.content, list):
            parts = [
                Source(part.image_url.url, f"{place}.content.{number}.image_url.url")
                if isinstance(part, ImagePart)
                else part.text or part.refusal
                for number, part in enumerate(self.content)
            ]
            found["content"] = content_of(parts, self.role)
        if self.role == "developer":
            found["role"] = "system"
        if self.content is None and (self.refusal or not self.tool_calls):
            found["content"] = self.refusal or ""
        return found


def plain_messages(messages: Sequence[MessageBody]) -> list[dict[str, Any]]:
    """The messages of a body as templates know them. Raises: ApiError."""
    return [each.plain(f"messages.{number}") for number, each in enumerate(messages)]


class _ChosenFunction(Body):
    name: str


class _ChosenTool(Body):
    type: Literal["function"]
    function: _ChosenFunction


class _AllowedTools(Body):
    mode: Literal["auto", "required"]
    tools: Annotated[list[_ChosenTool], Field(max_length=128)]


class _Allowed(Body):
    type: Literal["allowed_tools"]
    allowed_tools: _AllowedTools


class StreamOptions(Body):
    """Options of a stream."""

    others = known_fields.STREAM
    include_usage: bool = False


class ChatBody(SamplingBody):
    """The body of a request for a chat's next message."""

    others = known_fields.CHAT
    messages: Annotated[list[MessageBody], Field(min_length=1, max_length=MOST_FIELDS)]
    max_completion_tokens: MaxTokens | None = None
    tools: Annotated[list[ToolBody], Field(max_length=128)] | None = None
    tool_choice: Literal["auto", "none", "required"] | _ChosenTool | _Allowed | None = None
    parallel_tool_calls: bool = True
    stream_options: StreamOptions | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    reasoning_effort: Effort | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    """The last message is the beginning of the answer."""

    def chat(self) -> Chat:
        """Its request. Raises: ApiError, UsageError (`grammar`)."""
        if self.top_logprobs and not self.logprobs:
            raise ApiError("top_logprobs needs logprobs: true", param="top_logprobs")
        choice = self.tool_choice or "auto"
        tools = [tool.model_dump(exclude_none=True) for tool in self.tools or ()]
        own: Choice
        if isinstance(choice, _Allowed):
            own = choice.allowed_tools.mode
            tools = allowed_tools(
                tools, [each.function.name for each in choice.allowed_tools.tools]
            )
        else:
            own = (choice.function.name,) if isinstance(choice, _ChosenTool) else choice
        most = self.max_completion_tokens
        messages, begin = continued(
            plain_messages(self.messages),
            self.continue_final_message,
            self.add_generation_prompt,
        )
        return Chat(
            messages,
            tools,
            own,
            self.parallel_tool_calls,
            {**reasoning_variables(self.reasoning_effort), **(self.chat_template_kwargs or {})},
            self.max_tokens if most is None else most,
            begin,
            self.continue_final_message or self.add_generation_prompt is not False,
            (self.top_logprobs or 0) if self.logprobs else None,
        )


def continued(
    messages: list[dict[str, Any]], is_asked: bool, prompted: bool | None
) -> tuple[list[dict[str, Any]], str]:
    """The messages before the one that the answer continues, and that one's text. Raises: ApiError."""
    if not is_asked:
        return messages, ""
    if prompted:
        raise ApiError(
            "continue_final_message continues a message, add_generation_prompt begins one: write one of them",
            param="continue_final_message",
        )
    last = messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        raise ApiError(
            "continue_final_message continues a text of the assistant, and the last message is none",
            param="messages",
        )
    return messages[:-1], last["content"]


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
    return await unless_gone(request, _whole(server, prepared, tally, head, body.prompt_logprobs))


DONE = "data: [DONE]\n\n"
"""The last event of a stream."""


async def _events(
    server: Server,
    prepared: Prepared,
    tally: AnswerUsage,
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
    probable = [ChatLogprobs(prepared.model, prepared.order) for _ in calls]
    async with aclosing(answers(server, prepared, tally)) as texts:
        async for each in texts:
            out = ""
            if each.choice not in begun:
                begun.add(each.choice)
                out += written(each.choice, {"role": "assistant", "content": ""})
            logprobs = probable[each.choice].of([each])
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
    server: Server,
    prepared: Prepared,
    tally: AnswerUsage,
    head: Mapping[str, Any],
    with_prompt: int | None,
) -> Response:
    model, order = prepared.model, prepared.order
    texts: list[list[Delta]] = [[] for _ in range(order.n)]
    async with aclosing(answers(server, prepared, tally)) as pieces:
        async for each in pieces:
            texts[each.choice].append(each)
    choices = [
        {
            "index": number,
            "message": _message(pieces, prepared.format),
            "logprobs": ChatLogprobs(model, order).of(pieces),
            "finish_reason": pieces[-1].finish,
        }
        for number, pieces in enumerate(texts)
    ]
    asked: dict[str, Any] = {}
    if with_prompt is not None:
        scores = texts[0][0].scores
        asked["prompt_logprobs"] = prompt_logprobs(model, order, scores, with_prompt)
    return answer(
        {
            **head,
            "object": "chat.completion",
            "choices": choices,
            "usage": tally.usage,
            "timings": tally.timings,
            **asked,
        }
    )


def _message(pieces: Sequence[Delta], format: Format) -> dict[str, Any]:
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
