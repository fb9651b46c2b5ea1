"""docs/operators.md is derived from the operators; `python tests/docs/test_operators.py` writes it."""

from __future__ import annotations

import inspect
from itertools import groupby
from pathlib import Path

from relaxpy.op import OPS, Op

PAGE = Path(__file__).parents[2] / "docs/operators.md"

HEADER = """\
# Operators

Written from the classes in `relaxpy/op` by `python tests/docs/test_operators.py`. In script each is `R.NAME(…)`:
arguments first, then attributes (with their defaults), by position or by keyword.
[Adding an operator](add_an_operator.md) says what a class has to say.
"""


def subject(op: type[Op]) -> str:
    """The file that an operator stands in."""
    return op.__module__.split(".")[-1]


def render() -> str:
    """The page: a table a file, operators by name."""
    own = [op for op in OPS.values() if op.__module__.startswith("relaxpy.op.")]
    parts = [HEADER]
    for name, ops in groupby(sorted(own, key=lambda op: (subject(op), op.name)), subject):
        parts.append(f"\n## `relaxpy/op/{name}.py`\n\n| operator | |\n|---|---|\n")
        for op in ops:
            text = inspect.cleandoc(op.__doc__ or "").split("\n\n")[0]
            summary = " ".join(text.split()).replace("|", "\\|")
            usage = f"({', '.join(op._usage())})" if issubclass(op, Op) else ""
            parts.append(f"| `R.{op.name}{usage}` | {summary} |\n")
    return "".join(parts)


def test_the_page_is_up_to_date() -> None:
    """Every operator is on the page as it is in the source."""
    assert PAGE.read_text(encoding="utf-8") == render(), "run: python tests/docs/test_operators.py"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
