"""A virtual machine of JavaScript in node, called from Python: models for WebAssembly without a browser."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from relaxpy.errors import RuntimeCheckError
from tests.machine.values import from_json, to_json
from tests.web.support import JS, NODE


class NodeMachine:
    """The model that a process of node has loaded (`js/machine.mjs`)."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ask(self, *command: Any) -> Any:
        """The answer to a command. Raises: RuntimeCheckError for an error of the machine."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "node has ended"
        found = json.loads(line)
        if "code" in found:
            assert found["code"], found
            raise RuntimeCheckError(found["code"], found["text"], notes=found["notes"])
        return found.get("result")

    def load(self, url: str) -> dict[str, Any]:
        return self.ask("load", url, {"target": "wasm"})

    def __getitem__(self, name: str) -> Any:
        def call(*args: Any) -> Any:
            return from_json(self.ask("call", name, [to_json(arg) for arg in args]))

        return call


@contextmanager
def node_machine() -> Iterator[NodeMachine]:
    """A process of node, without a model."""
    assert NODE is not None
    process = subprocess.Popen(
        [NODE, "--expose-gc", str(JS / "machine.mjs")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield NodeMachine(process)
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.wait(20)
        process.stdout.close()
