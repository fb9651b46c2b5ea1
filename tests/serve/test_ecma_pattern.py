"""Patterns of ECMA-262: what they match in a grammar."""

from __future__ import annotations

import json

import pytest

from relaxpy.errors import UsageError
from relaxpy.serve.ecma_pattern import rust_pattern
from relaxpy.serve.grammar import json_schema_grammar
from tests.serve.grammar_texts import admits


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        (r"^\d\D$", ["1a", "1é", "1٣"], ["٣a", "11"]),
        (r"^\w\W$", ["a-", "aé"], ["é-", "ab"]),
        (r"^\s$", [" ", "\n", "\xa0", "\u2003", "\ufeff"], ["a", "\x85", "\x1c"]),
        (r"^\S$", ["a", "\x85"], [" ", "\xa0", "\ufeff"]),
        (r"^[\s\d]$", ["\xa0", "7"], ["x"]),
        (r"^[^\s\d]$", ["x"], ["\xa0", "7"]),
        (r"^[\D]$", ["x", "\n"], ["7"]),
        (r"^.$", ["x", "\x85", "😀"], ["\n", "\r", "\u2028", "\u2029", "xy"]),
        (r"^[\d-x]$", ["1", "-", "x"], ["e"]),
        (r"^[a\-z][+--]$", ["-,", "z+"], ["b+", "z."]),
        (r"^[[]$", ["["], ["a"]),
        (r"^[a&&b~~c]$", ["&", "~", "a", "c"], ["e", ""]),
        (r"^[^]$", ["a", "\n"], ["", "ab"]),
        (r"^a{,3}$", ["a{,3}"], ["aa"]),
        (r"^a{2,}}$", ["aa}", "aaa}"], ["a}", "aa"]),
        (r"^\u0041\x42\u{43}\uD83D\uDE00\cA$", ["ABC😀\x01"], ["ABC\x01"]),
        (r"^\0[\b]\v\f$", ["\0\b\v\f"], ["0b"]),
        (r"^(?<year>\d)(?:-)(\d)$", ["1-2"], ["12"]),
        (r"^\/\.\#\&\-$", ["/.#&-"], ["/x#&-"]),
        (r"a|^b", ["xa", "bx", "a"], ["cb"]),
        (r"^\p{Lu}[\p{L}]$", ["AÉ"], ["aé", "A1"]),
        (r"^ # x$", [" # x"], ["#x"]),
    ],
)
def test_texts_of_a_pattern(pattern: str, right: list[str], wrong: list[str]) -> None:
    grammar = json_schema_grammar({"type": "string", "pattern": pattern})
    for text in right:
        forms = {json.dumps(text), json.dumps(text, ensure_ascii=False)}
        assert any(admits(grammar, form) for form in forms), text
    for text in wrong:
        assert not admits(grammar, json.dumps(text)), text
        assert not admits(grammar, json.dumps(text, ensure_ascii=False)), text


@pytest.mark.parametrize(
    "pattern",
    ["(?i)a", "(?=a)b", "(?<!a)b", "(?P<n>a)", r"(a)\1", r"\k<a>", r"\bfoo", r"\Aa", r"a\z", "[a", "a\\", r"\ud800", r"\u12", "[z-a]", r"\p{", r"\u{110000}"],
)  # fmt: skip
def test_what_ecma_262_has_not_or_no_automaton_follows(pattern: str) -> None:
    with pytest.raises(UsageError) as caught:
        rust_pattern(pattern)
    assert "the pattern" in caught.value.message
