"""A backend for the device of `tests.runtime.toy_device`: kernels are tensor programs as Python over numpy arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from relaxpy.backend import registry
from relaxpy.backend.base import Backend, CompileOptions, KernelImages
from relaxpy.backend.knobs import Choices
from relaxpy.backend.schedule import ScheduledKernel
from relaxpy.runtime.bytecode import KernelImage
from relaxpy.target import Target
from relaxpy.tir.to_python import to_python
from tests.runtime import toy_device


@dataclass(frozen=True)
class ToyTarget(Target):
    kind: str = "toy"
    device: ClassVar[str] = "toy"

    def __str__(self) -> str:
        return "toy"

    @property
    def is_host_loadable(self) -> bool:
        return False


class ToyBackend(Backend[ToyTarget]):
    """Arranges nothing; an image is the symbol of a program, which stays in this process."""

    kinds: ClassVar[tuple[str, ...]] = ("toy",)

    def parse(self, text: str) -> ToyTarget:
        return ToyTarget()

    def schedule(self, func: Any, target: ToyTarget, choices: Choices) -> ScheduledKernel:
        return ScheduledKernel(func, func, "toy")

    def compile(
        self,
        kernels: Mapping[str, ScheduledKernel],
        target: ToyTarget,
        options: CompileOptions,
        called: str = "",
    ) -> KernelImages:
        images: dict[str, KernelImage] = {}
        for number, (symbol, scheduled) in enumerate(kernels.items()):
            toy_device.FUNCTIONS[symbol] = to_python(scheduled.parallel)
            images[symbol] = KernelImage(symbol, symbol, number)
        return KernelImages(tuple(symbol.encode() for symbol in kernels), images)


@contextmanager
def toys(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Targets and devices of the kind `toy` are there. Gives the device's log."""
    monkeypatch.setitem(registry.OWN, "toy", f"{__name__}:ToyBackend")
    with toy_device.toys(monkeypatch) as log:
        yield log
