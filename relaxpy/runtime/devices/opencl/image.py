"""Kernel images of OpenCL: OpenCL C whose first line describes the call of the kernel.

The line is a comment of JSON: the kernel's name, and its arguments in order. Each is one of

* `{"memory": i}`: the memory of the program's argument number i; `{"first": i, "itemsize": n}` the number of its first
  element there, in elements of n bytes;
* `{"scalar": i, "dtype": t}`: the program's argument number i, a number;
* `{"size": i, "dtype": t}`: of the numbers of `KernelImage.launch` the one with this index.

The first six numbers of `KernelImage.launch` are groups of threads along three axes, and threads in a group.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relaxpy.runtime import dtype as dtypes

if TYPE_CHECKING:
    from relaxpy.runtime.bytecode import KernelInfo

MARK = "// relaxpy: "
"""The prefix of the first line."""
GRID = 6
"""How many numbers of a launch describe its grid."""

Argument = Mapping[str, Any]


@dataclass(frozen=True)
class Image:
    """A kernel in OpenCL C."""

    kernel: str
    """Its name in the text."""
    args: tuple[Argument, ...]
    source: str
    extensions: tuple[str, ...] = ()
    """The OpenCL extensions that a device must have."""

    def encode(self) -> bytes:
        """The image as the bytes of a file."""
        header = {"kernel": self.kernel, "args": self.args, "extensions": self.extensions}
        return f"{MARK}{json.dumps(header)}\n{self.source}".encode()

    @classmethod
    def decode(cls, data: bytes) -> Image:
        """Reads an image from the bytes of a file. Raises: ValueError for other bytes."""
        first, _, source = bytes(data).decode().partition("\n")
        if not first.startswith(MARK):
            raise ValueError("it does not begin with a description of its kernel")
        try:
            header = json.loads(first.removeprefix(MARK))
        except RecursionError:
            raise ValueError("the description of its kernel is too deep") from None
        args = tuple(map(_checked, header["args"]))
        return cls(str(header["kernel"]), args, source, tuple(map(str, header["extensions"])))

    def misfit(self, info: KernelInfo) -> str:
        """The reason why this image does not fit the kernel's description in a file, or "". A kernel's symbol contains
        a digest of its parameters and of its launch (`relaxpy.runtime.kernel_params`), so the image must have that
        symbol."""
        if self.kernel != info.image.symbol:
            return f"it is the kernel {self.kernel!r}, and {info.image.symbol!r} is expected"
        if len(info.image.launch) < GRID:
            return f"it is launched with {len(info.image.launch)} numbers, and a grid is {GRID}"
        scalars = [param.shape is None for param in info.params or ()]
        for arg in self.args:
            size, place = arg.get("size"), arg.get("scalar", arg.get("memory", arg.get("first", 0)))
            if size is not None and not GRID <= size < len(info.image.launch):
                return f"it takes number {size} of a launch, and {GRID} to {len(info.image.launch) - 1} are sizes"
            if (
                size is None
                and info.params is not None
                and not (place < len(scalars) and scalars[place] == ("scalar" in arg))
            ):
                return f"it takes {dict(arg)}, which is not an argument of its program"
        return ""


_KINDS: tuple[frozenset[str], ...] = (
    frozenset({"memory"}),
    frozenset({"first", "itemsize"}),
    frozenset({"scalar", "dtype"}),
    frozenset({"size", "dtype"}),
)


def _checked(arg: Any) -> Argument:
    if not isinstance(arg, dict) or frozenset(arg) not in _KINDS:
        raise ValueError(f"{arg!r} is not an argument of a kernel")
    numbers: Sequence[Any] = [value for name, value in arg.items() if name != "dtype"]
    known = all(type(value) is int and value >= 0 for value in numbers)
    typed = isinstance(arg.get("dtype", "int64"), str) and arg.get("dtype", "int64") in dtypes.INFO
    if not known or not typed or arg.get("itemsize") == 0:
        raise ValueError(f"{arg!r} is not an argument of a kernel")
    return arg
