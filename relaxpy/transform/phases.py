"""A pipeline of passes in named phases. New pipelines are made from it by inserting, replacing or removing passes.
`relaxpy.build.pipeline` has the default one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from relaxpy.errors import UsageError, caller_span, did_you_mean
from relaxpy.ir.module import IRModule
from relaxpy.transform.base import Pass, PassContext, Sequential

LEVELS = (0, 1, 2, 3)
"""The levels of optimisation."""


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
        self.check_order()
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

    def at_level(
        self, level: int, *, required: Sequence[str] = (), disabled: Sequence[str] = ()
    ) -> Pipeline:
        """The passes of this level of optimisation and those below: 0 only what compiling needs, 1 fusion, 2 constant
        folding, 3 all; with those named in `required`, and what they need before them; without those in `disabled`.
        Passes that you inserted stay, unless their class has a level.

        Raises: UsageError for an unknown name, another level (`opt-level`), a disabled pass that compiling needs
        (`mandatory-pass`), or that a pass which stays needs before it (`pass-order`).
        """
        if level not in LEVELS:
            raise UsageError(
                "opt-level",
                f"the level of optimisation must be from 0 to {LEVELS[-1]}, got {level!r}",
                span=caller_span(),
                help="0 nothing, 1 fusion, 2 constant folding, 3 all; LLVM's is in the target: llvm -opt-level=2",
            )
        for name in (*required, *disabled):
            if name not in {step.name for step in self.passes}:
                self._places(name)  # unknown, or a phase
                raise self._unknown("pass", name, [step.name for step in self.passes])
        needed = self._with_prerequisites(required)
        phases: list[Phase] = []
        for phase in self.phases:
            kept = [s for s in phase.passes if s.level <= level or s.name in needed]
            for step in kept:
                self._check_disabled(step, disabled)
            phases.append(Phase(phase.name, tuple(s for s in kept if s.name not in disabled)))
        return dataclasses.replace(self, phases=tuple(phases))

    def check_order(self) -> None:
        """Refuse an order in which a pass comes before one of its prerequisites.

        Raises: UsageError (`pass-order`).
        """
        names = [step.name for step in self.passes]
        for i, step in enumerate(self.passes):
            for before in step.prerequisites:
                if before in names and before not in names[:i]:
                    raise UsageError(
                        "pass-order",
                        f"{step.name} runs before {before}, and must run after it",
                        span=caller_span(),
                        notes=(f"the order is {', '.join(names)}",),
                        help=f'move it: pipeline.without("{step.name}").after("{before}", {type(step).__name__}(…))',
                    )

    def _with_prerequisites(self, names: Iterable[str]) -> set[str]:
        """These passes, and those that must come before them."""
        waiting, found = list(names), set[str]()
        needs = {step.name: step.prerequisites for step in self.passes}
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += needs.get(name, ())
        return found

    def _check_disabled(self, step: Pass, disabled: Sequence[str]) -> None:
        """Refuse to leave out a pass that compiling needs, or that one which stays needs before it."""
        if step.name in disabled:
            if step.mandatory:
                raise UsageError(
                    "mandatory-pass",
                    f"{step.name} cannot be disabled: programs are not compiled without it",
                    span=caller_span(),
                    help="relaxpy passes lists the passes and their levels; those of level 0 are needed",
                )
            return
        missing = [name for name in step.prerequisites if name in disabled]
        if missing:
            raise UsageError(
                "pass-order",
                f"{step.name} must run after {missing[0]}, which is disabled",
                span=caller_span(),
                help=f"disable {step.name}, too, or neither",
            )

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
