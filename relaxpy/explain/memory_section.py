"""The section about memory: the plan, its picture, and what lies where."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from relaxpy.explain.explanation import Explanation, SourceLine
from relaxpy.explain.links import Links
from relaxpy.explain.markup import folded, lines, link, name, several, table, text
from relaxpy.runtime.inspect.memory_plan import FunctionPlan, MemoryPlan, PlannedTensor
from relaxpy.runtime.inspect.units import shown


def memory(explanation: Explanation, links: Links) -> str:
    """The memory of a call, or the reason why it is unknown; "" for a build that failed."""
    plan, error = explanation.plan, explanation.plan_error
    if plan is None:
        if error is None:
            return ""
        return f"<p>{text(error.message)}.</p>" + (
            f"<p>{text(error.help)}</p>" if error.help else ""
        )
    planning = "".join(map(_planning, plan.functions))
    pictures = _picture(plan)
    if planning:
        pictures = folded("Before planning", _picture(plan.apart())) + pictures
    contents = "".join(
        _storages(number, function, links) for number, function in enumerate(plan.functions)
    )
    return f'<pre tabindex="0">{lines(str(plan))}</pre>{planning}{pictures}{contents}'


def _picture(plan: MemoryPlan) -> str:
    return f'<div class="memory">{plan.svg()}</div>'


def _planning(function: FunctionPlan) -> str:
    """The effect of memory planning on a function, in words."""
    count = sum(tensor.storage >= 0 for tensor in function.tensors)
    if not count:
        return ""
    storages = f"{len(function.storages)} storage{'s' * (len(function.storages) != 1)}"
    tensors = f"{count} tensor{'s' * (count != 1)}"
    return (
        f"<p><b>{name(function.name)}</b>: before planning {tensors} of {shown(function.unshared)}, each with memory "
        f"of its own; after it {storages} of {shown(function.planned)}. At the busiest moment {shown(function.least)} "
        "are in use.</p>"
    )


def _storages(number: int, function: FunctionPlan, links: Links) -> str:
    """The storages of a function with their tensors."""
    inside: dict[int, list[PlannedTensor]] = defaultdict(list)
    for tensor in function.tensors:
        inside[tensor.storage].append(tensor)
    parts: list[str] = []
    for storage, size in enumerate(function.storages):
        tensors = inside.get(storage, [])
        count = f"{len(tensors)} tensor{'s' * (len(tensors) != 1)}"
        head = f"storage {storage} of {name(function.name)}: {shown(size)}, {count}"
        body = table(_HEAD, _tensors(function, tensors, links))
        parts.append(folded(head, body, id=links.storage((number, storage))))
    if own := inside.get(-1):
        head = f"{len(own)} tensor{'s' * (len(own) != 1)} of {name(function.name)} with memory of their own"
        parts.append(folded(head, table(_HEAD, _tensors(function, own, links))))
    return "".join(parts)


_HEAD = ("tensor", "size", "at byte", "instructions", "written by", "source line")


def _tensors(function: FunctionPlan, tensors: list[PlannedTensor], links: Links) -> Iterator[str]:
    for tensor in tensors:
        writers = links.writers.get((function.name, tensor.begin), {})
        place = tensor.place
        line = SourceLine(place.file, place.line) if place.file else None
        where = link(links.line(line), line) if line is not None else ""
        yield (
            f'<tr class="row" data-name="{text(tensor.name)}"><td>{name(tensor.name)}</td>'
            f"<td class='number'>{shown(tensor.nbytes)}</td><td class='number'>{tensor.offset:,}</td>"
            f"<td class='number'>{tensor.begin}–{tensor.end}</td>"
            f"<td>{several([link(links.kernel(each), each) for each in writers], 3)}</td><td>{where}</td></tr>"
        )
