"""Whisper from samples to tokens, beside its peers: a recording of 30 seconds in, 64 tokens out, greedy; the shapes of
tiny, base and small, with random weights.

    python benchmarks/whisper.py                      tiny and base, every peer that is installed
    python benchmarks/whisper.py --sizes tiny --peers relaxpy,relaxpy-int8
    python benchmarks/whisper.py --openvino FOLDER    with exports of optimum-intel in it: SIZE-fp32 and SIZE-int8

Each peer has one thread and a process of its own, and they take turns (`turns.py`), each with a recording that it has
not heard. What is compared is processor time, the least of all turns: other work on the machine lengthens waits, and
hardly that. The clock runs from samples to tokens: features, encoder, and decoder. `control` is a fixed product of
matrices: if its figures differ, so did the machine's speed. Results go to
benchmarks/results/whisper.json, and into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.report import markdown_table, print_tables, replace_section, save, saved
from benchmarks.turns import Peer, Service

SIZES = {"tiny": (384, 4, 6), "base": (512, 6, 8), "small": (768, 12, 12)}
"""Width, layers of each side, heads."""
SECTION = "Whisper: 30 seconds of sound in, 64 tokens out"
INTRO = (
    "`python benchmarks/whisper.py`, random weights, one thread, greedy. Processor seconds are the least of all turns, "
    "and what peers are compared by; the clock's are those of a busy machine. CTranslate2 refuses bfloat16 on a "
    "processor; `control` is a product of matrices, the same in all runs."
)
TOKENS = 64
PROMPT = (50258, 50259, 50359, 50363)
"""<|startoftranscript|>, English, transcribe, without times."""
SPECIAL = {
    "endoftext": 50257, "startoftranscript": 50258, "en": 50259, "translate": 50358, "transcribe": 50359,
    "startoflm": 50360, "startofprev": 50361, "nospeech": 50362, "notimestamps": 50363, "0.00": 50364,
}  # fmt: skip
SECONDS, RATE = 30, 16_000
Run = Callable[[np.ndarray], Sequence[int]]
"""From samples to the tokens after the prompt."""


def checkpoint(size: str, place: Path) -> Path:
    """A checkpoint of random weights in a folder: a new one, or that of an earlier run."""
    folder = place / f"whisper-{size}"
    if (folder / "config.json").exists():
        return folder
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")

    torch.manual_seed(0)
    width, layers, heads = SIZES[size]
    config = transformers.WhisperConfig(
        vocab_size=51865, d_model=width, encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=heads,
        decoder_attention_heads=heads, encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width, suppress_tokens=None,
        begin_suppress_tokens=None,
    )  # fmt: skip
    transformers.WhisperForConditionalGeneration(config).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    return folder


def recording(seed: int) -> np.ndarray:
    """30 seconds of noise, which nobody has heard."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal(SECONDS * RATE).astype(np.float32) * 0.1


def run_relaxpy(folder: Path, bits: int | None = None, dtype: str = "float32") -> Run:
    from relaxpy.llm.seq2seq import load_seq2seq
    from relaxpy.models.loaded import Scheme
    from relaxpy.serve import Features, Request, Sampling
    from relaxpy.speech import LogMel

    scheme = Scheme(bits, activations=None, dtype=dtype)
    model, extract = load_seq2seq(folder, scheme=scheme, batch=1), LogMel(80)
    sampling = Sampling(temperature=0)

    def run(samples: np.ndarray) -> Sequence[int]:
        features = Features(extract(samples))
        request = Request(0, PROMPT, TOKENS, sampling, features=features)
        return model.write(request).tokens

    return run


def run_transformers(folder: Path) -> Run:
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")

    torch.set_num_threads(1)
    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder).eval()
    extract = transformers.WhisperFeatureExtractor()
    options = transformers.GenerationConfig(
        max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, eos_token_id=50257, pad_token_id=50257,
        decoder_start_token_id=PROMPT[0], bos_token_id=50257,
    )  # fmt: skip

    def run(samples: np.ndarray) -> Sequence[int]:
        with torch.inference_mode():
            features = extract(samples, sampling_rate=RATE, return_tensors="pt").input_features
            # without what Whisper's own generate adds: it hears random weights again at five temperatures
            found = transformers.GenerationMixin.generate(
                model, features, options, decoder_input_ids=torch.tensor([PROMPT])
            )
        return found[0, len(PROMPT) :].tolist()

    return run


def run_ctranslate2(folder: Path, kind: str) -> Run:
    ctranslate2: Any = import_module("ctranslate2")
    converters: Any = import_module("ctranslate2.converters")
    extractor: Any = import_module("faster_whisper.feature_extractor")

    place = folder.parent / f"{folder.name}-ct2-{kind}"
    if not place.exists():
        converter = converters.TransformersConverter(str(folder))
        converter.convert(str(place), quantization=kind)
        # it asks for the numbers of special tokens by name, and checkpoints of random weights have no tokenizer
        tokens = [f"token {n}" for n in range(51865)]
        for name, number in SPECIAL.items():
            tokens[number] = f"<|{name}|>"
        (place / "vocabulary.json").write_text(json.dumps(tokens))
    model = ctranslate2.models.Whisper(str(place), compute_type=kind, intra_threads=1)
    extract = extractor.FeatureExtractor()

    def run(samples: np.ndarray) -> Sequence[int]:
        features = ctranslate2.StorageView.from_array(
            np.ascontiguousarray(extract(samples)[None, :, :3000])
        )
        (found,) = model.generate(
            features, [[*PROMPT]], beam_size=1, max_length=2 * TOKENS, suppress_blank=False, suppress_tokens=[50257],
        )  # fmt: skip
        return found.sequences_ids[0]

    return run


