"""What is inside a DLPack capsule: the record of a tensor, and flags."""

from __future__ import annotations

import ctypes


class DLTensor(ctypes.Structure):
    """`DLTensor` of dlpack.h, the description of a tensor for kernels and DLPack."""

    _fields_ = (
        ("data", ctypes.c_int64),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_int64),
        ("strides", ctypes.c_int64),
        ("byte_offset", ctypes.c_uint64),
    )


_capsule_name = ctypes.pythonapi.PyCapsule_GetName
_capsule_name.restype = ctypes.c_char_p
_capsule_name.argtypes = [ctypes.py_object]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]

# DLManagedTensorVersioned: version (2 × u32), manager_ctx, deleter, flags (u64), then the DLTensor.
_VERSIONED_OFFSET = 32
_FLAGS_OFFSET = 24
READ_ONLY, IS_COPY = 1, 2


def dlpack_record(capsule: object) -> DLTensor:
    """The `DLTensor` inside a DLPack capsule, in place. The capsule owns it."""
    name: bytes = _capsule_name(capsule)
    address: int = _capsule_pointer(capsule, name)
    return DLTensor.from_address(
        address + (_VERSIONED_OFFSET if name.endswith(b"versioned") else 0)
    )


def dlpack_flags(capsule: object) -> int:
    """The flags of a DLPack capsule. Capsules before version 1 have none, and their memory may be read-only (jax's
    arrays are immutable). Like numpy, treat them as read-only."""
    name: bytes = _capsule_name(capsule)
    if not name.endswith(b"versioned"):
        return READ_ONLY
    address: int = _capsule_pointer(capsule, name)
    return ctypes.c_uint64.from_address(address + _FLAGS_OFFSET).value
