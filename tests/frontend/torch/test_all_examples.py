"""Torch's own examples of what export takes (`torch._export.db`), beside themselves."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._export.db
from torch.utils import _pytree as pytree

import relaxpy
from tests.sweeps import part, sweep

NAMES = sorted(
    path.stem
    for path in (Path(torch._export.db.__path__[0]) / "examples").glob("*.py")
    if path.stem != "__init__"
)


@cache
def examples() -> dict[str, Any]:
    """Torch builds all of them when they are imported, which takes a second."""
    from torch._export.db.examples import all_examples

    return dict(all_examples())


@sweep(2)
@sweep
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", part(NAMES, 3))
def test_an_example_gives_its_own_results(name: str) -> None:
    """At the example's sizes, and at others where there are some."""
    example = examples()[name]
    given = copy.deepcopy((example.example_args, dict(example.example_kwargs or {})))
    compiled = relaxpy.compile(
        example.model, *given[0], kwargs=given[1], dynamic_shapes=example.dynamic_shapes,
        target="llvm -opt-level=0",
    )  # fmt: skip
    for args, kwargs in (given, *([(example.extra_args, {})] if example.extra_args else [])):
        model, own = copy.deepcopy((example.model, (args, kwargs)))
        with torch.no_grad():
            want = model(*own[0], **own[1])
        found = compiled(*copy.deepcopy(args), **kwargs)
        torch.testing.assert_close(pytree.tree_leaves(found), pytree.tree_leaves(want))
