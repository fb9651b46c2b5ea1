"""Indices of few bits: the element that the arithmetic names, in the bits that it has, or an error of its bounds. The
processor and the interpreter agree, and nothing else is read or written."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

import relaxpy
from tests.sweeps import full

READ, WRITE = "y[v] = x[{}]", "y[{}] = x[v]"
LOOPS = {
    "plain": "for v in range(n):\n    {}",
    "block": 'for i in range(n):\n    with T.sblock("y"):\n        v = T.axis.spatial(n, i)\n        {}',
}
INDICES = (
    'T.Cast("int64", T.Cast("int8", v))',
    'T.Cast("int64", T.Cast("uint8", v))',
    'T.Cast("int64", T.Cast("int16", v) * T.int16(300)) // 300',
    'T.Cast("int64", T.Cast("uint8", v) + T.uint8(200)) - 200',
    'T.Cast("int64", T.Cast("uint8", v) - T.uint8(1)) + 1',
    'T.Cast("int64", T.Cast("int32", v) * 65536 * 65536)',
    'T.Cast("int64", T.Cast("int8", v) + T.int8(100)) % n',
    'T.max(T.min(T.Cast("int64", T.Cast("int8", v * 3)), n - 1), 0)',
    'T.Cast("int64", T.truncdiv(T.Cast("int8", v), T.int8(-1))) % n',
    'T.Cast("int64", T.Cast("int8", T.Cast("float32", v) * T.float32(2))) % n',
    "T.shift_left(v, v) % n",
    BEYOND := "v * v * v * v * v * v * v * v * v % n",
)
"""The last one exceeds 64 bits, where the interpreter's integers have no limit: nothing else is written."""
CHILD = """
import json, sys
import numpy as np
import relaxpy
from relaxpy.testing.interpret import interpret

def outcome(run):
    try:
        return np.asarray(run()).tolist()
    except relaxpy.RelaxError as error:
        return error.code

found = []
for body in json.load(sys.stdin):
    mod = relaxpy.parse('''
@I.ir_module
class M:
    @T.prim_func
    def f(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            y[i] = T.float32(-1)
''' + "\\n".join("        " + line for line in body.splitlines()) + '''
    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        return R.call_tir(M.f, (x,), out_ty=R.Tensor((n,), "float32"))
''')
    machine = relaxpy.VirtualMachine(relaxpy.build(mod, "llvm -opt-level=0", cache=False))
    for n in (1, 57, 127, 128, 129, 263):
        x = np.arange(n, dtype="float32")
        one, two = outcome(lambda: machine["main"](x).numpy()), outcome(lambda: interpret(mod, "main", x))
        found.append([body, n, one if one == two else [one, two], one == two])
print(json.dumps(found))
"""


