"""Programs for a device: where their values live, and what is copied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import relaxpy
import relaxpy.testing.random_libraries
from relaxpy.backend.place_values import PlaceValues
from relaxpy.runtime import Executable, VirtualMachine
from relaxpy.testing.interpret import interpret
from relaxpy.transform.base import Pass
from tests.backend.toy import toys
from tests.runtime.toy_device import is_on_toy


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    with toys(monkeypatch) as found:
        yield found


def built(source: str, target: str = "toy") -> tuple[Executable, VirtualMachine]:
    exe = relaxpy.build(relaxpy.parse(source), target=target, cache=False)
    return exe, VirtualMachine(exe)


MLP = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 4), "float32"), w: R.Tensor((4, 3), "float32")) -> R.Tensor(("n", 3), "float32"):
        with R.dataflow():
            y = R.nn.relu(R.matmul(x, w))
            z = R.nn.softmax(R.add(y, R.const(1.0, "float32")))
            R.output(z)
        return z
"""


def test_everything_lives_on_the_target(log: list[str]) -> None:
    exe, vm = built(MLP)
    assert [slot.kind for slot in exe.slots] == ["cpu", "toy"]
    assert {kernel.slot for kernel in exe.kernels} == {1}
    rng = np.random.default_rng(0)
    w = rng.standard_normal((4, 3), np.float32)
    for rows in (1, 3, 0):
        x = rng.standard_normal((rows, 4), np.float32)
        out = vm(x, w)
        assert is_on_toy(out)
        power = np.exp(np.maximum(x @ w, 0) + 1)
        np.testing.assert_allclose(out.numpy(), power / power.sum(1, keepdims=True), rtol=1e-5)
    assert "copy" not in log


CONTROL = """
@I.ir_module
class Module:
    @R.function
    def step(x: R.Tensor(("n",), "float32"), i: R.Tensor((), "int64")) -> R.Tensor(("n",), "float32"):
        cls = Module
        more = R.greater(i, R.const(0, "int64"))
        if more:
            y = R.add(x, x)
            j = R.subtract(i, R.const(1, "int64"))
            z = cls.step(y, j)
        else:
            z = x
        return z

    @R.function
    def main(x: R.Tensor(("n",), "float32"), i: R.Tensor((), "int64")) -> R.Tensor(("n",), "float32"):
        cls = Module
        y = cls.step(x, i)
        return y
"""


def test_conditions_are_read_by_the_host() -> None:
    exe, vm = built(CONTROL)
    assert "= read r" in exe.as_text()
    x = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(vm["main"](x, np.int64(3)).numpy(), 8 * x)


HOST_CALLS = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n",), "float32")) -> R.Tensor("float32", ndim=1):
        y = R.add(x, x)
        u = R.unique(y)
        z = R.add(u, R.const(1.0, "float32"))
        return z
"""


def test_functions_of_the_runtime_get_tensors_of_the_host() -> None:
    exe, vm = built(HOST_CALLS)
    assert "copy r" in exe.as_text()
    out = vm(np.array([3, 1, 3], np.float32))
    assert is_on_toy(out)
    np.testing.assert_array_equal(out.numpy(), [3, 7])


PARTS = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        n = T.int64()
        parts = R.call_dps_library("relaxpy.testing.parts", (x,), out_ty=[R.Tensor((n,), "float32"), R.Tensor((n,), "float32")])
        first = parts[0]
        second = parts[1]
        y = R.add(first, second)
        return y
"""


def test_items_of_a_tuple_are_copied() -> None:
    """Each is a value of its own before it is copied: code is generated of nothing else."""
    x = np.array([3, -1, 0.5], np.float32)
    exe = relaxpy.build(relaxpy.parse(PARTS), cache=False)
    np.testing.assert_array_equal(built(PARTS)[1](x).numpy(), VirtualMachine(exe)(x).numpy())


