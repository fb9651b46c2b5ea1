"""A transcript of models by name, from a hub on loopback, with what goes wrong: cuts, other bytes, private models, no
network.

    python -m tests.hub_transcript
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from relaxpy.embedded import embedded_model
from tests.hub_server import Hub, hub_server

NAME = "example/answers"
CHAT = f"relaxpy chat {NAME}"
QUESTION = "How do I import Path?\n"


def run(
    command: str, environment: Mapping[str, str], given: str = "", note: str = "", shown: str = ""
) -> None:
    """Run a command, and print it with all that it prints."""
    print(f"$ {shown}{command}" + (f"        # {note}" if note else ""), flush=True)  # noqa: T201
    words = [sys.executable, "-m", *shlex.split(command)]
    done = subprocess.run(
        words, env={**os.environ, **environment}, input=given, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    text = "\n".join(each.strip("\n") for each in (done.stderr, done.stdout) if each.strip())
    print(f"{text}\n[exit code {done.returncode}]\n", flush=True)  # noqa: T201


def said(hub: Hub, folder: Path) -> None:
    here = {
        "HF_ENDPOINT": hub.address, "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "0", "HF_TOKEN": "",
        "COLUMNS": "100",
    }  # fmt: skip
    run(f"relaxpy plan {NAME}", here)
    run(CHAT.replace("answers", "anwsers"), here, QUESTION)
    hub.private[NAME] = "hf_secret"
    run(CHAT, here, QUESTION, "a private model")
    hub.private.clear()
    hub.wrong = True
    run(CHAT, here, QUESTION, "other bytes than the hub has listed")
    hub.wrong, hub.cut = False, 1
    run(CHAT, here, QUESTION, "the download is cut once")
    offline = {**here, "HF_ENDPOINT": "http://127.0.0.1:9"}
    run(f'relaxpy generate {NAME} "How do I import Path?"', offline, note="the hub does not answer")
    run(f"{CHAT}@v2", offline, QUESTION)
    run(f"{CHAT}@v2", {**here, "HF_HUB_OFFLINE": "1"}, QUESTION, shown="HF_HUB_OFFLINE=1 ")
    run("relaxpy serve example/other --port 0", here)


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        hub_server({NAME: Path(embedded_model())}) as hub,
    ):
        said(hub, Path(folder))


if __name__ == "__main__":
    main()
