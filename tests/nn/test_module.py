"""Modules: names of parameters, loading, lists."""

from __future__ import annotations

import copy
import pickle
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.errors import UsageError
from relaxpy.testing.interpret import interpret


class Block(nn.Module):
    def __init__(self) -> None:
        self.up = nn.Linear(2, 3)
        self.down = nn.Linear(3, 2, bias=False)


class Model(nn.Module):
    def __init__(self) -> None:
        self.table = nn.Embedding(5, 2)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.tied = self.table.weight
        self.scale = 2.0


def state() -> dict[str, np.ndarray]:
    return {name: np.ones(p.shape, np.float32) for name, p in Model().named_parameters()}


def test_parameters_are_named_by_path_and_come_once() -> None:
    assert {name: parameter.shape for name, parameter in Model().named_parameters()} == {
        "table.weight": (5, 2),
        "blocks.0.up.weight": (3, 2),
        "blocks.0.up.bias": (3,),
        "blocks.0.down.weight": (2, 3),
        "blocks.1.up.weight": (3, 2),
        "blocks.1.up.bias": (3,),
        "blocks.1.down.weight": (2, 3),
    }


def test_load_sets_every_parameter() -> None:
    model = Model()
    model.load(state())
    assert all(parameter.data is not None for _, parameter in model.named_parameters())
    assert model.tied.data is model.table.weight.data


def test_load_lists_every_problem() -> None:
    given = state()
    del given["table.weight"]
    given["odd"] = np.ones(1)
    given["blocks.0.up.bias"] = np.ones(4, np.float32)
    with pytest.raises(UsageError) as caught:
        Model().load(given)
    assert caught.value.notes == (
        "missing: table.weight",
        "unexpected: odd",
        "blocks.0.up.bias: the parameter is float32[3], the value float32[4]",
    )


def test_parameter_refuses_another_dtype() -> None:
    with pytest.raises(UsageError, match="the value float64"):
        nn.Parameter((2,)).data = np.ones(2)


def test_module_list_is_a_sequence() -> None:
    blocks = Model().blocks
    assert len(blocks) == 2
    assert blocks[1] is list(blocks)[1]


class Stack(nn.Module):
    """Layers in a list, which hides them."""

    def __init__(self) -> None:
        self.layers = [nn.Linear(4, 4), nn.Linear(4, 4)]

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Outer(nn.Module):
    def __init__(self) -> None:
        self.inner = Stack()

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.inner(x)


SPEC = {"forward": {"x": nn.spec.Tensor(("n", 4), "float32")}}


def test_a_list_of_modules_says_what_to_write() -> None:
    for module, place in ((Stack(), "self.layers"), (Outer(), "self.inner.layers")):
        with pytest.raises(UsageError, match="is not reachable from the exported module") as caught:
            module.export(SPEC)
        assert f"{place} = nn.ModuleList({place})" in str(caught.value.help)
        with pytest.raises(UsageError, match="do not match") as caught:
            module.load({"layers.0.weight": np.zeros((4, 4), np.float32)})
        assert f"nn.ModuleList({place})" in str(caught.value)
    right = Stack()
    right.layers = nn.ModuleList(right.layers)
    mod, _ = right.export(SPEC)
    assert len(mod["forward"].params) == 5  # type: ignore[union-attr]


def test_hidden_parts_are_found_however_deep() -> None:
    """In nested lists, tuples, sets and dictionaries, in lists that hold themselves, and beside a method's name."""
    itself: list[Any] = [nn.Linear(4, 4)]
    itself.append(itself)
    weights = [nn.Parameter((4,)), nn.Parameter((4,))]
    for value, advice in (
        ([[nn.Linear(4, 4)], [nn.Linear(4, 4)]], "nn.ModuleList, nn.ModuleDict"),
        ({"a": (nn.Linear(4, 4),)}, "nn.ModuleList, nn.ModuleDict"),
        ({nn.Linear(4, 4)}, "nn.ModuleList(self.inner.parts)"),
        ({"a": nn.Linear(4, 4)}, "nn.ModuleDict(self.inner.parts)"),
        (weights, "nn.ParameterList(self.inner.parts)"),
        (itself, "nn.ModuleList, nn.ModuleDict"),
    ):
        model = nn.Sequential({"inner": nn.Identity()})
        model[0].parts = value
        with pytest.raises(UsageError, match="do not match") as caught:
            model.load({"odd": np.zeros(1, np.float32)})
        assert advice in str(caught.value)


