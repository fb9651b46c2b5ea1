"""From source lines to time: which operators of the source a launch computes, and its share of a call.

The time of a launch is measured if the explanation has a profile of the function; otherwise it is an estimate by the
roofline model (`relaxpy.runtime.inspect.launches.estimate`), and without known sizes every launch counts the same. The
time of a fused kernel is divided between its operators by the estimates of each alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from relaxpy.explain.explanation import Explanation, FusedBlock, FusedNode, SourceLine
from relaxpy.runtime.function_listing import printable
from relaxpy.runtime.inspect.launches import Launch, estimate, runs
from relaxpy.runtime.inspect.profile import Profile
from relaxpy.runtime.inspect.units import shown
from relaxpy.transform.fuse_ops import LONGEST_NAME

MEASURED, ESTIMATED, COUNTED = "measured", "estimated", "counted"
"""How times are known: measured in seconds, estimated from bytes and operations, or only launches counted."""


@dataclass(frozen=True, slots=True)
class Part:
    """An operator of the source in a launch."""

    source: SourceLine | None
    var: str
    """The binding."""
    program: str
    """The tensor program, before fusion."""
    weight: float
    """Its part of the launch's time, in the flow's unit."""


@dataclass(frozen=True, slots=True)
class TimedLaunch:
    """A call site with its time."""

    launch: Launch
    times: int
    """How often it runs in one call of the flow's function."""
    weight: float
    """Its time in one call: seconds if measured, else in the unit of the estimate."""
    parts: tuple[Part, ...]
    group: tuple[int, int] | None
    """The fusion group: the index of its block, and that of its first node in the block."""


@dataclass(frozen=True, slots=True)
class Flow:
    """The time of one call of a public function."""

    function: str
    basis: str
    """`measured`, `estimated` or `counted`."""
    launches: tuple[TimedLaunch, ...]
    machine: float = 0.0
    """Time outside of launches, in seconds; known if measured."""

    @property
    def total(self) -> float:
        """The time of a call, in the flow's unit."""
        return sum(each.weight for each in self.launches) + self.machine

    def share(self, weight: float) -> float:
        """A part of the call's time, from 0 to 1."""
        return weight / self.total if self.total else 0.0

    @property
    def unit(self) -> str:
        """The quantity that a share is of, in words."""
        return {MEASURED: "time", ESTIMATED: "cost", COUNTED: "launches"}[self.basis]

    def words(self, weight: float) -> str:
        """A time in words: seconds if measured, bytes if estimated, else launches."""
        if self.basis == MEASURED:
            return duration(weight)
        return shown(round(weight)) if self.basis == ESTIMATED else f"{weight:.3g} launches"

    def by_kernel(self) -> list[tuple[str, list[TimedLaunch]]]:
        """Launches by the name of what they run, longest first."""
        found: dict[str, list[TimedLaunch]] = defaultdict(list)
        for each in self.launches:
            found[each.launch.name].append(each)
        return sorted(found.items(), key=lambda item: -sum(t.weight for t in item[1]))


