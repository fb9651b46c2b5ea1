"""The networks of the paper's table 2 (Relay, section 5.2), and MiniLM, by bits and sums: time and drift.

    python benchmarks/drift.py                     what is missing or asked for; writes benchmarks/results/drift.json
    python benchmarks/drift.py --only Inception    networks with this in their names; the others stay as they were
    python benchmarks/drift.py --docs              and writes the table to docs/benchmarks.md

ResNet-18, MobileNetV2 and Inception V3 have random weights, scaled as for training (He et al., 2015): accuracy says
nothing of them (`benchmarks/digits.py` has networks that learnt), but time does, and how far results drift from those
of float32. MiniLM is the real one. Convolutions read unsigned codes with one scale a tensor, from two pictures that
are not those that are compared; products of matrices a scale a row. Weights have a scale for each output.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.report import markdown_table, print_tables, replace_section, save, saved
from relaxpy.op.base import Op
from relaxpy.op.pair import ROW, Pair

SECTION = "Networks of the paper's table 2: time and drift by bits and sums"
CALLS = 7


def _scaled(model: Any) -> Any:
    """Weights of convolutions that keep the size of numbers."""
    from torch import nn

    for part in model.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_in", nonlinearity="relu")
    return model.eval()


def _resnet() -> Any:
    from benchmarks.images import their_resnet

    return _scaled(their_resnet())


def _mobilenet() -> Any:
    import torch
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            options: dict[str, Any] = {"num_labels": 1000, "tf_padding": False}
            self.model = MobileNetV2ForImageClassification(MobileNetV2Config(**options))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x).logits

    return _scaled(Logits())


def _inception() -> Any:
    """Inception V3 (Szegedy et al., 2016) without its second classifier."""
    import torch
    from torch import nn

    class Joined(nn.Module):
        """Branches whose channels are joined."""

        def __init__(self, *branches: nn.Module) -> None:
            super().__init__()
            self.branches = nn.ModuleList(branches)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([branch(x) for branch in self.branches], 1)

    def conv(inputs: int, outputs: int, kernel: Any, stride: int = 1, padding: Any = 0) -> Any:
        layer = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        return nn.Sequential(layer, nn.BatchNorm2d(outputs, 1e-3), nn.ReLU())

    def row(inputs: int, outputs: int, size: int) -> Any:
        return conv(inputs, outputs, (1, size), padding=(0, size // 2))

    def column(inputs: int, outputs: int, size: int) -> Any:
        return conv(inputs, outputs, (size, 1), padding=(size // 2, 0))

    def pooled(inputs: int, outputs: int) -> Any:
        return nn.Sequential(nn.AvgPool2d(3, 1, 1), conv(inputs, outputs, 1))

    def first(inputs: int, outputs: int) -> Any:
        five = nn.Sequential(conv(inputs, 48, 1), conv(48, 64, 5, padding=2))
        deep = [conv(inputs, 64, 1), conv(64, 96, 3, padding=1), conv(96, 96, 3, padding=1)]
        return Joined(conv(inputs, 64, 1), five, nn.Sequential(*deep), pooled(inputs, outputs))

    def second(width: int) -> Any:
        seven = [conv(768, width, 1), row(width, width, 7), column(width, 192, 7)]
        deep = [conv(768, width, 1), column(width, width, 7), row(width, width, 7)]
        deep += [column(width, width, 7), row(width, 192, 7)]
        return Joined(
            conv(768, 192, 1), nn.Sequential(*seven), nn.Sequential(*deep), pooled(768, 192)
        )

    def third(inputs: int) -> Any:
        def both() -> Any:
            return Joined(row(384, 384, 3), column(384, 384, 3))

        deep = [conv(inputs, 448, 1), conv(448, 384, 3, padding=1), both()]
        return Joined(
            conv(inputs, 320, 1), nn.Sequential(conv(inputs, 384, 1), both()),
            nn.Sequential(*deep), pooled(inputs, 192),
        )  # fmt: skip

    halved = [conv(288, 64, 1), conv(64, 96, 3, padding=1), conv(96, 96, 3, 2)]
    again = [conv(768, 192, 1), row(192, 192, 7), column(192, 192, 7), conv(192, 192, 3, 2)]
    model = nn.Sequential(
        conv(3, 32, 3, 2), conv(32, 32, 3), conv(32, 64, 3, padding=1), nn.MaxPool2d(3, 2),
        conv(64, 80, 1), conv(80, 192, 3), nn.MaxPool2d(3, 2),
        first(192, 32), first(256, 64), first(288, 64),
        Joined(conv(288, 384, 3, 2), nn.Sequential(*halved), nn.MaxPool2d(3, 2)),
        second(128), second(160), second(160), second(192),
        Joined(nn.Sequential(conv(768, 192, 1), conv(192, 320, 3, 2)), nn.Sequential(*again), nn.MaxPool2d(3, 2)),
        third(1280), third(2048), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000),
    )  # fmt: skip
    return _scaled(model)


def _minilm() -> Any:
    from benchmarks.integers import MODELS

    return MODELS["MiniLM"].make()


def _picture(side: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, 3, side, side)).astype(np.float32)


def _tokens(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(1000, 30000, (1, 128))


@dataclass(frozen=True)
class Network:
    """A network of torch, and its inputs by a seed."""

    make: Callable[[], Any]
    input: Callable[[int], np.ndarray]


NETWORKS = {
    "ResNet-18, 224 × 224": Network(_resnet, partial(_picture, 224)),
    "MobileNetV2, 224 × 224": Network(_mobilenet, partial(_picture, 224)),
    "Inception V3, 299 × 299": Network(_inception, partial(_picture, 299)),
    "MiniLM, 128 tokens": Network(_minilm, _tokens),
}


def _pairs(wide: str, op: Op) -> Mapping[str, Pair]:
    """The pairs of an operator with codes of so many bits."""
    found: dict[str, Pair] = {}
    for name, own in op.pairs().items():
        signed = own.weight or own.axis == ROW
        found[name] = replace(own, dtype=f"int{wide}" if signed else f"uint{wide}")
    return found


FLOATS = "float32"
WAYS: dict[str, tuple[str, str]] = {
    "int8, sums of 32 bits": ("8", "int32"),
    "int8, sums of 16 bits": ("8", "int16"),
    "int16": ("16", "int32"),
}
"""The bits of codes, and the dtype of sums. Sums of products of 16 bits do not fit into 32: they stay floats."""


def measured(run: Callable[[np.ndarray], Any], x: np.ndarray) -> tuple[np.ndarray, float]:
    """The result, and the least processor time of a call in seconds."""
    result, least = run(x).numpy(), float("inf")
    for _ in range(CALLS):
        start = time.process_time()
        run(x)
        least = min(least, time.process_time() - start)
    return result, least


def rows(network: Network, show: Callable[[str], None]) -> dict[str, dict[str, float]]:
    """By way: milliseconds, drift, and the layers of integers and of floats."""
    import torch

    import relaxpy
    from relaxpy.build.quantize import calibrate, quantize

    torch.manual_seed(0)
    x = network.input(0)
    mod, params = relaxpy.from_torch(network.make(), (torch.from_numpy(x),))
    data = [[network.input(1)], [network.input(2)]]
    built = relaxpy.VirtualMachine(relaxpy.build(mod, params=params))["main"]
    wanted, seconds = measured(built, x)
    found: dict[str, dict[str, float]] = {FLOATS: {"ms": seconds * 1e3}}
    show(f"{FLOATS}: {found[FLOATS]}")
    seen = calibrate(mod, params, data)
    for way, (wide, sums) in WAYS.items():
        rules = {name: partial(_pairs, wide) for name in ("nn.conv2d", "linear", "matmul")}
        used = {key: rule for key, rule in rules.items() if f"R.{key}(" in mod.script()}
        module, report = quantize(mod, params, rules=used, calibration=seen, sums=sums)
        call = relaxpy.VirtualMachine(relaxpy.build(module, params=params))["main"]
        result, seconds = measured(call, x)
        a, b = result.ravel().astype(np.float64), wanted.ravel().astype(np.float64)
        integers = sum(layer.kind == "integers" for layer in report.layers)
        found[way] = {
            "ms": seconds * 1e3,
            "cosine": 1 - float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)),
            "error": float(np.linalg.norm(a - b) / np.linalg.norm(b)),
            "integers": integers,
            "floats": len(report.layers) - integers,
        }
        show(f"{way}: {found[way]}")
    return found


def table(report: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    header = ["network", "codes", "ms", "of float32", "error", "1 - cosine", "layers of integers"]
    lines: list[list[str]] = []
    for name, ways in report.items():
        for way, own in ways.items():
            line = [name, way, f"{own['ms']:.1f}", f"{own['ms'] / ways[FLOATS]['ms']:.2f}"]
            if "error" in own:
                whole = own["integers"] + own["floats"]
                line += [
                    f"{own['error']:.2%}",
                    f"{own['cosine']:.1e}",
                    f"{own['integers']} of {whole}",
                ]
            lines.append([*line, *[""] * (len(header) - len(line))])
    return header, lines


def section(report: Mapping[str, Any], processor: str) -> str:
    return (
        f"A call, one thread of a processor of LLVM's type `{processor}`; the least processor time of {CALLS}, on a "
        "machine that others keep busy. The error is the length of the difference to the result of float32, over the "
        "length of that. Convolutional networks have random weights: their errors are no accuracy. Layers of 16 bits "
        "compute floats of the codes, because their sums do not fit into int32. Sums of 16 bits saturate: they are "
        "what an accelerator would have. MiniLM reads random tokens, of which it loses more than of sentences.\n\n"
        f"{markdown_table(*table(report), '__rrrrr')}\n\n"
        "`python benchmarks/drift.py --docs` writes this section."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="networks with this in their names")
    parser.add_argument("--docs", action="store_true", help="write docs/benchmarks.md")
    args = parser.parse_args()
    os.environ["RELAXPY_NUM_THREADS"] = "1"
    from relaxpy.backend.cpu.target import CpuTarget

    known: dict[str, Any] = saved("drift").get("networks", {})
    for name, network in NETWORKS.items():
        if args.only in name and (args.only or name not in known):
            print(name, file=sys.stderr)
            known[name] = rows(network, lambda line: print(line, file=sys.stderr, flush=True))
            known = {each: known[each] for each in NETWORKS if each in known}
            save("drift", {"processor": CpuTarget.host().mcpu, "networks": known})
    print_tables([table(known)])
    if args.docs:
        replace_section(SECTION, section(known, saved("drift")["processor"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
