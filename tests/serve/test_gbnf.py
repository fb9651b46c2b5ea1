"""Escapes of GBNF."""

from __future__ import annotations

import pytest

from relaxpy.errors import UsageError
from relaxpy.serve.grammar import lark_grammar
from tests.serve.grammar_texts import admits


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        (r'root ::= "\u00e9\x22\x5c\x0a\x01b" "x"', ['é"\\\n\x01bx'], ["x", "é"]),
        (r'root ::= ("a\x07"){2}', ["a\x07a\x07"], ["a\x07\x07", "a\x07"]),
        (r'root ::= "\x41" [\u4e00-\u9fff]', ["A日"], ["B日", "AA"]),
        (r'root ::= "\U0001F600" [\U0001F600-\U0001F64F]', ["😀😁"], ["😀a"]),
        ('root ::= [a&&b]+ [+--] # "c\\u12"', ["&-", "a+"], ["a,", "ab"]),
        (r'root ::= [^\x00-\x1f"\\]+', ["abc"], ['a"', "a\n", "\\"]),
        (r"root ::= [\]\[]+", ["[]"], ["a"]),
        ('root ::= "[a]" ["#]', ['[a]"', "[a]#"], ["a#"]),
        (r'root ::= "a\nb\t\"\\"', ['a\nb\t"\\'], ["anb"]),
    ],
)
def test_texts(grammar: str, right: list[str], wrong: list[str]) -> None:
    made = lark_grammar(grammar)
    assert all(admits(made, text) for text in right)
    assert not any(admits(made, text) for text in wrong)


@pytest.mark.parametrize(
    "grammar",
    [r'root ::= "\ud800"', r'root ::= "\U00200000"', r'root ::= "\u12"', 'root ::= "a', r'root ::= "\q"', 'root ::= "\ud800"'],
)  # fmt: skip
def test_what_is_no_character(grammar: str) -> None:
    with pytest.raises(UsageError) as caught:
        lark_grammar(grammar)
    assert caught.value.code == "grammar"
