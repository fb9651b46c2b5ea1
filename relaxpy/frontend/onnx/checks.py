"""Calls as the standard has them: how many inputs and results, which attributes, of which types and lengths."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from relaxpy.errors import UsageError
from relaxpy.frontend.onnx.graph import Graph, Node
from relaxpy.ir import Constant, DType, TensorType
from relaxpy.narrow import is_list

if TYPE_CHECKING:
    from relaxpy.frontend.onnx.importer import Site

_ATTRIBUTES: dict[int, tuple[type[Any], bool, str]] = {
    1: (float, False, "a float"), 2: (int, False, "an integer"), 3: (str, False, "a text"),
    4: (np.ndarray, False, "a tensor"), 5: (Graph, False, "a graph"), 6: (float, True, "floats"),
    7: (int, True, "integers"), 8: (str, True, "texts"), 9: (np.ndarray, True, "tensors"), 10: (Graph, True, "graphs"),
}  # fmt: skip
"""ONNX's number of a type → the type of a value, whether there is a list of them, and its name."""


def check_call(node: Node, schema: Any) -> None:
    """Refuse a call that the schema of its operator does not allow. Raises UsageError (`onnx-file`)."""
    for what, found, least, most in (
        ("input", len(node.inputs), schema.min_input, schema.max_input),
        ("result", len(node.outputs), schema.min_output, schema.max_output),
    ):
        if not least <= found <= most:
            bounds = f"{least}" if least == most else f"{least} to {most}"
            wanted = f"at least {least}" if most > 1 << 30 else bounds
            raise _wrong(
                node, f"takes {wanted} {what}{'' if wanted == '1' else 's'}, and has {found}"
            )
    for name, each in schema.attributes.items():
        if each.required and name not in node.attributes:
            raise _wrong(node, f"needs the attribute {name!r}")
        if name in node.attributes and each.type.value in _ATTRIBUTES:
            value = node.attributes[name]
            kind, several, wanted = _ATTRIBUTES[each.type.value]
            values = value if several and is_list(value) else [value]
            if several is not is_list(value) or not all(isinstance(v, kind) for v in values):
                raise _wrong(node, f"takes {wanted} as the attribute {name!r}")


def check_types(node: Node, schema: Any, inputs: Sequence[Any]) -> None:
    """Refuse inputs of several dtypes where the operator takes one. Raises UsageError (`onnx-file`)."""
    found: dict[str, str] = {}
    for k, value in enumerate(inputs):
        formal = schema.inputs[min(k, len(schema.inputs) - 1)]
        dtype = _dtype(value)
        if dtype is None or not formal.is_homogeneous:
            continue
        other = found.setdefault(formal.type_str, dtype)
        if other != dtype:
            raise _wrong(node, f"takes inputs of one dtype, and has {other} and {dtype}")


def _dtype(value: Any) -> str | None:
    """The dtype of a tensor; of integers that share bytes, that of whole ones, in which some of them are."""
    if isinstance(value, Constant):
        return str(DType(value.data.dtype).unpacked)
    annotation = getattr(value, "annotation", None)
    dtype = annotation.dtype if isinstance(annotation, TensorType) else None
    return None if dtype is None else str(dtype.unpacked)


def check_names(graph: Graph) -> None:
    """Refuse a graph in which two values have the same name. Raises UsageError (`onnx-file`)."""
    seen: set[str] = set()
    for span, names in (
        (graph.span, graph.inputs),
        (graph.span, [name for name in graph.initializers if name not in graph.inputs]),
        *((node.span, node.outputs) for node in graph.nodes),
    ):
        for name in names:
            if name and name in seen:
                raise UsageError(
                    "onnx-file", f"two values of {graph.name!r} have the name {name!r}", span=span
                )
            seen.add(name)


def check_arguments(
    node: Node, rule: Any, inputs: list[Any], attributes: Mapping[str, Any]
) -> None:
    """Refuse a call of an operator without schema that its rule does not take."""
    try:
        inspect.signature(rule).bind(None, *inputs, **attributes)
    except TypeError as error:
        raise _wrong(node, f"cannot be called like this: {error}") from None


def check_sizes(
    at: Site, count: int, least: int | None = 1, **attributes: Sequence[Any] | None
) -> None:
    """Refuse attributes that are not `count` numbers of this size at least; sizes among them are checked where they are
    used. UsageError (`onnx-file`)."""
    for name, values in attributes.items():
        numbers = [value for value in values or () if isinstance(value, int)]
        if values and (
            len(values) != count or (least is not None and min(numbers, default=least) < least)
        ):
            at_least = "" if least is None else f" of at least {least}"
            raise at.fail(
                "onnx-file",
                f"{at.node.title} takes {count} numbers{at_least} as {name}, and not {list(values)}",
            )


def check_is_test(at: Site, is_test: int) -> None:
    """Refuse training by an operator of a version before 7, whose default it is. UsageError (`onnx-operator`)."""
    if at.version < 7 and not is_test:
        raise at.fail(
            "onnx-operator",
            f"{at.node.title} of version {at.version} trains unless is_test is 1",
            help="set is_test = 1, or export the model for inference in a newer opset",
        )


def _wrong(node: Node, problem: str) -> UsageError:
    return UsageError("onnx-file", f"{node.title} {problem}", span=node.span)
