"""Whole programs on the hostile device: the same numbers, or the same errors, as on the processor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RelaxError, RuntimeCheckError
from relaxpy.models.bert import SPEC, TINY, BertEncoder, load_weights
from relaxpy.runtime.devices.tensor import DeviceTensor
from relaxpy.testing.agreement import disagreement
from tests.hostile.backend import hostile_targets
from tests.hostile.device import failing_allocations, set_policy
from tests.models.test_bert import random_state
from tests.sweeps import full, quick_target

POLICIES = ("lazy", "others", 1)


@pytest.fixture(autouse=True)
def devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with hostile_targets(monkeypatch):
        yield


def numbers(value: Any) -> Any:
    """A result on the host, when it is there."""
    if isinstance(value, tuple) and not isinstance(value, relaxpy.Shape):
        return tuple(map(numbers, value))
    return np.array(value.numpy()) if hasattr(value, "numpy") else value


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return numbers(call())
    except RelaxError as error:
        return error


def check(
    text: str,
    calls: Sequence[tuple[Any, ...]],
    name: str = "main",
    params: Mapping[str, Any] | None = None,
    policies: Sequence[str | int] = POLICIES,
) -> relaxpy.VirtualMachine:
    """Call a program on both, under every policy; gives the machine on the device."""
    mod = relaxpy.parse(text)
    here = relaxpy.VirtualMachine(relaxpy.build(mod, quick_target(), params=params))
    there = relaxpy.VirtualMachine(relaxpy.build(mod, "hostile", params=params))
    assert [slot.kind for slot in there.executable.slots] == ["cpu", "hostile"]
    checked = relaxpy.VirtualMachine(there.executable, check_memory=True)
    for policy in policies:
        set_policy(policy)
        for args in calls:
            wanted = outcome(lambda args=args: here[name](*args))
            for machine in (there, checked):
                got = outcome(lambda args=args, machine=machine: machine[name](*args))
                problem = disagreement(got, wanted, atol=1e-6, rtol=1e-5)
                assert not problem, (policy, args, problem)
    return there


def f32(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape, dtype=np.float32)


LAYERS = """
@R.function
def main(x: R.Tensor(("n", 16), "float32"), w: R.Tensor((16, 16), "float32"), b: R.Tensor((16,), "float32")):
    y = R.nn.gelu(R.add(R.matmul(x, w), b))
    z = R.nn.layer_norm(R.add(y, x), b, b, axes=[-1])
    s = R.nn.softmax(R.matmul(z, R.permute_dims(z)))
    return (R.matmul(s, y), R.sum(s, axis=1), R.argmax(s, axis=-1))
"""


def test_layers() -> None:
    w, b = f32(16, 16), f32(16)
    vm = check(LAYERS, [(f32(n, 16), w, b) for n in (3, 40, 1, 40)])
    assert all(isinstance(part, DeviceTensor) for part in vm(f32(3, 16), w, b))


def test_weights_are_constants_of_the_device() -> None:
    check(LAYERS, [(f32(n, 16),) for n in (3, 1)], params={"w": f32(16, 16), "b": f32(16)})


FLOW = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 4), "float32"), c: R.Tensor((), "bool")) -> R.Tensor(("n", 4), "float32"):
        n = T.int64()
        if c:
            y = R.reshape(R.add(R.exp(x), x), (n, 4))
        else:
            y = R.nn.softmax(x)
        z = R.concat((y, x), axis=0)
        return R.split(z, 2, axis=0)[0]

    @R.function
    def count(i: R.Tensor((), "int64"), acc: R.Tensor(("a", "b"), "float32")) -> R.Tensor(("a", "b"), "float32"):
        done = R.less_equal(i, R.const(0, "int64"))
        if done:
            out = acc
        else:
            less = R.subtract(i, R.const(1, "int64"))
            out = R.tanh(Module.count(less, acc))
        return out
"""


def test_control_flow() -> None:
    yes, no = np.array(True), np.array(False)
    check(FLOW, [(f32(3, 4), yes), (f32(3, 4), no), (f32(0, 4), yes), (f32(3, 5), yes)])
    check(FLOW, [(np.array(i), f32(2, 2)) for i in (0, 1, 20)], "count")


