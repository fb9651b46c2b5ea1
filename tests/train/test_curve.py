"""The picture of a training's losses."""

from __future__ import annotations

import math
from xml.etree import ElementTree

from relaxpy.train import curve


def points(picture: str) -> list[list[tuple[float, float]]]:
    lines = [e for e in ElementTree.fromstring(picture).iter() if e.tag.endswith("polyline")]
    return [
        [(float(x), float(y)) for x, y in (p.split(",") for p in e.attrib["points"].split())]
        for e in lines
    ]


def test_a_curve() -> None:
    """Losses from left to right, the least at the bottom; a NaN is left out; one loss, equal ones, and none are
    pictures, too."""
    losses, means = points(curve([4.0, 2.0, math.nan, 1.0]))
    assert [x for x, _ in losses] == sorted(x for x, _ in losses)
    assert [y for _, y in losses] == sorted(y for _, y in losses)
    assert (len(losses), len(means)) == (3, 3)
    for few in ([], [1.0], [2.0, 2.0]):
        assert len(points(curve(few))[0]) == len(few)
