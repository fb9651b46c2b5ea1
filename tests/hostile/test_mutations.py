"""What the hostile device is good for: each copy, wait and check that is taken out of the runtime or out of placement makes
one of the tests here fail.

A mutation is a piece of a function's source and what it is replaced by. The tests that must pass without it are run
until one fails.
"""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import relaxpy
import relaxpy.testing.random_libraries
from relaxpy.backend import place_values
from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime import frame, patterns, program, updates
from relaxpy.runtime.bytecode import Const, Copy, IntOp, Kernel, Reg, Return
from relaxpy.runtime.devices import aliasing, dlpack, emit, tensor
from relaxpy.runtime.devices import queue as queues
from relaxpy.runtime.devices.cpu import device as cpu
from relaxpy.transform import plan_memory
from tests.hostile import test_device as device
from tests.hostile import test_exchange as exchange
from tests.hostile import test_queues as several
from tests.hostile.backend import hostile_targets
from tests.hostile.device import fail, set_policy
from tests.hostile.test_device import INCREASE, N, add, alloc, machine, main_of
from tests.hostile.test_programs import f32, numbers
from tests.runtime.support import floats
from tests.sweeps import full, part, sweep

POLICIES = ("lazy", "others", 1)


@pytest.fixture(autouse=True)
def devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with hostile_targets(monkeypatch):
        yield


@dataclass(frozen=True)
class Mutation:
    """A piece of a function that is replaced."""

    owner: Any
    """The class or module that has it."""
    name: str
    old: str
    new: str = "pass"
    used_by: Any = None
    """Another module that has it by name."""
    builds: bool = False
    """It changes what is built."""

    def __str__(self) -> str:
        where = getattr(self.owner, "__name__", "").rpartition(".")[2]
        return f"{where}.{self.name}: {self.old[:40]}"

    @contextmanager
    def applied(self) -> Iterator[None]:
        function = vars(self.owner)[self.name]
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(self.old) == 1, f"{self}: {source.count(self.old)} times in\n{source}"
        module = inspect.getmodule(function)
        assert module is not None
        names: dict[str, Any] = {}
        flags = __future__.annotations.compiler_flag
        source = source.replace(self.old, self.new)
        source = source.replace("super()", f"super({self.owner.__name__}, self)")
        code = compile(source, f"<{self}>", "exec", flags)
        exec(code, vars(module), names)
        owners = [self.owner, *([] if self.used_by is None else [self.used_by])]
        kept = [(owner, vars(owner)[self.name]) for owner in owners]
        try:
            for owner in owners:
                setattr(owner, self.name, names[self.name])
            yield
        finally:
            for owner, old in kept:
                setattr(owner, self.name, old)


