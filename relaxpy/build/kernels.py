"""Compiles tensor programs to objects: each distinct program is scheduled and compiled once, in parallel, or taken from
the cache.

A program becomes one object file with its variants (`relaxpy.backend.schedule`). Its symbols contain a digest of the
program's text. So the objects of a module do not depend on the number of parallel jobs, on the contents of the cache,
or on the names of the kernels, and a program that occurs in two modules is one cache entry.

The cache key of an entry is a SHA-256 over the program's complete text, the target, the options, and the compiler: its
versions and the sources that affect the result (`compiler_id`). It is computed before scheduling, so a hit saves
scheduling too.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, pairwise
from time import perf_counter
from typing import Any

from relaxpy.backend.base import Backend, CompileOptions
from relaxpy.backend.int_expr import int_expr
from relaxpy.backend.knobs import Choices
from relaxpy.backend.registry import backend_of
from relaxpy.backend.schedule import ScheduledKernel
from relaxpy.build.build_cache import BuildCache
from relaxpy.build.tuning import Record, TuningRecords
from relaxpy.errors import BuildError, RelaxError, Span
from relaxpy.identity import sources_digest
from relaxpy.ir.dim import Dim
from relaxpy.ir.module import BufferParam
from relaxpy.runtime.bytecode import KernelInfo, KernelParam
from relaxpy.runtime.codec import decode, encode
from relaxpy.runtime.kernel_params import symbol_of
from relaxpy.runtime.tuned import FamilyRecord
from relaxpy.target import Target
from relaxpy.tir.prim_func import PrimFunc, given_workspaces

_KERNEL_SOURCES = (
    *("errors.py", "ir", "tir", "shape", "analysis", "backend", "build/kernels.py"),
    *(
        "half_bytes.py",
        "identity.py",
        "narrow.py",
        "services.py",
        "target.py",
        "transform/phases.py",
        "version.py",
    ),
    *("runtime/bytecode.py", "runtime/codec.py", "runtime/dtype.py", "runtime/integers.py"),
    *("runtime/kernel_params.py", "runtime/terms.py", "runtime/devices/image.py"),
)
"""Sources that affect a compiled tensor program or the format of its cache entry. A test compares them with the imports
(tests/test_conventions.py)."""


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A tensor program compiled by a target's backend."""

    info: KernelInfo
    """The kernel's entry in an executable, with a single image. Its objects are indices into `objects`, and its name is
    its symbol."""
    rule: str
    """The schedule rule that matched it."""
    seconds: float
    """The time of scheduling and compiling."""
    objects: tuple[bytes, ...]
    cached: bool = False
    """Whether it came from the cache."""
    record: str = ""
    """The tuning record whose choices it has; "" if these are the rule's own."""

    @property
    def symbol(self) -> str:
        """A name derived from the program's text. It ends with the digest of its parameters."""
        return self.info.image.symbol

    def encode(self) -> bytes:
        """The bytes of its cache entry."""
        sizes = [len(each) for each in self.objects]
        facts = (encode(self.info), self.rule, self.seconds, sizes)
        return json.dumps(facts).encode() + b"\n" + b"".join(self.objects)

    @classmethod
    def decode(cls, data: memoryview) -> CompiledKernel:
        """Decodes a cache entry."""
        facts, code = bytes(data).split(b"\n", 1)
        info, rule, seconds, sizes = json.loads(facts)
        ends = list(accumulate(sizes, initial=0))
        objects = tuple(code[start:end] for start, end in pairwise(ends))
        return cls(decode(info, KernelInfo), rule, seconds, objects, cached=True)


Progress = Callable[[int, int, str], None]
"""Called with the number of finished kernels, the total number, and the name of the last one."""


def compile_kernels(
    programs: Mapping[str, PrimFunc], target: Target, *, jobs: int | None = None, **options: Any
) -> dict[str, CompiledKernel]:
    """Compiles every program: `start_kernels` with as many `compilers` as `jobs`, and its result."""
    with compilers(jobs) as pool:
        return start_kernels(programs, target, pool, **options)()


