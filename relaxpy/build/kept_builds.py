"""Whole builds in the cache: what is built again as it was before needs neither passes nor kernels.

An entry is an executable as it would be saved, weights included, and the kernels of its report. It is found by all that
the executable depends on (`relaxpy.build.build_key`, and the compiler's sources), so that a build gives the same bytes
with the cache and without.
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
"""Builds with more weights are not kept: reading them to find the entry, and the entry itself, would take as long."""
SHARE = 0.25
"""Of the cache, that one build may take."""
_REPORT = "report"
"""The section of an entry beside those of the executable."""
_SOURCES = tuple(
    "errors.py target.py ir tir shape op analysis transform backend build runtime script".split()
)
"""Sources that decide what becomes of a module."""


def key_of(
    build_cache: BuildCache,
    mod: IRModule,
    pipeline: Pass,
    target: Target,
    params: Mapping[str, Any],
    tuning: TuningRecords | None,
    check_arguments: bool,
) -> bytes | None:
    """What a build is found by; None for one that is not kept. `params` are constants: those that could not be made
    ones have no key."""
    backend = backend_of(target)
    compiler = compiler_id(_SOURCES, backend)
    if compiler is None:
        return None
    options = (compiler, mod, pipeline, str(target), params, tuning, check_arguments)
    package = type(backend).__module__.partition(".")[0]  # its sources are in the compiler's digest
    return build_key("build", *options, most_bytes=_limit(build_cache), package=package)


def find(build_cache: BuildCache, key: bytes) -> Executable | None:
    """The executable that was kept, with the kernels of its report; None where there is none."""
    entry = build_cache.get(key)
    if entry is None:
        return None
    container = MemoryContainer.of(entry)
    facts = json.loads(container.read(_REPORT))
    kernels = tuple(KernelTime(*each, cached=True) for each in facts)
    build_cache.record(len(kernels), 0)
    with garbage_kept():
        exe = Executable.from_sections(container)
    return replace(exe, build_report=BuildReport((), kernels, 0, whole=True))


def keep(build_cache: BuildCache, key: bytes, exe: Executable) -> None:
    """Keep an executable, unless it would take too much of the cache."""
    assert exe.build_report is not None
    facts = [(k.name, k.rule, k.seconds, k.size) for k in exe.build_report.kernels]
    pieces = MemoryContainer.pieces({**exe.sections(), _REPORT: json.dumps(facts).encode()})
    if sum(map(len, pieces)) <= _limit(build_cache) and build_cache.put(key, *pieces):
        build_cache.trim()


def _limit(build_cache: BuildCache) -> int:
    return min(MOST_BYTES, int(build_cache.max_bytes * SHARE))
