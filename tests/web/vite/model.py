"""Writes the package `model`, which the example imports as `my-model`: a layer with softmax, for WebGPU and WebAssembly."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import relaxpy
from relaxpy.web.export import Written, export

HERE = Path(__file__).parent
WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3) / 12
TEXT = """
@R.function
def main(x: R.Tensor(("n", 4), "float32"), w: R.Tensor((4, 3), "float32")):
    y = R.nn.softmax(R.matmul(x, w))
    return (y, R.shape_of(x))
"""


def write(folder: Path = HERE / "model") -> Written:
    """Writes the package."""
    mod = relaxpy.parse(TEXT)
    exes = [relaxpy.build(mod, target, {"w": WEIGHT}) for target in ("webgpu", "wasm")]
    return export(exes, folder, name="my-model")


if __name__ == "__main__":
    write()
