"""Values of the runtime: tensors and shapes, and their conversion from arrays without a copy.

A `Tensor` is a pointer, a shape, an element type, and the owner that keeps the memory alive. It is always compact
(row-major, without gaps) and aligned to its items, as kernels require; `from_any` copies an input only if it is not.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from relaxpy.errors import RuntimeCheckError
from relaxpy.half_bytes import SHARED, as_bytes
from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.absent import declare_absent, present
from relaxpy.runtime.capsule import IS_COPY, READ_ONLY, dlpack_flags, dlpack_record
from relaxpy.runtime.device import CPU, Device

LARGEST = (1 << 63) - 1
"""The largest size: a frame's heap and the records of kernels have 64-bit integers."""
ALIGNMENT = 64
"""The alignment in bytes of memory that the runtime allocates: a cache line, and the widest vector register."""

Array: TypeAlias = NDArray[Any]

_U8 = np.dtype(np.uint8)
_from_address = ctypes.c_size_t.from_address
_DATA = object.__basicsize__
"""The place of an array's address: it is the first field of `PyArrayObject`, which compiled extensions read as well."""


class Shape(tuple[int, ...]):
    """A shape value: a tuple of ints, in contrast to a tuple of values."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Shape({list(self)})"


@dataclass(frozen=True, slots=True)
class Fixed:
    """The owner of memory that no function may update in place."""

    memory: object
    """Keeps the memory alive."""
    read_only: bool
    """True: the caller's own memory, which is read-only. False: a copy that the caller does not see."""
    reason: str
    """The reason for an error message, which follows "the parameter"."""
    advice: str
    """The hint for an error message: a value to pass instead."""


