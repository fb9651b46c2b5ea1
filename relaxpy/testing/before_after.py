"""Runs the Before and After examples in the docstrings of passes, so that this documentation is tested."""

from __future__ import annotations

import inspect
import textwrap
from typing import NamedTuple

from relaxpy.ir.module import IRModule
from relaxpy.ir.structural import assert_structural_equal
from relaxpy.script import parse
from relaxpy.transform.base import Pass, PassContext


class BeforeAfter(NamedTuple):
    """The two programs in a docstring."""

    before: IRModule
    after: IRModule


def read_example(kind: type[Pass]) -> BeforeAfter:
    """The programs under `Before` and `After` in the docstring of a pass. Raises `ValueError` if there are none."""
    text = inspect.getdoc(kind) or ""
    return BeforeAfter(parse(_section(text, "Before", kind)), parse(_section(text, "After", kind)))


def check_example(step: Pass, ctx: PassContext | None = None) -> None:
    """Runs a pass on the Before program of its docstring and compares with After. Raises `AssertionError` if they
    differ."""
    example = read_example(type(step))
    assert_structural_equal(step(example.before, ctx), example.after)


def _section(text: str, title: str, kind: type[Pass]) -> str:
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith(title) and line.endswith(":")]
    if not starts:
        raise ValueError(f"the docstring of {kind.__name__} has no {title}")
    block: list[str] = []
    for line in lines[starts[0] + 1 :]:
        if line.strip() and not line.startswith(" "):
            break
        block.append(line)
    return textwrap.dedent("\n".join(block)).strip() + "\n"
