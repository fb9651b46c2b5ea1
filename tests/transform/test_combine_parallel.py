"""CombineParallel: which products become one, and that the numbers stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.build import default_pipeline
from relaxpy.build.pack_option import with_packed_params
from relaxpy.ir.expr import Call, Function
from relaxpy.ir.module import IRModule
from relaxpy.op.weight_scheme import WeightScheme
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.testing.pass_check import check_pass
from relaxpy.transform.base import PassContext, Sequential
from relaxpy.transform.bind_params import BindParams
from relaxpy.transform.combine_parallel import CombineParallel
from relaxpy.transform.convert_to_dataflow import ConvertToDataflow
from relaxpy.transform.normalize import Normalize
from relaxpy.transform.quantize_weights import QuantizeWeights
from tests.sweeps import part, quick_target, sweep

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
    want, got = interpret(mod, "main", x), interpret(CombineParallel()(mod), "main", x)
    for a, b in zip(want, got, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_example() -> None:
    check_example(CombineParallel())


@pytest.mark.parametrize("n", [0, 1, 3])
def test_products_of_one_input(n: int) -> None:
    mod = module("u = R.matmul(x, a)\nv = R.matmul(x, b)\nw = R.matmul(x, c)", result="u, v, w")
    assert names(CombineParallel()(mod)) == ["matmul"] + ["strided_slice"] * 3
    same_numbers(mod, _array(n, 4))


def test_sums_with_vectors() -> None:
    mod = module(
        "u = R.matmul(x, a)\ns = R.add(u, p)\nv = R.matmul(x, b)\ne = R.exp(s)\nt = R.add(q, v)",
        result="e, t",
    )
    assert names(CombineParallel()(mod)) == [
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
        found = names(CombineParallel()(mod))
        assert found[:3] == ["matmul", "strided_slice", "strided_slice"]
        same_numbers(mod, _array(3, 4))
    outside = module(
        "u = R.matmul(x, a)\ns = R.add(u, p)\nv = R.matmul(x, b)\nt = R.add(v, q)", result="s, t, v"
    )
    assert names(CombineParallel()(outside))[0:3] == [
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
        assert names(CombineParallel()(mod)).count("matmul") == 1
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
    assert CombineParallel()(mod) is mod


def test_fewer_than_wanted() -> None:
    mod = module("u = R.matmul(x, a)\nv = R.matmul(x, b)", result="u, v")
    assert CombineParallel(min_products=3)(mod) is mod


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
    after = CombineParallel()(mod)
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
    check_pass(CombineParallel(), range(12), before)


PRODUCTS = ["R.matmul({x}, {w})", "R.linear({x}, {w})"]
JOINED = [
    WeightScheme(4, 32),
    WeightScheme(8, 32, "minimum"),
    WeightScheme(3, 40, "zero_point"),
    WeightScheme(4, None),
]


def quantised(
    product: str, scheme: WeightScheme, sizes: dict[str, int], *, on_load: bool
) -> IRModule:
    """Products of x, and a product of something else, with quantised weights that the caller packs."""
    turned = "linear" in product

    def param(name: str, size: int) -> str:
        return f'{name}: R.Tensor({(size, 80) if turned else (80, size)}, "float32")'

    text = (
        HEADER
        + f"""
@R.function
def main(x: R.Tensor(("n", 80), "float32"), {", ".join(param(*each) for each in sizes.items())}):
    R.func_attr({{"num_input": 1}})
    with R.dataflow():
        z = R.nn.relu(x)
