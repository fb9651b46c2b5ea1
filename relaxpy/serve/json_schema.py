"""JSON schemas, made ready for llguidance: what it reads otherwise than JSON Schema has it is written so that it does
not, or refused by name; and the check of finished texts, which is another library's.

llguidance 1.9 reads numbers as doubles, patterns as Rust's regular expressions and dates as digits; takes the whole
number at some exclusive bounds; and repeats keys. Bounds that it cannot hold are moved inwards, never outwards.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import cache
from importlib import import_module
from typing import Any
from urllib.parse import unquote

from relaxpy.errors import UsageError
from relaxpy.narrow import is_list, is_mapping
from relaxpy.serve.ecma_pattern import rust_pattern

_DATA = frozenset("const enum default examples example required dependentRequired type".split())
"""Keywords whose values hold no schemas."""
_NAMED = frozenset("properties patternProperties $defs definitions dependentSchemas".split())
"""Keywords with schemas under names. Under any other keyword is a schema, or a list of them."""
EXACT = 1 << 53
"""Up to here each integer is a double."""
_LAST = (1 << 63) - 1024
"""The largest double that is an int64."""
_KINDS = (bool, "boolean"), (str, "string"), (list, "array"), (Mapping, "object")
_HUGE = 1e300
_STEP = Fraction(1, 10**12)
"""By how much a bound is moved that llguidance would take as inclusive."""
_DAY = (
    r"(?:(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    r"|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)"
)
"""A day of the calendar, from the year 1 on."""
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_FORMATS = {"date": f"^{_DAY}$", "date-time": f"^{_DAY}T{_TIME}$", "time": f"^{_TIME}$"}
"""Patterns of formats, in Rust's notation."""
_FEW = 256
"""So many integers between bounds are named one by one where doubles do not hold the bounds."""
_CHECKED_FORMATS = ("date", "ipv4", "ipv6")
_MOST_STEPS = 200_000
"""Keywords that one check of a text looks at. Schemas exist that take exponential time to check."""


