"""Hostile bodies for every route of the server, made from the schema of the route's body.

    python -m tests.server.hostile_bodies --count 20000
    python -m tests.server.hostile_bodies --first 4711 --count 1 --show

Body number k is the same in each run. It is a right body with a hostile value in one place or in several: another type, a
huge list or text, deep nesting, half of a surrogate pair, NaN, a huge number, null, a field twice, nothing at all; or it is
no JSON. Requests are sent one by one, and of each the processor time and the memory that the server's process took is
measured. The command fails if an answer is 5xx or none, if a request took more than the bounds below, or if the server
is not there afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import httpx

from relaxpy.models.sentence_embedding import PACKAGE
from relaxpy.server.app import ROUTES
from tests.server.running import KEY, Running, server_process

MOST_SECONDS = 0.2
"""Of the processor, for a request."""
LARGEST = 10_000_000
"""The most characters of what is repeated."""
MOST_BYTES = 50 << 20
"""More memory than before the request."""
VECTORS = ("--embeddings", "minilm") if find_spec(PACKAGE) else ()
VECTORS_ROUTE = "/v1/embeddings"
"""Its model computes in the server's process: what it computes rightly is not measured."""
SETTINGS = ("--api-key", KEY, "--request-seconds", "5", *VECTORS)
"""Of a server for hostile bodies."""
WORDS = ("a", "tuple", "list of", "def f(x):", "naïve", "\n", "日本", "<|end|>", "{}", "name")
MEANINGS: Mapping[str, tuple[Any, ...]] = {
    "model": ("", "", "relaxpy", "none"),
    "max_tokens": (1, 2, 4), "max_completion_tokens": (1, 2), "max_output_tokens": (1, 2), "n": (1, 1, 2),
    "guided_regex": ("[ab]{1,3}", "(a|b"), "guided_grammar": ('start: "a"', "root ::= x"), "grammar": ('root ::= "a"',),
    "guided_choice": (["a", "b"], []), "guided_json": ({"type": "object"}, {"type": "array", "minItems": 9}),
    "json_schema": ({"type": "object"}, {"name": "a", "schema": {"type": "object"}}),
    "best_of": (None, 1), "suffix": (None, ""), "arguments": ("{}", "{", '{"a": 1}'),
    "encoding_format": ("float", "base64"), "input_schema": ({"type": "object"},),
}  # fmt: skip
"""Right values of fields whose schema says too little, or whose right values take long."""


class Raw:
    """A text that is put into JSON as it is."""

    def __init__(self, text: str) -> None:
        self.text = text


@dataclass(frozen=True)
class Body:
    """A request."""

    method: str
    path: str
    data: bytes


def hostile_request(number: int) -> Body:
    """Request number so and so."""
    pick = random.Random(f"hostile {number}")
    method, path, _, kind = ROUTES[number % len(ROUTES)]
    if kind is None:
        name = pick.choice((*TEXTS, "relaxpy", "../../etc/passwd", "resp_" + "0" * 32))
        name = name.encode("utf-8", "surrogatepass")[: pick.choice((20, 2000))]
        return Body(
            method, path.replace("{name}", quote(name)).replace("{name:path}", quote(name)), b""
        )
    value = Right(pick, kind.model_json_schema()).body()
    for _ in range(pick.choice((1, 1, 1, 2, 3))):
        value = changed(pick, value)
    data = "".join(written(value)).encode("utf-8", "surrogatepass")
    return Body(method, path, broken(pick, data) if pick.random() < 0.06 else data)


