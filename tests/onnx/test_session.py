"""`relaxpy.onnx.InferenceSession` in place of ONNX Runtime's."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
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
    InvalidProtobuf,
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


BESIDE = """
<ir_version: 9, opset_import: ["" : 18], producer_name: "tests", model_version: 3, doc_string: "of the model",
 domain: "elsewhere", metadata_props: ["a" : "b", "c" : "d"]>
layer (float["batch size", 7] x, float["batch size", 3] z, int32[2] unused, bool[?] flag, double[k] d, uint8 u, float16[5] h)
    => (float["batch size", "?"] y, int64[2] s, float["out", 7] both, bool[?] g)
<float[7, 3] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21}>
{
    p = MatMul(x, w)
    q = Add(p, z)
    y = Relu(q)
    s = Shape(y)
    both = Concat<axis = 0>(x, x)
    g = Not(flag)
}
"""
"""A model whose session is compared with ONNX Runtime's."""


@pytest.fixture(scope="module")
def sessions() -> dict[str, Any]:
    """Module → its session of `BESIDE`."""
    ort: Any = pytest.importorskip("onnxruntime")
    data = parser.parse_model(BESIDE).SerializeToString()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return {
        "theirs": (ort, ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])),
        "ours": (relaxpy.onnx, InferenceSession(data, **FAST)),
    }


def given(n: int = 2) -> dict[str, Any]:
    rng = np.random.default_rng(n)
    return {
        "x": rng.standard_normal((n, 7)).astype(np.float32), "z": rng.standard_normal((n, 3)).astype(np.float32),
        "unused": np.array([1, 2], np.int32), "flag": np.array([True, False, True]), "d": np.ones(3), "u": np.uint8(3),
        "h": np.ones(5, np.float16),
    } | {"u": np.array(3, np.uint8)}  # fmt: skip


def info(found: Any) -> list[Any]:
    return [(each.name, each.type, each.shape, str(each)) for each in found]


def values(found: Any) -> list[Any]:
    return [
        (each.dtype, each.shape, np.round(each.astype(np.float64), 3).tolist()) for each in found
    ]


def of_bindings(ort: Any, session: Any) -> Any:
    """All ways to bind."""
    feed, out = given(), np.zeros((2, 3), np.float32)
    binding = session.io_binding()
    x = feed.pop("x")
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_ortvalue_input("z", ort.OrtValue.ortvalue_from_numpy(feed.pop("z")))
    for name, array in feed.items():
        binding.bind_cpu_input(name, array)
    value = ort.OrtValue.ortvalue_from_shape_and_type([4, 7], np.float32)
    binding.bind_output("s")
    binding.bind_output("y", "cpu", 0, np.float32, out.shape, out.ctypes.data)
    binding.bind_ortvalue_output("both", value)
    binding.synchronize_inputs()
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    copied, outputs = binding.copy_outputs_to_cpu(), binding.get_outputs()
    binding.clear_binding_outputs()
    binding.bind_output("g")
    session.run_with_iobinding(binding)
    again = binding.copy_outputs_to_cpu()
    return values([out, value.numpy(), *copied, *again]), [each.data_type() for each in outputs]


