"""Packing of weights: how fast a checkpoint becomes what kernels read, and what that saves a call.

    python benchmarks/packing.py [--layers 4] [--json out.json] [--docs]

Layers of the TinyLlama-1.1B shape (2048 wide, 5632 inside, grouped heads) with random bfloat16 weights in a safetensors
file, as transformers stores them: (out, in). Each step runs in a process of its own from a warm page cache. Beside it,
a copy of the same bytes from the mapped file. The rows of a decoding step (M = 1) are compared with the same program
whose weights are passed as they are. Processor time is shown with wall time, since it says more on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.report import markdown_table, replace_section, save  # noqa: E402

HIDDEN, INNER, KEYS = 2048, 5632, 256
WEIGHTS = {
    "q": (HIDDEN, HIDDEN), "k": (KEYS, HIDDEN), "v": (KEYS, HIDDEN), "o": (HIDDEN, HIDDEN),
    "gate": (INNER, HIDDEN), "up": (INNER, HIDDEN), "down": (HIDDEN, INNER),
}  # fmt: skip

CHILD = """
import json, sys, time
from pathlib import Path
import numpy as np
import relaxpy.runtime as runtime
from relaxpy.runtime.safetensors import map_tensors
step, exe, file = sys.argv[1:4]
def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1e3 for line in status if line.startswith("RssAnon"))
def timed(call):
    start, used = time.perf_counter(), time.process_time()
    result = call()
    return result, time.perf_counter() - start, time.process_time() - used
files = [Path(file)]
for array in map_tensors(files).values():  # a warm page cache
    array.view(np.uint8).reshape(-1)[::4096].sum()
if step == "copy":
    from concurrent.futures import ThreadPoolExecutor
    before = anonymous()
    whole = np.memmap(file, np.uint8, "r")
    kept = np.empty(len(whole), np.uint8)
    pieces = [slice(n, n + (4 << 20)) for n in range(0, len(whole), 4 << 20)]
    def copy():
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda piece: np.copyto(kept[piece], whole[piece]), pieces))
    _, wall, cpu = timed(copy)
else:
    vm = runtime.VirtualMachine(runtime.load(exe))
    before = anonymous()
    if step == "plain":
        kept, wall, cpu = timed(lambda: {"main": list(map_tensors(files).values())})
    else:
        kept, wall, cpu = timed(lambda: vm.pack(file, keep=not step.endswith("memory")))
peak = anonymous() - before
call = 0.0, 0.0
if step != "copy":
    import ml_dtypes
    x = np.ones((1, HIDDEN_SIZE), ml_dtypes.bfloat16)
    arguments = kept["main"]
    vm["main"](x, *arguments)
    walls, cpus = [], []
    for _ in range(15):
        _, w, c = timed(lambda: vm["main"](x, *arguments))
        walls.append(w)
        cpus.append(c)
    call = min(walls), min(cpus)
print(json.dumps({"wall": wall, "cpu": cpu, "anonymous": peak, "call_wall": call[0], "call_cpu": call[1]}))
""".replace("HIDDEN_SIZE", str(HIDDEN))


def program(layers: int) -> str:
    """The projections of some layers: the products of a decoding step, without attention."""
    params = [
        f'l{i}_{name}: R.Tensor({shape}, "bfloat16")'
        for i in range(layers)
        for name, shape in WEIGHTS.items()
    ]
    lines = []
    for i in range(layers):
        w = {name: f"R.permute_dims(l{i}_{name})" for name in WEIGHTS}
        repeated = ", ".join([f"m{i}"] * (HIDDEN // KEYS))
        lines += [
            f"q{i} = R.matmul(x{i}, {w['q']})",
            f"k{i} = R.matmul(x{i}, {w['k']})",
            f"v{i} = R.matmul(x{i}, {w['v']})",
            f"m{i} = R.multiply(k{i}, v{i})",
            f"a{i} = R.multiply(q{i}, R.concat(({repeated}), axis=1))",
            f"o{i} = R.matmul(a{i}, {w['o']})",
            f"g{i} = R.nn.silu(R.matmul(o{i}, {w['gate']}))",
            f"u{i} = R.matmul(o{i}, {w['up']})",
            f"x{i + 1} = R.matmul(R.multiply(g{i}, u{i}), {w['down']})",
        ]
    body = "\n            ".join(lines)
    return f"""
