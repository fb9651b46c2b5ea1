"""Kernel images: source text (OpenCL C, WGSL, MSL) or machine code (cubin, PTX) behind a line that describes the call
of the kernel.

The line is a comment of JSON: the kernel's name, the format of the code unless it is text, and its arguments in order.
Each is one of

* `{"memory": i}`: the memory of the program's argument number i, with `"access": "read"` or `"read-write"` where a
  language tells them apart;
* `{"first": i, "itemsize": n}`: the number of its first element there, in elements of n bytes, where a kernel gets
  whole buffers; devices with addresses (CUDA) get that of the element;
* `{"scalar": i, "dtype": t}`: the program's argument number i, a number;
* `{"size": i, "dtype": t}`: the number of this index in `KernelImage.launch`; with `"most": m` the kernel is only right
  for numbers from -m to m.

The first six numbers of `KernelImage.launch` are groups of threads along three axes, and threads in a group.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from relaxpy.errors import ExecutableError
from relaxpy.runtime import dtype as dtypes

if TYPE_CHECKING:
    from relaxpy.runtime.terms import KernelInfo

MARK = "// relaxpy: "
"""The prefix of the first line."""
GRID = 6
"""How many numbers of a launch describe its grid."""

Argument = Mapping[str, Any]


FORMATS = ("text", "cubin", "ptx")
"""The formats of an image's code."""


@dataclass(frozen=True)
class LibraryCall:
    """A function of a library that computes what a kernel computes, faster where there is much to do. The device's
    runtime knows the library."""

    name: str
    """Of the function: `cublas.matmul_bias`."""
    dtype: str
    """Of its tensors."""
    places: Mapping[str, int]
    """The program's arguments by their names in the function, which are among `_PLACES`."""
    first: int
    """The index in `KernelImage.launch` of the numbers that the function takes. The first one says how much there is to
    do."""
    count: int
    """How many numbers there are."""
    least: int
    """The least first number with which it is called. The kernel's own code runs for others."""
    workspace: int
    """The bytes of the workspace."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The constants of the call, such as the strides of a convolution."""

    def misfit(self, info: KernelInfo) -> str:
        """Why it does not fit the kernel's description, or ""."""
        if not GRID <= self.first <= len(info.image.launch) - self.count:
            return f"its library call takes numbers {self.first} to {self.first + self.count - 1} of a launch"
        params = info.params or ()
        for name, place in self.places.items():
            if place >= len(params) or params[place].shape is None:
                return f"its library call takes argument {place} as {name}, which is no tensor of its program"
        return ""

    @classmethod
    def decode(cls, found: Any) -> LibraryCall:
        """Reads a call from JSON. Raises: ValueError, KeyError or TypeError for another value."""
        places = {str(name): _natural(place) for name, place in dict(found["places"]).items()}
        if not {"out", "workspace"} <= set(places) <= _PLACES:
            raise ValueError(f"a library call has the arguments {', '.join(places)}")
        first, count, least, workspace = (
            _natural(found[name]) for name in ("first", "count", "least", "workspace")
        )
        options = {str(name): value for name, value in dict(found["options"]).items()}
        name, dtype = str(found["name"]), str(found["dtype"])
        return cls(name, dtype, places, first, count, least, workspace, options)


_PLACES = frozenset("left right data weight bias residual workspace out".split())


