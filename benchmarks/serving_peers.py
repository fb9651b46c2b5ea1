"""The peers of `serving.py`: services (`turns.py`) that answer some clients at once with a Llama of random weights.

A request is a `Clients`; the result is a dict of the measured times. All take the same tokens of prompts, write the
most probable tokens, and end no text early. None has HTTP in front of it: what is compared is continuous batching.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import llm_peers, llm_starts
from benchmarks.llm_peers import Shape
from benchmarks.turns import Service


@dataclass(frozen=True)
class Clients:
    """Clients that ask at the same time, each for one text."""

    count: int
    prompt: int = 128
    """Tokens of each prompt."""
    written: int = 64
    """Tokens of each text."""
    shared: int = 0
    """Tokens at the beginning of all prompts that are the same; the cache has them from the call before."""
    seed: int = 0

    @property
    def name(self) -> str:
        shared = f", {self.shared} shared" if self.shared else ""
        return f"{self.count} × ({self.prompt} + {self.written}{shared})"

    def prompts(self, vocab: int) -> list[list[int]]:
        """Random tokens. Each call of a seed has its own, but for what is shared."""
        random = np.random.default_rng([self.seed, self.count, self.prompt, self.shared])
        own = random.integers(3, vocab, (self.count, self.prompt))
        own[:, : self.shared] = np.random.default_rng(0).integers(3, vocab, self.shared)
        return own.tolist()


class Watch:
    """Notes when the tokens of each client come."""

    def __init__(self, count: int) -> None:
        self.start = time.perf_counter()
        self.times: list[list[float]] = [[] for _ in range(count)]

    def note(self, client: int, tokens: int = 1) -> None:
        self.times[client] += [time.perf_counter() - self.start] * tokens

    def found(self, **more: Any) -> dict[str, Any]:
        """Tokens a second over all; means of the first token and of the time between tokens."""
        ends = [each[-1] for each in self.times]
        gaps = [(each[-1] - each[0]) / max(len(each) - 1, 1) for each in self.times]
        tokens = sum(map(len, self.times))
        return {
            "seconds": max(ends),
            "tokens": tokens,
            "rate": tokens / max(ends),
            "first": float(np.mean([each[0] for each in self.times])),
            "between": float(np.mean(gaps)),
            **more,
        }


def service(run: Callable[[Clients], dict[str, Any]]) -> Service:
    """Answers the requests of `run`."""
    return Service(lambda request: lambda: run(request))


def relaxpy(shape: Shape, threads: int, most: int, tokens: int) -> Service:
    """An engine of relaxpy, from a checkpoint of random weights: int4 (W4A8), pages in float32, no drafts."""
    os.environ["RELAXPY_NUM_THREADS"] = str(threads)
    from relaxpy.models.loaded import load_decoder
    from relaxpy.serve import Engine, Limits
    from relaxpy.serve.decoder_model import DecoderModel
    from relaxpy.serve.request import Request
    from relaxpy.serve.sampling import Sampling

    decoder = load_decoder(checkpoint(shape))
    pages = -(-tokens // decoder.page_size)
    engine = Engine(
        DecoderModel(decoder, pages),
        pages=pages,
        limits=Limits(most, most),
        target=1.0,
        drafts=False,
    )

    def run(clients: Clients) -> dict[str, Any]:
        before = vars(engine.counters).copy()
        watch = Watch(clients.count)
        for number, prompt in enumerate(clients.prompts(shape.vocab)):
            engine.submit(Request(number, tuple(prompt), clients.written, Sampling(temperature=0)))
        while engine.is_busy:
            for piece in engine.step():
                if piece.error:
                    raise RuntimeError(piece.error)
                watch.note(piece.request, len(piece.tokens))
        own = {name: value - before[name] for name, value in vars(engine.counters).items()}
        return watch.found(
            step=own["seconds"] / own["steps"],
            host=1 - own["model_seconds"] / own["seconds"],
            cached=own["cached_tokens"],
        )

    return service(run)


def checkpoint(shape: Shape) -> Path:
    """A folder with a checkpoint of this shape and the tokenizer of the model that ships with relaxpy; it stays in the
    folder for temporary files for the next run."""
    from relaxpy.embedded import embedded_model

    place = Path(tempfile.gettempdir()) / f"relaxpy-serving-{shape.layers}x{shape.hidden}"
    if not (place / "tokenizer.json").is_file():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        llm_starts.write_checkpoint(place, shape)
        shutil.copy(embedded_model() / "tokenizer_config.json", place)
        shutil.copy(embedded_model() / "chat_template.jinja", place)
        shutil.copy(embedded_model() / "tokenizer.json", place)
    return place


def llama_cpp(shape: Shape, threads: int, most: int, tokens: int) -> Service:
    """llama.cpp by llama-cpp-python, q4_0: prompts together in batches of 512 tokens, then `llama_decode` over one
    token of each sequence. Keys and values in float16, in one buffer; flash attention where it has it."""
    import ctypes

    import llama_cpp as lib

    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / "model.gguf"
    llm_peers._write_gguf(path, shape, "q4_0")
    lib.llama_backend_init()
    silent = lib.llama_log_callback(lambda *_: None)
    lib.llama_log_set(silent, ctypes.c_void_p(0))
    model = lib.llama_model_load_from_file(bytes(path), lib.llama_model_default_params())
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_seq_max = tokens, most
    params.n_batch = params.n_ubatch = 512
    params.n_threads = params.n_threads_batch = threads
    if hasattr(params, "kv_unified"):
        params.kv_unified = True
    context = lib.llama_init_from_model(model, params) if model else None
    if not context:
        raise RuntimeError("llama.cpp does not load the model")
    memory = lib.llama_get_memory(context)

    def decode(batch: Any, places: list[tuple[int, int, int, bool]]) -> list[int]:
        """Compute tokens (token, position, sequence, whether its logits are needed); the most probable next ones."""
        batch.n_tokens = len(places)
        for n, (token, position, sequence, needed) in enumerate(places):
            batch.token[n], batch.pos[n] = token, position
            batch.n_seq_id[n], batch.seq_id[n][0] = 1, sequence
            batch.logits[n] = needed
        if lib.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        return [
            int(
                np.ctypeslib.as_array(lib.llama_get_logits_ith(context, n), (shape.vocab,)).argmax()
            )
            for n, place in enumerate(places)
            if place[3]
        ]

    room = lib.llama_batch_init(512, 0, 1)

    def run(clients: Clients) -> dict[str, Any]:
        assert folder
        assert silent
        lib.llama_memory_clear(memory, True)
        prompts = clients.prompts(shape.vocab)
        watch = Watch(clients.count)
        waiting = [
            (token, at, s, at == clients.prompt - 1)
            for s, prompt in enumerate(prompts)
            for at, token in enumerate(prompt)
        ]
        last = [0] * clients.count
        for first in range(0, len(waiting), 512):
            part = waiting[first : first + 512]
            ended = [place[2] for place in part if place[3]]
            for s, token in zip(ended, decode(room, part), strict=True):
                last[s] = token
                watch.note(s)
        for n in range(clients.written - 1):
            place = clients.prompt + n
            last = decode(room, [(last[s], place, s, True) for s in range(clients.count)])
            for s in range(clients.count):
                watch.note(s)
        return watch.found()

    return service(run)


def openvino(shape: Shape, threads: int, most: int, tokens: int) -> Service:
    """The ContinuousBatchingPipeline of OpenVINO GenAI on the graph of `llm_peers`: int4 weights, float16 scales.
    Prefix caching is on, for prompts in parts; keys and values in the precision that it chooses."""
    import openvino as ov
    import openvino_genai as genai
    from openvino_tokenizers import convert_tokenizer
    from transformers import PreTrainedTokenizerFast

    folder = Path(tempfile.mkdtemp())
    kept: list[np.ndarray] = []
    ov.save_model(
        llm_peers.openvino_model(shape, kept, exported=True),
        folder / "openvino_model.xml",
        compress_to_fp16=False,
    )
    del kept
    own = PreTrainedTokenizerFast(tokenizer_file=str(checkpoint(shape) / "tokenizer.json"))
    pair = convert_tokenizer(own, with_detokenizer=True)
    for model, name in zip(pair, ("openvino_tokenizer", "openvino_detokenizer"), strict=True):
        ov.save_model(model, folder / f"{name}.xml")
    (folder / "config.json").write_text('{"model_type": "llama", "eos_token_id": 1}')
    scheduler = genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = 512
    scheduler.max_num_seqs = most
    scheduler.num_kv_blocks = -(-tokens // 32)
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = True
    pipe = genai.ContinuousBatchingPipeline(
        folder,
        scheduler,
        "CPU",
        {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"},
    )
    shutil.rmtree(folder)
    numbers = iter(range(1 << 62))

    def run(clients: Clients) -> dict[str, Any]:
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = clients.written
        config.ignore_eos = True
        config.do_sample = False
        watch = Watch(clients.count)
        handles = [
            pipe.add_request(next(numbers), ov.Tensor(np.array([prompt], np.int64)), config)
            for prompt in clients.prompts(shape.vocab)
        ]
        while pipe.has_non_finished_requests():
            pipe.step()
            for client, handle in enumerate(handles):
                while handle.can_read():
                    for output in handle.read().values():
                        watch.note(client, len(output.generated_ids))
        return watch.found()

    return service(run)
