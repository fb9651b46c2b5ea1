"""LiftPackers: what is computed of packed weights only moves to functions that make one tensor each."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.ir.module import IRModule
from relaxpy.op.weight_scheme import WeightScheme
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.transform import LiftPackers, Normalize, QuantizeWeights

HEAD = "from relaxpy.script import ir as I, relax as R, tir as T\n\n"


def parsed(params: str, body: str, weights: str, result: str = "y") -> IRModule:
    text = f"{HEAD}@I.ir_module\nclass Module:\n    @R.function\n    def main({params}):\n"
    text += f'        R.func_attr({{"packed_params": [{weights}]}})\n'
    text += "".join(f"        {line}\n" for line in body.strip().splitlines())
    return Normalize()(relaxpy.parse(f"{text}        return {result}\n"))


def lifted(mod: IRModule) -> IRModule:
    after = LiftPackers()(mod)
    check_well_formed(after)
    assert relaxpy.parse(after.script()).script() == after.script()
    return after


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype="float32")


def test_example() -> None:
    check_example(LiftPackers())


def packed(mod: IRModule, name: str, **weights: np.ndarray) -> list[np.ndarray]:
    """The arguments of a function that its packers make, or the weights themselves."""
    function = mod.graph_function(name)
    found = []
    for param in function.params:
        if param.name in function.attrs["packers"]:
            packer, sources, *field = function.attrs["packers"][param.name]
            result = interpret(mod, packer, *(weights[source] for source in sources))
            found.append(result[field[0]] if field else result)
        elif param.name in function.attrs["packed_params"]:
            found.append(weights[param.name])
    return found


def test_a_joined_weight_is_made_of_several() -> None:
    mod = parsed(
        'x: R.Tensor(("n", 3), "float32"), a: R.Tensor((4, 3), "float32"), b: R.Tensor((2, 3), "float32")',
        "c = R.concat((a, b), axis=0)\nt = R.permute_dims(c)\ny = R.matmul(x, t)",
        '"a", "b"',
    )
    after = lifted(mod)
    main = after.graph_function("main")
    assert [param.name for param in main.params] == ["x", "a_b"]
    assert main.attrs["packers"] == {"a_b": ["main_pack_a_b", ["a", "b"]]}
    x, a, b = numbers(5, 3), numbers(4, 3), numbers(2, 3)
    expected = interpret(mod, "main", x, a, b)
    found = interpret(after, "main", x, *packed(after, "main", a=a, b=b))
    np.testing.assert_array_equal(found, expected)


def test_a_tied_weight_is_two_parameters() -> None:
    """The embedding reads it as it is, the head transposed."""
    mod = parsed(
        'ids: R.Tensor(("n",), "int64"), w: R.Tensor((7, 3), "float32")',
        "e = R.take(w, ids, axis=0)\nt = R.permute_dims(w)\ny = R.matmul(e, t)",
        '"w"',
    )
    after = lifted(mod)
    main = after.graph_function("main")
    assert [param.name for param in main.params] == ["ids", "w", "w1"]
    ids, w = np.array([1, 6, 0]), numbers(7, 3)
    found = interpret(after, "main", ids, *packed(after, "main", w=w))
    np.testing.assert_array_equal(found, interpret(mod, "main", ids, w))


def test_equal_packers_are_one_function() -> None:
    mod = parsed(
        'x: R.Tensor(("n", 3), "float32"), a: R.Tensor((3, 3), "float32"), b: R.Tensor((3, 3), "float32")',
        "s = R.permute_dims(a)\nt = R.permute_dims(b)\nu = R.matmul(x, s)\ny = R.matmul(u, t)",
        '"a", "b"',
    )
    after = lifted(mod)
    table = after.graph_function("main").attrs["packers"]
    assert table == {"a": ["main_pack_a", ["a"]], "b": ["main_pack_a", ["b"]]}
    assert list(after.graph_functions) == ["main", "main_pack_a"]


@pytest.mark.parametrize(
    ("body", "result"),
    [
        ("y = R.add(x, w)", "y"),  # of an input
        ("y = R.permute_dims(w)", "y"),  # returned
        ('t = R.astype(w, "float64")\ny = R.sum(t)', "y"),  # larger than the weight
    ],
)
def test_what_stays(body: str, result: str) -> None:
    mod = parsed(
        'x: R.Tensor((3, 3), "float32"), w: R.Tensor((3, 3), "float32")', body, '"w"', result
    )
    if "astype" in body:
        mod = parsed(
            'x: R.Tensor((), "float64"), w: R.Tensor((3, 3), "float32")',
            't = R.astype(w, "float64")\ny = R.add(t, x)',
            '"w"',
        )
    assert LiftPackers()(mod) is mod


def test_without_the_attribute_nothing_moves() -> None:
    mod = parsed(
        'x: R.Tensor((3, 3), "float32"), w: R.Tensor((3, 3), "float32")',
        "t = R.permute_dims(w)\ny = R.matmul(x, t)",
        "",
    )
    assert LiftPackers()(mod) is mod


def test_a_symbolic_weight() -> None:
    """The size that only the weight defines stays known."""
    mod = parsed(
        'x: R.Tensor(("n", 3), "float32"), w: R.Tensor(("k", 3), "float32")',
        "t = R.permute_dims(w)\ny = R.matmul(x, t)",
        '"w"',
    )
    after = lifted(mod)
    x, w = numbers(2, 3), numbers(5, 3)
    found = interpret(after, "main", x, *packed(after, "main", w=w))
    np.testing.assert_array_equal(found, interpret(mod, "main", x, w))


def test_parts_of_a_split_weight() -> None:
    mod = parsed(
        'x: R.Tensor(("n", 3), "float32"), w: R.Tensor((3, 8), "float32")',
        "s = R.split(w, 2, axis=1)\na = s[0]\nb = s[1]\nu = R.matmul(x, a)\nv = R.matmul(x, b)\n"
        "y = R.multiply(u, v)",
        '"w"',
    )
    after = lifted(mod)
    assert len(after.graph_function("main").params) == 3
    x, w = numbers(2, 3), numbers(3, 8)
    found = interpret(after, "main", x, *packed(after, "main", w=w))
    np.testing.assert_array_equal(found, interpret(mod, "main", x, w))


def test_a_function_that_others_call_keeps_its_weights() -> None:
    mod = relaxpy.parse(f"""{HEAD}
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((3, 3), "float32"), w: R.Tensor((3, 3), "float32")) -> R.Tensor((3, 3), "float32"):
        R.func_attr({{"packed_params": ["w"]}})
        t = R.permute_dims(w)
        y = R.matmul(x, t)
        return y

    @R.function
    def other(x: R.Tensor((3, 3), "float32"), w: R.Tensor((3, 3), "float32")) -> R.Tensor((3, 3), "float32"):
        cls = Module
        y = cls.main(x, w)
        return y
