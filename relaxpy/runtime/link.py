"""Translates functions of an executable into straight-line Python over kernel handles.

`translate` writes one `FunctionCode` as Python source, with one or a few lines per instruction. Memory is resolved
here, once per function:

* heap slots are local variables `s<i>`; slots that a tensor's shape reads are also written to the frame's heap;
* a tensor is an object in the local `r<i>` of its register only if Python, a library, the caller or a device uses it;
* code that accesses a device's memory is written by the `DeviceLines` of its slot (`relaxpy.runtime.devices.emit`;
  for the CPU `relaxpy.runtime.devices.cpu.emit`);
* the launches of a `Graph` run, and are recorded, only where no recording of them fits (`relaxpy.runtime.graphs`);
* the check that a storage is large enough is made once for each distinct expression, as soon as its sizes are known.

Each line of the source belongs to an instruction, and so to a binding: the line number in a traceback locates an error,
at no cost. `linecache` has the source with the bindings as comments. The compiled source has no comments: from a file
or a user it contains only numbers, names that are written here, and element types of the runtime's table. Strings are
the constants `q<i>`.

Functions that call themselves through others, or call function values, become generators that yield their calls to a
trampoline (`relaxpy.runtime.trampoline.drive`). So the depth of recursion is limited by memory, not by Python's stack.
They return their tail calls to it, which then take their place. A tail call of the function itself becomes a step of a
loop (`relaxpy.runtime.emit_step`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar

from relaxpy.runtime import bytecode as bc
from relaxpy.runtime.check_data import CHECKED_BEFORE, holds_data
from relaxpy.runtime.devices.emit import DeviceLines, Launch
from relaxpy.runtime.devices.registry import runtime_class
from relaxpy.runtime.effects import sets, sets_slots
from relaxpy.runtime.emit_data import DataLines
from relaxpy.runtime.emit_match import MatchLines
from relaxpy.runtime.emit_step import StepLines
from relaxpy.runtime.formulas import Formulas
from relaxpy.runtime.function_listing import GraphPlan, Listing
from relaxpy.runtime.graph_key import graph_key
from relaxpy.runtime.integers import by_slot, slots_of
from relaxpy.runtime.intervals import SlotRanges
from relaxpy.runtime.nesting import MAX_LEVELS, Arm
from relaxpy.runtime.operands import Analysis, Value, analyse
from relaxpy.runtime.parameters import entry_tests
from relaxpy.runtime.tail_calls import promised, replacing, steps
from relaxpy.runtime.verifier.verify import Unproved


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices that a program is linked for."""

    lines: tuple[type[DeviceLines], ...]
    """For each slot the class that writes its code."""
    kernels: tuple[bc.KernelInfo, ...] = ()
    with_graphs: frozenset[int] = frozenset()
    """The slots whose devices record and replay launches."""
    packed: tuple[str, ...] = ()
    """The names of the functions that `Packed` instructions call."""


@cache
def only_host() -> Devices:
    """The host, and no other device."""
    return Devices((runtime_class("cpu").lines(),))


def translate(
    code: bc.FunctionCode,
    generators: frozenset[int],
    generator: bool,
    emitter: type[Emitter] | None = None,
    unproved: Unproved = frozenset(),
    devices: Devices | None = None,
    index: int = -1,
) -> Listing:
    """Translates a function to Python. `generators` are the functions whose calls are yielded to the trampoline.
    `emitter` replaces the class that writes the code (`relaxpy.runtime.inspect.watch`). The arguments of instructions
    in `unproved` are checked at run time. `index` is the function's own, by which it calls itself."""
    devices = devices or only_host()
    hosts = [slot for slot, lines in enumerate(devices.lines) if lines.shared]
    analysis = analyse(code, hosts)
    written = (emitter or Emitter)(code, analysis, generators, generator, unproved, devices)
    return written.function(index)


@dataclass(slots=True)
class Scope:
    """The values that are computed on every path to the current instruction."""

    groups: set[int] = field(default_factory=set[int])
    storages: set[int] = field(default_factory=set[int])
    slots: set[int] = field(default_factory=set[int])
    """The slots written since the start of the arm."""

    def arm(self) -> Scope:
        """The scope at the start of an arm of an `If`."""
        return Scope(set(self.groups), set(self.storages))


