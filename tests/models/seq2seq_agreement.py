"""Models with an encoder beside transformers: what the encoder gives, logits in every way in which they come, and texts
of searches with beams, under several schemes.

    python -m tests.models.seq2seq_agreement                   all families, some minutes
    python -m tests.models.seq2seq_agreement bart t5           some of them; the others' figures are those kept
    python -m tests.models.seq2seq_agreement --docs            writes the table into docs/serving.md

Checkpoints are tiny, with random weights, and quantised weights are compared on the numbers that the codes mean, as in
`tests.models.agreement`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.report import ROOT, markdown_table, replace_section, save, saved
from relaxpy.llm.seq2seq import Seq2SeqModel, load_seq2seq
from relaxpy.models.loaded import Scheme
from relaxpy.serve import Beams, Features, Request, Sampling
from relaxpy.serve.pages import PageBook
from tests.models.agreement import with_rounded_weights
from tests.models.seq2seq_checkpoints import CASES, class_of, given_to, seq2seq

SCHEMES: dict[str, Scheme] = {
    "fp32": Scheme(bits=None, activations=None),
    "bf16": Scheme(bits=None, activations=None, dtype="bfloat16"),
    "int8": Scheme(8, activations=None),
}
BOUNDS = {"fp32": 1e-6, "bf16": 0.1, "int8": 2.5e-6}
"""The bound of each phase, for each unit of the largest number (a logit, a key or a value), of those above 10; the
arithmetic of bfloat16 rounds what is between. 2e-5 for logits up to 20."""
PHASES = "encode", "prompt", "decode", "ragged"
WIDTHS = range(1, 6)
SECTION = "Agreement of models with an encoder"
REPORT = "seq2seq_agreement"
END = 2


class Run:
    """A model that is served, beside its reference."""

    def __init__(self, model: Seq2SeqModel, reference: Any, seed: int = 0) -> None:
        self.model, self.reference = model, reference
        self.decoder, self.rng = model.decoder, np.random.default_rng(seed)
        self.pages = 40
        self.caches = self.decoder.vm["alloc_pages"](self.pages)
        self.sources = self.decoder.vm["alloc_sources"](self.pages)
        self.largest = 0.0

    def source(self, share: float) -> np.ndarray:
        """An input, of a share of the greatest length; log-mel features have all of it, samples up to three seconds."""
        shape = self.model.source
        if shape.mels == 1:
            count = max(shape.reach, int(share * 48_000))
            return self.rng.standard_normal((1, count)).astype(np.float32)
        if shape.mels:
            return self.rng.standard_normal((shape.mels, shape.frames)).astype(np.float32)
        return self.rng.integers(3, shape.vocab_size, max(1, int(share * shape.frames)))

    def text(self, count: int) -> np.ndarray:
        return self.rng.integers(3, self.decoder.vocab_size, count)

    def encoded(self, given: np.ndarray, first: int) -> np.ndarray:
        """Encode an input into pages from a number on: their table."""
        count = -(-self.model.source.length(Features(given)) // self.decoder.page_size)
        table = np.arange(first, first + count, dtype=np.int32)
        weights = self.decoder.weights_of("encode")
        self.decoder.vm["encode"](given[None], table[None], self.sources, *weights)
        return table

    def reference_of(self, given: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Logits after every token, and keys and values (2, positions, width) of the last layer of the decoder."""
        torch: Any = pytest.importorskip("torch")
        with torch.no_grad():
            found = self.reference(
                given_to(given), decoder_input_ids=torch.from_numpy(tokens[None])
            )
            hidden = found.encoder_last_hidden_state[0]
            decoder = self.reference.get_decoder()
            if hasattr(decoder, "layers"):
                last = decoder.layers[-1].encoder_attn
                maps = last.k_proj, last.v_proj
            else:
                last = decoder.block[-1].layer[1].EncDecAttention
                maps = last.k, last.v
            return found.logits[0].numpy(), np.stack([each(hidden).numpy() for each in maps])

    def step(
        self,
        book: PageBook,
        counts: Mapping[int, int],
        tables: Mapping[int, tuple[np.ndarray, int]],
    ) -> np.ndarray:
        """The logits after every token of a step, in the order of the sequences, each with its source."""
        batch = book.batch(counts)
        *given, _ = batch.arguments
        rows = np.arange(len(batch.tokens), dtype=np.int32)
        width = max(len(tables[s][0]) for s in counts)
        of = np.full((len(counts), width), -1, np.int32)
        for row, s in enumerate(counts):
            of[row, : len(tables[s][0])] = tables[s][0]
        lengths = np.array([tables[s][1] for s in counts], np.int32)
        found = self.decoder.vm["step"](
            *given, rows, self.caches, of, lengths, self.sources, *self.decoder.weights
        )
        book.commit(batch)
        return found.numpy()

    def differences(self) -> dict[str, float]:
        """The largest difference of each phase, for each unit of the largest number."""
        texts = [self.text(n) for n in (21, 9, 1, 33, 17, 5, 12)]
        inputs = [self.source(share) for share in (1, 0.2, 0.01, 0.7, 0.4, 0.9, 0.02)]
        tables: list[tuple[np.ndarray, int]] = []
        first, inputs[1] = 0, inputs[0]  # two texts of one input
        for number, given in enumerate(inputs):
            if number == 1:
                tables.append(tables[0])
                continue
            table = self.encoded(given, first)
            first += len(table)
            tables.append((table, self.model.source.length(Features(given))))
        wanted, kept = zip(
            *(self.reference_of(*pair) for pair in zip(inputs, texts, strict=True)), strict=True
        )
        self.largest = max(float(np.abs(x).max()) for x in wanted)
        found = {"encode": self._encoded(tables[0], kept[0])}
        book = PageBook(self.pages, self.decoder.page_size)
        of = {book.add(text): n for n, text in enumerate(texts)}
        sources = {s: tables[n] for s, n in of.items()}
        alone, *_, other = [*of][:4]
        found["prompt"] = difference(self.step(book, {alone: 21}, sources), wanted[0])
        single = np.concatenate([self.step(book, {other: 1}, sources) for _ in range(33)])
        found["decode"] = difference(single, wanted[3])
        book = PageBook(self.pages, self.decoder.page_size)
        of = {book.add(text): n for n, text in enumerate(texts)}
        sources = {s: tables[n] for s, n in of.items()}
        together = self.step(book, {s: len(texts[n]) for s, n in of.items()}, sources)
        found["ragged"] = difference(together, np.concatenate(wanted))
        return found

    def _encoded(self, table: tuple[np.ndarray, int], wanted: np.ndarray) -> float:
        """Of the pages of a source."""
        pages, length = table
        keys, values = (each.numpy()[pages].astype(np.float32) for each in self.sources[-1][:2])
        width = wanted.shape[-1]
        found = (
            keys.transpose(0, 3, 1, 2).reshape(-1, width)[:length],
            values.transpose(0, 2, 1, 3).reshape(-1, width)[:length],
        )
        return difference(np.stack(found), wanted)

    def searches(self) -> list[str]:
        """For each number of beams, how many of seven texts are those of transformers."""
        torch: Any = pytest.importorskip("torch")
        transformers: Any = pytest.importorskip("transformers")
        inputs = [self.source(share) for share in (1, 0.2, 0.01, 0.7, 0.4, 0.9, 0.02)]
        prompt = 3, 7
        found: list[str] = []
        for width in WIDTHS:
            requests = [
                Request(
                    0, prompt, 12, Sampling(temperature=0), frozenset([END]), features=Features(each),
                    beams=Beams(width),
                )
                for each in inputs
            ]  # fmt: skip
            config = transformers.GenerationConfig(
                max_new_tokens=12, num_beams=width, eos_token_id=END, pad_token_id=0, bos_token_id=1, do_sample=False,
                decoder_start_token_id=3,
            )  # fmt: skip
            equal = 0
            for given, own in zip(inputs, self.model.write_all(requests), strict=True):
                source = given_to(given)
                row = transformers.GenerationMixin.generate(
                    self.reference, source, config, decoder_input_ids=torch.tensor([prompt])
                )[0].tolist()[len(prompt) :]
                cut = row[: row.index(END) + 1] if END in row else row
                equal += [*own.tokens] == cut
            found.append(f"{equal}/{len(inputs)}")
        return found


