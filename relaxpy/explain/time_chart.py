"""Charts of time: bars with shares, sorted, that unfold into what they consist of.

A chart has two scales, chosen by radio buttons, which need no script: a linear one for shares, and a logarithmic one
that shows small bars beside one that dwarfs them. Where one bar dominates, the logarithmic scale is chosen at first.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from relaxpy.explain.explanation import Explanation
from relaxpy.explain.flow import COUNTED, ESTIMATED, MEASURED, Flow, TimedLaunch, duration
from relaxpy.explain.links import Links
from relaxpy.explain.markup import folded, hue, link, name, percent, text
from relaxpy.runtime.inspect.profile import MACHINE

SHOWN = 30
"""The most bars beside each other; the smaller ones are folded."""
DECADES = 5
"""The most powers of ten on a logarithmic scale."""
DOMINANT = 0.6
"""The share from which on a bar dominates."""


@dataclass(frozen=True)
class Bar:
    """A bar of a chart."""

    label: str
    """HTML."""
    value: float
    words: str
    """The value in words."""
    key: str = ""
    """The text by which the page's filter finds it."""
    hue: int | None = None
    parts: tuple[Bar, ...] = ()
    """Its parts, none of which is longer."""
    note: str = ""
    """HTML behind the bar."""
    open: bool = False


def chart(bars: Sequence[Bar], id: str) -> str:
    """The bars, longest first, as HTML. `id` names the chart's radio buttons."""
    values = [bar.value for bar in bars]
    whole, most = sum(values), max(values, default=0.0)
    if not most:
        return ""
    low = max(min(bar.value for bar in _all(bars) if bar.value > 0), most / 10**DECADES)
    scale = _Scale(whole, most, 10 ** math.floor(math.log10(low)))
    dwarfs = len(bars) > 2 and most > DOMINANT * whole
    linear, logarithmic = ("", " checked") if dwarfs else (" checked", "")
    return (
        f'<fieldset class="chart"><legend>scale</legend>'
        f'<input type="radio" name="{id}" id="{id}-lin" class="lin"{linear}><label for="{id}-lin">linear</label>'
        f'<input type="radio" name="{id}" id="{id}-log" class="log"{logarithmic}><label for="{id}-log">logarithmic, '
        f"ten times for each step of the grid</label>"
        f'{_strip(bars, whole)}<div class="bars" style="--steps:{scale.decades}">{_rows(bars, scale)}</div></fieldset>'
    )


@dataclass(frozen=True)
class _Scale:
    whole: float
    most: float
    low: float
    """Where the logarithmic scale begins."""

    @property
    def decades(self) -> float:
        """The powers of ten from `low` to `most`."""
        return max(1e-9, math.log10(self.most / self.low))

    def linear(self, value: float) -> float:
        return 100 * min(1.0, value / self.most)

    def logarithmic(self, value: float) -> float:
        if value <= self.low:
            return 0.0
        return 100 * math.log10(min(value, self.most) / self.low) / self.decades


def _all(bars: Sequence[Bar]) -> list[Bar]:
    return [each for bar in bars for each in (bar, *_all(bar.parts))]


def _strip(bars: Sequence[Bar], whole: float) -> str:
    """The shares of the whole beside each other."""
    pieces = "".join(
        f'<i style="width:{100 * bar.value / whole:.2f}%;--h:{bar.hue}" title="{text(bar.key)}: '
        f'{percent(bar.value / whole)}"></i>'
        for bar in _sorted(bars)
        if bar.hue is not None and bar.value > whole / 1000
    )
    return f'<div class="strip" aria-hidden="true">{pieces}</div>' if pieces else ""


def _sorted(bars: Sequence[Bar]) -> list[Bar]:
    return sorted(bars, key=lambda bar: -bar.value)


def _rows(bars: Sequence[Bar], scale: _Scale) -> str:
    rows = [_row(bar, scale) for bar in _sorted(bars)]
    if len(rows) <= SHOWN:
        return "".join(rows)
    rest = _sorted(bars)[SHOWN - 1 :]
    share = percent(sum(bar.value for bar in rest) / scale.whole)
    summary = f"{len(rest)} smaller ones, together {share}"
    return "".join(rows[: SHOWN - 1]) + folded(summary, "".join(rows[SHOWN - 1 :]))


def _row(bar: Bar, scale: _Scale) -> str:
    style = f"--lin:{scale.linear(bar.value):.2f};--log:{scale.logarithmic(bar.value):.2f}"
    if bar.hue is not None:
        style += f";--h:{bar.hue}"
    share = percent(bar.value / scale.whole)
    cells = (
        f'<span class="label">{bar.label}</span><span class="number">{bar.words}</span>'
        f'<span class="number">{share}</span><span class="track"><i style="{style}"></i></span>'
    )
    key = f'data-name="{text(bar.key)}"' if bar.key else ""
    if not bar.parts and not bar.note:
        return f'<div class="bar row" {key}>{cells}</div>'
    inner = _rows(bar.parts, scale)
    return (
        f'<details class="row" {key}{" open" if bar.open else ""}><summary class="bar">{cells}</summary>'
        f'<div class="parts">{inner}{bar.note}</div></details>'
    )


