"""Peers that take turns, each in a process of its own: no thread pool spins beside another, no library sees what
another has loaded.

A peer's process runs a function once that says what it serves: `prepare`, from a request to a call without arguments
(the thing to be timed), and how a result is sent through the pipe.
"""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any


@dataclass(frozen=True)
class Service:
    """The requests that a peer answers."""

    prepare: Callable[[Any], Callable[[], Any]]
    """From a request to a call without arguments, which is what is timed."""
    portable: Callable[[Any], Any] = lambda result: result
    """From what a call gives to what can be sent."""


LONG_SECONDS = 5.0
"""A first call that takes longer is not repeated: what it has to set up does not matter."""
PAUSE_SECONDS = 0.05
"""Between turns: pools of threads spin for a while after their last work, on cores that the next peer needs."""


@dataclass
class Peer:
    """A running process."""

    name: str
    pipe: Connection
    process: BaseProcess
    load_seconds: float

    @classmethod
    def start(cls, name: str, make: Callable[..., Service], *args: Any) -> Peer | str:
        """The peer that `make(*args)` makes, or why it cannot run here."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(make, args, theirs), daemon=True)
        process.start()
        theirs.close()
        try:
            answer = ours.recv()
        except EOFError:
            answer = f"its process ended with {process.exitcode}"
        if isinstance(answer, str):
            return answer
        return cls(name, ours, process, answer)

    def result(self, request: Any) -> Any:
        """The result of the call. RuntimeError with the message of what it raised."""
        time.sleep(PAUSE_SECONDS)
        return self._ask(request, 0, 0.0)

    def times(self, request: Any, calls: int, seconds: float = 0.0) -> list[float]:
        """Seconds of each call after one to warm up: so many calls, and more until so many seconds are over. A request
        that is repeated is prepared and warmed up once. If the call to warm up takes more than `LONG_SECONDS`, it is
        the only one."""
        time.sleep(PAUSE_SECONDS)
        return self._ask(request, calls, seconds)

    def forget(self) -> None:
        """Free the memory of the last request that was timed."""
        self._ask(None, 0, 0.0)

    def stop(self) -> None:
        """End the process."""
        self.pipe.close()
        self.process.join(5)

    def _ask(self, request: Any, calls: int, seconds: float) -> Any:
        try:
            self.pipe.send((request, calls, seconds))
            ok, answer = self.pipe.recv()
        except (EOFError, BrokenPipeError) as error:
            self.process.join(5)
            code = self.process.exitcode
            raise RuntimeError(f"{self.name}: its process ended with {code}") from error
        if not ok:
            raise RuntimeError(f"{self.name}: {answer}")
        return answer


def _serve(make: Callable[..., Service], args: tuple[Any, ...], pipe: Connection) -> None:
    """Answer requests until the pipe closes."""
    started = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            service = make(*args)
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
        return
    pipe.send(time.perf_counter() - started)
    kept: tuple[Any, Callable[[], Any], float] | None = None
    """The last request that was timed, its call, and how long that took at first."""
    while True:
        try:
            request, calls, seconds = pipe.recv()
        except EOFError:
            return
        try:
            if kept is None or not calls or not _equal(request, kept[0]):
                kept = None  # frees its memory
                if request is None:
                    pipe.send((True, None))
                    continue
                call = service.prepare(request)
                start = time.perf_counter()
                result = call()  # and warm
                if not calls:
                    pipe.send((True, service.portable(result)))
                    continue
                kept = request, call, time.perf_counter() - start
            _, call, first = kept
            answer = [first] if first > LONG_SECONDS else timed(call, calls, seconds)
        except Exception as error:
            kept = None
            pipe.send((False, f"{type(error).__name__}: {error}"))
        else:
            pipe.send((True, answer))


def _equal(request: Any, other: Any) -> bool:
    """Are two requests the same? Arrays, and tuples of them, are not compared."""
    try:
        return (request == other) is True
    except ValueError:  # the comparison of two arrays is an array, which is neither true nor false
        return False


def timed(call: Callable[[], Any], calls: int, seconds: float = 0.0) -> list[float]:
    """Seconds of each of at least so many calls, which take at least so many seconds together."""
    found: list[float] = []
    end = time.perf_counter() + seconds
    while len(found) < calls or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return found


def rotated_times(
    peers: Mapping[str, Peer],
    request: Any,
    rounds: int,
    calls: int,
    seconds: float = 0.0,
    *,
    first: int = 0,
) -> dict[str, list[float]]:
    """`Peer.times` of every peer, `rounds` turns each, in an order that rotates and begins with peer number `first`."""
    found: dict[str, list[float]] = {name: [] for name in peers}
    names = list(peers)
    for turn in range(first, first + rounds):
        for i in range(len(names)):
            name = names[(i + turn) % len(names)]
            found[name] += peers[name].times(request, calls, seconds)
    return found