class Emitter:
    """Writes the code of a function."""

    records: ClassVar[bool] = True
    """Whether graphs are recorded. Otherwise their launches always run one by one."""
    takes_turns: ClassVar[bool] = True
    """Whether the tensors of a loop's variables take turns (`relaxpy.runtime.emit_step`)."""

    def __init__(
        self,
        code: bc.FunctionCode,
        analysis: Analysis,
        generators: frozenset[int],
        generator: bool,
        unproved: Unproved,
        devices: Devices,
    ) -> None:
        self.code = code
        self.kernels = devices.kernels
        self.data = DataLines(devices.packed)
        self.unproved = unproved
        self.info = analysis
        self.plan = analysis.plan
        self.generators = generators
        self.generator = generator
        self.lines: list[str] = []
        self.origin: list[int] = []
        self.at = -1
        self.depth = 0
        self.arms: list[Arm] = []
        self.temps = 0
        # Slots that a record's shape reads are also kept in the heap.
        self.in_heap = frozenset(
            slot
            for record in self.plan.records
            for slot in range(record.shape, record.shape + record.ndim)
        )
        self.storage_exprs: list[bc.IntExpr] = []
        self.storage_group: dict[int, int] = {}
        self.comments: dict[int, str] = {}
        self.texts: dict[str, str] = {}
        self.slots_set: set[int] = set()
        self.slots_change = False
        """Whether a slot is written twice."""
        self.registers_set = set(range(len(code.params)))
        self.matches = MatchLines(self.emit, self.temp, self.is_tensor)
        self.formulas = Formulas(code, analysis.written, self.emit, self.temp)
        self.fold, self.expr = self.formulas.fold, self.formulas.text
        self.ranges = SlotRanges(code, self.fold)
        self.with_graphs = devices.with_graphs if self.records else frozenset[int]()
        self.graphs: list[GraphPlan] = []
        """The graphs so far."""
        self.in_graph = False
        """Whether the current instruction is part of a recorded graph."""
        self.replacing = replacing(code, analysis)
        self.steps: StepLines | None = None
        """Writes the steps, if the function is a loop."""
        self.home = tuple(
            devices.lines.index(lines) if lines.shared else slot
            for slot, lines in enumerate(devices.lines)
        )
        """For each slot, the first slot that shares its memory."""
        self._plan_storages()
        own = {slot: devices.lines[slot](self, slot) for slot in sorted(set(self.home))}
        self.devices = tuple(own[slot] for slot in self.home)
        self.storages_of_slot = by_slot(self.storage_exprs)

    def _plan_storages(self) -> None:
        used = {value.storage for value in self.info.defines.values() if value.storage >= 0}
        seen: dict[tuple[bc.IntExpr, int], int] = {}
        for storage, nbytes in enumerate(self.code.storages):
            size, slot = self.fold(nbytes), self.home[self.code.storage_slot(storage)]
            if (size, slot) not in seen:
                seen[size, slot] = len(self.plan.groups)
                self.plan.groups.append([])
                self.plan.slots.append(slot)
                self.storage_exprs.append(size)
            group = seen[size, slot]
            self.plan.groups[group].append(storage)
            self.storage_group[storage] = group
            if isinstance(size, int) and storage in used:
                self.plan.fixed[group] = size

    def slot_of(self, kernel: bc.Kernel) -> int:
        """The slot where a kernel runs, normalised to the first that shares its memory."""
        return self.home[self.kernels[kernel.index].slot] if self.kernels else bc.HOST

    def is_tensor(self, slot: int, src: str) -> str:
        """A condition that is true if `src` is not a tensor of a slot."""
        return self.devices[slot].is_tensor(src)

    # Expressions

    def checked(self, expr: bc.IntExpr) -> str:
        """A formula as Python that raises if an operation overflows. For small sizes, operations that cannot overflow
        are not checked."""
        expr = self.fold(expr)
        ranges = self.ranges
        if ranges.proved(expr, ranges.any):
            return self.expr(expr)
        if not ranges.guarded:
            return self.formulas.checked(expr, ranges.any)
        return self.formulas.either(
            "wide",
            lambda: self.formulas.checked(expr, ranges.any),
            lambda: self.formulas.checked(expr, ranges.small),
        )

    def guard(self, slots: Iterable[int], signed: bool) -> None:
        """Emits a test whether bound sizes are too large for unchecked formulas."""
        limit = self.ranges.limit
        tests = [
            f"not 0 <= s{slot} <= {limit}" if signed else f"s{slot} > {limit}"
            for slot in slots
            if slot in self.ranges.guarded
        ]
        if tests:
            self.emit(f"if {' or '.join(tests)}: wide = True")

    def dims(self, shape: int, ndim: int) -> str:
        sizes = [self.expr(bc.Heap(slot)) for slot in range(shape, shape + ndim)]
        return f"({', '.join(sizes)},)" if sizes else "()"

    def operand(self, arg: bc.Operand) -> str:
        match arg:
            case bc.Reg(index):
                return f"r{index}"
            case bc.Heap():
                return self.expr(arg)
            case float() if not math.isfinite(arg):
                return f"float({str(arg)!r})"
            case str():
                return self.constant(arg)
            case _:
                return repr(arg)

    def constant(self, text: str) -> str:
        """The name of a string constant, which may come from outside."""
        return self.texts.setdefault(text, f"q{len(self.texts)}")

    # Lines

    def emit(self, line: str) -> None:
        self.lines.append(" " * self.depth + line)
        self.origin.append(self.at)

    def temp(self) -> str:
        self.temps += 1
        return f"x{self.temps}"

    def function(self, index: int = -1) -> Listing:
        params = ", ".join(f"r{i}" for i in range(len(self.code.params)))
        self.emit(f"def run({params}):")
        self.depth = 1
        framed = bool(self.plan.records or self.plan.groups) or any(
            map(self.is_recorded, self.code.code)
        )
        if framed:
            self.emit("try:")
            self.emit(" f = pop()")
            self.emit("except IndexError:")
            self.emit(" f = new_frame()")
        self.emit("try:")
        self.depth = 2
        if framed:
            self.emit(f"({', '.join(self.plan.names())},) = f.locals")
        self.start(framed)
        if self.ranges.guarded:
            self.emit("wide = False")
        updated = [i for i, param in enumerate(self.code.params) if param.updated]
        if updated:
            self.at = 0  # errors are located at the first parameter
            self.emit(f"require_own(({params},), {tuple(updated)})")
            self.at = -1
        start = 0
        if found := steps(self.code, index, self.info):
            self.steps = StepLines(self, found)
            start = self.steps.start
            self.block(0, start, Scope())
            self.at = -1
            self.steps.begin()
            self.emit("while True:")
            self.depth = 3
        self.block(start, len(self.code.code), Scope())
        self.at = -1
        self.depth = 1
        self.emit("except Exception as error:")
        self.emit(" raise fail(error)")
        if framed:
            self.emit("finally:")
            self.emit(" release(frames, f)" if self.generator else " push(f)")
        if self.generator:
            self.emit("yield")  # unreachable; makes a generator of a function without calls
        return Listing(
            self.code.name,
            self.lines,
            self.origin,
            self.plan,
            tuple(lines.names() for lines in dict.fromkeys(self.devices)),
            self.generator,
            self.arms,
            self.comments,
            list(self.texts),
            tuple(self.graphs),
            entry_tests(self.code, self.is_tensor),
            self.info.gives_new,
            list(self.data.classes),
        )

    def start(self, framed: bool) -> None:
        """Called at the start of a call's code. `f` is its frame if it is `framed`."""

    def next_step(self) -> None:
        """Called before the next step of a loop."""

    def own_tensor(self, dims: str, dtype: str, nbytes: str) -> str:
        """An expression that allocates a tensor which owns its memory, of so many bytes."""
        return f"empty({dims}, {dtype!r}, {nbytes})"

    def block(self, start: int, end: int, scope: Scope) -> None:
        at = start
        while at < end:
            instr = self.code.code[at]
            if not self.may_precede(at, instr):
                self.flush()
            self.at = at
            if isinstance(instr, bc.If):
                middle = at + 1 + instr.then_len
                after = middle + instr.else_len
                self.emit(f"if {self.condition(at, instr.cond)}:")
                self.comment(instr)
                self.arm(at + 1, middle, scope)
                self.at = at
                self.emit("else:")
                self.arm(middle, after, scope)
                at = after
                continue
            if isinstance(instr, bc.Graph) and self.is_recorded(instr):
                self.graph(at, instr, scope)
                at += 1 + instr.length
                continue
            first = len(self.lines)
            self.instr(at, instr, scope)
            if len(self.lines) > first:
                self.comment(instr)
            made = self.info.defines.get(at)
            if made is None or made.has_local:
                self.registers_set.add(sets(instr))
            at += 1
        self.flush()

    def condition(self, at: int, reg: int) -> str:
        """The condition of an `If`, as an expression."""
        (value,) = self.info.reads[at]
        if value.is_bool:
            return f"r{reg}"
        if value.storage >= 0 and not value.object:
            return f"truth_at(f.pointers[{value.storage}] + {value.offset}).value"
        return f"truth(r{reg})"

    def spare(self, at: int) -> str:
        """A tensor that an instruction may use instead of a new one, or None, as an expression; empty if there is
        never one."""
        return self.steps.spares.get(at, "") if self.steps is not None else ""

    def may_precede(self, at: int, instr: bc.Instr) -> bool:
        """Whether the pending kernels may run after this instruction instead of before it, or it is a kernel that joins
        them."""
        return all(lines.may_precede(at, instr) for lines in self.devices)

    def flush(self) -> None:
        """Write the pending kernels."""
        for lines in self.devices:
            lines.flush()

    def launch(self, launches: Sequence[Launch]) -> None:
        for launch in launches:
            self.at = launch.at
            self.emit(f"{launch.handle}({', '.join(launch.args)})")
            self.comment(self.code.code[launch.at])

    def arm(self, start: int, end: int, scope: Scope) -> None:
        self.depth += 1
        first = len(self.lines)
        self.emit("pass")
        inner = scope.arm()
        self.block(start, end, inner)
        for slot in inner.slots:
            self.forget(slot, scope)
        if self.depth % MAX_LEVELS == 0:
            self.arms.append((first, len(self.lines)))
        self.depth -= 1

    def is_recorded(self, instr: bc.Instr) -> bool:
        """Whether an instruction is a graph that the machine records."""
        return isinstance(instr, bc.Graph) and instr.length > 0 and instr.slot in self.with_graphs

    def graph(self, at: int, graph: bc.Graph, scope: Scope) -> None:
        """Writes a graph. What can fail or moves memory comes first, at every call: checks, and growth of storage. Then
        a recording is looked up by all that its launches depend on; if there is none, they run and are recorded."""
        body = range(at + 1, at + 1 + graph.length)
        for inner in body:
            self.checks_ahead(inner, scope)
        self.unproved -= frozenset(body)
        key = graph_key(self.code, self.info, self.kernels, at)
        kernels = [
            each.index
            for each in map(self.code.code.__getitem__, body)
            if isinstance(each, bc.Kernel)
        ]
        plan = GraphPlan(graph.slot, tuple(dict.fromkeys(kernels)), len(kernels), len(key.inputs))
        self.at = at
        self.emit(f"g = f.graphs[{len(self.graphs)}]")
        self.graphs.append(plan)
        moved = _tuple(f"r{reg}" for reg in (*key.inputs, *key.outputs))
        if moved != "()":
            updated = _tuple(f"r{reg}.buffer.handle" for reg in key.updated)
            self.emit(f"if g.moved: {moved} = g.move({moved}, {updated})")
        self.emit(f"key = ({_tuple(key.sizes)}, {_tuple(key.places)})")
        self.emit("if not g.replayed(key):")
        self.comment(graph)
        self.emit(f" for launch in g.recorded(key, {moved}):")
        self.depth += 2
        self.in_graph = True
        self.block(body.start, body.stop, scope.arm())
        self.in_graph = False
        self.depth -= 2
        self.at = at
        if moved != "()":
            self.emit(f"if g.away: {moved} = g.restored()")

    def checks_ahead(self, at: int, scope: Scope) -> None:
        """Writes the run-time checks of an instruction of a graph, without the instruction."""
        self.at = at
        match self.code.code[at]:
            case bc.Alloc() as instr:
                self.room(at, instr)
                self.grown(instr, scope)
            case bc.View() as instr:
                self.require_seen(at, instr)
            case bc.Kernel() as instr:
                self.fits(at, instr)
            case _:
                pass

    def comment(self, instr: bc.Instr) -> None:
        """Adds the instruction's binding as a comment to the last line."""
        place = self.code.place(instr)
        where = f", {place.file}:{place.line}" if place.file else ""
        self.comments[len(self.lines) - 1] = f"{place.binding}{where}"

    # Instructions

    def instr(self, at: int, instr: bc.Instr, scope: Scope) -> None:  # noqa: C901  (a case an instruction)
        match instr:
            case bc.Const(dst=dst, index=index, slot=slot):
                if self.info.defines[at].object:
                    self.emit(f"r{dst} = {self.devices[slot].constant(index)}")
            case bc.Match():
                self.match_value(at, instr, scope)
            case bc.Eval(dst=dst, expr=expr):
                self.emit(f"s{dst} = {self.checked(expr)}")
                self.slot_written(dst, scope)
            case bc.Assert(lhs=lhs, rhs=rhs, check=check):
                left, right = self.checked(lhs), self.checked(rhs)
                self.emit(
                    f"if {left} != {right}: raise unequal({check}, {left}, {right}, locals())"
                )
            case bc.Alloc():
                self.alloc(at, instr, scope)
            case bc.View():
                self.view(at, instr)
            case bc.Copy(dst=dst, src=src, slot=slot):
                self.devices[slot].copy(dst, src)
            case bc.Read(dst=dst, src=src):
                self.emit(f"r{dst} = read(r{src})")
            case bc.Kernel():
                self.kernel(at, instr, scope)
            case bc.Graph():
                pass  # its launches follow, and run one by one
            case bc.Library(index=index, args=args):
                given = ", ".join(map(self.operand, args))
                outputs = tuple(value.uses > 1 for value in self.info.outputs[at])
                self.emit(
                    f"library(l{index}, {outputs}, ({given},))" if outputs else f"l{index}({given})"
                )
            case bc.Packed() if lines := self.data.lines(instr):
                for line in lines:
                    self.emit(line)
                self.info.defines[at].is_bool = self.data.is_test(instr)
            case bc.Packed(dst=dst, index=index, args=args):
                self.emit(f"r{dst} = to_value(p{index}({', '.join(map(self.operand, args))}))")
            case bc.Call(args=args) if self.steps is not None and at in self.steps.calls:
                self.steps.step(at, args, scope.arm())
            case bc.Call(dst=dst, index=index, args=args):
                if index in self.generators and at in self.replacing:
                    self.emit(self.tail_call(at, f"f{index}({_regs(args)})"))
                    return
                wait = "yield " if index in self.generators else ""
                self.emit(f"r{dst} = {wait}f{index}({_regs(args)})")
            case bc.Closure(dst=dst, index=index, captured=captured):
                self.emit(f"r{dst} = closure({index}, ({_regs(captured, ',')}))")
            case bc.Invoke(dst=dst, closure=closure, args=args):
                begun = f"begin(r{closure}, ({_regs(args, ',')}))"
                is_tail = at in self.replacing
                call = self.tail_call(at, begun) if is_tail else f"r{dst} = yield {begun}"
                self.emit(f"if is_generator(r{closure}): {call}")
                self.emit(f"else: r{dst} = invoke(r{closure}, ({_regs(args, ',')}))")
            case bc.MakeTuple(dst=dst, fields=fields):
                self.emit(f"r{dst} = ({_regs(fields, ',')})")
            case bc.Item(dst=dst, src=src, index=index):
                self.emit(f"r{dst} = r{src}[{index}]")
            case bc.MakeShape(dst=dst, shape=shape, ndim=ndim):
                self.emit(f"r{dst} = Shape({self.dims(shape, ndim)})")
            case bc.MakePrim(dst=dst, value=value, dtype=dtype):
                text = self.operand(value)
                if dtype == "bool" and text not in ("True", "False"):
                    text = f"{text} != 0"
                elif isinstance(value, bc.Heap) and "float" in dtype:
                    text = f"float({text})"
                self.emit(f"r{dst} = {text}")
            case bc.Move(dst=dst, src=src):
                if self.info.reads[at][0].has_local:
                    self.emit(f"r{dst} = r{src}")
            case bc.Kill(regs=regs):
                held = [
                    f"r{r}"
                    for r, value in zip(regs, self.info.reads[at], strict=True)
                    if value.has_local
                ]
                if held:
                    self.emit(f"{' = '.join(held)} = None")
            case bc.Return(src=src):
                self.emit(f"return r{src}")
            case _:
                raise AssertionError(f"no translation of {type(instr).__name__}")

    def tail_call(self, at: int, begun: str) -> str:
        """The line of a call that takes the place of this one."""
        instrs = promised(self.code, self.replacing[at])
        if not instrs:
            return f"return TailCall({begun})"
        bound: set[int] = set()
        needed: set[int] = set()
        for number in instrs:
            instr = self.code.code[number]
            if isinstance(instr, bc.Assert):
                needed.update({*slots_of(instr.lhs), *slots_of(instr.rhs)} - bound)
            bound.update(sets_slots(instr))
        slots = [f"({slot}, {self.expr(bc.Heap(slot))})" for slot in sorted(needed)]
        return f"return TailCall({begun}, promise({instrs}, {_tuple(slots)}))"

    def slot_written(self, slot: int, scope: Scope) -> None:
        self.slots_change |= slot in self.slots_set
        self.slots_set.add(slot)
        if slot in self.in_heap:
            self.emit(f"h[{slot}] = s{slot}")
        self.forget(slot, scope)

    def forget(self, slot: int, scope: Scope) -> None:
        """Called before a slot may be written again, in an arm of an `If` or by reuse: expressions computed from it are
        stale."""
        scope.slots.add(slot)
        for lines in self.devices:
            lines.stale(slot, scope)
        scope.storages -= self.storages_of_slot.get(slot, set())

    def alloc(self, at: int, instr: bc.Alloc, scope: Scope) -> None:
        value = self.info.defines[at]
        self.room(at, instr)
        if instr.storage < 0:
            self.devices[instr.slot].own(at, instr, self.dims(instr.shape, instr.ndim))
            return
        self.grown(instr, scope)
        if value.object:
            self.storage_tensor(instr.dst, value)

    def room(self, at: int, instr: bc.Alloc) -> None:
        """Checks that a tensor fits its storage, unless this is proved."""
        if at in self.unproved:
            dims = self.dims(instr.shape, instr.ndim)
            have = self.expr(self.code.storages[instr.storage]) if instr.storage >= 0 else "None"
            self.emit(f"room({dims}, {instr.dtype!r}, {instr.offset}, {have})")

    def grown(self, instr: bc.Alloc, scope: Scope) -> None:
        """Lets the tensor's storage grow to the size that this call needs."""
        group = self.storage_group[instr.storage]
        if group not in self.plan.fixed and group not in scope.storages:
            scope.storages.add(group)
            need = self.temp()
            size = self.storage_exprs[group]
            self.emit(f"{need} = {self.expr(size)}")
            self.emit(f"if {need} > caps[{group}]: f.grow({group}, {need})")
            if not self.ranges.proved(size, self.ranges.any):
                # The line above raises an error with the number of bytes. This one handles a size that is 0 in the end.
                small = self.ranges.guarded and self.ranges.proved(size, self.ranges.small)
                self.emit("if wide:" if small else "if True:")
                self.depth += 1
                self.emit(self.formulas.checked(size, self.ranges.any))
                self.depth -= 1

    def storage_tensor(self, dst: int, value: Value) -> None:
        self.devices[value.slot].stored(dst, value, self.dims(value.shape, value.ndim))

    def view(self, at: int, instr: bc.View) -> None:
        value = self.info.defines[at]
        self.require_seen(at, instr)
        if value.storage >= 0:
            if value.object:
                self.storage_tensor(instr.dst, value)
            return
        self.devices[instr.slot].view(at, instr, self.dims(instr.shape, instr.ndim))

    def require_seen(self, at: int, instr: bc.View) -> None:
        """Checks that a view fits its tensor, unless this is proved."""
        if at in self.unproved:
            dims = self.dims(instr.shape, instr.ndim)
            source = self.compared(instr.src, self.info.reads[at][0])
            where = self.devices[instr.slot].queue
            self.emit(f"seen({source}, {dims}, {instr.dtype!r}{where})")

    def compared(self, reg: int, value: Value) -> str:
        """A register's value for a check. For a tensor that only kernels use, a description with its type and shape."""
        if value.shape >= 0:
            return f"shown({self.dims(value.shape, value.ndim)}, {value.dtype!r})"
        return (
            self.devices[value.slot].constant(value.constant) if value.constant >= 0 else f"r{reg}"
        )

    def kernel(self, at: int, instr: bc.Kernel, scope: Scope) -> None:
        self.fits(at, instr)
        self.devices[self.slot_of(instr)].kernel(at, instr, scope)

    def fits(self, at: int, instr: bc.Kernel) -> None:
        """Compares arguments with the kernel's parameters, unless they are proved to fit."""
        if at in self.unproved:
            read = iter(self.info.reads[at])
            given = [
                self.compared(arg.index, next(read))
                if isinstance(arg, bc.Reg)
                else self.operand(arg)
                for arg in instr.args
            ]
            self.emit(f"fit({instr.index}, ({', '.join([*given, ''])}))")

    # Match

    def match_value(self, at: int, instr: bc.Match, scope: Scope) -> None:
        value = self.info.reads[at][0]
        src = f"r{instr.src}"
        bad = f"raise mismatch({at}, {{}}, locals())"
        if value.shape >= 0 and isinstance(instr.pattern, bc.TensorPattern):
            # A tensor that this function allocated: only its sizes are checked, and they are known.
            self.match_known(instr, instr.pattern, value, scope)
            return
        if holds_data(instr.pattern) and self.code.checks[instr.check].what not in CHECKED_BEFORE:
            self.emit(f"if misfit({at}, {src}): {bad.format(src)}")
        bound: list[int] = []
        sizes = self.matches.value(instr.pattern, src, bad.format(src), bound)
        for slot in bound:
            self.slot_written(slot, scope)
        self.guard(bound, not isinstance(instr.pattern, bc.TensorPattern))
        if isinstance(instr.pattern, bc.TensorPattern):
            self.devices[instr.pattern.slot].matched(at, src, sizes)

    def match_known(
        self, instr: bc.Match, pattern: bc.TensorPattern, value: Value, scope: Scope
    ) -> None:
        """Matches a tensor whose type is known at link time. A mismatch of rank or type fails at every call."""
        have = [self.expr(bc.Heap(slot)) for slot in range(value.shape, value.shape + value.ndim)]
        wrong_rank = (
            pattern.ndim not in (-1, value.ndim)
            if pattern.shape is None
            else len(pattern.shape) != value.ndim
        )
        shown = (
            f"shown({', '.join([f'({chr(44).join(have)},)' if have else '()', repr(value.dtype)])})"
        )
        bad = f"raise mismatch({self.at}, {shown}, locals())"
        if pattern.dtype not in ("", value.dtype) or wrong_rank or pattern.slot != value.slot:
            self.emit(bad)
            return
        for want, size in zip(pattern.shape or (), have, strict=False):
            if isinstance(want, bc.Heap):
                self.emit(f"s{want.index} = {size}")
                self.slot_written(want.index, scope)
                self.guard((want.index,), signed=True)
            elif want is not None and str(want) != size:
                self.emit(f"if {size} != {want}: {bad}")


def _tuple(items: Iterable[str]) -> str:
    """Expressions as a tuple."""
    text = ", ".join(items)
    return f"({text},)" if text else "()"


def _regs(regs: Sequence[int], end: str = "") -> str:
    """Registers as an argument list. `end` is a comma for the inside of a tuple."""
    return ", ".join(f"r{reg}" for reg in regs) + (end if regs else "")
