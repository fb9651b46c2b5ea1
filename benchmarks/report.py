"""Tables of docs/benchmarks.md that benchmarks write themselves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "benchmarks" / "results"


def save(name: str, report: dict[str, Any]) -> Path:
    """Write benchmarks/results/NAME.json."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    return path


def saved(name: str) -> dict[str, Any]:
    """The contents of benchmarks/results/NAME.json; empty where there is none."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def remarks(name: str) -> str:
    """Remarks written by hand: the machine, why goals are missed. From benchmarks/results/NAME_remarks.md."""
    return (RESULTS / f"{name}_remarks.md").read_text(encoding="utf-8").strip()


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: str = "") -> str:
    """A table in Markdown; `right` says with an "r" a column which are flushed right."""
    rules = ["---:" if i < len(right) and right[i] == "r" else "---" for i in range(len(columns))]
    lines = [columns, rules, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def print_tables(found: Sequence[tuple[Sequence[str], Sequence[Sequence[str]]]]) -> None:
    """Print tables on the terminal: columns and rows of each."""
    console = Console()
    for columns, rows in found:
        table = Table(*columns)
        for row in rows:
            table.add_row(*row)
        console.print(table)


def replace_section(heading: str, body: str, page: Path = PAGE) -> None:
    """Give the section `## heading` of the page this body, or add it at the end."""
    text = page.read_text(encoding="utf-8")
    start = text.find(f"## {heading}\n")
    if start < 0:
        text = f"{text.rstrip()}\n\n## {heading}\n\n{body.strip()}\n"
    else:
        end = text.find("\n## ", start)
        rest = text[end:] if end >= 0 else ""
        text = f"{text[:start]}## {heading}\n\n{body.strip()}\n{rest}"
    page.write_text(text, encoding="utf-8")
