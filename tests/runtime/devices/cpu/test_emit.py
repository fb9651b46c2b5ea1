"""Lines of linked functions on the CPU: what is asked before a kernel runs."""

from __future__ import annotations

import subprocess
import sys

import relaxpy

TERABYTES = """
import numpy as np
import relaxpy

mod = relaxpy.parse('''
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def twice(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
        T.func_attr({"tirx.is_scheduled": True})
        n = T.int64()
        for k in range(1):
            own = T.alloc_buffer((n * 10**12,), "float32")
            for i in range(n):
                own[i] = x[i]
            for i in range(n):
                y[i] = own[i] + own[0]

    @R.function
    def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        n = T.int64()
        cls = Module
        y = R.call_tir(cls.twice, (x,), out_ty=R.Tensor((n,), "float32"))
        return y
''')
for check in (False, True):
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, cache=False), check_memory=check)
    assert vm["main"](np.zeros(0, np.float32)).shape == (0,)
    try:
        vm["main"](np.ones(3, np.float32))
    except relaxpy.RelaxError as error:
        assert error.code == "out-of-memory", error
        assert "cannot allocate the 12000000000000 bytes that the kernel twice needs" in error.message
        assert error.span.line == 19, error.span
    else:
        raise AssertionError("there is no such memory")
    assert vm["main"](np.zeros(0, np.float32)).shape == (0,)
"""


def test_memory_that_there_is_not() -> None:
    """A kernel that asked for terabytes would end the process: they are asked for before it runs."""
    done = subprocess.run(
        [sys.executable, "-c", TERABYTES], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_kernels_of_bounded_memory_are_not_asked() -> None:
    """Neither rows of a known length nor what the graph allocates costs a line."""
    for shape, line in (('("n", 64)', False), ('("n", "m")', True)):
        mod = relaxpy.parse(
            f"@R.function\ndef main(x: R.Tensor({shape}, 'float32')):\n    y = R.sort(x)\n    return y\n"
        )
        source = relaxpy.VirtualMachine(relaxpy.build(mod, cache=False))["main"].source
        assert ("reserve(" in source) is line


READ_SIZES = """
import numpy as np
import relaxpy

TEXT = '''
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def f(x: T.Buffer(("n",), "int64"), y: T.Buffer(("n",), "int64")):
        n = T.int64()
        PROGRAM

    @R.function
    def main(x: R.Tensor(("n",), "int64")) -> R.Tensor(("n",), "int64"):
        n = T.int64()
        cls = Module
        y = R.call_tir(cls.f, (x,), out_ty=R.Tensor((n,), "int64"))
        return y
'''
COPY = '''
        for i in range(n):
            own[i] = x[i]
        for i in range(n):
            y[i] = own[i]'''
PROGRAMS = {
    "an element": 'own = T.alloc_buffer((x[0],), "int64")' + COPY,
    "not negative": 'own = T.alloc_buffer((T.max(x[0], 1),), "int64")' + COPY,
    "a name": 'm: T.let[T.int64] = x[0]\\n        own = T.alloc_buffer((m,), "int64")' + COPY,
    "in a loop": '''for i in range(n):
            own = T.alloc_buffer((x[i], x[0]), "int8")
            own[0, 0] = T.int8(1)
            y[i] = x[i] * own[0, 0]''',
    "in a parallel loop": '''T.func_attr({"tirx.is_scheduled": True})
        for i in T.parallel(n):
            own = T.alloc_buffer((x[i],), "int64")
            own[0] = x[i]
            y[i] = own[0]''',
}
for name, program in PROGRAMS.items():
    vm = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(TEXT.replace("PROGRAM", program)), cache=False))
    for size in (10**12, 2**61, -5, 100):
        try:
            found = vm(np.array([size] * 3)).numpy().tolist()
        except relaxpy.RelaxError as error:
            code = "tir-bounds" if size < 0 else "out-of-memory"
            assert error.code == code, (name, size, error)
            assert error.span.line == 13 + program.count("\\n"), (name, error)
            assert size < 0 or "bytes of own" in error.message, error
        else:
            assert size == 100 and found == [100] * 3, (name, size, found)
"""


def test_memory_of_a_size_that_tensors_say() -> None:
    """It is asked for right before it is allocated; a program that could not have it ended the process."""
    done = subprocess.run(
        [sys.executable, "-c", READ_SIZES], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
