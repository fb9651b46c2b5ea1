"""Sizes at the boundary: negative, beyond 64 bits, more bytes than there are. Each is an error with a place, the same
from the interpreter and from the virtual machine, with and without its checks of memory."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.cli.main import main as command_line
from relaxpy.errors import PassError, RelaxError, RuntimeCheckError
from relaxpy.ir import IRModule
from relaxpy.runtime.builtins import reshape, tensor_to_shape, zeros
from relaxpy.runtime.pool import MemoryPool
from relaxpy.runtime.tensor import Shape, allocate, empty, from_numpy
from relaxpy.testing.interpret import interpret
from relaxpy.testing.round_trip import check_round_trip
from tests.sweeps import sweep

LARGE = 1 << 63
SHAPE = 's: R.Shape(["k"])'
VECTOR = 'x: R.Tensor(("n",), "float32")'


def module(params: str, body: str) -> IRModule:
    return relaxpy.parse(f"@R.function\ndef main({params}):\n{textwrap.indent(body, '    ')}\n")


def errors(mod: IRModule, args: Sequence[Any]) -> list[RuntimeCheckError]:
    exe = relaxpy.build(mod)
    machine, watched = (
        relaxpy.VirtualMachine(exe, check_memory=checked)["main"] for checked in (False, True)
    )
    found: list[RuntimeCheckError] = []
    for run in (
        lambda: interpret(mod, "main", *args),
        lambda: machine(*args),
        lambda: watched(*args),
    ):
        with pytest.raises(RuntimeCheckError) as caught:
            run()
        found.append(caught.value)
    return found


WRONG = {
    "the difference of sizes": (
        SHAPE,
        'k = T.int64()\nr = R.zeros((k - 8,), "float32")\nreturn r',
        ((3,),),
        "check",
        "main: the dimension k - 8 is negative",
    ),
    "two differences, the product of which is not negative": (
        SHAPE,
        'k = T.int64()\nr = R.zeros((k - 8, k - 9), "float32")\nreturn r',
        ((3,),),
        "check",
        "main: the dimension k - 8 is negative",
    ),
    "a power": (
        SHAPE,
        "k = T.int64()\nr = R.shape([k * k * k * k * k * k])\nreturn r",
        ((10_000,),),
        "shape-arithmetic",
        "main: a dimension cannot be computed: it does not fit into 64 bits",
    ),
    "a tensor of a power": (
        SHAPE,
        'k = T.int64()\nr = R.zeros((k * k * k * k * k * k,), "float32")\nreturn r',
        ((10_000,),),
        "shape-arithmetic",
        "main: a dimension cannot be computed: it does not fit into 64 bits",
    ),
    "a condition that is asserted": (
        SHAPE,
        'k = T.int64()\nc = R.match_cast(R.prim_value(k <= 4), R.Prim("bool", value=1))\nr = R.shape([k])\nreturn r',
        ((5,),),
        "check",
        "main: (k <= 4) does not hold",
    ),
    "a size over a difference that is always 0": (
        SHAPE,
        'k = T.int64()\nr = R.zeros((k // (k - k) + k % (2 * k - k * 2),), "float32")\nreturn r',
        ((5,),),
        "shape-arithmetic",
        "main: a dimension cannot be computed: it divides by 0",
    ),
    "a multiple of a size": (
        SHAPE,
        'k = T.int64()\nr = R.zeros((k * 4, 0), "float32")\nreturn r',
        ((1 << 62,),),
        "shape-arithmetic",
        "main: a dimension cannot be computed: it does not fit into 64 bits",
    ),
    "a number of bytes": (
        SHAPE,
        'k = T.int64()\nr = R.zeros((k,), "float32")\nreturn r',
        ((1 << 62,),),
        "out-of-memory",
        f"cannot allocate {1 << 64} bytes",
    ),
    "a number of elements": (
        SHAPE,
        'k = T.int64()\nr = R.full((k, k), R.const(1.0, "float32"), "float32")\nreturn r',
        ((1 << 32,),),
        "out-of-memory",
        f"cannot allocate {1 << 66} bytes",
    ),
    "memory that nobody has": (
        SHAPE,
        'k = T.int64()\nr = R.arange(0, k, 1, "int8")\nreturn r',
        ((1 << 50,),),
        "out-of-memory",
        f"cannot allocate {1 << 50} bytes",
    ),
    "numbers in the program": (
        "",
        'r = R.zeros((2**40, 2**40), "float32")\nreturn r',
        (),
        "out-of-memory",
        f"cannot allocate {1 << 82} bytes",
    ),
    "a view": (
        f"{VECTOR}, {SHAPE}",
        'n = T.int64()\nk = T.int64()\nr = R.memory.view(x, R.shape([k]), dtype="float32")\nq = R.exp(r)\nreturn q',
        (np.zeros(4, "float32"), (1_000_000,)),
        "check",
        "main: a view is larger than its tensor: k * 4 of n * 4 bytes",
    ),
    "a storage": (
        f"{VECTOR}, {SHAPE}",
        "n = T.int64()\nk = T.int64()\nm = R.memory.alloc_storage(R.prim_value(k - 80))\n"
        'r = R.memory.alloc_tensor(R.shape([n]), m, dtype="float32")\nq = R.exp(r)\nreturn q',
        (np.zeros(0, "float32"), (3,)),
        "check",
        "main: a tensor exceeds its storage: n * 4 of k - 80 bytes",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_while_a_program_runs(name: str) -> None:
    params, body, args, code, message = WRONG[name]
    mod = module(params, body)
    for error in errors(mod, args):
        assert (error.code, error.message) == (code, message)
        assert error.span is not None


FROM_SCALARS = {
    "a slice": "R.strided_slice(x, axes=[0], begin=[a], end=[b])",
    "every second": "R.strided_slice(x, axes=[0], begin=[a], end=[b], strides=[2])",
    "downwards": "R.strided_slice(x, axes=[0], begin=[a], end=[b], strides=[-1])",
    "a slice inside": "R.strided_slice(x, axes=[0], begin=[a], end=[b], assume_inbound=True)",
    "an index": "x[a]",
    "a part that is written": "R.slice_scatter(x, R.zeros((3,), 'float32'), a, b, 1, axis=0)",
    "a range": "R.arange(a, b, 1, 'int64')",
    "a tensor": "R.full((a, b), R.const(1.0, 'float32'), 'float32')",
    "a difference": "R.zeros((a - b,), 'float32')",
    "a shape": "R.shape([a * b])",
    "broadcast": "R.broadcast_to(R.const([1.0]), (a, b))",
    "a view": "R.add(R.memory.view(x, R.shape([a, b]), dtype='float32'), R.const(1.0, 'float32'))",
    "a number": "R.multiply(R.const([1, 2, 3], 'int64'), a * b)",
}
PLACES = [
    (-3, 16), (3, 9), (-17, -1), (0, 0), (1, 16), (17, 5), (-1, -3), (3, 0), (-(2**63), 2**63 - 1), (2**63 - 1, -(2**63)),
    (5, -(2**63)), (-(2**63), 5), (2**40, -1), (2**63 - 1, 1),
]  # fmt: skip


@sweep(2)
@pytest.mark.parametrize("name", FROM_SCALARS)
def test_from_scalars(name: str) -> None:
    """Any two integers: the same numbers, or the same error, three times, and numpy's."""
    params = 'x: R.Tensor((16,), "float32"), a: R.Prim("int64"), b: R.Prim("int64")'
    mod = module(params, f"r = {FROM_SCALARS[name]}\nreturn r")
    exe = relaxpy.build(mod)
    machine, watched = (
        relaxpy.VirtualMachine(exe, check_memory=checked)["main"] for checked in (False, True)
    )
    x = np.arange(16, dtype="float32")
    step = {"a slice": 1, "every second": 2, "downwards": -1}.get(name)
    for a, b in PLACES:
        first, *others = (
            outcome(lambda run=run, a=a, b=b: run(x, a, b))
            for run in (lambda *args: interpret(mod, "main", *args), machine, watched)
        )
        overflow = ("shape-arithmetic", WRONG["a power"][4])
        # the formula of a demand may overflow where the interpreter, which knows the sizes, says what is demanded
        agree = [
            other in (first, overflow) if failed(first) else other == first for other in others
        ]
        assert all(agree), (a, b)
        if step is not None:
            assert first == x[a:b:step].tolist()


