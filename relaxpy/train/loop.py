"""Training over batches: steps one after the other, with callbacks, a bar, and an end when nothing is learnt."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.train.program import ADD, STEP
from relaxpy.train.step import Step


@dataclass(frozen=True)
class Report:
    """What callbacks are told after a step. Weights and state are overwritten by the next step."""

    number: int
    """Steps done, those before a resumption included."""
    loss: float
    weights: Sequence[Any]
    state: Any


Callback = Callable[[Report], bool | None]
"""Called after each step; True ends the training."""


@dataclass
class Trained:
    """What training gave."""

    weights: Sequence[Any]
    state: Any
    losses: list[float] = field(default_factory=list[float])
    """The loss of each step."""
    ended: bool = False
    """Did a callback end it?"""


def fit(
    step: Step,
    weights: Sequence[Any],
    batches: Iterable[Sequence[Any]],
    *,
    state: Any = None,
    steps: int | None = None,
    accumulate: int = 1,
    packed: Mapping[str, Sequence[Any]] | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> Trained:
    """Make a step for each batch, the arguments of the loss beside its weights, until there are no more, `steps` were
    done, or a callback ends it. `state` is that of an earlier training, which goes on. With `accumulate` so many
    batches are a step, of the mean of their gradients (`Step(…, accumulate=True)`). `packed` is what `vm.pack` made. A
    bar shows loss and time on a terminal, unless `progress` says otherwise.

    Raises: UsageError (`not-a-number`) for a loss that is no finite number, with the number of the step."""
    found = Trained(weights, step.start(weights) if state is None else state)
    before, own = int(np.asarray(found.state[0])), packed or {}
    with _bar(progress, steps) as show:
        for number, (*parts, batch) in enumerate(_groups(batches, accumulate), before + 1):
            if steps is not None and number > before + steps:
                break
            results: list[Any] = []
            sums: Any = None
            for part in parts:
                result, sums = step.add(
                    found.weights, sums, *part, packed=own.get(ADD, ()), state=found.state
                )
                results.append(result)
            result, found.weights, found.state = step(
                found.weights, found.state, *batch, packed=own.get(STEP, ()), sums=sums
            )
            values = [each[0] if step.program.has_aux else each for each in (*results, result)]
            loss = sum(float(np.asarray(each)) for each in values) / len(values)
            if not math.isfinite(loss):
                raise UsageError(
                    "not-a-number",
                    f"the loss of step {number} is {loss}",
                    help="a smaller learning rate, or clip_norm; Step(…, check_numbers=True) names the operator",
                )
            found.losses.append(loss)
            show(loss)
            report = Report(number, loss, found.weights, found.state)
            if any([callback(report) for callback in callbacks]):  # all of them are told
                found.ended = True
                break
    return found


def _groups(batches: Iterable[Sequence[Any]], size: int) -> Iterator[list[Sequence[Any]]]:
    """The batches of each step; the last ones may be fewer."""
    if size < 1:
        raise UsageError("arguments", f"accumulate is a positive number of batches, got {size}")
    rest = iter(batches)
    while group := list(islice(rest, size)):
        yield group


def early_stop(patience: int, measure: Callable[[Report], float] | None = None) -> Callback:
    """A callback that ends training after `patience` steps without a new least value: of `measure`, such as the loss of
    data held out, or of the loss. Raises: UsageError."""
    if patience < 1:
        raise UsageError("arguments", f"patience is a positive number of steps, got {patience}")
    least, since = math.inf, 0

    def stop(report: Report) -> bool:
        nonlocal least, since
        value = report.loss if measure is None else measure(report)
        since = 0 if value < least else since + 1
        least = min(least, value)
        return since >= patience

    return stop


@contextmanager
def _bar(progress: bool | None, total: int | None) -> Iterator[Callable[[float], None]]:
    """A function that is told each loss."""
    shown = sys.stderr.isatty() if progress is None else progress
    if not shown:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]}"),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("training", total=total, loss="…")
        smooth: list[float] = []

        def show(loss: float) -> None:
            smooth.append(loss if not smooth else 0.9 * smooth[-1] + 0.1 * loss)
            bar.update(task, advance=1, loss=f"{smooth[-1]:.4f}")

        yield show
