"""TVM's names, current and older, for words that differ here."""

from __future__ import annotations

import ast
from typing import Any

from relaxpy.ir.annotation import ObjectType

KEYWORDS = {"out_sinfo": "out_ty", "sinfo_args": "ty_args", "struct_info": "ty"}
"""Keywords of calls, from the time when annotations were called struct info."""

R_NAMES = {"Any": "Object", "ShapeExpr": "shape", "call_dps_packed": "call_dps_library"}
"""TVM's name after `R.` → our name."""

ATTRIBUTES = {"struct_info": "ty"}
"""TVM's attribute of a value → our name."""

UNKNOWN_DTYPE = "void"
"""TVM's name of an unknown dtype."""

OPTIONS: dict[str, dict[str, type]] = {
    "prim_func": {"s_tir": bool, "persistent": bool},
    "ir_module": {"s_tir": bool},
}
"""Options of decorators that are accepted and ignored, with their types."""

DEVICE_TYPES = {
    1: "cpu",
    2: "cuda",
    4: "opencl",
    7: "vulkan",
    8: "metal",
    10: "rocm",
    15: "webgpu",
}
"""DLPack's device numbers: `R.device(device_type=2, index=1)`."""


def with_todays_keywords(tree: ast.Module, text: str) -> ast.Module:
    """Rename the older keywords of calls in the syntax tree of `text`. Modifies the tree."""
    if any(word in text for word in KEYWORDS):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                for keyword in node.keywords:
                    keyword.arg = KEYWORDS.get(keyword.arg or "", keyword.arg)
    return tree


def module_get_attrs() -> dict[str, Any]:
    """Accepted for TVM's parser; has no effect."""
    return {}


def dummy_global_info() -> str:
    """TVM's dummy global information, used in its tests."""
    return "dummy"


def StringType() -> ObjectType:
    """TVM's annotation of a string: `R.Object` here."""
    return ObjectType()


I_NAMES = {
    "StringType": StringType,
    "dummy_global_info": dummy_global_info,
    "module_get_attrs": module_get_attrs,
}
"""Name after `I.` → function that reads it."""
