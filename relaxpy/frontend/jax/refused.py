"""Primitives of JAX that are not taken: the beginning of a name → the text that says how to do without.

docs/from_jax.md shows this table (tests/docs/test_not_taken.py writes it there).
"""

from __future__ import annotations

_COMPLEX = "complex numbers: keep the real and the imaginary part in two arrays"
_FACTORS = "a factorisation or a solver: compute it outside, and pass its results"
_CALL = "foreign code: write it with jax's own functions, or as an @T.prim_func"
_HOST = "a call of Python while the program runs: return the values instead"
_DEVICES = "several devices: one process runs on one device"

REFUSED: dict[str, str] = {
    "fft": _COMPLEX,
    "complex": _COMPLEX,
    "conj": _COMPLEX,
    "real": _COMPLEX,
    "imag": _COMPLEX,
    "cholesky": _FACTORS,
    "eig": _FACTORS,
    "lu": _FACTORS,
    "qr": _FACTORS,
    "svd": _FACTORS,
    "schur": _FACTORS,
    "householder_product": _FACTORS,
    "hessenberg": _FACTORS,
    "geqrf": _FACTORS,
    "geqp3": _FACTORS,
    "tridiagonal": _FACTORS,
    "triangular_solve": _FACTORS,
    "linear_solve": _FACTORS,
    "custom_linear_solve": _FACTORS,
    "ffi_call": _CALL,
    "custom_call": _CALL,
    "custom_partitioning": _CALL,
    "pallas_call": "a kernel of Pallas: write it with jax's own functions, or as an @T.prim_func",
    "debug_callback": _HOST,
    "debug_print": _HOST,
    "pure_callback": _HOST,
    "io_callback": _HOST,
    "infeed": _HOST,
    "outfeed": _HOST,
    "all_gather": _DEVICES,
    "all_to_all": _DEVICES,
    "ppermute": _DEVICES,
    "psum": _DEVICES,
    "pmax": _DEVICES,
    "pmin": _DEVICES,
    "axis_index": _DEVICES,
    "shard_map": _DEVICES,
    "rng_bit_generator": "another generator than threefry: use jax.random.key(seed)",
    "rng_uniform": "another generator than threefry: use jax.random.uniform with a key",
    "create_token": "an order of effects, which no program has: leave the token out",
    "bcoo": "sparse arrays: write the product with dense ones, or gather and scatter",
}
"""The most special name first, where one begins another."""
