"""Models that ONNX Runtime's own quantiser writes, beside ONNX Runtime, which runs them as they are written.

Integers that they compute are the same, so results are equal within the rounding of floats. Where a float is halfway
between two integers, rounding may take the other one, and all results that are computed of it may change: of models with
integers between their operators, results may be one step of the last quantisation apart, two of 16 bits, and a quarter of them
at most.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

import relaxpy
import relaxpy.onnx
from relaxpy.analysis.called_operators import calls_in
from relaxpy.ir import TensorType
from relaxpy.op.conv import Convolution
from relaxpy.op.deduce import deduce
from relaxpy.op.linear_algebra import Linear, Matmul
from relaxpy.transform import Realize
from tests.frontend.onnx.onnxruntime_oracle import of_onnxruntime, runner
from tests.frontend.onnx.quantized_models import MODELS, PAIRS, Way, arrays, quantised
from tests.sweeps import full, sweep

BATCHES = (3, 1, 7)


def last_step(model: Any) -> float:
    """The step of the last quantisation, if the model's result is made of integers; else 0."""
    last = model.graph.node[-1]
    if last.op_type != "DequantizeLinear":
        return 0.0
    stored = {each.name: each for each in model.graph.initializer}
    return float(numpy_helper.to_array(stored[last.input[1]]).max())


def check(name: str, way: Way, folder: Path, build: bool) -> None:
    pytest.importorskip("onnxruntime")
    floats = MODELS[name]()
    model = quantised(floats, way, folder)
    assert {n.op_type for n in model.graph.node} - {n.op_type for n in floats.graph.node}
    most = last_step(model) * (2 if way.activations == "QUInt16" else 1)
    run = runner(model, build)
    for batch in BATCHES:
        x = arrays(floats, batch, length=4 + batch)
        (wanted,), (found,) = of_onnxruntime(model, [x]), run(x)
        assert found.shape == wanted.shape
        assert found.dtype == wanted.dtype
        apart = np.abs(found - wanted)
        # A float that lies between two integers is one or the other, as a processor rounds: the step of an activation
        # that is quantised when it runs is a hundredth of its row's results.
        step = 0.01 * np.abs(wanted).max() if way.kind == "dynamic" else most
        assert apart.max() <= 1e-5 + 1.01 * step
        assert (apart > 1e-5).mean() <= (0.25 if most else 0.05)


@sweep(6)
@pytest.mark.parametrize(("name", "way"), PAIRS, ids=str)
def test_models_of_the_quantiser(name: str, way: Way, tmp_path: Path) -> None:
    check(name, way, tmp_path, build=False)


@sweep(4)
@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("perceptron", Way("QOperator", per_channel=True)),
        ("convolutions", Way("QDQ", per_channel=True)),
        ("recurrent", Way("dynamic")),
        ("embedding", Way("weights", symmetric=False)),
    ],
    ids=str,
)
def test_one_build_is_for_all_batches(name: str, way: Way, tmp_path: Path) -> None:
    check(name, way, tmp_path, build=True)


@sweep(2)
@pytest.mark.parametrize("name", ["perceptron", "convolutions", "embedding"])
@pytest.mark.parametrize("activations", ["QUInt8", "QInt8"])
def test_pairs_are_realised(name: str, activations: str, tmp_path: Path) -> None:
    """Every product of a QDQ file with a constant weight is one of integers, and sessions compute so."""
    pytest.importorskip("onnxruntime")
    floats = MODELS[name]()
    model = quantised(floats, Way("QDQ", activations, "QInt8", per_channel=True), tmp_path)
    real, places = Realize().realized(relaxpy.from_onnx(model)[0])
    products = [place for place in places if place.operator in ("matmul", "linear", "nn.conv2d")]
    weights = sum(node.op_type in ("Conv", "Gemm", "MatMul") for node in floats.graph.node)
    assert [place.reason for place in products] == [""] * weights
    codes = {"int8", "uint8"}
    for call in calls_in(real.graph_function("main")):
        if isinstance(call.op, (Matmul, Linear, Convolution)):
            kinds = [deduce(arg, real) for arg in call.args[:2]]
            assert {str(kind.dtype) for kind in kinds if isinstance(kind, TensorType)} <= codes
    most = last_step(model)
    session = relaxpy.onnx.InferenceSession(model.SerializeToString())
    for batch in BATCHES:
        x = arrays(floats, batch, length=4 + batch)
        (wanted,) = of_onnxruntime(model, [x])
        (found,) = session.run(None, {"x": x})
        apart = np.abs(found - wanted)
        assert apart.max() <= 1e-5 + 1.01 * most
        assert (apart > 1e-5).mean() <= (0.25 if most else 0.05)


@full
@pytest.mark.parametrize(("name", "way"), PAIRS, ids=str)
def test_builds_of_models_of_the_quantiser(name: str, way: Way, tmp_path: Path) -> None:
    check(name, way, tmp_path, build=True)
