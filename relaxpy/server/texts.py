"""`/v1/models`, `/tokenize` and `/detokenize`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from relaxpy.server import known_fields
from relaxpy.server.bodies import MOST_FIELDS, Body
from relaxpy.server.body_reader import MOST_VALUES
from relaxpy.server.chat import Chat, prompt_of, with_pictures
from relaxpy.server.chat_completions import (
    MessageBody,
    ToolBody,
    continued,
    plain_messages,
)
from relaxpy.server.context import Server, answer, in_thread
from relaxpy.server.errors import ApiError
from relaxpy.server.served_model import ServedModel

_Token = Annotated[int, Field(ge=0, lt=1 << 31)]


async def models(server: Server, request: Request) -> Response:
    """All models, or the one that the path names."""
    listed = [_described(model, name) for model in server.models.values() for name in model.names]
    listed += [_listed(name, server.created) for name in server.embedders]
    listed += [{**_listed(name, server.created), "hears": True} for name in server.speech]
    asked = request.path_params.get("name")
    if asked is None:
        ends = {"first_id": listed[0]["id"], "last_id": listed[-1]["id"]} if listed else {}
        return answer({"object": "list", "data": listed, "has_more": False, **ends})
    if asked not in server.names:
        raise server.unknown(asked)
    return answer(next(each for each in listed if each["id"] == asked))


def _described(model: ServedModel, name: str) -> dict[str, Any]:
    return {
        **_listed(name, model.created),
        "max_model_len": model.context,
        **({"sees": True} if model.sees else {}),
        **({"parent": model.name} if name != model.name else {}),
    }


def _listed(name: str, created: int) -> dict[str, Any]:
    """A model as OpenAI and Anthropic list them."""
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": created,
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(created)),
        "owned_by": "relaxpy",
    }


class TokenizeBody(Body):
    """A text, or messages."""

    others = known_fields.TOKENIZE
    model: str = ""
    prompt: str | None = None
    messages: Annotated[list[MessageBody], Field(min_length=1, max_length=MOST_FIELDS)] | None = (
        None
    )
    tools: Annotated[list[ToolBody], Field(max_length=128)] | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False


async def tokenize(server: Server, request: Request) -> Response:
    """The tokens of a text or of a chat's prompt."""
    body = await server.body(request, TokenizeBody)
    model, _ = server.model_of(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise ApiError("give prompt or messages", param="prompt")
    if body.messages is None:
        tokens = await in_thread(_text_tokens, model, body)
    else:
        chat = await with_pictures(server, request, model, await in_thread(_chat, body))
        tokens = (await in_thread(prompt_of, model, chat)).tokens
    found: dict[str, Any] = {"count": len(tokens), "max_model_len": model.context, "tokens": tokens}
    if body.return_token_strs:
        texts = await in_thread(_texts, model, {*tokens})
        found["token_strs"] = [texts[token] for token in tokens]
    return answer(found)


def _texts(model: ServedModel, tokens: Iterable[int]) -> dict[int, str]:
    return {
        token: model.tokenizer.token_bytes(token).decode("utf-8", "replace") for token in tokens
    }


def _text_tokens(model: ServedModel, body: TokenizeBody) -> list[int]:
    text = body.prompt or ""
    model.check_size(len(text))
    return model.tokenizer.encode(text, body.add_special_tokens)


def _chat(body: TokenizeBody) -> Chat:
    messages, begin = continued(
        plain_messages(body.messages or ()),
        body.continue_final_message,
        body.add_generation_prompt,
    )
    return Chat(
        messages,
        [tool.model_dump(exclude_none=True) for tool in body.tools or ()],
        variables=body.chat_template_kwargs or {},
        begin=begin,
        opens=body.continue_final_message or body.add_generation_prompt is not False,
    )


class DetokenizeBody(Body):
    """Tokens."""

    others = known_fields.DETOKENIZE
    model: str = ""
    tokens: Annotated[list[_Token], Field(max_length=MOST_VALUES)]


async def detokenize(server: Server, request: Request) -> Response:
    """The text of tokens, with special ones."""
    body = await server.body(request, DetokenizeBody)
    model, _ = server.model_of(body.model)
    return answer({"prompt": await in_thread(_text, model, body.tokens)})


def _text(model: ServedModel, tokens: Sequence[int]) -> str:
    for token in {*tokens}:
        if model.tokenizer.token_text(token) is None:
            raise ApiError(f"token {token} is none of the model's", param="tokens")
    return model.tokenizer.decode(tokens, special=True)
