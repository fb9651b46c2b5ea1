"""A graph of torch.compile as a function: flat inputs to flat results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from relaxpy.frontend.torch.arrays import dtype_of
from relaxpy.runtime import VirtualMachine
from relaxpy.torch.calls import new_seed
from relaxpy.torch.kept_weights import KeptWeights
from relaxpy.torch.tensors import entered, left_apart

if TYPE_CHECKING:
    from relaxpy.frontend.torch.graph import ImportedGraph
    from relaxpy.frontend.torch.strides import Layout

Boxed = Callable[[list[Any]], Sequence[Any]]
"""A function that takes its arguments in a list, which it empties: they are freed when they are last used."""


def graph_call(found: ImportedGraph, vm: VirtualMachine | None, examples: Sequence[Any]) -> Boxed:
    """The function of an imported graph; `examples` are its inputs in the trace."""
    views = None if found.views is None else found.views.forward  # a module's call takes longer
    places = [
        (_SOURCES[each.kind], i if each.kind == "constant" else each.index)
        for i, each in enumerate(found.results)
    ]
    constants = [each.value for each in found.results]
    if vm is None:

        def only_views(args: list[Any]) -> list[Any]:
            sources = (), args, views(*args) if views is not None else (), constants
            given = [sources[kind][index] for kind, index in places]
            args.clear()
            return given

        return _boxed(only_views)

    main = vm["main"]
    names = {i: str(dtype_of(e)) for i, e in enumerate(examples) if isinstance(e, torch.Tensor)}
    readers = [(i, names.get(i), found.orders.get(i)) for i in found.inputs]
    weights = tuple(found.weights.values())
    packed = KeptWeights(vm, [(n, names[i], found.orders.get(i)) for n, i in found.weights.items()])
    draws, single = found.draws, len(found.layouts) == 1
    lazy = any(_is_lazy(e) for e in examples)
    finish = [(i, step) for i, each in enumerate(found.layouts) if (step := _finish(each, found))]
    viewed = found.viewed
    only_computed = places == [(_COMPUTED, i) for i in range(len(found.layouts))]

    def call(args: list[Any]) -> list[Any]:
        if lazy:
            args[:] = [_resolved(each) for each in args]
        given: list[Any] = []
        for i, dtype, order in readers:
            value = args[i]
            if dtype is not None:
                value = entered(value if order is None else value.permute(order), dtype)
            given.append(value)
        if draws:
            given.append(entered(new_seed(), "int64"))
        own = packed.arguments([args[i] for i in weights]) if weights else ()
        made = main(*given, *own)
        del given
        tensors = left_apart([made] if single else made)
        for i, step in finish:
            tensors[i] = step(tensors[i], args)
        if only_computed:
            args.clear()
            return tensors
        seen = views(*args, *(tensors[i] for i in viewed)) if views is not None else ()
        sources = tensors, args, seen, constants
        results = [sources[kind][index] for kind, index in places]
        args.clear()
        return results

    return _boxed(call)


def _boxed(call: Any) -> Boxed:
    call._boxed_call = True
    return call


_COMPUTED, _CONSTANT = 0, 3
_SOURCES = {"computed": _COMPUTED, "input": 1, "view": 2, "constant": _CONSTANT}
"""Kind of a result → where it is: in the computed tensors, the inputs, the views, or the constants."""


def _finish(layout: Layout | None, found: ImportedGraph) -> Callable[[Any, Any], Any] | None:
    """From a computed tensor and the inputs to the tensor as it lies in memory; None: it is that."""
    if layout is None or (layout.order is None and layout.strides is None):
        return None
    if layout.order is not None:
        back = [layout.order.index(axis) for axis in range(len(layout.order))]
        return lambda tensor, _: tensor.permute(back)
    strides = _strides(layout, found)
    return lambda tensor, args: _spread(tensor, strides(args))


def _strides(layout: Layout, found: ImportedGraph) -> Callable[[Sequence[Any]], tuple[int, ...]]:
    """The strides of a result, from the inputs."""
    from torch.utils._sympy.printers import PythonPrinter

    texts = [
        str(e) if isinstance(e, int) else PythonPrinter().doprint(e) for e in layout.strides or ()
    ]
    names = ", ".join(found.symbols)
    formula = eval(f"lambda {names}: ({', '.join(texts)},)", {"math": math})  # of sizes
    places = tuple(found.symbols.values())
    return lambda args: formula(*(args[i] for i in places))


def _spread(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """A tensor with these strides; items along an axis of stride 0 are the same."""
    part = tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)]
    spread = torch.empty_strided(part.shape, strides, dtype=tensor.dtype).copy_(part)
    return spread.expand(tensor.shape)


def _is_lazy(value: Any) -> bool:
    """Is it a tensor whose memory has other numbers: to be negated?"""
    return isinstance(value, torch.Tensor) and value.is_neg()


def _resolved(value: Any) -> Any:
    return value.resolve_neg() if isinstance(value, torch.Tensor) else value
