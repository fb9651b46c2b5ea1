"""A generator of load: requests to a server arrive at random, as those of independent people do, and are measured.

result = asyncio.run(measure(Load("http://127.0.0.1:8000", requests=100, rate=4)))
result.table()
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx
import numpy as np

from relaxpy.errors import UsageError

PERCENTILES = (50, 90, 95, 99)
_WORDS = (
    "the function returns a new list of all items that are not in the set and raises an error when one has no name or "
    "its value is out of range so that callers may try again with another key"
).split()


@dataclass(frozen=True)
class Load:
    """The requests that are sent."""

    url: str
    requests: int = 64
    rate: float | None = None
    """Requests a second, on average; the times between them are exponentially distributed (a Poisson process). None:
    all at once."""
    concurrency: int | None = None
    """The most requests at once; others wait here, which counts as their time. None: any number."""
    prompt_words: int = 100
    """The words of a prompt."""
    max_tokens: int = 64
    """The tokens of an answer; it does not end before."""
    shared: float = 0.0
    """The fraction of each prompt that is the same in all."""
    model: str = ""
    api_key: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise UsageError("bad-arguments", f"the address of a server is a URL, got {self.url!r}")

    def prompts(self) -> list[str]:
        """The prompts: random words, the same for the same seed."""
        pick = random.Random(self.seed)
        same = round(self.prompt_words * self.shared)
        head = pick.choices(_WORDS, k=same)
        return [
            " ".join([*head, *pick.choices(_WORDS, k=self.prompt_words - same)])
            for _ in range(self.requests)
        ]

    def arrivals(self) -> list[float]:
        """When each request is sent, in seconds from the beginning."""
        if self.rate is None:
            return [0.0] * self.requests
        gaps = np.random.default_rng(self.seed).exponential(1 / self.rate, self.requests)
        return [0.0, *np.cumsum(gaps)[:-1].tolist()]


@dataclass
class Measured:
    """One request."""

    arrival: float
    """Seconds since the beginning."""
    first: float = 0.0
    """Seconds until the first token."""
    whole: float = 0.0
    """Seconds until the end."""
    gaps: list[float] = field(default_factory=list[float])
    """Seconds between tokens."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    error: str = ""


@dataclass(frozen=True)
class Result:
    """The measured times and counts."""

    load: Load
    seconds: float
    measured: Sequence[Measured]

    @property
    def answered(self) -> list[Measured]:
        """The requests without an error."""
        return [each for each in self.measured if not each.error]

    def data(self) -> dict[str, Any]:
        """As JSON has it. Times are in milliseconds."""
        answered = self.answered
        tokens = sum(each.completion_tokens for each in answered)
        prompts = sum(each.prompt_tokens for each in answered)
        errors: dict[str, int] = {}
        for each in self.measured:
            if each.error:
                errors[each.error] = errors.get(each.error, 0) + 1
        return {
            "load": {key: value for key, value in asdict(self.load).items() if key != "api_key"},
            "seconds": round(self.seconds, 3),
            "answered": len(answered),
            "errors": errors,
            "requests_per_second": round(len(answered) / self.seconds, 3),
            "completion_tokens_per_second": round(tokens / self.seconds, 2),
            "tokens_per_second": round((tokens + prompts) / self.seconds, 2),
            "prompt_tokens": prompts,
            "cached_tokens": sum(each.cached_tokens for each in answered),
            "completion_tokens": tokens,
            "first_token_ms": _summary([each.first for each in answered]),
            "between_tokens_ms": _summary([gap for each in answered for gap in each.gaps]),
            "whole_ms": _summary([each.whole for each in answered]),
        }

    def svg(self) -> str:
        """A picture: for each of the times, the fraction of requests or tokens that took less."""
        series = {
            "first token": [each.first for each in self.answered],
            "whole answer": [each.whole for each in self.answered],
            "between tokens": [gap for each in self.answered for gap in each.gaps],
        }
        return _curves({name: sorted(values) for name, values in series.items() if values})


def _summary(seconds: Sequence[float]) -> Mapping[str, float]:
    if not seconds:
        return {}
    values = np.array(seconds) * 1000
    found = {f"p{p}": float(np.percentile(values, p)) for p in PERCENTILES}
    found = {"mean": float(values.mean()), **found, "max": float(values.max())}
    return {name: round(value, 2) for name, value in found.items()}