QUEUE, PLACER = queues.Queue, place_values._Placer
MUTATIONS = [
    # waits
    Mutation(QUEUE, "behind", "if other is not self:", "if False:"),
    Mutation(QUEUE, "_is_free_again", "self.behind(users)"),
    Mutation(QUEUE, "take", "self.behind({value.queue, value.buffer.queue, *value.buffer.users})"),
    Mutation(QUEUE, "take", "value.queue.behind({self})"),
    Mutation(QUEUE, "enter", "self.behind({value.queue, value.buffer.queue, *value.buffer.users})"),
    Mutation(QUEUE, "seen", "value.buffer.users |= {self, value.queue}"),
    Mutation(QUEUE, "seen", "{self, value.queue}", "{value.queue}"),
    Mutation(QUEUE, "download", "self.behind({tensor.queue, tensor.buffer.queue, *tensor.buffer.users})"),
    Mutation(QUEUE, "settle", "queue._ask_for_errors()"),
    Mutation(QUEUE, "settle", "reached.append(source)"),
    Mutation(QUEUE, "settle", "queue._failed(source._untold or source._last)"),
    Mutation(QUEUE, "_tell", "message or self._failures > failures", "message"),
    Mutation(QUEUE, "_forget", "self._awaited.get(source) is awaited", "source in self._awaited"),
    Mutation(QUEUE, "behind", "failures if before is None else before.failures", "failures"),
    Mutation(program.Program, "constants_on", "queue.behind({tensor.queue for tensor in found})"),
    Mutation(dlpack, "lend", "queue.behind({tensor.buffer.queue, *tensor.buffer.users})"),
    Mutation(dlpack, "lend", "taker.behind({queue})"),
    Mutation(dlpack, "lend", "tensor.buffer.users |= {taker, queue}"),
    Mutation(dlpack, "borrow", "stream = runtime.stream(queue.raw)", "stream = None"),
    Mutation(QUEUE, "borrowed", "self._returned.append", "len"),
    Mutation(QUEUE, "_ask_for_errors", "self.behind(returned[-1][1])"),
    Mutation(tensor.DeviceTensor, "__dlpack__", "self.copy() if copy or not self.writable else self", "self"),
    Mutation(queues.Buffer, "__init__", "= piece[2].users", "= set()"),
    Mutation(program.BoundProgram, "launched", "self.queues[info.slot].synchronise()"),
    # copies
    Mutation(QUEUE, "copy", "if tensor.nbytes:", "if False:"),
    Mutation(QUEUE, "upload", "if tensor.nbytes:", "if False:"),
    Mutation(QUEUE, "download", "if tensor.nbytes:", "if False:"),
    Mutation(QUEUE, "take", "copied = self.copy(value)", "copied = value"),
    Mutation(QUEUE, "enter", "return self.upload(value.to_host())", "return value"),
    Mutation(cpu.HostQueue, "take", "return value.to_host()", "return value"),
    Mutation(emit.DeviceLines, "copy", "copy_to{self.slot}(r{src})", "r{src}"),
    Mutation(patterns, "_leave", "copies[id(value)] = value.copy()", "copies[id(value)] = value"),
    Mutation(QUEUE, "upload", "made.constant = constant"),
    Mutation(program.Program, "constants_on", "queue.upload(self.constants[index], constant=True)", "self.constants[index]"),
    Mutation(program.Program, "constants_on", "queue.seen(tensor)", "tensor"),
    Mutation(program.BoundProgram, "own", "return self.closure(mine.translation.index, tuple(captured))", "return value"),
    Mutation(frame.Frame, "__init__", "allocators[slot] for", "allocators[0] for"),
    # checks that memory is not shared
    Mutation(aliasing, "apart", "given[position] = queue.copy(args[position])", used_by=program),
    Mutation(aliasing, "apart", "outputs[0] if outputs else positions[0]", "positions[0]", program),
    Mutation(program.BoundProgram, "_launchers", "apart(launcher, info, queue) if distinct else launcher", "launcher"),
    Mutation(program.Program, "_require_offsets", "if instr.offset % runtime.offset_alignment:", "if False:"),
    Mutation(updates, "require_apart", "(pieces, *elsewhere.values())", "(pieces,)"),
    Mutation(updates, "require_updatable", "isinstance(owner, Fixed) and not owner.read_only", "False"),
    # placement
    Mutation(PLACER, "moved", "isinstance(have, Place) and self.differs(have, wanted)", "False", builds=True),
    Mutation(PLACER, "condition", "self.differs(self.places.of(cond), HOST)", "False", builds=True),
    Mutation(PLACER, "arm", "self.brought(seq.body, wanted)", "self.use(seq.body)", builds=True),
    Mutation(PLACER, "arm", "BindingBlock(added),", "", builds=True),
    Mutation(PLACER, "given", "self.brought(arg, tree) for", "self.use(arg) for", builds=True),
    Mutation(PLACER, "callee", "self.owners.setdefault(name, slot) == slot", "True", builds=True),
    Mutation(PLACER, "binding", "value = self.brought(binding.value, tree)", "value = self.use(binding.value)", builds=True),
    Mutation(PLACER, "call", "call, [callee, self.brought(args[1], device), *args[2:]], device", "call, [callee, self.use(args[1]), *args[2:]], device", builds=True),
    Mutation(plan_memory, "_device", "return device", "return None", builds=True),
]  # fmt: skip


# What must fail


def _bump(params: int = 1) -> relaxpy.VirtualMachine:
    """A function that adds 1 to its first argument in place."""
    code = main_of([Kernel(0, INCREASE, (Reg(0),), N), Return(0, 0)], params=params)
    first, *others = code.params
    return machine(replace(code, params=(replace(first, updated=True), *others)))


def _constants_leave_as_copies() -> None:
    x = f32(100)
    vm = machine(main_of([Const(0, 1, 0, 1), Return(0, 1)]), constants=(x,))
    bump = _bump()
    changed = bump(vm(floats(1)))
    np.testing.assert_array_equal(changed.numpy(), x + 1)
    np.testing.assert_array_equal(vm(floats(1)).numpy(), x)


