"""The rule for programs whose stages compute independent rows: one launch, a thread or a group of threads for each row
(`relaxpy.backend.gpu.schedule.row_plan`).

In a group, thread t computes elements t, t + T, t + 2T … of a part, where T is the number of threads. Each thread
reduces its elements of a row, then pairs of threads combine their totals in shared memory, half as many at each step;
the order does not depend on the device. Values of a whole row are in every thread's registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from relaxpy.backend.arrangement import Arrangement
from relaxpy.backend.gpu.schedule.group import launched, meet
from relaxpy.backend.gpu.schedule.row_plan import Part, RowPlan, plain_name, row_plan
from relaxpy.backend.gpu.target import GpuTarget
from relaxpy.tir.programs.loops import Program, at_least_one, constant, int64
from relaxpy.tir.recognise.stages import Stage, is_output, map_loads, substitute
from relaxpy.tir.tvm import tirx, tvm
from relaxpy.tir.types import Axis, Buffer, Expr


def arrange_rows(
    func: tirx.PrimFunc, target: GpuTarget, stages: Sequence[Stage] | None = None
) -> Arrangement | None:
    """The schedule of a program that has a plan of rows; None for others. `stages` are others of the same meaning than
    those of its text."""
    plan = row_plan(func, stages)
    if plan is None:
        return None
    return Arrangement(lambda: _Rows(func, plan, target).write(), plan.workspaces)


class _Rows:
    """Writes the launch of a plan."""

    def __init__(self, func: tirx.PrimFunc, plan: RowPlan, target: GpuTarget) -> None:
        self.func = func
        self.plan = plan
        self.threads = target.group_size if plan.is_shared else target.threads
        self.to = Program()
        self.group, self.thread = tirx.Var("group", "int64"), tirx.Var("thread", "int64")
        self.rows: list[Expr] = []
        """The number of the row that a thread computes, along each row axis."""
        self.registers: dict[Buffer, Buffer] = {}
        """Buffers of stages whose value is in a register."""
        self.totals: dict[str, Buffer] = {}
        """The shared memory for totals of each dtype, an element a thread."""
        self.unseen: set[Buffer] = set()
        """Buffers in memory that threads have written since they met."""
        self.in_memory = {
            stage.buffer
            for part in plan.parts
            for stage in part.stages
            if is_output(stage, func) or any(stage.buffer.same_as(w) for w in plan.workspaces)
        }

    def write(self) -> tirx.PrimFunc:
        """The function with its loops bound to threads."""
        count: Expr = int64(1)
        for extent in self.plan.rows:
            count = count * int64(extent)
        for buffer in self.plan.workspaces:
            self.to.add(tirx.AllocBuffer(buffer))
        if self.plan.is_shared:
            self.rows = self._places(self.plan.names, self.plan.rows, self.group)
            for part in self.plan.parts:
                self._shared_part(part)
            groups, threads = count, self.threads
        else:
            threads = self.threads if self.plan.rows else 1
            groups = tirx.floordiv(count + int64(threads - 1), int64(threads))
            element = self.to.let("element", self.group * int64(threads) + self.thread)
            with self.to.when(element < count):
                self.rows = self._places(self.plan.names, self.plan.rows, element)
                for part in self.plan.parts:
                    for stage in part.stages:
                        self._element(stage, (), is_kept=stage.buffer not in self.in_memory)
        grid, thread = (self.group, groups), (self.thread, threads)
        return launched(self.func, self.to.body(), grid, thread)

    def _places(self, names: Sequence[str], extents: Sequence[Expr], number: Expr) -> list[Expr]:
        """The number as an index of these extents, the last one fastest."""
        found: list[Expr] = []
        rest = number
        for name, extent in reversed([*zip(names, extents, strict=True)][1:]):
            divisor = at_least_one(
                int64(extent)
            )  # a compiler may divide before it knows that there is a row
            found.append(self.to.let(name, tirx.truncmod(rest, divisor)))
            rest = self.to.let("rest", tirx.truncdiv(rest, divisor))
        if extents:
            found.append(rest)
        return found[::-1]

    # Parts

    def _shared_part(self, part: Part) -> None:
        """A part by the threads of a group."""
        if any(load.source in self.unseen for stage in part.stages for load in stage.loads):
            self._meet()
        (first, *_) = part.stages
        if not part.inner:
            if first.reduce_axes:
                self._total(first)
            else:
                self._element(first, (), is_kept=True)
            if is_output(first, self.func):
                with self.to.when(tirx.EQ(self.thread, int64(0))):
                    self._store(
                        first, (), tirx.BufferLoad(self.registers[first.buffer], [int64(0)])
                    )
            return
        axes = list(map(plain_name, self.plan.inner_axes(first)))
        with self._elements(axes, part.inner) as places:
            for stage in part.stages:
                self._element(stage, places, is_kept=stage.buffer not in self.in_memory)
                if stage.buffer in self.in_memory:
                    self.unseen.add(stage.buffer)
        for stage in part.stages:
            self.registers.pop(stage.buffer, None)

    def _meet(self) -> None:
        """Wait for the other threads of the group, and see what they have written."""
        meet(self.to)
        self.unseen.clear()

    @contextmanager
    def _elements(self, names: Sequence[str], extents: Sequence[Expr]) -> Iterator[list[Expr]]:
        """A loop over the elements of a thread; gives their index of these extents."""
        count: Expr = int64(1)
        for extent in extents:
            count = count * int64(extent)
        known = constant(count)
        is_whole = known is not None and known % self.threads == 0
        steps = tirx.truncdiv(count + int64(self.threads - 1), int64(self.threads))
        with self.to.loop("step", steps) as step:
            name = names[0] if len(names) == 1 else "element"
            number = self.to.let(name, step * int64(self.threads) + self.thread)
            # Reads behind a condition wait for each other.
            with self.to.when(True if is_whole else number < count):
                yield self._places(names, extents, number)

    def _total(self, stage: Stage) -> None:
        """The reduction of a row: each thread its elements, then all together."""
        assert stage.combiner is not None
        join, dtype = stage.combiner.join, str(stage.buffer.dtype)
        own = self._register(f"{stage.buffer.name}_own", dtype)
        self._set(own, stage.combiner.neutral())
        with self._elements(
            list(map(plain_name, stage.reduce_axes)), stage.reduce_extents
        ) as places:
            values = dict(zip(stage.reduce_axes, places, strict=True))
            self._set(own, join(_get(own), self._value(stage, (), values)))
        shared = self.totals.get(dtype)
        if shared is None:
            shared = tirx.decl_buffer([int64(self.threads)], dtype, "totals", scope="shared")
            self.totals[dtype] = shared
            self.to.add(tirx.AllocBuffer(shared))
        self.to.add(tirx.BufferStore(shared, _get(own), [self.thread]))
        half = self.threads // 2
        while half:
            self._meet()
            with self.to.when(self.thread < int64(half)):
                mine, others = (
                    tirx.BufferLoad(shared, [at]) for at in (self.thread, self.thread + half)
                )
                self.to.add(tirx.BufferStore(shared, join(mine, others), [self.thread]))
            half //= 2
        self._meet()
        total = self._register(str(stage.buffer.name), dtype)
        self._set(total, join(stage.combiner.init, tirx.BufferLoad(shared, [int64(0)])))
        self._meet()  # before the memory is written again
        self.registers[stage.buffer] = total

    def _element(self, stage: Stage, places: Sequence[Expr], is_kept: bool) -> None:
        """One element of a stage by one thread, kept in a register or stored in memory."""
        if not stage.reduce_axes:
            value = self._value(stage, places, {})
            if not is_kept:
                self._store(stage, places, value)
                return
            register = self._register(str(stage.buffer.name), str(stage.buffer.dtype))
            self._set(register, value)
        else:
            assert stage.combiner is not None
            register = self._register(str(stage.buffer.name), str(stage.buffer.dtype))
            self._set(register, stage.combiner.init)
            self._reduced(stage, places, register, [], stage.reduce_axes)
            if not is_kept:
                self._store(stage, places, _get(register))
        self.registers[stage.buffer] = register

    def _reduced(
        self,
        stage: Stage,
        places: Sequence[Expr],
        register: Buffer,
        at: list[Expr],
        left: Sequence[Axis],
    ) -> None:
        """Loops over the reduced axes."""
        assert stage.combiner is not None
        if left:
            extent = stage.reduce_extents[len(at)]
            with self.to.loop(plain_name(left[0]), extent) as index:
                self._reduced(stage, places, register, [*at, index], left[1:])
            return
        values = dict(zip(stage.reduce_axes, at, strict=True))
        joined = stage.combiner.join(_get(register), self._value(stage, places, values))
        self._set(register, joined)

    # Values

    def _register(self, name: str, dtype: str) -> Buffer:
        buffer = tirx.decl_buffer([int64(1)], dtype, name, scope="local")
        self.to.add(tirx.AllocBuffer(buffer))
        return buffer

    def _set(self, register: Buffer, value: Expr) -> None:
        self.to.add(tirx.BufferStore(register, value, [int64(0)]))

    def _axes(self, stage: Stage, places: Sequence[Expr]) -> dict[Axis, Expr]:
        """The values of a stage's axes for this row, at this place in it."""
        inner = dict(zip(self.plan.inner_axes(stage), places, strict=True))
        return inner | {
            axis: self.rows[self.plan.row_of[axis]]
            for axis in stage.axes
            if axis in self.plan.row_of
        }

    def _value(self, stage: Stage, places: Sequence[Expr], reduced: Mapping[Axis, Expr]) -> Expr:
        """The value of a stage at a place."""

        def load(node: Any) -> Expr:
            register = self.registers.get(node.source)
            return node if register is None else _get(register)

        value = map_loads(stage.value, load)
        return substitute(value, {**self._axes(stage, places), **reduced})

    def _store(self, stage: Stage, places: Sequence[Expr], value: Expr) -> None:
        axes = self._axes(stage, places)
        indices = [
            axes.get(index, index) if isinstance(index, tvm.ir.Var) else index
            for index in stage.index
        ]
        self.to.add(tirx.BufferStore(stage.buffer, value, indices))


def _get(register: Buffer) -> Expr:
    return tirx.BufferLoad(register, [int64(0)])
