"""First tries of a new user: each runs, or says what to write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.script import tir as T

MAIN = """
@R.function
def main(x: R.Tensor(("n", 4), "float32")):
    {body}
    return y
"""
X = np.zeros((2, 4), np.float32)


def program(body: str) -> Any:
    return relaxpy.parse(MAIN.format(body=body))


def annotated(annotation: str) -> Any:
    return relaxpy.parse(f"@R.function\ndef main(x: {annotation}):\n    return x\n")


NAMES: dict[str, Any] = {
    "X": X, "annotated": annotated, "nn": nn, "np": np, "program": program, "relaxpy": relaxpy,
    "mod": program("y = R.exp(x)"), "exe": relaxpy.build(program("y = R.exp(x)")),
}  # fmt: skip
NAMES["hidden"] = relaxpy.parse(
    MAIN.format(body="y = R.exp(x)").replace("R.function", "R.function(private=True)")
)
NAMES["vm"] = relaxpy.VirtualMachine(NAMES["exe"])
NAMES["t"] = NAMES["vm"]["main"](X)

TOLD = {
    # what is called
    'vm["main"](np.zeros((2, 4)))': 'x.astype("float32")',
    'vm["main"](X, X)': "takes 1 argument, got 2",
    "vm.run(X)": 'vm["main"](…)',
    'vm.set_input("main", X)': 'vm["main"](…)',
    "vm.main(X)": 'vm["main"]',
    "exe(X)": "relaxpy.VirtualMachine(exe)",
    'exe.export_library("x.so")': "exe.save(path)",
    "mod.mian(X)": "did you mean 'main'",
    "relaxpy.VirtualMachine(mod)": "relaxpy.build(module)",
    "hidden.main(X)": "leave private=True out",
    "mod.update_func(1, 2)": "mod.with_function",
    "mod.__setitem__('f', 1)": "mod.with_function('f'",
    "nn.Linear(2, 2).load('weights.npz')": "numpy.load(path)",
    # what there is
    "relaxpy.compile(mod)": "relaxpy.build(module)",
    "relaxpy.tensor([1])": "numpy's arrays",
    "relaxpy.buidl(mod)": "did you mean 'build'",
    "relaxpy.from_torch": "relaxpy.nn",
    # what is built
    'relaxpy.build(mod, target="cuda")': "no code generator for NVIDIA GPUs",
    'relaxpy.build(mod, target="vulkan")': "no code generator for Vulkan",
    'relaxpy.build(mod, target="cpu")': 'target="llvm"',
    'relaxpy.build(mod, target="lvm")': "did you mean llvm",
    "relaxpy.build(mod, params=[X])": 'params={"weight": array}',
    'relaxpy.build(mod, pipeline="default")': "a pipeline is a sequence of passes",
    'relaxpy.VirtualMachine(exe, "cuda")': "others come with packages",
    # results
    "t.mean()": "t.numpy().mean",
    "t.cpu()": "t.numpy()",
    "t.nothing": "no attribute 'nothing'",
    # the language
    'program("y = R.zeros((2, 2), float32)")': 'write it in quotes: "float32"',
    'program("y = R.astype(x, np.float16)")': 'write it in quotes: "float16"',
    'program("y = R.relu(x)")': "R.nn.relu",
    "annotated(\"Tensor((4,), 'float32')\")": "write R.Tensor",
    'annotated("R.Tensor((None, 4))")': '"n"',
    "annotated(\"R.Tensor((4,), 'float')\")": 'write its width: "float32"',
    "annotated(\"R.Tensor((4,), 'int4')\")": "int8 or uint8",
    # layers
    "nn.ReLU()": "nn.op.nn.relu(x)",
    "nn.Sequential()": "nn.ModuleList",
    "nn.Dropout(0.1)": "leave it out",
    "nn.functional.relu": "nn.op.nn.relu(x)",
    "nn.Lineer(2, 2)": "did you mean 'Linear'",
    "nn.Linear(2, 2).state_dict()": "named_parameters()",
    "nn.Linear(2, 2).load_state_dict({})": "model.load(state)",
    'nn.Linear(2, 2).to("cuda")': "model.export(spec)",
    "nn.Linear(2, 2).export_tvm({})": "model.export(spec)",
    "nn.Linear(2, 2).wieght": "no attribute 'wieght'",
}


@pytest.mark.parametrize("code", TOLD)
def test_a_try_is_told_what_to_write(code: str) -> None:
    with pytest.raises((relaxpy.RelaxError, AttributeError)) as caught:
        eval(code, dict(NAMES))
    assert TOLD[code] in str(caught.value)


def test_arrays_around_a_tensor_program_are_in_nobodys_way() -> None:
    """Names of its parameters may be arrays of the Python around."""
    x = y = X

    @T.prim_func
    def twice(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.sblock("y"):
                v = T.axis.spatial(4, i)
                y[v] = x[v] + x[v]

    assert "twice" not in relaxpy.IRModule({"f": twice})
    assert x is y


RUNS = {
    "mod.main(X).numpy()": np.exp(X),
    "mod(X).numpy()": np.exp(X),
    "vm(X).numpy()": np.exp(X),
    "t + 1": np.exp(X) + 1,
    "1 / t": 1 / np.exp(X),
    "t == 1": np.ones((2, 4), bool),
    "t @ X.T": np.exp(X) @ X.T,
    "np.sqrt(t)": np.sqrt(np.exp(X)),
    "np.stack([t, t])": np.stack([np.exp(X)] * 2),
    "program('y = R.where(x > 0, x, 2)')(X).numpy()": np.full((2, 4), 2, np.float32),
    "program('y = R.where(x > 0, 1, 2.5)')(X).numpy()": np.full((2, 4), 2.5, np.float32),
    "program('y = R.where(x > 0, 1, 2)')(X).numpy()": np.full((2, 4), 2),
}


@pytest.mark.parametrize("code", RUNS)
def test_a_try_runs(code: str) -> None:
    got = eval(code, dict(NAMES))
    assert got.dtype == RUNS[code].dtype
    np.testing.assert_allclose(got, RUNS[code], rtol=1e-6)


def test_results_are_updated_and_hashed_as_objects() -> None:
    t = NAMES["vm"]["main"](X)
    same = t
    t += 1
    assert t is same
    np.testing.assert_array_equal(t.numpy(), np.exp(X) + 1)
    assert {t: 1}[t] == 1


def test_a_module_prints_as_script() -> None:
    text = str(NAMES["mod"])
    assert "R.exp(x)" in text
    assert "main" in relaxpy.parse(text)
