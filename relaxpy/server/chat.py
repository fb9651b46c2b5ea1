"""A chat: from messages to a prompt, and from the model's texts to the parts of answers. All routes of chats use it.

Messages, tools and choices have OpenAI's shape here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeVar

from starlette.requests import Request

from relaxpy.errors import UsageError
from relaxpy.llm.pictures import taken
from relaxpy.narrow import is_mapping, is_sequence
from relaxpy.serve.grammar import either_grammar
from relaxpy.serve.pictures import Placed
from relaxpy.server.answer_parser import AnswerParser, Format, format_of, marks_of
from relaxpy.server.bodies import SamplingBody
from relaxpy.server.contents import after_text, before_text
from relaxpy.server.context import Asked, Server, in_thread, unless_gone
from relaxpy.server.errors import ApiError
from relaxpy.server.offered_tools import Tool, calls_grammar, format_for, name_of, prompted
from relaxpy.server.pictures import PictureFile, most_pixels
from relaxpy.server.served_model import AnswerUsage, Delta, ServedModel, TextRequest

T = TypeVar("T", bound=Tool)
Choice = Literal["auto", "none", "required"] | tuple[str]
"""Whether tools are called; a tuple names the one that must be."""


@dataclass(frozen=True)
class Chat:
    """A request to a model."""

    messages: Sequence[Mapping[str, Any]]
    """Contents are texts, or lists of parts if there are pictures: `{"type": "image", "image": Source(…)}`."""
    tools: Sequence[Tool] = ()
    choice: Choice = "auto"
    several: bool = True
    """Whether several tools may be called at once."""
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Variables of the template."""
    max_tokens: int | None = None
    begin: str = ""
    """The beginning of the answer, which the model continues."""
    opens: bool = True
    """Whether the prompt ends with what the template writes before an answer."""
    top: int | None = None
    """With log-probabilities, and those of so many tokens."""
    files: Sequence[PictureFile] = ()
    """The pictures of the parts `{"type": "image"}`, when they have been read."""


class Prompt(NamedTuple):
    """What a model is given of a chat."""

    tokens: list[int]
    pictures: tuple[Placed, ...]
    format: Format
    """That of calls in answers."""
    thinks: bool
    """Whether answers may reason."""


@dataclass(frozen=True)
class Prepared:
    """A chat that can be written."""

    model: ServedModel
    order: TextRequest
    format: Format
    thinks: bool = False
    is_thinking: bool = False
    streams: bool = False
    tools: Sequence[Tool] = ()
    form: str = ""
    """The grammar of its text, where there may be calls instead."""

    def parser(self) -> AnswerParser:
        """For one answer."""
        return AnswerParser(
            self.format,
            thinks=self.thinks,
            is_thinking=self.is_thinking,
            streams=self.streams,
            tools=self.tools,
        )


async def prepare(server: Server, request: Request, body: SamplingBody, chat: Chat) -> Prepared:
    """The prompt and the options of a chat. Raises: ApiError."""
    model, adapter = server.model_of(body.model)
    chat = await with_pictures(server, request, model, chat)
    return await in_thread(_prepared, server, request, body, chat, model, adapter)


async def with_pictures(server: Server, request: Request, model: ServedModel, chat: Chat) -> Chat:
    """A chat whose pictures have been read. Raises: ApiError, also for a model that reads texts alone."""
    messages, given = taken(chat.messages)
    sources: list[Any] = [each.picture for each in given]
    if not sources:
        return chat
    if model.eyes is None:
        place = sources[0].place
        raise ApiError(f"{place}: {model.name} reads texts, and no pictures", param=place)
    files = await unless_gone(request, server.pictures.read(sources))
    return replace(chat, messages=messages, files=tuple(files))


