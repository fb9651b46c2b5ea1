"""Engines on many machines: replicas of a deployment of Ray Serve, and the server's end of them.

    cluster = await Cluster.connect(Scale(2, 4))
    client = await cluster.start("name", DECODER, {"place": "checkpoint", …})
    async for piece in client.submit(request):
        …
    await cluster.close()

A replica is an actor around an `EngineClient`, whose engine is a process beside it. Ray places replicas, checks their
health, starts others for those that end, adds and removes some by the number of requests, and routes. What is ours is
the way of a request: it is sent again when its replica ends before the first token; later it ends with an error.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import re
import socket
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any

from relaxpy.errors import UsageError
from relaxpy.narrow import is_mapping
from relaxpy.serve.client import EngineClient, too_late
from relaxpy.serve.engine import Counters
from relaxpy.serve.messages import (
    error_fields,
    error_of,
    piece_fields,
    piece_of,
    request_fields,
    request_of,
)
from relaxpy.serve.prefix_router import ROUTER
from relaxpy.serve.request import Piece, Request
from relaxpy.serve.scale import Scale

# Ray has no types for most of what is used here.
ray: Any = import_module("ray")
serve: Any = import_module("ray.serve")
config: Any = import_module("ray.serve.config")
RayError: type[Exception] = import_module("ray.exceptions").RayError
RayTaskError: Any = import_module("ray.exceptions").RayTaskError
RayServeException: type[Exception] = import_module("ray.serve.exceptions").RayServeException
BackPressureError: type[Exception] = import_module("ray.serve.exceptions").BackPressureError
LoggingConfig: Any = import_module("ray.serve.schema").LoggingConfig

_COUNTERS = frozenset(each.name for each in fields(Counters))
_DEATHS = 3
"""A request that so many engines did not survive is not sent again: it may be the cause."""
_PAUSE = 0.05
"""Seconds before a request is sent again; twice as many each time."""
_POLL_SECONDS = 2.0
"""Between reports of the replicas."""
_SILENT = 5
"""Without a report for so many polls, no replica is thought to run."""
_CONNECT_SECONDS = 10.0
_OBJECT_BYTES = 80 << 20
"""Of Ray's object store where it is started here: pieces are small, and are not kept."""
_REFUSED = "relaxpy: "
"""Before the error of an engine that does not start, in what Ray tells of it."""


@dataclass(frozen=True)
class Asked:
    """A request on its way to a replica."""

    fields: Mapping[str, Any]
    seconds: float | None

    @property
    def prompt(self) -> str:
        """As the router compares prompts: a character for each token, after what a cached beginning depends on."""
        own = self.fields
        head = chr(own["adapter"] + 2) + (f"{own['salt']}\0" if own["salt"] else "")
        return head + "".join(map(chr, own["prompt"]))


class Replica:
    """The class of the deployment."""

    async def __init__(self, factory: str, options: Mapping[str, Any], digest: str) -> None:
        try:
            self._client = await EngineClient.start(factory, options)
        except UsageError as error:
            raise RuntimeError(_REFUSED + json.dumps(error_fields(error)) + "\n") from None
        self._digest = digest

    async def facts(self) -> dict[str, Any]:
        """The facts of the engine, and what it was made from."""
        return {"facts": self._client.facts, "digest": self._digest}

    async def report(self) -> dict[str, Any]:
        """The name of this replica, and the numbers of its engine."""
        name = serve.get_replica_context().replica_id.unique_id
        return {
            "replica": name,
            "state": self._client.state,
            "restarts": self._client.restarts,
            "is_ready": self._client.is_ready,
            "pid": os.getpid(),
        }

    async def check_health(self) -> None:
        """For Ray, which starts another replica if this raises."""
        if not self._client.is_ready and not self._client.is_starting:
            raise RuntimeError("the engine has ended, and does not start again")

    async def submit(self, asked: Asked) -> AsyncGenerator[list[Any] | dict[str, Any]]:
        """The pieces of a request; its error as an object."""
        try:
            pieces = self._client.submit(request_of(asked.fields), asked.seconds)
            async with aclosing(pieces):
                async for piece in pieces:
                    yield piece_fields(piece)
        except UsageError as error:
            yield error_fields(error)


