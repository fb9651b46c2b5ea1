"""The levels of optimisation (Relay's -O0 to -O3, §5.2): kernels, time and time to build of five models.

    python benchmarks/levels.py
    python benchmarks/levels.py --only resnet --seconds 5
    python benchmarks/levels.py --docs

All-MiniLM-L6-v2, ResNet-18, MobileNetV3 small, the paper's nature-DQN and two layers of a Llama shape, with random
weights but for the first. The four executables of a model live in one process, on one thread, and take turns; reported
is the shortest call by the thread's own clock, which stands still while other processes run. A build has one job, no
cache, and processor time. What all levels give is the same, to rounding. `--docs` writes the section of
docs/benchmarks.md; without it nothing is written.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import ablation
from benchmarks.ablation import Model, first, kernel_calls, resident, turns
from benchmarks.report import markdown_table, print_tables, replace_section, save, saved

SECTION = "Levels of optimisation"
LEVELS = (0, 1, 2, 3)
SLACK = 1.03
"""What a level may take of the time of the one below: what two runs of one program differ by."""


@dataclass(frozen=True)
class Row:
    """One level of a model."""

    model: str
    level: int
    ms: float
    kernels: int
    build_s: float


def _random(model: Any, rng: np.random.Generator) -> None:
    """Weights about as large as those of trained models."""
    for name, parameter in model.named_tensors():
        shape = tuple(int(n) for n in parameter.shape)
        wide = name.endswith(("weight", "kernel")) and len(shape) > 1
        if wide:
            values = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        else:
            values = rng.uniform(0.5, 1.5, shape)
        parameter.data = values.astype(parameter.dtype.numpy)


def _images(title: str, model: Any, spec: Any, shape: tuple[int, ...]) -> Model:
    rng = np.random.default_rng(0)
    _random(model, rng)
    mod, params = model.export(spec)
    (function,) = spec
    image = rng.standard_normal(shape).astype("float32")
    return Model(title, mod, params, {"": (function, (image,))}, 1e-3)


def minilm() -> Model:
    model = ablation.minilm()
    call = {"": model.calls["1 × 128"]}
    return Model("all-MiniLM-L6-v2, 1 × 128", model.mod, model.params, call, model.tolerance)


def resnet() -> Model:
    from relaxpy.models import resnet

    config = resnet.ResNetConfig(
        hidden_sizes=(64, 128, 256, 512), depths=(2, 2, 2, 2), layer_type="basic"
    )
    return _images(
        "ResNet-18, 1 image", resnet.ResNet(config), resnet.spec(config), (1, 3, 224, 224)
    )


def mobilenet() -> Model:
    from relaxpy.models import mobilenet

    return _images(
        "MobileNetV3 small, 1 image",
        mobilenet.MobileNet(mobilenet.SMALL),
        mobilenet.spec(),
        (1, 3, 224, 224),
    )


def dqn() -> Model:
    """The network of Mnih et al., 2015: three convolutions and two layers."""
    from relaxpy import nn

    class Network(nn.Module):
        def __init__(self) -> None:
            self.first = nn.Conv2d(4, 32, 8, stride=4)
            self.second = nn.Conv2d(32, 64, 4, stride=2)
            self.third = nn.Conv2d(64, 64, 3)
            self.hidden = nn.Linear(3136, 512)
            self.out = nn.Linear(512, 18)

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            x = nn.op.divide(x, 255.0)
            for layer in (self.first, self.second, self.third):
                x = nn.op.nn.relu(layer(x))
            x = nn.op.reshape(x, (x.shape[0], 3136))
            return self.out(nn.op.nn.relu(self.hidden(x)))

    spec = {"forward": {"x": nn.spec.Tensor(("n", 4, 84, 84), "float32")}}
    return _images("nature-DQN, 1 image", Network(), spec, (1, 4, 84, 84))


def llama() -> Model:
    model = ablation.llama(layers=2)
    return Model(
        "2 layers of a Llama shape, bf16, a token behind 127",
        model.mod,
        model.params,
        {"": model.calls["decode 1 behind 127"]},
        model.tolerance,
    )


MODELS: dict[str, Callable[[], Model]] = {
    "minilm": minilm,
    "resnet": resnet,
    "mobilenet": mobilenet,
    "dqn": dqn,
    "llama": llama,
}


def measure(model: Model, seconds: float) -> list[Row]:
    """Every level, for about so many seconds."""
    import relaxpy

    built: dict[int, Any] = {}
    times: dict[int, float] = {}
    for level in LEVELS:
        start = time.process_time()
        built[level] = relaxpy.build(
            model.mod, params=model.params, opt_level=level, cache=False, jobs=1
        )
        times[level] = time.process_time() - start
    ((function, given),) = model.calls.values()
    args = resident(given)
    runs = {level: relaxpy.VirtualMachine(exe)[function] for level, exe in built.items()}
    reference = first(runs[0](*args))
    for level, run in runs.items():
        difference = np.abs(first(run(*args)) - reference).max() / np.abs(reference).max()
        assert difference < model.tolerance, f"level {level} differs by {difference:.1e}"
    calls = {str(level): partial(run, *args) for level, run in runs.items()}
    best = turns(calls, seconds, time.thread_time)
    return [
        Row(
            model.title,
            level,
            round(best[str(level)] * 1e3, 4),
            kernel_calls(built[level], function, args),
            round(times[level], 2),
        )
        for level in LEVELS
    ]


def slower(rows: Sequence[Row]) -> list[str]:
    """The levels that take more than the one below."""
    return [
        f"{row.model}: level {row.level} takes {row.ms / below.ms:.2f} of level {below.level}"
        for below, row in pairwise(rows)
        if row.model == below.model and row.ms > below.ms * SLACK
    ]


def cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """A row a model: kernels, milliseconds and what part of those of level 0 they are, and seconds to build."""
    columns = [
        "",
        *(f"{what}, {level}" for what in ("kernels", "ms", "build s") for level in LEVELS),
    ]
    lines: list[list[str]] = []
    for name in dict.fromkeys(row.model for row in rows):
        own = [row for row in rows if row.model == name]
        line = [name, *(str(row.kernels) for row in own)]
        line += [f"{row.ms:.2f} ({row.ms / own[0].ms:.2f})" for row in own]
        lines.append(line + [f"{row.build_s:.1f}" for row in own])
    return columns, lines


def publish(rows: Sequence[Row]) -> None:
    """Put the rows into the results and the documentation."""
    measured = {row.model for row in rows}
    kept = [
        Row(**each) for each in saved("levels").get("rows", ()) if each["model"] not in measured
    ]
    merged = [*kept, *rows]
    save("levels", {"rows": [asdict(row) for row in merged]})
    columns, lines = cells(merged)
    text = (
        "`make bench-levels`: Relay's levels (§5.2). 0 is what compiling needs, 1 adds fusion, 2 constant folding, 3 "
        "all passes. One thread, its own clock, the shortest call of all in turns, in brackets what part of level 0; a "
        "build with one job and no cache, processor time."
    )
    replace_section(SECTION, f"{text}\n\n" + markdown_table(columns, lines, "l" + "r" * 12))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=MODELS, help="one of the models")
    parser.add_argument(
        "--seconds", type=float, default=20, help="a model, for all levels together"
    )
    parser.add_argument("--docs", action="store_true", help="write the section of the page")
    args = parser.parse_args()
    os.environ["RELAXPY_NUM_THREADS"] = "1"
    for name in [args.only] if args.only else MODELS:
        rows = measure(MODELS[name](), args.seconds)
        columns, lines = cells(rows)
        print_tables(
            [
                ((columns[0], *columns[i : i + 4]), [(line[0], *line[i : i + 4]) for line in lines])
                for i in (1, 5, 9)
            ]
        )
        print("\n".join(slower(rows)) or "no level takes more than the one below")
        if args.docs:
            publish(rows)


if __name__ == "__main__":
    main()