""")
    assert LiftPackers()(mod) is mod


def test_results_of_one_program_come_from_one_packer() -> None:
    """Codes and scales: the weight is read once. A value that has nothing to do with it has a packer of its own."""
    step = QuantizeWeights(WeightScheme(8, 4), on_load=True)
    plain = parsed(
        'x: R.Tensor((6, 8), "float32"), w: R.Tensor((6, 8), "float32"), v: R.Tensor((6, 8), "float32"), '
        'u: R.Tensor((6, 6), "float32")',
        "a = R.linear(x, w)\nb = R.linear(x, v)\nt = R.permute_dims(u)\nc = R.multiply(a, b)\n"
        "y = R.add(c, R.nn.relu(t))",
        '"w", "v", "u"',
    )
    main = plain.graph_function("main")
    marked = dataclasses.replace(main, attrs={**main.attrs, "num_input": 1})
    mod = step(plain.with_functions({"main": marked}))
    after = lifted(mod)
    main = after.graph_function("main")
    assert [param.name for param in main.params[1:]] == [
        "w_codes",
        "w_scale",
        "v_codes",
        "v_scale",
        "u",
    ]
    assert main.attrs["packers"] == {
        "w_codes": ["main_pack_w", ["w"], 0], "w_scale": ["main_pack_w", ["w"], 1],
        "v_codes": ["main_pack_w", ["v"], 0], "v_scale": ["main_pack_w", ["v"], 1],
        "u": ["main_pack_u", ["u"]],
    }  # fmt: skip
    x, w, v, u = numbers(6, 8), numbers(6, 8), numbers(7, 8)[1:], numbers(6, 6)
    found = interpret(after, "main", x, *packed(after, "main", w=w, v=v, u=u))
    np.testing.assert_array_equal(found, interpret(mod, "main", x, w, v, u))
