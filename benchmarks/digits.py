"""The paper's table 2 (Relay, section 5.2) in our form: accuracy of quantised networks on scikit-learn's digits.

    python benchmarks/digits.py           the table (needs scikit-learn and torch)
    python benchmarks/digits.py --docs    and writes it to docs/benchmarks.md

Two networks are trained by torch on 1 437 digits, one of ordinary convolutions and one of depthwise ones; 360 others
are classified, by the interpreter: what is computed depends on no processor. Sums of codes are exact: of 32 bits, by
`Realize`, or declared in 16 bits, to which they saturate. Without it they are float32, on the numbers that codes stand
for.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.report import markdown_table, print_tables, replace_section
from relaxpy.build.quantize import Calibration, calibrate
from relaxpy.ir.module import IRModule
from relaxpy.op.base import Op
from relaxpy.op.pair import Pair
from relaxpy.op.ranges import METHODS
from relaxpy.testing.interpret import interpret
from relaxpy.transform import Annotate, Realize
from relaxpy.transform.annotate import Rule
from relaxpy.transform.calibrate import Calibrate
from relaxpy.transform.realize import SUMS

SECTION = "Digits: accuracy by bits, rounding, calibration and sums"
BITS = (4, 8, 16)
ROUNDINGS = ("half_to_even", "floor", "stochastic")
HELD_OUT = 360
EPOCHS = 30


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Pictures (1797, 1, 8, 8) from 0 to 1, in another order, and their labels."""
    from sklearn.datasets import load_digits

    found: Any = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    return (found.images[order, None] / 16).astype(np.float32), found.target[order]


def network(name: str) -> Any:
    """A network of torch, not trained."""
    from torch import nn

    def ordinary(inputs: int, outputs: int, stride: int) -> list[Any]:
        return [nn.Conv2d(inputs, outputs, 3, stride, 1), nn.ReLU()]

    def depthwise(inputs: int, outputs: int, stride: int) -> list[Any]:
        own = [nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs), nn.ReLU6()]
        return [*own, nn.Conv2d(inputs, outputs, 1), nn.ReLU6()]

    layer = {"ordinary": ordinary, "depthwise": depthwise}[name]
    layers = [*ordinary(1, 16, 1), *layer(16, 32, 2), *layer(32, 48, 2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(192, 10))


def trained(name: str, x: np.ndarray, labels: np.ndarray) -> Any:
    """The network after `EPOCHS` of AdamW."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = network(name)
    steps = torch.optim.AdamW(model.parameters(), 3e-3)
    data, wanted = torch.from_numpy(x), torch.from_numpy(labels)
    for _ in range(EPOCHS):
        for part in torch.randperm(len(data)).split(64):
            steps.zero_grad()
            torch.nn.functional.cross_entropy(model(data[part]), wanted[part]).backward()
            steps.step()
    return model.eval()


def rules(bits: int, rounding: str) -> dict[str, Rule]:
    """Pairs of so many bits, with a scale for all data of a layer, and one for each output of its weights."""
    wide = "16" if bits > 8 else "8"
    few = None if bits in (8, 16) else bits
    data = Pair(f"uint{wide}", static=True, rounding=rounding, bits=few)
    weight = Pair(f"int{wide}", weight=True, bits=few)

    def of(op: Op) -> Mapping[str, Pair]:
        return {
            name: replace(weight, axis=own.axis) if own.weight else data
            for name, own in op.pairs().items()
        }

    return {"nn.conv2d": of, "linear": of}


def accuracy(mod: IRModule, params: Mapping[str, Any], x: np.ndarray, labels: np.ndarray) -> float:
    """The share of pictures that are classified rightly."""
    return float((interpret(mod, "main", x, *params.values()).argmax(1) == labels).mean())


def quantised(
    mod: IRModule, seen: Calibration, bits: int, rounding: str, method: str
) -> list[IRModule | None]:
    """The module of pairs, and those of integers with sums of each dtype, unless a layer stays in floats."""
    own = rules(bits, rounding)
    scales = seen.scales(Calibrate(own).observed(mod)[1], method)
    annotated, _ = Annotate(own, scales).annotated(mod)
    found = [Realize(sums).realized(annotated) for sums in SUMS]
    stays = any(place.reason for _, places in found for place in places)
    return [annotated, *(None if stays else integers for integers, _ in found)]


def table(show: Callable[[str], None]) -> tuple[list[str], list[list[str]]]:
    """A row for each way."""
    import torch

    import relaxpy

    x, labels = digits()
    data, known = x[:-HELD_OUT], labels[:-HELD_OUT]
    x, labels = x[-HELD_OUT:], labels[-HELD_OUT:]
    columns: dict[tuple[Any, ...], list[str]] = {("float32", "", ""): []}
    columns |= {key: [] for key in product(BITS, ROUNDINGS, METHODS)}
    for name in ("ordinary", "depthwise"):
        model = trained(name, data, known)
        example = (torch.zeros(2, 1, 8, 8),)
        mod, params = relaxpy.from_torch(model, example, dynamic_shapes=({0: "batch"},))
        seen = calibrate(mod, params, [[data[:512]]], rules=rules(8, "half_to_even"))
        columns["float32", "", ""] += [f"{accuracy(mod, params, x, labels):.1%}", "", ""]
        for bits, rounding, method in product(BITS, ROUNDINGS, METHODS):
            found = [
                "–" if each is None else f"{accuracy(each, params, x, labels):.1%}"
                for each in quantised(mod, seen, bits, rounding, method)
            ]
            columns[bits, rounding, method] += found
            show(f"{name} {bits} {rounding} {method} {found}")
    header = ["bits", "rounding", "calibration"]
    for name in ("CNN", "depthwise"):
        header += [f"{name}, float32 sums", "int32 sums", "int16 sums"]
    return header, [[*map(str, key), *row] for key, row in columns.items()]


def section(header: list[str], rows: list[list[str]]) -> str:
    """The section of the page."""
    return (
        "The paper's table 2 in our form: 360 held-out digits of scikit-learn, a CNN and one of depthwise "
        "convolutions, trained on the others. Activations have one scale a tensor (unsigned, with a zero point) and "
        "are rounded so, weights one for each output; codes of 4 bits are stored in bytes. Sums of 16 bits by 16 do "
        "not fit into int32; those that are declared int16 saturate.\n\n"
        f"{markdown_table(header, rows, '___rrrrrr')}\n\n"
        "`python benchmarks/digits.py --docs` writes this section."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--docs", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    found = table(lambda line: print(line, file=sys.stderr, flush=True))
    print_tables([found])
    if args.docs:
        replace_section(SECTION, section(*found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