def run_openvino(folder: Path, size: str, kind: str, precision: str) -> Run:
    openvino_genai: Any = import_module("openvino_genai")

    options: dict[str, Any] = {"INFERENCE_NUM_THREADS": 1}
    if precision:
        options["INFERENCE_PRECISION_HINT"] = precision
    pipeline = openvino_genai.WhisperPipeline(str(folder / f"{size}-{kind}"), "CPU", **options)
    config = pipeline.get_generation_config()
    config.max_new_tokens = config.min_new_tokens = TOKENS
    config.ignore_eos = True

    def run(samples: np.ndarray) -> Sequence[int]:
        pipeline.generate(samples, config)
        return [0] * TOKENS

    return run


def run_control(_: Path) -> Run:
    x = np.random.default_rng(0).standard_normal((1500, 1500)).astype(np.float32)

    def run(_: np.ndarray) -> Sequence[int]:
        for _turn in range(8):
            np.matmul(x, x)
        return [0] * TOKENS

    return run


def peers_of(size: str, openvino: Path | None) -> dict[str, Callable[[Path], Run]]:
    """By name, what makes each peer from a checkpoint."""
    found: dict[str, Callable[[Path], Run]] = {
        "relaxpy": run_relaxpy,
        "relaxpy-bf16": partial(run_relaxpy, dtype="bfloat16"),
        "relaxpy-int8": partial(run_relaxpy, bits=8),
        "transformers": run_transformers,
        "ctranslate2": partial(run_ctranslate2, kind="float32"),
        "ctranslate2-int8": partial(run_ctranslate2, kind="int8"),
        "control": run_control,
    }
    if openvino is not None:
        for name, kind, precision in (
            ("openvino", "fp32", ""),
            ("openvino-f32", "fp32", "f32"),
            ("openvino-int8", "int8", "f32"),
        ):
            own = partial(run_openvino, size=size, kind=kind, precision=precision)
            found[name] = lambda _, own=own: own(openvino)
    return found


def served(name: str, size: str, folder: Path, openvino: Path | None) -> Service:
    """A peer; requests are seeds of recordings, results seconds of the processor and of the clock."""
    for variable in ("RELAXPY_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = "1"
    run = peers_of(size, openvino)[name](folder)

    def timed(seed: int) -> tuple[float, float]:
        samples = recording(seed)
        start = time.process_time(), time.perf_counter()
        tokens = run(samples)
        found = time.process_time() - start[0], time.perf_counter() - start[1]
        assert len(tokens) == TOKENS, f"{name} wrote {len(tokens)} tokens"
        return found

    return Service(lambda seed: partial(timed, seed))


def compare(
    size: str, names: Sequence[str], place: Path, openvino: Path | None, rounds: int
) -> dict[str, Any]:
    """The figures of all peers at a size; for one that cannot run, why."""
    folder = checkpoint(size, place)
    found: dict[str, Any] = {}
    peers: dict[str, Peer] = {}
    for name in names:
        peer = Peer.start(name, served, name, size, folder, openvino)
        if isinstance(peer, str):
            found[name] = {"why": peer}
            continue
        try:
            peer.result(rounds)  # the first call sets up what later ones find
            peers[name] = peer
        except RuntimeError as error:
            found[name] = {"why": str(error)}
            peer.stop()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in peers}
    for turn in range(rounds):
        order = [*peers][turn % len(peers) :] + [*peers][: turn % len(peers)]
        for name in order:
            times[name].append(peers[name].result(turn))
    for name, own in times.items():
        processor, clock = zip(*own, strict=True)
        found[name] = {
            "processor": min(processor),
            "median": median(processor),
            "clock": min(clock),
            "load": peers[name].load_seconds,
        }
        peers[name].stop()
    return found


def tables(results: dict[str, Any]) -> list[tuple[Sequence[str], Sequence[Sequence[str]]]]:
    """A table for each size."""
    found: list[tuple[Sequence[str], Sequence[Sequence[str]]]] = []
    for size, peers in results.items():
        base = peers.get("relaxpy", {}).get("processor")
        rows: list[list[str]] = []
        for name, own in peers.items():
            if "why" in own:
                rows.append([name, own["why"][:60], "", "", ""])
                continue
            ratio = f"{base / own['processor']:.2f}" if base else ""
            figures = (own[each] for each in ("processor", "median", "clock"))
            rows.append([name, *(f"{x:.3f}" for x in figures), ratio])
        columns = [size, "processor s", "median", "clock s", "relaxpy / it"]
        found.append((columns, rows))
    return found


def main() -> int:
    """Measure, save, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default="tiny,base", help=f"of {', '.join(SIZES)}")
    parser.add_argument("--peers", default="", help="names; all that are installed by default")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each peer")
    parser.add_argument(
        "--place", type=Path, default=Path("benchmarks/.whisper"), help="for checkpoints"
    )
    parser.add_argument("--openvino", type=Path, help="a folder of optimum-intel's exports")
    given = parser.parse_args()
    results = saved("whisper")
    sizes = given.sizes.split(",")
    for size in sizes:
        names = given.peers.split(",") if given.peers else [*peers_of(size, given.openvino)]
        own = compare(size, names, given.place.resolve(), given.openvino, given.rounds)
        results[size] = {**results.get(size, {}), **own}
        save("whisper", results)
    print_tables(tables({size: results[size] for size in sizes}))
    every = [markdown_table(columns, rows, "lrrrr") for columns, rows in tables(results)]
    replace_section(SECTION, "\n\n".join([INTRO, *every]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
