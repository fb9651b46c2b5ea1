"""From a module to an executable: the pipeline, the kernels' schedules, the object file, the
bytecode."""

from __future__ import annotations

from relaxpy.build.build import build
from relaxpy.build.peak import peak_flops
from relaxpy.build.phases import Phase, Pipeline
from relaxpy.build.pipeline import DEFAULT, default_pipeline
from relaxpy.runtime.limits import peak_is_measured_by

__all__ = ["DEFAULT", "Phase", "Pipeline", "build", "default_pipeline"]

peak_is_measured_by(peak_flops)