@contextmanager
def compilers(jobs: int | None = None) -> Iterator[ThreadPoolExecutor]:
    """Threads that compile kernels (default: one for each processor that this process may use). After an error they
    finish what they have begun."""
    with ThreadPoolExecutor(jobs or default_jobs(), "relaxpy-compile") as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def start_kernels(
    programs: Mapping[str, PrimFunc],
    target: Target,
    pool: ThreadPoolExecutor,
    *,
    build_cache: BuildCache | None = None,
    check_arguments: bool = False,
    tuning: TuningRecords | None = None,
    progress: Progress | None = None,
    place: Callable[[str], Span | None] = lambda _: None,
) -> Callable[[], dict[str, CompiledKernel]]:
    """Starts to compile every program; the function that it returns waits for the kernels. Equal programs share one.

    Scheduling is Python and is done here; LLVM runs on the threads of the pool, also after this function has returned.
    `check_arguments`: see `relaxpy.backend.base.CompileOptions`. `tuning`: records of schedules that were measured to
    be faster than the rules' defaults. `place` gives the place of an error in a program that has none itself.

    Raises: BuildError for a program that does not compile; the returned function as well.
    """
    leaders = _equal_programs(programs)
    wanted = {name: programs[name] for name in dict.fromkeys(leaders.values())}
    records: dict[str, Record | FamilyRecord] = {}
    if tuning is not None:
        for name, program in wanted.items():
            record = tuning.record(program, target)
            if record is not None:
                records[name] = record
    choices = {name: record.choices for name, record in records.items()}
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
    running: dict[Future[CompiledKernel], str] = {}
    for name, program in wanted.items():
        if name not in found:
            with _located(program, name, place):
                future = _start(
                    name,
                    program,
                    texts[name],
                    choices.get(name) or {},
                    target,
                    pool,
                    check_arguments,
                )
            running[future] = name

    def finish() -> dict[str, CompiledKernel]:
        compiled: dict[str, CompiledKernel] = {}
        for future in as_completed(running):
            name = running[future]
            with _located(wanted[name], name, place):
                compiled[name] = future.result()
            if progress is not None:
                progress(len(compiled), len(running), name)
        compiled = {name: compiled[name] for name in running.values()}
        if build_cache is not None and id is not None:
            build_cache.record(len(found), len(compiled))
            # `all` stops at the first entry that cannot be written, since the next ones would fail too.
            if compiled and all(build_cache.put(keys[n], k.encode()) for n, k in compiled.items()):
                build_cache.trim()
        kernels = found | compiled
        for name, record in records.items():
            kernels[name] = replace(kernels[name], record=record.title)
        return {name: kernels[leader] for name, leader in leaders.items()}

    return finish


def default_jobs() -> int:
    """The number of processors that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return max(1, len(affinity(0)) if affinity is not None else os.cpu_count() or 1)


def program_text(
    program: PrimFunc, target: Target, check_arguments: bool, choices: Choices | None = None
) -> str:
    """A text of everything that the object depends on, except for the compiler."""
    tuned = f" tuned={json.dumps(dict(choices), sort_keys=True)}" if choices else ""
    options = f"{target} checked={check_arguments}{tuned}"
    return f"{options}\n{program.full_text()}"


def _equal_programs(programs: Mapping[str, PrimFunc]) -> dict[str, str]:
    """Program name → the name of the first program that is equal up to names."""
    leaders: dict[str, str] = {}
    by_hash: dict[int, list[str]] = {}
    for name, program in programs.items():
        alike = by_hash.setdefault(program.structural_hash(), [])
        same = (other for other in alike if programs[other].structural_equal(program))
        leaders[name] = next(same, name)
        if leaders[name] == name:
            alike.append(name)
    return leaders


@contextmanager
def _located(program: PrimFunc, name: str, place: Callable[[str], Span | None]) -> Iterator[None]:
    """Gives errors of the block the place of the program."""
    try:
        yield
    except BuildError as error:
        error.located(program.span or place(name))
        raise


def _start(
    name: str,
    program: PrimFunc,
    text: str,
    choices: Choices,
    target: Target,
    pool: ThreadPoolExecutor,
    check_arguments: bool,
) -> Future[CompiledKernel]:
    """Schedules a program, and starts to compile it."""
    start = perf_counter()
    scheduled = backend_of(target).schedule(program.func, target, choices)
    params = kernel_params(program)
    symbol = symbol_of(text, params)
    seconds = perf_counter() - start
    return pool.submit(_compile, name, symbol, params, scheduled, seconds, target, check_arguments)


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
            help=f'this is a defect of the backend for "{target.kind}"',
        ) from error
    seconds += perf_counter() - start
    return CompiledKernel(info, scheduled.rule, seconds, compiled.objects)


def kernel_params(program: PrimFunc) -> tuple[KernelParam, ...]:
    """The parameters of a program's kernel."""
    numbers: dict[Dim, int] = {}
    """The program's variables, numbered in order of occurrence in its parameters."""
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
    """The identity of this compiler: a digest of versions, of its sources (by default those that affect tensor
    programs), and of the backend's sources. None if a source is unknown or has changed since relaxpy was imported,
    since the running code may then differ from the files."""
    others = () if backend is None else backend.sources()
    return None if others is None else sources_digest(sources, others)
