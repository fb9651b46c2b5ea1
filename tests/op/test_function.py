"""The functions of operators show their signatures, types and docstrings, and are found by name."""

from __future__ import annotations

import copy
import difflib
import importlib
import inspect
import pickle
import pydoc
import typing
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.errors import DeduceError, RelaxError
from relaxpy.ir import Call, DType, TensorType, Var
from relaxpy.op import OPS, Op
from relaxpy.op.base import Sample, define_op
from relaxpy.op.function import function_of, functions, operator_of
from relaxpy.script import relax as R
from relaxpy.script.dialects.lowered import SPELLINGS

SHOWN = {
    "matmul": "(x1: 'TensorLike', x2: 'TensorLike', out_dtype: 'DTypeLike | None' = None) -> 'Call'",
    "add": "(x1: 'Operand', x2: 'Operand') -> 'Call'",
    "reshape": "(x: 'TensorLike', shape: 'ShapeLike') -> 'Call'",
    "concat": "(tensors: 'TupleLike', axis: 'int | None' = 0) -> 'Call'",
    "sum": "(x: 'TensorLike', axis: 'Sequence[int] | int | None' = None, keepdims: 'bool' = False) -> 'Call'",
    "linear": "(data: 'TensorLike', weight: 'TensorLike', bias: 'TensorLike | None' = None, "
    "out_dtype: 'DTypeLike | None' = None) -> 'Call'",
    "zeros": "(shape: 'ShapeLike', dtype: 'DTypeLike') -> 'Call'",
    "clip": "(x: 'TensorLike', min: 'ScalarLike', max: 'ScalarLike') -> 'Call'",
    "print": "(*values: 'ExprLike', format: 'str' = '') -> 'Call'",
    "assert_op": "(condition: 'ExprLike', /, *values: 'ExprLike', "
    "format: 'str' = 'the assertion does not hold') -> 'Call'",
    "nn.softmax": "(data: 'TensorLike', axis: 'int' = -1) -> 'Call'",
    "memory.copy_to": "(*args: 'ExprLike', vdevice: 'str') -> 'Call'",
}


@pytest.mark.parametrize("name", SHOWN)
def test_signatures(name: str) -> None:
    assert str(inspect.signature(function_of(OPS[name]))) == SHOWN[name]


@pytest.mark.parametrize("name", OPS)
def test_every_function_is_described(name: str) -> None:
    """Real parameters with types, a docstring, its name; what a call with these parameters binds to is accepted."""
    function = function_of(OPS[name])
    parameters = inspect.signature(function).parameters
    assert all(each.annotation and each.annotation != "Any" for each in parameters.values())
    assert inspect.getdoc(function) == inspect.cleandoc(OPS[name].__doc__ or "") != ""
    assert function.__name__ == name.rpartition(".")[2]
    assert list(typing.get_type_hints(function)) == [*parameters, "return"]
    assert typing.get_type_hints(function)["return"] is Call
    assert f"{function.__name__}(" in pydoc.render_doc(function, renderer=pydoc.plaintext)
    assert f"class {OPS[name].__name__}" in inspect.getsource(function)
    assert copy.deepcopy(function) is function
    if name not in SPELLINGS:
        assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.parametrize("name", functions())
def test_there_is_one_function_of_a_name(name: str) -> None:
    """In `relaxpy.op` and R it is the same function; that of `nn.op` has the same parameters."""
    found, in_script, on_tensors = relaxpy.op, R, nn.op
    for part in name.split("."):
        found, in_script = getattr(found, part), getattr(in_script, part)
        on_tensors = getattr(on_tensors, part)
    assert found is in_script is function_of(OPS[name])
    assert operator_of(found) is OPS[name]
    given = inspect.signature(found).parameters
    assert list(inspect.signature(on_tensors).parameters.values()) == list(given.values())
    assert pickle.loads(pickle.dumps(on_tensors)) is on_tensors
    assert typing.get_type_hints(on_tensors)
    assert on_tensors.__doc__ == found.__doc__


def test_samples_bind() -> None:
    """The parameters of a signature take what the samples of the operator give."""
    for name in functions():
        if name in ("print", "assert_op"):
            continue  # values by position, of any number
        signature = inspect.signature(function_of(OPS[name]))
        samples: list[Sample] = [s for s in OPS[name].samples() if not s.code]
        for sample in samples:
            signature.bind(*sample.inputs, **vars(sample.op))


