"""FoldConstant: what is computed now, to the last bit, and what is not."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import relaxpy
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Call, Constant, Function, Var
from relaxpy.ir.module import IRModule
from relaxpy.op.base import Op
from relaxpy.op.datatype import Astype
from relaxpy.op.deduce import deduce
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.testing.kernels import Kernels
from relaxpy.testing.pass_check import check_pass
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.programs.te_call import legal_program
from relaxpy.transform.dead_code_elimination import DeadCodeElimination
from relaxpy.transform.fold_constant import CAST_DTYPES, ROUNDED, ROUNDED_DTYPES, FoldConstant
from relaxpy.transform.normalize import Normalize

HEADER = "from relaxpy.script import ir as I, relax as R, tir as T\n"
VECTOR = 'x: R.Tensor(("n",), "float32")'


def module(body: str, params: str = VECTOR, pure: bool = True) -> IRModule:
    """A module with a function `main` and tensor programs of integers and of floats."""
    text = (
        HEADER
        + f"""
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def increment(x: T.Buffer((3,), "int32"), y: T.Buffer((3,), "int32")):
        for i in range(3):
            with T.sblock("y"):
                vi = T.axis.spatial(3, i)
                y[vi] = x[vi] + 1

    @T.prim_func(private=True)
    def exponential(x: T.Buffer((3,), "float32"), y: T.Buffer((3,), "float32")):
        for i in range(3):
            with T.sblock("y"):
                vi = T.axis.spatial(3, i)
                y[vi] = T.exp(x[vi])

    @R.function(private=True, pure=False)
    def effect(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        y = R.print(x)
        return x

    @R.function(pure={pure})
    def main({params}):
        n = T.int64()
        cls = Module
"""
    )
    return Normalize()(
        relaxpy.parse(text + "".join(f"        {line}\n" for line in body.splitlines()))
    )


def folded(body: str, params: str = VECTOR, pure: bool = True) -> str:
    """The function main after the pass, without what is not used any more."""
    mod = DeadCodeElimination()(FoldConstant()(module(body, params, pure)))
    main = mod["main"]
    assert isinstance(main, Function)
    return main.script("main")


def bound(body: str, params: str = VECTOR, pure: bool = True) -> list[str]:
    """The variables that main binds after the pass."""
    mod = DeadCodeElimination()(FoldConstant()(module(body, params, pure)))
    main = mod["main"]
    assert isinstance(main, Function)
    return [binding.var.name for binding in main.body.bindings]


def test_example() -> None:
    check_example(FoldConstant())


@pytest.mark.parametrize(
    ("call", "value"),
    [
        ("R.add(R.const(1.5), R.const(2.0))", "R.const(3.5"),
        ("R.multiply(R.const([2, 3], 'int32'), R.const(5, 'int32'))", "R.const([10, 15]"),
        ("R.sum(R.const([[1, 2], [3, 4]], 'int64'), axis=[0])", "R.const([4, 6]"),
        ("R.permute_dims(R.const([[1.0, 2.0]], 'float16'))", "R.const([[1.0], [2.0]]"),
        ("R.astype(R.const([1.5, -2.5], 'float32'), 'int32')", "R.const([1, -2]"),
        ("R.zeros((2, 1), 'float32')", "R.const([[0.0], [0.0]]"),
        ("R.concat((R.const([1.0]), R.zeros((1,), 'float32')))", "R.const([1.0, 0.0]"),
        ("R.split(R.const([1.0, 2.0]), 2)[1]", "R.const([2.0]"),
        (
            "R.call_tir(cls.increment, (R.const([1, 2, 3], 'int32'),), out_ty=R.Tensor((3,), 'int32'))",
            "R.const([2, 3, 4]",
        ),
    ],
)
def test_constants(call: str, value: str) -> None:
    text = folded(f"a = {call}\nb = R.print(a)\nreturn x", pure=False)
    assert value in text


@pytest.mark.parametrize(
    "call",
    [
        "R.exp(R.const(1.0))",  # the kernel's polynomial is another than numpy's
        "R.sum(R.const([1.0, 2.0]), axis=[0])",  # the order of additions is the kernel's
        "R.add(R.const(1.0, 'float16'), R.const(2.0, 'float16'))",
        "R.divide(R.const(0.0), R.const(0.0))",  # which NaN?
        "R.zeros((200, 200), 'float32')",  # too large
        "R.zeros((n,), 'float32')",
        "R.call_tir(cls.exponential, (R.const([1.0, 2.0, 3.0]),), out_ty=R.Tensor((3,), 'float32'))",
        "R.dynamic_strided_slice(R.const([1.0]), R.const([0], 'int64'), R.const([1], 'int64'), R.const([0], 'int64'))",
    ],
)
def test_what_is_left_to_the_running_program(call: str) -> None:
    mod = module(f"a = {call}\nb = R.isnan(a)\nreturn b")
    assert FoldConstant()(mod) is mod


def test_a_weight_that_is_joined_to_itself_grows() -> None:
    weight = np.ones((200, 200), np.float32)
    mod = module(
        "a = R.concat((w, w))\nb = R.matmul(x, a)\nreturn b",
        'x: R.Tensor((400,), "float32"), w: R.Tensor((200, 200), "float32")',
    )
    bound = relaxpy.transform.BindParams()(mod, relaxpy.transform.PassContext(params={"w": weight}))
    assert FoldConstant()(bound) is bound


def test_a_large_weight_is_moved_where_it_does_not_grow() -> None:
    weight = np.arange(200 * 200, dtype=np.float32).reshape(200, 200)
    mod = module(
        "a = R.permute_dims(w)\nb = R.matmul(x, a)\nreturn b",
        'x: R.Tensor((200,), "float32"), w: R.Tensor((200, 200), "float32")',
    )
    bind = relaxpy.transform.PassContext(params={"w": weight})
    result = FoldConstant()(relaxpy.transform.BindParams()(mod, bind))
    main = result["main"]
    assert isinstance(main, Function)
    (binding,) = main.body.bindings
    assert isinstance(binding.value, Call)
    constant = binding.value.args[1]
    assert isinstance(constant, Constant)
    np.testing.assert_array_equal(constant.data, weight.T)


PARAMS = 'x: R.Tensor(("n", "m", 6), "float32"), s: R.Shape(["k", 2])'


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ("t = R.shape_to_tensor(R.shape_of(x))\nu = R.take(t, R.const([2, 0], 'int64'), axis=0)", "[6, n]"),
        ("t = R.shape_to_tensor(s)\nu = R.multiply(t, R.const([3, 2], 'int64'))", "[k * 3, 4]"),
        ("t = R.shape_to_tensor(R.shape_of(x))\nv = R.prod(t, axis=[0], keepdims=True)\nu = R.concat((v, R.const([1], 'int64')))", "[m * n * 6, 1]"),
        ("t = R.split(R.shape_to_tensor(R.shape_of(x)), [1], axis=0)\nu = R.floor_divide(t[1], R.const(2, 'int64'))", "[m // 2, 3]"),
        ("t = R.size(x)\nu = R.reshape(t, (1,))", "[m * n * 6]"),
        ("t = R.multiply(R.size(x), R.prim_value(3))\nu = R.reshape(t, (1,))", "[m * n * 18]"),
        ("t = R.shape_to_tensor(R.shape_of(x))\na = R.squeeze(R.strided_slice(t, axes=[0], begin=[1], end=[2]), axis=[0])\nu = R.stack((a, R.const(4, 'int64')))", "[m, 4]"),
        ("t = R.shape_to_tensor(s)\nu = R.maximum(R.flip(t, axis=0), R.const(3, 'int64'))", "[3, T.max(k, 3)]"),
    ],
)  # fmt: skip
def test_shapes_computed_with_tensors_stay_symbolic(body: str, shape: str) -> None:
    mod = module(
        body + "\nv = R.tensor_to_shape(u)\nz = R.zeros(v, 'float32')\ny = R.sum(z)\nreturn (z, y)",
        PARAMS,
    )
    after = DeadCodeElimination()(FoldConstant()(mod))
    main = after["main"]
    assert isinstance(main, Function)
    assert [binding.var.name for binding in main.body.bindings] == ["z", "y"]
    assert f"R.zeros(R.shape({shape}), " in main.script("main")
    for n, m, k in ((2, 4, 5), (1, 0, 0), (0, 1, 3)):
        args = np.ones((n, m, 6), np.float32), (k, 2)
        want, got = interpret(mod, "main", *args), interpret(after, "main", *args)
        np.testing.assert_array_equal(want[0], got[0])


@pytest.mark.parametrize(
    "body",
    [
        "t = R.shape_to_tensor(s)\nu = R.subtract(t, R.const(3, 'int64'))",  # may be negative: that is an error
        "t = R.shape_to_tensor(s)\nu = R.floor_divide(R.const([8, 8], 'int64'), t)",  # k may be 0
        "t = R.shape_to_tensor(s)\nw = R.astype(t, 'int8')\nu = R.astype(w, 'int64')",  # modulo 256
        "t = R.reshape(x, (n * m * 6,))\nu = R.astype(R.strided_slice(t, axes=[0], begin=[0], end=[1]), 'int64')",
    ],
)  # fmt: skip
def test_shapes_that_are_found_when_the_program_runs(body: str) -> None:
    assert "tensor_to_shape" in folded(
        body + "\nv = R.tensor_to_shape(u)\nz = R.zeros(v, 'float32')\nreturn z", PARAMS
    )


def test_a_reshape_through_a_shape_tensor_is_exact() -> None:
    """The trap of constant folding: the result has the symbols of the argument, not unknown ones."""
    text = folded(
        "t = R.shape_to_tensor(R.shape_of(x))\na = R.take(t, R.const([0], 'int64'), axis=0)\nb = R.concat((a, R.const([2, 3], 'int64')))\nv = R.tensor_to_shape(b)\ny = R.reshape(x, v)\nreturn y",
        'x: R.Tensor(("n", 6), "float32")',
    )
    assert "R.reshape(x, R.shape([n, 2, 3]))" in text
    assert 'y: R.Tensor((n, 2, 3), dtype="float32")' in text


def test_tensors_that_somebody_may_update_are_made_when_the_program_runs() -> None:
    """A constant's memory is the executable's: it is not returned, and not handed to a function with an effect."""
    assert bound("a = R.zeros((2,), 'float32')\nreturn a") == ["a"]
    assert bound(
        "a = R.zeros((2,), 'float32')\nb = a\nc = cls.effect(b)\nreturn x", pure=False
    ) == ["a", "b", "c"]
    update = "R.call_inplace_packed('f', a, inplace_indices=[0], ty_args=R.Tensor((2,), 'float32'))"
    assert bound(f"a = R.zeros((2,), 'float32')\nb = {update}\nreturn x") == ["a", "b"]


def test_branches_and_local_functions() -> None:
    mod = module(
        """a = R.add(R.const(1.0), R.const(2.0))
if p:
    b = R.add(a, R.const(1.0))
    r = R.multiply(x, b)
else:
    r = R.multiply(x, a)
@R.function
def local(y: R.Tensor(("m",), "float32")) -> R.Tensor(("m",), "float32"):
    c = R.add(a, R.const(5.0))
    d = R.add(y, c)
    return d
e = local(r)
return e""",
        VECTOR + ', p: R.Tensor((), "bool")',
    )
    after = FoldConstant()(mod)
    text = after.script()
    assert "R.multiply(x, R.const(4.0" in text
    assert "R.multiply(x, R.const(3.0" in text
    assert "R.add(y, R.const(8.0" in text
    for p in (True, False):
        args = np.arange(3, dtype=np.float32), np.array(p)
        np.testing.assert_array_equal(
            interpret(mod, "main", *args), interpret(after, "main", *args)
        )


def test_nothing_to_do() -> None:
    mod = module("a = R.exp(x)\nreturn a")
    assert FoldConstant()(mod) is mod


def test_random_programs() -> None:
    assert check_pass(FoldConstant(), range(24), Normalize()) > 3


# To the last bit


def _values(dtype: str) -> np.ndarray:
    """Numbers at the edges, and of all magnitudes; no NaN."""
    rng = np.random.default_rng(0)
    edges = [
        0.0,
        -0.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.5,
        1e-30,
        -3e9,
        3e9,
        np.inf,
        -np.inf,
        127.5,
        65519.0,
        65520.0,
        1e-8,
    ]
    many = rng.standard_normal(300) * 10.0 ** rng.integers(-9, 9, 300)
    with np.errstate(all="ignore"):
        return np.array([*edges, *many]).astype(DType(dtype).numpy)


def _program(op: Op, inputs: list[np.ndarray]) -> PrimFunc:
    args = tuple(Var(f"x{i}", TensorType(x.shape, DType(x.dtype))) for i, x in enumerate(inputs))
    call = Call(op, args)
    return legal_program(op, [a.annotation for a in args], deduce(call))[0]


@pytest.mark.slow
def test_kernels_give_the_same_bits() -> None:
    """Every operator that is folded on floats, in the dtypes in which it is."""
    cases: list[tuple[Op, list[np.ndarray]]] = []
    for kind, dtype in itertools.product(ROUNDED, ROUNDED_DTYPES):
        if kind is not Astype:
            assert issubclass(kind, Op)
            x = _values(dtype)
            zeros = (np.arange(len(x)) % 19 - 9).astype("int8")  # of a quantisation
            cases.append((kind(), [x, x[::-1].copy(), zeros][: len(kind.args)]))
    targets = (*CAST_DTYPES, "int8", "int32", "int64", "uint8", "bool")
    cases += [(Astype(DType(to)), [_values(dtype)]) for dtype in CAST_DTYPES for to in targets]
    kernels = Kernels({f"k{i}": _program(op, inputs) for i, (op, inputs) in enumerate(cases)})
    for i, (op, inputs) in enumerate(cases):
        with np.errstate(all="ignore"):
            want = np.ascontiguousarray(op.reference(*inputs))
        got = np.zeros_like(want)
        kernels.run(f"k{i}", inputs, [got])
        known = ~np.isnan(want.astype(np.float64))
        bits = f"u{want.dtype.itemsize}"
        different = (got.view(bits) != want.view(bits)) & known
        assert not different.any(), (
            f"{op} {inputs[0].dtype}: {inputs[0][different][:5]} {got[different][:5]} {want[different][:5]}"
        )
