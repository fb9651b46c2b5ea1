"""Every operator's wrong calls, written as script: the carets are under the argument at fault, not under the whole call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RelaxError
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dtype import DType
from relaxpy.op.base import OPS, Op, Sample, print_attr
from relaxpy.script import relax  # its operators() loads all files of operators
from tests.sweeps import sweep


def wrong_samples() -> Iterator[tuple[str, Sample]]:
    for name, op in sorted(relax.operators().items()):
        wrong = [sample for sample in op.samples() if sample.code] if issubclass(op, Op) else []
        yield from ((f"{name}-{i}", sample) for i, sample in enumerate(wrong))


class Script:
    """The call of a sample as a function whose parameters are the arrays of its inputs."""

    def __init__(self, sample: Sample) -> None:
        self.params: list[str] = []
        specs = sample.op.args
        left_out = [spec.optional and spec.kind is TensorType for spec in specs]
        left_out += [False] * (len(sample.inputs) - len(specs))
        self.arguments = [
            "None" if optional and isinstance(value, tuple) else self.argument(value)
            for value, optional in zip(sample.inputs, left_out, strict=False)
            if value is not None
        ]
        for name in type(sample.op).attr_names():
            self.arguments.append(f"{name}={self.attribute(getattr(sample.op, name))}")

    def argument(self, value: Any) -> str:
        if isinstance(value, np.ndarray | np.generic):
            dtype = DType(value.dtype)
            shape = "".join(f"{size}, " for size in value.shape)
            self.params.append(f'p{len(self.params)}: R.Tensor(({shape}), "{dtype}")')
            return f"p{len(self.params) - 1}"
        if isinstance(value, tuple) and all(isinstance(item, int) for item in value):
            return f"R.shape({list(value)})"
        if isinstance(value, tuple | list):
            return "(" + "".join(f"{self.argument(item)}, " for item in value) + ")"
        return repr(value)

    def attribute(self, value: Any) -> str:
        return f'"{value}"' if isinstance(value, DType) else print_attr(value)

    def text(self, op: type[Op]) -> str:
        call = f"R.{op.name}({', '.join(self.arguments)})"
        return f"@R.function(pure=False)\ndef main({', '.join(self.params)}):\n    y = {call}\n    return y\n"


SAMPLES = dict(wrong_samples())


def test_most_operators_have_wrong_samples() -> None:
    assert len({type(sample.op) for sample in SAMPLES.values()}) > len(OPS) / 2


@sweep(2)
@pytest.mark.parametrize("key", SAMPLES)
def test_caret_under_the_argument(key: str) -> None:
    sample = SAMPLES[key]
    script = Script(sample)
    text = script.text(type(sample.op))
    with pytest.raises(RelaxError) as caught:
        relaxpy.parse(text, filename="wrong.py")
    error = caught.value
    assert error.code == sample.code
    assert error.span is not None
    line = text.splitlines()[error.span.line - 1]
    marked = line[error.span.column : error.span.end_column]
    values = [argument.split("=")[-1] for argument in script.arguments]
    assert marked in values, error.render()
