"""Models that `torch.onnx.export` writes, beside eager torch at three shapes from one build of the file.

    python -m tests.frontend.onnx.test_all_torch_exports            # all, a line for each
    python -m tests.frontend.onnx.test_all_torch_exports bert lstm  # these

`make test-onnx` runs all of them; `make test` one.
"""

from __future__ import annotations

import io
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from relaxpy.errors import RelaxError
from relaxpy.onnx import InferenceSession
from tests.sweeps import FULL, sweep
from tests.torch.test_all_compiled import BLOCKS, KINDS
from tests.torch.tiny_models import tiny_model

SHAPES = ((3, 11), (2, 7), (1, 5))
"""Batch and length of the calls; the first is traced."""


class Recurrent(nn.Module):
    """Layers over a sequence of any length, with their last states."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.layers = kind(12, 7, batch_first=True, **options)
        self.head = nn.Linear(7 * (2 if options.get("bidirectional") else 1), 5)

    def forward(self, x: torch.Tensor) -> Any:
        found, states = self.layers(x)
        return self.head(found), states


class Step(nn.Module):
    """A step of a decoder whose cache is an argument and a result."""

    def __init__(self) -> None:
        super().__init__()
        self.model = tiny_model("llama").model.eval()

    def forward(self, ids: torch.Tensor, *past: torch.Tensor) -> Any:
        from transformers import DynamicCache

        cache = DynamicCache()
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        name = "cache" if "cache" in self.model.forward.__code__.co_varnames else "past_key_values"
        found = self.model(input_ids=ids, use_cache=True, **{name: cache})
        kept = found.past_key_values.layers
        return found.last_hidden_state, *(
            part for each in kept for part in (each.keys, each.values)
        )


def _step(batch: int, length: int) -> tuple[torch.Tensor, ...]:
    config = tiny_model("llama").model.config
    heads = config.num_key_value_heads
    shape = batch, heads, length, config.hidden_size // config.num_attention_heads
    past = [torch.randn(*shape) for _ in range(2 * config.num_hidden_layers)]
    return torch.randint(3, 80, (batch, 2)), *past


def _sequences(batch: int, length: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, length, 12),)


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], tuple[Any, ...]]]] = {
    **{name: made for name, made in BLOCKS.items() if name != "item"},
    "lstm": (lambda: Recurrent(nn.LSTM, num_layers=2), _sequences),
    "lstm both ways": (lambda: Recurrent(nn.LSTM, bidirectional=True), _sequences),
    "gru": (lambda: Recurrent(nn.GRU), _sequences),
    "rnn": (lambda: Recurrent(nn.RNN, nonlinearity="relu"), _sequences),
    "decoder with past": (Step, _step),
}
FIXED = {"lstm", "lstm both ways", "gru", "rnn"}
"""Modules whose length torch fixes in its new exporter; the old one keeps it."""


def _dynamic(value: Any, sizes: Any) -> Any:
    """AUTO for each size that varies."""
    auto = torch.export.Dim.AUTO
    return {axis: auto for axis in sizes} if isinstance(value, torch.Tensor) and sizes else None


def exported(name: str) -> tuple[bytes, Callable[[int, int], tuple[Any, dict[str, Any]]], Any]:
    """The file, the arguments for a shape, and the model."""
    torch.manual_seed(0)
    if name in MODULES:
        make, arguments = MODULES[name]
        model = make().eval()
        with torch.no_grad():
            example, other = arguments(*SHAPES[0]), arguments(*SHAPES[1])
        varying = [
            {axis for axis, (a, b) in enumerate(zip(one.shape, two.shape, strict=True)) if a != b}
            for one, two in zip(example, other, strict=True)
        ]
        calls = lambda *shape: (arguments(*shape), {})
        file = io.BytesIO()
        if name in FIXED:
            names = [f"x{i}" for i in range(len(example))]
            axes = {
                n: {a: f"{n}_{a}" for a in each} for n, each in zip(names, varying, strict=True)
            }
            torch.onnx.export(
                model, example, file, dynamo=False, input_names=names, dynamic_axes=axes
            )
            return file.getvalue(), calls, model
        shapes: Any = tuple(map(_dynamic, example, varying))
        if name == "decoder with past":
            shapes = (shapes[0], tuple(shapes[1:]))
        program = torch.onnx.export(
            model, example, dynamo=True, dynamic_shapes=shapes, verbose=False
        )
    else:
        tiny = tiny_model(name)
        model, inputs = tiny.model, dict(tiny.inputs)
        calls = lambda *shape: ((), tiny.call(*shape))
        dynamic = {n: _dynamic(value, tiny.sizes.get(n)) for n, value in inputs.items()}
        program = torch.onnx.export(
            model, (), kwargs=inputs, dynamo=True, dynamic_shapes=dynamic, verbose=False
        )
        file = io.BytesIO()
    program.save(file)
    return file.getvalue(), calls, model


def differences(name: str) -> list[str]:
    """Where results differ from eager's. Raises RelaxError; what torch says if it does not export."""
    file, calls, model = exported(name)
    session = InferenceSession(file, target="llvm -opt-level=0")
    wrong: list[str] = []
    for shape in SHAPES:
        args, kwargs = calls(*shape)
        with torch.no_grad():
            wanted = [
                w for w in pytree.tree_leaves(model(*args, **kwargs)) if isinstance(w, torch.Tensor)
            ]
        given = [v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
        names = [each.name for each in session.get_inputs()]
        feed = kwargs if kwargs else dict(zip(names, given, strict=True))
        found = session.run(None, {n: feed[n].numpy() for n in names})
        for place, (one, two) in enumerate(zip(found, wanted, strict=True)):
            scale = float(two.float().abs().max()) if two.numel() else 1.0
            close = tuple(one.shape) == tuple(two.shape) and torch.allclose(
                torch.from_numpy(one), two, rtol=1e-3, atol=1e-4 * max(1.0, scale), equal_nan=True
            )
            if not close:
                wrong.append(
                    f"result {place} at {shape}: {one.shape}, not {tuple(two.shape)}, or other numbers"
                )
    assert session.builds == 1
    return wrong


NAMES = (*KINDS, *MODULES)
QUICK = ("lstm",)


@sweep
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES if FULL else QUICK)
def test_an_exported_model_is_right_at_every_shape(name: str) -> None:
    assert differences(name) == []


def main() -> None:
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    for name in sys.argv[1:] or random.Random(0).sample(NAMES, len(NAMES)):
        try:
            wrong = differences(name)
            outcome, text = ("wrong", "; ".join(wrong)) if wrong else ("equal", "")
        except RelaxError as error:
            outcome, text = "refused", str(error)[:1500]
        except Exception as error:
            outcome, text = "failed", f"{type(error).__name__}: {str(error)[:500]}"
        counts[outcome] += 1
        print(f"{name}: {outcome} {text}", flush=True)  # noqa: T201
    print(dict(counts))  # noqa: T201


if __name__ == "__main__":
    main()
