"""Images: Metal's language, and how it is called."""

from __future__ import annotations

import re

from relaxpy.backend.gpu.threads import bind_threads
from relaxpy.backend.metal.kernel_image import kernel_image
from relaxpy.backend.metal.target import MetalTarget
from tests.backend.gpu.support import MATMUL, program


def test_arguments() -> None:
    """Memory in the order of the places; then the numbers, in the order of the structure."""
    image, launch = kernel_image(
        bind_threads(program(MATMUL).func, 64), "k", "matmul", MetalTarget()
    )
    memory = [arg["memory"] for arg in image.args if "memory" in arg]
    assert sorted(memory) == [0, 1, 2]
    assert launch[3:6] == (64, 1, 1)
    places = [int(place) for place in re.findall(r"\[\[ buffer\((\d+)\)", image.source)]
    assert places == [0, 1, 2, 3]
    fields = re.search(r"_args_t \{(.*?)\};", image.source, re.DOTALL)
    assert fields is not None
    assert fields[1].count("long ") == len(image.args) - 3
    assert f"kernel void {image.kernel}(" in image.source
