"""`/v1/responses`, as OpenAI has it: answers that are kept, so that the next request can follow one by its id."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag
from starlette.requests import Request
from starlette.responses import Response

from relaxpy.narrow import is_mapping
from relaxpy.server import known_fields
from relaxpy.server.blocks import Block, Blocks
from relaxpy.server.bodies import (
    MOST_FIELDS,
    Body,
    Form,
    MaxTokens,
    ResponseFormat,
    SamplingBody,
    Schema,
)
from relaxpy.server.chat import Chat, Choice, Prepared, allowed_tools, answers, prepare
from relaxpy.server.chat_completions import Effort, Name, reasoning_variables
from relaxpy.server.contents import content_of
from relaxpy.server.context import Server, answer, event, in_thread, stream, unless_gone
from relaxpy.server.errors import ApiError
from relaxpy.server.pictures import Source
from relaxpy.server.served_model import AnswerUsage, Delta


class _Content(Body):
    others = known_fields.PART
    type: Literal["input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text"]
    text: str = ""
    refusal: str = ""


class _Image(Body):
    others = known_fields.PART
    type: Literal["input_image"]
    image_url: Annotated[str, Field(min_length=1)]
    detail: Literal["auto"] = "auto"


class _Message(Body):
    others = known_fields.ITEM
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[_Content | _Image]

    def parts(self, place: str) -> list[str | Source]:
        """Its texts and pictures; `place` is that of the message in the body."""
        if isinstance(self.content, str):
            return [self.content]
        return [
            Source(each.image_url, f"{place}.content.{number}.image_url")
            if isinstance(each, _Image)
            else each.text or each.refusal
            for number, each in enumerate(self.content)
        ]


class _Called(Body):
    others = known_fields.ITEM
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class _Output(Body):
    others = known_fields.ITEM
    type: Literal["function_call_output"]
    call_id: str
    output: str | list[_Content]


class _Reasoning(Body):
    others = known_fields.ITEM
    type: Literal["reasoning"]
    content: list[_Content] | None = None


class _Tool(Body):
    others = known_fields.TOOL
    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Chosen(Body):
    type: Literal["function"]
    name: str


class _Allowed(Body):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[_Chosen], Field(max_length=128)]


class _Format(Form):
    others = known_fields.FORM
    type: Literal["text", "json_object", "json_schema"]
    name: str = "schema"
    schema_: Annotated[Schema | None, Field(alias="schema")] = None

    def grammar_of(self) -> str:
        given = self.model_dump(by_alias=True, exclude_none=True, exclude={"name"})
        return ResponseFormat.model_validate(given).grammar_of()


class _TextOption(Form):
    others = known_fields.FORM
    format: _Format | None = None

    @property
    def is_any(self) -> bool:
        return self.format is None or self.format.type == "text"

    def grammar_of(self) -> str:
        return "" if self.format is None else self.format.grammar_of()


class _ReasoningOption(Body):
    others = known_fields.REASONING
    effort: Effort | None = None


def _kind(item: Any) -> str | None:
    return (item.get("type") or "message") if is_mapping(item) else getattr(item, "type", None)


_Item = Annotated[
    Annotated[_Message, Tag("message")]
    | Annotated[_Called, Tag("function_call")]
    | Annotated[_Output, Tag("function_call_output")]
    | Annotated[_Reasoning, Tag("reasoning")],
    Discriminator(
        _kind,
        custom_error_type="item",
        custom_error_message="should be an object whose type is message, function_call, function_call_output or "
        "reasoning",
    ),
]


class ResponseBody(SamplingBody):
    """The body of a request for a response."""

    others = known_fields.RESPONSES
    n: Literal[1] = 1
    input: str | Annotated[list[_Item], Field(min_length=1, max_length=MOST_FIELDS)]
    instructions: str | None = None
    previous_response_id: Annotated[str, Field(max_length=200)] | None = None
    max_output_tokens: MaxTokens | None = None
    tools: Annotated[list[_Tool], Field(max_length=128)] | None = None
    tool_choice: Literal["auto", "none", "required"] | _Chosen | _Allowed = "auto"
    parallel_tool_calls: bool = True
    text: _TextOption | None = None
    reasoning: _ReasoningOption | None = None
    store: bool = True
    metadata: (
        Annotated[
            dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
            Field(max_length=16),
        ]
        | None
    ) = None

    def chat(self, before: Sequence[Mapping[str, Any]]) -> Chat:
        """Its request after these messages. Raises: ApiError."""
        messages: list[Mapping[str, Any]] = []
        if self.instructions:
            messages.append({"role": "system", "content": self.instructions})
        messages += before
        messages += self.messages()
        choice = self.tool_choice
        tools: list[dict[str, Any]] = [
            {"type": "function", "function": each.model_dump(exclude={"type"}, exclude_none=True)}
            for each in self.tools or ()
        ]
        own: Choice
        if isinstance(choice, _Allowed):
            own, tools = choice.mode, allowed_tools(tools, [each.name for each in choice.tools])
        else:
            own = (choice.name,) if isinstance(choice, _Chosen) else choice
        effort = self.reasoning.effort if self.reasoning is not None else None
        most = self.max_output_tokens
        return Chat(
            messages,
            tools,
            own,
            self.parallel_tool_calls,
            reasoning_variables(effort),
            self.max_tokens if most is None else most,
        )

    def messages(self) -> list[dict[str, Any]]:
        """Its input as messages of a chat: calls and reasoning belong to the assistant's message."""
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}]
        found: list[dict[str, Any]] = []
        for number, item in enumerate(self.input):
            if isinstance(item, _Output):
                found.append(
                    {"role": "tool", "tool_call_id": item.call_id, "content": _joined(item.output)}
                )
            elif isinstance(item, _Message):
                role = "system" if item.role == "developer" else item.role
                content = content_of(item.parts(f"input.{number}"), role)
                if role == "assistant" and found and found[-1].get("content") == "":
                    found[-1]["content"] = content
                else:
                    found.append({"role": role, "content": content})
            else:
                if not found or found[-1]["role"] != "assistant":
                    found.append({"role": "assistant", "content": ""})
                if isinstance(item, _Reasoning):
                    found[-1]["reasoning_content"] = _joined(item.content or [])
                else:
                    function = {"name": item.name, "arguments": item.arguments}
                    call = {"id": item.call_id, "type": "function", "function": function}
                    found[-1].setdefault("tool_calls", []).append(call)
        return found


