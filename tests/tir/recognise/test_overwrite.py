"""Which programs may write over an input, and that the kernels made for it do."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.recognise.overwrite import NO_ALIAS, overwritable, with_shared_memory
from relaxpy.transform import LegalizeOps


def program(
    expr: str,
    params: str = 'x: R.Tensor(("n", "m"), "float32"), y: R.Tensor(("n", "m"), "float32")',
) -> PrimFunc:
    mod = LegalizeOps()(
        relaxpy.parse(f"@R.function\ndef main({params}) -> R.Object:\n    return {expr}\n")
    )
    (found,) = mod.prim_funcs.values()
    assert isinstance(found, PrimFunc)
    return found


@pytest.mark.parametrize(
    ("expr", "pairs"),
    [
        ("R.exp(x)", {(0, 1)}),
        ("R.add(x, y)", {(0, 2), (1, 2)}),
        ("R.nn.gelu(x)", {(0, 1)}),
        ("R.where(R.const(True), x, y)", {(1, 3), (2, 3)}),
        ('R.astype(x, "int32")', {(0, 1)}),
        ('R.astype(x, "float16")', set()),
        ("R.permute_dims(x)", set()),
        ("R.flip(x, axis=0)", set()),
        ("R.cumsum(x, axis=0)", set()),
        ("R.sum(x)", set()),
        ("R.nn.softmax(x)", set()),
    ],
    ids=str,
)
def test_pairs(expr: str, pairs: set[tuple[int, int]]) -> None:
    assert overwritable(program(expr)) == pairs


def test_a_broadcast_input_is_not_overwritten() -> None:
    params = 'x: R.Tensor(("n", 4), "float32"), y: R.Tensor((4,), "float32")'
    assert overwritable(program("R.add(x, y)", params)) == {(0, 2)}


@pytest.mark.parametrize("expr", ["R.exp(?)", "R.nn.silu(?)", "R.multiply(?, R.add(?, ?))"])
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (3, 5), (17, 31), (64, 64), (3, 4099)])
def test_kernels_in_place(expr: str, shape: tuple[int, int]) -> None:
    """The same bits as into memory of its own: each element is read before that place is written, and once."""
    exe = relaxpy.build(
        relaxpy.parse(
            f'@R.function\ndef main(x: R.Tensor(("n", "m"), "float32")) -> R.Tensor(("n", "m"), "float32"):\n'
            f"    a = R.cumsum(x, axis=1)\n    b = {expr.replace('?', 'a')}\n    c = R.cumsum(b, axis=1)\n    return c\n"
        )
    )
    assert "view" in exe.as_text()
    x = np.random.default_rng(0).standard_normal(shape, np.float32) / 64
    apart = relaxpy.build(
        relaxpy.parse(
            f'@R.function\ndef main(a: R.Tensor(("n", "m"), "float32")) -> R.Tensor(("n", "m"), "float32"):\n'
            f"    return {expr.replace('?', 'a')}\n"
        )
    )
    b = relaxpy.VirtualMachine(apart)["main"](np.cumsum(x, 1, dtype=np.float32)).numpy()
    got = relaxpy.VirtualMachine(exe)["main"](x).numpy()
    np.testing.assert_allclose(got, np.cumsum(b, 1, dtype=np.float32), rtol=1e-4, atol=1e-4)


def test_the_kernel_is_told() -> None:
    """LLVM may take buffers for distinct memory only where they are."""
    func = program("R.exp(x)", 'x: R.Tensor(("n",), "float32")')
    marked = PrimFunc(func.func.with_attr(NO_ALIAS, True))
    assert NO_ALIAS in marked.attrs
    assert NO_ALIAS not in with_shared_memory(marked).attrs
    unmarked = with_shared_memory(marked)
    assert with_shared_memory(unmarked) is unmarked
