"""Walk and rewrite TVM's programs.

These are `tvm_ffi.structural_walk` and `tvm_ffi.structural_map` with the classes looked up once. Those two spend 5 µs
on their arguments at every call, and most walks, through an index or the value of a store, take less than 2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

from relaxpy.tir.nodes import dtype_of
from relaxpy.tir.tvm import tirx, tvm, tvm_ffi

Entry: TypeAlias = "tuple[type | tuple[type, ...], Callable[[Any], Any]]"
"""One class or several, and the function for their nodes. Of several entries the first that matches is used."""

_walk = tvm_ffi.get_global_func("ffi.StructuralWalk")
_map = tvm_ffi.get_global_func("ffi.StructuralMap")
_PRE_ORDER = int(tvm_ffi.structural.WalkOrder.PREORDER)
_POST_ORDER = int(tvm_ffi.structural.WalkOrder.POSTORDER)
_FOUND = tvm_ffi.VisitInterrupt(True)


def walk(node: Any, *entries: Entry) -> None:
    """Call the function of the matching entry for each node in `node`, in post-order."""
    _walk(node, _indexed(entries), [], _POST_ORDER)


def rewritten(node: Any, *entries: Entry) -> Any:
    """Return the node with each node in it replaced by the result of its entry's function, in post-order."""
    return _map(node, _indexed(entries), [], _POST_ORDER)


def contains(
    node: Any, kinds: type | tuple[type, ...], holds: Callable[[Any], bool] = lambda _: True
) -> bool:
    """Does `node` contain a node of these classes, itself included, for which `holds` is true?"""
    return contains_any(node, (kinds, holds))


def contains_any(
    node: Any, *entries: tuple[type | tuple[type, ...], Callable[[Any], bool]]
) -> bool:
    """Does `node` contain a node, itself included, for which the function of its entry is true?"""
    ends = [
        (index, lambda inner, holds=holds: _FOUND if holds(inner) else None)
        for index, holds in _indexed(entries)
    ]
    return _walk(node, ends, [], _PRE_ORDER) is not None


def outermost(
    node: Any, kinds: type | tuple[type, ...], visit: Callable[[Any], None] | None = None
) -> list[Any]:
    """The nodes of these classes that are in no other of them, the node itself included; `visit` is called for the
    variables outside of them."""
    found: list[Any] = []

    def stop(part: Any) -> Any:
        found.append(part)
        return tvm_ffi.WalkResult.SKIP

    entries: tuple[Entry, ...] = ((kinds, stop),)
    if visit is not None:
        entries = (*entries, (tvm.ir.Var, visit))
    _walk(node, _indexed(entries), [], _PRE_ORDER)
    return found


def element_types(func: tirx.PrimFunc) -> set[str]:
    """The dtypes of all values in a function (reads, casts, literals, calls), without lanes."""
    found: set[str] = set()

    def note(value: Any) -> None:
        found.add(dtype_of(value))

    walk(func.body, ((tvm.ir.TensorLoad, tirx.Cast, tirx.FloatImm, tvm.ir.Call), note))
    return {dtype.partition("x")[0] for dtype in found} - {""}


def _indexed(entries: tuple[Entry, ...]) -> list[tuple[int, Callable[[Any], Any]]]:
    return [(index, call) for kinds, call in entries for index in _type_indices(kinds)]


@lru_cache(maxsize=256)
def _type_indices(kinds: type | tuple[type, ...]) -> tuple[int, ...]:
    """TVM's type indices of these classes."""
    schema = tvm_ffi.core.TypeSchema
    listed = kinds if isinstance(kinds, tuple) else (kinds,)
    return tuple(schema.from_annotation(kind).origin_type_index for kind in listed)
