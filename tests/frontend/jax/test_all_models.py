"""Blocks of models written with Flax (linen and nnx) and Equinox, from one program at several sizes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.export import symbolic_shape

import relaxpy
from relaxpy.frontend.jax import from_jax
from relaxpy.ir import IRModule
from relaxpy.testing.interpret import interpret
from tests.sweeps import full, full_file

full_file("make test-jax-functions")  # to import what it needs takes seconds
pytestmark = full

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    linen = pytest.importorskip("flax.linen")
    nnx = pytest.importorskip("flax.nnx")
    eqx = pytest.importorskip("equinox")

KEY = jax.random.key(0)
B, T = symbolic_shape("b, t")
Sized = tuple[Callable[..., Any], tuple[Any, ...], list[tuple[int, ...]]]
"""A function, the shape of its argument, and shapes at which it is called."""
SEQUENCES = [(2, 5, 16), (1, 1, 16), (3, 9, 16)]


def of_linen(module: Any, *shape: int) -> Callable[..., Any]:
    variables = module.init(KEY, jnp.ones(shape))
    return lambda x: module.apply(variables, x)


class LinenBlock(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        y = linen.LayerNorm()(x)
        x = x + linen.MultiHeadDotProductAttention(num_heads=4)(
            y, y, mask=linen.make_causal_mask(y[..., 0])
        )
        return x + linen.Dense(16)(linen.gelu(linen.Dense(32)(linen.LayerNorm()(x))))


class LinenConv(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = linen.relu(linen.BatchNorm(use_running_average=True)(linen.Conv(8, (3, 3))(x)))
        x = linen.Conv(8, (3, 3), strides=2)(linen.max_pool(x, (2, 2), (2, 2)))
        x = linen.ConvTranspose(4, (3, 3), strides=(2, 2))(x)
        return linen.Dense(4)(linen.avg_pool(x, (2, 2), (1, 1), "SAME").mean((1, 2)))


class NnxBlock(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.norm = nnx.RMSNorm(16, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            num_heads=4, in_features=16, decode=False, rngs=rngs
        )
        self.up, self.down = nnx.Linear(16, 32, rngs=rngs), nnx.Linear(32, 16, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = x + self.attention(self.norm(x))
        return x + self.down(nnx.silu(self.up(x)))


class NnxConv(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.conv, self.norm = (
            nnx.Conv(3, 8, (3, 3), rngs=rngs),
            nnx.GroupNorm(8, num_groups=2, rngs=rngs),
        )

    def __call__(self, x: Any) -> Any:
        return jax.nn.gelu(self.norm(self.conv(x)))


def equinox_gru() -> Callable[..., Any]:
    cell = eqx.nn.GRUCell(16, 8, key=KEY)

    def one(x: Any) -> Any:
        def step(state: Any, row: Any) -> Any:
            state = cell(row, state)
            return state, state

        return jax.lax.scan(step, jnp.zeros(8), x)[1]

    return jax.vmap(one)


def equinox_attention() -> Callable[..., Any]:
    attention, norm = eqx.nn.MultiheadAttention(4, 16, key=KEY), eqx.nn.LayerNorm(16)

    def one(x: Any) -> Any:
        y = jax.vmap(norm)(x)
        return attention(y, y, y)

    return jax.vmap(one)


def equinox_conv() -> Callable[..., Any]:
    conv, norm, pool = (
        eqx.nn.Conv2d(3, 8, 3, padding=1, key=KEY),
        eqx.nn.GroupNorm(2, 8),
        eqx.nn.MaxPool2d(2, 2),
    )
    return jax.vmap(lambda x: pool(jax.nn.relu(norm(conv(x)))))


def equinox_norms() -> Callable[..., Any]:
    first, second = eqx.nn.LayerNorm(16), eqx.nn.RMSNorm(16)
    return jax.vmap(jax.vmap(lambda x: second(first(x))))


IMAGES = [(2, 16, 16, 3), (1, 16, 16, 3)]
BLOCKS: dict[str, Callable[[], Sized]] = {
    "linen attention": lambda: (of_linen(LinenBlock(), 1, 4, 16), (B, T, 16), SEQUENCES),
    "linen convolutions": lambda: (of_linen(LinenConv(), 1, 16, 16, 3), (B, 16, 16, 3), IMAGES),
    "linen LSTM": lambda: (
        of_linen(linen.RNN(linen.LSTMCell(12)), 1, 4, 16),
        (B, T, 16),
        SEQUENCES,
    ),
    "nnx attention": lambda: (NnxBlock(), (B, T, 16), SEQUENCES),
    "nnx convolution": lambda: (NnxConv(), (B, 12, T, 3), [(2, 12, 5, 3), (1, 12, 1, 3)]),
    "nnx embedding": lambda: (nnx.Embed(100, 16, rngs=nnx.Rngs(0)), (B, T), [(2, 5), (1, 1)]),
    "Equinox MLP": lambda: (
        jax.vmap(eqx.nn.MLP(16, 4, 32, 2, key=KEY)),
        (B, 16),
        [(3, 16), (1, 16)],
    ),
    "Equinox attention": lambda: (equinox_attention(), (B, T, 16), SEQUENCES),
    "Equinox GRU": lambda: (equinox_gru(), (B, T, 16), SEQUENCES),
    "Equinox convolution": lambda: (equinox_conv(), (B, 3, 8, 8), [(3, 3, 8, 8), (1, 3, 8, 8)]),
    "Equinox norms": lambda: (equinox_norms(), (B, T, 16), SEQUENCES),
}


def argument(name: str, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(len(shape))
    if "embedding" in name:
        return rng.integers(0, 100, shape).astype(np.int32)
    return rng.standard_normal(shape).astype(np.float32)


def imported(name: str) -> tuple[IRModule, dict[str, np.ndarray], Sized]:
    function, shape, calls = BLOCKS[name]()
    dtype = jnp.int32 if "embedding" in name else jnp.float32
    mod, params = from_jax(function, jax.ShapeDtypeStruct(shape, dtype))
    return mod, params, (function, shape, calls)


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_jaxs_at_all_sizes(name: str) -> None:
    mod, params, (function, _, calls) = imported(name)
    assert all("constant" not in weight for weight in params), list(params)
    for shape in calls:
        x = argument(name, shape)
        found = interpret(mod, "main", x, *params.values())
        np.testing.assert_allclose(found, function(jnp.asarray(x)), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_blocks_are_built_once_for_all_sizes() -> None:
    programs = {f"f{i}": imported(name) for i, name in enumerate(BLOCKS)}
    mains = {
        key: replace(mod["main"], attrs={**mod["main"].attrs, "global_symbol": key})
        for key, (mod, _, _) in programs.items()
    }
    vm = relaxpy.VirtualMachine(relaxpy.build(IRModule(mains), target="llvm -opt-level=0"))
    for (key, (_, params, (function, _, calls))), name in zip(
        programs.items(), BLOCKS, strict=True
    ):
        for shape in calls:
            x = argument(name, shape)
            found = vm[key](x, *params.values())
            np.testing.assert_allclose(
                found.numpy(), function(jnp.asarray(x)), rtol=1e-4, atol=1e-5, err_msg=name
            )
