"""Virtual devices in a script: each name means an entry of the module's table, or is a located error."""

from __future__ import annotations

from typing import Any

import pytest

import relaxpy
from relaxpy.errors import RelaxError
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.expr import Call, Function

TABLE = (
    'I.vdevice("llvm", 0), I.vdevice({"kind": "cuda", "arch": "sm_80"}, 0), I.vdevice("cuda", 3)'
)
MODULE = """
@I.ir_module
class Module:
    I.module_global_infos({"vdevice": [TABLE]})

    @R.function(pure=False)
    def main(x: R.Tensor(("n",), "float32"PLACE)):
        n = T.int64()
        y = VALUE
        return y
"""


def main_of(value: str = "x", place: str = "", table: str = TABLE) -> Function:
    text = MODULE.replace("TABLE", table).replace("PLACE", place).replace("VALUE", value)
    mod = relaxpy.parse(text)
    assert relaxpy.structural_equal(relaxpy.parse(mod.script()), mod)
    function = mod["main"]
    assert isinstance(function, Function)
    return function


def device_of(annotation: Any) -> str | None:
    assert isinstance(annotation, TensorType)
    return annotation.vdevice


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ('"vdevice:1"', "cuda -arch=sm_80:0:global"),
        ('"cuda:0"', "cuda -arch=sm_80:0:global"),
        ('"cuda"', "cuda -arch=sm_80:0:global"),
        ('"cuda:1"', "cuda:3:global"),
        ('"cuda:3"', "cuda:3:global"),
        ('"llvm"', "llvm:0:global"),
        ('I.vdevice("cuda", 3)', "cuda:3:global"),
    ],
)
def test_names(name: str, device: str) -> None:
    """In an annotation, in `R.to_vdevice`, and in memory of the program's own."""
    assert device_of(main_of(place=f", {name}").params[0].annotation) == device
    for value in (
        f"R.to_vdevice(x, {name})",
        f"R.memory.copy_to(x, vdevice={name})",
        f'R.memory.alloc_tensor(R.shape([n]), dtype="float32", vdevice={name})',
    ):
        binding = main_of(value).body.blocks[0].bindings[0]
        assert device_of(binding.var.annotation) == device


@pytest.mark.parametrize(
    ("index", "device"),
    [("0", "llvm:0:global"), ("1", "cuda -arch=sm_80:0:global"), ("2", "cuda:3:global"), ("-1", "llvm:0:global")],
)  # fmt: skip
def test_allocations_of_tvm_count_the_entries(index: str, device: str) -> None:
    for value in (
        f'R.builtin.alloc_tensor(R.shape([n]), R.dtype("float32"), R.prim_value({index}), R.str("global"))',
        f'R.builtin.alloc_tensor(R.shape([n]), dtype="float32", runtime_device_index={index})',
        f'R.vm.alloc_tensor(s, R.prim_value(0), R.shape([n]), R.dtype("float32"), R.prim_value({index}))',
    ):
        storage = f'R.vm.alloc_storage(R.shape([4 * n]), R.prim_value({index}), R.dtype("uint8"))'
        block = main_of(value.replace("(s,", f"({storage},")).body.blocks[0]
        assert device_of(block.bindings[-1].var.annotation) == device


def test_storage_is_of_the_entry() -> None:
    for call in (
        'R.vm.alloc_storage(R.shape([4 * n]), R.prim_value(1), R.dtype("uint8"), R.str("global"))',
        'R.memory.alloc_storage(R.shape([4 * n]), virtual_device_index=1, storage_scope="global", dtype="uint8")',
    ):
        value = main_of(call).body.blocks[0].bindings[0].value
        assert isinstance(value, Call)
        assert value.op.vdevice == "cuda -arch=sm_80:0:global"  # type: ignore[union-attr]


def test_a_module_without_a_table_has_one_device() -> None:
    call = 'R.builtin.alloc_tensor(R.shape([n]), R.dtype("float32"), R.prim_value(0))'
    assert device_of(main_of(call, table="").body.blocks[0].bindings[0].var.annotation) is None


@pytest.mark.parametrize(
    ("value", "word", "column"),
    [
        ('R.to_vdevice(x, "vdevice:3")', "no virtual device 3", 28),
        ('R.to_vdevice(x, "cuda:x")', "'cuda:x' is no name", 28),
        ("R.to_vdevice(x, 3)", "got 3", 28),
        ('R.memory.copy_to(x, vdevice="")', "'' is no name", 40),
        ('R.hint_on_device(x, "cuda:one")', "'cuda:one' is no name", 32),
        ('R.builtin.alloc_tensor(R.shape([n]), R.dtype("float32"), R.prim_value(3))', "no virtual device 3", 12),
        ('R.builtin.alloc_tensor(R.shape([n]), R.dtype("float32"), R.prim_value(-2))', "a device is the number", 12),
        ('R.vm.alloc_storage(R.shape([n]), R.str("cuda"))', "a device is the number", 12),
    ],
)  # fmt: skip
def test_errors_are_located(value: str, word: str, column: int) -> None:
    with pytest.raises(RelaxError, match=word) as caught:
        main_of(value)
    span = caught.value.span
    assert span is not None
    assert (span.line, span.column) == (9, column)


@pytest.mark.parametrize("place", [', "vdevice:3"', ', "cuda:x"', ', vdevice=""'])
def test_an_annotation_that_names_none(place: str) -> None:
    with pytest.raises(RelaxError) as caught:
        main_of(place=place)
    assert caught.value.code == "device-name"
    assert caught.value.span is not None
    assert caught.value.span.line == 7


@pytest.mark.parametrize(
    "entry", ['"cpu:0"', "3", 'I.vdevice("", 0)', 'I.vdevice("llvm", -1)', 'I.vdevice("llvm", "x")', 'I.vdevice(3)',
              'I.vdevice("llvm", 0, "a:b")']
)  # fmt: skip
def test_a_table_of_something_else(entry: str) -> None:
    with pytest.raises(RelaxError) as caught:
        main_of(table=entry)
    assert caught.value.code in ("device-name", "bad-value")
    assert caught.value.span is not None
    assert caught.value.span.line == 4
