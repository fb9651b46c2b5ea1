"""The tables of docs/server_fields.md are those of the code. `python -m tests.docs.test_server_fields` writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

import pytest

pytest.importorskip("fastapi")

from relaxpy.server import known_fields
from relaxpy.server.app import ROUTES
from relaxpy.server.bodies import Body, SamplingBody
from tests.docs.markdown_pages import ROOT

PAGE = ROOT / "docs" / "server_fields.md"
TABLES = re.compile(r"(?<=<!-- tables -->\n\n).*", re.DOTALL)


def followed(kind: type[Body]) -> set[str]:
    return {field.alias or name for name, field in kind.model_fields.items()}


def listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def table(fields: Mapping[str, known_fields.Field]) -> str:
    """Rows of fields of which the same is said."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for name, each in sorted(fields.items()):
        if each.harmless is None:
            fate, values = "ignored", ""
        else:
            fate, values = "refused", ", ".join(f"`{json.dumps(value)}`" for value in each.harmless)
        rows.setdefault((fate, each.text, values), []).append(name)
    lines = [
        f"| {listed(names)} | {fate}{f', but {values}' if values else ''} | {text} |"
        for (fate, text, values), names in rows.items()
    ]
    return "\n".join(["| field | | |", "|---|---|---|", *sorted(lines)])


def section(title: str, names: set[str], others: Mapping[str, known_fields.Field]) -> str:
    head = f"## {title}\n\nFollowed: {listed(names)}.\n\n" if names else f"## {title}\n\n"
    return head + (table(others) + "\n\n" if others else "")


def tables() -> str:
    """All tables."""
    common = followed(SamplingBody)
    found = section("All requests for texts", common, known_fields.TEXTS)
    paths: dict[type[Body], list[str]] = {}
    for _, path, _, body in ROUTES:
        if body is not None:
            paths.setdefault(body, []).append(path)
    for body, own in paths.items():
        is_text = issubclass(body, SamplingBody)
        names = followed(body) - (common if is_text else set())
        others = {
            name: field
            for name, field in body.others.items()
            if not (is_text and known_fields.TEXTS.get(name) == field)
        }
        found += section(", ".join(own), names, others)
    for title, others in known_fields.INSIDE.items():
        found += section(f"Inside: {title}", set(), others)
    return found.rstrip() + "\n"


def with_tables(text: str) -> str:
    return TABLES.sub(lambda _: tables(), text, count=1)


def test_the_tables_are_those_of_the_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert with_tables(text) == text, "run: python -m tests.docs.test_server_fields"
    assert TABLES.search(text)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
