"""What may stand in the place of a file: none of it may block a reader or end it. Used by the tests of caches."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path


def _socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's name has at most a hundred characters
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path.name)
    finally:
        os.chdir(here)


def _huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 42)


def _secret(path: Path) -> None:
    path.write_bytes(b"x")
    path.chmod(0)


ODD_FILES: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "socket": _socket,
    "folder": Path.mkdir,
    "link to nothing": lambda path: path.symlink_to(path.with_name("nothing")),
    "link to itself": lambda path: path.symlink_to(path.name),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "unreadable": _secret,
    "empty": Path.touch,
    "huge": _huge,
}
