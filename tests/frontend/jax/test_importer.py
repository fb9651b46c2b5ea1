"""Functions of JAX as IR: sizes, weights, trees, lines, loops, and what is refused."""

from __future__ import annotations

import functools
from itertools import takewhile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.export import symbolic_shape

import relaxpy
from relaxpy.build.pipeline import default_pipeline
from relaxpy.errors import RelaxError, UsageError
from relaxpy.frontend.jax import from_jax, import_function
from relaxpy.ir import Call, IRModule
from relaxpy.op.softmax import LogSoftmax, Softmax
from relaxpy.testing.interpret import interpret
from relaxpy.transform.base import PassContext
from tests.sweeps import sweep

B, T = symbolic_shape("b, t")


def spec(*shape: Any, dtype: Any = jnp.float32) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


def data(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def run(program: tuple[IRModule, dict[str, np.ndarray]], *arrays: Any) -> Any:
    mod, params = program
    return interpret(mod, "main", *arrays, *params.values())


def check(function: Any, specs: list[Any], *calls: list[Any], **tolerance: float) -> Any:
    """Import a function, and compare it with JAX for each call; its text comes back as the same program."""
    program = from_jax(function, *specs)
    relaxpy.assert_structural_equal(relaxpy.parse(program[0].script()), program[0])
    for arrays in calls:
        found = run(program, *arrays)
        wanted = jax.tree_util.tree_leaves(function(*map(jnp.asarray, arrays)))
        got = list(found) if isinstance(found, tuple) else [found]
        assert len(got) == len(wanted)
        for each, want in zip(got, wanted, strict=True):
            np.testing.assert_allclose(each, want, **({"rtol": 1e-5, "atol": 1e-6} | tolerance))
    return program


def test_names_of_sizes_and_arguments_are_the_users() -> None:
    mod, _ = check(lambda image, scale: image * scale["all"], [spec(B, T), {"all": spec(T)}])
    text = mod.script()
    assert 'image: R.Tensor(("b", "t"), dtype="float32")' in text
    assert 'scale_all: R.Tensor(("t",), dtype="float32")' in text


def test_arrays_that_a_function_holds_are_weights_in_its_memory() -> None:
    held = data(16, 40)
    ours = jnp.asarray(data(40, 20))
    params = {"up": held, "down": [ours]}

    def model(x: Any) -> Any:
        return x @ params["up"] @ params["down"][0]

    mod, found = check(model, [spec(B, 16)], [data(3, 16)], rtol=1e-4, atol=1e-4)
    assert list(found) == ["params_up", "params_down_0"]
    assert np.shares_memory(found["params_down_0"], np.asarray(ours))
    assert mod["main"].attrs["num_input"] == 1


def test_arrays_among_the_specs_are_weights() -> None:
    def apply(weights: Any, x: Any) -> Any:
        return x @ weights["w"] + x @ weights["w"]

    mod, params = from_jax(apply, {"w": data(16, 40)}, spec(B, 16))
    x = data(2, 16)
    assert list(params) == ["weights_w"]
    np.testing.assert_allclose(
        run((mod, params), x), 2 * x @ params["weights_w"], rtol=1e-5, atol=1e-5
    )
    partial = functools.partial(apply, {"w": data(16, 40)})
    assert list(from_jax(partial, spec(B, 16))[1]) == ["weights_w"]


def test_weights_of_64_bits_are_as_jax_takes_them() -> None:
    wide = np.random.default_rng(0).standard_normal((16, 40))
    apply = lambda w, x: (x @ w["w"]) @ wide.T
    mod, params = from_jax(apply, {"w": wide}, spec(B, 16))
    assert {str(w.dtype) for w in params.values()} == {"float32"}
    x = data(3, 16)
    np.testing.assert_allclose(run((mod, params), x), apply({"w": wide}, x), rtol=1e-3, atol=1e-3)


def test_one_array_in_two_places_is_one_weight() -> None:
    tied = jnp.asarray(data(40, 40))
    again = tied
    _, params = from_jax(lambda x: (x @ tied) @ again.T, spec(B, 40))
    assert len(params) == 1


def test_numbers_and_texts_are_part_of_the_program() -> None:
    def model(x: Any, times: int, kind: str) -> Any:
        return {"y": x * times if kind == "mul" else x, "kind": kind}

    found = import_function(model, (spec(B), 3, "mul"), {})
    assert [i.kind for i in found.inputs] == ["tensor", "constant", "constant"]
    assert [o.kind for o in found.outputs] == ["constant", "tensor"]
    np.testing.assert_array_equal(interpret(found.mod, "main", np.ones(2, np.float32)), [3, 3])


@pytest.mark.parametrize("size", [0, 1, 5])
def test_a_size_of_0_gives_jaxs_result(size: int) -> None:
    def model(x: Any) -> Any:
        return jnp.cumsum(jax.nn.softmax(x, axis=-1), axis=0), x.sum(0), jnp.concatenate([x, x])

    check(model, [spec(B, 4)], [data(size, 4)])


def test_a_size_of_0_is_refused_where_the_trace_took_it_for_more() -> None:
    def model(x: Any) -> Any:
        return x * 2 if x.shape[0] >= 1 else x - 1

    program = check(model, [spec(B)], [data(1)])
    with pytest.raises(RelaxError, match="less than its lower bound 1"):
        run(program, data(0))


def test_sizes_that_the_trace_took_to_differ_are_checked() -> None:
    """JAX says of sizes that it cannot compare that they differ, and traces the other branch."""

    def model(x: Any, y: Any) -> Any:
        if x.shape[0] == 3 or x.shape[0] == 0:
            return x.sum()
        return y.sum() if y.shape != x.shape else x

    program = check(model, [spec(B), spec(T)], [data(4), data(5)], [data(1), data(2)])
    for rows, others in ((3, 2), (0, 2), (4, 4)):
        with pytest.raises(RelaxError, match="does not hold") as caught:
            run(program, data(rows), data(others))
        assert getattr(caught.value.span, "file", None) == __file__


def test_constraints_are_checked() -> None:
    b, t = symbolic_shape("b, t", constraints=["mod(b, 8) == 0", "t >= 3", "b <= 32"])
    program = check(lambda x: x.reshape(8, x.shape[0] // 8)[:, :1] + x[2], [spec(b)], [data(16)])
    with pytest.raises(RelaxError, match="does not hold"):
        run(program, data(17))
    with pytest.raises(RelaxError):
        run(program, data(40))
    assert t is not b


def test_sizes_that_a_function_holds_are_its_own() -> None:
    program = from_jax(lambda x: x + jnp.ones((B, 3)), spec(B, 3))
    np.testing.assert_array_equal(run(program, np.zeros((4, 3), np.float32)), np.ones((4, 3)))


def test_primitives_with_names_of_keywords_print() -> None:
    check(lambda x: (x > 0) & ~(x < 1) | (x == 2), [spec(B)], [data(3)])


def test_sizes_as_numbers() -> None:
    check(
        lambda x: x / x.shape[0] + jnp.arange(x.shape[0] * 2)[::2], [spec(B)], [data(3)], [data(1)]
    )


def test_branches() -> None:
    def model(x: Any, k: Any) -> Any:
        chosen = lax.switch(k, [lambda v: v + 1, lambda v: v * 2, jnp.sin], x)
        return lax.cond(x.sum() > 0, lambda v: v, lambda v: -v, chosen)

    calls = [[data(3), np.int32(k)] for k in (-5, 0, 1, 2, 9)]
    check(model, [spec(B), spec(dtype=jnp.int32)], *calls)


def test_loops() -> None:
    def model(x: Any) -> Any:
        last, stacked = lax.scan(lambda c, row: (c * 0.5 + row, c), jnp.zeros(4), x, reverse=True)
        counted = lax.fori_loop(0, x.shape[0], lambda i, s: s + x[i] * i, jnp.zeros(4))
        halved = lax.while_loop(lambda v: (v > 1).any(), lambda v: v * 0.5, x)
        rows = jax.vmap(lambda r: lax.while_loop(lambda v: v.sum() > 1, lambda v: v - 1, r))(x)
        return last, stacked, counted, halved, rows

    check(model, [spec(B, 4)], [data(1, 4)], [data(5, 4)])


def test_functions_with_rules_of_their_own_are_their_primal() -> None:
    @jax.custom_jvp
    def doubled(x: Any) -> Any:
        return x * 2

    doubled.defjvp(lambda primals, tangents: (doubled(*primals), tangents[0]))

    @jax.custom_vjp
    def third(x: Any) -> Any:
        return x * 3

    third.defvjp(lambda x: (third(x), None), lambda _, g: (g,))
    donated = jax.jit(lambda x: jax.nn.relu(doubled(x)) + third(x), donate_argnums=0)
    check(jax.checkpoint(lambda x: donated(jnp.sin(x))), [spec(B)], [data(4)])


def test_gradients_are_part_of_the_function() -> None:
    w = data(4, 4)
    check(jax.grad(lambda x: jnp.tanh(x @ w).sum()), [spec(B, 4)], [data(3, 4)], [data(1, 4)])


def test_gradients_of_windows() -> None:
    image, weight = spec(B, 5, 6, 4), data(3, 2, 1, 8)

    def pooled(x: Any) -> Any:
        sizes = (1, 3, 2, 1), (1, 2, 1, 1), "SAME"
        return (lax.reduce_window(x, -jnp.inf, lax.max, *sizes) ** 2).sum()

    def convolved(x: Any, w: Any) -> Any:
        names = ("NHWC", "HWIO", "NHWC")
        found = lax.conv_general_dilated(
            x, w, (2, 1), "SAME", dimension_numbers=names, feature_group_count=4
        )
        return (found**2).sum()

    calls = [data(2, 5, 6, 4)], [data(1, 5, 6, 4)]
    check(jax.grad(pooled), [image], *calls, rtol=1e-4, atol=1e-4)
    both = jax.grad(convolved, argnums=(0, 1))
    check(lambda x: both(x, weight), [image], *calls, rtol=1e-4, atol=1e-3)


def operators_of(function: Any, *specs: Any) -> list[Any]:
    """The operators of a function before they become tensor programs."""
    mod, params = from_jax(function, *specs)
    context = PassContext(target=relaxpy.Target.parse("llvm"), params=params)
    for phase in takewhile(lambda phase: phase.name != "legalise", default_pipeline().phases):
        for step in phase.passes:
            mod = step.run(mod, context)
    calls = [b.value for b in mod["main"].body.bindings]
    return [call.op for call in calls if isinstance(call, Call)]


def test_softmax_and_attention_are_ours() -> None:
    """As Flax writes them, with masks that are numbers."""
    assert operators_of(lambda x: jax.nn.softmax(x, axis=0), spec(B, T)) == [Softmax(0)]
    assert operators_of(jax.nn.log_softmax, spec(B, T)) == [LogSoftmax(1)]

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("...qhd,...khd->...hqk", q / jnp.sqrt(8.0), k)
        rows = jnp.broadcast_to(jnp.arange(q.shape[1]), q.shape[:2])
        mask = (rows[:, :, None] >= rows[:, None, :])[:, None].astype(q.dtype)
        scores = jnp.where(mask, scores, jnp.finfo(q.dtype).min)
        return jnp.einsum("...hqk,...khd->...qhd", jax.nn.softmax(scores), v)

    found = {op.name: op for op in operators_of(attention, *[spec(B, T, 4, 8)] * 3)}
    assert found["nn.attention"].causal_mask == "TopLeft"
    assert not {"matmul", "permute_dims", "exp"} & found.keys()

    own = functools.partial(jax.nn.dot_product_attention, is_causal=True)
    found = {op.name: op for op in operators_of(own, *[spec(B, T, 4, 8, dtype="bfloat16")] * 3)}
    assert found["nn.attention"].causal_mask == "TopLeft"
    assert not {"matmul", "permute_dims", "exp"} & found.keys()
    calls = [[data(2, 5, 4, 8, seed=i) for i in range(3)], [data(1, 1, 4, 8)] * 3]
    check(own, [spec(B, T, 4, 8)] * 3, *calls, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["clip", "fill", "promise_in_bounds"])
def test_gathers(mode: str) -> None:
    at = (
        np.array([0, 2, 1], np.int32)
        if mode == "promise_in_bounds"
        else np.array([0, -2, 9], np.int32)
    )
    check(
        lambda x, i: x.at[i].get(mode=mode),
        [spec(B, T), spec(3, dtype=jnp.int32)],
        [data(3, 4), at],
    )
    check(
        lambda x, i: x.at[:, i, i].get(mode=mode),
        [spec(B, T, T), spec(3, dtype=jnp.int32)],
        [data(2, 3, 3), at],
    )


@sweep(2)
@pytest.mark.parametrize("mode", ["clip", "drop"])
@pytest.mark.parametrize("how", ["set", "add", "multiply", "min", "max"])
def test_scatters(mode: str, how: str) -> None:
    at = np.array([0, 9, 1, 0 if how != "set" else 2], np.int32)

    def model(x: Any, i: Any, y: Any) -> Any:
        return getattr(x.at[i], how)(y, mode=mode), getattr(x.at[:, i], how)(2.0, mode=mode)

    check(model, [spec(B, T), spec(4, dtype=jnp.int32), spec(T)], [data(3, 4), at, data(4)])


def test_dynamic_slices_move_back_inside() -> None:
    def model(x: Any, i: Any, y: Any) -> Any:
        return lax.dynamic_slice(x, (i, 0), (2, 3)), lax.dynamic_update_slice(x, y, (i, i))

    calls = [[data(5, 4), np.int32(k), data(2, 3)] for k in (-1, 0, 2, 9)]
    check(model, [spec(5, 4), spec(dtype=jnp.int32), spec(2, 3)], *calls)


def test_products_have_batches_and_several_sums() -> None:
    check(
        lambda x, y: (jnp.einsum("bthd,bshd->bhts", x, y), jnp.einsum("bthd,bthe->de", x, y), jnp.einsum("bthd,hde->bte", x, data(2, 3, 5))),
        [spec(B, T, 2, 3), spec(B, T, 2, 3)],
        [data(2, 3, 2, 3), data(2, 3, 2, 3, seed=1)], [data(1, 1, 2, 3), data(1, 1, 2, 3)],
    )  # fmt: skip


def test_sorts_carry_others_along() -> None:
    keys = np.array([[2, 1, 2, 0], [0, 0, 1, 1]], np.int32)
    check(
        lambda k, x: lax.sort((k, x, x * 2), dimension=1, num_keys=2),
        [spec(B, T, dtype=jnp.int32), spec(B, T)], [keys, data(2, 4)],
    )  # fmt: skip


def test_random_numbers_are_jaxs() -> None:
    def model(key: Any, x: Any) -> Any:
        one, two = jax.random.split(key)
        bits = jax.random.bits(one, x.shape, "uint8"), jax.random.bits(two, x.shape)
        return (
            bits,
            jax.random.uniform(jax.random.fold_in(one, 7), x.shape),
            jax.random.normal(two, x.shape),
        )

    mod, _ = from_jax(model, spec(dtype=jax.random.key(0).dtype), spec(B, 3))
    for seed, rows in ((0, 1), (7, 5)):
        key, x = jax.random.key(seed), data(rows, 3)
        found = interpret(mod, "main", np.asarray(jax.random.key_data(key)), x)
        *exact, normal = jax.tree_util.tree_leaves(model(key, x))
        for got, want in zip(found, exact, strict=False):
            np.testing.assert_array_equal(got, want)
        np.testing.assert_array_max_ulp(found[-1], np.asarray(normal), maxulp=2)


def test_another_generator_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="the generator rbg") as caught:
        from_jax(
            lambda k: jax.random.bits(k, (3,)), spec(dtype=jax.random.key(0, impl="rbg").dtype)
        )
    assert caught.value.code == "jax-dtype"


def test_all_missing_primitives_are_told_at_once() -> None:
    def model(x: Any) -> Any:
        y = jnp.linalg.cholesky(x)
        y = jnp.linalg.cholesky(y)
        return y + jnp.linalg.qr(x)[0]

    with pytest.raises(UsageError) as caught:
        from_jax(model, spec(3, 3))
    message = caught.value.message
    assert caught.value.code == "jax-operator"
    for part in ("cholesky (2 times", "test_importer.py:", "compute it outside", "qr (once"):
        assert part in message
    assert getattr(caught.value.span, "file", None) == __file__


def test_what_jax_cannot_trace_has_the_users_line() -> None:
    with pytest.raises(UsageError, match="cannot trace") as caught:
        from_jax(lambda x: x + 1 if x.sum() > 0 else x, spec(3))
    assert caught.value.code == "jax-trace"
    assert getattr(caught.value.span, "file", None) == __file__
    with pytest.raises(UsageError, match="inconclusive") as caught:
        from_jax(lambda x: x if x.shape[0] > 3 else x + 1, spec(B))
    assert "constraints" in str(caught.value)


def test_bindings_have_the_users_lines_and_scopes() -> None:
    def model(x: Any) -> Any:
        with jax.named_scope("head"):
            y = jnp.sin(x)
        return jax.nn.softmax(y)

    mod, _ = from_jax(model, spec(B))
    spans = [b.span for b in mod["main"].body.bindings if b.span is not None]
    assert {span.file for span in spans} == {__file__}
    assert "head_sin" in mod.script()


def test_complex_numbers_and_other_things_are_refused() -> None:
    with pytest.raises(UsageError, match="complex numbers"):
        from_jax(lambda x: x, spec(3, dtype=jnp.complex64))
    with pytest.raises(UsageError, match="a function is expected, got IRModule"):
        from_jax(IRModule(), spec(3))
    with pytest.raises(UsageError, match="several calls of symbolic_shape"):
        from_jax(lambda x, y: (x, y), spec(B), spec(*symbolic_shape("c,")))
