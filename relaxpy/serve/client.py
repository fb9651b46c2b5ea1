"""The server's end of an engine's process: starts it, sends requests, and gives the pieces of each.

    client = await EngineClient.start(DECODER, {"place": "checkpoint", …})
    async for piece in client.submit(request):
        …
    await client.close()

If the process ends, or is silent for too long while there is something to do, all its requests end with an error
(`engine`), and it is started again.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from relaxpy.errors import UsageError
from relaxpy.serve.messages import HEADER, error_of, frame, length_of, piece_of, request_fields
from relaxpy.serve.request import Piece, Request

PATIENCE = 300.0
"""The seconds after which an engine that says nothing about what it has to do is ended."""
_RESTARTS = 5
"""An engine that ends so many times without having finished a step in between stays ended."""

GAUGES = ("running", "waiting", "pages_available")
"""Numbers of a state that are those of the moment; the others are counters."""


class Engines(Protocol):
    """One or more equal engines: an `EngineClient`, or the replicas of one (`relaxpy.serve.replicas`)."""

    facts: dict[str, Any]

    @property
    def state(self) -> Mapping[str, Any]:
        """Numbers of the work so far, by the names of `Counters` and of a step's message."""
        ...

    @property
    def restarts(self) -> int:
        """How many times an engine was started again."""
        ...

    @property
    def engines(self) -> int:
        """The number of engines that take requests."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether requests are taken."""
        ...

    def submit(self, request: Request, seconds: float | None = None) -> AsyncGenerator[Piece]:
        """The pieces of the texts of a request: see `EngineClient.submit`."""
        ...

    async def close(self) -> None:
        """End them."""
        ...


