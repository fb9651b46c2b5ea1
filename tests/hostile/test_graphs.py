"""Graphs on the hostile device: what is recorded, replayed and dropped, and the same numbers as without."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.build.pipeline import default_pipeline
from relaxpy.errors import RuntimeCheckError
from relaxpy.ir.expr import Function
from relaxpy.models.llama import TINY, Llama, step_spec
from relaxpy.runtime import VirtualMachine, graphs
from relaxpy.runtime.bytecode import Call, Graph, Instr, IntOp, Kernel, Reg, Return, View
from relaxpy.runtime.devices.base import DeviceError
from relaxpy.serve import PageBook
from tests.hostile.backend import hostile_targets
from tests.hostile.device import HostileRuntime, failing_allocations, set_policy
from tests.hostile.test_device import INCREASE, N, add, alloc, kernels, machine, main_of

SIZE = IntOp("mul", (N, 4))
POLICIES = ("lazy", "others", 1)


@pytest.fixture(autouse=True)
def devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(graphs, "LAUNCHES_PER_COPY", 2)  # graphs are small here
    with hostile_targets(monkeypatch):
        yield


def graph(*body: Instr) -> list[Instr]:
    return [Graph(0, len(body), 1), *body]


SEVEN = [
    alloc(5),
    *graph(
        alloc(2, 0), add(0, 1, 2), alloc(3, 1), add(2, 0, 3), alloc(4, 0), add(3, 1, 4), add(4, 3, 5)
    ),
    Return(0, 5),
]  # fmt: skip
"""4 x + 3 y, over two storages of the frame."""


def seven(**fields: Any) -> VirtualMachine:
    return machine(main_of(SEVEN, 2, storages=[SIZE, SIZE]), **fields)


def ramp(n: int, first: int = 0) -> np.ndarray:
    return np.arange(first, first + n, dtype=np.float32)


def check(vm: VirtualMachine, n: int, first: int = 0) -> None:
    """A call with arrays, which are uploaded to any place."""
    got = vm(ramp(n, first), ramp(n, 3)).numpy()
    np.testing.assert_array_equal(got, 4 * ramp(n, first) + 3 * ramp(n, 3))


class Still:
    """Calls whose arguments stay where they are, and whose results are gone before the next."""

    def __init__(self, vm: VirtualMachine) -> None:
        self.vm = vm
        self.args: dict[int, tuple[Any, Any]] = {}

    def __call__(self, n: int) -> None:
        if n not in self.args:
            self.args[n] = self.vm.upload(ramp(n)), self.vm.upload(ramp(n, 3))
        wanted = 4 * ramp(n) + 3 * ramp(n, 3)
        np.testing.assert_array_equal(self.vm(*self.args[n]).numpy(), wanted)


def use(vm: VirtualMachine) -> dict[str, int]:
    """The counts that are not zero."""
    found = {each.name: getattr(vm.graphs, each.name) for each in fields(graphs.GraphUse)}
    return {name: count for name, count in found.items() if count}


@pytest.mark.parametrize("policy", POLICIES)
def test_the_second_call_replays(policy: str | int) -> None:
    set_policy(policy)
    vm = seven()
    call = Still(vm)
    for _ in range(5):
        call(300)
    assert use(vm) == {"recordings": 1, "replays": 4, "kept": 1}


def test_other_sizes_are_other_graphs() -> None:
    vm = seven()
    call = Still(vm)
    for _ in range(3):
        for n in (3000, 1000, 0, 300):  # the first is the largest: the storage does not grow
            call(n)
    assert use(vm) == {"recordings": 4, "replays": 8, "kept": 4}


def test_growth_drops_graphs() -> None:
    vm = seven()
    call = Still(vm)
    for n in (300, 300, 5000, 300, 300):
        call(n)
    assert vm.graphs.dropped == 1
    for _ in range(3):
        call(300)
    assert vm.graphs.replays >= 3


def test_results_that_are_kept_do_not_change() -> None:
    vm = seven()
    x, y = vm.upload(ramp(50)), vm.upload(ramp(50))
    kept = [vm(x, y) for _ in range(6)]
    others = [vm(vm.upload(ramp(50, turn)), y) for turn in range(6)]
    assert vm.graphs.replays
    for result in kept:
        np.testing.assert_array_equal(result.numpy(), 7 * ramp(50))
    for turn, result in enumerate(others):
        np.testing.assert_array_equal(result.numpy(), 4 * ramp(50, turn) + 3 * ramp(50))


def test_graphs_are_freed_with_their_frames() -> None:
    vm = seven()
    check(vm, 3)
    process = HostileRuntime.processes[0]
    vm.release_memory()
    gc.collect()
    assert use(vm) == {}
    assert any(name == "forget" for name, *_ in process._later)
    check(vm, 3)


# Tensors that move


def test_results_that_are_kept_get_a_fixed_place() -> None:
    """The second call finds the first one's result in its way, and that is the last recording but one."""
    vm = seven()
    x, y = vm.upload(ramp(50)), vm.upload(ramp(50))
    kept = [vm(x, y) for _ in range(20)]
    assert use(vm) == {"recordings": 2, "plain": 1, "replays": 17, "moved": 1, "kept": 2}
    for result in kept:
        np.testing.assert_array_equal(result.numpy(), 7 * ramp(50))


