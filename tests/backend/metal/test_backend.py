"""The backend of Metal: images, limits, and what it refuses."""

from __future__ import annotations

import pytest

import relaxpy
from relaxpy.backend.metal.backend import MetalBackend
from relaxpy.backend.registry import backend_of
from relaxpy.errors import BuildError
from relaxpy.runtime.devices.image import Image
from tests.device_emulation.runner import check_syntax, needs_compiler


def test_it_is_found_by_its_kind() -> None:
    assert isinstance(backend_of("metal"), MetalBackend)


def test_float64_is_refused() -> None:
    """When the program is built, with the place in it."""
    text = """
@R.function
def main(x: R.Tensor(("n",), "float64")) -> R.Tensor(("n",), "float64"):
    y = R.add(x, x)
    return y
"""
    with pytest.raises(BuildError, match="values of float64, which Metal cannot") as caught:
        relaxpy.build(relaxpy.parse(text), "metal")
    assert caught.value.code == "device-dtype"
    assert caught.value.span is not None
    assert caught.value.span.line == 4


def test_float64_between_is_refused() -> None:
    """Neither a parameter nor a result has it."""
    text = """
@R.function
def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
    y = R.astype(R.exp(R.astype(x, "float64")), "float32")
    return y
"""
    with pytest.raises(BuildError, match="float64") as caught:
        relaxpy.build(relaxpy.parse(text), "metal")
    assert caught.value.code == "device-dtype"


@needs_compiler
def test_more_tensors_than_places() -> None:
    """Programs are divided: no kernel gets more than 30 buffers."""
    params = ", ".join(f'x{i}: R.Tensor(("n", 4), "float32")' for i in range(70))
    text = f"@R.function\ndef main({params}):\n    y = R.concat(({', '.join(f'x{i}' for i in range(70))}), axis=1)\n    return y\n"
    exe = relaxpy.build(relaxpy.parse(text), "metal")
    images = [Image.decode(image) for image in exe.objects]
    assert len(images) > 1
    assert all(sum("memory" in arg for arg in image.args) <= 30 for image in images)
    check_syntax("metal_shim.h", "\n".join(image.source for image in images))


def test_the_file_is_the_same_in_every_build() -> None:
    text = """
@R.function
def main(x: R.Tensor(("n", 8), "float16")):
    return R.nn.softmax(R.nn.gelu(x))
"""
    made = [relaxpy.build(relaxpy.parse(text), "metal", cache=False) for _ in range(2)]
    assert made[0].objects == made[1].objects
