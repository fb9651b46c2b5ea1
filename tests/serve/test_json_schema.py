"""Schemas: no text that a grammar admits is one that its schema does not, and finished texts are checked."""

from __future__ import annotations

import json
import random
import time
from decimal import Decimal
from typing import Any

import pytest

from relaxpy.errors import UsageError
from relaxpy.serve.grammar import json_schema_grammar
from relaxpy.serve.json_schema import enforced, mismatch, relocated
from tests.serve.grammar_texts import admits
from tests.sweeps import FULL

jsonschema: Any = pytest.importorskip("jsonschema")

BIG = 2**53 + 1
CLOSED = {"type": "object", "additionalProperties": False}
CASES: list[tuple[Any, list[str], list[str]]] = [
    # Exclusive bounds, and the zero that has a sign.
    ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5}, ["0.1", "0.000001"], ["0", "0.0", "-0", "0.5"]),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, ["0.5"], ["0", "0.00"]),
    ({"type": "number", "exclusiveMinimum": 7, "exclusiveMaximum": 7.5}, ["7.25"], ["7", "7.0", "7.5"]),
    ({"type": "number", "exclusiveMaximum": 0, "minimum": -0.5}, ["-0.5", "-0.1"], ["0", "-0", "-0.0"]),
    ({"type": "number", "exclusiveMaximum": -1, "exclusiveMinimum": -1.5}, ["-1.25"], ["-1", "-1.0", "-1.5"]),
    ({"type": "number", "minimum": 0, "exclusiveMinimum": True}, ["1"], ["0"]),
    ({"type": ["integer", "null"], "minimum": 0.5, "exclusiveMaximum": 3}, ["1", "2", "null"], ["0", "3"]),
    # Integers beyond those that are doubles.
    ({"const": BIG}, [str(BIG)], [str(BIG - 1), str(BIG + 1)]),
    ({"const": 10**30 + 1}, [str(10**30 + 1)], [str(10**30)]),
    ({"enum": [BIG, BIG + 2, "x"], "type": "integer"}, [str(BIG + 2)], [str(BIG + 1), '"x"']),
    ({"type": "integer", "minimum": BIG, "maximum": BIG + 2}, [str(BIG)], [str(BIG - 1), str(BIG + 3)]),
    ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, ["5", "-5"], [str(2**63), "1.5"]),
    ({"type": "integer", "minimum": -(2**63)}, ["-5", "7"], [str(-(2**63) - 1)]),
    ({"type": "integer", "minimum": 0, "maximum": 2**64 - 1}, ["5"], ["-1", str(2**64)]),
    ({**CLOSED, "properties": {"id": {"const": BIG}, "s": {"type": "string"}}, "required": ["id"]},
     [f'{{"id": {BIG}}}', f'{{"id":{BIG},"s":"x"}}'], [f'{{"id": {BIG - 1}}}', '{"s":"x"}']),
    ({"type": "object", "properties": {"s": {}, "id": {"const": BIG}}}, ["{}", '{"s":[1]}', '{"t":1,"u":2}', f'{{"id":{BIG},"t":1}}'],
     ['{"id":1}', f'{{"id":{BIG},"id":1}}', f'{{"t":1,"id":{BIG}}}']),
    ({"type": "array", "items": {"$ref": "#/$defs/id"}, "minItems": 1, "maxItems": 2,
      "$defs": {"id": {"anyOf": [{"const": BIG}, {"$ref": "#/$defs/none"}]}, "none": {"type": "null"}}},
     [f"[{BIG}]", "[null, null]"], ["[]", "[null,null,null]", "[1]"]),
    ({"const": {"a": [BIG, 'é"\n'], "b": {}}}, [json.dumps({"a": [BIG, 'é"\n'], "b": {}}, ensure_ascii=False)], ["{}"]),
    # Keys that are written by the numbers of their characters.
    ({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
     ['{"a":1,"b":"x"}'], ['{"a":1,"\\u0061":"x"}', '{"a":1,"a":"x"}']),
    ({"type": "object", "patternProperties": {"^s": {"type": "string"}}, "additionalProperties": {"type": "integer"}},
     ['{"s":"x","t":1}'], ['{"\\u0073":1}']),
    ({"const": "\x01"}, ['"\\u0001"'], ['"\x01"']),
    # Days of the calendar.
    ({"type": "string", "format": "date"}, ['"2024-02-29"', '"2000-02-29"', '"2023-12-31"'],
     ['"2023-02-29"', '"1900-02-29"', '"2023-04-31"', '"2023-13-01"', '"0000-01-01"']),
    ({"type": "string", "format": "date-time"}, ['"2024-02-29T23:59:59.5Z"', '"2023-01-01T00:00:00+01:00"'],
     ['"2023-02-29T00:00:00Z"', '"2023-01-01T24:00:00Z"', '"2023-01-01T00:00:00"']),
    ({"type": "string", "format": "date", "pattern": "^2"}, ['"2024-02-29"'], ['"1999-01-01"']),
    # Patterns as ECMA-262 has them.
    ({"type": "string", "pattern": "^a.b$"}, ['"acb"'], ['"a\\rb"', '"a\\nb"', '"a\u2028b"']),
    ({"type": "string", "pattern": "^[a-z&&[x]]$"}, ['"a]"', '"&]"'], ['"x"']),
    # What asks for nothing, what is data, and recursion.
    ({"type": "array", "uniqueItems": False}, ["[1, 1]"], ["{}"]),
    ({"enum": [{"$ref": "#/nowhere", "pattern": "("}]}, ['{"$ref": "#/nowhere", "pattern": "("}'], ["{}"]),
    ({"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#"}}]}, ["null", "[[null], []]"], ["1", "[1]"]),
    ({"type": "object", "x-own": {"n": {"type": "string", "pattern": "^.$"}}, "properties": {"y": {"$ref": "#/x-own/n"}}},
     ['{"y":"a"}'], ['{"y":"\\r"}']),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "right", "wrong"), CASES)
