"""ONNX's own tests of operators in older versions of the opset, beside ONNX Runtime: a version that is called as the next one
may mean something else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from relaxpy.errors import RelaxError
from relaxpy.frontend.onnx.table import DRAWING
from relaxpy.testing.interpret import interpret
from tests.frontend.onnx.node_suite import cases, has_our_dtypes, imported, outcome
from tests.frontend.onnx.onnxruntime_oracle import of_onnxruntime
from tests.frontend.onnx.version_cases import groups


def older() -> list[tuple[str, int]]:
    """ONNX's own tests of one node, with each version of the operator before theirs that ONNX Runtime may run."""
    found: list[tuple[str, int]] = []
    for name, case in cases().items():
        graph, imports = case.model.graph, case.model.opset_import[0]
        op = graph.node[0].op_type if len(graph.node) == 1 and not imports.domain else ""
        known = sorted(version for versions in groups().get(op, ()) for version in versions)
        before = [version for version in known if 7 <= version <= imports.version][:-1]
        if op not in DRAWING and op != "Dropout" and has_our_dtypes(case):
            found += [(name, version) for version in before]
    return found


def in_older_version(name: str, version: int) -> str:
    """What is wrong with a test of ONNX's in an older version; "" if nothing is, or ONNX Runtime does not run it."""
    case = cases()[name]
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.opset_import[0].version, model.ir_version = version, 8
    arrays = [np.asarray(each) for each in case.data_sets[0][0]]
    try:
        wanted = of_onnxruntime(model, arrays)
    except Exception:  # it has classes of its own
        return ""
    try:
        program, constants = imported(replace(case, model=model), wide=False)
    except RelaxError as error:
        is_known = outcome(name).kind == "refused"
        return "" if is_known else f"{name} of version {version}: {error.message}"
    names = [info.name for info in model.graph.input]
    given = [a for n, a in zip(names, arrays, strict=False) if n not in constants]
    found = interpret(program.mod, "main", *given, *program.params.values())
    found = list(found) if isinstance(found, (list, tuple)) else [found]
    if is_close(found, wanted) or not _is_right(case, arrays):
        return ""
    return f"{name} of version {version}: other numbers"


def _is_right(case: Any, arrays: Sequence[np.ndarray]) -> bool:
    """Does ONNX Runtime give ONNX's numbers for the test as it is, if it runs that?"""
    try:
        found = of_onnxruntime(case.model, arrays)
    except Exception:  # it has classes of its own
        return True
    return is_close(found, case.data_sets[0][1])


def is_close(found: Sequence[Any], wanted: Sequence[Any]) -> bool:
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(found, wanted, strict=False)]
    return all(
        (a.dtype, a.shape) == (b.dtype, b.shape)
        and np.allclose(
            a.astype(np.float64), b.astype(np.float64), rtol=1e-2, atol=1e-3, equal_nan=True
        )
        for a, b in pairs
    )
