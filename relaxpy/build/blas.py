"""Matrix products by OpenBLAS: library patterns for `LowerToLibrary` on the CPU.

    relaxpy.build(mod, pipeline=default_pipeline().before("match", LowerToLibrary(BLAS)))

They are not in the default pipeline. benchmarks/library.py measures where they are faster.
"""

from __future__ import annotations

from collections.abc import Iterator

from relaxpy.analysis.dataflow_match import Match
from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.pattern import Pattern, is_op, wildcard
from relaxpy.transform.lower_to_library import LibraryPattern


def _patterns() -> Iterator[LibraryPattern]:
    """The patterns, longest first, so that an epilogue is matched together with its product."""
    for relu in (True, False):
        for bias in (True, False):
            for transposed in (True, False):
                yield _product(transposed, bias, relu)
            yield _layer(bias, relu)


def _product(transposed: bool, bias: bool, relu: bool) -> LibraryPattern:
    """`relu(a @ b + bias)`. If `b` is a transposition of its last two axes, the product reads the original."""
    a, b, c = wildcard(), wildcard(), wildcard()
    right = b
    if transposed:
        swap = is_op("permute_dims")
        right = swap.has_attr(axes=_swaps_last_two)(b) | swap.has_attr(axes=None)(
            b.has_shape((None, None))
        )
    value: Pattern = is_op("matmul")(a, right)
    product = value
    if bias:
        value = is_op("add")(value, c, any_order=True)
    return _pattern(value, transposed, relu, product, (a, b, *([c] if bias else [])))


def _layer(bias: bool, relu: bool) -> LibraryPattern:
    """`R.linear`, whose weight is stored as (out, in)."""
    a, b, c = wildcard(), wildcard(), wildcard()
    holes = (a, b, *([c] if bias else []))
    value = is_op("linear")(*holes)
    return _pattern(value, True, relu, value, holes)


def _pattern(
    value: Pattern, transposed: bool, relu: bool, product: Pattern, holes: tuple[Pattern, ...]
) -> LibraryPattern:
    root = is_op("nn.relu")(value) if relu else value
    bias = len(holes) > 2
    name = "blas.matmul" + "_nt" * transposed + "_bias" * bias + "_relu" * relu

    def takes(match: Match) -> bool:
        types = [match.annotation(p) for p in (*holes, product, root)]
        return (
            all(map(_is_matrix, types[:2]))
            and len({_float(t) for t in types} - {None}) == 1
            and (
                None not in map(_float, types)
                and _dims(types[-1]) == _dims(match.annotation(product))
            )
        )

    return LibraryPattern(name, root, name, holes, takes, expected=False)


def _is_matrix(annotation: Annotation) -> bool:
    return isinstance(annotation, TensorType) and len(annotation.dims or ()) > 1


def _float(annotation: Annotation) -> str | None:
    """The element type of a tensor, if the library supports it."""
    if not isinstance(annotation, TensorType) or annotation.dtype is None:
        return None
    return str(annotation.dtype) if annotation.dtype in ("float32", "float64") else None


def _dims(annotation: Annotation) -> object:
    return annotation.dims if isinstance(annotation, TensorType) else None


def _swaps_last_two(axes: tuple[int, ...] | None) -> bool:
    if axes is None or len(axes) < 2:
        return False
    n = len(axes)
    return [axis % n for axis in axes] == [*range(n - 2), n - 1, n - 2]


BLAS: tuple[LibraryPattern, ...] = tuple(_patterns())
"""matmul and linear in float32 and float64, batched, with transposed weights, bias and relu."""
