"""Programs in WebAssembly, in node: the numbers of the processor, errors of kernels, and memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RuntimeCheckError
from relaxpy.models import llama
from relaxpy.testing.op_samples import apply, assert_close, reference_arrays
from relaxpy.web.export import export
from tests.e2e.devices import GROUPS, first_samples, leaves, machine, module_of
from tests.script.data_programs import SOURCE
from tests.sweeps import full, part, quick_target, sweep
from tests.web.node_machine import NodeMachine, node_machine
from tests.web.random_programs import checked
from tests.web.support import Site, needs_node, served

pytestmark = needs_node


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with served(tmp_path_factory.mktemp("site")) as found:
        yield found


@pytest.fixture(scope="module")
def node() -> Iterator[NodeMachine]:
    with node_machine() as found:
        yield found


def loaded(node: NodeMachine, site: Site, mod: Any, params: Any = None) -> NodeMachine:
    program = relaxpy.parse(mod) if isinstance(mod, str) else mod
    export(relaxpy.build(program, "wasm", params), site.folder)
    assert node.load(site.url + "model/")["target"] == "wasm"
    return node


def fails(node: NodeMachine, name: str, *args: Any) -> RuntimeCheckError:
    with pytest.raises(RuntimeCheckError) as caught:
        node[name](*args)
    return caught.value


WEIGHT = np.linspace(-1, 1, 7 * 33, dtype=np.float32).reshape(7, 33)
TEXT = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 7), "float32"), i: R.Tensor(("n",), "int64"), w: R.Tensor((7, 33), "float32")):
        n = T.int64()
        y = R.nn.softmax(R.matmul(x, w))
        z = R.multiply(i, R.const(4294967311, "int64"))
        return (y, z, R.shape_of(x))

    @R.function
    def narrow(x: R.Tensor(("n",), "float16"), y: R.Tensor(("n",), "bfloat16")):
        return (R.multiply(x, x), R.add(y, y))

    @R.function
    def halves(x: R.Tensor(("n",), "float16"), y: R.Tensor(("n",), "float16")):
        return (R.less(x, y), R.equal(x, y), R.maximum(x, y))

    @R.function
    def wide(x: R.Tensor(("n",), "float64"), y: R.Tensor(("n",), "float64")):
        return (R.tan(x), R.power(x, y), R.mod(x, y))

    @R.function
    def order(x: R.Tensor(("n", "m"), "float32")):
        return R.argsort(x, axis=1)

    @R.function
    def zeros(n: R.Prim("int64")):
        return R.zeros((n, n), "float32")
"""


def test_calls(node: NodeMachine, site: Site) -> None:
    """One module for all sizes: 0, 1, odd ones, beside a block; integers are exact, narrow and wide floats as well."""
    vm = loaded(node, site, TEXT, {"w": WEIGHT})
    for rows in (0, 1, 5, 64, 129):
        x = np.linspace(-2, 2, rows * 7, dtype=np.float32).reshape(rows, 7)
        i = np.arange(rows) * 2**30 - 7
        y, z, shape = vm["main"](x, i)
        power = np.exp(x @ WEIGHT)
        np.testing.assert_allclose(y, power / power.sum(1, keepdims=True), rtol=1e-5)
        np.testing.assert_array_equal(z, i * 4294967311)
        assert tuple(shape) == (rows, 7)
        half = np.linspace(-3, 3, rows).astype(np.float16)
        brain: Any = np.linspace(-3, 3, rows).astype(ml_dtypes.bfloat16)
        squares, doubles = vm["narrow"](half, brain)
        np.testing.assert_array_equal(squares, half * half)
        np.testing.assert_array_equal(doubles, brain + brain)
        other = half[::-1].copy()
        other[:1] = np.nan
        found = vm["halves"](half, other)
        wanted = half < other, half == other, np.maximum(half, other)
        for got, each in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(got, each)
        np.testing.assert_array_equal(vm["order"](x), np.argsort(x, axis=1, kind="stable"))
    x = np.array([0.5, -1.0, 1.0, -7.25, 1.0, 2.0])
    y = np.array([2.0, np.inf, np.nan, 3.0, -np.inf, -1.5])
    tangent, power, rest = vm["wide"](x, y)
    np.testing.assert_allclose(tangent, np.tan(x), rtol=1e-14)
    np.testing.assert_allclose(power, x**y, rtol=1e-14)
    np.testing.assert_array_equal(rest, np.fmod(x, y))


def test_memory(node: NodeMachine, site: Site) -> None:
    """Results that are not used any more give their memory back; what is too large says so, and the machine goes on."""
    vm = loaded(node, site, TEXT, {"w": WEIGHT})
    used: list[int] = []
    for rows in (120, 1, 100, 120, 119, 120, 3, 120):
        vm["zeros"](rows)
        used.append(node.ask("used"))
    assert max(used) - min(used) <= 2 * 120 * 120 * 4
    assert fails(node, "zeros", 40_000).code == "out-of-memory"
    assert fails(node, "zeros", 1 << 40).code == "out-of-memory"
    assert vm["zeros"](3).tolist() == [[0] * 3] * 3


