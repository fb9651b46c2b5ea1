"""Fuzzing with random programs in separate processes, so that crashes and hangs are findings too.

    for outcome in fuzz(count=200, seed=0, jobs=2):
        if outcome.failure: …

`relaxpy fuzz` is the command-line interface.
"""

from __future__ import annotations

import multiprocessing
import queue
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.build.pipeline import default_pipeline
from relaxpy.errors import RelaxError, UsageError
from relaxpy.ir.module import IRModule
from relaxpy.runtime.executable import Executable
from relaxpy.runtime.vm import VirtualMachine
from relaxpy.shape.declare import with_bounds
from relaxpy.target import Target
from relaxpy.testing.differential import Call, Failure, Ways, check
from relaxpy.testing.kept import text_of
from relaxpy.testing.on_device import Where, check_on
from relaxpy.testing.orders import check_orders
from relaxpy.testing.random_pipeline import random_pipeline
from relaxpy.testing.random_program import Program, random_module
from relaxpy.testing.shrink import shrink

BATCH = 20
"""The number of programs that are compiled together."""
TURNS = 4
"""One batch of this many is built like users' programs. The others are compiled without LLVM's optimisations, which
take three quarters of the time, and half of them with a random pipeline (`random_pipeline`)."""
SECONDS = 120.0
"""The time limit for one program in seconds."""
MORE_SECONDS = 30.0
"""Additional seconds for each further program of a batch: more than any program needs on a heavily loaded machine."""
SHRINK_SECONDS = 240.0
"""The time limit for reducing a program in seconds."""


@dataclass(frozen=True)
class Outcome:
    """The result for one seed."""

    seed: int
    failure: Failure | None = None
    """The first failure found."""
    program: str = ""
    """The reduced program in the format of `relaxpy.testing.kept`; "" if there is none."""
    refused: str = ""
    """What the target refuses of the program, which the processor compiles; "" if nothing."""


def calls_of(program: Program) -> list[Call]:
    """Calls of a random program at its sizes, smallest first."""
    sizes = sorted(program.bindings(), key=lambda binding: sum(binding.values()))
    return [
        Call(program.mod, program.name, program.arguments(binding), f"seed {program.seed}")
        for binding in sizes
    ]


def batches_of(count: int, seed: int) -> list[range]:
    """The seeds from `seed` on, in batches."""
    first, end = seed - seed % BATCH, seed + count
    return [range(max(i, seed), min(i + BATCH, end)) for i in range(first, end, BATCH)]


def is_bounded(seed: int) -> bool:
    """Whether the programs of this seed's batch declare upper bounds of their sizes, so that their memory is planned
    statically."""
    return seed // BATCH % 3 == 1


def bounded(calls: Sequence[Call]) -> list[Call]:
    """The calls, with the largest sizes of their arguments declared as upper bounds. Functions for which the bounds
    would be contradictory (`n` is at most 3, and added to 5 elements) declare none."""
    mod = calls[0].mod
    limits: dict[str, dict[str, int]] = {}
    for call in calls:
        own = limits.setdefault(call.name, {})
        for symbol, size in call.sizes().items():
            key = f"{call.name}.{symbol.name}"
            own[key] = max(size, own.get(key, 0))
    given = list(limits.values())
    if _contradict(mod, given):
        given = [own for own in given if not _contradict(mod, [own])]
    mod = with_bounds(mod, {key: limit for own in given for key, limit in own.items()})
    return [Call(mod, call.name, call.args, call.label) for call in calls]


def _contradict(mod: IRModule, limits: Sequence[Mapping[str, int]]) -> bool:
    """Whether the module is rejected once its functions declare these bounds."""
    try:
        check_well_formed(
            with_bounds(mod, {key: limit for own in limits for key, limit in own.items()})
        )
    except RelaxError:
        return True
    return False


