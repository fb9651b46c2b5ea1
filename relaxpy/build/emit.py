"""Compiles schedules of kernels that are to be measured on another machine (`relaxpy tune --emit`).

    emitted = emit(mod, [{"n": 1}, {"n": 64}], Path("candidates"), "cuda -arch=sm_90")

For each kernel of the program that has a family (`Backend.family`) there is the present schedule, and others: the
settings of its rule's knobs in the order of how many differ from the present ones. Equal schedules are compiled once.
Those that do not compile, or spill registers into memory, are left out. `relaxpy.runtime.inspect.measure` runs the
archive.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relaxpy.backend.knobs import Choice, Choices
from relaxpy.backend.place_values import PlaceValues
from relaxpy.backend.registry import backend_of
from relaxpy.build.build import link, records_of
from relaxpy.build.build_cache import BuildCache
from relaxpy.build.codegen import generate
from relaxpy.build.pipeline import default_pipeline
from relaxpy.build.tune import CallSite, Tuner, call_of_site
from relaxpy.build.tuning import Record, TuningRecords, record_key
from relaxpy.errors import BuildError, UsageError
from relaxpy.ir.expr import Expr, Function, Var, VarBinding, seq
from relaxpy.ir.module import IRModule
from relaxpy.ir.visitor import used_symbols
from relaxpy.op.deduce import deduce
from relaxpy.runtime.container import MemoryContainer
from relaxpy.runtime.devices.image import Image
from relaxpy.runtime.executable import Executable
from relaxpy.runtime.inspect.candidate_results import RESULTS
from relaxpy.runtime.inspect.candidates import ARCHIVE, LAUNCHES, Archive, Candidates, Site
from relaxpy.runtime.inspect.launches import launches
from relaxpy.runtime.inspect.random_tensors import Weight
from relaxpy.target import Target
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.transform.base import PassContext, Sequential

TRIALS = 64
"""The most schedules of a kernel."""
ROWS = (1, 16, 64, 256, 2048)
"""The value of every symbol of the program, unless others are given: from a step of one sequence to a prompt."""
LIMIT = 64 << 20
"""The most bytes of an archive."""
_MOST_MEMORY = 16 << 30
"""Sizes with larger tensors, in bytes of all launches of a measurement, are left out."""
_LOOKED_AT = 16
"""Settings that are scheduled for each that is compiled, at most: several may give one schedule."""


@dataclass
class Emitted:
    """What an archive has, kernel by kernel."""

    archive: Archive
    nbytes: int
    """The archive's size."""
    left_out: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    """Kernel → reason → how many of its schedules are not there."""


def emit(
    mod: IRModule,
    sizes: Sequence[Mapping[str, int]],
    folder: Path,
    target: str | Target = "cuda",
    params: Mapping[str, Any] | None = None,
    *,
    kernels: Callable[[str], bool] = lambda _: True,
    trials: int = TRIALS,
    limit: int = LIMIT,
    progress: Callable[[str, int], None] = lambda _kernel, _compiled: None,
) -> Emitted:
    """Compile schedules for the first alternative of a target, and write them into a folder. `sizes` are values of the
    program's symbols, as for `Tuner`; without any, all symbols have the same, each of `ROWS` in turn. `kernels` chooses
    kernels by name. Schedules that go beyond `limit` bytes are left out, of each kernel the last ones. `progress` is
    called before each compilation.

    Raises: RelaxError for an invalid program; UsageError: `tuning-kernel` if no kernel can be tuned, `tuning-archive`
    for a folder with results, and for kernels of which not even one schedule fits.
    """
    if (folder / RESULTS).exists():
        raise UsageError(
            "tuning-archive",
            f"{folder} has results of an earlier archive, {RESULTS}",
            help="adopt them, then name another folder, or delete the file",
        )
    symbols = {
        symbol.name for each in mod.graph_functions.values() for symbol in used_symbols(each)
    }
    given = sizes or [dict.fromkeys(sorted(symbols), rows) for rows in ROWS]
    tuner = Tuner(mod, given, Target.parse(target), params or {})
    here = tuner.measured
    records = records_of(True, here)
    made: list[tuple[Candidates, list[bytes]]] = []
    left_out: dict[str, dict[str, int]] = {}
    families: set[str] = set()
    for name in filter(kernels, tuner.kernels()):
        program = tuner.programs[name]
        family = backend_of(here).family(program.func, here)
        if not family or family in families:
            continue
        families.add(family)
        record = None if records is None else records.record(program, here)
        sites = [site for site in tuner.sites[name] if _memory(site) <= _MOST_MEMORY]
        kernel = _Kernel(
            name, program, sites or tuner.sites[name][:1], here, record.choices if record else {}
        )
        made.append(kernel.compiled(family, trials, progress))
        left_out[name] = kernel.left_out
    if not made:
        raise UsageError(
            "tuning-kernel",
            f"no kernel of the program can be tuned for {here}",
            help=f"it has {', '.join(tuner.programs) or 'none'}; those with products of matrices can be, "
            "if --at gives their symbols values",
        )
    return _written(folder, here, made, left_out, limit)


def nearby(knobs: Mapping[str, Sequence[Choice]], base: Choices) -> Iterator[Choices]:
    """All settings of knobs, in the order of how many differ from `base`, without values that are the default. The
    values of a knob begin with its default."""
    own = {name: base.get(name, values[0]) for name, values in knobs.items()}
    own = {name: value if value in knobs[name] else knobs[name][0] for name, value in own.items()}
    for count in range(len(knobs) + 1):
        for names in itertools.combinations(knobs, count):
            others = [[v for v in knobs[name] if v != own[name]] for name in names]
            for values in itertools.product(*others):
                chosen = {**own, **dict(zip(names, values, strict=True))}
                yield {name: v for name, v in chosen.items() if v != knobs[name][0]}