def call_chart(flow: Flow, links: Links, id: str) -> str:
    """Bars of the kernels of a call, as long as their times; a kernel unfolds into its operators and its launches. The
    times are measured, estimated from bytes and operations, or, where sizes are unknown, one unit a launch."""
    basis = {
        MEASURED: f"Measured: a call takes {duration(flow.total)}.",
        ESTIMATED: "Not a time: estimated from the bytes that each launch must move and its floating-point operations, "
        "eight of which count as a byte (<code>--input</code> measures instead).",
        COUNTED: "Not a time: costs are not known at these sizes, so every launch counts the same "
        "(<code>--bound n=128</code> or <code>--size n=128</code> gives sizes, <code>--input</code> measures).",
    }[flow.basis]
    if flow.basis == ESTIMATED and any(each.launch.kind != "kernel" for each in flow.launches):
        basis += " The cost of library and Python functions is not known: they count nothing."
    order = list(dict.fromkeys(each.launch.name for each in flow.launches))
    bars = [
        _kernel_bar(flow, kernel, launches, links, order.index(kernel))
        for kernel, launches in flow.by_kernel()
    ]
    if flow.basis == MEASURED:
        label = text(MACHINE)
        bars.append(Bar(label, flow.machine, duration(flow.machine), "machine", None))
    return f"<p>{basis}</p>" + chart(bars, id)


def _kernel_bar(
    flow: Flow, kernel: str, launches: Sequence[TimedLaunch], links: Links, number: int
) -> Bar:
    weight = sum(each.weight for each in launches)
    colour = hue(number)
    operators: dict[str, float] = defaultdict(float)
    places: dict[tuple[str, str], float] = defaultdict(float)
    sources: dict[tuple[str, str], str] = {}
    for each in launches:
        for part in each.parts:
            operators[part.program] += part.weight
        last = each.parts[-1]
        place = (each.launch.function, str(last.source or each.launch.place.binding))
        places[place] += each.weight
        sources[place] = links.line(last.source)
    parts: list[Bar] = []
    if len(operators) > 1:
        parts += [
            Bar(name(program), value, flow.words(value), program, colour)
            for program, value in operators.items()
        ]
    note = ""
    times = sum(each.times for each in launches)
    if len(launches) > 1:
        note = _launch_list(flow, places, sources)
    label = link(links.kernel(kernel), kernel) + (f" ×{times}" if times > 1 else "")
    return Bar(label, weight, flow.words(weight), kernel, colour, tuple(parts), note)


def _launch_list(
    flow: Flow, places: dict[tuple[str, str], float], sources: dict[tuple[str, str], str]
) -> str:
    """The launches of a kernel by place, largest first."""
    ordered = sorted(places, key=lambda place: -places[place])
    items = [
        f"<li>{link(sources[place], place[1])} {flow.words(places[place])}, "
        f"{percent(flow.share(places[place]))}</li>"
        for place in ordered
    ]
    first = f"<ul>{''.join(items[:8])}</ul>"
    rest = folded(f"{len(items) - 8} more", f"<ul>{''.join(items[8:])}</ul>") if items[8:] else ""
    return f"<p>Launched at</p>{first}{rest}"


def build_chart(explanation: Explanation) -> str:
    """The time of the build by phase and pass, with the compilation of kernels split by kernel."""
    phases: dict[str, list[Bar]] = defaultdict(list)
    steps = list(explanation.steps)
    for run in explanation.passes:
        words = duration(run.seconds)
        label = link(f"pass-{run.number}", run.name)
        phases[run.phase or "passes"].append(Bar(label, run.seconds, words, run.name, 210))
        steps.remove((run.name, run.seconds))
    bars: list[Bar] = []
    for phase, passes in phases.items():
        seconds = sum(part.value for part in passes)
        label = f"phase {name(phase)}" if phase != "passes" else "passes"
        bars.append(Bar(label, seconds, duration(seconds), phase, 210, tuple(passes)))
    for step, seconds in steps:
        parts: tuple[Bar, ...] = ()
        note = ""
        if step == "kernels":
            parts = tuple(_compiled(explanation, seconds))
            cached = sum(kernel.cached for kernel in explanation.kernels)
            if parts:
                note = (
                    f"<p>The build waits this long for its kernels, of which {explanation.jobs} compile at a time, "
                    "beside other steps. It is divided between them by the time of each in its own thread.</p>"
                )
            if cached:
                note += f"<p>From the cache: {cached} of {len(explanation.kernels)}.</p>"
        label = "compile kernels" if step == "kernels" else name(step)
        bars.append(Bar(label, seconds, duration(seconds), step, 25, parts, note, bool(parts)))
    return chart(bars, "build")


def _compiled(explanation: Explanation, seconds: float) -> list[Bar]:
    """The parts of the step that compiles, without kernels from the cache."""
    whole = sum(kernel.seconds for kernel in explanation.kernels if not kernel.cached)
    return [
        Bar(
            link(f"kernel-{number}", kernel.name),
            seconds * kernel.seconds / whole,
            duration(seconds * kernel.seconds / whole),
            kernel.name,
            25,
        )
        for number, kernel in enumerate(explanation.kernels)
        if kernel.seconds and not kernel.cached
    ]
