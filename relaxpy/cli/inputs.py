"""The syntax of `relaxpy run --input`: NAME=VALUE, where VALUE is a file, a generated tensor, a number or a shape; or
an .npz file whose arrays are named like parameters.

    x=x.npy           an array from a file            x=f32[4,64]   generated, reproducibly (--seed)
    inputs.npz        every array in it, by its name  n=3  p=0.5  flag=true   a scalar
    s=(2,3)           a shape                         x=i64[8]<30522  integers below 30522
"""

from __future__ import annotations

import keyword
import math
import re
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import click
import numpy as np

from relaxpy.errors import UsageError
from relaxpy.ir.dtype import DType
from relaxpy.runtime.tensor import Shape

Value: TypeAlias = "np.ndarray | int | float | bool | Shape"

SHORT_DTYPES = {
    "f8_e4m3fn": "float8_e4m3fn", "f8_e5m2": "float8_e5m2",
    "f16": "float16", "f32": "float32", "f64": "float64", "bf16": "bfloat16",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "bool": "bool",
}  # fmt: skip
"""Short names of dtypes. The full names work too."""

GENERATED = re.compile(r"(?P<dtype>[a-z]+\d*(?:_\w+)?)\[(?P<dims>[\d\s,]*)\](?:<(?P<below>\d+))?")
SHAPE = re.compile(r"\((?P<dims>[-\d\s,]*)\)")

_ARRAY_FILES = (b"\x93NUMPY", b"PK")
"""The first bytes of .npy and .npz files."""

_LARGEST = 2**63 - 1
"""The largest size: dimensions are int64."""

MOST = 1 << 60
"""A number of elements beyond any memory. For larger ones numpy raises other errors, since it cannot count the
bytes."""
FORMS = "x=FILE.npy, FILE.npz, x=f32[4,64], x=i64[4]<100, n=3, p=0.5, flag=true or s=(2,3)"


def bad_input(message: str) -> UsageError:
    return UsageError("bad-input", message, help=f"write {FORMS}")


def parse_inputs(specs: Sequence[str], seed: int) -> dict[str, Value]:
    """Name → value for the `--input` options, in order. Raises UsageError("bad-input") for an invalid one."""
    values: dict[str, Value] = {}
    random = np.random.default_rng(seed)
    for spec in specs:
        for name, value in parse_input(spec, random):
            if name in values:
                raise bad_input(f"input {name!r} is repeated")
            values[name] = value
    return values


def parse_input(spec: str, random: np.random.Generator) -> list[tuple[str, Value]]:
    """The named values of one `--input` option."""
    name, equals, text = spec.partition("=")
    if not equals:
        if not spec.endswith(".npz"):
            raise bad_input(f"{spec!r} has neither a name nor the suffix .npz")
        return [(key, array) for key, array in read_arrays(spec).items()]
    if not name or any(map(str.isspace, name)):
        raise bad_input(f"{name!r} in {spec!r} is not a parameter name")
    if not name.isidentifier() or keyword.iskeyword(
        name
    ):  # that of an ONNX model's input may be any text
        from relaxpy.frontend.site import legal

        name = legal(name)
    return [(name, parse_value(text.strip(), random))]


def parse_value(text: str, random: np.random.Generator) -> Value:
    """The value on the right-hand side of NAME=VALUE."""
    if text.endswith((".npy", ".npz")):
        arrays = read_arrays(text)
        if len(arrays) != 1:
            raise bad_input(f"{text} contains {len(arrays)} arrays: write the file without NAME=")
        return next(iter(arrays.values()))
    if match := GENERATED.fullmatch(text):
        below = match["below"]
        dims = parse_dims(match["dims"])
        return generate(match["dtype"], dims, None if below is None else int(below), random)
    if match := SHAPE.fullmatch(text):
        return Shape(parse_dims(match["dims"]))
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    raise bad_input(f"cannot read the value {text!r}")


def parse_dims(text: str) -> tuple[int, ...]:
    """The integers in a comma-separated text; empty text has none."""
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise bad_input(f"cannot read the dimensions {text!r}") from None


def generate(
    dtype: str, shape: tuple[int, ...], below: int | None, random: np.random.Generator
) -> np.ndarray:
    """Reproducible values: standard normal floats, integers in [0, below or 10), and uniform bools."""
    long = SHORT_DTYPES.get(dtype, dtype)
    if long not in SHORT_DTYPES.values():
        raise bad_input(f"unknown dtype {dtype!r}: one of {', '.join(SHORT_DTYPES)}")
    if max((*shape, math.prod(shape))) >= MOST:
        raise bad_input(f"an array of shape {list(shape)} is too large")
    if long == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if "int" in long:
        limit = 10 if below is None else below
        if not 0 < limit <= np.iinfo(long).max + 1:
            raise bad_input(f"integers below {limit} do not fit {long}")
        return random.integers(0, limit, shape, dtype=long)
    numbers = np.asarray(random.standard_normal(shape, dtype=np.float32))
    return numbers.astype(DType(long).numpy)


def read_arrays(path: str) -> dict[str, np.ndarray]:
    """The arrays in an .npy file (named by its stem), an .npz or a .safetensors file. Arrays of Python objects are
    refused, since unpickling runs code."""
    if path.endswith(".safetensors"):
        return read_safetensors(path)
    try:
        # If the content is damaged, numpy does not close a file that it opened itself.
        with open(path, "rb") as file:
            if not file.read(6).startswith(_ARRAY_FILES):
                raise UsageError(
                    "bad-array-file",
                    f"{path} cannot be read as arrays: it is not a .npy, .npz or .safetensors file",
                )
            file.seek(0)
            stored = np.load(file, allow_pickle=False)
            if isinstance(stored, np.ndarray):
                return {Path(path).stem: stored}
            return {name: stored[name] for name in stored.files}
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UsageError("bad-array-file", f"{path} cannot be read as arrays: {error}") from None


def read_safetensors(path: str) -> dict[str, np.ndarray]:
    """The tensors of a .safetensors file, bfloat16 included. Needs the extra `demo`."""
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file  # pyright: ignore[reportUnknownVariableType]  # its PathLike is bare
    except ImportError:
        raise UsageError(
            "extra-missing",
            "reading .safetensors needs the package safetensors",
            help="pip install 'relaxpy[demo]'",
        ) from None
    try:
        return load_file(path)
    except SafetensorError as error:
        raise UsageError("bad-array-file", f"{path} cannot be read as arrays: {error}") from None


def read_sizes(given: Sequence[str], option: str) -> dict[str, int]:
    """Parses sizes like `n=2048` and `n=8,main.m=4` to values by name. Raises click.UsageError for other texts."""
    found: dict[str, int] = {}
    for text in given:
        for part in text.split(","):
            name, _, number = (piece.strip() for piece in part.partition("="))
            named = all(piece.isidentifier() for piece in name.split("."))
            if not (named and number.isdecimal() and int(number) <= _LARGEST):
                raise click.UsageError(
                    f"{option} {text}: NAME=INT is expected, n=2048 for example, or several with commas"
                )
            if found.setdefault(name, int(number)) != int(number):
                raise click.UsageError(f"{option}: {name} is {found[name]} and {int(number)}")
    return found