CLOSURES = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n",), "float32"), f: R.Callable((R.Tensor(("m",), "float32"),), R.Tensor(("m",), "float32"), False)) -> R.Tuple(R.Tensor("float32", ndim=1), R.Tensor("float32", ndim=1)):
        @R.function
        def inner(y: R.Tensor(("k",), "float32")) -> R.Tensor(("k",), "float32"):
            z = R.add(y, y)
            return z
        a = inner(x)
        b = f(a)
        c = R.add(b, R.const(1.0, "float32"))
        return (a, c)
"""


def test_function_values() -> None:
    _, vm = built(
        CLOSURES.replace("@R.function\n    def main", "@R.function(pure=False)\n    def main")
    )
    seen: list[Any] = []

    def python(value: Any) -> Any:
        seen.append(value)
        return value.numpy() * 10

    a, c = vm(np.array([1, 2], np.float32), python)
    assert is_on_toy(seen[0])
    np.testing.assert_array_equal(a.numpy(), [2, 4])
    np.testing.assert_array_equal(c.numpy(), [21, 41])


MIXED = """
@I.ir_module
class Module:
    I.module_global_infos({"vdevice": [I.vdevice("toy", 0), I.vdevice("llvm", 0)]})

    @R.function
    def main(x: R.Tensor(("n",), "float32", "toy:0")) -> R.Tensor(("n",), "float32"):
        with R.dataflow():
            y = R.add(x, x)
            z = R.to_vdevice(y, "llvm:0")
            w = R.add(z, z)
            v = R.exp(R.to_vdevice(w, "toy:0"))
            u = R.to_vdevice(v, "llvm:0")
            R.output(u)
        return u
