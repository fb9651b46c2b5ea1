"""Schemas of arguments whose texts end.

A call that must come is written token by token as its grammar allows. Where a schema leaves the names of fields open,
as most do by saying nothing, a small model may add fields until no token is left. What is demanded of a forced call is
therefore narrower, and still fits its schema: no fields but those that are described, and bounds where there are none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relaxpy.narrow import is_list, is_mapping

MOST_FIELDS = 64
"""The most fields of an object that describes none."""
MOST_ITEMS = 1024
"""The most items of a list that says nothing of it."""
LARGEST = 9 * 10**18
"""The largest integer where the schema says nothing: the largest round number of 64 bits."""
_OTHERS = (
    "$ref", "allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "additionalProperties",
    "unevaluatedProperties", "propertyNames", "dependentSchemas",
)  # fmt: skip
"""Keywords by which other schemas have a say in the fields of an object."""


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema, in which objects have no fields but those that are described, and lists an end."""
    # Schemas that `allOf` joins describe parts of one object: none of them may exclude the fields of the others.
    return _closed(schema, joins="allOf" in str(schema))


def _closed(schema: Any, joins: bool) -> Any:
    if not is_mapping(schema):
        return schema
    found = dict(schema)
    fields = found.get("properties")
    if is_mapping(fields):
        found["properties"] = {name: _closed(each, joins) for name, each in fields.items()}
    for name in ("items", "additionalProperties"):
        found[name] = _closed(found.get(name), joins)
        if name not in schema:
            del found[name]
    for name in ("prefixItems", *(() if "properties" in found else ("anyOf", "oneOf"))):
        if is_list(found.get(name)):
            found[name] = [_closed(each, joins) for each in found[name]]
    for name in ("$defs", "definitions"):
        if is_mapping(found.get(name)) and not joins:
            found[name] = {key: _closed(each, joins) for key, each in found[name].items()}
    if found.get("type") == "array":
        found.setdefault("maxItems", max(MOST_ITEMS, _number(found.get("minItems"))))
    if found.get("type") == "integer" and not ({"enum", "const"} & schema.keys()):
        if "exclusiveMinimum" not in schema and _number(found.get("maximum")) >= -LARGEST:
            found.setdefault("minimum", -LARGEST)
        if "exclusiveMaximum" not in schema and _number(found.get("minimum")) <= LARGEST:
            found.setdefault("maximum", LARGEST)
    is_open = not any(name in schema for name in _OTHERS)
    if fields and is_open:
        if _number(found.get("minProperties")) <= len(fields):
            found["additionalProperties"] = False
    elif (
        found.get("type") == "object"
        and not fields
        and not ({*_OTHERS} - {"additionalProperties"}) & schema.keys()
    ):
        found.setdefault("maxProperties", max(MOST_FIELDS, _number(found.get("minProperties"))))
    return found


def _number(value: Any) -> float:
    return value if isinstance(value, int | float) else 0
