"""NestLoops: what is captured, and which functions stay as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.runtime.bytecode import Kernel
from relaxpy.testing.before_after import check_example
from relaxpy.testing.differential import Call, check
from relaxpy.testing.interpret import interpret
from relaxpy.testing.pass_check import check_pass
from relaxpy.transform import NestLoops, Normalize


def rand(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32) / 4


def test_example() -> None:
    check_example(NestLoops())


TEXT = """
@I.ir_module
class Module:
    @R.function
    def main(
        n: R.Tensor((), "int64"), x: R.Tensor(("m", 8), "float32"), w: R.Tensor((8, 8), "float32")
    ) -> R.Tensor(("m", 8), "float32"):
        R.func_attr({"num_input": 2})
        cls = Module
        first = cls.loop(n, x, w, R.const([[1, 2, 3, 4, 5, 6, 7, 8]], "float32"))
        return cls.loop(n, first, w, R.const([[8, 7, 6, 5, 4, 3, 2, 1]], "float32"))

    @R.function(private=True)
    def loop(
        n: R.Tensor((), "int64"), x: R.Tensor(("k", "j"), "float32"), w: R.Tensor(("j", "j"), "float32"),
        b: R.Tensor((1, "j"), "float32"),
    ) -> R.Tensor(("k", "j"), "float32"):
        k = T.int64()
        cls = Module
        if n > 0:
            y = R.tanh(R.matmul(x, R.permute_dims(w)) + b)
            r = cls.loop(n - R.const(1, "int64"), y, w, b)
        else:
            r = x
        return r
"""
"""A loop that two calls share, with sizes of its own."""


def test_each_call_has_a_loop_that_knows_its_sizes() -> None:
    mod = relaxpy.parse(TEXT)
    after = NestLoops()(mod)
    assert list(after.functions) == ["main"]
    text = after.script()
    assert text.count("@R.function") == 3
    assert '"k"' not in text
    assert '"j"' not in text
    assert "b:" not in text
    args = [np.array(3), rand(5, 8), rand(8, 8)]
    assert not check([Call(mod, "main", args)])


@pytest.mark.parametrize("way", ["constant", "packed"])
def test_weights_are_packed_before_the_loop(way: str) -> None:
    """Transposed and packed: the loop has one program, which reads panels."""
    mod = relaxpy.parse(
        TEXT.replace("(8, 8)", "(64, 64)")
        .replace(", 8), ", ", 64), ")
        .replace("[1, 2, 3, 4, 5, 6, 7, 8]", str([1.0] * 64))
        .replace("[8, 7, 6, 5, 4, 3, 2, 1]", str([2.0] * 64))
    )
    w = rand(64, 64)
    if way == "constant":
        exe = relaxpy.build(mod, params={"w": w})
        loops = [code for code in exe.functions if code.name != "main"]
        vm = relaxpy.VirtualMachine(exe)
        found = vm["main"](np.array(3), rand(5, 64)).numpy()
    else:
        exe = relaxpy.build(mod, pack=True)
        loops = [code for code in exe.functions if not code.public]
        vm = relaxpy.VirtualMachine(exe)
        found = vm["main"](np.array(3), rand(5, 64), *vm.pack({"w": w})["main"]).numpy()
    names = {
        exe.kernels[i.index].name for code in loops for i in code.code if isinstance(i, Kernel)
    }
    assert any("packed" in name for name in names)
    assert not any("permute" in name or "transpose" in name for name in names)
    np.testing.assert_allclose(
        found, interpret(mod, "main", np.array(3), rand(5, 64), w), rtol=1e-4, atol=1e-5
    )


KEPT = {
    "nothing stays the same": TEXT.replace("y, w, b)", "y, R.negative(w), R.negative(b))"),
    "a public function": TEXT.replace("(private=True)", ""),
    "a value": TEXT.replace("first = cls.loop(", "f = cls.loop\n        first = f("),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_stays(name: str) -> None:
    mod = relaxpy.parse(KEPT[name])
    if name == "a public function":  # others may call it
        assert "loop" in NestLoops()(mod).functions
    else:
        assert NestLoops()(mod) is mod


def test_random_programs() -> None:
    check_pass(NestLoops(), range(40), before=Normalize())


def test_what_is_passed_is_packed_once() -> None:
    """Weights that are no constants, and that no caller packs."""
    text = TEXT.replace("(8, 8)", "(64, 64)").replace(", 8), ", ", 64), ")
    for values, number in (("[1, 2, 3, 4, 5, 6, 7, 8]", 1.0), ("[8, 7, 6, 5, 4, 3, 2, 1]", 2.0)):
        text = text.replace(values, str([number] * 64))
    mod = relaxpy.parse(text)
    exe = relaxpy.build(mod)
    launched = {
        code.name: [exe.kernels[i.index].name for i in code.code if isinstance(i, Kernel)]
        for code in exe.functions
    }
    main = launched.pop("main")
    assert sum("pack" in name for name in main) >= 1
    for names in launched.values():
        assert any(name.endswith("_packed") for name in names)
        assert not any("permute" in name or name.startswith("pack") for name in names)
    args = [np.array(3), rand(5, 64), rand(64, 64)]
    found = relaxpy.VirtualMachine(exe)["main"](*args).numpy()
    np.testing.assert_allclose(found, interpret(mod, "main", *args), rtol=1e-4, atol=1e-5)
