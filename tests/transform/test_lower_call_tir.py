"""LowerCallTIR: allocation and destination-passing calls."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime.executable import load
from relaxpy.runtime.tensor import from_numpy
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.transform import LowerCallTIR, PlanMemory


def test_example() -> None:
    check_example(LowerCallTIR())


def test_a_library_call_and_several_outputs() -> None:
    text = LowerCallTIR()(
        relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", 4), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
    n = T.int64()
    pair = R.call_dps_library("lib.split", (x,), out_ty=[R.Tensor((n,), dtype="float32"), R.Tensor((n, 3), dtype="float32")])
    first = pair[0]
    return first
""")
    ).script()
    assert text.count("R.memory.alloc_tensor(") == 2
    assert "call_dps_library" not in text
    assert "pair_0, pair_1" in text


def test_a_tuple_of_which_only_fields_are_used_is_not_made() -> None:
    """Its fields are planned storage then."""
    script = """
@R.function
def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
    n = T.int64()
    lv = R.call_dps_library(
        "lib.two", (x,), out_ty=[R.Tensor((n,), dtype="float32"), R.Tensor((n,), dtype="float32")]
    )
    a = lv[1]
    y = R.call_dps_library("lib.one", (a,), out_ty=R.Tensor((n,), dtype="float32"))
    return {}
"""
    fields = LowerCallTIR()(relaxpy.parse(script.format("y"))).script()
    assert 'a: R.Tensor((n,), dtype="float32") = lv_1' in fields or "a = lv_1" in fields
    assert "(lv_0, lv_1)" not in fields
    planned = PlanMemory()(LowerCallTIR()(relaxpy.parse(script.format("y")))).script()
    assert planned.count("R.memory.alloc_storage(") == 2
    text = script.format("(lv, y)").replace('-> R.Tensor(("n",), dtype="float32")', "-> R.Object")
    assert "(lv_0, lv_1)" in LowerCallTIR()(relaxpy.parse(text)).script()


