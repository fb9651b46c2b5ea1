"""One node of com.microsoft beside ONNX Runtime, at other sizes than those that the model says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    """By how much integers may differ, in one of a hundred elements."""
    atol: float = 1e-5
    domain: str = "com.microsoft"
    opset: int = 21
    free: bool = False
    """Is the last axis a symbol, too?"""

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
            for axis in range(len(shape) - (not self.free)):
                if symbolic and i not in self.fixed:
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

    def given(self) -> list[np.ndarray]:
        return [v for i, v in enumerate(self.inputs) if v is not None and i not in self.weights]


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


def of_relaxpy(model: Any, arrays: Sequence[np.ndarray], build: bool = False) -> list[np.ndarray]:
    program = import_model(model)
    if build:
        found = compiled(program)(*arrays)
    else:
        found = interpret(program.mod, "main", *arrays, *program.params.values())
    return list(found) if isinstance(found, (tuple, list)) else [found]


def check(case: Case, build: bool = False) -> None:
    """Compare the results. AssertionError if they differ."""
    model, arrays = case.model(), case.given()
    wanted, found = of_onnxruntime(model, arrays), of_relaxpy(model, arrays, build)
    if case.valid is not None:
        wanted, found = case.valid(wanted), case.valid(found)
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        if a.dtype.kind in "iub":
            distance = np.abs(a.astype(np.int64) - b.astype(np.int64))
            assert distance.max(initial=0) <= case.apart, (
                f"{(distance > 0).sum()} of {a.size}: {distance.max()}"
            )
            assert (distance > 0).mean() <= 0.02
        else:
            kind = {"rtol": 1e-4, "atol": case.atol}
            if a.dtype == np.float16:
                kind = {"rtol": 1e-2, "atol": 1e-2}
            np.testing.assert_allclose(a.astype(np.float32), b.astype(np.float32), **kind)


def checked(model: Any) -> Any:
    onnx.checker.check_model(model)
    return model
