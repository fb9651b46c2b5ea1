"""Reads relocatable objects of WebAssembly, as LLVM writes them.

The format is WebAssembly's with custom sections: `linking` has symbols and the names of data segments, `reloc.CODE` and
`reloc.DATA` the places that a linker fills in. Initialisers are skipped, as those of kernels do nothing
(https://github.com/WebAssembly/tool-conventions/blob/main/Linking.md). Sections for debuggers are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from relaxpy.errors import ExecutableError

MAGIC = b"\0asm\1\0\0\0"

FUNCTION, DATA, GLOBAL, SECTION, TAG, TABLE = range(6)
"""Kinds of symbols."""
_IMPORTS = {0: FUNCTION, 1: TABLE, 2: -1, 3: GLOBAL, 4: TAG}
"""Kinds of imports as kinds of symbols; -1: a memory."""
WEAK, LOCAL, UNDEFINED, NAMED = 1, 2, 0x10, 0x40
"""Flags of symbols."""

(
    FUNCTION_LEB, TABLE_SLEB, TABLE_I32, MEMORY_LEB, MEMORY_SLEB, MEMORY_I32, TYPE_LEB, GLOBAL_LEB,
) = range(8)  # fmt: skip
MEMORY_REL_SLEB, TABLE_REL_SLEB, TABLE_NUMBER_LEB = 11, 12, 20
"""Kinds of relocations: what is written, and how."""
_WITH_ADDEND = {MEMORY_LEB, MEMORY_SLEB, MEMORY_I32, MEMORY_REL_SLEB}

_T = TypeVar("_T")


class Reader:
    """Reads numbers and names of bytes. Raises: ExecutableError (`object-code`) where they end early."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def __bool__(self) -> bool:
        return self.at < len(self.data)

    def byte(self) -> int:
        return self.take(1)[0]

    def take(self, count: int) -> bytes:
        found = self.data[self.at : self.at + count]
        if len(found) < count:
            raise damaged("it ends early")
        self.at += count
        return found

    def number(self) -> int:
        """An unsigned number (LEB128)."""
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def signed(self) -> int:
        """A signed number."""
        begin = self.at
        value = self.number()
        bits = 7 * (self.at - begin)
        return value - (1 << bits) if value >> (bits - 1) else value

    def name(self) -> str:
        return self.take(self.number()).decode()

    def part(self) -> Reader:
        """The bytes of a size that stands before them."""
        return Reader(self.take(self.number()))

    def many(self, read: Callable[[], _T]) -> list[_T]:
        return [read() for _ in range(self.number())]


@dataclass(frozen=True)
class Symbol:
    """A function, a global, a table, or data."""

    kind: int
    flags: int
    name: str
    index: int
    """Of a function, global or table of the object, imports first; of the segment of data; -1: undefined data."""
    offset: int = 0
    """The first byte of data in its segment."""

    @property
    def is_defined(self) -> bool:
        return not self.flags & UNDEFINED


@dataclass(frozen=True)
class Place:
    """A place that the linker fills in."""

    kind: int
    offset: int
    """In its section."""
    symbol: int
    """A symbol, or for `TYPE_LEB` a type."""
    addend: int = 0


@dataclass
class WasmObject:
    """An object."""

    types: list[bytes] = field(default_factory=list[bytes])
    """Function types, as bytes."""
    imports: list[tuple[int, str, int]] = field(default_factory=list[tuple[int, str, int]])
    """The kind, name, and type (of a function) of what it imports."""
    functions: list[int] = field(default_factory=list[int])
    """The types of its functions."""
    code: bytes = b""
    """The section with their bodies."""
    bodies: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """First and last byte of each body in the section, with its size in front."""
    data: bytes = b""
    """The section of data."""
    segments: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """First and last byte of each segment in the section."""
    alignments: list[int] = field(default_factory=list[int])
    """Of the segments, in bytes."""
    symbols: list[Symbol] = field(default_factory=list[Symbol])
    places: dict[str, list[Place]] = field(default_factory=dict[str, list[Place]])
    """By section: `CODE` or `DATA`."""

    def imported(self, kind: int) -> list[tuple[int, str, int]]:
        return [each for each in self.imports if each[0] == kind]


def damaged(why: str) -> ExecutableError:
    return ExecutableError("object-code", f"an object of WebAssembly cannot be read: {why}")