@pytest.mark.parametrize("is_inside", [False, True])
def test_texts(schema: Any, right: list[str], wrong: list[str], is_inside: bool) -> None:
    """Of the schema, and of the schema as a part of another."""
    before, after = ('{"k": ', "}") if is_inside else ("", "")
    if is_inside:
        own = relocated(schema, "#/properties/k")
        schema = {**CLOSED, "properties": {"k": own}, "required": ["k"]}
    grammar = json_schema_grammar(schema)
    for text in right:
        assert admits(grammar, before + text + after), text
        assert mismatch(schema, before + text + after) is None
    for text in wrong:
        assert not admits(grammar, before + text + after), text


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "object", "minProperties": 2}, "minProperties"),
        ({"type": "object", "minProperties": 3, "required": ["a"]}, "minProperties"),
        ({"allOf": [{"const": BIG}]}, "allOf"),
        ({"type": "object", "patternProperties": {"a": {}}, "properties": {"a": {"const": BIG}}}, "patternProperties"),
        ({"type": "integer", "minimum": 2**70}, "int64"),
        ({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, "no integer"),
        ({"type": "number", "minimum": float("nan")}, "number"),
        ({"type": "number", "minimum": 10**400}, "minimum"),
        ({"type": "string", "pattern": "(?i)a"}, "(?i)"),
        ({"type": "string", "pattern": "a\ud800"}, "surrogate"),
        ({"type": "object", "properties": {"\udfff": {}}}, "surrogate"),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_refused_by_name(schema: Any, named: str) -> None:
    with pytest.raises(UsageError) as caught:
        json_schema_grammar(schema)
    assert named in caught.value.message


def test_bounds_of_numbers() -> None:
    """Random bounds: a text that is admitted is between them."""
    pick = random.Random(7)
    ends = [
        "0",
        "1",
        "-1",
        "0.5",
        "-0.5",
        "7",
        "6.25",
        "7.5",
        "-2",
        "-2.5",
        "0.001",
        "10",
        "-10",
        "99.9",
    ]
    texts = [
        *ends,
        "-0",
        "-0.0",
        "0.0",
        "1.0",
        "0.4999",
        "0.5001",
        "-1.0",
        "6.3",
        "-2.25",
        "7.0",
        "10.0",
        "9.99",
        "1e0",
        "0.00099",
    ]
    for _ in range(600 if FULL else 80):
        low, high = sorted(pick.sample(ends, 2), key=Decimal)
        kind = pick.choice(["number", "number", "integer"])
        schema: dict[str, Any] = {"type": kind}
        if pick.random() < 0.9:
            schema[pick.choice(["minimum", "exclusiveMinimum"])] = json.loads(low)
        if pick.random() < 0.9:
            schema[pick.choice(["maximum", "exclusiveMaximum"])] = json.loads(high)
        try:
            grammar = json_schema_grammar(schema)
        except UsageError:
            assert low == high or kind == "integer" or Decimal(low) == Decimal(high), schema
            continue
        for text in texts:
            if admits(grammar, text):
                jsonschema.validate(json.loads(text), schema)
            elif kind == "number" and "e" not in text and text not in ("-0", "-0.0"):
                # All that is right is admitted, but for a bound that is written with a point.
                is_right = jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
                assert not is_right or Decimal(text) in (Decimal(low), Decimal(high), 0), (
                    schema,
                    text,
                )


def test_the_schema_that_came_is_not_changed() -> None:
    schema = {"type": "string", "format": "date", "pattern": r"^\d", "allOf": [{"minLength": 1}]}
    before = json.dumps(schema)
    assert enforced(schema) != schema
    assert json.dumps(schema) == before


@pytest.mark.parametrize(
    ("schema", "text", "place"),
    [
        ({"properties": {"a": {"type": "integer"}}}, '{"a": "x"}', "$.a"),
        ({"minProperties": 2}, '{"a": 1, "a": 1}', "$"),
        ({"const": BIG}, str(BIG - 1), "$"),
        ({"format": "date"}, '"2023-02-29"', "$"),
        ({"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"maximum": 3}}}, "[3, 4]", "$[1]"),
        ({}, '{"a": ', "JSON"),
        ({"properties": {"a": {"maximum": 3, "exclusiveMaximum": True}}}, '{"a": 3}', "$.a"),
    ],
)
def test_a_finished_text_is_checked(schema: Any, text: str, place: str) -> None:
    assert place in str(mismatch(schema, text))


def test_no_check_takes_long() -> None:
    """Patterns that backtrack, alternatives that double at each level, references in a circle."""
    tree: Any = {
        "anyOf": [
            {"properties": {"c": {"$ref": "#"}}, "required": ["x"]},
            {"properties": {"c": {"$ref": "#"}}},
        ]
    }
    deep = '{"c": ' * 40 + "{}" + "}" * 40
    start = time.process_time()
    assert mismatch(tree, deep) is None
    assert mismatch({"$ref": "#"}, "1") is None
    assert mismatch({"pattern": "^((a+)+b|a*)$"}, json.dumps("a" * 60)) is None
    assert time.process_time() - start < 10


def test_references_follow_a_schema_to_its_place() -> None:
    schema = {
        "$id": "http://tools/t", "properties": {
            "a": {"$ref": "#"}, "b": {"$ref": "http://tools/t#/properties/a"}, "c": {"const": {"$ref": "#"}}, "$ref": {"$ref": "#/$defs/x"},
        }, "$defs": {"x": {"enum": [{"$ref": "#/y"}]}},
    }  # fmt: skip
    assert relocated(schema, "#/$defs/0", "http://tools/t") == {
        "properties": {
            "a": {"$ref": "#/$defs/0"},
            "b": {"$ref": "#/$defs/0/properties/a"},
            "c": {"const": {"$ref": "#"}},
            "$ref": {"$ref": "#/$defs/0/$defs/x"},
        },
        "$defs": {"x": {"enum": [{"$ref": "#/y"}]}},
    }
    with pytest.raises(UsageError, match=r"\$id"):
        relocated({"properties": {"a": {"$id": "a"}}}, "#/$defs/0")
