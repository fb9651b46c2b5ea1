"""Packed weights: the same numbers as with constants, and whatever a caller may do wrong."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import pickle
import signal
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import relaxpy
from relaxpy.errors import ExecutableError, RuntimeCheckError, UsageError
from relaxpy.op.weight_scheme import WeightScheme
from relaxpy.runtime import Executable, PackedTensor, Source, VirtualMachine
from relaxpy.transform import CastWeights, QuantizeWeights
from tests.odd_files import ODD_FILES
from tests.runtime.test_safetensors import saved
from tests.sweeps import sweep

HEAD = "from relaxpy.script import ir as I, relax as R, tir as T\n\n"
TARGET = "llvm -mcpu=haswell"
"""Panels of 16 columns."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packed weights for each test; builds stay in the common cache."""
    monkeypatch.setattr("relaxpy.runtime.pack.kept_folder", lambda name: tmp_path / name)
    return tmp_path / "weights"


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype="float32").astype(dtype)


def function(params: str, body: str, name: str = "main") -> str:
    lines = "".join(f"        {line}\n" for line in body.strip().splitlines())
    return f"    @R.function\n    def {name}({params}):\n{lines}"


@cache
def built(*functions: str, pack: Any = True, target: str = TARGET) -> Executable:
    text = f"{HEAD}@I.ir_module\nclass Module:\n" + "\n".join(functions)
    return relaxpy.build(relaxpy.parse(text), target=target, pack=pack)


def constant(*functions: str, target: str = TARGET, **weights: np.ndarray) -> VirtualMachine:
    """The same program with its weights as constants."""
    text = f"{HEAD}@I.ir_module\nclass Module:\n" + "\n".join(functions)
    return VirtualMachine(relaxpy.build(relaxpy.parse(text), target=target, params=weights))


def same(a: Any, b: Any) -> None:
    """Equal to the last bit."""
    a, b = a.numpy(), b.numpy()
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8))


