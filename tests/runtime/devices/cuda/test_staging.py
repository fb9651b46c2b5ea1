"""Copies through pinned buffers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime.devices.cuda.staging import COUNT, SIZE
from relaxpy.runtime.tensor import from_numpy
from tests.runtime.devices.cuda.emulation import Emulation, needs_emulation
from tests.runtime.devices.cuda.kernels import runtime

pytestmark = needs_emulation


@pytest.mark.parametrize("nbytes", [1, SIZE - 1, SIZE, SIZE + 1, 2 * COUNT * SIZE + 5])
def test_there_and_back(driver: Emulation, nbytes: int) -> None:
    """The array changes at once; the copy runs when somebody waits."""
    queue = runtime().queue()
    array = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    want = array.copy()
    tensor = queue.upload(from_numpy(array))
    array[:] = 0
    np.testing.assert_array_equal(tensor.numpy(), want)
    assert driver.memory(pinned=True) <= COUNT * SIZE


def test_a_read_only_array(driver: Emulation) -> None:
    array = np.arange(5)
    array.flags.writeable = False
    np.testing.assert_array_equal(runtime().queue().upload(from_numpy(array)).numpy(), array)


def test_many_small_uploads(driver: Emulation) -> None:
    """More than there are buffers, none of them waited for."""
    queue = runtime().queue()
    made = [queue.upload(from_numpy(np.full(3, i))) for i in range(5 * COUNT)]
    for i, tensor in enumerate(made):
        np.testing.assert_array_equal(tensor.numpy(), [i, i, i])


def test_buffers_are_used_again(driver: Emulation) -> None:
    queue = runtime().queue()
    for i in range(10):
        np.testing.assert_array_equal(queue.upload(from_numpy(np.full(3, i))).numpy(), [i, i, i])
    assert driver.memory(pinned=True) <= 2 * SIZE


def test_threads(driver: Emulation) -> None:
    """More downloads at a time than there are buffers."""

    def work(number: int) -> None:
        queue = runtime().queue()
        array = np.full(3 * SIZE // 8, number)
        for _ in range(3):
            np.testing.assert_array_equal(queue.upload(from_numpy(array)).numpy(), array)

    with ThreadPoolExecutor(12) as pool:
        for done in [pool.submit(work, number) for number in range(12)]:
            done.result()


def test_an_error_of_the_device(driver: Emulation) -> None:
    """Buffers are given back: more errors than there are buffers end, too."""
    queue = runtime().queue()
    tensor = queue.upload(from_numpy(np.arange(4)))
    driver.fail(700)
    for _ in range(2 * COUNT):
        with pytest.raises(RuntimeCheckError, match="an illegal memory access was encountered"):
            tensor.numpy()
