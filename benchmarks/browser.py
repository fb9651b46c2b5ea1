"""all-MiniLM-L6-v2 in a headless Chromium: relaxpy's machine in JavaScript beside onnxruntime-web.

    python benchmarks/browser.py                       a table; minutes
    python benchmarks/browser.py --docs                also into docs/browser.md
    python benchmarks/browser.py --shapes 1x1,1x16

Both run in one page, on one WebGPU device, in turns, and must give the same numbers. The device of a headless browser
is software (SwiftShader): the figures say nothing about GPUs, and are for regressions only. onnxruntime-web comes from
npm, ONNX from `pip install 'relaxpy[bench]'`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from rich.console import Console

from benchmarks.embed import TOLERANCE, Source, export_onnx
from benchmarks.report import ROOT, markdown_table, print_tables, replace_section, save
from relaxpy.cli.web import built
from relaxpy.models.sentence_embedding import default_checkpoint
from relaxpy.web.export import TARGETS, export
from tests.server.chromium import Page, browser, chromium
from tests.web.support import served

PAGE = ROOT / "docs" / "browser.md"
SECTION = "Beside onnxruntime-web"
SHAPES = "1x1,1x16,1x64,4x32"
OURS, OURS_WASM = "relaxpy (WebGPU)", "relaxpy (WebAssembly)"
PEERS = {
    OURS: "WGSL that was compiled ahead",
    OURS_WASM: "a module that was compiled ahead, one thread; no device",
    "onnxruntime-web (WebGPU)": "executionProviders: webgpu",
    "onnxruntime-web (WebAssembly)": "executionProviders: wasm, one thread; no device",
}
DIST = "ort"
NAME = "beside.html"
HTML = """<!doctype html><link rel="icon" href="data:,"><body></body><script type="module">
import * as relaxpy from "./relaxpy.js";
import * as ort from "./ort/ort.webgpu.min.mjs";
ort.env.wasm.wasmPaths = new URL("./ort/", location.href).href;
ort.env.wasm.numThreads = 1;
const session = (provider) => ort.InferenceSession.create("model.onnx", { executionProviders: [provider] });
const timed = async (make) => {
  const from = performance.now();
  const run = await make();
  return { run, seconds: (performance.now() - from) / 1000 };
};
const through = (own) => async (ids, mask, shape) => {
  const tensor = (data) => new ort.Tensor("int64", BigInt64Array.from(data, BigInt), shape);
  const found = await own.run({ input_ids: tensor(ids), attention_mask: tensor(mask) });
  return [...found.embeddings.data];
};
const loaded = async (target) => {
  const vm = await relaxpy.load("./model/", { keep: false, target });
  const tensor = (data, shape) => ({ data: BigInt64Array.from(data, BigInt), shape, dtype: "int64" });
  return async (ids, mask, shape) => {
    const found = await vm.embed(tensor(ids, shape), tensor(mask, shape));
    const rows = await found.list();
    found.dispose();
    return rows.flat();
  };
};
const starts = {
  [OURS]: () => loaded("webgpu"),
  [OURS_WASM]: () => loaded("wasm"),
  [GPU]: async () => through(await session("webgpu")),
  [WASM]: async () => through(await session("wasm")),
};
const peers = {};
globalThis.start = async (name) => {
  const { run, seconds } = await timed(starts[name]);
  peers[name] = run;
  return seconds;
};
globalThis.run = async (name, ids, mask, shape) => {
  const from = performance.now();
  const result = await peers[name](ids, mask, shape);
  return { ms: performance.now() - from, result };
};
document.body.dataset.state = "ready";
</script>"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", default=SHAPES, help="batch x tokens, with commas")
    parser.add_argument(
        "--turns", type=int, default=7, help="of each at a shape, after one to warm up"
    )
    parser.add_argument(
        "--ort", type=Path, help="the folder dist of onnxruntime-web; else npm gets it"
    )
    parser.add_argument("--docs", action="store_true", help="write docs/browser.md")
    options = parser.parse_args()
    if chromium() is None:
        raise SystemExit("there is no Chromium here")
    shapes = [(int(b), int(s)) for b, s in (each.split("x") for each in options.shapes.split(","))]
    with tempfile.TemporaryDirectory() as scratch, Console(stderr=True).status("…") as status:
        status.update("building")
        version = write_site(Path(scratch, "site"), options.ort)
        with (
            served(Path(scratch, "site")) as site,
            browser(Path(scratch, "user"), webgpu=True) as page,
        ):
            page.open(site.url + NAME)
            page.until("document.body.dataset.state === 'ready'")
            loads = {name: page.run(f"start({json.dumps(name)})") for name in PEERS}
            cells: list[dict[str, Any]] = []
            for shape in shapes:
                status.update(f"{shape[0]} × {shape[1]}")
                cells.append(compare(page, shape, options.turns))
    report = {"onnxruntime-web": version, "loads": loads, "cells": cells}
    print_tables([tables(report)])
    if options.docs:
        save("browser", report)
        replace_section(SECTION, section(report), PAGE)
    return 0