def test_attributes_may_have_the_names_of_our_own_methods() -> None:
    """`hidden` is a usual name of a layer; a name of torch's interface is refused where it is given."""

    class Classifier(nn.Module):
        def __init__(self) -> None:
            self.hidden = nn.Linear(4, 4)
            self.parts = nn.ModuleList([nn.Linear(4, 4)])
            self.half = nn.Identity()

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            return self.parts(self.hidden(x))

    model = Classifier()
    with pytest.raises(UsageError, match="do not match"):
        model.load({})
    model.load({name: np.ones(p.shape, np.float32) for name, p in model.named_parameters()})
    assert len(model.export(SPEC)[1]) == 4
    for name in ("parameters", "modules", "load", "export", "apply"):
        for part in (nn.Identity(), nn.Parameter((2,)), nn.Buffer((2,))):
            with pytest.raises(UsageError, match=f"'{name}' is a method of every module") as caught:
                setattr(model, name, part)
            assert caught.value.code == "bad-module"
            assert caught.value.span is not None
            assert caught.value.span.file == __file__


def test_models_are_copied_and_pickled() -> None:
    """With their ties and numbers; a copy is apart from the original."""
    model = Model()
    model.load(state())
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert again.tied is again.table.weight
        assert repr(again) == repr(model)
        found = again.state_dict()
        assert found.keys() == model.state_dict().keys()
        for name, value in model.state_dict().items():
            np.testing.assert_array_equal(found[name], value)
            assert found[name] is not value
    named = pickle.loads(pickle.dumps(nn.Sequential({"up": nn.Linear(4, 4)})))
    assert named.up is named[0]


def test_threads_load_and_export_one_model() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LSTM(4, 4))
    values = {n: np.ones(p.shape, np.float32) for n, p in model.named_parameters()}
    model.load(values)

    def work(_: int) -> str:
        model.load(values)
        mod, params = model.export({"forward": {"x": nn.spec.Tensor(("n", 2, 4))}})
        assert len(params) == 6
        return mod.script()

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(work, range(32)))) == 1


def test_export_grows_with_the_number_of_parameters() -> None:
    """N and 4 N layers: the time of one layer does not grow (a factor of 2 is left to a busy machine)."""

    def seconds(count: int) -> float:
        model = nn.ModuleList([nn.Linear(4, 4) for _ in range(count)])
        start = time.process_time()
        mod, _ = model.export(SPEC)
        assert len(mod.graph_function("forward").params) == 2 * count + 1
        return time.process_time() - start

    seconds(10)
    assert min(seconds(400) for _ in range(3)) < 8 * min(seconds(100) for _ in range(3))


def test_a_module_list_holds_modules() -> None:
    for wrong in ([1, 2], [nn.Linear(2, 2), None], 3):
        with pytest.raises(UsageError, match="a ModuleList contains modules, got"):
            nn.ModuleList(wrong)  # type: ignore[arg-type]
    assert len(nn.ModuleList()) == 0
    assert len(nn.ModuleList(nn.Linear(2, 2) for _ in range(3))) == 3


def test_functions_of_other_packages_say_whose_tensor_it_is() -> None:
    torch = pytest.importorskip("torch")

    class Wrong(nn.Module):
        def __init__(self, function: Any) -> None:
            self.function = function

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            return self.function(x)

    for function, told, help in (
        (torch.relu, "torch.relu does not support tensors", "nn.op.nn.relu(x)"),
        (
            torch.nn.functional.gelu,
            "torch.gelu does not support tensors of relaxpy",
            "nn.op.nn.gelu(x)",
        ),
        (lambda x: torch.cat([x, x]), "torch.cat does not support tensors of relaxpy", "nn.op"),
    ):
        with pytest.raises(UsageError, match=told) as caught:
            Wrong(function).export(SPEC)
        assert help in str(caught.value.help)
        assert caught.value.span is not None


def test_parts_by_name() -> None:
    model = Model()
    assert [name for name, _ in model.named_children()] == ["table", "blocks"]
    assert [name for name, _ in model.named_modules()] == [
        "",
        "table",
        "blocks",
        *(f"blocks.{i}{part}" for i in (0, 1) for part in ("", ".up", ".down")),
    ]
    assert len(list(model.parameters())) == 7
    assert model.get_submodule("blocks.1.up") is model.blocks[1].up
    with pytest.raises(AttributeError, match="has no module 'nothing'"):
        model.get_submodule("blocks.nothing")
    seen: list[str] = []
    assert model.apply(lambda module: seen.append(type(module).__name__)) is model
    assert seen == ["Embedding", *["Linear", "Linear", "Block"] * 2, "ModuleList", "Model"]


