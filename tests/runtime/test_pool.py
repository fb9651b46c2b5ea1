"""The pool: what comes back is given out again, bounds hold, several threads may use it."""

from __future__ import annotations

import gc
import math
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest

from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime.pool import MOST, SMALL, SMALL_KEPT, MemoryPool
from relaxpy.runtime.tensor import ALIGNMENT, Tensor, allocate

K = 1024


def test_memory_is_used_again() -> None:
    pool = MemoryPool()
    tensor = pool.empty((100 * K,), "uint8")
    pointer = tensor.pointer
    assert pointer % ALIGNMENT == 0
    assert (pool.use().results, pool.use().kept) == (100 * K, 0)
    del tensor
    assert (pool.use().results, pool.use().kept) == (0, 100 * K)
    assert pool.empty((98 * K,), "uint8").pointer == pointer
    assert pool.use().peak == 100 * K


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_equal_calls_get_equal_memory(order: tuple[int, ...]) -> None:
    """In whatever order the memory of the last one came back."""
    pool = MemoryPool()
    found: list[list[int]] = []
    for _ in range(3):
        held = {n: pool.empty((100 * K,), "uint8") for n in range(3)}
        found.append([tensor.pointer for tensor in held.values()])
        for n in order:
            del held[n]
            pool.use()
    assert found[0] == found[1] == found[2]


def test_memory_in_use_is_not_given_out() -> None:
    """A numpy array over the memory keeps it, as DLPack's consumers do."""
    pool = MemoryPool()
    tensor = pool.empty((64 * K,), "uint8")
    array = np.from_dlpack(tensor.numpy())
    pointer = tensor.pointer
    del tensor
    gc.collect()
    assert pool.use().results == 64 * K
    assert pool.empty((64 * K,), "uint8").pointer != pointer
    del array
    assert pool.use().results == 0


def test_much_larger_pieces_are_not_given_to_small_needs() -> None:
    pool = MemoryPool()
    pool.allocate(1000 * K)
    kept = pool.allocate(200 * K)
    assert pool.use().kept == 1000 * K
    assert kept[0].nbytes == 200 * K


def test_it_is_bounded() -> None:
    pool = MemoryPool(limit=300 * K)
    blocks = [pool.allocate(100 * K) for _ in range(8)]
    blocks.clear()
    assert pool.use().kept <= 300 * K
    assert pool.use().results == 0
    small = [pool.allocate(64) for _ in range(3 * MOST)]
    small.clear()
    assert pool.use().kept <= 300 * K + MOST * 64


def test_reuse_keeps_the_bound() -> None:
    """Calls that reuse the memory of the call before free what came back meanwhile."""
    alive = 0

    def gone() -> None:
        nonlocal alive
        alive -= 1

    def make(nbytes: int) -> tuple[Any, int]:
        nonlocal alive
        buffer, pointer = allocate(nbytes)
        weakref.finalize(buffer, gone)
        alive += 1
        return buffer, pointer

    pool = MemoryPool(limit=300 * K, make=make)
    held = [pool.empty((100 * K,), "uint8") for _ in range(10)]
    assert alive == 10
    held.clear()
    for _ in range(5):
        pool.empty((100 * K,), "uint8")
    assert alive <= 4
    assert pool.use().peak == 1000 * K


def test_release() -> None:
    pool = MemoryPool()
    used = pool.allocate(64 * K)
    pool.allocate(100 * K)
    assert pool.release() == 100 * K
    assert pool.release() == 0
    assert pool.use().total == used[0].nbytes


def test_small_results_are_python_s() -> None:
    pool = MemoryPool()
    tensor = pool.empty((SMALL - 1,), "uint8")
    assert tensor.nbytes == SMALL - 1
    assert pool.use().total == 0


def itself(tensor: Tensor) -> Any:
    return tensor


def part(tensor: Tensor) -> Any:
    return tensor.numpy()[3:].T


