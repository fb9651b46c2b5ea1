"""Memory plans read from bytecode: sizes, lifetimes, what is missing, the table and the picture; and that the virtual
machine allocates what is said."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

import relaxpy
from relaxpy.build.plan import memory_plan
from relaxpy.errors import UsageError
from relaxpy.ir import IRModule
from relaxpy.runtime.inspect.timeline import NAMESPACE
from relaxpy.runtime.inspect.units import shown

K = 1 << 10
TEXT = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 64), "float32"), w: R.Tensor((64, 256), "float32")) -> R.Tensor(("n", 256), "float32"):
        a = R.cumsum(x, axis=0)
        b = R.matmul(a, w)
        c = R.cumsum(b, axis=0)
        d = R.cumsum(c, axis=1)
        return d

    @R.function
    def both(x: R.Tensor(("m",), "float32")) -> R.Tuple(R.Tensor(("m",), "float32"), R.Tensor(("m",), "float32")):
        y = R.cumsum(x)
        z = R.cumsum(y)
        return (y, z)
"""


@pytest.fixture(scope="module")
def mod() -> IRModule:
    return relaxpy.parse(TEXT)


def test_sizes(mod: IRModule) -> None:
    """a and b and c: 64 n, 256 n, 256 n floats, of which two are in use at a time; d leaves the call."""
    plan = memory_plan(mod, bounds={"n": 1024, "m": 16})
    main = plan["main"]
    assert main.sizes == {"n": 1024}
    assert [(t.name, t.nbytes, t.storage) for t in main.tensors] == [
        ("a", 256 * K, 0), ("b", 1024 * K, 0), ("c", 1024 * K, 0), ("d", 1024 * K, -1)
    ]  # fmt: skip
    assert main.planned == main.least == 2048 * K
    assert main.unshared == (256 + 2 * 1024) * K
    assert main.unplanned == 1024 * K
    assert main.peak == plan.peak == 3072 * K
    both = plan["both"]
    assert (both.planned, both.unplanned) == (0, 2 * 16 * 4)


def test_without_bounds_it_is_said_for_sizes(mod: IRModule) -> None:
    """The same expressions, evaluated: a takes turns with c, whose memory is larger."""
    for n in (0, 1, 100):
        main = memory_plan(mod, sizes={"n": n, "m": 1})["main"]
        assert main.planned == main.least == n * 4 * (256 + 256)


def test_what_is_missing_is_said(mod: IRModule) -> None:
    with pytest.raises(UsageError, match=r"main: the size of .* depends on n") as error:
        memory_plan(mod)
    assert error.value.code == "plan-sizes"
    assert error.value.help is not None
    assert "--size n=2048" in error.value.help
    assert "--bound n=2048" in error.value.help
    with pytest.raises(UsageError, match="no function has a size 'q'"):
        memory_plan(mod, bounds={"n": 4, "m": 4}, sizes={"q": 3})


@pytest.mark.parametrize("n", [1, 1000])
def test_the_machine_allocates_what_is_planned(mod: IRModule, n: int) -> None:
    exe = relaxpy.build(mod, bounds={"n": 1000, "m": 1})
    vm = relaxpy.VirtualMachine(exe)
    result = vm["main"](np.ones((n, 64), np.float32), np.ones((64, 256), np.float32))
    planned = exe.memory_plan(n=n)["main"]
    use = vm.memory
    assert planned.planned <= use.planned <= planned.planned + 4096
    if n == 1000:
        assert planned.unplanned <= use.results <= planned.unplanned + 4096
        assert abs(use.peak - planned.peak) <= 8192
    del result
    assert vm.memory.results == 0
    assert vm.release_memory() >= planned.planned
    assert vm.memory.total == 0


def test_it_comes_from_a_file_too(mod: IRModule, tmp_path) -> None:  # type: ignore[no-untyped-def]
    exe = relaxpy.build(mod, bounds={"n": 1000, "m": 1})
    exe.save(tmp_path / "program.rxe")
    again = relaxpy.load(tmp_path / "program.rxe")
    assert (
        str(again.memory_plan())
        == str(exe.memory_plan())
        == str(memory_plan(mod, bounds={"n": 1000, "m": 1}, inside_kernels=True))
    )


def test_the_table(mod: IRModule) -> None:
    lines = str(memory_plan(mod, bounds={"n": 1024, "m": 16})).splitlines()
    assert lines[0].split() == "function at planned least unshared workspace results peak".split()
    assert re.sub(r" {2,}", "|", lines[1]) == (
        "main|n=1024|2048.0 KiB|2048.0 KiB|2304.0 KiB|0 B|1024.0 KiB|3072.0 KiB"
    )
    assert lines[-1] == "weights 0 B, with the largest function 3072.0 KiB"


def test_the_picture(mod: IRModule) -> None:
    """Valid SVG with a rectangle for each planned tensor, none of them over another."""
    plan = memory_plan(mod, bounds={"n": 1024, "m": 16})
    root = ElementTree.fromstring(plan.svg())
    groups = root.findall(f"{{{NAMESPACE}}}g")
    titles = [g.findtext(f"{{{NAMESPACE}}}title") or "" for g in groups]
    assert [title.split(":")[0] for title in titles] == ["a", "b", "c"]
    boxes = []
    for group in groups:
        box = group.find(f"{{{NAMESPACE}}}rect")
        assert box is not None
        boxes.append([float(box.attrib[key]) for key in ("x", "y", "width", "height")])
    for i, (x, y, width, height) in enumerate(boxes):
        for x2, y2, width2, height2 in boxes[:i]:
            apart = x >= x2 + width2 - 0.2 or x2 >= x + width - 0.2
            assert apart or y >= y2 + height2 - 0.2 or y2 >= y + height - 0.2
    assert plan._repr_svg_() == plan.svg()


def test_without_planning(mod: IRModule) -> None:
    """Each tensor in a storage of its own, alive as long as before."""
    plan = memory_plan(mod, bounds={"n": 1024, "m": 16})
    before, after = plan.apart()["main"], plan["main"]
    assert before.planned == after.unshared > after.planned
    assert before.least == after.least
    assert before.unplanned == after.unplanned
    planned = [t for t in before.tensors if t.storage >= 0]
    assert [t.storage for t in planned] == list(range(len(before.storages)))
    assert [t.nbytes for t in planned] == list(before.storages)
    assert {(t.name, t.begin, t.end) for t in before.tensors} == {
        (t.name, t.begin, t.end) for t in after.tensors
    }
    ElementTree.fromstring(plan.apart().svg())


@pytest.mark.parametrize(
    ("nbytes", "text"), [(0, "0 B"), (9999, "9999 B"), (10_240, "10.0 KiB"), (15 << 20, "15.0 MiB")]
)
def test_numbers_for_people(nbytes: int, text: str) -> None:
    assert shown(nbytes) == text
