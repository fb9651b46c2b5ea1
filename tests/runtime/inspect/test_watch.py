"""The checking mode: wrong plans are found, whatever they do wrong; right ones run as they do without it."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime.bytecode import Alloc, Kill
from relaxpy.runtime.executable import Executable

TEXT = """
@R.function
def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor((4, "n"), "float32"):
    n = T.int64()
    R.func_attr({"tir_var_upper_bound": {"n": 16}})
    a = R.cumsum(x, axis=0)
    b = R.permute_dims(a)
    c = R.cumsum(b, axis=0)
    d = R.permute_dims(c)
    e = R.cumsum(d, axis=0)
    f = R.add(R.permute_dims(e), b)
    return f
"""


@pytest.fixture(scope="module")
def exe() -> Executable:
    return relaxpy.build(relaxpy.parse(TEXT))


def moved(exe: Executable, name: str, offset: int) -> Executable:
    """The executable with the tensor of this binding at another place of the storage."""
    (code,) = exe.functions
    instrs = tuple(
        replace(i, offset=offset)
        if isinstance(i, Alloc) and code.locations[i.loc].binding == name
        else i
        for i in code.code
    )
    return replace(exe, functions=(replace(code, code=instrs),))


def run(exe: Executable, n: int = 16, check: bool = True) -> np.ndarray:
    x = np.linspace(0, 1, 4 * n, dtype=np.float32).reshape(n, 4)
    return relaxpy.VirtualMachine(exe, check_memory=check)["main"](x).numpy()


@pytest.mark.parametrize("n", [0, 1, 7, 16])
def test_a_right_plan_runs(exe: Executable, n: int) -> None:
    np.testing.assert_array_equal(run(exe, n), run(exe, n, check=False))


def offsets(exe: Executable) -> dict[str, int]:
    (code,) = exe.functions
    return {
        code.locations[i.loc].binding: i.offset
        for i in code.code
        if isinstance(i, Alloc) and i.storage >= 0
    }


def test_memory_that_is_given_away_too_early(exe: Executable) -> None:
    """d where b lies, which the last call reads."""
    wrong = moved(exe, "d", offsets(exe)["b"])
    with pytest.raises(
        RuntimeCheckError, match="b is used after its memory was given to d"
    ) as error:
        run(wrong)
    assert error.value.code == "memory-plan"
    assert error.value.span is not None
    assert not np.array_equal(run(wrong, check=False), run(exe))


def test_a_tensor_that_does_not_lie_in_its_storage(exe: Executable) -> None:
    size = exe.functions[0].storages[0]
    assert isinstance(size, int)
    with pytest.raises(RuntimeCheckError, match="bytes in a storage of") as error:
        run(moved(exe, "c", size))
    assert error.value.code == "check"
    assert error.value.span is not None


def test_a_tensor_larger_than_its_share(exe: Executable) -> None:
    """c reaches into b, which is in use: half an overlap is one."""
    with pytest.raises(RuntimeCheckError, match="memory was given to c"):
        run(moved(exe, "c", max(0, offsets(exe)["b"] - 4)))


@relaxpy.register_library("test.watch.overrun")
def overrun(x: relaxpy.Tensor, out: relaxpy.Tensor) -> None:
    """Copies, and writes four bytes more than its output has."""
    ctypes.memmove(out.pointer, x.pointer, out.nbytes)
    ctypes.memset(out.pointer + out.nbytes, 7, 4)


@pytest.mark.parametrize("result", ["y", "z"])
def test_what_is_written_beside_an_output(result: str) -> None:
    """In planned storage, and in memory that leaves the call."""
    text = f"""
@R.function
def main(x: R.Tensor((16,), "float32")) -> R.Tensor((16,), "float32"):
    y = R.call_dps_library("test.watch.overrun", (x,), out_ty=R.Tensor((16,), "float32"))
    z = R.exp(y)
    return {result}
"""
    vm = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(text)), check_memory=True)
    with pytest.raises(RuntimeCheckError, match="before or behind a piece of memory") as error:
        vm["main"](np.ones(16, np.float32))
    assert "in the binding of y" in error.value.notes[-1]


def test_what_is_overwritten_in_the_middle_of_a_storage() -> None:
    """The library function writes over its neighbour in the one storage that a static plan has."""
    text = """
@R.function
def main(x: R.Tensor((16,), "float32")) -> R.Tensor((16,), "float32"):
    a = R.cumsum(x)
    b = R.cumsum(a)
    c = R.call_dps_library("test.watch.overrun", (b,), out_ty=R.Tensor((16,), "float32"))
    d = R.add(R.add(a, R.cumsum(c)), b)
    return d
"""
    exe = relaxpy.build(relaxpy.parse(text))
    for name, offset in {"c": 0, "a": 64, "b": 128}.items():
        exe = moved(exe, name, offset)
    vm = relaxpy.VirtualMachine(exe, check_memory=True)
    with pytest.raises(RuntimeCheckError, match="a was overwritten while it was in use"):
        vm["main"](np.ones(16, np.float32))


def test_dead_memory_is_filled(exe: Executable) -> None:
    """Without its `kill`s a program gives the same: what is dead is known from the uses."""
    (code,) = exe.functions
    without = tuple(Kill(i.loc, ()) if isinstance(i, Kill) else i for i in code.code)
    np.testing.assert_array_equal(
        run(replace(exe, functions=(replace(code, code=without),))), run(exe, check=False)
    )
