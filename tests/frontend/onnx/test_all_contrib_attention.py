"""Attention of com.microsoft beside ONNX Runtime, in all combinations of what it takes: every size that may be is a
symbol, lengths are odd."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from relaxpy.errors import RelaxError
from tests.frontend.onnx.onnxruntime_oracle import Case, check, compare, of_onnxruntime, runner
from tests.sweeps import full, sweep

RNG = np.random.default_rng(0)


def f(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def i32(values: Any) -> np.ndarray:
    return np.asarray(values, np.int32)


def masks(b: int, t: int, total: int) -> Iterator[tuple[str, np.ndarray | None, float]]:
    """Masks of padding of each kind, and how exact scores are with them: where all keys are hidden, ONNX Runtime adds
    -10000 to all scores, and their last bits are lost in an order of its own."""
    yield "no mask", None, 2e-5
    yield "ends", i32(RNG.integers(1, total + 1, b)), 2e-5
    yield "raw", i32(_with_first(RNG.random((b, total)) < 0.6)), 2e-5
    yield "left", i32(np.arange(total) >= RNG.integers(0, max(total - 1, 1), (b, 1))), 4e-3
    yield "each query's", i32(_with_first(RNG.random((b, t, total)) < 0.6)), 2e-5
    yield "all hidden", i32(np.zeros((b, total))), 4e-3


def _with_first(mask: np.ndarray) -> np.ndarray:
    mask[..., 0] = True
    return mask


def trimmed(values: Sequence[Any]) -> list[Any]:
    found = list(values)
    while found[-1] is None:
        found.pop()
    return found


NUMBERS = {"scale": 0.3, "mask_filter_value": -77.0}


def projected() -> Iterator[Case]:
    """Attention: sizes of batch, length, heads, their width, past (None: without)."""
    sizes = [
        (2, 5, 3, 4, None),
        (2, 5, 3, 4, 0),
        (3, 7, 2, 8, 5),
        (1, 3, 5, 2, 3),
        (2, 1, 2, 4, 7),
        (3, 1, 2, 4, None),
    ]
    for (b, t, h, d, p), causal in product(sizes, (0, 1)):
        total = t + (p or 0)
        starts = RNG.integers(0, total // 2 + 1, b)
        both = i32(np.concatenate([starts + RNG.integers(1, total // 2 + 2, b), starts]))
        for (mask, values, atol), more in product(
            [*masks(b, t, total), ("starts", both, 4e-3)], ("", "bias", "numbers")
        ):
            if more == "bias" and p is not None:
                continue  # not in ONNX Runtime
            past = None if p is None else f(2, b, h, p, d)
            bias = f(b, h, t, total) if more == "bias" else None
            given = [f(b, t, 6), f(6, 3 * h * d), f(3 * h * d), values, past, bias]
            attrs = {"num_heads": h, "unidirectional": causal} | (
                NUMBERS if more == "numbers" else {}
            )
            yield Case(
                "Attention", trimmed(given), attrs, 1 if past is None else 2, weights=frozenset({1, 2}), atol=atol,
                title=f"{b} {t} {h} {d} past {p}{' causal' * causal}, {mask} {more}",
            )  # fmt: skip


def apart() -> Iterator[Case]:
    """MultiHeadAttention: sizes of batch, queries, keys, heads, widths of keys and values, past (None: without)."""
    sizes = [
        (2, 5, 7, 3, 4, 4, None), (3, 7, 5, 2, 8, 6, None), (2, 1, 9, 2, 4, 4, None), (3, 7, 7, 2, 8, 8, 5),
        (1, 3, 3, 5, 2, 2, 0), (2, 1, 1, 2, 4, 4, 7),
    ]  # fmt: skip
    for (b, t, s, h, d, v, p), causal, form in product(sizes, (0, 1), (3, 4)):
        total = s + (p or 0)
        if form == 4 and (p is not None or d != v):
            continue  # not in ONNX Runtime
        sums = np.concatenate(
            [RNG.integers(1, total + 1, b), np.arange(b + 1) * t, np.arange(b + 1) * total]
        )
        for (mask, values, atol), more in product(
            [*masks(b, t, total), ("sums", i32(sums), 2e-5)],
            ("", "bias", "scores", "score", "numbers"),
        ):
            if form == 3:
                given: list[Any] = [f(b, t, h * d), f(b, s, h * d), f(b, s, h * v)]
            else:
                given = [f(b, t, h * d), f(b, h, s, d), f(b, h, s, v)]
            given += [f(2 * h * d + h * v) if more == "bias" else None, values]
            given += [{"scores": f(b, h, t, total), "score": f(1, 1, t, total)}.get(more)]
            given += [None, None] if p is None else [f(b, h, p, d), f(b, h, p, v)]
            attrs = {"num_heads": h, "unidirectional": causal} | (
                NUMBERS if more == "numbers" else {}
            )
            yield Case(
                "MultiHeadAttention", trimmed(given), attrs, 1 if p is None else 3, weights=frozenset({3}), atol=atol,
                title=f"{b} {t} {s} {h} {d} {v} past {p} of {form}{' causal' * causal}, {mask} {more}",
            )  # fmt: skip


ANGLES = f(64, 8), f(64, 8)


def valid(lengths: Sequence[int], queries: int) -> Any:
    """What is not padding: results of the queries, keys and values, of each batch."""

    def parts(results: list[np.ndarray]) -> list[np.ndarray]:
        found: list[np.ndarray] = []
        for batch, n in enumerate(lengths):
            found.append(results[0][batch, : n if queries == max(lengths) else queries])
            found += [each[batch, :, :n] for each in results[1:]]
        return found

    return parts


def grouped() -> Iterator[Case]:
    """GroupQueryAttention: sizes of batch, heads, heads of keys, queries, past, and how many tokens there are."""
    sizes = [
        (3, 6, 2, 5, 0, [5, 5, 5]), (3, 6, 2, 5, 0, [5, 3, 1]), (2, 4, 1, 7, 11, [7, 4]), (3, 6, 3, 1, 7, [8, 8, 8]),
        (3, 6, 3, 1, 12, [9, 6, 2]), (1, 2, 1, 3, 6, [9]), (1, 2, 1, 3, 9, [8]), (1, 6, 2, 1, 0, [1]), (2, 6, 2, 1, 5, [1, 1]),
    ]  # fmt: skip
    kinds: dict[str, dict[str, Any]] = {
        "": {}, "window 1": {"local_window_size": 1}, "window 3": {"local_window_size": 3},
        "window 50": {"local_window_size": 50}, "softcap": {"softcap": 1.5}, "smooth": {"smooth_softmax": 1},
        "sink": {}, "bias": {}, "scale": {"scale": 0.2}, "both": {"softcap": 1.5, "local_window_size": 2},
        "both ways": {"causal": 0},
    }  # fmt: skip
    d = 16
    for (b, h, g, t, p, lengths), rotary, is_packed, kind in product(
        sizes, ("", "halves", "pairs", "positions"), (False, True), kinds
    ):
        total = max(lengths)
        q, k, v = f(b, t, h * d), f(b, t, g * d), f(b, t, g * d)
        given: list[Any] = [np.concatenate([q, k, v], 2), None, None] if is_packed else [q, k, v]
        given += [f(b, g, p, d), f(b, g, p, d), i32(lengths) - 1, i32([total])]
        given += ANGLES if rotary else [None, None]
        first = [0 if t == total else n - t for n in lengths]
        given += [np.array(first)[:, None] + np.arange(t) if rotary == "positions" else None]
        given += [f(b, h, t, total) if kind == "bias" else None, f(h) if kind == "sink" else None]
        attrs = {"num_heads": h, "kv_num_heads": g, "do_rotary": int(bool(rotary))}
        attrs |= {"rotary_interleaved": int(rotary == "pairs")} | kinds[kind]
        yield Case(
            "GroupQueryAttention", trimmed(given), attrs, 3, weights=frozenset({7, 8}), fixed=frozenset({6, 11}),
            valid=valid(lengths, t), atol=2e-5,
            title=f"{b} {h} {g} {t} past {p} {lengths} {rotary}{' packed' * is_packed}, {kind}",
        )  # fmt: skip


def rotated() -> Iterator[Case]:
    b, t, h = 3, 5, 3
    for form, width, pairs, spots in product((3, 4), (16, 24), (0, 1), ("each", "first")):
        x = f(b, t, h * width) if form == 3 else f(b, h, t, width)
        places = RNG.integers(0, 64, (b, t)) if spots == "each" else np.array([7])
        attrs = {"interleaved": pairs}
        if width > 16:
            attrs |= {"num_heads": h, "rotary_embedding_dim": 16}
        yield Case(
            "RotaryEmbedding", [x, places, *ANGLES], attrs, weights=frozenset({2, 3}), fixed=frozenset({0}),
            named={b: "b", t: "t"} if form == 4 else {}, title=f"of {form} {width} {pairs} {spots}",
        )  # fmt: skip


CASES = [*projected(), *apart(), *grouped(), *rotated()]


@sweep(48)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_is_onnxruntimes(case: Case) -> None:
    pytest.importorskip("onnxruntime")
    check(case)


@full
@pytest.mark.parametrize("case", CASES[::31], ids=str)
def test_attention_built_is_onnxruntimes(case: Case) -> None:
    pytest.importorskip("onnxruntime")
    check(case, build=True)


@sweep(2)
@pytest.mark.parametrize("spare", [0, 6], ids=["past grows", "past has room"])
def test_one_build_is_for_the_prompt_and_tokens(spare: int) -> None:
    """The past is empty at first, or a buffer, and then what the last call gave."""
    pytest.importorskip("onnxruntime")
    b, h, g, d = 3, 4, 2, 16
    lengths = np.array([5, 3, 1])

    def given(t: int, past: Sequence[np.ndarray]) -> list[np.ndarray]:
        heads = [f(b, t, h * d), f(b, t, g * d), f(b, t, g * d)]
        return [*heads, *past, i32(lengths - 1), i32([lengths.max()])]

    arrays = given(5, [np.zeros((b, g, spare, d), np.float32)] * 2)
    attrs = {"num_heads": h, "kv_num_heads": g, "do_rotary": 1, "local_window_size": 3}
    case = Case(
        "GroupQueryAttention", [*arrays, *ANGLES], attrs, 3, weights=frozenset({7, 8}), fixed=frozenset({6}),
        named={b: "b", 5: "t", spare: "p"},
    )  # fmt: skip
    model = case.model()
    run = runner(model, build=True)
    for t in (5, 1, 1, 1):
        if t == 1:
            lengths = lengths + 1
            arrays = given(1, arrays)
        wanted, found = of_onnxruntime(model, arrays), run(*arrays)
        chosen = valid(lengths, t)
        compare(chosen(found), chosen(wanted), atol=2e-5)
        arrays = wanted[1:]


def test_a_mask_of_another_number_is_an_error() -> None:
    case = Case(
        "Attention",
        [f(3, 5, 6), f(6, 12), f(12), i32([4, 5, 3, 2])],
        {"num_heads": 2},
        weights=frozenset({1, 2}),
    )
    with pytest.raises(RelaxError, match="does not hold"):
        runner(case.model())(*case.given())


@pytest.mark.parametrize("count", [2, 3])
def test_keys_and_values_side_by_side_are_those_apart(count: int) -> None:
    """ONNX Runtime has this layout on other devices only."""
    b, t, h, d = 2, 5, 3, 4
    parts = [f(b, t, h, d) for _ in range(3)]
    q, k, v = (each.reshape(b, t, h * d) for each in parts)
    beside = np.stack(parts[3 - count :], 3)
    model = Case(
        "MultiHeadAttention", [beside] if count == 3 else [q, beside], {"num_heads": h}, free=True
    ).model()
    (wanted,) = runner(Case("MultiHeadAttention", [q, k, v], {"num_heads": h}).model())(q, k, v)
    (found,) = runner(model)(*([beside] if count == 3 else [q, beside]))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
