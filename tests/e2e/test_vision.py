"""`R.vision` beside TVM's own kernels, and in a program with symbols."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RelaxError
from tests.sweeps import part, quick_target, sweep

relax = pytest.importorskip("tvm.relax")
tvm = pytest.importorskip("tvm")
RNG = np.random.default_rng(5)
DATA = RNG.uniform(-2, 2, (2, 3, 8, 9)).astype(np.float32)
ROIS = np.array([[0, 1, 1, 5, 6], [1, 0, 0, 7, 7], [0, -3, 2, 14, 4], [1, 2, 2, 2, 2]], np.float32)
CORNERS = np.sort(RNG.uniform(0, 4, (2, 8, 2, 2)), axis=2).reshape(2, 8, 4).astype(np.float32)
KINDS = RNG.integers(-1, 2, (2, 8, 1)).astype(np.float32)
BOXES = np.concatenate([KINDS, RNG.uniform(0, 1, (2, 8, 1)).astype(np.float32), CORNERS], -1)
FOUND = [BOXES, np.array([8, 6], np.int32), np.tile(np.arange(8, dtype=np.int32), (2, 1))]
ANCHORS = [
    RNG.uniform(-2, 2, (2, 3, 5)).astype(np.float32),
    RNG.uniform(-1, 1, (2, 20)).astype(np.float32),
    RNG.uniform(0, 1, (1, 5, 4)).astype(np.float32),
]
SCORES = RNG.uniform(0, 1, (2, 3, 8)).astype(np.float32)


def _all_classes(boxes: Any, scores: Any, **options: Any) -> Any:
    numbers = relax.const(3, "int64"), relax.const(0.3, "float32"), relax.const(0.2, "float32")
    return relax.op.vision.all_class_non_max_suppression(boxes, scores, *numbers, **options)


CASES: dict[str, tuple[list[np.ndarray], str, list[dict[str, Any]]]] = {
    "roi_align": (
        [DATA, ROIS],
        "roi_align",
        [
            {"pooled_size": (3, 2), "spatial_scale": 0.5},
            {"pooled_size": 2, "spatial_scale": 1.0, "aligned": True, "sample_ratio": 2},
            {"pooled_size": 2, "spatial_scale": 1.0, "mode": "max"},
        ],
    ),
    "roi_pool": ([DATA, ROIS], "roi_pool", [{"pooled_size": (3, 2), "spatial_scale": 0.5}]),
    "multibox": (
        ANCHORS,
        "multibox_transform_loc",
        [{}, {"clip": True, "threshold": 0.3}, {"apply_softmax": False, "keep_background": False}],
    ),
    "valid counts": ([BOXES], "get_valid_counts", [{"score_threshold": 0.4}, {"id_index": -1}]),
    "suppression": (
        FOUND,
        "non_max_suppression",
        [
            {},
            {"iou_threshold": 0.1, "force_suppress": True},
            {"return_indices": False, "invalid_to_bottom": True, "iou_threshold": 0.2},
            {"top_k": 4, "max_output_size": 2, "id_index": -1},
            {"soft_nms_sigma": 0.5, "score_threshold": 0.2, "iou_threshold": 0.8},
        ],
    ),
    "all classes": ([CORNERS, SCORES], "", [{"output_format": "tensorflow"}]),
}


@sweep(2)
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_numbers_are_those_of_tvm(case: str) -> None:
    """The text that TVM prints of a call, read and run, gives what TVM's kernel gives."""
    arrays, name, calls = CASES[case]
    make: Callable[..., Any] = getattr(relax.op.vision, name) if name else _all_classes
    for options in part(calls, 3):
        bb = relax.BlockBuilder()
        params = [
            relax.Var(f"x{i}", relax.TensorType(x.shape, str(x.dtype)))
            for i, x in enumerate(arrays)
        ]
        with bb.function("main", params):
            bb.emit_func_output(bb.emit(make(*params, **options)))
        mod = bb.get()
        theirs = relax.VirtualMachine(relax.build(mod, target="llvm"), tvm.cpu())
        want = theirs["main"](*map(tvm.runtime.tensor, arrays))
        lines = mod.script(show_meta=True).splitlines()
        text = "\n".join(line for line in lines if not line.startswith("from tvm"))
        got = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(text), quick_target()))["main"](
            *arrays
        )
        several = isinstance(got, tuple)
        for ours, other in zip(got if several else [got], want if several else [want], strict=True):
            np.testing.assert_allclose(ours.numpy(), other.numpy(), rtol=1e-4, atol=1e-5)


def test_in_a_program_with_symbols() -> None:
    """Rows as many as there are, of any number of boxes; sizes that do not fit are refused when it runs."""
    run = relaxpy.VirtualMachine(
        relaxpy.build(
            relaxpy.parse("""
@R.function
def main(boxes: R.Tensor(("b", "n", 4), "float32"), scores: R.Tensor(("b", 3, "m"), "float32")):
    t = R.vision.all_class_non_max_suppression(
        boxes, scores, R.const(2), R.const(0.5, "float32"), R.const(0.1, "float32"))
    rows = R.match_cast(t[0], R.Tensor(("k", 3), "int64"))
    first = R.take(rows, R.const([0]), axis=1)
    return (first, t[1])
""")
        )
    )["main"]
    rows, count = run(CORNERS, SCORES)
    assert rows.shape == (int(count.numpy()[0]), 1)
    assert 6 <= rows.shape[0] <= 12
    assert run(CORNERS[:, :0], SCORES[:, :, :0])[0].shape == (0, 1)
    with pytest.raises(RelaxError, match="numbers of boxes differ"):
        run(CORNERS, SCORES[:, :, :5])
