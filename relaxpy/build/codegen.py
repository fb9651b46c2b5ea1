"""VM code generation: lowered functions to register bytecode.

Its input is a module after the pipeline, in which the only operators are instructions (`relaxpy.op.memory`), calls,
tuples and branches. Every variable gets a register, which is reused when the variable is dead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from relaxpy.analysis.weights import PACKERS, packed_params
from relaxpy.backend.int_expr import int_expr
from relaxpy.backend.slots import ONLY_HOST, Slots, slots_of
from relaxpy.build.data_types import data_table, pattern_of
from relaxpy.errors import BuildError, Span
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import (
    Annotation,
    CallableType,
    DataType,
    PrimType,
    ShapeType,
    TensorType,
    TupleType,
)
from relaxpy.ir.dim import Dim, SymVar, surely_at_least
from relaxpy.ir.expr import (
    Call,
    Constant,
    DataTypeImm,
    Expr,
    ExternFunc,
    Function,
    GlobalVar,
    If,
    MatchCast,
    PrimValue,
    SeqExpr,
    ShapeExpr,
    StringImm,
    Tuple,
    TupleGetItem,
    Var,
    VarBinding,
)
from relaxpy.ir.module import BufferParam, IRModule, TensorProgram
from relaxpy.ir.op import Operator
from relaxpy.ir.visitor import UsedVars
from relaxpy.op.base import Op, as_expr
from relaxpy.op.call import CallPurePacked, InvokeClosure
from relaxpy.op.memory import (
    AllocStorage,
    AllocTensor,
    BeginGraph,
    CallDPS,
    CheckDim,
    CheckEqual,
    CopyTo,
    EndGraph,
    Kill,
    MakeClosure,
    MakeShape,
    Match,
    ReadScalar,
    Store,
    View,
)
from relaxpy.runtime import bytecode as bc
from relaxpy.shape.lattice import accepts
from relaxpy.target import Target
from relaxpy.transform.lower_call_tir import UPDATED_ATTR
from relaxpy.transform.lower_shapes import HEAP_ATTR

UNKNOWN_COST = -1


@dataclass
class Program:
    """The results of code generation over all functions."""

    functions: list[bc.FunctionCode] = field(default_factory=list[bc.FunctionCode])
    constants: list[np.ndarray] = field(default_factory=list[np.ndarray])
    kernels: dict[str, int] = field(default_factory=dict[str, int])
    """Tensor program → its index, in order of first use. The following tables are likewise."""
    libraries: dict[str, int] = field(default_factory=dict[str, int])
    packed: dict[str, int] = field(default_factory=dict[str, int])
    kernel_slots: dict[str, int] = field(default_factory=dict[str, int])
    """Tensor program → the slot where it runs."""
    weight_params: list[bc.WeightParam] = field(default_factory=list[bc.WeightParam])
    data_types: tuple[bc.DataInfo, ...] = ()
    slots: Slots = ONLY_HOST


def generate(mod: IRModule, target: Target | None = None) -> Program:
    """The bytecode of all graph functions of a lowered module, for the target of its build (None: this machine)."""
    program = Program(data_types=data_table(mod), slots=slots_of(mod, target))
    index = {name: i for i, name in enumerate(mod.graph_functions)}
    constants: dict[int, int] = {}
    for name, function in mod.graph_functions.items():
        writer = _FunctionWriter(mod, program, index, constants, name, function)
        program.functions.append(writer.write())
    layouts: dict[str, str] = {}
    for name, function in mod.graph_functions.items():
        for packer, *_ in function.attrs.get(PACKERS, {}).values():
            if packer not in layouts:
                layouts[packer] = _layout(mod, program, program.functions[index[packer]])
        program.weight_params += _weight_params(layouts, index, index[name], function)
    return program


def _weight_params(
    layouts: Mapping[str, str], index: Mapping[str, int], at: int, function: Function
) -> Iterator[bc.WeightParam]:
    """The weights of a function that its caller packs, given the layouts that packers make."""
    packers = function.attrs.get(PACKERS, {})
    for weight in packed_params(function):
        number = function.params.index(weight)
        if weight.name in packers:
            name, sources, *field = packers[weight.name]
            layout = f"{layouts[name]}.{field[0]}" if field else layouts[name]
            yield bc.WeightParam(at, number, tuple(sources), index[name], layout, *field)
        else:
            yield bc.WeightParam(at, number, (weight.name,))


def _layout(mod: IRModule, program: Program, packer: bc.FunctionCode) -> str:
    """A digest of all that a packer computes, without names and places in the source."""
    kernels = list(program.kernels)
    calls = [step.index for step in packer.code if isinstance(step, bc.Kernel)]
    programs = [mod[kernels[call]] for call in calls]
    texts = [each.full_text() for each in programs if isinstance(each, TensorProgram)]
    steps = [
        replace(step, loc=0, **({"index": 0} if isinstance(step, bc.Kernel) else {}))
        for step in packer.code
    ]
    facts = (packer.num_regs, packer.heap_init, packer.storages, steps, texts)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


class _FunctionWriter:
    def __init__(
        self,
        mod: IRModule,
        program: Program,
        index: dict[str, int],
        constants: dict[int, int],
        name: str,
        function: Function,
    ) -> None:
        self.devices = program.slots if len(program.slots.slots) > 1 else None
        """The slots of the module's devices, if there are others than the host."""
        self.mod = mod
        self.program = program
        self.index = index
        self.constants = constants
        self.name = name
        self.source = function
        self.code: list[bc.Instr] = []
        self.checks: list[bc.Check] = []
        self.locations: dict[bc.Location, int] = {}
        self.loc = 0
        self.regs: dict[Var, int] = {}
        self.num_regs = 0
        self.free: list[int] = []
        self.slots: dict[Dim, int] = {}
        self.heap: list[int] = [0] * int(function.attrs.get(HEAP_ATTR, 0))
        self.storages: list[bc.IntExpr] = []
        self.storage_slots: list[int] = []
        self.storage_of: dict[Var, int] = {}
        self.graph = -1
        """The index of the `Graph` around the current instruction; -1: there is none."""
        self.graph_slot = bc.HOST
        self.graph_dead: list[int] = []
        """Registers that died in the current graph."""
        self.graph_own: set[int] = set()
        """Registers that were defined in it."""
        self.costs: dict[Hashable, tuple[Dim | None, ...]] = {}
        """The costs of kernels by their arguments."""
        self.used_vars = UsedVars()

    def write(self) -> bc.FunctionCode:
        function = self.source
        for param in function.params:
            self.regs[param] = self.new_reg()
        self.at("return", function.span)
        result = self.seq(function.body)
        self.emit(bc.Return, result)
        updated = function.attrs.get(UPDATED_ATTR, ())
        params = tuple(
            bc.Param(p.name, str(p.annotation), i in updated) for i, p in enumerate(function.params)
        )
        return bc.FunctionCode(
            name=self.name,
            params=params,
            ret=str(function.ret),
            num_regs=self.num_regs,
            heap_init=tuple(self.heap),
            storages=tuple(self.storages),
            code=tuple(self.code),
            checks=tuple(self.checks),
            locations=tuple(self.locations),
            public="global_symbol" in function.attrs,
            storage_slots=tuple(self.storage_slots) if any(self.storage_slots) else (),
        )

    def slot(self, vdevice: str | None) -> int:
        """The slot of a virtual device."""
        return bc.HOST if self.devices is None else self.devices.number(vdevice)

    def slot_of(self, annotation: Annotation) -> int:
        """The slot of a tensor with this annotation."""
        return self.slot(annotation.vdevice if isinstance(annotation, TensorType) else None)

    # Registers, places, instructions

    def new_reg(self) -> int:
        if self.free:
            return self.free.pop()
        self.num_regs += 1
        return self.num_regs - 1

    def at(self, binding: str, span: Span | None) -> None:
        where = bc.Location(binding)
        if span is not None:
            end = span.end_column if span.end_line == span.line else 0
            where = bc.Location(binding, span.file, span.line, span.column, end)
        self.loc = self.locations.setdefault(where, len(self.locations))

    def emit(self, kind: type[bc.Instr], *operands: Any) -> None:
        self.code.append(kind(self.loc, *operands))

    # Bodies

    def seq(self, seq: SeqExpr) -> int:
        """Writes a body and returns the register of its value. Registers of its variables are free after their last
        use."""
        bindings = list(seq.bindings)
        last: dict[Var, int] = {}
        for i, binding in enumerate(bindings):
            for var in self.used_vars(binding.value):
                last[var] = i
        for var in self.used_vars(seq.body):
            last[var] = len(bindings)
        dead_at: dict[int, list[Var]] = {}
        for i, binding in enumerate(bindings):
            dead_at.setdefault(last.get(binding.var, i), []).append(binding.var)
        for i, binding in enumerate(bindings):
            # An instruction without a result is named `_x` after the variable it is about.
            self.at(binding.var.name.lstrip("_") or _subject(binding.value), binding.span)
            if isinstance(binding, MatchCast):
                self.bind(binding.var, self.value(binding.value))
            else:
                self.binding(binding)
            self.kill(dead_at.get(i, ()))
        self.at("return", seq.span or self.source.span)
        return self.value(seq.body)

    def kill(self, variables: Iterable[Var]) -> None:
        dead = [self.regs[var] for var in variables if var in self.regs]
        if self.graph >= 0:  # where a graph is replayed, none of its instructions runs
            self.graph_dead += dead
        elif dead:
            self.emit(bc.Kill, tuple(dead))
            self.free.extend(dead)

    def bind(self, var: Var, src: int) -> None:
        """Binds another variable to a value. It gets a register of its own, so that each variable has its own
        lifetime."""
        dst = self.new_reg()
        self.regs[var] = dst
        self.emit(bc.Move, dst, src)

    def binding(self, binding: VarBinding) -> None:
        var, value = binding.var, binding.value
        match value:
            case Call():
                self.call(var, value)
            case If():
                self.branch(var, value)
            case Tuple(fields=fields):
                regs = tuple(map(self.value, fields))
                self.emit(bc.MakeTuple, self.define(var), regs)
            case TupleGetItem():
                src = self.value(value.tuple)
                self.emit(bc.Item, self.define(var), src, value.index)
            case Var():
                self.bind(var, self.value(value))
            case Constant() | PrimValue() | StringImm() | DataTypeImm():
                self.leaf_into(self.define(var), value)
            case _:
                raise BuildError(
                    "not-lowered",
                    f"{type(value).__name__} cannot be compiled to bytecode",
                    span=binding.span,
                    help="build with the complete pipeline: relaxpy.build(mod)",
                )

    def define(self, var: Var) -> int:
        reg = self.new_reg()
        self.regs[var] = reg
        if self.graph >= 0:
            self.graph_own.add(reg)
        return reg

    def value(self, expr: Expr) -> int:
        """The register of a leaf expression."""
        if isinstance(expr, Var):
            return self.regs[expr]
        reg = self.new_reg()
        self.leaf_into(reg, expr)
        return reg

    def leaf_into(self, reg: int, expr: Expr) -> None:
        match expr:
            case Constant(data=data):
                self.emit(bc.Const, reg, self.constant(data))
            case PrimValue(value=value, dtype=dtype):
                operand = self.int_operand(value) if isinstance(value, Dim) else value
                self.emit(bc.MakePrim, reg, operand, str(dtype))
            case StringImm(value=value):
                self.emit(bc.MakePrim, reg, value, "")
            case DataTypeImm(dtype=dtype):
                self.emit(bc.MakePrim, reg, str(dtype), "")
            case Tuple(fields=fields):
                self.emit(bc.MakeTuple, reg, tuple(map(self.value, fields)))
            case ShapeExpr(dims=dims) if all(d.value is not None for d in dims):
                start = len(self.heap)
                self.heap += [d.value or 0 for d in dims]
                self.emit(bc.MakeShape, reg, start, len(dims))
            case _:
                raise BuildError(
                    "not-lowered",
                    f"{type(expr).__name__} cannot be compiled to bytecode",
                    span=expr.span,
                )

    def constant(self, data: np.ndarray) -> int:
        found = self.constants.get(id(data))
        if found is None:
            found = self.constants[id(data)] = len(self.program.constants)
            self.program.constants.append(data)
        return found

    def branch(self, var: Var, value: If) -> None:
        cond = self.value(value.cond)
        dst = self.define(var)
        at = len(self.code)
        self.emit(bc.If, cond, 0, 0)
        loc = self.loc
        lengths: list[int] = []
        for arm in (value.then, value.otherwise):
            start = len(self.code)
            slots, free, regs, num_regs = (
                len(self.slots),
                list(self.free),
                len(self.regs),
                self.num_regs,
            )
            src = self.seq(arm)
            self.emit(bc.Move, dst, src)
            # Variables bound in an arm are not visible after it. Registers that it used are free for the other arm.
            for names, before in ((self.slots, slots), (self.regs, regs)):
                while len(names) > before:
                    names.popitem()
            self.free = [*free, *range(num_regs, self.num_regs)]
            lengths.append(len(self.code) - start)
        self.code[at] = bc.If(loc, cond, *lengths)

    # Calls

    def call(self, var: Var, call: Call) -> None:  # noqa: C901  (a case an instruction)
        op, args = call.op, call.args
        match op:
            case AllocStorage():
                size = args[0]
                self.storage_of[var] = len(self.storages)
                self.storages.append(self.int_expr(_dim(size)))
                self.storage_slots.append(self.slot(op.vdevice))
            case AllocTensor(dtype=dtype, at=at, offset=offset):
                shape, *storages = args
                storage = next((self.storage_of[s] for s in storages if isinstance(s, Var)), -1)
                slot = self.slot_of(var.annotation)
                self.emit(
                    bc.Alloc, self.define(var), at, _ndim(shape), dtype, storage, offset, slot
                )
            case View(dtype=dtype, at=at):
                src, slot = self.value(args[0]), self.slot_of(var.annotation)
                self.emit(bc.View, self.define(var), src, at, _ndim(args[1]), dtype, slot)
            case CopyTo(vdevice=vdevice):
                self.copy(var, args[0], self.slot(vdevice))
            case ReadScalar():
                src = self.value(args[0])
                self.emit(bc.Read, self.define(var), src)
            case CallDPS():
                self.call_dps(call)
            case BeginGraph():
                self.begin_graph(call)
            case EndGraph():
                self.end_graph(call)
            case Match():
                self.match(op, args[0])
            case Store(slot=slot):
                self.store(slot, args[0])
            case CheckEqual():
                came, expected = (self.int_expr(_dim(a)) for a in args)
                dims = _dims_of(args)
                check = self.check(op.what, op.of, op.annotation, op.detail, dims)
                self.emit(bc.Assert, came, expected, check)
            case CheckDim(message=message):
                check = self.check("relation", var.name, "", message, _dims_of(args))
                self.emit(bc.Assert, self.int_expr(_dim(args[0])), 1, check)
            case MakeShape(at=at):
                self.emit(bc.MakeShape, self.define(var), at, _ndim(args[0]))
            case MakeClosure():
                callee = expect(GlobalVar, args[0])
                captured = tuple(map(self.value, args[1:]))
                self.emit(bc.Closure, self.define(var), self.index[callee.name], captured)
            case Kill():
                values = [a for a in args if a not in self.storage_of]  # storage is the frame's
                self.emit(bc.Kill, tuple(map(self.value, values)))
            case CallPurePacked():
                self.packed(var, expect(ExternFunc, args[0]).name, args[1:])
            case ExternFunc(name=name):
                self.packed(var, name, args)
            case GlobalVar(name=name):
                regs = tuple(map(self.value, args))
                self.emit(bc.Call, self.define(var), self.index[name], regs)
            case Var() | InvokeClosure():
                closure, *regs = map(self.value, args if isinstance(op, Operator) else (op, *args))
                self.emit(bc.Invoke, self.define(var), closure, tuple(regs))
                if self.devices is not None:
                    # The function value may be a Python function, whose tensors may be on any device.
                    self.regs[var] = self.brought(self.regs[var], var.annotation)
            case Op() if op.packed:
                self.packed(var, op.packed, (*args, *_attr_args(op)))
            case _:
                raise BuildError(
                    "not-lowered",
                    f"{getattr(op, 'name', op)} has no tensor program and is not an instruction of the VM",
                    span=call.span,
                )

    def copy(self, var: Var, value: Expr, slot: int) -> None:
        """Copies a tensor to the memory of a slot. A constant is uploaded to the slot directly."""
        if isinstance(value, Constant):
            self.emit(bc.Const, self.define(var), self.constant(value.data), slot)
            return
        src = self.value(value)
        self.emit(bc.Copy, self.define(var), src, slot)

    def brought(self, reg: int, annotation: Annotation) -> int:
        """The register of a value whose tensors have been copied to the slots of its annotation."""
        match annotation:
            case TensorType():
                dst = self.new_reg()
                self.emit(bc.Copy, dst, reg, self.slot_of(annotation))
                return dst
            case TupleType(fields=fields) if any(
                isinstance(f, (TensorType, TupleType)) for f in fields
            ):
                items: list[int] = []
                for number, each in enumerate(fields):
                    item = self.new_reg()
                    self.emit(bc.Item, item, reg, number)
                    items.append(self.brought(item, each))
                dst = self.new_reg()
                self.emit(bc.MakeTuple, dst, tuple(items))
                return dst
            case _:
                return reg

    def packed(self, var: Var, name: str, args: tuple[Expr, ...]) -> None:
        operands = tuple(map(self.operand, args))
        index = _intern(self.program.packed, name)
        self.emit(bc.Packed, self.define(var), index, operands)

    def operand(self, expr: Expr) -> bc.Operand:
        match expr:
            case PrimValue(value=Dim() as value, dtype=dtype) if not dtype.is_float:
                return self.int_operand(value)
            case PrimValue(value=bool() | float() as value) | StringImm(value=value):
                return value
            case DataTypeImm(dtype=dtype):
                return str(dtype)
            case _:
                return bc.Reg(self.value(expr))

    def call_dps(self, call: Call) -> None:
        callee, args = call.args[0], call.args[1:]
        operands = tuple(map(self.operand, args))
        if isinstance(callee, ExternFunc):
            index = _intern(self.program.libraries, callee.name)
            self.emit(bc.Library, index, operands)
            return
        callee = expect(GlobalVar, callee)
        kernel = expect(TensorProgram, self.mod[callee.name])
        index = _intern(self.program.kernels, callee.name)
        tensors = (each for each in args if isinstance(each, Var))
        slot = max((self.slot_of(each.annotation) for each in tensors), default=bc.HOST)
        if self.program.kernel_slots.setdefault(callee.name, slot) != slot:
            raise BuildError(
                "not-lowered",
                f"{callee.name} is called with tensors on two devices",
                span=call.span,
                help="build with the complete pipeline: relaxpy.build(mod)",
            )
        self.emit(bc.Kernel, index, operands, *self.costs_of(callee.name, kernel, args))

    def costs_of(
        self, name: str, kernel: TensorProgram, args: tuple[Expr, ...]
    ) -> list[bc.IntExpr]:
        """The kernel's work, floating-point operations and bytes for the dimensions of this call."""
        given = tuple(map(_given, args))
        key = (name, given)
        if key not in self.costs:
            self.costs[key] = call_costs(kernel, given)
        return [UNKNOWN_COST if c is None else self.int_expr(c) for c in self.costs[key]]

    def begin_graph(self, call: Call) -> None:
        if self.graph >= 0:
            raise self.misplaced(call, "a graph begins inside of another")
        self.graph = len(self.code)
        self.emit(bc.Graph, 0, bc.HOST)

    def end_graph(self, call: Call) -> None:
        if self.graph < 0:
            raise self.misplaced(call, "a graph ends that has not begun")
        at, self.graph = self.graph, -1
        slots = {self.slot_in_graph(instr) for instr in self.code[at + 1 :]}
        if len(slots) > 1:
            raise self.misplaced(call, "a graph has launches on two devices")
        length = len(self.code) - at - 1
        self.code[at] = bc.Graph(self.code[at].loc, length, max(slots, default=bc.HOST))
        dead, self.graph_dead = self.graph_dead, []
        if killed := [reg for reg in dead if reg not in self.graph_own]:
            self.emit(bc.Kill, tuple(killed))
        self.free.extend(dead)
        self.graph_own.clear()

    def slot_in_graph(self, instr: bc.Instr) -> int:
        """The slot of an instruction of a graph."""
        if isinstance(instr, bc.Kernel):
            return self.program.kernel_slots[list(self.program.kernels)[instr.index]]
        return int(getattr(instr, "slot", bc.HOST))

    def misplaced(self, call: Call, problem: str) -> BuildError:
        return BuildError(
            "not-lowered",
            problem,
            span=call.span,
            help="build with the complete pipeline: relaxpy.build(mod)",
        )

    # The heap

    def match(self, op: Match, target: Expr) -> None:
        target = expect(Var, target)
        slots = iter(op.slots)
        fresh: list[tuple[Dim, int]] = []

        def dim(d: Dim) -> int | bc.Heap:
            slot = next(slots)
            if slot < 0:
                assert d.value is not None
                return d.value
            fresh.append((d, slot))
            return bc.Heap(slot)

        pattern = self.pattern(target.annotation, dim)
        for d, slot in fresh:
            self.slots.setdefault(d, slot)
        symbols = tuple((str(d), slot) for d, slot in fresh)
        name, annotation = op.of or target.name, op.annotation or str(target.annotation)
        check = bc.Check(op.what, name, annotation, "", symbols)
        self.emit(bc.Match, self.value(target), pattern, self.add_check(check))

    def pattern(self, annotation: Annotation, dim: Callable[[Dim], int | bc.Heap]) -> bc.Pattern:
        """The pattern that values of this annotation match."""
        match annotation:
            case TensorType(ndim=ndim, dtype=dtype):
                shape = None if annotation.dims is None else tuple(map(dim, annotation.dims))
                return bc.TensorPattern(shape, ndim, str(dtype or ""), self.slot_of(annotation))
            case ShapeType(dims=dims, ndim=ndim):
                return bc.ShapePattern(None if dims is None else tuple(map(dim, dims)), ndim)
            case PrimType(dtype=dtype, value=value):
                return bc.PrimPattern(str(dtype), None if value is None else dim(value))
            case TupleType(fields=fields):
                return bc.TuplePattern(tuple(self.pattern(item, dim) for item in fields))
            case CallableType(params=params):
                return bc.CallablePattern(-1 if params is None else len(params))
            case DataType():
                return pattern_of(annotation)
            case _:
                return bc.ObjectPattern()

    def store(self, slot: int, value: Expr) -> None:
        dim = _dim(value)
        if dim.value is not None:
            self.heap[slot] = dim.value
        else:
            self.emit(bc.Eval, slot, self.int_expr(dim))
        self.slots.setdefault(dim, slot)

    def check(self, what: str, name: str, annotation: str, detail: str, dims: Iterable[Dim]) -> int:
        symbols: dict[str, int] = {}
        for dim in dims:
            for var in dim.vars:
                if var.dim in self.slots:
                    symbols[var.name] = self.slots[var.dim]
        return self.add_check(bc.Check(what, name, annotation, detail, tuple(symbols.items())))

    def add_check(self, check: bc.Check) -> int:
        self.checks.append(check)
        return len(self.checks) - 1

    def int_operand(self, dim: Dim) -> int | bc.Heap:
        if dim.value is not None:
            return dim.value
        return bc.Heap(self.slots[dim])

    def int_expr(self, dim: Dim) -> bc.IntExpr:
        """A dimension as a formula over the function's heap."""
        return int_expr(dim, self.slots)


