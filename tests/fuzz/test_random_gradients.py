"""Derivatives of random programs: forward mode beside reverse mode, in the interpreter. What has no rule is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.errors import RelaxError
from relaxpy.op.rule import has_gradient
from relaxpy.testing.grad_check import dot, floats_of, like
from relaxpy.testing.interpret import interpret
from relaxpy.testing.random_program import random_program
from relaxpy.transform import Gradient
from tests.sweeps import FULL, sweep

COUNT = 2000 if FULL else 60


def compared(seed: int) -> int:
    """How many results of a program's two derivatives were compared."""
    program = random_program(seed)
    main = program.mod.graph_functions["main"]
    floats = [i for i, p in enumerate(main.params) if has_gradient(p.annotation)]
    if not floats or not has_gradient(main.ret):
        return 0
    try:
        reverse, forward = (Gradient(kind=kind)(program.mod) for kind in ("vjp", "jvp"))
    except RelaxError as error:
        if not error.code.startswith("gradient-"):
            raise
        return 0
    check_well_formed(reverse)
    check_well_formed(forward)
    count = 0
    for sizes in list(program.bindings())[:2]:
        args, rng = list(program.arguments(sizes)), np.random.default_rng(seed)
        try:
            value = interpret(program.mod, "main", *args)
        except RelaxError:
            continue  # it refuses these sizes
        ct, tangents = like(value, rng), [like(args[i], rng) for i in floats]
        back: Any = interpret(reverse, "main_vjp", *args, ct)
        ahead: Any = interpret(forward, "main_jvp", *args, *tangents)
        left, right = dot(ahead[1], ct), dot(tuple(tangents), back[1])
        if np.isfinite(left) and np.isfinite(right):
            sizes_of = (np.abs(x.astype(np.float64)).sum() for x in floats_of(ahead[1]))
            assert abs(left - right) <= 3e-2 * (1.5 * sum(sizes_of) + 1), (seed, left, right)
            count += 1
    return count


@sweep(3)
@pytest.mark.parametrize("start", range(0, COUNT, 20))
def test_forward_is_the_transpose_of_reverse(start: int) -> None:
    with np.errstate(all="ignore"):
        assert sum(map(compared, range(start, start + 20))) > 0
