"""Writes an executable for WebGPU as a folder of files: bytecode, kernels and weights, and the machine that runs them.

    package.json        for npm
    relaxpy.js, …       the machine: ES modules without a build step, with types (relaxpy.d.ts)
    index.html, …       a page
    model/model.json    the manifest: names, sizes and checksums of the other files
    model/program.json  functions, kernels without their code, the places of constants
    model/kernels.json  the code of the kernels
    model/weights-….bin the constants, in shards

The same executable gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from relaxpy.errors import UsageError
from relaxpy.files import moved_to
from relaxpy.runtime.bytecode import HOST, KernelInfo
from relaxpy.runtime.codec import encode, exact_json
from relaxpy.runtime.devices.image import Image
from relaxpy.runtime.executable import Executable
from relaxpy.version import __version__

FORMAT = 1
"""The version of the files; `js/relaxpy.js` reads this one."""
KIND = "webgpu"
SHARD = 16 << 20
"""The most bytes of a shard: what is downloaded again after an interruption, and held in memory at a time."""
_MODULES = (
    "relaxpy.js", "machine.js", "bytecode.js", "builtins.js", "errors.js", "host.js", "integers.js", "patterns.js",
    "page.css", "page.js", "store.js", "tokenizer.js", "values.js", "webgpu.js", "relaxpy.d.ts",
)  # fmt: skip
_NAME = re.compile(r"(@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]{0,200}")
"""The names that npm accepts."""


@dataclass(frozen=True)
class Page:
    """A page for a folder: files of `relaxpy/web/pages`, the first of which becomes index.html, and data for it."""

    files: tuple[str, ...]
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """File → JSON."""


SIGNATURES = Page(("functions.html",))
"""Lists the functions of a model."""


@dataclass(frozen=True)
class Written:
    """The files of an export."""

    files: tuple[Path, ...]
    weights: int
    """Bytes of weights."""
    nbytes: int
    """Bytes of all files."""


def export(
    exe: Executable,
    folder: Path,
    name: str | None = None,
    page: Page = SIGNATURES,
    shard: int = SHARD,
) -> Written:
    """Writes the folder. `name` is that of the package, the folder's unless given.

    Raises: UsageError (`web-export`) for an executable that cannot run in a browser, with all reasons; (`arguments`)
    for a name that npm does not accept, and a folder with other files.
    """
    problems = refusals(exe)
    if problems:
        raise UsageError(
            "web-export",
            "the executable cannot run in a browser: " + problems[0],
            notes=[f"also: {each}" for each in problems[1:]],
            help=f'build it for a browser: relaxpy.build(mod, target="{KIND}", params=…)',
        )
    exe.verify(str(folder))  # the machine in the browser relies on it
    package = _package_name(folder.resolve().name) if name is None else name
    if not _NAME.fullmatch(package):
        raise UsageError(
            "arguments", f"{package!r} is no name of a package", help="name it: --name my-model"
        )
    _require_ours(folder)
    contents = dict(_contents(exe, package, page))
    wanted = {folder / path for path in contents}
    written: list[Path] = []
    for path, data in contents.items():
        written.append(_write(folder / path, data))
    shards: list[dict[str, Any]] = []
    for number, data in enumerate(_shards(exe, shard)):
        path = f"model/weights-{number:05}.bin"
        shards.append(_entry(path, data))
        wanted.add(folder / path)
        written.append(_write(folder / path, data))
    manifest = {
        "format": FORMAT,
        "relaxpy": __version__,
        "name": package,
        "limits": _limits(exe),
        "program": _entry("model/program.json", contents["model/program.json"]),
        "kernels": _entry("model/kernels.json", contents["model/kernels.json"]),
        "weights": shards,
    }
    # Last: a folder without it is incomplete, and says so.
    written.append(_write(folder / "model/model.json", _json(manifest)))
    for stale in (folder / "model").glob("weights-*.bin"):
        if stale not in wanted:
            stale.unlink()
    sizes = [path.stat().st_size for path in written]
    return Written(tuple(written), sum(each["bytes"] for each in shards), sum(sizes))


def refusals(exe: Executable) -> list[str]:
    """Why an executable cannot run in a browser; empty if it can."""
    found: list[str] = []
    others = [slot.kind for slot in exe.slots[1:] if slot.kind != KIND]
    if others or len(exe.slots) > 2:
        kinds = ", ".join(slot.kind for slot in exe.slots[1:])
        found.append(f"it is for {kinds}, and a browser has one {KIND} device")
    host = [info.name for info in exe.kernels if info.slot == HOST]
    if host:
        found.append(f"these kernels are for a processor: {_some(host)}")
    used = {index for code in exe.functions for index in _indices(code.code, "Packed")}
    missing = [name for i, name in enumerate(exe.packed) if i in used and name not in builtins()]
    if missing:
        found.append(f"its machine has no {_some(missing)}")
    if exe.libraries:
        found.append(f"it calls library functions: {_some(exe.libraries)}")
    packed = {weight.param for weight in exe.weight_params if weight.packer >= 0}
    if packed:
        found.append("its weights are packed parameters, and a browser gets them inside the model")
    return found


def _indices(code: Sequence[Any], kind: str) -> Iterator[int]:
    return (instr.index for instr in code if type(instr).__name__ == kind)


@cache
def builtins() -> frozenset[str]:
    """The builtin functions of the machine in JavaScript: the keys of the table in `js/builtins.js`."""
    table = _text("js/builtins.js").partition("export const BUILTINS = {")[2]
    return frozenset(re.findall(r'^  "([\w.]+)":', table, re.MULTILINE))


def _contents(exe: Executable, package: str, page: Page) -> Iterator[tuple[str, bytes]]:
    """The files but the manifest and the weights, by their paths."""
    sources, kernels = _kernels(exe)
    table, _ = exe.constant_layout()
    program = {
        "functions": exact_json(encode(exe.functions)),
        "slots": encode(exe.slots),
        "packed": list(exe.packed),
        "libraries": [],
        "constants": table,
        "kernels": kernels,
    }
    yield "model/program.json", _json(program)
    yield "model/kernels.json", _json(sources)
    for module in _MODULES:
        yield module, _text(f"js/{module}").encode()
    for number, file in enumerate(page.files):
        yield "index.html" if number == 0 else file, _text(f"pages/{file}").encode()
    for file, data in page.data.items():
        yield file, _json(data)
    yield "package.json", _package(package, page)


def _kernels(exe: Executable) -> tuple[list[str], list[dict[str, Any]]]:
    """The code of the kernels, each text once, and what describes their launches."""
    places: dict[str, int] = {}
    described: list[dict[str, Any]] = []
    for info in exe.kernels:
        image = _image(exe, info)
        described.append(
            {
                "name": info.name,
                "slot": info.slot,
                "params": exact_json(encode(info.params or ())),
                "launch": exact_json(encode(info.image.launch)),
                "code": places.setdefault(image.source, len(places)),
                "entry": image.kernel,
                "args": list(image.args),
            }
        )
    return list(places), described


def _image(exe: Executable, info: KernelInfo) -> Image:
    return Image.of(info, exe.objects, "a WGSL")


def _limits(exe: Executable) -> dict[str, int]:
    """The limits that a device must have, by JavaScript's names for them."""
    found: dict[str, int] = {}
    for info in exe.kernels:
        for limit, value in _image(exe, info).limits.items():
            first, *rest = limit.split("-")
            name = first + "".join(word.capitalize() for word in rest)
            found[name] = max(found.get(name, 0), value)
    return found