def of_value(ort: Any, session: Any) -> Any:
    """What a value says of itself, and that it shares its array's memory."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    value = ort.OrtValue.ortvalue_from_numpy(array)
    array[0, 0] = 7
    first = value.numpy().tolist()
    value.update_inplace(np.zeros((2, 3), np.float32))
    double = ort.OrtValue.ortvalue_from_shape_and_type([3], np.float64)
    return (
        first, value.numpy().tolist(), value.shape(), value.data_type(), value.element_type(), value.device_name(),
        value.has_value(), value.is_tensor(), value.is_sparse_tensor(), value.is_tensor_sequence(),
        value.tensor_size_in_bytes(), value.data_ptr() == value.numpy().ctypes.data, double.data_type(),
        [ort.OrtValue.ortvalue_from_numpy(np.zeros(1, t)).data_type() for t in ("int8", "uint16", "bool", "float16")],
    )  # fmt: skip


def of_options(ort: Any, session: Any) -> Any:
    options, run = ort.SessionOptions(), ort.RunOptions()
    names = [n for n in dir(options) if not n.startswith("_") and not callable(getattr(options, n))]
    options.intra_op_num_threads = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    run.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return (
        {name: str(getattr(ort.SessionOptions(), name)) for name in names},
        options.intra_op_num_threads, options.get_session_config_entry("session.intra_op.allow_spinning"),
        run.get_run_config_entry("memory.enable_memory_arena_shrinkage"), run.terminate, run.logid,
        [(name, int(each)) for name, each in ort.GraphOptimizationLevel.__members__.items()],
        [(name, int(each)) for name, each in ort.ExecutionMode.__members__.items()],
        [(name, int(each)) for name, each in ort.ExecutionOrder.__members__.items()],
        hasattr(options, "nothing"), hasattr(session, "nothing"),
    )  # fmt: skip


SAME: dict[str, Any] = {
    "inputs": lambda ort, s: info(s.get_inputs()),
    "outputs": lambda ort, s: info(s.get_outputs()),
    "overridable": lambda ort, s: info(s.get_overridable_initializers()),
    "metadata": lambda ort, s: [
        getattr(s.get_modelmeta(), name)
        for name in "producer_name graph_name domain description graph_description version custom_metadata_map".split()
    ],
    "providers": lambda ort, s: (
        s.get_providers(), s.get_provider_options(), ort.get_available_providers()[-1], ort.get_device(),
    ),
    "options": of_options,
    "options of the session": lambda ort, s: str(s.get_session_options().graph_optimization_level),
    "all": lambda ort, s: values(s.run(None, given())),
    "no names": lambda ort, s: values(s.run([], given())),
    "some": lambda ort, s: values(s.run(["s", "y"], given())),
    "one twice": lambda ort, s: values(s.run(["s", "s"], given())),
    "empty": lambda ort, s: values(s.run(None, given(0))),
    "not contiguous": lambda ort, s: values(
        s.run(None, given() | {"x": np.asfortranarray(given()["x"])})
    ),
    "lists": lambda ort, s: values(
        s.run(None, given() | {"x": given()["x"].tolist(), "unused": [1, 2], "flag": [True]})
    ),
    "values": lambda ort, s: values(
        s.run(["y"], {k: ort.OrtValue.ortvalue_from_numpy(v) for k, v in given().items()})
    ),
    "with values": lambda ort, s: values(
        v.numpy()
        for v in s.run_with_ort_values(["y"], {k: ort.OrtValue.ortvalue_from_numpy(v) for k, v in given().items()})
    ),
    "value": of_value,
    "bindings": of_bindings,
    "providers with options": lambda ort, s: ort.InferenceSession(
        parser.parse_model(MODEL).SerializeToString(), ort.SessionOptions(), [("CPUExecutionProvider", {})], [{}]
    ).get_providers(),
}  # fmt: skip


@pytest.mark.parametrize("what", SAME)
def test_it_is_as_onnxruntime_is(sessions: dict[str, Any], what: str) -> None:
    assert SAME[what](*sessions["ours"]) == SAME[what](*sessions["theirs"])


def with_option(ort: Any, session: Any) -> None:
    options = ort.RunOptions()
    options.terminate = True
    session.run(None, given(), options)


WRONG: dict[str, tuple[str, Any]] = {
    "output": ("InvalidArgument", lambda ort, s: s.run(["nope"], given())),
    "input": ("InvalidArgument", lambda ort, s: s.run(None, given() | {"q": np.ones(1)})),
    "weight": ("InvalidArgument", lambda ort, s: s.run(None, given() | {"w": np.ones(1)})),
    "missing": ("ValueError", lambda ort, s: s.run(None, {"x": given()["x"]})),
    "dtype": ("InvalidArgument", lambda ort, s: s.run(None, given() | {"x": np.ones((2, 7))})),
    "rank": ("InvalidArgument", lambda ort, s: s.run(None, given() | {"x": np.ones(7, np.float32)})),
    "size": ("InvalidArgument", lambda ort, s: s.run(None, given() | {"x": np.ones((2, 6), np.float32)})),
    "terminate": ("Fail", with_option),
    "file": ("NoSuchFile", lambda ort, s: ort.InferenceSession("/nowhere.onnx")),
    "bytes": ("InvalidProtobuf", lambda ort, s: ort.InferenceSession(b"no model")),
    "option": ("AttributeError", lambda ort, s: setattr(ort.SessionOptions(), "nothing", 1)),
    "entry": ("RuntimeError", lambda ort, s: ort.SessionOptions().get_session_config_entry("none")),
    "no bound output": ("RuntimeError", lambda ort, s: s.run_with_iobinding(s.io_binding())),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_errors_have_onnxruntimes_names(sessions: dict[str, Any], what: str) -> None:
    name, act = WRONG[what]
    for ort, session in sessions.values():
        with pytest.raises(Exception) as caught:  # which one is the test
            act(ort, session)
        assert name in [each.__name__ for each in type(caught.value).__mro__]
    assert isinstance(caught.value, RelaxError)


def test_weights_that_are_inputs_may_be_given() -> None:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[n, 3] x, float[3] w) => (float[n, 3] y) '
        "<float[3] w = {1, 2, 3}> { y = Add(x, w) }"
    )
    session = InferenceSession(model, **FAST)
    assert [each.name for each in session.get_inputs()] == ["x"]
    assert [each.name for each in session.get_overridable_initializers()] == ["w"]
    x = np.zeros((1, 3), np.float32)
    for w in ([1, 2, 3], [4, 5, 6], [1, 2, 3]):
        found = session.run(None, {"x": x, "w": np.array(w, np.float32)})[0]
        assert found.tolist() == [w]
    assert session.run(None, {"x": x})[0].tolist() == [[1, 2, 3]]
    assert session.builds == 3
    model.ir_version = 3
    old = InferenceSession(model, **FAST)
    assert old.get_overridable_initializers() == []
    with pytest.raises(InvalidArgument):
        old.run(None, {"x": x, "w": x[0]})


def test_entries_that_change_results_are_refused() -> None:
    options = SessionOptions()
    options.add_session_config_entry("session.set_denormal_as_zero", "0")
    with pytest.raises(UsageError, match="set_denormal_as_zero is not supported"):
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
    with pytest.raises(UsageError, match="add_free_dimension_override_by_name is not supported"):
        options.add_free_dimension_override_by_name("n", 3)


def test_bindings_that_do_not_fit_are_refused(session: InferenceSession) -> None:
    binding = session.io_binding()
    with pytest.raises(InvalidArgument, match="no input 'q'"):
        binding.bind_cpu_input("q", np.ones(1))
    with pytest.raises(InvalidArgument, match="no output 'q'"):
        binding.bind_output("q")
    for name, array in feed(4).items():
        binding.bind_cpu_input(name, array)
    value = relaxpy.onnx.OrtValue.ortvalue_from_numpy(np.zeros((5, 3), np.float32))
    binding.bind_ortvalue_output("y", value)
    with pytest.raises(InvalidArgument, match=r"of the shape \[4, 3\], and bound to"):
        session.run_with_iobinding(binding)


def test_seeds_of_random_numbers() -> None:
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g (float[n] x) => (float[n] y) { y = RandomNormalLike(x) }'
    )
    session = InferenceSession(model, **FAST)
    x = {"x": np.zeros(5, np.float32)}
    drawn: list[Any] = []
    for seed in (1, 1, 2):
        relaxpy.onnx.set_seed(seed)
        drawn.append([session.run(None, x)[0].tolist() for _ in range(2)])
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
    assert drawn[0][0] != drawn[0][1]


PROGRAM = """
import sys
import relaxpy.onnx
relaxpy.onnx.patch()
import onnxruntime as ort
import onnxruntime
from onnxruntime import InferenceSession, SessionOptions, GraphOptimizationLevel
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, Fail, NoSuchFile
import numpy as np
from onnx import parser

