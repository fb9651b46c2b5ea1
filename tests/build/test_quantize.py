"""The integer flow as a whole: calibration, reports, layers left in floats, and bad data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.build.quantize import Calibration, calibrate, quantize
from relaxpy.errors import RelaxError, UsageError
from relaxpy.ir.module import IRModule
from relaxpy.op.base import Op
from relaxpy.op.pair import Pair
from relaxpy.testing.interpret import interpret
from relaxpy.transform.annotate import Rule
from tests.sweeps import full, sweep

RNG = np.random.default_rng(0)
NETWORK = """
from relaxpy.script import relax as R, tir as T

@R.function
def main(
    x: R.Tensor(("n", 3, 8, 9), "float32"), c1_weight: R.Tensor((5, 3, 3, 3), "float32"),
    c2_weight: R.Tensor((7, 5, 3, 3), "float32"), head_weight: R.Tensor((4, 336), "float32"),
):
    n = T.int64()
    R.func_attr({"num_input": 1})
    with R.dataflow():
        a = R.nn.conv2d(x, c1_weight, padding=1)
        b = R.nn.relu(a)
        c = R.nn.conv2d(b, c2_weight)
        d = R.nn.relu(c)
        e = R.reshape(d, R.shape([n, 7 * 6 * 7]))
        f = R.concat((e, R.strided_slice(e, axes=[1], begin=[0], end=[42])), axis=1)
        y = R.linear(f, head_weight)
        R.output(y)
    return y
"""
WEIGHTS = {
    "c1_weight": RNG.standard_normal((5, 3, 3, 3)).astype("float32"),
    "c2_weight": RNG.standard_normal((7, 5, 3, 3)).astype("float32"),
    "head_weight": RNG.standard_normal((4, 336)).astype("float32"),
}


@cache
def network() -> IRModule:
    return relaxpy.parse(NETWORK)


def samples(count: int = 3) -> list[dict[str, Any]]:
    rng = np.random.default_rng(5)
    return [{"x": rng.standard_normal((n + 1, 3, 8, 9)).astype("float32")} for n in range(count)]


def test_calibration_is_what_the_layers_read() -> None:
    """The ranges are those of numpy; every number is in one bin; two halves merged are the whole; saved is loaded."""
    data = samples()
    whole = calibrate(network(), WEIGHTS, data)
    assert set(whole.seen) == {"c1", "c2"}
    first = whole.seen["c1"]["data"]
    every = np.concatenate([each["x"].ravel() for each in data])
    assert (float(first.low), float(first.high)) == (every.min(), every.max())
    assert first.counts.sum() == every.size
    halves = [calibrate(network(), WEIGHTS, part) for part in (data[:1], data[1:])]
    merged = halves[0].merged(halves[1])
    for layer, own in whole.seen.items():
        for found in (merged, Calibration.from_json(whole.to_json())):
            other = found.seen[layer]["data"]
            assert (other.low, other.high) == (own["data"].low, own["data"].high)
            np.testing.assert_array_equal(other.counts, own["data"].counts)


def test_data_may_be_an_iterator() -> None:
    """That is read once, one sample at a time."""
    alive: list[int] = []

    def stream() -> Iterator[list[Any]]:
        for each in samples():
            alive.append(len(alive))
            yield [each["x"]]

    assert calibrate(network(), WEIGHTS, stream()).seen
    assert alive == [0, 1, 2]
    with pytest.raises(UsageError, match="read several times"):
        quantize(network(), WEIGHTS, stream())


@sweep(2)
@pytest.mark.parametrize("method", ["min_max", "percentile", "mse", "kl"])
def test_convolutions_of_integers(method: str) -> None:
    """Compiled, near the floats; the report says so of every layer."""
    data = samples()
    module, report = quantize(network(), WEIGHTS, data, method=method)
    assert [(each.layer, each.kind) for each in report.layers] == [
        ("c1", "integers"), ("c2", "integers"), ("head", "integers"),
    ]  # fmt: skip
    assert report.accuracy is not None
    assert report.accuracy > 0.99
    errors = [each.error or 0 for each in report.layers]
    assert all(0 < error < 0.1 for error in errors)
    assert all(0 <= (each.clipped or 0) < 0.05 for each in report.layers[:2])
    assert "c2" in str(report)
    assert report.to_json()["layers"][0]["layer"] == "c1"
    want = interpret(network(), "main", data[1]["x"], *WEIGHTS.values())
    got = relaxpy.VirtualMachine(relaxpy.build(module, params=WEIGHTS))["main"](
        data[1]["x"]
    ).numpy()
    assert float((want * got).sum()) / float(np.linalg.norm(want) * np.linalg.norm(got)) > 0.99


def test_layers_are_left_in_floats_until_the_results_are_near() -> None:
    """Codes of a coarse range lose much: the layers that lose most go first, and no more than are needed."""

    def unsigned(op: Op) -> Mapping[str, Pair]:
        return {**op.pairs(), "data": Pair("uint8", static=True)}

    rules: Mapping[str, Rule] = {"c1": unsigned}
    data = samples()
    far, report = quantize(network(), WEIGHTS, data, rules=rules)
    near, kept = quantize(network(), WEIGHTS, data, rules=rules, keep_accuracy=0.99999)
    del far, near
    assert report.accuracy is not None
    assert kept.accuracy is not None
    assert kept.accuracy > report.accuracy
    worst = max(report.layers, key=lambda each: each.error or 0)
    floats = [each for each in kept.layers if each.kind == "floats"]
    assert worst.layer in {each.layer for each in floats}
    assert all(each.reason == "its rule says so" for each in floats)


def test_without_data() -> None:
    """Rows need none; convolutions stay, with the reason."""
    _, report = quantize(network(), WEIGHTS)
    kinds = {each.layer: (each.kind, each.reason) for each in report.layers}
    assert kinds["head"] == ("integers", "")
    assert kinds["c1"][0] == "floats"
    assert "calibrate" in kinds["c1"][1]


def bad(message: str, data: Any, **options: Any) -> RelaxError:
    with pytest.raises(RelaxError, match=message) as caught:
        quantize(network(), WEIGHTS, data, **options)
    return caught.value


def test_bad_data_is_named() -> None:
    wrong = samples()
    wrong[1]["x"][0, 0, 0, 0] = np.nan
    assert bad("sample 1: data of c1 has a NaN or an infinity", wrong).code == "quantization"
    wrong[1]["x"][0, 0, 0, 0] = np.inf
    bad("sample 1: data of c1 has a NaN or an infinity", wrong)
    bad("there is no data", [])
    zeros = [{"x": np.zeros((1, 3, 8, 9), "float32")}]
    bad("data of c1: all numbers that were seen are 0", zeros)
    other = [*samples(1), {"x": np.zeros((1, 4, 8, 9), "float32")}]
    assert "this is sample 1 of the data" in str(bad("x", other))
    bad("no function 'mian'", samples(1), function="mian")
    bad("above 0 and at most 1", samples(1), keep_accuracy=1.5)
    bad("without data", None, keep_accuracy=0.9)
    bad("none of min_max", samples(1), method="max")
    bad("above 50", samples(1), method="percentile", percentile=12)
    bad("matches no layer", samples(1), rules={"c3": None})
    bad("does not have data of c1", samples(1), calibration=Calibration())


@pytest.mark.parametrize(
    "text",
    ["[1]", "{", '{"c1": {"data": {}}}', '{"c1": {"data": {"low": 1, "high": 0, "counts": {}}}}'],
)
def test_text_that_is_no_calibration(text: str) -> None:
    with pytest.raises(UsageError, match=r"no calibration|no statistics"):
        Calibration.from_json(text)


@full
def test_columns_that_differ_are_smoothed() -> None:
    """A column of activations that is a hundred times larger costs the others their codes, unless its magnitude moves to
    the weight; the numbers without codes stay."""
    mod = relaxpy.parse("""