def _updates_are_seen_and_not_shared() -> None:
    vm = _bump()
    x = vm.upload(f32(100))
    before = x.numpy()
    vm(x)
    np.testing.assert_array_equal(x.numpy(), before + 1)
    with pytest.raises(RuntimeCheckError, match="update would be lost"):
        vm(before)
    two = _bump(2)
    with pytest.raises(RuntimeCheckError, match="share memory"):
        two(x, x)


def _errors_of_all_queues_come_before_numbers() -> None:
    first, second = machine(main_of(device.CHAIN)), machine(main_of(device.CHAIN))
    value = first(f32(50))
    fail(value.queue, "the sky fell")
    result = second(value)
    with pytest.raises(RuntimeCheckError, match="the sky fell"):
        _ = result.numpy(), value.numpy()


def _errors_of_a_buffer_come_before_numbers() -> None:
    """What another machine made of a tensor is not told to be right while the tensor's own queue has failed."""
    first, second = machine(main_of(device.CHAIN)), machine(main_of([Return(0, 0)]))
    value = second(first(f32(50)))
    fail(value.buffer.queue, "the sky fell")
    with pytest.raises(RuntimeCheckError, match="the sky fell"):
        value.numpy()


def _errors_of_distant_queues_come_before_numbers() -> None:
    """What a result was made of by way of others has failed, too."""
    first, second, third = (machine(main_of(device.CHAIN)) for _ in range(3))
    value = first(f32(50))
    fail(value.queue, "the sky fell")
    result = third(second(value))
    with pytest.raises(RuntimeCheckError, match="the sky fell"):
        result.numpy()


def _a_tensor_is_read_where_another_machine_uses_it() -> None:
    """The numbers of a tensor come behind what another machine does with its memory."""
    first = machine(main_of(device.CHAIN))
    bump = _bump()
    for _ in range(3):
        value = first(f32(50))
        bump(value)
        np.testing.assert_array_equal(value.numpy(), 3 * f32(50) + 1)
        again = bump(bump(value))
        np.testing.assert_array_equal(again.numpy(), 3 * f32(50) + 3)
        again.queue.synchronise()


def _a_result_of_another_device_is_taken() -> None:
    slots = (device.HOST_SLOT, device.Slot("there", "hostile", 1))
    far = machine(main_of(device.CHAIN), slots=slots)
    near = machine(main_of(device.CHAIN))
    np.testing.assert_array_equal(near(far(f32(20))).numpy(), 3 * (3 * f32(20)))


def _results_are_copied_to_the_host() -> None:
    body = [alloc(1), add(0, 0, 1), Copy(0, 2, 1, 0), Return(0, 2)]
    found = machine(main_of(body))(f32(20))
    assert found.device.kind == "cpu"
    np.testing.assert_array_equal(found.numpy(), 2 * f32(20))


def _storages_are_of_their_slots() -> None:
    size = IntOp("mul", (N, 4))
    body = [alloc(1, 0), add(0, 0, 1), alloc(2), add(1, 1, 2), Return(0, 2)]
    vm = machine(main_of(body, storages=[size]))
    np.testing.assert_array_equal(vm(f32(300)).numpy(), 4 * f32(300))


def _memory_is_used_again_in_order() -> None:
    """What another machine still reads is not written to, though nobody refers to it."""
    first, second = machine(main_of(device.CHAIN)), machine(main_of(device.CHAIN))
    for _ in range(4):
        value = second(first(f32(3000)))
    first(f32(3000))
    np.testing.assert_array_equal(value.numpy(), 3 * (3 * f32(3000)))
    first.synchronise()
    second.synchronise()


def _copies_between_slots_are_ordered() -> None:
    slots = (device.HOST_SLOT, device.Slot("there", "hostile"), device.Slot("beside", "hostile"))
    body = [
        alloc(1), add(0, 0, 1), Copy(0, 2, 1, 2), Kernel(0, INCREASE, (Reg(1),), N), Copy(0, 3, 2, 1), alloc(4),
        add(3, 1, 4), Return(0, 4),
    ]  # fmt: skip
    vm = machine(main_of(body), slots=slots)
    for _ in range(3):
        np.testing.assert_allclose(vm(f32(3000)).numpy(), 4 * f32(3000) + 1, rtol=1e-4)
    vm.synchronise()