LINEAR = function(
    'x: R.Tensor(("n", 30), "float32"), w: R.Tensor((30, 40), "float32"), b: R.Tensor((40,), "float32")',
    'R.func_attr({"num_input": 1})\ny = R.matmul(x, w)\nz = R.add(y, b)\nreturn z',
)
TORCH = function(
    'x: R.Tensor(("n", 30), "float32"), w: R.Tensor((40, 30), "float32")',
    'R.func_attr({"num_input": 1})\nt = R.permute_dims(w)\ny = R.matmul(x, t)\nreturn y',
)
QKV = function(
    'x: R.Tensor(("n", 30), "float32"), q: R.Tensor((16, 30), "float32"), k: R.Tensor((8, 30), "float32"), '
    'v: R.Tensor((8, 30), "float32"), bq: R.Tensor((16,), "float32"), bk: R.Tensor((8,), "float32"), '
    'bv: R.Tensor((8,), "float32")',
    """
R.func_attr({"num_input": 1})
with R.dataflow():
    a = R.add(R.matmul(x, R.permute_dims(q)), bq)
    c = R.add(R.matmul(x, R.permute_dims(k)), bk)
    d = R.add(R.matmul(x, R.permute_dims(v)), bv)
    e = R.multiply(c, d)
    y = R.matmul(R.permute_dims(a), e)
    R.output(y)
return y""",
)
TIED = function(
    'ids: R.Tensor(("n",), "int64"), w: R.Tensor((40, 30), "float32")',
    """
R.func_attr({"num_input": 1})
e = R.take(w, ids, axis=0)
y = R.matmul(e, R.permute_dims(w))
return y""",
)
TWICE = function(
    'x: R.Tensor(("n", 40), "float32"), w: R.Tensor((40, 40), "float32")',
    """
R.func_attr({"num_input": 1})
a = R.matmul(x, w)
b = R.nn.relu(a)
c = R.matmul(b, R.permute_dims(w))
return c""",
)
CONV = function(
    'x: R.Tensor((1, 3, "h", 9), "float32"), w: R.Tensor((7, 3, 3, 3), "float32")',
    'R.func_attr({"num_input": 1})\ny = R.nn.conv2d(x, w, padding=1)\nreturn y',
)
CAST = function(
    'x: R.Tensor(("n", 30), "bfloat16"), w: R.Tensor((40, 30), "float32")',
    """
R.func_attr({"num_input": 1})
h = R.astype(w, "bfloat16")
y = R.matmul(x, R.permute_dims(h))
return y""",
)
BRANCH = function(
    'c: R.Tensor((), "bool"), x: R.Tensor(("n", 30), "float32"), w: R.Tensor((30, 40), "float32")',
    """
R.func_attr({"num_input": 2})
if c:
    y = R.matmul(x, w)
else:
    y = R.matmul(R.negative(x), w)
return y""",
)
CLOSURE = function(
    'x: R.Tensor((3, 30), "float32"), w: R.Tensor((30, 30), "float32")',
    """
R.func_attr({"num_input": 1})

@R.function
def step(i: R.Prim("int64"), s: R.Tensor((3, 30), "float32")) -> R.Tensor((3, 30), "float32"):
    if i < 3:
        t = R.matmul(s, w)
        r = step(i + 1, t)
    else:
        r = s
    return r

y = step(R.prim_value(0), x)
return y""",
)
QUANTISED = function(
    'x: R.Tensor(("n", 30), "float32"), w: R.Tensor((30, 40), "int8"), s: R.Tensor((40,), "float32")',
    """
R.func_attr({"num_input": 1})
f = R.astype(w, "float32")
g = R.multiply(f, s)
y = R.matmul(x, g)
return y""",
)
SYMBOLIC = function(
    'x: R.Tensor(("n", "k"), "float32"), w: R.Tensor((40, "k"), "float32")',
    'R.func_attr({"num_input": 1})\ny = R.matmul(x, R.permute_dims(w))\nreturn y',
)
EMPTY = function(
    'x: R.Tensor(("n", 30), "float32"), w: R.Tensor((30, 40), "float32"), e: R.Tensor((0, 40), "float32")',
    """
R.func_attr({"num_input": 1})
y = R.matmul(x, w)
z = R.concat((y, e), axis=0)
return z""",
)
PROGRAMS: dict[str, tuple[str, list[Any], dict[str, np.ndarray], int]] = {
    "linear": (LINEAR, [numbers(5, 30)], {"w": numbers(30, 40), "b": numbers(40)}, 1),
    "torch": (TORCH, [numbers(5, 30)], {"w": numbers(40, 30)}, 1),
    "qkv": (
        QKV,
        [numbers(16, 30)],
        {"q": numbers(16, 30), "k": numbers(8, 30), "v": numbers(8, 31)[:, 1:].copy(),
         "bq": numbers(16), "bk": numbers(8), "bv": numbers(9)[1:].copy()},
        2,
    ),
    "tied": (TIED, [np.array([3, 39, 0])], {"w": numbers(40, 30)}, 1),
    "twice": (TWICE, [numbers(5, 40)], {"w": numbers(40, 40)}, 2),
    "conv": (CONV, [numbers(1, 3, 8, 9)], {"w": numbers(7, 3, 3, 3)}, 1),
    "cast": (CAST, [numbers(5, 30, dtype=ml_dtypes.bfloat16)], {"w": numbers(40, 30)}, 1),
    "branch": (BRANCH, [np.array(True), numbers(5, 30)], {"w": numbers(30, 40)}, 1),
    "closure": (CLOSURE, [numbers(3, 30)], {"w": numbers(30, 30)}, 1),
    "symbolic": (SYMBOLIC, [numbers(5, 30)], {"w": numbers(40, 30)}, 1),
    "empty": (EMPTY, [numbers(5, 30)], {"w": numbers(30, 40), "e": numbers(0, 40)}, 1),
}  # fmt: skip
"""The program, its inputs, its weights, and how many weights are packed."""