async def measure(load: Load) -> Result:
    """Send the requests, and wait for their answers. Raises: UsageError (`bad-arguments`) if nobody answers there."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    head = {"Authorization": f"Bearer {load.api_key}"} if load.api_key else {}
    places = asyncio.Semaphore(load.concurrency) if load.concurrency else nullcontext()
    async with httpx.AsyncClient(
        base_url=load.url, headers=head, limits=limits, timeout=None
    ) as http:
        try:
            found = await http.get("/v1/models", timeout=10)
        except httpx.HTTPError as error:
            raise UsageError(
                "bad-arguments",
                f"nobody answers at {load.url}: {type(error).__name__}",
                help="relaxpy serve starts a server",
            ) from None
        if found.status_code != 200:
            raise UsageError(
                "bad-arguments", f"{load.url}/v1/models answers with status {found.status_code}"
            )
        model = load.model or found.json()["data"][0]["id"]
        start = time.perf_counter()

        async def one(prompt: str, arrival: float) -> Measured:
            await asyncio.sleep(max(start + arrival - time.perf_counter(), 0))
            measured, begin = Measured(arrival), time.perf_counter()
            async with places:
                await _ask(http, load, model, prompt, measured, begin)
            return measured

        pairs = zip(load.prompts(), load.arrivals(), strict=True)
        measured = await asyncio.gather(*(one(*pair) for pair in pairs))
        return Result(load, time.perf_counter() - start, measured)


async def _ask(
    http: httpx.AsyncClient,
    load: Load,
    model: str,
    prompt: str,
    measured: Measured,
    begin: float,
) -> None:
    body = {
        "model": model, "prompt": prompt, "max_tokens": load.max_tokens, "temperature": 0, "stream": True,
        "ignore_eos": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    last = 0.0
    try:
        async with http.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                measured.error = f"status {answer.status_code}"
                return
            async for event in _events(answer):
                now = time.perf_counter()
                if "error" in event:
                    measured.error = str(event["error"].get("message", "error"))[:100]
                    return
                if event.get("choices"):
                    if not last:
                        measured.first = now - begin
                    else:
                        measured.gaps.append(now - last)
                    last = now
                if usage := event.get("usage"):
                    measured.prompt_tokens = usage["prompt_tokens"]
                    measured.completion_tokens = usage["completion_tokens"]
                    details: dict[str, Any] = usage.get("prompt_tokens_details") or {}
                    measured.cached_tokens = details.get("cached_tokens") or 0
        measured.whole = time.perf_counter() - begin
    except httpx.HTTPError as error:
        measured.error = type(error).__name__


async def _events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line[6:])


_COLOURS = ("#2b5d8f", "#b5562b", "#3b7d4f")
_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 320, 56, 24


def _curves(series: Mapping[str, Sequence[float]]) -> str:
    """Distributions of times, on a logarithmic axis, as SVG."""
    times = [value for values in series.values() for value in values if value > 0]
    low, high = (np.log10(min(times)), np.log10(max(times))) if times else (-3.0, 0.0)
    low, high = float(np.floor(low)), float(np.ceil(max(high, low + 0.1)))

    def x(seconds: float) -> float:
        return _LEFT + (np.log10(max(seconds, 10**low)) - low) / (high - low) * (
            _WIDTH - _LEFT - 16
        )

    def y(fraction: float) -> float:
        return _TOP + (1 - fraction) * (_HEIGHT - _TOP - 36)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        f'font-size="12"><rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>'
    ]
    for power in range(int(low), int(high) + 1):
        label = f"{10**power:g} s" if power >= 0 else f"{10 ** (power + 3):g} ms"
        out.append(
            f'<path d="M{x(10.0**power):.1f} {y(1):.1f}V{y(0):.1f}" stroke="#ddd"/>'
            f'<text x="{x(10.0**power):.1f}" y="{_HEIGHT - 16}" text-anchor="middle">{label}</text>'
        )
    for fraction in (0, 0.5, 0.9, 1):
        out.append(
            f'<path d="M{_LEFT} {y(fraction):.1f}H{_WIDTH - 16}" stroke="#ddd"/>'
            f'<text x="{_LEFT - 6}" y="{y(fraction) + 4:.1f}" text-anchor="end">{fraction:.0%}</text>'
        )
    for number, ((name, values), colour) in enumerate(zip(series.items(), _COLOURS, strict=False)):
        step = max(len(values) // 400, 1)
        chosen = [*range(0, len(values), step), len(values) - 1]
        points = " ".join(f"{x(values[n]):.1f},{y((n + 1) / len(values)):.1f}" for n in chosen)
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out.append(f'<text x="{_LEFT + 150 * number}" y="14" fill="{colour}">{name}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"