class Right:
    """Makes right values of a schema."""

    def __init__(self, pick: random.Random, schema: Mapping[str, Any]) -> None:
        self.pick, self.root = pick, schema

    def body(self) -> Any:
        return self.value(self.root, 0)

    def value(self, schema: Mapping[str, Any], depth: int, name: str = "") -> Any:
        pick = self.pick
        if name in MEANINGS and pick.random() < 0.9:
            return pick.choice(MEANINGS[name])
        if "$ref" in schema:
            return self.value(self.root["$defs"][schema["$ref"].rpartition("/")[2]], depth, name)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return pick.choice(schema["enum"])
        for key in ("anyOf", "oneOf", "allOf"):
            if key in schema:
                return self.value(pick.choice(schema[key]), depth, name)
        kind = schema.get("type")
        if kind == "object":
            return self.object(schema, depth)
        if kind == "array":
            least = schema.get("minItems", 0)
            count = min(max(least, pick.choice((0, 1, 1, 2, 3))), schema.get("maxItems", 9))
            return [self.value(schema.get("items", {}), depth + 1) for _ in range(count)]
        if kind == "string":
            text = " ".join(pick.choices(WORDS, k=pick.choice((1, 1, 3))))
            return pick.choice(("f", "get_1", "x.y-z")) if "pattern" in schema else text
        if kind in ("integer", "number"):
            low = schema.get("minimum", schema.get("exclusiveMinimum", -3))
            high = schema.get("maximum", schema.get("exclusiveMaximum", 1000))
            whole = pick.randint(int(max(low, 0)), int(min(high, max(low, 0) + 9)))
            return whole if kind == "integer" or whole > low else (low + min(high, low + 1)) / 2
        if kind == "boolean":
            return pick.random() < 0.5
        return None if kind == "null" else pick.choice((1, "a", {"type": "object"}, ["a"], None))

    def object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        pick, found = self.pick, dict[str, Any]()
        for name, each in schema.get("properties", {}).items():
            if name in schema.get("required", ()) or name == "max_tokens" or pick.random() < 0.12:
                found[name] = self.value(each, depth + 1, name)
        more = schema.get("additionalProperties")
        if isinstance(more, Mapping):
            found[str(pick.randint(0, 99))] = self.value(more, depth + 1)
        return found


TEXTS = (
    "", " ", "\0", "\ud800", "a\udfff", "\U0001f600", "\u202e", "null", "-1", "<|end|>", "<|user|>", "../..", "%00", "{{ 7 * 7 }}",
    "\r\n\r\n", "'\"\\", "http://[", "٣", "\ufdd00\ufdd1", "e\u0301" * 40,
)  # fmt: skip
NUMBERS = (
    "0", "-1", "-0.0", "0.5", "1e308", "-1e308", "1e-400", "1e999", "NaN", "-Infinity", "2147483648", "9223372036854775808",
    "-9223372036854775809", "9007199254740993", "1" + "0" * 400, "1" + "0" * 4000, "9" * 5000, "0." + "3" * 5000, "1" * 400 + ".5",
    "01", "+1", "1.", "0x1", "--1",
)  # fmt: skip
UNITS = ("0", '""', "{}", "[]", "null", "[[]]", '{"type":"text","text":"a"}', '{"role":"user","content":"a"}', '"a"', "1.5", '{"a":{"b":0}}')  # fmt: skip
SCHEMAS: tuple[Any, ...] = (
    {"$ref": "#"}, {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, {"type": "array", "minItems": 10**9},
    {"enum": [*range(3000)]}, {"pattern": "(a|b)*" * 99, "type": "string"}, {"anyOf": [{"const": n} for n in range(200)]},
    {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(400)}}, {"type": "no"}, {"minimum": 1e400},
    {"allOf": [{"type": "string", "pattern": f".*a{n}.*"} for n in range(20)]}, {"const": "\ud800"}, {"x-guidance": {}},
    {"type": "string", "minLength": 1 << 40}, {"multipleOf": 0}, {"required": [1]}, {"properties": []}, {"items": [{}]},
)  # fmt: skip