CLOSURES = """
@I.ir_module
class Module:
    @R.function
    def twice(f: R.Callable((R.Tensor(("n",), "float32"),), R.Tensor(("n",), "float32")), x: R.Tensor(("n",), "float32")
              ) -> R.Tensor(("n",), "float32"):
        n = T.int64()
        y: R.Tensor((n,), "float32") = f(x)
        z: R.Tensor((n,), "float32") = f(y)
        return z

    @R.function
    def main(x: R.Tensor(("n",), "float32"), y: R.Tensor(("n",), "float32")):
        n = T.int64()

        @R.function
        def inner(z: R.Tensor((n,), "float32")) -> R.Tensor((n,), "float32"):
            return R.add(R.multiply(z, y), x)

        a = inner(x)
        b: R.Tensor((n,), "float32") = Module.twice(inner, a)
        return (a, b)
"""


def test_closures() -> None:
    check(CLOSURES, [(f32(3), f32(3)), (f32(3), f32(4))])
    vm = check(CLOSURES, [], "twice")
    x = f32(5)
    np.testing.assert_array_equal(vm["twice"](lambda t: t.numpy() * 2, x).numpy(), x * 4)


UPDATES = """
@I.ir_module
class Module:
    @T.prim_func
    def bump(x: T.Buffer(("n",), "float32"), i: T.int64):
        n = T.int64()
        for j in range(n):
            with T.sblock("b"):
                v = T.axis.spatial(n, j)
                x[v] = x[v] + T.float32(1) + T.Cast("float32", i)

    @R.function(pure=False)
    def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        cls = Module
        n = T.int64()
        y = R.call_tir_inplace(cls.bump, (x,), [0], R.Tensor((n,), "float32"), tir_vars=R.shape([3]))
        z = R.multiply(y, R.const(2.0, "float32"))
        return z
"""


@pytest.mark.parametrize("policy", POLICIES)
def test_updates_in_place(policy: str | int) -> None:
    set_policy(policy)
    vm = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(UPDATES), "hostile"))
    x = vm.upload(f32(6))
    before = x.numpy()
    np.testing.assert_array_equal(vm(x).numpy(), (before + 4) * 2)
    np.testing.assert_array_equal(x.numpy(), before + 4)
    with pytest.raises(RuntimeCheckError) as caught:
        vm(f32(6))  # the caller would not see what becomes of its array
    assert caught.value.code == "update-lost"


DATA = """
@R.function
def main(x: R.Tensor(("n", 8), "float32"), k: R.Prim("int64")):
    n = T.int64()
    u = R.unique(R.flatten(R.negative(x)))
    p = T.int64()
    v = R.match_cast(u, R.Tensor((p,), "float32"))
    w = R.add(v, v)
    t = R.zeros((n, 3), "float32")
    i = R.nonzero(R.astype(x, "int32"))
    return (R.exp(w), t, i, R.sort(x, axis=1), R.cumsum(x, axis=0), R.topk(x, k=2, axis=1)[0])
"""


def test_functions_of_the_host_between() -> None:
    check(DATA, [(np.round(f32(n, 8) * 2), 2) for n in (1, 5)])


MIXED = """
@I.ir_module
class Module:
    I.module_global_infos({"vdevice": [I.vdevice("llvm", 0), I.vdevice("hostile", 0), I.vdevice("hostile", 1)]})

    @R.function
    def main(x: R.Tensor(("n", 8), "float32"), w: R.Tensor((8, 8), "float32")) -> R.Tensor(("n", 8), "float32"):
        n = T.int64()
        a = R.nn.relu(R.matmul(x, w))
        b = R.to_vdevice(a, "hostile:1")
        c = R.exp(R.multiply(b, b))
        d = R.to_vdevice(c, "llvm:0")
        e = R.add(R.tanh(d), d)
        f = R.to_vdevice(e, "hostile:0")
        return R.subtract(f, a)
"""


