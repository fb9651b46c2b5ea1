"""The walk over an exported program: parameters, sizes and guards, then one binding after the other."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from relaxpy.errors import RelaxError, Span, UsageError
from relaxpy.frontend import site
from relaxpy.frontend.signature import Input, Output, Signature
from relaxpy.frontend.torch.arguments import Leaf, limits, named_sizes, shapes_with_dims
from relaxpy.frontend.torch.arrays import array_of, dtype_of
from relaxpy.frontend.torch.export import INVENTED, Traced, as_module, decomposed, exported
from relaxpy.frontend.torch.guards import Place, places_of_guards, read_guard
from relaxpy.frontend.torch.missing import (
    draws_numbers,
    is_part_of_sizes,
    name_of,
    refuse_missing,
)
from relaxpy.frontend.torch.sizes import Sizes
from relaxpy.frontend.torch.small_sizes import same_at
from relaxpy.frontend.torch.spans import span_of
from relaxpy.frontend.torch.table import OPERATORS, READERS
from relaxpy.frontend.torch.trees import write_tree
from relaxpy.ir import (
    Constant,
    Dim,
    DType,
    Expr,
    IRModule,
    PrimType,
    PrimValue,
    SymVar,
    TensorType,
    Tuple,
    TupleGetItem,
    Var,
)
from relaxpy.ir.accessors import tensor_of
from relaxpy.ir.dim import DimOp, dim_op
from relaxpy.op import astype
from relaxpy.op.block_builder import BlockBuilder
from relaxpy.shape.bounds import LOWER, UPPER, narrowed
from relaxpy.shape.prove import prove

_BRANCHES = frozenset(
    ["aten.gcd.default", "aten.lcm.default"]
    + [f"higher_order.{name}" for name in ("cond", "while_loop", "map_impl", "scan")]
)


@dataclass(frozen=True)
class Imported:
    """A program of torch as IR."""

    mod: IRModule
    params: dict[str, np.ndarray]
    """The weights, in torch's memory where that is contiguous."""
    signature: Signature
    state: dict[str, Any] = field(default_factory=dict)
    """Torch's tensor of each buffer that a call changes, by parameter."""


