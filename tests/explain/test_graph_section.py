"""Graphs on the page: what is in one, and why the rest is in none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import relaxpy
from relaxpy.build.pipeline import default_pipeline
from relaxpy.explain import Explanation, explain, page
from tests.explain.test_page import check
from tests.hostile.backend import hostile_targets

TEXT = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 4), "float32")):
        y = R.nn.softmax(R.nn.softmax(x))
        z = R.unique(y)
        return R.exp(z)
"""


@pytest.fixture(autouse=True)
def devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with hostile_targets(monkeypatch):
        yield


def explained(target: str = "hostile") -> Explanation:
    return explain(relaxpy.parse(TEXT, filename="model.py"), target, sizes={"n": 4})


def test_the_calls_and_their_reasons() -> None:
    found = explained().as_json()["graphs"]
    assert [(each["callee"], each["graph"]) for each in found] == [
        ("softmax", 0),
        ("softmax", 0),
        ("unique", None),
        ("exp", None),
    ]
    assert found[2]["reason"] == "it is no launch, but a call"
    assert found[3]["reason"] == (
        "a graph has 2 launches or more; between a copy to hostile:0:global and the end there is 1"
    )


def test_the_section() -> None:
    text = page(explained())
    assert "graphs" in check(text).ids
    assert "2 of 4 calls are launches in 1 graph." in text
    assert "it is no launch, but a call" in text
    assert "model.py:7" in text


def test_no_section_where_nothing_is_replayed() -> None:
    assert explained("llvm").graphs == ()
    assert "graphs" not in check(page(explained("llvm"))).ids
    pipeline = default_pipeline("hostile", without=("lift-graphs",))
    assert explain(relaxpy.parse(TEXT), "hostile", pipeline=pipeline).graphs == ()