CHECKED = """
@I.ir_module
class Module:
    @T.prim_func
    def k(x: T.Buffer(("n",), "float32"), i: T.Buffer((1,), "int64"), y: T.Buffer((1,), "float32")):
        n = T.int64()
        with T.sblock("y"):
            y[0] = x[i[0]]

    @R.function
    def main(x: R.Tensor(("n",), "float32"), i: R.Tensor((1,), "int64")):
        cls = Module
        return R.call_tir(cls.k, (x, i), out_ty=R.Tensor((1,), "float32"))
"""


def test_errors_of_kernels(node: NodeMachine, site: Site) -> None:
    """An index out of range says what the processor says, and the next call is right."""
    vm = loaded(node, site, CHECKED)
    host = machine(relaxpy.parse(CHECKED), str(quick_target()))
    x = np.arange(3, dtype=np.float32)
    for index in (3, -1, 1 << 40):
        given = np.array([index])
        with pytest.raises(RuntimeCheckError) as caught:
            host["main"](x, given)
        found = fails(node, "main", x, given)
        assert (found.code, found.message.splitlines()[0]) == (
            caught.value.code,
            caught.value.message.splitlines()[0],
        )
        assert vm["main"](x, np.array([2])).tolist() == [2]


@full("make test-devices")
def test_a_decoder(node: NodeMachine, site: Site) -> None:
    """Four shapes, one token among them: the processor's numbers and texts."""
    from tests.e2e.test_devices import decoder
    from tests.web.test_relaxpy import initialised

    config = replace(llama.TINY, num_hidden_layers=1)
    functions = llama.spec(config)
    del functions["logits"]
    mod, params = initialised(llama.Llama(config)).export(functions)
    vm: Any = loaded(node, site, mod, params)
    for got, want in zip(
        decoder(vm), decoder(machine(mod, str(quick_target()), params)), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-5)


@full("make test-devices")
@pytest.mark.parametrize("group", range(GROUPS))
def test_samples(group: int, node: NodeMachine, site: Site) -> None:
    """The first sample of each operator has the result of its reference."""
    chosen = first_samples(group)
    mod, given = module_of([apply(sample, bool(sample.dims)) for sample in chosen])
    vm = loaded(node, site, mod)
    for number, (sample, values) in enumerate(zip(chosen, given, strict=True)):
        got = leaves(vm[f"f{number}"](*values))
        for one, want in zip(got, reference_arrays(sample), strict=True):
            assert_close(one, want, sample, str(sample.op))


@sweep
def test_random_programs() -> None:
    """`python -m tests.web.random_programs` runs others, and more of them."""
    outcomes = list(checked(part(range(100), 40)))
    assert not [f"{each.failure}\n{each.program}" for each in outcomes if each.failure]
    assert any(not each.refused for each in outcomes)


def test_what_it_refuses(tmp_path: Path) -> None:
    """Programs for two targets must be the same; two for one target are one too many."""
    double, other = (
        f'@R.function\ndef main(x: R.Tensor(("n",), "{dtype}")):\n    return R.add(x, x)\n'
        for dtype in ("float32", "int32")
    )
    wasm = relaxpy.build(relaxpy.parse(double), "wasm")
    for exes, expected in [
        ([wasm, wasm], "two executables are for wasm"),
        (
            [wasm, relaxpy.build(relaxpy.parse(other), "webgpu")],
            "main is not the same function in both",
        ),
        ([], "there is no executable"),
    ]:
        with pytest.raises(relaxpy.RelaxError, match=expected) as caught:
            export(exes, tmp_path / "site")
        assert caught.value.code == "web-export"
    assert not (tmp_path / "site").exists()
    with pytest.raises(relaxpy.RelaxError, match="wasm32"):
        relaxpy.VirtualMachine(wasm)


def test_data_types(node: NodeMachine, site: Site) -> None:
    """Made, taken apart, looked through and refused as on the processor; their memory is given back."""
    vm, mod = loaded(node, site, DATA), relaxpy.parse(DATA)
    here, types = relaxpy.VirtualMachine(relaxpy.build(mod)), mod.types
    leaf = [types.Tree.Leaf(np.arange(size, dtype=np.float32)) for size in (3, 5, 7, 1)]
    tree = types.Tree.Node(types.Tree.Node(leaf[0], leaf[1]), types.Tree.Node(leaf[2], leaf[3]))
    assert float(vm["total"](tree)) == float(here["total"](tree).numpy())
    x = np.array([1, 2], np.float32)
    mine, theirs = here["build"](5, x), vm["build"](5, x)
    assert str(theirs) == str(mine)
    assert str(vm["twice"](theirs, types.List.Nil())) == str(here["twice"](mine, types.List.Nil()))
    assert vm["length"](theirs, 0) == 5
    used = node.ask("used")
    for _ in range(3):
        assert vm["count"](2_000, x) == 2_000
    assert node.ask("used") <= used + (1 << 20)
    for args in (
        (3,),
        (types.List.Nil(),),
        (types.Tree.Node(leaf[0], types.Tree.Leaf(np.zeros((2, 2), np.float32))),),
    ):
        with pytest.raises(RuntimeCheckError) as wanted:
            here["total"](*args)
        found = fails(node, "total", *args)
        assert found.code == "check"
        assert found.message.split(", got")[0] == wanted.value.message.split(", got")[0]


DATA = (
    SOURCE
    + """
    @R.function
    def count(k: R.Prim("int64"), x: R.Tensor((2,), "float32")) -> R.Prim("int64", value=None):
        cls = Module
        xs = cls.build(k, x)
        return cls.length(xs, 0)
"""
)
