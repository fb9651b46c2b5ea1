"""Grammars of calls that must come: each tool's schema, in its new place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from relaxpy.server.errors import ApiError
from relaxpy.server.offered_tools import calls_grammar
from tests.serve.grammar_texts import admits

PLACE = {
    "type": "object",
    "properties": {"s": {"type": "string"}},
    "required": ["s"],
    "additionalProperties": False,
}
NODE = {
    "type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}},
    "required": ["v", "next"], "additionalProperties": False,
}  # fmt: skip


def tool(parameters: Any, name: str = "store") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@pytest.mark.parametrize(
    ("parameters", "right", "wrong"),
    [
        ({"type": "object", "properties": {"from": PLACE, "to": {"$ref": "#/properties/from"}}, "required": ["from", "to"]},
         [{"from": {"s": "x"}, "to": {"s": "y"}}], [{"from": {"s": "x"}, "to": 3}]),
        (NODE, [{"v": 1, "next": {"v": 2, "next": None}}], [{"v": 1, "next": {"name": "store", "arguments": {}}}]),
        ({"$id": "http://t/x", "properties": {"a": {"type": "integer"}, "b": {"$ref": "http://t/x#/properties/a"}}, "required": ["b"]},
         [{"b": 2}], [{"b": "x"}]),
        ({"$id": "x.json", "properties": {"c": {"$ref": "x.json"}}}, [{"c": {"c": {}}}], [{"c": 3}]),
        ({"properties": {"a": {"const": {"$ref": "#/x"}}, "e": {"enum": [{"$ref": "#/y"}]}}, "required": ["a"]},
         [{"a": {"$ref": "#/x"}}], [{"a": {"$ref": "#/$defs/0/x"}}]),
        ({"properties": {"$ref": {"type": "string"}, "const": {"$ref": "#/$defs/q"}}, "$defs": {"q": {"type": "integer"}},
          "required": ["$ref", "const"]}, [{"$ref": "a", "const": 3}], [{"$ref": "a", "const": "x"}]),
        ({"properties": {"a": {"type": "integer"}}, "required": ["a"]}, [{"a": 1}], ["x", 3, None, []]),
        (None, [{}, {"a": 1}], ["x", None]),
        ({"type": ["object", "null"], "properties": {"a": {"type": "integer"}}, "required": ["a"]}, [{"a": 1}], [None, "x"]),
        ({"type": None, "properties": {"a": {"type": "integer"}}, "required": ["a"]}, [{"a": 1}], ["x", None]),
        ({}, [{}], [1]),
        ({"properties": {"x": {"$ref": "#/definitions/t~1u"}}, "definitions": {"t/u": {"type": "boolean"}}, "required": ["x"]},
         [{"x": True}], [{"x": 1}]),
        ({"properties": {"id": {"const": 2**53 + 1}}, "required": ["id"]}, [{"id": 2**53 + 1}], [{"id": 2**53}]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("count", [1, 3])
def test_forced_calls(parameters: Any, right: list[Any], wrong: list[Any], count: int) -> None:
    """Alone, and between others."""
    tools = [
        tool(NODE, "before"),
        tool(parameters),
        tool({"properties": {"from": {"type": "null"}}}, "after"),
    ]
    grammar = calls_grammar(
        tools if count > 1 else tools[1:2], None if count > 1 else "store", True
    )
    for arguments in right:
        assert admits(grammar, written(arguments, count)), arguments
    for arguments in wrong:
        assert not admits(grammar, written(arguments, count)), arguments


def written(arguments: Any, count: int) -> str:
    text = json.dumps({"name": "store", "arguments": arguments})
    return f"[{text}]" if count > 1 else text


@pytest.mark.parametrize("place", ["#/properties/none", "other.json", "http://elsewhere/x"])
def test_references_that_lead_nowhere_are_refused(place: str) -> None:
    with pytest.raises(ApiError) as caught:
        calls_grammar([tool({"properties": {"a": {"$ref": place}}})], "store", False)
    assert caught.value.param == "tools"
    assert place.rpartition("/")[2] in caught.value.message
