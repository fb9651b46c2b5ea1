"""The language of `relaxpy run --input`."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
import pytest

from relaxpy.cli.inputs import parse_inputs, read_arrays, read_sizes
from relaxpy.errors import RelaxError
from relaxpy.runtime import Shape


def test_generated_tensor_is_reproducible() -> None:
    """The same seed gives the same numbers, another seed others."""
    first, again = (parse_inputs(["x=f32[4,64]"], seed=0)["x"] for _ in range(2))
    other = parse_inputs(["x=f32[4,64]"], seed=1)["x"]
    assert isinstance(first, np.ndarray)
    assert first.dtype == np.float32
    assert first.shape == (4, 64)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("text", "dtype", "shape"),
    [
        ("f64[2]", "float64", (2,)),
        ("float16[2, 3]", "float16", (2, 3)),
        ("bf16[1]", "bfloat16", (1,)),
        ("bf16[]", "bfloat16", ()),
        ("f8_e4m3fn[3]", "float8_e4m3fn", (3,)),
        ("float8_e5m2[2, 3]", "float8_e5m2", (2, 3)),
        ("f32[]", "float32", ()),
        ("i64[0,3]", "int64", (0, 3)),
        ("u8[5]", "uint8", (5,)),
        ("bool[5]", "bool", (5,)),
    ],
)
def test_generated_dtypes(text: str, dtype: str, shape: tuple[int, ...]) -> None:
    """Short and long names of dtypes are read; 0-d and zero-sized tensors too."""
    value = parse_inputs([f"x={text}"], seed=0)["x"]
    assert isinstance(value, np.ndarray)
    assert (value.dtype.name, value.shape) == (dtype, shape)


def test_integers_stay_below_the_limit() -> None:
    """`<100` bounds generated integers; without it they are below 10."""
    values = parse_inputs(["x=i64[1000]<3", "y=i32[1000]"], seed=0)
    assert set(np.unique(values["x"])) == {0, 1, 2}
    assert set(np.unique(values["y"])) == set(range(10))


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("-3", -3), ("0.5", 0.5), ("1e-5", 1e-5), ("true", True), ("False", False),
     ("(2,3)", Shape((2, 3))), ("()", Shape()), ("(4,)", Shape((4,)))],
)  # fmt: skip
def test_scalars_and_shapes(text: str, value: object) -> None:
    """Numbers, booleans and shapes are Python values of the right type."""
    result = parse_inputs([f"x={text}"], seed=0)["x"]
    assert result == value
    assert type(result) is type(value)


def test_files(tmp_path: Path) -> None:
    """An .npy is one value; an .npz without a name is all its arrays; with a name it must hold one."""
    np.save(tmp_path / "a.npy", np.arange(3))
    np.savez(tmp_path / "b.npz", p=np.ones(2), q=np.zeros(1))
    values = parse_inputs([f"x={tmp_path}/a.npy", f"{tmp_path}/b.npz"], seed=0)
    assert list(values) == ["x", "p", "q"]
    np.testing.assert_array_equal(values["x"], [0, 1, 2])
    with pytest.raises(RelaxError, match="contains 2 arrays"):
        parse_inputs([f"x={tmp_path}/b.npz"], seed=0)


@pytest.mark.parametrize(
    "spec",
    ["x", "=3", "a b=3", "x=", "x=hello", "x=f33[2]", "x=f32[2", "x=f32[2 3]", "x=i8[3]<1000", "x=i8[3]<0",
     "x=(1 2)", "x=(--1)"],
)  # fmt: skip
def test_mistakes_are_located_errors(spec: str) -> None:
    """What is no input is refused with the forms that there are."""
    with pytest.raises(RelaxError) as caught:
        parse_inputs([spec], seed=0)
    assert caught.value.code == "bad-input"
    assert "f32[4,64]" in (caught.value.help or "")


def test_same_name_twice() -> None:
    """An input given twice is a mistake, not an overwrite."""
    with pytest.raises(RelaxError, match="is repeated"):
        parse_inputs(["x=1", "x=2"], seed=0)


@pytest.mark.parametrize("content", [b"", b"junk", b"PK\x03\x04junk", b"\x93NUMPY\x01\x00"])
@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
def test_damaged_array_files(tmp_path: Path, name: str, content: bytes) -> None:
    """A file that holds no arrays is a clear error."""
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(RelaxError) as caught:
        read_arrays(str(path))
    assert caught.value.code == "bad-array-file"
    assert "pickle" not in str(caught.value), "numpy advises to read junk as a program"


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    """An .npy with Python objects would run code when read."""
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(RelaxError, match="cannot be read as arrays"):
        read_arrays(str(tmp_path / "x.npy"))


def test_sizes() -> None:
    """Names of variables, of one function too; several with commas, or several options."""
    assert read_sizes(["n=8,main.m=4", "k = 0"], "--at") == {"n": 8, "main.m": 4, "k": 0}
    assert read_sizes(["n=8", "n=8"], "--size") == {"n": 8}


@pytest.mark.parametrize(
    "text", ["", "n", "n=", "=3", "n=x", "n=-1", "n=1.5", "a b=3", "n=3,", f"n={2**63}"]
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(click.UsageError, match="NAME=INT is expected"):
        read_sizes([text], "--size")


def test_two_sizes_of_a_name() -> None:
    with pytest.raises(click.UsageError, match="n is 8 and 9"):
        read_sizes(["n=8", "n=9"], "--size")
