"""From tensor programs to objects: each distinct program scheduled and compiled once, several at a time, or taken from
the cache.

A program becomes one object file with its variants (`relaxpy.backend.schedule`), whose symbols are named after what
the program says. So the objects of a module do not depend on how many were compiled at a time, on what was in the
cache, or on the names of the kernels; the same program in two modules is one entry of the cache.

The key of an entry is a SHA-256 over the program's complete text, the target, the options, and the compiler: versions
and the sources that decide what becomes of a program (`compiler_id`). It is computed before scheduling, which a hit
saves too.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate, pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import relaxpy.version
from relaxpy.backend.base import Backend, CompileOptions
from relaxpy.backend.int_expr import int_expr
from relaxpy.backend.knobs import Choices
from relaxpy.backend.registry import backend_of
from relaxpy.backend.schedule import ScheduledKernel
from relaxpy.build.build_cache import BuildCache
from relaxpy.build.tuning import TuningRecords
from relaxpy.errors import BuildError, RelaxError
from relaxpy.ir.dim import Dim
from relaxpy.ir.module import BufferParam
from relaxpy.runtime.bytecode import KernelInfo, KernelParam
from relaxpy.runtime.codec import decode, encode
from relaxpy.runtime.kernel_params import symbol_of
from relaxpy.target import Target
from relaxpy.tir.prim_func import PrimFunc, given_workspaces

_KERNEL_SOURCES = (
    *("errors.py", "ir", "tir", "shape", "analysis", "backend", "build/kernels.py"),
    *("target.py", "transform/phases.py"),
    *("runtime/bytecode.py", "runtime/codec.py", "runtime/kernel_params.py"),
)
"""Sources that decide what becomes of a tensor program, and how an entry of the cache is written."""
_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "numpy", "sympy")


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A tensor program as a target's backend compiled it."""

    info: KernelInfo
    """As an executable describes it, with one image, whose objects are indices into `objects`; its name is its
    symbol."""
    rule: str
    """The schedule rule that arranged it."""
    seconds: float
    """What scheduling and compiling took."""
    objects: tuple[bytes, ...]
    cached: bool = False
    """It came from the cache."""

    @property
    def symbol(self) -> str:
        """A name for what the program says; it ends with the digest of its parameters."""
        return self.info.image.symbol

    def encode(self) -> bytes:
        """As an entry of the cache."""
        sizes = [len(each) for each in self.objects]
        facts = (encode(self.info), self.rule, self.seconds, sizes)
        return json.dumps(facts).encode() + b"\n" + b"".join(self.objects)

    @classmethod
    def decode(cls, data: memoryview) -> CompiledKernel:
        """An entry of the cache as it was."""
        facts, code = bytes(data).split(b"\n", 1)
        info, rule, seconds, sizes = json.loads(facts)
        ends = list(accumulate(sizes, initial=0))
        objects = tuple(code[start:end] for start, end in pairwise(ends))
        return cls(decode(info, KernelInfo), rule, seconds, objects, cached=True)


Progress = Callable[[int, int, str], None]
"""Called with how many kernels are done, how many there are to compile, and the name of the last."""


def compile_kernels(
    programs: Mapping[str, PrimFunc],
    target: Target,
    *,
    build_cache: BuildCache | None = None,
    jobs: int | None = None,
    check_arguments: bool = False,
    tuning: TuningRecords | None = None,
    progress: Progress | None = None,
) -> dict[str, CompiledKernel]:
    """Every program's kernel; equal programs share one.

    `jobs`: how many are compiled at a time (the processors that this process may use). `check_arguments`: see
    `relaxpy.backend.base.CompileOptions`. `tuning`: schedules that were measured to be better than the rules'
    own.

    Raises: BuildError, of the first program that does not compile.
    """
    leaders = _equal_programs(programs)
    wanted = {name: programs[name] for name in dict.fromkeys(leaders.values())}
    choices: dict[str, Choices] = {}
    if tuning is not None:
        choices = {name: tuning.choices(program, target) for name, program in wanted.items()}
    texts = {
        name: program_text(program, target, check_arguments, choices.get(name))
        for name, program in wanted.items()
    }
    id = compiler_id(backend=backend_of(target)) if build_cache is not None else None
    keys = {name: hashlib.sha256(f"{id}\n{text}".encode()).digest() for name, text in texts.items()}
    found: dict[str, CompiledKernel] = {}
    if build_cache is not None and id is not None:
        for name in wanted:
            data = build_cache.get(keys[name])
            if data is not None:
                found[name] = CompiledKernel.decode(data)
    missing = {name: wanted[name] for name in wanted if name not in found}
    compiled = _compile_all(
        missing, texts, choices, target, jobs or default_jobs(), check_arguments, progress
    )
    if build_cache is not None and id is not None:
        build_cache.record(len(found), len(missing))
        # `all` stops at the first that the disk refuses: the next would fare no better.
        if missing and all(build_cache.put(keys[n], k.encode()) for n, k in compiled.items()):
            build_cache.trim()
    found |= compiled
    return {name: found[leader] for name, leader in leaders.items()}


