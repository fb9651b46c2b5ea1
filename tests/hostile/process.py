"""The process of the hostile device: it alone sees the memory, and does work when it likes.

It reads commands from standard input and answers those that ask for an answer. A *policy* says when work is done:

* `lazy`: what somebody synchronises for, and of other queues only what that waits for;
* `others`: before that, all that other queues can do;
* a number: any order, by that seed.
"""

from __future__ import annotations

import os
import pickle
import random
import sys
from collections.abc import Iterator
from typing import Any

from relaxpy.errors import RelaxError
from relaxpy.runtime.bytecode import KernelInfo
from relaxpy.runtime.devices.cpu.kernels import KernelHandles, load_kernels
from relaxpy.runtime.dtype import info as dtype_info
from relaxpy.runtime.frame import record_of
from relaxpy.runtime.tensor import tensor_at
from tests.hostile.memory import (
    MOST_BUFFERS,
    Clock,
    Command,
    Memory,
    Mistake,
    Queue,
    Recorded,
    merge,
)

RECORDED = ("launch", "copy")
"""What a graph may consist of."""


class Server:
    """See the module."""

    def __init__(self) -> None:
        self.memory: dict[int, Memory] = {}
        self.queues: dict[int, Queue] = {}
        self.kernels: dict[int, tuple[KernelInfo, KernelHandles]] = {}
        self.graphs: dict[int, list[Recorded]] = {}
        self.forgotten: set[int] = set()
        """Graphs that the host may not replay any more."""
        self.host: Clock = {}
        """What the host has synchronised."""
        self.policy: str | int = "lazy"
        self.random = random.Random(0)

    def answer(self, name: str, args: tuple[Any, ...]) -> Any:
        """Do what the host asks for at once."""
        match name:
            case "policy":
                (self.policy,) = args
                self.random = random.Random(self.policy)
            case "open":
                self.queues[args[0]] = Queue(args[0])
            case "allocate":
                handle, nbytes = args
                self.memory[handle] = Memory(nbytes)
            case "load":
                return self.load(*args)
            case "put":
                queue, what, *rest = args
                self.put(self.queues[queue], what, tuple(rest))
            case "capture":
                queue = self.queues[args[0]]
                queue.captured, queue.mistake = [], ""
            case "graph":
                return self.end_capture(self.queues[args[0]], args[1])
            case "forget":
                self.forgotten.add(args[0])
            case "synchronise":
                return self.synchronise(self.queues[args[0]])
            case _:
                raise AssertionError(name)
        return None

    def load(self, first: int, objects: list[bytes], infos: list[KernelInfo]) -> str:
        try:
            handles = load_kernels(objects, infos)
        except RelaxError as error:
            return error.message
        for number, (info, handle) in enumerate(zip(infos, handles, strict=True)):
            self.kernels[first + number] = info, handle
        return ""

    def end_capture(self, queue: Queue, number: int) -> str:
        """Ends a recording. Returns what was wrong with it."""
        assert queue.captured is not None
        self.graphs[number], queue.captured = queue.captured, None
        return queue.mistake

    def put(self, queue: Queue, what: str, args: tuple[Any, ...]) -> None:
        if queue.captured is not None:
            if what not in RECORDED:
                queue.mistake = f"a {what} is put into a queue that records"
            queue.captured.append((what, args))
            return
        if what == "replay" and args[0] in self.forgotten:
            queue.errors.append("a graph is replayed that was freed")
        queue.put += 1
        if what == "wait":
            other = self.queues[args[0]]
            args = (args[0], other.put)
            other.marks.add(other.put)
            if other.done >= other.put:
                other.clocks[other.put] = dict(other.clock)
        queue.pending.append(Command(what, args, dict(self.host)))
        if isinstance(self.policy, int):
            for _ in range(self.random.randrange(3)):
                self.step_any(None)

    # When

    def blocked(self, queue: Queue) -> tuple[Queue, int] | None:
        """The queue that the next command of this one waits for, and how many of its commands."""
        head = queue.pending[0]
        if head.what == "wait":
            other, count = self.queues[head.args[0]], head.args[1]
            if other.done < count:
                return other, count
        return None

    def ready(self) -> Iterator[Queue]:
        for queue in self.queues.values():
            if queue.pending and self.blocked(queue) is None:
                yield queue

    def step_any(self, but: Queue | None) -> bool:
        """Do a command of any queue (`but` this one) that can go on; whether there is one."""
        ready = [queue for queue in self.ready() if queue is not but]
        if ready:
            self.step(self.random.choice(ready))
        return bool(ready)

    def until(self, queue: Queue, count: int) -> None:
        """Do what the first `count` commands of a queue need, and no more."""
        while queue.done < count:
            blocked = self.blocked(queue)
            if blocked is not None:
                self.until(*blocked)
            else:
                self.step(queue)

    def synchronise(self, queue: Queue) -> tuple[list[str], dict[int, bytes]]:
        if self.policy == "others":
            while self.step_any(queue):
                pass
        elif isinstance(self.policy, int):
            while queue.pending:
                self.step_any(None)
        self.until(queue, queue.put)
        merge(self.host, queue.clock)
        found = queue.errors, queue.downloads
        queue.errors, queue.downloads = [], {}
        return found

    # What

    def step(self, queue: Queue) -> None:
        command = queue.pending.popleft()
        queue.done += 1
        merge(queue.clock, command.clock)
        queue.clock[queue.number] = queue.done
        try:
            getattr(self, f"do_{command.what}")(queue, *command.args)
        except Mistake as mistake:
            queue.errors.append(f"{command.what}: {mistake}")
        if queue.done in queue.marks:
            queue.clocks[queue.done] = dict(queue.clock)

    def use(self, queue: Queue, handle: int, written: bool) -> Memory:
        memory = self.memory.get(handle)
        if memory is None:
            raise Mistake("there is no such memory")
        memory.use(queue.number, queue.done, queue.clock, written)
        return memory

    def do_fail(self, queue: Queue, reason: str) -> None:
        """What a test asks for."""
        raise Mistake(reason)

    def do_wait(self, queue: Queue, other: int, count: int) -> None:
        merge(queue.clock, self.queues[other].clocks[count])

    def do_free(self, queue: Queue, handle: int) -> None:
        memory = self.use(queue, handle, True)
        memory.spoil()
        memory.freed = True

    def do_upload(self, queue: Queue, handle: int, offset: int, data: bytes) -> None:
        part = self.use(queue, handle, True).part(offset, len(data))
        part[...] = memoryview(data)

    def do_download(self, queue: Queue, handle: int, offset: int, nbytes: int, ticket: int) -> None:
        queue.downloads[ticket] = self.use(queue, handle, False).part(offset, nbytes).tobytes()

    def do_copy(
        self, queue: Queue, source: int, begin: int, target: int, place: int, nbytes: int
    ) -> None:
        if source == target:
            raise Mistake("a buffer is copied to itself")
        came = self.use(queue, source, False).part(begin, nbytes)
        self.use(queue, target, True).part(place, nbytes)[...] = came

    def do_replay(self, queue: Queue, graph: int) -> None:
        """Each command of the graph is checked as if it had come by itself."""
        for what, args in self.graphs[graph]:
            getattr(self, f"do_{what}")(queue, *args)

    def do_launch(self, queue: Queue, kernel: int, args: list[Any]) -> None:
        info, handles = self.kernels[kernel]
        params = info.params or ()
        tensors = [arg for arg in args if isinstance(arg, tuple)]
        if len({handle for handle, *_ in tensors}) < len(tensors):
            raise Mistake(f"{info.name} is given a buffer twice")
        if len(tensors) > MOST_BUFFERS:
            raise Mistake(
                f"{info.name} is given {len(tensors)} buffers, {MOST_BUFFERS} are bound at most"
            )
        given: list[Any] = []
        used: list[Memory] = []
        kept: list[Tensor] = []
        for param, arg in zip(params, args, strict=True):
            if not isinstance(arg, tuple):
                given.append(arg)
                continue
            handle, offset, shape, dtype = arg
            memory = self.use(queue, handle, param.written)
            nbytes = dtype_info(dtype).itemsize
            for size in shape:
                nbytes *= size
            memory.part(offset, nbytes)
            tensor = tensor_at(memory.address(offset), shape, dtype, memory)
            kept.append(tensor)
            given.append(record_of(tensor))
            used.append(memory)
        try:
            handles.serial(*given)
        except Exception as error:
            raise Mistake(f"{info.name}: {error}") from error
        for memory in used:
            memory.check_zones()


def main() -> None:
    source = sys.stdin.buffer
    # What kernels write to standard output is no answer.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    server = Server()
    while True:
        try:
            name, wants_answer, args = pickle.load(source)
        except EOFError:
            return
        found = server.answer(name, args)
        if wants_answer:
            pickle.dump(found, answers)
            answers.flush()


if __name__ == "__main__":
    main()
