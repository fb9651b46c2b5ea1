"""Whole programs as ONNX files: the checker takes each, ONNX Runtime computes the same from one file at every size, and
so does our reader."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.testing.interpret import interpret

onnx: Any = pytest.importorskip("onnx")

import tests.onnx.written_scripts  # noqa: E402  (fills the table)
import tests.onnx.written_sequences  # noqa: E402, F401
from tests.onnx.test_exporter import equal, flat, of_reader, of_runtime, onnxruntime  # noqa: E402
from tests.onnx.written import PROGRAMS  # noqa: E402
from tests.sweeps import full, sweep  # noqa: E402


def test_there_are_sixty() -> None:
    assert len(PROGRAMS) >= 60


SLOW = ("from_torch",)
"""They import much: others of `make test` see the same operators."""


@sweep(2)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[full] if name in SLOW else []) for name in PROGRAMS]
)
def test_programs(name: str, tmp_path: Path) -> None:
    made = PROGRAMS[name]()
    path = tmp_path / "model.onnx"
    told = pytest.warns(match=re.escape(made.unchecked)) if made.unchecked else nullcontext()
    with told as warned:
        relaxpy.onnx.export(made.mod, path, params=made.weights, function=made.function)
    assert all(each.filename == __file__ for each in warned or ())
    onnx.checker.check_model(str(path), full_check=True)
    model = onnx.load(path)
    assert len(made.calls) > 1
    seen = 0
    for given in made.calls:
        wanted = flat(interpret(made.mod, made.function, *given, *made.weights.values()))
        seen += sum(np.size(each) > 0 for each in wanted)
        arrays = flat(given)
        equal(of_reader(model, arrays), wanted, made.tolerance)
        if onnxruntime is not None and made.kernels:
            equal(of_runtime(model, arrays), wanted, made.tolerance)
    assert seen > 1
