"""Compiles a module to an executable: the pass pipeline, kernel schedules, object files, bytecode."""

from __future__ import annotations

from relaxpy.backend.registry import backend_of
from relaxpy.build.build import build
from relaxpy.build.pipeline import default_pipeline
from relaxpy.runtime.limits import peak_is_measured_by
from relaxpy.target import Target
from relaxpy.transform.phases import Phase, Pipeline

__all__ = ["Phase", "Pipeline", "build", "default_pipeline"]


def _peak_flops() -> float:
    target = Target.host()
    return backend_of(target).peak_flops(target)


peak_is_measured_by(_peak_flops)


def __dir__() -> list[str]:
    return sorted(__all__)