def test_arguments_that_move_get_a_fixed_place() -> None:
    vm = seven()
    y = vm.upload(ramp(50))
    xs = [vm.upload(ramp(50, turn)) for turn in range(20)]
    for turn, x in enumerate(xs):
        np.testing.assert_array_equal(vm(x, y).numpy(), 4 * ramp(50, turn) + 3 * ramp(50))
    assert use(vm) == {"recordings": 2, "plain": 1, "replays": 17, "moved": 1, "kept": 2}
    for turn, x in enumerate(xs):
        np.testing.assert_array_equal(x.numpy(), ramp(50, turn))


def test_fixed_places_grow() -> None:
    vm = seven()
    kept: list[Any] = []
    y = {n: vm.upload(ramp(n)) for n in (0, 10, 4000, 5000)}
    for n in (5000, 10, 10, 10, 4000, 4000, 10, 0, 0):  # the storage does not grow
        x = vm.upload(ramp(n, n))
        kept += [x, vm(x, y[n])]
        np.testing.assert_array_equal(kept[-1].numpy(), 4 * ramp(n, n) + 3 * ramp(n))
    assert vm.graphs.moved == 2
    assert vm.graphs.dropped >= 1


def test_large_tensors_do_not_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that keeps all results does not record for ever."""
    monkeypatch.setattr(graphs, "MOST_MOVED", 50 * 4 - 1)
    vm = seven()
    x, y = vm.upload(ramp(50)), vm.upload(ramp(50))
    kept = [vm(x, y) for _ in range(40)]
    most = graphs.PATIENCE
    assert use(vm) == {"recordings": most, "plain": 40 - most, "kept": most}
    del kept
    vm.queues["there"].pool.release()
    for _ in range(3):  # from here on the result's memory comes again
        np.testing.assert_array_equal(vm(x, y).numpy(), 7 * ramp(50))
    assert vm.graphs.replays >= 1


def test_a_fixed_place_without_memory() -> None:
    """The tensors stay where they are."""
    vm = seven()
    x, y = vm.upload(ramp(50)), vm.upload(ramp(50))
    kept = [vm(x, y) for _ in range(2)]
    before = HostileRuntime.allocations
    free = vm.queues["there"].empty((50,), "float32")  # for the result
    assert HostileRuntime.allocations == before + 1
    del free
    with failing_allocations(*range(9)):
        kept.append(vm(x, y))
    kept += [vm(x, y) for _ in range(3)]
    for result in kept:
        np.testing.assert_array_equal(result.numpy(), 7 * ramp(50))


def test_the_graph_of_the_longest_unused_key_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST", 3)
    vm = seven()
    call = Still(vm)
    for n in (9000, 5000, 3000, 9000):
        call(n)
    call(1000)  # evicts 5000
    assert use(vm) == {"recordings": 4, "replays": 1, "evicted": 1, "kept": 3}
    for n in (9000, 3000, 1000):
        call(n)
    assert vm.graphs.replays == 4
    call(5000)
    assert vm.graphs.recordings == 5


# Memory that is updated


def test_a_cache_is_updated_by_each_replay() -> None:
    body = [
        alloc(1),
        *graph(Kernel(0, INCREASE, (Reg(0),), N), Kernel(0, INCREASE, (Reg(0),), N), add(0, 0, 1)),
        Return(0, 1),
    ]
    code = main_of(body)
    vm = machine(replace(code, params=(replace(code.params[0], updated=True),)))
    cache = vm.upload(ramp(20))
    for turn in range(1, 7):
        np.testing.assert_array_equal(vm(cache).numpy(), 2 * (ramp(20) + 2 * turn))
    np.testing.assert_array_equal(cache.numpy(), ramp(20) + 12)
    assert vm.graphs.replays >= 3
    others = [vm.upload(ramp(20, turn)) for turn in range(6)]
    for turn, other in enumerate(others):
        vm(other)
        np.testing.assert_array_equal(other.numpy(), ramp(20, turn + 2))


def test_an_argument_that_moves_beside_one_that_is_updated() -> None:
    body = [
        alloc(2), alloc(3),
        *graph(Kernel(0, INCREASE, (Reg(0),), N), add(0, 1, 2), add(2, 1, 3), add(2, 3, 2)),
        Return(0, 3),
    ]  # fmt: skip
    code = main_of(body, 2)
    params = replace(code.params[0], updated=True), code.params[1]
    vm = machine(replace(code, params=params))
    x = vm.upload(ramp(20))
    for turn in range(6):  # the second argument moves
        y = vm.upload(ramp(20, turn))
        np.testing.assert_array_equal(vm(x, y).numpy(), ramp(20, turn + 1) + 2 * ramp(20, turn))
    assert vm.graphs.replays


def test_an_argument_given_twice_is_copied_in_the_graph() -> None:
    """The device takes no buffer twice. The copies keep their memory as long as the graph."""
    vm = machine(main_of([alloc(1), alloc(2), *graph(add(0, 0, 1), add(1, 1, 2)), Return(0, 2)]))
    x = vm.upload(ramp(40))
    before = vm.memory.results
    vm(x).numpy()
    assert vm.memory.results == 3 * before
    vm.release_memory()
    assert vm.memory.results == before
    for _ in range(8):
        np.testing.assert_array_equal(vm(x).numpy(), 4 * ramp(40))
        others = [vm.upload(np.full(40, 9, np.float32)) for _ in range(8)]
        while others:
            others.pop(0)
    assert vm.graphs.replays >= 2


def test_views_of_arguments() -> None:
    body = [
        alloc(3),
        *graph(View(0, 1, 0, 0, 1, "float32", 1), alloc(2, 0), add(1, 0, 2), add(2, 1, 3)),
        Return(0, 3),
    ]
    vm = machine(main_of(body, storages=[SIZE]))
    here, there = vm.upload(ramp(9)), vm.upload(ramp(9, 5))
    for each, first in ((here, 0), (there, 5)) * 4:
        np.testing.assert_array_equal(vm(each).numpy(), 3 * ramp(9, first))
    assert vm.graphs.replays


# Calls at the same time


def test_threads() -> None:
    vm = seven()
    start = threading.Barrier(4)

    def work(number: int) -> None:
        start.wait()
        for turn in range(24):
            check(vm, 10 + (turn + number) % 3, number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    found = vm.graphs
    assert found.replays + found.recordings + found.plain == 96
    assert found.replays


@pytest.mark.parametrize("policy", POLICIES)
def test_two_queues(policy: str | int) -> None:
    set_policy(policy)
    vm = seven()
    side = vm.on({"there": vm.open_queue("there")})
    value: Any = ramp(30)
    for turn in range(6):
        value = (vm, side)[turn % 2](value, value)
    np.testing.assert_allclose(value.numpy(), 7.0**6 * ramp(30), rtol=1e-6)
    for _ in range(5):
        check(side, 3)
    vm.synchronise()
    side.synchronise()
    assert side.graphs.replays


def test_nested_calls() -> None:
    inner = replace(main_of(SEVEN, 2, storages=[SIZE, SIZE]), name="inner")
    body = [
        alloc(2, 0), alloc(4),
        *graph(add(0, 1, 2), add(2, 1, 4)),
        Call(0, 3, 1, (4, 2)),  # planned memory of the caller
        Return(0, 3),
    ]  # fmt: skip
    outer = main_of(body, 2, storages=[SIZE])
    vm = VirtualMachine(replace(kernels(), functions=(outer, inner)))
    x, y = vm.upload(ramp(6)), vm.upload(ramp(6, 2))
    for _ in range(5):
        wanted = 4 * (ramp(6) + 2 * ramp(6, 2)) + 3 * (ramp(6) + ramp(6, 2))
        np.testing.assert_array_equal(vm(x, y).numpy(), wanted)
    assert vm.graphs.replays >= 4


# Failures


def test_allocations_that_fail_anywhere() -> None:
    failures: list[str] = []

    def attempt(vm: VirtualMachine, x: Any) -> None:
        try:
            vm(x, x).numpy()
        except RuntimeCheckError as error:
            failures.append(error.code)

    for number in range(8):
        vm = seven()
        x = vm.upload(ramp(2000))
        check(vm, 3)
        with failing_allocations(number, number + 1):
            attempt(vm, x)
        for _ in range(5):
            np.testing.assert_array_equal(vm(x, x).numpy(), 7 * ramp(2000))
        call = Still(vm)  # with other sizes: a recording that has failed is not tried again
        for _ in range(3):
            call(300)
        assert vm.graphs.replays
    assert failures
    assert {*failures} == {"out-of-memory"}


def test_a_launch_that_cannot_be_recorded_runs_without(monkeypatch: pytest.MonkeyPatch) -> None:
    vm = seven()
    call = Still(vm)
    found, begin = HostileRuntime.launcher, HostileRuntime.begin_capture
    recording: set[int] = set()

    def begin_capture(self: HostileRuntime, queue: int) -> None:
        recording.add(queue)
        begin(self, queue)

    def launcher(self: HostileRuntime, kernel: int, queue: int) -> Any:
        launch = found(self, kernel, queue)

        def refusing(*args: Any) -> None:
            if queue in recording:
                raise DeviceError("not while it records")
            launch(*args)

        return refusing

    monkeypatch.setattr(HostileRuntime, "begin_capture", begin_capture)
    monkeypatch.setattr(HostileRuntime, "launcher", launcher)
    for _ in range(9):
        call(5)
    assert use(vm) == {"plain": 9}
    assert len(recording) == 1  # this key is not tried again


@pytest.mark.parametrize("method", ["begin_capture", "end_capture"])
def test_a_recording_that_fails(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    vm = seven()
    call = Still(vm)

    def failing(*_: Any) -> Any:
        raise DeviceError("no graphs today")

    with monkeypatch.context() as patch:
        patch.setattr(HostileRuntime, method, failing)
        call(500)
    assert use(vm) == {"plain": 1}
    call(500)
    assert use(vm) == {"plain": 2}
    call(300)
    call(300)
    assert use(vm) == {"plain": 2, "recordings": 1, "replays": 1, "kept": 1}


def test_a_replay_that_fails_is_located(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise DeviceError("the sky fell")

    monkeypatch.setattr(HostileRuntime, "replay", failing)
    with pytest.raises(
        RuntimeCheckError, match=r"main: a graph of 4 launches failed: .*fell"
    ) as caught:
        check(seven(), 5)
    assert caught.value.code == "kernel-failed"


def test_an_interruption_between_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the recording, and the next call finds nothing in its way."""
    launch, end = graphs.Recording.launch, graphs.Recording.end
    interruptions = [True]
    ended: list[object] = []

    def interrupted(self: graphs.Recording, *args: Any) -> None:
        launch(self, *args)
        if interruptions:
            interruptions.pop()
            raise KeyboardInterrupt

    def noted(self: graphs.Recording) -> Any:
        ended.append(end(self))
        return ended[-1]

    monkeypatch.setattr(graphs.Recording, "end", noted)
    monkeypatch.setattr(graphs.Recording, "launch", interrupted)
    vm = seven()
    call = Still(vm)
    with pytest.raises(KeyboardInterrupt):
        call(5)
    assert len(ended) == 1
    for _ in range(3):
        call(5)
    assert use(vm) == {"recordings": 1, "replays": 2, "kept": 1}


