"""Targets of any backend: how their texts are read."""

from __future__ import annotations

import subprocess
import sys

import pytest

from relaxpy.errors import BuildError
from relaxpy.target import Target, first_word, options_of


def test_handling_targets_is_light() -> None:
    """Neither the compiler nor numpy is loaded before a target is parsed."""
    code = "import relaxpy.target, relaxpy.backend.registry, sys; print([m for m in ('tvm', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_options() -> None:
    text = "kind -a=1 '-b=x y'"
    assert first_word(text) == "kind"
    assert first_word("  ") == ""
    assert options_of(text, ("a", "b", "c")) == {"a": "1", "b": "x y"}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("kind a=1", 'cannot read "a=1"'),
        ("kind -a", 'cannot read "-a"'),
        ("kind -a=", 'cannot read "-a="'),
        ("kind -a=1 -a=2", "is repeated"),
        ("kind -aa=1", "unknown target option -aa"),
        ("kind '", "cannot read the target"),
    ],
)
def test_options_that_cannot_be_read(text: str, match: str) -> None:
    with pytest.raises(BuildError, match=match) as error:
        options_of(text, ("a",))
    assert error.value.code == "target-option"


@pytest.mark.parametrize("value", [5, None, b"llvm"])
def test_a_target_is_text(value: object) -> None:
    with pytest.raises(BuildError, match="a target is a string") as error:
        Target.parse(value)  # pyright: ignore[reportArgumentType]
    assert error.value.code == "target-kind"


def test_a_kind_in_other_letters() -> None:
    with pytest.raises(BuildError, match='unknown target kind "LLVM"') as error:
        Target.parse("LLVM")
    assert "llvm -mcpu=haswell" in str(error.value.help)
