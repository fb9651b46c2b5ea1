"""The application: routes, and what is around them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Match

from relaxpy.server import (
    audio,
    chat_completions,
    completions,
    embeddings,
    messages,
    responses,
    texts,
)
from relaxpy.server.bodies import Body
from relaxpy.server.context import Server, answer
from relaxpy.server.errors import ApiError
from relaxpy.server.gate import Gate, refusal
from relaxpy.version import __version__

Route = Callable[[Server, Request], Awaitable[Response]]

ROUTES: tuple[tuple[str, str, Route, type[Body] | None], ...] = (
    ("POST", "/v1/chat/completions", chat_completions.chat_completions, chat_completions.ChatBody),
    ("POST", "/v1/completions", completions.completions, completions.CompletionBody),
    ("POST", "/v1/messages", messages.messages, messages.MessagesBody),
    ("POST", "/v1/messages/count_tokens", messages.count_tokens, messages.MessagesBody),
    ("POST", "/v1/responses", responses.responses, responses.ResponseBody),
    ("GET", "/v1/responses/{name}", responses.stored_response, None),
    ("DELETE", "/v1/responses/{name}", responses.drop_response, None),
    ("POST", "/v1/embeddings", embeddings.embeddings, embeddings.EmbeddingsBody),
    ("POST", "/v1/audio/transcriptions", audio.transcriptions, audio.SpeechBody),
    ("POST", "/v1/audio/translations", audio.translations, audio.SpeechBody),
    ("GET", "/v1/models", texts.models, None),
    ("GET", "/v1/models/{name:path}", texts.models, None),
    ("POST", "/tokenize", texts.tokenize, texts.TokenizeBody),
    ("POST", "/detokenize", texts.detokenize, texts.DetokenizeBody),
)
"""Method, path, function and body of each route of the interface."""


def create_app(server: Server) -> FastAPI:
    """The application of a server."""
    middleware = [Middleware(Gate, server=server)]
    if server.settings.origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(server.settings.origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["x-request-id"],
        )
        middleware.insert(0, cors)
    app = FastAPI(
        title="relaxpy serve",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        middleware=middleware,
        exception_handlers={ApiError: _refused, HTTPException: _not_found},
    )
    for method, path, function, body in ROUTES:
        app.add_api_route(
            path,
            _endpoint(server, function),
            methods=[method],
            name=function.__name__,
            response_class=Response,
            openapi_extra=_described(body),
        )

    async def health() -> Response:
        """Whether requests are answered now, for balancers."""
        waiting = [model.name for model in server.models.values() if not model.client.is_ready]
        if server.is_draining or waiting:
            reason = "draining" if server.is_draining else "starting an engine"
            return answer({"status": reason}, 503)
        return answer({"status": "ok"})

    async def metrics() -> Response:
        """Counters in Prometheus's format."""
        return Response(server.metrics.text(), media_type="text/plain; version=0.0.4")

    app.add_api_route("/health", health, methods=["GET"], response_class=Response)
    app.add_api_route("/ping", health, methods=["GET"], include_in_schema=False)
    app.add_api_route("/metrics", metrics, methods=["GET"], response_class=Response)
    app.add_api_route("/", page, methods=["GET"], include_in_schema=False)
    return app


async def page() -> Response:
    """The page for chats and recordings."""
    headers = {
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }
    return FileResponse(
        Path(__file__).with_name("page.html"), media_type="text/html", headers=headers
    )


def _endpoint(server: Server, function: Route) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        if server.is_draining:
            raise ApiError("the server is about to stop", status=503)
        return await function(server, request)

    endpoint.__doc__ = function.__doc__
    return endpoint


def _described(body: type[Body] | None) -> dict[str, Any] | None:
    """The body of a route for OpenAPI."""
    if body is None:
        return None
    schema = body.model_json_schema()
    return {"requestBody": {"content": {body.content_type: {"schema": schema}}, "required": True}}


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return refusal(request, error)


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path: str = request.scope["path"]
    if path == "*" and request.method == "OPTIONS":  # the server as a whole
        return Response(status_code=204, headers={"Allow": "DELETE, GET, HEAD, OPTIONS, POST"})
    if error.status_code == 404:
        paths = ", ".join(dict.fromkeys(path for _, path, _, _ in ROUTES))
        text = f"there is no {request.method} {path[:100]!r}; there is {paths}"
        return refusal(request, ApiError(text, status=404, code="not_found"))
    if error.status_code == 405:
        allowed = {"Allow": ", ".join(_methods(request))}
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=allowed)
        text = f"{path[:100]} takes {allowed['Allow']}, not {request.method[:40]}"
        return refusal(request, ApiError(text, status=405, headers=allowed))
    return refusal(request, ApiError(str(error.detail), status=error.status_code))


def _methods(request: Request) -> list[str]:
    """The methods that the path of a request takes."""
    routes: list[Any] = request.app.routes
    found = {
        method
        for route in routes
        if route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }
    return sorted({*found, "OPTIONS", *(["HEAD"] if "GET" in found else [])})
