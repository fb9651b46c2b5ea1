"""The devices of a module: what has no backend is refused where the module names it."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import BuildError

MAIN = """
@I.ir_module
class Module:
    TABLE
    @R.function
    def main(x: R.Tensor(("n",), "float32"PLACE)) -> R.Tensor(("n",), "float32"):
        y = R.VALUE
        z = R.exp(y)
        return z
"""


def error_of(table: str = "", place: str = "", value: str = "add(x, x)") -> BuildError:
    """Of a build for this machine."""
    info = f'I.module_global_infos({{"vdevice": [{table}]}})' if table else ""
    text = MAIN.replace("TABLE", info).replace("PLACE", place).replace("VALUE", value)
    with pytest.raises(BuildError) as caught:
        relaxpy.build(relaxpy.parse(text), cache=False)
    assert caught.value.code == "target-kind"
    return caught.value


@pytest.mark.parametrize("table", ["", 'I.vdevice("llvm", 0), I.vdevice("rocm", 0)'])
@pytest.mark.parametrize("name", ['"rocm:0"', '"rocm"', '"rocm:0:global"', 'I.vdevice("rocm")'])
def test_a_parameter_on_a_device_without_a_backend(table: str, name: str) -> None:
    error = error_of(table, f", {name}")
    assert 'no code generator for AMD GPUs ("rocm")' in error.message
    assert error.span is not None
    assert error.span.line == 6
    assert error.span.column == 13
    assert 'a virtual device of the module, I.vdevice("rocm", 0)' in str(error)


def test_a_value_on_a_device_without_a_backend() -> None:
    error = error_of(value='to_vdevice(x, "hexagon:1")')
    assert "Hexagon" in error.message
    assert error.span is not None
    assert error.span.line == 7


@pytest.mark.parametrize("name", ["rocm -arch=gfx90a", {"kind": "rocm", "arch": "gfx90a"}])
def test_a_device_that_is_declared_only(name: object) -> None:
    """Its options are in the note, however they are written."""
    error = error_of(f"I.vdevice({name!r}, 0)")
    assert 'no code generator for AMD GPUs ("rocm")' in error.message
    assert 'I.vdevice("rocm -arch=gfx90a", 0)' in str(error)


def test_a_kind_that_is_misspelt() -> None:
    error = error_of(place=', "opencll:0"')
    assert 'unknown target kind "opencll"' in error.message
    assert error.span is not None
    assert error.span.line == 6


@pytest.mark.parametrize("name", ["llvm:0", "llvm", "c:0"])
def test_the_host_needs_no_table(name: str) -> None:
    """An annotation that names it, in a module that lists no device."""
    text = MAIN.replace("TABLE", "").replace("PLACE", f', vdevice="{name}"')
    vm = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(text.replace("VALUE", "add(x, x)"))))
    np.testing.assert_array_equal(vm["main"](np.zeros(3, np.float32)).numpy(), np.ones(3))