def _given(arg: Expr) -> Annotation | Dim | None:
    """The part of an argument that a kernel's cost depends on."""
    if isinstance(arg, Var):
        return arg.annotation
    return arg.value if isinstance(arg, PrimValue) and isinstance(arg.value, Dim) else None


def call_costs(
    kernel: TensorProgram, args: Sequence[Annotation | Dim | None]
) -> tuple[Dim | None, ...]:
    """The kernel's work, floating-point operations and bytes at a call's dimensions; None where not known.

    Work is the number of scalar operations, or of bytes where those are certainly more: in the time of one operation of
    a vector a core moves about one byte for each of its lanes.
    """
    bound: dict[SymVar, Dim] = {}
    for param, arg in zip(kernel.params, args, strict=False):
        if isinstance(param, BufferParam):
            if isinstance(arg, Annotation):
                accepts(TensorType(param.shape, param.dtype), arg, bound)
        elif isinstance(arg, Dim):
            bound[param.var] = arg

    def here(cost: Dim | None) -> Dim | None:
        if cost is None or any(var not in bound for var in cost.vars):
            return None
        return cost.substitute(bound)

    work, moved = here(kernel.work), here(kernel.bytes_moved)
    if work is not None and moved is not None and surely_at_least(moved, work):
        work = moved
    return work, here(kernel.flops), moved


def _subject(value: Expr) -> str:
    """The name of the variable that an instruction without a result is about, for locations."""
    if isinstance(value, Call) and value.args and isinstance(value.args[0], Var):
        return value.args[0].name
    return ""


def _dim(expr: Expr) -> Dim:
    return expect(Dim, expect(PrimValue, expr).value)


def _dims_of(args: Iterable[Expr]) -> list[Dim]:
    return [_dim(arg) for arg in args]


def _ndim(shape: Expr) -> int:
    return len(expect(ShapeExpr, shape).dims)


def _intern(names: dict[str, int], name: str) -> int:
    return names.setdefault(name, len(names))


def _attr_args(op: Op) -> tuple[Expr, ...]:
    """The attributes of a runtime operator as arguments after its inputs. None becomes the empty tuple."""
    values = (getattr(op, name) for name in op.attr_names())
    return tuple(Tuple(()) if value is None else as_expr(value) for value in values)