def _shards(exe: Executable, most: int) -> Iterator[bytes]:
    """The section of constants in pieces of `most` bytes; a constant may be in several."""
    held = bytearray()
    for piece in exe.constant_layout()[1]:
        view = memoryview(bytes(piece) if isinstance(piece, bytes) else piece.data)
        while view:
            taken = view[: most - len(held)]
            held += taken
            view = view[len(taken) :]
            if len(held) == most:
                yield bytes(held)
                held.clear()
    if held:
        yield bytes(held)


def _entry(path: str, data: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    return {"file": Path(path).name, "bytes": len(data), "sha256": digest}


def _package(name: str, page: Page) -> bytes:
    facts = {
        "name": name,
        "version": "0.1.0",
        "description": "A model compiled with relaxpy, for WebGPU",
        "type": "module",
        "main": "./relaxpy.js",
        "types": "./relaxpy.d.ts",
        "exports": {
            ".": {"types": "./relaxpy.d.ts", "default": "./relaxpy.js"},
            "./model/*": "./model/*",
            **{f"./{file}": f"./{file}" for file in page.data},
        },
        "files": ["*.js", "*.d.ts", "*.html", "*.css", "*.json", "model"],
        "sideEffects": False,
    }
    return json.dumps(facts, indent=2).encode() + b"\n"


def _package_name(folder: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", folder.lower()).strip("-._") or "model"


def _require_ours(folder: Path) -> None:
    """Raises: UsageError (`arguments`) for a folder with files that this module did not write."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError("arguments", f"{folder} is not a folder")
    if any(folder.iterdir()) and not (folder / "relaxpy.js").is_file():
        raise UsageError(
            "arguments",
            f"{folder} has other files",
            help="name a new folder, or one that `relaxpy web` has written",
        )


def _write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with moved_to(path) as beside:
        beside.write_bytes(data)
    return path


def _text(name: str) -> str:
    return files("relaxpy.web").joinpath(name).read_text(encoding="utf-8")


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(dict.fromkeys(names[:8]))
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"
