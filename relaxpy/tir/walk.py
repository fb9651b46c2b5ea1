"""Walking through TVM's programs, and rewriting them.

These are `tvm_ffi.structural_walk` and `tvm_ffi.structural_map` with the classes looked up once: what those two do with
their arguments at every call takes 5 µs, and most walks, through an index or the value of a store, less than 2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

from relaxpy.tir.tvm import tirx, tvm, tvm_ffi

Entry: TypeAlias = "tuple[type | tuple[type, ...], Callable[[Any], Any]]"
"""One class or several, and what is done with their nodes. Of several entries the first that fits is taken."""

_walk = tvm_ffi.get_global_func("ffi.StructuralWalk")
_map = tvm_ffi.get_global_func("ffi.StructuralMap")
_POST_ORDER = int(tvm_ffi.structural.WalkOrder.POSTORDER)


def walk(node: Any, *entries: Entry) -> None:
    """Call for each node in `node`, those inside it first, what the entries say for its class."""
    _walk(node, _indexed(entries), [], _POST_ORDER)


def rewritten(node: Any, *entries: Entry) -> Any:
    """The node with each node in it replaced by what the entries give for its class, from the innermost ones on."""
    return _map(node, _indexed(entries), [], _POST_ORDER)


def contains(
    node: Any, kinds: type | tuple[type, ...], holds: Callable[[Any], bool] = lambda _: True
) -> bool:
    """Is there a node of these classes, from `node` on down, for which this holds?"""
    found = tvm_ffi.VisitInterrupt(True)
    visit = (kinds, lambda inner: found if holds(inner) else None)
    return tvm_ffi.structural_walk(node, visit, order="pre") is not None


def element_types(func: tirx.PrimFunc) -> set[str]:
    """The dtypes of what a function reads, casts, writes out and calls, without lanes: of all its values."""
    found: set[str] = set()

    def note(value: Any) -> None:
        if isinstance(value.ty, tvm.ir.PrimType):
            found.add(str(value.ty.dtype))

    walk(func.body, ((tvm.ir.TensorLoad, tirx.Cast, tirx.FloatImm, tvm.ir.Call), note))
    return {dtype.partition("x")[0] for dtype in found}


def _indexed(entries: tuple[Entry, ...]) -> list[tuple[int, Callable[[Any], Any]]]:
    return [(index, call) for kinds, call in entries for index in _type_indices(kinds)]


@lru_cache(maxsize=256)
def _type_indices(kinds: type | tuple[type, ...]) -> tuple[int, ...]:
    """TVM's numbers of these classes."""
    schema = tvm_ffi.core.TypeSchema
    listed = kinds if isinstance(kinds, tuple) else (kinds,)
    return tuple(schema.from_annotation(kind).origin_type_index for kind in listed)
