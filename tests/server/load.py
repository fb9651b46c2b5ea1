"""A load of many clients, whose answers are compared with the same requests alone.

    python -m tests.server.load --requests 20000 --clients 64
    python -m tests.server.load --hours 8

Clients ask at random for one of some distinct requests (500 by default): texts and chats, streamed and whole, of mixed lengths,
seeds, choices and grammars, a third of them with one of two adapters. Some go away, some send what is no body. Before that, each distinct request was
answered alone, by the same server: every answer under load must be equal. The memory of the server's processes is read after a warm-up and at the end; the
command fails if an answer is wrong, or a process grows by more than 1 MB per 1000 requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import httpx
import numpy as np
import safetensors.numpy

from relaxpy.embedded import embedded_model
from tests.server.running import Running, server_process

WORDS = "a list of tuples and sets is what the function returns when no value has been given to it".split()


ADAPTERS = ("first", "second")
WARM_UP = 2000
"""Requests until the memory of a server has settled: it grows by some megabytes at first, and is level then."""
MOST_GROWTH = 1.0
"""Megabytes of a process per 1000 requests."""


def distinct(
    count: int, longest: int, adapters: Sequence[str] = ()
) -> list[tuple[str, dict[str, Any]]]:
    """So many requests: path and body. A third of them name an adapter, if there are any."""
    pick = random.Random(1)
    found: list[tuple[str, dict[str, Any]]] = []
    for seed in range(count):
        words = " ".join(pick.choices(WORDS, k=pick.choice((1, 3, 10, 40, 90))))
        body: dict[str, Any] = {
            "max_tokens": pick.randint(1, longest),
            "temperature": pick.choice((0, 0, 0.7, 1.3)),
            "seed": seed,
            "n": pick.choice((1, 1, 1, 2)),
            "ignore_eos": pick.random() < 0.5,
        }
        if adapters and pick.random() < 1 / 3:
            body["model"] = pick.choice(adapters)
        if pick.random() < 0.1:
            body["guided_regex"] = "[a-z ]{3,12}"
            body["ignore_eos"] = False
        if pick.random() < 0.2:
            body["stop"] = pick.choice((" a", "e", "."))
        if pick.random() < 0.3:
            body["frequency_penalty"] = 0.5
        if pick.random() < 0.5:
            found.append(("/v1/completions", {**body, "prompt": words}))
        else:
            messages = [{"role": "user", "content": words}]
            found.append(("/v1/chat/completions", {**body, "messages": messages}))
    return found


@dataclass
class Load:
    """Clients of one server."""

    url: str
    requests: list[tuple[str, dict[str, Any]]]
    expected: list[Any] = field(default_factory=list[Any])
    outcomes: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])

    async def answer(self, http: httpx.AsyncClient, number: int, stream: bool) -> Any:
        """The texts and reasons of a request; its status, if it is refused."""
        path, body = self.requests[number]
        if not stream:
            found = await http.post(path, json=body)
            if found.status_code != 200:
                return found.status_code
            return [
                (c["text"] if "text" in c else c["message"]["content"], c["finish_reason"])
                for c in found.json()["choices"]
            ]
        texts, reasons = [""] * body["n"], [None] * body["n"]
        async with http.stream("POST", path, json={**body, "stream": True}) as lines:
            if lines.status_code != 200:
                return lines.status_code
            async for line in lines.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                for choice in json.loads(line[6:])["choices"]:
                    own = choice["text"] if "text" in choice else choice["delta"].get("content", "")
                    texts[choice["index"]] += own
                    reasons[choice["index"]] = choice["finish_reason"] or reasons[choice["index"]]
        return [*zip(texts, reasons, strict=True)]

    async def alone(self, http: httpx.AsyncClient) -> None:
        """Answer each request when nothing else runs."""
        for number in range(len(self.requests)):
            self.expected.append(await self.answer(http, number, stream=False))

    async def client(self, http: httpx.AsyncClient, seed: int, more: Any) -> None:
        """Ask until there is nothing more to ask."""
        pick = random.Random(seed)
        while (number := next(more, None)) is not None:
            what = pick.random()
            if what < 0.05:
                found = await http.post("/v1/completions", content=b'{"prompt": ')
                self.outcomes["malformed"] += 1
                if found.status_code not in (400, 415):
                    self.wrong.append(f"a malformed body: {found.status_code}")
            elif what < 0.15:
                await self.leave(http, number, pick.random() * 0.2)
            else:
                await self.compare(http, number, stream=pick.random() < 0.5)

    async def leave(self, http: httpx.AsyncClient, number: int, seconds: float) -> None:
        """Go away before the end."""
        try:
            await asyncio.wait_for(self.answer(http, number, stream=True), seconds)
            self.outcomes["ended before the client left"] += 1
        except TimeoutError:
            self.outcomes["left"] += 1

    async def compare(self, http: httpx.AsyncClient, number: int, stream: bool) -> None:
        """Ask, again if the queue is full, and compare the answer with the expected one."""
        try:
            while (found := await self.answer(http, number, stream)) in (429, 503):
                self.outcomes["refused, asked again"] += 1
                await asyncio.sleep(0.05)
        except httpx.HTTPError as error:
            found = f"lost: {error!r}"
        self.outcomes["streamed" if stream else "whole"] += 1
        if found != self.expected[number]:
            self.wrong.append(f"{self.requests[number]}: {found}, alone {self.expected[number]}")

    async def run(self, clients: int, count: int, seconds: float = 0) -> None:
        """So many clients ask so many times, or for so long."""
        deadline = time.monotonic() + seconds

        def more() -> Any:
            pick, done = random.Random(0), 0
            while time.monotonic() < deadline if seconds else done < count:
                done += 1
                yield pick.randrange(len(self.requests))

        limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
        async with httpx.AsyncClient(base_url=self.url, limits=limits, timeout=600) as http:
            if not self.expected:
                await self.alone(http)
            numbers = more()
            await asyncio.gather(*(self.client(http, n, numbers) for n in range(clients)))


def memory(pid: int) -> dict[str, float]:
    """The resident memory of a process and its children, in MB."""
    found: dict[str, float] = {}
    for each in (pid, *children(pid)):
        status = Path(f"/proc/{each}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
        command = Path(f"/proc/{each}/cmdline").read_bytes().split(b"\0")
        name = (
            "engine"
            if b"relaxpy.serve.engine_process" in command
            else "server"
            if each == pid
            else "templates"
        )
        found[name] = int(line.split()[1]) / 1024
    return found


def children(pid: int) -> list[int]:
    return [
        int(each)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for each in (task / "children").read_text().split()
    ]


def write_adapter(folder: Path, seed: int) -> Path:
    """A LoRA adapter of the model that ships with relaxpy, of random numbers, as PEFT writes it."""
    config = json.loads((embedded_model() / "config.json").read_text())
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"] * config["head_dim"]
    random, tensors = np.random.default_rng(seed), dict[str, np.ndarray]()
    for layer in range(config["num_hidden_layers"]):
        for place, (out, width) in {
            "self_attn.q_proj": (heads, hidden),
            "mlp.down_proj": (hidden, inner),
        }.items():
            name = f"base_model.model.model.layers.{layer}.{place}"
            tensors[f"{name}.lora_A.weight"] = random.standard_normal((4, width), np.float32) / 16
            tensors[f"{name}.lora_B.weight"] = random.standard_normal((out, 4), np.float32) / 16
    folder.mkdir()
    maps = ["q_proj", "down_proj"]
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": maps}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    safetensors.numpy.save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--requests", type=int, default=20_000)
    options.add_argument("--clients", type=int, default=64)
    options.add_argument("--distinct", type=int, default=500)
    options.add_argument("--longest", type=int, default=60, help="tokens of an answer")
    options.add_argument("--hours", type=float, default=0, help="instead of a number of requests")
    options.add_argument("--threads", default="1")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        own = [f"--adapter={n}={write_adapter(folder / n, i)}" for i, n in enumerate(ADAPTERS)]
        own += ["--log", "none", "--threads", given.threads]
        with server_process(folder, *own, seconds=1200) as running:
            sys.exit(not _is_well(running, given))


def _is_well(running: Running, given: argparse.Namespace) -> bool:
    """Attack a server, and say what was seen: whether all answers are right, and the memory does not grow."""
    assert running.process is not None
    pid = running.process.pid
    load = Load(running.url, distinct(given.distinct, given.longest, ADAPTERS))
    start = time.monotonic()
    asyncio.run(load.run(given.clients, WARM_UP))
    click.echo(f"{given.distinct} alone, {WARM_UP} to warm up: {time.monotonic() - start:.0f} s")
    before, asked, start = memory(pid), load.outcomes.total(), time.monotonic()
    asyncio.run(load.run(given.clients, max(given.requests - WARM_UP, 0), 3600 * given.hours))
    seconds, count = time.monotonic() - start, load.outcomes.total() - asked
    click.echo(
        f"{count} requests in {seconds:.0f} s by {given.clients} clients: {dict(load.outcomes)}"
    )
    grown: list[float] = []
    for name, megabytes in memory(pid).items():
        grown.append((megabytes - before.get(name, 0)) / max(count / 1000, 1))
        click.echo(f"{name}: {megabytes:.1f} MB, {grown[-1]:+.3f} MB per 1000 requests")
    click.echo(f"{len(load.wrong)} wrong")
    click.echo("\n".join(load.wrong[:10]))
    return not load.wrong and max(grown) <= MOST_GROWTH


if __name__ == "__main__":
    main()
