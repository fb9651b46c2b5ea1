"""int4 and uint4: dtypes of storage, two numbers to a byte, from script to executables, devices and ONNX."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RelaxError
from relaxpy.ir.structural import structural_equal
from relaxpy.testing.differential import Call, check
from relaxpy.testing.interpret import interpret
from relaxpy.transform import BindParams
from relaxpy.transform.base import PassContext
from tests.runtime.devices.opencl.support import needs_opencl
from tests.runtime.devices.webgpu.support import needs_vulkan

RNG = np.random.default_rng(4)
DTYPES = {"int4": (-8, 8), "uint4": (0, 16)}
SIZES = [(3, 5, 7), (4, 6, 2), (1, 1, 1), (7, 33, 3), (17, 64, 2), (2, 0, 3)]
"""Rows of weights, columns, rows of x: odd and even, so that rows do and do not begin with a byte."""


def codes(dtype: str, *shape: int) -> np.ndarray:
    return RNG.integers(*DTYPES[dtype], shape).astype(getattr(ml_dtypes, dtype))


def program(dtype: str) -> relaxpy.IRModule:
    """Weights of a storage dtype are dequantised, and the result is quantised to one; the weights are a result, too."""
    return relaxpy.parse(f"""
@R.function
def main(w: R.Tensor(("n", "m"), "{dtype}"), s: R.Tensor(("n",), "float32"), x: R.Tensor(("k", "m"), "float32")):
    with R.dataflow():
        d = R.dequantize(w, s, R.const(1, "{dtype}"), axis=0)
        y = R.linear(x, d)
        q = R.quantize(y, R.const(0.7), R.const(2, "int8"), out_dtype="{dtype}", rounding="floor")
        z = R.astype(R.astype(q, "int8"), "uint4")
        R.output(y, q, z)
    return (y, q, z, w)
""")


def bound(weights: np.ndarray) -> relaxpy.IRModule:
    """The program with its first parameter a constant."""
    return BindParams().run(program(weights.dtype.name), PassContext(params={"w": weights}))


def arguments(dtype: str, n: int, m: int, k: int) -> list[np.ndarray]:
    scales = RNG.uniform(0.05, 0.2, n).astype("float32")
    return [codes(dtype, n, m), scales, RNG.standard_normal((k, m)).astype("float32")]


def agree(found: tuple[relaxpy.Tensor, ...], wanted: tuple[np.ndarray, ...]) -> None:
    """Floats are near; codes are the same but where a quotient is near a whole number."""
    for got, want in zip(found, wanted, strict=True):
        assert got.dtype == want.dtype.name
        got, want = got.numpy().astype("float32"), want.astype("float32")
        np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_programs_are_what_the_interpreter_says(dtype: str) -> None:
    mod = program(dtype)
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    for sizes in SIZES:
        given = arguments(dtype, *sizes)
        found, wanted = vm["main"](*given), interpret(mod, "main", *given)
        agree(found, wanted)
        # A result is an argument as it is, in half of the bytes.
        assert found[3].nbytes == (sizes[0] * sizes[1] + 1) // 2
        agree(vm["main"](found[3], *given[1:]), wanted)


def test_every_way_to_run_them_is_the_same() -> None:
    mod = program("int4")
    assert not check([Call(mod, "main", arguments("int4", *sizes)) for sizes in SIZES[:3]])


@pytest.mark.parametrize(
    "target",
    [
        pytest.param("opencl", marks=needs_opencl),
        pytest.param("vulkan", marks=needs_vulkan),
    ],
)
def test_devices(target: str) -> None:
    mod = program("int4")
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, target=target))
    for sizes in SIZES:
        given = arguments("int4", *sizes)
        found = vm["main"](*given)
        agree(found, interpret(mod, "main", *given))
        agree(vm["main"](found[3], *given[1:]), interpret(mod, "main", *given))


def test_weights_of_an_executable_are_two_to_a_byte(tmp_path: Path) -> None:
    """As constants, bound or written, and in a file; what is returned is in the file as it is."""
    mod = bound(codes("int4", 101, 33))
    text = mod.script()
    assert structural_equal(relaxpy.parse(text), mod)
    mod.script(constants=str(tmp_path / "w.npz"))
    executable = relaxpy.build(mod)
    executable.save(tmp_path / "net.rxe")
    given = arguments("int4", 101, 33, 3)[1:]
    for each in (executable, relaxpy.load(tmp_path / "net.rxe")):
        agree(relaxpy.VirtualMachine(each)["main"](*given), interpret(mod, "main", *given))
    assert sum(array.nbytes for array in executable.constants if array.dtype == np.uint8) < 1800
    weights = executable.sections()["weights"]
    # the bytes that kernels read, those that are returned, and what aligns the others
    assert sum(len(bytes(piece)) for piece in weights) < 2 * 1728 + 5 * 64


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ("R.add(w, w)", "add: int4 is a dtype of storage"),
        ("R.reshape(w, (15,))", "reshape: int4 is a dtype of storage"),
        ("R.concat((w, w))", "concat: int4 is a dtype of storage"),
        ('R.zeros((3,), "uint4")', "zeros: uint4 is a dtype of storage"),
        ('R.bitcast(w, dtype="uint8")', "bitcast: int4 is a dtype of storage"),
        ('R.memory.view(w, R.shape([9]), dtype="uint8")', "9 of 8 bytes"),
        ('R.memory.view(w, R.shape([17]), dtype="int4")', "9 of 8 bytes"),
        ('R.const([9], "int4")', "does not fit int4"),
    ],
)
def test_what_is_refused(call: str, problem: str) -> None:
    with pytest.raises(RelaxError, match=problem):
        relaxpy.build(
            relaxpy.parse(
                f'@R.function\ndef main(w: R.Tensor((3, 5), "int4")):\n    y = {call}\n    return y\n'
            )
        )


def test_tensor_programs_take_bytes() -> None:
    with pytest.raises(RelaxError, match="a buffer of int4") as caught:
        relaxpy.parse("""