def enforced(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema for llguidance: all of its texts are texts of `schema`. Raises: UsageError (`grammar`)."""
    return _mapped(_mapped(schema, _modern), _enforced)


def schemas_in(schema: Any) -> Iterator[Mapping[str, Any]]:
    """All schemas inside of one, and itself."""
    found: list[Mapping[str, Any]] = []

    def note(each: dict[str, Any]) -> dict[str, Any]:
        found.append(each)
        return each

    _mapped(schema, note)
    yield from found


def pointed(root: Any, place: str) -> Any:
    """What a pointer such as `#/$defs/a` leads to. Raises: LookupError, ValueError, TypeError."""
    found = root
    for step in place.partition("#")[2].split("/")[1:]:
        key = unquote(step).replace("~1", "/").replace("~0", "~")
        found = found[int(key)] if is_list(found) else found[key]
    return found


def types_of(value: Any) -> set[str]:
    """The types of a value, by the names of JSON Schema: a number that is whole is an integer, too."""
    if isinstance(value, float) and not value.is_integer():
        return {"number"}
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"integer", "number"}
    return {next((name for kind, name in _KINDS if isinstance(value, kind)), "null")}


def relocated(schema: Mapping[str, Any], place: str, name: str | None = None) -> dict[str, Any]:
    """A schema whose references lead to where it is now: at a pointer such as `#/$defs/tool`. `name` is the `$id` by
    which the whole refers to itself. Raises: UsageError (`grammar`) for parts with a name of their own."""

    def moved(each: dict[str, Any]) -> dict[str, Any]:
        target = each.get("$ref")
        if isinstance(target, str):
            base, _, pointer = target.partition("#")
            if base in ("", name) and (not pointer or pointer[0] == "/"):
                each["$ref"] = place + pointer
        each.pop("$schema", None)
        if "$id" in each and each.pop("$id") != name:
            raise UsageError(
                "grammar",
                "a part of a tool's schema has an $id of its own; $defs and $ref do without",
            )
        return each

    return _mapped(schema, moved)


def mismatch(schema: Mapping[str, Any], text: str) -> str | None:
    """What of a text is not as a schema has it; None if all of it is. Patterns are left to the grammar's automaton: a
    regular expression that backtracks may take for ever."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"it is no JSON: {error}" if isinstance(error, ValueError) else None
    checker, steps = _checker(), 0

    def counted(check: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps > _MOST_STEPS:
                raise _TooLong
            return check(*arguments)

        return run

    registry = import_module("referencing").Registry()  # which fetches nothing
    validators: Any = import_module("jsonschema.validators")
    kind = validators.validator_for(schema, default=validators.Draft202012Validator)
    kind = validators.extend(
        kind, {name: counted(check) for name, check in kind.VALIDATORS.items()}
    )
    own = _mapped(_mapped(schema, _modern), _checkable)
    try:
        found: Any = next(
            kind(own, registry=registry, format_checker=checker).iter_errors(value), None
        )
    except (_TooLong, RecursionError):
        return None
    return None if found is None else f"{found.json_path}: {found.message[:200]}"


class _TooLong(Exception):
    """Raised by a check that takes too long."""


@cache
def _checker() -> Any:
    from jsonschema import FormatChecker

    return FormatChecker(_CHECKED_FORMATS)


def _mapped(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """A schema whose parts that are schemas are changed, the inner ones first."""
    if is_list(schema):
        return [_mapped(each, change) for each in schema]
    if not is_mapping(schema):
        return schema
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _DATA:
            found[key] = value
        elif key in _NAMED and is_mapping(value):
            found[key] = {name: _mapped(each, change) for name, each in value.items()}
        else:
            found[key] = _mapped(value, change)
    return change(found)


def _modern(schema: dict[str, Any]) -> dict[str, Any]:
    """Draft 4's exclusive bounds, which are flags, as bounds; keywords that ask for nothing left out."""
    for name in ("Minimum", "Maximum"):
        flag, bound = f"exclusive{name}", name.lower()
        if isinstance(schema.get(flag), bool) and schema.pop(flag) and bound in schema:
            schema[flag] = schema.pop(bound)
    if schema.get("uniqueItems") is False:
        del schema["uniqueItems"]
    return schema


def _checkable(schema: dict[str, Any]) -> dict[str, Any]:
    schema.pop("pattern", None)
    if "patternProperties" in schema:
        for name in ("patternProperties", "additionalProperties", "unevaluatedProperties"):
            schema.pop(name, None)
    return schema


def _enforced(schema: dict[str, Any]) -> dict[str, Any]:
    if isinstance(pattern := schema.get("pattern"), str):
        schema["pattern"] = rust_pattern(pattern)
    if is_mapping(named := schema.get("patternProperties")):
        schema["patternProperties"] = {rust_pattern(name): each for name, each in named.items()}
    form = schema.get("format")
    if isinstance(form, str) and form in _FORMATS:
        del schema["format"]
        schema["allOf"] = [*schema.get("allOf", ()), {"pattern": _FORMATS[form]}]
    _check_keys(schema)
    return _with_bounds(schema)


def _check_keys(schema: Mapping[str, Any]) -> None:
    """Keys that no property names may be written twice, and count once."""
    least, required = schema.get("minProperties"), schema.get("required")
    is_closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    if is_closed or not isinstance(least, int):
        return
    if least > 1 + (len(required) if is_list(required) else 0):
        raise UsageError(
            "grammar",
            f"minProperties: {least} cannot be enforced for keys without a name: "
            "name them in `properties`, with `additionalProperties` false, or in `required`",
        )


def _with_bounds(schema: dict[str, Any]) -> dict[str, Any]:
    """Bounds of numbers that llguidance holds."""
    low, high = _bound(schema, "Minimum", max), _bound(schema, "Maximum", min)
    if low is None and high is None:
        return schema
    types = schema.get("type")
    if types == "integer" or (is_list(types) and "integer" in types and "number" not in types):
        _set_integers(schema, low, high)
    else:
        _set_numbers(schema, low, high)
    return schema


def _bound(
    schema: Mapping[str, Any], name: str, closer: Callable[..., Any]
) -> tuple[Fraction, bool] | None:
    """The bound that counts, and whether it is exclusive."""
    found: list[tuple[Fraction, bool]] = []
    for key, is_exclusive in ((name.lower(), False), (f"exclusive{name}", True)):
        value = schema.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if not -_HUGE < value < _HUGE:
                raise UsageError("grammar", f"{key} is beyond the numbers that can be enforced")
            found.append((Fraction(value), is_exclusive))
    if not found:
        return None
    place = closer(value for value, _ in found)
    return place, any(is_exclusive for value, is_exclusive in found if value == place)


def _set_integers(
    schema: dict[str, Any],
    low: tuple[Fraction, bool] | None,
    high: tuple[Fraction, bool] | None,
) -> None:
    least = None if low is None else math.floor(low[0]) + 1 if low[1] else math.ceil(low[0])
    most = None if high is None else math.ceil(high[0]) - 1 if high[1] else math.floor(high[0])
    if least is not None and most is not None and least > most:
        raise UsageError("grammar", f"no integer is between minimum {least} and maximum {most}")
    is_far = any(abs(each) > EXACT for each in (least, most) if each is not None)
    if (
        is_far
        and least is not None
        and most is not None
        and most - least < _FEW
        and "enum" not in schema
    ):
        least, most, schema["enum"] = None, None, [*range(least, most + 1)]
    elif is_far:
        # Beyond 18 digits llguidance wants both bounds, and both within int64.
        least = int(_inward(max(-_LAST, -_LAST if least is None else least), up=True))
        most = int(_inward(min(_LAST, _LAST if most is None else most), up=False))
        if least > most:
            raise UsageError(
                "grammar", "the bounds of integers are beyond int64, where they cannot be enforced"
            )
    _set(schema, "Minimum", least, False)
    _set(schema, "Maximum", most, False)


def _inward(value: int | Fraction, *, up: bool) -> float:
    """The next double, which beyond 2**53 is an integer."""
    near = float(value)
    if near != value and (near < value) == up:
        near = math.nextafter(near, math.inf if up else -math.inf)
    return near


def _set_numbers(
    schema: dict[str, Any],
    low: tuple[Fraction, bool] | None,
    high: tuple[Fraction, bool] | None,
) -> None:
    # An exclusive bound that is an integer admits that integer where the other bound is within 1 of it, on the side
    # away from zero; and below zero it admits -0.
    if low and high and low[1] and low[0].denominator == 1 and low[0] >= 0 and high[0] - low[0] < 1:
        low = low[0] + _STEP, False
    if (
        low
        and high
        and high[1]
        and high[0].denominator == 1
        and high[0] <= 0
        and high[0] - low[0] < 1
    ):
        high = high[0] - _STEP, False
    if low and high and low[0] > high[0]:
        raise UsageError(
            "grammar", f"no number is between minimum {float(low[0])} and maximum {float(high[0])}"
        )
    for name, bound, up in (("Minimum", low, True), ("Maximum", high, False)):
        if bound is not None:
            value, is_exclusive = bound
            near = _inward(value, up=up)
            number = int(near) if near.is_integer() else near
            _set(schema, name, number, is_exclusive and near == value)


def _set(schema: dict[str, Any], name: str, value: float | None, is_exclusive: bool) -> None:
    for key in (name.lower(), f"exclusive{name}"):
        schema.pop(key, None)
    if value is not None:
        schema[f"exclusive{name}" if is_exclusive else name.lower()] = value
