"""The suites `simple`, `pytorch-converted` and `pytorch-operator` that come with onnx, interpreted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from relaxpy.errors import UsageError
from relaxpy.frontend.onnx.importer import import_model
from relaxpy.testing.interpret import interpret
from tests.sweeps import sweep

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
SUITES = ("simple", "pytorch-converted", "pytorch-operator")
REFUSED = {
    "test_gradient": "preview.training",
    "test_strnorm": "StringNormalizer",  # texts
    "test_sequence_model8": "the parts must be known",  # they are an input
}
"""Beginnings of names → what the error says."""
CASES = [case for suite in SUITES for case in sorted((DATA / suite).iterdir())]


def tensors(folder: Path, kind: str) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    for index in range(len(list(folder.glob(f"{kind}_*.pb")))):
        proto = TensorProto()
        proto.ParseFromString((folder / f"{kind}_{index}.pb").read_bytes())
        found.append(numpy_helper.to_array(proto))
    return found


@sweep(2)
@pytest.mark.filterwarnings("ignore:the model says")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_gives_the_numbers_of_the_suite(case: Path) -> None:
    model = onnx.load(case / "model.onnx")
    reason = next((text for name, text in REFUSED.items() if case.name.startswith(name)), None)
    if reason is not None:
        with pytest.raises(UsageError, match=reason):
            import_model(model)
        return
    program = import_model(model)
    for folder in case.glob("test_data_set_*"):
        names = [each.name for each in model.graph.input]
        given = dict(zip(names, tensors(folder, "input"), strict=False))
        arguments = [given[each.name] for each in program.inputs]
        found: Any = interpret(program.mod, "main", *arguments, *program.params.values())
        results = list(found) if isinstance(found, (tuple, list)) else [found]
        for one, two in zip(results, tensors(folder, "output"), strict=True):
            np.testing.assert_allclose(np.asarray(one), two, rtol=1e-3, atol=1e-5)
