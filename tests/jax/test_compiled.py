"""Compiled functions of JAX: one build for all sizes, arrays in and out, trees, files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relaxpy
from relaxpy.errors import ExecutableError, RelaxError, UsageError
from relaxpy.jax.trees import read_tree, write_tree

TARGET = "llvm -opt-level=0"


class Pair(NamedTuple):
    first: Any
    second: Any


W = jnp.asarray(np.random.default_rng(0).standard_normal((16, 40)).astype(np.float32))


def model(x: Any, key: Any, kind: str = "tanh") -> Any:
    y = getattr(jnp, kind)(x["a"] @ W)
    return {
        "y": y,
        "kind": kind,
        "more": Pair(jax.random.split(key), (y > 0, None, y.astype(jnp.bfloat16))),
    }


@pytest.fixture(scope="module")
def compiled() -> relaxpy.jax.CompiledFunction:
    return relaxpy.jax.compile(model, {"a": jnp.ones((3, 16))}, jax.random.key(0), target=TARGET)


def same(found: Any, wanted: Any) -> None:
    assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(wanted)
    for got, want in zip(*map(jax.tree_util.tree_leaves, (found, wanted)), strict=True):
        if isinstance(want, str):
            assert got == want
            continue
        assert got.dtype == want.dtype
        if jax.dtypes.issubdtype(want.dtype, jax.dtypes.prng_key):
            got, want = jax.random.key_data(got), jax.random.key_data(want)
        np.testing.assert_allclose(
            np.asarray(got, np.float32), np.asarray(want, np.float32), rtol=1e-2, atol=1e-5
        )


@pytest.mark.parametrize("rows", [3, 1, 0, 7])
def test_one_build_serves_every_size(compiled: Any, rows: int) -> None:
    x = {"a": jax.random.normal(jax.random.key(rows), (rows, 16))}
    same(compiled(x, jax.random.key(5)), model(x, jax.random.key(5)))


def test_arrays_of_jax_or_numpy_come_back() -> None:
    doubled = relaxpy.jax.compile(
        lambda x, y: x + y, jnp.ones((2, 3)), jnp.ones((2, 3)), target=TARGET
    )
    x = np.ones((4, 5), np.float32)
    assert isinstance(doubled(x, x), np.ndarray)
    assert isinstance(doubled(x, jnp.asarray(x)), jax.Array)
    with pytest.raises(RelaxError, match="x_0"):
        doubled(x, x[:3])


def test_numbers_of_64_bits_are_taken_as_jax_takes_them() -> None:
    """Without x64, numpy's default dtypes are float32 and int32."""
    scaled = relaxpy.jax.compile(lambda x, k: x * k, np.ones((2, 3)), np.arange(3), target=TARGET)
    x, k = np.ones((4, 3)), np.arange(3)
    np.testing.assert_array_equal(scaled(x, k), x * k)
    powers = relaxpy.jax.compile(lambda x, y: x * y, jnp.ones(3), jnp.float32(1), target=TARGET)
    np.testing.assert_array_equal(powers(np.ones(2), 2.5), [2.5, 2.5])


def test_files_give_the_callable_back(compiled: Any, tmp_path: Path) -> None:
    path = tmp_path / "function.rxe"
    compiled.save(path)
    x = {"a": jnp.ones((5, 16))}
    same(relaxpy.jax.load(path)(x, jax.random.key(1)), model(x, jax.random.key(1)))
    other = f"import relaxpy; relaxpy.jax.load({str(path)!r})"
    run = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, check=False)
    assert "jax-tree" in run.stderr
    assert "which is not imported in this process" in run.stderr
    assert [f.name for f in relaxpy.load(path).functions] == ["main"]


def test_an_executable_is_no_compiled_function(tmp_path: Path) -> None:
    path = tmp_path / "plain.rxe"
    relaxpy.build(
        relaxpy.parse("@R.function\ndef main(x: R.Tensor((2,), 'float32')):\n    return x\n"),
        target=TARGET,
    ).save(path)
    with pytest.raises(ExecutableError, match="not a compiled function of JAX"):
        relaxpy.jax.load(path)


def test_arguments_are_those_of_the_example(compiled: Any) -> None:
    x, key = {"a": jnp.ones((2, 16))}, jax.random.key(0)
    same(compiled(key=key, x=x), model(x, key))
    with pytest.raises(UsageError, match="the program was traced with") as caught:
        compiled({"b": jnp.ones((2, 16))}, key)
    assert caught.value.code == "arguments"
    scaled = relaxpy.jax.compile(lambda x, k: x * k, jnp.ones(3), 2, target=TARGET)
    with pytest.raises(UsageError, match="k is 3, and the program was traced for k=2"):
        scaled(jnp.ones(3), 3)


def test_sizes_are_as_many_as_jax_can_trace() -> None:
    from relaxpy.frontend.jax.auto import specs_of

    args, _ = specs_of(
        lambda x, y: (x @ W, y @ x), [jnp.ones((3, 16)), jnp.ones((5, 3))], {}, "auto", ()
    )
    assert [str(a.shape) for a in args] == ["(x_0, 16)", "(y_0, x_0)"]
    args, _ = specs_of(
        lambda x, y: x + y, [jnp.ones((3, 4)), jnp.ones((3, 4))], {}, ("n, m", "n, 4"), ()
    )
    assert [str(a.shape) for a in args] == ["(n, m)", "(n, 4)"]
    args, _ = specs_of(lambda x: x, [jnp.ones((3, 4))], {}, None, ())
    assert args[0].shape == (3, 4)


def test_equal_sizes_of_different_axes_may_be_different_ones() -> None:
    """Batches of 2 with 2 heads: heads are a number, and batches vary. A size that the function compares with one that
    it has in the example does not vary."""
    from relaxpy.frontend.jax.auto import specs_of

    q, k = jnp.ones((2, 5, 4, 8)), jnp.ones((2, 7, 2, 8))
    args, _ = specs_of(lambda q, k: jax.nn.dot_product_attention(q, k, k), [q, k], {}, "auto", ())
    assert [str(a.shape) for a in args] == ["(q_0, q_1, 4, 8)", "(q_0, k_1, 2, 8)"]
    args, _ = specs_of(lambda x: x if x.shape[1] == 4 else -x, [jnp.ones((3, 4))], {}, "auto", ())
    assert str(args[0].shape) == "(x_0, 4)"


def test_trees_are_plain_data() -> None:
    given = {"b": [1, (2, None)], "a": Pair(3, {"c": ()})}
    tree = jax.tree_util.tree_structure(given)
    assert read_tree(write_tree(tree)) == tree

    @jax.tree_util.register_pytree_node_class
    class Holder:
        def tree_flatten(self) -> Any:
            return (1,), object()

        @classmethod
        def tree_unflatten(cls, extra: Any, parts: Any) -> Any:
            return cls()

    with pytest.raises(UsageError, match="cannot be written to a file"):
        write_tree(jax.tree_util.tree_structure(Holder()))
