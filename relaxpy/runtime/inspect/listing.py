"""An executable as text: one line per instruction, sizes as formulas, bindings and source lines as comments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relaxpy.runtime.bytecode import (
    HOST,
    FunctionCode,
    Graph,
    Heap,
    If,
    Instr,
    IntExpr,
    IntOp,
    Operand,
    Pattern,
    PrimPattern,
    Reg,
    ShapePattern,
    TensorPattern,
    TuplePattern,
)
from relaxpy.runtime.effects import KINDS, TABLES, written_slots
from relaxpy.runtime.function_listing import printable

if TYPE_CHECKING:
    from relaxpy.runtime.executable import Executable

_COMMENT_COLUMN = 72


def signature(code: FunctionCode) -> str:
    """`name(x: R.Tensor(…)) -> R.Tensor(…)`."""
    params = ", ".join(f"{p.name}: {p.annotation}" if p.annotation else p.name for p in code.params)
    return f"{code.name}({params})" + (f" -> {code.ret}" if code.ret else "")


def listing(exe: Executable, kernels: bool) -> str:
    """The text of `Executable.as_text`."""
    target = exe.target
    words = [str(target.get("kind", "unknown"))]
    if target.get("mcpu"):
        words.append(f"-mcpu={target['mcpu']}")
    lines = [f"# target: {' '.join(words)}"]
    for number, requirement in enumerate(exe.requirements):
        images = sum(i.needs == number for kernel in exe.kernels for i in kernel.images)
        count = f"{images} image{'s' * (images != 1)}"
        needs = ", ".join(requirement.features) or "no features"
        lines.append(f"# {count} for {requirement.name}, of {requirement.arch}: {needs}")
    size = sum(map(len, exe.objects))
    count = f"{len(exe.kernels)} kernel{'s' * (len(exe.kernels) != 1)}"
    lines.append(f"# {count} in {size} bytes of object code")
    for number, slot in enumerate(exe.slots[1:], 1):
        lines.append(f"slot {number}: {slot.name}, a device of kind {slot.kind}")
    for index, array in enumerate(exe.constants):
        lines.append(f"const c{index}: {array.dtype.name}[{', '.join(map(str, array.shape))}]")
    lines += [f"library {name}" for name in exe.libraries]
    for code in exe.functions:
        lines += ["", *_function(exe, code)]
    if kernels:
        for kernel in exe.kernels:
            lines += [
                "",
                f"# kernel {kernel.name}",
                *exe.sources.get(kernel.name, "# (source not kept)").rstrip().split("\n"),
            ]
    return "\n".join(map(printable, lines)) + "\n"


def _function(exe: Executable, code: FunctionCode) -> list[str]:
    private = "" if code.public else "private "
    lines = [f"{private}func {signature(code)}:"]
    lines.append(f"  # {code.num_regs} registers, {len(code.heap_init)} heap slots")
    written = written_slots(code)
    lines += [
        f"  heap h{slot} = {value}"
        for slot, value in enumerate(code.heap_init)
        if slot not in written
    ]
    lines += [
        f"  storage m{i}: {_int(size)} bytes{_on(exe, code.storage_slot(i))}"
        for i, size in enumerate(code.storages)
    ]
    ends: list[tuple[int, str]] = []
    depth = 1
    for at, instr in enumerate(code.code):
        while ends and ends[-1][0] == at:
            _, word = ends.pop()
            depth -= 1
            lines.append("  " * depth + word)
            depth += word == "else"
        text = "  " * depth + _instr(exe, code, instr)
        lines.append(f"{text:<{_COMMENT_COLUMN}}{_place(code, instr)}".rstrip())
        if isinstance(instr, Graph):
            ends.append((at + 1 + instr.length, "end"))
            depth += 1
        if isinstance(instr, If):
            middle = at + 1 + instr.then_len
            ends.append((middle + instr.else_len, "end"))
            ends.append((middle, "else"))
            depth += 1
    return lines


def _place(code: FunctionCode, instr: Instr) -> str:
    place = code.place(instr)
    return f" # {place.binding}" + (f", {place.file}:{place.line}" if place.file else "")


_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "floordiv": "//",
    "floormod": "%",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
}


def _int(expr: IntExpr) -> str:
    """An integer expression as a formula."""
    if isinstance(expr, Heap):
        return f"h{expr.index}"
    if isinstance(expr, IntOp):
        args = [_int(arg) for arg in expr.args]
        if expr.op in _INFIX:
            return f"({args[0]} {_INFIX[expr.op]} {args[1]})"
        return f"{expr.op}({', '.join(args)})"
    return str(expr)


def _operand(arg: Operand) -> str:
    match arg:
        case Reg(index):
            return f"r{index}"
        case Heap(index):
            return f"h{index}"
        case _:
            return repr(arg)


def _on(exe: Executable, slot: int) -> str:
    """The device of a slot, unless that is the host."""
    return f" on {exe.slots[slot].name}" if slot else ""


def _pattern(exe: Executable, pattern: Pattern) -> str:
    match pattern:
        case TensorPattern(shape, ndim, dtype, slot):
            sizes = (
                ", ".join(_size(size) for size in shape)
                if shape is not None
                else f"rank {ndim}"
                if ndim >= 0
                else "…"
            )
            return f"{dtype or 'any'}[{sizes}]{_on(exe, slot)}"
        case ShapePattern(dims, ndim):
            sizes = (
                ", ".join(_size(size) for size in dims)
                if dims is not None
                else f"rank {ndim}"
                if ndim >= 0
                else "…"
            )
            return f"shape[{sizes}]"
        case PrimPattern(dtype, value):
            return f"{dtype or 'scalar'}" + (f" = {_size(value)}" if value is not None else "")
        case TuplePattern(fields):
            return f"({', '.join(_pattern(exe, field) for field in fields)})"
        case _:
            return type(pattern).__name__.removesuffix("Pattern").lower()


def _size(size: None | int | Heap) -> str:
    return "_" if size is None else _int(size)


def _instr(exe: Executable, code: FunctionCode, instr: Instr) -> str:
    """One instruction."""
    return instr.text().format_map(_Words(exe, code, instr))


class _Words(dict[str, str]):
    """The fields of an instruction, by name, and `on`, its device."""

    def __init__(self, exe: Executable, code: FunctionCode, instr: Instr) -> None:
        self.of = exe, code, instr

    def __missing__(self, field: str) -> str:
        exe, _, instr = self.of
        if field == "on":
            return _on(exe, getattr(instr, "slot", HOST))
        return _word(*self.of, KINDS[type(instr)][field], getattr(instr, field))


def _word(exe: Executable, code: FunctionCode, instr: Any, kind: str, value: Any) -> str:
    """A field of an instruction, by its annotation."""
    match kind:
        case "Dst" | "Src":
            return f"r{value}"
        case "Srcs" | "Dead":
            return ", ".join(f"r{reg}" for reg in value)
        case "Operands":
            return ", ".join(map(_operand, value))
        case "HeapDst":
            return f"h{value}"
        case "HeapStart":
            return f"[{', '.join(f'h{slot}' for slot in range(value, value + instr.ndim))}]"
        case "IntExpr":
            return _int(value)
        case "Pattern":
            return _pattern(exe, value)
        case "CheckIndex":
            return f"{code.checks[value].what} {code.checks[value].name}"
        case "StorageOrNone":
            return f"m{value}"
        case "ConstantIndex":
            return f"c{value}"
        case "LibraryIndex" | "PackedIndex":
            return getattr(exe, TABLES[kind][0])[value]
        case "KernelIndex" | "FunctionIndex" | "SlotIndex":
            return getattr(exe, TABLES[kind][0])[value].name
        case "Heap | Int64 | float | bool | str":
            return _operand(value)
        case _:
            return str(value)
