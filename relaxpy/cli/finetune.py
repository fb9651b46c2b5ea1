"""`relaxpy finetune`: train low-rank adapters of a language model on examples."""

from __future__ import annotations

import hashlib
import json
import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from relaxpy.cli.language_model import on_this_machine, scheme_of
from relaxpy.cli.options import option
from relaxpy.cli.outputs import json_option, print_json
from relaxpy.errors import UsageError
from relaxpy.files import write_text

if TYPE_CHECKING:
    from relaxpy.train.loop import Callback

STATE = "training.safetensors"
SETTINGS = "training.json"
"""What a training that goes on has as before: its data and the options that say in which order they are read."""
CURVE = "loss.svg"
INTERRUPTED = 130
"""The exit status of a training that ctrl-C ended, as shells have it."""


class _Positive(click.FloatRange):
    """A finite number above 0: NaN is in every range of click's."""

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{value} is no finite number.", param, ctx)
        return found


@click.command(
    epilog="""
\b
Examples:
  relaxpy finetune ./TinyLlama questions.jsonl -o ./answers
  relaxpy finetune ./TinyLlama chats.jsonl -o ./answers --bits 4 --rank 16 --epochs 3
  relaxpy finetune ./TinyLlama chats.jsonl -o ./answers --bits 4 --rank 16 --epochs 5 --resume
  relaxpy serve ./TinyLlama --adapter answers=./answers

A line of DATA is {"prompt": …, "completion": …}, {"messages": […]} in the chat template of the checkpoint, or {"text":
…}. The loss counts completions, the assistant's messages, or the whole text.

The checkpoint's weights stay as they are, as the checkpoint has them or in --bits; only the adapters learn (LoRA, Hu et
al., 2021). The folder is what PEFT writes, so that transformers reads it, too. It also has training.safetensors, from
which --resume goes on, and the losses as a picture, loss.svg. Ctrl-C ends the training after the step, and writes what
was learnt; a second one ends it at once. One executable trains all batch sizes and lengths.
"""
)
@click.argument("checkpoint")
@click.argument("data", type=click.Path(exists=True, dir_okay=False))
@click.option("--output", "-o", required=True, type=click.Path(file_okay=False, path_type=Path),
              help="The folder of the adapter.")  # fmt: skip
@click.option(
    "--rank",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="The rank of the adapters.",
)
@click.option("--alpha", type=_Positive(), metavar="X",
              help="What they add is multiplied by alpha / rank (default: twice the rank).")  # fmt: skip
@click.option("--module", "modules", multiple=True, metavar="NAME", default=("all",), show_default=True,
              help="Linear maps that have one: query, q_proj, down, …; repeatable.")  # fmt: skip
@click.option(
    "--epochs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Times that the data is read.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="The number of steps, instead of epochs.",
)
@click.option(
    "--batch", type=click.IntRange(min=1), default=4, show_default=True, help="Examples of a step."
)
@click.option(
    "--accumulate",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Batches whose gradients are summed for a step.",
)
@click.option("--length", type=click.IntRange(min=2), default=512, show_default=True,
              help="The most tokens of an example.")  # fmt: skip
@click.option("--rate", "--lr", type=_Positive(), default=2e-4, show_default=True,
              help="The learning rate (AdamW).")  # fmt: skip
@click.option("--schedule", type=click.Choice(["cosine", "linear", "constant"]), default="cosine", show_default=True,
              help="How the rate falls.")  # fmt: skip
@click.option("--warmup", type=click.IntRange(min=0), default=0, show_default=True,
              help="Steps until the rate is reached.")  # fmt: skip
@option("--seed", help="The seed of adapters and of the order of examples.")
@click.option("--bits", type=click.Choice(["3", "4", "8", "none"]),
              help="Bits of the checkpoint's weights (default: as the checkpoint has them).")  # fmt: skip
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]),
              help="Of the computation (default: float32).")  # fmt: skip
