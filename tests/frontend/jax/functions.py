"""A rule that calls the public functions of jax.numpy, jax.lax, jax.nn and jax.random with two symbolic sizes.

For each function there are some lists of arguments, made of its signature: arrays of some dtypes and ranks over the
sizes `a` and `b`, and numbers by the names of parameters. The first list that JAX itself takes, at sizes and with symbolic
ones, is the function's case. `python -m tests.frontend.jax.functions` runs all of them, interpreted and built, with a log.
"""

from __future__ import annotations

import argparse
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

import relaxpy
from relaxpy.errors import RelaxError
from relaxpy.frontend.jax import Imported, import_function
from relaxpy.ir import IRModule
from relaxpy.testing.interpret import interpret
from tests import logged

MODULES = {"numpy": jax.numpy, "lax": jax.lax, "nn": jax.nn, "random": jax.random}
SIZES = ((3, 4), (5, 2), (1, 1))
"""The values of a and b."""


@dataclass(frozen=True)
class Array:
    """An argument: a dtype and sizes in terms of a and b. `high`: integers below it."""

    dtype: str
    dims: str
    high: int = 3


@dataclass(frozen=True)
class Size:
    """A number of the call that is a size."""

    text: str


@dataclass(frozen=True)
class Key:
    """A key of random numbers."""


F, V, S = Array("float32", "a b"), Array("float32", "a"), Array("float32", "b b")
I, IV, B, U = (
    Array("int32", "a b"),
    Array("int32", "a"),
    Array("bool", "a b"),
    Array("uint32", "a b"),
)
SCALAR, INDEX = Array("float32", ""), Array("int32", "")
A, N = Size("a"), Size("b")
K = Key()
FILLS = (F, V, I, B, S, IV, U, SCALAR)
"""What the arrays of a call are, tried in this order."""

BY_NAME: dict[str, Any] = {
    "key": K, "axis": 0, "axis1": 0, "axis2": 1, "axes": (0,), "shape": (A, N), "new_sizes": (N, A), "dtype": np.float32,
    "indices": Array("int32", "4"), "dimensions": (0,), "n": A, "N": A, "M": A, "num_classes": 5, "repeats": 2, "reps": (2, 1),
    "source": 0, "destination": 1, "shift": 1, "k": 1, "kth": 0, "q": 0.3, "decimals": 1, "indices_or_sections": 1,
    "arrays": [F, F], "tup": [F, F], "operands": [F, F], "seq": [F, F], "arrs": [F, F], "ary": F, "fill_value": 2.0,
    "start": 0.0, "stop": 5.0, "new_dtype": np.int32, "y": None, "dim": 0, "exponent_bits": 5, "mantissa_bits": 6,
    "permutation": (1, 0), "num": 3, "minval": 0, "maxval": 9, "d": 3, "data": INDEX, "seed": INDEX, "mean": SCALAR,
}  # fmt: skip
"""Parameter → its argument; None: an array as the others."""

del BY_NAME["y"]


def _add(x: Any, y: Any) -> Any:
    return x + y