class Tensor(np.lib.mixins.NDArrayOperatorsMixin):
    """A compact tensor. `.numpy()` and DLPack share its memory without a copy. Python's operators and numpy's functions
    accept it and return numpy arrays."""

    # Python 3.11 makes an object in half the time if its class has no `__init__`, so `tensor_at` takes its place.

    __slots__ = (
        "__weakref__",
        "_nbytes",
        "_numpy",
        "_record",
        "constant",
        "dtype",
        "owner",
        "pointer",
        "shape",
    )

    pointer: int
    """Address of the first item."""
    shape: tuple[int, ...]
    dtype: str
    owner: object
    """Keeps the memory alive."""
    constant: bool
    """Whether it belongs to an executable: it is never written to, and copied before it leaves a call."""
    device: ClassVar[Device] = CPU  # a subclass has others
    _nbytes: int
    _numpy: Array | None
    _record: Any

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of items."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        if self._nbytes < 0:
            self._nbytes = dtypes.nbytes(self.dtype, self.shape)
        return self._nbytes

    def numpy(self) -> Array:
        """A numpy array over the same memory, which it keeps alive. It is read-only if the memory is. If elements share
        bytes, it is a read-only copy, in which they have bytes of their own."""
        if self._numpy is None:
            if self.dtype in SHARED:
                memory = tensor_at(self.pointer, (self.nbytes,), "uint8", self.owner, self.constant)
                self._numpy = dtypes.from_bytes(memory.numpy(), self.dtype, self.shape)
                self._numpy.flags.writeable = False
                return self._numpy
            self._numpy = np.asarray(_ArrayInterface(self)).view(dtypes.to_numpy(self.dtype))
            if not self.writable:
                self._numpy.flags.writeable = False
        return self._numpy

    @property
    def writable(self) -> bool:
        """Whether its memory may be written to: it is neither a constant of an executable nor a read-only array."""
        if isinstance(self.owner, Fixed) and self.owner.read_only:
            return False
        arrays = (self._numpy, self.owner)
        return not self.constant and all(
            array.flags.writeable for array in arrays if isinstance(array, np.ndarray)
        )

    def copy(self) -> Tensor:
        """A copy in its own memory."""
        out = empty(tuple(self.shape), self.dtype)
        ctypes.memmove(out.pointer, self.pointer, self.nbytes)
        return out

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickling and copying store the elements, since the address is meaningless in a copy.
        return from_numpy, (self.numpy().copy(),)

    def item(self) -> Any:
        """The only element as a Python scalar. Raises ValueError if there are several."""
        return self.numpy().item()

    def __getitem__(self, index: Any) -> Any:
        """Indexing with numpy's rules: a view, a copy or a scalar."""
        return self.numpy()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        """Assignment to elements, as for an array. Library functions in Python fill their outputs with it."""
        self.numpy()[index] = value

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a 0-dimensional tensor has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        """Iterates over the first axis, as numpy does."""
        return iter(self.numpy())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            return array.astype(dtype)
        return array.copy() if copy else array

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Hashes by identity, although `==` compares elements."""
        return id(self)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Applies a numpy function to the elements."""
        arrays = [value.numpy() if isinstance(value, Tensor) else value for value in inputs]
        given = options.get("out", ())
        if given:
            options["out"] = tuple(o.numpy() if isinstance(o, Tensor) else o for o in given)
        result = getattr(ufunc, method)(*arrays, **options)
        return given[0] if len(given) == 1 else result

    __dir__ = present

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.numpy())

    def __index__(self) -> int:
        """The integer of a 0-d tensor where Python needs an index: `range(t)`."""
        return self.numpy().__index__()

    def __format__(self, spec: str) -> str:
        """Formats the element of a 0-d tensor: `f"{t:.3f}"`."""
        return (
            object.__format__(self, spec) if self.shape or not spec else format(self.item(), spec)
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device.dlpack

    def __dlpack__(self, *, copy: bool | None = None, **options: Any) -> object:
        """A DLPack capsule over the same memory; a copy if that is read-only, since consumers may ignore the flag.

        numpy makes the capsule, so it is freed without Python. Types that numpy does not export travel as integers, and
        their type is written into the capsule afterwards.
        """
        if self.dtype in SHARED:
            raise BufferError(
                f"elements of {self.dtype} share bytes, which other packages do not read: export t.numpy()"
            )
        array = self.numpy()
        info = dtypes.info(self.dtype)
        if info.code in (0, 1, 2, 6):
            exported = array
        else:
            exported = array.view(f"uint{info.bits}")
        if copy or (copy is None and not exported.flags.writeable):
            exported = exported.copy()
        capsule = exported.__dlpack__(**options)
        if exported.dtype != array.dtype:
            record = dlpack_record(capsule)
            record.code, record.bits = info.code, info.bits
        return capsule

    def __repr__(self) -> str:
        body = np.array2string(self.numpy(), separator=", ", threshold=32)
        return f"Tensor({list(self.shape)}, {self.dtype})\n{body}"


def tensor_at(
    pointer: int, shape: tuple[int, ...], dtype: str, owner: object, constant: bool = False
) -> Tensor:
    """A tensor over memory at an address, which `owner` keeps alive."""
    tensor = Tensor()
    tensor.pointer = pointer
    tensor.shape = shape
    tensor.dtype = dtype
    tensor.owner = owner
    tensor.constant = constant
    tensor._nbytes = -1
    tensor._numpy = None
    tensor._record = None
    return tensor


def _elsewhere(name: str, _: Tensor) -> str:
    """The message for an attribute that numpy's arrays or torch's tensors have."""
    advice = "t.numpy(), or torch.from_dlpack(t)"
    if hasattr(np.ndarray, name):
        advice = f"t.numpy().{name}" + "(…)" * callable(getattr(np.ndarray, name))
    return f"a Tensor has no attribute {name!r}: use {advice}"


declare_absent(Tensor, (*dir(np.ndarray), "cpu", "detach", "to"), _elsewhere)


class _ArrayInterface:
    """Exports a tensor's memory to numpy as unsigned integers of the item's width, and keeps the tensor's owner
    alive."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, tensor: Tensor) -> None:
        item = dtypes.info(tensor.dtype).itemsize
        self.owner = tensor.owner
        self.__array_interface__ = {
            "version": 3,
            "shape": tuple(tensor.shape),
            "typestr": f"<u{item}" if item > 1 else "|u1",
            "data": (tensor.pointer, tensor.constant),
        }


def sizes(values: Iterable[int]) -> Shape:
    """A shape value of these sizes.

    Raises: RuntimeCheckError (`shape-value`) for one that is negative or does not fit into 64 bits.
    """
    shape = Shape(values)
    for size in shape:
        if not 0 <= size <= LARGEST:
            raise RuntimeCheckError(
                "shape-value",
                f"a size must be an integer of at least 0 and less than 2**63, got {size}",
            )
    return shape


def require_countable(shape: Sequence[int], dtype: str) -> None:
    """Checks a limit of numpy: the nonzero sizes of an array, even of an empty one, must not require more bytes than 64
    bits count.

    Raises: RuntimeCheckError (`out-of-memory`).
    """
    nbytes = math.prod(filter(None, shape)) * dtypes.info(dtype).itemsize
    if nbytes > LARGEST:
        raise RuntimeCheckError("out-of-memory", f"cannot allocate {nbytes} bytes")


def empty(shape: tuple[int, ...], dtype: str) -> Tensor:
    """An uninitialised tensor in memory of its own, aligned to a cache line.

    Raises: RuntimeCheckError (`out-of-memory`, or `shape-value` for an invalid shape).
    """
    shape = tuple(sizes(shape))
    require_countable(shape, dtype)
    buffer, pointer = allocate(dtypes.nbytes(dtype, shape))
    return tensor_at(pointer, shape, dtype, buffer)


def allocate(nbytes: int) -> tuple[Array, int]:
    """Memory of at least `nbytes` bytes: its owner, and an address in it that is aligned to a cache line.

    Raises: RuntimeCheckError (`out-of-memory`).
    """
    try:
        # A negative number of bytes, from unchecked sizes, must not become a small positive one.
        buffer: Any = np.empty(nbytes + ALIGNMENT if nbytes >= 0 else -1, _U8)
    except (MemoryError, ValueError, OverflowError):
        raise RuntimeCheckError("out-of-memory", f"cannot allocate {nbytes} bytes") from None
    return buffer, (address_of(buffer) + ALIGNMENT - 1) & -ALIGNMENT


def from_numpy(array: Array, constant: bool = False) -> Tensor:
    """A tensor over the array's memory; over a copy if items are strided, misaligned or byte-swapped, or share bytes in
    a tensor."""
    name = dtypes.NATIVE.get(array.dtype)
    if name is None or not array.flags.carray:  # compact, aligned, and writable
        name = dtypes.from_numpy(array.dtype)
        if name in SHARED:
            memory = as_bytes(array)
            return tensor_at(address_of(memory), array.shape, name, memory, constant)
        # Zero-sized arrays may have any strides; numpy treats them as compact.
        if not (array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative):
            array = _compact(array)
            constant = False
    tensor = tensor_at(address_of(array), array.shape, name, array, constant)
    tensor._numpy = array
    return tensor


def address_of(array: Array) -> int:
    """The address of the first item of a compact array. To ask numpy for it takes seven times as long."""
    return _from_address(id(array) + _DATA).value


def _compact(array: Array) -> Array:
    """A copy as tensors need it."""
    try:
        return np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True)
    except MemoryError as error:
        raise RuntimeCheckError("out-of-memory", f"cannot copy an argument: {error}") from None


def from_any(value: object, dtype: str = "") -> Tensor | None:
    """Converts a caller's argument to a tensor. None if the value cannot be converted.

    numpy arrays, and objects with DLPack on the CPU, share memory unless they are strided or misaligned. numpy scalars
    are copied. Python numbers and nested lists become `dtype` (a parameter's type; "": numpy's choice); they have no
    type of their own, so only a value that does not fit is an error. Other types are never cast. The owner of a copy,
    and of read-only memory, is a `Fixed`.

    Raises: RuntimeCheckError (`dtype`, `lossy`, `device`).
    """
    if isinstance(value, np.ndarray):
        return from_array(value)
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.generic):
        tensor = from_numpy(np.asarray(value))
        return copied(tensor, "is a numpy scalar", "a 0-d array: numpy.array(x)")
    if isinstance(value, bool | int | float | list):
        tensor = _from_python(value, dtype)
        kind = type(value).__name__
        article = "an" if kind == "int" else "a"
        return copied(tensor, f"is {article} {kind}", f'an array: numpy.array(x, "{tensor.dtype}")')
    if hasattr(value, "__dlpack__"):
        return _from_dlpack(value)
    return None


def from_array(array: Array) -> Tensor:
    """An argument that is a numpy array as a tensor."""
    tensor = from_numpy(array)
    return tensor if tensor.owner is array else _rearranged(tensor, array)


def copied(tensor: Tensor, reason: str, advice: str) -> Tensor:
    """The tensor, marked as a copy of an argument: an update in place would be lost."""
    tensor.owner = Fixed(tensor.owner, False, reason, advice)
    return tensor


def _rearranged(tensor: Tensor, array: Array) -> Tensor:
    """The tensor, marked as a compact copy of the array."""
    if tensor.dtype in SHARED:
        return copied(tensor, f"is an array of {tensor.dtype}", "the result of another call")
    if not array.dtype.isnative:
        return copied(
            tensor,
            "is byte-swapped",
            f'an array in native byte order: x.astype("{tensor.dtype}")',
        )
    reason = "is misaligned" if array.flags.c_contiguous else "is not contiguous"
    return copied(tensor, reason, "a contiguous array: x.copy()")


def _from_python(value: float | list[Any], dtype: str) -> Tensor:
    """Converts numbers without a type of their own to `dtype`, if all of them fit."""
    try:
        natural = np.asarray(value)
        name = dtypes.from_numpy(natural.dtype)
    except (ValueError, OverflowError, RuntimeCheckError) as error:
        why = (
            ", whose rows of different lengths make no tensor"
            if "inhomogeneous" in str(error)
            else ""
        )
        raise RuntimeCheckError("dtype", f"not a tensor: {_short(value)}{why}") from None
    if not dtype or dtype == name:
        return from_numpy(natural)
    target = dtypes.to_numpy(dtype)
    kinds = {"bool": 0, "int": 1, "uint": 1, "float": 2, "bfloat": 2}
    if natural.size == 0:
        return from_numpy(natural.astype(target))
    if dtype == "uint64" and natural.dtype == np.float64:
        # With integers from 2**63 on beside smaller ones, numpy makes floats.
        whole = np.asarray(value, object)
        if all(type(each) is int and each >= 0 for each in whole.flat):
            natural, name = whole, dtype
    if kinds[name.rstrip("0123456789")] > kinds.get(dtype.split("_")[0].rstrip("0123456789"), 2):
        raise RuntimeCheckError("lossy", f"{_short(value)} cannot be converted to {dtype} exactly")
    with np.errstate(all="ignore"):
        cast = natural.astype(target)
        if natural.dtype.kind == "f":  # a float literal may be rounded, but not overflow
            fits = np.array_equal(np.isfinite(natural), np.isfinite(cast.astype(np.float64)))
        else:
            fits = np.array_equal(
                cast.astype(np.float64 if target.kind not in "iub" else object),
                natural.astype(object),
            )
    if not fits:
        raise RuntimeCheckError("lossy", f"{_short(value)} is out of range of {dtype}")
    return from_numpy(cast)


def _from_dlpack(value: Any) -> Tensor:
    """A tensor over the memory of a DLPack producer. The capsule is only read and remains the owner."""
    try:
        kind, index = value.__dlpack_device__()
    except (AttributeError, BufferError, TypeError, ValueError, RuntimeError) as error:
        raise _no_memory(value, error) from error
    if kind != 1:
        raise RuntimeCheckError(
            "device", f"the value is on DLPack device {kind}:{index}, the program runs on the CPU"
        )
    copy = ""
    requires_grad = bool(getattr(value, "requires_grad", False))
    if requires_grad:
        value = value.detach()  # torch does not export tensors that require grad
    if hasattr(value, "resolve_neg"):
        resolved = value.resolve_neg()  # torch would export the operand of a lazy negation
        if resolved is not value:
            value, copy = resolved, "is a lazy negation"
    capsule = _capsule(value)
    record = dlpack_record(capsule)
    name = dtypes.BY_CODE.get((record.code, record.bits))
    if name is None or record.lanes != 1:
        raise RuntimeCheckError("dtype", dtypes.not_passed(record.code, record.bits, record.lanes))
    ndim = record.ndim
    shape = tuple((ctypes.c_int64 * ndim).from_address(record.shape)) if ndim else ()
    strides = (
        tuple((ctypes.c_int64 * ndim).from_address(record.strides))
        if ndim and record.strides
        else None
    )
    if 0 in shape:
        return empty(shape, name)  # producers may give a null pointer, which kernels refuse
    pointer = record.data + record.byte_offset
    item = dtypes.info(name).itemsize
    if strides is not None and not is_compact(shape, strides):
        copy = "is not contiguous"
    elif pointer % item:
        copy = "is misaligned"
    else:
        flags = dlpack_flags(capsule)
        copy = copy or ("gives a copy of its memory" if flags & IS_COPY else "")
        tensor = tensor_at(pointer, shape, name, capsule)
        if flags & READ_ONLY:
            tensor.owner = Fixed(capsule, True, "is read-only", _ARRAY)
        elif requires_grad:
            advice = "a detached tensor: x.detach()"
            tensor.owner = Fixed(capsule, False, "requires a gradient", advice)
        return copied(tensor, copy, _compact_copy(value)) if copy else tensor
    tensor = _copy_strided(pointer, shape, strides, name, capsule)
    return copied(tensor, copy, _compact_copy(value))


_ARRAY = "a writable copy: numpy.array(x)"


def _compact_copy(value: object) -> str:
    torch = type(value).__module__.partition(".")[0] == "torch"
    return "a contiguous tensor: x.clone().contiguous()" if torch else _ARRAY


def _capsule(value: Any) -> object:
    """The value's DLPack capsule; of version 1 if the producer supports it, since that has a read-only flag."""
    try:
        try:
            return value.__dlpack__(max_version=(1, 0))
        except TypeError:  # a producer from before version 1
            return value.__dlpack__()
    except (AttributeError, BufferError, TypeError, ValueError, RuntimeError) as error:
        raise _no_memory(value, error) from error


def _no_memory(value: object, error: Exception) -> RuntimeCheckError:
    name = type(value).__name__
    return RuntimeCheckError("dlpack", f"the __dlpack__ of a {name} failed: {error}")


def is_compact(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the strides (in items) are row-major. Dimensions of size 1 may have any stride."""
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _copy_strided(
    pointer: int, shape: tuple[int, ...], strides: tuple[int, ...] | None, name: str, owner: object
) -> Tensor:
    """A compact copy of strided or misaligned memory."""
    item = dtypes.info(name).itemsize
    if strides is None:
        strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))

    class Strided:
        __array_interface__: ClassVar[dict[str, Any]] = {
            "version": 3,
            "shape": shape,
            "strides": tuple(stride * item for stride in strides),
            "typestr": f"<u{item}" if item > 1 else "|u1",
            "data": (pointer, True),
        }

    try:
        copied = np.array(Strided(), order="C", copy=True).view(dtypes.to_numpy(name))
    except MemoryError as error:
        raise RuntimeCheckError("out-of-memory", f"cannot copy an argument: {error}") from None
    del owner  # alive until here
    return from_numpy(copied)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
