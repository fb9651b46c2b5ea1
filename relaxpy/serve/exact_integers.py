"""Grammars of schemas that name integers beyond 2**53 which no double is, such as ids of 64 bits.

llguidance reads numbers of schemas as doubles. Here the way to such an integer is written in Lark's notation, rule by
rule: objects, lists, alternatives, references; all other parts stay schemas. A keyword on that way that is not among
these is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relaxpy.errors import UsageError
from relaxpy.narrow import is_list, is_mapping
from relaxpy.serve.json_schema import EXACT, pointed, relocated, schemas_in, types_of

_NOTES = frozenset(
    "title description $comment default examples example deprecated readOnly writeOnly $schema $id".split()
)
_CHARACTER = r'(\\["\\bfnrt]|[^"\\\x00-\x1F\x7F])'


def is_needed(schema: Mapping[str, Any]) -> bool:
    """Whether a schema names an integer that llguidance would round."""
    return any(
        _is_rounded(each.get("const")) or _is_rounded(each.get("enum"))
        for each in schemas_in(schema)
    )


def exact_grammar(schema: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """The grammar in Lark's notation; `options` are those of llguidance for parts that stay schemas. Raises:
    UsageError (`grammar`)."""
    writer = _Writer(schema, options)
    start = writer.rule(schema)
    lines = [
        "%llguidance {}",
        f"start: {start}",
        *(f"{name}: {body}" for name, body in writer.rules.items()),
        f"ITEM: /{options['item_separator']}/",
        f"KEY: /{options['key_separator']}/",
    ]
    return "\n".join(lines)


def _is_rounded(value: Any) -> bool:
    if is_list(value):
        return any(map(_is_rounded, value))
    if is_mapping(value):
        return any(map(_is_rounded, value.values()))
    return (
        isinstance(value, int)
        and abs(value) > EXACT
        and (abs(value) >= 1 << 63 or int(float(value)) != value)
    )


class _Writer:
    """Writes rules, each under a name."""

    def __init__(self, root: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        self.root, self.options = root, options
        self.rules: dict[str, str] = {}
        self._references: dict[str, str] = {}
        """Reference → the name of its rule."""

    def rule(self, schema: Any) -> str:
        """The name of the rule of a schema."""
        name = f"r{len(self.rules)}"
        self.rules[name] = ""
        self.rules[name] = self._body(schema)
        return name

    def _body(self, schema: Any) -> str:
        if not is_mapping(schema) or not self._leads_there(schema, set()):
            return f"%json {json.dumps(self._part(schema))}"
        own = {
            key: value
            for key, value in schema.items()
            if key not in _NOTES | {"$defs", "definitions"}
        }
        for key in ("const", "enum"):
            if key in own:
                return self._values([own[key]] if key == "const" else own[key], own, key)
        if "$ref" in own:
            self._check(own, "$ref")
            return self._reference(own["$ref"])
        for key in ("anyOf", "oneOf"):
            if key in own:
                self._check(own, key)
                return " | ".join(self.rule(each) for each in own[key])
        if own.get("type") == "array" or (self._is_inside(own, "items") and "type" not in own):
            return self._list(own)
        return self._object(own)

    def _values(self, values: Sequence[Any], own: Mapping[str, Any], key: str) -> str:
        """Values as they are written. Beside `enum` there may be their type."""
        self._check(own, key, "type")
        types = own.get("type")
        allowed = {types} if isinstance(types, str) else set(types or ())
        kept = [each for each in values if not allowed or allowed & types_of(each)]
        if not kept:
            raise UsageError("grammar", f"no value of {key} is of the type {types}")
        return " | ".join(" ".join(self._written(each)) for each in kept)

    def _written(self, value: Any) -> Iterator[str]:
        if is_mapping(value) or is_list(value):
            pairs = value.items() if is_mapping(value) else ((None, each) for each in value)
            yield '"{"' if is_mapping(value) else '"["'
            for place, (key, each) in enumerate(pairs):
                yield from ("ITEM",) * bool(place)
                yield from () if key is None else (_quoted(key), "KEY")
                yield from self._written(each)
            yield '"}"' if is_mapping(value) else '"]"'
        else:
            text = json.dumps(value, ensure_ascii=False)
            yield json.dumps(text, ensure_ascii=False)

    def _reference(self, place: Any) -> str:
        if place not in self._references:
            name = self._references[place] = f"r{len(self.rules)}"
            self.rules[name] = ""
            self.rules[name] = self._body(self._at(place))
        return self._references[place]

    def _list(self, own: Mapping[str, Any]) -> str:
        self._check(own, "type", "items", "minItems", "maxItems")
        least, most = own.get("minItems", 0), own.get("maxItems")
        item = self.rule(own["items"])
        if most == 0:
            return '"[" "]"'
        more = f"(ITEM {item}){{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        return f'"[" {item} {more} "]"' + ("" if least else ' | "[" "]"')

    def _object(self, own: Mapping[str, Any]) -> str:
        """Properties in their order. `after` is what may follow some of them, `first` what may follow none."""
        if own.get("type", "object") != "object":
            raise _refused("type")
        self._check(own, "type", "properties", "required", "additionalProperties")
        properties, required = own.get("properties", {}), own.get("required", ())
        rest = own.get("additionalProperties", True)
        names = [*properties, *(name for name in required if name not in properties)]
        after = first = '""'
        if rest is not False:
            taken = " | ".join(_quoted(name) for name in names)
            free = f"K{len(self.rules)}"
            self.rules[free] = f'/"{_CHARACTER}*"/' + (f" & ~({taken})" if taken else "")
            pair = self._named(f"{free} KEY {self.rule(rest)}")
            after, first = f"(ITEM {pair})*", f"({pair} (ITEM {pair})*)?"
        for name in reversed(names):
            part = self.rule(properties.get(name, rest))
            pair = self._named(f"{_quoted(name)} KEY {part}")
            after = self._named(after)
            first = f"{pair} {after}" + ("" if name in required else f" | {self._named(first)}")
            after = f"ITEM {pair} {after}" + ("" if name in required else f" | {after}")
        return f'"{{" {self._named(first)} "}}"'

    def _named(self, body: str) -> str:
        name = f"r{len(self.rules)}"
        self.rules[name] = body
        return name

    def _part(self, schema: Any) -> dict[str, Any]:
        """A part that stays a schema. Where it refers to others, it brings the whole."""
        if not is_mapping(schema):
            schema = {} if schema else {"not": {}}
        found = dict(schema)
        if any("$ref" in each for each in schemas_in(schema)):
            name = self.root.get("$id")
            found = {
                **relocated(schema, "#/$defs/whole", name),
                "$defs": {"whole": relocated(self.root, "#/$defs/whole", name)},
            }
        return {**found, "x-guidance": {**self.options, "lenient": False}}

    def _leads_there(self, schema: Any, seen: set[str]) -> bool:
        """Whether a rounded integer is inside of a schema, or where it refers to."""
        if is_needed(schema):
            return True
        for each in schemas_in(schema):
            place = each.get("$ref")
            if isinstance(place, str) and place not in seen:
                seen.add(place)
                if self._leads_there(self._at(place), seen):
                    return True
        return False

    def _is_inside(self, own: Mapping[str, Any], key: str) -> bool:
        return key in own and self._leads_there(own[key], set())

    def _at(self, place: Any) -> Any:
        """What a reference leads to."""
        base = str(place).partition("#")[0]
        try:
            if base not in ("", self.root.get("$id")):
                raise KeyError(base)
            return pointed(self.root, str(place))
        except (KeyError, IndexError, ValueError, TypeError):
            raise UsageError(
                "grammar", f"the reference {str(place)[:80]!r} leads nowhere"
            ) from None

    def _check(self, own: Mapping[str, Any], *known: str) -> None:
        if strange := [key for key in own if key not in known]:
            raise _refused(strange[0])


def _refused(keyword: str) -> UsageError:
    return UsageError(
        "grammar",
        f"beside or around an integer beyond 2**53 the keyword {keyword!r} cannot be enforced: "
        "write such integers as strings, or within plain objects, lists and anyOf",
    )


def _quoted(name: str) -> str:
    """A key as Lark writes a text that is a text of JSON."""
    return json.dumps(json.dumps(name, ensure_ascii=False), ensure_ascii=False)
