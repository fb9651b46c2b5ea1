"""Writes a model as a folder of files for browsers: bytecode, kernels and weights, and the machine that runs them.

    package.json                for npm
    relaxpy.js, …               the machine: ES modules without a build step, with types (relaxpy.d.ts)
    index.html, …               a page
    model/model.json            the manifest: names, sizes and checksums of the other files
    model/TARGET/program.json   functions, kernels without their code, the places of constants
    model/TARGET/kernels.…      the code of the kernels: WGSL as JSON, or a module of WebAssembly
    model/TARGET/weights-….bin  the constants, in shards

A folder has the executables of one target, `webgpu` or `wasm`, or of both: a browser takes the first that it runs. The
same executables give the same bytes.
"""

from __future__ import annotations

import base64
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
from relaxpy.half_bytes import SHARED
from relaxpy.runtime.bytecode import HOST, KernelInfo
from relaxpy.runtime.codec import encode, exact_json
from relaxpy.runtime.devices.image import Image
from relaxpy.runtime.executable import Executable
from relaxpy.version import __version__
from relaxpy.web.typescript import declarations
from relaxpy.web.wasm_module import imports, link
from relaxpy.web.wasm_object import MAGIC

FORMAT = 2
"""The version of the files; `js/relaxpy.js` reads this one."""
TARGETS = ("webgpu", "wasm")
"""The targets that browsers run, the first choice first."""
SHARD = 16 << 20
"""The most bytes of a shard: what is downloaded again after an interruption, and held in memory at a time."""
_MODULES = (
    "relaxpy.js", "machine.js", "bytecode.js", "builtins.js", "errors.js", "host.js", "integers.js", "patterns.js",
    "page.css", "page.js", "store.js", "tokenizer.js", "values.js", "wasm.js", "webgpu.js", "sw.js", "relaxpy.d.ts",
    "data.js",
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
    exes: Executable | Sequence[Executable],
    folder: Path,
    name: str | None = None,
    page: Page = SIGNATURES,
    shard: int = SHARD,
) -> Written:
    """Writes the folder. `exes` is an executable, or one for each of `TARGETS`, which must be of the same program: a
    browser with WebGPU takes the first, others the second. `name` is that of the package, the folder's unless given.

    Raises: UsageError (`web-export`) for an executable that cannot run in a browser, with all reasons, and for two that
    differ in their functions; (`arguments`) for a name that npm does not accept, and a folder with other files.
    """
    by_target = _by_target([exes] if isinstance(exes, Executable) else exes)
    for exe in by_target.values():
        exe.verify(str(folder))  # the machine in the browser relies on it
    package = _package_name(folder.resolve().name) if name is None else name
    if not _NAME.fullmatch(package):
        raise UsageError(
            "arguments", f"{package!r} is no name of a package", help="name it: --name my-model"
        )
    _require_ours(folder)
    written: dict[str, Path] = {}

    def write(path: str, data: bytes) -> None:
        written[path] = _write(folder / path, data)

    models: list[dict[str, Any]] = []
    known: dict[str, dict[str, Any]] = {}
    """Shards by their checksums: targets with equal ones share them."""
    for target, exe in by_target.items():
        model: dict[str, Any] = {"target": target}
        if target == "webgpu":
            model["limits"] = _limits(exe)
        for part, file, data in _code(target, exe):
            model[part] = _entry(f"{target}/{file}", data)
            write(f"model/{target}/{file}", data)
        shards: list[dict[str, Any]] = []
        for number, data in enumerate(_shards(exe, shard)):
            entry = _entry(f"{target}/weights-{number:05}.bin", data)
            shared = known.setdefault(entry["sha256"], entry)
            shards.append(shared)
            if shared is entry:
                write(f"model/{entry['file']}", data)
        models.append({**model, "weights": shards})
    (exe, *_) = by_target.values()
    contents = dict(_page_files(exe, package, page, [path for path in written]))
    for path, data in contents.items():
        write(path, data)
    manifest = _json(
        {
            "format": FORMAT,
            "relaxpy": __version__,
            "name": package,
            "models": models,
            "files": {file: _entry(f"../{file}", contents[file]) for file in page.data},
            "page": sorted(
                path
                for path in contents
                if path.endswith((".js", ".css", ".json")) and path != "package.json"
            ),
        }
    )
    for number, file in enumerate(page.files):
        path = "index.html" if number == 0 else file
        write(path, _html(_text(f"pages/{file}"), contents, manifest))
    # Last: a folder without it is incomplete, and says so.
    write("model/model.json", manifest)
    for stale in (folder / "model").rglob("*"):
        if stale.is_file() and stale.relative_to(folder).as_posix() not in written:
            stale.unlink()
    sizes = [path.stat().st_size for path in written.values()]
    weights = sum(entry["bytes"] for entry in known.values())
    return Written(tuple(written.values()), weights, sum(sizes))


