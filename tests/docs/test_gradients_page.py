"""The list of operators without a rule in docs/gradients.md is that of the classes; running this file writes it."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from relaxpy.op import OPS, Op

PAGE = Path(__file__).parents[2] / "docs/gradients.md"
BEGIN, END = "<!-- begin -->\n", "<!-- end -->\n"


def table() -> str:
    """The operators of each reason, in the order of the reasons."""
    found = sorted(
        (cls.no_vjp, name)
        for name, cls in OPS.items()
        if issubclass(cls, Op) and cls.no_vjp and cls.__module__.startswith("relaxpy.op.")
    )
    rows = [
        f"| {reason} | {', '.join(f'`{name}`' for _, name in own)} |"
        for reason, own in groupby(found, key=lambda pair: pair[0])
    ]
    return "\n".join(["| because | |", "|---|---|", *rows, ""])


def with_table(text: str) -> str:
    before, rest = text.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


def test_the_list_is_that_of_the_classes() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert with_table(text) == text, "run python -m tests.docs.test_gradients_page"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
