"""MixedPrecision: products in a narrower float, and the rest as the operators say."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import relaxpy
from relaxpy.errors import UsageError
from relaxpy.ir.annotation import TensorType, TupleType
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Call, Expr, Var, VarBinding
from relaxpy.ir.module import IRModule
from relaxpy.ir.structural import assert_structural_equal
from relaxpy.narrow import is_tuple
from relaxpy.op import OPS
from relaxpy.op.base import Op, Sample
from relaxpy.op.datatype import Astype
from relaxpy.op.deduce import deduce
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.testing.op_check import module_of
from relaxpy.testing.op_samples import arrays_of, samples
from relaxpy.transform import MixedPrecision
from relaxpy.transform.rebuild import Rebuilder
from tests.sweeps import quick_target, sweep

TAKING_PART = sorted(name for name, op in OPS.items() if issubclass(op, Op) and op.mixed != "never")


def after(text: str, **options: Any) -> IRModule:
    return MixedPrecision(**options)(relaxpy.parse(text))


def dtypes(mod: IRModule) -> dict[str, str]:
    """The dtypes of all variables that are bound to tensors."""
    return {
        b.var.name: str(b.var.annotation.dtype)
        for b in mod.graph_functions["main"].body.bindings
        if isinstance(b.var.annotation, TensorType)
    }


def test_example() -> None:
    check_example(MixedPrecision())


class _Rounded(Rebuilder):
    """Rounds the arguments of the calls of an operator beforehand, as the user would."""

    def value(self, value: Expr) -> Expr:
        if not isinstance(value, Call):
            return value

        def rounded(x: Any) -> Any:
            if isinstance(deduce(x), TupleType) and hasattr(x, "fields"):
                return dataclasses.replace(x, fields=tuple(map(rounded, x.fields)))
            if not isinstance(x, Var) or getattr(deduce(x), "dtype", None) != "float32":
                return x
            if not isinstance(deduce(x), TensorType):
                return x
            return self.emit(Astype(DType("float32"))(self.emit(Astype(DType("bfloat16"))(x))))

        return dataclasses.replace(value, args=tuple(map(rounded, value.args)))


def _arrays(result: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in (result if is_tuple(result) else (result,))]


def _cases(name: str) -> list[Sample]:
    return [
        s
        for s in samples(name)
        if not s.code and any(a.dtype == np.float32 for a in arrays_of(s))
        and all(a.dtype.name in ("float32", "bool", "int32", "int64") for a in arrays_of(s))
    ]  # fmt: skip


@sweep(2)
@pytest.mark.parametrize("name", TAKING_PART)
def test_operators_that_take_part_compute_in_the_narrow_dtype(name: str) -> None:
    """What an operator says in its class is true: it takes narrow floats, and its results are those of float32 but for
    the rounding."""
    tried = 0
    for s in _cases(name):
        before = _Rounded(module_of(s, symbolic=bool(s.dims))).run()
        mod = MixedPrecision()(before)
        inputs = [a.astype(ml_dtypes.bfloat16).astype(np.float32) if a.dtype == np.float32 else a
                  for a in arrays_of(s)]  # fmt: skip
        parameters = mod.graph_functions["main"].params[len(inputs) :]
        if parameters:  # sizes that no argument has
            continue
        calls = [
            b.value
            for b in mod.graph_functions["main"].body.bindings
            if isinstance(b, VarBinding)
            and isinstance(b.value, Call)
            and type(b.value.op) is type(s.op)
        ]
        tensors = [deduce(x) for call in calls for x in call.args if isinstance(x, Var)]
        assert not any(getattr(t, "dtype", None) == "float32" for t in tensors), str(s.op)
        want, got = (_arrays(interpret(m, "main", *inputs)) for m in (before, mod))
        tried += 1
        for g, w in zip(got, want, strict=True):
            assert g.dtype == w.dtype
            np.testing.assert_allclose(g, w, rtol=2e-2, atol=5e-2, err_msg=str(s.op))
    assert tried or not _cases(name)


def test_what_follows_stays_narrow_between_products() -> None:
    found = dtypes(
        after("""
@R.function
def main(x: R.Tensor(("n", 6), "float32"), w: R.Tensor((6, 6), "float32"), b: R.Tensor((6,), "float32")):
    R.func_attr({"num_input": 1})
    n = T.int64()
    with R.dataflow():
        y = R.add(R.matmul(x, w), b)
        z = R.reshape(R.nn.relu(y), (n * 6,))
        s = R.split(R.multiply(z, R.const(0.5, "float32")), 2)
        c = R.matmul(R.reshape(R.concat((s[1], s[0])), (n, 6)), w)
        R.output(c)
    return c
""")
    )
    wide = [name for name, dtype in found.items() if dtype == "float32"]
    assert wide == ["c"]  # the result


def test_what_is_summed_or_normalised_is_wide() -> None:
    found = dtypes(
        after("""
@R.function
def main(x: R.Tensor((3, 6), "float32"), w: R.Tensor((6, 6), "float32")):
    with R.dataflow():
        y = R.matmul(x, w)
        s = R.nn.softmax(y)
        t = R.sum(y)
        e = R.exp(y)
        r = R.add(x, y)
        m = R.max(y)
        R.output(s, t, e, r, m)
    return (s, t, e, r, m)
""")
    )
    assert {found[name] for name in "stera" if name in found} == {"float32"}
    assert found["m_bfloat16"] == "bfloat16"
    assert "r_bfloat16" not in found  # x was never narrow


def test_a_value_is_rounded_once() -> None:
    mod = after("""
@R.function
def main(x: R.Tensor((3, 6), "float32"), w: R.Tensor((6, 6), "float32")):
    with R.dataflow():
        y = R.add(R.matmul(x, w), R.matmul(R.matmul(x, w), w))
        R.output(y)
    return y
