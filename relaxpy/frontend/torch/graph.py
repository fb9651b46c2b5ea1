"""A graph that `torch.compile` hands to a backend, as IR: `import_graph`.

Such a graph is functional, in core operators and those that the table knows, and its sizes are symbols whose guards
torch checks before each call. Its inputs are flat: weights, sizes, tensors. Results that are inputs, views of inputs
or numbers of their sizes are not computed by the program: the caller makes them with torch, in the memory of the
inputs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from relaxpy.errors import UsageError
from relaxpy.frontend.site import Names
from relaxpy.frontend.torch.general import general, raw_sizes
from relaxpy.frontend.torch.importer import Importer
from relaxpy.frontend.torch.missing import draws_numbers, name_of, refuse_missing
from relaxpy.frontend.torch.sizes import Sizes
from relaxpy.frontend.torch.strides import Layout, layout_of
from relaxpy.ir import Expr, IRModule, PrimType, PrimValue, SymVar, TensorType, Tuple, Var
from relaxpy.op import permute_dims
from relaxpy.op.block_builder import BlockBuilder
from relaxpy.shape.bounds import LOWER, UPPER

VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        "t.default", "transpose.int", "permute.default", "view.default", "expand.default", "alias.default",
        "unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims", "slice.Tensor", "select.int",
        "detach.default", "as_strided.default", "unfold.default", "diagonal.default", "view.dtype",
        "split_with_sizes.default", "unbind.int",
    )
) | {"operator.getitem"}  # fmt: skip
"""Operators whose result is the memory of their first argument, or of a part of it."""


@dataclass(frozen=True)
class Result:
    """A result of the graph."""

    kind: Literal["computed", "input", "view", "constant"]
    index: int = -1
    """Which result of `main`, which input of the graph, or which result of `views`."""
    value: Any = None
    """The value of a constant."""


@dataclass(frozen=True)
class ImportedGraph:
    """A graph as IR. `main` takes inputs of the graph, a seed if random numbers are drawn, and weights."""

    mod: IRModule | None
    """None: nothing is computed."""
    inputs: tuple[int, ...]
    """The inputs of the graph that `main` takes first, in order: tensors, and sizes that no tensor has."""
    weights: Mapping[str, int]
    """The weights, by parameter."""
    orders: Mapping[int, tuple[int, ...]]
    """The inputs that `main` takes with other axes, by a permutation that makes them contiguous."""
    draws: bool
    """Is there a seed?"""
    layouts: tuple[Layout | None, ...]
    """How the results of `main` lie in memory; None: a number."""
    results: tuple[Result, ...]
    views: Any
    """A module of torch: inputs of the graph, then those results of `main` that have views → results that are views of
    them, and numbers; None: there are none."""
    viewed: tuple[int, ...]
    """The results of `main` that have views."""
    symbols: Mapping[str, int]
    """The input of the graph that is a symbol of `Layout.strides`."""


def import_graph(
    graph: Any, weights: Collection[int] = (), names: Sequence[str] = (), widen: bool = False
) -> ImportedGraph:
    """A graph of `aot_autograd` as IR. `weights` are the inputs that are the same tensors at every call, `names` the
    names of all inputs. `widen`: sizes of inputs vary, if they may, also if torch traced the graph for one size
    (`general`).

    Raises: UsageError (`torch-operator`, `torch-size`, `torch-dtype`, `torch-export`), with the user's lines.
    """
    return _GraphImporter(graph, weights, names, widen).imported()


class _GraphImporter(Importer):
    """The function under construction."""

    def __init__(
        self, graph: Any, weights: Collection[int], names: Sequence[str], widen: bool
    ) -> None:
        self.whole = graph
        self.given = list(graph.graph.find_nodes(op="placeholder"))
        wide = general(graph, weights) if widen else None
        self.wide, self.moved = wide or (graph, {node: node for node in graph.graph.nodes})
        self.places = [self.moved[node] for node in self.given]
        self.static = weights
        self.names = [readable(name) for name in names]
        if len(names) != len(self.given):
            self.names = [node.name for node in self.given]
        self.builder = BlockBuilder(IRModule(name="Graph"))
        self.sizes = Sizes()
        self.values = {}
        self.taken = Names()
        self.seed = None
        self.streams = 0
        self.known = {}
        self.bounds = {UPPER: {}, LOWER: {}}

    def imported(self) -> ImportedGraph:
        graph = self.whole.graph
        (output,) = graph.find_nodes(op="output")
        found = list(output.args[0])
        nodes = list(dict.fromkeys(each for each in found if hasattr(each, "meta")))
        viewed = _viewed(graph, nodes)
        outside = _outside(graph, viewed)
        computed = list(dict.fromkeys([*viewed, *(each for each in nodes if each not in outside)]))
        views = [n for n in nodes if n in outside and n.op != "placeholder" and n not in viewed]
        layouts = [layout_of(n.meta["val"]) if _is_tensor(n) else None for n in computed]

        def result(each: Any) -> Result:
            if each in computed:
                return Result("computed", computed.index(each))
            if each in views:
                return Result("view", views.index(each))
            if each in nodes:
                return Result("input", self.given.index(each))
            return Result("constant", value=each)

        results = tuple(map(result, found))
        made = _part(self.whole, views, viewed) if views else None
        if not computed:
            return ImportedGraph(None, (), {}, {}, False, (), results, made, (), {})
        with raw_sizes():
            inner = _part(self.wide, [self.moved[node] for node in computed], checks=True)
        self.program = _Program(inner)
        refuse_missing(self.program)
        places = list(inner.graph.find_nodes(op="placeholder"))
        tensors = [i for i, place in enumerate(places) if place.users and _is_tensor(place)]
        orders = {i: o for i in tensors if (o := layout_of(places[i].meta["val"]).order)}
        weights = [i for i in tensors if i in self.static]
        inputs = [i for i in tensors if i not in self.static]
        self._name_sizes(tensors)
        free = self._free_sizes(inner)
        params = [self._parameter(i, orders.get(i)) for i in inputs]
        for i, symbol in free.items():
            params.append(Var(self.fresh(self.names[i]), PrimType("int64", symbol.dim)))
        draws = draws_numbers(self.program)
        if draws:
            self.seed = Var(self.fresh("seed"), TensorType((), "int64"))
            params.append(self.seed)
        packed = [self._parameter(i, orders.get(i)) for i in weights]
        attrs: dict[str, Any] = {"num_input": len(params)}
        attrs |= {key: limits for key, limits in self.bounds.items() if limits}
        branches = self._branches()
        block = nullcontext() if branches else self.builder.dataflow()
        emit = self.builder.emit if branches else self.builder.emit_output
        with self.builder.function("main", [*params, *packed], attrs=attrs), block:
            given = [*zip(inputs, params, strict=False), *zip(weights, packed, strict=True)]
            for i, var in given:
                order = orders.get(i)
                back = None if order is None else [order.index(axis) for axis in range(len(order))]
                self.values[places[i]] = self._in_order(var, back)
            for place in places:
                self._place(place)
            values = [
                self._in_order(value, None if layout is None else layout.order)
                for value, layout in zip(self.nodes(inner.graph), layouts, strict=True)
            ]
            values = [v if isinstance(v, Expr) else PrimValue(v) for v in values]
            value = values[0] if len(values) == 1 else Tuple(tuple(values))
            self.builder.emit_func_output(emit(value))
        return ImportedGraph(
            self.builder.get(),
            (*inputs, *free),
            {var.name: i for var, i in zip(packed, weights, strict=True)},
            orders,
            draws,
            tuple(layouts),
            results,
            made,
            tuple(range(len(viewed))),
            _symbols(self.given, layouts),
        )

    def value(self, arg: Any) -> Any:
        return self.size(arg) if _is_size(arg) else super().value(arg)

    # Sizes

    def _name_sizes(self, tensors: Iterable[int]) -> None:
        """Define the symbols that are sizes of tensors."""
        for i in tensors:
            for axis, size in enumerate(self.places[i].meta["val"].shape):
                if not isinstance(size, int) and size.node.expr.is_Symbol:
                    self._define(size, f"{self.names[i]}_{axis}")

    def _define(self, size: Any, name: str) -> SymVar | None:
        """Define a symbol, with its range. None: it is defined already."""
        symbol = size.node.expr
        if symbol.name in self.sizes.known:
            return None
        limits = size.node.shape_env.var_to_range[symbol]
        low, high = _number(limits.lower), _number(limits.upper)
        var = SymVar(self.fresh(name), signed=low is None or low < 0)
        self.sizes.define(symbol.name, var.dim)
        self.known[var] = low, high
        if low is not None and low > 0:
            self.bounds[LOWER][var.name] = low
        if high is not None:
            self.bounds[UPPER][var.name] = high
        return var

    def _free_sizes(self, inner: Any) -> dict[int, SymVar]:
        """The inputs that are symbols which no tensor has as a size of its own, but the graph needs."""
        needed = {
            symbol.name
            for node in inner.graph.nodes
            if node.op != "placeholder" or node.users
            for size in _sizes_of(node.meta.get("val"))
            for symbol in size.node.expr.free_symbols
        }
        found: dict[int, SymVar] = {}
        for i, place in enumerate(self.places):
            value = place.meta.get("val")
            if _is_size(value) and value.node.expr.is_Symbol and value.node.expr.name in needed:
                var = self._define(value, self.names[i])
                if var is not None:
                    found[i] = var
        return found

    # Parameters

    def _parameter(self, index: int, order: Sequence[int] | None) -> Var:
        """The parameter of a tensor, its axes in the order of its memory."""
        value = self.places[index].meta["val"]
        annotation = self.annotation(value)
        if order is not None:
            dims = [self.size(value.shape[axis]) for axis in order]
            annotation = TensorType(dims, annotation.dtype)
        return Var(self.fresh(self.names[index]), annotation)

    def _place(self, place: Any) -> None:
        """The value of an input that is no tensor."""
        value = place.meta.get("val")
        if place in self.values or not place.users:
            return
        if not _is_size(value) and not isinstance(value, (int, float, bool, str, type(None))):
            raise UsageError(
                "torch-export",
                f"the graph has an input of the kind {type(value).__name__}: {place.name}",
                help="only tensors and numbers are taken",
            )
        self.values[place] = self.size(value) if _is_size(value) else value

    def _in_order(self, value: Any, order: Sequence[int] | None) -> Any:
        return value if order is None else self.builder.emit(permute_dims(value, list(order)))


@dataclass(frozen=True)
class _Program:
    """A graph as the parts of the importer take it."""

    graph_module: Any

    @property
    def graph(self) -> Any:
        return self.graph_module.graph


def readable(name: str) -> str:
    """The user's name of an input, of torch's: `l_self_modules_0_parameters_weight_` is `_0_weight`."""
    name = re.sub(r"^[lLgG]_|_$", "", name)
    return re.sub(r"self_|modules_|parameters_|buffers_", "", name)


def _outside(graph: Any, given: Iterable[Any] = ()) -> set[Any]:
    """The nodes that are inputs, or among `given`, views of them, or numbers computed of them."""
    import torch

    found: set[Any] = set(given)
    for node in graph.nodes:
        if node.op == "placeholder":
            found.add(node)
        elif node.op == "call_function" and found.issuperset(node.all_input_nodes):
            value = node.meta.get("val")
            is_number = _is_size(value) or isinstance(value, (int, float, torch.SymFloat))
            if node.all_input_nodes and (is_number or name_of(node) in VIEWS):
                found.add(node)
    return found


def _viewed(graph: Any, results: Sequence[Any]) -> list[Any]:
    """The computed tensors whose memory several results share, or one with gaps. They are results of the program, and
    these are views of them."""
    outside = _outside(graph)
    found: dict[Any, list[Any]] = {}
    for node in results:
        if node in outside or not _is_tensor(node):
            continue
        whole = node
        while _is_view(whole):
            whole = whole.args[0]
        found.setdefault(whole, []).append(node)
    return [
        whole
        for whole, own in found.items()
        if len(own) > 1 or (own != [whole] and layout_of(own[0].meta["val"]).strides is not None)
    ]


def _is_view(node: Any) -> bool:
    """Is a node the memory of its first argument? A part of several results is, if they are views themselves."""
    while node.op == "call_function" and name_of(node) == "operator.getitem":
        node = node.args[0]
    return node.op == "call_function" and name_of(node) in VIEWS


def _part(
    whole: Any, results: Sequence[Any], given: Sequence[Any] = (), checks: bool = False
) -> Any:
    """The part of a graph that computes these nodes of its inputs and the nodes `given`, and with `checks` what it
    asserts; it takes all inputs, then `given`."""
    import torch

    wanted = list(results)
    if checks:
        wanted += [n for n in whole.graph.nodes if "_assert_" in str(n.target)]
    needed: set[Any] = set(given)
    while wanted:
        node = wanted.pop()
        if node not in needed:
            needed.add(node)
            wanted += node.all_input_nodes
    graph = torch.fx.Graph()
    copies: dict[Any, Any] = {}
    for node in whole.graph.find_nodes(op="placeholder"):
        copies[node] = graph.node_copy(node, copies.__getitem__)
    for node in given:
        copies[node] = graph.placeholder(node.name)
    for node in whole.graph.nodes:
        if node in needed and node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output([copies[node] for node in results])
    return torch.fx.GraphModule(whole, graph)


def _symbols(places: Sequence[Any], layouts: Iterable[Layout | None]) -> dict[str, int]:
    """The input that is each symbol of the strides of these layouts."""
    exprs = [s for each in layouts if each is not None for s in each.strides or ()]
    wanted = {v.name for expr in exprs if not isinstance(expr, int) for v in expr.free_symbols}
    values = [place.meta.get("val") for place in places]
    return {
        value.node.expr.name: i
        for i, value in enumerate(values)
        if _is_size(value) and value.node.expr.is_Symbol and value.node.expr.name in wanted
    }


def _sizes_of(value: Any) -> Iterable[Any]:
    """The sizes that vary in a value of torch: of a tensor, or itself."""
    import torch

    if isinstance(value, (tuple, list)):
        return [size for each in value for size in _sizes_of(each)]
    sizes = value.shape if isinstance(value, torch.Tensor) else [value]
    return [size for size in sizes if _is_size(size)]


def _is_tensor(node: Any) -> bool:
    import torch

    return isinstance(node.meta.get("val"), torch.Tensor)


def _is_size(value: Any) -> bool:
    import torch

    return isinstance(value, torch.SymInt)


def _number(limit: Any) -> int | None:
    """A bound of a range, if it is one."""
    from torch.utils._sympy.numbers import int_oo

    return None if limit in (int_oo, -int_oo) or abs(limit) >= 2**62 else int(limit)
