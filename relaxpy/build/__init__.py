"""From a module to an executable: the pipeline, the kernels' schedules, the object file, the
bytecode."""

from __future__ import annotations

from relaxpy.build.build import build
from relaxpy.build.pipeline import DEFAULT, Phase, default_pipeline

__all__ = ["DEFAULT", "Phase", "build", "default_pipeline"]