def _calls() -> dict[str, list[Any]]:
    """The arguments of functions that a signature says too little of."""
    lax = jax.lax
    gather = lax.GatherDimensionNumbers((1,), (0,), (0,))
    scatter = lax.ScatterDimensionNumbers((1,), (0,), (0,))
    at = Array("int32", "4 1")
    to = [F, at, Array("float32", "4 b"), scatter]
    image, kernel = Array("float32", "a 3 b+4 9"), Array("float32", "5 3 2 3")
    one = Array("float32", "a b 4")
    count = Array("float32", "a b 2 8")
    return {
        "lax.gather": [F, at, gather, (1, N)],
        **{f"lax.{name}": to for name in ("scatter", "scatter_add", "scatter_min", "scatter_max", "scatter_mul", "scatter_sub")},
        "lax.scatter_apply": [F, at, jax.numpy.sin, scatter],
        "lax.conv": [image, kernel, (1, 2), "SAME"],
        "lax.conv_with_general_padding": [image, kernel, (1, 1), ((1, 2), (0, 1)), (1, 1), (1, 2)],
        "lax.conv_general_dilated": [image, kernel, (2, 1), ((1, -1), (0, 1)), (2, 1), (1, 2)],
        "lax.conv_transpose": [Array("float32", "a 6 b 3"), Array("float32", "2 3 3 5"), (2, 1), "SAME"],
        "lax.conv_general_dilated_local": [Array("float32", "a 3 6 6"), Array("float32", "4 12 5 5"), (1, 1), "VALID", (2, 2)],
        "lax.conv_general_dilated_patches": [image, (2, 3), (1, 1), "VALID"],
        "lax.dot_general": [one, Array("float32", "a 4 3"), (((2,), (1,)), ((0,), (0,)))],
        "lax.batch_matmul": [one, Array("float32", "a 4 3")],
        "lax.dot": [F, Array("float32", "b 3")],
        "lax.reduce": [F, np.float32(0), lax.add, (1,)],
        "lax.reduce_window": [F, np.float32(0), lax.add, (2, 1), (1, 1), ((1, 1), (0, 0))],
        "lax.pad": [F, np.float32(2), ((1, -1, 2), (0, 3, 0))],
        "lax.slice": [F, (0, 0), (1, 1)],
        "lax.slice_in_dim": [F, 0, N, 1, 1],
        "lax.dynamic_slice": [F, (INDEX, INDEX), (1, 1)],
        "lax.dynamic_slice_in_dim": [F, INDEX, 1],
        "lax.dynamic_index_in_dim": [F, INDEX],
        "lax.dynamic_update_slice": [F, Array("float32", "1 1"), (INDEX, INDEX)],
        "lax.dynamic_update_slice_in_dim": [F, Array("float32", "1 b"), INDEX, 0],
        "lax.dynamic_update_index_in_dim": [F, Array("float32", "b"), INDEX, 0],
        "lax.index_in_dim": [F, 0],
        
        "lax.split": [F, (1, Size("a-1")), 0],
        "lax.select": [B, F, F],
        "lax.select_n": [B, F, F],
        "lax.clamp": [SCALAR, F, SCALAR],
        "lax.concatenate": [[F, F], 1],
        "lax.collapse": [F, 0, 2],
        "lax.broadcast": [F, (2, A)],
        "lax.broadcast_in_dim": [F, (2, A, N), (1, 2)],
        "lax.broadcasted_iota": [np.int32, (A, N), 1],
        "lax.iota": [np.float32, A],
        "lax.expand_dims": [F, (0, 2)],
        "lax.transpose": [F, (1, 0)],
        "lax.convert_element_type": [F, np.int32],
        "lax.bitcast_convert_type": [F, np.int32],
        "lax.integer_pow": [F, 3],
        "lax.argmax": [F, 1, np.int32],
        "lax.argmin": [F, 1, np.int32],
        "lax.approx_max_k": [Array("float32", "a 9"), 3],
        "lax.approx_min_k": [Array("float32", "a 9"), 3],
        "lax.top_k": [Array("float32", "a 9"), 3],
        "lax.map": [jax.numpy.sin, F],
        "lax.scan": [lambda c, x: (c + x, c * 2), Array("float32", "b"), F],
        "lax.associative_scan": [_add, Array("float32", "7 b")],
        "lax.fori_loop": [0, A, lambda i, x: x * 0.5 + i, F],
        "lax.while_loop": [lambda x: x.sum() < 9, lambda x: x + 1.0, Array("float32", "a")],
        "lax.cond": [Array("bool", ""), lambda x: x + 1, lambda x: x * 2, F],
        "lax.switch": [INDEX, [lambda x: x + 1, lambda x: x * 2, lambda x: x], F],
        "lax.sort_key_val": [Array("int32", "a b"), F],
        "lax.custom_root": [lambda x: x**3 - 2, np.float32(1), lambda f, x: x, lambda g, y: y / g(1.0)],
        "lax.betainc": [F, F, F], "lax.igamma": [F, F], "lax.igammac": [F, F], "lax.zeta": [F, F], "lax.polygamma": [F, F],
        "lax.reduce_and": [B, (0,)], "lax.reduce_or": [B, (0,)], "lax.reduce_xor": [I, (0,)],
        "lax.full": [(A, N), 2.0], "lax.full_like": [F, 2.0],
        "lax.shape_as_value": [(A, N)],
        "lax.tile": [F, (2, 3)],
        "lax.reshape": [F, (N, A)],
        
        "lax.squeeze": [Array("float32", "a 1 b"), (1,)],
        "lax.rng_bit_generator": [Array("uint32", "4"), (A,)],
        
        "numpy.apply_along_axis": [jax.numpy.cumsum, 0, F],
        "numpy.apply_over_axes": [jax.numpy.sum, F, [0]],
        "numpy.arange": [A], "numpy.linspace": [0.0, 5.0, A], "numpy.logspace": [0.0, 2.0, A], "numpy.geomspace": [1.0, 5.0, A],
        "numpy.array_split": [Array("float32", "6 b"), 3], "numpy.split": [Array("float32", "6 b"), 3],
        "numpy.hsplit": [Array("float32", "a 6"), 3], "numpy.vsplit": [Array("float32", "6 b"), 3], "numpy.dsplit": [Array("float32", "a b 6"), 3],
        "numpy.astype": [F, np.int32], "numpy.block": [[[F, F], [F, F]]], "numpy.broadcast_to": [F, (2, A, N)],
        
        "numpy.concat": [[F, F]], "numpy.concatenate": [[F, F]], "numpy.column_stack": [[F, F]], "numpy.stack": [[F, F]],
        "numpy.hstack": [[F, F]], "numpy.vstack": [[F, F]], "numpy.dstack": [[F, F]], 
        "numpy.convolve": [Array("float32", "a+3"), Array("float32", "3")], "numpy.correlate": [Array("float32", "a+3"), Array("float32", "3")],
        "numpy.cross": [Array("float32", "a 3"), Array("float32", "a 3")], "numpy.delete": [F, 0, 0], "numpy.insert": [F, 0, 1.0, 1],
        "numpy.diag_indices": [A], "numpy.diagonal": [S], "numpy.trace": [S], "numpy.diag": [V], "numpy.diagflat": [V], "numpy.digitize": [F, np.array([0.0, 1.0])],
        "numpy.dot": [F, Array("float32", "b 3")], "numpy.matmul": [F, Array("float32", "b 3")], "numpy.inner": [F, Array("float32", "3 b")],
        "numpy.matvec": [F, Array("float32", "b")], "numpy.vecmat": [V, F], "numpy.vdot": [V, V], "numpy.vecdot": [F, F], "numpy.tensordot": [F, Array("float32", "b 3"), 1],
        "numpy.einsum": ["ij,kj->ik", F, Array("float32", "3 b")], "numpy.eye": [A, N], "numpy.identity": [A], "numpy.tri": [A, N],
        "numpy.expand_dims": [F, 1], "numpy.full": [(A, N), 2.0], "numpy.full_like": [F, 2.0],
        "numpy.fromfunction": [lambda i, j: i + j, (A, N)], "numpy.gradient": [Array("float32", "a+2 b")], "numpy.histogram": [F, np.arange(4.0)],
        "numpy.indices": [(A, N)], "numpy.interp": [F, np.array([0.0, 1, 2]), np.array([1.0, 3, 2])], "numpy.isin": [I, np.array([1, 2])],
        "numpy.ix_": [IV, Array("int32", "b")], "numpy.lexsort": [[Array("int32", "a", 2), V]], "numpy.meshgrid": [V, Array("float32", "b")],
        "numpy.moveaxis": [F, 0, 1], "numpy.rollaxis": [F, 1], "numpy.nan_to_num": [F], "numpy.outer": [V, Array("float32", "b")], "numpy.kron": [F, np.ones((2, 3), np.float32)],
        "numpy.pad": [F, ((1, 2), (0, 1))], "numpy.percentile": [F, 30.0, 0], "numpy.quantile": [F, 0.3, 0], "numpy.nanpercentile": [F, 30.0, 0], "numpy.nanquantile": [F, 0.3, 0],
        "numpy.piecewise": [F, [B], [1.0, 2.0]], "numpy.polyval": [Array("float32", "3"), F], 
        "numpy.polyadd": [V, V], "numpy.polysub": [V, V], "numpy.polymul": [Array("float32", "4"), V], "numpy.polyder": [Array("float32", "5")], "numpy.polyint": [V],
        "numpy.ravel_multi_index": [[Array("int32", "a", 2), Array("int32", "a", 2)], (3, 4), "clip"], "numpy.unravel_index": [IV, (3, 4)],
        "numpy.repeat": [F, 2, 0], "numpy.resize": [F, (2, 3)], "numpy.reshape": [F, (N, A)], "numpy.roll": [F, 1, 0], "numpy.rot90": [F], "numpy.select": [[B, B], [F, F], 0.0],
        "numpy.searchsorted": [np.array([0.0, 1, 2]), F], "numpy.squeeze": [Array("float32", "a 1 b"), 1], "numpy.swapaxes": [F, 0, 1],
        "numpy.take": [F, Array("int32", "4", 1), 0], "numpy.take_along_axis": [F, Array("int32", "2 b", 1), 0], "numpy.tile": [F, (2, 1)],
        "numpy.transpose": [F], "numpy.permute_dims": [F, (1, 0)], "numpy.tril_indices": [A, 0, N], "numpy.triu_indices": [A, 0, N], "numpy.vander": [V, 4],
        "numpy.tril_indices_from": [F], "numpy.triu_indices_from": [F],
        "numpy.where": [B, F, F], "numpy.zeros": [(A, N)], "numpy.ones": [(A, N)], "numpy.empty": [(A, N)], "numpy.unstack": [Array("float32", "3 b")],
        "numpy.vectorize": [jax.numpy.sin], "numpy.clip": [F, -0.5, 0.5], "numpy.partition": [Array("float32", "a 5"), 2], "numpy.argpartition": [Array("float32", "a 5"), 2],
        "numpy.shape": [F], "numpy.average": [F, 0, Array("float32", "a")], "numpy.cov": [F], "numpy.i0": [F], "numpy.trapezoid": [F], "numpy.unwrap": [V], "numpy.ldexp": [F, I],
        "numpy.packbits": [Array("uint8", "a 8", 2)], "numpy.unpackbits": [Array("uint8", "a b", 9)], "numpy.round": [F, 1], "numpy.around": [F, 1], "numpy.float_power": [F, F],
        "numpy.isclose": [F, F], "numpy.allclose": [F, F], "numpy.heaviside": [F, F], "numpy.copysign": [F, F], "numpy.wald": [F],
        "nn.dot_product_attention": [count, count, count], "nn.glu": [Array("float32", "a 6")], "nn.one_hot": [I, 4],
        "nn.scaled_matmul": [Array("float32", "2 a 32")] * 2, "nn.standardize": [F], "nn.logsumexp": [F, 1],
        "random.PRNGKey": [INDEX], "random.key": [INDEX], "random.fold_in": [K, INDEX], "random.split": [K, 3], "random.bits": [K, (A, N)],
        **{f"random.{name}": [K, (A, N)] for name in ("normal", "uniform", "cauchy", "exponential", "gumbel", "laplace", "logistic", "maxwell", "rademacher")},
        "random.bernoulli": [K, 0.3, (A, N)], "random.randint": [K, (A, N), 0, 9], "random.truncated_normal": [K, -1.0, 1.0, (A, N)],
        "random.categorical": [K, F], "random.permutation": [K, V], "random.choice": [K, V, (4,)], "random.lognormal": [K, 0.5, (A, N)],
        "random.pareto": [K, 2.0, (A, N)], "random.rayleigh": [K, 2.0, (A, N)], "random.wald": [K, 2.0, (A, N)], "random.weibull_min": [K, 2.0, 1.5, (A, N)],
        "random.triangular": [K, 0.0, 1.0, 3.0, (A, N)], "random.geometric": [K, 0.3, (A, N)], "random.gamma": [K, 2.0, (A, N)], "random.loggamma": [K, 2.0, (A, N)],
        "random.beta": [K, 2.0, 3.0, (A, N)], "random.poisson": [K, 3.0, (A, N)], "random.binomial": [K, 5.0, 0.3, (A, N)], "random.chisquare": [K, 3.0, (A, N)],
        "random.dirichlet": [K, np.ones(3, np.float32), (A,)], "random.f": [K, 3.0, 4.0, (A, N)], "random.t": [K, 3.0, (A, N)],
        "random.generalized_normal": [K, 2.0, (A, N)], "random.double_sided_maxwell": [K, 0.0, 1.0, (A, N)], "random.ball": [K, 3, 2, (A,)],
        "random.multivariate_normal": [K, np.zeros(2, np.float32), np.eye(2, dtype=np.float32), (A,)], "random.orthogonal": [K, 3, (A,)],
        "random.multinomial": [K, 5.0, np.ones(3, np.float32) / 3], "random.key_data": [K], "random.clone": [K], "random.wrap_key_data": [Array("uint32", "2", 99)],
    }  # fmt: skip