def _natural(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no natural number")
    return value


@dataclass(frozen=True)
class Image:
    """A kernel as a device loads it."""

    kernel: str
    """Its name in the code."""
    args: tuple[Argument, ...]
    code: bytes
    """In the format; text is UTF-8."""
    extensions: tuple[str, ...] = ()
    """The OpenCL extensions that a device must have."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """The least values of a device's limits with which the kernel can run, by WebGPU's names of them. For CUDA:
    `threads` of a block, bytes of `shared` memory, and how many of them are asked for at the launch
    (`dynamic-shared`)."""
    format: str = "text"
    """One of `FORMATS`."""
    resources: Mapping[str, int] = field(default_factory=dict)
    """The resources of a thread and of a block, as the compiler reports them, for people to read: `registers`, bytes of
    `stack`, `spills` and `shared` memory."""

    library: LibraryCall | None = None
    """The library function that runs instead of the code where there is much to do."""
    rounds: int | None = None
    """The index in `KernelImage.launch` of a bound of the rounds of loops that a thread runs."""

    @property
    def source(self) -> str:
        """The code of an image whose format is text."""
        return self.code.decode()

    def encode(self) -> bytes:
        """The image as the bytes of a file."""
        header: dict[str, Any] = {
            "kernel": self.kernel,
            "args": self.args,
            "extensions": self.extensions,
        }
        if self.limits:
            header["limits"] = dict(self.limits)
        if self.format != "text":
            header["format"] = self.format
        if self.resources:
            header["resources"] = dict(self.resources)
        if self.library is not None:
            header["library"] = asdict(self.library)
        if self.rounds is not None:
            header["rounds"] = self.rounds
        return f"{MARK}{json.dumps(header)}\n".encode() + self.code

    @classmethod
    def decode(cls, data: bytes) -> Image:
        """Reads an image from the bytes of a file. Raises: ValueError for other bytes."""
        line, _, code = bytes(data).partition(b"\n")
        first = line.decode()
        if not first.startswith(MARK):
            raise ValueError("it does not begin with a description of its kernel")
        try:
            header = json.loads(first.removeprefix(MARK))
        except RecursionError:
            raise ValueError("the description of its kernel is too deep") from None
        args = tuple(map(_checked, header["args"]))
        limits, resources = (
            {str(name): int(value) for name, value in dict(header.get(key, {})).items()}
            for key in ("limits", "resources")
        )
        extensions = tuple(map(str, header["extensions"]))
        format = header.get("format", "text")
        if format not in FORMATS:
            raise ValueError(f"its code is {format!r}, which is none of {', '.join(FORMATS)}")
        if format == "text":
            code.decode()
        called = header.get("library")
        library = None if called is None else LibraryCall.decode(called)
        rounds = _natural(header["rounds"]) if "rounds" in header else None
        return cls(
            str(header["kernel"]), args, code, extensions, limits, format, resources, library, rounds
        )  # fmt: skip

    @classmethod
    def of(cls, info: KernelInfo, objects: Sequence[bytes], language: str) -> Image:
        """The image of a kernel of a file, in this language. Raises: ExecutableError (`object-code`) for other bytes,
        and for the image of another kernel."""
        try:
            image = cls.decode(objects[info.image.object])
        except (ValueError, KeyError, TypeError) as error:
            raise ExecutableError(
                "object-code", f"the kernel {info.name!r} is not {language} image: {error}"
            ) from error
        if problem := image.misfit(info):
            raise ExecutableError(
                "object-code", f"the kernel {info.name!r} is in another one's image: {problem}"
            )
        return image

    def misfit(self, info: KernelInfo) -> str:
        """The reason why this image does not fit the kernel's description in a file, or "". A kernel's symbol contains
        a digest of its parameters and of its launch (`relaxpy.runtime.kernel_params`), so the image must have that
        symbol."""
        if self.kernel != info.image.symbol:
            return f"it is the kernel {self.kernel!r}, and {info.image.symbol!r} is expected"
        if len(info.image.launch) < GRID:
            return f"it is launched with {len(info.image.launch)} numbers, and a grid is {GRID}"
        if self.rounds is not None and not GRID <= self.rounds < len(info.image.launch):
            return f"its rounds are number {self.rounds} of a launch of {len(info.image.launch)}"
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
        return "" if self.library is None else self.library.misfit(info)


Getter = Callable[[Sequence[int], Sequence[Any]], Any]
"""Finds an argument of a kernel among the numbers of a launch and the program's arguments."""


def getter(
    arg: Argument,
    number: Callable[[Any], Any] | None = None,
    offset: Callable[[Any], int] | None = None,
) -> Getter:
    """How a described argument is found. A number is passed as `number` makes it (None: as a Python number). `offset`
    says where in its buffer a kernel sees a tensor, in bytes (None: where it is)."""
    match arg:
        case {"memory": place}:
            return lambda _, args: args[place].buffer.handle
        case {"first": place, "itemsize": itemsize}:
            offset, to = offset or _OFFSET, number or int
            return lambda _, args: to(offset(args[place]) // itemsize)
        case {"scalar": place, "dtype": dtype}:
            to = number or (float if "float" in dtype else int)
            return lambda _, args: to(args[place])
        case _:
            place = arg["size"]
            if number is None:
                return lambda numbers, _: numbers[place]
            return lambda numbers, _: number(numbers[place])


_OFFSET: Callable[[Any], int] = attrgetter("offset")
_KINDS: tuple[frozenset[str], ...] = (
    frozenset({"memory"}),
    frozenset({"memory", "access"}),
    frozenset({"first", "itemsize"}),
    frozenset({"scalar", "dtype"}),
    frozenset({"size", "dtype"}),
    frozenset({"size", "dtype", "most"}),
)
_ACCESS = ("read", "read-write")


def _checked(arg: Any) -> Argument:
    if not isinstance(arg, dict) or frozenset(arg) not in _KINDS:
        raise ValueError(f"{arg!r} is not an argument of a kernel")
    numbers: Sequence[Any] = [arg[name] for name in arg if name not in ("dtype", "access")]
    known = all(type(value) is int and value >= 0 for value in numbers)
    typed = isinstance(arg.get("dtype", "int64"), str) and arg.get("dtype", "int64") in dtypes.INFO
    accessed = arg.get("access", "read") in _ACCESS
    if not known or not typed or not accessed or arg.get("itemsize") == 0:
        raise ValueError(f"{arg!r} is not an argument of a kernel")
    return arg
