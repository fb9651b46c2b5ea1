"""Random programs as ONNX files: what our reader and ONNX Runtime compute from one file at every size."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RelaxError, UsageError
from relaxpy.ir import Function, TupleType
from relaxpy.testing.fuzz import calls_of
from relaxpy.testing.random_program import GRAPH_RULES, random_module

onnx: Any = pytest.importorskip("onnx")

from tests.onnx.test_exporter import equal, flat, of_kernels, of_reader  # noqa: E402
from tests.sweeps import part  # noqa: E402

BATCH = 20


@pytest.mark.sweep
@pytest.mark.parametrize("first", part(range(0, 40 * BATCH, BATCH), 20))
def test_random_programs(first: int) -> None:
    """What is refused is refused by name; most are not."""
    written = 0
    for seed in range(first, first + BATCH):
        calls = calls_of(random_module([seed], rules=GRAPH_RULES)[1][0])
        mod = calls[0].mod
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # checks that the file does not make
                model = relaxpy.onnx.export(mod)
        except UsageError as error:
            if error.code.startswith("onnx-"):
                continue
            raise
        written += 1
        text = mod.script()
        narrow = any(name in text for name in ("bfloat16", "float16", "float8"))
        for call in calls:
            expected = call.expected
            if isinstance(
                expected, RelaxError
            ):  # a check of the program, which the file does not make
                continue
            wanted, arrays = _leaves(expected, mod["main"]), _inputs(model, call.args)
            tolerance = 6e-2 if narrow else 2e-3
            try:
                equal(of_reader(model, arrays), wanted, tolerance)
                if all(array.size for array in arrays):  # runtimes refuse to read what is empty
                    found = of_kernels(model, arrays)
                    if found is not None:
                        equal(found, wanted, tolerance)
            except Exception as error:
                raise AssertionError(f"seed {seed}: {text}") from error
    assert written > BATCH // 2


def _leaves(value: Any, of: Any) -> list[np.ndarray]:
    """The tensors of a result. A tuple of integers is a shape, or what its annotation says."""
    annotation = of.ret if isinstance(of, Function) else of
    if isinstance(annotation, TupleType):
        pairs = zip(value, annotation.fields, strict=True)
        return [leaf for each, kind in pairs for leaf in _leaves(each, kind)]
    return flat(value)


def _inputs(model: Any, args: Any) -> list[np.ndarray]:
    """The arrays of a call. A number is of the dtype that the model says."""
    to_numpy = onnx.helper.tensor_dtype_to_np_dtype
    kinds = [to_numpy(each.type.tensor_type.elem_type) for each in model.graph.input]
    found = flat(list(args))
    return [x.astype(kind) if x.ndim == 0 else x for x, kind in zip(found, kinds, strict=True)]
