"""Branches and loops of torch."""

from __future__ import annotations

import torch
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan

import relaxpy
from tests.sweeps import full


def same(program, example, *others) -> None:
    compiled = relaxpy.compile(program, *example)
    for args in (example, *others):
        torch.testing.assert_close(compiled(*args), program(*args))


def test_a_branch_by_a_value() -> None:
    def program(x):
        y = x * 2
        return torch.cond(
            y.sum() > 0, lambda a, b: (a + b, b.sum()), lambda a, b: (a - b, a.mean()), (x, y)
        )

    same(program, (torch.ones(3, 2),), (-torch.ones(5, 2),), (torch.ones(1, 7),))


def test_a_loop() -> None:
    def program(x, n):
        return torch.while_loop(
            lambda i, y: i < n,
            lambda i, y: (i + 1, y * 2 + x),
            (torch.zeros((), dtype=torch.int64), x + 1),
        )

    same(
        program,
        (torch.ones(3), torch.tensor(4)),
        (torch.ones(5), torch.tensor(0)),
        (torch.ones(1), torch.tensor(9)),
    )


def test_a_map_over_rows() -> None:
    def program(x, y):
        return torch_map(lambda a, b: a.cumsum(0) + b.sum(), x, y)

    same(
        program,
        (torch.randn(5, 3), torch.randn(2)),
        (torch.randn(2, 7), torch.randn(3)),
        (torch.randn(1, 1), torch.randn(4)),
    )


@full
def test_a_scan() -> None:
    def program(x, state):
        return scan(lambda s, a: (s * 0.5 + a, s.sum() + a), state, x, dim=0)

    same(
        program,
        (torch.randn(5, 3), torch.randn(3)),
        (torch.randn(2, 7), torch.randn(7)),
        (torch.randn(9, 2), torch.randn(2)),
    )
