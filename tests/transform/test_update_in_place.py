"""UpdateInPlace: which results are written over an input, and that the numbers stay what they are."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.ir import IRModule
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.transform import LegalizeOps, LowerCallTIR, Sequential, UpdateInPlace
from tests.sweeps import sweep


def lowered(text: str) -> IRModule:
    return Sequential((LegalizeOps(), LowerCallTIR(), UpdateInPlace()))(relaxpy.parse(text))


def program(body: str, result: str = "y") -> str:
    lines = "\n".join(f"    {line}" for line in body.split("; "))
    return f"""
@R.function
def main(x: R.Tensor(("n", 4), "float32"), w: R.Tensor((4,), "float32"), c: R.Tensor((), "bool")) -> R.Object:
    n = T.int64()
{lines}
    return {result}
"""


def test_example() -> None:
    check_example(UpdateInPlace())


OVERWRITTEN = {
    "chain": ("a = R.exp(x); b = R.negative(a); y = R.exp(b)", 1),
    "a broadcast partner": ("a = R.exp(x); b = R.add(a, w); y = R.exp(b)", 1),
    "twice the same": ("a = R.exp(x); b = R.multiply(a, a); y = R.sqrt(b)", 1),
    "another type of the same width": (
        'a = R.exp(x); b = R.astype(a, "int32"); y = R.negative(b)',
        1,
    ),
    "the last of several uses": ("a = R.exp(x); b = R.sqrt(a); d = R.add(a, b); y = R.exp(d)", 1),
}
KEPT = {
    "a parameter": "a = R.exp(x); y = R.exp(a)",
    "a later use": "a = R.exp(x); b = R.negative(a); y = R.add(a, b)",
    "another place": "a = R.exp(x); b = R.flip(a, axis=0); y = R.exp(b)",
    "a permutation": "a = R.exp(x); b = R.permute_dims(a); y = R.exp(b)",
    "a reduction": "a = R.exp(x); b = R.cumsum(a, axis=0); y = R.exp(b)",
    "another width": 'a = R.exp(x); b = R.astype(a, "float64"); y = R.exp(b)',
    "what is broadcast": "a = R.exp(w); b = R.add(x, a); y = R.exp(b)",
    "what is kept in a tuple": "a = R.exp(x); b = R.negative(a); t = (a,); y = t",
}


def test_what_is_overwritten_is_allocated_later() -> None:
    """An output may be allocated before the workspace that becomes its memory: the view comes behind it."""
    text = """
@I.ir_module
class M:
    @T.prim_func(private=True)
    def exp(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("exp"):
                vi = T.axis.spatial(8, i)
                y[vi] = T.exp(x[vi])

    @R.function
    def main(x: R.Tensor((8,), dtype="float32")) -> R.Tensor((8,), dtype="float32"):
        cls = M
        b = R.memory.alloc_tensor(R.shape([8]), dtype="float32")
        a = R.memory.alloc_tensor(R.shape([8]), dtype="float32")
        _a = R.vm.call_dps(cls.exp, x, a)
        _b = R.vm.call_dps(cls.exp, a, b)
        c = R.memory.alloc_tensor(R.shape([8]), dtype="float32")
        _c = R.vm.call_dps(cls.exp, b, c)
        return c
"""
    mod = UpdateInPlace()(relaxpy.parse(text))
    names = [b.var.name for b in mod["main"].body.blocks[0].bindings]  # type: ignore[union-attr]
    assert names.index("b") == names.index("a") + 1
    assert 'b: R.Tensor((8,), dtype="float32") = R.memory.view(a' in mod.script()


@pytest.mark.parametrize("body", OVERWRITTEN, ids=str)
def test_overwritten(body: str) -> None:
    text, views = OVERWRITTEN[body]
    mod = lowered(program(text))
    assert mod.script().count("R.memory.view(") == views
    same_numbers(program(text), mod)


@sweep(2)
@pytest.mark.parametrize("body", KEPT, ids=str)
def test_kept(body: str) -> None:
    text = program(KEPT[body])
    mod = lowered(text)
    assert "R.memory.view(" not in mod.script()
    same_numbers(text, mod)


def test_in_a_branch() -> None:
    """The arm that uses the tensor last may write over it; the other arm's tensor is another."""
    text = program(
        """a = R.exp(x)
    if c:
        b = R.negative(a)
        y = R.exp(b)
    else:
        d = R.sqrt(x)
        e = R.negative(d)
        y = R.exp(e)"""
    )
    mod = lowered(text)
    assert mod.script().count("R.memory.view(") == 2
    same_numbers(text, mod)


def same_numbers(text: str, mod: IRModule) -> None:
    """The interpreter and the virtual machine, at awkward sizes, with the pass and without."""
    vm = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(text)))
    for n in (0, 1, 2, 7, 33, 1025):
        x = np.linspace(-2, 2, n * 4, dtype=np.float32).reshape(n, 4)
        args = x, np.array([1, 2, 3, 4], np.float32), np.array(n % 2 == 1)
        expected = interpret(relaxpy.parse(text), "main", *args)
        for got in (interpret(mod, "main", *args), vm["main"](*args)):
            pairs = zip(expected, got, strict=True) if isinstance(got, tuple) else [(expected, got)]
            for want, value in pairs:
                np.testing.assert_allclose(np.asarray(value), want, rtol=1e-5, atol=1e-6)
