"""What a function may update in place: memory that the caller sees, may write to, and passed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RuntimeCheckError
from relaxpy.runtime.tensor import from_any
from relaxpy.testing.interpret import interpret

TEXT = """
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def increment(x: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("x"):
                v = T.axis.spatial(n, i)
                x[v] = x[v] + T.float32(1)

    @T.prim_func(private=True)
    def scalar(x: T.Buffer((), "float32")):
        with T.sblock("x"):
            x[()] = x[()] + T.float32(1)

    @T.prim_func(private=True)
    def double(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("y"):
                v = T.axis.spatial(n, i)
                y[v] = x[v] + x[v]

    @R.function(pure=False)
    def update(x: R.Tensor(("n",), "float32"), z: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        n = T.int64()
        cls = Module
        y = R.call_tir_inplace(cls.increment, (x,), out_ty=R.Tensor((n,), "float32"), inplace_indices=[0])
        return R.add(y, z)

    @R.function(pure=False)
    def through(x: R.Tensor(("n",), "float32"), z: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        cls = Module
        y = cls.update(x, z)
        return y

    @R.function(pure=False)
    def direct(x: R.Tensor(("n",), "float32"), z: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        cls = Module
        cls.double(z, x)
        return x

    @R.function
    def packed(x: R.Tensor(("n",), "float32"), z: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        n = T.int64()
        y = R.call_inplace_packed("test.updates.plus", x, inplace_indices=[0], ty_args=R.Tensor((n,), "float32"))
        return y

    @R.function(pure=False)
    def nested(x: R.Tensor(("n",), "float32"), z: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        cls = Module
        t = (z, (x,))
        y = cls.in_tuple(t)
        return y

    @R.function(pure=False)
    def in_tuple(t: R.Tuple(R.Tensor(("n",), "float32"), R.Tuple(R.Tensor(("n",), "float32")))) -> R.Tensor(("n",), "float32"):
        n = T.int64()
        cls = Module
        a = t[1]
        b = a[0]
        y = R.call_tir_inplace(cls.increment, (b,), out_ty=R.Tensor((n,), "float32"), inplace_indices=[0])
        return y

    @R.function(pure=False)
    def zero(x: R.Tensor((), "float32")) -> R.Tensor((), "float32"):
        cls = Module
        y = R.call_tir_inplace(cls.scalar, (x,), out_ty=R.Tensor((), "float32"), inplace_indices=[0])
        return y

    @R.function(pure=False)
    def given(f: R.Callable((R.Tensor(("n",), "float32"),), R.Tensor(("n",), "float32"), purity=False), z: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        cls = Module
        x = f(z)
        y = cls.update(x, z)
        return y

    @R.function(pure=False)
    def written(f: R.Callable((R.Tensor(("n",), "float32"),), R.Tensor(("n",), "float32"), purity=False), z: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        cls = Module
        x = f(z)
        cls.double(z, x)
        return x

    @R.function
    def constant() -> R.Tensor((3,), "float32"):
        c = R.const([1.0, 2.0, 3.0], "float32")
        y = R.call_inplace_packed("test.updates.plus", c, inplace_indices=[0], ty_args=R.Tensor((3,), "float32"))
        return y

    @R.function
    def view(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        return x
"""
UPDATING = ("update", "through", "direct", "packed", "nested")


@relaxpy.register_function("test.updates.plus")
def plus(x: Any) -> Any:
    x[...] = x[...] + np.float32(1)
    return x


@pytest.fixture(scope="module", params=["built", "loaded"])
def vm(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> relaxpy.VirtualMachine:
    exe = relaxpy.build(relaxpy.parse(TEXT))
    if request.param == "loaded":
        path = tmp_path_factory.mktemp("updates") / "updates.rxe"
        exe.save(path)
        exe = relaxpy.load(path)
    return relaxpy.VirtualMachine(exe)


def zeros() -> np.ndarray:
    return np.zeros(3, np.float32)


def misaligned() -> np.ndarray:
    return np.zeros(13, np.uint8)[1:].view(np.float32)


LOST: dict[str, tuple[Callable[[], Any], str]] = {
    "list": (lambda: [0.0, 0.0, 0.0], 'numpy.array(x, "float32")'),
    "strided": (lambda: np.zeros(6, np.float32)[::2], "x.copy()"),
    "reversed": (lambda: zeros()[::-1], "x.copy()"),
    "broadcast": (lambda: np.lib.stride_tricks.as_strided(zeros(), (3,), (0,)), "x.copy()"),
    "misaligned": (misaligned, "x.copy()"),
    "byte-swapped": (lambda: np.zeros(3, ">f4"), 'x.astype("float32")'),
}


def torch_values() -> dict[str, tuple[Any, str]]:
    torch = pytest.importorskip("torch")
    lazy = torch._neg_view(torch.zeros(3))
    return {
        "strided": (torch.zeros(6)[::2], "x.clone().contiguous()"),
        "expanded": (torch.zeros(1).expand(3), "x.clone().contiguous()"),
        "negated": (lazy, "x.clone().contiguous()"),
        "differentiated": (torch.zeros(3, requires_grad=True), "x.detach()"),
    }


@pytest.mark.parametrize("name", UPDATING)
@pytest.mark.parametrize("kind", LOST)
def test_an_update_of_a_copy_is_refused(vm: relaxpy.VirtualMachine, name: str, kind: str) -> None:
    make, advice = LOST[kind]
    with pytest.raises(RuntimeCheckError, match="the update would be lost") as caught:
        vm[name](make(), zeros())
    assert caught.value.code == "update-lost"
    assert advice in str(caught.value)
    assert caught.value.span is not None
    with pytest.raises(RuntimeCheckError, match="the update would be lost"):
        interpret(relaxpy.parse(TEXT), "update", make(), zeros())


@pytest.mark.parametrize("name", UPDATING)
@pytest.mark.parametrize("kind", ["strided", "expanded", "negated", "differentiated"])
def test_so_are_those_of_torch(vm: relaxpy.VirtualMachine, name: str, kind: str) -> None:
    value, advice = torch_values()[kind]
    with pytest.raises(RuntimeCheckError, match="the update would be lost") as caught:
        vm[name](value, zeros())
    assert advice in str(caught.value)
    assert not value.detach().numpy(force=True).any()


@pytest.mark.parametrize("name", UPDATING)
def test_what_is_advised_runs(vm: relaxpy.VirtualMachine, name: str) -> None:
    torch = pytest.importorskip("torch")
    z = np.full(3, 0.5, np.float32)
    for value in (zeros(), np.zeros(6, np.float32)[::2].copy(), np.zeros(6, np.float32)[2:5]):
        vm[name](value, z)
        np.testing.assert_array_equal(value, [1, 1, 1])
    leaf = torch.zeros(3, requires_grad=True)
    vm[name](leaf.detach(), z)
    assert leaf.tolist() == [1, 1, 1]


@pytest.mark.parametrize("name", UPDATING)
def test_jax_arrays_are_not_written_to(vm: relaxpy.VirtualMachine, name: str) -> None:
    """jax's capsules are older than version 1: they cannot say that the memory is read-only."""
    jnp = pytest.importorskip("jax.numpy")
    x = jnp.zeros(3, jnp.float32)
    with pytest.raises(RuntimeCheckError, match="the array is read-only") as caught:
        vm[name](x, zeros())
    assert "numpy.array(x)" in str(caught.value)
    assert not np.asarray(x).any()
    if name != "nested":  # a tuple is updated as a whole
        vm[name](zeros(), x)


def test_memory_of_jax_stays_read_only() -> None:
    """Also where a program returns it, or a view of it."""
    jnp = pytest.importorskip("jax.numpy")
    vm = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(TEXT)))
    array = vm["view"](jnp.zeros(3, jnp.float32)).numpy()
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    bf16 = from_any(jnp.zeros(3, jnp.bfloat16))
    assert bf16 is not None
    assert bf16.dtype == "bfloat16"
    assert not bf16.writable


class Producer:
    """Anything with DLPack: of version 1 with flags, or older."""

    def __init__(self, array: np.ndarray, new: bool) -> None:
        self.array = array
        self.new = new

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **options: Any) -> Any:
        if options and not self.new:
            raise TypeError("unexpected keyword")
        return self.array.__dlpack__(**options)


def test_producers_of_any_kind(vm: relaxpy.VirtualMachine) -> None:
    fixed = zeros()
    fixed.flags.writeable = False
    new = zeros()
    vm["update"](Producer(new, new=True), zeros())
    np.testing.assert_array_equal(new, [1, 1, 1])
    for producer in (Producer(fixed, new=True), Producer(zeros(), new=False)):
        with pytest.raises(RuntimeCheckError, match="read-only"):
            vm["update"](producer, zeros())
        assert not producer.array.any()
        assert vm["view"](producer).numpy().shape == (3,)


def test_scalars(vm: relaxpy.VirtualMachine) -> None:
    own = np.zeros((), np.float32)
    vm["zero"](own)
    assert own == 1
    for value, advice in ((1.0, 'numpy.array(x, "float32")'), (np.float32(1), "numpy.array(x)")):
        with pytest.raises(RuntimeCheckError, match="the update would be lost") as caught:
            vm["zero"](value)
        assert advice in str(caught.value)


def test_memory_that_a_python_function_gives(vm: relaxpy.VirtualMachine) -> None:
    z, own = zeros(), zeros()
    z[:] = 0.5
    fixed = zeros()
    fixed.flags.writeable = False
    for name in ("given", "written"):
        own[:] = 0
        vm[name](lambda _: own, z)
        np.testing.assert_array_equal(own, [1, 1, 1])
        with pytest.raises(RuntimeCheckError, match="the update would be lost"):
            vm[name](lambda _: np.zeros(6, np.float32)[::2], z)
        with pytest.raises(RuntimeCheckError, match="read-only"):
            vm[name](lambda _: fixed, z)
        assert not fixed.any()


def test_shared_memory_is_refused(vm: relaxpy.VirtualMachine) -> None:
    base = np.zeros(8, np.float32)
    for name in ("update", "through", "direct", "packed", "nested"):
        for x, z in ((base[:4], base[:4]), (base[:4], base[3:7]), (base[3:7], base[:4])):
            with pytest.raises(RuntimeCheckError, match="share memory") as caught:
                vm[name](x, z)
            assert caught.value.code == "update-shared"
        vm[name](base[:4], base[4:])
    empty = np.zeros(0, np.float32)
    assert vm["update"](empty, empty).shape == (0,)
    both = np.zeros((2, 3), np.float32)
    vm["in_tuple"]((both[0], (both[1],)))
    with pytest.raises(RuntimeCheckError, match="two tensors in t share memory"):
        vm["in_tuple"]((both[0], (both[0],)))


def test_a_constant_stays_what_it_is(vm: relaxpy.VirtualMachine) -> None:
    for _ in range(2):
        np.testing.assert_array_equal(vm["constant"]().numpy(), [2, 3, 4])
        np.testing.assert_array_equal(interpret(relaxpy.parse(TEXT), "constant"), [2, 3, 4])


def test_narrow_types_are_taken_as_they_are() -> None:
    array = np.zeros(3, ml_dtypes.bfloat16)
    tensor = from_any(array)
    assert tensor is not None
    assert tensor.writable
    assert tensor.owner is array