options = SessionOptions()
options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_EXTENDED
options.intra_op_num_threads = 1
data = parser.parse_model('<ir_version: 9, opset_import: ["" : 18]> g (float[n] x) => (float[n] y) { y = Neg(x) }').SerializeToString()
session = ort.InferenceSession(data, sess_options=options, providers=ort.get_available_providers())
assert session.get_providers()[0] == "CPUExecutionProvider"
assert int(ort.__version__.split(".")[0]) >= 1
print(session.run(None, {session.get_inputs()[0].name: np.ones(3, np.float32)})[0].tolist())
try:
    session.run(None, {"x": np.ones(3)})
except ort.capi.onnxruntime_pybind11_state.InvalidArgument as error:
    print("refused")
try:
    from onnxruntime import LoraAdapter
except ImportError as error:
    print("LoraAdapter" in str(error))
try:
    import onnxruntime.quantization
except ImportError as error:
    print("onnxruntime.quantization" in str(error))
print(type(session).__module__, "onnxruntime.capi._pybind_state" in sys.modules)
"""


def test_programs_that_import_onnxruntime() -> None:
    """In a process of its own: ours stands in for it, and what it does not have is an error."""
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert found.stdout.splitlines() == [
        "[-1.0, -1.0, -1.0]", "refused", "True", "True", "relaxpy.onnx.session False",
    ], found.stderr  # fmt: skip


def test_a_module_that_is_imported_already_is_not_replaced() -> None:
    text = "import sys, types; sys.modules['onnxruntime'] = types.ModuleType('onnxruntime'); import relaxpy.onnx; relaxpy.onnx.patch()"
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert "onnxruntime is imported already" in found.stderr


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


class Broken:
    """A tensor of another library that cannot be read."""

    def numpy(self) -> Any:
        raise RuntimeError("it requires grad")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.run(None, [1, 2]), "inputs are arrays by name.*not a list"),
        (lambda s: s.run(None, None), "not a NoneType"),
        (lambda s: s.run(None, {**feed(3), "x": Broken()}), "a Broken that makes no array: it requires grad"),
        (lambda s: s.run(None, {**feed(3), "x": None}), "a NoneType that makes no"),
        (lambda s: s.run(None, {**feed(3), "x": feed(3)["x"].astype(">f4")}), "bytes are in another order"),
        (lambda s: s.run(None, feed(3), "fast"), "run_options must be a RunOptions, and is a str"),
        (lambda s: InferenceSession(b"", "fast"), "sess_options must be a SessionOptions, and is a str"),
    ],
)  # fmt: skip
def test_wrong_calls_are_refused(session: InferenceSession, call: Any, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        call(session)
    assert re.search(message, str(caught.value))


def test_a_provider_may_be_a_text() -> None:
    session = InferenceSession(parser.parse_model(MODEL), providers="CPUExecutionProvider", **FAST)  # type: ignore[arg-type]
    assert session.get_providers() == ["CPUExecutionProvider"]


def test_sessions_are_not_copied(session: InferenceSession) -> None:
    for act in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="a session belongs to this process"):
            act(session)


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
        with pytest.raises((InvalidGraph, InvalidProtobuf)) as caught:
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
