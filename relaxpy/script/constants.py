"""Constants as text. Small constants are literals. Large ones are referred to by name, and their data follows the
program.

    y = R.matmul(x, R.const_ref("9b1f6a0c1e2d3f40", R.Tensor((384, 384), dtype="float32")))
    …
    metadata = I.metadata({"9b1f6a0c1e2d3f40": '''eJx…'''})

A name is a digest of dtype, shape and bytes. So equal constants are written once, a constant that a pass leaves
unchanged keeps its name, and damaged or wrong data is detected. The counterpart of TVM's `metadata["…"][0]`.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from relaxpy.errors import ScriptError, Span
from relaxpy.files import replacing
from relaxpy.half_bytes import as_bytes, from_bytes, nbytes
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Constant
from relaxpy.script.scope import POISON, Skip

MAX_LITERAL = 16
"""Maximum number of elements of a constant printed as nested lists."""
SHOWN = 3
"""Number of elements shown from each end in a summary."""
_WIDTH = 96
"""Number of base64 characters in a line."""
_SAFE_NAME = re.compile(r"[\w.+-]+\.npz", re.ASCII)
"""Valid file names for a text's constants: a file in the same folder, never a path elsewhere."""


_UNREADABLE = (
    OSError, ValueError, KeyError, EOFError, TypeError, NotImplementedError, RuntimeError, zlib.error,
    zipfile.BadZipFile,
)  # fmt: skip
"""The exceptions of reading a damaged archive of arrays; TypeError for another kind of numpy file."""


class ConstantTable:
    """The constants of a text being printed: it prints each, and collects those whose data must follow."""

    def __init__(self) -> None:
        self.found: dict[str, np.ndarray] = {}
        """Data that the text refers to, by name, in order of first use."""

    def text(self, constant: Constant) -> str:
        """`R.const(…)`, or `R.const_ref(…)` if literals would be long or would not preserve the bits."""
        data = constant.data
        if 0 < data.size <= MAX_LITERAL and _same_bits(data):
            return f'R.const({_literal(data)}, "{DType(data.dtype)}")'
        name = data_name(data)
        self.found[name] = data
        return f'R.const_ref("{name}", {_annotation(data)})'

    def inline(self) -> str:
        """The section of the text with the data; empty if there is none."""
        if not self.found:
            return ""
        entries = "".join(f'    "{n}": """\n{_encode(d)}""",\n' for n, d in self.found.items())
        return f"\n# The data of the constants: zlib, in base 64.\nmetadata = I.metadata({{\n{entries}}})\n"

    def beside(self, path: str | PathLike[str]) -> str:
        """Write the data to the `.npz` file at `path`, and return the section that names the file without its folder.
        Raises `ScriptError` if `parse` would not accept the file name."""
        file = Path(path)
        if not _SAFE_NAME.fullmatch(file.name):
            raise ScriptError(
                "constant-data",
                f"{file.name!r} is not a valid name of a file of constants",
                help='use letters, digits, "_", "-", "+" and ".", and the suffix ".npz"',
            )
        if not self.found:
            return ""
        arrays: dict[str, Any] = {name: _storable(data) for name, data in self.found.items()}
        with replacing(file) as beside_it, beside_it.open("wb") as stream:
            np.savez(stream, **arrays)
        return f'\n# The data of the constants is in the file beside this one.\nmetadata = I.metadata("{file.name}")\n'

    def summary(self) -> str:
        """Comments that show some values of each constant instead of its data."""
        if not self.found:
            return ""
        lines = [f"#   {n}: {_annotation(d)} = {abbreviated(d)}" for n, d in self.found.items()]
        return "\n".join(["", "# Constants, without their data (`script` has it):", *lines, ""])


def data_name(data: np.ndarray) -> str:
    """The name of a constant: 16 hexadecimal digits computed from dtype, shape and bytes."""
    digest = blake2b(f"{DType(data.dtype)}{list(data.shape)}".encode(), digest_size=8)
    digest.update(_bytes(data))
    return digest.hexdigest()


def abbreviated(data: np.ndarray) -> str:
    """The first and last elements, in memory order."""
    flat = data.reshape(-1)
    shown = [str(item) for item in flat[: 2 * SHOWN]]
    if flat.size > 2 * SHOWN:
        shown = [*map(str, flat[:SHOWN]), "…", *map(str, flat[-SHOWN:])]
    return f"[{', '.join(shown)}]"


def _annotation(data: np.ndarray) -> TensorType:
    return TensorType(data.shape, str(DType(data.dtype)))


# Literals


def _same_bits(data: np.ndarray) -> bool:
    """Would the literals be parsed to the same bits? Not for NaNs with a payload."""
    again = np.array(_shortest(data), dtype=DType(data.dtype).numpy)
    return again.shape == data.shape and again.tobytes() == data.tobytes()


def _shortest(data: np.ndarray) -> Any:
    """Nested lists of Python numbers, with floats as short as their precision allows."""
    if data.dtype.kind in "iub":
        return data.tolist()
    if DType(data.dtype).is_packed:
        return data.astype(np.int8).tolist()
    if data.ndim == 0:
        if np.isnan(data):
            return math.nan
        value, short = float(data), float(str(data[()]))
        same = np.array(short, data.dtype).tobytes() == data.tobytes()
        return short if same else value
    return [_shortest(np.asarray(item)) for item in data]