@I.ir_module
class Module:
    @R.function
    def main(x0: R.Tensor(("n", {HIDDEN}), "bfloat16"), {", ".join(params)}):
        R.func_attr({{"num_input": 1}})
        with R.dataflow():
            {body}
            R.output(x{layers})
        return x{layers}
"""


def write_checkpoint(path: Path, layers: int) -> int:
    """A safetensors file of random weights, a tensor at a time. Returns the bytes of data."""
    import ml_dtypes
    import numpy as np

    shapes = {f"l{i}_{name}": shape for i in range(layers) for name, shape in WEIGHTS.items()}
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        size = 2 * shape[0] * shape[1]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    generator = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            noise = generator.random(shape, dtype=np.float32) / 64
            file.write(noise.astype(ml_dtypes.bfloat16).tobytes())
    return end


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--layers", type=int, default=4, help="22: the whole model")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--docs", action="store_true", help="write docs/benchmarks.md")
    options = parser.parse_args()
    import relaxpy
    from relaxpy.op.weight_scheme import WeightScheme
    from relaxpy.transform import Normalize, QuantizeWeights

    steps = {
        "copy": "copy of the mapped file (numpy, two threads)",
        "memory": "pack into memory",
        "first": "pack and keep: first start",
        "second": "kept: second start",
        "plain": "weights as they are",
        "int4 memory": "quantise to int4 and pack into memory",
        "int4 first": "quantise to int4, pack and keep",
        "int4 second": "int4, kept",
        "int8 memory": "quantise to int8 and pack into memory",
    }
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        size = write_checkpoint(place / "model.safetensors", options.layers)
        mod = relaxpy.parse(program(options.layers))
        relaxpy.build(mod, pack=True).save(place / "packed.rxe")
        relaxpy.build(mod).save(place / "plain.rxe")
        for bits in (4, 8):
            quantised = QuantizeWeights(WeightScheme(bits, 32), on_load=True)(Normalize()(mod))
            relaxpy.build(quantised, pack=True).save(place / f"int{bits}.rxe")
        environment = {**os.environ, "RELAXPY_CACHE_DIR": str(place / "cache")}
        found = {step: run(step, place, environment) for step in steps}
        # Memory that the machine has not given out before is slow, so the first process gets a second chance.
        again = run("copy", place, environment)
        found["copy"] = min(found["copy"], again, key=lambda each: each["wall"])
    rows = []
    for step, title in steps.items():
        each = found[step]
        rate = [size / 1e9 / max(each[t], 1e-9) for t in ("wall", "cpu")]
        shown = step == "copy" or step.endswith(("memory", "first"))
        rows.append([
            title,
            f"{each['wall'] * 1e3:.0f}", f"{each['cpu'] * 1e3:.0f}",
            f"{rate[0]:.2f}" if shown else "", f"{rate[1]:.2f}" if shown else "",
            f"{each['anonymous']:.0f}",
            f"{each['call_wall'] * 1e3:.1f}" if step != "copy" else "",
            f"{each['call_cpu'] * 1e3:.1f}" if step != "copy" else "",
        ])  # fmt: skip
    columns = ["step", "ms", "ms of processor", "GB/s", "GB per processor second", "MB of memory",
               "call M = 1, ms", "of processor"]  # fmt: skip
    table = Table(*columns, title=f"{options.layers} layers, {size / 1e6:.0f} MB in bfloat16")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    report = {"layers": options.layers, "bytes": size, "steps": found}
    if options.json:
        options.json.write_text(json.dumps(report, indent=1))
    if options.docs:
        save("packing", report)
        intro = (
            f"`python benchmarks/packing.py`. {options.layers} layers of the TinyLlama-1.1B shape, {size / 1e6:.0f} MB "
            "of bfloat16 in a safetensors file, (out, in); two threads, a warm page cache, a process for each row. "
            "Memory is anonymous: what is mapped from a file does not count. A call is the products of one token. "
            "`pack and keep` computes a digest of the checkpoint and flushes the result to disk. Rates are of the "
            "checkpoint's bytes."
        )
        body = f"{intro}\n\n{markdown_table(columns, rows, ' rrrrrrr')}\n"
        replace_section("Packing of weights", body)


def run(step: str, place: Path, environment: dict[str, str]) -> dict[str, float]:
    """The figures of a fresh process."""
    exe = {"plain": "plain.rxe", "int4": "int4.rxe", "int8": "int8.rxe"}.get(
        step.split()[0], "packed.rxe"
    )
    command = [
        sys.executable,
        "-c",
        CHILD,
        step,
        str(place / exe),
        str(place / "model.safetensors"),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{step}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