@sweep(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_numbers_as_with_constants(name: str, tmp_path: Path) -> None:
    code, inputs, arrays, count = PROGRAMS[name]
    vm = VirtualMachine(built(code))
    expected = constant(code, **arrays)["main"](*inputs)
    weights = vm.pack(arrays)
    assert sum(isinstance(w, PackedTensor) for w in weights["main"]) == count
    same(vm["main"](*inputs, *weights["main"]), expected)
    same(vm["main"](*inputs, **weights.named("main")), expected)
    read = vm.pack(saved(tmp_path / "x.safetensors", arrays))
    same(vm["main"](*inputs, *read["main"]), expected)
    again = VirtualMachine(built(code)).pack(tmp_path / "x.safetensors")
    assert again.kept == read.kept is not None
    same(vm["main"](*inputs, *again["main"]), expected)


def test_a_dequantised_weight_stays_small() -> None:
    """Decompression belongs into the kernel: what would grow is not packed ahead."""
    arrays = {"w": np.arange(1200).reshape(30, 40).astype(np.int8), "s": numbers(40)}
    vm = VirtualMachine(built(QUANTISED))
    weights = vm.pack(arrays)
    assert weights.nbytes == 1200 + 160
    expected = numbers(5, 30) @ (arrays["w"].astype(np.float32) * arrays["s"])
    found = vm["main"](numbers(5, 30), *weights["main"]).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-2)


def quantised_on_load() -> VirtualMachine:
    """Two weights of one input, joined; their codes and scales are fields of one packer's result."""
    code = function(
        'x: R.Tensor(("n", 64), "float32"), a: R.Tensor((32, 64), "float32"), b: R.Tensor((64, 64), "float32")',
        """
R.func_attr({"num_input": 1})
with R.dataflow():
    y = R.linear(x, a)
    z = R.linear(x, b)
    R.output(y, z)
return (y, z)""",
    )
    mod = CastWeights()(relaxpy.parse(f"{HEAD}@I.ir_module\nclass Module:\n{code}"))
    step = QuantizeWeights(WeightScheme(4, 32), on_load=True)
    return VirtualMachine(relaxpy.build(step(mod), target=TARGET, pack=True))


def test_weights_that_are_quantised_on_load(tmp_path: Path) -> None:
    """From arrays, from a file, and from what was kept: the numbers of the floats that the codes mean."""
    vm = quantised_on_load()
    params = [each for each in vm.executable.weight_params]
    assert [(each.sources, each.field) for each in params] == [(("a", "b"), 0), (("a", "b"), 1)]
    assert params[0].packer == params[1].packer
    assert params[0].layout != params[1].layout
    arrays = {
        name: numbers(rows, 64, dtype=ml_dtypes.bfloat16) for name, rows in (("a", 32), ("b", 64))
    }
    path, x, scheme = saved(tmp_path / "x.safetensors", arrays), numbers(5, 64), WeightScheme(4, 32)
    weights = [vm.pack(arrays), vm.pack(path), quantised_on_load().pack(path)]
    assert weights[1].kept == weights[2].kept is not None
    assert weights[0].nbytes == 96 * (32 + 2 * 2)
    first, *others = [vm["main"](x, *each["main"]) for each in weights]
    for other in others:
        for found, each in zip(other, first, strict=True):
            same(found, each)
    for found, array in zip(first, arrays.values(), strict=True):
        floats = scheme.dequantize(scheme.quantize(array, 1), 1, 64)
        np.testing.assert_allclose(found.numpy(), x @ floats.T, rtol=1e-4, atol=1e-4)
    with pytest.raises(RuntimeCheckError, match="packed in another way"):
        vm["main"](x, *weights[0]["main"][::-1])


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_weights_that_cannot_be_quantised(tmp_path: Path, folder: Path, value: float) -> None:
    """An error with their names; nothing is kept."""
    arrays = {
        name: numbers(rows, 64, dtype=ml_dtypes.bfloat16) for name, rows in (("a", 32), ("b", 64))
    }
    arrays["b"][3, 5] = value
    vm, path = quantised_on_load(), saved(tmp_path / "x.safetensors", arrays)
    for source in (arrays, path):
        with pytest.raises(UsageError, match="a, b cannot be quantised") as caught:
            vm.pack(source)
        assert caught.value.code == "weight-values"
    assert [each for each in folder.glob("*") if each.is_file()] == []