def difference(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest one."""
    assert found.shape == wanted.shape
    return float(np.abs(found - wanted).max())


def within(scheme: str, phases: Mapping[str, float], largest: float, texts: Sequence[str]) -> bool:
    """Is a case as near as it should be?"""
    bound = BOUNDS[scheme] * max(largest, 20.0)
    return max(phases.values()) <= bound and (
        scheme == "bf16" or all(each.split("/")[0] == each.split("/")[1] for each in texts)
    )


def agreement(
    name: str, folder: Path, schemes: Sequence[str] = tuple(SCHEMES), target: str = "llvm"
) -> Iterator[tuple[str, dict[str, float], float, list[str]]]:
    """Of a case, for each scheme: its name, the largest difference of each phase, the largest logit, and the shares of
    equal texts."""
    seq2seq(name, folder / "whole")
    for each in schemes:
        kind = class_of(name).__name__
        reference = with_rounded_weights(folder / "whole", folder / "rounded", SCHEMES[each], kind)
        model = load_seq2seq(folder / "whole", scheme=SCHEMES[each], target=target, keep=False)
        run = Run(model, reference)
        phases = run.differences()
        yield each, phases, run.largest, run.searches()


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The table of all families."""
    rows: list[list[str]] = []
    for name, schemes in results.items():
        for scheme, (phases, largest, texts) in schemes.items():
            figures = [f"{phases[phase]:.0e}" for phase in PHASES]
            rows.append([name, scheme, *figures, f"{largest:.1f}", *texts])
    beams = [f"{n} beam{'s' * (n > 1)}" for n in WIDTHS]
    columns = ["checkpoint", "", *PHASES, "largest logit", *beams]
    return markdown_table(columns, rows, "ll" + "r" * (len(columns) - 2))


BODY = """`python -m tests.models.seq2seq_agreement --docs` makes a tiny checkpoint of each family with transformers {version}, of
random weights. The figures are the largest differences: of the keys and values that the last layer of the decoder makes of the encoder's
output, and of logits: after a prompt at once, after tokens one by one, and in a step of seven texts of different lengths with six inputs. Texts are those of
searches with so many beams: how many of seven are transformers', to the token. Weights in 8 bits are compared on the numbers that the codes mean;
bf16 computes in bfloat16, and is compared with float32 on the same weights, so its texts may be others.

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

    kept, wrong = saved(REPORT), 0
    for name in () if given.kept else given.names or CASES:
        own = kept[name] = {}
        with tempfile.TemporaryDirectory() as place:
            for scheme, phases, largest, texts in agreement(name, Path(place)):
                own[scheme] = (
                    {n: float(f"{x:.1e}") for n, x in phases.items()},
                    round(largest, 2),
                    texts,
                )
                is_near = within(scheme, phases, largest, texts)
                wrong += not is_near
                line = f"{name}, {scheme}: {json.dumps(own[scheme])}"
                print(line if is_near else f"{line} ABOVE THE BOUND", flush=True)  # noqa: T201
        save(REPORT, kept)
    results = {name: kept[name] for name in CASES if name in kept}
    print(table(results))  # noqa: T201
    if given.docs:
        body = BODY.format(version=transformers.__version__, table=table(results))
        replace_section(SECTION, body, ROOT / "docs" / "serving.md")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
