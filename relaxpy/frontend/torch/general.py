"""A graph that torch traced for one size as a graph for all: `general`.

By default torch traces a function for the sizes of its first call, and again, for sizes that vary, when another call
has others. The two programs would have few kernels in common. Here the sizes of inputs become symbols again, and the
numbers in the graph that are such sizes, or products of two, become expressions of them. Which numbers are sizes is a
guess. For the sizes that were traced it is right, whatever is guessed, and torch calls the graph with no others; a good
guess gives the program that torch will ask for later, and then that is built already.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from relaxpy.frontend.torch.missing import name_of
from relaxpy.frontend.torch.strides import hint_of, layout_of

_VIEWS = frozenset(("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default"))
_SIZES = {
    "aten.full.default": (0,), "aten.ones.default": (0,), "aten.zeros.default": (0,),
    "aten.empty.memory_format": (0,), "aten.new_zeros.default": (1,), "aten.new_ones.default": (1,),
    "aten.new_full.default": (1,), "aten.new_empty.default": (1,), "aten.rand.default": (0,),
    "aten.randn.default": (0,), "aten.arange.default": (0,), "aten.arange.start": (0, 1),
    "aten.arange.start_step": (0, 1), "aten.slice.Tensor": (2, 3), "aten.native_group_norm.default": (3, 5),
}  # fmt: skip
"""Operators with arguments that are sizes: the places of these."""


def general(graph: Any, weights: Collection[int]) -> tuple[Any, Mapping[Any, Any]] | None:
    """The graph with symbols for the sizes of its inputs above 1, those of weights apart, and each node's new one. None
    if that cannot be: for inputs with gaps in memory, and operators with graphs inside. Convolutions stay as they are:
    their schedules are chosen by sizes."""
    nodes = [node for node in graph.graph.nodes if node.op != "placeholder"]
    if any(n.op == "get_attr" or name_of(n).startswith(_KEPT) for n in nodes if n.op != "output"):
        return None
    try:
        with raw_sizes():
            return _General(graph, weights).made()
    except _NotGeneral:
        return None


@contextmanager
def raw_sizes() -> Iterator[None]:
    """Let arguments of nodes be sizes, not nodes, which torch warns of: its own passes would not find them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Raw SymInt value", UserWarning)
        yield


_KEPT = ("aten.convolution", "higher_order.")


class _NotGeneral(Exception):
    """The graph stays as it is."""