@T.prim_func
def f(x: T.Buffer((4,), "int4"), y: T.Buffer((4,), "int8")):
    for i in range(4):
        with T.sblock("y"):
            vi = T.axis.spatial(4, i)
            y[vi] = T.Cast("int8", x[vi])
""")
    assert "R.memory.view" in str(caught.value.help)


def test_tensors_are_copies_of_arrays() -> None:
    vm = relaxpy.VirtualMachine(relaxpy.build(program("int4")))
    given = arguments("int4", 3, 5, 1)
    kept = vm["main"](*given)[3]
    with pytest.raises(ValueError, match="read-only"):
        kept[0] = 1
    with pytest.raises(BufferError, match="share bytes"):
        kept.__dlpack__()
    with pytest.raises(RelaxError, match="int4"):
        vm["main"](given[0].astype(np.int8), *given[1:])
    turned = vm["main"](np.asfortranarray(given[0]), *given[1:])[3]
    np.testing.assert_array_equal(turned.numpy(), given[0])
    np.testing.assert_array_equal(kept.copy().numpy(), given[0])


def test_files_of_onnx(tmp_path: Path) -> None:
    """They are written as ONNX has them, and read back; ONNX Runtime computes the same."""
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("k", 5), "float32"), w: R.Tensor((3, 5), "int4"), s: R.Tensor((3,), "float32")):
    R.func_attr({"num_input": 1})
    with R.dataflow():
        d = R.dequantize(w, s, R.const([1, -2, 3], "int4"), axis=0)
        y = R.linear(x, d)
        q = R.quantize(y, R.const(0.7), R.const(2, "uint4"), out_dtype="uint4")
        z = R.dequantize(q, R.const(0.5), R.const(1, "uint4"))
        R.output(y, z)
    return (y, z)
""")
    w, s, x = arguments("int4", 3, 5, 7)
    for file, beside in ((tmp_path / "net.onnx", False), (tmp_path / "apart.onnx", True)):
        relaxpy.onnx.export(mod, file, params={"w": w, "s": s}, external_data=beside)
        model = onnx.load(str(file))
        stored = next(each for each in model.graph.initializer if list(each.dims) == [3, 5])
        assert len(stored.raw_data) == 8
        again, params = relaxpy.from_onnx(file)
        assert '"int4"' in again.script()
        vm = relaxpy.VirtualMachine(relaxpy.build(again, params=params))
        wanted = interpret(mod, "main", x, w, s)
        for got, want in zip(vm["main"](x), wanted, strict=True):
            np.testing.assert_allclose(got.numpy(), want, atol=1e-5)
        session = runtime.InferenceSession(str(file))
        for got, want in zip(session.run(None, {"x": x}), wanted, strict=True):
            np.testing.assert_allclose(got, want, atol=1e-5)
    with pytest.raises(RelaxError, match="int4, which opset 20 does not have"):
        relaxpy.onnx.export(mod, tmp_path / "old.onnx", params={"w": w, "s": s}, opset=20)