class ReplicaClient:
    """The replicas of one engine. Has the methods of an `EngineClient`."""

    def __init__(self, handle: Any, facts: dict[str, Any]) -> None:
        """Used by `Cluster.start`."""
        self.facts = facts
        self.reports: dict[str, dict[str, Any]] = {}
        """The last report of each replica that there was."""
        self.present: frozenset[str] = frozenset()
        """The replicas that run."""
        self._handle = handle
        self._stream = handle.options(method_name="submit", stream=True)
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    async def watch(self) -> None:
        """Wait for the first reports, and ask for more from then on."""
        await self._ask()
        self._task = asyncio.create_task(self._asking())

    @property
    def engines(self) -> int:
        """The number of engines that take requests."""
        return 0 if self._closing else len(self.present)

    @property
    def is_ready(self) -> bool:
        """Whether requests are taken."""
        return self.engines > 0

    @property
    def restarts(self) -> int:
        """How many times an engine was started again, or a replica ended."""
        ended = len(self.reports) - len(self.present)
        return ended + sum(each["restarts"] for each in self.reports.values())

    @property
    def state(self) -> dict[str, Any]:
        """The sums of the numbers of all engines; of those that have ended, the counters."""
        found: dict[str, Any] = {}
        for name, report in self.reports.items():
            for key, value in report["state"].items():
                if name in self.present or key in _COUNTERS:
                    found[key] = found.get(key, 0) + value
        return found

    async def submit(self, request: Request, seconds: float | None = None) -> AsyncGenerator[Piece]:
        """Like `EngineClient.submit`. A request whose replica ends before its first piece is sent again."""
        deadline = None if seconds is None else time.monotonic() + seconds
        left, deaths, tries = request.texts, 0, 0
        while left:
            if self._closing:
                raise UsageError("engine", "the server is about to stop", help="try again later")
            rest = None if deadline is None else deadline - time.monotonic()
            if rest is not None and rest <= 0:
                raise too_late(seconds)
            items = self._stream.remote(Asked(request_fields(request), rest))
            begun = False
            try:
                while left:
                    async with asyncio.timeout(
                        None if deadline is None else deadline - time.monotonic()
                    ):
                        item: Any = await anext(items)
                    if is_mapping(item):
                        left = 0 if item["code"] != "engine" else left
                        raise error_of(item)
                    piece = piece_of(item)
                    begun = True
                    if piece.error is not None:
                        left = 0
                        raise piece.error
                    left -= piece.finish is not None
                    yield piece
                return
            except TimeoutError:
                raise too_late(seconds) from None
            except BackPressureError:
                raise UsageError(
                    "queue-full",
                    "all replicas are busy, and too many requests wait",
                    help="try again later",
                ) from None
            except StopAsyncIteration:
                reason = "a replica has ended this request before its end"
            except UsageError as error:
                if error.code != "engine":
                    raise
                reason = error.message
            except RayTaskError as error:
                raise UsageError("engine", f"a replica failed: {error.cause or error}") from None
            except (RayError, RayServeException) as error:
                reason = (
                    f"the replica has ended while it computed this request ({type(error).__name__})"
                )
            finally:
                if left:
                    items.cancel()
            deaths += 1
            if begun or deaths >= _DEATHS:
                raise UsageError("engine", reason, help="send it again")
            await asyncio.sleep(_PAUSE * 2**tries)
            tries += 1

    async def close(self) -> None:
        """Take no more requests. The replicas are ended by the cluster."""
        self._closing = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _ask(self) -> bool:
        """Whether the replicas have reported."""
        try:
            response = self._handle.broadcast("report")
            found: list[Any] = await response.results_async(timeout_s=30, return_exceptions=True)
        except (RayError, RayServeException, TimeoutError):
            return False
        reports = {each["replica"]: each for each in found if not isinstance(each, Exception)}
        self.reports.update(reports)
        self.present = frozenset(name for name, each in reports.items() if each["is_ready"])
        return True

    async def _asking(self) -> None:
        silent = 0
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            silent = 0 if await self._ask() else silent + 1
            if silent >= _SILENT:
                self.present = frozenset()


