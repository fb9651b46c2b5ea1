"""Operators of com.microsoft beside ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import parser

from relaxpy.frontend.onnx import from_onnx
from relaxpy.testing.interpret import interpret

ort = pytest.importorskip("onnxruntime")
HEAD = '<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>'
X, V = ("float[b, t, 8]", (2, 5, 8)), ("float[8]", (8,))


@pytest.mark.parametrize(
    ("call", "inputs"),
    [
        ("y = com.microsoft.Gelu(a)", [X]),
        ("y = com.microsoft.FastGelu(a, c)", [X, V]),
        ("y = com.microsoft.FastGelu(a)", [X]),
        ("y = com.microsoft.BiasGelu(a, c)", [X, V]),
        ("y = com.microsoft.QuickGelu<alpha = 1.5>(a)", [X]),
        ("y = com.microsoft.FusedMatMul<alpha = 0.5, transB = 1>(a, c)", [X, X]),
        ("y = com.microsoft.FusedMatMul<transA = 1>(a, c)", [X, X]),
        (
            "y = com.microsoft.SkipLayerNormalization<epsilon = 0.01>(a, c, d, e, f)",
            [X, X, V, V, V],
        ),
        ("y = com.microsoft.SkipLayerNormalization<epsilon = 0.01>(a, c, d)", [X, X, V]),
        ("y = com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 0.01>(a, c, d)", [X, X, V]),
        ("y = SimplifiedLayerNormalization<axis = -1, epsilon = 0.01>(a, c)", [X, V]),
    ],
    ids=lambda value: value.split(" = ", 1)[1] if isinstance(value, str) else "",
)
def test_operators_are_onnx_runtimes(call: str, inputs: list[tuple[str, Any]]) -> None:
    names = "acdef"[: len(inputs)]
    params = ", ".join(f"{kind} {name}" for name, (kind, _) in zip(names, inputs, strict=True))
    model = parser.parse_model(f"{HEAD} g ({params}) => (float[p, q, r] y) {{ {call} }}")
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for _, shape in inputs]
    session = ort.InferenceSession(model.SerializeToString())
    (want,) = session.run(None, dict(zip(names, arrays, strict=True)))
    mod, params = from_onnx(model)
    found = interpret(mod, "main", *arrays, *params.values())
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)
