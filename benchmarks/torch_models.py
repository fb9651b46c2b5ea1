"""Modules of torch as they are: eager, by Inductor, by ONNX Runtime after an export, and by `relaxpy.compile`.

    python benchmarks/torch_models.py               the table; writes benchmarks/results/torch_models.json
    python benchmarks/torch_models.py --only LSTM   networks with this in their names; the others stay as they were
    python benchmarks/torch_models.py --quick       one short turn each; nothing is written
    python benchmarks/torch_models.py --processor   on one thread, the least processor time of a call: also on a machine
                                                    that is busy

Inductor is `torch.compile` as it is by default, under `torch.inference_mode`; it runs recurrent layers eagerly, so
those rows have none. Each library lives in a process of its own and they take turns; a time is the median of all its
calls. A build is what passes until the first result, from empty caches. `new` is the time of relaxpy's first call with
another size, a token (or image, or frame), over that of the first size. Results are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.model_table import ModelTable, Times, mean_ratio, milliseconds, times_in_turns
from benchmarks.report import markdown_table
from benchmarks.turns import Peer, Service

TOLERANCE = 1e-3
SECONDS = 0.4
"""Of a turn."""

Run = Callable[[Any], Any]
"""From a tensor or an array to the result."""


def eager_peer(name: str, threads: int, processor: bool) -> Service:
    """The module itself."""
    model = _module(name, threads)
    return service(name, processor, lambda: _without_gradients(model))


def inductor_peer(name: str, threads: int, processor: bool) -> Service:
    """`torch.compile(model)`."""
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    if processor:  # its own time is counted, not that of a pool
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    model = _module(name, threads)
    from benchmarks.torch_networks import NETWORKS

    if not NETWORKS[name].traced:
        raise ValueError("torch.compile runs recurrent layers eagerly")
    import torch

    return service(name, processor, lambda: _without_gradients(torch.compile(model)))


def onnx_peer(name: str, threads: int, processor: bool) -> Service:
    """The module, exported by `torch.onnx.export`."""
    import onnxruntime
    import torch

    from benchmarks.torch_networks import NETWORKS

    model, network = _module(name, threads), NETWORKS[name]

    def built() -> Run:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder, "network.onnx"))
            axes = {i: axis for i, axis in enumerate(network.axes) if axis}
            torch.onnx.export(
                model, (torch.from_numpy(network.example),), path, dynamo=False, input_names=["x"],
                dynamic_axes={"x": axes},
            )  # fmt: skip
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = threads
            options.log_severity_level = 3
            session = onnxruntime.InferenceSession(path, options)
        return lambda x: session.run(None, {"x": x.numpy()})[0]

    return service(name, processor, built)


def relaxpy_peer(name: str, threads: int, processor: bool) -> Service:
    """`relaxpy.compile(model, x)`, for all sizes."""
    os.environ["RELAXPY_NUM_THREADS"] = str(threads)
    import torch

    import relaxpy
    from benchmarks.torch_networks import NETWORKS

    model, network = _module(name, threads), NETWORKS[name]
    example = torch.from_numpy(network.example)
    return service(name, processor, lambda: relaxpy.compile(model, example, cache=False))


def service(name: str, processor: bool, make: Callable[[], Run]) -> Service:
    """Answers about a network that `make` builds: `build`, the seconds until the first result; or a question about an
    input: its `result`, `times` of some calls, the time of `one` call after one of the first size."""
    import torch

    from benchmarks.torch_networks import NETWORKS

    clock = time.thread_time if processor else time.perf_counter
    x = torch.from_numpy(NETWORKS[name].input(NETWORKS[name].sizes[0]))
    start = _all_time() if processor else time.perf_counter()
    run = make()
    run(x)
    build = (_all_time() if processor else time.perf_counter()) - start

    def seconds(given: Any) -> float:
        start = clock()
        run(given)
        return clock() - start

    def answer(question: str, given: Any) -> Any:
        if question == "build":
            return build
        if question == "one":
            run(x)
            return seconds(given)
        if question == "result":
            return np.array(run(given))
        run(given)
        found, end = [], time.perf_counter() + SECONDS
        while len(found) < 3 or time.perf_counter() < end:
            found.append(seconds(given))
        return found

    def prepare(request: tuple[str, np.ndarray | None]) -> Callable[[], Any]:
        question, array = request
        return partial(answer, question, None if array is None else torch.from_numpy(array))

    return Service(prepare)


def _all_time() -> float:
    """Processor time of this process and those that it started."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _module(name: str, threads: int) -> Any:
    import torch

    from benchmarks.torch_networks import network_module

    torch.set_num_threads(threads)
    return network_module(name)


