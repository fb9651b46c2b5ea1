"""Cut regions of dataflow blocks out into separate functions; shared by the fusion passes.

A region is a set of bindings of one block. It becomes a private function of the module, with the attributes that the
pass chooses. Its parameters are the values that the region uses, and a shape with the symbols that are not a dimension
of any parameter (paper §4.1, figure 8). The region is replaced by a call of the function.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relaxpy.analysis.removable import Removable
from relaxpy.analysis.scope import dependencies, uses_of
from relaxpy.ir.annotation import Annotation, PrimType, TupleType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import (
    Binding,
    Call,
    Constant,
    DataflowBlock,
    DataflowVar,
    Expr,
    Function,
    GlobalVar,
    PrimValue,
    SeqExpr,
    ShapeExpr,
    Tuple,
    TupleGetItem,
    Var,
    VarBinding,
)
from relaxpy.ir.module import BaseFunc, IRModule
from relaxpy.ir.names import FreshNames
from relaxpy.ir.op import Operator
from relaxpy.ir.structural import structural_equal, structural_hash
from relaxpy.ir.visitor import used_symbols
from relaxpy.op.deduce import deduce
from relaxpy.shape.defined import matched_dims
from relaxpy.transform.dataflow_blocks import change_blocks
from relaxpy.transform.fresh_symbols import FreshSymbols, carriers

PRIMITIVE = "Primitive"
"""Marks the functions that FuseTensorIR merges into one tensor program (TVM's name)."""
COMPOSITE = "Composite"
"""Attribute with the name of the pattern that a function was cut out for (TVM's name)."""


@dataclass(frozen=True)
class Region:
    """Bindings of one block, by position, that become a function."""

    members: frozenset[int]
    name: str
    attrs: Mapping[str, Any] = field(default_factory=dict[str, Any])


Regions = Callable[[DataflowBlock, IRModule], Sequence[Region]]
"""Chooses the regions of a block to cut out. They must be disjoint, and none may depend on its own results."""


def outline(mod: IRModule, regions: Regions, whole: Collection[str] = (PRIMITIVE,)) -> IRModule:
    """Return the module with the regions of all dataflow blocks of its graph functions cut out. Functions with an
    attribute in `whole` were cut out before and stay unchanged."""
    outliner = _Outliner(mod, regions)
    functions: dict[str, BaseFunc] = {
        name: change_blocks(f, outliner.block)
        if isinstance(f, Function) and not any(map(f.attrs.get, whole))
        else f
        for name, f in mod.functions.items()
    }
    return mod.with_functions({**functions, **outliner.made})


class _Outliner:
    def __init__(self, mod: IRModule, regions: Regions) -> None:
        self.mod = mod
        self.regions = regions
        self.removable = Removable(mod)
        self.names = FreshNames(mod)
        self.made: dict[str, Function] = {}
        self.alike: dict[int, list[str]] = {}
        """Names in `made`, by structural hash."""
        self.known: dict[Hashable, tuple[str, Sequence[SymVar]]] = {}
        """Names in `made` and the symbols passed to them, by `_key`. The key is computed without building the function,
        since the layers of a model repeat."""

    def block(self, block: DataflowBlock) -> DataflowBlock:
        regions = self.regions(block, self.mod)
        if not regions:
            return block
        uses = uses_of(block.bindings)
        seen_outside = _outputs(block, regions, uses)
        region_of = {i: r for r in regions for i in r.members}
        bindings: list[Binding] = []
        for unit in _in_order(block.bindings, region_of, uses):
            if isinstance(unit, int):
                bindings.append(block.bindings[unit])
            else:
                members = [block.bindings[i] for i in sorted(unit.members)]
                bindings += self.call(unit, members, seen_outside)
        return dataclasses.replace(block, bindings=tuple(bindings))

    def call(
        self, region: Region, members: Sequence[Binding], seen_outside: set[Var]
    ) -> list[Binding]:
        """The bindings that replace a region: a call of its function, and the fields of its result."""
        outputs = [b.var for b in members if b.var in seen_outside]
        if not outputs:  # unused; it stays, because it may raise an error
            outputs = [b.var for b in members if not self.removable(b)][-1:]
        if not outputs:
            return []
        inputs = _inputs(members)
        key = _key(members, inputs, outputs, region.attrs)
        known = None if key is None else self.known.get(key)
        if known is None:
            symbols = _uncarried_symbols(inputs, members)
            function = _function(members, inputs, symbols, outputs, region.attrs)
            known = self.named(region.name, function), symbols
        if key is not None:
            self.known[key] = known
        name, symbols = known
        args: list[Expr] = list(inputs)
        args += carriers(symbols)[1]
        span = members[-1].span
        call = Call(GlobalVar(name), tuple(args), span=span)
        if len(outputs) == 1:
            return [VarBinding(outputs[0], call, span=span)]
        whole = DataflowVar(name, TupleType([v.annotation for v in outputs]), span=span)
        parts = [VarBinding(v, TupleGetItem(whole, i), span=span) for i, v in enumerate(outputs)]
        return [VarBinding(whole, call, span=span), *parts]

    def named(self, hint: str, function: Function) -> str:
        """The name of a function in the module; that of an equal function if one exists."""
        alike = self.alike.setdefault(structural_hash(function), [])
        for name in alike:
            if structural_equal(self.made[name], function):
                return name
        name = self.names.fresh(hint)
        alike.append(name)
        self.made[name] = function
        return name


def _outputs(
    block: DataflowBlock, regions: Sequence[Region], uses: Sequence[tuple[Var, ...]]
) -> set[Var]:
    """The variables of regions that are used outside their region: by other bindings, or after the block."""
    region_of = {i: number for number, r in enumerate(regions) for i in r.members}
    home = {block.bindings[i].var: number for i, number in region_of.items()}
    found = {var for var in home if not isinstance(var, DataflowVar)}
    for i, used in enumerate(uses):
        for var in used:
            if var in home and region_of.get(i) != home[var]:
                found.add(var)
    return found


def _in_order(
    bindings: Sequence[Binding],
    region_of: Mapping[int, Region],
    uses: Sequence[tuple[Var, ...]],
) -> Iterable[int | Region]:
    """Sort bindings and regions topologically, otherwise in the order of the block."""
    needs = dependencies(bindings, uses)
    units: dict[int, int | Region] = {i: region_of.get(i, i) for i in range(len(bindings))}
    members = {
        id(u) if isinstance(u, Region) else i: sorted(u.members) if isinstance(u, Region) else [i]
        for i, u in units.items()
    }
    keys = {i: id(u) if isinstance(u, Region) else i for i, u in units.items()}
    ordered: list[int | Region] = []
    state: dict[int, bool] = {}
    for start in range(len(bindings)):
        stack = [(start, False)]
        while stack:
            at, done = stack.pop()
            key = keys[at]
            if done:
                state[key] = True
                ordered.append(units[at])
                continue
            if key in state:
                continue
            state[key] = False
            stack.append((at, True))
            needed = {
                j for i in members[key] for j in needs[i] if keys[j] != key and keys[j] not in state
            }
            stack += [(j, False) for j in sorted(needed, reverse=True)]
    return ordered


def _inputs(members: Sequence[Binding]) -> list[Expr]:
    """The variables and constants that a region uses from outside, in order of first use."""
    own = {b.var for b in members}
    found: dict[int, Expr] = {}

    def leaf(expr: Any) -> None:
        match expr:
            case Constant():
                found.setdefault(id(expr), expr)
            case Var() if expr not in own:
                found.setdefault(id(expr), expr)
            case Tuple(fields=fields):
                for item in fields:
                    leaf(item)
            case Call(op=op, args=args):
                for item in (op, *args):
                    leaf(item)
            case TupleGetItem(tuple=inner):
                leaf(inner)
            case _:
                pass

    for binding in members:
        leaf(binding.value)
    return list(found.values())


def _uncarried_symbols(inputs: Sequence[Expr], members: Sequence[Binding]) -> list[SymVar]:
    """The symbols of a region that no input has alone as a dimension. A size that is the value of a scalar does not
    count: the function would not know that it is not negative."""
    annotations = [deduce(e) for e in inputs]
    alone = {
        dim.symbol
        for annotation in annotations
        for dim in matched_dims(annotation)
        if dim.symbol is None or dim.symbol.signed or _has_sizes(annotation)
    }
    return [s for s in used_symbols(*members) if s not in alone]


def _has_sizes(annotation: Annotation) -> bool:
    """Are its dimensions sizes, and none the value of a scalar?"""
    if isinstance(annotation, TupleType):
        return all(map(_has_sizes, annotation.fields))
    return not isinstance(annotation, PrimType)


def _key(
    members: Sequence[Binding],
    inputs: Sequence[Expr],
    outputs: Sequence[Var],
    attrs: Mapping[str, Any],
) -> Hashable:
    """A hashable key of a region, independent of the names of its values: regions with equal keys become one function.
    None if the region contains more than calls of functions, operators and their leaves."""
    numbers = {id(expr): i for i, expr in enumerate(inputs)}
    numbers.update((id(b.var), len(inputs) + i) for i, b in enumerate(members))
    unknown = False

    def leaf(expr: Any) -> Hashable:
        nonlocal unknown
        match expr:
            case Var() | Constant():
                return numbers.get(id(expr), -1)
            case GlobalVar(name=name):
                return name
            case Operator():
                return type(expr), repr(expr)
            case Tuple(fields=fields):
                return ("tuple", *map(leaf, fields))
            case ShapeExpr(dims=dims):
                return "shape", dims
            case PrimValue(value=value, dtype=dtype):
                return "scalar", value if isinstance(value, Dim) else repr(value), dtype
            case TupleGetItem(tuple=whole, index=index):
                return "field", leaf(whole), index
            case Call(op=op, args=args, ty_args=ty_args):
                return ("call", leaf(op), ty_args, *map(leaf, args))
            case _:
                unknown = True
                return None

    given = tuple(deduce(expr) for expr in inputs)
    computed = tuple((leaf(b.value), type(b), b.var.annotation) for b in members)
    taken = tuple(numbers[id(var)] for var in outputs)
    return None if unknown else (given, computed, taken, repr(sorted(attrs.items())))


def _function(
    members: Sequence[Binding],
    inputs: Sequence[Expr],
    symbols: Sequence[SymVar],
    outputs: Sequence[Var],
    attrs: Mapping[str, Any],
) -> Function:
    """The function of a region, with fresh symbols."""
    rewriter = _Renamed()
    params: list[Var] = []
    for i, expr in enumerate(inputs):
        name = expr.name if isinstance(expr, Var) else f"const{i}"
        param = Var(name, rewriter.rewrite_annotation(deduce(expr)), span=expr.span)
        params.append(param)
        if isinstance(expr, Var):
            rewriter.vars[expr] = param
        else:
            rewriter.constants[id(expr)] = param
    params += [
        Var(param.name, rewriter.rewrite_annotation(param.annotation))
        for param in carriers(symbols)[0]
    ]
    bindings: list[Binding] = []
    for binding in members:
        kind = Var if binding.var in outputs else DataflowVar
        annotation = rewriter.rewrite_annotation(binding.var.annotation)
        value = rewriter.rewrite(binding.value)
        var = kind(binding.var.name, annotation, span=binding.var.span)
        rewriter.vars[binding.var] = var
        bindings.append(VarBinding(var, value, span=binding.span))
    results = [rewriter.vars[v] for v in outputs]
    body: Expr = results[0] if len(results) == 1 else Tuple(tuple(results))
    returned: Annotation = deduce(body)
    return Function(
        tuple(params),
        SeqExpr((DataflowBlock(tuple(bindings)),), body),
        returned,
        attrs=dict(attrs),
    )


class _Renamed(FreshSymbols):
    """Renames the inputs and symbols of a region."""

    def __init__(self) -> None:
        super().__init__()
        self.constants: dict[int, Var] = {}

    def rewrite_Constant(self, node: Constant) -> Any:
        return self.constants.get(id(node), node)