"""
    )
    for name in sizes:
        value = product.format(x="z" if name == "d" else "x", w=name)
        text += f"        y_{name} = {value}\n"
    outs = ", ".join(f"y_{name}" for name in sizes)
    text += f"        R.output({outs})\n    return ({outs})\n"
    step = QuantizeWeights(scheme, on_load=on_load)
    return with_packed_params(ConvertToDataflow()(step(Normalize()(relaxpy.parse(text)))), True)


@sweep
@pytest.mark.parametrize(
    ("scheme", "product", "on_load"),
    part([(s, p, o) for s in JOINED for p in PRODUCTS for o in (False, True)], 8),
    ids=str,
)
def test_quantised_weights_are_joined(scheme: WeightScheme, product: str, on_load: bool) -> None:
    """One program dequantises the codes of all; the columns keep their numbers. The product of another input stays."""
    mod = quantised(product, scheme, {"a": 24, "b": 8, "c": 40, "d": 8}, on_load=on_load)
    after = CombineParallel()(mod)
    check_well_formed(after)
    script = after.script()
    assert script.count(product.split("(")[0] + "(") == 2
    assert script.count("R.strided_slice(") == 3
    assert script.count("R.concat(") == len(scheme.types((24, 80), 1))
    shapes = [[d.value for d in p.annotation.dims] for p in after["main"].params[1:]]  # type: ignore[union-attr]
    random = np.random.default_rng(0)
    kinds = [str(p.annotation.dtype) for p in after["main"].params[1:]]  # type: ignore[union-attr]
    given = [
        random.integers(0, 255, shape).astype(kind)
        if "int" in kind
        else random.random(shape).astype(kind)
        for shape, kind in zip(shapes, kinds, strict=True)
    ]
    x = _array(3, 80)
    want = interpret(mod, "main", x, *given)
    for found, each in zip(interpret(after, "main", x, *given), want, strict=True):
        # numpy's products round as the layout of their factors and the processor have it.
        np.testing.assert_allclose(found, each, rtol=1e-5, atol=1e-4)
    if not on_load:
        return
    named = {p.name: a for p, a in zip(mod["main"].params[1:], given, strict=True)}  # type: ignore[union-attr]
    both: list[Any] = []
    for without in ((), ("combine-parallel",)):
        pipeline = default_pipeline(without=without)
        vm = relaxpy.VirtualMachine(
            relaxpy.build(mod, quick_target(), pack=True, pipeline=pipeline)
        )
        both.append(vm["main"](x, *vm.pack(named)["main"]))
    for found, each in zip(*both, strict=True):
        np.testing.assert_array_equal(found.numpy(), each.numpy())


def test_quantised_constants_are_joined() -> None:
    text = (
        HEADER
        + f"@R.function\ndef main(x: R.Tensor(('n', 4), 'float32'), {PARAMS}):\n    with R.dataflow():\n"
    )
    text += "        u = R.matmul(x, a)\n        v = R.matmul(x, b)\n        R.output(u, v)\n    return (u, v)\n"
    mod = BindParams()(Normalize()(relaxpy.parse(text)), PassContext(params=WEIGHTS))
    mod = QuantizeWeights(WeightScheme(8, 2))(mod)
    assert CombineParallel()(mod).script().count("R.matmul(") == 1
    same_numbers(mod, _array(3, 4))


@pytest.mark.parametrize(
    "change",
    [
        ("(w, s), out_ty", "(w, s), out_ty"),
        ("cls.scaled, (v, t)", "cls.doubled, (v, t)"),
        ("y = R.matmul(x, b)", "y = R.matmul(x, R.exp(b))"),
        ("R.output(y, z)", "R.output(y, z, b)"),
    ],
)
def test_other_computed_weights_stay(change: tuple[str, str]) -> None:
    """Programs that are not the same, weights that are read twice or changed."""
    program = """
    @T.prim_func
    def {name}(w: T.Buffer((4, {n}), "int8"), s: T.Buffer(({n},), "float32"), out: T.Buffer((4, {n}), "float32")):
        for i, j in T.grid(4, {n}):
            with T.sblock("out"):
                vi, vj = T.axis.remap("SS", [i, j])
                out[vi, vj] = T.Cast("float32", w[vi, vj]) * s[vj]{more}
"""
    text = "from relaxpy.script import ir as I, relax as R, tir as T\n@I.ir_module\nclass Module:"
    for name, more, n in (("scaled3", "", 3), ("scaled", "", 5), ("doubled", " * T.float32(2)", 5)):
        text += program.format(name=name, more=more, n=n)
    text += """
    @R.function
    def main(
        x: R.Tensor(("n", 4), "float32"), w: R.Tensor((4, 3), "int8"), s: R.Tensor((3,), "float32"),
        v: R.Tensor((4, 5), "int8"), t: R.Tensor((5,), "float32"),
    ):
        R.func_attr({"packed_params": ["w", "s", "v", "t"]})
        cls = Module
        with R.dataflow():
            a = R.call_tir(cls.scaled3, (w, s), out_ty=R.Tensor((4, 3), "float32"))
            b = R.call_tir(cls.scaled, (v, t), out_ty=R.Tensor((4, 5), "float32"))
            z = R.matmul(x, a)
            y = R.matmul(x, b)
            R.output(y, z)
        return (y, z)
