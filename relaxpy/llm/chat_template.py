"""Chat templates: the program of a checkpoint that writes messages as its prompt, in Jinja.

    template = ChatTemplate("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}")
    template.render(messages=[{"role": "user", "content": "Hello"}], add_generation_prompt=True)

A template is rendered in a process of its own (`relaxpy.llm.template_process`), which is sandboxed, and ended if it
takes too long: no template can do more than fail. The process starts with the first template, in about a tenth of a
second, and serves all.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relaxpy.checkpoints.tokenizer_file import LLM_HELP
from relaxpy.errors import Source, UsageError
from relaxpy.llm.checkpoint_files import optional_json
from relaxpy.narrow import is_list, is_mapping, is_sequence
from relaxpy.runtime.safetensors import read_text

SECONDS = 10.0
"""The most time that a template may take."""
_START = 60.0
"""The most time until the process that renders is ready."""
_DEEPEST = 64
"""The deepest nesting of lists and objects in the variables of a template."""
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names under which messages carry reasoning. Templates read the first, some the second."""


@dataclass(frozen=True)
class ChatTemplate:
    """A template of a checkpoint."""

    source: str
    place: str = "<template>"
    """The file that it is in, for errors."""
    seconds: float = SECONDS
    """The most time that it may take."""

    def render(self, **variables: Any) -> str:
        """The text that it writes.

        Raises: UsageError: `chat-template` if the template fails, refuses the messages, takes too long, or needs too
        much memory; `extra-missing` without jinja2.
        """
        request = {"source": self.source, "variables": plain(variables), "seconds": self.seconds}
        try:
            line = json.dumps(request)
        except ValueError as error:
            raise UsageError("bad-prompt", f"the messages cannot be written: {error}") from None
        found = _PROCESS.answer(line, self.seconds)
        if "text" in found:
            return str(found["text"])
        kind, text, number = found.get("kind"), found.get("error"), found.get("line")
        if kind == "TemplateRefusal":
            message = f"the template of {self.place} refuses these messages: {text}"
        else:
            message = f"the template of {self.place} fails: {text or kind}"
        span = None
        if isinstance(number, int):
            lines = self.source.split("\n")
            here = lines[number - 1] if 0 < number <= len(lines) else ""
            begin = len(here) - len(here.lstrip())
            span = Source(self.source, self.place).range(
                number, len(here[:begin].encode()), number, len(here.encode("utf-8", "replace"))
            )
        raise UsageError("chat-template", message, span=span)