@pytest.mark.parametrize("change", [{"field": 7}, {"field": -1}, {"packer": -1, "sources": ("a",)}])
def test_a_field_that_is_not_there(tmp_path: Path, change: dict[str, Any]) -> None:
    exe = quantised_on_load().executable
    first = dataclasses.replace(exe.weight_params[0], **change)
    dataclasses.replace(exe, weight_params=(first, *exe.weight_params[1:])).save(tmp_path / "x.rxe")
    arrays = {
        name: numbers(rows, 64, dtype=ml_dtypes.bfloat16) for name, rows in (("a", 32), ("b", 64))
    }
    with pytest.raises(
        (ExecutableError, RuntimeCheckError), match=r"weight_params\[0\]|is no packer"
    ):
        VirtualMachine(relaxpy.load(tmp_path / "x.rxe")).pack(arrays)


def test_functions_share_what_they_pack_alike() -> None:
    other = LINEAR.replace("def main", "def other").replace("R.add(y, b)", "R.multiply(y, b)")
    vm = VirtualMachine(built(LINEAR, other))
    weights = vm.pack({"w": numbers(30, 40), "b": numbers(40)})
    assert list(weights) == ["main", "other"]
    assert weights["main"][0] is weights["other"][0]
    assert weights.nbytes == 30 * 48 * 4 + 160
    packers = {w.packer for w in vm.executable.weight_params if w.packer >= 0}
    assert len(packers) == 1


def test_a_weight_of_one_function() -> None:
    other = LINEAR.replace("def main", "def other")
    vm = VirtualMachine(built(LINEAR, other))
    w, v, b = numbers(30, 40), numbers(31, 40)[1:].copy(), numbers(40)
    weights = vm.pack({"main.w": w, "other.w": v, "b": b})
    x = numbers(5, 30)
    same(vm["main"](x, *weights["main"]), constant(LINEAR, w=w, b=b)["main"](x))
    same(vm["other"](x, *weights["other"]), constant(LINEAR, w=v, b=b)["main"](x))


def test_names() -> None:
    w, b, x = numbers(30, 40), numbers(40), numbers(5, 30)
    expected = constant(LINEAR, w=w, b=b)["main"](x)
    vm = VirtualMachine(built(LINEAR))
    named = {"w": "model.w", "main.b": Source("model.b")}
    weights = vm.pack({"model.w": w, "model.b": b, "more": b}, names=named)
    same(vm["main"](x, *weights["main"]), expected)
    turned = vm.pack({"w": w.T, "b": b}, names={"w": Source("w", transpose=True)})
    same(vm["main"](x, *turned["main"]), expected)


def test_names_with_dots() -> None:
    """A mapping by the names of `nn`, for parameters whose dots are underscores."""
    w, b, x = numbers(30, 40), numbers(40), numbers(5, 30)
    dotted = (
        LINEAR.replace("w:", "layer_w:").replace(", w)", ", layer_w)").replace("(w)", "(layer_w)")
    )
    vm = VirtualMachine(built(dotted))
    weights = vm.pack({"theirs": w, "b": b}, names={"layer.w": "theirs"})
    same(vm["main"](x, *weights["main"]), constant(LINEAR, w=w, b=b)["main"](x))


def test_strided_and_foreign_arrays() -> None:
    torch = pytest.importorskip("torch")
    w, b, x = numbers(30, 40), numbers(40), numbers(5, 30)
    expected = constant(LINEAR, w=w, b=b)["main"](x)
    vm = VirtualMachine(built(LINEAR))
    wide = np.zeros((60, 80), np.float32)
    wide[::2, ::2] = w
    for value in (np.asfortranarray(w), wide[::2, ::2], torch.tensor(w.T.copy()).T):
        weights = vm.pack({"w": value, "b": b})
        same(vm["main"](x, *weights["main"]), expected)


SQUARE = TORCH.replace("40, 30", "32, 32").replace('"n", 30', '"n", 32')


def test_a_plain_weight_is_refused() -> None:
    """Also where its shape and type would fit."""
    vm = VirtualMachine(built(LINEAR))
    arrays = {"w": numbers(30, 40), "b": numbers(40)}
    weights = vm.pack(arrays)
    x = numbers(5, 30)
    shape = weights["main"][0].tensor.shape
    for plain in (arrays["w"], np.zeros(shape, np.float32), weights["main"][0].tensor, None, [1.0]):
        with pytest.raises(
            RuntimeCheckError, match="parameter w is a packed weight, got"
        ) as caught:
            vm["main"](x, plain, arrays["b"])
        assert caught.value.code == "packed-weight"
        assert "vm.pack(" in str(caught.value.help)
        assert caught.value.span is not None
    with pytest.raises(RuntimeCheckError, match="expected a tensor, got a packed weight"):
        vm["main"](x, weights["main"][0], weights["main"][0])
    with pytest.raises(RuntimeCheckError, match="expected a tensor, got a packed weight"):
        vm["main"](weights["main"][0], *weights["main"])