def outcome(run: Callable[[], Any]) -> Any:
    """Numbers, or the code and text of the error."""
    try:
        return np.asarray(run()).tolist()
    except RuntimeCheckError as error:
        assert error.span is not None  # noqa: PT017
        return error.code, error.message


def failed(found: Any) -> bool:
    return isinstance(found, tuple)


def test_a_range_in_a_kernel_does_not_wrap() -> None:
    """`b - a` in 64 bits would be large, and the range is empty."""
    mod = module(
        'a: R.Prim("int64"), b: R.Prim("int64")', 'r = R.arange(a, b, 1, "int64")\nreturn r'
    )
    for error in errors(mod, (5, -(2**63))):
        assert error.code == "shape-arithmetic"


@pytest.mark.parametrize("size", [-1, -(2**63), LARGE, 10**30])
@pytest.mark.parametrize("annotation", ['R.Shape(["k"])', "R.Shape(ndim=1)", "R.Object"])
def test_as_an_argument(size: int, annotation: str) -> None:
    mod = module(f"s: {annotation}", "return s")
    given = Shape((size,)) if annotation == "R.Object" else (size,)
    for error in errors(mod, (given,)):
        assert error.code == "shape-value"
        assert error.message.endswith(
            f"a size must be an integer of at least 0 and less than 2**63, got {size}"
        )
        assert "parameter s" in error.message


