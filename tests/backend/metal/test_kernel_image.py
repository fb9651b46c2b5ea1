"""Images: Metal's language, and how it is called."""

from __future__ import annotations

import re

import pytest

from relaxpy.backend.gpu.threads import bind_threads
from relaxpy.backend.metal.kernel_image import kernel_image
from relaxpy.backend.metal.target import MetalTarget
from relaxpy.errors import BuildError
from tests.backend.gpu.support import MATMUL, program


def test_shared_memory_is_limited() -> None:
    """A group has 32 KiB on every GPU; more is an error of the build."""
    text = """
        def main(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
            for j in T.thread_binding(64, thread="threadIdx.x"):
                with T.sblock("y"):
                    s = T.alloc_buffer(({size},), "float32", scope="shared")
                    s[j] = x[j]
                    T.tvm_storage_sync("shared")
                    y[j] = s[63 - j] + s[{size} - 64 + j]
    """

    def image(size: int) -> None:
        bound = bind_threads(program(text.replace("{size}", str(size))).func, 64)
        kernel_image(bound, "k", "turned", MetalTarget())

    image(8192)
    with pytest.raises(BuildError, match='kernel "turned" share 32772 bytes; 32768 are') as caught:
        image(8193)
    assert caught.value.code == "group-memory"


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
