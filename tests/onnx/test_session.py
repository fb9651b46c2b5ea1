"""`relaxpy.onnx.InferenceSession` in place of ONNX Runtime's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import relaxpy
from relaxpy.errors import RelaxError, UsageError
from relaxpy.onnx import (
    InferenceSession,
    InvalidArgument,
    InvalidGraph,
    NoSuchFile,
    NotImplemented,
    SessionOptions,
)

FAST = {"target": "llvm -opt-level=0"}

MODEL = """
<ir_version: 9, opset_import: ["" : 18], producer_name: "tests">
layer (float["batch size", 7] x, float["batch size", 3] z) => (float["batch size", "?"] y, int64[2] s)
<float[7, 3] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21}>
{
    p = MatMul(x, w)
    q = Add(p, z)
    y = Relu(q)
    s = Shape(y)
}
"""


@pytest.fixture(scope="module")
def session() -> InferenceSession:
    return InferenceSession(parser.parse_model(MODEL), **FAST)


def feed(rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(rows)
    return {
        name: rng.standard_normal((rows, n)).astype(np.float32) for name, n in (("x", 7), ("z", 3))
    }


def test_one_build_for_all_sizes(session: InferenceSession) -> None:
    w = np.arange(1, 22, dtype=np.float32).reshape(7, 3)
    for rows in (1, 0, *range(2, 30)):
        given = feed(rows)
        y, s = session.run(None, given)
        np.testing.assert_allclose(
            y, np.maximum(given["x"] @ w + given["z"], 0), rtol=1e-4, atol=1e-4
        )
        assert s.tolist() == [rows, 3]
    assert session.builds == 1


def test_it_says_what_the_model_says(session: InferenceSession) -> None:
    x, z = session.get_inputs()
    assert (x.name, x.type, x.shape) == ("x", "tensor(float)", ["batch size", 7])
    assert (z.name, z.shape) == ("z", ["batch size", 3])
    assert [o.name for o in session.get_outputs()] == ["y", "s"]
    assert session.get_outputs()[1].type == "tensor(int64)"
    assert (
        session.get_providers()
        == relaxpy.onnx.get_available_providers()
        == ["CPUExecutionProvider"]
    )
    meta = session.get_modelmeta()
    assert (meta.producer_name, meta.graph_name, meta.custom_metadata_map) == ("tests", "layer", {})


def test_outputs_are_chosen_by_name(session: InferenceSession) -> None:
    (s,) = session.run(["s"], feed(5))
    assert s.tolist() == [5, 3]
    with pytest.raises(InvalidArgument, match="no output 'q'"):
        session.run(["q"], feed(5))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.pop("z"), "'z', which is missing"),
        (lambda f: f.update(w=f["x"]), "no input 'w'"),
        (
            lambda f: f.update(x=f["x"].astype(np.float64)),
            r"tensor\(double\), and the model takes tensor\(float\)",
        ),
        (lambda f: f.update(x=f["x"][0]), "1 dimensions, and the model takes 2"),
        (lambda f: f.update(x=f["x"][:, :4]), "axis 1 of 'x' is 4, and the model takes 7"),
        (
            lambda f: f.update(z=f["z"][1:]),
            "axis 0 of 'z' is 2, and axis 0 of 'x' is 3: both are 'batch size'",
        ),
    ],
)
def test_wrong_inputs_are_refused(session: InferenceSession, change: Any, message: str) -> None:
    given: dict[str, Any] = feed(3)
    change(given)
    with pytest.raises(InvalidArgument, match=message) as caught:
        session.run(None, given)
    assert isinstance(caught.value, RelaxError)
    assert isinstance(caught.value, ValueError)


def test_threads(session: InferenceSession) -> None:
    alone = {rows: session.run(None, feed(rows))[0] for rows in range(1, 9)}
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda k: session.run(None, feed(k % 8 + 1))[0], range(64))
        for k, y in enumerate(found):
            np.testing.assert_array_equal(y, alone[k % 8 + 1])


def test_bindings(session: InferenceSession) -> None:
    binding = session.io_binding()
    for name, array in feed(4).items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("s")
    session.run_with_iobinding(binding)
    assert binding.copy_outputs_to_cpu()[0].tolist() == [4, 3]


def test_values_that_decide_the_structure_are_builds_of_their_own() -> None:
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g (float[a, b] x, int64[1] axes) => (float[c] y) {'
        " y = ReduceSum<keepdims = 0>(x, axes) }"
    )
    session = InferenceSession(model, **FAST)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for axis in (0, 1, 0):
        np.testing.assert_array_equal(
            session.run(None, {"x": x, "axes": np.array([axis])})[0], x.sum(axis)
        )
    assert session.builds == 2


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(parser.parse_model(MODEL), path)
    assert InferenceSession(str(path), **FAST).run(["s"], feed(2))[0].tolist() == [2, 3]
    with pytest.raises(NoSuchFile, match="cannot be read"):
        InferenceSession(tmp_path / "other.onnx")
    for data in (b"", b"not a model", path.read_bytes()[:50], b"\x00" * 100):
        with pytest.raises(InvalidGraph) as caught:
            InferenceSession(data)
        assert isinstance(caught.value, RelaxError)


def test_what_is_not_taken_is_refused_by_name(session: InferenceSession) -> None:
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]> g (float[a] x) => (float[a] y) { y = Strange(x) }'
    )
    with pytest.raises(
        NotImplemented, match=r"1 operator of this program is not supported: Strange"
    ):
        InferenceSession(model)
    options = SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_profiling = True
    with pytest.raises(UsageError, match="enable_profiling"):
        InferenceSession(parser.parse_model(MODEL), options)
    with pytest.raises(UsageError, match="end_profiling"):
        session.end_profiling()
    with pytest.warns(UserWarning, match="CUDAExecutionProvider"):
        InferenceSession(
            parser.parse_model(MODEL),
            providers=["CUDAExecutionProvider", "CPUExecutionProvider"],
            **FAST,
        )