def test_as_a_result_of_python() -> None:
    mod = relaxpy.parse("""
@R.function(pure=False)
def main(f: R.Callable((R.Shape(["a"]),), R.Shape(ndim=1), purity=False), s: R.Shape(["k"])):
    k = T.int64()
    r = f(R.shape([k]))
    return r
""")
    main = relaxpy.VirtualMachine(relaxpy.build(mod))["main"]
    assert main(lambda s: Shape((s[0] + 1,)), (3,)) == (4,)
    with pytest.raises(RuntimeCheckError, match="a size must be an integer"):
        main(lambda s: Shape((s[0] - 4,)), (3,))


@pytest.mark.parametrize(
    "body",
    [
        'r = R.zeros((-2,), "float32")\nreturn r',
        'r = R.zeros((2**63,), "float32")\nreturn r',
        "r = R.shape([2**63])\nreturn r",
        'r = R.full((3, -1), R.const(1, "float32"))\nreturn r',
    ],
)
def test_where_it_is_written(body: str) -> None:
    with pytest.raises(RelaxError) as caught:
        module("", body)
    assert caught.value.span is not None


@pytest.mark.parametrize("size", ["-2", "2**63", "9223372036854775808"])
def test_in_an_annotation(size: str) -> None:
    with pytest.raises(RelaxError, match=r"a dimension (cannot be negative|must fit into 64 bits)"):
        module(f'x: R.Tensor(({size},), "float32")', "return x")


@pytest.mark.parametrize(
    "shape", [(-2,), (-2, -3), (LARGE,), (0, LARGE), (1 << 62, 1 << 62), (1 << 50,)]
)
def test_memory_without_a_program(shape: tuple[int, ...]) -> None:
    for make in (lambda: empty(shape, "float32"), lambda: zeros(Shape(shape), "float32")):
        with pytest.raises(RuntimeCheckError, match=r"a size must be an integer|cannot allocate"):
            make()


@pytest.mark.parametrize("nbytes", [-1, -12, -64, -(10**30), 1 << 62, 1 << 64, 10**30])
def test_bytes(nbytes: int) -> None:
    get: tuple[Callable[[int], Any], ...] = (allocate, MemoryPool().allocate, MemoryPool().storage)
    for make in get:
        with pytest.raises(RuntimeCheckError, match=f"cannot allocate {nbytes} bytes"):
            make(nbytes)


def test_shapes_from_tensors() -> None:
    with pytest.raises(RuntimeCheckError, match="a size must be an integer"):
        tensor_to_shape(from_numpy(np.array([1 << 63], np.uint64)))
    with pytest.raises(RuntimeCheckError, match="elements, and the new shape"):
        # the number of items is 0 modulo 2**64
        reshape(from_numpy(np.zeros(0, "float32")), Shape((1 << 32, 1 << 32)))


