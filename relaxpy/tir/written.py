"""Which buffers a tensor program writes."""

from __future__ import annotations

from typing import Any

from relaxpy.tir.tvm import s_tir, tirx, tvm
from relaxpy.tir.walk import walk


def written_buffers(func: Any) -> set[Any]:
    """The buffers that are written, under any alias."""
    found: set[Any] = set()
    views: list[tuple[Any, Any]] = []
    calls: list[Any] = []
    declared: list[Any] = []
    walk(
        func.body,
        (tirx.BufferStore, lambda store: found.add(store.buffer)),
        (tvm.ir.Call, calls.append),
        (tirx.DeclBuffer, declared.append),
        (s_tir.MatchBufferRegion, lambda match: views.append((match.buffer, match.source.source))),
    )
    views += [(stmt.buffer, source_of(stmt)) for stmt in declared]
    viewed = {getattr(stmt, "data", None) for stmt in declared}
    for call in calls:
        if call not in viewed:
            found.update(handed_over(call))
    aliases: dict[Any, list[Any]] = {}
    for view, source in views:
        if source is not None:
            aliases.setdefault(view, []).append(source)
            aliases.setdefault(source, []).append(view)
    waiting = list(found)
    while waiting:
        more = [b for b in aliases.get(waiting.pop(), ()) if b not in found]
        found.update(more)
        waiting += more
    return found


def source_of(stmt: Any) -> Any:
    """The buffer whose memory a declared buffer has; None for other memory."""
    data = getattr(stmt, "data", None)
    return data.args[0] if isinstance(data, tvm.ir.Call) and len(data.args) == 1 else None


def handed_over(call: Any) -> list[Any]:
    """The buffer whose memory is passed to a function."""
    return [call.args[0]] if str(getattr(call.op, "name", "")).endswith("buffer_data") else []
