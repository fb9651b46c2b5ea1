"""Mutation testing of executable files with valid checksums: loading and running a mutated file must end in results or
in a `RelaxError`.

    for finding in mutate_files(count=300, seed=0): …

`relaxpy fuzz --files 20000` is the command-line interface. A mutation takes a file of the corpus
(`relaxpy.testing.file_corpus`), changes fields, instructions, tables or texts of its section `meta`, or replaces
sections by those of another file, and writes it with new checksums. A separate process loads it and, if that succeeds,
runs it with valid and invalid arguments, also in the checking mode, with every tensor placed before an inaccessible
page. Findings are signals, timeouts, exceptions of other classes, and executed text from the file.

Machine code is not mutated, since running an executable means trusting it (docs/runtime.md).
"""

from __future__ import annotations

import builtins
import copy
import faulthandler
import json
import os
import random
import resource
import select
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

from relaxpy.errors import ExecutableError, RelaxError
from relaxpy.runtime import VirtualMachine, container, load, pool, tensor, trampoline
from relaxpy.runtime.bytecode import INT_OPS
from relaxpy.runtime.dtype import INFO
from relaxpy.testing.file_corpus import Sample, write_corpus
from relaxpy.testing.guard_pages import allocate, guarded

SECONDS = 30.0
LONG = 4.0
"""Seconds between two looks at a running call."""
"""The time limit for one file in seconds."""
MEMORY = 6 << 30
"""The memory limit of a process in bytes."""
DEEP = 2000
"""The depth of nested calls at which the process must report an error."""
BATCH = 64
"""The number of files that a process loads, unless it dies."""
CANARY = "relaxpy_canary"

_TEXTS = (
    f"\r__builtins__['{CANARY}'] = 1\r#",
    f"\n import builtins; builtins.{CANARY} = 1 #",
    f"0\nimport builtins\nbuiltins.{CANARY} = 1\n",
    f"__import__('builtins').__dict__.__setitem__('{CANARY}', 1)",
    f"x\u2028builtins.{CANARY} = 1", f"'); builtins.{CANARY} = 1; ('", f"{{{CANARY}}}", f"\x0c\x1c\x85{CANARY}",
    "", "\0", "\ud800", "float32", "int64", "/etc/passwd", "../../x", "/dev/zero", "vm.builtin.shape_of", "add", "eq",
    "a" * 5000,
)  # fmt: skip
_NUMBERS = (
    0, 1, -1, 2, 3, 4, 5, 7, 8, 15, 16, 63, 64, 65, 255, 4096, 1 << 20, 1 << 31, (1 << 31) - 1, 1 << 32, (1 << 63) - 1,
    1 << 63, -(1 << 63), -(1 << 63) - 1, 10**30, -2, -64,
)  # fmt: skip
_OTHERS = (
    None,
    True,
    False,
    1.5,
    float("nan"),
    float("inf"),
    [],
    {},
    [[]],
    {"Reg": [0]},
    {"Heap": [0]},
    {"Heap": [1]},
)

_DEEP = "relaxpy deep "
_AROUND = (
    ("[", "]"),
    ('{"IntOp":["add",[', ",1]]}"),
    ('{"IntOp":["floordiv",[', ",2]]}"),
    ('{"TuplePattern":[[', "]]}"),
)

Place = tuple[Any, Any]
"""A list or object, and the index or key of the value to change."""


@dataclass(frozen=True)
class Finding:
    """A file with an unexpected outcome."""

    seed: int
    what: str


@dataclass
class Pieces:
    """The parts of a file."""

    sample: Sample
    meta: Any
    sections: dict[str, bytes]
    """The other sections."""
    weights: bytes | None
    """The contents of a separate weights file."""


