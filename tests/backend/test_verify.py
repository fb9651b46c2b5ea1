"""What the check of arranged kernels finds: right numbers, slow loops."""

from __future__ import annotations

from typing import Any

import pytest

from relaxpy.backend.schedule import ScheduledKernel, schedule_kernel
from relaxpy.backend.verify import check_scheduled
from relaxpy.errors import BuildError
from relaxpy.tir.programs.loops import Program, int64, load
from relaxpy.tir.schedule import serial_twin
from relaxpy.tir.tvm import te, tirx
from tests.backend.support import HOST, compute, f32, i64, n, over, tensor


def kernel(program: Program, *buffers: Any, rule: str = "elementwise") -> ScheduledKernel:
    func = tirx.PrimFunc(list(buffers), program.body())
    return ScheduledKernel(func, serial_twin(func), rule)


def buffers() -> tuple[Any, Any]:
    x, out = (tirx.decl_buffer([int64(4096)], "float32", name, layout=None) for name in "xy")
    return x, out


def test_a_parallel_loop_in_another_loop() -> None:
    """Only in one that runs a few times."""
    x, out = buffers()

    def launched(about: int | None) -> Program:
        p = Program()
        with p.loop("i", 64, about=about) as i, p.loop("j", 4, parallel=True) as j:
            place = (i * int64(4) + j) * int64(16)
            p.store(out, place, load(x, place, 16), 16)
        return p

    check_scheduled(kernel(launched(2), x, out))
    p = launched(None)
    with pytest.raises(BuildError, match='parallel loop "j" is inside another loop') as caught:
        check_scheduled(kernel(p, x, out))
    assert caught.value.code == "kernel-schedule"


@pytest.mark.parametrize(("size", "refused"), [(64, False), (4096, True)])
def test_a_workspace_in_every_iteration(size: int, refused: bool) -> None:
    x, out = buffers()
    p = Program()
    with p.loop("i", 64) as i:
        own = p.allocate("own", size, "float32")
        p.store(own, 0, load(x, i * int64(16), 16), 16)
        p.store(out, i * int64(16), load(own, 0, 16), 16)
    if refused:
        with pytest.raises(BuildError, match='workspace "own" is allocated in a serial loop'):
            check_scheduled(kernel(p, x, out))
    else:
        check_scheduled(kernel(p, x, out))


@pytest.mark.parametrize("rule", ["elementwise", "author"])
def test_neighbours_one_by_one(rule: str) -> None:
    x, out = buffers()
    p = Program()
    with p.loop("i", 4096) as i:
        p.store(out, i, load(x, i) + f32(1.0))
    if rule == "elementwise":
        with pytest.raises(BuildError, match='"y" is written to contiguous memory without vectors'):
            check_scheduled(kernel(p, x, out, rule=rule))
    else:
        check_scheduled(kernel(p, x, out, rule=rule))


def test_a_twin_that_is_parallel() -> None:
    x, out = buffers()
    p = Program()
    with p.loop("i", 256, parallel=True) as i:
        p.store(out, i * int64(16), load(x, i * int64(16), 16), 16)
    func = tirx.PrimFunc([x, out], p.body())
    with pytest.raises(BuildError, match="serial twin has a parallel loop"):
        check_scheduled(ScheduledKernel(func, func, "elementwise"))


def test_what_the_rules_make_passes() -> None:
    x = tensor(n, 33)
    k = over(n)
    for out in (
        compute((n, 33), lambda i, j: x[i, j] + f32(1.0)),
        compute((33, n), lambda i, j: x[j, i]),
        compute((33,), lambda j: te.sum(x[k, j], axis=k)),
        compute((n, 1, 33), lambda i, _, j: x[i, i64(32) - j]),
    ):
        check_scheduled(schedule_kernel(te.create_prim_func([x, out]), HOST))
