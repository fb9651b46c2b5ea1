"""Loading: torch's state as it is, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from relaxpy import nn
from relaxpy.errors import UsageError

torch = pytest.importorskip("torch")


class Ours(nn.Module):
    def __init__(self) -> None:
        self.table = nn.Embedding(5, 4)
        self.square = nn.Linear(4, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.table.weight


class Theirs(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(5, 4)
        self.square = torch.nn.Linear(4, 4)
        self.head = torch.nn.Linear(4, 5, bias=False)
        self.head.weight = self.table.weight


def test_square_weights_load_as_they_are() -> None:
    """A square weight cannot say whether it is transposed: the layout is torch's, (out, in)."""
    import relaxpy
    from relaxpy.testing.interpret import interpret

    theirs, ours = torch.nn.Linear(4, 4), nn.Linear(4, 4)
    ours.load_state_dict(theirs.state_dict())
    mod, params = ours.export({"forward": {"x": nn.spec.Tensor(("n", 4))}})
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(x)).numpy()
    found = interpret(mod, "forward", x, params["weight"], params["bias"])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert isinstance(mod, relaxpy.ir.IRModule)


def test_tied_weights_load_from_either_name_or_both() -> None:
    theirs = Theirs()
    state = dict(theirs.state_dict())
    assert {"table.weight", "head.weight"} <= state.keys()
    for left_out in (None, "table.weight", "head.weight"):
        ours = Ours()
        ours.load_state_dict({n: v for n, v in state.items() if n != left_out})
        assert ours.head.weight is ours.table.weight
        back = ours.state_dict()
        assert back.keys() == state.keys()
        for name, value in state.items():
            np.testing.assert_array_equal(back[name], value.numpy())
        assert [name for name, _ in ours.named_parameters()] == [
            "table.weight",
            "square.weight",
            "square.bias",
        ]
    state["head.weight"] = state["head.weight"] + 1
    with pytest.raises(UsageError, match=r"is tied to table\.weight here"):
        Ours().load_state_dict(state)


def test_not_strict_returns_what_is_left_aside() -> None:
    state = dict(Theirs().state_dict())
    del state["square.bias"]
    state["odd"] = torch.zeros(1)
    ours = Ours()
    found = ours.load_state_dict(state, strict=False)
    assert found.missing_keys == ["square.bias"]
    assert found.unexpected_keys == ["odd"]
    assert ours.square.bias is not None
    assert ours.square.bias.data is None
    assert ours.square.weight.data is not None
    with pytest.raises(UsageError, match=r"have no values: square\.bias"):
        ours.state_dict()


def test_nothing_is_set_if_something_does_not_fit() -> None:
    state = dict(Theirs().state_dict())
    state["square.bias"] = torch.zeros(5)
    for strict in (True, False):
        ours = Ours()
        with pytest.raises(UsageError, match=r"square.bias: the parameter is float32\[4\]"):
            ours.load_state_dict(state, strict=strict)
        assert ours.table.weight.data is None


def test_the_numbers_of_torch_in_any_memory() -> None:
    """Strided, transposed, conjugate-free views, gradients, and bfloat16."""
    linear = nn.Linear(3, 2, bias=False)
    wide = torch.arange(12, dtype=torch.float32).reshape(2, 6)
    for value in (wide[:, ::2], torch.nn.Parameter(wide[:, ::2]), wide.T[::2].T):
        linear.load_state_dict({"weight": value})
        np.testing.assert_array_equal(linear.weight.data, wide[:, ::2].numpy())
    half = nn.Linear(3, 2, bias=False).to(torch.bfloat16)
    half.load_state_dict({"weight": wide[:, ::2].to(torch.bfloat16)})
    assert half.weight.data is not None
    assert half.weight.data.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(half.weight.data.astype(np.float32), wide[:, ::2].numpy())