def _prepared(
    server: Server,
    request: Request,
    body: SamplingBody,
    chat: Chat,
    model: ServedModel,
    adapter: int,
) -> Prepared:
    chat = _checked(chat)
    grammar, is_called, form = body.grammar_of(), False, ""
    if chat.tools and chat.choice not in ("auto", "none"):
        name = chat.choice[0] if isinstance(chat.choice, tuple) else None
        grammar, is_called = calls_grammar(chat.tools, name, chat.several), True
    tokens, pictures, format, thinks = prompt_of(model, chat, is_bound=bool(grammar))
    text = model.tokenizer.decode(tokens[-16:], special=True).rstrip()
    is_thinking = thinks and not grammar and text.endswith("<think>")
    if grammar and chat.tools and chat.choice == "auto":
        thinks, format, form = False, "hermes" if format == "hermes" else "json", grammar
        grammar = form_or_calls(model, chat, grammar, format)
    elif grammar:
        thinks, format = False, "json" if is_called else "none"
    shown = marks_of(format, thinks)
    numbers = [model.tokenizer.number(mark) for mark in shown]
    order = server.order(
        request,
        body,
        model,
        Asked(
            tokens,
            chat.max_tokens,
            model.answer_ends(),
            adapter=adapter,
            grammar=grammar,
            top=chat.top,
            shown=frozenset(number for number in numbers if number is not None),
            begins=chat.opens and not chat.begin,
            pictures=pictures,
        ),
    )
    return Prepared(model, order, format, thinks, is_thinking, body.stream, chat.tools, form)


def prompt_of(model: ServedModel, chat: Chat, *, is_bound: bool = False) -> Prompt:
    """The prompt of a chat, whose pictures have been read. `is_bound`: the answer has a grammar, and begins at once.

    Raises: UsageError: `chat-template`, `bad-prompt`, `bad-picture`.
    """
    tokenizer = model.tokenizer
    if len(chat.messages) > model.context:
        raise UsageError(
            "bad-length",
            f"the chat has {len(chat.messages)} messages, and the context {model.context} tokens",
        )
    model.check_size(_size([chat.messages, chat.tools, chat.variables, chat.begin]))
    tools = chat.tools if chat.choice != "none" else ()
    chosen = tokenizer.template(tools=bool(tools))
    abilities = tokenizer.abilities(chosen)
    messages, knows_tools = prompted(chat.messages, tools, abilities)
    variables: dict[str, Any] = {
        **({"enable_thinking": False} if is_bound else {}),
        **chat.variables,
    }
    for name in ("messages", "tools", "documents", "template", "control", "add_generation_prompt"):
        if name in variables:
            raise ApiError(f"chat_template_kwargs may not set {name}", param="chat_template_kwargs")

    def written(messages: Sequence[Mapping[str, Any]]) -> list[int]:
        return tokenizer.chat_tokens(
            messages,
            tools=[*tools] if tools and knows_tools else None,
            add_generation_prompt=chat.opens,
            **variables,
        )

    try:
        tokens = written(messages)
    except UsageError as error:
        joined = _without_system(messages)
        if error.code != "chat-template" or joined == messages or len(messages) == 1:
            raise
        try:
            tokens = written(joined)
        except UsageError:
            raise error from None
    tokens += tokenizer.encode_literally(chat.begin)
    own = format_of(abilities)
    if is_bound and own == "harmony":
        head = (tokenizer.number("<|channel|>"), tokenizer.number("<|message|>"))
        if None not in head:
            tokens += [head[0] or 0, *tokenizer.encode("final", special=False), head[1] or 0]
    format: Format = own if own == "harmony" else "none"
    tokens, pictures = _placed(model, tokens, chat.files)
    return Prompt(tokens, pictures, format_for(own) if tools else format, abilities.thinks)


def _placed(
    model: ServedModel, tokens: list[int], files: Sequence[PictureFile]
) -> tuple[list[int], tuple[Placed, ...]]:
    """A prompt with room for pictures, and where they are."""
    if not files or model.eyes is None:
        return tokens, ()
    if (least := len(tokens) + len(files) * model.eyes.shape.tokens) > model.context:
        raise UsageError(
            "bad-length",
            f"the prompt has {least} tokens with its {len(files)} pictures, and the context {model.context}",
        )
    pixels = most_pixels(len(files))
    pictures = [model.eyes.read(each.data, each.place, most_pixels=pixels) for each in files]
    return model.eyes.placed(tokens, pictures, model.tokenizer)