"""
    before, after = change
    assert before in text
    mod = Normalize()(relaxpy.parse(text.replace(before, after).replace("(y, z)\n", "(y, z)\n")))
    joined = CombineParallel()(mod) is not mod
    assert joined is (before == after)


SCALED = """
s = R.sum(x, axis=[1], keepdims=True)
u = R.matmul(x, a)
u1 = R.astype(u, "float32")
u2 = R.multiply(u1, p)
u3 = R.multiply(s, u2)
u4 = R.add(u3, p)
v = R.matmul(x, b)
v1 = R.astype(v, "float32")
v2 = R.multiply(v1, q)
v3 = R.multiply({other}, v2)
v4 = R.add(v3, q)
"""


@pytest.mark.parametrize(
    ("other", "operators"),
    [
        ("s", ["sum", "matmul", "astype", "multiply", "multiply", "add", "strided_slice", "strided_slice"]),
        ("R.sum(x)", ["sum", "matmul", "astype", "multiply", "strided_slice", "strided_slice"]),
    ],
)  # fmt: skip
def test_what_follows_each_product_is_done_once(other: str, operators: list[str]) -> None:
    """A conversion, a vector each, one value for all columns of a row: as what follows a product of codes. A step that
    differs, and those after it, are done for each."""
    mod = module(SCALED.format(other=other).strip(), result="u4, v4")
    combined = CombineParallel()(mod)
    assert names(combined)[: len(operators)] == operators
    x = _array(6, 4)
    for got, want in zip(*(interpret(each, "main", x) for each in (combined, mod)), strict=True):
        for one, other_one in zip(got, want, strict=True):
            np.testing.assert_allclose(one, other_one, rtol=1e-5, atol=1e-6)


CONVOLUTIONS = {
    "f": _array(4, 3, 3, 3),
    "g": _array(5, 3, 3, 3),
    "h": _array(2, 3, 1, 1),
    "i": _array(1, 3, 1, 1),
    "u": _array(4, 1, 1),
    "v": _array(5, 1, 1),
    "m": _array(2, 4, 3),
    "o": _array(2, 4, 2),
}


def convolutions(body: str, x: str = '("n", 3, "h", 6), "float32"') -> IRModule:
    """A function of convolutions whose weights are bound."""
    given = ", ".join(f"{k}: R.Tensor({w.shape}, 'float32')" for k, w in CONVOLUTIONS.items())
    lines = "".join(f"        {line.strip()}\n" for line in body.splitlines())
    text = f"@R.function\ndef main(x: R.Tensor({x}), {given}):\n    with R.dataflow():\n{lines}"
    mod = Normalize()(relaxpy.parse(f"{HEADER}{text}        R.output(gv)\n    return gv\n"))
    return BindParams()(mod, PassContext(params=CONVOLUTIONS))


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("a = R.nn.conv2d(x, f)\nb = R.nn.conv2d(x, g)\ngv = (a, b)", "nn.conv2d"),
        (
            """a = R.nn.conv2d(x, f, padding=1, strides=2)
            c = R.add(a, u)
            e = R.nn.relu(c)
            b = R.nn.conv2d(x, g, padding=1, strides=2)
            d = R.add(b, v)
            k = R.nn.relu(d)
            gv = (e, k)""",
            "nn.conv2d add nn.relu",
        ),
        (
            """a = R.nn.conv2d(x, h)
            b = R.nn.conv2d(x, i)
            c = R.nn.conv2d(x, f)
            gv = (a, b, c)""",
            "nn.conv2d nn.conv2d",
        ),
    ],
)
def test_convolutions(body: str, left: str) -> None:
    """Convolutions of one input with the same window become one, with what follows each of them."""
    mod = convolutions(body)
    after = CombineParallel()(mod)
    check_well_formed(after)
    assert " ".join(n for n in names(after) if n != "strided_slice") == left
    for shape in ((2, 3, 5, 6), (1, 3, 3, 6)):
        data = _array(*shape)
        pairs = zip(interpret(after, "main", data), interpret(mod, "main", data), strict=True)
        for got, want in pairs:
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert CombineParallel(convolutions=False)(mod) is mod


@pytest.mark.parametrize(
    "body",
    [
        "a = R.nn.conv2d(x, f)\nb = R.nn.conv2d(x, f, strides=2)\ngv = (a, b)",
        "a = R.nn.conv2d(x, f)\nb = R.nn.conv2d(x, h)\ngv = (a, b)",
        "r = R.nn.relu(x)\na = R.nn.conv2d(x, f)\nb = R.nn.conv2d(r, f)\ngv = (a, b)",
    ],
)
def test_other_convolutions_stay(body: str) -> None:
    mod = convolutions(body)
    assert CombineParallel()(mod) is mod


def test_layouts_and_groups() -> None:
    """The channels are those of the layout; groups stay, since their channels would be mixed."""
    last = 'data_layout="NHWC", out_layout="NCHW"'
    body = f"a = R.nn.conv2d(x, f, {last})\nb = R.nn.conv2d(x, g, {last})\ngv = (a, b)"
    mod = convolutions(body, '("n", 5, 6, 3), "float32"')
    after = CombineParallel()(mod)
    assert names(after).count("nn.conv2d") == 1
    data = _array(2, 5, 6, 3)
    for got, want in zip(interpret(after, "main", data), interpret(mod, "main", data), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    body = "a = R.nn.conv2d(x, h, groups=2)\nb = R.nn.conv2d(x, h, groups=2)\ngv = (a, b)"
    mod = convolutions(body, '("n", 6, 5, 6), "float32"')
    assert CombineParallel()(mod) is mod


@pytest.mark.parametrize("x", ['("n", 3, 4), "float32"', '(2, "n", 4), "float32"'])
def test_batched_products(x: str) -> None:
    mod = convolutions("a = R.matmul(x, m)\nb = R.matmul(x, o)\ngv = (a, b)", x)
    after = CombineParallel()(mod)
    assert names(after) == ["matmul", "strided_slice", "strided_slice"]
    data = _array(2, 3, 4)
    for got, want in zip(interpret(after, "main", data), interpret(mod, "main", data), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