_PAIR = [Array("int32", "a", 9), Array("int32", "b", 9)]
_NAMED: dict[str, tuple[list[Any], dict[str, Any]]] = {
    **{f"numpy.{name}": ([F], {"size": 3}) for name in ("argwhere", "flatnonzero", "nonzero", "unique_all", "unique_counts", "unique_inverse", "unique_values")},
    **{f"numpy.{name}": (_PAIR, {"size": 4}) for name in ("union1d", "setdiff1d", "intersect1d", "setxor1d")},
    "numpy.unique": ([IV], {"size": 4}), "numpy.bincount": ([IV], {"length": 4}), "numpy.extract": ([B, F], {"size": 3}),
    "numpy.compress": ([Array("bool", "a"), F], {"size": 2, "axis": 0}), "numpy.choose": ([I, [F, F, F]], {"mode": "clip"}),
    "numpy.put": ([F, Array("int32", "2", 1), 2.0], {"inplace": False}), "numpy.place": ([F, B, V], {"inplace": False}),
    "numpy.put_along_axis": ([F, Array("int32", "1 b", 1), 2.0, 0], {"inplace": False}), "numpy.fill_diagonal": ([S, 2.0], {"inplace": False}),
    "numpy.array": ([F], {}), "numpy.mask_indices": ([A, jax.numpy.triu], {"size": 3}), "numpy.trim_zeros": ([Array("float32", "5")], {}),
    "lax.platform_dependent": ([F], {"default": jax.numpy.sin}), "lax.index_take": ([F, [Array("int32", "4", 1)]], {"axes": (0,)}),
    "lax.ragged_dot": ([Array("float32", "6 b"), Array("float32", "3 b 5"), np.array([1, 2, 3], np.int32)], {}),
}  # fmt: skip
"""Functions that need arguments by name."""