def _without_system(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages for a template that refuses those of the system: their text is before that of the user."""
    found: list[dict[str, Any]] = []
    texts: list[str] = []
    for each in messages:
        if each["role"] == "system":
            texts.append(str(each.get("content") or ""))
            continue
        own = dict(each)
        if texts and each["role"] == "user":
            own["content"] = after_text("\n\n".join(texts), each.get("content"))
            texts = []
        found.append(own)
    if not found:
        return [*map(dict, messages)]  # nobody asks anything: the template says so
    if texts and found and found[-1]["role"] == "user":
        found[-1]["content"] = before_text(found[-1].get("content"), "\n\n".join(texts))
        return found
    return [*found, {"role": "user", "content": "\n\n".join(texts)}] if texts else found


def _size(value: Any) -> int:
    """The characters of what a template is given: as many as the prompt has, or more."""
    left, size = [value], 0
    while left:
        each = left.pop()
        size += 1
        if isinstance(each, str):
            size += len(each)
        elif is_mapping(each):
            size += sum(map(len, each))
            left += each.values()
        elif is_sequence(each):
            left += each
    return size


def form_or_calls(model: ServedModel, chat: Chat, form: str, format: Format) -> str:
    """The grammar of an answer of a form, or of calls: between their marks, if the model writes them so."""
    if format != "hermes":
        return either_grammar(form, calls_grammar(chat.tools, None, chat.several))
    marks: list[int | str] = []
    for mark in marks_of(format, False):
        number = model.tokenizer.number(mark)
        is_special = number is not None and number in model.tokenizer.special_tokens
        marks.append(number if is_special and number is not None else mark)
    call = calls_grammar(chat.tools, None, False)
    return either_grammar(form, call, marks=(marks[0], marks[1]), several=chat.several)


def allowed_tools(tools: Sequence[T], names: Sequence[str]) -> list[T]:
    """Those of the tools that may be called. Raises: ApiError for a name that none has."""
    known = [name_of(tool) for tool in tools]
    if wrong := [name for name in names if name not in known]:
        raise ApiError(
            f"tool_choice allows {wrong[0][:100]!r}, which is none of the tools",
            param="tool_choice",
        )
    return [tool for tool in tools if name_of(tool) in names]


def _checked(chat: Chat) -> Chat:
    if not chat.tools:
        if chat.choice not in ("auto", "none"):
            raise ApiError(
                "tool_choice asks for a call, and there are no tools", param="tool_choice"
            )
        return replace(chat, choice="none")
    names = [name_of(tool) for tool in chat.tools]
    if double := [name for name in names if names.count(name) > 1]:
        raise ApiError(f"two tools have the name {double[0]!r}", param="tools")
    return chat


async def answers(server: Server, prepared: Prepared, tally: AnswerUsage) -> AsyncGenerator[Delta]:
    """The answers of a chat, as they are written. Raises: ApiError."""
    order = prepared.order
    parsers = [prepared.parser() for _ in range(order.n)]
    have_called, texts = [False] * order.n, [""] * order.n
    async with aclosing(server.deltas(prepared.model, order, tally)) as deltas:
        async for delta in deltas:
            parser, choice = parsers[delta.choice], delta.choice
            parts = parser.feed(delta.text)
            if delta.finish is not None:
                parts += parser.finish()
            if any(part.kind == "reasoning" for part in parts):
                tally.reasoning_tokens += len(delta.tokens)
            have_called[choice] |= any(part.kind == "call" for part in parts)
            finish = delta.finish
            if prepared.form:
                texts[choice] += "".join(part.text for part in parts if part.kind == "text")
                if finish == "stop" and not have_called[choice] and delta.stop is None:
                    await server.check_text(prepared.form, texts[choice], prepared.model)
            is_call = finish == "stop" and have_called[choice]
            yield replace(delta, parts=tuple(parts), finish="tool_calls" if is_call else finish)
