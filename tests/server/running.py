"""Servers for tests: a process of `relaxpy serve`, and one in a thread whose models are scripted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from relaxpy.llm.chat_template import ChatTemplate
from relaxpy.llm.tokenizer import Tokenizer
from relaxpy.serve.client import EngineClient
from tests.llm.checkpoints import byte_level, tokenizers

pytest.importorskip("fastapi")
KEY = "sk-test"
END = "<|im_end|>"
MARKS = (
    "<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<|start|>",
    "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>",
)  # fmt: skip
ASKED = [{"role": "user", "content": "What is a tuple?"}]
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Bern"}}</tool_call>'
SCRIPT = f"<think>Hm.</think>I look.{CALL}{CALL}"
TEMPLATE = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{{ m.reasoning_content }}{%- for c in m.tool_calls or [] %}"
    "<tool_call> </think>{{ c.function.name }}({{ c.function.arguments.city }}){%- endfor %}<|im_end|>{%- endfor %}"
    "<|im_start|>assistant\n{# {{ tools }} #}"
)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@dataclass
class Running:
    """A server."""

    url: str
    process: subprocess.Popen[bytes] | None = None
    log: Path | None = None

    def lines(self) -> list[dict[str, Any]]:
        """Its log."""
        assert self.log is not None
        return [json.loads(line) for line in self.log.read_text().splitlines() if line[:1] == "{"]


@contextmanager
def server_process(folder: Path, *arguments: str, seconds: float = 300) -> Iterator[Running]:
    """`relaxpy serve` with these arguments, on a free port. It is there within so many seconds, or an error."""
    log = folder / "server.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "relaxpy",
                "serve",
                "--port",
                "0",
                "--threads",
                "1",
                "--log",
                "json",
                *arguments,
            ],
            stderr=stream,
            env={**os.environ, "PYTHONPATH": os.getcwd(), "RELAXPY_API_KEY": ""},
        )
    try:
        deadline, url = time.monotonic() + seconds, ""
        while not url:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
            for line in log.read_text().splitlines():
                url = line.partition(" at ")[2] if line.startswith("serving") else url
        yield Running(url, process, log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@cache
def scripted_tokenizer() -> Any:
    """A vocabulary of bytes with the marks of all formats."""
    made = tokenizers.Tokenizer.from_str(byte_level())
    made.add_special_tokens([*MARKS])
    return made


@contextmanager
def scripted_server(scripts: Mapping[str, Sequence[str]], **settings: Any) -> Iterator[str]:
    """A server in a thread. Each template is a model, m0 and so on; a seed is the number of an answer, counted over all
    of them."""
    from relaxpy.server.connections import bound
    from relaxpy.server.context import Server
    from relaxpy.server.run import run
    from relaxpy.server.served_model import ServedModel
    from relaxpy.server.settings import ModelSettings, ServerSettings

    backend, started = scripted_tokenizer(), threading.Event()
    found: dict[str, Any] = {}

    async def work() -> None:
        models: dict[str, ServedModel] = {}
        texts = [text for own in scripts.values() for text in own]
        options = {
            "scripts": [backend.encode(text, add_special_tokens=False).ids for text in texts],
            "end": backend.token_to_id(END),
            "vocab": backend.get_vocab_size(),
        }
        client = await EngineClient.start("tests.server.scripted:scripted_engine", options)
        for template in scripts:
            name = f"m{len(models)}"
            tokenizer = Tokenizer(
                backend, special={"eos_token": END}, templates={"default": ChatTemplate(template)}
            )
            models[name] = ServedModel(
                ModelSettings(name=name, place="/nowhere"), tokenizer, client
            )
        own = ServerSettings(port=0, **settings)
        try:
            server = found["server"] = Server(own, models)
            await run(server, bound("127.0.0.1", 0), ready)
        finally:
            await client.close()

    def ready(url: str) -> None:
        found["url"] = url
        started.set()

    async def main() -> None:
        found["loop"] = asyncio.get_running_loop()
        try:
            await work()
        finally:
            started.set()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        assert started.wait(60)
        assert "url" in found
        yield found["url"]
    finally:
        found["loop"].call_soon_threadsafe(found["server"].stop)
        thread.join(20)
