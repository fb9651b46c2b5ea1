"""Matrix products by OpenBLAS: library patterns for `LowerToLibrary` on the CPU.

    relaxpy.build(mod, pipeline=default_pipeline().before("match", LowerToLibrary(BLAS)))

They are not in the default pipeline. benchmarks/library.py measures where they are faster.
"""

from __future__ import annotations

from relaxpy.analysis.dataflow_match import Match
from relaxpy.transform.lower_to_library import LibraryPattern
from relaxpy.transform.product_patterns import ProductPattern, product_patterns


def _pattern(product: ProductPattern) -> LibraryPattern:
    def takes(match: Match) -> bool:
        return product.dtype(match) in ("float32", "float64")

    name = f"blas.{product.name}"
    return LibraryPattern(name, product.pattern, name, product.holes, takes, expected=False)


BLAS: tuple[LibraryPattern, ...] = tuple(map(_pattern, product_patterns(("relu",))))
"""matmul and linear in float32 and float64, batched, with transposed weights, bias and relu."""