def mutate_files(
    count: int,
    seed: int = 0,
    jobs: int = 1,
    progress: Callable[[dict[str, int]], None] | None = None,
) -> Iterator[Finding]:
    """Mutates `count` files with seeds from `seed` on, in `jobs` parallel processes. `progress` is called with the
    number of files for each outcome."""
    with tempfile.TemporaryDirectory(prefix="relaxpy-") as folder:
        corpus = [_read(sample) for sample in write_corpus(Path(folder))]
        waiting = [
            list(range(i, min(i + BATCH, seed + count))) for i in range(seed, seed + count, BATCH)
        ]
        running: list[_Child] = []
        outcomes: dict[str, int] = {}
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    running.append(_Child(corpus, waiting.pop(0)))
                ready, _, _ = select.select([child.pipe for child in running], [], [], 1.0)
                for child in list(running):
                    for number, outcome in child.poll(child.pipe in ready):
                        kind, _, rest = outcome.partition(": ")
                        outcomes[kind] = outcomes.get(kind, 0) + 1
                        if kind == "finding":
                            yield Finding(number, rest)
                    if child.done:
                        running.remove(child)
                        if child.left:
                            waiting.insert(0, child.left)
                if progress is not None:
                    progress(outcomes)
        finally:
            for child in running:
                child.end()


def tally(count: int, seed: int = 0) -> tuple[list[Finding], dict[str, int]]:
    """The findings of `mutate_files`, and the number of files for each outcome."""
    outcomes: dict[str, int] = {}
    return list(mutate_files(count, seed, progress=outcomes.update)), outcomes