def _without_gradients(model: Any) -> Run:
    import torch

    def run(x: Any) -> Any:
        with torch.inference_mode():
            return model(x)

    return run


PEERS = {
    "relaxpy": relaxpy_peer,
    "torch": eager_peer,
    "Inductor": inductor_peer,
    "ONNX Runtime": onnx_peer,
}


def main() -> int:
    from benchmarks.torch_networks import NETWORKS

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--libraries", default=",".join(PEERS), help="which ones run")
    return ModelTable(
        "torch_models", "Modules of torch: ms", list(NETWORKS), measured, table,
        "A build is the seconds until the first result, from empty caches; `new` is the first call with another size "
        "over the first size, a token.",
        summary,
    ).run(parser)  # fmt: skip


def table(found: Mapping[str, Times]) -> str:
    """In Markdown."""
    rows = [
        [name, *(_cell(times["call"].get(peer), milliseconds) for peer in PEERS),
         *(_cell(times["build"].get(peer), "{:.1f}".format) for peer in ("relaxpy", "Inductor", "ONNX Runtime")),
         f"{times['new']['relaxpy']:.2f}"]
        for name, times in found.items()
    ]  # fmt: skip
    header = ["network", *PEERS, "build, s", "Inductor", "ONNX Runtime", "new"]
    return markdown_table(header, rows, "l" + "r" * (len(header) - 1))


def _cell(value: float | None, shown: Callable[[float], str]) -> str:
    return "" if value is None else shown(value)


def summary(report: Mapping[str, Times]) -> str:
    """Ratios of our times to each library's."""
    found = {
        peer: [times["call"] for times in report.values() if peer in times["call"]]
        for peer in list(PEERS)[1:]
    }
    parts = [mean_ratio(calls, peer) for peer, calls in found.items() if calls]
    return f"Geometric means of relaxpy's times: {', '.join(parts)}."


def measured(name: str, args: argparse.Namespace, console: Console) -> dict[str, dict[str, float]]:
    """What is measured of a network; RuntimeError where results differ."""
    from benchmarks.torch_networks import NETWORKS

    network = NETWORKS[name]
    first, *others = network.sizes
    least = min if args.processor else median
    with ExitStack() as stack:
        peers: dict[str, Peer] = {}
        for library in args.libraries.split(","):
            peer = Peer.start(library, PEERS[library], name, args.threads, args.processor)
            if isinstance(peer, Peer):
                peers[library] = peer
                stack.callback(peer.stop)
            else:
                console.print(f"{name}: {library} is left out: {peer}", highlight=False)
        x = network.input(first)
        check(name, {library: peer.result(("result", x)) for library, peer in peers.items()})
        times = times_in_turns(peers, x, args.quick)
        calls = {library: least(found) for library, found in times.items()}
        build = {
            library: peer.result(("build", None))
            for library, peer in peers.items()
            if library != "torch"
        }
        each = calls["relaxpy"] / network.tokens(first)
        new = [
            peers["relaxpy"].result(("one", network.input(size))) / network.tokens(size) / each
            for size in others
        ]
        y = network.input(others[0])
        check(name, {library: peer.result(("result", y)) for library, peer in peers.items()})
        return {"call": calls, "build": build, "new": {"relaxpy": least(new)}}


def check(name: str, results: Mapping[str, np.ndarray]) -> None:
    """RuntimeError where a library's result is another than torch's."""
    wanted = results["torch"]
    for library, result in results.items():
        difference = float(np.abs(result - wanted).max())
        if not difference <= TOLERANCE * max(1.0, float(np.abs(wanted).max())):
            raise RuntimeError(f"{name}: {library} and torch differ by {difference:.1e}")


if __name__ == "__main__":
    sys.exit(main())
