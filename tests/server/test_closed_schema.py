"""Schemas of arguments that end: narrower than the tool's, never wider, and never empty."""

from __future__ import annotations

from typing import Any

import pytest

from relaxpy.server.closed_schema import MOST_FIELDS, MOST_ITEMS, closed

jsonschema: Any = pytest.importorskip("jsonschema")
INTEGER = {"type": "integer"}
POINT = {"type": "object", "properties": {"x": INTEGER, "y": INTEGER}, "required": ["x"]}


@pytest.mark.parametrize(
    ("schema", "fits", "fits_no_more"),
    [
        (POINT, {"x": 1, "y": 2}, {"x": 1, "z": 2}),
        ({"type": "object", "properties": {"p": POINT}}, {"p": {"x": 1}}, {"p": {"x": 1, "q": 1}}),
        ({"type": "array", "items": POINT}, [{"x": 1}], [{"x": 1, "q": 1}]),
        ({"type": "array", "items": INTEGER}, [1] * MOST_ITEMS, [1] * (MOST_ITEMS + 1)),
        ({"anyOf": [POINT, {"type": "null"}]}, {"x": 1}, {"x": 1, "q": 1}),
        ({"$ref": "#/$defs/p", "$defs": {"p": POINT}}, {"x": 1}, {"x": 1, "q": 1}),
        ({"type": "integer"}, 123456789012345678, 10**30),
        ({"type": "integer", "minimum": 0}, 5, 10**19),
        ({"type": "integer", "maximum": 0}, -5, -(10**19)),
        ({"type": "array", "items": INTEGER}, [-(9 * 10**18)], [-(10**19)]),
        ({"type": "object"}, {str(n): n for n in range(MOST_FIELDS)}, {str(n): n for n in range(MOST_FIELDS + 1)}),
        ({"type": "object", "additionalProperties": POINT}, {"a": {"x": 1}}, {"a": {"x": 1, "q": 1}}),
    ],
)  # fmt: skip
def test_nothing_goes_on_without_end(schema: Any, fits: Any, fits_no_more: Any) -> None:
    found = closed(schema)
    jsonschema.validate(fits, found)
    jsonschema.validate(fits_no_more, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(fits_no_more, found)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({**POINT, "additionalProperties": INTEGER}, {"x": 1, "q": 2}),
        ({**POINT, "patternProperties": {"^q": INTEGER}}, {"x": 1, "q": 2}),
        ({**POINT, "minProperties": 3}, {"x": 1, "q": 2, "r": 3}),
        ({**POINT, "anyOf": [{"required": ["y"]}, {"properties": {"q": INTEGER}, "required": ["q"]}]}, {"x": 1, "q": 2}),
        ({"allOf": [POINT, {"type": "object", "properties": {"q": INTEGER}, "required": ["q"]}]}, {"x": 1, "q": 2}),
        ({"allOf": [{"$ref": "#/$defs/p"}, {"properties": {"q": INTEGER}}], "$defs": {"p": POINT}}, {"x": 1, "q": 2}),
        ({"type": "array", "items": INTEGER, "minItems": 2000}, [1] * 2000),
        ({"type": "array", "items": INTEGER, "maxItems": 3000}, [1] * 3000),
        ({"type": "integer", "minimum": 10**30}, 10**31),
        ({"type": "integer", "maximum": -(10**30)}, -(10**31)),
        ({"type": "integer", "exclusiveMinimum": 0}, 5),
        ({"type": "integer", "const": 10**30}, 10**30),
        ({"type": "object", "minProperties": 70}, {str(n): n for n in range(70)}),
        ({"type": "object", "properties": {"properties": INTEGER}}, {"properties": 1}),
        ({"const": {"type": "object", "properties": {"a": 1}}}, {"type": "object", "properties": {"a": 1}}),
    ],
)  # fmt: skip
def test_what_other_keywords_say_still_fits(schema: Any, value: Any) -> None:
    jsonschema.validate(value, schema)
    jsonschema.validate(value, closed(schema))


def test_the_schema_is_left_as_it_was() -> None:
    closed({"type": "object", "properties": {"p": POINT}})
    assert "additionalProperties" not in POINT
