"""The compiler of a target: one `Backend` a family of targets.

A backend reads targets, puts phases of its own into the pipeline, arranges tensor programs, and compiles what it
arranged into images that a runtime of the target loads. All that is known of a processor or device, its layouts,
vectors and instructions, stays in its backend: what is outside asks these methods. `relaxpy.backend.registry` finds the
backend of a target.
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
    """Options of the compiler of kernels."""

    check_arguments: bool = False
    """Kernels compare their arguments with their parameters at every call. Otherwise whoever calls them has to."""


@dataclass(frozen=True, slots=True)
class KernelImages:
    """Compiled kernels."""

    objects: tuple[bytes, ...]
    """What a runtime loads. The same programs give the same bytes in every process; objects of several kernels that are
    equal are stored once in an executable."""
    kernels: Mapping[str, KernelImage]
    """The kernels by the symbol that was given, as an executable describes them: their objects are indices into
    `objects`. The object knows a kernel by its own symbol, the one given; where it has a `launch`, by
    `relaxpy.runtime.kernel_params.launched` of that."""


class Backend(ABC, Generic[T]):
    """How modules are compiled for targets of some kinds. It has no state: one instance serves all builds."""

    kinds: ClassVar[tuple[str, ...]]
    """The first words of its targets' texts."""

    @abstractmethod
    def parse(self, text: str) -> T:
        """The target of a text that begins with one of the kinds, resolved. Raises BuildError for what it does not
        know; `relaxpy.target` has what reads options."""

    def pipeline(self, standard: Pipeline, target: T) -> Pipeline:
        """The standard pipeline with what this target needs besides: phases and passes of its own."""
        return standard

    @abstractmethod
    def schedule(self, func: tirx.PrimFunc, target: T, choices: Choices) -> ScheduledKernel:
        """A tensor program arranged for the target. `choices` are settings of knobs (`relaxpy.backend.knobs`), and
        `"rule"` names the rule to take if it applies.

        A program may have indices that nobody proved to be right, and says so (`analysis.index_checks.is_checked`): it
        is arranged with checks, as `schedule_by_rules` does, or refused with a BuildError.
        """

    def launches(self, program: PrimFunc, target: T) -> Launches | None:
        """A tensor program as the launches that it takes, and the memory that they hand on to each other or need
        otherwise, which the graph allocates for them. None for one launch that needs no such memory.

        It is asked before memory is planned (`relaxpy.backend.schedule_tensor_programs`), in every build, so that it
        should not take long: each launch is given to `schedule` when it is compiled.
        """
        return None

    def knobs(self, func: tirx.PrimFunc, target: T) -> dict[str, dict[str, tuple[Choice, ...]]]:
        """Every rule that applies to a program, the one that would be taken first, with the knobs that it asks for and
        what each may be set to, its own choice first. What `relaxpy tune` tries; nothing if there is nothing to."""
        return {}

    @abstractmethod
    def compile(
        self,
        kernels: Mapping[str, ScheduledKernel],
        target: T,
        options: CompileOptions,
        called: str = "",
    ) -> KernelImages:
        """Images of arranged programs, given by symbol: identifiers, which are the same for the same program. `called`
        is what errors call the kernels, if not by their symbols.

        Raises: BuildError (`kernel-compile`, …) for a program that does not compile.
        """

    def kernel_memory(self, scheduled: ScheduledKernel, target: T) -> KernelMemory | None:
        """What a run of an arranged program takes from the heap beside its arguments; None: not known."""
        return None

    def sources(self) -> Sequence[Path] | None:
        """The files that say what becomes of a program, besides relaxpy's own: they are part of the key of what builds
        keep. Here, the Python files of the package that the class is in. None where they are not known: nothing is
        kept then."""
        return _sources_of(type(self).__module__.partition(".")[0])

    def peak_flops(self, target: T) -> float:
        """Operations a second of float32 multiply-adds, two each, that this machine does at most, as measured; 0 where
        that is not known."""
        return 0.0


def _sources_of(package: str) -> Sequence[Path] | None:
    """The Python files of a package, sorted; none of relaxpy, whose own are known. None where they are not all."""
    if package == __name__.partition(".")[0]:
        return ()
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):  # a module that was made in memory
        return None
    if spec is None or not spec.has_location or spec.origin is None:
        return None
    origin = Path(spec.origin)
    files = sorted(origin.parent.rglob("*.py")) if origin.name == "__init__.py" else [origin]
    return files if all(file.suffix == ".py" and file.is_file() for file in files) else None