""")
    assert mod.script().count('"bfloat16") = R.astype(') == 2


def test_branches_do_not_see_each_others_values() -> None:
    text = """
@R.function
def main(x: R.Tensor((3, 3), "float32"), w: R.Tensor((3, 3), "float32"), c: R.Tensor((), "bool")):
    if c:
        a = R.matmul(x, w)
        y = R.nn.relu(a)
    else:
        b = R.matmul(x, x)
        y = R.add(b, x)
    z = R.matmul(y, w)
    return z
"""
    before = relaxpy.parse(text)
    mod = MixedPrecision()(before)
    assert_structural_equal(relaxpy.parse(mod.script()), mod)
    x, w = np.random.default_rng(0).standard_normal((2, 3, 3)).astype(np.float32)
    for c in (True, False):
        want, got = (interpret(m, "main", x, w, np.array(c)) for m in (before, mod))
        np.testing.assert_allclose(got, want, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("number", [-1e9, 65536.0, 3.4028235e38])
def test_a_constant_that_would_overflow_keeps_its_operator_wide(number: float) -> None:
    text = f"""
@R.function
def main(x: R.Tensor((3, 3), "float32")):
    with R.dataflow():
        y = R.matmul(x, x)
        z = R.where(R.greater(y, R.const(0.0, "float32")), y, R.const({number}, "float32"))
        R.output(z)
    return z
"""
    found = after(text, dtype="float16")
    z = interpret(found, "main", -np.ones((3, 3), np.float32) * np.eye(3, dtype=np.float32)[::-1])
    assert np.isfinite(z).all()
    assert np.float32(number) in z
    assert "z_float16" not in dtypes(found)


def test_infinities_of_masks_may_be_narrow() -> None:
    found = dtypes(
        after("""
@R.function
def main(x: R.Tensor((3, 3), "float32")):
    with R.dataflow():
        y = R.matmul(x, x)
        z = R.where(R.greater(y, R.const(0.0, "float32")), y, R.const(float("-inf"), "float32"))
        R.output(z)
    return z
""")
    )
    assert found["z_bfloat16"] == "bfloat16"


def test_other_dtypes_are_not_touched() -> None:
    text = """
@R.function
def main(x: R.Tensor((3, 3), "float64"), h: R.Tensor((3, 3), "float16"), i: R.Tensor((3, 3), "int8")):
    with R.dataflow():
        a = R.matmul(x, x)
        b = R.matmul(h, h, out_dtype="float32")
        c = R.matmul(i, i, out_dtype="int32")
        R.output(a, b, c)
    return (a, b, c)
"""
    mod = relaxpy.parse(text)
    assert MixedPrecision()(mod) is mod


def test_products_that_are_wanted_in_float32_add_and_stay_in_it() -> None:
    found = dtypes(
        after("""
@R.function
def main(x: R.Tensor((3, 3), "float32")):
    with R.dataflow():
        y = R.matmul(x, x, out_dtype="float32")
        R.output(y)
    return y
""")
    )
    assert found == {"x_bfloat16": "bfloat16", "y": "float32"}


def test_the_table_overrides_the_operators() -> None:
    text = """
@R.function
def main(x: R.Tensor((3, 3), "float32")):
    with R.dataflow():
        y = R.nn.softmax(R.matmul(x, x))
        R.output(y)
    return y
"""
    mod = relaxpy.parse(text)
    assert MixedPrecision(table={"matmul": "never"})(mod) is mod
    assert dtypes(after(text, table={"nn.softmax": "follow"}))["y_bfloat16"] == "bfloat16"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"dtype": "float64"}, "bfloat16 or float16, got 'float64'"),
        ({"table": {"nn.sofmax": "never"}}, "nn.softmax"),
        ({"table": {"matmul": "sometimes"}}, "always, follow, never, got 'sometimes'"),
    ],
)
def test_wrong_options(options: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match) as caught:
        MixedPrecision(**options)
    assert caught.value.code == "mixed-precision"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_transformer_layer_built_for_all_sizes(dtype: str) -> None:
    """Of odd widths, at 1, at a prime, and empty: equal to the interpreter's but for the rounding."""
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("b", "n", 21), "float32"), w: R.Tensor((63, 21), "float32"), c: R.Tensor((63,), "float32"),
         v: R.Tensor((21, 21), "float32"), g: R.Tensor((21,), "float32")):
    R.func_attr({"num_input": 1})
    b, n = T.int64(), T.int64()
    with R.dataflow():
        h = R.nn.layer_norm(x, g, g, axes=[-1])
        q = R.split(R.linear(h, w, c), 3, axis=2)
        a = R.nn.attention(R.reshape(q[0], (b, n, 3, 7)), R.reshape(q[1], (b, n, 3, 7)), R.reshape(q[2], (b, n, 3, 7)))
        y = R.add(x, R.linear(R.nn.gelu(R.reshape(a, (b, n, 21))), v))
        R.output(y)
    return y
""")
    random = np.random.default_rng(3)
    weights = {"w": (63, 21), "c": (63,), "v": (21, 21), "g": (21,)}
    arrays = {k: random.standard_normal(s).astype(np.float32) / 4 for k, s in weights.items()}
    exe = relaxpy.build(mod, quick_target(), params=arrays, precision=dtype)
    vm = relaxpy.VirtualMachine(exe)
    for sizes in ((1, 1), (2, 13), (0, 5), (3, 0)):
        x = random.standard_normal((*sizes, 21)).astype(np.float32)
        want = np.asarray(interpret(mod, "main", x, *arrays.values()))
        got = vm["main"](x).numpy()
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want, atol=4e-2, rtol=2e-2)
