"""Grammars: what they allow, what they refuse by name, and their bounds."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import numpy as np
import pytest

from relaxpy.embedded import embedded_model
from relaxpy.errors import UsageError
from relaxpy.serve.engine import Engine
from relaxpy.serve.grammar import (
    Matchers,
    TextMatcher,
    choice_grammar,
    either_grammar,
    json_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
)
from relaxpy.serve.request import Request
from relaxpy.serve.sampling import Sampling
from tests.serve.fake_model import FakeModel
from tests.sweeps import FULL

tokenizers: Any = pytest.importorskip("tokenizers")
jsonschema: Any = pytest.importorskip("jsonschema")

VOCAB = 4130
"""More logits than the tokenizer has tokens, and no multiple of 32."""


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tokenizers.Tokenizer.from_file(str(embedded_model() / "tokenizer.json"))


@pytest.fixture(scope="module")
def matchers(tokenizer: Any) -> Matchers:
    return Matchers(tokenizer.to_str(), VOCAB, [1, 3])


def allowed(matcher: TextMatcher) -> list[int]:
    bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
    assert not bits[VOCAB:].any()
    return np.flatnonzero(bits).tolist()


def random_text(matcher: TextMatcher, tokenizer: Any, seed: int, most: int = 400) -> str | None:
    """A random text of a grammar; None if it does not end."""
    pick, tokens = random.Random(seed), list[int]()
    while not matcher.is_over:
        token = pick.choice(allowed(matcher))
        if token in (1, 3):
            break
        tokens.append(token)
        matcher.accept(token)
        if len(tokens) > most:
            return None
    return tokenizer.decode(tokens)


@pytest.mark.parametrize(
    ("grammar", "text", "wrong"),
    [
        (regex_grammar("[a-c]{2,3}x"), "abx", "abd"),
        (choice_grammar(["yes", 'n"o']), 'n"o', "maybe"),
        (lark_grammar('start: "a" other\nother: /[0-9]+/'), "a17", "b"),
        (lark_grammar('root ::= "a" other\nother ::= [0-9]+'), "a17", "b"),
        (json_grammar(), '{"a": [1, null]}', "[1]"),
        (json_schema_grammar({"enum": ["x", 3]}), "3", "4"),
    ],
)
def test_texts_of_grammars(
    matchers: Matchers, tokenizer: Any, grammar: str, text: str, wrong: str
) -> None:
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    matcher = matchers(grammar)
    assert matcher.right(tokens) == len(tokens)
    for token in tokens:
        assert token in allowed(matcher)
        matcher.accept(token)
    assert matcher.is_over or 1 in allowed(matcher)
    other = matchers(grammar)
    refused = tokenizer.encode(wrong, add_special_tokens=False).ids
    assert other.right(refused) < len(refused) or 1 not in allowed(other)


CALL = choice_grammar(["f()", "g()"])


def accepts(matchers: Matchers, grammar: str, tokens: list[int]) -> bool:
    """Whether a text is one of the grammar, from its beginning to its end."""
    matcher = matchers(grammar)
    if matcher.right(tokens) < len(tokens):
        return False
    for token in tokens:
        matcher.accept(token)
    return matcher.is_over or 1 in allowed(matcher)


@pytest.mark.parametrize("make", [regex_grammar, choice_grammar, json_schema_grammar, lark_grammar])
def test_either_of_two_grammars(matchers: Matchers, tokenizer: Any, make: Any) -> None:
    """Of any kinds; the second between marks, which are texts or tokens, once or several times."""
    forms = {
        regex_grammar: "[0-9]+!",
        choice_grammar: ["17!"],
        json_schema_grammar: {"const": "17!"},
        lark_grammar: 'start: "17!"',
    }
    form, text = make(forms[make]), '"17!"' if make is json_schema_grammar else "17!"

    def tokens(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    plain = either_grammar(form, CALL)
    marked = either_grammar(form, CALL, ("<call>", "</call>"), several=True)
    by_number = either_grammar(form, CALL, (2, 4))
    for grammar in (plain, marked, by_number):
        assert accepts(matchers, grammar, tokens(text))
        assert not accepts(matchers, grammar, tokens("hello"))
        assert not accepts(matchers, grammar, [])
    assert accepts(matchers, plain, tokens("f()"))
    assert not accepts(matchers, plain, tokens("f()g()"))
    assert accepts(matchers, marked, tokens("<call>\nf()\n</call>\n<call>g()</call>"))
    assert not accepts(matchers, marked, tokens(f"<call>f()</call>{text}"))
    assert not accepts(matchers, marked, tokens("<call>h()</call>"))
    assert accepts(matchers, by_number, [2, *tokens("g()"), 4])
    assert not accepts(matchers, by_number, [2, *tokens("g()"), 4, 2, *tokens("g()"), 4])


def test_going_back_and_copies(matchers: Matchers) -> None:
    matcher = matchers(regex_grammar("[ab]{4}"))
    before = allowed(matcher)
    token = before[0]
    other = matcher.copy()
    matcher.accept(token)
    matcher.back(1)
    assert allowed(matcher) == before == allowed(other)
    with pytest.raises(UsageError) as caught:
        matcher.accept(next(t for t in range(VOCAB) if t not in before and t not in (1, 3)))
    assert caught.value.code == "grammar"
    assert allowed(other) == before


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: json_schema_grammar({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (lambda: json_schema_grammar({"properties": {"a": {"not": {}}}}), "not"),
        (lambda: json_schema_grammar({"$ref": "http://elsewhere/schema"}), "elsewhere"),
        (lambda: json_schema_grammar({"$ref": "file:///etc/passwd"}), "passwd"),
        (lambda: json_schema_grammar({"x-guidance": {"lenient": True}}), "x-guidance"),
        (lambda: json_schema_grammar({"type": "number", "minimum": 2, "maximum": 1}), "minimum"),
        (lambda: json_schema_grammar([1]), "object"),
        (lambda: json_schema_grammar(nested(100)), "64 deep"),
        (lambda: json_schema_grammar({"enum": ["x" * 70_000]}), "65536"),
        (lambda: regex_grammar("(a"), "regex"),
        (lambda: lark_grammar("start: other"), "other"),
        (lambda: lark_grammar("root ::= other"), "other"),
        (lambda: choice_grammar([]), "no choice"),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_refused_by_name(
    make: Any, named: str, matchers: Matchers
) -> None:
    start = time.process_time()
    with pytest.raises(UsageError, match=named) as caught:
        matchers(make())
    assert caught.value.code == "grammar"
    assert time.process_time() - start < 5


def nested(depth: int) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": nested(depth - 1)}} if depth else {}


def test_compiled_grammars_are_kept(matchers: Matchers) -> None:
    for n in range(70):
        matchers(regex_grammar(f"a{n}"))
    assert len(matchers._kept) == 64


def random_schema(pick: random.Random, depth: int = 3) -> dict[str, Any]:
    """A schema whose texts are of bounded length."""
    kinds = ["integer", "boolean", "string", "enum", "null"]
    kind = pick.choice(kinds if not depth else [*kinds, "object", "array", "anyOf"])
    if kind == "integer":
        low = pick.randrange(-50, 50)
        return {"type": "integer", "minimum": low, "maximum": low + pick.randrange(100)}
    if kind == "string":
        return pick.choice(
            [{"type": "string", "maxLength": 8}, {"type": "string", "pattern": "^[a-z]{2,5}$"}]
        )
    if kind == "enum":
        return {"enum": pick.sample(["red", "green", 3, None, True], 3)}
    if kind == "array":
        return {
            "type": "array",
            "items": random_schema(pick, depth - 1),
            "maxItems": 3,
            "minItems": pick.randrange(2),
        }
    if kind == "anyOf":
        return {"anyOf": [random_schema(pick, depth - 1) for _ in range(2)]}
    if kind == "object":
        names = pick.sample("abcdef", pick.randrange(1, 4))
        return {
            "type": "object",
            "properties": {name: random_schema(pick, depth - 1) for name in names},
            "required": names[: pick.randrange(len(names) + 1)],
            "additionalProperties": False,
        }
    return {"type": kind}


def test_random_schemas_by_random_models(matchers: Matchers, tokenizer: Any) -> None:
    """At least 95 of 100 texts end, and all that end are valid."""
    count, ended = 300 if FULL else 40, 0
    for seed in range(count):
        schema = random_schema(random.Random(seed))
        text = random_text(matchers(json_schema_grammar(schema)), tokenizer, seed)
        if text is not None:
            ended += 1
            jsonschema.validate(json.loads(text), schema)
    assert ended >= 0.95 * count


class RandomModel(FakeModel):
    """Draws among the allowed tokens."""

    def sample(self, logits: Any, draws: Any) -> Any:
        tokens, logprobs = super().sample(logits, draws)
        for row, draw in enumerate(draws):
            bits = np.unpackbits(draw.mask.view(np.uint8), bitorder="little")
            found = np.flatnonzero(bits)
            tokens[row] = found[tokens[row] % len(found)] if len(found) else -1
        return tokens, logprobs


@pytest.mark.parametrize("drafts", [False, True])
def test_an_engine_follows_grammars(matchers: Matchers, tokenizer: Any, drafts: bool) -> None:
    """Texts of several choices, with forced tokens computed along; equal with drafts and without."""
    schema = {
        "type": "object",
        "properties": {"a long name": {"enum": ["red", "green"]}, "second": {"type": "boolean"}},
        "required": ["a long name", "second"],
        "additionalProperties": False,
    }
    model = RandomModel(64, vocab_size=VOCAB)
    own = Engine(model, pages=64, drafts=drafts, matcher=matchers)
    own.submit(
        Request(
            0, (5, 6), 60, Sampling(), frozenset({1, 3}), 3, grammar=json_schema_grammar(schema)
        )
    )
    texts: dict[int, list[int]] = {}
    while own.is_busy:
        for piece in own.step():
            assert piece.finish in (None, "stop")
            texts.setdefault(piece.choice, []).extend(piece.tokens)
    for tokens in texts.values():
        jsonschema.validate(json.loads(tokenizer.decode(tokens, skip_special_tokens=True)), schema)
    assert (own.counters.accepted_tokens > 0) == drafts
    if drafts:
        assert own.counters.steps < max(map(len, texts.values()))


def test_a_grammar_that_is_none_is_refused(matchers: Matchers) -> None:
    own = Engine(FakeModel(8), pages=8)
    with pytest.raises(UsageError, match="follows no grammars"):
        own.submit(Request(0, (1,), 5, grammar=json_grammar()))
    with pytest.raises(UsageError):
        Engine(FakeModel(8), pages=8, matcher=matchers).submit(Request(0, (1,), 5, grammar="{"))


@pytest.mark.parametrize("place", ["type", "maxLength", "minItems", "multipleOf", "title"])
def test_numbers_beyond_all_doubles_are_a_mistake(place: str) -> None:
    huge = 10**400
    with pytest.raises(UsageError) as caught:
        json_schema_grammar({place: huge})
    assert caught.value.code == "grammar"
