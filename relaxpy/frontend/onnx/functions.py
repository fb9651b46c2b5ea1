"""Operators that are functions: those of the model, and those that the standard itself writes in others."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

from relaxpy.errors import Span, UsageError

MOST = (1 << 31) - 1
"""The largest version of an opset that there may be."""


@cache
def _newest() -> dict[str, int]:
    """Domain → the newest version that onnx knows."""
    import onnx.defs

    return {
        "" if name == "ai.onnx" else name: bounds[1]
        for name, bounds in onnx.defs.C.schema_version_map().items()
    }


@lru_cache(maxsize=4096)
def schema_of(domain: str, name: str, opset: int) -> Any:
    """The definition of an operator in this opset; None: there is none."""
    import onnx.defs

    try:
        return onnx.defs.get_schema(name, opset, domain)
    except onnx.defs.SchemaError:
        return None


@lru_cache(maxsize=4096)
def first_version(domain: str, name: str) -> int | None:
    """The first version of the opset that has an operator; None: the standard has none of this name."""
    import onnx.defs

    versions = (
        each.since_version
        for each in onnx.defs.get_all_schemas_with_history()
        if (each.domain, each.name) == (domain, name)
    )
    return min(versions, default=None)


def standard_body(schema: Any, node: Any, types: list[Any], opset: int) -> Any:
    """The standard's body of a function for inputs of these types, as a FunctionProto; None: it is no function."""
    import onnx

    data = b""
    if schema.has_context_dependent_function:
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
        if versions:
            data = schema.get_context_dependent_function_with_opset_version(
                max(versions),
                node.SerializeToString(),
                [each.SerializeToString() for each in types],
            )
    elif schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= opset]
        if versions:
            data = schema.get_function_with_opset_version(max(versions))
    if not data:
        return None
    body = onnx.FunctionProto()
    body.ParseFromString(data)
    return body


def opsets_of(proto: Any, span: Span) -> dict[str, int]:
    """Domain → version, of a model or a function. UsageError (`onnx-file`) for a domain with two versions."""
    found: dict[str, int] = {}
    for each in proto.opset_import:
        domain = "" if each.domain == "ai.onnx" else each.domain
        newest = _newest().get(domain, MOST)
        if not 0 < each.version <= newest:
            raise UsageError(
                "onnx-file",
                f"the model's version of the opset {domain!r} is {each.version}, and known are 1 to {newest}",
                span=span,
                help="install a newer version of onnx" if each.version > newest else None,
            )
        if found.setdefault(domain, each.version) != each.version:
            raise UsageError(
                "onnx-file", f"the model has two versions of the opset {domain!r}", span=span
            )
    return found
