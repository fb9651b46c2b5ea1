"""A pipeline of passes in named phases. New pipelines are made from it by inserting, replacing or removing passes.
`relaxpy.build.pipeline` has the default one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from relaxpy.errors import UsageError, did_you_mean
from relaxpy.ir.module import IRModule
from relaxpy.transform.base import Pass, PassContext, Sequential


@dataclass(frozen=True)
class Phase:
    """A named stage of the pipeline."""

    name: str
    passes: tuple[Pass, ...]


@dataclass(frozen=True)
class Pipeline(Pass):
    """Phases in order, as one pass.

        mine = default_pipeline().before("fuse-ops", MyFusion()).without("pack-weights")
        relaxpy.build(mod, pipeline=mine)
        legalised = default_pipeline().through("legalize-ops")(mod)

    A place is the name of a pass (`"fuse-ops"`) or of a phase (`"fuse"`). For a pass that runs several times, `before`
    means the first run and `after` the last; `replace` and `without` apply to all of them. The methods return new
    pipelines, and raise UsageError for an unknown name.
    """

    name: ClassVar[str] = "pipeline"
    phases: tuple[Phase, ...] = ()
    kinds: tuple[str, ...] = ()
    """The kinds of target that the pipeline compiles for; empty if it does not depend on the target."""

    @property
    def passes(self) -> tuple[Pass, ...]:
        """The passes of all phases, in order."""
        return tuple(step for phase in self.phases for step in phase.passes)

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        return Sequential(self.passes).run(mod, ctx)

    def before(self, place: str, *passes: Pass) -> Pipeline:
        """Return the pipeline with these passes inserted before a pass, or at the beginning of a phase."""
        number, index = self._places(place)[0]
        return self._with_inserted(number, index or 0, passes)

    def after(self, place: str, *passes: Pass) -> Pipeline:
        """Return the pipeline with these passes inserted after a pass, or at the end of a phase."""
        number, index = self._places(place)[-1]
        end = len(self.phases[number].passes) if index is None else index + 1
        return self._with_inserted(number, end, passes)

    def until(self, place: str) -> Pipeline:
        """The part of the pipeline before a phase, or before the first pass of a name."""
        number, index = self._places(place)[0]
        return self._cut(number, index or 0)

    def through(self, place: str) -> Pipeline:
        """The part of the pipeline up to and including a phase, or the last pass of a name."""
        number, index = self._places(place)[-1]
        return self._cut(number, len(self.phases[number].passes) if index is None else index + 1)

    def with_phase(self, phase: Phase, *, after: str) -> Pipeline:
        """Return the pipeline with a phase inserted after the phase of a name."""
        number = next((i for i, each in enumerate(self.phases) if each.name == after), None)
        if number is None:
            raise self._unknown("phase", after, [each.name for each in self.phases])
        phases = (*self.phases[: number + 1], phase, *self.phases[number + 1 :])
        return dataclasses.replace(self, phases=phases)

    def replace(self, place: str, *passes: Pass) -> Pipeline:
        """Return the pipeline with a pass, or all passes of a phase, replaced by these."""
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
        """Return the pipeline without these passes, or without the passes of these phases."""
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
        """All phases before one, and the first `end` passes of that one."""
        phase = self.phases[number]
        phases = (*self.phases[:number], Phase(phase.name, phase.passes[:end]))
        return dataclasses.replace(self, phases=phases)

    def _places(self, place: str) -> list[tuple[int, int | None]]:
        """The pairs (phase, pass) that a name refers to; (phase, None) for a phase."""
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
        near = did_you_mean(name, known)
        all_names = f"it has {', '.join(known)}"
        return UsageError(
            "unknown-pass",
            f"the pipeline has no {what} {name!r}",
            notes=(all_names,) if near else (),
            help=near or all_names,
        )
