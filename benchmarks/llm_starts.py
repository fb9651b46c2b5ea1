"""Starts of a decoder: from a fresh process and a checkpoint's directory to the first token (`llm.py --starts`)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.llm_peers import Shape

ROOT = Path(__file__).resolve().parent.parent
PROMPT = 32
PARTS = ("import", "executable", "machine", "weights", "step")
STARTS = {
    "first start: nothing is kept": ("v2", "executables", "weights"),
    "second start": (),
    "executable kept, weights packed anew": ("weights",),
    "kernels kept": ("executables", "weights"),
}
"""By row: the folders of the cache that are deleted before it."""

CHILD = """
import time; begun = time.perf_counter()
import json, os, sys, threading
def memory():
    with open("/proc/self/status") as status:
        return {line.split(":")[0]: int(line.split()[1]) << 10 for line in status if "kB" in line}
most, ended = [0], threading.Event()
def watch():
    while not ended.wait(0.002):
        most[0] = max(most[0], memory().get("RssAnon", 0))
threading.Thread(target=watch, daemon=True).start()
from relaxpy.models import loaded
marks = [time.perf_counter()]
def machine(executable):
    marks.append(time.perf_counter())
    made = make(executable)
    marks.append(time.perf_counter())
    return made
make, loaded.VirtualMachine = loaded.VirtualMachine, machine
decoder = loaded.load_decoder(sys.argv[1])
marks.append(time.perf_counter())
import numpy as np
count = int(sys.argv[2])
ends = np.array([0, count], np.int32)
tables = np.arange(-(-count // decoder.page_size), dtype=np.int32)[None, None]
given = np.arange(count), np.arange(count), ends, tables, ends[1:], ends[1:] - np.int32(1)
logits = decoder.vm["step"](*given, decoder.vm["alloc_pages"](tables.size), *decoder.weights).numpy()
token = int(logits[0].argmax())
marks.append(time.perf_counter())
ended.set()
found = memory()
parts = [b - a for a, b in zip([begun, *marks], marks)]
print(json.dumps({
    "parts": parts, "token": token, "packed": decoder.packed.nbytes, "compiler": "tvm" in sys.modules,
    "anonymous": max(most[0], found["RssAnon"]), "resident": found["VmHWM"],
}))
"""


def write_checkpoint(place: Path, shape: Shape) -> int:
    """A directory as transformers stores it, in bfloat16, a tensor at a time. Returns the bytes of its tensors."""
    import ml_dtypes
    import numpy as np

    keys = shape.key_heads * shape.head
    config = {
        "model_type": "llama", "hidden_size": shape.hidden, "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "num_key_value_heads": shape.key_heads,
        "vocab_size": shape.vocab, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "rope_theta": 10000.0,
    }  # fmt: skip
    (place / "config.json").write_text(json.dumps(config))
    table, square = (shape.vocab, shape.hidden), (shape.hidden, shape.hidden)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": table, "lm_head.weight": table, "model.norm.weight": (shape.hidden,),
    }  # fmt: skip
    for n in range(shape.layers):
        of_layer = {
            "input_layernorm": (shape.hidden,), "post_attention_layernorm": (shape.hidden,),
            "self_attn.q_proj": square, "self_attn.k_proj": (keys, shape.hidden),
            "self_attn.v_proj": (keys, shape.hidden), "self_attn.o_proj": square,
            "mlp.gate_proj": (shape.inner, shape.hidden), "mlp.up_proj": (shape.inner, shape.hidden),
            "mlp.down_proj": (shape.hidden, shape.inner),
        }  # fmt: skip
        shapes |= {f"model.layers.{n}.{name}.weight": size for name, size in of_layer.items()}
    header: dict[str, Any] = {}
    end = 0
    for name, size in shapes.items():
        nbytes = 2 * int(np.prod(size))
        header[name] = {"dtype": "BF16", "shape": size, "data_offsets": [end, end + nbytes]}
        end += nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = np.random.default_rng(0)
    noise = random.standard_normal(table[0] * table[1] + (1 << 22), np.float32)
    pool = (noise / np.float32(shape.hidden**0.5)).astype(ml_dtypes.bfloat16)
    with (place / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for size in shapes.values():
            first, count = int(random.integers(1 << 22)), int(np.prod(size))
            values = pool[first : first + count] if len(size) > 1 else np.ones_like(pool[:count])
            file.write(values.tobytes())
        file.flush()
        os.fsync(file.fileno())  # so that its writing is not measured
    return end


def measure(shape: Shape, threads: int) -> dict[str, Any]:
    """All starts, each in a process of its own, from a warm page cache."""
    with tempfile.TemporaryDirectory() as folder:
        place, cache = Path(folder) / "checkpoint", Path(folder) / "cache"
        place.mkdir()
        nbytes = write_checkpoint(place, shape)
        os.utime(place / "model.safetensors", (1e9, 1e9))
        environment = {
            **os.environ,
            "RELAXPY_CACHE_DIR": str(cache),
            "RELAXPY_NUM_THREADS": str(threads),
            "PYTHONPATH": str(ROOT),
        }
        starts = {}
        for name, gone in STARTS.items():
            for part in gone:
                shutil.rmtree(cache / part, ignore_errors=True)
            starts[name] = _start(place, environment)
    return {"shape": vars(shape), "threads": threads, "bytes": nbytes, "starts": starts}


def _start(place: Path, environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-c", CHILD, str(place), str(PROMPT)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


COLUMNS = [
    "start",
    "s to the first token",
    *PARTS,
    "MiB anonymous, at most",
    "MiB resident, at most",
]


def rows(report: dict[str, Any]) -> list[list[str]]:
    """The table of a report."""
    return [
        [
            name, f"{sum(each['parts']):.2f}", *(f"{part:.2f}" for part in each["parts"]),
            f"{each['anonymous'] / 2**20:.0f}", f"{each['resident'] / 2**20:.0f}",
        ]
        for name, each in report["starts"].items()
    ]  # fmt: skip


def introduction(report: dict[str, Any]) -> str:
    """The paragraph before the table: what was measured, and how."""
    second = report["starts"]["second start"]
    return (
        f"`python benchmarks/llm.py --starts`: `load_decoder` on a checkpoint of {report['shape']['layers']} layers, "
        f"{report['bytes'] / 1e9:.2f} GB of random bfloat16 as transformers stores it, a fresh process each, a warm "
        f"page cache, {report['threads']} threads, int4 (W4A8): {second['packed'] / 2**20:.0f} MiB packed. The first "
        f"token is that after a prompt of {PROMPT}. Seconds by part: imports, the executable (found, or built), "
        "linking it, the weights (mapped, or packed, with the digest of the checkpoint and the flush of the result to "
        "disk), the step. Anonymous memory is what is not mapped from files. Goal: a second start of at most 3 s."
    )