def hostile_value(pick: random.Random, old: Any) -> Any:
    """A value for a place where another one is right."""
    kind = pick.randrange(14)
    if kind == 0:
        return pick.choice((None, True, False, [], {}, "", 0))
    if kind == 1:
        return Raw(pick.choice(NUMBERS))
    if kind == 2:
        return pick.choice(TEXTS)
    if kind == 3:
        count = pick.choice(
            (100, 5000, 5000, 70_000, 300_000, 2_000_000 if pick.random() < 0.2 else 20_000)
        )
        return Raw("[" + ",".join([pick.choice(UNITS)] * count) + "]")
    if kind == 4:
        depth = pick.choice((5, 64, 66, 198, 300, 5000, 100_000))
        return Raw(
            pick.choice(
                ("[" * depth + "]" * depth, '{"a":' * depth + "0" + "}" * depth, "[" * depth)
            )
        )
    if kind == 5:
        size = pick.choice(
            (2000, 70_000, 70_000, 300_000, 1_000_000, 8_000_000 if pick.random() < 0.3 else 40_000)
        )
        unit = pick.choice(
            (*TEXTS[1:], "a", "a b ", "\\", "[", "x\U0001f600", "😀", " ", "\n", "9")
        )
        return (unit * (size // len(unit) + 1))[:size]
    if kind == 6:
        return [old]
    if kind == 7:
        return {pick.choice(("a", "type", "", "__proto__", "\ud800")): old}
    if kind == 8:
        return pick.choice(SCHEMAS)
    if kind == 9:
        count = pick.choice((50, 3000, 30_000))
        return Raw("{" + ",".join(f'"k{n}":{pick.choice(UNITS)}' for n in range(count)) + "}")
    if kind == 10 and isinstance(old, list):
        return old * times(old, pick.choice((2, 50, 2000)))
    if kind == 11 and isinstance(old, str):
        return old + pick.choice(TEXTS) * pick.choice((1, 1, 100))
    if kind == 12 and isinstance(old, dict):
        pairs = [f"{''.join(written(name))}:{''.join(written(each))}" for name, each in old.items()]
        count = times(old, pick.choice((1, 1, 400)))
        return Raw("{" + ",".join([*pairs, *pairs[:1], *pairs] * count) + "}")
    return pick.choice(
        ("text", 1, 1.5, [1], ["a"], [None], {"a": 1}, {"type": "text"}, [[1]], [{}])
    )


def times(value: Any, count: int) -> int:
    """How many times a value is repeated: fewer than that if it would be larger than any body."""
    size = sum(map(len, written(value)))
    return max(min(count, LARGEST // max(size, 1)), 1)


def changed(pick: random.Random, value: Any) -> Any:
    """The value with a hostile one in it."""
    if isinstance(value, dict) and value and pick.random() < 0.93:
        name = pick.choice([*value])
        found = {**value, name: changed(pick, value[name])}
        if pick.random() < 0.02:
            found[pick.choice(TEXTS)] = hostile_value(pick, None)
        return found
    if isinstance(value, list) and value and pick.random() < 0.8:
        place = pick.randrange(len(value))
        return [*value[:place], changed(pick, value[place]), *value[place + 1 :]]
    return hostile_value(pick, value)


def written(value: Any) -> Iterator[str]:
    """The value as JSON; half a surrogate pair as an escape or as bytes."""
    if isinstance(value, Raw):
        yield value.text
    elif isinstance(value, dict):
        for number, (name, each) in enumerate(value.items()):
            yield ("," if number else "{") + json.dumps(name) + ":"
            yield from written(each)
        yield "}" if value else "{}"
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield "," if number else "["
            yield from written(each)
        yield "]" if value else "[]"
    else:
        yield json.dumps(value, ensure_ascii=isinstance(value, str) and len(value) % 2 == 0)


def broken(pick: random.Random, data: bytes) -> bytes:
    """Bytes that are no JSON, or hardly."""
    place = pick.randrange(len(data) + 1)
    return pick.choice(
        (
            b"", b"[]", b"null", b'"', data[:place], data + data, data[:place] + b"\xff" + data[place:], b"\xef\xbb\xbf" + data,
            data[:place] + b"\0" + data[place:], data.decode("utf-8", "replace").encode("utf-16"), b"\x1f\x8b" + data, data + b",",
            b" " * 100_000 + data, data[:place] + data[place + 1 :], b"{" + data, b"[" * 300_000, b'{"a":' * 100_000, b'"' * 3_000_000,
            b"\\" * 1_000_000,
        )
    )  # fmt: skip


@dataclass
class Report:
    """What became of requests."""

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    seconds: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    bytes: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Processor time and memory of each request, and its number."""
    failures: list[str] = field(default_factory=list[str])

    @property
    def excesses(self) -> list[str]:
        """The requests that took too much."""
        found = [
            f"request {n} took {each:.2f} s" for each, n in self.seconds if each > MOST_SECONDS
        ]
        return found + [
            f"request {n} took {each / (1 << 20):.1f} MiB"
            for each, n in self.bytes
            if each > MOST_BYTES
        ]

    def lines(self) -> Iterator[str]:
        for path in dict.fromkeys(path for path, _ in self.statuses):
            own = {status: n for (each, status), n in sorted(self.statuses.items()) if each == path}
            yield f"{path}: " + ", ".join(f"{n} × {status}" for status, n in own.items())
        seconds, sizes = sorted(self.seconds), sorted(self.bytes)
        yield f"{len(seconds)} requests, {sum(each for each, _ in seconds):.1f} s of the processor"
        yield "most seconds: " + ", ".join(f"{each:.2f} (request {n})" for each, n in seconds[-5:])
        yield "most MiB: " + ", ".join(
            f"{each / (1 << 20):.1f} (request {n})" for each, n in sizes[-5:]
        )


def measured(running: Running, numbers: Sequence[int]) -> Report:
    """Send requests one by one."""
    assert running.process is not None
    process, found = Process(running.process.pid), Report()
    head = {"x-api-key": KEY, "content-type": "application/json"}
    with httpx.Client(base_url=running.url, headers=head, timeout=120) as http:
        for number in numbers:
            body = hostile_request(number)
            process.begin()
            try:
                answer = http.request(body.method, body.path, content=body.data)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                found.failures.append(f"request {number}: {type(error).__name__} {error}")
                continue
            route = ROUTES[number % len(ROUTES)][1]
            if route != VECTORS_ROUTE or answer.status_code != 200:
                found.seconds.append((process.seconds(), number))
                found.bytes.append((process.bytes(), number))
            found.statuses[route, answer.status_code] += 1
            if answer.status_code >= 500:
                found.failures.append(f"request {number}: {answer.status_code} {answer.text[:300]}")
        if http.get("/health").status_code != 200:
            found.failures.append("the server is not well afterwards")
    return found


class Process:
    """The processor time and the memory of a process, by Linux's account."""

    def __init__(self, pid: int) -> None:
        self.place = Path(f"/proc/{pid}")
        self._seconds, self._bytes = 0.0, 0

    def begin(self) -> None:
        """From now on."""
        (self.place / "clear_refs").write_text("5")  # the largest size is that of now
        self._seconds, self._bytes = self._time(), self._field("VmRSS")

    def seconds(self) -> float:
        return self._time() - self._seconds

    def bytes(self) -> int:
        return self._field("VmHWM") - self._bytes

    def _time(self) -> float:
        fields = (self.place / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _field(self, name: str) -> int:
        for line in (self.place / "status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) << 10
        raise AssertionError(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--show", action="store_true", help="show the requests, and send none")
    given = parser.parse_args()
    numbers = range(given.first, given.first + given.count)
    if given.show:
        for number in numbers:
            body = hostile_request(number)
            click.echo(
                f"{body.method} {body.path[:300]} {len(body.data)} bytes: {body.data[:2000]!r}"
            )
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        server_process(Path(folder), *SETTINGS) as running,
    ):
        measured(running, range(1_000_000, 1_000_200))  # whatever is made once
        report = measured(running, numbers)
    for line in report.lines():
        click.echo(line)
    wrong = [*report.failures, *report.excesses]
    for line in wrong[:50]:
        click.echo(line)
    click.echo(f"{len(report.failures)} failed, {len(report.excesses)} took too much")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
