"""A headless Chromium, driven by its DevTools protocol over a pipe: no packages, no port."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def chromium() -> str | None:
    """The program, if there is one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """A page of the browser."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._held, self._number = write, read, b"", 0
        self.events: list[dict[str, Any]] = []
        (target,) = [
            each for each in self.send("Target.getTargets")["targetInfos"] if each["type"] == "page"
        ]
        given = {"targetId": target["targetId"], "flatten": True}
        self._session = ""
        self._session = self.send("Target.attachToTarget", **given)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    _session = ""

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command's result. Events that come before it are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]
            self.events.append(found)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._held:
            part = os.read(self._read, 1 << 20)
            assert part, "the browser has ended"
            self._held += part
        line, _, self._held = self._held.partition(b"\0")
        return json.loads(line)

    def run(self, script: str) -> Any:
        """The value of an expression; promises are awaited."""
        found = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, script: str, seconds: float = 30) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + seconds
        while not self.run(script):
            assert time.monotonic() < deadline, f"{script}: {self.run('document.body.innerText')}"
            time.sleep(0.05)

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def picture(self, path: Path) -> None:
        data = self.send("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def mistakes(self) -> list[str]:
        """Errors of scripts, and what the browser refused."""
        self.run("1")
        return [
            json.dumps(each["params"])
            for each in self.events
            if each["method"] == "Runtime.exceptionThrown"
            or (each["method"] == "Log.entryAdded" and each["params"]["entry"]["level"] == "error")
        ]


WEBGPU = (
    "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan", "--disable-quic",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
"""Options for WebGPU on the processor."""


@contextmanager
def browser(
    folder: Path,
    width: int = 900,
    height: int = 640,
    webgpu: bool = False,
    microphone: Path | None = None,
) -> Iterator[Page]:
    """A page of a new browser, without a network but this machine; `webgpu`: with a device that is the processor;
    `microphone`: a wav file that is heard, again and again, in place of one."""
    program = chromium()
    assert program is not None
    (in_read, in_write), (out_read, out_write) = os.pipe(), os.pipe()
    script = f'exec "$0" "$@" 3<&{in_read} 4>&{out_write}'
    options = [
        "--headless=new", "--no-sandbox", "--remote-debugging-pipe", "--no-first-run",
        *(WEBGPU if webgpu else ("--disable-gpu",)),
        *(() if microphone is None else ("--use-fake-device-for-media-stream", f"--use-file-for-fake-audio-capture={microphone}")),
        "--disable-extensions", "--disable-background-networking", "--disable-dev-shm-usage", "--hide-scrollbars",
        f"--user-data-dir={folder}", f"--window-size={width},{height}", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
        "about:blank",
    ]  # fmt: skip
    process = subprocess.Popen(
        ["/bin/bash", "-c", script, program, *options],
        pass_fds=(in_read, out_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(in_read)
    os.close(out_write)
    try:
        yield Page(in_write, out_read)
    finally:
        os.close(in_write)
        process.terminate()
        process.wait(20)
        os.close(out_read)
