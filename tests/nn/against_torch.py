"""Comparison of layers with torch's: torch's own `state_dict` is loaded, and one build has a function for each case."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.testing.interpret import interpret
from tests.sweeps import quick_target

torch = pytest.importorskip("torch")


@dataclass
class Case:
    """A layer of ours, torch's, and the arguments of its calls."""

    ours: nn.Module
    theirs: Any
    dims: str
    """Dimensions of each argument: "n 3 w, n" (letters are symbolic)."""
    sizes: Sequence[Mapping[str, int]]
    """The sizes of each call."""
    options: dict[str, Any] = field(default_factory=dict)
    """Other arguments of both layers."""
    atol: float = 2e-5
    arrays: Callable[..., Sequence[np.ndarray]] | None = None
    """The arguments for given sizes; None: normal random numbers."""
    dtypes: Sequence[str] = ()
    """Dtypes of the arguments; float32 where it is not told."""
    names: Sequence[str] = ()
    """Names of the arguments after the first that are given by name."""

    def spec(self) -> dict[str, nn.spec.Tensor]:
        return {
            f"x{i}": nn.spec.Tensor(
                [int(d) if d.isdigit() else d for d in dims.split()], self.dtype(i)
            )
            for i, dims in enumerate(self.dims.split(","))
        }

    def dtype(self, i: int) -> str:
        return self.dtypes[i] if i < len(self.dtypes) else "float32"

    def method(self) -> Callable[..., Any]:
        """The exported method."""
        count, layer = len(self.dims.split(",")), self.ours

        def call(*args: Any) -> Any:
            plain = len(args) - len(self.names)
            named = dict(zip(self.names, args[plain:], strict=True))
            result = layer(*args[:plain], **named, **self.options)
            return _without_none(result)

        return {
            1: lambda _, x0: call(x0),
            2: lambda _, x0, x1: call(x0, x1),
            3: lambda _, x0, x1, x2: call(x0, x1, x2),
            4: lambda _, x0, x1, x2, x3: call(x0, x1, x2, x3),
            5: lambda _, x0, x1, x2, x3, x4: call(x0, x1, x2, x3, x4),
        }[count]

    def inputs(self, sizes: Mapping[str, int]) -> Iterator[np.ndarray]:
        if self.arrays is not None:
            yield from self.arrays(**sizes)
            return
        rng = np.random.default_rng(1)
        for dims in self.dims.split(","):
            shape = [int(d) if d.isdigit() else sizes[d] for d in dims.split()]
            yield rng.standard_normal(shape, dtype=np.float32)


class Layers:
    """The cases in one module, built once."""

    def __init__(self, cases: Mapping[str, Case]) -> None:
        self.cases = cases
        methods = {name: case.method() for name, case in cases.items()}
        model = type("Model", (nn.Module,), methods)()
        torch.manual_seed(0)
        for name, case in cases.items():
            _randomise(case.theirs)
            case.ours.load_state_dict(case.theirs.state_dict())
            setattr(model, f"layer_{name}", case.ours)
        self.mod, params = model.export({name: case.spec() for name, case in cases.items()})
        relaxpy.assert_structural_equal(relaxpy.parse(self.mod.script()), self.mod)
        self.params = params
        self.vm = relaxpy.VirtualMachine(relaxpy.build(self.mod, quick_target(), params=params))

    def check(self, name: str) -> None:
        """Compare the compiled function and the interpreter with torch, at all sizes."""
        case = self.cases[name]
        function = self.mod.graph_functions[name]
        weights = [self.params[p.name] for p in function.params if p.name in self.params]
        for i, sizes in enumerate(case.sizes):
            inputs = list(case.inputs(sizes))
            given = [torch.from_numpy(x) for x in inputs]
            plain = len(given) - len(case.names)
            named = dict(zip(case.names, given[plain:], strict=True))
            with torch.no_grad():
                expected = case.theirs.eval()(*given[:plain], **named, **case.options)
            _compare(self.vm[name](*inputs), expected, case.atol)
            if i == 0:
                _compare(interpret(self.mod, name, *inputs, *weights), expected, case.atol)


def _randomise(module: Any) -> None:
    """Numbers for everything that torch begins with ones and zeros."""
    with torch.no_grad():
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if tensor.is_floating_point():
                torch.nn.init.uniform_(tensor, 0.5 if name.endswith("var") else -0.5, 1.0)


def _without_none(result: Any) -> Any:
    if isinstance(result, tuple):
        return tuple(_without_none(each) for each in result if each is not None)
    return result


def _compare(found: Any, expected: Any, atol: float) -> None:
    if isinstance(expected, (tuple, list)):
        expected = [each for each in expected if each is not None]
        assert len(found) == len(expected)
        for each, wanted in zip(found, expected, strict=True):
            _compare(each, wanted, atol)
        return
    found = found if isinstance(found, np.ndarray) else found.numpy()
    assert found.shape == tuple(expected.shape)
    np.testing.assert_allclose(found, expected.numpy(), atol=atol, rtol=1e-4)