@option("--target")
@click.option("--resume", is_flag=True, help="Go on where the folder's training ended.")
@click.option(
    "--check-numbers", is_flag=True, help="Name the first operator that makes a NaN (slow)."
)
@option("--no-cache")
@json_option
def finetune(
    checkpoint: str,
    data: str,
    output: Path,
    rank: int,
    alpha: float | None,
    modules: tuple[str, ...],
    epochs: int,
    steps: int | None,
    batch: int,
    accumulate: int,
    length: int,
    rate: float,
    schedule: str,
    warmup: int,
    seed: int,
    bits: str | None,
    dtype: str | None,
    target: str,
    resume: bool,
    check_numbers: bool,
    no_cache: bool,
    as_json: bool,
) -> None:
    """Train adapters of the language model CHECKPOINT on the examples of DATA."""
    from rich.console import Console

    from relaxpy.llm.examples import batches, batches_of, cut_examples, read_examples
    from relaxpy.llm.tokenizer import Tokenizer
    from relaxpy.models.finetune import Lora, load_tuned
    from relaxpy.models.loaded import Scheme
    from relaxpy.train import AdamW, constant, cosine, curve, fit, linear

    state_file = output / STATE
    if resume and not state_file.is_file():
        raise UsageError(
            "bad-arguments", f"{output} has no {STATE} to go on from", help="leave --resume out"
        )
    if not resume and state_file.exists():
        raise UsageError(
            "bad-arguments",
            f"{output} has a training already",
            help="go on with --resume, or name another folder",
        )
    alpha = 2 * rank if alpha is None else alpha
    settings = {
        "data": hashlib.sha256(Path(data).read_bytes()).hexdigest(),
        "batch": batch,
        "accumulate": accumulate,
        "length": length,
        "seed": seed,
        "bits": bits,
        "dtype": dtype,
        "module": sorted(modules),
    }
    if resume:
        _require_same(output, rank, alpha, settings)
    notes = Console(stderr=True, highlight=False)
    place = on_this_machine(checkpoint)
    tokenizer = Tokenizer.from_checkpoint(place)
    examples, cut = cut_examples(read_examples(data, tokenizer), length)
    if cut:
        notes.print(f"note: {cut} of {len(examples)} examples were cut to {length} tokens")
    total = steps or -(-epochs * batches_of(examples, batch) // accumulate)
    factor = (
        constant(warmup)
        if schedule == "constant"
        else {"cosine": cosine, "linear": linear}[schedule](total, warmup)
    )
    begun = time.perf_counter()
    with notes.status("compiling the step, once for every batch size and length"):
        tuned = load_tuned(
            place,
            AdamW(rate, weight_decay=0.0),
            Lora(rank, alpha, modules),
            scheme_of(place, bits or "none", dtype, None) or Scheme(bits=None),
            schedule=factor,
            target=target,
            keep=not no_cache,
            check_numbers=check_numbers,
            accumulate=accumulate > 1,
        )  # fmt: skip
    ready = time.perf_counter()
    weights, state = tuned.model.initial(seed), None
    if resume:
        weights, state = tuned.step.load(state_file)
    done = 0 if state is None else int(state[0])
    if done >= total:
        raise UsageError(
            "bad-arguments",
            f"{done} steps are done, and {total} were asked for",
            help="--steps or --epochs",
        )
    with _until_interrupted() as interrupted:
        trained = fit(
            tuned.step,
            weights,
            batches(examples, batch, seed, done * accumulate),
            state=state,
            steps=total - done,
            accumulate=accumulate,
            packed=tuned.packed,
            callbacks=[interrupted],
            progress=None if notes.is_terminal else False,
        )
    tuned.save(output, trained.weights)
    write_text(output / SETTINGS, json.dumps(settings, indent=2) + "\n")
    tuned.step.save(state_file, trained.weights, trained.state)
    write_text(output / CURVE, curve(trained.losses, done + 1))
    seconds = time.perf_counter() - ready
    reached = done + len(trained.losses)
    few = max(1, len(trained.losses) // 10)
    first, last = (sum(part) / few for part in (trained.losses[:few], trained.losses[-few:]))
    if as_json:
        print_json(
            {"output": str(output), "steps": reached, "losses": trained.losses, "seconds": seconds}
        )
    else:
        click.echo(f"{output}: {reached} steps, loss {first:.4f} at first, {last:.4f} at last")
        notes.print(
            f"{len(trained.losses)} steps in {seconds:.1f} s (ready after {ready - begun:.1f} s)",
            style="dim",
        )
    if reached < total:
        notes.print(f"ended at step {reached} of {total}: the same command goes on with --resume")
        raise click.exceptions.Exit(INTERRUPTED)


def _require_same(output: Path, rank: int, alpha: float, settings: Mapping[str, Any]) -> None:
    """Raises: UsageError if the folder's adapter has another rank or alpha, which would change what it has learnt, or
    was trained with other data or settings: training would not go on where it ended. A folder without settings is one
    of an earlier version."""
    from relaxpy.checkpoints.config_file import read_fields
    from relaxpy.models.adapters import ADAPTER_CONFIG

    config = read_fields(output / ADAPTER_CONFIG, "an adapter")
    before = config.get("r"), config.get("lora_alpha")
    if before != (rank, alpha):
        raise UsageError(
            "bad-arguments",
            f"{output} was trained with rank {before[0]} and alpha {before[1]}, not {rank} and {alpha}",
            help=f"go on with --rank {before[0]} --alpha {before[1]}, or name another folder without --resume",
        )
    if not (output / SETTINGS).exists():
        return
    own = read_fields(output / SETTINGS, "a training")
    others = [name for name in settings if own.get(name) != settings[name]]
    if others:
        told = [
            "other data" if name == "data" else f"--{name} {_shown(own.get(name))}"
            for name in others
        ]
        asked = [f"--{name} {_shown(settings[name])}" for name in others if name != "data"]
        raise UsageError(
            "bad-arguments",
            f"{output} was trained with {', '.join(told)}"
            + (f", not {', '.join(asked)}" if asked else ""),
            help="go on with what it was trained with, or name another folder without --resume",
        )


def _shown(value: Any) -> str:
    """The value of a setting, as the command line has it."""
    if value is None:
        return "as it is by default"
    if not isinstance(value, list):
        return str(value)
    items: list[Any] = value  # type: ignore[reportUnknownVariableType]
    return ", ".join(map(str, items))


@contextmanager
def _until_interrupted() -> Iterator[Callback]:
    """A callback that ends the training after the step in which ctrl-C was pressed. A second one interrupts at once."""
    asked = False

    def ask(*_: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    if threading.current_thread() is not threading.main_thread():  # which alone has signals
        yield lambda _: False
        return
    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda _: asked
    finally:
        signal.signal(signal.SIGINT, before)
