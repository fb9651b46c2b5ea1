"""relaxpy's all-MiniLM-L6-v2 against transformers on the same weights: the largest difference, from one executable.

    python benchmarks/equality.py           every batch 1…33, every 16th length, corners, ragged batches (2 minutes)
    python benchmarks/equality.py --full    every batch 1…33 and every length 1…512

Both compute fp32. The last line says how often the compiler ran: once, for all shapes. Exits with 1 where a difference
is above the tolerance.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.embed import torch_model
from relaxpy.models.checkpoint import read_config
from relaxpy.models.sentence_embedding import SentenceEmbedder, default_checkpoint

TOLERANCE = 2e-5


@dataclass(frozen=True)
class Case:
    """One call: token ids and mask, and which row of the table it counts for."""

    group: str
    ids: np.ndarray
    mask: np.ndarray


def case(group: str, batch: int, seq: int, vocabulary: int, ragged: bool = False) -> Case:
    """Random token ids; `ragged`: rows of random lengths, padded."""
    rng = np.random.default_rng([batch, seq, ragged])
    ids = rng.integers(0, vocabulary, (batch, seq))
    lengths = rng.integers(1, seq + 1, batch) if ragged else np.full(batch, seq)
    if batch and ragged:
        lengths[rng.integers(batch)] = seq
    return Case(group, ids, (np.arange(seq) < lengths[:, None]).astype(np.int64))


def cases(vocabulary: int, full: bool) -> Iterator[Case]:
    """Batches of texts with their masks, the cases of the comparison."""
    rng = np.random.default_rng(0)
    for batch in range(1, 34):
        yield case("batch 1…33, a random length", batch, int(rng.integers(1, 129)), vocabulary)
    lengths = range(1, 513) if full else sorted({1, 2, 3, 15, 17, 63, 65, 511, *range(16, 513, 16)})
    for seq in lengths:
        name = "length 1…512, batch 1" if full else "lengths from 1 to 512, batch 1"
        yield case(name, 1, seq, vocabulary)
    for batch in range(2, 34):
        yield case("ragged batches 2…33", batch, int(rng.integers(2, 129)), vocabulary, ragged=True)
    for batch, seq in ((1, 1), (33, 1), (2, 512), (33, 512)):
        yield case("corners to 33 × 512", batch, seq, vocabulary)
        yield case("corners, ragged", batch, seq, vocabulary, ragged=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="every length from 1 to 512")
    parser.add_argument("--json", type=Path, default=Path("build/bench/equality.json"))
    args = parser.parse_args()

    import torch

    console = Console(width=None if sys.stdout.isatty() else 120)
    checkpoint = default_checkpoint()
    vocabulary = read_config(checkpoint, "bert")["vocab_size"]
    compiled: list[float] = []
    with console.status("compiling"):
        start = time.perf_counter()
        embedder = SentenceEmbedder.from_checkpoint(
            checkpoint, cache=False, on_compile=lambda: compiled.append(time.perf_counter())
        )
        seconds = time.perf_counter() - start
    reference = torch_model(checkpoint)
    worst: dict[str, tuple[int, float, tuple[int, ...]]] = {}
    for item in cases(vocabulary, args.full):
        with torch.inference_mode():
            expected = reference(torch.from_numpy(item.ids), torch.from_numpy(item.mask)).numpy()
        difference = float(np.abs(embedder.embed_tokens(item.ids, item.mask) - expected).max())
        count, before, shape = worst.get(item.group, (0, -1.0, ()))
        if difference > before or np.isnan(difference):
            before, shape = difference, item.ids.shape
        worst[item.group] = (count + 1, before, shape)

    table = Table(title="relaxpy and transformers: largest absolute difference of embeddings, fp32")
    for name in ("shapes", "calls", "max difference", "at batch × tokens"):
        table.add_column(name, justify="left" if name == "shapes" else "right")
    rows: list[dict[str, Any]] = []
    for group, (count, difference, shape) in worst.items():
        table.add_row(group, str(count), f"{difference:.1e}", " × ".join(map(str, shape)))
        rows.append(
            {"shapes": group, "calls": count, "max_difference": difference, "at": list(shape)}
        )
    console.print(table)
    equal = all(row["max_difference"] <= TOLERANCE for row in rows)
    console.print(
        f"compiled {len(compiled)} time, {seconds:.1f} s; all within {TOLERANCE:.0e}: {'yes' if equal else 'NO'}",
        highlight=False,
    )
    report = {
        "benchmark": "equality",
        "compilations": len(compiled),
        "tolerance": TOLERANCE,
        "results": rows,
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