class _General:
    """The graph under construction, whose values are torch's fake tensors of sizes that vary."""

    def __init__(self, graph: Any, weights: Collection[int]) -> None:
        from torch._subclasses import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        self.old = graph
        self.weights = weights
        self.env = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.env)
        self.values: dict[Any, Any] = {}
        """Node → its fake value."""
        self.symbols: dict[Any, Any] = {}
        """Symbol of the old graph, or a size in it → the size that varies."""

    def made(self) -> tuple[Any, Mapping[Any, Any]]:
        import torch
        from torch.fx.node import map_arg

        graph = torch.fx.Graph()
        moved: dict[Any, Any] = {}
        places = self.old.graph.find_nodes(op="placeholder")
        for node in places:
            if _is_size(node.meta.get("val")):
                self.values[node] = self._symbol(node.meta["val"], of_size=False)
        for index, node in enumerate(places):
            moved[node] = graph.placeholder(node.name)
            if node not in self.values:
                self.values[node] = self._input(node.meta.get("val"), index in self.weights)
            moved[node].meta.update(node.meta, val=self.values[node])
        for node in self.old.graph.nodes:
            if node.op != "call_function":
                continue
            args, kwargs = self._arguments(node), map_arg(node.kwargs, self._number)
            value = self._run(node, tuple(args), kwargs)
            self.values[node] = value
            if _is_size(value) or isinstance(value, (int, float)):
                continue
            moved[node] = graph.create_node(
                "call_function",
                node.target,
                map_arg(tuple(args), moved.__getitem__),
                map_arg(kwargs, moved.__getitem__),
                name_of(node).split(".")[1],
            )
            moved[node].meta.update(node.meta, val=value)
        graph.output(())
        return torch.fx.GraphModule(self.old, graph), moved

    def _number(self, node: Any) -> Any:
        """The value of a node that is a number; else the node."""
        value = self.values[node]
        return value if _is_size(value) or isinstance(value, (int, float)) else node

    def _run(self, node: Any, args: Any, kwargs: Any) -> Any:
        """The fake value of a call."""
        import torch
        from torch.fx.node import map_arg

        given = map_arg(args, self.values.__getitem__), map_arg(kwargs, self.values.__getitem__)
        try:
            with self.mode, torch.no_grad():
                value = node.target(*given[0], **given[1])
        except Exception:  # torch refuses the guess
            raise _NotGeneral from None
        if not _same_sizes(value, node.meta.get("val")):
            raise _NotGeneral
        return value

    # Sizes

    def _symbol(self, size: Any, of_size: bool = True) -> Any:
        """The size that varies for one of the old graph: equal sizes are one, as torch takes them."""
        from torch._dynamo.source import ConstantSource
        from torch.fx.experimental.symbolic_shapes import DimDynamic

        key: Any = size
        if _is_size(size):
            if not size.node.expr.is_Symbol:
                raise _NotGeneral
            key = size.node.expr.name
        if key not in self.symbols:
            hint, source = hint_of(size), ConstantSource(f"size{len(self.symbols)}")
            limits = size.node.shape_env.var_to_range[size.node.expr] if _is_size(size) else None
            free = limits is not None and limits.lower < 2
            make = self.env.create_unspecified_symbol if free else self.env.create_symbol
            symbol = make(hint, source, DimDynamic.DYNAMIC)
            self.symbols[key] = self.env.create_symintnode(symbol, hint=hint, source=source)
        return self.symbols[key]

    def _input(self, value: Any, is_weight: bool) -> Any:
        """An input whose sizes vary."""
        import torch

        if not isinstance(value, torch.Tensor):
            return value
        layout = layout_of(value)
        if layout.strides is not None:
            raise _NotGeneral
        shape = [
            size if isinstance(size, int) and (is_weight or size < 2) else self._symbol(size)
            for size in value.shape
        ]
        strides: list[Any] = [1] * len(shape)
        step: Any = 1
        for axis in reversed(layout.order or range(len(shape))):
            strides[axis] = step
            step = step * shape[axis]
        with self.mode:
            return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)

    def _arguments(self, node: Any) -> list[Any]:
        """The arguments of a call, with sizes in place of numbers."""
        from torch.fx.node import map_arg

        args = list(map_arg(node.args, self._number))
        name = name_of(node)
        if name in _VIEWS:
            sizes = [hint_of(size) for size in node.meta["val"].shape]
            args[1] = _viewed(self.values[args[0]].shape, sizes)
        elif name == "aten.expand.default":
            dims, sizes = self.values[args[0]].shape, list(args[1])
            skip = len(sizes) - len(dims)
            for i, size in enumerate(sizes):
                same = i >= skip and hint_of(dims[i - skip]) == hint_of(size) != 1
                sizes[i] = dims[i - skip] if same else self._guess(size)
            args[1] = sizes
        else:
            for place in _SIZES.get(name, ()):
                if place < len(args):
                    given = args[place]
                    args[place] = (
                        [self._guess(each) for each in given]
                        if isinstance(given, (list, tuple))
                        else self._guess(given)
                    )
        return args

    def _guess(self, number: Any) -> Any:
        """The size that a number is, if it is that of an input, or the product of two."""
        if not isinstance(number, int) or isinstance(number, bool) or number < 2:
            return number
        known = {key: size for key, size in self.symbols.items() if isinstance(key, int)}
        if number in known:
            return known[number]
        for one, two in itertools.combinations_with_replacement(known, 2):
            if one * two == number:
                return known[one] * known[two]
        return number


def _viewed(dims: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    """The sizes of a view of a tensor of sizes `dims`: those that are a factor of the axes that they come from."""
    found: list[Any] = []
    i = j = 0
    while i < len(dims) or j < len(sizes):
        first, begin = i, j
        left = right = 1
        while True:
            if left == right and i > first and j > begin:
                break
            if left <= right and i < len(dims):
                left *= hint_of(dims[i])
                i += 1
            elif j < len(sizes):
                right *= sizes[j]
                j += 1
            elif i < len(dims):
                left *= hint_of(dims[i])
                i += 1
            else:
                break
        if left != right:
            raise _NotGeneral
        found += _parted(dims[first:i], sizes[begin:j])
    return found


def _parted(dims: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    """Some axes as others of the same product."""
    import sympy

    whole: Any = math.prod(dims) if dims else 1
    if len(sizes) == 1:
        return [whole]
    atoms: list[Any] = []
    for each in dims:
        if _is_size(each):
            parts = sympy.Mul.make_args(each.node.expr)
            env = each.node.shape_env
            atoms += [
                env.create_symintnode(part, hint=env.guarding_hint_or_throw(part))
                for part in parts
                if part.is_Symbol
            ]
    found: list[Any] = []
    for size in sizes:
        same = next((atom for atom in atoms if hint_of(atom) == size), None)
        if same is not None:
            atoms = [atom for atom in atoms if atom is not same]
        found.append(size if same is None else same)
    if atoms:
        raise _NotGeneral
    return found


def _same_sizes(value: Any, old: Any) -> bool:
    """Are the sizes those that were traced?"""
    import torch

    if isinstance(value, (tuple, list)):
        return len(value) == len(old) and all(map(_same_sizes, value, old))
    if isinstance(value, torch.Tensor):
        return [hint_of(s) for s in value.shape] == [hint_of(s) for s in old.shape]
    return not _is_size(value) or hint_of(value) == hint_of(old)


def _is_size(value: Any) -> bool:
    import torch

    return isinstance(value, torch.SymInt)
