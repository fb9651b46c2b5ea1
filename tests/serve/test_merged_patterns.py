"""The bound of patterns that one text must match."""

from __future__ import annotations

import time
from typing import Any

import pytest

from relaxpy.errors import UsageError
from relaxpy.serve.merged_patterns import MOST, check_patterns


def text(number: int) -> dict[str, Any]:
    return {"type": "string", "pattern": f".*a{number}.*"}


def chain(count: int) -> dict[str, Any]:
    """Definitions, each of which adds a pattern to the next one's."""
    own = {f"d{n}": {**text(n), "$ref": f"#/$defs/d{n + 1}"} for n in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": {**own, f"d{count}": {}}}


MANY = [text(n) for n in range(300)]


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": MANY},
        {"allOf": MANY[: MOST + 1]},
        {"type": "object", "properties": {"a": {"allOf": MANY}}},
        {"allOf": [{"properties": {"a": each}} for each in MANY]},
        {"allOf": [{"type": "array", "items": each} for each in MANY]},
        {"allOf": [{"additionalProperties": each} for each in MANY]},
        {"allOf": [{"patternProperties": {"^a": each}} for each in MANY]},
        {"allOf": [{"allOf": MANY[:4]}, {"allOf": MANY[4:8]}]},
        {"allOf": [{"$ref": "#/$defs/a~1b"}], "$defs": {"a/b": {"allOf": MANY}}},
        chain(40),
    ],
)
def test_too_many_are_refused_at_once(schema: Any) -> None:
    start = time.process_time()
    with pytest.raises(UsageError, match=f"more than {MOST} patterns of one text"):
        check_patterns(schema)
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": MANY[:MOST]},
        {"anyOf": MANY},
        {"type": "object", "properties": {f"p{n}": each for n, each in enumerate(MANY)}},
        {"allOf": [{"properties": {f"p{n}": each}} for n, each in enumerate(MANY)]},
        {"allOf": [text(0)] * 20},
        {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}},
        {"$defs": {"n": {"properties": {"next": {"allOf": [{"$ref": "#/$defs/n"}]}}}}, "$ref": "#/$defs/n"},
        {"allOf": [{"$ref": "elsewhere"}, {"$ref": "#/nowhere"}, {"$ref": 5}, 7], "x": 1},
        chain(MOST),
    ],
)  # fmt: skip
def test_what_others_write_passes(schema: Any) -> None:
    check_patterns(schema)


def test_a_mesh_of_references_is_bounded() -> None:
    names = [f"d{n}" for n in range(60)]
    all_of = [{"$ref": f"#/$defs/{name}"} for name in names]
    own = {name: {"properties": {other: {"allOf": all_of} for other in names}} for name in names}
    start = time.process_time()
    with pytest.raises(UsageError, match="too many schemas"):
        check_patterns({"$ref": "#/$defs/d0", "$defs": own})
    assert time.process_time() - start < 2