def test_a_weight_packed_otherwise_is_refused() -> None:
    square = function(
        'x: R.Tensor(("n", 32), "float32"), w: R.Tensor((32, 32), "float32")',
        'R.func_attr({"num_input": 1})\ny = R.matmul(x, w)\nreturn y',
    )
    w, x = numbers(32, 32), numbers(5, 32)
    one, two = VirtualMachine(built(square)), VirtualMachine(built(SQUARE))
    first, second = one.pack({"w": w})["main"], two.pack({"w": w})["main"]
    assert first[0].tensor.shape == second[0].tensor.shape
    with pytest.raises(RuntimeCheckError, match="packed in another way"):
        one["main"](x, *second)
    same(one["main"](x, *first), constant(square, w=w)["main"](x))


def test_an_equal_program_takes_them(tmp_path: Path) -> None:
    """Rebuilt, saved and loaded."""
    vm = VirtualMachine(built(LINEAR))
    weights = vm.pack({"w": numbers(30, 40), "b": numbers(40)})
    vm.executable.save(tmp_path / "x.rxe")
    loaded = relaxpy.load(tmp_path / "x.rxe")
    assert loaded.weight_params == vm.executable.weight_params
    moved = "\n\n" + LINEAR.replace("w:", "kernel:").replace("x, w)", "x, kernel)")
    x = numbers(5, 30)
    for exe in (loaded, built(moved), pickle.loads(pickle.dumps(loaded))):
        same(VirtualMachine(exe)["main"](x, *weights["main"]), vm["main"](x, *weights["main"]))


@pytest.mark.parametrize(
    "change",
    [{"function": 99}, {"param": 99}, {"packer": 99}, {"packer": 0}, {"sources": ()}, {"packer": -1, "sources": ()}],
)  # fmt: skip
def test_a_table_that_does_not_fit(tmp_path: Path, change: dict[str, Any]) -> None:
    """A file with right checksums whose table of weights names what is not there."""
    exe = built(LINEAR)
    first = dataclasses.replace(exe.weight_params[0], **change)
    dataclasses.replace(exe, weight_params=(first, *exe.weight_params[1:])).save(tmp_path / "x.rxe")
    with pytest.raises(ExecutableError, match=r"weight_params\[0\]"):
        relaxpy.load(tmp_path / "x.rxe")


def test_a_packed_weight_says_what_it_is() -> None:
    weights = VirtualMachine(built(LINEAR)).pack({"w": numbers(30, 40), "b": numbers(40)})
    packed = weights["main"][0]
    assert repr(packed) == "<packed weight of w: 5760 bytes>"
    assert repr(weights) == "<packed weights of main: 5920 bytes>"
    with pytest.raises(AttributeError, match="only kernels know its layout"):
        packed.shape  # noqa: B018
    with pytest.raises(UsageError, match="no weights were packed for a function 'none'"):
        weights["none"]


def test_the_only_function_is_called_beside_packers() -> None:
    code = LINEAR.replace("def main", "def forward")
    vm = VirtualMachine(built(code))
    weights = vm.pack({"w": numbers(30, 40), "b": numbers(40)})
    assert vm(numbers(5, 30), *weights["forward"]).shape == (5, 40)


def test_everything_wrong_is_listed() -> None:
    vm = VirtualMachine(built(QKV))
    good = PROGRAMS["qkv"][2]
    wrong = {
        **good,
        "k": good["k"].astype(np.float64),
        "v": good["v"].T,
        "bq": good["bq"][None],
    }
    del wrong["q"]
    with pytest.raises(UsageError, match="4 problems") as caught:
        vm.pack(wrong)
    notes = "\n".join(caught.value.notes)
    assert "missing: q; float32 (16, 30) is expected" in notes
    assert "k: the dtype is float64, not float32" in notes
    assert "v: dimension 0 is 30, not 8" in notes
    assert "bq: it has 2 dimensions, not 1" in notes
    for value in ("text", 3.5, None, object()):
        with pytest.raises((UsageError, RuntimeCheckError)):
            vm.pack({**good, "q": value})