class EngineClient:
    """One engine. It is used in one event loop."""

    def __init__(
        self, factory: str, options: Mapping[str, Any], patience: float = PATIENCE
    ) -> None:
        """Used by `start`."""
        self.factory, self.options, self.patience = factory, dict(options), patience
        self.facts: dict[str, Any] = {}
        """The facts that the engine gives of itself."""
        self.state: Mapping[str, Any] = {}
        """The numbers after its last step, or after what was cancelled since."""
        self.restarts: int = 0
        """How many times it was started again."""
        self._streams: dict[int, asyncio.Queue[Piece | UsageError]] = {}
        self._numbers = 0
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._heard = 0.0
        self._since_step = 0
        self._closing = False

    @classmethod
    async def start(
        cls, factory: str, options: Mapping[str, Any], patience: float = PATIENCE
    ) -> EngineClient:
        """Start an engine. Returns when it is ready. Raises: UsageError of its factory, `engine` if it ends."""
        client = cls(factory, options, patience)
        await client._spawn()
        client._task = asyncio.create_task(client._listen())
        return client

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests."""
        return self._process is not None and not self._closing

    @property
    def is_starting(self) -> bool:
        """Whether it takes no requests now, and will."""
        return self._process is None and self._task is not None and not self._task.done()

    @property
    def engines(self) -> int:
        """The number of engines that take requests: one, or none."""
        return int(self.is_ready)

    @property
    def active(self) -> int:
        """The number of requests that are not finished."""
        return len(self._streams)

    @property
    def pid(self) -> int | None:
        """The number of its process."""
        return None if self._process is None else self._process.pid

    async def submit(self, request: Request, seconds: float | None = None) -> AsyncGenerator[Piece]:
        """The pieces of the texts of a request, whose number is replaced. The request is cancelled if the iterator is
        closed before its end. Raises: UsageError for one that is refused or fails, `engine` if the engine ends,
        `time-limit` if the texts take more than so many seconds."""
        if self._process is None or self._closing:
            raise UsageError("engine", "the engine is not running", help="try again later")
        self._numbers += 1
        number, queue = self._numbers, asyncio.Queue[Piece | UsageError]()
        data = frame({"do": "submit", "request": request_fields(replace(request, number=number))})
        self._streams[number] = queue
        if len(self._streams) == 1:
            self._heard = time.monotonic()
        left, timer = request.texts, None
        if seconds is not None:
            late = too_late(seconds)
            timer = asyncio.get_running_loop().call_later(seconds, queue.put_nowait, late)
        try:
            self._write(data)
            while left:
                piece = await queue.get()
                if isinstance(piece, UsageError):
                    left = left if piece.code == "time-limit" else 0
                    raise piece
                if piece.error is not None:
                    left = 0
                    raise piece.error
                left -= piece.finish is not None
                yield piece
        finally:
            self._streams.pop(number, None)
            if timer is not None:
                timer.cancel()
            if left:
                self._write(frame({"do": "cancel", "number": number}))

    async def close(self) -> None:
        """End the engine. What still runs ends with an error."""
        self._closing = True
        process = self._process
        if process is not None and process.stdin is not None:
            process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), 10)
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._end_all("the engine was ended")

    # Inside

    def _write(self, data: bytes) -> None:
        process = self._process
        if process is not None and process.stdin is not None and not process.stdin.is_closing():
            process.stdin.write(data)

    async def _spawn(self) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "relaxpy.serve.engine_process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # Ctrl-C is for this process
        )
        assert process.stdin is not None
        try:
            process.stdin.write(
                frame({"do": "start", "factory": self.factory, "options": self.options})
            )
            first = await _message(process)
        except BaseException:
            await _end(process)
            raise
        if first is None or first["kind"] != "ready":
            await _end(process)
            if first is None:
                raise UsageError("engine", "the process of the engine ended while it started")
            raise error_of(first)
        self.facts, self.state = first["facts"], first["state"]
        self._process, self._heard = process, time.monotonic()

    async def _listen(self) -> None:
        """Hand pieces out as they come; start the engine again when it ends."""
        while True:
            process = self._process
            assert process is not None
            watch = asyncio.create_task(self._watch(process))
            try:
                while (message := await _message(process)) is not None:
                    self._heard = time.monotonic()
                    self._hand_out(message)
            finally:
                watch.cancel()
                self._process = None
                self.state = {**self.state, **dict.fromkeys(GAUGES, 0)}
                await _end(process)
            if self._closing:
                return
            self._end_all("the engine has ended while it computed this request")
            if not await self._start_again():
                return

    async def _start_again(self) -> bool:
        while self._since_step < _RESTARTS and not self._closing:
            self._since_step += 1
            self.restarts += 1
            try:
                await self._spawn()
            except UsageError:
                await asyncio.sleep(self._since_step)
            else:
                return True
        return False

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """End an engine that says nothing."""
        while True:
            await asyncio.sleep(min(self.patience / 4, 5.0))
            if self._streams and time.monotonic() - self._heard > self.patience:
                process.kill()
                return

    def _hand_out(self, message: Mapping[str, Any]) -> None:
        if message["kind"] == "refused":
            queue = self._streams.get(message["number"])
            if queue is not None:
                queue.put_nowait(error_of(message))
            return
        self.state = message["state"]
        if message["kind"] == "state":
            return
        self._since_step = 0
        for fields in message["pieces"]:
            piece = piece_of(fields)
            queue = self._streams.get(piece.request)
            if queue is not None:
                queue.put_nowait(piece)

    def _end_all(self, reason: str) -> None:
        for queue in self._streams.values():
            queue.put_nowait(UsageError("engine", reason, help="send it again"))


def too_late(seconds: float | None) -> UsageError:
    """The error of texts that take too long."""
    return UsageError("time-limit", f"the texts take more than {seconds:g} seconds")


async def _message(process: asyncio.subprocess.Process) -> dict[str, Any] | None:
    """The next message of an engine; None if it has ended, or says what is no message."""
    assert process.stdout is not None
    try:
        length = length_of(await process.stdout.readexactly(HEADER))
        return json.loads(await process.stdout.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError, ValueError):
        return None


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
    await process.wait()
