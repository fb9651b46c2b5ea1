"""Large constants: names in the program, data after it or in a file beside it."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RelaxError
from relaxpy.ir import Constant, Function, IRModule
from relaxpy.script.constants import MAX_LITERAL, abbreviated, data_name

LARGE = {
    "floats": np.linspace(-1, 1, 200, dtype="float32").reshape(2, 100),
    "payload": np.array(0x7FC01234, "uint32").view("float32"),
    "bfloat16": np.arange(40).astype(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.arange(256, dtype="uint8").view(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.arange(256, dtype="uint8").view(ml_dtypes.float8_e5m2).reshape(16, 16),
    "empty": np.zeros((0, 3), "int8"),
    "big-endian": np.arange(40, dtype=">i4"),
    "strided": np.arange(80, dtype="uint16").reshape(8, 10).T[::2],
    "bools": np.arange(30) % 3 == 0,
}


def module(*constants: Any) -> IRModule:
    bb = relaxpy.BlockBuilder()
    with bb.function("main", []):
        bb.emit_func_output(tuple(Constant(each) for each in constants))
    return bb.get()


def same(left: IRModule, right: IRModule) -> bool:
    """Equal, in every bit of the constants."""
    return relaxpy.structural_equal(left, right) and left.script() == right.script()


@pytest.mark.parametrize("data", LARGE.values(), ids=LARGE)
def test_text_keeps_every_bit(data: np.ndarray) -> None:
    mod = module(data)
    assert "R.const_ref(" in mod.script()
    assert same(relaxpy.parse(mod.script()), mod)


@pytest.mark.parametrize("data", LARGE.values(), ids=LARGE)
def test_file_keeps_every_bit(data: np.ndarray, tmp_path: Path) -> None:
    mod = module(data)
    text = mod.script(constants=tmp_path / "weights.npz")
    assert 'I.metadata("weights.npz")' in text
    assert same(relaxpy.parse(text, constants=tmp_path / "weights.npz"), mod)
    (tmp_path / "program.py").write_text(text, encoding="utf-8")
    assert same(relaxpy.parse(tmp_path / "program.py"), mod)


def test_arrays_by_name() -> None:
    data = LARGE["floats"]
    program = module(data).script().split("\n# The data")[0]
    assert same(relaxpy.parse(program, constants={data_name(data): data}), module(data))


def test_a_function_on_its_own() -> None:
    main = module(LARGE["floats"])["main"]
    assert isinstance(main, Function)
    assert relaxpy.structural_equal(relaxpy.parse(main.script())["main"], main)


def test_a_printed_module_runs_as_a_file_of_python(tmp_path: Path) -> None:
    """What a pass left can be imported: the decorator finds the data that follows the class."""
    mod = module(*LARGE.values())
    (tmp_path / "dump.py").write_text(mod.script(), encoding="utf-8")
    assert same(runpy.run_path(str(tmp_path / "dump.py"))["Module"], mod)


def test_small_constants_are_literals() -> None:
    mod = module(np.arange(MAX_LITERAL, dtype="int32"), np.float32(0.1))
    assert "metadata" not in mod.script()
    assert 'R.const(0.1, "float32")' in mod.script()
    assert "R.const_ref" in module(np.arange(MAX_LITERAL + 1)).script()


def test_equal_constants_are_written_once() -> None:
    text = module(LARGE["floats"], LARGE["floats"].copy()).script()
    assert text.count("R.const_ref(") == 2
    assert text.count('"""') == 2


def test_names_follow_from_dtype_shape_and_bytes() -> None:
    data = np.zeros(40, "float32")
    others = [data.astype("int32"), data.reshape(4, 10), data + 1]
    assert len({data_name(each) for each in [data, *others]}) == 4
    assert data_name(data) == data_name(data.copy())


def test_no_long_lines() -> None:
    text = module(np.random.default_rng(0).random((64, 64))).script()
    assert max(map(len, text.splitlines())) <= 120


def test_show_leaves_the_data_out(capsys: pytest.CaptureFixture[str]) -> None:
    mod = module(LARGE["floats"])
    mod.show()
    shown = capsys.readouterr().out
    assert 'R.Tensor((2, 100), dtype="float32") = [-1.0, ' in shown
    assert "metadata" not in shown
    with pytest.raises(RelaxError, match="the text has no data"):
        relaxpy.parse(shown)
    main = mod["main"]
    assert isinstance(main, Function)
    main.show()
    assert "metadata" not in capsys.readouterr().out


def test_abbreviated() -> None:
    assert abbreviated(np.arange(4)) == "[0, 1, 2, 3]"
    assert abbreviated(np.arange(9).reshape(3, 3)) == "[0, 1, 2, …, 6, 7, 8]"


def refused(text: str, **given: Any) -> RelaxError:
    with pytest.raises(RelaxError) as caught:
        relaxpy.parse(text, **given)
    assert caught.value.code == "constant-data"
    return caught.value


def test_damage_is_located_in_the_data() -> None:
    text = module(LARGE["floats"]).script()
    lines = text.splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("eA")) + 2
    for damage in (lines[place][:-1], lines[place][::-1], "", lines[place][:-4] + "????"):
        error = refused("\n".join([*lines[:place], damage, *lines[place + 1 :]]))
        assert error.span is not None
        assert error.span.line == place - 2  # where the string begins
        assert "damaged" in error.message


def test_data_of_another_constant() -> None:
    one, two = (module(LARGE["floats"] + i).script() for i in (0, 1))
    error = refused(one.split("metadata =")[0] + "metadata =" + two.split("metadata =")[1])
    assert "the text has no data" in error.message
    names = [re.findall(r'"(\w{16})"', text)[0] for text in (one, two)]
    section = two.split("metadata =")[1].replace(names[1], names[0])
    assert "damaged" in refused(one.split("metadata =")[0] + "metadata =" + section).message


def test_another_annotation_than_the_data() -> None:
    text = module(LARGE["floats"]).script()
    for annotation in ("R.Tensor((100, 2)", "R.Tensor((2, 99)"):
        refused(
            text.replace("const_ref(", "const_ref(", 1).replace("R.Tensor((2, 100)", annotation)
        )
    refused(text.replace('", R.Tensor((2, 100), dtype="float32"))', '", R.Tensor(ndim=2))'))


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 no archive", b"\x93NUMPY\x01\x00"])
def test_files_that_cannot_be_read(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "weights.npz"
    text = module(LARGE["floats"]).script(constants=file)
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    (tmp_path / "program.py").write_text(text, encoding="utf-8")
    error = refused(str(tmp_path / "program.py"))
    assert error.span is not None
    assert error.span.line == len(text.splitlines())
    refused(text, constants=file)


def test_a_file_that_parse_would_not_read(tmp_path: Path) -> None:
    with pytest.raises(RelaxError, match="is not a valid name of a file"):
        module(LARGE["floats"]).script(constants=tmp_path / "weights.bin")
