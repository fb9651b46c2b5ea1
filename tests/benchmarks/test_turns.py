"""Peers in processes of their own: requests of every kind are timed, and errors come back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from benchmarks.turns import Peer, Service, rotated_times


def summing() -> Service:
    """Sums the arrays of a request; raises what is not one."""

    def prepare(request: Any) -> Callable[[], Any]:
        arrays = request if isinstance(request, tuple) else (request,)
        return partial(sum, [float(np.asarray(array, np.float64).sum()) for array in arrays])

    return Service(prepare)


def test_requests_of_every_kind() -> None:
    """Twice each, since the last request is kept: an array, several, and a number."""
    peer = Peer.start("sums", summing)
    assert isinstance(peer, Peer), peer
    try:
        pair = np.ones((2, 3)), np.ones(4)
        for request, total in ((pair, 10.0), (pair[0], 6.0), (7, 7.0), (pair, 10.0)):
            assert peer.result(request) == total
            found = rotated_times({"sums": peer}, request, 2, 3)
            assert len(found["sums"]) == 6
        with pytest.raises(RuntimeError, match=r"sums: ValueError: could not convert"):
            peer.times("text", 1)
        assert len(peer.times(pair, 2)) == 2
    finally:
        peer.stop()
    assert not peer.process.is_alive()
