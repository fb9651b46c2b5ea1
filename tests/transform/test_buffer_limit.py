"""How many buffers a launch may take, in modules of one device and of several."""

from __future__ import annotations

import pytest

import relaxpy
from relaxpy.target import Target
from relaxpy.transform.buffer_limit import buffer_limit


def module(*devices: str) -> relaxpy.IRModule:
    table = ", ".join(f'I.vdevice("{device}", 0)' for device in devices)
    info = f'    I.module_global_infos({{"vdevice": [{table}]}})\n' if devices else ""
    return relaxpy.parse(f"""
@I.ir_module
class Module:
{info}
    @R.function
    def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        y = R.exp(x)
        return y
""")


@pytest.mark.parametrize(
    ("devices", "target", "want"),
    [
        ((), None, None),
        ((), "llvm", None),
        ((), "opencl", 48),
        ((), "opencl -max-buffers=9", 9),
        (("llvm",), "llvm", None),
        (("opencl",), "llvm", 48),
        (("llvm", "opencl"), "opencl -max-buffers=9", 9),
        (("opencl -max-buffers=5", "opencl"), "llvm", 5),
    ],
)
def test_the_fewest_of_all_devices(
    devices: tuple[str, ...], target: str | None, want: int | None
) -> None:
    """Which program runs where is not known yet."""
    resolved = None if target is None else Target.parse(target)
    assert buffer_limit(module(*devices), resolved) == want


def test_a_device_that_nobody_compiles_for() -> None:
    """It has no limit; it is an error where something is compiled for it."""
    assert buffer_limit(module("nosuch"), Target.parse("opencl")) == 48
