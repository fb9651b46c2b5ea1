"""Links relocatable objects of WebAssembly into one module that `js/wasm.js` runs.

The module has a memory of its own and exports it: first the stack, so that what overflows it ends in a trap, then the
data of kernels, then what JavaScript allocates (from `__heap_base` on). It exports the requested functions, its table
and the pointer of the stack, and imports from `relaxpy` what kernels ask of a host (`HOST`).

Kernels of TVM call their host through pointers in their data: `__TVMBackendAllocWorkspace` has the address of
`TVMBackendAllocWorkspace`. Here it is the imported function's place in the table. What else an object does not define
is imported under its name, if the host has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from relaxpy.errors import ExecutableError
from relaxpy.web import wasm_object as wasm
from relaxpy.web.wasm_object import Place, Symbol, WasmObject, read_object

STACK = 1 << 20
"""Bytes of the stack. Buffers of kernels that are on it have less than 1 KiB each."""
PAGE = 1 << 16
"""Bytes of a page of memory."""
MODULE = "relaxpy"
"""The name that functions of the host are imported from."""

_I32, _I64, _F32, _F64 = 0x7F, 0x7E, 0x7D, 0x7C
_LETTERS = {"i": _I32, "l": _I64, "f": _F32, "d": _F64}


def _type(text: str) -> bytes:
    """A function type: letters of parameters, `:`, letters of results."""
    parts = [bytes(_LETTERS[letter] for letter in part) for part in text.split(":")]
    return b"\x60" + b"".join(_leb(len(part)) + part for part in parts)


HOST = {
    "TVMBackendAllocWorkspace": "iilii:i",
    "TVMBackendFreeWorkspace": "iii:i",
    "TVMBackendParallelLaunch": "iii:i",
    "TVMBackendParallelBarrier": "ii:i",
    "TVMFFIEnvModLookupFromImports": "iii:i",
    "TVMFFIErrorSetRaisedFromCStr": "ii:",
    "TVMFFIErrorSetRaisedFromCStrParts": "iii:",
    "TVMFFIFunctionCall": "iiii:i",
    "TVMFFIHandleInitOnce": "ii:i",
}
"""The functions that kernels call through pointers: `c_api.h` and `c_backend_api.h` of TVM, on a machine of 32 bits."""


def imports(objects: Iterable[bytes]) -> set[str]:
    """The names of the functions that objects need of a host, beyond `HOST`."""
    found: set[str] = set()
    defined: set[str] = set()
    for each in map(read_object, objects):
        for symbol in each.symbols:
            if symbol.kind == wasm.FUNCTION:
                (defined if symbol.is_defined else found).add(symbol.name)
            elif symbol.kind == wasm.DATA and symbol.name.startswith("__TVM"):
                found.add(symbol.name.removeprefix("__"))
    return found - defined - HOST.keys()


def link(objects: Sequence[bytes], exported: Mapping[str, str]) -> bytes:
    """A module of the objects that exports functions, `exported`: name → symbol.

    Raises: ExecutableError (`object-code`) for an object that is none, and a function that none of them defines.
    """
    return _Linker([read_object(each) for each in objects], exported).module()


@dataclass(frozen=True)
class _Global:
    is_mutable: bool
    value: int


class _Linker:
    def __init__(self, objects: list[WasmObject], exported: Mapping[str, str]) -> None:
        self.objects, self.exported = objects, exported
        self.types: dict[bytes, int] = {}
        self.imports: dict[str, int] = {}
        """Function of the host → its type."""
        self.table: list[int] = []
        """Functions of the table, from place 1 on: 0 is the null pointer."""
        self.globals = {
            "__stack_pointer": _Global(True, STACK),
            "__memory_base": _Global(False, 0),
            "__table_base": _Global(False, 0),
        }
        self.defined: dict[tuple[int, str], tuple[int, Symbol]] = {}
        """Kind and name → object and symbol, of what all objects see."""
        for number, each in enumerate(objects):
            for symbol in each.symbols:
                if symbol.is_defined and not symbol.flags & wasm.LOCAL:
                    self.defined.setdefault((symbol.kind, symbol.name), (number, symbol))
        self._import()
        self._place_functions()
        self._place_data()

    # Where everything is

    def _import(self) -> None:
        for each in self.objects:
            for symbol in each.symbols:
                own = symbol.name.removeprefix("__")
                if symbol.kind == wasm.DATA and own in HOST and own != symbol.name:
                    self._imported(own, _type(HOST[own]))
                elif self._is_missing(symbol):
                    _, _, number = each.imported(wasm.FUNCTION)[symbol.index]
                    self._imported(symbol.name, each.types[number])

    def _is_missing(self, symbol: Symbol) -> bool:
        """Is it a function that no object defines?"""
        known = (symbol.kind, symbol.name) in self.defined
        return symbol.kind == wasm.FUNCTION and not symbol.is_defined and not known

    def _imported(self, name: str, signature: bytes) -> None:
        if self.imports.setdefault(name, self._type(signature)) != self._type(signature):
            raise wasm.damaged(f"{name} has two types")

    def _type(self, signature: bytes) -> int:
        return self.types.setdefault(signature, len(self.types))

    def _place_functions(self) -> None:
        self.first: list[int] = []
        """The index of each object's first function."""
        count = len(self.imports)
        for each in self.objects:
            self.first.append(count)
            count += len(each.functions)

    def _place_data(self) -> None:
        self.addresses: list[list[int]] = []
        """The address of each segment of each object."""
        end = STACK
        for each in self.objects:
            own: list[int] = []
            for number, (begin, last) in enumerate(each.segments):
                unit = each.alignments[number] if number < len(each.alignments) else 16
                end = -(-end // unit) * unit
                own.append(end)
                end += last - begin
            self.addresses.append(own)
        self.end = -(-end // 64) * 64

    def _resolved(self, number: int, symbol: Symbol) -> tuple[int, Symbol]:
        """The object and symbol that define a symbol. Of data that several objects define, the first."""
        if symbol.flags & wasm.LOCAL:
            return number, symbol
        return self.defined.get((symbol.kind, symbol.name), (number, symbol))

    def _function(self, number: int, symbol: Symbol) -> int:
        owner, found = self._resolved(number, symbol)
        if not found.is_defined:
            return list(self.imports).index(found.name)
        each = self.objects[owner]
        return self.first[owner] + found.index - len(each.imported(wasm.FUNCTION))

    def _in_table(self, function: int) -> int:
        if function not in self.table:
            self.table.append(function)
        return self.table.index(function) + 1

    def _address(self, number: int, symbol: Symbol) -> int:
        owner, found = self._resolved(number, symbol)
        if found.index < 0:
            if symbol.flags & wasm.WEAK:
                return 0
            raise wasm.damaged(f"the data {symbol.name} is defined nowhere")
        return self.addresses[owner][found.index] + found.offset

    def _global(self, number: int, symbol: Symbol) -> int:
        """The index of a global; for a function or data it has the address, which position-independent code reads."""
        if symbol.kind == wasm.FUNCTION:
            value = self._in_table(self._function(number, symbol))
            key = f"function {value}"
        elif symbol.kind == wasm.DATA:
            value = self._address(number, symbol)
            key = f"data {value}"
        else:
            if symbol.name not in self.globals:
                raise wasm.damaged(f"the global {symbol.name} is unknown")
            return list(self.globals).index(symbol.name)
        self.globals.setdefault(key, _Global(False, value))
        return list(self.globals).index(key)

    # Filling in

    def _filled(self, number: int, section: str) -> bytearray:
        each = self.objects[number]
        data = bytearray(each.code if section == "CODE" else each.data)
        for place in each.places.get(section, ()):
            self._fill(data, number, place)
        return data

    def _fill(self, data: bytearray, number: int, place: Place) -> None:
        each, kind = self.objects[number], place.kind
        if kind == wasm.TYPE_LEB:
            value = self._type(each.types[place.symbol])
        else:
            symbol = each.symbols[place.symbol]
            if kind == wasm.FUNCTION_LEB:
                value = self._function(number, symbol)
            elif kind in (wasm.TABLE_SLEB, wasm.TABLE_I32, wasm.TABLE_REL_SLEB):
                value = self._in_table(self._function(number, symbol))
            elif kind == wasm.GLOBAL_LEB:
                value = self._global(number, symbol)
            elif kind == wasm.TABLE_NUMBER_LEB:
                value = 0
            elif kind in (wasm.MEMORY_LEB, wasm.MEMORY_SLEB, wasm.MEMORY_I32, wasm.MEMORY_REL_SLEB):
                value = self._address(number, symbol) + place.addend
            else:
                raise wasm.damaged(f"a relocation of kind {kind}")
        written = value.to_bytes(4, "little") if kind in _WORDS else _padded(value)
        data[place.offset : place.offset + len(written)] = written

    def _data(self) -> list[bytes]:
        """The segments of data that are not zero, with their addresses."""
        pointers = {
            self._address(number, symbol): self._in_table(list(self.imports).index(own))
            for number, each in enumerate(self.objects)
            for symbol in each.symbols
            if symbol.kind == wasm.DATA and (own := symbol.name.removeprefix("__")) in HOST
        }
        found: list[tuple[int, bytes]] = []
        for number, each in enumerate(self.objects):
            data = self._filled(number, "DATA")
            for address, (begin, last) in zip(self.addresses[number], each.segments, strict=True):
                if any(data[begin:last]):
                    found.append((address, bytes(data[begin:last])))
        found += [(at, place.to_bytes(4, "little")) for at, place in pointers.items()]
        return [b"\0" + _constant(at) + _leb(len(held)) + held for at, held in found]

    # The module

    def module(self) -> bytes:
        bodies: list[bytes] = []
        functions: list[bytes] = []
        for number, each in enumerate(self.objects):
            code = self._filled(number, "CODE")
            bodies += [bytes(code[begin:end]) for begin, end in each.bodies]
            functions += [_leb(self._type(each.types[index])) for index in each.functions]
        data = self._data()
        imported = [
            _text(MODULE) + _text(name) + b"\0" + _leb(number)
            for name, number in self.imports.items()
        ]
        table = [_leb(function) for function in self.table]
        size = _leb(len(table) + 1)
        exports = [
            _text(name) + bytes([kind]) + _leb(index) for name, kind, index in self._exports()
        ]
        values = [
            bytes([_I32, each.is_mutable]) + _constant(each.value) for each in self._all_globals()
        ]
        sections = {
            1: list(self.types),
            2: imported,
            3: functions,
            4: [b"\x70\1" + size + size],
            5: [b"\0" + _leb(-(-self.end // PAGE))],
            6: values,
            7: exports,
            9: [b"\0" + _constant(1) + _many(table)] if table else [],
            10: bodies,
            11: data,
        }
        return wasm.MAGIC + b"".join(
            bytes([kind]) + _leb(len(held)) + held
            for kind, items in sections.items()
            if items and (held := _many(items))
        )

    def _all_globals(self) -> list[_Global]:
        return [*self.globals.values(), _Global(False, self.end)]

    def _exports(self) -> list[tuple[str, int, int]]:
        found = [("memory", 2, 0), ("table", 1, 0)]
        found += [
            ("__stack_pointer", 3, list(self.globals).index("__stack_pointer")),
            ("__heap_base", 3, len(self.globals)),
        ]
        for name, symbol in self.exported.items():
            known = self.defined.get((wasm.FUNCTION, symbol))
            if known is None:
                raise ExecutableError("object-code", f"the objects have no function {symbol}")
            found.append((name, 0, self._function(*known)))
        return found


_WORDS = (wasm.TABLE_I32, wasm.MEMORY_I32)


def _leb(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _padded(value: int) -> bytes:
    """A number below 2**31 in five bytes, as objects leave room for: signed and unsigned are the same."""
    if not 0 <= value < 1 << 31:
        raise wasm.damaged(f"an address of {value}")
    return bytes([*(value >> (7 * i) & 0x7F | 0x80 for i in range(4)), value >> 28])


def _constant(value: int) -> bytes:
    """The expression of an i32."""
    return b"\x41" + _padded(value) + b"\x0b"


def _many(items: Sequence[bytes]) -> bytes:
    return _leb(len(items)) + b"".join(items)


def _text(name: str) -> bytes:
    data = name.encode()
    return _leb(len(data)) + data
