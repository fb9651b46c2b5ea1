"""One node of com.microsoft beside ONNX Runtime, at other sizes than those that the model says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from relaxpy.frontend.onnx.importer import import_model
from relaxpy.testing.interpret import interpret
from tests.frontend.onnx.node_suite import compiled

OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]


@dataclass(frozen=True)
class Case:
    """A call of an operator. Values are arrays; None is an input that is left out."""

    op: str
    inputs: Sequence[Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    weights: frozenset[int] = frozenset()
    """Inputs that the model has."""
    fixed: frozenset[int] = frozenset()
    """Inputs whose sizes are numbers; those of the others are symbols, but for the last axis."""
    title: str = ""
    valid: Any = None
    """Of which elements of the results anything is said: the results → theirs."""
    apart: int = 0
    """By how much integers may differ, in one of fifty elements."""
    atol: float = 1e-5
    domain: str = "com.microsoft"
    opset: int = 21
    free: bool = False
    """Is the last axis a symbol, too? That of a vector is, if its size is named."""

    def __str__(self) -> str:
        return f"{self.op} {self.title}".strip()

    def model(self, symbolic: bool = True) -> Any:
        infos, stored, names = [], [], []
        for i, value in enumerate(self.inputs):
            name = "" if value is None else f"x{i}"
            names.append(name)
            if value is None:
                continue
            kind = helper.np_dtype_to_tensor_dtype(value.dtype)
            if i in self.weights:
                stored.append(numpy_helper.from_array(value, name))
                continue
            shape: list[Any] = list(value.shape)
            for axis in range(len(shape)):
                free = self.free or axis < len(shape) - 1 or (not axis and shape[0] in self.named)
                if symbolic and free and i not in self.fixed:
                    shape[axis] = self.named.get(shape[axis], f"n{i}_{axis}")
            infos.append(helper.make_tensor_value_info(name, kind, shape))
        node = helper.make_node(
            self.op,
            names,
            [f"y{i}" for i in range(self.outputs)],
            domain=self.domain,
            **self.attributes,
        )
        outputs = [helper.make_empty_tensor_value_info(f"y{i}") for i in range(self.outputs)]
        graph = helper.make_graph([node], "g", infos, outputs, stored)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    named: Mapping[int, str] = field(default_factory=dict)
    """Size → the symbol of all axes of that size."""

    def given(self, batch: int | None = None) -> list[np.ndarray]:
        """The arguments; with `batch`, as many of what the symbol "b" counts, repeated or cut."""
        found = [
            (i, v) for i, v in enumerate(self.inputs) if v is not None and i not in self.weights
        ]
        if batch is None:
            return [v for _, v in found]
        sizes = [size for size, name in self.named.items() if name == "b"]
        return [
            _resized(v, [a for a in range(v.ndim) if v.shape[a] in sizes], batch)
            if i not in self.fixed
            else v
            for i, v in found
        ]


def _resized(x: np.ndarray, axes: Sequence[int], size: int) -> np.ndarray:
    for axis in axes:
        x = np.take(x, np.arange(size), axis, mode="wrap")
    return np.ascontiguousarray(x)


def of_onnxruntime(
    model: Any, arrays: Sequence[np.ndarray], optimize: bool = False
) -> list[np.ndarray]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, dict(zip([i.name for i in session.get_inputs()], arrays, strict=True)))


def runner(model: Any, build: bool = False) -> Callable[..., list[np.ndarray]]:
    """The model, read once, as a function."""
    program = import_model(model)
    if build:
        run = compiled(program)
    else:
        run = partial(interpret, program.mod, "main")
    more = [] if build else list(program.params.values())

    def call(*arrays: np.ndarray) -> list[np.ndarray]:
        found = run(*arrays, *more)
        return list(found) if isinstance(found, (tuple, list)) else [found]

    return call


def check(case: Case, build: bool = False, batches: Sequence[int | None] = (None,)) -> None:
    """Compare the results, for each of the sizes that the symbol "b" has. AssertionError if they differ."""
    model = case.model()
    run = runner(model, build)
    for batch in batches:
        arrays = case.given(batch)
        wanted, found = of_onnxruntime(model, arrays), run(*arrays)
        if case.valid is not None:
            wanted, found = case.valid(wanted), case.valid(found)
        compare(found, wanted, case.apart, case.atol)


def compare(
    found: Sequence[np.ndarray], wanted: Sequence[np.ndarray], apart: int = 0, atol: float = 1e-5
) -> None:
    """Compare results. Integers may be `apart`, in one of fifty elements. AssertionError if they differ."""
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        if a.dtype.kind in "iub":
            distance = np.abs(a.astype(np.int64) - b.astype(np.int64))
            assert distance.max(initial=0) <= apart, (
                f"{(distance > 0).sum()} of {a.size}: {distance.max()}"
            )
            assert (distance > 0).sum() <= max(1, a.size // 50)
        else:
            kind = {"rtol": 1e-4, "atol": atol}
            if a.dtype == np.float16:
                kind = {"rtol": 1e-2, "atol": 1e-2}
            np.testing.assert_allclose(a.astype(np.float32), b.astype(np.float32), **kind)


def checked(model: Any) -> Any:
    onnx.checker.check_model(model)
    return model