def _memory(site: CallSite) -> int:
    """The bytes of all tensors of a measurement."""
    tensors = (*site.inputs, *site.outputs)
    return LAUNCHES * sum(
        math.prod(dim.value or 0 for dim in each.dims or ()) * each.dtype.itemsize
        for each in tensors
        if each.dtype is not None
    )


class _Kernel:
    """The schedules of a kernel."""

    def __init__(
        self, name: str, program: PrimFunc, sites: Sequence[CallSite], target: Target, base: Choices
    ) -> None:
        self.name, self.program, self.sites, self.target = name, program, sites, target
        self.base = base
        self.key = record_key(program, target)
        self.mod = _module(name, program, sites, target)
        self.code = generate(self.mod, target)
        self.left_out: dict[str, int] = {}

    def compiled(
        self, family: str, trials: int, progress: Callable[[str, int], None]
    ) -> tuple[Candidates, list[bytes]]:
        """The schedules, and their executables."""
        choices: list[Choices] = []
        found: list[bytes] = []
        sites: tuple[Site, ...] = ()
        for setting in self._schedules(trials):
            progress(self.name, len(found))
            try:
                exe = self._linked(setting)
            except BuildError:
                if not found:
                    raise
                self._leave_out("do not compile")
                continue
            if found and _spills(exe):
                self._leave_out("spill registers")
                continue
            if not found:
                sites = _sites(self.sites, exe)
            choices.append(setting)
            found.append(b"".join(MemoryContainer.pieces(exe.sections())))
        return Candidates(self.name, family, sites, tuple(choices)), found

    def _leave_out(self, reason: str) -> None:
        self.left_out[reason] = self.left_out.get(reason, 0) + 1

    def _schedules(self, count: int) -> Iterator[Choices]:
        """The settings of so many different schedules."""
        backend = backend_of(self.target)
        rules = backend.knobs(self.program.func, self.target)
        seen: list[PrimFunc] = []
        settings = nearby(next(iter(rules.values())), self.base)
        for setting in itertools.islice(settings, count * _LOOKED_AT):
            func = PrimFunc(backend.schedule(self.program.func, self.target, setting).parallel)
            if any(func.structural_equal(other) for other in seen):
                continue
            seen.append(func)
            yield setting
            if len(seen) == count:
                return

    def _linked(self, setting: Choices) -> Executable:
        records = TuningRecords({self.key: Record(self.name, setting)})
        cache = BuildCache.default()
        return link(self.mod, self.code, self.target, build_cache=cache, tuning=records, jobs=1)


def _module(name: str, program: PrimFunc, sites: Sequence[CallSite], target: Target) -> IRModule:
    """The lowered module, with the functions that `relaxpy.runtime.inspect.candidates` describes."""
    functions: dict[str, Any] = {name: program}
    for number, site in enumerate(sites):
        for called, count in ((f"at{number}", 1), (f"many{number}", LAUNCHES)):
            params: list[Var] = []
            bindings: list[VarBinding] = []
            out: Expr | None = None
            for launch in range(count):
                own = [Var(f"x{launch}_{i}", each) for i, each in enumerate(site.inputs)]
                call = call_of_site(name, site, own)
                out = Var(f"out{launch}", deduce(call))
                params += own
                bindings.append(VarBinding(out, call))
            assert out is not None
            functions[called] = Function(
                tuple(params),
                seq(bindings, out),
                out.annotation,
                attrs={"global_symbol": called},
            )
    passes = default_pipeline(target).passes
    first = next(i for i, step in enumerate(passes) if isinstance(step, PlaceValues))
    return Sequential(passes[first:])(IRModule(functions), PassContext(target))


def _sites(sites: Sequence[CallSite], exe: Executable) -> tuple[Site, ...]:
    found: list[Site] = []
    costs = {
        launch.function: launch
        for launch in launches(exe.functions, exe.kernels, exe.libraries, exe.packed, {})
    }
    for number, site in enumerate(sites):
        cost = costs[f"at{number}"]
        inputs = tuple(
            Weight(tuple(dim.value or 0 for dim in each.dims or ()), str(each.dtype), 1.0)
            for each in site.inputs
        )
        found.append(Site(dict(site.sizes), inputs, cost.flops or 0, cost.nbytes or 0))
    return tuple(found)


def _spills(exe: Executable) -> bool:
    """Does a kernel keep registers in memory, as far as its compiler tells?"""
    return any(Image.decode(data).resources.get("spills") for data in exe.objects)


def _written(
    folder: Path,
    target: Target,
    made: Sequence[tuple[Candidates, list[bytes]]],
    left_out: dict[str, dict[str, int]],
    limit: int,
) -> Emitted:
    """Write what fits: of each kernel as many schedules as of the others."""
    taken = max(len(data) for _, data in made)
    while True:
        kernels = [
            Candidates(each.kernel, each.family, each.sites, each.choices[:taken])
            for each, _ in made
        ]
        archive = Archive(folder, str(target), tuple(kernels))
        nbytes = archive.write([data[:taken] for _, data in made])
        if nbytes <= limit:
            break
        (folder / ARCHIVE).unlink()
        if taken == 1:
            raise UsageError(
                "tuning-archive",
                f"one schedule of each of {len(made)} kernels takes {nbytes} bytes, and {limit} are the limit",
                help="choose kernels: --kernel PATTERN",
            )
        taken = max(1, min(taken - 1, int(taken * limit / nbytes)))
    for each, _ in made:
        if (more := len(each.choices) - taken) > 0:
            left_out[each.kernel]["are beyond the size limit"] = more
    return Emitted(archive, nbytes, left_out)
