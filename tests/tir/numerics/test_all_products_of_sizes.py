"""Products of sizes of different tensors may exceed 64 bits, and nothing is proved of them: empty tensors have any
size."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RuntimeCheckError
from relaxpy.script.parser import parse
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