"""


TWICE = """
@I.ir_module
class Module:
    I.module_global_infos({"vdevice": [I.vdevice("toy", 0), I.vdevice("llvm", 0)]})

    @T.prim_func
    def twice(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("twice"):
                v = T.axis.spatial(n, i)
                y[v] = x[v] * T.float32(2)

    @R.function
    def main(x: R.Tensor(("n",), "float32", "toy:0")) -> R.Tensor(("n",), "float32"):
        n = T.int64()
        cls = Module
        y = R.call_tir(cls.twice, (x,), out_ty=R.Tensor((n,), "float32"))
        z = R.to_vdevice(y, "llvm:0")
        w = R.call_tir(cls.twice, (z,), out_ty=R.Tensor((n,), "float32"))
        return w
"""


@pytest.mark.parametrize("target", ["toy", "llvm"])
def test_a_program_of_two_devices(target: str) -> None:
    exe, vm = built(MIXED, target)
    assert sorted(kernel.slot for kernel in exe.kernels) == [0, 1, 1]
    x = np.array([0.5, 1], np.float32)
    out = vm(x)
    assert not is_on_toy(out)
    np.testing.assert_allclose(out.numpy(), np.exp(4 * x), rtol=1e-6)


def test_one_program_on_two_devices_is_two() -> None:
    exe, vm = built(TWICE, "llvm")
    found = [(kernel.name, kernel.slot) for kernel in exe.kernels]
    assert found == [("twice", 1), ("twice_host", 0)]
    np.testing.assert_array_equal(vm(np.ones(3, np.float32)).numpy(), [4, 4, 4])


def passes(source: str, target: str = "toy") -> dict[str, relaxpy.IRModule]:
    """What each pass gave."""
    seen: dict[str, relaxpy.IRModule] = {}

    def keep(_number: int, step: Pass, _before: relaxpy.IRModule, after: relaxpy.IRModule) -> None:
        seen[step.name] = after

    relaxpy.build(relaxpy.parse(source), target=target, instruments=[keep], cache=False)
    return seen


@pytest.mark.parametrize("source", [MLP, CONTROL, HOST_CALLS, MIXED])
def test_what_it_writes_means_the_same(source: str) -> None:
    """To the reference interpreter, which knows one memory."""
    x = np.array([[3, 1, 3, 2]], np.float32) if source is MLP else np.array([3, 1, 3], np.float32)
    more = [np.ones((4, 3), np.float32)] if source is MLP else []
    args = [x, np.array(2)] if source is CONTROL else [x, *more]
    want = interpret(relaxpy.parse(source), "main", *args)
    for name in ("place-values", "lower-call-tir", "plan-memory"):
        found = interpret(passes(source)[name], "main", *args)
        np.testing.assert_allclose(found, want, rtol=1e-6)


def test_weights_of_other_devices_are_not_packed() -> None:
    """Layouts of the processor's kernels are no other device's."""
    source = """
@I.ir_module
class Module:
    I.module_global_infos({"vdevice": [I.vdevice("toy", 0), I.vdevice("llvm", 0)]})

    @R.function
    def main(x: R.Tensor((5, 64), "float32", PLACE), w: R.Tensor((64, 64), "float32", PLACE)) -> R.Tensor((5, 64), "float32"):
        with R.dataflow():
            y = R.matmul(x, w)
            z = R.to_vdevice(y, "llvm:0")
            R.output(z)
        return z
"""
    x, w = np.ones((5, 64), np.float32), np.ones((64, 64), np.float32)
    for place, packed in (("toy:0", False), ("llvm:0", True)):
        mod = relaxpy.parse(source.replace("PLACE", f'"{place}"'))
        exe = relaxpy.build(mod, params={"w": w}, cache=False)
        assert any("packed" in kernel.name for kernel in exe.kernels) == packed
        np.testing.assert_array_equal(VirtualMachine(exe)(x).numpy(), x @ w)


def test_storage_is_of_one_device() -> None:
    text = passes(MIXED, "llvm")["plan-memory"].script()
    for line in text.splitlines():
        if "alloc_storage" in line:
            assert 'vdevice="toy:0' in line or 'vdevice="llvm:0' in line
        if "alloc_tensor" in line and "storage" in line:
            assert "offset" not in line


def test_host_modules_stay_as_they_are() -> None:
    mod = relaxpy.parse(MLP)
    assert PlaceValues()(mod) is mod


def test_what_functions_of_any_device_give_stays_there(log: list[str]) -> None:
    """It is matched, and used, where their arguments are."""
    relaxpy.register_function("test.place.same", lambda x: x, anywhere=True)
    relaxpy.register_function("test.place.pair", lambda x: (x, x), anywhere=True)
    _, vm = built("""
@R.function
def main(x: R.Tensor(("n", 4), "float32")):
    n = T.int64()
    y = R.call_pure_packed("test.place.same", R.add(x, x), ty_args=R.Tensor((n, 4), "float32"))
    p = R.call_pure_packed("test.place.pair", y, ty_args=R.Tuple(R.Tensor((n, 4), "float32"), R.Tensor((n, 4), "float32")))
    return R.add(p[0], p[1])
""")
    x = np.ones((3, 4), np.float32)
    out = vm(x)
    assert is_on_toy(out)
    np.testing.assert_array_equal(out.numpy(), 4 * x)
    assert log.count("download") == 1


INTO = """
@I.ir_module
class Module:
    I.module_global_infos({"vdevice": [I.vdevice("llvm", 0), I.vdevice("toy", 0)]})

    @T.prim_func
    def twice(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("twice"):
                v = T.axis.spatial(n, i)
                y[v] = x[v] * T.float32(2)

    @R.function(pure=False)
    def main(x: R.Tensor(("n",), "float32", "INPUT")) -> R.Tensor(("n",), "float32"):
        n = T.int64()
        cls = Module
        y = R.memory.alloc_tensor(R.shape([n]), dtype="float32", vdevice="OUTPUT")
        _ = R.vm.call_dps(CALLEE, x, y)
        return y
"""


def into(given: str, output: str, callee: str = "cls.twice") -> str:
    text = INTO.replace("INPUT", given).replace("OUTPUT", output)
    return text.replace("CALLEE", callee)


@pytest.mark.parametrize("target", ["toy", "llvm"])
@pytest.mark.parametrize("given", ["toy:0", "llvm:0"])
@pytest.mark.parametrize("output", ["toy:0", "vdevice:0"])
def test_a_program_runs_where_its_output_is(target: str, given: str, output: str) -> None:
    """`R.vm.call_dps` writes into the tensor that it is given: what it reads is copied there, not the other way round."""
    exe, vm = built(into(given, output), target)
    assert [kernel.slot for kernel in exe.kernels] == [
        exe.slots[-1].kind == "toy" and output == "toy:0"
    ]
    x = np.array([1, -2.5], np.float32)
    out = vm(x)
    assert is_on_toy(out) == (output == "toy:0")
    np.testing.assert_array_equal(out.numpy(), 2 * x)


def test_outputs_on_two_devices_are_refused() -> None:
    text = into("toy:0", "llvm:0").replace(
        "* T.float32(2)", "* T.float32(2)\n                x[v] = T.float32(0)"
    )
    with pytest.raises(relaxpy.errors.BuildError, match="writes on two devices") as caught:
        built(text)
    assert caught.value.code == "call-devices"
    assert caught.value.span is not None
    assert caught.value.span.line == 20


def test_a_library_into_a_device_is_refused() -> None:
    with pytest.raises(relaxpy.errors.BuildError, match="runs on the host") as caught:
        built(into("llvm:0", "toy:0", '"relaxpy.testing.halved"'))
    assert caught.value.code == "call-devices"
    assert caught.value.span is not None
    assert caught.value.span.line == 19


HINT = """
@I.ir_module
class Module:
    I.module_global_infos({"vdevice": [I.vdevice("llvm", 0), I.vdevice("toy", 0)]})

    @R.function
    def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        y = R.add(x, x)
        z = R.hint_on_device(y, R.device("DEVICE", NUMBER))
        w = R.add(z, R.const(1, "float32"))
        return w
"""


@pytest.mark.parametrize(
    ("device", "number", "there"), [("toy", 0, True), ("toy", 1, False), ("cpu", 0, False)]
)
def test_a_hint_counts_where_the_module_lists_the_device(
    device: str, number: int, there: bool
) -> None:
    """Others are hints only."""
    _, vm = built(HINT.replace("DEVICE", device).replace("NUMBER", str(number)), "llvm")
    out = vm(np.ones(3, np.float32))
    assert is_on_toy(out) == there
    np.testing.assert_array_equal(out.numpy(), [3, 3, 3])


@pytest.mark.parametrize("declared", ["", ', "toy:0"'])
def test_a_result_that_the_host_made_is_copied(declared: str) -> None:
    """Callers expect it where the function's results are: where the annotation says, or the module is built for."""
    relaxpy.register_function("test.place.host", lambda x: x)
    _, vm = built(f"""
@R.function
def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"{declared}):
    n = T.int64()
    return R.call_pure_packed("test.place.host", R.add(x, x), ty_args=R.Tensor((n,), "float32"))
""")
    out = vm(np.ones(3, np.float32))
    assert is_on_toy(out)
    np.testing.assert_array_equal(out.numpy(), [2, 2, 2])


def test_a_marked_value_is_copied_with_its_mark() -> None:
    """What a library made on the host, where the function's result is a device's."""
    _, vm = built("""
@R.function
def main(x: R.Tensor(("n",), "float32")) -> R.Tuple(R.Tensor(("n",), "float32"), R.Tensor(("n",), "float32")):
    n = T.int64()
    y = R.call_dps_library("relaxpy.testing.halved", (x,), out_ty=R.Tensor((n,), "float32"))
    z = R.grad.no_grad(y)
    return (z, y)
""")
    for found in vm(np.full(3, 5, np.float32)):
        assert is_on_toy(found)
        np.testing.assert_array_equal(found.numpy(), np.full(3, 2.5))
