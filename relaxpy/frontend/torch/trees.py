"""The structure of nested arguments and results, as text: torch's JSON of it. Nothing is pickled."""

from __future__ import annotations

import collections
import json
import sys
from typing import Any

from relaxpy.errors import UsageError


def write_tree(spec: Any) -> str:
    """The text of a structure."""
    from torch.utils import _pytree as pytree

    _name_classes()
    _name_tuples(spec)
    return pytree.treespec_dumps(spec)


def read_tree(text: str) -> Any:
    """A structure from its text. UsageError (`torch-tree`) for a class that nobody has imported."""
    from torch.utils import _pytree as pytree

    _name_classes()
    _name_loaded_tuples(json.loads(text))
    try:
        return pytree.treespec_loads(text)
    except (NotImplementedError, KeyError) as error:
        raise UsageError(
            "torch-tree",
            f"the program takes or gives a class that torch does not know in this process: {error}",
            help="import the class that was registered for the program (transformers' classes: import transformers, "
            "and what defines them) before the file is loaded",
        ) from None


def _name_tuples(spec: Any) -> None:
    """Give the named tuples of a structure the names that Python knows them by."""
    if spec.type is collections.namedtuple:  # noqa: PYI024  (torch's name of all of them)
        _name_tuple(spec.context)
    for child in spec.children():
        _name_tuples(child)


def _name_loaded_tuples(node: Any) -> None:
    """Find the named tuples of a structure in JSON in the modules that were imported."""
    if isinstance(node, dict) and node.get("type") == "collections.namedtuple":
        module, _, name = node["context"].rpartition(".")
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and issubclass(kind, tuple):
            _name_tuple(kind)
    for child in node.values() if isinstance(node, dict) else node:
        if isinstance(child, (dict, list)):
            _name_loaded_tuples(child)


def _name_tuple(kind: type) -> None:
    from torch.utils import _pytree as pytree

    if kind not in pytree.SUPPORTED_SERIALIZED_TYPES:
        name = f"{kind.__module__}.{kind.__qualname__}"
        pytree._register_namedtuple(kind, serialized_type_name=name)


def _name_classes() -> None:
    """Give the classes that were registered without a name for files the one that Python knows them by."""
    from torch.utils import _pytree as pytree

    for kind, entry in list(pytree.SUPPORTED_SERIALIZED_TYPES.items()):
        if entry.serialized_type_name == pytree.NO_SERIALIZED_TYPE_NAME_FOUND:
            name = f"{kind.__module__}.{kind.__qualname__}"
            pytree.SUPPORTED_SERIALIZED_TYPES[kind] = entry._replace(serialized_type_name=name)
            pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE[name] = kind