def write_site(folder: Path, dist: Path | None) -> str:
    """Write the page and both models; returns the version of onnxruntime-web."""
    checkpoint = default_checkpoint()
    exes, _ = built(checkpoint, TARGETS)
    export(exes, folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        export_onnx(Source(checkpoint, folder / "model.onnx"))
    if dist is None:
        if shutil.which("npm") is None:
            raise SystemExit("npm gets onnxruntime-web, and is not here; or name its folder: --ort")
        command = [
            "npm",
            "install",
            "--silent",
            "--no-save",
            "--prefix",
            str(folder / "npm"),
            "onnxruntime-web",
        ]
        subprocess.run(command, check=True)
        dist = folder / "npm" / "node_modules" / "onnxruntime-web" / "dist"
    shutil.copytree(dist, folder / DIST, ignore=shutil.ignore_patterns("*.map"))
    names = dict(zip(("OURS", "OURS_WASM", "GPU", "WASM"), PEERS, strict=True))
    text = HTML
    for name, value in names.items():
        text = text.replace(f"[{name}]", f"[{json.dumps(value)}]")
    (folder / NAME).write_text(text, encoding="utf-8")
    return json.loads((dist.parent / "package.json").read_text(encoding="utf-8"))["version"]


def compare(page: Page, shape: tuple[int, int], turns: int) -> dict[str, Any]:
    """The median of each peer's time, in turns. Raises: SystemExit if one gives other numbers."""
    rng = np.random.default_rng(shape[0] * 1000 + shape[1])
    ids = rng.integers(1000, 30000, shape).ravel().tolist()
    given = f"{json.dumps(ids)}, {json.dumps([1] * len(ids))}, {json.dumps(shape)}"
    times: dict[str, list[float]] = {name: [] for name in PEERS}
    results: dict[str, np.ndarray] = {}
    for turn in range(turns + 1):
        for name in PEERS:
            found = page.run(f"run({json.dumps(name)}, {given})")
            results[name] = np.array(found["result"])
            if turn:
                times[name].append(found["ms"])
    for name, result in results.items():
        furthest = float(np.abs(result - results[OURS]).max())
        if furthest > TOLERANCE:
            raise SystemExit(f"{name} differs by {furthest} at {shape}")
    return {"shape": list(shape), "ms": {name: median(each) for name, each in times.items()}}


def tables(report: dict[str, Any]) -> tuple[Sequence[str], list[list[str]]]:
    """A row a shape: milliseconds of each."""
    rows = [["loading, s", *(f"{report['loads'][name]:.1f}" for name in PEERS)]]
    for cell in report["cells"]:
        batch, tokens = cell["shape"]
        rows.append([f"{batch} × {tokens}, ms", *(f"{cell['ms'][name]:.0f}" for name in PEERS)])
    return ["", *PEERS], rows


def section(report: dict[str, Any]) -> str:
    """The section of the page."""
    names = "; ".join(f"{name}: {what}" for name, what in PEERS.items())
    return (
        "`python benchmarks/browser.py --docs` runs all-MiniLM-L6-v2 with its real weights through both libraries in "
        f"one headless Chromium, in turns: medians; all results are within {TOLERANCE:g} of each other. The device is "
        "software (SwiftShader): this says nothing about GPUs, and is for regressions only. "
        f"onnxruntime-web is {report['onnxruntime-web']}. {names}.\n\n"
        + markdown_table(*tables(report))
    )


if __name__ == "__main__":
    sys.exit(main())
