"""Logits of every family beside transformers, in every way in which they come and under every scheme.

    python -m tests.models.agreement                    all families, some minutes
    python -m tests.models.agreement llama gpt_oss      some of them; the others' figures are those kept
    python -m tests.models.agreement --docs             writes the table into docs/serving.md

A checkpoint is tiny, with random weights. Quantised weights are compared with transformers on the numbers that the
codes mean, so that what is left is the arithmetic, and what quantised activations or pages add.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from benchmarks.report import ROOT, markdown_table, replace_section, save, saved
from relaxpy.checkpoints import open_checkpoint
from relaxpy.ir.expr import Var
from relaxpy.models.checkpoint import read_weights
from relaxpy.models.loaded import (
    LoadedDecoder,
    Scheme,
    decoder_program,
    load_decoder,
    quantization,
)
from relaxpy.serve import PageBook
from tests.models.family_checkpoints import CASES, checkpoint, text

SCHEMES: dict[str, Scheme] = {
    "fp32": Scheme(bits=None, activations=None),
    "W4A32": Scheme(activations=None),
    "W4A8": Scheme(activations=32),
    "W8A32": Scheme(8, activations=None),
    "W3A32": Scheme(3, 40, "minimum", activations=None),
    "bf16": Scheme(bits=None, activations=None, dtype="bfloat16"),
    "int8 pages": Scheme(bits=None, activations=None, cache_dtype="int8"),
}
"""The schemes by the names of the table."""
ROUNDED = 0.15
"""The bound of schemes that round activations, keys and values."""
ROUTED = 0.5
"""The same of mixtures of experts: routers of random weights hardly prefer one expert to the next, so rounding sends
some tokens to another one."""
EXACT = 1e-4
"""The bound of float32, and of weights that are quantised: nothing but the order of sums is different."""
SIZES = {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 64}
"""Sizes of which some are multiples of the groups, and some are not."""
PHASES = "prefill", "chunks", "decode", "ragged"
PAGES = 32
SECTION = "Agreement with transformers"
REPORT = "agreement"
"""The figures of all families: benchmarks/results/agreement.json."""


def checkpoint_of(name: str, folder: Path) -> Any:
    """The checkpoint of a case, with wider layers than the tests of the families have."""
    kind, settings = CASES[name]
    sizes = {n: x for n, x in SIZES.items() if n != "moe_intermediate_size" or n in settings}
    if kind == "GPT2":
        sizes = {"n_embd": 64, "n_inner": settings.get("n_inner") and 96}
    return checkpoint(name, folder, **sizes)


def with_rounded_weights(
    folder: Path, target: Path, scheme: Scheme, kind: str = "AutoModelForCausalLM"
) -> Any:
    """The model of transformers, of this class, on the weights that a scheme's codes mean, or that the dtype has; written
    to `target`."""
    safetensors: Any = pytest.importorskip("safetensors.numpy")
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")

    checkpoint, tensors = open_checkpoint(folder), read_weights(folder)
    config = replace(scheme, dtype="float32").applied(checkpoint)
    if scheme.bits is not None:
        mod, _ = decoder_program(checkpoint, config, Scheme(None, activations=None))
        step = quantization(config, scheme)
        known = {
            cast(Var, var).name: (step.scheme_of(var), axis)
            for function in mod.graph_functions.values()
            for var, axis in step.weights(function).items()
        }
        for name, source in config.sources_in(tensors).items():
            if (own := name.replace(".", "_")) not in known:
                continue
            codes, axis = known[own]
            value = source.joined([tensors[each] for each in source.names])
            value = value.read() if source.parts else value
            rounded = codes.dequantize(codes.quantize(value, axis), axis, value.shape[axis])
            if source.parts:
                parts = np.split(rounded.reshape(-1, rounded.shape[-1]), len(source.parts))
                tensors |= dict(zip(source.parts, parts, strict=True))
            else:
                source.read(tensors[source.name])[...] = rounded  # a view of the tensor
    if scheme.dtype == "bfloat16":
        import ml_dtypes

        tensors = {n: x.astype(ml_dtypes.bfloat16).astype(np.float32) for n, x in tensors.items()}
    target.mkdir(exist_ok=True)
    (target / "config.json").write_bytes((folder / "config.json").read_bytes())
    found = {name: np.ascontiguousarray(x) for name, x in tensors.items()}
    safetensors.save_file(found, target / "model.safetensors", {"format": "pt"})
    return (
        getattr(transformers, kind)
        .from_pretrained(target, dtype=torch.float32, attn_implementation="eager")
        .eval()
    )


class Run:
    """A model that is served, beside its reference."""

    def __init__(self, decoder: LoadedDecoder, reference: Any) -> None:
        self.decoder, self.reference = decoder, reference
        self.caches = decoder.vm["alloc_pages"](PAGES)
        self.book = PageBook(PAGES, decoder.page_size, decoder.windows)
        self.largest = 0.0
        """The largest logit."""

    def step(self, counts: Mapping[int, int]) -> np.ndarray:
        """The logits after every token of a step, in the order of the sequences."""
        batch = self.book.batch(counts)
        self.decoder.vm["copy_pages"](batch.sources, batch.targets, self.caches)
        *given, _ = batch.arguments
        rows = np.arange(len(batch.tokens), dtype=np.int32)
        found = self.decoder.vm["step"](*given, rows, self.caches, *self.decoder.weights)
        self.book.commit(batch)
        return found.numpy()

    def expected(self, tokens: np.ndarray) -> np.ndarray:
        """Logits after every token."""
        torch: Any = pytest.importorskip("torch")

        with torch.no_grad():
            found = self.reference(torch.from_numpy(tokens[None])).logits.numpy()[0]
        self.largest = max(self.largest, float(np.abs(found).max()))
        return found

    def differences(self) -> dict[str, float]:
        """The largest difference of each phase."""
        return dict(zip(PHASES, (self._whole(), *self._parts(), self._ragged()), strict=True))

    def _whole(self) -> float:
        tokens = text(37)
        sequence = self.book.add(tokens)
        found = _difference(self.step({sequence: len(tokens)}), self.expected(tokens))
        self.book.free(sequence)
        return found

    def _parts(self) -> tuple[float, float]:
        """Chunks, then single tokens of the same sequence."""
        tokens, counts = text(70), (3, 11, 17, 2, 20)
        expected, sequence = self.expected(tokens), self.book.add(tokens)
        chunks = np.concatenate([self.step({sequence: count}) for count in counts])
        done = sum(counts)
        single = np.concatenate([self.step({sequence: 1}) for _ in range(len(tokens) - done)])
        self.book.free(sequence)
        return _difference(chunks, expected[:done]), _difference(single, expected[done:])

    def _ragged(self) -> float:
        """Three sequences of different lengths, in steps of different numbers of their tokens."""
        texts = [text(length, 1) for length in (45, 33, 9)]
        wanted = [self.expected(tokens) for tokens in texts]
        own = {self.book.add(tokens): n for n, tokens in enumerate(texts)}
        done, found = dict.fromkeys(own, 0), 0.0
        random = np.random.default_rng(0)
        while left := {
            s: len(texts[n]) - done[s] for s, n in own.items() if done[s] < len(texts[n])
        }:
            counts = {s: int(random.integers(1, min(count, 14) + 1)) for s, count in left.items()}
            at, logits = 0, self.step(counts)
            for sequence, count in counts.items():
                start = done[sequence]
                part = wanted[own[sequence]][start : start + count]
                found = max(found, _difference(logits[at : at + count], part))
                at, done[sequence] = at + count, start + count
        for sequence in own:
            self.book.free(sequence)
        return found


def bound(name: str, scheme: str, largest: float) -> float:
    """Of the largest difference of a case under a scheme, given the largest logit."""
    given = SCHEMES[scheme]
    if given.activations is None and given.dtype == "float32" and not given.cache_dtype:
        return EXACT
    is_routed = any("num_experts_per_tok" in each for each in CASES[name][1])
    return (ROUTED if is_routed else ROUNDED) * max(largest, 1.0)


def _difference(found: np.ndarray, expected: np.ndarray) -> float:
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max())


def agreement(
    name: str,
    folder: Path,
    schemes: Sequence[str] = tuple(SCHEMES),
    target: str = "llvm",
    keep: bool = False,
) -> Iterator[tuple[str, dict[str, float], float]]:
    """Of a case, for each scheme: its name, the largest difference of each phase, and the largest logit. `keep` is that
    of `load_decoder`."""
    checkpoint_of(name, folder / "whole")
    for each in schemes:
        scheme = SCHEMES[each]
        reference = with_rounded_weights(folder / "whole", folder / "rounded", scheme)
        run = Run(load_decoder(folder / "whole", scheme, target=target, keep=keep), reference)
        yield each, run.differences(), run.largest


def table(results: Mapping[str, Mapping[str, tuple[Mapping[str, float], float]]]) -> str:
    """The table of all families."""
    others = [name for name in SCHEMES if name != "fp32"]
    rows = []
    for name, found in results.items():
        phases, _ = found["fp32"]
        row = [name, *(f"{phases[phase]:.0e}" for phase in PHASES)]
        row += [f"{max(found[each][0].values()):.0e}" for each in others]
        rows.append([*row, f"{max(largest for _, largest in found.values()):.1f}"])
    columns = ["checkpoint", *PHASES, *others, "largest logit"]
    return markdown_table(columns, rows, "l" + "r" * (len(columns) - 1))


BODY = """`python -m tests.models.agreement --docs` makes a tiny checkpoint of each family with transformers {version}, of random
weights, and compares logits. The figures are the largest differences of a logit: in float32 for a prompt at once, for
chunks of it, for tokens one by one, and for steps that mix the parts of three sequences; and under each scheme the largest of the
four. Quantised weights are compared with transformers on the numbers that the codes mean, in float32: where only weights are quantised,
nothing but the order of sums is different. W4A8 rounds activations to int8, too; embeddings and tied heads have 8 bits; bf16 computes in bfloat16, and is compared
with float32 on the same weights; pages in int8 round keys and values. What rounds by more than the gap between two experts sends a token to another
one: that is the largest part of the differences of mixtures of experts.

{table}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(CASES)}; all by default")
    parser.add_argument("--docs", action="store_true", help="write the table into docs/serving.md")
    parser.add_argument("--kept", action="store_true", help="compute nothing: the kept figures")
    given = parser.parse_args(arguments)
    import transformers

    kept, worst = saved(REPORT), 0
    for name in () if given.kept else given.names or CASES:
        own = kept[name] = {}
        with tempfile.TemporaryDirectory() as place:
            for each, phases, largest in agreement(name, Path(place)):
                own[each] = {n: float(f"{x:.1e}") for n, x in phases.items()}, round(largest, 2)
                within = max(phases.values()) <= bound(name, each, largest)
                worst += not within
                line = f"{name}, {each}: {json.dumps(own[each])}"
                print(line if within else f"{line} ABOVE THE BOUND", flush=True)  # noqa: T201
        save(REPORT, kept)
    results = {name: kept[name] for name in CASES if name in kept}
    print(table(results))  # noqa: T201
    if given.docs:
        body = BODY.format(version=transformers.__version__, table=table(results))
        replace_section(SECTION, body, ROOT / "docs" / "serving.md")
    return int(worst > 0)


if __name__ == "__main__":
    sys.exit(main())