@pytest.mark.parametrize("keep", [itself, Tensor.numpy, np.from_dlpack, part])
def test_small_memory_is_used_again_when_nobody_has_it(keep: Callable[[Tensor], Any]) -> None:
    """Whoever refers to it: the tensor, an array over it, or a consumer of DLPack."""
    pool = MemoryPool()
    tensor = pool.empty((100,), "float32")
    pointer = tensor.pointer
    assert pointer % ALIGNMENT == 0
    held = keep(tensor)
    del tensor
    gc.collect()
    assert pool.empty((100,), "float32").pointer != pointer
    del held
    assert pointer in {pool.empty((100,), "float32").pointer for _ in range(SMALL_KEPT)}


def test_small_memory_is_used_again_beside_some_that_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A caller that keeps two results gets no new memory for others."""
    made: list[int] = []

    def make(nbytes: int) -> tuple[Any, int]:
        made.append(nbytes)
        return allocate(nbytes)

    monkeypatch.setattr("relaxpy.runtime.pool.allocate", make)
    pool = MemoryPool()
    held = [pool.empty((100,), "float32", 400) for _ in range(2)]
    found = {pool.empty((100,), "float32", 400).pointer for _ in range(20)}
    assert not found & {tensor.pointer for tensor in held}
    assert len(made) <= SMALL_KEPT


@pytest.mark.parametrize("shape", [(3, 5), (0, 5), (1 << 20,), ()])
def test_the_number_of_bytes_may_be_given(shape: tuple[int, ...]) -> None:
    pool = MemoryPool()
    nbytes = math.prod(shape) * 4
    given = pool.empty(shape, "float32", nbytes)
    assert (given.shape, given.dtype, given.nbytes) == (shape, "float32", nbytes)
    assert given.numpy().shape == shape
    with pytest.raises(RuntimeCheckError, match="cannot allocate -8 bytes"):
        pool.empty((-2,), "float32", -8)


def test_small_memory_of_threads() -> None:
    """No two threads have the same memory at the same time, wherever one is interrupted."""
    interval = sys.getswitchinterval()
    pool = MemoryPool()

    def work(number: int) -> bool:
        tensors = [pool.empty((16,), "int64") for _ in range(3)]
        for tensor in tensors:
            tensor.numpy()[:] = number
        return all((tensor.numpy() == number).all() for tensor in tensors)

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(work, range(4000)))
    finally:
        sys.setswitchinterval(interval)


def test_small_memory_that_is_kept_is_bounded() -> None:
    pool = MemoryPool()
    held = [pool.empty((100,), "float32") for _ in range(100)]
    assert len({tensor.pointer for tensor in held}) == 100
    owners = [weakref.ref(cast("Any", tensor.owner)) for tensor in held]
    del held
    assert sum(owner() is not None for owner in owners) <= SMALL_KEPT
    pool.release()
    assert not any(owner() is not None for owner in owners)


def test_storage_is_counted_apart() -> None:
    pool = MemoryPool()
    storage = pool.storage(50 * K)
    result = pool.empty((20 * K,), "uint8")
    use = pool.use()
    assert (use.planned, use.results) == (52 * K, 20 * K)
    del storage, result
    assert (pool.use().planned, pool.use().results) == (0, 0)


def test_out_of_memory_is_said() -> None:
    with pytest.raises(RuntimeCheckError) as error:
        MemoryPool().empty((1 << 60,), "uint8")
    assert error.value.code == "out-of-memory"


def test_threads() -> None:
    """Nobody gets memory that another one has, and the books balance."""
    pool = MemoryPool(limit=1 << 20)

    def work(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        held: list[tuple[int, np.ndarray]] = []
        for step in range(300):
            mark = seed * 1000 + step
            array = pool.empty((int(rng.integers(4 * K, 16 * K)),), "int32").numpy()
            array[:] = mark
            held.append((mark, array))
            if len(held) > 8:
                held.pop(int(rng.integers(len(held))))
            if not all((a[0], a[-1]) == (m, m) for m, a in held):
                return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(4)))
    gc.collect()
    use = pool.use()
    assert use.results == 0
    assert use.kept <= 1 << 20
