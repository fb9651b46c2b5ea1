"""The images of an executable and which of them run here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from relaxpy.runtime.bytecode import HOST_SLOT, KernelImage, KernelInfo, Requirement, Slot
from relaxpy.runtime.executable import Executable
from relaxpy.runtime.host.features import host_features
from relaxpy.runtime.inspect.image_choices import ImageChoice, image_choices

HERE = next(iter(sorted(host_features())), "")
"""A feature that this CPU has."""


def exe() -> Executable:
    """Two kernels for a CPU that nobody has, one with a feature of this one, and any; and one for a board."""
    needs = (
        Requirement("future", "", ("flying",)),
        Requirement("present", "", (HERE,) if HERE else ()),
        Requirement("board"),
    )
    images = (KernelImage("a", "a", needs=0), KernelImage("b", "b", needs=1))
    kernels = (
        KernelInfo("first", images),
        KernelInfo("second", (*images, KernelImage("c", "c"))),
        KernelInfo("third", (KernelImage("d", "d", needs=2),), slot=1),
    )
    slots = (HOST_SLOT, Slot("board", "toy"))
    return replace(Executable((), kernels=kernels, slots=slots), requirements=needs)


def test_the_first_that_runs_is_chosen() -> None:
    future, present, board = image_choices(exe())
    assert (future.images, future.lacks, future.chosen) == (2, ("flying",), 0)
    assert (present.images, present.lacks, present.chosen) == (2, (), 2)
    assert (board.images, board.lacks, board.chosen) == (1, None, 0)
    assert str(future) == "future: 2 kernels, cannot run here without flying"
    assert str(present) == "present: 2 kernels, runs here"
    assert str(board) == "board: 1 kernel, chosen by the device (toy)"


@pytest.mark.skipif(not HERE, reason="the features of this CPU are unknown")
def test_features_that_are_left_out() -> None:
    """The second kernel has an image that needs nothing, the first has none any more."""
    _, present, _ = image_choices(exe(), [HERE])
    assert (present.lacks, present.chosen) == ((HERE,), 0)


def test_an_image_that_is_not_needed() -> None:
    choice = ImageChoice("old", "cpu", "x86_64", (), 3, (), 0)
    assert str(choice) == "old: 3 kernels, could run here; another is preferred"


def test_no_requirements() -> None:
    assert image_choices(Executable(())) == ()
