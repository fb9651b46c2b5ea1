"""Words that TVM's texts, today's and older, have for what has another name here."""

from __future__ import annotations

import ast
from typing import Any

from relaxpy.ir.annotation import ObjectType

KEYWORDS = {"out_sinfo": "out_ty", "sinfo_args": "ty_args", "struct_info": "ty"}
"""Keywords of calls, from when annotations were called struct info."""

R_NAMES = {"Any": "Object", "ShapeExpr": "shape", "call_dps_packed": "call_dps_library"}
"""What follows `R.`, and what it is here."""

ATTRIBUTES = {"struct_info": "ty"}
"""Attributes of values."""

UNKNOWN_DTYPE = "void"
"""The dtype of what has no known one."""

OPTIONS: dict[str, dict[str, type]] = {
    "prim_func": {"s_tir": bool, "persistent": bool},
    "ir_module": {"s_tir": bool},
}
"""Options of decorators, with their types, that are read and left out."""

DEVICE_TYPES = {
    1: "cpu",
    2: "cuda",
    4: "opencl",
    7: "vulkan",
    8: "metal",
    10: "rocm",
    15: "webgpu",
}
"""DLPack's numbers of devices: `R.device(device_type=2, index=1)`."""


def with_todays_keywords(tree: ast.Module, text: str) -> ast.Module:
    """The tree of `text` with the keywords of calls that are ours. Changes the tree."""
    if any(word in text for word in KEYWORDS):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                for keyword in node.keywords:
                    keyword.arg = KEYWORDS.get(keyword.arg or "", keyword.arg)
    return tree


def module_get_attrs() -> dict[str, Any]:
    """Of use to TVM's parser only."""
    return {}


def dummy_global_info() -> str:
    """TVM's global information that says nothing, for its tests."""
    return "dummy"


def StringType() -> ObjectType:
    """TVM's annotation of a string: here any value."""
    return ObjectType()


I_NAMES = {
    "StringType": StringType,
    "dummy_global_info": dummy_global_info,
    "module_get_attrs": module_get_attrs,
}
"""What follows `I.`, and the function that reads it."""
