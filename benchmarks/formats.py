"""Formats of checkpoints: size, time to load, drift of logits, and perplexity, of one model in each.

    python benchmarks/formats.py CHECKPOINT [--text FILE] [--docs]

CHECKPOINT is the folder of a decoder in floats, with its tokenizer. It is written as GGUF files (those types that the
package gguf writes) and as quantised copies (`relaxpy quantize`), and each is loaded as it is stored. Drift is the
largest difference of a logit from those of float32, over the largest logit; perplexity is a token's, of a text in
windows. Times: the first load compiles and packs, the second one maps what was kept.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.report import markdown_table, replace_section, save  # noqa: E402

WINDOW, MOST = 256, 2048
NOTE = """`python benchmarks/formats.py relaxpy/embedded --docs`: the model that ships with relaxpy, in bfloat16.
Its weights are written in each format, and loaded as they are stored. Drift is the largest difference of a logit from
those of the floats, over the largest logit; perplexity is that of tokens of a text that it was not trained on, in
windows. Where nothing is rounded, activations are float32; with int8 they are rounded in groups of 32 where weights
have 4 bits. The first load compiles and packs, the second one maps what was kept. The load average was {busy:.1f} on
{cores} cores before it began: only times depend on that."""
GGUF = ("F16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0")
COPIES = ((8, 32, "symmetric"), (4, 32, "zero_point"), (4, 32, "symmetric"), (3, 40, "zero_point"))


def main() -> None:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--text", type=Path, default=ROOT / "docs" / "house.md")
    parser.add_argument(
        "--docs", action="store_true", help="keep the results, and write docs/benchmarks.md"
    )
    given = parser.parse_args()
    report: dict[str, Any] = {
        "checkpoint": given.checkpoint.name, "busy": os.getloadavg()[0], "cores": os.cpu_count(),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RELAXPY_CACHE_DIR"] = f"{folder}/cache"
        report["rows"] = measured(given.checkpoint, given.text, Path(folder))
    table = table_of(report["rows"])
    Console().print(table)
    if given.docs:
        save("formats", report)
        write_docs(report)


def write_docs(report: dict[str, Any]) -> None:
    """Write the section of docs/benchmarks.md."""
    note = NOTE.format(busy=report["busy"], cores=report["cores"])
    replace_section("Formats of checkpoints", f"{note}\n\n{table_of(report['rows'])}")


def table_of(rows: list[dict[str, Any]]) -> str:
    """The table of all formats."""
    return markdown_table(
        ["format", "activations", "file MB", "packed MB", "first load s", "load s", "drift", "perplexity"],
        [
            [
                r["format"], r["activations"], f"{r['file'] / 1e6:.2f}", f"{r['packed'] / 1e6:.2f}",
                f"{r['first']:.1f}", f"{r['load']:.2f}", f"{r['drift']:.1e}", f"{r['perplexity']:.3f}",
            ]
            for r in rows
        ],
    )  # fmt: skip


def measured(source: Path, text: Path, folder: Path) -> list[dict[str, Any]]:
    """A row for each format and kind of activations."""
    from gguf import GGMLQuantizationType as Kind

    from relaxpy.checkpoints import open_checkpoint
    from relaxpy.checkpoints.quantize import quantize_checkpoint
    from relaxpy.codes import Codes
    from relaxpy.llm.tokenizer import Tokenizer
    from tests.checkpoints.gguf_files import write_gguf

    tokens = np.array(Tokenizer.from_checkpoint(source).encode(text.read_text("utf-8"))[:MOST])
    config = json.loads((source / "config.json").read_text("utf-8"))
    tensors = open_checkpoint(source).tensors
    weights = {name: each.read().astype(np.float32) for name, each in tensors.items()}
    if config.get("tie_word_embeddings"):
        weights.pop("lm_head.weight", None)
    places: dict[str, Path] = {"as it is": source}
    for name in GGUF:
        place = places[f"GGUF {name}"] = folder / f"{name}.gguf"
        write_gguf(
            place,
            config,
            weights,
            lambda _, x, kind=Kind[name]: kind if x.shape[-1] % 32 == 0 else Kind.F16,
        )
    for bits, group, zero in COPIES:
        group = next(
            n
            for n in (group, 32, 16)
            if not config["hidden_size"] % n and not config["intermediate_size"] % n
        )
        name = f"compressed-tensors int{bits}, groups of {group}" + (
            ", zero points" if zero != "symmetric" else ""
        )
        place = places[name] = folder / name
        quantize_checkpoint(source, place, Codes(bits, group, zero))
    exact, rows = None, []
    for name, place in places.items():
        for activations in (None, 32):
            row, logits = one(place, tokens, activations)
            if row is None:
                continue
            exact = logits if exact is None else exact
            drift = float(np.abs(logits - exact).max() / np.abs(exact).max())
            rows.append(
                {
                    "format": name,
                    "activations": "int8" if activations else "float32",
                    **row,
                    "drift": drift,
                }
            )
    return rows


def one(
    place: Path, tokens: np.ndarray, activations: int | None
) -> tuple[dict[str, Any] | None, np.ndarray]:
    """A format loaded twice, and its logits. None: activations would not be rounded."""
    from relaxpy.checkpoints import open_checkpoint
    from relaxpy.models.loaded import Scheme, load_decoder
    from relaxpy.serve import PageBook

    checkpoint = open_checkpoint(place)
    if activations and not any(
        each.codes and each.codes.bits == 4 for each in checkpoint.tensors.values()
    ):
        return None, np.zeros(0)
    scheme, times = Scheme(bits=None, activations=activations), []
    for _ in range(2):
        start = time.perf_counter()
        decoder = load_decoder(place, scheme)
        times.append(time.perf_counter() - start)
    pages, found = -(-WINDOW // decoder.page_size), []
    caches = decoder.vm["alloc_pages"](pages)
    for at in range(0, len(tokens) - WINDOW, WINDOW):
        book = PageBook(pages, decoder.page_size, decoder.windows)
        part = tokens[at : at + WINDOW]
        batch = book.batch({book.add(part.tolist()): len(part)})
        decoder.vm["copy_pages"](batch.sources, batch.targets, caches)
        *given, _ = batch.arguments
        rows = np.arange(len(part), dtype=np.int32)
        found.append(decoder.vm["step"](*given, rows, caches, *decoder.weights).numpy())
    logits = np.stack(found).astype(np.float64)
    wanted = tokens[: len(found) * WINDOW].reshape(len(found), WINDOW)
    shifted = logits - logits.max(-1, keepdims=True)
    log = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    loss = -np.take_along_axis(log[:, :-1], wanted[:, 1:, None], -1).mean()
    sizes = sum(file.stat().st_size for file in checkpoint.files)
    row = {
        "file": sizes, "packed": decoder.packed.nbytes, "first": times[0], "load": times[1],
        "perplexity": float(np.exp(loss)),
    }  # fmt: skip
    return row, logits


if __name__ == "__main__":
    main()
