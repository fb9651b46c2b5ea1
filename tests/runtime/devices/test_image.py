"""Images of OpenCL as they are in a file."""

from __future__ import annotations

import pytest

from relaxpy.runtime.devices.image import Image

ARGS = ({"memory": 0}, {"size": 6, "dtype": "int64"}, {"first": 0, "itemsize": 4})


def test_round_trip() -> None:
    image = Image("k", ARGS, "__kernel void k() {}\n", ("cl_khr_fp64",))
    assert Image.decode(image.encode()) == image


@pytest.mark.parametrize(
    "data",
    [
        b"\x7fELF",
        b"__kernel void k() {}",
        b'// relaxpy: {"kernel": "k", "args": [{"memory": -1}], "extensions": []}\n',
        b'// relaxpy: {"kernel": "k", "args": [{"address": 1}], "extensions": []}\n',
        b"// relaxpy: {]\n",
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
