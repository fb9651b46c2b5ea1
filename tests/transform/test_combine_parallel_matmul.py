"""CombineParallelMatmul: which products become one, and that the numbers stay."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.ir.expr import Call, Function
from relaxpy.ir.module import IRModule
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.testing.pass_check import check_pass
from relaxpy.transform.base import PassContext, Sequential
from relaxpy.transform.bind_params import BindParams
from relaxpy.transform.combine_parallel_matmul import CombineParallelMatmul
from relaxpy.transform.convert_to_dataflow import ConvertToDataflow
from relaxpy.transform.normalize import Normalize

HEADER = "from relaxpy.script import relax as R, tir as T\n"
RNG = np.random.default_rng(0)


def _array(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


WEIGHTS = {
    "a": _array(4, 3),
    "b": _array(4, 5),
    "c": _array(4, 1),
    "p": _array(3),
    "q": _array(5),
    "r": _array(1),
}
PARAMS = ", ".join(f'{name}: R.Tensor({w.shape}, "float32")' for name, w in WEIGHTS.items())


def module(body: str, x: str = 'R.Tensor(("n", 4), "float32")', result: str = "gv") -> IRModule:
    """A function whose dataflow block is `body`, with the weights bound."""
    text = HEADER + f"@R.function\ndef main(x: {x}, {PARAMS}):\n    with R.dataflow():\n"
    text += "".join(f"        {line}\n" for line in body.splitlines())
    text += f"        R.output({result})\n    return ({result},)\n"
    mod = Normalize()(relaxpy.parse(text))
    return BindParams()(mod, PassContext(params=WEIGHTS))


def names(mod: IRModule) -> list[str]:
    """The operators that main calls."""
    main = mod["main"]
    assert isinstance(main, Function)
    return [b.value.op.name for b in main.body.bindings if isinstance(b.value, Call)]  # type: ignore[union-attr]


def same_numbers(mod: IRModule, x: np.ndarray) -> None:
    """Before and after the pass."""
    want, got = interpret(mod, "main", x), interpret(CombineParallelMatmul()(mod), "main", x)
    for a, b in zip(want, got, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_example() -> None:
    check_example(CombineParallelMatmul())


@pytest.mark.parametrize("n", [0, 1, 3])
def test_products_of_one_input(n: int) -> None:
    mod = module("u = R.matmul(x, a)\nv = R.matmul(x, b)\nw = R.matmul(x, c)", result="u, v, w")
    assert names(CombineParallelMatmul()(mod)) == ["matmul"] + ["strided_slice"] * 3
    same_numbers(mod, _array(n, 4))


def test_sums_with_vectors() -> None:
    mod = module(
        "u = R.matmul(x, a)\ns = R.add(u, p)\nv = R.matmul(x, b)\ne = R.exp(s)\nt = R.add(q, v)",
        result="e, t",
    )
    assert names(CombineParallelMatmul()(mod)) == [
        "matmul",
        "add",
        "strided_slice",
        "strided_slice",
        "exp",
    ]
    same_numbers(mod, _array(3, 4))


def test_sums_stay_where_one_product_is_used_otherwise() -> None:
    for other in ("t = R.exp(v)", "t = R.add(v, v)", "t = R.add(v, r)"):
        mod = module(
            f"u = R.matmul(x, a)\ns = R.add(u, p)\nv = R.matmul(x, b)\n{other}", result="s, t"
        )
        found = names(CombineParallelMatmul()(mod))
        assert found[:3] == ["matmul", "strided_slice", "strided_slice"]
        same_numbers(mod, _array(3, 4))
    outside = module(
        "u = R.matmul(x, a)\ns = R.add(u, p)\nv = R.matmul(x, b)\nt = R.add(v, q)", result="s, t, v"
    )
    assert names(CombineParallelMatmul()(outside))[0:3] == [
        "matmul",
        "strided_slice",
        "strided_slice",
    ]


def test_inputs_of_other_ranks() -> None:
    for x, value in (
        ('R.Tensor(("n", "m", 4), "float32")', _array(2, 3, 4)),
        ('R.Tensor((4,), "float32")', _array(4)),
    ):
        mod = module(
            "u = R.matmul(x, a)\nv = R.matmul(x, b)\ns = R.add(u, p)\nt = R.add(v, q)", x, "s, t"
        )
        assert names(CombineParallelMatmul()(mod)).count("matmul") == 1
        same_numbers(mod, value)


@pytest.mark.parametrize(
    "body",
    [
        "u = R.matmul(x, a)\ny = R.exp(x)\nv = R.matmul(y, b)",
        'u = R.matmul(x, a)\nv = R.matmul(x, b, out_dtype="float64")',
        "u = R.matmul(x, a)\nw = R.exp(b)\nv = R.matmul(x, w)",
    ],
)
def test_other_products_stay(body: str) -> None:
    mod = module(body, result="u, v")
    assert CombineParallelMatmul()(mod) is mod


def test_fewer_than_wanted() -> None:
    mod = module("u = R.matmul(x, a)\nv = R.matmul(x, b)", result="u, v")
    assert CombineParallelMatmul(min_products=3)(mod) is mod


def test_branches_and_an_unknown_inner_dimension() -> None:
    """What is checked when the program runs is checked."""
    text = (
        HEADER
        + f"@R.function\ndef main(x: R.Tensor(('n', 'k'), 'float32'), flag: R.Tensor((), 'bool'), {PARAMS}):\n"
    )
    text += (
        "    if flag:\n        u = R.matmul(x, a)\n        v = R.matmul(x, b)\n        r = (u, v)\n"
    )
    text += "    else:\n        u = R.matmul(x, a)\n        v = R.matmul(x, b)\n        r = (u, v)\n    return r\n"
    bound = BindParams()(Normalize()(relaxpy.parse(text)), PassContext(params=WEIGHTS))
    mod = ConvertToDataflow()(bound)
    after = CombineParallelMatmul()(mod)
    assert after.script().count("R.matmul") == 2
    x = _array(2, 4)
    for flag in (True, False):
        want, got = (
            interpret(mod, "main", x, np.array(flag)),
            interpret(after, "main", x, np.array(flag)),
        )
        for a, b in zip(want, got, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    with pytest.raises(relaxpy.errors.RuntimeCheckError):
        interpret(after, "main", _array(2, 5), np.array(True))


def test_random_programs() -> None:
    before = Sequential((Normalize(), ConvertToDataflow()))
    check_pass(CombineParallelMatmul(), range(12), before)