class _Process:
    """The process that renders, started when it is first needed, and again after it was ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def answer(self, line: str, seconds: float) -> dict[str, Any]:
        """The process's answer to a line. If it takes longer, it is ended, and the answer is an error."""
        with self._lock:
            process = self._started()
            assert process.stdin is not None
            assert process.stdout is not None
            deadline = time.monotonic() + seconds
            done, code = False, None
            try:
                writer = threading.Thread(
                    target=_write, args=(process.stdin, line.encode() + b"\n"), daemon=True
                )
                writer.start()
                data = _line_from(process.stdout.fileno(), deadline)
                done = data is not None
            finally:
                if not done:  # an interrupt, too: an answer that comes later is to another question
                    code = process.poll()
                    self.end()
            if data is None:
                reason = (
                    f"it takes more than {seconds:g} seconds"
                    if code is None
                    else "its process was ended: it needs more memory or time than it may have"
                )
                return {"error": reason, "kind": "", "line": None}
            return json.loads(data)

    def end(self) -> None:
        """End the process."""
        process, self._running = self._running, None
        if process is None or self._owner != os.getpid():
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:  # what was not written cannot be now
                    continue

    def _started(self) -> subprocess.Popen[bytes]:
        # After a fork the process belongs to the parent.
        if (
            self._running is not None
            and self._owner == os.getpid()
            and self._running.poll() is None
        ):
            return self._running
        self.end()
        try:
            import jinja2  # noqa: F401
        except ImportError:
            raise UsageError(
                "extra-missing", "chat templates need the package jinja2", help=LLM_HELP
            ) from None
        program = Path(__file__).with_name("template_process.py")
        self._running = subprocess.Popen(
            [sys.executable, "-P", "-X", "utf8", str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # Ctrl-C is for this process
        )
        self._owner = os.getpid()
        assert self._running.stdout is not None
        if _line_from(self._running.stdout.fileno(), time.monotonic() + _START) != b"ready\n":
            self.end()
            raise UsageError(
                "chat-template",
                "the process that renders chat templates does not start",
                help=f"try {sys.executable} {program}",
            )
        return self._running


def _write(stream: Any, data: bytes) -> None:
    try:
        stream.write(data)
        stream.flush()
    except (OSError, ValueError):  # the process has ended, which the reader sees
        return


def _line_from(handle: int, deadline: float) -> bytes | None:
    """A line; None if it does not come in time, or the process ends."""
    parts: list[bytes] = []
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([handle], [], [], left)[0]:
            return None
        part = os.read(handle, 1 << 20)
        if not part:
            return None
        parts.append(part)
        if part.endswith(b"\n"):
            return b"".join(parts)
    return None


_PROCESS = _Process()
atexit.register(_PROCESS.end)


def plain(value: Any, depth: int = 0) -> Any:
    """A value as JSON has it: what a template sees has no methods but those of texts, numbers, lists and objects.

    Raises: UsageError (`bad-prompt`) for other values.
    """
    if depth > _DEEPEST:
        raise UsageError("bad-prompt", f"messages are nested more than {_DEEPEST} deep")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if is_mapping(value):
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    if is_sequence(value):
        return [plain(item, depth + 1) for item in value]
    raise UsageError(
        "bad-prompt",
        f"a message is made of texts, numbers, lists and objects, got {type(value).__name__}",
    )


def checked_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages, without fields that are None, and with reasoning under each name by which templates read it.

    Raises: UsageError (`bad-prompt`) if they are no list of objects with a role, of what JSON has.
    """
    if not is_sequence(messages) or not messages:
        raise UsageError(
            "bad-prompt",
            "a chat has at least one message",
            help='[{"role": "user", "content": "Hello"}]',
        )
    found: list[dict[str, Any]] = []
    for number, message in enumerate(messages):
        if not is_mapping(message) or not isinstance(message.get("role"), str):
            raise UsageError(
                "bad-prompt",
                f"message {number} has no role: it is {str(message)[:80]!r}",
                help='[{"role": "user", "content": "Hello"}]',
            )
        own = {str(key): plain(value) for key, value in message.items() if value is not None}
        reasoning = next((own[name] for name in _REASONING if name in own), None)
        if reasoning is not None:
            own = {"thinking": reasoning, **own, "reasoning_content": reasoning}
        found.append(own)
    return found


def read_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, ChatTemplate]:
    """The templates of a checkpoint by name; that without a name is "default".

    Raises: UsageError (`bad-checkpoint`).
    """
    found: dict[str, ChatTemplate] = {}
    old = folder / "chat_template.json"
    for path, given in (
        (folder / "tokenizer_config.json", config.get("chat_template")),
        (old, optional_json(old).get("chat_template")),
    ):
        if given is None:
            continue
        named = given if is_list(given) else [{"name": "default", "template": given}]
        for each in named:
            name, text = (
                (each.get("name"), each.get("template")) if is_mapping(each) else (None, None)
            )
            if not isinstance(name, str) or not isinstance(text, str):
                raise UsageError(
                    "bad-checkpoint",
                    f"{path}: chat_template must be a text, or a list of names and templates",
                )
            found[name] = ChatTemplate(text, str(path))
    more = folder / "additional_chat_templates"
    own = [folder / "chat_template.jinja", *(sorted(more.glob("*.jinja")) if more.is_dir() else [])]
    for path in own:
        if path.exists():
            name = "default" if path.parent == folder else path.stem
            found[name] = ChatTemplate(read_text(path), str(path))
    return found
