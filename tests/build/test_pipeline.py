"""The default pipeline: passes left out by name."""

from __future__ import annotations

import pytest

from relaxpy.build.pipeline import default_pipeline
from relaxpy.errors import UsageError


def test_passes_are_left_out_by_name() -> None:
    whole = default_pipeline().passes
    rest = default_pipeline(without=["pack-weights", "fuse-ops"]).passes
    assert [step for step in whole if step.name not in ("pack-weights", "fuse-ops")] == list(rest)
    assert len(rest) == len(whole) - 2


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UsageError, match="no pass 'pack-wights'") as error:
        default_pipeline(without=["pack-wights"])
    assert error.value.code == "unknown-pass"
    assert error.value.help == "did you mean 'pack-weights'?"
