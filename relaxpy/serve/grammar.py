"""Grammars of texts: JSON schemas, regular expressions, and Lark or GBNF, by the package llguidance.

    grammar = json_schema_grammar({"type": "object", "properties": {"a": {"type": "integer"}}})
    matchers = Matchers(tokenizer_json, vocab_size, end_tokens)
    matcher = matchers(grammar)
    matcher.mask()                # the tokens that may come first
    matcher.accept(token)

Nothing is loosened in silence: a keyword of a schema that cannot be enforced is an error that names it. Sizes are
bounded: of the grammar's text, of what it becomes, and of the work that each mask takes.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.narrow import is_list, is_mapping
from relaxpy.serve.exact_integers import exact_grammar, is_needed
from relaxpy.serve.gbnf import without_escapes
from relaxpy.serve.json_schema import enforced
from relaxpy.serve.merged_patterns import check_patterns

LONGEST = 64 << 10
"""The longest text of a grammar, in characters."""
DEEPEST = 64
"""The deepest nesting of a schema."""
KEPT = 64
"""Grammars that are kept, compiled."""
_SPACED = {"whitespace_pattern": r"(\n {0,16}| )?"}
_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_NARROW = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
_ESCAPES = 'nrbtf\\"'
"""Escapes in strings, but for characters by their number: a key could be written twice with them, and half a
character. They come back where a schema names a character that has no other escape."""
_CONTROL = re.compile(r"\\u00[01]|\\u007f|\\[0vxc]", re.IGNORECASE)
"""In the text of a schema: a character that is written by its number only."""
_HALF = re.compile("[\ud800-\udfff]")
_HELP = "pip install 'relaxpy[serve]'"


def json_schema_grammar(schema: Any, compact: bool = False) -> str:
    """The grammar of the JSON texts that a schema describes. Between the parts of a text is a space, or a new line
    with spaces, or nothing, and in a `compact` one a space after commas and colons. Raises: UsageError (`grammar`)."""
    if not is_mapping(schema):
        raise UsageError("grammar", f"a schema is an object, got {str(schema)[:80]!r}")
    if _depth(schema) > DEEPEST:
        raise UsageError("grammar", f"the schema is nested more than {DEEPEST} deep")
    try:
        text = json.dumps(schema, allow_nan=False)
    except ValueError:
        raise UsageError("grammar", "the schema has a number that JSON has not") from None
    _check_length(json.dumps(schema, ensure_ascii=False))
    if "x-guidance" in schema:
        raise UsageError(
            "grammar", "the schema has the keyword x-guidance, which is not for requests"
        )
    check_patterns(schema)
    own = enforced(schema)
    escapes = {} if _CONTROL.search(text) else {"json_allowed_escapes": _ESCAPES}
    matcher = _llguidance().LLMatcher
    try:
        if is_needed(own):
            options = {**(_COMPACT if compact else _NARROW), **escapes}
            made = matcher.grammar_from_lark(exact_grammar(own, options))
        else:
            options = {"lenient": False, **(_COMPACT if compact else _SPACED), **escapes}
            made = matcher.grammar_from_json_schema(json.dumps(own), overrides=options)
    except ValueError as error:  # a number that no double is near, wherever it is
        raise UsageError("grammar", f"the schema is not understood: {_short(str(error))}") from None
    return Grammar(_checked(made), schema)


def json_grammar() -> str:
    """The grammar of JSON objects."""
    return json_schema_grammar({"type": "object"})


def regex_grammar(pattern: str) -> str:
    """The grammar of the texts that a regular expression (of Rust) matches as a whole. Raises: UsageError
    (`grammar`)."""
    _check_length(pattern)
    return _checked(_llguidance().LLMatcher.grammar_from_regex(pattern))


def choice_grammar(choices: Iterable[str]) -> str:
    """The grammar of one of several texts. Raises: UsageError (`grammar`)."""
    quoted = [json.dumps(choice, ensure_ascii=False) for choice in choices]
    if not quoted:
        raise UsageError("grammar", "there is no choice")
    text = "start: " + " | ".join(quoted)
    _check_length(text)
    return _checked(_llguidance().LLMatcher.grammar_from_lark(text))


def lark_grammar(text: str) -> str:
    """The grammar of a text in Lark's notation, or in GBNF, that of llama.cpp. Raises: UsageError (`grammar`)."""
    from importlib import import_module

    _check_length(text, LONGEST // 2)  # the package reads it by a program in Python
    guidance = _llguidance()
    try:
        notation = import_module("llguidance.gbnf_to_lark")
        is_lark = notation.is_lark_syntax(text)
        lark = text if is_lark else notation.gbnf_to_lark(without_escapes(text))
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            "grammar", f"the grammar is not understood: {_short(str(error))}"
        ) from None
    return _checked(guidance.LLMatcher.grammar_from_lark(lark))


def either_grammar(
    form: str, calls: str, marks: tuple[int | str, int | str] | None = None, several: bool = False
) -> str:
    """The grammar of texts of either of two grammars. `marks` are around those of the second, which come once or
    `several` times: texts, or numbers of tokens that are no text."""
    start = "@calls"
    if marks is not None:
        first, last = (f"<[{m}]>" if isinstance(m, int) else json.dumps(m) for m in marks)
        start = f'({first} "\\n"? @calls "\\n"? {last} "\\n"?)' + ("{1,16}" if several else "")
    named = [_part("form", form), _part("calls", calls)]
    return _checked(json.dumps({"grammars": [{"lark_grammar": f"start: @form | {start}"}, *named]}))