def test_names_come_from_the_table() -> None:
    tops = {name.split(".")[0] for name in functions()}
    assert tops <= set(dir(relaxpy.op)) == set(relaxpy.op.__all__)
    assert {name.split(".")[0] for name in OPS} <= set(dir(R))
    assert "alloc_tensor" in dir(R.memory)
    assert tops <= set(dir(nn.op))
    assert dir(relaxpy.op.nn) == dir(nn.op.nn) == relaxpy.op.nn.__all__
    assert "softmax" in dir(relaxpy.op.nn)


def test_namespaces_are_modules() -> None:
    module = importlib.import_module("relaxpy.op.nn")
    assert module is relaxpy.op.nn
    space: dict[str, object] = {}
    exec("from relaxpy.op.grad import *; from relaxpy.op.nn import relu", space)
    assert space["relu"] is relaxpy.op.nn.relu
    assert space["take_backward"] is relaxpy.op.grad.take_backward


@pytest.mark.parametrize(
    ("path", "match"),
    [
        ("matmull", "did you mean 'matmul'"),
        ("nn.relux", "did you mean 'nn.relu'"),
        ("softmax", "did you mean 'nn.softmax'"),
        ("unsqueeze", "write op.expand_dims\\(x, axis=1\\) for x.unsqueeze"),
        ("nn.cat", "write op.concat\\(\\[x, y\\], axis=1\\) for torch.cat"),
        ("zzz", "zzz"),
    ],
)
def test_an_unknown_name_is_an_attribute_error(path: str, match: str) -> None:
    *spaces, name = path.split(".")
    owner = relaxpy.op
    for space in spaces:
        owner = getattr(owner, space)
    with pytest.raises(AttributeError, match=match):
        getattr(owner, name)


@pytest.mark.parametrize("owner", [relaxpy, relaxpy.nn, relaxpy.op, relaxpy.op.nn])
def test_tools_that_ask_modules_wait_for_no_hint(
    owner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`inspect` looks at `__file__` of all modules whenever it looks for a place in the source."""

    def search(*_: object) -> None:
        raise AssertionError("a search for names that are similar")

    monkeypatch.setattr(difflib, "get_close_matches", search)
    assert not hasattr(owner, "__wrapped__")


def test_a_wrong_call_is_an_error_of_ours() -> None:
    x = Var("x", TensorType((2, 3), "float32"))
    with pytest.raises(DeduceError, match="needs x2"):
        relaxpy.op.matmul(x)
    with pytest.raises(DeduceError, match="no argument 'axes'"):
        relaxpy.op.nn.softmax(x, axes=1)
    call = relaxpy.op.matmul(x, np.ones((3, 2), np.float32), out_dtype="float32")
    assert call.op == OPS["matmul"](DType("float32"))


def test_an_operator_of_another_package_is_found() -> None:
    """One that is defined later, in a namespace of its own, with types as objects instead of text."""

    def deduce(self: object, d: object, x: TensorType) -> TensorType:
        return x

    body = {
        "__doc__": "x, louder.",
        "__annotations__": {"by": float, "kind": DType | None},
        "name": "sound.gain",
        "by": 2.0,
        "kind": None,
        "deduce": deduce,
        "legalize": None,
        "reference": lambda self, x: x,
        "samples": classmethod(lambda cls: iter(())),
    }
    gain = define_op(type("Gain", (Op,), body))
    try:
        found = relaxpy.op.sound.gain
        assert found is R.sound.gain
        assert "sound" in dir(relaxpy.op)
        assert "sound" in dir(nn.op)
        assert dir(nn.op.sound) == ["gain"]
        shown = "(x: 'TensorLike', by: 'float' = 2.0, kind: 'DTypeLike | None' = None)"
        assert str(inspect.signature(found)) == f"{shown} -> 'Call'"
        assert str(inspect.signature(nn.op.sound.gain)) == f"{shown} -> 'Tensor'"
        assert pickle.loads(pickle.dumps(found)) is found
    finally:
        del OPS[gain.name], relaxpy.op.sound


def test_a_file_cannot_have_the_name_of_its_namespace() -> None:
    body = {
        "__module__": "relaxpy.op.sound",
        "name": "sound.gain",
        "deduce": lambda self, d: None,
        "legalize": None,
        "reference": lambda self: None,
        "samples": classmethod(lambda cls: iter(())),
    }
    with pytest.raises(RelaxError, match=r"clashes with relaxpy\.op\.sound"):
        define_op(type("Gain", (Op,), body))
    assert "sound.gain" not in OPS