def _joined(content: str | Sequence[_Content]) -> str:
    if isinstance(content, str):
        return content
    return "".join(each.text or each.refusal for each in content)


def _client(request: Request) -> str:
    return getattr(request.state, "client", "")


async def responses(server: Server, request: Request) -> Response:
    """Answers a request."""
    body = await server.body(request, ResponseBody)
    before: Sequence[Mapping[str, Any]] = ()
    if body.previous_response_id is not None:
        before = server.store.get(_client(request), body.previous_response_id).messages
    chat = await in_thread(body.chat, before)
    prepared = await prepare(server, request, body, chat)
    tally = server.tally(request, len(prepared.order.prompt))
    own = _Answer(server, _client(request), body, chat, prepared, tally)
    if body.stream:
        return await unless_gone(request, stream(own.events(), own.failed))
    return await unless_gone(request, own.whole())


async def stored_response(server: Server, request: Request) -> Response:
    """A response that was kept."""
    return answer(server.store.get(_client(request), request.path_params["name"]).response)


async def drop_response(server: Server, request: Request) -> Response:
    """Forgets a response."""
    name = request.path_params["name"]
    server.store.drop(_client(request), name)
    return answer({"id": name, "object": "response", "deleted": True})


class _Answer:
    """One response."""

    def __init__(
        self,
        server: Server,
        client: str,
        body: ResponseBody,
        chat: Chat,
        prepared: Prepared,
        tally: AnswerUsage,
    ) -> None:
        self.server, self.client, self.body, self.chat = server, client, body, chat
        self.prepared, self.tally = prepared, tally
        self.id = f"resp_{secrets.token_hex(16)}"
        self.created = int(time.time())
        self.blocks = Blocks(_names())
        self._events = 0

    async def whole(self) -> Response:
        last = None
        async with aclosing(answers(self.server, self.prepared, self.tally)) as texts:
            async for last in texts:
                for _ in self.blocks.feed(last.parts):
                    pass
        assert last is not None
        return answer(self._finished(last))

    def _finished(self, last: Delta) -> dict[str, Any]:
        """The response when it is complete; it is kept, if the client wants that."""
        is_whole = last.finish != "length"
        found = self._response(
            status="completed" if is_whole else "incomplete",
            incomplete_details=None if is_whole else {"reason": "max_output_tokens"},
            output=[_item(block, is_done=True) for block in self.blocks.all],
            usage=self._usage(),
        )
        if self.body.store:
            instructed = 1 if self.body.instructions else 0  # they are for this answer only
            messages = [*self.chat.messages[instructed:], self._message()]
            self.server.store.put(self.client, found, messages)
        return found

    def _message(self) -> dict[str, Any]:
        """The answer as a message of a chat."""
        blocks = self.blocks.all
        calls = [
            {
                "id": block.id,
                "type": "function",
                "function": {"name": block.call.name, "arguments": block.text},
            }
            for block in blocks
            if block.call is not None
        ]
        thought = "".join(block.text for block in blocks if block.kind == "reasoning")
        return {
            "role": "assistant",
            "content": "".join(block.text for block in blocks if block.kind == "text"),
            **({"tool_calls": calls} if calls else {}),
            **({"reasoning_content": thought} if thought else {}),
        }

    def _usage(self) -> dict[str, Any]:
        tally = self.tally
        return {
            "input_tokens": tally.prompt_tokens,
            "input_tokens_details": {"cached_tokens": tally.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": tally.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": tally.reasoning_tokens},
            "total_tokens": tally.prompt_tokens + tally.completion_tokens,
        }

    def _response(self, **fields: Any) -> dict[str, Any]:
        body, sampling = self.body, self.prepared.order.sampling
        given = body.model_dump(exclude_none=True, by_alias=True)
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": body.model or self.prepared.model.name,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": given.get("reasoning", {}).get("effort"), "summary": None},
            "store": body.store,
            "temperature": sampling.temperature,
            "text": given.get("text") or {"format": {"type": "text"}},
            "tool_choice": given["tool_choice"],
            "tools": given.get("tools", []),
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": None,
            "metadata": body.metadata or {},
            **fields,
        }

    def _event(self, kind: str, **fields: Any) -> str:
        number = self._events
        self._events += 1
        return event({"type": kind, "sequence_number": number, **fields}, kind)

    def failed(self, error: ApiError) -> str:
        """The event of a mistake."""
        wrong = {"code": error.code or error.type, "message": error.message}
        return self._event("response.failed", response=self._response(status="failed", error=wrong))

    async def events(self) -> AsyncGenerator[str]:
        """The events of a stream."""
        last = None
        async with aclosing(answers(self.server, self.prepared, self.tally)) as texts:
            async for each in texts:
                out = ""
                if last is None:
                    for kind in ("response.created", "response.in_progress"):
                        out += self._event(kind, response=self._response())
                last = each
                out += self._shown(self.blocks.feed(each.parts))
                if out:
                    yield out
        assert last is not None
        out = self._shown(self.blocks.finish())
        found = self._finished(last)
        yield out + self._event(f"response.{found['status']}", response=found)

    def _shown(self, steps: Iterator[tuple[str, Block, str]]) -> str:
        return "".join(self._step(step, block, text) for step, block, text in steps)

    def _step(self, step: str, block: Block, text: str) -> str:
        place: dict[str, Any] = {"output_index": block.number, "item_id": block.id}
        item = {"output_index": block.number}
        if block.kind == "call":
            name = "response.function_call_arguments"
        else:
            name = "response.output_text" if block.kind == "text" else "response.reasoning_text"
            place["content_index"] = 0
        if step == "more":
            more: dict[str, Any] = {"logprobs": []} if block.kind == "text" else {}
            return self._event(f"{name}.delta", **place, delta=text, **more)
        if step == "start":
            out = self._event(
                "response.output_item.added", **item, item=_item(block, is_done=False)
            )
            if block.kind != "call":
                part = _content(block, "")
                out += self._event("response.content_part.added", **place, part=part)
            return out
        if block.call is not None:
            out = self._event(f"{name}.done", **place, arguments=block.text, name=block.call.name)
        else:
            more: dict[str, Any] = {"logprobs": []} if block.kind == "text" else {}
            out = self._event(f"{name}.done", **place, text=block.text, **more)
            part = _content(block, block.text)
            out += self._event("response.content_part.done", **place, part=part)
        return out + self._event(
            "response.output_item.done", **item, item=_item(block, is_done=True)
        )


def _names() -> Iterator[str]:
    while True:
        yield f"item_{secrets.token_hex(12)}"


def _content(block: Block, text: str) -> dict[str, Any]:
    if block.kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _item(block: Block, *, is_done: bool) -> dict[str, Any]:
    status = "completed" if is_done else "in_progress"
    if block.call is not None:
        return {
            "id": block.id,
            "type": "function_call",
            "call_id": block.id,
            "name": block.call.name,
            "arguments": block.text if is_done else "",
            "status": status,
        }
    content = [_content(block, block.text)] if is_done else []
    if block.kind == "reasoning":
        return {
            "id": block.id, "type": "reasoning", "summary": [], "content": content, "status": status,
        }  # fmt: skip
    return {
        "id": block.id, "type": "message", "role": "assistant", "status": status, "content": content,
    }  # fmt: skip
