"""Donated parameters: results are written over them where nothing reads them later, and numbers stay what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RelaxError, RuntimeCheckError
from relaxpy.narrow import is_tuple
from relaxpy.testing.interpret import interpret

HEAD = """
@R.function
def main(w: R.Tensor(("n", 3), "float32"), x: R.Tensor(("n", 3), "float32"),
         s: R.Tuple(R.Tensor((), "int64"), R.Tuple(R.Tensor(("n", 3), "float32"), R.Tensor(("n", 3), "float32")))):
    R.func_attr({"donated": ["w", "s"]})
"""


def program(body: str, result: str) -> str:
    return HEAD + "".join(f"    {line}\n" for line in (*body.split("; "), f"return {result}"))


def arguments(n: int) -> list[Any]:
    rng = np.random.default_rng(n)
    w, x, a, b = (rng.uniform(0.5, 2, (n, 3)).astype(np.float32) for _ in range(4))
    return [w, x, (np.asarray(n, np.int64), (a, b))]


def leaves(value: Any) -> list[Any]:
    return [leaf for each in value for leaf in leaves(each)] if is_tuple(value) else [value]


MOMENTUM = 'a = s[1][0]; v = a * R.const(0.9, "float32") + x; y = w - v'
CASES: dict[str, tuple[str, str, list[str]]] = {
    "a weight and a field of its state": (MOMENTUM, "(y, (s[0], (v, s[1][1])))", ["w", "a"]),
    "both fields": (f"{MOMENTUM}; u = R.sqrt(s[1][1])", "(y, v, u)", ["w", "a", "b"]),
    "read before": ("z = R.sum(w); y = R.multiply(w, z)", "y", ["w"]),
    "read later": ("y = R.exp(w); z = R.sum(w)", "(y, z)", []),
    "a result, too": ("y = R.exp(w)", "(y, w)", []),
    "a part of a result": ("y = R.exp(s[1][0])", "(y, s)", []),
    "a view of it is read later": (
        "r = R.reshape(w, R.shape([3, n])); y = R.exp(w); z = R.matmul(y, r)",
        "(y, z)",
        [],
    ),
    "another size": ("y = R.concat((w, w), axis=0)", "R.exp(y)", []),
    "another order": ("y = R.flip(w, axis=0)", "y", []),
    "two results of one": ("y = R.exp(w); z = R.sqrt(w)", "(y, z)", ["w"]),
    "one result of two": ("y = R.add(w, s[1][1])", "y", ["w"]),
    "nothing to overwrite": ("y = R.exp(x)", "y", []),
}


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("name", CASES)
def test_what_is_overwritten(name: str, n: int) -> None:
    body, result, overwritten = CASES[name]
    body = f"n = T.int64(); {body}" if "shape([" in body else body
    mod = relaxpy.parse(program(body, result))
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, target="llvm -opt-level=0"))
    want = leaves(interpret(mod, "main", *arguments(n)))
    given = arguments(n)
    kept = [each.copy() for each in leaves(tuple(given))]
    found = vm["main"](*given)
    for got, each in zip(leaves(found), want, strict=True):
        np.testing.assert_allclose(got.numpy(), each, rtol=1e-6)
    changed = [
        label
        for label, now, before in zip("wx_ab", leaves(tuple(given)), kept, strict=True)
        if not np.array_equal(now, before)
    ]
    assert changed == overwritten
    tensors = [each.numpy() for each in leaves(found)]
    names = dict(zip("wx_ab", leaves(tuple(given)), strict=True))
    for label in overwritten:
        assert any(np.shares_memory(names[label], each) for each in tensors)


def test_it_prints_saves_and_comes_back(tmp_path: Any) -> None:
    mod = relaxpy.parse(program(MOMENTUM, "y"))
    assert "donated" in mod.script()
    assert relaxpy.parse(mod.script()).script() == mod.script()
    path = tmp_path / "step.rxe"
    relaxpy.build(mod, target="llvm -opt-level=0").save(path)
    w, x, s = arguments(3)
    y = relaxpy.VirtualMachine(relaxpy.load(path))["main"](w, x, s)
    assert any(np.shares_memory(y.numpy(), each) for each in (w, s[1][0]))


def test_memory_is_the_functions_own() -> None:
    vm = relaxpy.VirtualMachine(
        relaxpy.build(relaxpy.parse(program(MOMENTUM, "y")), target="llvm -opt-level=0")
    )
    w, x, s = arguments(3)
    with pytest.raises(RuntimeCheckError, match="share memory") as shared:
        vm["main"](w, w, s)
    assert shared.value.code == "update-shared"
    with pytest.raises(RuntimeCheckError, match="two tensors in s share memory"):
        vm["main"](w, x, (s[0], (s[1][0], s[1][0])))
    x.flags.writeable = False
    vm["main"](w, x, s)
    w.flags.writeable = False
    with pytest.raises(RuntimeCheckError, match="parameter w: the array is read-only"):
        vm["main"](w, x, s)


WRONG = {
    "no list": ('"w"', "must be a list"),
    "no parameter": ('["v"]', "names 'v', and the parameters are w, x, s"),
    "no number": ("[0]", "names 0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_names_are_checked(name: str) -> None:
    value, message = WRONG[name]
    with pytest.raises(RelaxError, match=message) as error:
        relaxpy.parse(program("y = R.exp(w)", "y").replace('["w", "s"]', value))
    assert error.value.code == "wf-attribute"


@pytest.mark.parametrize(
    "kind", ["R.Object", 'R.Tensor("float32")', "R.Tensor((2, 3))", "R.Shape([2])"]
)
def test_donated_are_tensors(kind: str) -> None:
    text = f"""
@R.function
def main(w: {kind}) -> R.Object:
    R.func_attr({{"donated": ["w"]}})
    return w
"""
    with pytest.raises(RelaxError, match="a tensor of known shape and dtype"):
        relaxpy.parse(text)


def test_it_is_called_from_outside() -> None:
    text = """
@I.ir_module
class Module:
    @R.function
    def step(w: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
        R.func_attr({"donated": ["w"]})
        return R.exp(w)

    @R.function
    def main(w: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
        cls = Module
        y = cls.step(w)
        return R.add(y, w)
"""
    with pytest.raises(RelaxError, match="step overwrites parameters that are donated"):
        relaxpy.parse(text)
