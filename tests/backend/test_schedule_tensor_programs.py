"""ScheduleTensorPrograms: figure 11 of the paper for the schedule rules' own workspaces."""

from __future__ import annotations

from relaxpy.backend.schedule_tensor_programs import ScheduleTensorPrograms
from relaxpy.testing.before_after import check_example


def test_example() -> None:
    check_example(ScheduleTensorPrograms())
