"""Sessions that the build cache has: equal to those that are built, without the compiler, and never another model's."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from relaxpy.onnx import InferenceSession, session_key
from relaxpy.onnx.session_key import key_of
from tests.sweeps import quick_target

TEXT = '<ir_version: 9, opset_import: ["" : 18]> g (float[n] x, float[n] y) => (float[m] z) { z = Sub(x, y) }'
TARGET = str(quick_target())
FEED = {"x": np.array([5, 7], np.float32), "y": np.array([1, 9], np.float32)}


def model(text: str = TEXT) -> bytes:
    return parser.parse_model(text).SerializeToString()


def session(data: bytes, folder: Path, **options: object) -> InferenceSession:
    return InferenceSession(data, cache=folder, target=TARGET, **options)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The models that are read."""
    from relaxpy.onnx import session

    found: list[bytes] = []
    own = session.read_model

    def read(source: bytes) -> object:
        found.append(source)
        return own(source)

    monkeypatch.setattr(session, "read_model", read)
    return found


def test_the_second_session_reads_no_model_and_is_equal(tmp_path: Path, reads: list[bytes]) -> None:
    first, second = session(model(), tmp_path), session(model(), tmp_path)
    assert len(reads) == 1
    assert first.builds == second.builds == 1
    assert first.get_inputs() == second.get_inputs()
    assert first.get_outputs() == second.get_outputs()
    assert first.get_modelmeta() == second.get_modelmeta()
    for each in (first, second):
        assert each.run(None, FEED)[0].tolist() == [4, -2]
        assert each.run(None, {n: v[:1] for n, v in FEED.items()})[0].tolist() == [4]


def test_another_file_or_option_is_another_session(tmp_path: Path, reads: list[bytes]) -> None:
    session(model(), tmp_path)
    other = session(model(TEXT.replace("Sub", "Add")), tmp_path)
    assert other.run(None, FEED)[0].tolist() == [6, 16]
    session(model(), tmp_path, check_arguments=True)
    session(model(), tmp_path, bounds={"n": 9})
    assert len(reads) == 4


def test_a_damaged_entry_is_built_again(tmp_path: Path, reads: list[bytes]) -> None:
    session(model(), tmp_path)
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.stat().st_size > 200:
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)
    assert session(model(), tmp_path).run(None, FEED)[0].tolist() == [4, -2]
    assert len(reads) == 2


def test_a_false_shape_is_told_each_time(tmp_path: Path, reads: list[bytes]) -> None:
    text = TEXT.replace("float[m] z", "float[7] z").replace("[n]", "[2]")
    for _ in range(2):
        with pytest.warns(UserWarning, match="the output 'z' has the shape"):
            session(model(text), tmp_path)
    assert len(reads) == 1


def test_seeds_are_drawn_anew(tmp_path: Path) -> None:
    text = '<ir_version: 9, opset_import: ["" : 18]> g (float[n] x) => (float[n] z) { z = RandomUniformLike(x) }'
    for _ in range(2):
        made = session(model(text), tmp_path)
        one, two = (made.run(None, {"x": FEED["x"]})[0] for _ in range(2))
        assert (one != two).any()


def test_weights_of_other_files_are_read_each_time(tmp_path: Path) -> None:
    """The bytes of the file say nothing about them."""
    proto = parser.parse_model(TEXT.replace(", float[n] y", ""))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(FEED["y"], "y"))
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights", size_threshold=0)
    for shift in (0, 1):
        (tmp_path / "weights").write_bytes((FEED["y"] + np.float32(shift)).tobytes())
        made = InferenceSession(path, cache=tmp_path / "cache", target=TARGET)
        assert made.run(None, {"x": FEED["x"]})[0].tolist() == [4 - shift, -2 - shift]


def test_what_decides_the_structure_is_no_part_of_an_entry(tmp_path: Path) -> None:
    text = (
        '<ir_version: 9, opset_import: ["" : 18]> g (float[a, b] x, int64[k] axes) => (float[c] y) '
        "{ y = ReduceSum <keepdims = 0> (x, axes) }"
    )
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for _ in range(2):
        made = session(model(text), tmp_path)
        for axis in (0, 1):
            assert (
                made.run(None, {"x": x, "axes": np.array([axis])})[0].tolist()
                == x.sum(axis).tolist()
            )


def test_what_has_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert key_of(model(), {"target": TARGET}) is not None
    assert key_of(model(), {"target": quick_target()}) is None  # an object
    assert key_of(model(), {"target": "cuda"}) is None
    assert key_of(model(), {"pipeline": None}) is None
    assert key_of(model(), {"bounds": {"n": object()}}) is None
    monkeypatch.setattr(session_key, "installation", lambda: None)  # a source has changed
    assert key_of(model(), {"target": TARGET}) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert session(model(), tmp_path).run(None, FEED)[0].tolist() == [4, -2]


NOT_LOADED = (
    *("tvm", "onnx", "torch", "cuda.bindings.driver", "relaxpy.ir", "relaxpy.op", "relaxpy.build"),
    *(
        "relaxpy.runtime.bytecode",
        "relaxpy.runtime.link",
        "relaxpy.runtime.codec",
        "relaxpy.runtime.verifier",
    ),
    *("relaxpy.runtime.safetensors", "relaxpy.runtime.graphs", "relaxpy.runtime.inspect"),
)
"""What takes long to import."""


def test_a_kept_session_needs_neither_the_compiler_nor_onnx(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model())
    session(model(), tmp_path / "cache")
    code = f"""
import sys
import numpy as np
from relaxpy.onnx import InferenceSession
session = InferenceSession({str(path)!r}, cache={str(tmp_path / "cache")!r}, target={TARGET!r})
x = np.array([5, 7], np.float32)
print(session.run(None, {{"x": x, "y": x}})[0].tolist(), *(name in sys.modules for name in {NOT_LOADED}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[0.0,", "0.0]", *["False"] * len(NOT_LOADED)]
