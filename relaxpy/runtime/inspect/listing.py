"""An executable as text: one line per instruction, sizes as formulas, bindings and source lines as comments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relaxpy.runtime.bytecode import (
    Alloc,
    Assert,
    Call,
    Closure,
    Const,
    Copy,
    Eval,
    FunctionCode,
    Graph,
    Heap,
    If,
    Instr,
    IntExpr,
    IntOp,
    Invoke,
    Item,
    Kernel,
    Kill,
    Library,
    MakePrim,
    MakeShape,
    MakeTuple,
    Match,
    Move,
    Operand,
    Packed,
    Pattern,
    PrimPattern,
    Read,
    Reg,
    Return,
    ShapePattern,
    TensorPattern,
    TuplePattern,
    View,
)
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
    written = _names(code)
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


def _names(code: FunctionCode) -> set[int]:
    """Heap slots that the code writes."""
    found: set[int] = set()
    for instr in code.code:
        if isinstance(instr, Eval):
            found.add(instr.dst)
        elif isinstance(instr, Match):
            found |= _slots(instr.pattern)
    return found


def _slots(pattern: Pattern) -> set[int]:
    match pattern:
        case TensorPattern(shape=sizes) | ShapePattern(dims=sizes):
            return {size.index for size in sizes or () if isinstance(size, Heap)}
        case PrimPattern(value=Heap(index)):
            return {index}
        case TuplePattern(fields):
            return {slot for item in fields for slot in _slots(item)}
        case _:
            return set()


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


def _range(shape: int, ndim: int) -> str:
    return f"[{', '.join(f'h{slot}' for slot in range(shape, shape + ndim))}]"


def _operand(arg: Operand) -> str:
    match arg:
        case Reg(index):
            return f"r{index}"
        case Heap(index):
            return f"h{index}"
        case _:
            return repr(arg)


def _operands(args: tuple[Operand, ...]) -> str:
    return ", ".join(map(_operand, args))


def _regs(regs: tuple[int, ...]) -> str:
    return ", ".join(f"r{reg}" for reg in regs)


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
    match instr:
        case Const(dst=dst, index=index, slot=slot):
            return f"r{dst} = c{index}{_on(exe, slot)}"
        case Match(src=src, pattern=pattern, check=check):
            return f"match r{src}: {_pattern(exe, pattern)} for {code.checks[check].what} {code.checks[check].name}"
        case Eval(dst=dst, expr=expr):
            return f"h{dst} = {_int(expr)}"
        case Assert(lhs=lhs, rhs=rhs, check=check):
            return f"assert {_int(lhs)} == {_int(rhs)} for {code.checks[check].what} {code.checks[check].name}"
        case Alloc(dst=dst, shape=shape, ndim=ndim, dtype=dtype, storage=storage, offset=offset):
            return f"r{dst} = alloc {dtype}{_range(shape, ndim)}" + (
                (f" in m{storage}" if storage >= 0 else _on(exe, instr.slot))
                + (f" at {offset}" if offset else "")
            )
        case Graph(slot=slot):
            return f"graph{_on(exe, slot)}"
        case Copy(dst=dst, src=src, slot=slot):
            return f"r{dst} = copy r{src} to {exe.slots[slot].name}"
        case View(dst=dst, src=src, shape=shape, ndim=ndim, dtype=dtype):
            return f"r{dst} = view r{src} as {dtype}{_range(shape, ndim)}"
        case Kernel(index=index, args=args, work=work):
            return f"{exe.kernels[index].name}({_operands(args)})  work {_int(work)}"
        case Library(index=index, args=args):
            return f"library {exe.libraries[index]}({_operands(args)})"
        case Packed(dst=dst, index=index, args=args):
            return f"r{dst} = packed {exe.packed[index]}({_operands(args)})"
        case Call(dst=dst, index=index, args=args):
            return f"r{dst} = call {exe.functions[index].name}({_regs(args)})"
        case Closure(dst=dst, index=index, captured=captured):
            return f"r{dst} = closure {exe.functions[index].name} with ({_regs(captured)})"
        case Invoke(dst=dst, closure=closure, args=args):
            return f"r{dst} = invoke r{closure}({_regs(args)})"
        case _:
            return _plain_instr(instr)


def _plain_instr(instr: Instr) -> str:
    """An instruction that does not refer to the executable."""
    match instr:
        case Read(dst=dst, src=src):
            return f"r{dst} = read r{src}"
        case MakeTuple(dst=dst, fields=fields):
            return f"r{dst} = tuple({_regs(fields)})"
        case Item(dst=dst, src=src, index=index):
            return f"r{dst} = r{src}[{index}]"
        case MakeShape(dst=dst, shape=shape, ndim=ndim):
            return f"r{dst} = shape{_range(shape, ndim)}"
        case MakePrim(dst=dst, value=value, dtype=dtype):
            return f"r{dst} = {dtype} {_operand(value)}"
        case Move(dst=dst, src=src):
            return f"r{dst} = r{src}"
        case If(cond=cond):
            return f"if r{cond}"
        case Kill(regs=regs):
            return f"kill {_regs(regs)}"
        case Return(src=src):
            return f"return r{src}"
        case _:
            raise AssertionError(f"no text for {type(instr).__name__}")