def test_without_weights_to_pack() -> None:
    vm = VirtualMachine(built(LINEAR, pack=False))
    with pytest.raises(UsageError, match="has no weights to pack"):
        vm.pack({"w": numbers(30, 40)})


def test_plain_weights_still_work_without_pack() -> None:
    vm = VirtualMachine(built(LINEAR, pack=False))
    w, b, x = numbers(30, 40), numbers(40), numbers(5, 30)
    same(vm["main"](x, w, b), constant(LINEAR, w=w, b=b)["main"](x))


# On disk


def linear_file(tmp_path: Path, seed: float = 1) -> Path:
    return saved(tmp_path / "x.safetensors", {"w": numbers(30, 40) * seed, "b": numbers(40)})


def check(vm: VirtualMachine, weights: Any, seed: float = 1) -> None:
    expected = constant(LINEAR, w=numbers(30, 40) * seed, b=numbers(40))["main"](numbers(5, 30))
    same(vm["main"](numbers(5, 30), *weights["main"]), expected)


def test_another_checkpoint_in_the_same_place(tmp_path: Path) -> None:
    """Of the same size and times."""
    vm = VirtualMachine(built(LINEAR))
    path = linear_file(tmp_path)
    os.utime(path, (1e9, 1e9))
    first = vm.pack(path)
    check(vm, first)
    linear_file(tmp_path, 2)
    os.utime(path, (1e9, 1e9))
    second = vm.pack(path)
    assert second.kept != first.kept
    check(vm, second, 2)
    check(vm, first)


def test_the_digest_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vm = VirtualMachine(built(LINEAR))
    path = linear_file(tmp_path)
    monkeypatch.setattr("relaxpy.runtime.weight_cache._FRESH_SECONDS", 0.0)
    time.sleep(0.02)
    vm.pack(path)
    monkeypatch.setattr("relaxpy.runtime.weight_cache._contents", lambda *_: pytest.fail("read"))
    check(vm, vm.pack(path))
    link = tmp_path / "link"
    link.symlink_to(path)
    check(vm, vm.pack(link))


@pytest.mark.parametrize("change", ["truncated", "empty", "footer", "index", "zeros", "longer"])
def test_a_damaged_kept_file_is_made_anew(tmp_path: Path, change: str) -> None:
    vm = VirtualMachine(built(LINEAR))
    path = linear_file(tmp_path)
    kept = vm.pack(path).kept
    assert kept is not None
    whole = kept.read_bytes()
    bad = {
        "truncated": whole[:1000],
        "empty": b"",
        "footer": whole[:-20] + bytes(20),
        "index": whole[:-70] + bytes(6) + whole[-64:],
        "zeros": bytes(len(whole)),
        "longer": whole + b"x",
    }[change]
    kept.unlink()
    kept.write_bytes(bad)
    again = vm.pack(path)
    assert again.kept == kept
    assert kept.read_bytes() == whole
    check(vm, again)


