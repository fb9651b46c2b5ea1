"""Images of kernels as they are in a file."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from relaxpy.runtime.devices.image import Image, LibraryCall, getter

ARGS = ({"memory": 0}, {"size": 6, "dtype": "int64"}, {"first": 0, "itemsize": 4})


def test_round_trip() -> None:
    image = Image("k", ARGS, b"__kernel void k() {}\n", ("cl_khr_fp64",))
    assert Image.decode(image.encode()) == image
    assert image.source == "__kernel void k() {}\n"


CALL = LibraryCall("cublas.matmul", "float32", {"left": 0, "right": 1, "workspace": 2, "out": 3}, 7, 3, 65, 1024)  # fmt: skip


def test_a_library_call() -> None:
    image = Image("k", ARGS, b"", library=CALL)
    assert Image.decode(image.encode()) == image


@pytest.mark.parametrize(
    "change",
    [
        {"places": {"left": 0}},
        {"places": {**CALL.places, "other": 1}},
        {"places": {**CALL.places, "left": -1}},
        {"places": {**CALL.places, "left": True}},
        {"first": 1.5},
        {"least": "many"},
        {"places": 5},
    ],
)
def test_what_is_no_library_call(change: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        Image.decode(Image("k", ARGS, b"", library=replace(CALL, **change)).encode())


def test_rounds_are_a_number_of_the_launch() -> None:
    image = Image("k", ARGS, b"", rounds=7)
    assert Image.decode(image.encode()) == image
    for count, problem in ((8, ""), (7, "its rounds are number 7 of a launch of 7")):
        info: Any = SimpleNamespace(
            image=SimpleNamespace(symbol="k", launch=(1,) * count), params=None
        )
        assert image.misfit(info) == problem
    with pytest.raises(ValueError, match="is no natural number"):
        Image.decode(replace(image, rounds=-1).encode())


def test_machine_code() -> None:
    code = b"\x7fELF\n\x00\xff\n"
    image = Image("k", ARGS, code, limits={"threads": 64}, format="cubin", resources={"spills": 0})
    assert Image.decode(image.encode()) == image


@pytest.mark.parametrize(
    "data",
    [
        b"\x7fELF",
        b"__kernel void k() {}",
        b'// relaxpy: {"kernel": "k", "args": [{"memory": -1}], "extensions": []}\n',
        b'// relaxpy: {"kernel": "k", "args": [{"address": 1}], "extensions": []}\n',
        b"// relaxpy: {]\n",
        b'// relaxpy: {"kernel": "k", "args": [], "extensions": []}\n\xff',
        b'// relaxpy: {"kernel": "k", "args": [], "extensions": [], "format": "exe"}\n',
        b'// relaxpy: {"kernel": "k", "args": [], "extensions": [], "format": []}\n',
        b'// relaxpy: {"kernel": "k", "args": [], "extensions": [], "limits": 5}\n',
        b'// relaxpy: {"kernel": "k", "args": [], "extensions": [], "resources": {"spills": "many"}}\n',
        b"// relaxpy: " + b"[" * 100_000,
        b"// relaxpy: []\n",
        b'// relaxpy: {"kernel": "k", "args": [{"memory": true}], "extensions": []}\n',
        b'// relaxpy: {"kernel": "k", "args": [{"first": 0, "itemsize": 0}], "extensions": []}\n',
        b'// relaxpy: {"kernel": "k", "args": [{"size": 6, "dtype": []}], "extensions": []}\n',
        b'// relaxpy: {"kernel": "k", "args": [{"size": 6, "dtype": "object"}], "extensions": []}\n',
    ],
)
def test_what_is_no_image(data: bytes) -> None:
    with pytest.raises((ValueError, TypeError)):
        Image.decode(data)


@dataclass
class _Tensor:
    offset: int = 24
    buffer: Any = field(default_factory=lambda: SimpleNamespace(handle="memory"))


def test_arguments_are_found() -> None:
    numbers, given = (1, 1, 1, 64, 1, 1, 7), (_Tensor(), True, 2)
    described = (
        {"memory": 0},
        {"first": 0, "itemsize": 4},
        {"scalar": 1, "dtype": "int8"},
        {"scalar": 2, "dtype": "float16"},
        {"size": 6, "dtype": "int32"},
    )
    found = [getter(arg)(numbers, given) for arg in described]
    assert found == ["memory", 6, 1, 2.0, 7]
    assert [type(each) for each in found] == [str, int, int, float, int]
    typed = [getter(arg, np.int32)(numbers, given) for arg in described[1:]]
    assert typed == [6, 1, 2, 7]
    assert all(type(each) is np.int32 for each in typed)
    assert getter(described[1], offset=lambda tensor: tensor.offset + 8)(numbers, given) == 8
