"""Whole builds in the cache: an unchanged build runs neither passes nor kernel compilation.

An entry is an executable in its file format, including weights, and the kernels of its report. Its key covers all
inputs of the build (`relaxpy.build.build_key`) and the compiler's sources, so a build gives the same bytes with and
without the cache.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from relaxpy.backend.registry import backend_of
from relaxpy.build.build_cache import BuildCache
from relaxpy.build.build_key import build_key
from relaxpy.build.kernels import compiler_id
from relaxpy.build.tuning import TuningRecords
from relaxpy.ir.garbage import garbage_kept
from relaxpy.ir.module import IRModule
from relaxpy.runtime.container import MemoryContainer
from relaxpy.runtime.executable import Executable
from relaxpy.runtime.inspect.build_report import BuildReport, KernelTime
from relaxpy.target import Target
from relaxpy.transform.base import Pass

MOST_BYTES = 256 << 20
"""The largest weights of a cached build in bytes. Beyond that, hashing and storing them would take as long as
building."""
SHARE = 0.25
"""The largest fraction of the cache for one build."""
_REPORT = "report"
"""The section of an entry that is not one of the executable's."""
_SOURCES = tuple(
    "errors.py target.py ir tir shape op analysis transform backend build runtime script".split()
)
"""Compiler sources that affect the result of a build."""


def key_of(
    build_cache: BuildCache,
    mod: IRModule,
    pipeline: Pass,
    target: Target,
    params: Mapping[str, Any],
    tuning: TuningRecords | None,
    check_arguments: bool,
) -> bytes | None:
    """The cache key of a build; None if it is not cached. `params` are constants; parameters that could not be
    converted to constants have no key."""
    backend = backend_of(target)
    compiler = compiler_id(_SOURCES, backend)
    if compiler is None:
        return None
    options = (compiler, mod, pipeline, str(target), params, tuning, check_arguments)
    package = type(backend).__module__.partition(".")[0]  # its sources are in the compiler's digest
    return build_key("build", *options, most_bytes=_limit(build_cache), package=package)


def find(build_cache: BuildCache, key: bytes) -> Executable | None:
    """The cached executable with the kernels of its report; None if there is none."""
    entry = build_cache.get(key)
    if entry is None:
        return None
    container = MemoryContainer.of(entry)
    facts = json.loads(container.read(_REPORT))
    kernels = tuple(
        KernelTime(name, rule, seconds, size, cached=True, record=record)
        for name, rule, seconds, size, record in facts
    )
    build_cache.record(len(kernels), 0)
    with garbage_kept():
        exe = Executable.from_sections(container)
    return replace(exe, build_report=BuildReport((), kernels, 0, whole=True))


def keep(build_cache: BuildCache, key: bytes, exe: Executable) -> None:
    """Stores an executable, unless it would take too large a part of the cache."""
    assert exe.build_report is not None
    facts = [(k.name, k.rule, k.seconds, k.size, k.record) for k in exe.build_report.kernels]
    pieces = MemoryContainer.pieces({**exe.sections(), _REPORT: json.dumps(facts).encode()})
    if sum(map(len, pieces)) <= _limit(build_cache) and build_cache.put(key, *pieces):
        build_cache.trim()


def _limit(build_cache: BuildCache) -> int:
    return min(MOST_BYTES, int(build_cache.max_bytes * SHARE))
