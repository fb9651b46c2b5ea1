"""What a hint says to write computes what the expression of the other library computes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.errors import DeduceError
from relaxpy.ir import Dim
from relaxpy.op import OPS
from relaxpy.op.familiar import KEYWORDS, NOT_HERE, VARIABLES, Familiar, advice, familiar, written
from relaxpy.testing.interpret import interpret
from tests.sweeps import sweep

torch = pytest.importorskip("torch")
F = torch.nn.functional

ALL = [pair for pairs in familiar().values() for pair in pairs]
N = 3


def values() -> dict[str, np.ndarray]:
    """The variables' values."""
    rng = np.random.default_rng(7)
    found: dict[str, np.ndarray] = {}
    for name, dims in VARIABLES.items():
        shape = tuple(N if d == "n" else int(d) for d in dims.split())
        found[name] = rng.uniform(-0.95, 0.95, shape).astype(np.float32)
    found["v"].sort()
    found["a"] = np.abs(found["a"])
    found["c"] = found["c"] > 0
    found["k"] = np.array([2, 0])
    found["i"] = rng.integers(0, N, (N, 4))
    found["r"] = np.stack([rng.permutation(4) for _ in range(N)])
    found["d"] = np.array([3, 0, 2])
    return found


VALUES = values()


def theirs(pair: Familiar) -> list[np.ndarray]:
    known: dict[str, Any] = {"np": np, "torch": torch, "F": F}
    is_torch = pair.library == "torch"
    own = {k: v.copy() for k, v in VALUES.items()}  # methods with _ change them
    known |= {k: torch.from_numpy(v) if is_torch else v for k, v in own.items()}
    if pair.theirs.startswith("torch.one_hot"):
        known["torch"] = F
    with np.errstate(all="ignore"):
        return flat(eval(pair.theirs, known))


def flat(value: Any) -> list[np.ndarray]:
    if isinstance(value, (tuple, list)):
        items: Any = value
        return [array for item in items for array in flat(item)]
    if isinstance(value, torch.Tensor):
        value = value.float() if value.dtype == torch.bfloat16 else value
    return [np.asarray(value)]


def used(text: str) -> list[str]:
    """The variables of an expression, in order."""
    return [name for name in VARIABLES if re.search(rf"(?<![\w.\"']){name}(?![\w=\"'])", text)]


def in_forward(text: str) -> list[np.ndarray]:
    """The values of an expression in `forward`. Python's numbers become tensors, so that they can be returned."""

    def result(value: Any) -> Any:
        return nn.op.full((), value, dtype="int64") if isinstance(value, (Dim, int)) else value

    names = used(text)
    space: dict[str, Any] = {"nn": nn, "result": result}
    exec(f"def forward(self, {', '.join(names) or 'x'}):\n    return result({text})", space)
    model = type("Model", (nn.Module,), {"forward": space["forward"]})()
    spec = {name: nn.spec.Tensor(shape(name), VALUES[name].dtype.name) for name in names or ["x"]}
    mod, _ = model.export({"forward": spec})
    return flat(interpret(mod, "forward", *(VALUES[name] for name in names or ["x"])))


def in_script(text: str) -> list[np.ndarray]:
    """The values of an expression in a script."""
    names = used(text) or ["x"]
    params = ", ".join(f"{n}: R.Tensor({shape(n)!r}, {VALUES[n].dtype.name!r})" for n in names)
    size = "    n = T.int64()\n" if any("n" in shape(n) for n in names) else ""
    value = f"R.const({text})" if re.fullmatch(r"[\dn* ]+", text) else text
    mod = relaxpy.parse(
        f"@R.function\ndef main({params}):\n{size}    out = {value}\n    return out\n"
    )
    return flat(interpret(mod, "main", *(VALUES[name] for name in names)))


def shape(name: str) -> tuple[int | str, ...]:
    return tuple(d if d == "n" else int(d) for d in VARIABLES[name].split())


def assert_same(got: list[np.ndarray], want: list[np.ndarray]) -> None:
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(
            a.astype(np.float64), b.astype(np.float64), rtol=2e-3 if a.dtype == np.float16 else 1e-4, atol=1e-5
        )  # fmt: skip