def _by_target(exes: Sequence[Executable]) -> dict[str, Executable]:
    """The executables by their targets, in the order of `TARGETS`."""
    found: dict[str, Executable] = {}
    for exe in exes:
        problems = refusals(exe)
        if problems:
            raise UsageError(
                "web-export",
                "the executable cannot run in a browser: " + problems[0],
                notes=[f"also: {each}" for each in problems[1:]],
                help='build it for a browser: relaxpy.build(mod, target="webgpu", params=…), or target="wasm"',
            )
        target = target_of(exe)
        if target in found:
            raise UsageError(
                "web-export",
                f"two executables are for {target}",
                help=f"one for each of {' and '.join(TARGETS)}",
            )
        found[target] = exe
    if not found:
        raise UsageError("web-export", "there is no executable to write")
    functions = {target: _functions(exe) for target, exe in found.items()}
    first, *others = functions.items()
    for target, own in others:
        if own != first[1]:
            different = sorted({text.partition("(")[0] for text in set(own) ^ set(first[1])})
            raise UsageError(
                "web-export",
                f"the executables for {first[0]} and {target} are of different programs: {_some(different)} "
                "is not the same function in both",
            )
    return {target: found[target] for target in TARGETS if target in found}


def _functions(exe: Executable) -> list[str]:
    """The signatures of the functions, without the devices of tensors."""
    signatures = [str(exe.signature(code.name)) for code in exe.functions if code.public]
    return [re.sub(r', vdevice="[^"]*"', "", text) for text in signatures]


def target_of(exe: Executable) -> str:
    """Which of `TARGETS` an executable is for, if it is for any."""
    return "wasm" if all(slot.kind == "cpu" for slot in exe.slots) else "webgpu"


def refusals(exe: Executable) -> list[str]:
    """Why an executable cannot run in a browser; empty if it can."""
    found: list[str] = []
    others = [slot.kind for slot in exe.slots[1:] if slot.kind != "webgpu"]
    if others or len(exe.slots) > 2:
        kinds = ", ".join(slot.kind for slot in exe.slots[1:])
        found.append(f"it is for {kinds}, and a browser has one webgpu device")
    is_wasm = target_of(exe) == "wasm"
    objects = {
        info.name: exe.objects[info.image.object] for info in exe.kernels if info.slot == HOST
    }
    host = [name for name, code in objects.items() if not is_wasm or code[:8] != MAGIC]
    if host:
        found.append(f"these kernels are for a processor: {_some(host)}")
    elif is_wasm:
        needed = sorted(imports(objects.values()) - _table("js/wasm.js", "MATH"))
        if needed:
            found.append(f"its kernels call functions of C's library: {_some(needed)}")
    used = {index for code in exe.functions for index in _indices(code.code, "Packed")}
    missing = [name for i, name in enumerate(exe.packed) if i in used and name not in builtins()]
    if missing:
        found.append(f"its machine has no {_some(missing)}")
    shared = {array.dtype.name for array in exe.constants} & SHARED
    for instr in (instr for code in exe.functions for instr in code.code):
        kind = getattr(instr, "pattern", instr)
        shared |= {getattr(kind, "dtype", "")} & SHARED
    if shared:
        found.append(f"it has tensors of {_some(sorted(shared))}, whose elements share bytes")
    if exe.libraries:
        found.append(f"it calls library functions: {_some(exe.libraries)}")
    packed = {weight.param for weight in exe.weight_params if weight.packer >= 0}
    if packed:
        found.append("its weights are packed parameters, and a browser gets them inside the model")
    return found


def _indices(code: Sequence[Any], kind: str) -> Iterator[int]:
    return (instr.index for instr in code if type(instr).__name__ == kind)


def builtins() -> frozenset[str]:
    """The builtin functions of the machine in JavaScript."""
    return _table("js/builtins.js", "BUILTINS")


@cache
def _table(file: str, name: str) -> frozenset[str]:
    """The keys of a table in JavaScript, each of which is on a line of its own."""
    table = _text(file).partition(f"export const {name} = {{")[2].partition("\n};")[0]
    return frozenset(re.findall(r'^  "?([\w.]+)"?:', table, re.MULTILINE))


