"""Written from the table of operators by `make stubs`; see tests/stubs.py."""

from collections.abc import Sequence

from relaxpy.ir.expr import Call
from relaxpy.op.function import DTypeLike, ShapeLike, TensorLike

def affine_grid(data: TensorLike, size: ShapeLike, align_corners: bool = True) -> Call:
    """A sampling grid: the affine transforms data, (batch, 2, 3) or (batch, 3, 4), applied to the coordinates of an
    evenly spaced grid of `size`. The result is (batch, 2, H, W) or (batch, 3, D, H, W). An axis of size 1 has
    coordinate 0.

    align_corners: Whether -1 and 1 are the centres of the first and last elements; otherwise their outer edges.
    """

def grid_sample(
    data: TensorLike,
    grid: TensorLike,
    method: str = "bilinear",
    layout: str = "NCHW",
    padding_mode: str = "zeros",
    align_corners: bool = False,
) -> Call:
    """Sample data at the coordinates `grid`, (batch, 2, H, W) or (batch, 3, D, H, W), with coordinates along axis 1, as
    from `image.affine_grid`. The nearest element of a position halfway between two is the even one. A NaN coordinate
    gives NaN; with method "nearest" it reads index 0.

    method: Interpolation: "nearest", "bilinear" (two elements along each axis) or "bicubic" (four).

    layout: Layout of data and of the result: the letters N, C, H, W, and D for three spatial axes; channels may be divided
    into blocks.

    padding_mode: Values outside of data: "zeros", "border" (the nearest element), or "reflection" (data mirrored).

    align_corners: Whether -1 and 1 are the centres of the first and last elements; otherwise their outer edges.
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
    """Resize the two spatial axes of data to `size`. Each element is a weighted sum of the elements around its position
    in data. Beyond the ends of an axis the nearest element is read.

    roi: Mode tf_crop_and_resize: the region of interest, as (starts, ends) along the spatial axes; 0 is the first element
    of an axis and 1 the last.

    method: Interpolation: "nearest_neighbor", "linear" (two elements along each axis) or "cubic" (four).

    coordinate_transformation_mode: The mapping from an index of the result to a position in data, by ONNX's name.

    rounding_method: Rounding to the nearest element: "round" (halves to even), "round_prefer_floor", "round_prefer_ceil", "floor" or
    "ceil". "": round for align_corners, else floor.

    cubic_alpha: Coefficient of the cubic spline.

    cubic_exclude: 1: elements outside of data get no cubic weight, and the other weights are normalised. 0: the nearest element is
    read instead.

    extrapolation_value: Mode tf_crop_and_resize: the value outside of data.

    out_dtype: Dtype of the result; None: the dtype of data. Fractions are truncated toward 0 in integer results; a sum within
    `SLACK` of a whole number counts as that number.
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
    """Resize the three spatial axes of data to `size`. Each element is a weighted sum of the elements around its
    position in data. Beyond the ends of an axis the nearest element is read.

    roi: Mode tf_crop_and_resize: the region of interest, as (starts, ends) along the spatial axes; 0 is the first element
    of an axis and 1 the last.

    method: Interpolation: "nearest_neighbor", "linear" (two elements along each axis) or "cubic" (four).

    coordinate_transformation_mode: The mapping from an index of the result to a position in data, by ONNX's name.

    rounding_method: Rounding to the nearest element: "round" (halves to even), "round_prefer_floor", "round_prefer_ceil", "floor" or
    "ceil". "": round for align_corners, else floor.

    cubic_alpha: Coefficient of the cubic spline.

    cubic_exclude: 1: elements outside of data get no cubic weight, and the other weights are normalised. 0: the nearest element is
    read instead.

    extrapolation_value: Mode tf_crop_and_resize: the value outside of data.

    out_dtype: Dtype of the result; None: the dtype of data. Fractions are truncated toward 0 in integer results; a sum within
    `SLACK` of a whole number counts as that number.
    """
