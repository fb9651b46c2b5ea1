"""How many patterns of a schema one text must match.

`allOf` demands several schemas of one value. What llguidance does with the patterns among them takes time that is
exponential in their number (twelve of them half a second, fourteen seven), so there is a bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from relaxpy.errors import UsageError
from relaxpy.narrow import is_list, is_mapping
from relaxpy.serve.json_schema import pointed

MOST = 6
"""The most patterns, formats and bounds of length for one text."""
_STEPS = 20_000
"""The most schemas that are looked at."""
_DEEPEST = 8
"""The deepest place in a value that is looked at."""
_PATTERNS = ("pattern", "format", "minLength", "maxLength")
Path = tuple[str, ...]


def check_patterns(schema: Mapping[str, Any]) -> None:
    """Raises: UsageError (`grammar`) for a schema in which a text must match more than `MOST` patterns."""
    steps = _STEPS
    for start in _schemas(schema):
        if not _combines(start):
            continue
        found: dict[Path, set[tuple[str, str]]] = {}
        seen = set[tuple[int, Path]]()
        left: list[tuple[Any, Path]] = [(start, ())]
        while left:
            each, path = left.pop()
            if (id(each), path) in seen or len(path) > _DEEPEST:
                continue
            seen.add((id(each), path))
            own = found.setdefault(path, set())
            own |= {(name, str(each[name])) for name in _PATTERNS if name in each}
            if len(own) > MOST:
                raise UsageError("grammar", f"allOf demands more than {MOST} patterns of one text")
            parts = [part for part in _parts(schema, each, path) if is_mapping(part[0])]
            steps -= len(parts)
            if steps < 0:
                raise UsageError("grammar", "allOf combines too many schemas")
            left += parts


def _combines(schema: Mapping[Any, Any]) -> bool:
    """Whether several schemas are demanded of one value. Generators write `allOf` around one reference, too."""
    joined = schema.get("allOf")
    count = (len(joined) if is_list(joined) else 0) + ("$ref" in schema)
    return count > 1 or (count > 0 and not schema.keys().isdisjoint(_ASSERTS))


_ASSERTS = (
    *_PATTERNS,
    "properties",
    "patternProperties",
    "items",
    "additionalProperties",
    "anyOf",
    "oneOf",
)


def _parts(
    root: Mapping[str, Any], schema: Mapping[Any, Any], path: Path
) -> Iterator[tuple[Any, Path]]:
    """What a schema demands of the same value, and of the values in it, with their places."""
    for name in ("allOf", "anyOf", "oneOf"):
        for each in schema[name] if is_list(schema.get(name)) else ():
            yield each, path
    yield _target(root, schema.get("$ref")), path
    for name in ("items", "additionalProperties"):
        yield schema.get(name), (*path, name)
    for name in ("properties", "patternProperties"):
        inner = schema.get(name)
        for key, each in inner.items() if is_mapping(inner) else ():
            yield each, (*path, f"{name[0]}{key}")


def _target(root: Any, place: Any) -> Any:
    """The schema that a reference leads to; None for one that leads nowhere, or elsewhere."""
    if not isinstance(place, str) or not place.startswith("#"):
        return None
    try:
        return pointed(root, place)
    except (LookupError, ValueError, TypeError):
        return None


def _schemas(value: Any) -> Iterator[Mapping[Any, Any]]:
    """All objects in a value."""
    left = [value]
    while left:
        each = left.pop()
        if is_mapping(each):
            yield each
            left += each.values()
        elif is_list(each):
            left += each
