"""Programs that import onnxruntime, unchanged, beside themselves with relaxpy in its place: `make test-onnx-programs`, which
installs their packages. Their answers are equal, their scores to 1e-4."""

from __future__ import annotations

import numpy as np
import pytest

from tests.onnx.programs import answers
from tests.sweeps import full


@full("make test-onnx-programs")
@pytest.mark.parametrize(("program", "count"), [("ocr", 20), ("vad", 1), ("files", 300)])
def test_a_program_does_not_notice(program: str, count: int) -> None:
    wanted = answers(program, count, relaxpy=False)
    found = answers(program, count, relaxpy=True)
    assert len(found) == len(wanted) > 7
    for one, two in zip(found, wanted, strict=True):
        assert one["answer"] == two["answer"]
        np.testing.assert_allclose(one["probabilities"], two["probabilities"], atol=1e-4)
    assert sum(bool(each["answer"]) for each in wanted) > len(wanted) // 2 or program == "vad"