def duration(seconds: float) -> str:
    """A time in a readable unit."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def flows(explanation: Explanation) -> list[Flow]:
    """The flow of each public function that launches anything, a measured one first."""
    exe = explanation.executable
    if exe is None:
        return []
    finder = _Groups(explanation.blocks)
    groups = {(each.function, each.at): finder.of(each) for each in explanation.launches}
    by_function: dict[str, list[Launch]] = defaultdict(list)
    for launch in explanation.launches:
        by_function[launch.function].append(launch)
    found: list[Flow] = []
    for code in exe.functions:
        if not code.public:
            continue
        times = runs(exe.functions, code.name)
        own = [(each, times[name]) for name in times for each in by_function[name]]
        if not own:
            continue
        profile = explanation.profile
        if profile is not None and profile.function == code.name:
            weights, basis = _measured(profile, own), MEASURED
        elif all(each.kind != "kernel" or each.cost for each, _ in own) and any(
            each.kind == "kernel" for each, _ in own
        ):
            weights, basis = [each.cost * n for each, n in own], ESTIMATED
        else:
            weights, basis = [float(n) for _, n in own], COUNTED
        timed = tuple(
            _timed(launch, n, weight, *groups[launch.function, launch.at])
            for (launch, n), weight in zip(own, weights, strict=True)
        )
        machine = max(0.0, profile.seconds - sum(weights)) if basis == MEASURED and profile else 0.0
        found.append(Flow(code.name, basis, timed, machine))
    return sorted(found, key=lambda flow: flow.basis != MEASURED)


def _measured(profile: Profile, own: Sequence[tuple[Launch, int]]) -> list[float]:
    """The seconds of each launch. Launches of one kernel on one line of one function share its time by their cost."""

    def key(function: str, name: str, place: str) -> str:
        return "\0".join((function, name, place))

    seconds = {
        row.name: row.seconds
        for row in profile.rows_by(lambda event: key(event.function, event.name, event.place))
    }
    keys: list[str] = []
    shares: list[float] = []
    for launch, times in own:
        place = launch.place
        where = f"{place.file}:{place.line}" if place.file else place.binding
        where = printable(where or launch.function)
        keys.append(key(printable(launch.function), printable(launch.name), where))
        shares.append((launch.cost or 1.0) * times)
    totals: dict[str, float] = defaultdict(float)
    for each, share in zip(keys, shares, strict=True):
        totals[each] += share
    return [
        seconds.get(each, 0.0) * share / totals[each]
        for each, share in zip(keys, shares, strict=True)
    ]


class _Groups:
    """Finds the fusion group that a launch computes: its binding has the name of the group's last value."""

    def __init__(self, blocks: Sequence[FusedBlock]) -> None:
        self.blocks = blocks
        self.places: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        """Function and variable → block and node, in order."""
        self.members: dict[tuple[int, int], list[int]] = defaultdict(list)
        """Block and group → its nodes."""
        for b, block in enumerate(blocks):
            for n, node in enumerate(block.nodes):
                self.places[block.function, node.var].append((b, n))
                if node.group >= 0:
                    self.members[b, node.group].append(n)
        for b, group in list(self.members):
            name = _fused_name(blocks[b].nodes[n] for n in self.members[b, group])
            # A group of several results is bound under its program's name.
            self.places[blocks[b].function, name].append((b, self.members[b, group][0]))

    def of(self, launch: Launch) -> tuple[tuple[int, int] | None, list[FusedNode]]:
        """The group of a launch, by block and first node, and the nodes that it computes."""
        binding = launch.place.binding
        for name in (binding, binding.rstrip("0123456789")):
            places = self.places.get((launch.function, name))
            if places:
                block, number = places.pop(0) if len(places) > 1 else places[0]
                return self.nodes_of(block, number)
        return None, []

    def nodes_of(self, b: int, n: int) -> tuple[tuple[int, int], list[FusedNode]]:
        nodes = self.blocks[b].nodes
        members = self.members[b, nodes[n].group] if nodes[n].group >= 0 else [n]
        computing = [nodes[each] for each in members if nodes[each].program]
        return (b, members[0]), computing


def _fused_name(nodes: Iterable[FusedNode]) -> str:
    """The start of the name that FuseOps gives to the program of these nodes, without a number at its end."""
    programs = [node.program for node in nodes if node.program]
    return "_".join(["fused", *programs])[:LONGEST_NAME].rstrip("_").rstrip("0123456789")


def _timed(
    launch: Launch,
    times: int,
    weight: float,
    group: tuple[int, int] | None,
    nodes: Sequence[FusedNode],
) -> TimedLaunch:
    """A launch whose time is divided between its operators. One that comes from no binding of a dataflow block is its
    own operator."""
    if not nodes:
        place = launch.place
        source = SourceLine(place.file, place.line) if place.file else None
        part = Part(source, place.binding, launch.name, weight)
        return TimedLaunch(launch, times, weight, (part,), group)
    costs = [estimate(node.flops, node.nbytes) for node in nodes]
    total = sum(costs)
    parts = tuple(
        Part(
            node.source,
            node.var,
            node.program,
            weight * (cost / total if total else 1 / len(nodes)),
        )
        for node, cost in zip(nodes, costs, strict=True)
    )
    return TimedLaunch(launch, times, weight, parts, group)
