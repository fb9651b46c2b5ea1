"""DumpPasses: every module on the way is a file that can be read again."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import relaxpy
from relaxpy.build.dump import DumpPasses
from relaxpy.build.pipeline import default_pipeline
from relaxpy.ir.module import IRModule
from relaxpy.testing.interpret import interpret
from relaxpy.transform.base import Pass

MOD = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", 40), dtype="float32"), w: R.Tensor((40, 40), dtype="float32")):
    y = R.matmul(x, w)
    z = R.nn.relu(y)
    return z
""")


def test_every_file_is_the_module_of_its_pass(tmp_path: Path) -> None:
    seen: list[tuple[str, IRModule]] = []

    def note(number: int, step: Pass, before: IRModule, after: IRModule) -> None:
        if after is not before:
            seen.append((f"{number + 1:02}-{step.name}", after))

    dump = DumpPasses(tmp_path / "passes")
    weights = np.random.default_rng(0).uniform(-1, 1, (40, 40)).astype(np.float32)
    relaxpy.build(MOD, params={"w": weights}, instruments=[dump, note])
    assert [path.stem for path in dump.written] == ["00-written", *(name for name, _ in seen)]
    x = np.ones((3, 40), np.float32)
    for path, (_, mod) in zip(dump.written[1:], seen, strict=True):
        again = relaxpy.parse(path)
        relaxpy.assert_structural_equal(again, mod)
        np.testing.assert_allclose(
            interpret(again, "main", x), np.maximum(x @ weights, 0), rtol=1e-4, atol=1e-5
        )
    assert "bind-params" in dump.written[1].name
    assert len(default_pipeline().passes) > len(seen)
