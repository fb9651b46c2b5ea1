"""State of a module: writing a few rows of a large cache, in place and with results that are new.

    python benchmarks/state.py [--rows 4] [--tokens 2048] [--json out.json] [--docs]

A cache (1, tokens, 32, 64) of float32, 17 MB with 2048 tokens, of which `forward` writes some rows at a position of the
call. In place, the module's function writes into the caller's array. The same module as a pure function may not write
there: it copies the cache and writes into the copy. A cache joined of its parts is what a model without state writes.
torch assigns to a slice. All calls take turns in one process; the figure is the median.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import relaxpy  # noqa: E402
from benchmarks.report import markdown_table, replace_section, save  # noqa: E402
from benchmarks.turns import timed  # noqa: E402
from relaxpy import nn  # noqa: E402
from relaxpy.ir import Function  # noqa: E402
from relaxpy.nn import op  # noqa: E402
from relaxpy.runtime.tensor import from_numpy  # noqa: E402

HEADS, WIDTH = 32, 64
Call = Callable[[], Any]


class Cache(nn.Module):
    """A cache of `tokens` rows."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.cache = nn.Buffer((1, tokens, HEADS, WIDTH))

    def update(self, x: nn.Tensor, start: Any) -> nn.Tensor:
        """Write the rows in place."""
        return nn.update_slice(self.cache, x, start, axis=1)

    def join(self, x: nn.Tensor, start: Any) -> nn.Tensor:
        """A new cache: the rows before, the new rows, the rows after."""

        def part(begin: Any, end: Any) -> nn.Tensor:
            return op.strided_slice(self.cache, (1,), (begin,), (end,), assume_inbound=True)

        return op.concat((part(0, start), x, part(start + x.shape[1], self.tokens)), axis=1)


def calls(rows: int, tokens: int) -> dict[str, Call]:
    """The calls by name, after a check that each writes the rows."""
    spec = {"x": nn.spec.Tensor((1, "count", HEADS, WIDTH)), "start": nn.spec.Int()}
    mod, _ = Cache(tokens).export({"update": spec, "join": spec})
    update = mod["update"]
    assert isinstance(update, Function)
    pure = relaxpy.VirtualMachine(
        relaxpy.build(mod.with_function("update", dataclasses.replace(update, pure=True)))
    )
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    x = np.random.default_rng(0).standard_normal((1, rows, HEADS, WIDTH), dtype=np.float32)
    cache = np.zeros((1, tokens, HEADS, WIDTH), np.float32)
    start = tokens // 2
    expected = cache.copy()
    expected[:, start : start + rows] = x
    for result in (pure["update"](x, start, cache), vm["join"](x, start, cache)):
        np.testing.assert_array_equal(result.numpy(), expected)
        assert not cache.any()
    vm["update"](x, start, cache)
    np.testing.assert_array_equal(cache, expected)
    new_rows, own_cache = from_numpy(x), from_numpy(cache)
    found: dict[str, Call] = {
        "in place": lambda: vm["update"](x, start, cache),
        "in place, arguments converted before": lambda: vm["update"](new_rows, start, own_cache),
        "pure function: a copy": lambda: pure["update"](x, start, cache),
        "joined of its parts": lambda: vm["join"](x, start, cache),
    }
    try:
        import torch
    except ImportError:
        return found
    theirs, new = torch.from_numpy(cache), torch.from_numpy(x)

    def assign() -> None:
        theirs[:, start : start + rows] = new

    return {**found, "torch, assigned to a slice": assign}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=4, help="rows that a call writes")
    parser.add_argument("--tokens", type=int, default=2048, help="rows of the cache")
    parser.add_argument("--rounds", type=int, default=20, help="turns of each call")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--docs", action="store_true", help="write docs/benchmarks.md")
    options = parser.parse_args()
    found = calls(options.rows, options.tokens)
    times: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(options.rounds):
        for name, call in found.items():
            times[name] += timed(call, 20)[1:]
    size = options.tokens * HEADS * WIDTH * 4 / 1e6
    rows = [[n, f"{median(t) * 1e6:.1f}", f"{min(t) * 1e6:.1f}"] for n, t in times.items()]
    columns = ["", "µs", "best"]
    table = Table(*columns, title=f"{options.rows} rows of a cache of {size:.1f} MB")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    report = {
        "rows": options.rows,
        "megabytes": size,
        "microseconds": {
            name: {"median": median(t) * 1e6, "min": min(t) * 1e6} for name, t in times.items()
        },
    }
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if options.docs:
        save("state", report)
        intro = (
            f"`python benchmarks/state.py`. `forward` writes {options.rows} rows of a cache of {size:.1f} MB "
            "([Modules](nn.md#state)), medians of calls that take turns. The kernel in place takes 3 µs of a call; the "
            "rest checks in Python that no argument shares memory with the cache, and converts numpy's arrays."
        )
        body = f"{intro}\n\n{markdown_table(columns, rows, ' rr')}"
        replace_section("State: a few rows of a large cache", body)


if __name__ == "__main__":
    main()