def test_a_view_keeps_its_dtype_in_text() -> None:
    mod = module(
        'x: R.Tensor((4,), "int32")',
        'r = R.memory.view(x, R.shape([4]), dtype="float32")\nreturn r',
    )
    check_round_trip(mod)
    assert 'R.memory.view(x, R.shape([4]), dtype="float32")' in mod.script()
    x = np.array([1, 0x3F800000, 0, -1], np.int32)
    for result in (
        interpret(mod, "main", x),
        relaxpy.VirtualMachine(relaxpy.build(mod))["main"](x),
    ):
        assert np.asarray(result).tobytes() == x.tobytes()


def test_a_view_of_a_part_is_one() -> None:
    mod = module(
        'x: R.Tensor((4,), "float32")',
        'r = R.memory.view(x, R.shape([2]), dtype="int32")\nq = R.add(r, R.const(1, "int32"))\nreturn q',
    )
    x = np.arange(4, dtype="float32")
    want = x.view("int32")[:2] + 1
    for result in (
        interpret(mod, "main", x),
        relaxpy.VirtualMachine(relaxpy.build(mod))["main"](x),
    ):
        np.testing.assert_array_equal(np.asarray(result), want)


def test_a_view_of_memory_that_is_not_aligned() -> None:
    mod = module(
        'x: R.Tensor((8,), "uint8")',
        'r = R.memory.view(x, R.shape([2]), dtype="float32")\nq = R.exp(r)\nreturn q',
    )
    bytes_ = np.zeros(16, "uint8")
    start = -bytes_.ctypes.data % 4 + 1
    main = relaxpy.VirtualMachine(relaxpy.build(mod))["main"]
    with pytest.raises(RuntimeCheckError, match="memory is not aligned for elements of float32"):
        main(bytes_[start : start + 8])
    np.testing.assert_array_equal(
        main(bytes_[start + 3 : start + 11]).numpy(), np.ones(2, "float32")
    )


def test_a_view_that_never_fits_is_refused() -> None:
    mod = module(
        'x: R.Tensor((4,), "float32")',
        'r = R.memory.view(x, R.shape([4]), dtype="float64")\nq = R.exp(r)\nreturn q',
    )
    with pytest.raises(PassError, match="a view is larger than its tensor: 32 of 16 bytes"):
        relaxpy.build(mod)


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ("s=(-3,)", "a size must be an integer of at least 0 and less than 2**63, got -3"),
        (
            f"s=({LARGE},)",
            f"a size must be an integer of at least 0 and less than 2**63, got {LARGE}",
        ),
        (f"s=({1 << 62},)", f"cannot allocate {1 << 64} bytes"),
    ],
)
def test_on_the_command_line(
    argument: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "program.rxe"
    mod = module(SHAPE, 'k = T.int64()\nr = R.zeros((k,), "float32")\nreturn r')
    relaxpy.build(mod).save(path)
    with pytest.raises(SystemExit):
        command_line(["run", str(path), "-i", argument])
    shown = capsys.readouterr().err
    assert problem in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize(
    "dims", ["9223372036854775808", "1125899906842624", "4611686018427387904,4"]
)
def test_generated_on_the_command_line(
    dims: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "program.rxe"
    relaxpy.build(module('x: R.Tensor("float32")', "return x")).save(path)
    with pytest.raises(SystemExit):
        command_line(["run", str(path), "-i", f"x=f32[{dims}]"])
    shown = capsys.readouterr().err
    assert dims.partition(",")[0] in shown or "allocate" in shown
    assert "Traceback" not in shown


def test_memory_inside_of_a_kernel_of_which_nothing_is_used() -> None:
    """Of `w` `(n - 1) * 5000 + 1` elements are used: for no elements, that is no number of bytes."""
    mod = relaxpy.parse("""
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def turned(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
        n = T.int64()
        w = T.alloc_buffer((n * 5000,), "float32")
        for i in range(n):
            with T.sblock("a"):
                vi = T.axis.spatial(n, i)
                w[vi * 5000] = x[vi]
        for i in range(n):
            with T.sblock("b"):
                vi = T.axis.spatial(n, i)
                y[vi] = w[(n - 1 - vi) * 5000] + T.float32(1)

    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        cls = Module
        y = R.call_tir(cls.turned, (x,), out_ty=R.Tensor((n,), "float32"))
        return y
""")
    run = relaxpy.VirtualMachine(relaxpy.build(mod))["main"]
    for size in (3, 0, 1):
        x = np.arange(size, dtype="float32")
        np.testing.assert_array_equal(run(x).numpy(), x[::-1] + 1)
