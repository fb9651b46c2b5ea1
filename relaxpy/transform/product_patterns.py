"""Patterns of matrix products with what follows them, for libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from relaxpy.analysis.dataflow_match import Match
from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dim import Dim
from relaxpy.ir.pattern import Pattern, is_op, wildcard


@dataclass(frozen=True)
class ProductPattern:
    """`activation(left @ right + bias)`, where bias and activation may be missing."""

    name: str
    """`matmul`, with the suffix `_nt` if the right factor is stored transposed, `_bias`, and `_relu`, say."""
    pattern: Pattern
    holes: tuple[Pattern, ...]
    """Left and right factor as stored, and the bias if there is one."""
    product: Pattern
    """The product by itself."""

    def dtype(self, match: Match) -> str | None:
        """The one element type of all values, if both factors are matrices or batches of them and what follows the
        product keeps its shape; else None."""
        types = [match.annotation(p) for p in (*self.holes, self.product, self.pattern)]
        dtypes = {_dtype(each) for each in types}
        if len(dtypes) > 1 or not all(_rank(each) > 1 for each in types[:2]):
            return None
        return dtypes.pop() if dims_of(types[-1]) == dims_of(types[-2]) else None


def product_patterns(
    activations: Sequence[str], right: Callable[[], Pattern] = wildcard
) -> Iterator[ProductPattern]:
    """All products with one of these activations or none (`relu`: `R.nn.relu`), the longest patterns first, so that an
    epilogue is matched together with its product. `right` makes the pattern of a right-hand factor."""
    for activation in (*activations, ""):
        for has_bias in (True, False):
            for is_transposed in (True, False):
                yield _product(is_transposed, has_bias, activation, right())
            yield _layer(has_bias, activation, right())


def dims_of(annotation: Annotation) -> tuple[Dim, ...] | None:
    """The shape of a tensor; None where it is not known."""
    return annotation.dims if isinstance(annotation, TensorType) else None


def _product(is_transposed: bool, has_bias: bool, activation: str, b: Pattern) -> ProductPattern:
    """`R.matmul`. If `b` is a transposition of its last two axes, the product reads the original."""
    a, c = wildcard(), wildcard()
    right = b
    if is_transposed:
        swap = is_op("permute_dims")
        right = swap.has_attr(axes=_swaps_last_two)(b) | swap.has_attr(axes=None)(
            b.has_shape((None, None))
        )
    product: Pattern = is_op("matmul")(a, right)
    value: Pattern = is_op("add")(product, c, any_order=True) if has_bias else product
    return _pattern(value, is_transposed, activation, product, (a, b, *([c] if has_bias else [])))


def _layer(has_bias: bool, activation: str, b: Pattern) -> ProductPattern:
    """`R.linear`, whose weight is stored as (out, in)."""
    holes = (wildcard(), b, *([wildcard()] if has_bias else []))
    value = is_op("linear")(*holes)
    return _pattern(value, True, activation, value, holes)


def _pattern(
    value: Pattern,
    is_transposed: bool,
    activation: str,
    product: Pattern,
    holes: tuple[Pattern, ...],
) -> ProductPattern:
    root = is_op(f"nn.{activation}")(value) if activation else value
    suffix = f"_{activation}" if activation else ""
    name = "matmul" + "_nt" * is_transposed + "_bias" * (len(holes) > 2) + suffix
    return ProductPattern(name, root, holes, product)


def _rank(annotation: Annotation) -> int:
    return len(dims_of(annotation) or ())


def _dtype(annotation: Annotation) -> str | None:
    dtype = annotation.dtype if isinstance(annotation, TensorType) else None
    return None if dtype is None else str(dtype)


def _swaps_last_two(axes: tuple[int, ...] | None) -> bool:
    if axes is None or len(axes) < 2:
        return False
    n = len(axes)
    return [axis % n for axis in axes] == [*range(n - 2), n - 1, n - 2]
