"""Counters of a server, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from relaxpy.server.served_model import AnswerUsage, ServedModel

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120)
_GAUGES = {
    "running": "texts that are being written",
    "waiting": "requests that wait",
    "pages_available": "pages of the cache that no text uses",
}
_COUNTERS = {
    "steps": "steps",
    "seconds": "seconds of steps",
    "model_seconds": "seconds of steps in the model's functions",
    "prompt_tokens": "tokens of prompts",
    "cached_tokens": "tokens of prompts that were in the cache",
    "computed_tokens": "tokens that were computed",
    "generated_tokens": "tokens that were written",
    "drafted_tokens": "tokens that were guessed",
    "accepted_tokens": "tokens that were guessed rightly",
    "preemptions": "times that a text gave its pages back",
    "not_a_number": "requests that ended since logits were NaN",
}


class Metrics:
    """The counters of one application."""

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        """The engines' own numbers are read when somebody asks."""
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "relaxpy_requests", "requests by route and status", ["route", "status"],
            registry=self.registry,
        )  # fmt: skip
        self.mismatches = Counter(
            "relaxpy_schema_mismatches", "answers that were not as their schema has it", ["model"],
            registry=self.registry,
        )  # fmt: skip
        self._sound = Counter(
            "relaxpy_sound_seconds", "seconds of recordings that were heard", ["model"],
            registry=self.registry,
        )  # fmt: skip
        self._first = self._histogram(
            "relaxpy_time_to_first_token_seconds", "until the first token"
        )
        self._gaps = self._histogram("relaxpy_time_between_tokens_seconds", "between tokens")
        self._whole = self._histogram("relaxpy_answer_seconds", "of whole answers")
        self.registry.register(_Engines(models))

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(
            name, f"seconds {text}", ["model"], registry=self.registry, buckets=_SECONDS
        )

    def note(self, model: str, tally: AnswerUsage) -> None:
        """Count an answer."""
        if tally.first is None:
            return
        self._first.labels(model).observe(tally.first)
        self._whole.labels(model).observe(tally.last)
        for gap in tally.gaps:
            self._gaps.labels(model).observe(gap)

    def note_sound(self, model: str, sound: float, seconds: float) -> None:
        """Count the text of a recording of so many seconds of sound."""
        self._sound.labels(model).inc(sound)
        self._whole.labels(model).observe(seconds)

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self.registry)


class _Engines:
    """Reads the numbers of engines."""

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self._models = models

    def collect(self) -> Iterator[Any]:
        """See `prometheus_client.registry.Collector`."""
        for name, text in _GAUGES.items():
            gauge = GaugeMetricFamily(f"relaxpy_{name}", text, labels=["model"])
            for model in self._models.values():
                gauge.add_metric([model.name], model.client.state.get(name, 0))
            yield gauge
        for name, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"relaxpy_{name}", text, labels=["model"])
            for model in self._models.values():
                counter.add_metric([model.name], model.client.state.get(name, 0))
            yield counter
        engines = GaugeMetricFamily(
            "relaxpy_engines", "engines that take requests", labels=["model"]
        )
        for model in self._models.values():
            engines.add_metric([model.name], model.client.engines)
        yield engines
        restarts = CounterMetricFamily("relaxpy_engine_restarts", "restarts", labels=["model"])
        for model in self._models.values():
            restarts.add_metric([model.name], model.client.restarts)
        yield restarts
