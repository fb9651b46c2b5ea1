"""Regions of a dataflow block that match patterns and can be cut out, for `FuseOpsByPattern` and `LowerToLibrary`.

A region consists of the bindings that a match covers. It can be cut out if no path leads out of it and back in, and
only its roots are used outside (unless further outputs are allowed).
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
"""The reason why a match is rejected; empty if it is accepted."""


@dataclass(frozen=True)
class PatternRegion:
    """A match whose bindings, given by position in the block, can be cut out as one."""

    match: Match
    members: frozenset[int]


@dataclass
class PatternReport:
    """The number of matches of a registered pattern in a module, and the matches that were rejected."""

    name: str
    matches: int = 0
    refused: list[tuple[str, Span | None]] = field(default_factory=list[tuple[str, Span | None]])
    """The reason for each rejected match, and its location."""

    def __str__(self) -> str:
        """The report as text for the user."""
        if self.matches:
            return f"the pattern {self.name!r} matched {self.matches} regions"
        reasons = dict[str, list[str]]()
        for reason, span in self.refused:
            reasons.setdefault(reason, []).append(str(span) if span else "?")
        seen = [
            f"\n  {len(at)} of its form were rejected: {why} ({at[0]})"
            for why, at in reasons.items()
        ]
        return f"the pattern {self.name!r} matched nothing" + "".join(seen)


class UnmatchedPatternWarning(UserWarning):
    """A registered pattern that is expected to match did not match."""

    def __init__(self, report: PatternReport) -> None:
        super().__init__(str(report))
        self.report = report


def warn_unmatched(reports: Iterable[PatternReport]) -> None:
    """Warn about each pattern that never matched."""
    for report in reports:
        if not report.matches:
            warnings.warn(UnmatchedPatternWarning(report), stacklevel=3)


class PatternRegions:
    """The regions of one block, claimed pattern by pattern. A claimed binding is not matched again."""

    def __init__(self, block: DataflowBlock | Scope, mod: IRModule) -> None:
        self._scope = scope_of(block, mod)
        self._mod = mod
        self._home: dict[int, frozenset[int]] = {}
        """The region that each binding belongs to."""
        self._dependents: list[list[int]] | None = None

    def claim(
        self,
        pattern: AnyPattern,
        refusal: Refusal,
        report: PatternReport,
        *,
        further_outputs: bool = False,
    ) -> Iterator[PatternRegion]:
        """Claim the regions of a pattern from the end of the block on, so that the longest chain is taken if
        alternatives allow it. With `further_outputs`, inner values may be used elsewhere."""
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
        """The reason why the bindings of a match cannot be cut out as one; empty if they can."""
        roots = {self._scope.position[v] for v in match.roots if isinstance(v, Var)}
        seen = [i for i in sorted(members) if self._seen_outside(i, members)]
        inner = [i for i in seen if i not in roots]
        if inner and not further_outputs:
            return f"{self._scope.bindings[inner[0]].var.name} is used elsewhere too"
        # No path leads from an output that is last in its region back into the region.
        if seen != [max(members)] and self._comes_back(members):
            return "a value computed from one part of it is an operand of another part"
        return ""

    def _seen_outside(self, i: int, members: frozenset[int]) -> bool:
        return self._scope.escapes[i] or not members.issuperset(self._scope.users[i])

    def _comes_back(self, members: frozenset[int]) -> bool:
        """Does a path lead out of a region and back in, with every claimed region contracted to one node?"""
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
