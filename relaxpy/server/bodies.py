"""Bodies of requests: how they are read, and what they may have."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect, Request

from relaxpy.errors import UsageError
from relaxpy.serve.grammar import (
    choice_grammar,
    json_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
)
from relaxpy.serve.sampling import Sampling
from relaxpy.server.errors import ApiError

_Whole = Annotated[int, Field(ge=1, le=1 << 31)]
_Text = Annotated[str, Field(min_length=1, max_length=1000)]
B = TypeVar("B", bound=BaseModel)
_JSON = "application/json"


class Body(BaseModel):
    """A body. Fields that it does not know are ignored, as other servers do."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())


class SamplingBody(Body):
    """Fields that all requests for texts may have."""

    model: Annotated[str, Field(max_length=1000)] = ""
    """The name of a model; "": the first one of the server."""
    max_tokens: _Whole | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    presence_penalty: Annotated[float, Field(ge=-100, le=100)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-100, le=100)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    logit_bias: (
        Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=1024)]
        | None
    ) = None
    stop: _Text | Annotated[list[_Text], Field(max_length=16)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] = 1
    stream: bool = False
    user: Annotated[str, Field(max_length=1000)] | None = None
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    cache_salt: Annotated[str, Field(max_length=1000)] = ""
    ignore_eos: bool = False
    """Go on after tokens that end texts."""
    # Grammars, by the names of vLLM and llama.cpp.
    guided_json: dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def sampled(self, default: Sampling, vocab: int, seed: int) -> Sampling:
        """The options of sampling: those of the body, else the model's own. `seed` is taken if the body has none."""
        names = (
            "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
        )  # fmt: skip
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if given.get("top_k") == -1:
            given["top_k"] = 0
        bias: dict[int, float] = {}
        for token, by in (self.logit_bias or {}).items():
            if not token.isdecimal() or len(token) > 10 or int(token) >= vocab:
                raise ApiError(
                    f"logit_bias names token {token[:40]!r}, and the model has tokens 0 to {vocab - 1}",
                    param="logit_bias",
                )
            bias[int(token)] = by
        fields: dict[str, Any] = {**vars(default), **given, "bias": bias or default.bias}
        fields["seed"] = seed if self.seed is None else self.seed
        return Sampling(**fields)

    def grammar_of(self) -> str:
        """The grammar that the body asks for, by any name. Raises: UsageError (`grammar`)."""
        asked = {
            name: value
            for name in ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "grammar", "json_schema")
            if (value := getattr(self, name)) is not None
        }  # fmt: skip
        if len(asked) > 1:
            raise ApiError(f"{' and '.join(asked)} are given: one at a time", param=[*asked][1])
        for name, value in asked.items():
            make: Any = {
                "guided_json": json_schema_grammar, "json_schema": json_schema_grammar,
                "guided_regex": regex_grammar, "guided_choice": choice_grammar,
            }.get(name, lark_grammar)  # fmt: skip
            try:
                return make(value)
            except UsageError as error:
                raise _about(error, name) from None
        return ""


class _JsonSchema(Body):
    name: str = "schema"
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(Body):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema", "regex", "grammar"]
    json_schema: _JsonSchema | None = None
    pattern: str | None = None
    grammar: str | None = None

    def grammar_of(self) -> str:
        """The grammar of such answers. Raises: UsageError (`grammar`)."""
        wanted = {"json_schema": "json_schema", "regex": "pattern", "grammar": "grammar"}
        name = wanted.get(self.type)
        if name is not None and getattr(self, name) is None:
            raise ApiError(
                f"response_format of type {self.type} needs the field {name}",
                param="response_format",
            )
        try:
            if self.type == "json_object":
                return json_grammar()
            if self.json_schema is not None and self.type == "json_schema":
                return json_schema_grammar(self.json_schema.schema_)
            if self.type == "regex":
                return regex_grammar(self.pattern or "")
            return lark_grammar(self.grammar or "") if self.type == "grammar" else ""
        except UsageError as error:
            raise _about(error, "response_format") from None


def _about(error: UsageError, param: str) -> ApiError:
    found = ApiError.of(error)
    found.param = param
    return found


async def read_body(request: Request, kind: type[B], most: int, seconds: float) -> B:
    """The body of a request. Raises: ApiError for one that is too large, too slow, no JSON, or has other fields."""
    fields = await read_json(request, most, seconds)
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise _invalid(error) from None


async def read_json(request: Request, most: int, seconds: float) -> Mapping[str, Any]:
    """The object in the body of a request. Raises: ApiError."""
    # A page of another origin can send other types without asking first (CORS).
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
        raise ApiError(f"the body of a request is JSON: send Content-Type: {_JSON}", status=415)
    length = request.headers.get("content-length", "")
    if length.isdecimal() and (len(length) > 15 or int(length) > most):
        raise ApiError(f"a body has at most {most} bytes", status=413)
    parts, size = list[bytes](), 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise ApiError(f"a body has at most {most} bytes", status=413)
                parts.append(part)
    except TimeoutError:
        raise ApiError(f"the body did not arrive within {seconds:g} seconds", status=408) from None
    except ClientDisconnect:
        raise ApiError("the client has gone", status=499) from None
    try:
        fields = json.loads(b"".join(parts), parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the body is not JSON: {str(error)[:200]}") from None
    if not isinstance(fields, dict):
        raise ApiError("the body is not a JSON object")
    return fields  # pyright: ignore[reportUnknownVariableType]


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is too large")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _invalid(error: ValidationError) -> ApiError:
    """The first mistake of a body."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])[:200]
    return ApiError(f"{place or 'the body'}: {first['msg']}", param=place or None)