@sweep(2)
@pytest.mark.parametrize("pair", ALL, ids=lambda pair: f"{pair.library}: {pair.theirs}")
def test_both_sides_are_equal(pair: Familiar) -> None:
    """With the texts of the hints, in `forward` and in a script."""
    want = theirs(pair)
    assert_same(in_forward(written(pair.ours, "nn.op.")), want)
    assert_same(in_script(written(pair.ours, "R.")), want)


def test_every_operator_that_has_a_namesake_is_compared() -> None:
    """A method of torch's or numpy's tensors with the name of an operator of ours may mean something else: the hint is
    that of a pair."""
    methods = {name for kind in (torch.Tensor, np.ndarray) for name in dir(kind) if name in OPS}
    assert methods - {"dequantize", "slice_scatter"} <= set(familiar())


@pytest.mark.parametrize("name", ["repeat", "size", "max", "transpose", "take", "split"])
def test_two_meanings_are_told_apart(name: str) -> None:
    told = advice(name, "nn.op.")
    assert told is not None
    assert "for torch's x.repeat(1, 2)" in told if name == "repeat" else "torch's" in told
    assert "numpy's" in told


def test_methods_in_place_and_without_counterpart() -> None:
    told = advice("add_", "R.")
    assert told is not None
    assert told.startswith("values are immutable, so use a new one: write x + y")
    assert advice("no_such_", "R.") is None
    assert advice("no_such", "R.") is None
    assert not set(NOT_HERE) & set(familiar())


@pytest.mark.parametrize("name", ["logsumexp", "softmax", "log_softmax"])
def test_rows_far_apart(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is subtracted before an exponential is the greatest of a row, not of all."""
    far = VALUES["x"] + np.float32(1000) * np.arange(N, dtype=np.float32)[:, None]
    monkeypatch.setitem(VALUES, "x", far)
    for pair in familiar()[name]:
        want = theirs(pair)
        assert np.isfinite(want[0]).all()
        assert_same(in_forward(written(pair.ours, "nn.op.")), want)


@pytest.mark.parametrize("name", ["copy_", "fill_", "zero_"])
def test_methods_in_place_that_mean_another_one(name: str) -> None:
    told = advice(name, "nn.op.")
    assert told is not None
    assert told.startswith("values are immutable, so use a new one: write nn.op.")
    assert told.endswith(familiar()[name][0].theirs)


KEYWORD_PAIRS = {
    "dim": 'op.sum(x, dim=1)', "keepdim": "op.sum(x, keepdim=True)", "dims": "op.flip(x, dims=1)",
    "kernel_size": "op.nn.max_pool2d(m, kernel_size=2)", "stride": "op.nn.max_pool2d(m, pool_size=2, stride=2)",
    "eps": "op.nn.rms_norm(x, v, axes=-1, eps=0.5)", "negative_slope": "op.nn.leakyrelu(x, negative_slope=0.5)",
    "pad": "op.nn.pad(x, pad=(0, 0, 1, 2))",
}  # fmt: skip
THEIRS = {
    "dim": "x.sum(dim=1)", "keepdim": "x.sum((0, 1), keepdim=True)", "dims": "x.flip(dims=(1,))",
    "kernel_size": "F.max_pool2d(m, kernel_size=2, stride=1)", "stride": "F.max_pool2d(m, 2, stride=2)",
    "eps": "F.rms_norm(x, (4,), v, eps=0.5)", "negative_slope": "F.leaky_relu(x, negative_slope=0.5)",
    "pad": "F.pad(x, pad=(1, 2))",
}  # fmt: skip


@pytest.mark.parametrize("key", KEYWORDS)
def test_keywords_of_torch(key: str) -> None:
    """The error says our keyword, and with that the numbers are torch's."""
    text = written(KEYWORD_PAIRS[key], "nn.op.")
    with pytest.raises(DeduceError) as caught:
        in_forward(text)
    told = re.match(rf"write (\w+)= for {key}=; the signature is nn\.op\.", caught.value.help or "")
    assert told is not None, caught.value.help
    want = theirs(Familiar(THEIRS[key], "", "torch"))
    assert_same(in_forward(text.replace(f"{key}=", f"{told[1]}=")), want)
