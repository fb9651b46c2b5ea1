"""Regions of a dataflow block that match patterns and can be cut out: for `FuseOpsByPattern` and `LowerToLibrary`.

A region is the bindings that a match covers. It can be computed in one go if no way leads out of it and back in, and
from outside only its roots are seen (unless further outputs are allowed).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from relaxpy.analysis.dataflow_match import Match, find_matches
from relaxpy.analysis.scope import Scope, dependencies, scope_of
from relaxpy.errors import Span
from relaxpy.ir.expr import DataflowBlock, Var
from relaxpy.ir.module import IRModule
from relaxpy.ir.pattern import AnyPattern

Refusal = Callable[[Match], str]
"""Why a match is not wanted; empty if it is."""


@dataclass(frozen=True)
class PatternRegion:
    """A match whose bindings, by position in the block, can become one."""

    match: Match
    members: frozenset[int]


@dataclass
class PatternReport:
    """How often a registered pattern was found in a module, and what was found but not taken."""

    name: str
    matches: int = 0
    refused: list[tuple[str, Span | None]] = field(default_factory=list)
    """Why a region of the pattern's form was left, and where it is."""

    def __str__(self) -> str:
        """What to tell the user."""
        if self.matches:
            return f"the pattern {self.name!r} matched {self.matches} regions"
        reasons = dict[str, list[str]]()
        for reason, span in self.refused:
            reasons.setdefault(reason, []).append(str(span) if span else "?")
        seen = [f"\n  {len(at)} of its form left: {why} ({at[0]})" for why, at in reasons.items()]
        return f"the pattern {self.name!r} matched nothing" + "".join(seen)


class UnmatchedPatternWarning(UserWarning):
    """A pattern that somebody registered and expects to be found was not."""

    def __init__(self, report: PatternReport) -> None:
        super().__init__(str(report))
        self.report = report


def warn_unmatched(reports: Iterable[PatternReport]) -> None:
    """Warn of each pattern that was never found."""
    for report in reports:
        if not report.matches:
            warnings.warn(UnmatchedPatternWarning(report), stacklevel=3)


class PatternRegions:
    """The regions of one block, claimed pattern after pattern; what is claimed is not found again."""

    def __init__(self, block: DataflowBlock | Scope, mod: IRModule) -> None:
        self._scope = scope_of(block, mod)
        self._mod = mod
        self._home: dict[int, frozenset[int]] = {}
        """The region that a binding belongs to."""
        self._dependents: list[list[int]] | None = None

    def claim(
        self,
        pattern: AnyPattern,
        refusal: Refusal,
        report: PatternReport,
        *,
        further_outputs: bool = False,
    ) -> Iterator[PatternRegion]:
        """The regions of a pattern from the end of the block on, so that the longest chain is taken where alternatives
        allow it; each is claimed. With `further_outputs` values inside it may be used elsewhere."""
        for match in find_matches(pattern, self._scope, self._mod, backwards=True):
            position = self._scope.position
            members = frozenset(position[binding.var] for binding in match.bindings)
            if not members or not members.isdisjoint(self._home):
                continue
            reason = self._not_in_one_go(match, members, further_outputs) or refusal(match)
            if reason:
                report.refused.append((reason, match.bindings[-1].span))
                continue
            report.matches += 1
            self._home.update(dict.fromkeys(members, members))
            yield PatternRegion(match, members)

    def _not_in_one_go(self, match: Match, members: frozenset[int], further_outputs: bool) -> str:
        """Why the bindings of a match cannot become one; empty if they can."""
        roots = {self._scope.position[v] for v in match.roots if isinstance(v, Var)}
        seen = [i for i in sorted(members) if self._seen_outside(i, members)]
        inner = [i for i in seen if i not in roots]
        if inner and not further_outputs:
            return f"{self._scope.bindings[inner[0]].var.name} is used elsewhere too"
        # From an output that comes last in its region no way leads back into what it is made of.
        if seen != [max(members)] and self._comes_back(members):
            return "what follows from a part of it goes into another"
        return ""

    def _seen_outside(self, i: int, members: frozenset[int]) -> bool:
        return self._scope.escapes[i] or not members.issuperset(self._scope.users[i])

    def _comes_back(self, members: frozenset[int]) -> bool:
        """Does a way lead out of a region and back in, where every claimed region is one step?"""
        if self._dependents is None:
            self._dependents = [[] for _ in self._scope.bindings]
            for i, needed in enumerate(dependencies(self._scope.bindings)):
                for j in needed:
                    self._dependents[j].append(i)
        reached: set[int] = set()
        waiting = [i for member in members for i in self._dependents[member] if i not in members]
        while waiting:
            at = waiting.pop()
            if at in members:
                return True
            if at not in reached:
                step = self._home.get(at, frozenset([at]))
                reached |= step
                waiting += [i for j in step for i in self._dependents[j] if i not in reached]
        return False
