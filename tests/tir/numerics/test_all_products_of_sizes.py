"""Products of sizes of different tensors may exceed 64 bits, and nothing is proved of them: empty tensors have any
size."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RuntimeCheckError
from relaxpy.script.parser import parse
from relaxpy.testing.interpret import interpret
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.ranges import Ranges
from relaxpy.tir.tvm import tirx
from relaxpy.tir.walk import walk

TEXT = """
@I.ir_module
class M:
    @T.prim_func
    def f(x: T.Buffer(("k",), "float32"), a: T.Buffer(("m", 0), "int8"), b: T.Buffer(("q", 0), "int8"),
          y: T.Buffer((3,), "float32")):
        k = T.int64()
        m = T.int64()
        q = T.int64()
        for i in range(3):
            with T.sblock("b"):
                v = T.axis.spatial(3, i)
                y[v] = x[{index}]
    @R.function
    def main(x: R.Tensor(("k",), "float32"), a: R.Tensor(("m", 0), "int8"), b: R.Tensor(("q", 0), "int8")):
        return R.call_tir(M.f, (x, a, b), out_ty=R.Tensor((3,), "float32"))
"""


@pytest.mark.parametrize("index", ["T.min(m * q, k - 1)", "T.min(m * q + v, k - 1)"])
def test_an_index_is_checked(index: str) -> None:
    """The product wraps to the smallest integer: the index was taken for a natural number, and the process ended."""
    run = relaxpy.VirtualMachine(relaxpy.build(parse(TEXT.format(index=index)), cache=False))[
        "main"
    ]
    x = np.arange(5, dtype=np.float32)
    few, many = np.zeros((0, 0), np.int8), np.zeros((1 << 40, 0), np.int8)
    other = np.zeros((1 << 23, 0), np.int8)
    np.testing.assert_array_equal(
        run(x, many, few).numpy(), [0, 0, 0] if "v" not in index else [0, 1, 2]
    )
    with pytest.raises(RuntimeCheckError) as caught:
        run(x, many, other)
    assert caught.value.code == "tir-bounds"


@pytest.mark.parametrize(
    ("buffers", "wraps"),
    [
        ('x: T.Buffer(("n", "m"), "int8")', False),
        ('x: T.Buffer(("n",), "int8"), z: T.Buffer(("m",), "int8")', True),
        ('x: T.Buffer(("n",), "int8"), z: T.Buffer(("m", "n"), "int8")', False),
        ('x: T.Buffer(("n",), "int8"), z: T.Buffer(("m", "n", 0), "int8")', True),
    ],
)
def test_sizes_of_one_tensor_have_a_product(buffers: str, wraps: bool) -> None:
    found = parse(f"""@T.prim_func
def main({buffers}, w: T.Buffer(("m",), "int64")):
    n = T.int64()
    m = T.int64()
    for i in range(m):
        w[i] = i + n * m
""")["main"]
    assert isinstance(found, PrimFunc)
    products: list[object] = []
    walk(found.func.body, (tirx.Mul, products.append))
    ranges = Ranges(found.func)
    assert [ranges.wraps(product) for product in products] == [wraps]


CUBE = """
@I.ir_module
class M:
    @T.prim_func
    def f(x: T.Buffer(("n",), "int8"), z: T.Buffer(("m", "q", "r"), "int8"), y: T.Buffer(("n",), "int8")):
        n, m, q, r = T.int64(), T.int64(), T.int64(), T.int64()
        for {loops}:
            y[v] = x[{index}]
    @R.function
    def main(x: R.Tensor(("n",), "int8"), z: R.Tensor(("m", "q", "r"), "int8")):
        n = T.int64()
        return R.call_tir(M.f, (x, z), out_ty=R.Tensor((n,), "int8"))
"""


@pytest.mark.parametrize(
    ("index", "rows", "is_inside"),
    [
        ("T.min(n * n * n, n - 1)", 2_200_000, False),  # wraps to a negative number
        ("T.min(n * n * v, n - 1)", 2_200_000, False),
        ("(n * n * v + v) // (n * n + 1)", 1_000, True),
        ("T.max(T.min(v * m * q, n - 1), 0)", 40, True),  # of sizes of a tensor without elements
        ("(v * m * q) // (m * q)", 15, True),
        ("(v * m * q) // (m * q)", 40, False),
        ("(n * m * q - v * m * q) // (m * q) - 1", 40, False),
    ],
)
def test_loops_multiply_sizes(index: str, rows: int, is_inside: bool) -> None:
    """A loop of as many steps as one tensor has rows, times sizes of another: the index was proved, and read outside of
    the tensor, which ended the process."""
    mod = relaxpy.parse(CUBE.format(index=index, loops="v in range(n)"))
    run = relaxpy.VirtualMachine(relaxpy.build(mod, cache=False))["main"]
    x = np.arange(rows).astype(np.int8)
    z = np.zeros((1 << 20, 1 << 38, 0), np.int8)
    if not is_inside:
        with pytest.raises(RuntimeCheckError) as caught:
            run(x, z)
        assert caught.value.code == "tir-bounds"
        return
    names = {
        "n": np.int64(rows),
        "v": np.arange(rows),
        "m": np.int64(1 << 20),
        "q": np.int64(1 << 38),
    }
    with np.errstate(over="ignore"):
        place = eval(index.replace("T.min", "least").replace("T.max", "most"), {
            **names, "least": np.minimum, "most": np.maximum,
        })  # fmt: skip
    np.testing.assert_array_equal(run(x, z).numpy(), x[place])
    np.testing.assert_array_equal(interpret(mod, "main", x, z), x[place])
