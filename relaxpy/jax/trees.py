"""The structure of nested arguments and results as plain data. Nothing is pickled."""

from __future__ import annotations

import json
import sys
from typing import Any

from relaxpy.errors import UsageError

_PLAIN = {"dict": dict, "list": list, "tuple": tuple, "NoneType": type(None)}


def write_tree(tree: Any) -> str:
    """The text of a structure. UsageError (`jax-tree`) for a class whose parts are no plain data."""
    return json.dumps(_written(tree))


def read_tree(text: str) -> Any:
    """A structure from its text. UsageError (`jax-tree`) for a class that nobody has imported."""
    return _read(json.loads(text))


def _written(tree: Any) -> Any:
    import jax

    if jax.tree_util.treedef_is_leaf(tree) and tree.num_leaves == 1:
        return "*"
    kind, extra = tree.node_data() or (type(None), None)
    name = kind.__name__ if _PLAIN.get(kind.__name__) is kind else _path(kind)
    return {
        "class": name,
        "data": _plain(extra, kind),
        "parts": [_written(c) for c in tree.children()],
    }


def _path(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _plain(value: Any, kind: type) -> Any:
    """The data of a node beside its parts: tuples and classes are marked, all else is JSON's."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, type):
        return {"type": _path(value)}
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        items = [_plain(each, kind) for each in value]
        return items if isinstance(value, list) else {"tuple": items}
    raise UsageError(
        "jax-tree",
        f"{kind.__name__} has {value!r} beside its arrays, which cannot be written to a file",
        help="pass the function's arrays in dicts, lists, tuples or dataclasses, and let it hold the rest",
    )


def _read(data: Any) -> Any:
    import jax
    from jax._src.tree_util import default_registry

    if data == "*":
        return jax.tree_util.tree_structure(0)
    kind = _PLAIN.get(data["class"]) or _class(data["class"])
    if kind is type(None):
        return jax.tree_util.tree_structure(None)
    parts = [_read(part) for part in data["parts"]]
    node = kind, _value(data["data"])
    return jax.tree_util.PyTreeDef.from_node_data_and_children(default_registry, node, parts)


def _value(data: Any) -> Any:
    if isinstance(data, list):
        return [_value(each) for each in data]
    if isinstance(data, dict):
        return (
            _class(data["type"])
            if "type" in data
            else tuple(_value(each) for each in data["tuple"])
        )
    return data


def _class(path: str) -> Any:
    module, names = path.split(":")
    found: Any = sys.modules.get(module)
    for name in names.split("."):
        found = getattr(found, name, None)
    if found is None:
        raise UsageError(
            "jax-tree",
            f"the program takes or gives a {names} of {module}, which is not imported in this process",
            help=f"import {module} before the file is loaded",
        )
    return found