RUNNING: list[Callable[[], None]] = [
    _constants_leave_as_copies,
    _updates_are_seen_and_not_shared,
    _errors_of_all_queues_come_before_numbers,
    _errors_of_a_buffer_come_before_numbers,
    _errors_of_distant_queues_come_before_numbers,
    _a_tensor_is_read_where_another_machine_uses_it,
    _a_result_of_another_device_is_taken,
    _results_are_copied_to_the_host,
    _storages_are_of_their_slots,
    _memory_is_used_again_in_order,
    _copies_between_slots_are_ordered,
    device.test_an_error_is_told_when_the_queue_is_synchronised,
    device.test_a_machine_that_checks_memory_says_which_kernel_failed,
    device.test_offsets_that_the_device_does_not_take_are_refused_before_anything_runs,
    device.test_a_buffer_that_is_bound_twice_is_copied,
    device.test_copies_between_devices,
    *several.TESTS,
    *exchange.TESTS,
]

MIXED = """
@I.ir_module
class Module:
    I.module_global_infos({"vdevice": [I.vdevice("llvm", 0), I.vdevice("hostile", 0), I.vdevice("hostile", 1)]})

    @T.prim_func
    def bump(x: T.Buffer(("n", 8), "float32"), y: T.Buffer(("n", 8), "float32")):
        n = T.int64()
        for i, j in T.grid(n, 8):
            with T.sblock("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = x[vi, vj] + T.float32(1)

    @R.function(private=True)
    def loop(k: R.Tensor((), "int64"), x: R.Tensor(("n", 8), "float32", "hostile:1")) -> R.Tensor(("n", 8), "float32", "hostile:1"):
        n = T.int64()
        cls = Module
        done = R.less_equal(k, R.const(0, "int64"))
        if done:
            out = R.call_tir(cls.bump, (x,), out_ty=R.Tensor((n, 8), "float32"))
        else:
            out = cls.loop(R.subtract(k, R.const(1, "int64")), R.exp(R.negative(x)))
        return out

    @R.function(private=True)
    def pair(x: R.Tensor(("n", 8), "float32"), k: R.Tensor((), "int64")) -> R.Tuple(
            R.Tensor(("n", 8), "float32", "hostile:1"), R.Tensor(("n", 8), "float32")):
        done = R.less_equal(k, R.const(0, "int64"))
        if done:
            p = (x, x)
        else:
            p = Module.pair(R.tanh(x), R.subtract(k, R.const(1, "int64")))
        return p

    @R.function
    def main(x: R.Tensor(("n", 8), "float32"), c: R.Tensor((), "bool"), k: R.Tensor((), "int64")):
        n = T.int64()
        cls = Module
        a = R.call_tir(cls.bump, (x,), out_ty=R.Tensor((n, 8), "float32"))
        b = cls.loop(k, a)
        if c:
            e = R.nn.relu(R.negative(a))
        else:
            e = b
        u = R.unique(R.flatten(e))
        m = T.int64()
        v = R.match_cast(u, R.Tensor((m,), "float32"))
        s = R.sum(R.exp(R.negative(R.exp(v))))
        p = cls.pair(x, k)
        q = R.add(R.to_vdevice(p[0], "hostile:0"), p[1])
        return (R.add(e, s), q, R.add(R.to_vdevice(R.tanh(b), "hostile:0"), a))
"""
"""Every way in which a tensor comes to be needed on another device."""