def default_jobs() -> int:
    """How many processors this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return max(1, len(affinity(0)) if affinity is not None else os.cpu_count() or 1)


def program_text(
    program: PrimFunc, target: Target, check_arguments: bool, choices: Choices | None = None
) -> str:
    """All that the object depends on besides the compiler."""
    tuned = f" tuned={json.dumps(dict(choices), sort_keys=True)}" if choices else ""
    options = f"{target} checked={check_arguments}{tuned}"
    return f"{options}\n{program.full_text()}"


def _equal_programs(programs: Mapping[str, PrimFunc]) -> dict[str, str]:
    """Each program's name → the name of the first that is equal but for the names in it."""
    leaders: dict[str, str] = {}
    by_hash: dict[int, list[str]] = {}
    for name, program in programs.items():
        alike = by_hash.setdefault(program.structural_hash(), [])
        same = (other for other in alike if programs[other].structural_equal(program))
        leaders[name] = next(same, name)
        if leaders[name] == name:
            alike.append(name)
    return leaders


def _compile_all(
    programs: Mapping[str, PrimFunc],
    texts: Mapping[str, str],
    choices: Mapping[str, Choices],
    target: Target,
    jobs: int,
    check_arguments: bool,
    progress: Progress | None,
) -> dict[str, CompiledKernel]:
    """Kernels of distinct programs. Scheduling is Python and stays on this thread; LLVM works on others beside it."""
    if not programs:
        return {}
    done: dict[str, CompiledKernel] = {}
    backend = backend_of(target)
    with ThreadPoolExecutor(min(jobs, len(programs)), "relaxpy-compile") as pool:
        try:
            running: dict[Future[CompiledKernel], str] = {}
            for name, program in programs.items():
                start = perf_counter()
                scheduled = backend.schedule(program.func, target, choices.get(name) or {})
                params = kernel_params(program)
                symbol = symbol_of(texts[name], params)
                seconds = perf_counter() - start
                args = (name, symbol, params, scheduled, seconds, target, check_arguments)
                running[pool.submit(_compile, *args)] = name
            for future in as_completed(running):
                name = running[future]
                done[name] = future.result()
                if progress is not None:
                    progress(len(done), len(programs), name)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return {name: done[name] for name in programs}


def _compile(
    name: str,
    symbol: str,
    params: tuple[KernelParam, ...],
    scheduled: ScheduledKernel,
    seconds: float,
    target: Target,
    check_arguments: bool,
) -> CompiledKernel:
    start = perf_counter()
    options = CompileOptions(check_arguments)
    try:
        compiled = backend_of(target).compile({symbol: scheduled}, target, options, called=name)
        image = compiled.kernels[symbol]
        info = KernelInfo(image.symbol, (image,), params)
    except (RelaxError, OSError, MemoryError):
        raise
    except Exception as error:
        raise BuildError(
            "kernel-compile",
            f'the kernel "{name}" does not compile for {target}: {type(error).__name__}: {error}',
            help=f'this is a bug in the backend for "{target.kind}"',
        ) from error
    seconds += perf_counter() - start
    return CompiledKernel(info, scheduled.rule, seconds, compiled.objects)


def kernel_params(program: PrimFunc) -> tuple[KernelParam, ...]:
    """The parameters of the kernel of a program."""
    numbers: dict[Dim, int] = {}
    """The program's variables, in the order in which its parameters mention them."""
    for param in program.params:
        dims = param.shape if isinstance(param, BufferParam) else (param.var.dim,)
        for var in (var for dim in dims for var in dim.vars):
            numbers.setdefault(var.dim, len(numbers))
    workspaces = given_workspaces(program.func)
    found: list[KernelParam] = []
    for position, param in enumerate(program.params):
        if isinstance(param, BufferParam):
            shape = tuple(int_expr(dim, numbers) for dim in param.shape)
            access = "read"
            if position in program.written:
                looks = position in program.read and position not in workspaces
                access = "read-write" if looks else "write"
            found.append(KernelParam(str(param.dtype), shape, access=access))
        else:
            is_int = param.dtype.is_int
            found.append(
                KernelParam(str(param.dtype), None, numbers[param.var.dim] if is_int else -1)
            )
    return tuple(found)


@cache
def compiler_id(
    sources: tuple[str, ...] = _KERNEL_SOURCES, backend: Backend[Any] | None = None
) -> str | None:
    """What this compiler is: a digest of versions and of its sources, of those that decide what becomes of a tensor
    program unless others are named, and of the backend's. None where a source is not known or has changed since this
    process loaded relaxpy: what runs is not what the files say."""
    digest = hashlib.sha256(relaxpy.version.__version__.encode())
    for package in _PACKAGES:
        try:
            digest.update(f"{package}={version(package)}\n".encode())
        except PackageNotFoundError:
            digest.update(f"{package}\n".encode())
    root = Path(relaxpy.version.__file__).parent
    files = [path for part in sources for path in _sources(root / part)]
    others = () if backend is None else backend.sources()
    if others is None:
        return None
    for path in (*files, *others):
        if path.stat().st_mtime > relaxpy.version.LOADED_AT:
            return None
        name = path.relative_to(root) if path.is_relative_to(root) else path
        digest.update(f"{name.as_posix()}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest() if files else None


def _sources(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]
