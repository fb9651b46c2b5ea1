"""The common part of routes: the models, the limits, the metrics, and the way from a request to its texts."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from relaxpy.errors import UsageError
from relaxpy.serve.beams import Beams
from relaxpy.serve.grammar import Grammar
from relaxpy.serve.json_schema import mismatch
from relaxpy.serve.pages import NONE
from relaxpy.serve.pictures import Placed
from relaxpy.server.bodies import SamplingBody
from relaxpy.server.body_reader import B, BodyReader
from relaxpy.server.errors import ApiError
from relaxpy.server.forms import FormReader
from relaxpy.server.metrics import Metrics
from relaxpy.server.pictures import PictureReader
from relaxpy.server.response_store import Store
from relaxpy.server.served_model import AnswerUsage, Delta, ServedModel, TextRequest
from relaxpy.server.settings import ServerSettings

if TYPE_CHECKING:
    from relaxpy.server.embeddings import EmbeddingModel
    from relaxpy.server.speech_model import SpeechModel

T = TypeVar("T")


@dataclass(frozen=True)
class Asked:
    """What is to be written for a body, of what the interfaces have each in its own way."""

    prompt: list[int]
    max_tokens: int | None
    """None is what the model recommends, and a negative number all that there is room for."""
    ends: frozenset[int]
    adapter: int = NONE
    grammar: str | None = None
    """None is that of the body."""
    top: int | None = None
    shown: frozenset[int] = frozenset()
    begins: bool = False
    echo: bool = False
    """With `top` the tokens of the prompt have log-probabilities, too."""
    beams: Beams | None = None
    """They are searched, and come instead of `body.n` texts."""
    pictures: tuple[Placed, ...] = ()


class Server:
    """The state of an application."""

    def __init__(
        self,
        settings: ServerSettings,
        models: Mapping[str, ServedModel],
        embedders: Mapping[str, EmbeddingModel] | None = None,
        speech: Mapping[str, SpeechModel] | None = None,
    ) -> None:
        """`models` has each model under its name, `embedders` those that make vectors of sentences, `speech` those that
        hear."""
        self.settings, self.models = settings, dict(models)
        self.embedders, self.speech = dict(embedders or {}), dict(speech or {})
        self.store = Store(settings.most_stored)
        self._reader = BodyReader(settings.most_bytes, settings.body_seconds)
        self.forms = FormReader(settings)
        self.pictures = PictureReader(settings.image_hosts)
        self.metrics = Metrics(self.models)
        self.created = int(time.time())
        self.is_draining = False
        self.stop: Callable[[], None] = lambda: None
        """Begins to stop, as SIGTERM does."""

    @property
    def _several_keys(self) -> bool:
        """Then a cached beginning is for the key that it was computed for: how long a prompt takes, and its cached
        tokens, would tell what others asked."""
        return len({*self.settings.api_keys}) > 1

    def model_of(self, name: str) -> tuple[ServedModel, int]:
        """The model of a name, and its adapter. Raises: ApiError (404)."""
        if not name and self.models:
            return next(iter(self.models.values())), NONE
        for model in self.models.values():
            if name == model.name:
                return model, NONE
            if name in model.adapters:
                return model, model.adapters[name]
        if name in self.embedders:
            raise ApiError(f"{name} makes vectors: /v1/embeddings", param="model")
        if name in self.speech or (self.speech and not name):
            raise ApiError(
                f"{name or next(iter(self.speech))} hears recordings, and writes no other texts: send them to "
                "/v1/audio/transcriptions",
                param="model",
            )
        raise self.unknown(name)

    def embedder_of(self, name: str) -> EmbeddingModel:
        """The model of sentences of a name. Raises: ApiError (404)."""
        if not name and self.embedders:
            return next(iter(self.embedders.values()))
        if name in self.embedders:
            return self.embedders[name]
        if not self.embedders:
            raise ApiError(
                "this server has no model for vectors (relaxpy serve --embeddings)",
                status=404,
                code="model_not_found",
            )
        raise self.unknown(name)

    def check_speech(self) -> None:
        """Raises: ApiError (404) if no model hears."""
        if not self.speech:
            raise ApiError(
                "this server has no model that hears recordings: relaxpy serve FOLDER of a Whisper, also beside others",
                status=404,
                code="model_not_found",
            )

    def speech_of(self, name: str) -> SpeechModel:
        """The model of speech of a name. Raises: ApiError (404; 400 for a model that hears nothing)."""
        if not name:
            return next(iter(self.speech.values()))
        if name in self.speech:
            return self.speech[name]
        if name in self.names:
            raise ApiError(f"{name} hears nothing: {', '.join(self.speech)} does", param="model")
        raise self.unknown(name)

    @property
    def names(self) -> list[str]:
        """The names that requests may use."""
        return [name for model in self.models.values() for name in model.names] + [
            *self.embedders,
            *self.speech,
        ]

    def unknown(self, name: str) -> ApiError:
        """The error for a model that there is not."""
        known = ", ".join(self.names)
        return ApiError(
            f"there is no model {name[:100]!r}; there is {known}",
            status=404,
            param="model",
            code="model_not_found",
        )

    @staticmethod
    async def in_thread(function: Callable[..., T], *args: Any) -> T:
        """See `in_thread`."""
        return await in_thread(function, *args)

    def tally(self, request: Request, prompt_tokens: int) -> AnswerUsage:
        """The numbers of an answer, which the log shows, too."""
        found = request.state.tally = AnswerUsage(prompt_tokens)
        return found

    async def body(self, request: Request, kind: type[B]) -> B:
        """The body of a request. Raises: ApiError."""
        return await self._reader.read(request, kind)

    def order(
        self, request: Request, body: SamplingBody, model: ServedModel, asked: Asked
    ) -> TextRequest:
        """The order of a body. Raises: ApiError, UsageError."""
        beams, max_tokens = asked.beams, asked.max_tokens
        name, at_once = ("n", body.n) if beams is None else ("best_of", beams.num_beams)
        if at_once > (most := model.settings.running):
            found = f"{name} is at most {most}, the texts that are written at once"
            raise ApiError(found, param=name)
        if body.min_tokens > (max_tokens if max_tokens not in (None, -1) else body.min_tokens):
            raise ApiError("min_tokens is more than max_tokens", param="min_tokens")
        if body.prompt_logprobs is not None and body.stream:
            raise ApiError("prompt_logprobs are not in streams", param="prompt_logprobs")
        if asked.pictures and body.truncate_prompt_tokens is not None:
            raise ApiError(
                "truncate_prompt_tokens would cut pictures", param="truncate_prompt_tokens"
            )
        prompt = _cut(
            asked.prompt, body.truncate_prompt_tokens, model.context - max(max_tokens or 1, 1)
        )
        room = model.room(prompt, 0 if max_tokens == 0 else 1)
        if max_tokens is None:
            most = model.defaults.most_tokens(len(prompt), room)
        else:
            most = room if max_tokens < 0 else min(max_tokens, room)
        scored = [
            count
            for count in (asked.top if asked.echo else None, body.prompt_logprobs)
            if count is not None
        ]
        own = frozenset[int]() if body.ignore_eos else asked.ends
        client: str = getattr(request.state, "client", "")
        return TextRequest(
            0,
            tuple(prompt),
            most,
            body.sampled(
                model.defaults.sampling_after(len(prompt)),
                model.vocab_size,
                secrets.randbits(62),
                model.tokenizer.encode_literally,
            ),
            own.union(body.stop_token_ids or ()),
            body.n if beams is None else 1,
            asked.top,
            asked.adapter,
            f"{client}\n{body.cache_salt}" if body.cache_salt or self._several_keys else "",
            client or body.user or "",
            body.priority,
            body.grammar_of() if asked.grammar is None else asked.grammar,
            max(scored, default=None),
            stop=model.defaults.stop if (stops := body.stops) is None else stops,
            shown=asked.shown,
            begins=asked.begins,
            beams=beams,
            pictures=asked.pictures,
        )

    async def deltas(
        self, model: ServedModel, order: TextRequest, tally: AnswerUsage
    ) -> AsyncGenerator[Delta]:
        """The texts of an order, within the time that an answer may take, and counted. A finished one that has a schema
        is compared with it before its last part leaves. Raises: ApiError."""
        seconds = self.settings.request_seconds
        texts = [""] * order.texts
        try:
            async with aclosing(model.write(order, tally, seconds)) as deltas:
                async for delta in deltas:
                    texts[delta.choice] += delta.text if order.grammar else ""
                    if delta.finish == "stop" and delta.stop is None:
                        await self.check_text(order.grammar, texts[delta.choice], model)
                    yield delta
        except UsageError as error:
            raise ApiError.of(error) from None
        finally:
            self.metrics.note(model.name, tally)

    async def check_text(self, grammar: str, text: str, model: ServedModel) -> None:
        """Compare a finished text with the schema of its grammar, if it has one. Raises: ApiError."""
        if not isinstance(grammar, Grammar):
            return
        why = await run_in_threadpool(mismatch, grammar.schema, text)
        if why is not None:
            self.metrics.mismatches.labels(model.name).inc()
            raise ApiError(
                f"the answer is not of its form: {why}", status=500, code="schema_mismatch"
            )


def _cut(prompt: list[int], count: int | None, room: int) -> list[int]:
    """The last tokens of a prompt: so many, or with -1 as many as there is room for."""
    if count is None:
        return prompt
    if not count:
        raise ApiError("truncate_prompt_tokens leaves no prompt", param="truncate_prompt_tokens")
    return prompt[-(max(room, 1) if count < 0 else count) :]


async def in_thread(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Work that may take a while, such as a template, in a thread. Raises: ApiError for mistakes that relaxpy finds."""
    try:
        return await run_in_threadpool(function, *args, **kwargs)
    except UsageError as error:
        raise ApiError.of(error) from None


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """The result of some work, which is cancelled when the client goes. Raises: ApiError (499) then."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, watcher = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ApiError("the client has gone", status=499)
    finally:
        for each in (task, watcher):
            each.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


def answer(data: Mapping[str, Any], status: int = 200, **headers: str) -> Response:
    """An answer of JSON."""
    content = json.dumps(data, separators=(",", ":"))
    return Response(content, status, headers, "application/json")


def event(data: Mapping[str, Any], name: str = "") -> str:
    """A server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, separators=(',', ':'))}\n\n"


class _Events(StreamingResponse):
    """An answer of events, whose source is closed at its end, also when the client goes: that cancels the texts."""

    def __init__(self, source: AsyncGenerator[str], body: AsyncGenerator[str]) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(body, media_type="text/event-stream", headers=headers)
        self._sources = body, source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            for each in self._sources:
                await each.aclose()


async def stream(
    events: AsyncGenerator[str], failed: Callable[[ApiError], str]
) -> StreamingResponse:
    """An answer of events. A mistake before the first one is an ordinary error; later it is an event."""
    try:
        first = await anext(events, "")
    except BaseException:
        await events.aclose()
        raise

    async def body() -> AsyncGenerator[str]:
        yield first
        try:
            async for each in events:
                yield each
        except ApiError as error:
            yield failed(error)

    return _Events(events, body())