def _part(name: str, grammar: str) -> dict[str, Any]:
    """A grammar as one of several: it is Lark's notation, or what llguidance makes of others."""
    if not grammar.startswith('{"grammars":'):
        return {"name": name, "lark_grammar": grammar}
    (only,) = json.loads(grammar)["grammars"]
    return {**only, "name": name}


class Grammar(str):
    """A grammar's text that knows the schema which it enforces: finished texts are compared with it."""

    schema: Mapping[str, Any]

    def __new__(cls, text: str, schema: Mapping[str, Any]) -> Grammar:
        """With the schema as it came."""
        found = super().__new__(cls, text)
        found.schema = schema
        return found


class Matchers:
    """Makes matchers of grammars for a vocabulary. Grammars that were made lately are kept, compiled."""

    def __init__(self, tokenizer: str, vocab: int, ends: Sequence[int]) -> None:
        """`tokenizer` is the text of `tokenizer.json`; `vocab` the number of logits, which may be more than there are
        tokens; `ends` are the tokens that end a text. Raises: UsageError (`grammar`)."""
        guidance = _llguidance()
        self.vocab = vocab
        own = [token for token in ends if token < vocab]
        if not own:
            raise UsageError("grammar", "the checkpoint has no token that ends a text")
        try:
            self._tokenizer = guidance.LLTokenizer(tokenizer, n_vocab=vocab, eos_token=own)
        except Exception as error:
            message = (
                f"the tokenizer of the checkpoint is of no use for grammars: {_short(str(error))}"
            )
            raise UsageError("grammar", message) from None
        self._kept: OrderedDict[str, Any] = OrderedDict()
        self._lock = Lock()

    def __call__(self, grammar: str) -> TextMatcher:
        """A matcher at the beginning of a text. Raises: UsageError (`grammar`)."""
        with self._lock:
            found = self._kept.get(grammar)
            if found is None:
                guidance = _llguidance()
                found = guidance.LLMatcher(
                    self._tokenizer, grammar, log_level=0, limits=_limits(guidance)
                )
                if found.is_error():
                    raise UsageError("grammar", _short(found.get_error()))
                self._kept[grammar] = found
            self._kept.move_to_end(grammar)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return TextMatcher(found.deep_copy(), self.vocab)


class TextMatcher:
    """Follows one text through a grammar. Implements `relaxpy.serve.step_rows.Matcher`."""

    def __init__(self, matcher: Any, vocab: int) -> None:
        self._matcher, self._vocab = matcher, vocab

    def mask(self) -> np.ndarray:
        """See `Matcher.mask`."""
        words = np.frombuffer(self._matcher.compute_bitmask(), np.int32)
        self._check()
        return words[: -(-self._vocab // 32)]

    def accept(self, token: int) -> None:
        """See `Matcher.accept`."""
        self._matcher.consume_token(token)
        self._check()

    def back(self, count: int) -> None:
        """See `Matcher.back`."""
        if count:
            self._matcher.rollback(count)
            self._check()

    def right(self, tokens: Sequence[int]) -> int:
        """See `Matcher.right`."""
        return self._matcher.validate_tokens([*tokens])

    def forced(self) -> list[int]:
        """See `Matcher.forced`."""
        return [*self._matcher.compute_ff_tokens()]

    def copy(self) -> TextMatcher:
        """See `Matcher.copy`."""
        return TextMatcher(self._matcher.deep_copy(), self._vocab)

    @property
    def is_over(self) -> bool:
        """See `Matcher.is_over`."""
        return self._matcher.is_stopped()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise UsageError("grammar", _short(self._matcher.get_error()))


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError:
        raise UsageError(
            "extra-missing", "grammars need the package llguidance", help=_HELP
        ) from None
    return llguidance


def _limits(guidance: Any) -> Any:
    """Bounds of a compilation, and of a mask: each a fraction of a second."""
    return guidance.LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=50_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )


def _checked(grammar: str) -> str:
    """The grammar, if it can be enforced."""
    guidance = _llguidance()
    is_error, messages = guidance.LLMatcher.validate_grammar_with_warnings(
        grammar, limits=_limits(guidance)
    )
    if is_error:
        raise UsageError("grammar", _short(" ".join(messages)))
    return grammar


def _check_length(text: str, most: int = LONGEST) -> None:
    if len(text) > most:
        raise UsageError(
            "grammar", f"a grammar has at most {most} characters, this one {len(text)}"
        )
    if _HALF.search(text):
        raise UsageError("grammar", "the grammar has half a character (a lone surrogate)")


def _depth(value: Any) -> int:
    """How deep lists and objects are nested."""
    depth, level = 0, [value]
    while level and depth <= DEEPEST:
        depth += 1
        inner: list[Any] = []
        for each in level:
            if is_mapping(each):
                inner += each.values()
            elif is_list(each):
                inner += each
        level = inner
    return depth


def _short(message: str) -> str:
    """An error of llguidance on one line."""
    if "NoExtensionBias" in message:
        return "no text conforms to the grammar"
    return " ".join(message.split())[:400]
