"""`relaxpy.build` compiles a module to an executable."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.backend.slots import call_of, program_slots, slots_of
from relaxpy.build.build_cache import BuildCache
from relaxpy.build.cached_builds import find, keep, key_of
from relaxpy.build.codegen import Program, generate
from relaxpy.build.kernels import (
    CompiledKernel,
    Progress,
    compilers,
    default_jobs,
    start_kernels,
)
from relaxpy.build.pack_option import with_packed_params
from relaxpy.build.pipeline import default_pipeline
from relaxpy.build.precision_option import chosen_precision, with_checks, with_precision
from relaxpy.build.progress import progress_bar
from relaxpy.build.tuning import TuningRecords
from relaxpy.errors import RelaxError, UsageError
from relaxpy.ir.expr import Function
from relaxpy.ir.garbage import garbage_kept
from relaxpy.ir.module import IRModule, TensorProgram
from relaxpy.ir.recursion import deep_recursion
from relaxpy.runtime.bytecode import KernelImage, KernelInfo, Requirement
from relaxpy.runtime.executable import Executable
from relaxpy.runtime.inspect.build_report import BuildReport, KernelTime
from relaxpy.shape.declare import with_bounds
from relaxpy.target import Target
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.transform.base import Instrument, Pass, PassContext
from relaxpy.transform.bind_params import as_constant
from relaxpy.transform.check_tensor_programs import CheckTensorPrograms
from relaxpy.transform.phases import LEVELS, Pipeline


def build(
    mod: IRModule | Function,
    target: str | Target = "llvm",
    params: Mapping[str, Any] | None = None,
    *,
    bounds: Mapping[str, int] | None = None,
    pack: bool | Sequence[str] = False,
    pipeline: Pass | None = None,
    instruments: Sequence[Instrument] = (),
    cache: bool | str | os.PathLike[str] = True,
    jobs: int | None = None,
    check_arguments: bool = False,
    tuning: bool | str | os.PathLike[str] | TuningRecords = True,
    progress: bool | None = None,
    precision: str | None = None,
    check_numbers: bool = False,
    opt_level: int | None = None,
    required_passes: Sequence[str] = (),
    disabled_passes: Sequence[str] = (),
) -> Executable:
    """Compiles a module once for all shapes.

    `target` is `"llvm"`, this machine's CPU with its features, or names another CPU (`"llvm -mcpu=x86-64-v3"`), or
    several: `"llvm -mcpu=x86-64-v3,x86-64-v4"` compiles every kernel for each of them, and a machine runs the most
    capable one it supports. The executable stores the resolved target. `params` are arrays to bind to parameters by
    name (`"w"`, or `"main.w"`). They are not copied, so do not change them until the executable is saved. `bounds` are
    upper bounds of symbolic variables (`"n"`, or `"main.n"`), as `tir_var_upper_bound` declares them. If all sizes have
    one, memory is planned statically, and a call that exceeds a bound is an error. With `pack` the weights get the
    layout that kernels read: the parameters after the first `num_input` (an attribute that `nn` sets), or those named.
    `VirtualMachine.pack` makes the arguments from a checkpoint. `pipeline` replaces the default
    passes; `instruments` are called after each pass. The same module and target give the same bytes in any process.

    Builds are cached on disk (`relaxpy cache`), as a whole and by kernel, under a key made of all their inputs. `cache`
    is a folder to use instead of the user's cache, or False for no cache. With `instruments` the passes always run.
    `jobs` kernels are compiled in parallel (default: one for each processor). With `check_arguments` every kernel
    checks its arguments, for users who write bytecode or call kernels directly. `tuning` are records of schedules that
    `relaxpy tune` measured: by default the user's, else those of a file, in both cases with those that come with
    relaxpy; or none (False). With `precision`, `"bfloat16"` or `"float16"`, products of float32 are computed in that
    dtype and what needs float32 in float32 (`relaxpy.transform.MixedPrecision`); `"auto"` takes the dtype in which the
    target multiplies fastest, and `Executable.build_report` says which. With `check_numbers` a call ends with an error
    at the first operator that makes a NaN or an infinity of finite numbers, such as an overflow in float16: for
    debugging. `opt_level` leaves out passes: 0 all that compiling does not need, 1 all but fusion, 2 all but fusion and
    constant folding, 3 none; `required_passes` stay at any level, `disabled_passes` are left out at any
    (`relaxpy.transform.phases.Pipeline.at_level`). LLVM's level is an option of the target. `progress` shows a progress
    bar; None shows it on a terminal if the build takes long.
    `Executable.build_report` has the time of each step.

    Raises: RelaxError, located in the program.
    """
    if isinstance(mod, Function):
        mod = IRModule({str(mod.attrs.get("global_symbol", "main")): mod})
    if not isinstance(mod, IRModule):
        raise _no_module(mod)
    resolved = Target.parse(target)
    build_cache, records = _cache(cache), records_of(tuning, resolved)
    clock = Clock()
    mod = with_packed_params(with_bounds(mod, bounds or {}), pack)
    dtype = chosen_precision(precision, resolved)
    passes, arrays, key = pipeline or default_pipeline(resolved), params or {}, None
    if opt_level is not None or required_passes or disabled_passes:
        passes = _at_level(passes, opt_level, required_passes, disabled_passes)
    if not isinstance(arrays, Mapping):
        raise UsageError(
            "arguments",
            f"params must be a dict of arrays by name, got {type(params).__name__}",
            help='write params={"weight": array}',
        )
    if not hasattr(passes, "run"):
        raise UsageError(
            "arguments",
            f"a pipeline must be a sequence of passes (a Pipeline or a Sequential), got {type(pipeline).__name__}",
            help='omit it, or insert a pass into the default: default_pipeline().before("fuse-ops", mine), with '
            "from relaxpy.build import default_pipeline (docs/add_a_pass.md)",
        )
    if isinstance(passes, Pipeline) and passes.kinds and resolved.kind not in passes.kinds:
        raise UsageError(
            "pipeline-target",
            f'the pipeline is for {" and ".join(passes.kinds)}, but the target is "{resolved.kind}"',
            help=f'start with default_pipeline("{resolved.kind}")',
        )
    passes, arrays = with_precision(passes, dtype), dict(arrays)
    if check_numbers:
        passes = with_checks(passes)
    if build_cache is not None and not instruments:  # those want to see the passes run
        with suppress(RelaxError):  # errors in parameters are reported by their pass
            arrays = {name: as_constant(name, value) for name, value in arrays.items()}
        key = key_of(build_cache, mod, passes, resolved, arrays, records, check_arguments)
        clock.lap("key")
        found = None if key is None else find(build_cache, key)
        if found is not None:
            clock.lap("load")
            assert found.build_report is not None
            report = replace(found.build_report, steps=tuple(clock.laps), precision=dtype or "")
            return replace(found, build_report=report)
    check_well_formed(mod)
    clock.lap("check")
    context = PassContext(resolved, arrays, (*instruments, clock.after_pass))
    with deep_recursion(), garbage_kept(), progress_bar(progress) as on_kernel:
        if not isinstance(passes, Pipeline) or not any(map(_checks, passes.passes)):
            mod = CheckTensorPrograms().run(mod, context)  # unproved conditions become checks
        lowered = passes.run(mod, context)
        with linking(
            lowered,
            resolved,
            build_cache=build_cache,
            jobs=jobs,
            check_arguments=check_arguments,
            tuning=records,
            progress=on_kernel,
            clock=clock,
        ) as finish:
            program = generate(lowered, resolved)
            clock.lap("codegen")
            exe = finish(program)
    if dtype is not None and exe.build_report is not None:
        exe = replace(exe, build_report=replace(exe.build_report, precision=dtype))
    if build_cache is not None and key is not None:
        keep(build_cache, key, exe)
    return exe


def _at_level(
    passes: Pass, level: int | None, required: Sequence[str], disabled: Sequence[str]
) -> Pipeline:
    """The pipeline with the passes of a level."""
    if isinstance(passes, Pipeline):
        level = LEVELS[-1] if level is None else level
        return passes.at_level(level, required=required, disabled=disabled)
    raise UsageError(
        "opt-level",
        f"levels, required and disabled passes are those of a Pipeline, got {type(passes).__name__}",
        help="start with default_pipeline(), or leave the options out",
    )


def _library(kind: type) -> str | None:
    """The library of models that a class, or a base of it, comes from."""
    packages = [each.__module__.partition(".")[0] for each in kind.__mro__]
    return next((p for p in packages if p in _IMPORTS), None)


def _no_module(given: object) -> UsageError:
    """The error for an object that cannot be built, according to its type."""
    kind = type(given)
    came = f"{'an' if kind.__name__[0] in 'aeiouAEIOU' else 'a'} {kind.__name__}"
    help = "decorate a class with @I.ir_module, or parse text with relaxpy.parse(text)"
    if kind.__module__.partition(".")[0] == "tvm":
        came = f"TVM's {kind.__name__}"
        help = "parse its script: relaxpy.parse(mod.script(show_meta=True)); or import R, T and I from relaxpy.script"
    elif (library := _library(kind)) is not None:
        came = f"{'an' if library[0] in 'aeio' else 'a'} {library} {kind.__name__}"
        help = _IMPORTS[library]
    elif isinstance(given, str):
        came = "a text"
        help = "parse it first: relaxpy.build(relaxpy.parse(text)); text is a program or the path of a file"
    elif isinstance(given, os.PathLike):
        came, help = "a path", "parse the file first: relaxpy.build(relaxpy.parse(path))"
    elif isinstance(given, TensorProgram):
        came = "a tensor program"
        help = "put it into a module, and call it from an @R.function with R.call_tir"
    elif isinstance(given, Executable):
        came, help = "an executable", "run it: relaxpy.VirtualMachine(exe)"
    elif isinstance(given, type):
        came = f"the class {given.__name__}"
        help = "decorate it with @I.ir_module" if not _is_layers(given) else _EXPORT
    elif _is_layers(kind):
        came, help = f"an nn.Module ({kind.__name__})", _EXPORT
    elif callable(given):
        came, help = "a Python function", "decorate it with @R.function"
    elif isinstance(given, tuple):
        help = "export returns a module and its weights: mod, params = model.export(spec); build(mod, params=params)"
    return UsageError("build-module", f"a module is expected, got {came}", help=help)


_IMPORT = "import it: mod, params = relaxpy.from_torch(model, args=(x,)); build(mod, params=params)"
_IMPORT_FUNCTION = (
    'import it: mod, params = relaxpy.from_jax(function, jax.ShapeDtypeStruct((4, 16), "float32")); '
    "build(mod, params=params)"
)
_IMPORTS = {
    "torch": _IMPORT,
    "onnx": "import it: mod, params = relaxpy.from_onnx(model); build(mod, params=params)",
    **dict.fromkeys(("jax", "jaxlib", "flax", "equinox"), _IMPORT_FUNCTION),
}
_EXPORT = 'export it first: mod, params = model.export({"forward": {"x": nn.spec.Tensor(("n", 4), "float32")}})'


def _is_layers(kind: type) -> bool:
    return any(base.__module__ == "relaxpy.nn.module" for base in kind.__mro__)


def link(mod: IRModule, program: Program, target: Target, **options: Any) -> Executable:
    """Schedules and compiles the tensor programs that the bytecode calls, and assembles the executable. The options are
    those of `linking`."""
    with linking(mod, target, **options) as finish:
        return finish(program)


@contextmanager
def linking(
    mod: IRModule,
    target: Target,
    *,
    build_cache: BuildCache | None = None,
    jobs: int | None = None,
    check_arguments: bool = False,
    tuning: TuningRecords | None = None,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> Iterator[Callable[[Program], Executable]]:
    """Schedules the tensor programs that a lowered module calls, and starts to compile them. Gives a function that
    waits for the kernels and assembles the executable: the bytecode is generated meanwhile. The options are those of
    `build`; `clock` has timed the preceding steps."""
    clock = clock or Clock()
    slots = slots_of(mod, target)
    started: list[tuple[Target, Callable[[], dict[str, CompiledKernel]]]] = []
    with compilers(jobs) as pool:
        for slot, own in enumerate(slots.targets):
            here = {
                name: func
                for name, number in program_slots(mod, slots).items()
                if number == slot and isinstance(func := mod[name], PrimFunc)
            }
            # A program without device tensors runs on the host, whatever target the other functions are built for.
            wanted = target if len(slots.slots) == 1 else own or Target.host()
            for alternative in wanted.alternatives if here else ():
                kernels = start_kernels(
                    here,
                    alternative,
                    pool,
                    build_cache=build_cache,
                    check_arguments=check_arguments,
                    tuning=tuning,
                    progress=progress,
                    place=partial(call_of, mod),
                )
                started.append((alternative, kernels))
        clock.lap("schedule")

        def finish(program: Program) -> Executable:
            sources = {
                name: func.listing(name)
                for name in program.kernels
                if isinstance(func := mod[name], PrimFunc)
            }
            clock.lap("listing")
            built = [(alternative, kernels()) for alternative, kernels in started]
            clock.lap("kernels")
            return _executable(program, target, built, sources, _report(clock, built, jobs))

        yield finish


def _executable(
    program: Program,
    target: Target,
    built: Sequence[Built],
    sources: Mapping[str, str],
    report: BuildReport,
) -> Executable:
    """The executable of the bytecode and its kernels."""
    requirements = tuple(
        dict.fromkeys(Requirement(*alternative.requirement()) for alternative, _ in built)
    )
    objects: dict[bytes, int] = {}
    infos = [_info(name, built, requirements, objects) for name in program.kernels]
    return Executable(
        functions=tuple(program.functions),
        constants=tuple(program.constants),
        kernels=tuple(replace(info, slot=program.kernel_slots[info.name]) for info in infos),
        libraries=tuple(program.libraries),
        packed=tuple(program.packed),
        weight_params=tuple(program.weight_params),
        data_types=program.data_types,
        objects=tuple(objects),
        target=target.facts(),
        slots=program.slots.slots,
        requirements=requirements,
        sources=sources,
        build_report=report,
    )


Built: TypeAlias = "tuple[Target, Mapping[str, CompiledKernel]]"
"""A target without alternatives, and the kernels compiled for it."""


def _info(
    name: str,
    built: Sequence[Built],
    requirements: Sequence[Requirement],
    objects: dict[bytes, int],
) -> KernelInfo:
    """A kernel with an image for each target that it was compiled for. Objects are numbered in order of first use."""
    found = [(target, kernels[name]) for target, kernels in built if name in kernels]
    images: list[KernelImage] = []
    for target, kernel in found:
        places = [objects.setdefault(each, len(objects)) for each in kernel.objects]
        needs = requirements.index(Requirement(*target.requirement()))
        images.append(replace(kernel.info.image.moved(places), needs=needs))
    return replace(found[0][1].info, name=name, images=tuple(images))


def _checks(step: Pass) -> bool:
    return isinstance(step, CheckTensorPrograms)


def _cache(choice: bool | str | os.PathLike[str]) -> BuildCache | None:
    if isinstance(choice, bool):
        return BuildCache.default() if choice else None
    return BuildCache(Path(choice))


def records_of(
    choice: bool | str | os.PathLike[str] | TuningRecords, target: Target
) -> TuningRecords | None:
    """The tuning records of a build with this option. A damaged file of the user's is a warning. Raises: UsageError
    (`tuning-file`) for a damaged file that the caller names."""
    if choice is False:
        return None
    if isinstance(choice, TuningRecords):
        records = choice
    elif choice is True:
        path = TuningRecords.default_path()
        records = TuningRecords() if path is None else TuningRecords.read(path, strict=False)
    else:
        records = TuningRecords.read(choice)
    return records.with_shipped(target)


class Clock:
    """Measures the steps of a build in seconds."""

    def __init__(self) -> None:
        self.laps: list[tuple[str, float]] = []
        self._last = perf_counter()

    def lap(self, name: str) -> None:
        """Assigns the time since the last lap to step `name`."""
        now = perf_counter()
        self.laps.append((name, now - self._last))
        self._last = now

    def after_pass(self, _number: int, step: Pass, _before: IRModule, _after: IRModule) -> None:
        """The instrument: a lap for each pass, including the caller's own instruments."""
        self.lap(step.name)


def _report(clock: Clock, built: Sequence[Built], jobs: int | None) -> BuildReport:
    """Builds the report. Kernels of equal programs are listed once, under the first name, and once for each target."""
    times: list[KernelTime] = []
    often = Counter(name for _, kernels in built for name in kernels)
    for target, kernels in built:
        suffix = f" ({target.requirement()[0]})"
        distinct = {kernel.symbol: (name, kernel) for name, kernel in reversed([*kernels.items()])}
        for name, kernel in reversed([*distinct.values()]):
            shown = name + suffix if often[name] > 1 else name
            size = len(kernel.objects[0])
            times.append(
                KernelTime(shown, kernel.rule, kernel.seconds, size, kernel.cached, kernel.record)
            )
    return BuildReport(tuple(clock.laps), tuple(times), jobs or default_jobs())