def _placed(policy: str | int) -> None:
    exe = relaxpy.build(relaxpy.parse(MIXED), "hostile", cache=False)
    vm = relaxpy.VirtualMachine(exe)
    set_policy(policy)
    for truth, turns in ((True, 0), (False, 2)):
        x = f32(5, 8)
        a = x + 1
        b, t = a, x
        for _ in range(turns):
            b, t = np.exp(-b), np.tanh(t)
        b = b + 1
        e = np.maximum(-a, 0) if truth else b
        s = np.exp(-np.exp(np.unique(e))).sum()
        got = numbers(vm(x, np.array(truth), np.array(turns)))
        for one, other in zip(got, (e + s, 2 * t, np.tanh(b) + a), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


EXPLICIT = """
@I.ir_module
class Module:
    I.module_global_infos({"vdevice": [I.vdevice("llvm", 0), I.vdevice("hostile", 0), I.vdevice("hostile", 1)]})

    @T.prim_func
    def bump(x: T.Buffer(("n", 8), "float32"), y: T.Buffer(("n", 8), "float32")):
        n = T.int64()
        for i, j in T.grid(n, 8):
            with T.sblock("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = x[vi, vj] + T.float32(1)

    @R.function
    def third(x: R.Tensor(("n", 8), "float32", "hostile:1")) -> R.Tensor(("n", 8), "float32", "llvm:0"):
        n = T.int64()
        cls = Module
        y = R.call_tir(cls.bump, (x,), out_ty=R.Tensor((n, 8), "float32"))
        return y

    @R.function
    def halved(x: R.Tensor(("n", 8), "float32")) -> R.Tensor(("n", 8), "float32", "hostile:1"):
        n = T.int64()
        y = R.call_dps_library("relaxpy.testing.halved", (x,), out_ty=R.Tensor((n, 8), "float32"))
        return y

    @R.function
    def main(there: R.Tensor(("n", 8), "float32", "hostile:0"), here: R.Tensor(("n", 8), "float32", "llvm:0"),
            free: R.Tensor(("n", 8), "float32"), c: R.Tensor((), "bool")) -> R.Tuple(
            R.Tensor(("n", 8), "float32", "hostile:0"), R.Tensor(("n", 8), "float32", "llvm:0"),
            R.Tensor(("n", 8), "float32", "hostile:1"), R.Tensor(("n", 8), "float32", "hostile:1")):
        n = T.int64()
        cls = Module
        half = R.call_dps_library("relaxpy.testing.halved", (free,), out_ty=R.Tensor((n, 8), "float32"))
        if c:
            e = R.to_vdevice(free, "hostile:0")
        else:
            e = half
        f = R.call_tir(cls.bump, (e,), out_ty=R.Tensor((n, 8), "float32"))
        g = R.call_tir(cls.bump, (here,), out_ty=R.Tensor((n, 8), "float32"))
        h = R.call_tir(cls.bump, (g,), out_ty=R.Tensor((n, 8), "float32"))
        a = cls.third(h)
        i = R.call_tir(cls.bump, (half,), out_ty=R.Tensor((n, 8), "float32", "hostile:1"))
        return (f, a, half, i)
"""
"""Values say where they live: arms, arguments and results are on another device than where they are wanted."""


def _placed_explicitly() -> None:
    exe = relaxpy.build(relaxpy.parse(EXPLICIT), "llvm", cache=False)
    vm = relaxpy.VirtualMachine(exe)
    x, y, z = f32(5, 8), f32(5, 8) + 3, f32(5, 8) - 7
    for truth in (True, False):
        found = vm["main"](x, y, z, np.array(truth))
        places = [(value.device.kind, value.device.index) for value in found]
        assert places == [("hostile", 0), ("cpu", 0), ("hostile", 1), ("hostile", 1)], places
        wanted = ((z if truth else z / 2) + 1, y + 3, z / 2, z / 2 + 1)
        for one, other in zip(numbers(found), wanted, strict=True):
            np.testing.assert_array_equal(one, other)
    half = vm["halved"](z)
    assert (half.device.kind, half.device.index) == ("hostile", 1)
    np.testing.assert_array_equal(half.numpy(), z / 2)
    assert len(exe.kernels) == 3, [kernel.name for kernel in exe.kernels]


def failures(mutation: Mutation | None) -> str:
    """The first test that fails, and how; "" if none does."""
    tests: list[Callable[[], None]] = []
    for policy in POLICIES[:1] if mutation is not None and mutation.builds else POLICIES:
        if mutation is None or not mutation.builds:
            tests += [
                lambda policy=policy, test=test: (set_policy(policy), test()) for test in RUNNING
            ]
        if mutation is None or mutation.builds:
            tests += [lambda policy=policy: _placed(policy), _placed_explicitly]
    for test in tests:
        try:
            test()
        except (Exception, pytest.fail.Exception) as error:
            return f"{type(error).__name__}: {str(error)[:300]}"
    return ""


@full
def test_the_tests_pass_as_it_is() -> None:
    assert failures(None) == ""


def test_there_are_enough() -> None:
    assert len(MUTATIONS) >= 30


@sweep
@pytest.mark.slow
@pytest.mark.parametrize("mutation", part(MUTATIONS, 4), ids=str)
def test_what_is_taken_out_is_missed(mutation: Mutation) -> None:
    device.kernels()  # built as it is
    with mutation.applied():
        found = failures(mutation)
    assert found, "nothing fails"