def ways_of(seed: int) -> Ways:
    """The ways to build and run the programs of a seed's batch."""
    batch = seed // BATCH
    if batch % TURNS == 0:
        return Ways()
    quick = Target.parse("llvm -opt-level=0")
    return Ways(quick, random_pipeline(batch)) if batch % 2 else Ways(quick)


def check_seeds(seeds: Sequence[int]) -> list[Failure]:
    """Generates the programs of these seeds, which are of one batch, in one module, and checks them."""
    try:
        _, programs = random_module(seeds)
        calls = [call for program in programs for call in calls_of(program)]
        if is_bounded(seeds[0]):
            calls = bounded(calls)
    except Exception:
        return [Failure("generate", "crash", traceback.format_exc(limit=-4))]
    return check(calls, ways_of(seeds[0]))


def outcomes_on(
    seeds: Sequence[int], where: Where, machine: Callable[[Executable], Any] = VirtualMachine
) -> list[Outcome]:
    """Checks the programs of these seeds, each by itself, on a target (`check_on`)."""

    def check(_: int, calls: Sequence[Call]) -> tuple[list[Failure], str]:
        return check_on(calls, where, machine)

    return _outcomes(seeds, check, f" on {where.target}")


def outcomes_in_orders(seeds: Sequence[int], orders: int) -> list[Outcome]:
    """Checks the programs of these seeds after all passes in so many orders each, in the interpreter alone."""

    def check(seed: int, calls: Sequence[Call]) -> tuple[list[Failure], str]:
        return check_orders(calls, seeds=range(seed * orders, (seed + 1) * orders)), ""

    return _outcomes(seeds, check, ", in another order of passes")


def _outcomes(
    seeds: Sequence[int],
    check: Callable[[int, Sequence[Call]], tuple[list[Failure], str]],
    said: str,
) -> list[Outcome]:
    """Runs `check`, which gives the failures and why a program is refused, on the program of each seed; failures are
    reduced. `said` follows the seed in their text."""
    found: list[Outcome] = []
    for seed in seeds:
        try:
            calls = calls_of(random_module([seed])[1][0])
        except Exception:
            failure = Failure("generate", "crash", traceback.format_exc(limit=-4))
            found.append(Outcome(seed, failure))
            continue
        failures, refused = check(seed, calls)
        if not failures:
            found.append(Outcome(seed, refused=refused))
            continue
        call = failures[0].call or calls[0]
        call, failure = shrink(call, failures[0], lambda calls, seed=seed: check(seed, calls)[0])
        text = text_of(call, f"Found by seed {seed}{said}. {failure}")
        found.append(Outcome(seed, replace(failure, call=None), text))
    return found


def shrunk(seed: int) -> Outcome:
    """The failure of one seed, reduced."""
    found = check_seeds([seed])
    if not found:
        return Outcome(seed)
    failure = found[0]
    if failure.stage == "generate":
        return Outcome(seed, failure)
    calls = calls_of(random_module([seed])[1][0])
    call = failure.call or (bounded(calls) if is_bounded(seed) else calls)[0]
    ways = ways_of(seed)
    call, failure = shrink(call, failure, ways)
    reason = f"Found by seed {seed}. {failure}"
    if ways.pipeline != default_pipeline():
        reason = f"Passes: {', '.join(step.name for step in ways.pipeline.passes)}\n{reason}"
    return Outcome(seed, replace(failure, call=None), text_of(call, reason))