def names() -> list[str]:
    """All public functions: `numpy.add`, `lax.sort`, …"""
    found = []
    for prefix, module in MODULES.items():
        for name in sorted(dir(module)):
            value = getattr(module, name)
            if callable(value) and not name.startswith("_") and not inspect.isclass(value):
                found.append(f"{prefix}.{name}")
    return found


def function_of(name: str) -> Callable[..., Any]:
    prefix, rest = name.split(".")
    return getattr(MODULES[prefix], rest)


@cache
def _given() -> dict[str, list[Any]]:
    return _calls()


def _candidates(name: str) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Arguments by position and by name, to try."""
    if name in _NAMED:
        yield _NAMED[name]
        return
    if name in _given():
        yield _given()[name], {}
        return
    try:
        parameters = list(inspect.signature(function_of(name)).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    needed = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    several = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    for count in (1, 2) if several else (0,):
        for fill in FILLS:
            yield [BY_NAME.get(each, fill) for each in needed] + [fill] * count, {}


@dataclass(frozen=True)
class Case:
    """A call of a function."""

    name: str
    arguments: tuple[list[Any], dict[str, Any]]

    def call(self, sizes: Sequence[Any]) -> tuple[Callable[..., Any], list[Any]]:
        """A function of the arrays only, and these, with their sizes. A number that is a size is one of theirs."""
        leaves, tree = jax.tree_util.tree_flatten(
            self.arguments, is_leaf=lambda v: isinstance(v, (Array, Size, Key)) or v is None
        )
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, (Array, Key))]

        def run(*arrays: Any) -> Any:
            at = dict(zip("ab", arrays[-1].shape, strict=False))
            filled = [
                eval(leaf.text, dict(at)) if isinstance(leaf, Size) else leaf for leaf in leaves
            ]
            for place, array in zip(places, arrays, strict=False):
                filled[place] = array
            args, kwargs = jax.tree_util.tree_unflatten(tree, filled)
            return function_of(self.name)(*args, **kwargs)

        given = [leaves[i] for i in places]
        return run, [*given, F] if any(
            isinstance(leaf, Size) for leaf in leaves
        ) or not given else given


def spec(leaf: Any, sizes: Sequence[Any]) -> Any:
    """An argument with symbolic sizes."""
    if isinstance(leaf, Key):
        return jax.ShapeDtypeStruct((), jax.random.key(0).dtype)
    at = dict(zip("ab", sizes, strict=True))
    return jax.ShapeDtypeStruct(tuple(eval(d, dict(at)) for d in leaf.dims.split()), leaf.dtype)


def array(leaf: Any, sizes: Sequence[int], seed: int) -> Any:
    """An argument with data."""
    rng = np.random.default_rng(seed)
    if isinstance(leaf, Key):
        return jax.random.key(seed)
    at = dict(zip("ab", sizes, strict=True))
    shape = tuple(eval(d, dict(at)) for d in leaf.dims.split())
    if leaf.dtype == "float32":
        return rng.standard_normal(shape).astype(np.float32)
    if leaf.dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    return rng.integers(0, leaf.high, shape).astype(leaf.dtype)


@cache
def case_of(name: str) -> Case | None:
    """The first call that JAX takes with arrays of numbers, and traces with symbolic sizes."""
    for arguments in _candidates(name):
        case = Case(name, arguments)
        try:
            run, leaves = case.call(SIZES[0])
            if not jax.make_jaxpr(run)(*(spec(leaf, SIZES[0]) for leaf in leaves)).out_avals:
                continue
            symbols = jax.export.symbolic_shape("a, b")
            run, leaves = case.call(symbols)
            jax.make_jaxpr(run)(*(spec(leaf, symbols) for leaf in leaves))
        except Exception:
            continue
        return case
    return None


@dataclass(frozen=True)
class Outcome:
    """What became of a function."""

    name: str
    kind: str
    """equal, wrong, refused (an operator that there is none of), failed (any other error)."""
    reason: str = ""


def imported(case: Case) -> Imported:
    symbols = jax.export.symbolic_shape("a, b")
    run, leaves = case.call(symbols)
    return import_function(run, tuple(spec(leaf, symbols) for leaf in leaves), {})


Runner = Callable[..., Any]


def outcome(case: Case, program: Imported, run: Runner) -> Outcome:
    """Compare with JAX at each of the sizes. `run(*arrays)` runs the program."""
    for k, sizes in enumerate(SIZES):
        function, leaves = case.call(sizes)
        values = [array(leaf, sizes, 10 * k + i) for i, leaf in enumerate(leaves)]
        try:
            wanted = jax.tree_util.tree_leaves(jax.jit(function)(*values))
        except Exception:
            continue  # sizes that JAX does not take
        words = [
            np.asarray(jax.random.key_data(v)) if isinstance(v, jax.Array) else v for v in values
        ]
        try:
            found = run(*words, *program.params.values())
        except RelaxError as error:
            return Outcome(case.name, "failed", f"at {sizes}: {error.message}")
        got = list(found) if isinstance(found, (tuple, list)) else [found]
        results = [o for o in program.outputs]
        for index, want in enumerate(wanted):
            if results[index].kind == "constant":
                continue
            difference = differs(np.asarray(got[results[index].index]), want, case.name)
            if difference:
                return Outcome(case.name, "wrong", f"at {sizes}: {difference}")
    return Outcome(case.name, "equal")


def differs(got: np.ndarray, want: Any, name: str) -> str:
    """How a result differs from JAX's; empty if it is equal within the tolerance of its dtype."""
    if jax.dtypes.issubdtype(want.dtype, jax.dtypes.prng_key):
        want = jax.random.key_data(want)
    want = np.asarray(want)
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{list(got.shape)} for {want.dtype}{list(want.shape)}"
    if want.dtype.kind != "f":
        return "" if np.array_equal(got, want) else f"{got.ravel()[:5]} for {want.ravel()[:5]}"
    scale = float(np.max(np.abs(want[np.isfinite(want)]), initial=0))
    if np.allclose(got, want, rtol=3e-5, atol=1e-5 * max(1.0, min(scale, 1e6)), equal_nan=True):
        return ""
    worst = np.nanmax(np.abs(got.astype(np.float64) - want)) if want.size else 0
    return f"off by {worst}: {got.ravel()[:4]} for {want.ravel()[:4]}"


