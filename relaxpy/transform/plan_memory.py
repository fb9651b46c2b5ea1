"""PlanMemory: tensors that do not outlive a call share storage."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import groupby
from typing import ClassVar

from relaxpy.analysis.live_ranges import Liveness, LiveRange, Path, liveness
from relaxpy.analysis.memory_layout import Block, lay_out
from relaxpy.ir.dim import Dim, dim_op
from relaxpy.ir.expr import (
    Binding,
    BindingBlock,
    Call,
    Function,
    If,
    MatchCast,
    PrimValue,
    SeqExpr,
    Var,
    VarBinding,
)
from relaxpy.ir.module import IRModule
from relaxpy.ir.names import FreshNames
from relaxpy.op.deduce import deduce
from relaxpy.op.memory import AllocStorage, AllocTensor
from relaxpy.shape.bounds import assumed, assuming, bounds_of, declared_bounds
from relaxpy.shape.interval import upper_bound
from relaxpy.shape.prove import prove
from relaxpy.shape.samples import SampledDims
from relaxpy.transform.base import Pass, PassContext


@dataclass(frozen=True)
class PlanMemory(Pass):
    """Let tensors with disjoint lifetimes share memory. This is algorithm 3 of the paper, with all lifetimes known
    beforehand instead of one operation after the other. A tensor that may leave the call (it is returned, captured, or
    passed to a callee that may keep it) keeps memory of its own (`relaxpy.analysis.live_ranges`).

    Tensors whose size has an upper bound (constants, or the bounds that `tir_var_upper_bound` declares for variables)
    are planned statically: all lie in one storage of known size, at constant offsets
    (`relaxpy.analysis.memory_layout`).

    Other tensors take turns in storages, each as large as its largest tensor. They are placed from the largest to the
    smallest, each into the smallest storage that is free during its lifetime and proved to be large enough for all
    values of the variables.

    Where n has no bound:

    Before:
        @I.ir_module
        class Module:
            @T.prim_func(private=True)
            def exp(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
                n = T.int64()
                for i in range(n):
                    with T.sblock("exp"):
                        vi = T.axis.spatial(n, i)
                        y[vi] = T.exp(x[vi])

            @R.function
            def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
                n = T.int64()
                cls = Module
                a = R.memory.alloc_tensor(R.shape([n]), dtype="float32")
                _a = R.vm.call_dps(cls.exp, x, a)
                b = R.memory.alloc_tensor(R.shape([n]), dtype="float32")
                _b = R.vm.call_dps(cls.exp, a, b)
                c = R.memory.alloc_tensor(R.shape([n]), dtype="float32")
                _c = R.vm.call_dps(cls.exp, b, c)
                d = R.memory.alloc_tensor(R.shape([n]), dtype="float32")
                _d = R.vm.call_dps(cls.exp, c, d)
                return d
    After:
        @I.ir_module
        class Module:
            @T.prim_func(private=True)
            def exp(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
                n = T.int64()
                for i in range(n):
                    with T.sblock("exp"):
                        vi = T.axis.spatial(n, i)
                        y[vi] = T.exp(x[vi])

            @R.function
            def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
                n = T.int64()
                cls = Module
                storage = R.memory.alloc_storage(R.prim_value(n * 4))
                a = R.memory.alloc_tensor(R.shape([n]), storage, dtype="float32")
                _a = R.vm.call_dps(cls.exp, x, a)
                storage1 = R.memory.alloc_storage(R.prim_value(n * 4))
                b = R.memory.alloc_tensor(R.shape([n]), storage1, dtype="float32")
                _b = R.vm.call_dps(cls.exp, a, b)
                c = R.memory.alloc_tensor(R.shape([n]), storage, dtype="float32")
                _c = R.vm.call_dps(cls.exp, b, c)
                d = R.memory.alloc_tensor(R.shape([n]), dtype="float32")
                _d = R.vm.call_dps(cls.exp, c, d)
                return d
    """

    name: ClassVar[str] = "plan-memory"
    level: ClassVar[int] = 3
    prerequisites: ClassVar[tuple[str, ...]] = ("lower-call-tir",)
    larger: bool = True
    """May a tensor use a storage that is proved to be larger? Otherwise only one of equal size."""
    static: bool = True
    """Lay out tensors of known maximal size in one storage?"""

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        live = liveness(mod)
        return mod.map_graph_functions(lambda name, f: self.plan(mod, f, live[name]))

    def plan(self, mod: IRModule, function: Function, live: Liveness) -> Function:
        """Return the function with its tensors placed in storages."""
        tensors = [r for r in live.ranges.values() if len(r.call.args) == 1 and not r.escapes]
        plan = _Plan(live)
        devices = dict.fromkeys(_device(tensor) for tensor in tensors)
        for device in devices:
            own = [tensor for tensor in tensors if _device(tensor) == device]
            if self.static and device is None:
                plan.lay_out(own, _largest_sizes(function, own))
            with assuming(bounds_of(function)):
                plan.share([r for r in own if r.var not in plan.places], self.larger)
        body = _Rewriter(mod, function, live, plan).seq(function.body)
        return function if body is function.body else dataclasses.replace(function, body=body)


def _device(tensor: LiveRange) -> str | None:
    """The virtual device of a tensor; None: the host, or no particular device."""
    device: str | None = getattr(tensor.call.op, "vdevice", None)
    return device


def _largest_sizes(function: Function, tensors: Sequence[LiveRange]) -> dict[Var, int]:
    """The maximal size in bytes of each tensor whose symbols all have declared bounds. One such as `min(n, 10**9)`, a
    slice to an end that no axis reaches, has a bound that says nothing of its size."""
    symbols = dict.fromkeys(symbol for tensor in tensors for symbol in tensor.size.vars)
    ranges = declared_bounds(function.attrs, symbols)
    bounded = {symbol for symbol, (_, high) in ranges.items() if high is not None}
    some = [tensor for tensor in tensors if bounded.issuperset(tensor.size.vars)]
    found = {tensor.var: upper_bound(tensor.size, ranges) for tensor in some}
    return {var: max(0, size) for var, size in found.items() if size is not None}


@dataclass(eq=False)
class _Storage:
    """Memory that tensors share, one after the other."""

    size: Dim
    device: str | None = None
    rank: tuple[int, int] = (0, 0)
    """Sort key of storages: the smallest first; of equal sizes, the oldest first."""
    whole: bool = False
    """Is it allocated once for the whole function, instead of at its first tensor?"""
    tensors: list[LiveRange] = field(default_factory=list[LiveRange])
    """Its tensors, in order of allocation."""
    home: Path = ()
    """The innermost branch arms that contain all its tensors."""
    var: Var | None = None
    """Its variable, once the allocation is emitted."""

    def in_use(self, position: int) -> LiveRange | None:
        """The tensor of this storage in use at a position."""
        at = bisect_right(self.tensors, position, key=lambda t: t.begin)
        return self.tensors[at - 1] if at and self.tensors[at - 1].end >= position else None

    def is_free(self, tensor: LiveRange) -> bool:
        """Does the lifetime of no tensor in it overlap this tensor's?"""
        at = self._place(tensor)
        before, after = self.tensors[max(0, at - 1) : at], self.tensors[at : at + 1]
        return all(t.end < tensor.begin for t in before) and all(
            tensor.end < t.begin for t in after
        )

    def take(self, tensor: LiveRange) -> None:
        """Place a tensor in this storage, which is free for it."""
        self.home = self.home_with(tensor)
        self.tensors.insert(self._place(tensor), tensor)

    def home_with(self, tensor: LiveRange) -> Path:
        """The value of `home` once this tensor is added."""
        return _common(self.home, tensor.path) if self.tensors else tensor.path

    def begin(self, tensor: LiveRange | None = None) -> int:
        """The position before which the storage is allocated if this tensor is added: that of its first tensor, or of
        the branch around it."""
        first = self.tensors[0] if self.tensors else tensor
        assert first is not None
        home = self.home
        if tensor is not None:
            home = self.home_with(tensor)
            first = min(first, tensor, key=lambda t: t.begin)
        return first.begin if len(first.path) == len(home) else first.path[len(home)] // 2

    def _place(self, tensor: LiveRange) -> int:
        return bisect_left(self.tensors, tensor.begin, key=lambda t: t.begin)


def _common(a: Path, b: Path) -> Path:
    """The common prefix of two paths."""
    count = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    return a[: min(len(a), len(b))] if count is None else a[:count]


@dataclass
class _Plan:
    """The assignment of tensors to storages and offsets."""

    live: Liveness
    places: dict[Var, tuple[_Storage, int]] = field(default_factory=dict[Var, tuple[_Storage, int]])

    def lay_out(self, tensors: Sequence[LiveRange], sizes: Mapping[Var, int]) -> None:
        """Place the tensors of known maximal size in one storage."""
        known = [tensor for tensor in tensors if tensor.var in sizes]
        if not known:
            return
        layout = lay_out([Block(sizes[t.var], t.begin, t.end) for t in known])
        storage = _Storage(Dim.of(layout.size), whole=True)
        for tensor, offset in zip(known, layout.offsets, strict=True):
            self.places[tensor.var] = storage, offset

    def share(self, tensors: Sequence[LiveRange], larger: bool) -> None:
        """Let tensors whose sizes are known only at run time take turns in storages."""
        sizes = list(dict.fromkeys(t.size for t in tensors))
        typical = {size: _typical(size) for size in sizes}
        order = sorted(tensors, key=lambda t: (-typical[t.size], t.begin))
        storages = _Storages(sizes, larger)
        for rank, alike in groupby(order, key=lambda t: typical[t.size]):
            turns: dict[Dim, _Turns] = {}
            for tensor in alike:
                place = self.first(tensor, storages, turns)
                if place is None:
                    place = storages.new(tensor.size, rank, _device(tensor))
                    turn = turns.setdefault(tensor.size, _Turns(()))
                else:
                    turn = turns[place.size]
                place.take(tensor)
                turn.use(place, tensor.end)
                self.places[tensor.var] = place, 0

    def first(
        self, tensor: LiveRange, storages: _Storages, turns: dict[Dim, _Turns]
    ) -> _Storage | None:
        """The smallest storage that the tensor may share, among those that are idle where it begins."""
        for size in storages.not_smaller(tensor.size):
            turn = turns.get(size)
            if turn is None:
                turn = turns[size] = _Turns(storages.of_size[size])
            found = turn.first(tensor.begin, partial(self.fits, tensor))
            if found is not None:
                return found
        return None

    def fits(self, tensor: LiveRange, storage: _Storage) -> bool:
        """May the tensor share a storage with the tensors in it?"""
        return storage.is_free(tensor) and self.is_known(storage, tensor)

    def is_known(self, storage: _Storage, tensor: LiveRange) -> bool:
        """Do the variables of the storage's size have values where it is allocated, if this tensor is added?"""
        home, begin = storage.home_with(tensor), storage.begin(tensor)
        for symbol in storage.size.vars:
            at, path = self.live.symbols.get(symbol, (-1, ()))
            if at >= begin or home[: len(path)] != path:
                return False
        return True


class _Storages:
    """All storages so far, by size."""

    def __init__(self, sizes: Sequence[Dim], larger: bool) -> None:
        """`sizes` are all sizes that will occur. With `larger`, a storage also serves sizes that are proved to be
        smaller.
        """
        self.of_size: dict[Dim, list[_Storage]] = {}
        self._larger = larger and len(sizes) > 1
        self._count = 0
        symbols = dict.fromkeys(symbol for size in sizes for symbol in size.vars)
        self._samples = SampledDims(symbols, assumed())
        self._sizes: list[Dim] = []
        """The keys of `of_size`, in the order of the samples."""
        self._serve: dict[Dim, tuple[int, list[Dim]]] = {}
        """Size → the number of sizes compared with it so far, and those among them that are at least as large."""

    def new(self, size: Dim, rank: int, device: str | None) -> _Storage:
        """Add another storage of this size."""
        storage = _Storage(size, device, (rank, self._count))
        self._count += 1
        if size not in self.of_size:
            self._sizes.append(size)
            if self._larger:
                self._samples.append(size)
        self.of_size.setdefault(size, []).append(storage)
        return storage

    def not_smaller(self, size: Dim) -> list[Dim]:
        """The sizes of storages proved to be at least this size for all values of the variables; the smallest first."""
        if not self._larger:
            return [size] if size in self.of_size else []
        seen, found = self._serve.get(size, (0, []))
        if seen < len(self._sizes):
            found = found + [
                other
                for at in self._samples.possibly_at_least(size)
                if at >= seen
                and ((other := self._sizes[at]) == size or prove(dim_op("le", size, other)))
            ]
            found.sort(key=lambda other: self.of_size[other][0].rank)
            self._serve[size] = len(self._sizes), found
        return found


class _Turns:
    """Storages of one size, for tensors visited in order of allocation. Storages in use are skipped until they become
    free."""

    def __init__(self, storages: Iterable[_Storage]) -> None:
        self.idle = sorted(storages, key=lambda s: s.rank)
        """Storages that may be free, by rank."""
        self.busy: list[tuple[int, tuple[int, int], _Storage]] = []
        """The other storages, as a heap by the last position of their use."""

    def first(self, begin: int, fits: Callable[[_Storage], bool]) -> _Storage | None:
        """The first storage that is free at this position and fits."""
        while self.busy and self.busy[0][0] < begin:
            insort(self.idle, heappop(self.busy)[-1], key=lambda s: s.rank)
        at = 0
        while at < len(self.idle):
            storage = self.idle[at]
            user = storage.in_use(begin)
            if user is not None:
                self.use(self.idle.pop(at), user.end)
            elif fits(storage):
                return self.idle.pop(at)
            else:
                at += 1
        return None

    def use(self, storage: _Storage, end: int) -> None:
        """Skip a storage up to this position."""
        heappush(self.busy, (end, storage.rank, storage))


TYPICAL = 64
"""The value of every dimension when sizes are sorted. A size that is proved to be larger than another comes first."""


def _typical(size: Dim) -> int:
    try:
        return size.evaluate(dict.fromkeys(size.vars, TYPICAL))
    except ZeroDivisionError:
        return 0


class _Rewriter:
    """Writes the storages into the function."""

    def __init__(self, mod: IRModule, function: Function, live: Liveness, plan: _Plan) -> None:
        self.mod = mod
        self.live = live
        self.plan = plan
        self.names = FreshNames(param.name for param in function.params)
        self.at = 0
        storages = dict.fromkeys(storage for storage, _ in plan.places.values())
        self.waiting: dict[int, list[_Storage]] = {}
        """Storages by the position before which they are allocated."""
        for storage in storages:
            self.waiting.setdefault(1 if storage.whole else storage.begin(), []).append(storage)

    def seq(self, seq: SeqExpr) -> SeqExpr:
        out: list[Binding] = []
        changed = False
        for binding in seq.bindings:
            self.at += 1
            for storage in self.waiting.pop(self.at, ()):
                out.append(self.allocate(storage, binding))
            new = self.binding(binding)
            changed |= new is not binding
            out.append(new)
        self.at += 1
        if not changed:
            return seq
        return SeqExpr((BindingBlock(tuple(out)),), seq.body, span=seq.span)

    def binding(self, binding: Binding) -> Binding:
        value = binding.value
        if isinstance(binding, MatchCast):
            return binding
        match value:
            case Call(op=AllocTensor() as op):
                return self.tensor(binding, value, op)
            case If():
                then, other = self.seq(value.then), self.seq(value.otherwise)
                self.at += 1
                if then is value.then and other is value.otherwise:
                    return binding
                return VarBinding(
                    binding.var, If(value.cond, then, other, span=value.span), span=binding.span
                )
            case _:
                return binding

    def tensor(self, binding: VarBinding, value: Call, op: AllocTensor) -> VarBinding:
        place = self.plan.places.get(binding.var)
        if place is not None:
            storage, offset = place
            assert storage.var is not None
            args = (value.args[0], storage.var)
            new = dataclasses.replace(value, op=dataclasses.replace(op, offset=offset), args=args)
            return VarBinding(binding.var, new, span=binding.span)
        planned = len(value.args) == 2
        if planned and self.live.ranges[binding.var].escapes:
            # The program came with a memory plan of its own (TVM's). A tensor that leaves the call is not planned
            # storage.
            own = dataclasses.replace(
                value, op=dataclasses.replace(op, offset=0), args=value.args[:1]
            )
            return VarBinding(binding.var, own, span=binding.span)
        return binding

    def allocate(self, storage: _Storage, at: Binding) -> VarBinding:
        call = AllocStorage(vdevice=storage.device)(PrimValue(storage.size))
        storage.var = Var(self.names.fresh("storage"), deduce(call, self.mod))
        return VarBinding(storage.var, call, span=at.span)
