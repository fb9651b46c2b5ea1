"""The verifier: what bytecode has to hold so that running it touches no memory but its own.

A file's checksums say that it is whole, not who wrote it. `verify` walks every function once, before anything is
linked. On every path each register and heap slot is set before it is read; indices, lengths of
branches, counts and types are right; a kernel gets the arguments that it was compiled for, whose sizes agree; a tensor
lies inside of its storage. Sizes are polynomials over the dimensions that come in (`relaxpy.runtime.sizes`), so most
of this is proved for all shapes. What is neither proved nor refuted is handed to the linker, which writes a check that
runs before the instruction (`Unproved`); what is refuted is an error that names the function and the instruction.

Machine code is trusted: a file may bring any. Its kernels' symbols vouch for what they are to be given
(`relaxpy.runtime.kernel_params`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from relaxpy.errors import ExecutableError
from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.bytecode import (
    Alloc,
    Assert,
    Call,
    Closure,
    Const,
    Eval,
    FunctionCode,
    Heap,
    If,
    Instr,
    IntExpr,
    IntOp,
    Invoke,
    Item,
    Kernel,
    KernelInfo,
    KernelParam,
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
    Reg,
    Return,
    ShapePattern,
    TensorPattern,
    TuplePattern,
    View,
)
from relaxpy.runtime.integers import ARITY
from relaxpy.runtime.kernel_params import symbol_problem
from relaxpy.runtime.operands import written_slots
from relaxpy.runtime.patterns import describe, prim_fits
from relaxpy.runtime.sizes import Size, Sizes, number, plus, value_of

if TYPE_CHECKING:
    from relaxpy.runtime.executable import Executable

MOST_LEAVES = 1 << 16
"""Values in a tuple."""
MOST_NESTED = 150
"""Operations in a formula, or tuples in a pattern, one in the other."""

Unproved: TypeAlias = "frozenset[int]"
"""Instructions whose arguments are compared when they run: kernels, and what takes a place in memory."""


@dataclass(frozen=True, slots=True)
class _Value:
    """What is known of a value."""

    kind: str = ""
    """`tensor`, `shape`, `scalar`, `tuple`, `function`; "": anything."""
    dtype: str = ""
    dims: tuple[Size, ...] | None = None
    """Of a tensor or shape; of a scalar its own value, if it is an integer that is known."""
    fields: tuple[_Token, ...] | None = None
    writable: bool = False
    """Memory that may be written to."""
    planned: bool = False
    """It lies in the frame, and may not leave the call."""
    leaves: int = 1
    """Values in it, those of tuples in tuples too: one may be contained many times."""
    start: int = -1
    """Of a tensor that kernels see with a shape that stands in the heap: the first slot."""


class _Token:
    """A value of a run: registers that are moved share it."""

    __slots__ = ()


class _Bad(Exception):
    """What is wrong with an instruction."""


def verify(exe: Executable, file: str = "") -> tuple[Unproved, ...]:
    """What has to be checked when each function runs. `file` is what errors call the executable.

    Raises: ExecutableError (`bytecode`).
    """
    where = f"{file or 'the executable'}: "
    names: set[str] = set()
    for index, info in enumerate(exe.kernels):
        try:
            _kernel(exe, info)
        except _Bad as error:
            _fail(f"{where}kernel {index} ({info.name}): {error}")
    found: dict[int, _Function] = {}
    for index in _callees_first(exe.functions):
        code = exe.functions[index]
        if code.name in names:
            _fail(f"{where}two functions are called {code.name}")
        names.add(code.name)
        function = found[index] = _Function(exe, code, found)
        try:
            function.walk()
        except _Bad as error:
            at = function.at
            place = ""
            if 0 <= at < len(code.code):
                place = f", instruction {at} ({type(code.code[at]).__name__})"
            _fail(f"{where}function {code.name}{place}: {error}")
    return tuple(frozenset(found[index].unproved) for index in range(len(exe.functions)))


def _callees_first(functions: Sequence[FunctionCode]) -> list[int]:
    """All functions, each behind those that it calls, but for cycles."""
    calls = [
        sorted({i.index for i in code.code if isinstance(i, Call) and i.index < len(functions)})
        for code in functions
    ]
    order: dict[int, None] = {}
    seen: set[int] = set()
    for first in range(len(functions)):
        todo = [first]
        while todo:
            index = todo[-1]
            if index in seen:
                order.setdefault(todo.pop())
                continue
            seen.add(index)
            todo += [callee for callee in calls[index] if callee not in seen]
    return list(order)


def _fail(message: str) -> NoReturn:
    raise ExecutableError(
        "bytecode",
        message,
        help="the file was not written by relaxpy, or was changed: build it again",
    )


def _kernel(exe: Executable, info: KernelInfo) -> None:
    problem = symbol_problem(info)
    if problem:
        raise _Bad(problem)
    _within(info.object, exe.objects, "object")
    if info.alone is not None:
        _within(info.alone.object, exe.objects, "object")
    params = info.params or ()
    for param in params:
        for dim in param.shape or ():
            _formula(dim, lambda _: None)
    memory = info.memory
    if memory is not None:
        for position, axis in memory.sizes:
            _within(position, params, "parameter") if info.params is not None else None
            if info.params is not None and axis >= len(params[position].shape or ()):
                raise _Bad(f"parameter {position} has no dimension {axis}")
        for expr in (memory.shared, memory.each):
            _formula(expr, lambda slot: _within(slot, memory.sizes, "size"))


def _within(index: int, table: Sequence[object], what: str) -> None:
    if not 0 <= index < len(table):
        raise _Bad(f"there is no {what} {index}, but {len(table)} of them")


def _formula(expr: IntExpr, slot: object, levels: int = 0) -> None:
    """Compare the operations of a formula with how many operands they take; `slot` is called with each slot."""
    if isinstance(expr, Heap):
        slot(expr.index)  # type: ignore[operator]
    elif isinstance(expr, IntOp):
        arity = ARITY.get(expr.op, 2)
        if len(expr.args) < 2 if arity == -2 else len(expr.args) != arity:
            raise _Bad(f"the operation {expr.op} has {len(expr.args)} operands")
        if levels >= MOST_NESTED:
            raise _Bad(f"a formula is nested more than {MOST_NESTED} operations deep")
        for arg in expr.args:
            _formula(arg, slot, levels + 1)


_Made: TypeAlias = "dict[int, tuple[_Token, _Value] | None]"
"""Registers that an arm has set, and with what; None: it is not set any more."""


@dataclass(slots=True)
class _Branch:
    """An `If` that the walk is in."""

    at: int
    middle: int
    end: int
    """Where its second arm ends, and the walk goes on."""
    outer: int
    """Where the block around it ends."""
    mark: int
    """How to forget what an arm has made."""
    then: _Made | None = None
    """What the first arm has made, once it is walked."""
    slots: dict[int, Size] = field(default_factory=dict[int, Size])
    """Heap slots that the first arm has set."""


class _Function:
    """One walk over a function."""

    def __init__(
        self, exe: Executable, code: FunctionCode, others: Mapping[int, _Function]
    ) -> None:
        self.exe = exe
        self.code = code
        self.others = others
        """Functions that were walked, or are being."""
        self.result: _Token | None = None
        """What it returns, once it was walked."""
        self.at = -1
        self.sizes = Sizes()
        self.regs: dict[int, _Token] = {}
        self.values: dict[_Token, _Value] = {}
        written = written_slots(code)
        self.slots: dict[int, Size] = {
            slot: number(value) for slot, value in enumerate(code.heap_init) if slot not in written
        }
        self.rewritten = False
        """A slot was set a second time."""
        self.unproved: set[int] = set()
        for reg, param in enumerate(code.params):
            self.regs[reg] = self.new(_Value(writable=param.updated))  # checked where it begins
        self.params = tuple(self.regs.values())

    # What registers and slots hold

    def new(self, value: _Value) -> _Token:
        token = _Token()
        self.values[token] = value
        return token

    def learn(self, token: _Token, value: _Value) -> None:
        """From here on, this is known of a value."""
        self.sizes.put(self.values, token, value)

    def read(self, reg: int) -> _Token:
        token = self.regs.get(reg)
        if token is None:
            raise _Bad(f"register {reg} is read and not set, on some way here at least")
        return token

    def define(self, reg: int, value: _Value | _Token) -> None:
        if reg >= self.code.num_regs:
            raise _Bad(f"there is no register {reg}, but {self.code.num_regs} of them")
        token = value if isinstance(value, _Token) else self.new(value)
        self.sizes.put(self.regs, reg, token)

    def slot(self, index: int) -> Size:
        _within(index, self.code.heap_init, "heap slot")
        size = self.slots.get(index)
        if size is None:
            raise _Bad(f"heap slot {index} is read and not set, on some way here at least")
        return size

    def set_slot(self, index: int, size: Size) -> None:
        _within(index, self.code.heap_init, "heap slot")
        self.rewritten |= index in self.slots
        self.sizes.put(self.slots, index, size)

    def dims(self, start: int, count: int) -> tuple[Size, ...]:
        return tuple(self.slot(slot) for slot in range(start, start + count))

    def size(self, expr: IntExpr) -> Size:
        _formula(expr, self.slot)
        return self.sizes.of(expr, self.slot)

    def check(self, index: int) -> None:
        _within(index, self.code.checks, "check")

    # The walk

    def walk(self) -> None:
        code = self.code.code
        if not code or not isinstance(code[-1], Return):
            raise _Bad("it does not end with a Return")
        if len(self.code.params) > self.code.num_regs:
            raise _Bad("it has more parameters than registers")
        for number_, check in enumerate(self.code.checks):
            for _, slot in check.symbols:
                if slot >= len(self.code.heap_init):
                    raise _Bad(f"check {number_}: there is no heap slot {slot}")
        branches: list[_Branch] = []
        at, end = 0, len(code)
        while True:
            while branches and at == end:
                end = self.leave(branches, at)
            if at == len(code):
                return
            self.at = at
            instr = code[at]
            if self.code.locations and instr.loc >= len(self.code.locations):
                raise _Bad(f"there is no location {instr.loc}")
            if isinstance(instr, If):
                self.read(instr.cond)
                middle = at + 1 + instr.then_len
                after = middle + instr.else_len
                if after > end:
                    raise _Bad("its arms are longer than the block around it")
                branches.append(_Branch(at, middle, after, end, self.sizes.mark()))
                end = middle
            else:
                if isinstance(instr, Return) and at != len(code) - 1:
                    raise _Bad("a Return is the last instruction, and nowhere else")
                self.instr(at, instr)
            at += 1

    def leave(self, branches: list[_Branch], at: int) -> int:
        """The walk is at the end of an arm. Gives where the block that it goes on in ends."""
        branch = branches[-1]
        self.at = branch.at
        made: _Made = {}
        for reg in self.sizes.changed(branch.mark, self.regs):
            token = self.regs.get(reg)
            made[reg] = None if token is None else (token, self.values[token])
        slots: dict[int, Size] = self.sizes.changed(branch.mark, self.slots)
        self.sizes.undo(branch.mark)
        if branch.then is None:
            branch.then, branch.slots = made, slots
            return branch.end
        branches.pop()
        for slot in branch.slots.keys() | slots.keys():
            sizes = [arm.get(slot, self.slots.get(slot)) for arm in (branch.slots, slots)]
            if sizes[0] is not None and sizes[1] is not None:
                self.sizes.put(self.slots, slot, self.either(sizes[0], sizes[1]))
        for reg in branch.then.keys() | made.keys():
            token = self.regs.get(reg)
            before = None if token is None else (token, self.values[token])
            one, two = branch.then.get(reg, before), made.get(reg, before)
            if one is None or two is None:
                self.sizes.put(self.regs, reg)
            else:
                same = one[0] is two[0]
                joined = one[0] if same else self.new(self.joined(one[1], two[1]))
                self.sizes.put(self.regs, reg, joined)
        return branch.outer

    def either(self, a: Size, b: Size) -> Size:
        """One of two sizes."""
        if self.sizes.are_equal(a, b):
            return a
        sign = self.sizes.is_at_least_0(a) and self.sizes.is_at_least_0(b)
        return self.sizes.fresh(0 if sign else None)

    def joined(self, a: _Value, b: _Value) -> _Value:
        """One of two values."""
        if a.kind != b.kind or a.kind not in ("tensor", "tuple"):
            return _Value(planned=a.planned or b.planned)
        planned, writable = a.planned or b.planned, a.writable and b.writable
        fields: tuple[_Token, ...] | None = None
        dims: tuple[Size, ...] | None = None
        if a.fields is not None and b.fields is not None and len(a.fields) == len(b.fields):
            pairs = zip(a.fields, b.fields, strict=True)
            fields = tuple(
                x if x is y else self.new(self.joined(self.values[x], self.values[y]))
                for x, y in pairs
            )
        if a.dims is not None and b.dims is not None and len(a.dims) == len(b.dims):
            dims = tuple(map(self.either, a.dims, b.dims))
        dtype = a.dtype if a.dtype == b.dtype else ""
        leaves = max(a.leaves, b.leaves)
        return _Value(a.kind, dtype, dims, fields, writable, planned, leaves)

    def instr(self, at: int, instr: Instr) -> None:  # noqa: C901  (a case an instruction)
        match instr:
            case Const(dst=dst, index=index):
                _within(index, self.exe.constants, "constant")
                array = self.exe.constants[index]
                dims = tuple(map(number, array.shape))
                self.define(dst, _Value("tensor", dtypes.from_numpy(array.dtype), dims))
            case Match(src=src, pattern=pattern, check=check):
                self.check(check)
                self.match(self.read(src), pattern)
            case Eval(dst=dst, expr=expr):
                self.set_slot(dst, self.size(expr))
            case Assert(lhs=lhs, rhs=rhs, check=check):
                self.check(check)
                left, right = self.size(lhs), self.size(rhs)
                if rhs == 1 and isinstance(lhs, IntOp):
                    self.sizes.assume(lhs, self.slot)
                else:
                    self.sizes.assume_equal(left, right)
            case Alloc():
                self.alloc(at, instr)
            case View():
                self.view(at, instr)
            case Kernel():
                self.kernel(at, instr)
            case Library(index=index, args=args):
                _within(index, self.exe.libraries, "library function")
                self.operands(args)
            case Packed(dst=dst, index=index, args=args):
                _within(index, self.exe.packed, "function by name")
                self.operands(args)
                self.define(dst, _Value())
            case Call():
                self.call(instr)
            case Closure(dst=dst, index=index, captured=captured):
                _within(index, self.exe.functions, "function")
                if len(captured) > len(self.exe.functions[index].params):
                    raise _Bad("it captures more values than the function has parameters")
                for reg in captured:
                    self.read(reg)
                self.define(dst, _Value("function"))
            case Invoke(dst=dst, closure=closure, args=args):
                for reg in (closure, *args):
                    self.read(reg)
                self.define(dst, _Value())
            case MakeTuple(dst=dst, fields=regs):
                fields = tuple(map(self.read, regs))
                planned = any(self.values[each].planned for each in fields)
                leaves = sum(self.values[each].leaves for each in fields) + 1
                if leaves > MOST_LEAVES:
                    raise _Bad(f"a tuple contains more than {MOST_LEAVES} values")
                made = _Value("tuple", fields=fields, planned=planned, leaves=leaves)
                self.define(dst, made)
            case Item(dst=dst, src=src, index=index):
                self.define(dst, self.item(self.values[self.read(src)], index))
            case MakeShape(dst=dst, shape=shape, ndim=ndim):
                self.define(dst, _Value("shape", dims=self.dims(shape, ndim)))
            case MakePrim(dst=dst, value=value, dtype=dtype):
                self.define(dst, self.scalar(value, dtype))
            case Move(dst=dst, src=src):
                self.define(dst, self.read(src))
            case Kill(regs=regs):
                for reg in regs:
                    self.sizes.put(self.regs, reg)
            case Return(src=src):
                self.result = self.read(src)
                if self.values[self.result].planned:
                    raise _Bad("it returns memory of the frame")
            case _:
                raise _Bad("no such instruction")

    def scalar(self, value: Operand, dtype: str) -> _Value:
        if isinstance(value, Heap):
            return _Value("scalar", dtype, (self.slot(value.index),))
        if type(value) is int and dtype != "bool":
            return _Value("scalar", dtype, (number(value),))
        return _Value("scalar", dtype)

    def item(self, value: _Value, index: int) -> _Value | _Token:
        if value.kind not in ("", "tuple"):
            raise _Bad(f"it takes an item of a {value.kind}")
        if value.fields is None:
            return _Value(writable=value.writable, planned=value.planned)
        if index >= len(value.fields):
            raise _Bad(f"it takes item {index} of a tuple of {len(value.fields)}")
        return value.fields[index]

    def operands(self, args: Sequence[Operand]) -> None:
        for arg in args:
            if isinstance(arg, Reg):
                self.read(arg.index)
            elif isinstance(arg, Heap):
                self.slot(arg.index)

    def call(self, instr: Call) -> None:
        _within(instr.index, self.exe.functions, "function")
        callee = self.exe.functions[instr.index]
        if len(instr.args) != len(callee.params):
            raise _Bad(
                f"{callee.name} takes {len(callee.params)} arguments, it is given {len(instr.args)}"
            )
        tokens = list(map(self.read, instr.args))
        other = self.others.get(instr.index)
        if other is None or other.result is None:
            self.define(instr.dst, _Value())
            return
        bound: dict[int, Size] = {}
        for param, token in zip(other.params, tokens, strict=True):
            other.bind(other.values[param], self.values[token], self.values, bound)
        self.define(instr.dst, self.result_of(other, other.result, bound))

    def bind(
        self, param: _Value, arg: _Value, values: Mapping[_Token, _Value], bound: dict[int, Size]
    ) -> None:
        """Note which of the caller's sizes this function's are, where a parameter gets an argument."""
        if param.kind != arg.kind:
            return
        for size, given in zip(param.dims or (), arg.dims or (), strict=False):
            if len(size) == 1 and size[0][1] == 1 and len(size[0][0]) == 1:
                bound.setdefault(size[0][0][0], given)
        for inner, item in zip(param.fields or (), arg.fields or (), strict=False):
            self.bind(self.values[inner], values[item], values, bound)

    def result_of(self, other: _Function, token: _Token, bound: dict[int, Size]) -> _Value:
        """A result of another function, its sizes over those of the arguments that it was given."""
        value = other.values[token]
        dims: tuple[Size, ...] | None = None
        if value.dims is not None:
            low = 0 if value.kind == "tensor" else None
            found = [self.sizes.translated(size, other.sizes, bound) for size in value.dims]
            dims = tuple(self.sizes.fresh(low) if each is None else each for each in found)
        fields = value.fields
        if fields is not None:
            fields = tuple(self.new(self.result_of(other, each, bound)) for each in fields)
        leaves = value.leaves
        return _Value(value.kind, value.dtype, dims, fields, value.writable, leaves=leaves)

    # Memory

    def nbytes(self, dims: Sequence[Size], dtype: str) -> Size:
        return self.sizes.product(dims, dtypes.info(dtype).itemsize)

    def alloc(self, at: int, instr: Alloc) -> None:
        dims = self.dims(instr.shape, instr.ndim)
        proved = self.not_negative(dims)
        planned = instr.storage >= 0
        if planned:
            _within(instr.storage, self.code.storages, "storage")
            have = self.size(self.code.storages[instr.storage])
            need = plus(self.nbytes(dims, instr.dtype), number(instr.offset))
            room = plus(have, need, -1)
            if not self.sizes.is_at_least_0(room):
                self.refuted(room, "the tensor does not fit into its storage")
                proved = False
            if instr.offset % dtypes.info(instr.dtype).itemsize:
                raise _Bad(f"a tensor of {instr.dtype} cannot lie at byte {instr.offset}")
        if not proved:
            self.unproved.add(at)
            for dim in dims:
                self.sizes.assume_at_least_0(dim)
        self.define(instr.dst, _Value("tensor", instr.dtype, dims, writable=True, planned=planned))

    def not_negative(self, dims: Sequence[Size]) -> bool:
        """Whether no dimension is negative, for all that is known."""
        proved = True
        for dim in dims:
            if not self.sizes.is_at_least_0(dim):
                self.refuted(dim, "a dimension is negative")
                proved = False
        return proved

    def refuted(self, size: Size, problem: str) -> None:
        """Complain if a size that should not be negative is a negative number."""
        known = value_of(size)
        if known is not None and known < 0:
            raise _Bad(f"{problem}, by {-known}")

    def view(self, at: int, instr: View) -> None:
        source = self.values[self.read(instr.src)]
        if source.kind not in ("", "tensor"):
            raise _Bad(f"it views a {source.kind}")
        dims = self.dims(instr.shape, instr.ndim)
        proved = self.not_negative(dims)
        if source.dims is None or not source.dtype:
            proved = False
        else:
            have = self.nbytes(source.dims, source.dtype)
            room = plus(have, self.nbytes(dims, instr.dtype), -1)
            if room and not self.sizes.is_at_least_0(room):
                self.refuted(room, "the view is larger than what it views")
                proved = False
            wider = dtypes.info(instr.dtype).itemsize > dtypes.info(source.dtype).itemsize
            proved = proved and not wider
        if not proved:
            self.unproved.add(at)
            for dim in dims:
                self.sizes.assume_at_least_0(dim)
        self.define(
            instr.dst,
            _Value(
                "tensor",
                instr.dtype,
                dims,
                None,
                source.writable,
                source.planned,
                start=instr.shape,
            ),
        )

    # Match

    def match(self, token: _Token, pattern: Pattern, levels: int = 0) -> None:
        if levels > MOST_NESTED:
            raise _Bad(f"a pattern is nested more than {MOST_NESTED} tuples deep")
        value = self.values[token]
        match pattern:
            case TensorPattern(shape, ndim, dtype):
                known = value.dims if value.kind == "tensor" else None
                dims = self.bound(shape, ndim, known, 0)
                dtype = dtype or (value.dtype if value.kind == "tensor" else "")
                self.learn(
                    token, replace(value, kind="tensor", dtype=dtype, dims=dims, fields=None)
                )
            case ShapePattern(shape, ndim):
                known = value.dims if value.kind == "shape" else None
                dims = self.bound(shape, ndim, known, None)
                self.learn(token, replace(value, kind="shape", dims=dims, fields=None))
            case PrimPattern(dtype, wanted):
                known = value.dims if value.kind == "scalar" else None
                dims = None if wanted is None else self.bound((wanted,), 1, known, None)
                dims = known if dims is None else dims
                self.learn(
                    token, replace(value, kind="scalar", dtype=dtype, dims=dims, fields=None)
                )
            case TuplePattern(fields):
                inner = value.fields
                if inner is None or len(inner) != len(fields):
                    each = _Value(writable=value.writable, planned=value.planned)
                    inner = tuple(self.new(each) for _ in fields)
                self.learn(token, replace(value, kind="tuple", dims=None, fields=inner))
                for field_, item in zip(fields, inner, strict=True):
                    self.match(item, field_, levels + 1)
            case _:
                pass

    def bound(
        self,
        wanted: tuple[None | int | Heap, ...] | None,
        ndim: int,
        known: tuple[Size, ...] | None,
        low: int | None,
    ) -> tuple[Size, ...] | None:
        """The dimensions of a value that matches. Slots get what came."""
        if wanted is None:
            if known is not None and ndim in (-1, len(known)):
                return known
            return None if ndim < 0 else tuple(self.sizes.fresh(low) for _ in range(ndim))
        if known is None or len(known) != len(wanted):
            known = tuple(
                number(want) if isinstance(want, int) else self.sizes.fresh(low) for want in wanted
            )
        for want, size in zip(wanted, known, strict=True):
            if isinstance(want, Heap):
                self.set_slot(want.index, size)
            elif want is not None:
                self.sizes.assume_equal(size, number(want))
        return known

    # Kernels

    def kernel(self, at: int, instr: Kernel) -> None:
        _within(instr.index, self.exe.kernels, "kernel")
        for expr in (instr.work, instr.flops, instr.nbytes):
            _formula(expr, self.slot)
        self.operands(instr.args)
        params = self.exe.kernels[instr.index].params
        if params is None:
            return
        if len(instr.args) != len(params):
            raise _Bad(f"the kernel takes {len(params)} arguments, it is given {len(instr.args)}")
        sizes: dict[int, Size] = {}
        proved = True
        for position, (param, arg) in enumerate(zip(params, instr.args, strict=True)):
            if param.shape is None:
                proved &= self.scalar_fits(position, param, arg, sizes)
            else:
                proved &= self.tensor_fits(position, param, arg, sizes)
        for position, (param, arg) in enumerate(zip(params, instr.args, strict=True)):
            if param.shape is not None and isinstance(arg, Reg):
                proved &= self.shape_fits(position, param, self.regs[arg.index], sizes)
        if not proved:
            self.unproved.add(at)
            self.learn_fit(params, instr.args, sizes)

    def scalar_fits(
        self, position: int, param: KernelParam, arg: Operand, sizes: dict[int, Size]
    ) -> bool:
        """Whether an argument is proved to be a scalar of the parameter's type; notes the size that it is."""
        if isinstance(arg, Reg):
            value = self.values[self.regs[arg.index]]
            if value.kind not in ("", "scalar"):
                raise _Bad(f"argument {position} must be a scalar, got a {value.kind}")
            fits = value.kind == "scalar" and value.dtype == param.dtype
            size = value.dims[0] if fits and value.dims else None
        elif isinstance(arg, Heap):
            size = self.slot(arg.index)
            fits = param.dtype == "int64"
        else:
            fits = prim_fits(arg, param.dtype) and (
                "float" not in param.dtype or type(arg) is float
            )
            if not fits:
                raise _Bad(f"argument {position} must be a {param.dtype}, got {describe(arg)}")
            size = number(arg) if type(arg) is int else None
        if param.size < 0:
            return fits
        if size is None:
            return False
        return fits and self.agrees(position, sizes.setdefault(param.size, size), size)

    def tensor_fits(
        self, position: int, param: KernelParam, arg: Operand, sizes: dict[int, Size]
    ) -> bool:
        """Whether an argument is proved to be a tensor of the parameter's type and rank, which may be written to if the
        kernel does; notes sizes that are dimensions of it."""
        assert param.shape is not None
        if not isinstance(arg, Reg):
            raise _Bad(f"argument {position} must be a tensor")
        value = self.values[self.regs[arg.index]]
        if value.kind not in ("", "tensor"):
            raise _Bad(f"argument {position} must be a tensor, got a {value.kind}")
        if value.dtype not in ("", param.dtype):
            raise _Bad(f"argument {position} must be of {param.dtype}, got {value.dtype}")
        if value.dims is not None:
            if len(value.dims) != len(param.shape):
                raise _Bad(
                    f"argument {position} must have {len(param.shape)} dimensions, got {len(value.dims)}"
                )
            for dim, size in zip(param.shape, value.dims, strict=True):
                if isinstance(dim, Heap):
                    sizes.setdefault(dim.index, size)
        return (
            bool(value.dtype) and value.dims is not None and (value.writable or not param.written)
        )

    def shape_fits(
        self, position: int, param: KernelParam, token: _Token, sizes: dict[int, Size]
    ) -> bool:
        """Whether the shape of an argument is proved to be the parameter's at these sizes."""
        dims = self.values[token].dims
        assert param.shape is not None
        if dims is None:
            return False
        proved = True
        for dim, size in zip(param.shape, dims, strict=True):
            wanted = number(dim) if isinstance(dim, int) else self.wanted(dim, sizes)
            proved &= wanted is None or self.agrees(position, wanted, size)
        return proved

    def wanted(self, dim: IntExpr, sizes: Mapping[int, Size]) -> Size | None:
        """A dimension of a kernel's parameter at these sizes; None where they are not known."""
        if isinstance(dim, Heap):
            return sizes.get(dim.index)
        try:
            return self.sizes.of(dim, sizes.__getitem__)
        except KeyError:
            return None

    def agrees(self, position: int, wanted: Size, size: Size) -> bool:
        if self.sizes.are_equal(wanted, size):
            return True
        self.refuted_equal(position, plus(wanted, size, -1))
        return False

    def refuted_equal(self, position: int, difference: Size) -> None:
        known = value_of(difference)
        if known is not None:
            raise _Bad(f"a size of argument {position} is not what the kernel takes, by {known}")

    def learn_fit(
        self, params: Sequence[KernelParam], args: Sequence[Operand], sizes: dict[int, Size]
    ) -> None:
        """What is known behind a kernel whose arguments are compared when it runs."""
        for param, arg in zip(params, args, strict=True):
            if param.shape is None or not isinstance(arg, Reg):
                continue
            token = self.regs[arg.index]
            value = self.values[token]
            for dim in param.shape if value.dims is None else ():
                if isinstance(dim, Heap):
                    sizes.setdefault(dim.index, self.sizes.fresh(0))
            wanted = [self.wanted(dim, sizes) for dim in param.shape]
            if value.dims is None:
                dims = tuple(self.sizes.fresh(0) if each is None else each for each in wanted)
            else:
                dims = value.dims
                for each, size in zip(wanted, dims, strict=True):
                    if each is not None:
                        self.sizes.assume_equal(each, size)
            writable = value.writable or param.written
            known = replace(
                value, kind="tensor", dtype=param.dtype, dims=dims, fields=None, writable=writable
            )
            self.learn(token, known)