def fuzz(
    count: int,
    seed: int = 0,
    jobs: int = 1,
    keep_going: bool = True,
    where: Where | None = None,
    orders: int = 0,
) -> Iterator[Outcome]:
    """Checks `count` programs with seeds from `seed` on, in `jobs` processes: in all ways on this processor, or on
    another target, or through the passes in so many `orders`, in the interpreter. Yields an outcome for each seed when
    it is done. Without `keep_going` it stops after the first failure. Raises UsageError if the target's device is not
    here."""
    if count < 0 or jobs < 1:
        raise UsageError("fuzz", f"cannot check {count} programs in {jobs} processes")
    if where is not None:
        where.check()
    batches = batches_of(count, seed)
    workers: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    made = [_Worker() for _ in range(min(jobs, len(batches)))]
    for worker in made:
        workers.put(worker)

    def run(batch: Sequence[int]) -> list[Outcome]:
        worker = workers.get()
        try:
            if orders:
                return worker.check_each("orders", batch, orders)
            return worker.check(batch) if where is None else worker.check_each("on", batch, where)
        finally:
            workers.put(worker)

    pool = ThreadPoolExecutor(max(1, len(made)))
    try:
        futures = [pool.submit(run, batch) for batch in batches]
        for done in futures if jobs == 1 else as_completed(futures):  # else in any order
            outcomes = done.result()
            yield from outcomes
            if not keep_going and any(outcome.failure for outcome in outcomes):
                return
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in made:
            worker.stop()


class _Worker:
    """Checks programs in a process, which is replaced if it dies or takes too long."""

    def __init__(self) -> None:
        self.process: Any = None
        self.connection: Connection | None = None
        self.stopped = False

    def check(self, seeds: Sequence[int]) -> list[Outcome]:
        """Checks all seeds together, and each separately if there is a failure."""
        answer = self.ask("check", list(seeds), SECONDS + MORE_SECONDS * (len(seeds) - 1))
        if answer == []:
            return [Outcome(seed) for seed in seeds]
        found = [self.one(seed) for seed in seeds]
        if not any(outcome.failure for outcome in found) and not self.stopped:
            reason = answer[0].message if isinstance(answer, list) else answer
            text = f"seeds {seeds[0]} to {seeds[-1]} fail only in one module: {reason}"
            together = Failure("vm", "batch", text)
            return [Outcome(seeds[0], together), *found[1:]]
        return found

    def check_each(self, what: str, seeds: Sequence[int], argument: Any) -> list[Outcome]:
        """Checks each seed by itself: on a target, or in orders of passes."""
        found: list[Outcome] = []
        for seed in seeds:
            answer = self.ask(what, ([seed], argument), SECONDS + SHRINK_SECONDS)
            if isinstance(answer, list):
                found += answer
            else:
                found.append(Outcome(seed, Failure("vm", "crash", str(answer))))
        return found

    def one(self, seed: int) -> Outcome:
        """Checks one seed and reduces a failure."""
        answer = self.ask("check", [seed], SECONDS)
        if answer == []:
            return Outcome(seed)
        if not isinstance(answer, list):
            return Outcome(seed, Failure("build", "crash", answer))
        small = self.ask("shrink", seed, SHRINK_SECONDS)
        return small if isinstance(small, Outcome) else Outcome(seed, answer[0])

    def ask(self, what: str, argument: Any, seconds: float) -> Any:
        """The answer of the process, or a text about how it ended without one."""
        if self.stopped:
            return "stopped"
        if self.process is None:
            context = multiprocessing.get_context("spawn")
            self.connection, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()  # what fails here is told, not that there is nothing to end
            self.process = process
            theirs.close()
        assert self.connection is not None
        try:
            self.connection.send((what, argument))
            if self.connection.poll(seconds):
                return self.connection.recv()
            text = f"no end after {seconds:.0f} s"
        except (EOFError, OSError):
            self.process.join(5)
            text = f"the process ended with code {self.process.exitcode}"
        self.end()
        return text

    def end(self) -> None:
        """Stops the process."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
        self.process = None

    def stop(self) -> None:
        """Stops permanently."""
        self.stopped = True
        self.end()


def _serve(connection: Connection) -> None:
    """The main loop of the process: answers requests until the connection is closed."""
    while True:
        try:
            what, argument = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            if what == "check":
                answer = [replace(failure, call=None) for failure in check_seeds(argument)]
            elif what == "on":
                answer = outcomes_on(*argument)
            elif what == "orders":
                answer = outcomes_in_orders(*argument)
            else:
                answer = shrunk(argument)
            connection.send(answer)
        except KeyboardInterrupt:
            return
