"""Thirty models through `torch.compile(model, backend="relaxpy")`, with and without gradients, beside themselves.

`make test-torch-compile` runs all of them; `make test` a few. Each is called with a seeded sequence of sizes; there are
as many builds as torch hands over graphs, and everything that torch runs is in the report. `python -m
tests.torch.test_all_compiled` prints a line for each.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import relaxpy
from relaxpy.torch.report import Report
from tests.sweeps import FULL, sweep
from tests.torch.tiny_models import tiny_model

KINDS = (
    "bert", "llama", "gpt2", "vit", "t5", "roberta", "distilbert", "albert", "electra", "deberta-v2", "opt", "bloom",
    "qwen2", "mistral", "gemma", "phi", "mixtral", "whisper", "wav2vec2", "clip_text_model", "convnext", "resnet",
    "bart", "mpnet",
)  # fmt: skip
"""Types of transformers."""


class Gated(nn.Module):
    """A feed-forward block with a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(12), nn.Linear(12, 80), nn.Linear(40, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, two = self.up(self.norm(x)).chunk(2, -1)
        return x + self.down(nn.functional.silu(one) * two)


class Pooled(nn.Module):
    """Convolutions over images of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 10, 3, padding=1), nn.BatchNorm2d(10), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(10, 6, 3, padding=1),
            nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Item(nn.Module):
    """A break in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(12, 14), nn.Linear(14, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.one(x)
        return self.two(y * (1.0 if y.sum().item() < 1e9 else 0.0))


def _sequences(batch: int, length: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, length, 12),)


def _images(batch: int, length: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, 3, 2 * length, 2 * length),)


BLOCKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], tuple[Any, ...]]]] = {
    "gated": (Gated, _sequences),
    "pooled": (Pooled, _images),
    "item": (Item, _sequences),
    "encoder": (lambda: nn.TransformerEncoderLayer(12, 4, 50, batch_first=True), _sequences),
    "channels": (
        lambda: nn.Sequential(nn.Conv1d(12, 5, 1), nn.GELU()),
        lambda b, n: (torch.randn(b, 12, n),),
    ),
    "bag": (
        lambda: nn.Sequential(nn.Embedding(30, 6), nn.Linear(6, 5), nn.Softmax(-1)),
        lambda b, n: (torch.randint(0, 30, (b, n)),),
    ),
}  # fmt: skip
"""Small modules of torch, and their arguments by batch and length."""


@dataclass(frozen=True)
class Outcome:
    """What calls of a model did."""

    wrong: tuple[str, ...]
    asked: int
    """How many graphs torch handed over."""
    report: Report


def sizes(name: str) -> list[tuple[int, int]]:
    """Batches and lengths of the calls: some of 1, the others larger."""
    drawn = random.Random(name)
    found = [(3, 11), (1, 9)]
    found += [(drawn.randint(2, 6), drawn.randint(5, 20)) for _ in range(3)]
    return found


def tried(name: str, gradients: bool) -> Outcome:
    """Calls of a compiled model beside the model."""
    import relaxpy.torch.dynamo as dynamo
    from relaxpy.torch import report

    torch._dynamo.reset()
    torch.manual_seed(0)
    if name in BLOCKS:
        make, arguments = BLOCKS[name]
        model: Any = make().eval()
        calls = [(arguments(*each), {}) for each in sizes(name)]
    else:
        tiny = tiny_model(name)
        model, calls = tiny.model, [((), tiny.call(*each)) for each in sizes(name)]
    with torch.set_grad_enabled(gradients):
        wanted = [model(*args, **kwargs) for args, kwargs in calls]
    graphs: list[Any] = []
    before, own = report(), dynamo._compiled

    def counted(graph: Any, *rest: Any) -> Any:
        graphs.append(graph)
        return own(graph, *rest)

    dynamo._compiled = counted
    try:
        options = {"target": "llvm -opt-level=0"}
        fast = torch.compile(model, backend=relaxpy.torch.backend, dynamic=True, options=options)
        wrong = [""] * len(calls)
        with torch.set_grad_enabled(gradients):
            for i, ((args, kwargs), want) in enumerate(zip(calls, wanted, strict=True)):
                wrong[i] = _difference(fast(*args, **kwargs), want)
    finally:
        dynamo._compiled = own
    after = report()
    new = Report(
        after.built[len(before.built) :],
        tuple(e for e in after.fallbacks if e not in before.fallbacks),
        tuple(e for e in after.breaks if e not in before.breaks),
    )
    return Outcome(tuple(text for text in wrong if text), len(graphs), new)


def _difference(found: Any, want: Any) -> str:
    """Where results differ by more than the sums of a few layers; "" if they do not."""
    for one, two in zip(pytree.tree_leaves(found), pytree.tree_leaves(want), strict=True):
        if isinstance(two, torch.Tensor):
            scale = float(two.detach().float().abs().max()) if two.numel() else 1.0
            bound = 1e-3 * max(1.0, scale)
            with contextlib.suppress(AssertionError):
                torch.testing.assert_close(one, two, rtol=1e-3, atol=bound, check_stride=True)
                continue
            return f"{tuple(two.shape)} differs, or its strides {one.stride()} and {two.stride()}"
    return ""


CASES = [(name, gradients) for name in (*KINDS, *BLOCKS) for gradients in (False, True)]
QUICK = [("item", True)]


@sweep
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "gradients"), CASES if FULL else QUICK)
def test_a_compiled_model_is_right_for_all_sizes(name: str, gradients: bool) -> None:
    found = tried(name, gradients)
    assert found.wrong == ()
    assert found.report.fallbacks == ()
    assert len(found.report.built) == found.asked
    # A break is listed once in a process, however often it occurs.
    from relaxpy.torch import report

    assert report().breaks if name == "item" else not found.report.breaks


def main() -> None:
    counts: Counter[str] = Counter()
    chosen = sys.argv[1:] or [*KINDS, *BLOCKS]
    for name, gradients in CASES:
        if name not in chosen:
            continue
        kind = "with gradients" if gradients else "without gradients"
        try:
            found = tried(name, gradients)
        except Exception as error:
            counts["failed"] += 1
            print(f"{name} {kind}: {type(error).__name__}: {str(error)[:300]}", flush=True)  # noqa: T201
            continue
        outcome = "wrong" if found.wrong else "in torch" if found.report.fallbacks else "right"
        counts[outcome] += 1
        builds = f"{len(found.report.built)} builds of {found.asked} graphs"
        more = [*found.wrong, *map(str, found.report.fallbacks), *map(str, found.report.breaks)]
        print(f"{name} {kind}: {outcome}, {builds}", *more, sep="\n  ", flush=True)  # noqa: T201
    print(dict(counts))  # noqa: T201


if __name__ == "__main__":
    main()
