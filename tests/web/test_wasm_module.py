"""Linking objects of WebAssembly: what the module imports and exports, and objects that are none."""

from __future__ import annotations

import json
from functools import cache

import pytest

import relaxpy
from relaxpy.errors import ExecutableError
from relaxpy.web.wasm_module import HOST, imports, link
from relaxpy.web.wasm_object import DATA, FUNCTION, read_object
from tests.web.support import needs_node, run_node

TEXT = """
@R.function
def main(x: R.Tensor(("n", 5), "float32"), y: R.Tensor(("n",), "float64"), i: R.Tensor((1,), "int64")):
    return (R.nn.softmax(x), R.take(x, i, axis=0), R.floor_mod(y, R.const(0.7, "float64")))
"""
"""A kernel, one that calls a function of the host where an index is out of range, one that calls C's library."""
CALLED = b"__TVMFFIFunctionCall"


@cache
def built() -> relaxpy.Executable:
    return relaxpy.build(relaxpy.parse(TEXT), "wasm")


def symbols() -> dict[str, str]:
    return {info.name: f"__tvm_ffi_{info.image.symbol}" for info in built().kernels}


def test_an_object() -> None:
    """It has the kernel as a function, and pointers to the host's functions as data."""
    found = read_object(next(each for each in built().objects if CALLED in each))
    defined = {each.name for each in found.symbols if each.kind == FUNCTION and each.is_defined}
    assert defined & set(symbols().values())
    pointers = {each.name for each in found.symbols if each.kind == DATA and each.is_defined}
    assert CALLED.decode() in pointers
    assert len(found.segments) == len(found.alignments)


def test_imports() -> None:
    assert imports(built().objects) == {"fmod"}


@needs_node
def test_the_module() -> None:
    """It compiles, exports what was asked for, and imports what its kernels call: the same bytes again."""
    module = link(built().objects, symbols())
    assert module == link(built().objects, symbols())
    found = json.loads(run_node("module.mjs", module.hex()))
    assert set(found["exports"]) == {
        *symbols(),
        "memory",
        "table",
        "__stack_pointer",
        "__heap_base",
    }
    assert {each["module"] for each in found["imports"]} == {"relaxpy"}
    assert {each["name"] for each in found["imports"]} <= {*HOST, "fmod"}
    assert {"fmod", CALLED.decode().removeprefix("__")} <= {
        each["name"] for each in found["imports"]
    }
    assert found["heap"] % 16 == 0
    assert found["heap"] >= 1 << 20


@needs_node
def test_one_object_is_enough() -> None:
    """What other objects define is not looked for."""
    info = built().kernels[0]
    module = link([built().objects[info.image.object]], {"k": f"__tvm_ffi_{info.image.symbol}"})
    assert "k" in json.loads(run_node("module.mjs", module.hex()))["exports"]


def test_mistakes() -> None:
    with pytest.raises(ExecutableError, match="the objects have no function nothing"):
        link(built().objects, {"k": "nothing"})
    with pytest.raises(ExecutableError, match="it is no WebAssembly"):
        link([b"\x7fELF"], {})
    with pytest.raises(ExecutableError, match="it is no relocatable object"):
        link([link(built().objects, symbols())], {})


def test_damaged_objects() -> None:
    """An object that was cut is refused, wherever it was; the name of a section is no text."""
    code = built().objects[0]
    for length in range(8, len(code), 97):
        with pytest.raises(ExecutableError) as caught:
            link([code[:length]], {"k": f"__tvm_ffi_{built().kernels[0].image.symbol}"})
        assert caught.value.code == "object-code"
    with pytest.raises(ExecutableError, match="cannot be read"):
        read_object(code.replace(b"linking", b"\xff" * 7))
