"""The compiler of a family of targets: the class `Backend`.

A backend parses targets, adds phases of its own to the pipeline, schedules tensor programs, and compiles the scheduled
programs into images that a runtime of the target loads. Knowledge of a processor or device (layouts, vectors,
instructions) stays in its backend; other code calls these methods. `relaxpy.backend.registry` finds the backend of a
target.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from relaxpy.target import Target

if TYPE_CHECKING:
    from relaxpy.backend.knobs import Choice, Choices
    from relaxpy.backend.schedule import ScheduledKernel
    from relaxpy.runtime.bytecode import KernelImage, KernelMemory
    from relaxpy.tir.lowering.workspace import Launches
    from relaxpy.tir.prim_func import PrimFunc
    from relaxpy.tir.tvm import tirx
    from relaxpy.transform.phases import Pipeline

T = TypeVar("T", bound=Target)


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Options of the kernel compiler."""

    check_arguments: bool = False
    """Kernels compare their arguments with their parameters at every call. Otherwise the caller must do so."""


@dataclass(frozen=True, slots=True)
class KernelImages:
    """Compiled kernels."""

    objects: tuple[bytes, ...]
    """The files that a runtime loads. Equal programs give equal bytes in every process; an executable stores equal
    objects of several kernels once."""
    kernels: Mapping[str, KernelImage]
    """The kernels by the given symbol, as an executable describes them: their objects are indices into `objects`. An
    object contains a kernel under the same symbol or, if the kernel has a `launch`, under
    `relaxpy.runtime.kernel_params.launched` of it."""


class Backend(ABC, Generic[T]):
    """Compiles modules for targets of some kinds. It has no state: one instance serves all builds."""

    kinds: ClassVar[tuple[str, ...]]
    """The kinds of target that it compiles for: the first words of their texts."""
    tuned: ClassVar[Path | None] = None
    """The file of tuning records that comes with the backend (`relaxpy.runtime.tuned`), which every build reads."""

    @abstractmethod
    def parse(self, text: str) -> T:
        """Parse a target text that begins with one of the kinds, and resolve it. Raises BuildError for an unknown
        option; `relaxpy.target` has functions that parse options."""

    def pipeline(self, standard: Pipeline, target: T) -> Pipeline:
        """Return the standard pipeline with the additional phases and passes of this target."""
        return standard

    def fastest_float(self, target: T) -> str:
        """The dtype of floats in which the target computes products fastest, if they may be rounded to it: float32, or
        a narrower one that is known to be faster (`relaxpy.build(…, precision="auto")`)."""
        return "float32"

    @abstractmethod
    def schedule(self, func: tirx.PrimFunc, target: T, choices: Choices) -> ScheduledKernel:
        """Schedule a tensor program for the target. `choices` are settings of knobs (`relaxpy.backend.knobs`), and
        `"rule"` names the rule to use if it applies.

        A program may have an attribute that says that its indices are not proved to be in bounds
        (`analysis.index_checks.is_checked`). It is scheduled with checks, as `schedule_by_rules` does, or refused with
        a BuildError.
        """

    def launches(self, program: PrimFunc, target: T) -> Launches | None:
        """Split a tensor program into launches, with the workspaces that they share or need otherwise, which the graph
        allocates. None for one launch that needs no workspace.

        Called in every build before memory planning (`relaxpy.backend.schedule_tensor_programs`), so it should be fast.
        Each launch is passed to `schedule` when it is compiled.
        """
        return None

    def knobs(self, func: tirx.PrimFunc, target: T) -> dict[str, dict[str, tuple[Choice, ...]]]:
        """All rules that apply to a program, the default one first. For each: the knobs that it reads, with their
        possible values, the default first. `relaxpy tune` tries these; empty if there is nothing to tune."""
        return {}

    def family(self, func: tirx.PrimFunc, target: T) -> str:
        """The family of a program (`Arrangement.family`) by the rule that schedules it; "" if it has none."""
        return ""

    @abstractmethod
    def compile(
        self,
        kernels: Mapping[str, ScheduledKernel],
        target: T,
        options: CompileOptions,
        called: str = "",
    ) -> KernelImages:
        """Compile scheduled programs, given by symbol, into images. A symbol is an identifier, and the same for the
        same program. `called` has the names of the kernels in errors, if these are not their symbols.

        Raises: BuildError (`kernel-compile`, …) for a program that does not compile.
        """

    def kernel_memory(self, scheduled: ScheduledKernel, target: T) -> KernelMemory | None:
        """The heap memory of a run of a scheduled program beside its arguments; None: not known."""
        return None

    def sources(self) -> Sequence[Path] | None:
        """The source files that determine the generated code, besides relaxpy's own. They are part of the key of the
        build cache. By default, the Python files of the package that contains the class. None if they are not known:
        then nothing is cached."""
        return _sources_of(type(self).__module__.partition(".")[0])

    def peak_flops(self, target: T) -> float:
        """The peak rate of this machine in float32 operations per second, as measured; a multiply-add counts as two. 0
        if it is not known."""
        return 0.0


def _sources_of(package: str) -> Sequence[Path] | None:
    """The Python files of a package, sorted; empty for relaxpy, whose files are known. None if not all files are
    found."""
    if package == __name__.partition(".")[0]:
        return ()
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):  # a module created in memory
        return None
    if spec is None or not spec.has_location or spec.origin is None:
        return None
    origin = Path(spec.origin)
    files = sorted(origin.parent.rglob("*.py")) if origin.name == "__init__.py" else [origin]
    return files if all(file.suffix == ".py" and file.is_file() for file in files) else None
