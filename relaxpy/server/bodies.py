"""Bodies of requests: what they may have (`relaxpy.server.body_reader` reads them)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema

from relaxpy.errors import UsageError
from relaxpy.narrow import is_mapping, is_sequence
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
StopText = Annotated[str, Field(min_length=1, max_length=1000)]
MOST_FIELDS = 1 << 12
"""The most fields of an object, and the most items of a list that says nothing else."""
LONGEST_TEXT = 1 << 22
"""The most characters of a text that says nothing else."""


def _bound(schema: Any) -> None:
    """Give each list and text in a schema of pydantic its bounds."""
    if is_mapping(schema):
        found: Any = schema
        kind = found.get("type")
        if kind == "list":
            found["fail_fast"] = True
        if kind in ("list", "dict"):
            found.setdefault("max_length", MOST_FIELDS)
        elif kind == "str":
            found.setdefault("max_length", LONGEST_TEXT)
        for each in found.values():
            _bound(each)
    elif is_sequence(schema):
        for each in schema:
            _bound(each)


class Body(BaseModel):
    """A body. Fields that it does not know are ignored, as other servers do. Its texts and lists are bounded, and of a
    list only the first mistake is looked for."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """See pydantic."""
        schema = handler(source)
        _bound(schema)
        return schema


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
    stop: StopText | Annotated[list[StopText], Field(max_length=16)] | None = None
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
