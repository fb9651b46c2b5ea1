"""Powers of 2 by the instructions of AVX-512, on processors that have them."""

from __future__ import annotations

import numpy as np
import pytest

from relaxpy.backend.cpu.rules.powers import weights
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.numerics.avx512 import LANES
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs import loops
from relaxpy.tir.programs.loops import Program
from relaxpy.tir.tvm import tirx


def kernel(size: int) -> PrimFunc:
    """Of a vector of this size."""
    shape = [loops.int64(size)]
    x, y = (tirx.decl_buffer(shape, "float32", name, layout=None) for name in "xy")
    p = Program()
    source, out = p.flat_view(x), p.flat_view(y)
    with p.loop("n", size // LANES) as n:
        p.store(out, n * LANES, weights(p, loops.load(source, n * LANES, LANES)), LANES)
    return PrimFunc(loops.finished(tirx.PrimFunc([x, y], tirx.Evaluate(loops.int64(0))), p.body()))


@pytest.mark.skipif(not CpuTarget.host().has_avx512, reason="needs a processor with AVX-512")
def test_weights() -> None:
    """Close to 2**x, 1 at 0, not below the normal numbers, NaN kept."""
    ends = [0.0, -0.0, -126.0, -126.5, -149.0, -3e38, -np.inf, np.nan, -1.0]
    values = np.concatenate([np.linspace(-126, 0, 100_023), ends]).astype(np.float32)
    found = np.empty_like(values)
    Kernels({"k": kernel(values.size)}, schedule=False).run("k", [values], [found])
    regular, odd = values[:-9].astype(np.float64), found[-9:]
    assert np.abs(found[:-9] / np.exp2(regular) - 1).max() <= 8.7e-5
    assert odd[0] == odd[1] == 1
    assert (odd[2:7] == 2.0**-126).all()
    assert np.isnan(odd[7])
    np.testing.assert_allclose(odd[8], 0.5, rtol=1e-4)
