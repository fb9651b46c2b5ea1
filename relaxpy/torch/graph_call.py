"""A graph of torch.compile as a function: flat inputs to flat results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from relaxpy.frontend.torch.arrays import dtype_of
from relaxpy.runtime import VirtualMachine
from relaxpy.torch.calls import new_seed
from relaxpy.torch.kept_weights import KeptWeights
from relaxpy.torch.tensors import entered, left_apart

if TYPE_CHECKING:
    from relaxpy.frontend.torch.graph import ImportedGraph, Result
    from relaxpy.frontend.torch.strides import Layout

Boxed = Callable[[list[Any]], Sequence[Any]]
"""A function that takes its arguments in a list, which it empties: they are freed when they are last used."""


def graph_call(found: ImportedGraph, vm: VirtualMachine | None, examples: Sequence[Any]) -> Boxed:
    """The function of an imported graph; `examples` are its inputs in the trace."""
    views = found.views
    results = tuple(found.results)
    if vm is None:

        def only_views(args: list[Any]) -> list[Any]:
            made = views(*args) if views is not None else ()
            given = [_given(each, args, made) for each in results]
            args.clear()
            return given

        return _boxed(only_views)

    main = vm["main"]
    names = {i: str(dtype_of(e)) for i, e in enumerate(examples) if isinstance(e, torch.Tensor)}
    readers = [(i, names.get(i), found.orders.get(i)) for i in found.inputs]
    weights = tuple(found.weights.values())
    packed = KeptWeights(vm, [(n, names[i], found.orders.get(i)) for n, i in found.weights.items()])
    draws, single = found.draws, sum(e.kind == "computed" for e in _distinct(results)) == 1
    lazy = any(_is_lazy(e) for e in examples)
    finish = [_finish(each, found) for each in results]

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
        outside = views(*args) if views is not None else ()
        found = [each(tensors, args, outside) for each in finish]
        args.clear()
        return found

    return _boxed(call)


def _boxed(call: Any) -> Boxed:
    call._boxed_call = True
    return call


def _distinct(results: Sequence[Result]) -> list[Result]:
    return list({(each.kind, each.index): each for each in results}.values())


def _given(result: Result, args: Sequence[Any], made: Sequence[Any]) -> Any:
    """A result that is not computed."""
    if result.kind == "input":
        return args[result.index]
    return made[result.index] if result.kind == "view" else result.value


def _finish(result: Result, found: ImportedGraph) -> Callable[[Any, Any, Any], Any]:
    """From the computed tensors, the inputs and the views to the result."""
    index, layout = result.index, result.layout
    if result.kind != "computed":
        return lambda _, args, made: _given(result, args, made)
    if layout is None or (layout.order is None and layout.strides is None):
        return lambda tensors, *_: tensors[index]
    if layout.order is not None:
        back = [layout.order.index(axis) for axis in range(len(layout.order))]
        return lambda tensors, *_: tensors[index].permute(back)
    strides = _strides(layout, found)
    return lambda tensors, args, _: _spread(tensors[index], strides(args))


def _strides(layout: Layout, found: ImportedGraph) -> Callable[[Sequence[Any]], tuple[int, ...]]:
    """The strides of a result, from the inputs."""
    from torch.utils._sympy.printers import PythonPrinter

    texts = [
        str(e) if isinstance(e, int) else PythonPrinter().doprint(e) for e in layout.strides or ()
    ]
    names = ", ".join(found.symbols)
    formula = eval(f"lambda {names}: ({', '.join(texts)},)")  # sums and products of sizes
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