class Cluster:
    """A connection to Ray, and what was deployed over it."""

    def __init__(self, scale: Scale, drain_seconds: float) -> None:
        """Used by `connect`."""
        self.scale, self.drain_seconds = scale, drain_seconds
        self._applications: list[str] = []
        self._clients: list[ReplicaClient] = []
        self._processors = 0
        """The fewest processors that the replicas need."""

    @classmethod
    async def connect(cls, scale: Scale, engines: int = 1, drain_seconds: float = 30) -> Cluster:
        """Connect to a cluster, or start one on this machine, for so many engines (deployments).

        Raises: UsageError (`engine`) for a cluster that cannot be reached.
        """
        if scale.address:
            _check_address(scale.address)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Ray gives its workers the lowest priority but four (15): beside anything else, engines would stand still.
        os.environ.setdefault("RAY_worker_niceness", "0")
        for name in ("ray", "ray.serve"):
            logging.getLogger(name).setLevel(logging.ERROR)
        cores = os.cpu_count() or 1
        options: dict[str, Any] = {"address": scale.address}
        if not scale.address:
            options = {
                "address": "local",
                "num_cpus": max(cores, scale.most * engines),
                "include_dashboard": False,
                "object_store_memory": _OBJECT_BYTES,
            }
        try:
            # Not in a thread: what Ray starts ends with the thread that has started it.
            ray.init(configure_logging=False, log_to_driver=False, **options)
            serve.start(proxy_location="Disabled")
        except (
            RayError,
            RayServeException,
            ConnectionError,
            OSError,
            RuntimeError,
            ValueError,
        ) as error:
            ray.shutdown()
            where = f"the cluster {scale.address}" if scale.address else "Ray on this machine"
            raise UsageError("engine", f"{where} cannot be used: {str(error).strip()}") from None
        return cls(scale, drain_seconds)

    async def start(self, name: str, factory: str, options: Mapping[str, Any]) -> ReplicaClient:
        """Deploy an engine. Returns when its replicas are ready. On a cluster where the same one runs under this name,
        its replicas are used.

        Raises: UsageError of the factory; `bad-arguments` if the cluster has too few processors, or another engine
        under this name.
        """
        scale, application = self.scale, f"relaxpy-{name}"
        threads = options.get("threads") or self._threads()
        own = {**options, "threads": threads}
        digest = hashlib.sha256(json.dumps([factory, own], sort_keys=True).encode()).hexdigest()
        self._processors += threads * scale.fewest
        have = ray.cluster_resources().get("CPU", 0)
        if self._processors > have:
            raise UsageError(
                "bad-arguments",
                f"{scale.fewest} replicas of {threads} threads for each model need {self._processors} processors, "
                f"and Ray has {have:g}",
                help="give fewer --replicas or --threads",
            )
        is_there = application in await asyncio.to_thread(lambda: serve.status().applications)
        if is_there:
            handle = serve.get_app_handle(application)
        else:
            self._applications.append(application)
            running, waiting = own["running"], own["waiting"]
            places = running + min(running, waiting)
            deployment = serve.deployment(
                Replica,
                name="engine",
                num_replicas=scale.fewest if scale.fewest == scale.most else "auto",
                autoscaling_config=None if scale.fewest == scale.most else config.AutoscalingConfig(
                    min_replicas=scale.fewest, max_replicas=scale.most, initial_replicas=scale.fewest,
                    target_ongoing_requests=running,
                ),
                max_ongoing_requests=places,
                max_queued_requests=max(waiting * scale.most, 1),
                ray_actor_options={"num_cpus": threads},
                health_check_period_s=2,
                health_check_timeout_s=30,
                graceful_shutdown_timeout_s=self.drain_seconds,
                max_constructor_retry_count=2,
                logging_config=LoggingConfig(log_level="WARNING", enable_access_log=False),
                request_router_config=config.RequestRouterConfig(
                    request_router_class=ROUTER,
                    request_router_kwargs={
                        "difference": max(running // 2, 1),
                        "most": own["cache_tokens"],
                    },
                ),
            )  # fmt: skip
            bound = deployment.bind(factory, own, digest)
            try:
                handle = await asyncio.to_thread(
                    serve.run, bound, name=application, route_prefix=None
                )
            except (RuntimeError, RayError, RayServeException) as error:
                raise await asyncio.to_thread(_why, application, error) from None
        found = await handle.facts.remote()
        if found["digest"] != digest:
            raise UsageError(
                "bad-arguments",
                f"the cluster has an application {application} with other options",
                help=f"give the model another name, or end that one: serve delete {application}",
            )
        client = ReplicaClient(handle, found["facts"])
        await client.watch()
        self._clients.append(client)
        return client

    def _threads(self) -> int:
        """The threads of a replica: the cores of a machine, which all replicas share if there is one machine."""
        cores = os.cpu_count() or 1
        return cores if self.scale.address else max(cores // self.scale.most, 1)

    async def close(self) -> None:
        """End what was deployed here, and what was started."""
        for client in self._clients:
            await client.close()
        for name in self._applications:
            with suppress(RayError, RayServeException, RuntimeError):
                await asyncio.to_thread(serve.delete, name)
        if not self.scale.address:
            with suppress(RayError, RayServeException, RuntimeError):
                await asyncio.to_thread(serve.shutdown)
        ray.shutdown()


def _check_address(address: str) -> None:
    """Raises: UsageError for an address that nobody listens at: Ray would wait for minutes."""
    if address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if not colon or "/" in host or not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise UsageError(
            "bad-arguments",
            f"--ray is the address of a cluster, such as head:6379, or auto; got {address!r}",
        )
    try:
        socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
    except OSError as error:
        raise UsageError("engine", f"no cluster of Ray answers at {address}: {error}") from None


def _why(application: str, error: Exception) -> UsageError:
    """Why an application does not run: the error of its engine, or what Ray says."""
    texts: Sequence[str] = [str(error)]
    with suppress(RayError, RayServeException, RuntimeError):
        found = serve.status().applications[application]
        texts = [*texts, found.message, *(each.message for each in found.deployments.values())]
    for text in texts:
        match = re.search(re.escape(_REFUSED) + r"(\{.*\})", text)
        if match is not None:
            return error_of(json.loads(match[1]))
    return UsageError("engine", f"the replicas do not start: {' '.join(texts)[-2000:]}")