def read_object(data: bytes) -> WasmObject:
    """Reads an object. Raises: ExecutableError (`object-code`) for another file, and for parts that no kernel has."""
    if data[:8] != MAGIC:
        raise damaged("it is no WebAssembly")
    try:
        return _read(data)
    except (IndexError, UnicodeDecodeError) as error:
        raise damaged(str(error)) from error


def _read(data: bytes) -> WasmObject:
    found = WasmObject()
    readers: dict[int, Callable[[WasmObject, Reader], None]] = {
        1: _types, 2: _imports, 3: _functions, 10: _code, 11: _data,
    }  # fmt: skip
    sections: list[str] = []
    for kind, part in _sections(data):
        name = part.name() if kind == 0 else {10: "CODE", 11: "DATA"}.get(kind, "")
        sections.append(name)
        if kind in readers:
            readers[kind](found, part)
        elif name == "linking":
            _linking(found, part)
        elif name in ("reloc.CODE", "reloc.DATA"):
            target = sections[part.number()]
            found.places[target] = part.many(lambda part=part: _place(part))
    if not found.symbols:
        raise damaged("it has no symbols: it is no relocatable object")
    return found


def _sections(data: bytes) -> Iterator[tuple[int, Reader]]:
    reader = Reader(data)
    reader.at = len(MAGIC)
    while reader:
        yield reader.byte(), reader.part()


def _types(found: WasmObject, part: Reader) -> None:
    def signature() -> bytes:
        begin = part.at
        if part.byte() != 0x60:
            raise damaged("a type is no function's")
        part.many(part.byte)
        part.many(part.byte)
        return part.data[begin : part.at]

    found.types = part.many(signature)


def _imports(found: WasmObject, part: Reader) -> None:
    def one() -> tuple[int, str, int]:
        part.name()
        name, kind, detail = part.name(), part.byte(), -1
        if kind in (0, 4):
            if kind == 4:
                part.byte()
            detail = part.number()
        elif kind == 3:
            part.take(2)
        else:  # a table, after its type, or a memory
            if kind == 1:
                part.byte()
            flags = part.number()
            part.number()
            if flags & 1:
                part.number()
        if kind not in _IMPORTS:
            raise damaged(f"an import of kind {kind}")
        return _IMPORTS[kind], name, detail

    found.imports = part.many(one)


def _functions(found: WasmObject, part: Reader) -> None:
    found.functions = part.many(part.number)


def _code(found: WasmObject, part: Reader) -> None:
    def body() -> tuple[int, int]:
        begin = part.at
        part.part()
        return begin, part.at

    found.bodies = part.many(body)
    found.code = part.data


def _data(found: WasmObject, part: Reader) -> None:
    def segment() -> tuple[int, int]:
        if part.number() != 0:
            raise damaged("a segment of data that is not placed")
        while part.byte() != 0x0B:  # the expression of its address, which the linker chooses
            part.number()
        size = part.number()
        part.take(size)
        return part.at - size, part.at

    found.segments = part.many(segment)
    found.data = part.data


def _linking(found: WasmObject, part: Reader) -> None:
    version = part.number()
    if version != 2:
        raise damaged(f"its linking section has version {version}, not 2")
    while part:
        kind, own = part.byte(), part.part()
        if kind == 8:
            found.symbols = own.many(lambda own=own: _symbol(found, own))
        elif kind == 5:
            found.alignments = own.many(lambda own=own: _alignment(own))


def _alignment(part: Reader) -> int:
    part.name()
    power, _ = part.number(), part.number()
    return 1 << power


def _symbol(found: WasmObject, part: Reader) -> Symbol:
    kind, flags = part.byte(), part.number()
    is_defined = not flags & UNDEFINED
    if kind == DATA:
        name = part.name()
        if not is_defined:
            return Symbol(kind, flags, name, -1)
        segment, offset, _ = part.number(), part.number(), part.number()
        return Symbol(kind, flags, name, segment, offset)
    index = part.number()
    if kind == SECTION:
        return Symbol(kind, flags, "", index)
    if is_defined or flags & NAMED:
        return Symbol(kind, flags, part.name(), index)
    imported = found.imported(kind)
    if index >= len(imported):
        raise damaged("a symbol is undefined, and not imported")
    return Symbol(kind, flags, imported[index][1], index)


def _place(part: Reader) -> Place:
    kind, offset, symbol = part.byte(), part.number(), part.number()
    return Place(kind, offset, symbol, part.signed() if kind in _WITH_ADDEND else 0)
