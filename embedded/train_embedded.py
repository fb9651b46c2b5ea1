"""Train the embedded model on one thread at low priority, for as long as it pays.

    python -m embedded.train_embedded RUN [--tokens N]     up to N tokens in all, at a constant rate, rows of 256 tokens
    python -m embedded.train_embedded RUN --finish N       N tokens more: the rate falls to zero, rows of 1024 tokens

RUN is the folder that `embedded.corpus` wrote. The first phase can be resumed and extended at will; a finish begins
with the last state of the first phase, which it leaves as it is, so a longer run can be finished again later. State
is saved every few minutes, at the end, and on SIGTERM and SIGINT, which end the run: `constant.pt`, and `finish.pt`
for a finish. A finish that is under way can be made shorter: from there, the rate falls faster. Any other length, or a
longer first phase, begins anew. `log.jsonl` has a line for every ten steps.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embedded.decoder import Config, Model
from embedded.optimizer import optimizers
from embedded.stream import Stream


@dataclass(frozen=True)
class Recipe:
    """All that determines the weights, beside the corpus and the number of tokens."""

    config: Config = field(default_factory=Config)
    seed: int = 0
    length: int = 256
    finish_length: int = 1024
    batch_tokens: int = 8192
    micro_tokens: int = 1024
    """Tokens of a part of a batch, whose activations are in memory at a time."""
    warmup_steps: int = 50
    matrix_rate: float = 0.02
    other_rate: float = 0.003
    weight_decay: float = 0.02
    clip: float = 1.0


class Run:
    """A phase of a training run: the state, and how it goes on."""

    def __init__(self, folder: Path, recipe: Recipe, finish: int = 0, device: str = "cpu") -> None:
        self.folder, self.recipe, self.finish, self.device = folder, recipe, finish, device
        self.facts: dict[str, Any] = json.loads((folder / "corpus.json").read_text())
        self.length = recipe.finish_length if finish else recipe.length
        self.stream = self._stream("tokens", "starts", recipe.seed + bool(finish))
        self.unseen = self._stream("held_out", "held_out_starts", recipe.seed)
        torch.manual_seed(recipe.seed)
        self.model = Model(recipe.config).to(device)
        self.optimizers = optimizers(
            self.model, recipe.matrix_rate, recipe.other_rate, recipe.weight_decay
        )
        self.steps = self.tokens = self.place = self.phase_tokens = 0
        self.seconds = self.cpu_seconds = 0.0
        self._resume()
        self._trim_log()

    @property
    def phase(self) -> str:
        return "finish" if self.finish else "constant"

    @property
    def state_path(self) -> Path:
        return self.folder / (f"{self.phase}.pt")

    def _stream(self, tokens: str, starts: str, seed: int) -> Stream:
        return Stream(
            np.load(self.folder / f"{tokens}.npy"),
            np.load(self.folder / f"{starts}.npy"),
            self.length,
            seed,
        )

    def _resume(self) -> None:
        """Go on from this phase's own state, or from that of the phase before."""
        own = _loaded(self.state_path)
        if self.finish:
            before = _loaded(self.folder / "constant.pt")
            if before is None:
                raise FileNotFoundError(f"{self.folder} has no constant.pt to finish: train first")
            if own is None or not self._continues(own, before["tokens"]):
                own = before | {"place": 0, "phase_tokens": 0}
        if own is None:
            return
        if own["recipe"] != asdict(self.recipe) or own["corpus"] != self.facts["sha256"]:
            raise ValueError(
                f"{self.folder} was trained with another recipe or corpus: use another folder"
            )
        self.model.load_state_dict(own["model"])
        for optimizer, state in zip(self.optimizers, own["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.steps, self.tokens, self.place = own["steps"], own["tokens"], own["place"]
        self.phase_tokens, self.seconds, self.cpu_seconds = (
            own["phase_tokens"],
            own["seconds"],
            own["cpu_seconds"],
        )

    def _continues(self, own: Mapping[str, Any], begun: int) -> bool:
        """Whether a state is of this finish, or of a longer one that can still become it."""
        same = own["tokens"] - own["phase_tokens"] == begun
        return same and (
            own["finish"] == self.finish or own["phase_tokens"] < self.finish < own["finish"]
        )

    def _trim_log(self) -> None:
        """Drop the lines of steps that are made again, or of another finish."""
        path, phase = self.folder / "log.jsonl", self.phase
        if not path.exists():
            return
        lines = path.read_text().splitlines(keepends=True)
        begun = self.steps - self.phase_tokens // self.recipe.batch_tokens if self.finish else 0
        kept = [
            line
            for line in lines
            if (known := json.loads(line))["phase"] != phase or begun < known["step"] <= self.steps
        ]
        if kept != lines:
            path.with_suffix(".new").write_text("".join(kept))
            os.replace(path.with_suffix(".new"), path)

    def save(self) -> None:
        """Replace the state on disk; an interruption leaves the former one."""
        state = {
            "recipe": asdict(self.recipe), "corpus": self.facts["sha256"], "finish": self.finish,
            "steps": self.steps, "tokens": self.tokens, "place": self.place, "phase_tokens": self.phase_tokens,
            "seconds": self.seconds, "cpu_seconds": self.cpu_seconds, "model": self.model.state_dict(),
            "optimizers": [each.state_dict() for each in self.optimizers],
        }  # fmt: skip
        beside = self.state_path.with_suffix(".new")
        torch.save(state, beside)
        os.replace(beside, self.state_path)

    @property
    def rate(self) -> float:
        """Factor of the learning rates at the next step."""
        if self.finish:
            return max(0.0, 1 - self.phase_tokens / self.finish)
        return min(1.0, (self.steps + 1) / self.recipe.warmup_steps)

    def step(self) -> float:
        """One update. Returns the loss in nats a token."""
        recipe, parts = self.recipe, self.recipe.batch_tokens // self.recipe.micro_tokens
        total = 0.0
        for part in range(parts):
            rows = recipe.micro_tokens // self.length
            batch = self.stream.rows(self.place + part * rows, rows)
            with torch.autocast(self.device, torch.bfloat16, enabled=self.device != "cpu"):
                loss = self.model.loss(torch.from_numpy(batch).to(self.device)) / parts
            loss.backward()
            total += loss.item()
        if not math.isfinite(total):
            raise FloatingPointError(f"the loss is {total} at step {self.steps}")
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip)
        for optimizer, base in zip(
            self.optimizers, (recipe.matrix_rate, recipe.other_rate), strict=True
        ):
            for group in optimizer.param_groups:
                group["lr"] = base * self.rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        self.place += recipe.batch_tokens // self.length
        self.tokens += recipe.batch_tokens
        self.phase_tokens += recipe.batch_tokens
        return total

    @torch.no_grad()
    def held_out(self, tokens: int = 16384) -> float:
        """Bits per byte on rows of the held-out files, the same ones at every call."""
        count = max(1, min(tokens // self.length, self.unseen.rows_of_epoch))
        rows = torch.from_numpy(self.unseen.rows(0, count)).to(self.device)
        size = max(1, self.recipe.micro_tokens // self.length)
        nats = sum(self.model.loss(part, "sum").item() for part in rows.split(size))
        return self.bits(nats / (count * self.length), "held_out_tokens", "held_out_bytes")

    def bits(self, nats: float, tokens: str, size: str) -> float:
        """Bits per byte, of nats per token."""
        return nats / math.log(2) * self.facts[tokens] / self.facts[size]


def _loaded(path: Path) -> dict[str, Any] | None:
    return torch.load(path, map_location="cpu", weights_only=True) if path.exists() else None


def train(run: Run, tokens: int, *, every: int = 100, save_seconds: float = 240) -> bool:
    """Train until the run has seen so many tokens in all; in a finish, to its end. Returns whether it came so far: a
    signal ends it after the step that it is in."""
    stopped: list[int] = []
    former = {
        each: signal.signal(each, lambda number, _: stopped.append(number))
        for each in (signal.SIGTERM, signal.SIGINT)
    }
    saved = time.monotonic()
    losses: list[float] = []
    try:
        while not stopped and not _done(run, tokens):
            wall, processor = time.monotonic(), time.process_time()
            losses.append(run.step())
            run.seconds += time.monotonic() - wall
            run.cpu_seconds += time.process_time() - processor
            if run.steps % 10 == 0 or _done(run, tokens):
                _log(run, float(np.mean(losses)), run.steps % every == 0 or _done(run, tokens))
                losses.clear()
            if time.monotonic() - saved > save_seconds:
                run.save()
                saved = time.monotonic()
    finally:
        for each, handler in former.items():
            signal.signal(each, handler)
    run.save()
    return not stopped


def _done(run: Run, tokens: int) -> bool:
    return run.phase_tokens >= run.finish if run.finish else run.tokens >= tokens


def _log(run: Run, nats: float, whole: bool) -> None:
    size = "document_tokens", "chat_tokens", "document_bytes", "chat_bytes"
    read, asked, read_bytes, asked_bytes = (run.facts[each] for each in size)
    line: dict[str, Any] = {
        "phase": run.phase,
        "step": run.steps,
        "tokens": run.tokens,
        "seconds": round(run.seconds, 1),
        "cpu_seconds": round(run.cpu_seconds, 1),
        "rate": round(run.rate, 4),
        "training": round(nats / math.log(2) * (read + asked) / (read_bytes + asked_bytes), 4),
    }
    if whole:
        line["held_out"] = round(run.held_out(), 4)
    with (run.folder / "log.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train the embedded model.")
    parser.add_argument("run", type=Path, help="the folder that embedded.corpus wrote")
    parser.add_argument(
        "--tokens", type=int, default=15_000_000, help="tokens in all, at a constant rate"
    )
    parser.add_argument(
        "--finish", type=int, default=0, help="tokens over which the rate falls to zero"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="cpu, or cuda: products in bfloat16")
    given = parser.parse_args(arguments)
    os.nice(max(0, 19 - os.nice(0)))
    torch.set_num_threads(given.threads)
    run = Run(given.run, Recipe(), given.finish, given.device)
    return 0 if train(run, given.tokens) else 1


if __name__ == "__main__":
    raise SystemExit(main())