def _page_files(
    exe: Executable, package: str, page: Page, model: Sequence[str]
) -> Iterator[tuple[str, bytes]]:
    """The files beside the model but for HTML, by their paths. `model` are the paths of the model's files."""
    for module in _MODULES:
        yield module, _text(f"js/{module}").encode()
    for file, data in page.data.items():
        yield file, _json(data)
    yield "files.js", _addresses(["model/model.json", *model], page).encode()
    yield "functions.d.ts", declarations(exe, _methods()).encode()
    yield "package.json", _package(package, page)


def _addresses(model: Sequence[str], page: Page) -> str:
    """The addresses of the model's files in the form that bundlers read, by their names in the manifest."""
    places = {path.removeprefix("model/"): path for path in model}
    places |= {f"../{file}": file for file in page.data}
    lines = [
        f'  "{name}": new URL("./{path}", import.meta.url).href,' for name, path in places.items()
    ]
    head = "/** The addresses of the model's files, in a form that bundlers read: they copy the files. */"
    return "\n".join([head, "", "export const FILES = {", *lines, "};", ""])


@cache
def _methods() -> frozenset[str]:
    """The names that a machine has beside the functions of its model."""
    text = _text("js/relaxpy.d.ts").partition("export interface VirtualMachine {")[2]
    return frozenset(
        re.findall(r"^  (?:readonly )?(\w+)[(:<]", text.partition("\n}")[0], re.MULTILINE)
    )


def _html(text: str, contents: Mapping[str, bytes], manifest: bytes) -> bytes:
    """A page with the checksums of its scripts and of the manifest, which browsers and `js/page.js` compare."""
    scripts = {
        f"./{path}": _integrity(data) for path, data in contents.items() if path.endswith(".js")
    }
    head = (
        f'<meta name="relaxpy-model" content="{hashlib.sha256(manifest).hexdigest()}">\n'
        f'<script type="importmap">{json.dumps({"integrity": scripts}, indent=1)}</script>\n'
    )
    style = '<link rel="stylesheet" href="page.css"'
    text = text.replace(style, f'{style} integrity="{_integrity(contents["page.css"])}"')
    return text.replace('<link rel="icon"', f'{head}<link rel="icon"', 1).encode()


def _integrity(data: bytes) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(data).digest()).decode()


def _code(target: str, exe: Executable) -> Iterator[tuple[str, str, bytes]]:
    """The program and the kernels of a target: the part of the manifest, the file, its bytes."""
    code, kernels = _wgsl(exe) if target == "webgpu" else _module(exe)
    table, _ = exe.constant_layout()
    program = {
        "functions": exact_json(encode(exe.functions)),
        "slots": encode(exe.slots),
        "data_types": exact_json(encode(exe.data_types)),
        "packed": list(exe.packed),
        "libraries": [],
        "constants": table,
        "kernels": kernels,
    }
    yield "program", "program.json", _json(program)
    yield "kernels", "kernels.json" if target == "webgpu" else "kernels.wasm", code


def _wgsl(exe: Executable) -> tuple[bytes, list[dict[str, Any]]]:
    """The code of the kernels, each text once, and what describes their launches."""
    places: dict[str, int] = {}
    described: list[dict[str, Any]] = []
    for info in exe.kernels:
        image = _image(exe, info)
        described.append(
            {
                **_described(info),
                "code": places.setdefault(image.source, len(places)),
                "entry": image.kernel,
                "args": list(image.args),
            }
        )
    return _json(list(places)), described


def _module(exe: Executable) -> tuple[bytes, list[dict[str, Any]]]:
    """The kernels as one module, and what describes their calls."""
    entries: dict[str, str] = {}
    for info in exe.kernels:
        entries.setdefault(f"__tvm_ffi_{info.image.symbol}", f"k{len(entries)}")
    objects = [exe.objects[i] for i in sorted({info.image.object for info in exe.kernels})]
    described = [
        {**_described(info), "entry": entries[f"__tvm_ffi_{info.image.symbol}"]}
        for info in exe.kernels
    ]
    return link(objects, {entry: symbol for symbol, entry in entries.items()}), described


def _described(info: KernelInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "slot": info.slot,
        "params": exact_json(encode(info.params or ())),
        "launch": exact_json(encode(info.image.launch)),
    }


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
    return {"file": path, "bytes": len(data), "sha256": digest}


def _package(name: str, page: Page) -> bytes:
    facts = {
        "name": name,
        "version": "0.1.0",
        "description": "A model compiled with relaxpy, for browsers",
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
