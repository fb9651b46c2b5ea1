from __future__ import annotations

import copy
import ctypes
import math
import pickle

import ml_dtypes
import numpy as np
import pytest

from relaxpy.errors import RuntimeCheckError
from relaxpy.half_bytes import SHARED
from relaxpy.runtime.dtype import INFO, to_numpy
from relaxpy.runtime.tensor import Shape, Tensor, empty, from_any, from_numpy, tensor_at


def taken(value: object, dtype: str = "") -> Tensor:
    tensor = from_any(value, dtype)
    assert tensor is not None
    return tensor


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("name", sorted(INFO))
def test_every_element_type_round_trips_without_a_copy(name: str) -> None:
    array = np.zeros((2, 3), to_numpy(name))
    tensor = taken(array)
    assert tensor.dtype == name
    # numpy keeps an element of half a byte in a byte of its own
    assert (tensor.pointer == address(array)) == (name not in SHARED)
    assert tensor_at(tensor.pointer, (2, 3), name, array).numpy().dtype == array.dtype


def test_numpy_view_keeps_memory_alive() -> None:
    array = empty((1000,), "float32").numpy()
    array[:] = 3
    _ = [np.ones(1000, np.float32) for _ in range(10)]
    assert (array == 3).all()


def test_own_memory_is_aligned_and_writable() -> None:
    tensor = empty((5, 3), "float32")
    assert tensor.pointer % 64 == 0
    tensor.numpy()[...] = 2
    assert tensor.copy().numpy().sum() == 30
    assert tensor.nbytes == 60


def test_what_is_compact_is_not_copied() -> None:
    base = np.arange(40, dtype=np.float32)
    unaligned = base[1:9]  # aligned to its items, not to 64 bytes
    readonly = base[:8].view()
    readonly.flags.writeable = False
    for array in (unaligned, readonly, base[:0], np.array(3, np.float32), base[3:4].reshape(1, 1)):
        assert taken(array).pointer == address(array)
        assert taken(array).shape == array.shape


def test_what_is_not_compact_is_copied() -> None:
    base = np.arange(40, dtype=np.float32)
    raw = np.zeros(33, np.uint8)
    misaligned = raw[1:].view(np.float32)
    for array in (base[::2], base.reshape(5, 8).T, base.astype(">f4"), misaligned):
        tensor = taken(array)
        assert tensor.pointer != address(array)
        assert tensor.pointer % 4 == 0
        np.testing.assert_array_equal(tensor.numpy(), array)


def test_torch_is_taken_and_given_without_a_copy() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.float16):
        source = torch.ones(2, 3).to(dtype)
        tensor = taken(source)
        assert tensor.pointer == source.data_ptr()
        back = torch.from_dlpack(tensor)
        assert back.dtype == dtype
        assert back.data_ptr() == source.data_ptr()


def test_torch_tensors_of_every_kind() -> None:
    torch = pytest.importorskip("torch")
    strided = torch.arange(6.0).reshape(2, 3).T
    np.testing.assert_array_equal(taken(strided).numpy(), strided.numpy())
    bf16 = torch.arange(6.0).to(torch.bfloat16).reshape(2, 3).T
    assert taken(bf16).numpy().dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(taken(bf16).numpy().astype(np.float32), bf16.float().numpy())
    assert taken(torch.zeros(0, 4)).shape == (0, 4)
    assert taken(torch.tensor(2.5)).item() == 2.5
    assert taken(torch.ones(2, requires_grad=True)).shape == (2,)


def test_tensors_without_memory_are_refused() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(RuntimeCheckError, match="__dlpack__ of a") as caught:
        from_any(torch.ones(2, device="meta"))
    assert caught.value.code in ("dlpack", "device")


def test_jax_arrays() -> None:
    jnp = pytest.importorskip("jax.numpy")
    np.testing.assert_array_equal(taken(jnp.arange(4.0)).numpy(), [0, 1, 2, 3])


