"""Layouts of memory: nothing in use at the same time overlaps, and little is lost."""

from __future__ import annotations

import itertools
import random

import pytest

from relaxpy.analysis.memory_layout import ALIGNMENT, Block, demand, lay_out

K = 1024


def check(blocks: list[Block]) -> int:
    layout = lay_out(blocks)
    spans = list(zip(layout.offsets, blocks, strict=True))
    for (a, first), (b, second) in itertools.combinations(spans, 2):
        if first.meets(second) and first.size and second.size:
            assert a + first.size <= b or b + second.size <= a
    assert all(offset % ALIGNMENT == 0 for offset, _ in spans)
    assert max((offset + block.size for offset, block in spans), default=0) <= layout.size
    return layout.size


def test_one_after_the_other_take_turns() -> None:
    assert check([Block(K, 0, 1), Block(K, 2, 3), Block(K, 4, 5)]) == K


def test_neighbours_share_an_end() -> None:
    """What is in use at one position by both does not overlap."""
    assert check([Block(K, 0, 2), Block(K, 2, 3)]) == 2 * K


def test_sizes_are_rounded_to_cache_lines() -> None:
    assert check([Block(1, 0, 1), Block(65, 0, 1)]) == 3 * ALIGNMENT
    assert check([Block(0, 0, 1), Block(0, 1, 1)]) == 0


def test_a_large_one_splits() -> None:
    """Greedy reuse of whole storages takes 5 K here: the two small ones do not share the large one's."""
    assert check([Block(4 * K, 0, 1), Block(2 * K, 2, 5), Block(2 * K, 3, 6)]) == 4 * K


def test_a_program_of_layers_reaches_the_least() -> None:
    """Residual, wide product, narrow product, again and again: what transformers are made of."""
    blocks: list[Block] = []
    for layer in range(32):
        at = 10 * layer
        blocks += [
            Block(8 * K, at, at + 11),
            Block(56 * K, at + 3, at + 6),
            Block(28 * K, at + 5, at + 8),
        ]
        blocks += [Block(8 * K, at + 1, at + 4), Block(K, at + 7, at + 9)]
    assert check(blocks) == demand(blocks)


@pytest.mark.parametrize("seed", range(20))
def test_random_ones_are_close_to_the_least(seed: int) -> None:
    rng = random.Random(seed)
    blocks = []
    for _ in range(80):
        begin = rng.randrange(100)
        size = rng.choice([ALIGNMENT, K, 3 * K, 8 * K, rng.randrange(1, 64) * ALIGNMENT])
        blocks.append(Block(size, begin, begin + rng.randrange(12)))
    assert check(blocks) <= 1.15 * demand(blocks)
