"""`tvm_ffi` is imported without what takes long, and works with it when it comes."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys, types
from relaxpy.runtime.ffi import ffi

echo = ffi().convert(lambda x: x)
print(*(sys.modules.get(name) is None for name in ("torch", "cuda.bindings", "cuda.bindings.driver")))

class Stream:
    def __int__(self):
        return 7

print(type(echo(Stream())).__name__)  # another object

class CUstream(Stream):
    pass

sys.modules["cuda.bindings.driver"] = types.SimpleNamespace(CUstream=CUstream)
print(echo(CUstream()).value)  # a stream is its address
"""


def test_bindings_that_come_later_are_known() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "True", "Stream", "7"]
