"""Call sites read from bytecode: what is launched, at which cost, how often."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import relaxpy
from relaxpy.runtime.bytecode import Alloc, Call, Eval, FunctionCode, Instr, Return
from relaxpy.runtime.executable import Executable
from relaxpy.runtime.inspect.launches import BALANCE, Launch, estimate, launches, runs

TEXT = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 64), "float32"), w: R.Tensor((64, 32), "float32")) -> R.Tensor(("n", 32), "float32"):
        a = R.matmul(x, w)
        b = R.nn.softmax(a)
        c = R.nn.softmax(b)
        return c
"""


@pytest.fixture(scope="module")
def exe() -> Executable:
    return relaxpy.build(relaxpy.parse(TEXT))


def found(exe: Executable, **sizes: int) -> list[Launch]:
    return list(launches(exe.functions, exe.kernels, exe.libraries, exe.packed, sizes))


def test_costs_at_sizes(exe: Executable) -> None:
    product, first, second = found(exe, n=10)
    assert (product.name, product.kind, product.place.binding) == ("matmul", "kernel", "a")
    assert product.flops == 2 * 10 * 64 * 32
    assert product.nbytes == 4 * (10 * 64 + 64 * 32 + 10 * 32)
    assert first.name == second.name == "softmax"
    assert first.cost == second.cost == max(first.nbytes or 0, (first.flops or 0) / BALANCE)
    assert [launch.flops for launch in found(exe)] == [None, None, None]


def test_a_launch_says_what_it_writes(exe: Executable) -> None:
    """The allocations of a, b and c, of which c leaves the call."""
    code = exe.function("main")
    written = [launch.writes for launch in found(exe, n=1)]
    names = [code.place(code.code[at]).binding for (at,) in written]
    assert names == ["a", "b", "c"]


def test_a_slot_of_the_heap_is_no_register(exe: Executable) -> None:
    """`Eval` sets the slot of the heap that has the number of a tensor's register: the kernel still writes that tensor."""
    code = exe.function("main")
    at, alloc = next((at, each) for at, each in enumerate(code.code) if isinstance(each, Alloc))
    body = (*code.code[: at + 1], Eval(alloc.loc, alloc.dst, 1), *code.code[at + 1 :])
    with_eval = replace(
        exe, functions=(replace(code, code=body, heap_init=(*code.heap_init, *[0] * 99)),)
    )
    assert [len(launch.writes) for launch in found(with_eval, n=1)] == [1, 1, 1]


def test_the_figures_are_those_of_a_profile(exe: Executable) -> None:
    x, w = np.ones((7, 64), np.float32), np.ones((64, 32), np.float32)
    events = relaxpy.VirtualMachine(exe).profile("main", x, w, repeat=1).events
    assert [(e.name, e.flops, e.nbytes) for e in events] == [
        (launch.name, launch.flops, launch.nbytes) for launch in found(exe, n=7)
    ]


def test_unknown_figures_cost_nothing() -> None:
    assert estimate(None, None) == 0
    assert estimate(BALANCE * 10, 3) == 10
    assert estimate(None, 3) == 3
    assert estimate(10**400, 10**500) == 2.0**900  # figures that no float holds


def function(name: str, *callees: int) -> FunctionCode:
    code: list[Instr] = [Call(-1, 0, index, ()) for index in callees]
    return FunctionCode(name, (), "", 1, (), (), (*code, Return(-1, 0)), (), ())


def test_how_often_functions_run() -> None:
    """f calls g twice, g calls h three times, and h calls f again: a recursive call counts as none."""
    functions = [function("f", 1, 1, 2), function("g", 2, 2, 2), function("h", 0), function("k")]
    assert runs(functions, "f") == {"f": 1, "g": 2, "h": 7}
    assert runs(functions, "k") == {"k": 1}


def test_many_levels_of_calls() -> None:
    """Each function calls the next one twice: 2^200 runs are counted, not walked."""
    functions = [function(f"f{n}", n + 1, n + 1) for n in range(200)] + [function("f200")]
    assert runs(functions, "f0")["f200"] == 2**200