def test_buffers_are_no_parameters() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            self.weight = nn.Parameter((2,))
            self.register_buffer("mask", np.ones(3, np.float32))
            self.register_buffer("cache", np.zeros(3, np.float32), persistent=False)
            self.register_buffer("none", None)

    model = Counts()
    assert [name for name, _ in model.named_parameters()] == ["weight"]
    assert [name for name, _ in model.named_buffers()] == ["mask", "cache"]
    model.load_state_dict({"weight": np.ones(2, np.float32)})  # a buffer has its numbers
    assert list(model.state_dict("inner.")) == ["inner.weight", "inner.mask"]
    with pytest.raises(UsageError, match="unexpected: odd"):
        model.load_state_dict({"weight": np.ones(2, np.float32), "odd": np.ones(2)})


def test_dtypes_change_with_their_numbers() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Embedding(3, 2))
    model.register_buffer("steps", np.zeros((), np.int64))
    model.load_state_dict({n: np.ones(p.shape, np.float32) for n, p in model.named_parameters()})
    assert model.to("float16") is model
    assert {str(p.dtype) for p in model.parameters()} == {"float16"}
    assert model[0].weight.data.dtype == np.float16
    assert model.double().eval()[0].weight.data.dtype == np.float64
    for wrong, told in (
        (lambda: model.to("cuda:0"), "has no device"),
        (lambda: model.to(device="cpu"), "has no device"),
        (lambda: model.to("int8"), "takes a float dtype"),
    ):
        with pytest.raises(UsageError, match=told) as caught:
            wrong()
        assert caught.value.span is not None
        assert caught.value.span.file == __file__


def test_names_join_without_collisions() -> None:
    """`a.b` and `a_b` are two parameters; neither takes the name of an argument, a dimension, or of script."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            self.b = nn.Parameter(np.full(2, 1, np.float32))

    class Clash(nn.Module):
        def __init__(self) -> None:
            self.a = Inner()
            self.a_b = nn.Parameter(np.full(2, 2, np.float32))
            self.n = nn.Parameter(np.full(2, 4, np.float32))
            self.R = nn.Parameter(np.full(2, 8, np.float32))
            self.add = nn.Parameter(np.full(2, 16, np.float32))
            self.unused = nn.Parameter(np.full(2, 32, np.float32))

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            return x + self.a.b + self.a_b + self.n + self.R + self.add

    mod, params = Clash().export({"forward": {"x": nn.spec.Tensor(("n", 2))}})
    assert list(params) == ["a_b", "a_b_1", "n_1", "R_1", "add"]
    relaxpy.assert_structural_equal(relaxpy.parse(mod.script()), mod)
    x = np.zeros((1, 2), np.float32)
    np.testing.assert_array_equal(interpret(mod, "forward", x, *params.values()), x + 31)


def test_parts_that_cannot_be_told_apart() -> None:
    class Cycle(nn.Module):
        def __init__(self) -> None:
            self.inner = nn.Linear(2, 2)

    model = Cycle()
    model.inner.outer = model  # type: ignore[attr-defined]
    two = Cycle()
    setattr(two, "inner.weight", nn.Parameter((2,)))
    for wrong, told in (
        (lambda: list(model.named_parameters()), "'inner.outer' (Cycle) contains itself"),
        (lambda: list(model.modules()), "'inner.outer' (Cycle) contains itself"),
        (lambda: list(two.named_parameters()), "two parameters have the path 'inner.weight'"),
        (lambda: two.add_module("a.b", nn.Identity()), "'a.b' is not a valid name"),
        (lambda: two.register_buffer("parameters", None), "already has an attribute 'parameters'"),
    ):
        with pytest.raises(UsageError, match=re.escape(told)) as caught:
            wrong()
        assert caught.value.code == "bad-module"


def test_one_module_at_two_places_is_one() -> None:
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, nn.Tanh(), shared)
    assert [name for name, _ in model.named_parameters()] == ["0.weight", "0.bias"]
    found = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    assert found == ["0.weight", "0.bias", "2.weight", "2.bias"]
    mod, _ = model.export({"forward": {"x": nn.spec.Tensor(("n", 2))}})
    assert len(mod["forward"].params) == 3  # type: ignore[union-attr]


def test_a_hidden_module_is_told_when_names_are_left_aside() -> None:
    state = {"layers.0.weight": np.zeros((4, 4), np.float32)}
    with pytest.raises(UsageError, match=r"nn.ModuleList\(self.layers\)"):
        Stack().load_state_dict(state, strict=False)
