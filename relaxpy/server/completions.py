"""`POST /v1/completions`: texts after prompts, as OpenAI, vLLM and llama.cpp have it."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from relaxpy.serve.beams import Beams
from relaxpy.serve.request import Score
from relaxpy.server import known_fields
from relaxpy.server.bodies import MaxTokensOrNone, SamplingBody
from relaxpy.server.body_reader import MOST_VALUES
from relaxpy.server.chat_completions import DONE, StreamOptions
from relaxpy.server.context import Asked, Server, answer, event, in_thread, stream, unless_gone
from relaxpy.server.errors import ApiError
from relaxpy.server.logprobs import CompletionLogprobs, prompt_logprobs
from relaxpy.server.served_model import AnswerUsage, Delta, ServedModel, TextRequest

_MOST_PROMPTS = 128
_OF_DRAWS: Mapping[str, tuple[Any, ...]] = {
    "temperature": (0,), "top_p": (1,), "top_k": (0, -1), "min_p": (0,), "stop": ([],), "logprobs": (0,),
    "prompt_logprobs": (),
}  # fmt: skip
"""What a search with beams does not follow, and the values at which it asks for nothing."""
_Token = Annotated[int, Field(ge=0, lt=1 << 31)]


class CompletionBody(SamplingBody):
    """The body of a request for texts."""

    others = known_fields.COMPLETIONS
    prompt: (
        str
        | Annotated[list[_Token], Field(min_length=1, max_length=MOST_VALUES)]
        | Annotated[list[str], Field(min_length=1, max_length=_MOST_PROMPTS)]
        | Annotated[
            list[Annotated[list[_Token], Field(min_length=1, max_length=MOST_VALUES)]],
            Field(min_length=1, max_length=_MOST_PROMPTS),
        ]
    )
    max_tokens: MaxTokensOrNone | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool = False
    add_special_tokens: bool = True
    """Whether the model's own tokens are put around a prompt that is a text."""
    best_of: Annotated[int, Field(ge=1, le=128)] | None = None
    """Of a search with beams, how many there are; `n` of the texts are given."""
    use_beam_search: bool = False
    length_penalty: Annotated[float, Field(ge=-100, le=100)] | None = None
    early_stopping: bool | Literal["never"] = False
    stream_options: StreamOptions | None = None

    def prompts(self) -> list[str | list[int]]:
        """Each prompt, a text or tokens."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [[token for token in self.prompt if isinstance(token, int)]]
        return [each for each in self.prompt if not isinstance(each, int)]

    def beams(self) -> Beams | None:
        """The search that is asked for. Raises: ApiError for what it does not follow, and for its options without
        it."""
        if not self.use_beam_search:
            if self.best_of not in (None, self.n):
                raise ApiError("best_of is not offered: ask for n and choose", param="best_of")
            for name, rest in (("length_penalty", (None, 1)), ("early_stopping", (False,))):
                if getattr(self, name) not in rest:
                    raise ApiError(f"{name} is for use_beam_search", param=name)
            return None
        for name, rest in _OF_DRAWS.items():
            if getattr(self, name) not in (None, *rest):
                raise ApiError(f"use_beam_search does not follow {name}: leave it out", param=name)
        for name, _ in self.forms():
            raise ApiError("use_beam_search follows no grammar: leave one of them out", param=name)
        if self.echo and self.logprobs is not None:
            raise ApiError("use_beam_search tells no log-probabilities of the prompt", param="echo")
        width = self.n if self.best_of is None else self.best_of
        if width < self.n:
            raise ApiError(
                f"best_of is {width}, the beams, and n {self.n} of them", param="best_of"
            )
        penalty = 1.0 if self.length_penalty is None else self.length_penalty
        return Beams(width, penalty, self.early_stopping, self.n)


async def completions(server: Server, request: Request) -> Response:
    """Answers a request."""
    body = await server.body(request, CompletionBody)
    model, adapter = server.model_of(body.model)
    orders, texts = await in_thread(_orders, server, request, body, model, adapter)
    tally = server.tally(request, sum(len(order.prompt) for order in orders))
    head = {
        "id": f"cmpl-{secrets.token_hex(12)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": body.model or model.name,
        "system_fingerprint": model.fingerprint,
    }
    if body.stream:
        options = body.stream_options or StreamOptions()
        events = _events(
            server, model, orders, texts, tally, head, options.include_usage, body.echo
        )
        return await unless_gone(
            request, stream(events, lambda error: event(error.openai()) + DONE)
        )
    return await unless_gone(request, _whole(server, model, orders, texts, tally, head, body))


def _orders(
    server: Server, request: Request, body: CompletionBody, model: ServedModel, adapter: int
) -> tuple[list[TextRequest], list[str]]:
    """The orders of all prompts, and the texts that their answers begin with."""
    tokenizer = model.tokenizer
    first = tokenizer.number(tokenizer.special.get("bos_token", ""))
    orders: list[TextRequest] = []
    texts: list[str] = []
    beams = body.beams()
    for prompt in body.prompts():
        if isinstance(prompt, str):
            model.check_size(len(prompt))
        is_text = isinstance(prompt, str)
        tokens = tokenizer.encode(prompt, body.add_special_tokens) if is_text else prompt
        if not tokens and first is not None:
            tokens = [first]
        order = server.order(
            request,
            body,
            model,
            Asked(
                tokens,
                16 if body.max_tokens is None else body.max_tokens,
                tokenizer.end_tokens,
                adapter=adapter,
                top=body.logprobs,
                begins=tokenizer.special_tokens.issuperset(tokens),
                echo=body.echo,
                beams=beams,
            ),
        )
        orders.append(order)
        shown = ""
        if body.echo:
            is_whole = len(order.prompt) == len(tokens)
            shown = prompt if is_text and is_whole else tokenizer.decode(order.prompt)
        texts.append(shown)
    return orders, texts


async def _deltas(
    server: Server, model: ServedModel, orders: Sequence[TextRequest], tally: AnswerUsage
) -> AsyncGenerator[tuple[int, Delta]]:
    """The texts of all orders, as they are written, each under its number. Raises: ApiError."""
    queue = asyncio.Queue[tuple[int, Delta] | ApiError | None]()

    async def write(first: int, order: TextRequest) -> None:
        own = AnswerUsage(len(order.prompt), start=tally.start)
        try:
            async with aclosing(server.deltas(model, order, own)) as deltas:
                async for delta in deltas:
                    tally.note(len(delta.tokens))
                    queue.put_nowait((first + delta.choice, delta))
            tally.cached_tokens += own.cached_tokens
            queue.put_nowait(None)
        except ApiError as error:
            queue.put_nowait(error)

    tasks = [
        asyncio.create_task(write(number * order.texts, order))
        for number, order in enumerate(orders)
    ]
    left = len(tasks)
    try:
        while left:
            found = await queue.get()
            if isinstance(found, ApiError):
                raise found
            if found is None:
                left -= 1
            else:
                yield found
    finally:
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)


async def _events(
    server: Server,
    model: ServedModel,
    orders: Sequence[TextRequest],
    texts: Sequence[str],
    tally: AnswerUsage,
    head: Mapping[str, Any],
    with_usage: bool,
    echo: bool,
) -> AsyncGenerator[str]:
    usage = {"usage": None} if with_usage else {}
    n = orders[0].texts
    logprobs = [CompletionLogprobs(model, order, echo) for order in orders for _ in range(n)]
    scores: list[Sequence[Score]] = [()] * len(orders)
    begun = set[int]()
    async with aclosing(_deltas(server, model, orders, tally)) as deltas:
        async for number, delta in deltas:
            text = delta.text
            scores[number // n] = delta.scores or scores[number // n]
            if number not in begun:
                begun.add(number)
                text = texts[number // n] + text
            found = logprobs[number].of([delta], scores[number // n])
            if text or found is not None or delta.finish is not None:
                one = {
                    "index": number, "text": text, "logprobs": found, "finish_reason": delta.finish,
                }  # fmt: skip
                yield event({**head, "choices": [one], **usage})
    if with_usage:
        yield event({**head, "choices": [], "usage": tally.usage, "timings": tally.timings})
    yield DONE


async def _whole(
    server: Server,
    model: ServedModel,
    orders: Sequence[TextRequest],
    texts: Sequence[str],
    tally: AnswerUsage,
    head: Mapping[str, Any],
    body: CompletionBody,
) -> Response:
    n = orders[0].texts
    found: list[list[Delta]] = [[] for _ in range(len(orders) * n)]
    async with aclosing(_deltas(server, model, orders, tally)) as deltas:
        async for number, delta in deltas:
            found[number].append(delta)
    choices = [
        {
            "index": number,
            "text": texts[number // n] + "".join(delta.text for delta in own),
            "logprobs": CompletionLogprobs(model, order, body.echo).of(own, scores),
            "finish_reason": own[-1].finish,
            **(
                {"prompt_logprobs": prompt_logprobs(model, order, scores, count)}
                if (count := body.prompt_logprobs) is not None
                else {}
            ),
        }
        for number, own in enumerate(found)
        for order, scores in [(orders[number // n], found[number // n * n][0].scores)]
    ]
    return answer({**head, "choices": choices, "usage": tally.usage, "timings": tally.timings})