# Whole programs

LAYERS = """
@R.function
def main(x: R.Tensor(("n", 16), "float32"), w: R.Tensor((16, 16), "float32"), b: R.Tensor((16,), "float32")):
    y = R.nn.gelu(R.add(R.matmul(x, w), b))
    z = R.nn.layer_norm(R.add(y, x), b, b, axes=[-1])
    s = R.nn.softmax(R.matmul(z, R.permute_dims(z)))
    return (R.matmul(s, y), R.sum(s, axis=1), R.argmax(s, axis=-1))
"""


def test_the_same_numbers_with_and_without() -> None:
    mod = relaxpy.parse(LAYERS)
    with_graphs = VirtualMachine(relaxpy.build(mod, "hostile"))
    pipeline = default_pipeline("hostile", without=("lift-graphs",))
    without = VirtualMachine(relaxpy.build(mod, "hostile", pipeline=pipeline))
    rng = np.random.default_rng(0)
    w, b = (rng.standard_normal(shape, dtype=np.float32) for shape in ((16, 16), (16,)))
    for n in (3, 40, 3, 1, 40, 3) * 4:
        x = rng.standard_normal((n, 16), dtype=np.float32)
        for got, wanted in zip(with_graphs(x, w, b), without(x, w, b), strict=True):
            np.testing.assert_array_equal(got.numpy(), wanted.numpy())
    assert with_graphs.graphs.replays >= 5
    assert use(without) == {}
    assert "graph on hostile" in with_graphs.executable.as_text()