def test_states_that_are_nearly_right() -> None:
    """Wrong shapes, names one too many, names that are no texts, and all of it at once."""
    right = {"weight": np.ones((2, 3), np.float32), "bias": np.ones(2, np.float32)}
    for wrong, told in (
        (
            {**right, "weight": np.ones((2, 3, 1), np.float32)},
            "float32[2, 3], the value float32[2, 3, 1]",
        ),
        ({**right, "weight": np.ones(6, np.float32)}, "the value float32[6]"),
        ({**right, "weight": np.ones((0, 3), np.float32)}, "the value float32[0, 3]"),
        ({**right, "weight": 3.0}, "weight: the parameter is float32[2, 3]"),
        ({**right, "weight": right}, "weight: dict is not an array"),
        ({**right, "Weight": right["weight"]}, "unexpected: Weight"),
        ({**right, 3: right["weight"]}, "unexpected: 3"),
        ({**right, "": right["weight"]}, "unexpected: "),
    ):
        layer = nn.Linear(3, 2)
        with pytest.raises(UsageError) as caught:
            layer.load_state_dict(wrong)  # type: ignore[arg-type]
        assert told in str(caught.value)
        assert layer.weight.data is None
        assert layer.bias is not None
        assert layer.bias.data is None
    layer = nn.Linear(3, 2)
    found = layer.load_state_dict({**right, "odd": 3, "more": None}, strict=False)
    assert found == ([], ["odd", "more"])
    layer.load_state_dict({}, strict=False)
    assert layer.state_dict().keys() == right.keys()


def test_a_second_state_replaces_the_first() -> None:
    layer = nn.Linear(3, 2, bias=False)
    for value in (1, 2):
        layer.load_state_dict({"weight": np.full((2, 3), value, np.float32)})
        _, params = layer.export({"forward": {"x": nn.spec.Tensor(("n", 3))}})
        np.testing.assert_array_equal(params["weight"], np.full((2, 3), value))


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (torch.zeros(2, 3, device="meta"), "meta device, which has no values"),
        (torch.zeros(2, 3).to_sparse(), "the tensor is sparse"),
        (torch.zeros(2, 3, dtype=torch.float16), 'value.astype("float32")'),
        (torch.zeros(2, 3, dtype=torch.float64), 'module.to("float64")'),
        (torch.zeros(3, 2), "pass value.T"),
        (torch.zeros(2, 3, dtype=torch.complex64), "not an array of numbers"),
        (np.array([["a"] * 3] * 2), "not an array of numbers"),
        (None, "not an array of numbers"),
        ("text", "not an array of numbers"),
    ],
)
def test_values_that_are_refused(value: Any, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        nn.Linear(3, 2, bias=False).load_state_dict({"weight": value})
    assert told in str(caught.value)
    assert caught.value.span is not None
    assert caught.value.span.file == __file__


@pytest.mark.parametrize("state", [None, "weights.pt", [("weight", 1)]])
def test_what_is_no_state(state: Any) -> None:
    with pytest.raises(UsageError, match="weights must be a dict of arrays by name"):
        nn.Linear(2, 2).load_state_dict(state)


def test_many_problems_are_counted() -> None:
    model = nn.ModuleList([nn.Linear(2, 2) for _ in range(20)])
    with pytest.raises(UsageError) as caught:
        model.load_state_dict({})
    assert caught.value.notes[-1] == "... and 20 more"
    assert len(caught.value.notes) == 21


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (torch.nn.BatchNorm2d(2), "model.load_state_dict(theirs.state_dict())"),
        ("model.pt", "torch.load('model.pt', map_location=\"cpu\")"),
        (Path("a.safetensors"), "safetensors.numpy.load_file('a.safetensors')"),
        ("weights.npz", "numpy.load(path)"),
        ([np.zeros(2)], "numpy.load(path)"),
    ],
)
@pytest.mark.parametrize("model", [nn.Linear(2, 2), nn.BatchNorm2d(2)], ids=["weights", "buffers"])
def test_what_is_no_state_is_told(model: nn.Module, given: Any, told: str) -> None:
    """By models with buffers, too."""
    with pytest.raises(UsageError, match="weights must be a dict of arrays by name") as caught:
        model.load_state_dict(given)
    assert told in str(caught.value.help)


@pytest.mark.parametrize("longer", ["state", "model"])
def test_a_common_prefix_is_noticed(longer: str) -> None:
    """As that of torch's DataParallel. What the help says loads the weights."""
    layer: nn.Module = nn.Linear(2, 3)
    right = {"weight": np.ones((3, 2), np.float32), "bias": np.zeros(3, np.float32)}
    state = {f"module.{name}": value for name, value in right.items()}
    if longer == "model":
        layer, state = nn.ModuleDict({"module": layer}), right
    with pytest.raises(UsageError) as caught:
        layer.load_state_dict(state)
    help = str(caught.value.help)
    assert help.startswith("the names differ by 'module.': ")
    layer.load_state_dict(eval(help.partition(": ")[2], {"state": state}))


def test_other_names_have_no_common_prefix() -> None:
    with pytest.raises(UsageError) as caught:
        nn.Linear(2, 3).load_state_dict(
            {"a.w": np.ones((3, 2), np.float32), "a.bias": np.zeros(3, np.float32)}
        )
    assert caught.value.help is None
