from __future__ import annotations

import numpy as np
import pytest

from relaxpy.runtime import VirtualMachine
from relaxpy.runtime.bytecode import Alloc, Const, Kernel, Reg, Return
from tests.runtime.devices.test_base import ADD, N, main_of, vm_of
from tests.runtime.devices.test_base import executable as of_toys
from tests.runtime.support import floats
from tests.runtime.toy_device import ToyRuntime, toys


def test_kernels_are_loaded_and_constants_uploaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    body = [
        Const(0, 1, 0, 1),
        Alloc(0, 2, 0, 1, "float32", -1, 0, 1),
        Kernel(0, ADD, (Reg(0), Reg(1), Reg(2)), N),
        Return(0, 2),
    ]
    with toys(monkeypatch) as log:
        before = ToyRuntime.loads
        vm = VirtualMachine(of_toys(main_of(body), constants=(floats(1, 2),)))
        sides = [vm.on(vm.open_queue()) for _ in range(3)]
        assert ToyRuntime.loads == before + 1
        assert log.count("upload") == 1
        for each in (*sides, vm):
            np.testing.assert_array_equal(each(floats(3, 4)).numpy(), [4, 6])


def test_a_queue_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with toys(monkeypatch):
        vm = vm_of([Return(0, 0)])
        side = vm.on(vm.open_queue())
        one, other = vm["main"].linked, side["main"].linked
        assert one.translation is other.translation
        assert one.run.__code__ is other.run.__code__
        assert one.frames is not other.frames
