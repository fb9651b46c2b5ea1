"""Bodies of requests: what they may have (`relaxpy.server.body_reader` reads them)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, from_json

from relaxpy.errors import UsageError
from relaxpy.narrow import is_mapping, is_sequence
from relaxpy.serve.grammar import (
    LONGEST,
    choice_grammar,
    json_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
)
from relaxpy.serve.sampling import Sampling
from relaxpy.server import known_fields
from relaxpy.server.errors import ApiError

MaxTokensOrNone = Annotated[int, Field(ge=-1, le=1 << 31)]
"""The most tokens of a text; -1: until the context is full; 0: the prompt is computed, and nothing written."""


def _some(count: int) -> int:
    if not count:
        raise PydanticCustomError("no_tokens", "should be at least 1, or -1 for all that fit")
    return count


MaxTokens = Annotated[MaxTokensOrNone, AfterValidator(_some)]
"""The same for texts of at least one token."""
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


REFUSED = "refused_field"
"""The kind of the mistake that is a field of another interface, or of none."""


class Body(BaseModel):
    """A body, or an object in one. A field that is null is not given; one that is none of its own is ignored or refused
    (`relaxpy.server.known_fields`). Its texts and lists are bounded, and of a list only the first mistake is looked
    for."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())
    others: ClassVar[Mapping[str, known_fields.Field]] = {}
    content_type: ClassVar[str] = "application/json"
    """Fields of other interfaces."""

    @model_validator(mode="before")
    @classmethod
    def _given(cls, fields: Any) -> Any:
        if not is_mapping(fields):
            return fields
        own, kinds = _names(cls), _kinds(cls)
        is_other = bool(kinds) and fields.get("type") not in (None, *kinds)
        given: dict[str, Any] = {}
        for name, value in fields.items():
            if value is None:
                continue
            if name in own:
                given[name] = value
            elif is_other:
                continue  # its `type` is the mistake
            elif text := known_fields.refusal(name[:100], value, cls.others, own):
                raise PydanticCustomError(REFUSED, "{text}", {"text": text, "field": name})
        return given

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """See pydantic."""
        schema = handler(source)
        _bound(schema)
        return schema


@cache
def _names(kind: type[Body]) -> frozenset[str]:
    return frozenset(field.alias or name for name, field in kind.model_fields.items())


@cache
def _kinds(kind: type[Body]) -> tuple[Any, ...]:
    """The values of `type` that an object may have."""
    field = kind.model_fields.get("type")
    return () if field is None else get_args(field.annotation)


Token = Annotated[int, Field(ge=0, lt=1 << 31)]


def _object(value: Any) -> Any:
    """A schema that is written as text is read."""
    if not isinstance(value, str):
        return value
    if len(value) > LONGEST:
        text = f"has {len(value)} characters, and a schema at most {LONGEST}"
        raise PydanticCustomError("json", "{text}", {"text": text})
    try:
        return from_json(value, allow_inf_nan=False)
    except ValueError as error:
        raise PydanticCustomError("json", "{text}", {"text": f"is not JSON: {error}"}) from None


Schema = Annotated[dict[str, Any], BeforeValidator(_object)]


class Form(Body):
    """The form of an answer."""

    @property
    def is_any(self) -> bool:
        """Whether any text has it."""
        return False

    def grammar_of(self) -> str:
        """The grammar of such answers; "" for any text. Raises: ApiError, UsageError (`grammar`)."""
        raise NotImplementedError


class _JsonSchema(Body):
    others = known_fields.FORM
    schema_: Annotated[Schema, Field(alias="schema")]


class ResponseFormat(Form):
    """The form of an answer, as OpenAI writes it, and others after them."""

    others = known_fields.FORM
    type: Literal["text", "json_object", "json_schema", "regex", "grammar"]
    json_schema: _JsonSchema | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None
    pattern: str | None = None
    grammar: str | None = None

    @property
    def is_any(self) -> bool:
        """See `Form`."""
        return self.type == "text" and self.model_fields_set == {"type"}

    def grammar_of(self) -> str:
        """See `Form`."""
        names = {
            "json_object": "schema",
            "json_schema": "json_schema",
            "regex": "pattern",
            "grammar": "grammar",
        }
        given = self.model_dump(by_alias=True, exclude_none=True, exclude={"type"})
        if self.type == "json_schema" and "schema" in given and "json_schema" not in given:
            given["json_schema"] = {"schema": given.pop("schema")}
        own = names.get(self.type)
        if others := [name for name in given if name != own]:
            raise ApiError(
                f"response_format of type {self.type} has no field {others[0]}",
                param="response_format",
            )
        if own not in given and self.type not in ("text", "json_object"):
            raise ApiError(
                f"response_format of type {self.type} needs the field {own}",
                param="response_format",
            )
        match self.type:
            case "json_object":
                return json_schema_grammar(given["schema"]) if given else json_grammar()
            case "json_schema":
                return json_schema_grammar(given["json_schema"]["schema"])
            case "regex":
                return regex_grammar(given["pattern"])
            case "grammar":
                return lark_grammar(given["grammar"])
            case _:
                return ""