class _Child:
    """A process that loads files one after another."""

    def __init__(self, corpus: Sequence[Pieces], seeds: list[int]) -> None:
        self.left = seeds
        self.done = False
        self.text = b""
        self.since = monotonic()
        self.pipe, theirs = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of forks beside threads, which do nothing here
            self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(self.pipe)
                _work(corpus, seeds, theirs)
                code = 0
            finally:
                os._exit(code)
        os.close(theirs)

    def poll(self, ready: bool) -> Iterator[tuple[int, str]]:
        """Finished seeds and their outcomes."""
        data = os.read(self.pipe, 1 << 16) if ready else b""
        *lines, self.text = (self.text + data).split(b"\n")
        for line in lines:
            self.since = monotonic()
            yield self.left.pop(0), json.loads(line)
        if ready and not data:
            os.close(self.pipe)
            _, status = os.waitpid(self.pid, 0)
            self.done = True
            if self.left:
                ended = os.waitstatus_to_exitcode(status)
                yield self.left.pop(0), f"finding: the process ended with {ended}"
        elif monotonic() - self.since > SECONDS:
            self.end()
            self.done = True
            yield self.left.pop(0), f"finding: no end after {SECONDS:.0f} s"

    def end(self) -> None:
        """Stops the process."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.pipe)


# Code of the process


class Interrupted(BaseException):
    """Raised in a call that takes too long."""


def _interrupt(*_: object) -> None:
    """Ends the call of a function of an executable, if one is running: a file may say a loop without an end. Anything
    else that does not end is a finding."""
    global _began
    frames = [frame for frame, _ in traceback.walk_stack(None)]
    ours = [frame for frame in frames if frame.f_code.co_filename.startswith("<relaxpy ")]
    before, _began = _began, ours[-1] if ours else None
    if ours and ours[-1] is before:
        _began = None
        raise Interrupted


_began: FrameType | None = None
"""The function of an executable that was running when the alarm last went."""


def _work(corpus: Sequence[Pieces], seeds: Sequence[int], pipe: int) -> None:
    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    trampoline.MAX_CALLS = DEEP
    signal.signal(signal.SIGALRM, _interrupt)
    signal.setitimer(signal.ITIMER_REAL, LONG, LONG)
    events: list[str] = []
    sys.addaudithook(lambda event, args: _listen(event, args, events))
    tensor.allocate = pool.allocate = allocate  # type: ignore[assignment]
    with tempfile.TemporaryDirectory(prefix="relaxpy-") as folder:
        for seed in seeds:
            events.clear()
            try:
                outcome = try_file(corpus, seed, Path(folder))
            except RelaxError as error:
                outcome = f"finding: {error}"
            except BaseException as error:
                outcome = f"finding: {type(error).__name__}: {error!r:.300}"
            if events or hasattr(builtins, CANARY):
                outcome = f"finding: executed {events}"
            os.write(pipe, json.dumps(outcome).encode() + b"\n")


def _listen(event: str, args: tuple[Any, ...], events: list[str]) -> None:
    """Records events that a file must not cause."""
    # The linker of kernels runs a C++ compiler named os.devnull to ask for its standard library
    # (`relaxpy.runtime.devices.cpu.kernels`).
    if event in _EXECUTIONS and args[0] != os.devnull:
        events.append(f"{event} {args[0]!r:.80}")
    if event == "compile" and CANARY in repr(args[0]):
        events.append("compile")


_EXECUTIONS = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen")


def try_file(corpus: Sequence[Pieces], seed: int, folder: Path) -> str:
    """Writes a mutated file, loads and runs it. Returns `refused`, `error` (at run time) or `ran`."""
    rng = random.Random(seed)
    pieces = rng.choice(corpus)
    file = folder / "changed.rxe"
    write(changed(pieces, corpus, rng), file, rng)
    try:
        exe = load(file)
    except ExecutableError as error:
        if str(file) not in error.message:
            return f"finding: an error without its file: {error.message}"
        return "refused"
    outcome = "ran"
    for check_memory in (False, True):
        try:
            exe.as_text(kernels=True)
            vm = VirtualMachine(exe, check_memory=check_memory)
        except RelaxError:
            outcome = "error"
            continue
        for name, args in pieces.sample.calls:
            try:
                vm[name](*guarded(args))
            except RelaxError as error:
                str(error)
                outcome = "error"
            except Interrupted:
                outcome = "ran"  # a loop that does not end
        if not check_memory and seed % 8 == 0:
            outcome = _look(vm, pieces.sample, outcome)
    return outcome


def _look(vm: VirtualMachine, sample: Sample, outcome: str) -> str:
    """Requests a profile and a memory plan."""
    name, args = sample.calls[0]
    try:
        str(vm.profile(name, *guarded(args), repeat=1))
        str(vm.executable.memory_plan())
    except RelaxError:
        return "error"
    except Interrupted:
        return "ran"
    return outcome


# Files


def _read(sample: Sample) -> Pieces:
    found = container.open_container(sample.file)
    sections = {name: found.read(name) for name in found.sections}
    meta = json.loads(sections.pop("meta"))
    beside = sample.file.with_name(sample.file.name + ".weights")
    weights = container.open_container(beside).read("weights") if beside.exists() else None
    return Pieces(sample, meta, sections, weights)


def write(pieces: Pieces, file: Path, rng: random.Random) -> None:
    """Writes a file with valid checksums. If its weights are in a separate file, writes that too, or something else in
    its place."""
    beside = file.with_name(file.name + ".weights")
    for path in (file, beside):
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        path.unlink(missing_ok=True)
    meta = pieces.meta
    if pieces.weights is not None:
        digests = container.write_container(beside, {"weights": pieces.weights})
        if isinstance(meta, dict) and isinstance(meta.get("weights"), dict):
            meta["weights"]["sha256"] = digests["weights"]
            if rng.random() < 0.3:
                _misplaced(beside, meta["weights"], rng)
    text = _deepened(json.dumps(meta, separators=(",", ":"), sort_keys=True))
    container.write_container(file, {"meta": text.encode(), **pieces.sections})


def _misplaced(beside: Path, wanted: dict[str, Any], rng: random.Random) -> None:
    """Changes the path of the weights file, or puts another kind of file there."""
    match rng.randrange(8):
        case 0:
            wanted["file"] = rng.choice(
                ["../x", "/etc/passwd", "/dev/zero", ".", "..", "", "a/b", "x\0y", "~/x", 7, None]
            )
        case 1:
            beside.unlink()
            os.mkfifo(beside)
        case 2:
            beside.unlink()
            beside.mkdir()
        case 3:
            beside.unlink()
            beside.symlink_to(rng.choice(["/dev/zero", "/dev/stdin", "/etc/passwd", beside.name]))
        case 4:
            elsewhere = beside.parent / "elsewhere"
            elsewhere.mkdir(exist_ok=True)
            beside.replace(elsewhere / beside.name)
            beside.symlink_to(elsewhere / beside.name)
        case 5:
            wanted["sha256"] = rng.choice(["", "0" * 64, 3])
        case 6:
            beside.write_bytes(beside.read_bytes()[: rng.randrange(200)])
        case _:
            wanted["file"] = "elsewhere.weights"


# Mutations


def changed(pieces: Pieces, corpus: Sequence[Pieces], rng: random.Random) -> Pieces:
    """A copy with one mutation, sometimes a few."""
    new = Pieces(pieces.sample, copy.deepcopy(pieces.meta), dict(pieces.sections), pieces.weights)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        kinds, weights = zip(*_CHANGES, strict=True)
        rng.choices(kinds, weights)[0](new, corpus, rng)
    return new


def _places(value: Any) -> Iterator[Place]:
    """Every field of a tree."""
    todo = [value]
    while todo:
        node = todo.pop()
        items = (
            node.items()
            if isinstance(node, dict)
            else enumerate(node)
            if isinstance(node, list)
            else ()
        )
        for key, item in items:
            yield node, key
            todo.append(item)


def _any_place(
    new: Pieces, rng: random.Random, kind: type | tuple[type, ...] = object
) -> Place | None:
    """A random place with a value of this kind, more often in the code of a function."""
    functions = new.meta.get("functions") if isinstance(new.meta, dict) else None
    tree = functions if functions and rng.random() < 0.8 else new.meta
    found = [
        (node, key) for node, key in _places(tree)
        if isinstance(node[key], kind) and not (kind is int and isinstance(node[key], bool))
    ]  # fmt: skip
    return rng.choice(found) if found else None


def _codes(meta: Any) -> list[list[Any]]:
    """The instructions of each function."""
    found: list[list[Any]] = []
    for function in meta.get("functions") or () if isinstance(meta, dict) else ():
        fields = function.get("FunctionCode") if isinstance(function, dict) else None
        if isinstance(fields, list) and len(fields) > 6 and isinstance(fields[6], list):
            found.append(fields[6])
    return found


def _type(new: Pieces, _: Sequence[Pieces], rng: random.Random) -> None:
    place = _any_place(new, rng)
    if place is not None:
        values = rng.choice((_TEXTS, _NUMBERS, _OTHERS))
        place[0][place[1]] = copy.deepcopy(rng.choice(values))


def _image(new: Pieces, corpus: Sequence[Pieces], rng: random.Random) -> None:
    """Mutates or moves a field of a kernel, of its images, or of their requirements."""
    if not isinstance(new.meta, dict):
        return
    tables = {name: new.meta.get(name) for name in ("kernels", "requirements")}
    only = Pieces(new.sample, tables, new.sections, new.weights)
    rng.choice((_type, _number, _number, _text, _swap, _item))(only, corpus, rng)
    new.meta |= only.meta


def _number(new: Pieces, _: Sequence[Pieces], rng: random.Random) -> None:
    place = _any_place(new, rng, int)
    if place is not None:
        node, key = place
        near = [node[key] + 1, node[key] - 1, -node[key], node[key] * 2, node[key] + 64]
        node[key] = rng.choice([*near, *near, *near, rng.choice(_NUMBERS), rng.randrange(12)])


def _text(new: Pieces, _: Sequence[Pieces], rng: random.Random) -> None:
    place = _any_place(new, rng, str)
    if place is not None:
        others = [node[key] for node, key in _places(new.meta) if isinstance(node[key], str)]
        place[0][place[1]] = rng.choice([rng.choice(_TEXTS), rng.choice(others)])


def _swap(new: Pieces, _: Sequence[Pieces], rng: random.Random) -> None:
    kind = rng.choice([int, dict, list, str])
    one, two = _any_place(new, rng, kind), _any_place(new, rng, kind)
    if one is not None and two is not None:
        a, b = copy.deepcopy(one[0][one[1]]), copy.deepcopy(two[0][two[1]])
        one[0][one[1]], two[0][two[1]] = b, a


def _instruction(new: Pieces, corpus: Sequence[Pieces], rng: random.Random) -> None:
    codes = [code for code in _codes(new.meta) if code]
    if not codes:
        return
    code = rng.choice(codes)
    at, other = rng.randrange(len(code)), rng.randrange(len(code))
    match rng.randrange(5):
        case 0:
            del code[at]
        case 1:
            code.insert(at, copy.deepcopy(code[at]))
        case 2:
            code[at], code[other] = code[other], code[at]
        case 3:
            code.insert(other, code.pop(at))
        case _:
            foreign = [
                each for pieces in (new, rng.choice(corpus)) for each in _codes(pieces.meta) if each
            ]
            code.insert(at, copy.deepcopy(rng.choice(rng.choice(foreign))))


def _likely(new: Pieces, _: Sequence[Pieces], rng: random.Random) -> None:
    """Makes a plausible other program: copies a field between instructions of the same kind, or changes an operation or
    an element type."""
    codes = [code for code in _codes(new.meta) if code]
    if not codes:
        return
    code = rng.choice(codes)
    instr = rng.choice(code)
    if not isinstance(instr, dict) or len(instr) != 1:
        return
    ((name, fields),) = instr.items()
    others = [each[name] for each in code if isinstance(each, dict) and name in each]
    other = rng.choice(others)
    if isinstance(fields, list) and isinstance(other, list) and len(fields) == len(other) > 1:
        at = rng.randrange(1, len(fields))
        fields[at] = copy.deepcopy(other[at])
    texts = [place for place in _places(instr) if isinstance(place[0][place[1]], str)]
    if texts and rng.random() < 0.5:
        node, key = rng.choice(texts)
        node[key] = rng.choice(INT_OPS if node[key] in INT_OPS else sorted(INFO))
    numbers = [place for place in _places(instr) if type(place[0][place[1]]) is int]
    if numbers and rng.random() < 0.5:
        node, key = rng.choice(numbers)
        node[key] = rng.randrange(8)


def _item(new: Pieces, _: Sequence[Pieces], rng: random.Random) -> None:
    """Changes the number of items in a list."""
    place = _any_place(new, rng, list)
    if place is None:
        return
    items = place[0][place[1]]
    match rng.randrange(4):
        case 0 if items:
            del items[rng.randrange(len(items))]
        case 1 if items:
            items.append(copy.deepcopy(rng.choice(items)))
        case 2:
            items.clear()
        case _:
            place[0][place[1]] = items * rng.choice([2, 3, 100])


def _deep(new: Pieces, _: Sequence[Pieces], rng: random.Random) -> None:
    """Inserts a mark for a deeply nested value, which `write` expands."""
    place = _any_place(new, rng)
    if place is not None:
        inner = json.dumps(place[0][place[1]])
        times = rng.choice([3, 30, 120, 160, 400, 900, 5000, 100_000])
        if len(inner) < 10_000:
            place[0][place[1]] = f"{_DEEP}{rng.randrange(len(_AROUND))},{times},{inner}"


def _deepened(text: str) -> str:
    """The text of the section with marks expanded."""
    begin = text.find(f'"{_DEEP}')
    if begin < 0:
        return text
    mark, length = json.JSONDecoder().raw_decode(text[begin:])
    how, times, inner = mark[len(_DEEP) :].split(",", 2)
    before, behind = _AROUND[int(how)]
    return text[:begin] + before * int(times) + inner + behind * int(times) + text[begin + length :]


def _splice(new: Pieces, corpus: Sequence[Pieces], rng: random.Random) -> None:
    """Inserts a part of another file."""
    other = rng.choice(corpus)
    if rng.random() < 0.3:
        name = rng.choice(["object", "sources", "weights"])
        if name in other.sections:
            new.sections[name] = other.sections[name]
        elif name == "weights":
            new.weights = other.weights
    elif isinstance(new.meta, dict):
        name = rng.choice(sorted(other.meta))
        new.meta[name] = copy.deepcopy(other.meta[name])


def _section(new: Pieces, _: Sequence[Pieces], rng: random.Random) -> None:
    """Removes, adds or corrupts a section or a part of one."""
    match rng.randrange(5):
        case 0:
            new.sections.pop(rng.choice(["sources", "object", "weights"]), None)
        case 1:
            new.sections[rng.choice(["more", "x" * 16, "\x07"])] = b"x"
        case 2:
            new.sections["sources"] = rng.choice(
                [b"", b"[]", b"3", b'{"a": 1}', b"[" * 100_000, b"\xff\xfe", b"1" * 9999]
            )
        case 3 if isinstance(new.meta, dict):
            new.meta.pop(rng.choice(sorted(new.meta)), None)
        case _:
            new.meta = rng.choice([[], None, 3, "x", {}, [new.meta], {"functions": new.meta}])


_CHANGES: tuple[tuple[Callable[[Pieces, Sequence[Pieces], random.Random], None], int], ...] = (
    (_type, 16), (_number, 36), (_text, 12), (_swap, 16), (_instruction, 20), (_likely, 40), (_item, 10), (_deep, 3),
    (_splice, 5), (_section, 2), (_image, 12),
)  # fmt: skip
