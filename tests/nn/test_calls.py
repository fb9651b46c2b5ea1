"""Calls of tensor programs and libraries in `forward`, and state that they update in place."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.errors import UsageError
from relaxpy.ir import Function
from relaxpy.nn import op
from relaxpy.script import tir as T
from relaxpy.testing.interpret import interpret
from tests.sweeps import quick_target


@T.prim_func(private=True)
def increment(x: T.Buffer(("n",), "float32")):
    n = T.int64()
    for i in range(n):
        with T.sblock("x"):
            v = T.axis.spatial(n, i)
            x[v] = x[v] + T.float32(1)


@T.prim_func(private=True)
def double(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
    n = T.int64()
    for i in range(n):
        with T.sblock("y"):
            v = T.axis.spatial(n, i)
            y[v] = x[v] * T.float32(2)


SEEN: list[float] = []


@relaxpy.register_library("nn.calls.halve")
def halve(x: Any, out: Any) -> None:
    out[:] = x.numpy() / 2


class State(nn.Module):
    def __init__(self) -> None:
        self.counts = nn.Buffer((4,))
        self.scale = nn.Parameter(np.full(4, 10, np.float32))

    def read(self, x: nn.Tensor) -> Any:
        """Updates the buffer twice, and reads it after that."""
        op.call_tir_inplace(increment, (self.counts,))
        op.call_tir_inplace(increment, (self.counts,))
        return x + self.counts * self.scale

    def bump(self) -> None:
        op.call_tir_inplace(increment, self.counts)

    def look(self, x: nn.Tensor) -> Any:
        return x + self.counts

    def argument(self, x: nn.Tensor) -> Any:
        return op.call_tir_inplace(increment, (x,), [0], name="step")

    def own(self, x: nn.Tensor) -> Any:
        """Updates memory of its own: it stays pure."""
        return op.call_tir_inplace(increment, (op.exp(x),)) + 1.0

    def outside(self, x: nn.Tensor) -> Any:
        y = op.call_tir(double, (x,), nn.spec.Tensor(x.shape, x.dtype), name="double")
        z = op.call_dps_library("nn.calls.halve", (y,), nn.spec.Tensor(("n",)))
        return op.call_te(lambda a: a, z, name="same"), y


VECTOR = nn.spec.Tensor(("n",))
FOUR = nn.spec.Tensor((4,))
SPEC = {
    "read": {"x": FOUR},
    "bump": {},
    "look": {"x": FOUR},
    "argument": {"x": VECTOR},
    "own": {"x": VECTOR},
    "outside": {"x": VECTOR},
}


@pytest.fixture(scope="module")
def exported() -> Any:
    mod, params = State().export(SPEC)
    relaxpy.assert_structural_equal(relaxpy.parse(mod.script()), mod)
    return mod, params, relaxpy.VirtualMachine(relaxpy.build(mod, quick_target(), params=params))


def test_functions_that_update_are_impure(exported: Any) -> None:
    mod, params, _ = exported
    impure = {name for name, function in mod.graph_functions.items() if not function.pure}
    assert impure == {"read", "bump", "argument"}
    assert list(params) == ["scale"], "the caller keeps the buffer"
    assert [param.name for param in mod["bump"].params] == ["counts"]
    assert [param.name for param in mod["look"].params] == ["x", "counts"]


def test_equal_programs_are_added_once(exported: Any) -> None:
    mod, _, _ = exported
    programs = [n for n, f in mod.functions.items() if not isinstance(f, Function)]
    assert sorted(programs) == ["double", "program", "same"]


def test_a_buffer_is_updated_in_the_callers_memory(exported: Any) -> None:
    mod, params, vm = exported
    counts, x = np.zeros(4, np.float32), np.ones(4, np.float32)
    np.testing.assert_array_equal(vm["read"](x, counts).numpy(), x + 20)
    np.testing.assert_array_equal(counts, 2 * x)
    assert vm["bump"](counts) == ()
    np.testing.assert_array_equal(vm["look"](x, counts).numpy(), 4 * x)
    again = 2 * x
    np.testing.assert_array_equal(interpret(mod, "read", x, again, params["scale"]), x + 40)
    np.testing.assert_array_equal(again, counts + x)


def test_an_argument_is_updated_and_own_memory_is_not_the_callers(exported: Any) -> None:
    _, _, vm = exported
    x = np.zeros(3, np.float32)
    assert vm["argument"](x).numpy() is x or np.shares_memory(vm["argument"](x).numpy(), x)
    assert (x > 0).all()
    kept = x.copy()
    np.testing.assert_allclose(vm["own"](x).numpy(), np.exp(x) + 2, rtol=1e-6)
    np.testing.assert_array_equal(x, kept)
    x.flags.writeable = False
    with pytest.raises(relaxpy.RelaxError, match="read-only"):
        vm["argument"](x)


def test_programs_and_libraries(exported: Any) -> None:
    _, _, vm = exported
    x = np.arange(5, dtype=np.float32)
    same, doubled = vm["outside"](x)
    np.testing.assert_array_equal(same.numpy(), x)
    np.testing.assert_array_equal(doubled.numpy(), 2 * x)


def test_programs_do_not_take_the_names_of_methods() -> None:
    """Whichever comes first: a program, or a method of the same name."""

    class Same(nn.Module):
        def double(self, x: nn.Tensor) -> Any:
            return op.call_tir(double, (x,), VECTOR, name="double") + 1.0

        def twice(self, x: nn.Tensor) -> Any:
            return op.call_te(lambda a: a, x, name="double")

    spec = {"x": VECTOR}
    x = np.arange(3, dtype=np.float32)
    for methods in (
        {"double": spec, "twice": spec},
        {"twice": spec, "double": spec},
    ):
        mod, _ = Same().export(methods)
        relaxpy.assert_structural_equal(relaxpy.parse(mod.script()), mod)
        assert set(methods) <= set(mod.graph_functions)
        assert mod.graph_function("double").attrs["global_symbol"] == "double"
        np.testing.assert_array_equal(interpret(mod, "double", x), 2 * x + 1)
        np.testing.assert_array_equal(interpret(mod, "twice", x), x)


def test_one_buffer_in_two_functions_and_two_modules() -> None:
    """A buffer that is shared is one argument, by its first path, of all functions that read or update it."""

    class Reader(nn.Module):
        def __init__(self, counts: nn.Buffer) -> None:
            self.counts = counts

        def forward(self, x: nn.Tensor) -> Any:
            return x + self.counts

    class Shared(nn.Module):
        def __init__(self) -> None:
            self.counts = nn.Buffer(np.zeros(4, np.float32))
            self.reader = Reader(self.counts)

        def up(self, x: nn.Tensor) -> Any:
            before = self.reader(x)
            op.call_tir_inplace(increment, (self.counts,))
            return before, self.reader(x)

        def twice(self, x: nn.Tensor) -> Any:
            self.up(x)
            return self.up(x)

        def read(self, x: nn.Tensor) -> Any:
            return self.reader(x)

    mod, params = Shared().export({name: {"x": FOUR} for name in ("read", "up", "twice")})
    assert not params
    for function in mod.graph_functions.values():
        assert [param.name for param in function.params] == ["x", "counts"]
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, quick_target()))
    counts, x = np.zeros(4, np.float32), np.ones(4, np.float32)
    for name, seen in (("up", (1, 2)), ("twice", (3, 4)), ("up", (4, 5))):
        for found, value in zip(vm[name](x, counts), seen, strict=True):
            np.testing.assert_array_equal(found.numpy(), value * x)
    np.testing.assert_array_equal(vm["read"](x, counts).numpy(), 5 * x)
    np.testing.assert_array_equal(counts, 4 * x)


def test_a_tensor_of_another_function_is_refused() -> None:
    class Leak(nn.Module):
        def forward(self, x: nn.Tensor) -> Any:
            self.kept = x * 2.0
            return self.kept

        def later(self, x: nn.Tensor) -> Any:
            return x + self.kept

    with pytest.raises(relaxpy.RelaxError) as caught:
        Leak().export({"forward": {"x": FOUR}, "later": {"x": FOUR}})
    assert caught.value.span is not None
    assert (caught.value.span.source_line() or "").strip() == "return x + self.kept"


def test_threads_update_states_of_their_own(exported: Any) -> None:
    _, _, vm = exported

    def work(_: int) -> np.ndarray:
        counts = np.zeros(4, np.float32)
        for _ in range(50):
            vm["bump"](counts)
        return counts

    with ThreadPoolExecutor(8) as pool:
        for counts in pool.map(work, range(16)):
            np.testing.assert_array_equal(counts, 50)


def test_effects_of_python_stay_in_order() -> None:
    def see(x: Any) -> Any:
        SEEN.append(float(np.asarray(x)[0]))
        return x

    class Effects(nn.Module):
        def forward(self, x: nn.Tensor) -> Any:
            y = x + 1.0
            op.call_packed("nn.calls.see", y, ty_args=VECTOR)
            op.call_packed("nn.calls.see", x, ty_args=VECTOR)
            return y * 2.0

    mod, _ = Effects().export({"forward": {"x": VECTOR}})
    forward = mod["forward"]
    assert isinstance(forward, Function)
    assert not forward.pure
    relaxpy.assert_structural_equal(relaxpy.parse(mod.script()), mod)
    x = np.array([3, 4], np.float32)
    found = interpret(mod, "forward", x, libraries={"nn.calls.see": see})
    np.testing.assert_array_equal(found, [8, 10])
    assert SEEN == [4.0, 3.0]


class Wrong(nn.Module):
    def __init__(self, function: Any) -> None:
        self.function = function
        self.weight = nn.Parameter((4,))
        self.counts = nn.Buffer((4,))

    def forward(self, x: nn.Tensor) -> Any:
        return self.function(self, x)


def _read_after(self: Wrong, x: nn.Tensor) -> Any:
    y = op.call_tir_inplace(increment, (x,))
    return y + x


@pytest.mark.parametrize(
    ("function", "code", "told"),
    [
        (_read_after, "update-lost", "x is updated in place, but also used elsewhere"),
        (
            lambda self, x: op.call_tir_inplace(increment, (self.weight,)),
            "update-lost",
            "a weight, which cannot be updated",
        ),
        (lambda self, x: op.call_tir(abs, (x,), VECTOR), "bad-spec", "is not a tensor program"),
        (lambda self, x: op.call_tir(double, (x,), (4,)), "bad-spec", "not the spec of an output"),
        (
            lambda self, x: op.call_tir(double, (x,), nn.spec.Tensor(("m",))),
            "bad-spec",
            "no dimension 'm'",
        ),
        (lambda self, x: op.call_tir(double, (object(),), VECTOR), "bad-spec", "an argument"),
        (
            lambda self, x: op.call_tir_inplace(double, (x,), [-1]),
            "bad-spec",
            "out_ty is missing",
        ),
        (
            lambda self, x: op.call_tir(double, (x,), VECTOR, tir_vars=(1.5,)),
            "bad-spec",
            "tir_vars must be integers",
        ),
        (
            lambda self, x: op.call_tir_inplace(increment, (x,), [0], nn.spec.Tensor((5,))),
            "call-out",
            "cannot use the memory",
        ),
    ],
)
def test_mistakes_are_located_at_their_line(function: Any, code: str, told: str) -> None:
    with pytest.raises(relaxpy.RelaxError) as caught:
        Wrong(function).export({"forward": {"x": nn.spec.Tensor(("n",))}})
    assert caught.value.code == code
    assert told in caught.value.message
    assert caught.value.span is not None
    assert caught.value.span.file == __file__


def test_a_function_without_result_is_a_mistake_unless_it_updates() -> None:
    with pytest.raises(UsageError, match="returned nothing") as caught:
        Wrong(lambda self, x: None).export({"forward": {"x": FOUR}})
    assert caught.value.span is not None
    assert caught.value.span.source_line().strip().startswith("def forward")  # type: ignore[union-attr]