def from_torch(
    module: Any,
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> tuple[IRModule, dict[str, np.ndarray]]:
    """A torch module, function or `ExportedProgram` as a module of IR, and its weights, which share torch's memory.

        mod, params = relaxpy.from_torch(model, args=(x,), dynamic_shapes={"x": {0: "batch"}})
        exe = relaxpy.build(mod, params=params)

    `args` and `kwargs` are an example call; `dynamic_shapes` says which sizes may vary, as `torch.export` takes it, or
    by names (`"auto"`: all that can). `main` takes the tensors of the arguments in order, then buffers that a call
    changes, then the weights; it returns the tensors of the results in order, then the new values of what a call
    changes: a tuple, unless that is one tensor.

    Raises: UsageError (`torch-export`, `torch-operator`, `torch-size`, `torch-dtype`), with the user's lines.
    """
    found = import_program(module, args, kwargs, dynamic_shapes)
    return found.mod, found.params


def import_program(
    module: Any,
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> Imported:
    """The implementation of `from_torch`, with the signature."""
    named = shapes_with_dims(dynamic_shapes)
    traced = exported(module, args, kwargs, named)
    names: Sequence[Leaf] = []
    own = None
    if traced.program is not module:
        own = as_module(module)
        names = named_sizes(traced.program, own, named)
    same = partial(same_at, traced, own)
    return Importer(traced, names, same, type(module).__name__).run()


_SLICED = 2
"""How many elements a slice may leave out for a bound of its size to be tried."""


class Importer:
    """The function under construction."""

    def __init__(
        self,
        traced: Traced,
        names: Sequence[Leaf],
        same: Callable[[set[str], int], bool],
        title: str,
    ) -> None:
        """`same` tells whether the trace is the same with some of torch's symbols at 0 or 1."""
        self.trace = traced
        self.original = traced.program
        self.program, self.assumed = decomposed(traced)
        self.same = same
        self.leaves = names
        self.title = title if title.isidentifier() else "Module"
        self.builder = BlockBuilder(IRModule(name=self.title))
        self.sizes = Sizes()
        self.values: dict[Any, Any] = {}
        """Node → expression, size, number, or tuple of them."""
        self.named: dict[str, SymVar] = {}
        """The user's names of sizes."""
        self.taken = site.Names()
        self.inputs: list[Input] = []
        self.weights: dict[str, Any] = {}
        """Parameter → torch's tensor."""
        self.state: dict[str, Any] = {}
        self.seed: Var | None = None
        self.own_names = self._own_names()
        self.owners: dict[str, str] = {}
        """Argument of the decomposed program, or path of a buffer that changes → parameter."""
        """The argument that random numbers are drawn with, if there are any."""
        self.streams = 0
        """How many tensors of random numbers there are so far."""
        self.bounds: dict[str, dict[str, int]] = {UPPER: {}, LOWER: {}}
        self.conditions: list[tuple[Dim, str, Span | None]] = []
        self.traced: dict[tuple[frozenset[str], int], bool] = {}
        self.known: dict[SymVar, tuple[int | None, int | None]] = {}

    def run(self) -> Imported:
        refuse_missing(self.program)
        graph = self.program.graph
        placeholders = {node.name: node for node in graph.nodes if node.op == "placeholder"}
        self._define_sizes(placeholders)
        self._read_guards(placeholders)
        arguments, buffers, weights = self._parameters(placeholders)
        used = {id(self.values.get(node)) for node in placeholders.values() if node.users}
        weights = [var for var in weights if id(var) in used]
        params = [*arguments, *buffers, *weights]
        attrs: dict[str, Any] = {"num_input": len(arguments) + len(buffers)}
        attrs |= {key: limits for key, limits in self.bounds.items() if limits}
        outputs: list[Output] = []
        block = nullcontext() if self._branches() else self.builder.dataflow()
        emit = self.builder.emit if self._branches() else self.builder.emit_output
        with self.builder.function("main", params, attrs=attrs), block:
            for condition, text, span in self.conditions:
                self.check(condition, text, span)
            results = self.nodes(graph)
            specs = self.program.graph_signature.output_specs
            pairs = sorted(
                zip(specs, results, strict=True), key=lambda pair: "MUTATION" in pair[0].kind.name
            )
            values = [self._result(spec, value, outputs) for spec, value in pairs]
            found = [value for value in values if value is not None]
            output = found[0] if len(found) == 1 else Tuple(tuple(found))
            self.builder.emit_func_output(emit(output))
        kept = {var.name for var in weights}
        return Imported(
            self.builder.get(),
            {name: array_of(tensor) for name, tensor in self.weights.items() if name in kept},
            self._signature(outputs),
            self.state,
        )

    def _branches(self) -> bool:
        """Are there branches or loops, which no dataflow block has?"""
        return any(
            name_of(n) in _BRANCHES for n in self.program.graph.nodes if n.op == "call_function"
        )

    # Sizes

    def _define_sizes(self, placeholders: Mapping[str, Any]) -> None:
        """Name the symbols of the arguments' sizes."""
        import torch

        leaves = iter(self.leaves)
        for spec in self.program.graph_signature.input_specs:
            if spec.kind.name != "USER_INPUT":
                continue
            leaf = next(leaves, Leaf())
            node = placeholders[spec.arg.name]
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                sizes, dims = list(value.shape), leaf.dims
                defaults = [f"{self.own_names[node.name]}_{axis}" for axis in range(len(sizes))]
            elif isinstance(value, torch.SymInt):
                sizes, dims, defaults = [value], {}, [self.own_names[node.name]]
            else:
                continue
            for axis, size in enumerate(sizes):
                if isinstance(size, torch.SymInt):
                    signed = isinstance(value, torch.SymInt)
                    self.define(size.node.expr, dims.get(axis), defaults[axis], signed)
        for symbol, interval in self.program.range_constraints.items():
            self._bound(symbol, interval)

    def define(self, expr: Any, given: Any, default: str, signed: bool = False) -> None:
        """Define the symbols of a size. `given` is torch's `Dim` for it, which has a name."""
        named = None if given is None else self._named(given)
        unknown = [s for s in sorted(expr.free_symbols, key=str) if s.name not in self.sizes.known]
        for symbol in unknown[1:]:
            self.sizes.define(symbol.name, SymVar(self.fresh(symbol.name)).dim)
        if not unknown:
            if named is not None and named != self.sizes.expr(expr):
                self.tie(dim_op("eq", named, self.sizes.expr(expr)))
            return
        symbol = unknown[0]
        slope, base = expr.coeff(symbol), expr.subs(symbol, 0)
        if expr == symbol:
            own = SymVar(self.fresh(default), signed=signed).dim if named is None else named
            self.sizes.define(symbol.name, own)
        elif named is not None and slope.is_Integer and expr == slope * symbol + base:
            rest = named - self.sizes.expr(base)  # `batch`, which is s1 + 1
            whole = rest.divide_exact(int(slope))
            self.sizes.define(symbol.name, rest // int(slope) if whole is None else whole)
        else:
            self.sizes.define(symbol.name, SymVar(self.fresh(symbol.name)).dim)

    def _named(self, given: Any) -> Dim:
        """A size with a name, or one derived of it."""
        root = getattr(given, "root", given)
        if root.__name__ not in self.named:
            var = self.named[root.__name__] = SymVar(self.fresh(root.__name__))
            low, high = limits(root)
            if low is not None and low >= INVENTED:
                self.bounds[LOWER][var.name] = low
            if high is not None:
                self.bounds[UPPER][var.name] = high
        dim = self.named[root.__name__].dim
        return dim if root is given else given.fn(dim)

    def _bound(self, symbol: Any, limits: Any) -> None:
        """Declare the range of a symbol; the lower bound that torch invents is none, unless the trace stands on it."""
        from torch.utils._sympy.numbers import int_oo

        if not symbol.is_Symbol or symbol.name not in self.sizes.known:
            return
        dim = self.sizes.known[symbol.name]
        var = dim.vars[0] if dim.vars else None
        if var is None:
            return
        shift = (dim - var.dim).value
        low = None if limits.lower in (int_oo, -int_oo) else int(limits.lower)
        high = None if limits.upper in (int_oo, -int_oo) else int(limits.upper)
        if low is not None and not self.trace.least:
            low = self._least(symbol.name, low)
        if shift is None:
            return
        if high is not None and high < 2**62:
            self.bounds[UPPER][var.name] = high - shift
        if low is not None:
            self.bounds[LOWER][var.name] = low - shift
        self.known[var] = (
            None if low is None else low - shift,
            None if high is None else high - shift,
        )

    def _least(self, symbol: str, low: int) -> int | None:
        """The lower bound that the trace needs; None: none. Of `x[1:]` torch says that it has two elements, too: such
        bounds are tried. What a line of the user's asks is a condition, which is told with the line."""
        if low <= INVENTED:
            return None
        places = places_of_guards(self.original, self.trace.comparisons)
        for condition in [place.condition for place in places if place.span is not None]:
            names = [each.name for each in condition.free_symbols]
            if names == [symbol] and not condition.subs(condition.free_symbols.pop(), low - 1):
                return None
        if low <= INVENTED + _SLICED:
            while low and self._same(frozenset([symbol]), low - 1):
                low -= 1
        return None if low <= INVENTED else low

    def _read_guards(self, placeholders: Mapping[str, Any]) -> None:
        """Tie sizes that are equal, and keep the conditions that are to be checked."""
        shapes = self._guard_inputs(placeholders)
        paths = sorted(shapes, key=len, reverse=True)
        texts = {text: text for text in self.original._guards_code}
        for i, path in enumerate(paths):
            texts = {text: code.replace(path, f"_input{i}_") for text, code in texts.items()}

        def conditions() -> dict[str, Dim]:
            inputs = {f"_input{i}_": self._sizes_of(shapes[path]) for i, path in enumerate(paths)}
            found = {text: read_guard(code, inputs) for text, code in texts.items()}
            return {text: condition for text, condition in found.items() if condition is not None}

        for condition in conditions().values():
            self.tie(condition)
        places = self._guard_places()
        users = {c: str(p.condition) for c, p in places.items() if p.span is not None}
        for condition, text in {**users, **{c: t for t, c in conditions().items()}}.items():
            place = places.get(condition)
            needed = condition if place is None else self._needed(condition, place)
            if needed is None:
                continue
            self.conditions.append((needed, text, None if place is None else place.span))
            self._keep_number(needed)
        known = {condition for condition, _, _ in self.conditions}
        for expr in dict.fromkeys(self.assumed):
            condition = self.sizes.expr(expr)
            needed = self._needed(condition, Place(expr, "", None))
            if needed is not None and needed not in known:
                self.conditions.append((needed, str(condition), None))

    def _keep_number(self, condition: Dim) -> None:
        """Take a size that is checked to be a number to be that number: what a linear layer behind `flatten` reads has
        a known width then."""
        atom = condition.atom
        if not isinstance(atom, DimOp) or atom.op != "eq":
            return
        for one, other in (atom.args, atom.args[::-1]):
            if one.value is None and other.value is not None:
                self.sizes.checked[one] = other

    def _needed(self, condition: Dim, place: Place) -> Dim | None:
        """What of a condition has to hold; None: nothing. Of torch's own conditions, those that two numbers differ tell
        layouts in memory apart, and those that hold from 2 on keep torch from what is different for sizes of 0 and 1;
        operators here have one layout, and are the same for all sizes. A user's condition that holds from 2 on decides
        nothing at a smaller size if the trace is the same there, nor does torch's that a slice has 2 elements."""
        if prove(condition, self._ranges(condition)):
            return None
        large = {var: narrowed(self.known.get(var), (2, None)) for var in condition.vars}
        is_small = prove(condition, large)
        if place.span is None and (place.is_inequality or is_small):
            return None
        one = len(condition.vars) == 1
        if not is_small and (place.span is not None or not one or not self._is_bound(condition)):
            return condition
        symbols = frozenset(symbol.name for symbol in place.condition.free_symbols)
        values = range(INVENTED + (0 if is_small else _SLICED))
        wrong = [v for v in values if not condition.evaluate(dict.fromkeys(condition.vars, v))]
        served = [value for value in wrong if self._same(symbols, value)]
        if len(served) == len(wrong):
            return None
        for value in served:
            for var in condition.vars if one else ():
                condition = dim_op("or", condition, dim_op("eq", var, value))
        return condition

    def _is_bound(self, condition: Dim) -> bool:
        """Does it hold for all sizes but the smallest?"""
        large = {
            var: narrowed(self.known.get(var), (INVENTED + _SLICED, None)) for var in condition.vars
        }
        return prove(condition, large)

    def _same(self, symbols: frozenset[str], value: int) -> bool:
        key = symbols, value
        if key not in self.traced:
            self.traced[key] = self.same(set(symbols), value)
        return self.traced[key]

    def _guard_places(self) -> dict[Dim, Place]:
        """Condition → where torch came upon it. Nothing is known of a program from a file."""
        found: dict[Dim, Place] = {}
        for place in places_of_guards(self.original, self.trace.comparisons):
            with suppress(UsageError):
                found.setdefault(self.sizes.expr(place.condition), place)
        return found

    def _ranges(self, condition: Dim) -> Any:
        return {var: self.known[var] for var in condition.vars if var in self.known}

    def _guard_inputs(self, placeholders: Mapping[str, Any]) -> dict[str, Any]:
        """Text of an argument in guards → what torch knows of it."""
        from torch.utils import _pytree as pytree

        spec = self.original.call_spec.in_spec
        args, kwargs = self.original.example_inputs or pytree.tree_unflatten(
            range(spec.num_leaves), spec
        )
        names = _argument_names(self.original)
        combined = {**dict(zip(names, args, strict=False)), **kwargs}
        if len(args) > len(names):
            combined |= {"args": args[len(names) :]}
        paths = [path for path, _ in pytree.tree_flatten_with_path(combined)[0]]
        users = [
            placeholders[s.arg.name].meta.get("val")
            if s.arg.name in placeholders
            else getattr(s.arg, "value", None)
            for s in self.program.graph_signature.input_specs
            if s.kind.name == "USER_INPUT"
        ]
        found = {"L" + pytree.keystr(path): v for path, v in zip(paths, users, strict=False)}
        # Those of `*tensors` are `tensors_0`, … in the signature.
        starred = {_starred(path): value for path, value in found.items()}
        return {**starred, **found}

    def _sizes_of(self, value: Any) -> Any:
        import torch

        if isinstance(value, torch.Tensor):
            return [self.sizes.of(size) for size in value.shape]
        return self.sizes.of(value) if isinstance(value, torch.SymInt) else value

    def tie(self, condition: Dim) -> None:
        """Make an equality of sizes true by definition, where one of them is a variable of its own."""
        atom = condition.atom
        if not isinstance(atom, DimOp) or atom.op != "eq":
            return
        for one, other in (atom.args, atom.args[::-1]):
            var = one.symbol
            if (
                var is not None
                and not var.signed
                and var not in other.vars
                and (other.symbol is not None or other.value is not None)
            ):
                self.sizes.substitute(var, other)
                for limits in self.bounds.values():
                    bound = limits.pop(var.name, None)
                    if bound is not None and other.symbol is not None:
                        limits.setdefault(other.symbol.name, bound)
                return

    # Parameters

    def fresh(self, name: str) -> str:
        return self.taken.fresh(name)

    def _parameters(
        self, placeholders: Mapping[str, Any]
    ) -> tuple[list[Var], list[Var], list[Var]]:
        """The parameters of `main`: arguments, buffers that change, weights."""
        import torch

        signature = self.program.graph_signature
        changed = {
            *signature.buffers_to_mutate.values(),
            *signature.parameters_to_mutate.values(),  # an Embedding with max_norm
        }
        arguments: list[Var] = []
        buffers: list[Var] = []
        buffer_inputs: list[Input] = []
        weights: list[Var] = []
        shared: dict[Any, Var] = {}
        for spec in signature.input_specs:
            node = placeholders.get(spec.arg.name)
            value = node.meta.get("val") if node is not None else None
            if spec.kind.name == "USER_INPUT":
                if isinstance(value, torch.Tensor):
                    var = Var(
                        self.fresh(self.own_names[spec.arg.name]), self.annotation(value, node)
                    )
                    kind = "tensor"
                elif isinstance(value, torch.SymInt):
                    dim = self.sizes.of(value)
                    var = Var(
                        self.fresh(f"{self.own_names[spec.arg.name]}_value"), PrimType("int64", dim)
                    )
                    self.values[node] = dim
                    arguments.append(var)
                    self.inputs.append(Input("int", var.name))
                    continue
                else:
                    constant = getattr(spec.arg, "value", value)
                    self.values[node] = constant
                    self.inputs.append(Input("constant", self.own_names[spec.arg.name], constant))
                    continue
                self.values[node] = var
                self.owners[spec.arg.name] = var.name
                arguments.append(var)
                self.inputs.append(Input(kind, var.name))
                continue
            tensor = self._stored(spec)
            if spec.kind.name == "CONSTANT_TENSOR" and tensor.nbytes <= site.WRITTEN:
                self.values[node] = Constant(array_of(tensor))
                continue
            key = _memory(tensor)
            if spec.target in changed:
                var = Var(self.fresh(spec.target), self.annotation(tensor, node))
                buffers.append(var)
                buffer_inputs.append(Input("buffer", var.name, spec.target))
                self.state[var.name] = tensor
                self.owners[spec.target] = var.name
            elif key in shared:
                var = shared[key]
            else:
                var = shared[key] = Var(self.fresh(spec.target), self.annotation(tensor, node))
                weights.append(var)
                self.weights[var.name] = tensor
            self.values[node] = var
        if draws_numbers(self.program):
            self.seed = Var(self.fresh("seed"), TensorType((), "int64"))
            arguments.append(self.seed)
            self.inputs.append(Input("seed", self.seed.name))
        self.inputs += buffer_inputs
        return arguments, buffers, weights

    def _stored(self, spec: Any) -> Any:
        """The tensor of a parameter, buffer or constant."""
        if spec.kind.name not in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
            raise UsageError(
                "torch-export",
                f"the program has an input of the kind {spec.kind.name.lower()}: {spec.target}",
                help="only tensors and numbers are taken",
            )
        for table in (self.program.state_dict, self.program.constants):
            if spec.target in table:
                return table[spec.target]
        raise UsageError("torch-export", f"the program has no tensor {spec.target!r}")

    def annotation(self, value: Any, node: Any = None) -> TensorType:
        """The annotation of a tensor of torch."""
        span = span_of(node) if node is not None else None
        return TensorType([self.size(s) for s in value.shape], dtype_of(value, span))

    def size(self, value: Any) -> Dim:
        return self.sizes.of(value)

    # Bindings

    def nodes(self, graph: Any) -> Sequence[Any]:
        """Bind the nodes of a graph whose placeholders are bound; return the values of its outputs."""
        for node in graph.nodes:
            if node.op == "call_function":
                self.values[node] = self._node(node)
            elif node.op == "get_attr":
                self.values[node] = _attribute(graph.owning_module, node.target)
            elif node.op == "output":
                found = node.args[0]
                return [
                    self.value(a) for a in (found if isinstance(found, (list, tuple)) else [found])
                ]
        return ()

    def subgraph(self, module: Any, values: Sequence[Any]) -> list[Any]:
        """Bind the nodes of a nested graph, called with these values."""
        places = [node for node in module.graph.nodes if node.op == "placeholder"]
        self.values.update(zip(places, values, strict=True))
        return list(self.nodes(module.graph))

    def value(self, arg: Any) -> Any:
        """The value of an argument of a node."""
        import torch

        if isinstance(arg, torch.fx.Node):
            return self.values[arg]
        if isinstance(arg, (list, tuple)):
            return [self.value(each) for each in arg]
        return arg

    def _node(self, node: Any) -> Any:
        import torch

        value = node.meta.get("val")
        is_size = isinstance(value, (torch.SymInt, torch.SymBool)) and self._is_known(value)
        if is_size and name_of(node) not in READERS:
            return self.sizes.of(value)
        if is_part_of_sizes(node):
            return None
        span = span_of(node)
        rule, args = OPERATORS[name_of(node)], self._arguments(node)
        try:
            return self.bound(rule(Site(self, node, span), *args), value, node, span)
        except RelaxError as error:
            raise error.located(span) from None
        except TypeError as error:
            computed = _computed_number(node, args)
            if computed is None:
                raise
            raise UsageError(
                "torch-operator",
                f"{name_of(node)}: {computed} is computed in the program, and must be a number here",
                span=span,
            ) from error

    def _is_known(self, value: Any) -> bool:
        return not self.sizes.unknown(value)

    def _arguments(self, node: Any) -> list[Any]:
        """The arguments in the order of the operator's schema, with defaults."""
        import torch

        args = [self.value(arg) for arg in node.args]
        if not isinstance(node.target, torch._ops.OpOverload):
            return [*args, *(self.value(arg) for arg in node.kwargs.values())]
        for parameter in node.target._schema.arguments[len(args) :]:
            given = node.kwargs.get(parameter.name, parameter.default_value)
            args.append(self.value(given))
        return args

    def bound(self, result: Any, value: Any, node: Any, span: Span | None) -> Any:
        """Bind what a rule returns, with the dtype and shape that torch knows."""
        import torch

        if isinstance(value, (tuple, list)):
            if isinstance(result, (tuple, list)):
                parts: Sequence[Any] = result
            else:
                whole = self.builder.emit(result, node.name, span=span)
                parts = [TupleGetItem(whole, i) for i in range(len(value))]
            return tuple(
                None if part is None else self.bound(part, each, node, span)
                for part, each in zip(parts, value, strict=True)
            )
        if not isinstance(value, torch.Tensor) or not isinstance(result, Expr):
            return result
        return self.tensor(result, value, node.name, span)

    def tensor(self, expr: Expr, value: Any, name: str, span: Span | None) -> Expr:
        """Bind a tensor. Sizes that only the run knows are defined where they first occur."""
        var = expr if isinstance(expr, Var) else self.builder.emit(expr, name, span=span)
        dtype = dtype_of(value, span)
        found = tensor_of(var)
        if found.dtype is not None and found.dtype != dtype:
            var = self.builder.emit(astype(var, dtype), name, span=span)
        new = [s for s in value.shape if isinstance(s, torch_symint()) and not self._is_known(s)]
        if not new and found.dims is not None:
            return var
        for size in new:
            self.define(size.node.expr, None, str(size.node.expr))
        return self.builder.match_cast(var, self.annotation(value), name, span=span)

    def check(self, condition: Dim, text: str, span: Span | None) -> None:
        """Check a condition on sizes when the program runs, unless it is proved."""
        given = self._ranges(condition)
        site.check(self.builder, condition, text, given, "torch-size", span)

    # Results

    def _result(self, spec: Any, value: Any, outputs: list[Output]) -> Expr | None:
        kind = spec.kind.name
        index = sum(output.index >= 0 for output in outputs)
        if kind in ("BUFFER_MUTATION", "PARAMETER_MUTATION", "USER_INPUT_MUTATION"):
            outputs.append(Output("update", index, self.owners[spec.target]))
            return value
        if kind != "USER_OUTPUT":
            raise UsageError(
                "torch-export",
                f"the program has a result of the kind {kind.lower().replace('_', ' ')}",
                help="export the module in eval mode, without gradients",
            )
        argument = type(spec.arg).__name__
        if isinstance(value, Expr):
            outputs.append(Output("float" if argument == "SymFloatArgument" else "tensor", index))
            return value
        if isinstance(value, Dim):
            outputs.append(Output("bool" if argument == "SymBoolArgument" else "number", index))
            return PrimValue(value)
        outputs.append(Output("constant", value=value))
        return None

    def _own_names(self) -> dict[str, str]:
        """Argument of the decomposed program → its name in the user's."""
        decomposed, original = (
            [
                spec.arg.name
                for spec in program.graph_signature.input_specs
                if spec.kind.name != "TOKEN"
            ]
            for program in (self.program, self.original)
        )
        return dict(zip(decomposed, original, strict=True))

    def _signature(self, outputs: Sequence[Output]) -> Signature:
        spec = self.original.call_spec
        names = tuple(_argument_names(self.original))
        return Signature(
            tuple(self.inputs),
            tuple(outputs),
            write_tree(spec.in_spec),
            write_tree(spec.out_spec),
            names,
        )


def torch_symint() -> type:
    import torch

    return torch.SymInt


def _computed_number(node: Any, args: Sequence[Any]) -> str | None:
    """The parameter of an operator that is a number, where the program computes one."""
    for parameter, arg in zip(node.target._schema.arguments, args, strict=False):
        if str(parameter.type) in ("float", "number") and isinstance(arg, Expr):
            return parameter.name
    return None


def _argument_names(program: Any) -> Sequence[str]:
    """The names of the positional parameters of the user's forward, as far as torch kept them."""
    for module in program.module_call_graph:
        if module.fqn == "" and module.signature is not None:
            return module.signature.forward_arg_names or ()
    return ()


def _starred(path: str) -> str:
    """The path `L['x'][0]` of `L['x_0']`."""
    return re.sub(r"^L\['(\w+)_(\d+)'\]", r"L['\1'][\2]", path)


def _attribute(module: Any, path: str) -> Any:
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    for part in path.split("."):
        module = getattr(module, part)
    if not isinstance(module, torch.Tensor):
        return module
    with (
        unset_fake_temporarily()
    ):  # torch.compile calls its backend in a mode that refuses real tensors
        return Constant.shared(array_of(module))


def _memory(tensor: Any) -> Any:
    """Equal for tensors that are the same memory."""
    if tensor.numel() == 0:
        return id(tensor)
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


class Site(site.Site):
    """A call of an operator of torch."""

    def __init__(self, importer: Importer, node: Any, span: Span | None) -> None:
        super().__init__(importer.builder, node.name, span)
        self.importer = importer
        self.node = node

    @property
    def val(self) -> Any:
        """Torch's knowledge of the result."""
        return self.node.meta["val"]

    @property
    def dtype(self) -> DType:
        """The dtype of the (first) result."""
        value = self.val
        return dtype_of(value[0] if isinstance(value, (tuple, list)) else value, self.span)

    @property
    def shape(self) -> list[Dim]:
        """The sizes of the (first) result."""
        value = self.val
        return self.sizes((value[0] if isinstance(value, (tuple, list)) else value).shape)

    def sizes(self, values: Sequence[Any]) -> list[Dim]:
        """Sizes of torch as dimensions."""
        return [each if isinstance(each, Dim) else self.importer.size(each) for each in values]

    def dtype_of_val(self, value: Any) -> DType:
        """The dtype of a tensor of torch."""
        return dtype_of(value, self.span)

    def check(self, condition: Dim, text: str) -> None:
        """Check a condition on sizes when the program runs."""
        self.importer.check(condition, text, self.span)