from relaxpy.script import relax as R

@R.function
def main(x: R.Tensor(("n", 32), "float32"), up_weight: R.Tensor((16, 32), "float32")):
    R.func_attr({"num_input": 1})
    with R.dataflow():
        y = R.linear(x, up_weight)
        R.output(y)
    return y
""")
    rng = np.random.default_rng(3)
    params = {"up_weight": rng.standard_normal((16, 32)).astype("float32")}
    large = np.where(np.arange(32) == 5, 100.0, 1.0)
    data = [{"x": (rng.standard_normal((9, 32)) * large).astype("float32")} for _ in range(2)]
    plain, even = (quantize(mod, params, data, smooth=part)[1].layers[0] for part in (None, 0.5))
    assert plain.error is not None
    assert even.error is not None
    assert even.error < 0.5 * plain.error
    module = quantize(mod, params, data, smooth=0.5)[0]
    x = data[0]["x"]
    got = relaxpy.VirtualMachine(relaxpy.build(module, params=params))["main"](x).numpy()
    want = x @ params["up_weight"].T
    assert np.abs(got - want).max() < 0.02 * np.abs(want).max()


def test_bias_is_corrected() -> None:
    """What the codes of all samples lose of a channel in the mean is added to it: the mean of the errors is then 0."""
    data = samples()
    module, report = quantize(network(), WEIGHTS, data, correct_bias=True)
    assert [layer.kind for layer in report.layers] == ["integers"] * 3
    plain = quantize(network(), WEIGHTS, data)[1]
    assert all(a.error <= b.error for a, b in zip(report.layers, plain.layers, strict=True))  # type: ignore[operator]

    def mean(mod: IRModule) -> np.ndarray:
        run = relaxpy.VirtualMachine(relaxpy.build(mod, params=WEIGHTS))["main"]
        return np.mean([run(**sample).numpy().mean(0) for sample in data], 0)

    floats = mean(network())
    lost = [
        np.abs(mean(each) - floats).max()
        for each in (module, quantize(network(), WEIGHTS, data)[0])
    ]
    assert lost[0] < lost[1]


def test_corrections_need_data() -> None:
    for wrong in ({"smooth": 0.5}, {"correct_bias": True}):
        with pytest.raises(UsageError, match="measured on data"):
            quantize(network(), WEIGHTS, **wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="from 0 to 1"):
        quantize(network(), WEIGHTS, samples(), smooth=2.0)


@full
def test_calibration_keeps_nothing_of_samples() -> None:
    """Memory does not grow with them: 10 000 of them, 170 MB, pass through."""
    resource = pytest.importorskip("resource")

    class Many:
        def __iter__(self) -> Iterator[dict[str, Any]]:
            rng = np.random.default_rng(0)
            for _ in range(10_000):
                yield {"x": rng.standard_normal((20, 3, 8, 9), "float32")}

    mod = network()
    calibrate(mod, WEIGHTS, [next(iter(Many()))])  # what a call needs
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    calibrate(mod, WEIGHTS, Many())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
