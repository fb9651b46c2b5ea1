"""Operators of com.microsoft beside ONNX Runtime: odd sizes, batch and length symbols."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import UsageError
from relaxpy.frontend.onnx import from_onnx
from tests.frontend.onnx.onnxruntime_oracle import Case, check

RNG = np.random.default_rng(0)


def f(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def i32(*values: Any) -> np.ndarray:
    return np.array(*values, np.int32)


def simple() -> Iterator[Case]:
    x, v, w = f(2, 5, 8), f(8), f(8)
    one = {"named": {2: "b", 5: "t"}}
    yield Case("Gelu", [x])
    yield Case("FastGelu", [x])
    yield Case("FastGelu", [x, v])
    yield Case("BiasGelu", [x, v])
    yield Case("QuickGelu", [x], {"alpha": 1.5})
    yield Case("QuickGelu", [x])
    yield Case("FusedMatMul", [x, f(2, 3, 8)], {"alpha": 0.5, "transB": 1}, named={2: "b"})
    yield Case("FusedMatMul", [x, f(2, 5, 3)], {"transA": 1}, named={2: "b", 5: "t"})
    moved = {"transBatchA": 1, "transBatchB": 1, "transB": 1}
    yield Case("FusedMatMul", [f(5, 2, 3, 8), f(7, 2, 3, 8)], moved, named={2: "b", 3: "c"})
    yield Case("SkipLayerNormalization", [x, x, v, w, v], {"epsilon": 0.01}, **one)
    yield Case("SkipLayerNormalization", [x, x, v], {"epsilon": 0.01}, **one)
    yield Case("SkipLayerNormalization", [x, f(5, 8), v, w], {"epsilon": 0.01}, **one)
    yield Case("SkipSimplifiedLayerNormalization", [x, x, v], {"epsilon": 0.01}, **one)
    yield Case("SkipSimplifiedLayerNormalization", [x, x, v, w], {"epsilon": 0.01}, **one)
    yield Case("SimplifiedLayerNormalization", [x, v], {"axis": -1, "epsilon": 0.01}, domain="")
    ids, seg = (
        RNG.integers(0, 11, (2, 5)).astype(np.int32),
        RNG.integers(0, 2, (2, 5)).astype(np.int32),
    )
    tables = [f(11, 8), f(9, 8), f(2, 8), v, w]
    own = {"weights": frozenset(range(2, 7)), "outputs": 3, "named": {2: "b", 5: "t"}, "free": True}
    mask = i32([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    yield Case(
        "EmbedLayerNormalization", [ids, seg, *tables, mask], {"epsilon": 0.01}, title="mask", **own
    )
    spot = RNG.integers(0, 9, (2, 5)).astype(np.int32)
    own["outputs"] = 2
    yield Case(
        "EmbedLayerNormalization",
        [ids, None, *tables[:2], None, v, w, mask, spot],
        {},
        title="positions",
        **own,
    )
    for name, more in (
        ("Relu", {}), ("Tanh", {}), ("Sigmoid", {}), ("LeakyRelu", {"activation_alpha": 0.3}),
        ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.6}),
    ):  # fmt: skip
        yield Case(
            "FusedGemm",
            [f(5, 7), f(3, 7), f(3)],
            {"activation": name, "transB": 1, "alpha": 0.7, **more},
            title=name,
        )
    image, kernel = f(2, 3, 11, 9), f(4, 3, 3, 3)
    own = {"weights": frozenset({1, 2}), "fixed": frozenset()}
    for name, numbers in (
        ("Relu", []),
        ("Clip", [-0.5, 2.0]),
        ("LeakyRelu", [0.2]),
        ("HardSigmoid", [0.3, 0.6]),
    ):
        more = {"activation_params": numbers} if numbers else {}
        more |= {"activation": name, "pads": [1, 0, 1, 2], "strides": [2, 1]}
        yield Case(
            "FusedConv",
            [image, kernel, f(4)],
            more,
            title=name,
            named={3: "c"},
            fixed=frozenset({0}),
            weights=frozenset({1, 2}),
        )
    yield Case(
        "FusedConv",
        [image, kernel, f(4), f(2, 4, 9, 7)],
        {"activation": "Relu"},
        title="sum",
        fixed=frozenset({0}),
        weights=frozenset({1, 2}),
    )
    bytes_ = RNG.integers(0, 255, (2, 7, 9, 3)).astype(np.uint8)
    yield Case(
        "NhwcMaxPool", [bytes_], {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
    )


def attention() -> Iterator[Case]:
    b, t, h, d, p = 2, 5, 3, 4, 7
    x, w, bias = f(b, t, 6), f(6, 3 * h * d), f(3 * h * d)
    own: dict[str, Any] = {
        "weights": frozenset({1, 2}),
        "named": {b: "b", t: "t", p: "p", p + t: "s", h: "h"},
    }
    raw = i32([[1, 1, 1, 1, 0], [0, 1, 1, 1, 1]])
    yield Case("Attention", [x, w, bias], {"num_heads": h}, **own)
    yield Case(
        "Attention",
        [x, w, bias],
        {"num_heads": h, "unidirectional": 1, "scale": 0.3},
        title="causal",
        **own,
    )
    yield Case(
        "Attention",
        [x, w, bias, raw],
        {"num_heads": h},
        title="mask",
        **(own | {"free": False, "fixed": frozenset({3})}),
    )
    yield Case(
        "Attention",
        [x, w, bias, i32([3, 5])],
        {"num_heads": h, "mask_filter_value": -500.0},
        title="ends",
        **own,
    )
    yield Case(
        "Attention",
        [x, w, bias, i32([4, 5, 1, 2])],
        {"num_heads": h},
        title="starts",
        **(own | {"named": {}, "fixed": frozenset(range(6))}),
    )
    past = f(2, b, h, p, d)
    own = own | {"named": {b: "b", t: "t", p: "p", p + t: "s"}, "fixed": frozenset({4})}
    yield Case(
        "Attention",
        [x, w, bias, None, past],
        {"num_heads": h, "unidirectional": 1},
        2,
        title="past",
        **own,
    )
    yield Case(
        "Attention",
        [x, w, None, None, None, f(b, h, t, t)],
        {"num_heads": h},
        title="bias",
        **(own | {"fixed": frozenset({5})}),
    )
    sizes = {"num_heads": h, "qkv_hidden_sizes": [h * d, h * d, h * 2]}
    yield Case(
        "Attention",
        [x, f(6, 2 * h * d + 2 * h), f(2 * h * d + 2 * h)],
        sizes,
        title="values",
        **own,
    )

    name, heads = "MultiHeadAttention", {"num_heads": h}
    q, k, v = f(b, t, h * d), f(b, p, h * d), f(b, p, h * 2)
    named = {"named": {b: "b", t: "t", p: "p"}}
    yield Case(name, [q, k, v], heads, **named)
    yield Case(name, [q, k, v, f(2 * h * d + 2 * h)], heads, title="bias", **named)
    yield Case(
        name, [q, q, q], heads | {"unidirectional": 1, "scale": 0.2}, title="causal", **named
    )
    yield Case(name, [q, k, v, None, i32([3, 6])], heads, title="ends", **named)
    keep = i32([[1, 1, 0, 1, 1, 1, 0], [0, 1, 1, 1, 1, 1, 1]])
    yield Case(name, [q, k, v, None, keep], heads, title="mask", **named)
    yield Case(
        name,
        [q, k, v, None, None, f(1, h, t, p)],
        heads,
        title="attention bias",
        **(named | {"fixed": frozenset({5})}),
    )
    yield Case(
        name,
        [q, f(b, h, p, d), f(b, h, p, d)],
        heads,
        title="4 dimensions",
        **(named | {"fixed": frozenset({1, 2})}),
    )
    before = [f(b, h, p, d), f(b, h, p, d)]
    yield Case(
        name,
        [q, f(b, t, h * d), f(b, t, h * d), None, None, None, *before],
        heads,
        3,
        title="past",
        **(named | {"fixed": frozenset({6, 7})}),
    )


def grouped() -> Iterator[Case]:
    name, b, h, g, d = "GroupQueryAttention", 2, 6, 2, 16
    heads = {"num_heads": h, "kv_num_heads": g}
    cos, sin = f(40, d // 2), f(40, d // 2)

    def inputs(
        t: int, lengths: list[int], p: int, *, tables: bool = False, packed: bool = False
    ) -> list[Any]:
        b, total = len(lengths), max(lengths)
        q, k, v = f(b, t, h * d), f(b, t, g * d), f(b, t, g * d)
        own: list[Any] = [np.concatenate([q, k, v], 2), None, None] if packed else [q, k, v]
        past = [f(b, g, p, d), f(b, g, p, d)]
        rest = [cos, sin] if tables else []
        return [*own, *past, i32([n - 1 for n in lengths]), i32([total]), *rest]

    def valid(t: int, lengths: list[int]) -> Any:
        first = t == max(lengths)

        def parts(results: list[np.ndarray]) -> list[np.ndarray]:
            found = []
            for batch, n in enumerate(lengths):
                found.append(results[0][batch, : n if first else t])
                found += [r[batch, :, :n] for r in results[1:]]
            return found

        return parts

    def case(title: str, given: list[Any], t: int, lengths: list[int], **attributes: Any) -> Case:
        return Case(
            name, given, heads | attributes, 3, weights=frozenset({7, 8}), named={b: "b", t: "t"}, title=title,
            valid=valid(t, lengths), fixed=frozenset({3, 4, 6, 10, 11, 14}),
        )  # fmt: skip

    yield case("prompt", inputs(5, [5, 5], 0), 5, [5, 5])
    yield case("padded prompt", inputs(5, [5, 3], 0, tables=True), 5, [5, 3], do_rotary=1)
    yield case("buffer", inputs(5, [5, 4], 11, tables=True), 5, [5, 4], do_rotary=1)
    yield case(
        "token", inputs(1, [8, 8], 7, tables=True), 1, [8, 8], do_rotary=1, rotary_interleaved=1
    )
    yield case("tokens", inputs(1, [9, 6], 12, tables=True, packed=True), 1, [9, 6], do_rotary=1)
    yield case("chunk", inputs(3, [9], 6), 3, [9], scale=0.2)
    yield case("window", inputs(1, [11, 7], 13), 1, [11, 7], local_window_size=4)
    yield case("window of a prompt", inputs(9, [9, 9], 0), 9, [9, 9], local_window_size=3)
    yield case("softcap", inputs(5, [5, 5], 0), 5, [5, 5], softcap=2.0)
    yield case("smooth", inputs(5, [5, 5], 0), 5, [5, 5], smooth_softmax=1)
    yield case("sink", [*inputs(1, [8, 8], 7), None, None, None, None, f(h)], 1, [8, 8])
    places_ = np.array([[6, 7, 8]], np.int64)
    yield case("positions", [*inputs(3, [9], 6, tables=True), places_], 3, [9], do_rotary=1)
    biased = [*inputs(3, [9], 6), None, None, None, f(1, h, 3, 9)]
    yield case("bias", biased, 3, [9])
    yield case("both ways", inputs(5, [5, 5], 0), 5, [5, 5], causal=0)

    name, b, t = "RotaryEmbedding", 2, 5
    spots = np.array([[4, 5, 6, 1, 0], [6, 7, 8, 9, 3]], np.int64)
    own = {"weights": frozenset({2, 3}), "named": {b: "b", t: "t"}}
    yield Case(name, [f(b, t, 3 * d), spots, cos, sin], **own)
    yield Case(
        name,
        [f(b, t, 3 * d), np.array([3]), cos, sin],
        {"interleaved": 1},
        title="interleaved",
        **own,
    )
    yield Case(
        name,
        [f(b, 3, t, d), spots, cos, sin],
        {},
        title="4 dimensions",
        **(own | {"fixed": frozenset({0})}),
    )
    part = {"num_heads": 2, "rotary_embedding_dim": d}
    yield Case(name, [f(b, t, 2 * 24), spots, cos, sin], part, title="part", **own)


CASES = [*simple(), *attention(), *grouped()]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_operators_are_onnxruntimes(case: Case) -> None:
    pytest.importorskip("onnxruntime")
    check(case)


@pytest.mark.full
@pytest.mark.parametrize("case", CASES, ids=str)
def test_operators_built_are_onnxruntimes(case: Case) -> None:
    pytest.importorskip("onnxruntime")
    check(case, build=True)


@pytest.mark.parametrize(
    ("case", "match"),
    [
        (Case("Gelu", [f(3, 4)], {"approximate": "tanh"}), "attribute 'approximate'"),
        (Case("Relu", [f(3, 4)], {"alpha": 0.5}, domain=""), "attribute 'alpha'"),
        (Case("FusedGemm", [f(3, 4), f(4, 5)], {"activation": "Softmax"}), "'Softmax'"),
        (Case("Attention", [f(2, 3, 4), f(4, 12)], {"num_heads": 2, "do_rotary": 1}), "do_rotary"),
    ],
    ids=lambda x: str(x),
)  # fmt: skip
def test_what_changes_the_result_is_refused(case: Case, match: str) -> None:
    with pytest.raises(UsageError, match=match) as caught:
        from_onnx(case.model())
    assert caught.value.code == "onnx-operator"
