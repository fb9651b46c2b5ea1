"""The references beside somebody else's: jax. What jax has stands in `tests/op/jax_oracle/`, a file for each
of `relaxpy/op`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxpy.ir.dtype import DType
from relaxpy.op.base import OPS
from relaxpy.testing.op_samples import ROUNDING, arrays_of, map_arrays, run_reference, samples
from tests.sweeps import part, sweep

FOLDER = Path(__file__).parents[1] / "op/jax_oracle"


FILES = sorted(path.stem for path in FOLDER.glob("*.py"))


def oracle(file: str) -> dict[str, Any]:
    """Operator name → what computes it with jax, from the operator's value and its inputs."""
    spec = importlib.util.spec_from_file_location(f"jax_oracle_{file}", FOLDER / f"{file}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.JAX


@sweep(2)
@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_references_are_those_of_jax(file: str) -> None:
    """For right samples of every operator that jax has."""
    jax = pytest.importorskip("jax")
    table = oracle(file)
    assert table.keys() <= OPS.keys(), table.keys() - OPS.keys()
    problems: list[str] = []
    compared = 0
    with jax.enable_x64(True):
        for name, function in part([*table.items()], 2):
            for s in part([s for s in samples(name) if not s.code], 41):
                inputs = [map_arrays(x, jax.numpy.asarray) for x in s.inputs]
                try:
                    result = function(s.op, *inputs)
                    if result is NotImplemented:  # a corner that jax has not
                        continue
                    check(result, run_reference(s), s)
                    compared += 1
                except Exception as e:
                    problems.append(
                        f"{s.op} {[a.shape for a in arrays_of(s)]}: {type(e).__name__}: {e}"[:800]
                    )
    assert compared
    assert not problems, f"{len(problems)} of {compared}\n" + "\n\n".join(problems[:8])


def check(got: Any, want: Any, s: Any) -> None:
    """Two results are the same: structure, shapes and values."""
    if isinstance(want, tuple):
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            check(g, w, s)
        return
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape
    dtypes = {str(DType(a.dtype)) for a in (want, *arrays_of(s))}
    slack = max([ROUNDING.get(d, 0.0) for d in dtypes])
    np.testing.assert_allclose(
        got.astype(np.float64), want.astype(np.float64),
        rtol=max(1e-5, s.rtol, slack), atol=max(1e-5, s.atol, slack),
    )  # fmt: skip
