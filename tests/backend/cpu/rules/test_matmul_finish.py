"""Matrix products with something done to their sums: as one program, the same bits as without schedule."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.target import Target
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.to_python import to_python
from relaxpy.transform import LegalizeOps, Normalize
from relaxpy.transform.fuse_ops import FuseOps
from relaxpy.transform.fuse_tensor_ir import FuseTensorIR

EPILOGUES = {
    "bias": "gv = R.add(a, bias)",
    "bias_relu": "b = R.add(a, bias)\ngv = R.nn.relu(b)",
    "gelu": "b = R.add(a, bias)\ngv = R.nn.gelu(b)",
    "scale": "b = R.add(a, bias)\ngv = R.multiply(b, R.const(0.5))",
    "residual": "b = R.add(a, bias)\ngv = R.add(b, y)",
    "column": "gv = R.multiply(a, rows)",
    "row_and_column": "b = R.add(a, rows)\ngv = R.maximum(b, bias)",
    "twice": "b = R.tanh(a)\ngv = R.multiply(a, b)",
}


def program(epilogue: str) -> PrimFunc:
    """(batch, n, k) @ (k, 40), and an epilogue of it with a bias (40,), a residual and a number a row."""
    body = "\n".join(f"        {line}" for line in ["a = R.matmul(x, w)", *epilogue.splitlines()])
    mod = relaxpy.parse(f"""
from relaxpy.script import relax as R
@R.function
def main(x: R.Tensor(("b", "n", "k"), "float32"), w: R.Tensor(("k", "m"), "float32"), bias: R.Tensor(("m",), "float32"),
         y: R.Tensor(("b", "n", "m"), "float32"), rows: R.Tensor(("b", "n", 1), "float32")):
    with R.dataflow():
{body}
        R.output(gv)
    return gv
""")
    fused = FuseTensorIR()(FuseOps()(LegalizeOps()(Normalize()(mod))))
    (found,) = fused.prim_funcs.values()
    assert isinstance(found, PrimFunc)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "names"),
    [("llvm", tuple(EPILOGUES)), ("llvm -mcpu=haswell", ("residual", "row_and_column"))],
)
def test_epilogues(target: str, names: tuple[str, ...]) -> None:
    """Many rows and few, ragged and whole, empty ones; close to the Python translation (which sums in another order)."""
    programs = {name: program(EPILOGUES[name]) for name in names}
    kernels = Kernels(programs, Target.parse(target))
    assert kernels.rules == dict.fromkeys(programs, "matmul")
    rng = np.random.default_rng(0)
    for b, n, k, m in (
        (1, 1, 5, 7),
        (2, 3, 4, 33),
        (1, 8, 16, 32),
        (2, 13, 7, 40),
        (0, 3, 2, 5),
        (1, 2, 0, 5),
    ):
        x, w, bias = rng.normal(size=(b, n, k)), rng.normal(size=(k, m)), rng.normal(size=m)
        y, rows = rng.normal(size=(b, n, m)), rng.normal(size=(b, n, 1))
        values = {"x": x, "w": w, "bias": bias, "y": y, "rows": rows, "const3": np.array(0.5)}
        for name, func in programs.items():
            args = [values[p.name].astype(np.float32) for p in func.params[:-1]]
            want, got = np.full((b, n, m), 7, np.float32), np.full((b, n, m), 9, np.float32)
            to_python(func.func)(*args, want)
            kernels.run(name, args, [got])
            np.testing.assert_allclose(
                got, want, rtol=2e-5, atol=2e-5, err_msg=f"{name} {b, n, k, m}"
            )