def _literal(data: np.ndarray) -> str:
    def text(value: Any) -> str:
        if isinstance(value, list):
            return "[" + ", ".join(map(text, value)) + "]"
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        return repr(value)

    return text(_shortest(data))


# Bytes


def _bytes(data: np.ndarray) -> memoryview:
    """The elements in C order, little-endian; without a copy if they already are."""
    raw = np.ascontiguousarray(data)
    if raw.dtype.isbuiltin == 1:
        raw = raw.astype(raw.dtype.newbyteorder("<"), copy=False)
    return as_bytes(raw).data


def _encode(data: np.ndarray) -> str:
    """Lines of base64 of compressed bytes. Weights are hardly compressible, so the fastest level is used."""
    text = base64.b64encode(zlib.compress(_bytes(data), 1)).decode()
    return "".join(f"{text[i : i + _WIDTH]}\n" for i in range(0, len(text), _WIDTH))


def _storable(data: np.ndarray) -> np.ndarray:
    """An array that `.npz` can store: numpy's own dtypes as they are, others (bfloat16, float8) as bytes."""
    return data if data.dtype.isbuiltin == 1 else np.frombuffer(_bytes(data), np.uint8)


# Reading


@dataclass
class StoredConstants:
    """The data of a text's constants, decoded on demand."""

    entries: Mapping[str, str | np.ndarray]
    """Constants by name: text as written by `ConstantTable.inline`, or an array of the same bytes."""
    places: Mapping[str, Span] = field(default_factory=dict[str, Span])
    """The location of the text of each constant."""
    _decoded: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])

    def array(self, name: str, annotation: TensorType) -> np.ndarray:
        """The data of a name with this annotation. Raises `ScriptError` if it is missing or damaged."""
        if name not in self.entries:
            raise missing(name)
        if name not in self._decoded:
            try:
                found = _decode(self.entries[name], annotation)
                if data_name(found) != name:
                    raise ValueError("it does not match the digest in its name")
                self._decoded[name] = found
            except (binascii.Error, zlib.error, ValueError, OverflowError) as error:
                problem = str(error)
                raise ScriptError(
                    "constant-data",
                    f"the data of constant {name} is damaged: {problem}",
                    span=self.places.get(name),
                    help="print the module again, or write R.const([…], dtype)",
                ) from None
        found = self._decoded[name]
        if _annotation(found) != annotation:
            raise ScriptError(
                "constant-data", f"constant {name} is {_annotation(found)}, not {annotation}"
            ).about("annotation")
        return found


def missing(name: str) -> ScriptError:
    """The error for a name without data."""
    return ScriptError(
        "constant-data",
        f"the text has no data of constant {name}",
        help="mod.script() includes the data, mod.show() omits it; "
        "pass a separate file of data as parse(text, constants=…)",
    ).about("name")


def const_ref(name: str, annotation: Any, *, stored: Any = None) -> Constant:
    """A constant whose data is in the text's `I.metadata(…)`: `R.const_ref("9b1f6a0c1e2d3f40", R.Tensor((384, 384),
    dtype="float32"))`. `stored` is the data found by the parser."""
    shape = annotation.shape if isinstance(annotation, TensorType) else None
    known = isinstance(shape, tuple) and all(dim.value is not None for dim in shape)
    if not known or annotation.dtype is None:
        raise ScriptError(
            "constant-data",
            f"a constant needs a known shape and dtype, got {annotation}",
            help='write R.Tensor((2, 3), dtype="float32")',
        ).about("annotation")
    if stored is POISON:
        raise Skip
    if not isinstance(stored, StoredConstants):
        raise missing(name)
    return Constant.shared(stored.array(str(name), annotation))


def _decode(entry: str | np.ndarray, annotation: TensorType) -> np.ndarray:
    dtype = DType(str(annotation.dtype))
    shape = tuple(dim.value or 0 for dim in expect(tuple, annotation.shape))
    size = nbytes(dtype.numpy, shape)
    if min(shape, default=0) < 0:
        raise ValueError("an extent is negative")
    if isinstance(entry, np.ndarray):
        raw = bytes(_bytes(entry))
    else:
        unpack = zlib.decompressobj()
        packed = base64.b64decode("".join(entry.split()), validate=True)
        raw = unpack.decompress(packed, size + 1)
    if len(raw) != size:
        raise ValueError(f"{size} bytes are expected")
    return from_bytes(np.frombuffer(raw, np.uint8), dtype.numpy, shape)


def read_file(path: str | PathLike[str]) -> StoredConstants:
    """The constants in an `.npz` file written by `ConstantTable.beside`. Raises `ScriptError`."""
    try:
        # opened here: numpy leaks the file handle if it cannot read the file
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            return StoredConstants({name: file[name] for name in file.files})
    except _UNREADABLE as error:
        problem = str(error)
    raise ScriptError("constant-data", f"the constants in {path} cannot be read: {problem}")


def read_beside(name: str, text: str) -> StoredConstants:
    """The constants in a file named by a text; `text` is the file of the text."""
    if not _SAFE_NAME.fullmatch(name):
        raise ScriptError(
            "constant-data",
            f"{name!r} is not the name of an .npz file beside this text",
            help="pass another file as parse(text, constants=…)",
        )
    return read_file(Path(text).parent / name)