@pytest.mark.parametrize("kind", ODD_FILES)
def test_other_things_than_kept_files(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """In the place of a kept file and of the note of a digest."""
    monkeypatch.setattr("relaxpy.runtime.weight_cache._FRESH_SECONDS", 0.0)
    time.sleep(0.02)
    vm, path = VirtualMachine(built(LINEAR)), linear_file(tmp_path)
    vm.pack(path)
    places = [place for place in folder.rglob("*") if place.is_file()]
    assert len(places) == 2
    for place in places:
        place.unlink()
        ODD_FILES[kind](place)
    again = vm.pack(path)
    assert (again.kept is None) == (kind == "folder")
    check(vm, again)


def test_no_place_to_keep(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vm = VirtualMachine(built(LINEAR))
    path = linear_file(tmp_path)
    assert vm.pack(path, keep=False).kept is None
    assert not folder.exists()
    folder.write_text("a file where the folder should be")
    weights = vm.pack(path)
    assert weights.kept is None
    check(vm, weights)
    folder.unlink()
    monkeypatch.setattr("relaxpy.runtime.weight_cache.SPARE_BYTES", 1 << 62)
    assert vm.pack(path).kept is None


def test_the_folder_is_bounded(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vm = VirtualMachine(built(LINEAR))
    first = vm.pack(linear_file(tmp_path)).kept
    monkeypatch.setattr("relaxpy.runtime.weight_cache.MOST_BYTES", 6000)
    weights = vm.pack(linear_file(tmp_path, 2))
    assert first is not None
    assert not first.exists()
    check(vm, weights, 2)


def test_what_a_killed_process_left(tmp_path: Path, folder: Path) -> None:
    folder.mkdir()
    old, new = folder / ".relaxpy-0123", folder / ".relaxpy-4567"
    for path in (old, new):
        path.write_bytes(b"part of a file")
    os.utime(old, (1e9, 1e9))
    vm = VirtualMachine(built(LINEAR))
    check(vm, vm.pack(linear_file(tmp_path)))
    assert not old.exists()
    assert new.exists()


def pack_in_process(exe: bytes, path: Path, folder: Path, result: Path, slowly: bool) -> None:
    """Packs, and saves the result of a call. Slowly: waits with a file that is not finished."""
    import relaxpy.runtime.pack as packing
    import relaxpy.runtime.weight_cache as kept

    packing.kept_folder = lambda name: folder  # pyright: ignore
    if slowly:

        def wait(self: kept.Writer) -> None:
            result.write_text("waiting")
            time.sleep(100)

        kept.Writer.finish = wait  # pyright: ignore
    vm = VirtualMachine(pickle.loads(exe))
    weights = vm.pack(path)
    np.save(result, vm["main"](numbers(5, 30), *weights["main"]).numpy())


def test_processes_at_once_and_a_killed_one(tmp_path: Path, folder: Path) -> None:
    vm = VirtualMachine(built(LINEAR))
    path = linear_file(tmp_path)
    exe = pickle.dumps(vm.executable)
    context = multiprocessing.get_context("spawn")

    def start(result: str, slowly: bool) -> Any:
        args = (exe, path, folder, tmp_path / result, slowly)
        process = context.Process(target=pack_in_process, args=args, daemon=True)
        process.start()
        return process

    def whole() -> list[Path]:
        return [each for each in folder.iterdir() if each.is_file() and each.name[0] != "."]

    killed = start("waiting", True)
    end = time.monotonic() + 120
    while not (tmp_path / "waiting").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    os.kill(killed.pid, signal.SIGKILL)
    killed.join(30)
    assert not whole()
    workers = [start(f"{number}.npy", False) for number in range(2)]
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    expected = constant(LINEAR, w=numbers(30, 40), b=numbers(40))["main"](numbers(5, 30)).numpy()
    for number in range(2):
        np.testing.assert_array_equal(np.load(tmp_path / f"{number}.npy"), expected)
    assert len(whole()) == 1


def test_threads_at_once(tmp_path: Path) -> None:
    vm = VirtualMachine(built(LINEAR))
    path = linear_file(tmp_path)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(vm.pack(path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    for weights in found:
        check(vm, weights)


def test_memory_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many weights, one after the other: no more is held than a few of them."""
    code = function(
        'x: R.Tensor(("n", 512), "float32"), ' + ", ".join(
            f'w{i}: R.Tensor((512, 512), "float32")' for i in range(24)
        ),
        'R.func_attr({"num_input": 1})\n' + "\n".join(
            f"y{i} = R.matmul({'x' if i == 0 else f'y{i - 1}'}, w{i})" for i in range(24)
        ) + "\nreturn y23",
    )  # fmt: skip
    vm = VirtualMachine(built(code))
    path = saved(tmp_path / "x.safetensors", {f"w{i}": numbers(512, 512) for i in range(24)})
    peak = 0
    write = relaxpy.runtime.weight_cache.Writer.write

    def watched(self: Any, array: np.ndarray) -> None:
        nonlocal peak
        peak = max(peak, vm.memory.total)
        write(self, array)

    monkeypatch.setattr("relaxpy.runtime.weight_cache.Writer.write", watched)
    weights = vm.pack(path)
    assert weights.nbytes == 24 << 20
    assert 0 < peak <= 3 << 20
    assert vm.memory.total == 0
