"""Sampling of next tokens from logits, and the most probable tokens, beside torch and numpy, and what memory gives.

    python benchmarks/sampling.py [--rows 16] [--vocab 32000] [--json out.json] [--docs]

A row of options is one setting of `relaxpy.serve.Sampling` for all rows of the batch; the arguments are made before.
torch does the same with `sort`, `cumsum` and `multinomial` (top-k alone with `topk`), numpy finds the top k by
`argpartition`. Calls take turns in one process; figures are medians. The limit is the time in which the processor reads
the logits once.
"""

from __future__ import annotations

import argparse
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
from benchmarks.limits import Limits  # noqa: E402
from benchmarks.report import markdown_table, replace_section, save  # noqa: E402
from benchmarks.turns import timed  # noqa: E402
from relaxpy import nn  # noqa: E402
from relaxpy.runtime.host.threads import num_threads  # noqa: E402
from relaxpy.serve import Draw, Sampling, sampling_arguments  # noqa: E402

COUNT = 20
"""The most probable tokens that are asked for."""
HISTORY = 100
"""Tokens of each text so far."""
CASES = {
    "temperature 0": Sampling(temperature=0),
    "temperature": Sampling(temperature=0.8),
    "top-k": Sampling(temperature=0.8, top_k=50),
    "top-p": Sampling(temperature=0.8, top_p=0.9),
    "min-p": Sampling(temperature=0.8, min_p=0.05),
    "top-k, top-p, min-p": Sampling(temperature=0.8, top_k=50, top_p=0.9, min_p=0.05),
    "the same, penalties": Sampling(0.8, 50, 0.9, 0.05, 1.1, 0.5, 0.1),
}
LAST = f"{COUNT} most probable"
Call = Callable[[], Any]


class Sampler(nn.Module):
    """Both functions."""

    def sample(self, **arguments: nn.Tensor) -> tuple[nn.Tensor, nn.Tensor]:
        """A token of each row."""
        return nn.sample(**arguments)

    def most_probable(self, logits: nn.Tensor) -> tuple[nn.Tensor, nn.Tensor]:
        """The first tokens of each row."""
        return nn.top_logprobs(logits, COUNT)


def ours(logits: np.ndarray) -> dict[str, Call]:
    """Our calls by name."""
    rows, vocab = logits.shape
    spec = nn.sampling_spec(vocab)
    mod, _ = Sampler().export({"sample": spec, "most_probable": {"logits": spec["logits"]}})
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    text = list(range(HISTORY))
    found: dict[str, Call] = {}
    for name, options in CASES.items():
        draws = [Draw(options, text, HISTORY // 2, request) for request in range(rows)]
        arguments = sampling_arguments(draws, vocab)
        found[name] = lambda given=arguments: vm["sample"](logits, *given)
    return {**found, LAST: lambda: vm["most_probable"](logits)}


def of_torch(logits: np.ndarray) -> dict[str, Call]:
    """The same calls of torch, by the same names; none where it is not installed."""
    try:
        import torch
    except ImportError:
        return {}
    torch.set_num_threads(num_threads())
    x = torch.from_numpy(logits)

    def drawn(options: Sampling) -> Any:
        if options.temperature == 0:
            return x.argmax(-1)
        scores = x / options.temperature
        order = None
        if options.top_p < 1:
            scores, order = torch.sort(scores, descending=True)
            scores[:, options.top_k or scores.shape[1] :] = -torch.inf
            powers = torch.softmax(scores, -1)
            sums = powers.cumsum(-1)
            powers[sums - powers > options.top_p] = 0
        else:
            if options.top_k:
                scores, order = scores.topk(options.top_k)
            powers = torch.softmax(scores, -1)
        if options.min_p:
            powers[powers < options.min_p * powers.amax(-1, keepdim=True)] = 0
        token = torch.multinomial(powers, 1)
        return token if order is None else order.gather(1, token)

    def most_probable() -> Any:
        values, tokens = x.topk(COUNT)
        return tokens, values - x.logsumexp(-1, keepdim=True)

    some = {n: o for n, o in CASES.items() if (o.repetition_penalty, o.presence_penalty) == (1, 0)}
    found: dict[str, Call] = {n: lambda o=o: drawn(o) for n, o in some.items()}
    return {**found, LAST: most_probable}


def of_numpy(logits: np.ndarray) -> dict[str, Call]:
    """The maximum and the partition of numpy, without drawing."""

    def first(count: int) -> Any:
        tokens = np.argpartition(-logits, count, 1)[:, :count]
        return tokens, np.take_along_axis(logits, tokens, 1)

    return {
        "temperature 0": lambda: logits.argmax(1),
        "top-k": lambda: first(CASES["top-k"].top_k),
        LAST: lambda: first(COUNT),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=16, help="rows of logits")
    parser.add_argument("--vocab", type=int, default=32_000, help="tokens of the vocabulary")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each call")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--docs", action="store_true", help="write docs/benchmarks.md")
    options = parser.parse_args()
    shape = options.rows, options.vocab
    logits = (np.random.default_rng(0).standard_normal(shape) * 3).astype(np.float32)
    peers = {"relaxpy": ours(logits), "torch": of_torch(logits), "numpy": of_numpy(logits)}
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(options.rounds):
        for name in (*CASES, LAST):
            for peer, calls in peers.items():
                if name in calls:
                    times.setdefault((name, peer), []).extend(timed(calls[name], 4)[1:])
    read = logits.nbytes / Limits(num_threads()).bandwidth(logits.nbytes)
    report: dict[str, Any] = {
        "rows": options.rows,
        "vocab": options.vocab,
        "threads": num_threads(),
        "read_milliseconds": read * 1e3,
        "milliseconds": {},
    }
    lines: list[list[str]] = []
    for name in (*CASES, LAST):
        found = {peer: median(t) * 1e3 for (case, peer), t in times.items() if case == name}
        report["milliseconds"][name] = found
        ms = found["relaxpy"]
        cells = [f"{found[peer]:.2f}" if peer in found else "—" for peer in peers]
        each = ms * 1e6 / logits.size
        lines.append([name, *cells, f"{each:.2f}", f"{ms / (read * 1e3):.0f}"])
    columns = ["options", *(f"{p}, ms" for p in peers), "ours, ns a logit", "times the read"]
    table = Table(*columns, title=f"{options.rows} rows of {options.vocab} logits")
    for line in lines:
        table.add_row(*line)
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if options.docs:
        save("sampling", report)
        intro = (
            f"`python benchmarks/sampling.py`: `nn.sample` and `nn.top_logprobs` of {options.rows} rows of "
            f"{options.vocab} logits, {num_threads()} threads, medians of calls that take turns. Reading the logits "
            f"once takes {read * 1e3:.3f} ms. Ours returns log-probabilities with the tokens, and draws by counters; "
            "torch's calls return tokens, numpy's draw none."
        )
        replace_section(
            "Sampling of tokens", f"{intro}\n\n{markdown_table(columns, lines, ' rrrrr')}"
        )


if __name__ == "__main__":
    main()
