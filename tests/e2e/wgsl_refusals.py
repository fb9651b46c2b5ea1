"""The samples of operators that do not compile to WGSL, the only refusals: elementary functions of float64."""

from __future__ import annotations

_FLOAT64 = (
    "exp log sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf sigmoid nn.gelu nn.gelu_tanh "
    "nn.silu nn.selu nn.softplus expm1 log1p log2 log10 erfinv nextafter erfc lgamma digamma bessel_i0e bessel_i1e "
    "bessel_i0 bessel_i1 erfcx ndtri log_ndtr"
).split()
REFUSED = frozenset(
    [f"{name} float64" for name in (*_FLOAT64, "hamming_window")]
    + [f"{name} {dtype}" for name in ("atan2", "log_add_exp") for dtype in ("int32", "int64")]
    + ["cumlogsumexp int32"]
)
"""Operators with the dtype of their first input (`tests.e2e.devices.sample_key`). These functions of integers are
computed in float64 on every target."""
