"""Tensor programs run by themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import relaxpy
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.prim_func import PrimFunc

ROOT = Path(__file__).resolve().parents[2]
MODULE = relaxpy.parse("""
from relaxpy.script import ir as I, relax as R, tir as T
@I.ir_module
class Module:
    @T.prim_func
    def scale(x: T.Buffer(("n",), "float32"), o: T.Buffer(("n",), "float32"), k: T.int64):
        n = T.int64()
        for i in range(n):
            with T.sblock("b"):
                vi = T.axis.spatial(n, i)
                o[vi] = x[vi] * T.Cast("float32", k)
""")


def test_inputs_outputs_scalars() -> None:
    """Strided and empty arrays too, scheduled or not."""
    program = MODULE["scale"]
    assert isinstance(program, PrimFunc)
    for schedule in (False, True):
        kernels = Kernels({"scale": program}, schedule=schedule)
        for x in (np.arange(6, dtype=np.float32)[::2], np.zeros(0, np.float32)):
            out = np.full(x.shape, 77, np.float32)
            kernels.run("scale", [x], [out], [3])
            np.testing.assert_array_equal(out, 3 * x)


FORKED = """
import os, signal
import numpy as np
import relaxpy
from relaxpy.testing.kernels import Kernels
from tests.testing.test_kernels import MODULE
x = np.ones(1 << 20, np.float32)
Kernels({"scale": MODULE["scale"]}).run("scale", [x], [np.empty_like(x)], [3])
exp = "@R.function\\ndef main(x: R.Tensor(('n',), 'float32')):\\n    y = R.exp(x)\\n    return y"
vm = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(exp)))
child = os.fork()
if child == 0:
    signal.alarm(30)
    vm["main"](x)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_after_a_run_ends() -> None:
    """The thread pool of the parent does not exist in the child, whose kernels must not wait for it."""
    done = subprocess.run(
        [sys.executable, "-c", FORKED],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.strip() == "0", done.stderr
