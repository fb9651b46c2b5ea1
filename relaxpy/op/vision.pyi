"""Written from the table of operators by `make stubs`; see tests/stubs.py."""

from collections.abc import Sequence

from relaxpy.ir.expr import Call
from relaxpy.op.function import TensorLike

def all_class_non_max_suppression(
    boxes: TensorLike,
    scores: TensorLike,
    max_output_boxes_per_class: TensorLike,
    iou_threshold: TensorLike,
    score_threshold: TensorLike,
    output_format: str = "onnx",
) -> Call:
    """Non-maximum suppression per class of boxes (B, N, 4) with scores (B, C, N). It selects at most
    `max_output_boxes_per_class` boxes of each class, with a score above `score_threshold` and an IoU below
    `iou_threshold` with every selected box of a higher score. With `output_format` "onnx" the result is a tuple of rows
    (batch, class, box), int64, in descending order of scores within a class, and their number, (1,). With "tensorflow"
    it is a tuple of rows (class, box), (B, C * N, 2), their scores, and their number in each batch; unused rows are
    zeros.
    """

def get_valid_counts(
    data: TensorLike,
    score_threshold: float = 0.0,
    id_index: int = 0,
    score_index: int = 1,
) -> Call:
    """The valid boxes of each batch of boxes (B, N, E): those with a score above `score_threshold` and a class that is
    not negative. The result is a tuple: their number, int32; the boxes in their order, padded with rows of -1; and
    their indices, int32, padded with -1.

    id_index: Position of the class in a box; negative: none.

    score_index: Position of the score in a box.
    """

def multibox_transform_loc(
    cls_pred: TensorLike,
    loc_pred: TensorLike,
    anchor: TensorLike,
    clip: bool = False,
    threshold: float = 0.0,
    variances: Sequence[float] = (1.0, 1.0, 1.0, 1.0),
    keep_background: bool = True,
    apply_softmax: bool = True,
) -> Call:
    """Decode anchor boxes. The result is a tuple: boxes (ymin, xmin, ymax, xmax), (B, N, 4), decoded from offsets (x,
    y, w, h) to anchors (left, top, right, bottom); and scores, (B, C, N), the softmax of the class predictions over the
    classes, 0 below `threshold`.

    clip: Whether boxes are clipped to [0, 1].

    variances: Factors of the offsets x, y, w, h.

    keep_background: Whether class 0 keeps its scores; otherwise they are 0.

    apply_softmax: Whether predictions are logits; otherwise they are scores already.
    """

def non_max_suppression(
    data: TensorLike,
    valid_count: TensorLike,
    indices: TensorLike,
    max_output_size: int = -1,
    iou_threshold: float = 0.5,
    force_suppress: bool = False,
    top_k: int = -1,
    coord_start: int = 2,
    score_index: int = 1,
    id_index: int = 0,
    return_indices: bool = True,
    invalid_to_bottom: bool = False,
    soft_nms_sigma: float = 0.0,
    score_threshold: float = 0.0,
) -> Call:
    """Non-maximum suppression. It selects, of the first `valid_count` boxes of each batch, in descending order of
    scores, those whose IoU with every selected box of their class is below `iou_threshold`. The result is a tuple of
    their `indices` (B, N), padded with -1, and their number, (B, 1). Without `return_indices` it is the boxes, with
    rows of -1 for suppressed ones. With a positive `soft_nms_sigma` scores are lowered instead (soft NMS), and the
    tuple begins with the boxes.

    max_output_size: Maximum number of boxes selected in a batch; below 1: no limit.

    force_suppress: Whether boxes of different classes suppress each other.

    top_k: Number of boxes of a batch that are considered, best first; below 1: all.

    coord_start: Position of the first of the four coordinates in a box.

    score_index: Position of the score in a box.

    id_index: Position of the class in a box; negative: none.

    invalid_to_bottom: Without `return_indices`: whether the selected boxes come first.

    soft_nms_sigma: Sigma of the Gaussian by which overlapping boxes lose score; 0: they are dropped.

    score_threshold: With `soft_nms_sigma`: boxes whose score falls below this are dropped.
    """

def roi_align(
    data: TensorLike,
    rois: TensorLike,
    pooled_size: Sequence[int] | int,
    spatial_scale: float,
    sample_ratio: int = -1,
    aligned: bool = False,
    layout: str = "NCHW",
    mode: str = "avg",
) -> Call:
    """Pool each region of `rois` (image, x1, y1, x2, y2) to `pooled_size`. Each bin is the mean, or the maximum, of
    data sampled at evenly spaced points in the bin by bilinear interpolation; points outside of data are 0.

    pooled_size: Rows and columns of the result; one number for both.

    spatial_scale: The ratio of data's size to that of the original image.

    sample_ratio: Sampling points per bin along an axis; below 1: the size of the bin in elements, rounded up (at most about four
    times the size of data).

    aligned: Whether a region may be smaller than one element; otherwise its sides are at least 1.

    mode: "avg" or "max".
    """

def roi_pool(
    data: TensorLike,
    rois: TensorLike,
    pooled_size: Sequence[int] | int,
    spatial_scale: float,
    layout: str = "NCHW",
) -> Call:
    """Max-pool each region of `rois` (image, x1, y1, x2, y2) to `pooled_size`; an empty bin is 0. The corners of a
    region are rounded to integers and included.

    pooled_size: Rows and columns of the result; one number for both.

    spatial_scale: The ratio of data's size to that of the original image.
    """
