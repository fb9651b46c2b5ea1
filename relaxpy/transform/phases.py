"""A pipeline of passes in named phases, and new ones made of it: passes put before and after others, replaced, left
out. `relaxpy.build.pipeline` has the one that builds use."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from relaxpy.errors import UsageError
from relaxpy.ir.module import IRModule
from relaxpy.transform.base import Pass, PassContext, Sequential


@dataclass(frozen=True)
class Phase:
    """A step of the pipeline that people speak of."""

    name: str
    passes: tuple[Pass, ...]


@dataclass(frozen=True)
class Pipeline(Pass):
    """Phases in order, as one pass.

        mine = default_pipeline().before("fuse-ops", MyFusion()).without("pack-weights")
        relaxpy.build(mod, pipeline=mine)
        legalised = default_pipeline().through("legalize-ops")(mod)

    A place is the name of a pass (`"fuse-ops"`) or of a phase (`"fuse"`). Where a pass runs several times, it is
    before the first and behind the last, and all of them are replaced or left out. The methods give new pipelines, and
    raise UsageError for a name that there is not.
    """

    name: ClassVar[str] = "pipeline"
    phases: tuple[Phase, ...] = ()
    kinds: tuple[str, ...] = ()
    """The kinds of target that it compiles for; none where that does not matter."""

    @property
    def passes(self) -> tuple[Pass, ...]:
        """The passes of all phases, in order."""
        return tuple(step for phase in self.phases for step in phase.passes)

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        return Sequential(self.passes).run(mod, ctx)

    def before(self, place: str, *passes: Pass) -> Pipeline:
        """The pipeline with these passes in front of a pass, or at the beginning of a phase."""
        number, index = self._places(place)[0]
        return self._with_inserted(number, index or 0, passes)

    def after(self, place: str, *passes: Pass) -> Pipeline:
        """The pipeline with these passes behind a pass, or at the end of a phase."""
        number, index = self._places(place)[-1]
        end = len(self.phases[number].passes) if index is None else index + 1
        return self._with_inserted(number, end, passes)

    def until(self, place: str) -> Pipeline:
        """What runs before a pass, the first of its name, or before a phase."""
        number, index = self._places(place)[0]
        return self._cut(number, index or 0)

    def through(self, place: str) -> Pipeline:
        """What runs up to a pass, the last of its name, or up to the end of a phase, that included."""
        number, index = self._places(place)[-1]
        return self._cut(number, len(self.phases[number].passes) if index is None else index + 1)

    def with_phase(self, phase: Phase, *, after: str) -> Pipeline:
        """The pipeline with one phase more, behind the phase of a name."""
        number = next((i for i, each in enumerate(self.phases) if each.name == after), None)
        if number is None:
            raise self._unknown("phase", after, [each.name for each in self.phases])
        phases = (*self.phases[: number + 1], phase, *self.phases[number + 1 :])
        return dataclasses.replace(self, phases=phases)

    def replace(self, place: str, *passes: Pass) -> Pipeline:
        """The pipeline with these passes instead of a pass, or of all those of a phase."""
        places = set(self._places(place))
        phases: list[Phase] = []
        for number, phase in enumerate(self.phases):
            if (number, None) in places:
                phases.append(Phase(phase.name, passes))
                continue
            kept: list[Pass] = []
            for index, step in enumerate(phase.passes):
                kept += passes if (number, index) in places else (step,)
            phases.append(Phase(phase.name, tuple(kept)))
        return dataclasses.replace(self, phases=tuple(phases))

    def without(self, *places: str) -> Pipeline:
        """The pipeline without these passes, or the passes of these phases."""
        result = self
        for place in places:
            result = result.replace(place)
        return result

    def _with_inserted(self, number: int, index: int, passes: Iterable[Pass]) -> Pipeline:
        phase = self.phases[number]
        changed = Phase(phase.name, (*phase.passes[:index], *passes, *phase.passes[index:]))
        phases = (*self.phases[:number], changed, *self.phases[number + 1 :])
        return dataclasses.replace(self, phases=phases)

    def _cut(self, number: int, end: int) -> Pipeline:
        """The phases before one, and this many passes of that one."""
        phase = self.phases[number]
        phases = (*self.phases[:number], Phase(phase.name, phase.passes[:end]))
        return dataclasses.replace(self, phases=phases)

    def _places(self, place: str) -> list[tuple[int, int | None]]:
        """The (phase, pass in it) that a name means; (phase, None) for a phase."""
        found: list[tuple[int, int | None]] = []
        for number, phase in enumerate(self.phases):
            if phase.name == place:
                found.append((number, None))
            found += [(number, i) for i, step in enumerate(phase.passes) if step.name == place]
        if found:
            return found
        names = list(dict.fromkeys([s.name for s in self.passes] + [p.name for p in self.phases]))
        raise self._unknown("pass", place, names)

    def _unknown(self, what: str, name: str, known: Sequence[str]) -> UsageError:
        near = difflib.get_close_matches(name, known, 1)
        all_names = f"it has {', '.join(known)}"
        return UsageError(
            "unknown-pass",
            f"the pipeline has no {what} {name!r}",
            notes=(all_names,) if near else (),
            help=f"did you mean {near[0]!r}?" if near else all_names,
        )
