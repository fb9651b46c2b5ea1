"""The launches of kernels on devices, as the page about a build shows them; no device is needed."""

from __future__ import annotations

import json
from typing import Any

import pytest

import relaxpy
from relaxpy.explain import Explanation, explain, explain_executable, page
from relaxpy.explain.grid import Grid, grid_of

MOD = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", 8), "float32"), q: R.Tensor(("b", "n", 2, 8), "float32")):
    n = T.int64()
    b = T.int64()
    y = R.nn.softmax(x)
    z = R.nn.attention(q, q, q)
    return (y, z)
""")


@pytest.fixture(scope="module")
def explanation() -> Explanation:
    return explain(MOD, "webgpu")


def grid(explanation: Explanation, name: str) -> Grid:
    (found,) = (k.grid for k in explanation.kernels if k.name.startswith(name))
    assert found is not None
    return found


def test_groups_and_bindings(explanation: Explanation) -> None:
    softmax = grid(explanation, "softmax")
    assert softmax.device == "webgpu"
    assert softmax.groups == ("n",)
    assert softmax.threads == ("64",)
    assert softmax.numbers == ("n",)
    assert softmax.shared == 64 * 4
    assert [str(b) for b in softmax.bindings] == [
        "data: float32[n, 8] (read)",
        "softmax: float32[n, 8] (write)",
    ]
    assert not softmax.workspaces


def test_workspaces(explanation: Explanation) -> None:
    """Tensors that attention keeps between its stages; the caller passes them."""
    attention = grid(explanation, "attention")
    assert attention.groups[0].count("*") == 2  # a group for each batch, head and query
    assert {b.name for b in attention.workspaces} == {"products", "powers"}
    assert {b.name for b in attention.bindings} >= {"query", "key", "value", "attention"}


def test_an_executable_has_no_names(explanation: Explanation) -> None:
    assert explanation.executable is not None
    softmax = grid(explain_executable(explanation.executable), "softmax")
    assert softmax.groups == ("h0",)
    assert [b.name for b in softmax.bindings] == ["argument0", "argument1"]


def test_the_page_and_json(explanation: Explanation) -> None:
    text = page(explanation)
    assert '<section id="grids">' in text
    assert "<td><code>n</code></td><td><code>64</code></td>" in text
    kernels: list[dict[str, Any]] = json.loads(json.dumps(explanation.as_json()))["kernels"]
    (softmax,) = (k["grid"] for k in kernels if k["name"].startswith("softmax"))
    assert softmax["groups"] == ["n"]


def test_kernels_of_processors_have_none() -> None:
    exe = relaxpy.build(MOD)
    assert {grid_of(exe, info) for info in exe.kernels} == {None}
    assert '<section id="grids">' not in page(explain_executable(exe))
