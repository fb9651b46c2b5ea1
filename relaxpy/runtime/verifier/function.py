"""The verifier's walk over a function: the values that each instruction reads, sets and requires."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from relaxpy.half_bytes import SHARED
from relaxpy.runtime import bytecode as bc
from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.effects import NAMES, READS, TABLES, sets
from relaxpy.runtime.sizes import Size, number, plus
from relaxpy.runtime.verifier.kernel import KernelCalls
from relaxpy.runtime.verifier.state import (
    MOST_NESTED_TUPLES,
    Branch,
    Refuted,
    Token,
    Value,
    formula,
    within,
)

if TYPE_CHECKING:
    from relaxpy.runtime.executable import Executable

MOST_LEAVES = 1 << 16
"""The most values in a tuple, including nested ones."""


class Function(KernelCalls):
    """The verification of one function."""

    def __init__(
        self, exe: Executable, code: bc.FunctionCode, others: Mapping[int, Function]
    ) -> None:
        super().__init__(exe, code)
        self.others = others
        """Functions that were verified, or are being verified."""
        self.result: Token | None = None
        """The value that it returns; None until it was verified."""
        self.unproved: set[int] = set()
        """Instructions whose arguments must be compared at run time."""
        for reg, param in enumerate(code.params):
            # An updated parameter is checked at the start of the function.
            self.regs[reg] = self.new(Value(writable=param.updated))
        self.params = tuple(self.regs.values())

    def walk(self) -> None:
        code = self.code.code
        if not code or not isinstance(code[-1], bc.Return):
            raise Refuted("it does not end with a Return")
        if len(self.code.params) > self.code.num_regs:
            raise Refuted("it has more parameters than registers")
        if self.code.storage_slots:
            if len(self.code.storage_slots) != len(self.code.storages):
                raise Refuted("the numbers of storages and of their slots differ")
            for slot in self.code.storage_slots:
                self.home(slot)
        for number_, check in enumerate(self.code.checks):
            for _, slot in check.symbols:
                if slot >= len(self.code.heap_init):
                    raise Refuted(f"check {number_}: there is no heap slot {slot}")
        branches: list[Branch] = []
        at, end = 0, len(code)
        while True:
            while branches and at == end:
                end = self.leave(branches, at)
            if at == len(code):
                return
            self.at = at
            instr = code[at]
            self.located(instr)
            if isinstance(instr, bc.If):
                self.condition(self.values[self.read(instr.cond)])
                middle = at + 1 + instr.then_len
                after = middle + instr.else_len
                if after > end:
                    raise Refuted("its arms are longer than the block around it")
                branches.append(Branch(at, middle, after, end, self.sizes.mark()))
                end = middle
            elif isinstance(instr, bc.Graph):
                if at + 1 + instr.length > end:
                    raise Refuted("it is longer than the block around it")
                self.graph(at, instr)
                at += instr.length
            else:
                if isinstance(instr, bc.Return) and at != len(code) - 1:
                    raise Refuted("a Return is the last instruction, and nowhere else")
                self.instr(at, instr)
            at += 1

    def located(self, instr: bc.Instr) -> None:
        if self.code.locations and instr.loc >= len(self.code.locations):
            raise Refuted(f"there is no location {instr.loc}")

    def instr(self, at: int, instr: bc.Instr) -> None:
        """Visits an instruction: what it names and reads must exist, whatever it is."""
        for field, kind in NAMES[type(instr)]:
            named = getattr(instr, field)
            if kind == "IntExpr":
                formula(named, self.slot)
            elif kind == "Operands":
                for arg in named:
                    if isinstance(arg, bc.Heap):
                        self.slot(arg.index)
            elif kind == "CheckIndex":
                within(named, self.code.checks, "check")
            else:
                table, what = TABLES[kind]
                within(named, getattr(self.exe, table), what)
        tokens = [*map(self.read, READS[type(instr)](instr))]
        made = self.made(at, instr, tokens)
        if (dst := sets(instr)) >= 0:
            self.define(dst, made)

    def made(  # noqa: C901  (a case an instruction)
        self, at: int, instr: bc.Instr, tokens: Sequence[Token]
    ) -> Value | Token:
        """What is known of the value of an instruction that reads these values: nothing, if it has no case."""
        read = [self.values[token] for token in tokens]
        match instr:
            case bc.Const(index=index, slot=slot):
                array = self.exe.constants[index]
                dims = tuple(map(number, array.shape))
                dtype = dtypes.from_numpy(array.dtype)
                return Value("tensor", dtype, dims, slot=self.home(slot), constant=True)
            case bc.Match(pattern=pattern):
                self.match(tokens[0], pattern)
            case bc.Eval(dst=dst, expr=expr):
                self.set_slot(dst, self.sizes.of(expr, self.slot))
            case bc.Assert(lhs=lhs, rhs=rhs):
                left, right = (self.sizes.of(each, self.slot) for each in (lhs, rhs))
                if rhs == 1 and isinstance(lhs, bc.IntOp):
                    self.sizes.assume(lhs, self.slot)
                else:
                    self.sizes.assume_equal(left, right)
            case bc.Alloc():
                return self.alloc(at, instr)
            case bc.View():
                return self.view(at, instr, read[0])
            case bc.Copy(slot=slot):
                return self.copied(read[0], self.home(slot))
            case bc.Read():
                if read[0].kind not in ("", "tensor") or read[0].dims:
                    raise Refuted("it reads a value that is not a tensor of one element")
                return Value("scalar", read[0].dtype)
            case bc.Kernel():
                if not self.kernel(instr):
                    self.unproved.add(at)
            case bc.Call():
                return self.call(instr, tokens)
            case bc.Closure(index=index, captured=captured):
                if len(captured) > len(self.exe.functions[index].params):
                    raise Refuted("it captures more values than the function has parameters")
                return Value("function")
            case bc.MakeTuple():
                leaves = sum(each.leaves for each in read) + 1
                if leaves > MOST_LEAVES:
                    raise Refuted(f"a tuple contains more than {MOST_LEAVES} values")
                planned = any(each.planned for each in read)
                return Value("tuple", fields=tuple(tokens), planned=planned, leaves=leaves)
            case bc.Item(index=index):
                return self.item(read[0], index)
            case bc.MakeShape(shape=shape, ndim=ndim):
                return Value("shape", dims=self.dims(shape, ndim))
            case bc.MakePrim(value=value, dtype=dtype):
                return self.scalar(value, dtype)
            case bc.Move():
                return tokens[0]
            case bc.Kill(regs=regs):
                for reg in regs:
                    self.sizes.put(self.regs, reg)
            case bc.Return():
                self.result = tokens[0]
                if read[0].planned:
                    raise Refuted("it returns memory of the frame")
            case _:
                pass
        return Value()

    def graph(self, at: int, graph: bc.Graph) -> None:
        """Visits the instructions of a graph. Afterwards, their registers are not set."""
        home = self.home(graph.slot)
        made: list[int] = []
        for self.at in range(at + 1, at + 1 + graph.length):
            instr = self.code.code[self.at]
            self.located(instr)
            match instr:
                case bc.Alloc(dst=dst, storage=storage, slot=slot) if storage >= 0:
                    made.append(dst)
                case bc.View(dst=dst, slot=slot) | bc.Const(dst=dst, slot=slot):
                    made.append(dst)
                case bc.Kernel(index=index):
                    within(index, self.exe.kernels, "kernel")
                    slot = self.exe.kernels[index].slot
                case _:
                    raise Refuted("it cannot be part of a graph")
            if self.home(slot) != home:
                raise Refuted("it is part of a graph, and of another slot")
            self.instr(self.at, instr)
        for reg in made:
            self.sizes.put(self.regs, reg)

    def condition(self, value: Value) -> None:
        if value.kind == "tensor" and value.slot > bc.HOST:
            raise Refuted(
                f"its condition lives on {self.exe.slots[value.slot].name}: read it first"
            )

    def copied(self, source: Value, home: int) -> Value:
        """The result of a `Copy` to a slot: a new tensor, or the same one."""
        if source.kind not in ("", "tensor"):
            raise Refuted(f"it copies a {source.kind}")
        dtype, dims = (source.dtype, source.dims) if source.kind == "tensor" else ("", None)
        fresh = source.kind == "tensor" and source.slot not in (-1, home)
        return Value(
            "tensor",
            dtype,
            dims,
            None,
            fresh or source.writable,
            source.planned and not fresh,
            slot=home,
        )

    def scalar(self, value: bc.Operand, dtype: str) -> Value:
        if isinstance(value, bc.Heap):
            return Value("scalar", dtype, (self.slot(value.index),))
        if type(value) is int and dtype != "bool":
            return Value("scalar", dtype, (number(value),))
        return Value("scalar", dtype)

    def item(self, value: Value, index: int) -> Value | Token:
        if value.kind not in ("", "tuple"):
            raise Refuted(f"it takes an item of a {value.kind}")
        if value.fields is None:
            return Value(writable=value.writable, planned=value.planned)
        if index >= len(value.fields):
            raise Refuted(f"it takes item {index} of a tuple of {len(value.fields)}")
        return value.fields[index]

    def call(self, instr: bc.Call, tokens: Sequence[Token]) -> Value:
        callee = self.exe.functions[instr.index]
        if len(instr.args) != len(callee.params):
            raise Refuted(
                f"{callee.name} takes {len(callee.params)} arguments, it is given {len(instr.args)}"
            )
        other = self.others.get(instr.index)
        if other is None or other.result is None:
            return Value()
        bound: dict[int, Size] = {}
        for param, token in zip(other.params, tokens, strict=True):
            other.bind(other.values[param], self.values[token], self.values, bound)
        return self.result_of(other, other.result, bound)

    def bind(
        self, param: Value, arg: Value, values: Mapping[Token, Value], bound: dict[int, Size]
    ) -> None:
        """Binds this function's sizes to the caller's, where a parameter gets an argument."""
        if param.kind != arg.kind:
            return
        for size, given in zip(param.dims or (), arg.dims or (), strict=False):
            if len(size) == 1 and size[0][1] == 1 and len(size[0][0]) == 1:
                bound.setdefault(size[0][0][0], given)
        for inner, item in zip(param.fields or (), arg.fields or (), strict=False):
            self.bind(self.values[inner], values[item], values, bound)

    def result_of(self, other: Function, token: Token, bound: dict[int, Size]) -> Value:
        """The result of another function, with its sizes expressed in those of the arguments."""
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
        writable, slot = value.writable, value.slot
        return Value(value.kind, value.dtype, dims, fields, writable, leaves=leaves, slot=slot)

    # Memory

    def nbytes(self, dims: Sequence[Size], dtype: str) -> Size:
        return self.sizes.product(dims, dtypes.info(dtype).itemsize)

    def room(self, have: Sequence[Size], source: str, need: Sequence[Size], target: str) -> Size:
        """What a view leaves of its tensor: in bytes; in halves of them, if elements share bytes."""
        halves = [dtype in SHARED for dtype in (source, target)]
        if not any(halves):
            return plus(self.nbytes(have, source), self.nbytes(need, target), -1)
        first, second = (
            self.sizes.product(dims, 1 if half else 2 * dtypes.info(dtype).itemsize)
            for dims, dtype, half in zip((have, need), (source, target), halves, strict=True)
        )
        spare = number(int(halves[0]))  # the last byte may be half full
        return plus(plus(first, spare), second, -1)

    def alloc(self, at: int, instr: bc.Alloc) -> Value:
        dims = self.dims(instr.shape, instr.ndim)
        proved = self.not_negative(dims)
        planned, home = instr.storage >= 0, self.home(instr.slot)
        if planned:
            within(instr.storage, self.code.storages, "storage")
            if self.home(self.code.storage_slot(instr.storage)) != home:
                raise Refuted("the tensor and its storage are of two slots")
            have = self.size(self.code.storages[instr.storage])
            need = plus(self.nbytes(dims, instr.dtype), number(instr.offset))
            room = plus(have, need, -1)
            if not self.sizes.is_at_least_0(room):
                self.refuted(room, "the tensor does not fit into its storage")
                proved = False
            if instr.offset % dtypes.info(instr.dtype).itemsize:
                raise Refuted(f"a tensor of {instr.dtype} cannot lie at byte {instr.offset}")
        if not proved:
            self.unproved.add(at)
            for dim in dims:
                self.sizes.assume_at_least_0(dim)
        return Value("tensor", instr.dtype, dims, None, True, planned, start=instr.shape, slot=home)

    def not_negative(self, dims: Sequence[Size]) -> bool:
        """Whether all dimensions are proved nonnegative. Raises: Refuted for one that is known to be negative."""
        proved = True
        for dim in dims:
            if not self.sizes.is_at_least_0(dim):
                self.refuted(dim, "a dimension is negative")
                proved = False
        return proved

    def view(self, at: int, instr: bc.View, source: Value) -> Value:
        if source.kind not in ("", "tensor"):
            raise Refuted(f"it views a {source.kind}")
        dims, home = self.dims(instr.shape, instr.ndim), self.home(instr.slot)
        proved = self.not_negative(dims)
        if source.slot != home:
            if source.slot >= 0:
                raise Refuted("it views a tensor of another slot")
            proved = False
        if source.dims is None or not source.dtype:
            proved = False
        else:
            room = self.room(source.dims, source.dtype, dims, instr.dtype)
            if room and not self.sizes.is_at_least_0(room):
                self.refuted(room, "the view is larger than its tensor")
                proved = False
            wider = dtypes.info(instr.dtype).itemsize > dtypes.info(source.dtype).itemsize
            shared = source.dtype in SHARED and instr.dtype in SHARED
            proved = proved and not wider and not shared  # shared: in whole bytes, when it runs
        if not proved:
            self.unproved.add(at)
            for dim in dims:
                self.sizes.assume_at_least_0(dim)
        return Value(
            "tensor",
            instr.dtype,
            dims,
            None,
            source.writable,
            source.planned,
            start=instr.shape,
            slot=home,
            constant=source.constant,
        )

    # Match

    def match(self, token: Token, pattern: bc.Pattern, levels: int = 0) -> None:
        if levels > MOST_NESTED_TUPLES:
            raise Refuted(f"a pattern is nested more than {MOST_NESTED_TUPLES} tuples deep")
        value = self.values[token]
        match pattern:
            case bc.TensorPattern(shape, ndim, dtype, slot):
                home = self.home(slot)
                known = value.dims if value.kind == "tensor" else None
                dims = self.bound(shape, ndim, known, 0)
                dtype = dtype or (value.dtype if value.kind == "tensor" else "")
                self.learn(
                    token,
                    replace(value, kind="tensor", dtype=dtype, dims=dims, fields=None, slot=home),
                )
            case bc.ShapePattern(shape, ndim):
                known = value.dims if value.kind == "shape" else None
                dims = self.bound(shape, ndim, known, None)
                self.learn(token, replace(value, kind="shape", dims=dims, fields=None))
            case bc.PrimPattern(dtype, wanted):
                known = value.dims if value.kind == "scalar" else None
                dims = None if wanted is None else self.bound((wanted,), 1, known, None)
                dims = known if dims is None else dims
                self.learn(
                    token, replace(value, kind="scalar", dtype=dtype, dims=dims, fields=None)
                )
            case bc.TuplePattern(fields):
                inner = value.fields
                if inner is None or len(inner) != len(fields):
                    each = Value(writable=value.writable, planned=value.planned)
                    inner = tuple(self.new(each) for _ in fields)
                self.learn(token, replace(value, kind="tuple", dims=None, fields=inner))
                for field_, item in zip(fields, inner, strict=True):
                    self.match(item, field_, levels + 1)
            case _:
                pass

    def bound(
        self,
        wanted: tuple[None | int | bc.Heap, ...] | None,
        ndim: int,
        known: tuple[Size, ...] | None,
        low: int | None,
    ) -> tuple[Size, ...] | None:
        """The dimensions of a matched value. Slots are set to the actual sizes."""
        if wanted is None:
            if known is not None and ndim in (-1, len(known)):
                return known
            return None if ndim < 0 else tuple(self.sizes.fresh(low) for _ in range(ndim))
        if known is None or len(known) != len(wanted):
            known = tuple(
                number(want) if isinstance(want, int) else self.sizes.fresh(low) for want in wanted
            )
        for want, size in zip(wanted, known, strict=True):
            if isinstance(want, bc.Heap):
                self.set_slot(want.index, size)
            elif want is not None:
                self.sizes.assume_equal(size, number(want))
        return known