@pytest.mark.parametrize("policy", POLICIES)
def test_three_devices(policy: str | int) -> None:
    set_policy(policy)
    vm = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(MIXED), "hostile"))
    assert len(vm.devices) == 3
    w = f32(8, 8) / 8
    for n in (4, 50, 1):
        x = f32(n, 8)
        a = np.maximum(x @ w, 0)
        c = np.exp(a * a)
        np.testing.assert_allclose(vm(x, w).numpy(), np.tanh(c) + c - a, rtol=1e-4, atol=1e-4)


def test_a_function_value_of_the_host() -> None:
    """Its annotation says that it takes tensors of the host: what it is given is copied there."""
    text = """
@I.ir_module
class Module:
    I.module_global_infos({"vdevice": [I.vdevice("llvm", 0)]})

    @R.function
    def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        n = T.int64()
        a = R.to_vdevice(R.exp(x), "llvm:0")

        @R.function
        def inner(p: R.Tensor((n,), "float32", "llvm:0")) -> R.Tensor((n,), "float32", "llvm:0"):
            return R.add(p, a)

        y = inner(a)
        z = R.to_vdevice(R.multiply(x, x), "llvm:0")
        w = inner(z)
        return R.add(y, w)
"""
    x = f32(9)
    for policy in POLICIES:
        set_policy(policy)
        vm = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(text), "hostile"))
        np.testing.assert_allclose(vm(x).numpy(), 3 * np.exp(x) + x * x, rtol=1e-5)


def test_parts_of_what_the_host_gives_are_copied() -> None:
    """An item of a tuple gets a name before it is copied."""
    text = """
@R.function
def main(x: R.Tensor(("n", 4), "float32")):
    s = R.split(R.call_pure_packed("suite.halves", x, ty_args=R.Tuple(R.Tensor(("n", 2), "float32"), R.Tensor(("n", 2), "float32")))[0], 2, axis=1)
    return (R.exp(s[0]), s[1])
"""
    relaxpy.register_function("suite.halves", lambda x: (x.numpy()[:, :2], x.numpy()[:, 2:]))
    check(text, [(f32(3, 4),)])


@full
def test_minilm() -> None:
    """The encoder of MiniLM, tiny, weights as constants of the device."""
    model = BertEncoder(TINY)
    rng = np.random.default_rng(1)
    state = {
        name: rng.standard_normal(array.shape, dtype=np.float32) * 0.2
        for name, array in random_state(TINY).items()
    }
    load_weights(model, state)
    mod, params = model.export(SPEC)
    here = relaxpy.VirtualMachine(relaxpy.build(mod, quick_target(), params=params))["embed"]
    there = relaxpy.VirtualMachine(relaxpy.build(mod, "hostile", params=params))["embed"]
    for policy in POLICIES:
        set_policy(policy)
        for batch, length in ((1, 5), (3, 9), (1, 1), (3, 9)):
            ids = rng.integers(0, TINY.vocab_size, (batch, length))
            mask = (np.arange(length) < rng.integers(1, length + 1, (batch, 1))).astype(np.int64)
            got, wanted = numbers(there(ids, mask)), numbers(here(ids, mask))
            np.testing.assert_allclose(got, wanted, atol=2e-5)


def test_allocations_that_fail_anywhere() -> None:
    """Every allocation of a call may fail: the call is an error, and the machine as good as before."""
    w, b = f32(16, 16), f32(16)
    exe = relaxpy.build(relaxpy.parse(LAYERS), "hostile")
    wanted = numbers(relaxpy.VirtualMachine(exe)(f32(40, 16), w, b))
    failed = 0
    for first in range(30):
        vm = relaxpy.VirtualMachine(exe)
        with failing_allocations(first, first + 1):
            got = outcome(lambda vm=vm: vm(f32(40, 16), w, b))
        if isinstance(got, RelaxError):
            assert got.code == "out-of-memory"
            failed += 1
        again = numbers(vm(f32(40, 16), w, b))
        assert not disagreement(again, wanted, 0, 0)
        vm.synchronise()
    assert failed > 5