class StructuredOutputs(Form):
    """The form of an answer, as vLLM writes it."""

    others = known_fields.STRUCTURED
    json_: Annotated[Schema | None, Field(alias="json")] = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool = False

    def grammar_of(self) -> str:
        """See `Form`."""
        found = {
            "json": json_schema_grammar, "regex": regex_grammar, "choice": choice_grammar, "grammar": lark_grammar,
        }  # fmt: skip
        given = self.model_dump(by_alias=True, exclude_none=True)
        if not self.json_object:
            del given["json_object"]
        if len(given) != 1:
            names = " and ".join(given) or "none of json, regex, choice, grammar and json_object"
            raise ApiError(f"structured_outputs has {names}: write one", param="structured_outputs")
        ((name, value),) = given.items()
        return json_grammar() if name == "json_object" else found[name](value)


def _ollama(form: Any) -> str:
    return json_grammar() if form == "json" else json_schema_grammar(form)


_FORMS: Mapping[str, Callable[[Any], str]] = {
    "response_format": str, "structured_outputs": str, "guided_json": json_schema_grammar,
    "guided_regex": regex_grammar, "guided_choice": choice_grammar, "guided_grammar": lark_grammar,
    "grammar": lark_grammar, "json_schema": json_schema_grammar, "regex": regex_grammar, "ebnf": lark_grammar,
    "format": _ollama, "output_format": str, "output_config": str, "text": str,
}  # fmt: skip
"""Fields that ask for a form, and what makes a grammar of them; a `Form` does that itself."""


class SamplingBody(Body):
    """Fields that all requests for texts may have."""

    others = known_fields.TEXTS
    model: Annotated[str, Field(max_length=1000)] = ""
    """The name of a model; "": the first one of the server."""
    max_tokens: MaxTokens | None = None
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
    min_tokens: Annotated[int, Field(ge=0, le=1 << 31)] = 0
    """Until so many were written, neither a token nor a stop string ends a text."""
    stop_token_ids: Annotated[list[Token], Field(max_length=1024)] | None = None
    bad_words: Annotated[list[StopText], Field(max_length=1024)] | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=1 << 31)] | None = None
    """Only so many last tokens of the prompt are read; -1: as many as there is room for."""
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    # Forms, by the names of OpenAI, vLLM, SGLang, llama.cpp and Ollama.
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    grammar: str | None = None
    json_schema: Schema | None = None
    regex: str | None = None
    ebnf: str | None = None
    format: Literal["", "json"] | Schema | None = None

    @property
    def stops(self) -> tuple[str, ...] | None:
        """The stop strings; None: those of the model."""
        if self.stop is None:
            return None
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def sampled(
        self,
        default: Sampling,
        vocab: int,
        seed: int,
        encode: Callable[[str], Sequence[int]],
    ) -> Sampling:
        """The options of sampling: those of the body, else the model's own. `seed` is taken if the body has none, and
        `encode` makes tokens of words that may not come."""
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
        words = {
            (*encode(f"{space}{word}"),) for word in self.bad_words or () for space in ("", " ")
        }
        fields["bad_words_ids"] = (*default.bad_words_ids, *sorted(words))
        fields["min_tokens"] = max(self.min_tokens, default.min_tokens)
        return Sampling(**fields)

    def forms(self) -> Iterator[tuple[str, Any]]:
        """Each form that the body asks for: the field, and what it says."""
        for name in _FORMS:
            value = getattr(self, name, None)
            if value not in (None, "") and not (isinstance(value, Form) and value.is_any):
                yield name, value

    def grammar_of(self) -> str:
        """The grammar that the body asks for, by any name; "" for any text. Raises: ApiError for two of them, and for
        one that cannot be followed (`grammar`)."""
        asked = dict(self.forms())
        if len(asked) > 1:
            raise ApiError(f"{' and '.join(asked)} are given: one at a time", param=[*asked][1])
        for name, value in asked.items():
            try:
                return value.grammar_of() if isinstance(value, Form) else _FORMS[name](value)
            except UsageError as error:
                raise _about(error, name) from None
        return ""


def _about(error: UsageError, param: str) -> ApiError:
    found = ApiError.of(error)
    found.param = param
    return found
