"""Written from the table of operators by `make stubs`; see relaxpy/testing/stubs.py."""

from collections.abc import Sequence

from relaxpy.ir.expr import Call
from relaxpy.op.function import DTypeLike, ShapeLike, TensorLike

def affine_grid(data: TensorLike, size: ShapeLike, align_corners: bool = True) -> Call:
    """The coordinates (batch, 2, H, W), or (batch, 3, D, H, W), that the matrices data (batch, 2, 3), or (batch, 3,
    4), map those of an evenly spaced grid of `size` to. An axis of one place has coordinate 0.

    align_corners: Whether -1 and 1 are the centres of the first and last places, or else their outer edges.
    """

def grid_sample(
    data: TensorLike,
    grid: TensorLike,
    method: str = "bilinear",
    layout: str = "NCHW",
    padding_mode: str = "zeros",
    align_corners: bool = False,
) -> Call:
    """data at the coordinates `grid` (batch, 2, H, W), or (batch, 3, D, H, W), which counts them along the second axis,
    as `image.affine_grid` makes them. The nearest place is that to even. A coordinate that is NaN gives NaN; with
    method "nearest", what is at place 0.

    method: Which elements are summed along each axis: "nearest", "bilinear" (the two around), "bicubic" (the four).

    layout: Layout of data and of the result: of letters N, C, H, W, and D for three axes.

    padding_mode: What is outside of data: "zeros", "border" (the nearest place), "reflection" (data again, mirrored).

    align_corners: Whether -1 and 1 are the centres of the first and last places, or else their outer edges.
    """

def resize2d(
    data: TensorLike,
    size: ShapeLike,
    roi: Sequence[float] | float | None = None,
    layout: str = "NCHW",
    method: str = "linear",
    coordinate_transformation_mode: str = "half_pixel",
    rounding_method: str = "round",
    cubic_alpha: float = -0.75,
    cubic_exclude: int = 0,
    extrapolation_value: float = 0.0,
    out_dtype: DTypeLike | None = None,
) -> Call:
    """data with its two spatial axes resized to `size`: each element a weighted sum of those around the position that
    it comes from. Beyond the ends of an axis the nearest place is read.

    roi: Mode tf_crop_and_resize: the part of data that is resized, as (starts, ends) along the spatial axes, where 0 is
    the first place of an axis and 1 the last.

    method: Which elements are summed: "nearest_neighbor", "linear" (the two around), "cubic" (the four around).

    coordinate_transformation_mode: Where an element of the result comes from, as ONNX names it.

    rounding_method: Which place is nearest: "round" (to even), "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"; "": round
    for align_corners, else floor.

    cubic_alpha: Coefficient of the cubic spline.

    cubic_exclude: 1: places outside of data have no cubic weight, and the others make up for it; 0: they read the nearest.

    extrapolation_value: Mode tf_crop_and_resize: what comes from outside of data.

    out_dtype: Dtype of the result; None: that of data. Fractions become integers towards 0 (a whole number that rounding
    errors moved by less than `SLACK` is whole).
    """

def resize3d(
    data: TensorLike,
    size: ShapeLike,
    roi: Sequence[float] | float | None = None,
    layout: str = "NCDHW",
    method: str = "linear",
    coordinate_transformation_mode: str = "half_pixel",
    rounding_method: str = "",
    cubic_alpha: float = -0.75,
    cubic_exclude: int = 0,
    extrapolation_value: float = 0.0,
    out_dtype: DTypeLike | None = None,
) -> Call:
    """data with its three spatial axes resized to `size`: each element a weighted sum of those around the position
    that it comes from. Beyond the ends of an axis the nearest place is read.

    roi: Mode tf_crop_and_resize: the part of data that is resized, as (starts, ends) along the spatial axes, where 0 is
    the first place of an axis and 1 the last.

    method: Which elements are summed: "nearest_neighbor", "linear" (the two around), "cubic" (the four around).

    coordinate_transformation_mode: Where an element of the result comes from, as ONNX names it.

    rounding_method: Which place is nearest: "round" (to even), "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"; "": round
    for align_corners, else floor.

    cubic_alpha: Coefficient of the cubic spline.

    cubic_exclude: 1: places outside of data have no cubic weight, and the others make up for it; 0: they read the nearest.

    extrapolation_value: Mode tf_crop_and_resize: what comes from outside of data.

    out_dtype: Dtype of the result; None: that of data. Fractions become integers towards 0 (a whole number that rounding
    errors moved by less than `SLACK` is whole).
    """