def test_an_output_stays_on_its_virtual_device() -> None:
    """Found by `relaxpy fuzz --seed 30031`: the lowered text did not say the device, and did not read as itself."""
    lowered = LowerCallTIR()(
        relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n",), dtype="float32", vdevice="llvm:0:global")) -> R.Object:
    n = T.int64()
    y = R.call_dps_library("lib.one", (x,), out_ty=R.Tensor((n,), dtype="float32", vdevice="llvm:0:global"))
    return y
""")
    )
    assert 'dtype="float32", vdevice="llvm:0:global")' in lowered.script()
    relaxpy.assert_structural_equal(relaxpy.parse(lowered.script()), lowered)


INCREMENT = """    @T.prim_func(private=True)
    def increment(x: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("x"):
                v = T.axis.spatial(n, i)
                x[v] = x[v] + T.float32(1)
"""
"""Adds 1 in place."""

UPDATES = f"""
from relaxpy.script import ir as I, relax as R, tir as T

@I.ir_module
class Module:
{INCREMENT}
    @R.function(pure=False)
    def update(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        n = T.int64()
        cls = Module
        y = R.call_tir_inplace(cls.increment, (x,), out_ty=R.Tensor((n,), "float32"), inplace_indices=[0])
        return y

    @R.function(pure=False)
    def update_first(t: R.Tuple(R.Tensor(("n",), "float32"), R.Tensor(("n",), "float32"))) -> R.Tensor(("n",), "float32"):
        n = T.int64()
        cls = Module
        x = t[0]
        y = R.call_tir_inplace(cls.increment, (x,), out_ty=R.Tensor((n,), "float32"), inplace_indices=[0])
        return y

    @R.function(pure=False)
    def constant() -> R.Tensor((2,), "float32"):
        cls = Module
        y = cls.update(R.const([1.0, 2.0], "float32"))
        return y

    @R.function(pure=False)
    def one_of_two(first: R.Tensor((), "bool"), z: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
        cls = Module
        c = R.const([1.0, 2.0], "float32")
        if first:
            a = c
        else:
            a = z
        y = cls.update(a)
        return y

    @R.function(pure=False)
    def in_a_tuple(z: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
        cls = Module
        t = (R.const([1.0, 2.0], "float32"), z)
        y = cls.update_first(t)
        return y

    @R.function(pure=False)
    def closure(z: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
        cls = Module
        @R.function(pure=False)
        def own(x: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
            u = R.call_tir_inplace(cls.increment, (x,), out_ty=R.Tensor((2,), "float32"), inplace_indices=[0])
            v = R.add(u, z)
            return v
        y = own(R.const([1.0, 2.0], "float32"))
        return y

    @R.function(pure=False)
    def fresh(z: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
        cls = Module
        a = R.call_dps_library("lib.one", (z,), out_ty=R.Tensor((2,), "float32"))
        y = cls.update(a)
        return y
"""


@pytest.mark.parametrize("name", ["constant", "one_of_two", "in_a_tuple", "closure"])
def test_a_constant_that_a_function_updates_stays_what_it_is(tmp_path: Path, name: str) -> None:
    """Each call updates a copy, wherever the constant comes from: also where its memory is a file's."""
    mod = relaxpy.parse(UPDATES)
    exe = relaxpy.build(
        mod.with_functions({n: f for n, f in mod.functions.items() if n != "fresh"})
    )
    exe.save(tmp_path / "m.rxe")
    zeros = np.zeros(2, np.float32)
    args = {"one_of_two": (np.array(True), zeros), "constant": ()}.get(name, (zeros,))
    for machine in (exe, load(tmp_path / "m.rxe")):
        run = relaxpy.VirtualMachine(machine)[name]
        for _ in range(2):
            np.testing.assert_array_equal(run(*args).numpy(), [2, 3])
    for _ in range(2):
        np.testing.assert_array_equal(interpret(mod, name, *args), [2, 3])


def test_what_is_no_constant_is_updated() -> None:
    """Memory of the caller is changed for the caller; what was just allocated needs no look when the program runs."""
    mod = relaxpy.parse(UPDATES)
    exe = relaxpy.build(
        mod.with_functions({n: f for n, f in mod.functions.items() if n != "fresh"})
    )
    z = np.zeros(2, np.float32)
    relaxpy.VirtualMachine(exe)["one_of_two"](np.array(False), z)
    np.testing.assert_array_equal(z, [1, 1])
    fresh = LowerCallTIR()(mod).graph_functions["fresh"]
    assert "vm.builtin.writable" not in fresh.script()


READ_ONLY = f"""
@I.ir_module
class Module:
{INCREMENT}
    @R.function(pure=False)
    def update(x: R.Tensor(("n",), "float32"), z: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        n = T.int64()
        cls = Module
        y = R.call_tir_inplace(cls.increment, (x,), out_ty=R.Tensor((n,), "float32"), inplace_indices=[0])
        return R.add(y, z)

    @R.function(pure=False)
    def through(z: R.Tensor(("n",), "float32"), x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        cls = Module
        y = cls.update(x, z)
        return y
"""


def test_read_only_arrays_are_not_updated(tmp_path: Path) -> None:
    """They are refused, whether the function updates them itself or passes them on; a file that is mapped, too. Those
    that are only read may be read-only."""
    mod = relaxpy.parse(READ_ONLY)
    exe = relaxpy.build(mod)
    exe.save(tmp_path / "m.rxe")
    np.zeros(3, np.float32).tofile(tmp_path / "data")
    fixed = np.zeros(3, np.float32)
    fixed.flags.writeable = False
    mapped = np.memmap(tmp_path / "data", np.float32, "r")
    for vm in (
        relaxpy.VirtualMachine(exe),
        relaxpy.VirtualMachine(relaxpy.load(tmp_path / "m.rxe")),
    ):
        for x in (fixed, mapped, from_numpy(fixed)):
            with pytest.raises(
                RuntimeCheckError, match="update: parameter x: the array is read-only"
            ):
                vm["update"](x, fixed)
            with pytest.raises(RuntimeCheckError, match="the array is read-only"):
                vm["through"](fixed, x)
        assert not fixed.any()
        own = np.zeros(3, np.float32)
        np.testing.assert_array_equal(vm["update"](own, fixed).numpy(), own)
        np.testing.assert_array_equal(own, np.ones(3, np.float32))
        np.testing.assert_array_equal(vm["through"](fixed, own).numpy(), np.full(3, 2, np.float32))
    with pytest.raises(RuntimeCheckError, match="update: parameter x: the array is read-only"):
        interpret(mod, "update", fixed, fixed)
