"""The option `pack` of a build: names of weights, and what cannot be packed."""

from __future__ import annotations

from typing import Any

import pytest

import relaxpy
from relaxpy.build.pack_option import with_packed_params
from relaxpy.errors import UsageError, VerifyError
from relaxpy.ir.module import IRModule


def module(attrs: str = "", caller: str = "") -> IRModule:
    return relaxpy.parse(f"""
from relaxpy.script import ir as I, relax as R

@I.ir_module
class Module:
    @R.function
    def main(
        x: R.Tensor((2, 3), "float32"), w: R.Tensor((3, 4), "float32"), s: R.Shape([2])
    ) -> R.Tensor((2, 4), "float32"):
        R.func_attr({{{attrs}}})
        y = R.matmul(x, w)
        return y

    @R.function
    def other(w: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
        y = R.add(w, w)
        return y
{caller}""")


def names(mod: IRModule) -> dict[str, Any]:
    return {name: f.attrs.get("packed_params") for name, f in mod.graph_functions.items()}


def test_the_parameters_after_the_inputs() -> None:
    found = names(with_packed_params(module('"num_input": 1'), True))
    assert found == {"main": ["w"], "other": None}  # a shape is no weight


def test_names() -> None:
    assert names(with_packed_params(module(), ["w"])) == {"main": ["w"], "other": ["w"]}
    assert names(with_packed_params(module(), ["other.w"])) == {"main": None, "other": ["w"]}
    assert names(with_packed_params(module('"packed_params": ["w"]'), False))["main"] == ["w"]


def test_nothing_to_pack_changes_nothing() -> None:
    mod = module('"num_input": 1')
    assert with_packed_params(mod, False) is mod


@pytest.mark.parametrize(
    ("pack", "attrs", "match"),
    [
        (True, "", "no function says"),
        ("w", "", r"pack is True or a list"),
        (3, "", r"pack is True or a list"),
        (["v"], "", "no public function has a parameter 'v'"),
        (["main.y"], "", "no public function has a parameter 'main.y'"),
        (["s"], "", "only tensors are packed"),
        (False, '"packed_params": ["v"]', "main has no parameter 'v'"),
    ],
)
def test_errors(pack: Any, attrs: str, match: str) -> None:
    with pytest.raises(UsageError, match=match) as caught:
        with_packed_params(module(attrs), pack)
    assert caught.value.code == "pack"


def test_a_called_function_is_refused_by_name() -> None:
    caller = """
    @R.function
    def caller(x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
        cls = Module
        y = cls.other(x)
        return y
"""
    with pytest.raises(UsageError, match="other is called by a function"):
        with_packed_params(module(caller=caller), ["other.w"])


def test_the_attribute_is_a_list() -> None:
    with pytest.raises(VerifyError, match="a list of names of parameters, got 'w'"):
        module('"packed_params": "w"')