def test_capsule_outlives_the_tensor() -> None:
    torch = pytest.importorskip("torch")
    back = torch.from_dlpack(taken(np.full(1000, 7, ml_dtypes.bfloat16)))
    _ = [np.zeros(1000, ml_dtypes.bfloat16) for _ in range(10)]
    assert (back == 7).all()


def test_a_constant_is_copied_on_export_to_who_cannot_be_told() -> None:
    array = np.ones(3, np.float32)
    array.flags.writeable = False
    constant = from_numpy(array, constant=True)
    assert not constant.numpy().flags.writeable
    torch = pytest.importorskip("torch")
    torch.from_dlpack(constant)[0] = 5
    assert array[0] == 1


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (3, "float32", 3.0),
        (0.1, "float32", np.float32(0.1)),
        (True, "bool", True),
        ([[1, 2], [3, 4]], "int8", [[1, 2], [3, 4]]),
        ([], "float32", []),
        (2**40, "int64", 2**40),
        ([2**64 - 1, 7], "uint64", [2**64 - 1, 7]),
        ([[0], [2**63]], "uint64", [[0], [2**63]]),
        (1, "bfloat16", 1.0),
    ],
)
def test_python_numbers_become_the_wanted_type(value: object, dtype: str, expected: object) -> None:
    tensor = taken(value, dtype)
    assert tensor.dtype == dtype
    np.testing.assert_array_equal(tensor.numpy(), np.array(expected, to_numpy(dtype)))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1.5, "int32"),
        (300, "int8"),
        (-1, "uint8"),
        ([2**64 - 1, -1], "uint64"),
        ([2**63, 0.5], "uint64"),
        (2**24 + 1, "float32"),
        (1e300, "float32"),
        (2, "bool"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(value: object, dtype: str) -> None:
    with pytest.raises(RuntimeCheckError) as caught:
        from_any(value, dtype)
    assert caught.value.code == "lossy"


@pytest.mark.parametrize("value", ["text", object(), None, {"a": 1}])
def test_what_is_no_tensor_is_left_alone(value: object) -> None:
    assert from_any(value) is None


@pytest.mark.parametrize("value", [np.array(["a"]), np.zeros(2, complex), [[1], [2, 3]], ["x"]])
def test_arrays_of_other_things_are_refused(value: object) -> None:
    with pytest.raises(RuntimeCheckError) as caught:
        from_any(value)
    assert caught.value.code == "dtype"


def test_values_show_themselves() -> None:
    assert repr(Shape((1, 2))) == "Shape([1, 2])"
    assert repr(taken(np.ones(2, np.float32))).startswith("Tensor([2], float32)")
    assert len(taken(np.zeros((4, 2)))) == 4
    assert float(taken(2.5)) == 2.5
    assert int(taken(3)) == 3
    with pytest.raises(TypeError):
        len(taken(1.0))


COMPUTED: dict[str, object] = {
    "t + 1": [2, 3, 4], "10 - t": [9, 8, 7], "t * t": [1, 4, 9], "t / 2": [0.5, 1, 1.5], "-t": [-1, -2, -3],
    "t // 2": [0, 1, 1], "t % 2": [1, 0, 1], "t ** 2": [1, 4, 9], "abs(-t)": [1, 2, 3], "t @ t": 14,
    "t < 2": [True, False, False], "t == a": [True] * 3, "t != 1": [False, True, True], "t & 1": [1, 0, 1],
    "~t": [-2, -3, -4], "divmod(t, 2)[1]": [1, 0, 1], "t[1:]": [2, 3], "t[0]": 1, "t[t > 1]": [2, 3],
    "a + t": [2, 4, 6], "np.sum(t)": 6, "np.concatenate([t, t])": [1, 2, 3, 1, 2, 3], "np.exp(t * 0)": [1, 1, 1],
    "list(t)": [1, 2, 3], "list(reversed(t))": [3, 2, 1], "2 in t": True, "5 in t": False, "len(t)": 3,
    "sum(t)": 6, "max(t)": 3, "[*zip(t, a)]": [(1, 1), (2, 2), (3, 3)],
    # without dimensions it is a number
    "float(s)": 2.5, "int(i)": 3, "bool(s)": True, "s.item()": 2.5, "f'{s:.2f}'": "2.50", "f'{i:03d}'": "003",
    "[10, 20, 30, 40][i]": 40, "list(range(i))": [0, 1, 2], "s > 2": True, "s + 1": 3.5, "math.sqrt(i * 3)": 3.0,
}  # fmt: skip
"""Python's operators and functions on results, as numpy means them."""


@pytest.mark.parametrize("code", COMPUTED)
def test_python_computes_with_results(code: str) -> None:
    a = np.array([1, 2, 3])
    names = {"t": taken(a), "a": a, "s": taken(2.5), "i": taken(3), "np": np, "math": math}
    np.testing.assert_array_equal(eval(code, names), COMPUTED[code])


@pytest.mark.parametrize(
    ("code", "match"),
    [
        ("bool(t)", "ambiguous"),
        ("float(t)", "size 1"),
        ("range(t)", "integer"),
        ("[1, 2][s]", "integer"),
        ("list(s)", "0-d"),
        ("len(s)", "0-dimensional"),
        ("t.mean()", r"t\.numpy\(\)\.mean"),
        ("t.tolist()", r"t\.numpy\(\)\.tolist"),
        ("f'{t:.2f}'", "unsupported format"),
    ],
)
def test_what_has_no_meaning_is_refused(code: str, match: str) -> None:
    names = {"t": taken(np.array([1, 2, 3])), "s": taken(2.5)}
    with pytest.raises((TypeError, ValueError, AttributeError), match=match):
        eval(code, names)


def test_items_are_read_and_written_as_those_of_an_array() -> None:
    """A library function in Python writes `out[:] = …`."""
    tensor = taken(np.zeros((2, 3)))
    tensor[:] = np.arange(6).reshape(2, 3)
    tensor[0, -1] = 9
    assert tensor[0].tolist() == [0, 1, 9]
    assert tensor[1, 2] == 5
    assert [row.tolist() for row in tensor] == [[0, 1, 9], [3, 4, 5]]
    constant = from_numpy(np.zeros(2), constant=True)
    constant._numpy = None
    with pytest.raises(ValueError, match="read-only"):
        constant[0] = 1


def test_dlpack_device() -> None:
    assert taken(1).__dlpack_device__() == (1, 0)


def test_array_protocol() -> None:
    tensor = taken(np.arange(3))
    assert np.asarray(tensor).dtype == np.int64
    assert np.asarray(tensor, np.float32).dtype == np.float32
    assert ctypes.sizeof(ctypes.c_int64) * 3 == tensor.nbytes


def test_pickled_and_copied_tensors_own_their_memory() -> None:
    tensor = from_numpy(np.arange(3, dtype=np.float32))
    copies = [pickle.loads(pickle.dumps(tensor)), copy.deepcopy(tensor)]
    tensor.numpy()[:] = 9
    for other in copies:
        assert other.pointer == other.numpy().ctypes.data != tensor.pointer
        np.testing.assert_array_equal(other.copy().numpy(), [0, 1, 2])


def test_lazily_negated_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    conjugate = torch.tensor([1 + 2j, 3 + 4j], dtype=torch.complex64).conj()
    np.testing.assert_array_equal(taken(conjugate.imag).numpy(), [-2, -4])


def test_a_copy_that_does_not_fit_memory() -> None:
    with pytest.raises(RuntimeCheckError, match="cannot copy an argument"):
        from_any(np.broadcast_to(np.float32(1), (1 << 44, 4)))


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3, 4), (1, 5)])
@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("writable", [True, False])
def test_addresses_of_arrays(shape: tuple[int, ...], dtype: str, writable: bool) -> None:
    """Whether numpy exports their memory or not."""
    array = np.zeros(shape, to_numpy(dtype))
    array.flags.writeable = writable
    tensor = from_numpy(array)
    assert tensor.pointer == address(array)
    assert tensor.numpy() is array
