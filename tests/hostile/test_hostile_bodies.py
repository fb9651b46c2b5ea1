"""Hostile bodies for every route: none is an error of the server, and none costs much."""

from __future__ import annotations

from pathlib import Path

import pytest

from relaxpy.server.app import ROUTES
from tests.server.hostile_bodies import SETTINGS, hostile_request, measured
from tests.server.running import server_process
from tests.sweeps import part, sweep


def test_requests_are_the_same_in_each_run() -> None:
    found = [hostile_request(number) for number in range(3 * len(ROUTES))]
    assert found == [hostile_request(number) for number in range(3 * len(ROUTES))]
    assert {body.path for body in found} >= {
        path for _, path, _, body in ROUTES if body is not None
    }


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux counts memory so")
@sweep
def test_hostile_bodies(tmp_path: Path) -> None:
    with server_process(tmp_path, *SETTINGS) as running:
        measured(running, range(1_000_000, 1_000_200))  # whatever is made once
        report = measured(running, part(range(20_000), 41))
    assert report.failures == []
    assert report.excesses == []
    assert {status for _, status in report.statuses} >= {200, 400, 404}
