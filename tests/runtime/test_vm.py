from __future__ import annotations

import gc
import inspect

import numpy as np
import pytest

from relaxpy.errors import ExecutableError, RuntimeCheckError, UsageError
from relaxpy.runtime import Device, Tensor, VirtualMachine, cpu
from relaxpy.runtime.bytecode import Alloc, FunctionCode, Heap, Kernel, MakeTuple, Reg, Return
from tests.runtime.support import ADD, ADD1, executable, f32, floats, function, times


def plus() -> FunctionCode:
    """`main(x, y) = x + y + 1`, through storage."""
    body = [
        Alloc(0, 2, 0, 1, "float32", 0),
        Kernel(0, ADD, (Reg(0), Reg(1), Reg(2)), Heap(0)),
        Alloc(1, 3, 0, 1, "float32", -1),
        Kernel(1, ADD1, (Reg(2), Reg(3)), Heap(0)),
        Return(1, 3),
    ]
    return function(
        "main", [("x", f32(Heap(0))), ("y", f32(Heap(1)))], body, storages=[times(0, 4)]
    )


@pytest.fixture(scope="module")
def vm() -> VirtualMachine:
    return VirtualMachine(
        executable(
            plus(), function("hidden", [], [MakeTuple(0, 0, ()), Return(0, 0)], public=False)
        )
    )


def test_positional_and_named_arguments(vm: VirtualMachine) -> None:
    x, y = floats(1, 2), floats(10, 20)
    for out in (vm["main"](x, y), vm["main"](x, y=y), vm["main"](y=y, x=x)):
        assert isinstance(out, Tensor)
        np.testing.assert_array_equal(out.numpy(), [12, 23])


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((1,), {}, "lacks y"),
        ((), {}, "lacks x, y"),
        ((1, 2, 3), {}, "takes 2 arguments, got 3"),
        ((1, 2), {"x": 3}, "got 'x' twice"),
        ((1,), {"z": 3}, "has no parameter 'z'; lacks y"),
    ],
)
def test_wrong_arguments(vm: VirtualMachine, args: tuple, kwargs: dict, text: str) -> None:
    with pytest.raises(UsageError, match=text) as caught:
        vm["main"](*args, **kwargs)
    assert caught.value.code == "arguments"
    assert "main(x: annotation of x" in str(caught.value)


def test_names(vm: VirtualMachine) -> None:
    assert vm.functions == ("main",)
    assert list(vm) == ["main"]
    assert "main" in vm
    assert "hidden" not in vm
    with pytest.raises(UsageError, match="did you mean 'main'"):
        vm["mian"]
    with pytest.raises(UsageError, match="there are: main"):
        vm["zzz"]
    with pytest.raises(
        AttributeError, match=r"no attribute 'main'; its function is vm\[\"main\"\]"
    ):
        _ = vm.main
    with pytest.raises(AttributeError, match=r"no attribute 'zzz'$"):
        _ = vm.zzz


def test_signature(vm: VirtualMachine) -> None:
    signature = vm.signature("main")
    assert str(signature) == "main(x: annotation of x, y: annotation of y) -> R.Object"
    assert signature.parameters == {"x": "annotation of x", "y": "annotation of y"}
    assert list(inspect.signature(vm["main"]).parameters) == ["x", "y"]
    assert "main(x" in repr(vm["main"])


def test_errors_of_conversion_name_the_parameter(vm: VirtualMachine) -> None:
    with pytest.raises(RuntimeCheckError, match="main: parameter y: not a tensor"):
        vm["main"](floats(1), ["a"])
    with pytest.raises(
        RuntimeCheckError, match="main: parameter y: 1e\\+300 is out of range of float32"
    ):
        vm["main"](floats(1), 1e300)


def test_inputs_of_other_libraries(vm: VirtualMachine) -> None:
    torch = pytest.importorskip("torch")
    out = vm["main"](torch.tensor([1.0, 2.0]), torch.arange(4.0)[::2])
    np.testing.assert_array_equal(out.numpy(), [2, 5])
    assert torch.equal(torch.from_dlpack(out), torch.tensor([2.0, 5.0]))


def test_unaligned_strided_readonly_and_empty_inputs(vm: VirtualMachine) -> None:
    base = np.arange(40, dtype=np.float32)
    fixed = base[:5].copy()
    fixed.flags.writeable = False
    raw = np.frombuffer(b"\0" + np.ones(5, np.float32).tobytes(), np.uint8)[1:].view(np.float32)
    for x in (base[1:6], base[:10:2], base[5:0:-1], fixed, raw):
        np.testing.assert_array_equal(vm["main"](x, base[:5]).numpy(), x + base[:5] + 1)
    assert vm["main"](base[:0], base[:0]).shape == (0,)


def test_release_memory(vm: VirtualMachine) -> None:
    big = np.zeros(1_000_000, np.float32)
    vm["main"](big, big)
    assert vm.release_memory() >= 4_000_000
    assert vm.release_memory() == 0
    np.testing.assert_array_equal(vm["main"](floats(1), floats(2)).numpy(), [4])


def test_memory_is_reused_and_freed(vm: VirtualMachine) -> None:
    """A thousand calls make no more frames than one, and dropped results are freed."""
    linked = vm["main"].linked
    for size in range(1000):
        vm["main"](np.zeros(size % 17, np.float32), np.zeros(size % 17, np.float32))
    assert len(linked.frames) == 1
    gc.collect()
    before = sum(type(item) is Tensor for item in gc.get_objects())
    for _ in range(100):
        vm["main"](floats(1), floats(1))
    gc.collect()
    assert sum(type(item) is Tensor for item in gc.get_objects()) <= before


def test_a_failed_call_gives_its_frame_back(vm: VirtualMachine) -> None:
    linked = vm["main"].linked
    vm["main"](floats(1), floats(1))
    for _ in range(5):
        with pytest.raises(RuntimeCheckError):
            vm["main"](floats(1), floats(1, 2))
    assert len(linked.frames) == 1


def test_missing_library_functions_are_named_when_the_machine_is_made() -> None:
    with pytest.raises(ExecutableError, match=r"cutlass\.rms_norm") as caught:
        VirtualMachine(executable(plus(), libraries=("cutlass.rms_norm",)))
    assert caught.value.code == "library-missing"
    assert "relaxpy[cuda]" in str(caught.value)
    with pytest.raises(ExecutableError, match=r"did you mean 'relaxpy\.unique'"):
        VirtualMachine(executable(plus(), packed=("relaxpy.uniqe",)))


def test_devices_and_wrong_executables() -> None:
    exe = executable(plus())
    assert VirtualMachine(exe, "cpu").device == cpu()
    assert VirtualMachine(exe, Device("cpu", 0)).device == cpu()
    with pytest.raises(UsageError, match="no device"):
        VirtualMachine(exe, "quantum:1")
    with pytest.raises(UsageError, match="runs an Executable"):
        VirtualMachine("model.rx")  # type: ignore[arg-type]


def test_without_kernels() -> None:
    """A program without kernels needs no object code."""
    from relaxpy.runtime import Executable

    code = function("main", [("x", f32(Heap(0)))], [MakeTuple(0, 1, (0, 0)), Return(0, 1)])
    a, b = VirtualMachine(Executable((code,)))["main"](floats(1))
    assert a is b
