"""Patterns of matrix products with what follows them, for libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from relaxpy.analysis.dataflow_match import Match
from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dim import Dim
from relaxpy.ir.pattern import Pattern, is_op, wildcard


@dataclass(frozen=True)
class ProductPattern:
    """`activation(left @ right + bias + residual)`, of which all but the product may be missing."""

    name: str
    """`matmul`, with the suffix `_nt` if the right factor is stored transposed, `_bias`, `_residual`, and `_relu`,
    say."""
    pattern: Pattern
    left: Pattern
    right: Pattern
    """The right factor as stored."""
    product: Pattern
    """The product by itself, or with the bias of `R.linear`."""
    bias: Pattern | None = None
    residual: Pattern | None = None

    @property
    def holes(self) -> tuple[Pattern, ...]:
        """The operands, in the order of the formula."""
        return (self.left, self.right, *(p for p in (self.bias, self.residual) if p is not None))

    def dtype(self, match: Match) -> str | None:
        """The one element type of all values, if both factors are matrices or batches of them and what follows the
        product keeps its shape; else None."""
        types = [match.annotation(p) for p in (*self.holes, self.product, self.pattern)]
        dtypes = {_dtype(each) for each in types}
        if len(dtypes) > 1 or not all(_rank(each) > 1 for each in types[:2]):
            return None
        return dtypes.pop() if dims_of(types[-1]) == dims_of(types[-2]) else None


def product_patterns(
    activations: Sequence[str],
    right: Callable[[], Pattern] = wildcard,
    with_residual: bool = False,
) -> Iterator[ProductPattern]:
    """All products with one of these activations or none (`relu`: `R.nn.relu`), the longest patterns first, so that an
    epilogue is matched together with its product. `right` makes the pattern of a right-hand factor."""
    for activation in (*activations, ""):
        for adds in (True, False) if with_residual else (False,):
            for has_bias in (True, False):
                for is_transposed in (True, False):
                    bare = _product(is_transposed, has_bias, right())
                    yield _with_epilogue(bare, adds, activation)
                yield _with_epilogue(_layer(has_bias, right()), adds, activation)


def dims_of(annotation: Annotation) -> tuple[Dim, ...] | None:
    """The shape of a tensor; None where it is not known."""
    return annotation.dims if isinstance(annotation, TensorType) else None


def _product(is_transposed: bool, has_bias: bool, b: Pattern) -> ProductPattern:
    """`R.matmul`. If `b` is a transposition of its last two axes, the product reads the original."""
    a = wildcard()
    right = b
    if is_transposed:
        swap = is_op("permute_dims")
        right = swap.has_attr(axes=_swaps_last_two)(b) | swap.has_attr(axes=None)(
            b.has_shape((None, None))
        )
    name, product = "matmul" + "_nt" * is_transposed, is_op("matmul")(a, right)
    if not has_bias:
        return ProductPattern(name, product, a, b, product)
    value = is_op("add")(product, c := wildcard(), any_order=True)
    return ProductPattern(f"{name}_bias", value, a, b, product, c)


def _layer(has_bias: bool, b: Pattern) -> ProductPattern:
    """`R.linear`, whose weight is stored as (out, in)."""
    a, c = wildcard(), wildcard() if has_bias else None
    value = is_op("linear")(a, b, *([] if c is None else [c]))
    return ProductPattern("matmul_nt" + "_bias" * has_bias, value, a, b, value, c)


def _with_epilogue(bare: ProductPattern, has_residual: bool, activation: str) -> ProductPattern:
    """A product with what follows it."""
    value, residual, name = bare.pattern, None, bare.name
    if has_residual:
        residual, name = wildcard(), f"{name}_residual"
        value = is_op("add")(value, residual, any_order=True)
    if activation:
        value, name = is_op(f"nn.{activation}")(value), f"{name}_{activation}"
    return replace(bare, name=name, pattern=value, residual=residual)


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
