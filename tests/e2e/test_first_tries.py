"""First tries of a new user: each runs, or says what to write."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.cli.doctor import probe
from relaxpy.errors import ErrorGroup
from relaxpy.ir import DType
from relaxpy.script import ir as I
from relaxpy.script import relax as R
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
NAMES["torch"] = lambda: pytest.importorskip("torch")
NAMES["hidden"] = relaxpy.parse(
    MAIN.format(body="y = R.exp(x)").replace("R.function", "R.function(private=True)")
)
NAMES["vm"] = relaxpy.VirtualMachine(NAMES["exe"])
NAMES["t"] = NAMES["vm"]["main"](X)

TOLD = {
    # what is called
    'vm["main"](np.zeros((2, 4)))': 'x.astype("float32")',
    'vm["main"](X, X)': "takes 1 argument, got 2",
    'vm["main"]([[1.0, 2.0], [3.0]])': "rows of different lengths",
    'vm["main"](torch().zeros(2, 4, dtype=torch().complex64))': "complex64 has no counterpart",
    "vm.mian(X)": """did you mean vm["main"]""",
    "vm.run(X)": 'vm["main"](…)',
    'vm.set_input("main", X)': 'vm["main"](…)',
    "vm.main(X)": 'vm["main"]',
    "exe(X)": "relaxpy.VirtualMachine(exe)",
    'exe.export_library("x.so")': "exe.save(path)",
    "mod.mian(X)": "did you mean 'main'",
    "relaxpy.VirtualMachine(mod)": "relaxpy.build(module)",
    "hidden.main(X)": "remove private=True",
    "mod.update_func(1, 2)": "mod.with_function",
    "mod.__setitem__('f', 1)": "mod.with_function('f'",
    "nn.Linear(2, 2).load('weights.npz')": "numpy.load(path)",
    "nn.Linear(2, 2).load_state_dict({'epoch': 3, 'state_dict': {'weight': X, 'bias': X}})": "state['state_dict']",
    "nn.Linear(2, 2).export({'x': nn.spec.Tensor(('n', 2), 'float32')})": "write {\"forward\": {'x': …}}",
    # what there is
    "relaxpy.compile(mod)": "relaxpy.build(module)",
    "relaxpy.tensor([1])": "pass numpy arrays",
    "relaxpy.compile(nn.Linear(2, 2))": "model.export(",
    "relaxpy.torch.from_torch": "did you mean relaxpy.from_torch",
    "relaxpy.torch.comple": "did you mean 'compile'",
    "relaxpy.Target('llvm')": 'relaxpy.Target.parse("llvm")',
    "relaxpy.parse('no_such.py')": "no_such.py cannot be read: No such file or directory",
    "relaxpy.buidl(mod)": "did you mean 'build'",
    "relaxpy.build(torch().nn.Linear(2, 2))": "relaxpy.from_torch(model, args=(x,))",
    "annotated('R.Tensor((n, 4))')": 'a symbolic variable is defined by a dimension in quotes: "n"',
    'program("y = R.nn.sofmax(R.relu(R.mat_mul(x, x)))")': "did you mean R.matmul",
    'program("y = R.cat([x, x], dim=1)")': "R.concat([x, y], axis=1) for torch.cat([x, y], 1)",
    # what is built
    'relaxpy.build(mod, target="rocm")': "no code generator for AMD GPUs",
    'relaxpy.build(mod, target="hexagon")': "no code generator for Hexagon",
    'relaxpy.build(mod, target="cpu")': 'target="llvm"',
    'relaxpy.build(mod, target="lvm")': "did you mean llvm",
    "relaxpy.build(mod, params=[X])": 'params={"weight": array}',
    'relaxpy.build(mod, pipeline="default")': "a pipeline must be a sequence of passes",
    'relaxpy.VirtualMachine(exe, "rocm")': "packages can add others",
    'relaxpy.VirtualMachine(exe, "cuda")': 'target="cuda"',
    # results
    "t.mean()": "t.numpy().mean(…)",
    "t.reshape(8)": "t.numpy().reshape(…)",
    "t.cpu()": "t.numpy()",
    "t.nothing": "no attribute 'nothing'",
    # the language
    'program("y = R.zeros((2, 2), float32)")': 'write it in quotes: "float32"',
    'program("y = R.astype(x, np.float16)")': 'write it in quotes: "float16"',
    'program("y = R.relu(x)")': "R.nn.relu",
    "annotated(\"Tensor((4,), 'float32')\")": "write R.Tensor",
    'annotated("R.Tensor((None, 4))")': '"n"',
    "annotated(\"R.Tensor((4,), 'float')\")": 'write the width: "float32"',
    "annotated(\"R.Tensor((4,), 'fp16')\")": '"float16"',
    "annotated(\"R.Tensor((4,), 'fp32')\")": '"float32"',
    "annotated(\"R.Tensor((4,), 'fp64')\")": '"float64"',
    "annotated(\"R.Tensor((4,), 'float62')\")": "did you mean 'float64'",
    "annotated(\"R.Tensor((4,), 'int2')\")": "int8 or uint8",
    # layers
    "nn.Reverse_Sequence()": "nn.op.reverse_sequence(x)",
    "nn.Sequential(3)": "a Sequential contains modules",
    "nn.Sequential([nn.Linear(2, 2)])": "nn.Sequential(*layers)",
    "nn.Sequential(torch().nn.Linear(2, 2))": "got torch.nn.Linear at index 0",
    "nn.ModuleList([torch().nn.Linear(2, 2)])": "relaxpy.from_torch(model, args=(x,))",
    "nn.CrossEntropyLoss()": "nn.op.nn.nll_loss(nn.op.nn.log_softmax(x, axis=1), d) for F.cross_entropy(x, d)",
    "nn.init.xavier_uniform_": "model.load_state_dict(state)",
    "(torch(), nn.Bilinear(3, 4, 5))": "it is torch's alone",
    "nn.Dropout(10)": "from 0 to 1",
    "nn.Conv2D(1, 1, 1)": "did you mean Conv2d",
    "nn.op.tensor_ir_op": "op.call_tir(program",
    "nn.functional.relu": "nn.op.nn.relu(x)",
    "nn.Lineer(2, 2)": "did you mean 'Linear'",
    "nn.Linear(2, 2).state_dict()": "model.load_state_dict(state)",
    "nn.Linear(2, 2).load_state_dict({})": "missing: weight",
    'nn.Linear(2, 2).to("cuda")': "relaxpy.build(mod, target=…)",
    "nn.Linear(2, 2).export_tvm({})": "model.export(spec)",
    "nn.Linear(2, 2).wieght": "did you mean 'weight'",
    "nn.Linear(2, 2).training": "as in evaluation",
    "nn.Linear(2, 2).train()": "relaxpy.train",
    "nn.Linear(2, 2).register_forward_hook(print)": "in `forward`",
}


@pytest.mark.parametrize("code", TOLD)
def test_a_try_is_told_what_to_write(code: str) -> None:
    with pytest.raises((relaxpy.RelaxError, AttributeError)) as caught:
        eval(code, dict(NAMES))
    assert TOLD[code] in str(caught.value)


def test_all_mistakes_of_an_expression_are_told_at_once() -> None:
    with pytest.raises(relaxpy.RelaxError) as caught:
        program("y = R.nn.sofmax(R.relu(R.mat_mul(x, w)), R.relu(v))")
    assert isinstance(caught.value, ErrorGroup)
    told = [error.message for error in caught.value.errors]
    assert told == [
        "there is no operator R.nn.sofmax", "there is no operator R.relu", "there is no operator R.mat_mul",
        "w is not defined", "v is not defined",
    ]  # fmt: skip


def test_dtypes_of_torch_are_dtypes() -> None:
    torch = pytest.importorskip("torch")
    for name in ("float32", "float16", "bfloat16", "int64", "uint8", "bool"):
        assert DType(getattr(torch, name)) == name


def test_letters_in_another_order() -> None:
    with pytest.raises(relaxpy.RelaxError) as caught:
        relaxpy.parse(
            "@T.prim_func\ndef f(X: T.Buffer((4,), 'float32'), Y: T.Buffer((4,), 'float32')):\n"
            "    for i in range(4):\n        Y[i] = T.epx(X[i])\n"
        )
    assert caught.value.help == "did you mean T.exp?"


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


# The list of tries on which a newcomer was left alone once. Each of them runs now, or says what to write.

SPEC = {"forward": {"x": nn.spec.Tensor(("n", 4), "float32")}}


def test_what_is_decorated_is_called() -> None:
    @I.ir_module
    class M:
        @R.function
        def main(x: R.Tensor(("n", 4), "float32")):
            return R.exp(x)

    @R.function
    def main(x: R.Tensor(("n", 4), "float32")):
        return R.exp(x)

    for got in (M.main(X), M(X), main(X), relaxpy.VirtualMachine(relaxpy.build(M))(X)):
        np.testing.assert_allclose(got.numpy(), np.exp(X), rtol=1e-6)


def test_a_build_of_first_calls_is_kept() -> None:
    """The second call compiles nothing."""
    mod = program("y = R.exp(x)")
    mod.main(X)
    start = time.perf_counter()
    for _ in range(20):
        mod.main(X)
    assert time.perf_counter() - start < 1


def test_a_module_of_tvm_is_told_apart() -> None:
    tvm = pytest.importorskip("tvm")
    with pytest.raises(relaxpy.RelaxError, match="got TVM's IRModule") as caught:
        relaxpy.build(tvm.IRModule())
    assert "relaxpy.parse(mod.script(show_meta=True))" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ("R.const(n)", "int64"),
        ('R.const(n, "float32")', "float32"),
        ("R.full((), n)", "int64"),
        ('R.full((n,), n, "float32")', "float32"),
        ("x * n", "float32"),
    ],
)
def test_sizes_are_numbers(value: str, dtype: str) -> None:
    got = program(f"n = T.int64()\n    y = {value}")(X).numpy()
    assert got.dtype == dtype
    assert (got == (X * 2 if value == "x * n" else 2)).all()


class Of(nn.Module):
    """Calls a function in `forward`."""

    def __init__(self, function: Any, *layers: Any) -> None:
        self.function = function
        self.layers = list(layers)

    def forward(self, x: nn.Tensor) -> Any:
        return self.function(self, x)


def changes(_: Any, x: Any) -> Any:
    x[0] = 1.0
    return x


MODELS: dict[str, tuple[Any, str]] = {
    "nn.op.nn.dropout(x) + 1": (
        lambda: Of(lambda _, x: nn.op.nn.dropout(x, 0.5) + 1),
        "2 values, and + is for one",
    ),
    "2 * nn.op.nn.dropout(x)": (
        lambda: Of(lambda _, x: 2 * nn.op.nn.dropout(x, 0.5)),
        "2 values, and * is for one",
    ),
    "x + nn.op.nn.dropout(x)": (lambda: Of(lambda _, x: x + nn.op.nn.dropout(x, 0.5)), "t[0]"),
    "x[0] = 1": (lambda: Of(changes), "nn.op.slice_scatter(x, rows, 0, 1, 1, axis=0)"),
    "x @ [[1.0]]": (lambda: Of(lambda _, x: x @ [[1.0]]), "numpy.array("),
    "nn.op.add(x, [1, 2])": (lambda: Of(lambda _, x: nn.op.add(x, [1, 2])), "numpy.array("),
    "x + None": (lambda: Of(lambda _, x: x + None), "add: x2 is None"),
    "torch.nn.functional.relu(x)": (
        lambda: Of(lambda _, x: torch().nn.functional.relu(x)),
        "write nn.op.nn.relu(x) for x.relu()",
    ),
    "a layer of torch": (
        lambda: Of(lambda self, x: self.layers[0](x), torch().nn.Linear(4, 4)),
        "write nn.Linear(…)",
    ),
    "a model of torch": (
        lambda: Of(
            lambda self, x: self.layers[0](x), torch().nn.Sequential(torch().nn.Linear(4, 4))
        ),
        "relaxpy.from_torch(model, args=(x,))",
    ),
    "return {}": (lambda: Of(lambda _, x: {"y": x}), "return (y,)"),
    "return 3": (lambda: Of(lambda _, x: 3), "nn.op.full((), 3, "),
    "return numpy": (lambda: Of(lambda _, x: np.ones(3)), "nn.Buffer"),
    "torch.relu(x)": (
        lambda: Of(lambda _, x: torch().relu(x)),
        "write nn.op.nn.relu(x) for x.relu()",
    ),
    "np.tanh(x)": (lambda: Of(lambda _, x: np.sinc(x)), "use nn.op"),
    "a list of layers": (
        lambda: Of(lambda self, x: self.layers[0](x), nn.Linear(4, 4)),
        "self.layers = nn.ModuleList(self.layers)",
    ),
    "nn.ModuleList([1, 2])": (lambda: nn.ModuleList([1, 2]), "nn.ModuleList([nn.Linear(4, 4)"),  # type: ignore[list-item]
    "if x:": (lambda: Of(lambda _, x: x if x else -x), "nn.op.where"),
    "a weight of torch": (
        lambda: nn.Linear(4, 8, bias=False).load({"weight": torch().zeros(4, 8)}),
        "value.T",
    ),
}


def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.mark.parametrize("what", MODELS)
def test_a_model_is_told_what_to_write(what: str) -> None:
    make, told = MODELS[what]
    with pytest.raises(relaxpy.RelaxError) as caught:
        make().export(SPEC)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "what", ["x[0] = 1", "torch.nn.functional.relu(x)", "a layer of torch", "a model of torch"]
)
def test_a_mistake_is_shown_where_the_model_has_it(what: str) -> None:
    with pytest.raises(relaxpy.RelaxError) as caught:
        MODELS[what][0]().export(SPEC)
    assert caught.value.span is not None
    assert caught.value.span.file == __file__


def test_a_part_is_replaced_as_the_error_says() -> None:
    """`x[0] = 1` has one meaning, and the help two ways to write it."""

    def put(_: Any, x: Any) -> Any:
        rows = np.ones((1, 4), np.float32)
        return nn.op.slice_scatter(x, rows, 0, 1, 1, axis=0), nn.op.where(x == 0, 1.0, x)

    mod, _ = Of(put).export(SPEC)
    first, second = relaxpy.VirtualMachine(relaxpy.build(mod))(X)
    np.testing.assert_array_equal(first.numpy(), [[1] * 4, [0] * 4])
    np.testing.assert_array_equal(second.numpy(), np.ones((2, 4)))


def test_one_of_several_values() -> None:
    """An operator with several results gives a tuple, which Python would concatenate and repeat."""
    with pytest.raises(AttributeError, match=r"2 values, and shape is of one: write y\[0\]\.shape"):
        Of(lambda _, x: nn.op.nn.dropout(x, 0.5).shape).export(SPEC)

    def both(_: Any, x: Any) -> Any:
        y, mask = nn.op.nn.dropout(x, 0.5)
        return (*nn.op.nn.dropout(x, 0.5), *((y, mask) + nn.op.split(x, 2, axis=1)))  # noqa: RUF005 it is what is tested

    mod, _ = Of(both).export(SPEC)
    assert len(mod["forward"].ret.fields) == 6


def test_gradients_are_no_longer_said_to_be_missing() -> None:
    for function in (lambda _, x: x.backward(), lambda _, x: x.requires_grad):
        with pytest.raises(AttributeError, match=r"relaxpy\.grad"):
            Of(function).export(SPEC)


def test_devices_are_those_of_the_build() -> None:
    with pytest.raises(AttributeError, match=r"nn\.op\.astype.*relaxpy\.build\(mod, target=…\)"):
        Of(lambda _, x: x.to("cuda")).export(SPEC)


@pytest.mark.parametrize("dtype", ["float8", "float8_e4m3", "fp8", "int2", "float4", "uint2"])
def test_narrow_dtypes_get_no_wrong_suggestion(dtype: str) -> None:
    with pytest.raises(relaxpy.RelaxError, match="unknown dtype") as caught:
        annotated(f"R.Tensor((4,), '{dtype}')")
    help = str(caught.value.help)
    assert "did you mean" not in help
    wanted = "float8_e4m3fn, float8_e5m2" if "8" in dtype else "int8 or uint8"
    assert wanted in help
    assert annotated("R.Tensor((4,), 'float8_e5m2')")


def test_token_ids_are_checked_where_that_is_asked_for() -> None:
    """Without it an index that is out of range is the last row, as `R.take` says."""

    class Tokens(nn.Module):
        def __init__(self, check: bool) -> None:
            self.table = nn.Embedding(8, 2, check=check)

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            return self.table(x)

    spec = {"forward": {"x": nn.spec.Tensor(("n",), "int64")}}
    table = np.arange(16, dtype=np.float32).reshape(8, 2)
    results = []
    for check in (False, True):
        mod, _ = Tokens(check).export(spec)
        results.append(relaxpy.VirtualMachine(relaxpy.build(mod))["forward"])
    np.testing.assert_array_equal(results[0]([3, 99], table).numpy(), table[[3, 7]])
    np.testing.assert_array_equal(results[1]([3, 7], table).numpy(), table[[3, 7]])
    with pytest.raises(relaxpy.RelaxError, match="99"):
        results[1]([3, 99], table)


def test_doctor_promises_what_build_does() -> None:
    """A target that works says so in both, and one that does not in neither."""
    for target in ("llvm", "rocm"):
        try:
            relaxpy.build(program("y = R.exp(x)"), target=target)
            works = True
        except relaxpy.RelaxError:
            works = False
        assert probe(target).works == works, target


def test_the_time_of_a_compilation_is_the_time_of_waiting(tmp_path: Path) -> None:
    source = tmp_path / "m.py"
    source.write_text(MAIN.format(body="y = R.exp(x)"), encoding="utf-8")
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "relaxpy", "compile", str(source), "-o", str(tmp_path / "m.rxe")],
        capture_output=True,
        text=True,
    )
    waited = time.perf_counter() - start
    assert done.returncode == 0, done.stderr
    said = re.search(r"in ([\d.]+) s \(([\d.]+) s of them to compile\)", done.stdout + done.stderr)
    assert said is not None, done.stdout
    whole, part = map(float, said.groups())
    assert part <= whole <= waited