def test_decoding_replays_one_graph() -> None:
    """A step of a decoder with a paged cache: prompts, then one token of each sequence at a time."""
    config = replace(TINY, page_size=4, num_hidden_layers=2)
    mod, _ = Llama(config).export(step_spec(config))
    rng = np.random.default_rng(0)
    function = mod["step"]
    assert isinstance(function, Function)
    shapes = [[int(str(d)) for d in p.annotation.shape] for p in function.params[7:]]
    weights = [rng.standard_normal(shape, dtype=np.float32) / 8 for shape in shapes]
    found: list[list[np.ndarray]] = []
    for without in ((), ("lift-graphs",)):
        pipeline = default_pipeline("hostile", without=without)
        vm = VirtualMachine(relaxpy.build(mod, "hostile", pipeline=pipeline))
        there = [vm.upload(weight) for weight in weights]
        caches, book, logits = vm["alloc_pages"](16), PageBook(16, config.page_size), []
        names = [book.add(np.arange(5)), book.add(np.arange(9))]
        counts = {names[0]: 5, names[1]: 9}
        for _ in range(12):
            batch = book.batch(counts)
            logits.append(vm["step"](*batch.arguments, caches, *there).numpy())
            book.commit(batch)
            for name, token in zip(names, logits[-1].argmax(-1), strict=True):
                book.append(name, [token])
            counts = dict.fromkeys(names, 1)
        found.append(logits)
        if not without:
            used = vm["step"].linked.graph_use()
            assert used.replays + used.recordings + used.plain == 12
            # The prompts and the first token: what a step uploads, and its result, come to the same places, and the
            # table has the same width when a sequence gets another page.
            assert (used.replays, used.recordings) == (10, 2), used
            (step,) = (code for code in vm.executable.functions if code.name == "step")
            assert sum(isinstance(instr, Graph) for instr in step.code) == 1
    for got, wanted in zip(*found, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_a_profile_measures_kernels_one_by_one() -> None:
    vm = VirtualMachine(relaxpy.build(relaxpy.parse(LAYERS), "hostile"))
    args = np.ones((3, 16), np.float32), np.ones((16, 16), np.float32), np.ones(16, np.float32)
    vm(*args)
    profile = vm.profile("main", *args, repeat=2)
    names = {event.name for event in profile.events if event.kind == "kernel"}
    assert names == {kernel.name for kernel in vm.executable.kernels}


def test_a_machine_that_checks_memory_records_nothing() -> None:
    vm = seven(check_memory=True)
    for _ in range(2):
        check(vm, 5)
    assert use(vm) == {}