@full
def test_indices_of_few_bits() -> None:
    """Read and written in all loops, in a process of its own: a wrong proof would end it."""
    ways = [(loops, access) for loops in LOOPS.values() for access in (READ, WRITE)]
    bodies = [loops.format(access.format(index)) for loops, access in ways for index in INDICES]
    done = subprocess.run(
        [sys.executable, "-c", CHILD], input=json.dumps(bodies), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [case for case in found if not case[-1] and BEYOND not in case[0]] == []
    for number in range(len(ways)):
        own = found[number * len(INDICES) * 6 :][: len(INDICES) * 6]
        # The first index leaves a tensor of more than 128 elements, and no smaller one.
        assert [isinstance(case[2], list) for case in own[:6]] == [True] * 4 + [False] * 2
        assert {case[2] for case in own if isinstance(case[2], str)} == {"tir-bounds"}


COMPARED: dict[str, bool | tuple[bool, ...]] = {
    "T.uint8(0) < T.uint8(4)": True,
    "T.uint8(4) > T.uint8(0)": True,
    "T.uint16(0) <= T.uint16(65535)": True,
    "T.uint32(0) >= T.uint32(7)": False,
    "T.uint64(0) < T.uint64(1)": True,
    'T.Cast("uint16", v - v) < T.uint16(5)': True,
    'T.Cast("uint16", v) < T.uint16(0)': False,
    'T.uint16(0) > T.Cast("uint16", v)': False,
    'T.Cast("uint64", v) >= T.uint64(0)': True,
    'T.Cast("uint8", v - 200) < T.uint8(0)': False,
    'T.Cast("uint8", v % 7) < T.Cast("uint8", v % 7) + T.uint8(1)': True,
    'T.Cast("uint32", v % 7) + T.uint32(1) <= T.Cast("uint32", v % 7)': False,
    'T.Cast("uint8", v) + T.uint8(255) < T.Cast("uint8", v) + T.uint8(254)': (False, True, False),
    'T.Cast("uint8", x[v]) < T.uint8(0)': False,
    'T.Cast("uint8", x[v]) < T.Cast("uint8", x[v]) + T.uint8(1)': True,
}


@pytest.mark.parametrize("text", COMPARED)
def test_unsigned_numbers_are_compared(text: str) -> None:
    """In an index and in a value."""
    mod = relaxpy.parse(f"""
@I.ir_module
class M:
    @T.prim_func
    def f(x: T.Buffer(("n",), "int64"), y: T.Buffer(("n",), "int64")):
        for v in range(n):
            y[v] = x[T.if_then_else({text}, v, 0)] + T.if_then_else({text}, v, n)

    @R.function
    def main(x: R.Tensor(("n",), "int64")):
        n = T.int64()
        return R.call_tir(M.f, (x,), out_ty=R.Tensor((n,), "int64"))
""")
    x = np.array([5, 6, 20])
    got = relaxpy.VirtualMachine(relaxpy.build(mod, "llvm -opt-level=0"))["main"](x).numpy()
    is_true = COMPARED[text]
    truths = is_true if isinstance(is_true, tuple) else [is_true] * 3
    assert got.tolist() == [x[v] + v if truths[v] else 8 for v in range(3)]


NONE = 'T.Cast("uint8", T.Cast("int64", T.uint16(0)))'
"""A 0 that is a literal once TVM has simplified it."""
SUBTRACTED = {
    f"for j in range({NONE}):\n y[v] = T.int64(7)": [0, 0, 0],
    "for j in range(T.uint8(0)):\n y[v] = T.int64(7)": [0, 0, 0],
    "for j in range(T.uint8(2), T.uint8(v + 4)):\n y[v] = y[v] + T.Cast('int64', j)": [5, 9, 14],
    f"e: T.let[T.uint8] = T.Cast('uint8', x[0]) // T.max({NONE}, T.uint8(2))\ny[v] = T.Cast('int64', e)": [2, 2, 2],
    f"e: T.let[T.uint8] = T.truncmod(T.uint8(9), T.max({NONE}, T.uint8(1 + 3)))\ny[v] = T.Cast('int64', e)": [1, 1, 1],
    "y[v] = x[T.Cast('int64', T.uint8(0) - T.Cast('uint8', T.int64(5))) % n]": [20, 20, 20],
    "y[v] = x[T.Cast('int64', T.uint8(200) + T.Cast('uint8', T.int64(57))) % n]": [6, 6, 6],
    "y[v] = x[T.Cast('int64', T.Cast('int8', T.int64(3) * T.int64(67))) % n]": [20, 20, 20],
    "y[v] = x[T.Cast('int64', T.int8(-100) - T.Cast('int8', T.int64(100))) % n]": [20, 20, 20],
    "y[v] = x[v % (2 * v - v - v)]": [5, 5, 5],
    "y[v] = x[v] // (x[v] - x[v])": [0, 0, 0],
    "y[v] = x[v] + n // (n % (v // (v - v) + 1))": [5, 6, 20],
    "y[v] = T.Cast('int64', T.Cast('uint8', T.if_then_else(0 <= n and n < n, x[n], T.int64(-3))))": [253, 253, 253],
    "y[v] = T.Cast('int64', T.Cast('int16', T.Select(v < v, x[v], T.int64(2176662609))))": [15441, 15441, 15441],
    "y[v] = T.Cast('int64', T.uint8(255) // T.Cast('uint8', T.if_then_else(n < n, x[v], T.int64(-6))))": [1, 1, 1],
    "y[v] = T.Cast('int64', T.Cast('uint16', x[v]) % T.Cast('uint16', n // -3))": [5, 6, 20],
    "y[v] = T.int64(3)\ny[v] = x[v] + T.shift_left(y[v + x[0] - 5], (x[v] - y[v] - 1) % 32)": [11, 18, 196628],
    "y[v] = T.truncmod(x[v], T.min(v, 0) * (n - n)) + T.truncdiv(x[v], v * 3 - 3 * v)": [0, 0, 0],
}  # fmt: skip


@pytest.mark.parametrize("body", SUBTRACTED)
def test_numbers_that_become_literals(body: str) -> None:
    """TVM's simplifier would subtract a literal of an unsigned type from a literal 0. And it divides by what it has
    simplified to 0, by which a division gives 0."""
    lines = "\n".join(f"            {line}" for line in body.split("\n"))
    mod = relaxpy.parse(f"""
@I.ir_module
class M:
    @T.prim_func
    def f(x: T.Buffer(("n",), "int64"), y: T.Buffer(("n",), "int64")):
        n = T.int64()
        for v in T.parallel(n):
            y[v] = T.int64(0)
{lines}

    @R.function
    def main(x: R.Tensor(("n",), "int64")):
        n = T.int64()
        return R.call_tir(M.f, (x,), out_ty=R.Tensor((n,), "int64"))
""")
    x = np.array([5, 6, 20])
    got = relaxpy.VirtualMachine(relaxpy.build(mod, "llvm -opt-level=0"))["main"](x).numpy()
    assert got.tolist() == SUBTRACTED[body]