def interpreted(case: Case) -> Outcome:
    """Import a function, and run it through the interpreter."""
    return _caught(case, lambda program: lambda *arrays: interpret(program.mod, "main", *arrays))


def _caught(case: Case, runner: Callable[[Imported], Runner]) -> Outcome:
    try:
        program = imported(case)
        return outcome(case, program, runner(program))
    except RelaxError as error:
        kind = "refused" if error.code in ("jax-operator", "jax-dtype") else "failed"
        return Outcome(case.name, kind, f"{error.code}: {error.message}")


def built(cases: Sequence[Case], target: str) -> list[Outcome]:
    """Import functions, build them as one module, and run that."""
    outcomes: list[Outcome] = []
    programs: dict[Case, Imported] = {}
    for case in cases:
        try:
            programs[id(case)] = imported(case)
        except RelaxError as error:
            kind = "refused" if error.code in ("jax-operator", "jax-dtype") else "failed"
            outcomes.append(Outcome(case.name, kind, f"{error.code}: {error.message}"))
    kept = [case for case in cases if id(case) in programs]
    functions = {}
    for i, case in enumerate(kept):
        main = programs[id(case)].mod["main"]
        functions[f"f{i}"] = replace(main, attrs={**main.attrs, "global_symbol": f"f{i}"})
    vm = relaxpy.VirtualMachine(relaxpy.build(IRModule(functions), target=target))
    for i, case in enumerate(kept):

        def run(*arrays: Any, name: str = f"f{i}") -> Any:
            found = vm[name](*arrays)
            return (
                [np.asarray(each) for each in found]
                if isinstance(found, (tuple, list))
                else np.asarray(found)
            )

        outcomes.append(outcome(case, programs[id(case)], run))
    return outcomes


def record(name: str, target: str) -> dict[str, str]:
    """What becomes of a function, for a log: in the interpreter, then built."""
    case = case_of(name)
    if case is None:
        return {"outcome": "not traced"}
    found, stage = interpreted(case), "interpreter"
    if found.kind == "equal":
        (found,), stage = built([case], target), "built"
    return {"outcome": found.kind, "stage": stage, "text": f"{stage} {found.reason}".strip()}


def main() -> None:
    """Print the outcomes of these functions, all if none is named; those in the log are not run again."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--log", type=Path, default=Path("build/functions.jsonl"))
    parser.add_argument("--seconds", type=int, default=120, help="of a processor, for each")
    parser.add_argument("--target", default="llvm -opt-level=0")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    run = partial(record, target=given.target)
    print(logged.table(logged.run(given.log, given.names or names(), run, given.seconds)))


if __name__ == "__main__":
    main()
