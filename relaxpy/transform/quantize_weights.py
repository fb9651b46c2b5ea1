"""QuantizeWeights: keep the weights of matrix products as small integers with scales."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from relaxpy.analysis.weights import trailing_weights
from relaxpy.errors import PassError, UsageError
from relaxpy.ir.accessors import expect, known_dims
from relaxpy.ir.annotation import TensorType, TupleType
from relaxpy.ir.dim import SymVar
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import (
    Binding,
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    Tuple,
    TupleGetItem,
    Var,
    VarBinding,
)
from relaxpy.ir.module import BaseFunc, IRModule
from relaxpy.ir.names import FreshNames
from relaxpy.ir.visitor import Visitor
from relaxpy.op.activation_scheme import (
    activation_types,
    dequantize_activations,
    quantize_activations,
)
from relaxpy.op.base import Op
from relaxpy.op.call import CallTIR
from relaxpy.op.datatype import Astype
from relaxpy.op.deduce import deduce
from relaxpy.op.expert_linear import ExpertLinear
from relaxpy.op.gather import Take
from relaxpy.op.linear_algebra import Linear, Matmul
from relaxpy.op.manipulate import PermuteDims
from relaxpy.op.weight_scheme import WeightScheme
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.rebuild import Rebuilder

_ACTIVATIONS = ("quantize", "dequantize")
_PRODUCTS: Mapping[type[Op], int] = {Matmul: 0, Linear: 1, ExpertLinear: 2}
"""The products whose second argument may be quantised, and the axis of its depth."""
_FLOATS = ("float32", "float16", "bfloat16")
_MODES = ("fast", "clip", "wrap")
"""The modes of `take` in which rows of codes can be read."""
Choose = Callable[[str, TensorType], bool]


def _any_weight(_name: str, _type: TensorType) -> bool:
    return True


@dataclass(frozen=True)
class QuantizeWeights(Pass):
    """Replace the weights of matrix products by quantised ones, and compute the floats by a tensor program
    (`relaxpy.op.weight_scheme`), which fusion moves into the product (figure 9 of the paper). Weights are matrices of
    floats, of known size, that are the right-hand factor of `matmul`, transposed or not, or the weight of `linear`, and
    that nothing else reads: parameters after the first `num_input` of a function, and constants. With `lookups` that is
    also a table of which `take` reads rows, such as an embedding, which products may read as well. A parameter `w`
    becomes `w_codes`, `w_scale`, and `w_zero` or `w_minimum`; `quantized_params` makes their arrays from those of the
    weights. With `on_load` the function keeps the parameter and quantises it by a tensor program, which packers run
    once, when a checkpoint is loaded (`relaxpy.build(…, pack=True)`). A weight may be stored in another dtype than it
    is computed in (`CastWeights`).

    Before (with groups of 2 weights of 8 bits):
        @R.function
        def main(
            x: R.Tensor(("n", 4), dtype="float32"), w: R.Tensor((4, 3), dtype="float32")
        ) -> R.Tensor(("n", 3), dtype="float32"):
            R.func_attr({"num_input": 1})
            y = R.matmul(x, w)
            return y
    After:
        @I.ir_module
        class Module:
            @T.prim_func(private=True)
            def dequantize(
                codes: T.Buffer((4, 3), "uint8"), scale: T.Buffer((2, 3), "float16"),
                dequantized: T.Buffer((4, 3), "float32"),
            ):
                T.func_attr({"tirx.noalias": True})
                for i0, i1 in T.grid(4, 3):
                    with T.sblock("dequantized"):
                        v_i0, v_i1 = T.axis.remap("SS", [i0, i1])
                        dequantized[v_i0, v_i1] = (
                            T.Cast("float32", codes[v_i0, v_i1]) - T.float32(128)
                        ) * T.Cast("float32", scale[v_i0 // 2, v_i1])

            @R.function
            def main(
                x: R.Tensor(("n", 4), dtype="float32"),
                w_codes: R.Tensor((4, 3), dtype="uint8"),
                w_scale: R.Tensor((2, 3), dtype="float16"),
            ) -> R.Tensor(("n", 3), dtype="float32"):
                n = T.int64()
                R.func_attr({"num_input": 1})
                cls = Module
                w = R.call_tir(cls.dequantize, (w_codes, w_scale), out_ty=R.Tensor((4, 3), dtype="float32"))
                y: R.Tensor((n, 3), dtype="float32") = R.matmul(x, w)
                return y
    """

    name: ClassVar[str] = "quantize-weights"
    scheme: WeightScheme = field(default_factory=WeightScheme)
    schemes: Mapping[str, WeightScheme] = field(default_factory=dict[str, WeightScheme])
    """The schemes of weights that have one of their own, by name."""
    choose: Choose = _any_weight
    """Is a weight quantised? Given its name (`constant` for constants) and type."""
    activations: int | None = None
    """Quantise what is multiplied by these weights to int8 as well, a scale for so many neighbours of a row
    (`relaxpy.op.activation_scheme`): a multiple of 32, where weights have 4 bits. Where it does not divide the depth,
    and by default, activations stay floats."""
    on_load: bool = False
    """Are parameters quantised by the module, when they are packed, rather than by `quantized_params`?"""
    lookups: bool = False
    """Are tables quantised, too? Rows of codes and scales are read, and floats computed of them in float32."""

    def __post_init__(self) -> None:
        group = self.activations
        if group is not None and (type(group) is not int or group < 1 or group % 32):
            raise UsageError(
                "weight-scheme",
                f"a scale of activations is for a multiple of 32 neighbours, got {group!r}",
            )
        if group is not None and all(s.bits != 4 for s in (self.scheme, *self.schemes.values())):
            raise UsageError(
                "weight-scheme",
                f"int8 activations need weights of 4 bits, got {self.scheme.bits}",
                help="leave activations out: floats are multiplied",
            )

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        rewriter = _Quantizer(mod, self)
        result = rewriter.run()
        return result.with_functions({**rewriter.programs, **result.functions})

    def scheme_of(self, weight: Var | Constant) -> WeightScheme:
        """The scheme of a weight."""
        return self.schemes.get(_name(weight), self.scheme)

    def weights(self, function: Function) -> dict[Var | Constant, int]:
        """The weights of a function that are quantised, and the axis of the depth of each."""
        return {
            weight: axis
            for weight, axis in _factors(function, self.lookups).items()
            if self.choose(_name(weight), _type(weight))
        }

    def quantized_params(
        self, mod: IRModule, params: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """The arrays that the module takes after the pass, by name, from those that it took before. Arrays that are not
        quantised are passed on. Raises PassError (`quantized-params`) for a weight that functions read along different
        axes, or whose array has another shape."""
        axes: dict[str, tuple[int, TensorType]] = {}
        for function in () if self.on_load else mod.graph_functions.values():
            for weight, axis in self.weights(function).items():
                if isinstance(weight, Var):
                    known = axes.setdefault(weight.name, (axis, _type(weight)))
                    if known != (axis, _type(weight)):
                        raise PassError(
                            "quantized-params",
                            f"functions read {weight.name} in different ways, so it has no single quantised form",
                            span=weight.span,
                        )
        found: dict[str, np.ndarray] = {}
        for name, array in params.items():
            if name not in axes:
                found[name] = array
                continue
            axis, kind = axes[name]
            scheme = self.schemes.get(name, self.scheme)
            if np.shape(array) != _sizes(kind):
                raise PassError(
                    "quantized-params",
                    f"{name} must have shape {_sizes(kind)}, got {np.shape(array)}",
                )
            parts = scheme.quantize(array, axis)
            found |= {f"{name}_{part}": value for part, value in parts.items()}
        return found


class _Quantizer(Rebuilder):
    def __init__(self, mod: IRModule, step: QuantizeWeights) -> None:
        super().__init__(mod)
        self.step = step
        self.programs: dict[str, BaseFunc] = {}
        self._program_names = FreshNames(mod.functions)
        self._known: dict[tuple[WeightScheme, TensorType, int], str] = {}
        self._parts: dict[Expr, tuple[WeightScheme, int, TensorType, tuple[Expr, ...]]] = {}
        """For each weight: its scheme, the axis of its depth, its type, and its parts."""
        self._views: dict[Expr, _View] = {}
        """The transposed and converted weights of the current function."""
        self._quantizers: dict[tuple[WeightScheme, TensorType, int], str] = {}
        self._on_load: dict[Var, tuple[int, TensorType]] = {}
        """The weights of the current function that it quantises itself: the axis of their depth, their type."""
        self._constants: dict[int, tuple[Expr, ...]] = {}
        self._activations: dict[tuple[int, int, str], tuple[str, str]] = {}
        """By rank, depth and dtype: the names of the programs that quantise activations, and turn them back."""
        self._tables: Mapping[Var, Var | Constant] = {}
        """For each value of the current function that is rows of a table: the table."""
        self._rows: dict[Expr, Expr] = {}
        """Such values in another dtype, and the same rows in float32."""
        self._row_programs: dict[tuple[WeightScheme, int, int], str] = {}

    def run(self) -> IRModule:
        return self.mod.map_graph_functions(lambda _, f: self.quantized(f))

    def quantized(self, function: Function) -> Function:
        weights = self.step.weights(function)
        if not weights:
            return function
        names = FreshNames(param.name for param in function.params)
        self._parts = {}
        uses = _uses(function, self.step.lookups)
        self._tables, self._rows = uses.tables, {}
        self._views = {var: view for var, view in uses.views.items() if view.weight in weights}
        params: list[Var] = []
        for param in function.params:
            if param not in weights or self.step.on_load:
                params.append(param)
                continue
            parts = tuple(
                Var(names.fresh(f"{param.name}_{part}"), kind, span=param.span)
                for part, kind in self._types(param, weights[param]).items()
            )
            own = self.step.scheme_of(param)
            self._parts[param] = (own, weights[param], _computed(param, uses), parts)
            params += parts
        self._on_load = {
            param: (weights[param], _computed(param, uses))
            for param in function.params
            if param in weights and self.step.on_load
        }
        for weight, axis in weights.items():
            if isinstance(weight, Constant):
                if id(weight) not in self._constants:
                    made = self.step.scheme_of(weight).quantize(weight.data, axis)
                    self._constants[id(weight)] = tuple(
                        Constant.shared(part, span=weight.span) for part in made.values()
                    )
                own, kind = self.step.scheme_of(weight), _computed(weight, uses)
                self._parts[weight] = (own, axis, kind, self._constants[id(weight)])
        with_params = dataclasses.replace(function, params=tuple(params))
        return self.function(with_params)

    def _types(self, weight: Var, axis: int) -> dict[str, TensorType]:
        """The types of a weight's parts."""
        return self.step.scheme_of(weight).types(_sizes(_type(weight)), axis)

    def start(self, function: Function) -> None:
        """Quantise the weights that are quantised on load."""
        given, self._on_load = self._on_load, {}
        for param, (axis, kind) in given.items():
            types, own = self._types(param, axis), self.step.scheme_of(param)
            call = Call(
                CallTIR(),
                (GlobalVar(self.quantizer(own, _type(param), axis)), Tuple((param,))),
                tuple(types.values()),
                span=param.span,
            )
            whole = self.emit(call, f"{param.name}_quantized", TupleType(tuple(types.values())))
            parts = [
                self.emit(TupleGetItem(whole, number), f"{param.name}_{part}")
                for number, part in enumerate(types)
            ]
            self._parts[param] = (own, axis, kind, tuple(parts))

    def binding(self, binding: Binding) -> None:
        view = self._views.get(binding.var)
        if self._tables.get(binding.var) in self._parts:
            self.lookup(binding)
        elif view is None or view.weight not in self._parts:
            super().binding(binding)

    def lookup(self, binding: Binding) -> None:
        """Read rows of codes and scales, and compute floats of them."""
        take, wanted = expect(Call, binding.value), expect(TensorType, binding.var.annotation)
        scheme, axis, kind, parts = self._parts[self._tables[binding.var]]
        indices, depth = self.use(take.args[1]), _sizes(kind)[axis]
        taken = [
            self.emit(dataclasses.replace(take, args=(part, indices)), f"{binding.var.name}_{name}")
            for name, part in zip(scheme.types(_sizes(kind), axis), parts, strict=True)
        ]
        rows = known_dims(deduce(indices, self.mod))
        program = GlobalVar(self.row_program(scheme, len(rows), depth))
        floats = TensorType((*rows, depth), "float32")
        call = Call(CallTIR(), (program, Tuple(tuple(taken))), (floats,), span=binding.span)
        if wanted.dtype != floats.dtype and wanted.dtype is not None:
            rows = self.emit(call, binding.var.name)
            self._rows[binding.var] = rows
            call = Call(Astype(wanted.dtype), (rows,), span=binding.span)
        super().binding(VarBinding(binding.var, call, span=binding.span))

    def value(self, value: Expr) -> Expr:
        match value:
            case Call(op=Astype() as op, args=(read,)) if read in self._rows:
                return dataclasses.replace(value, args=(self._rows[read],))
            case Call(op=op) if type(op) in _PRODUCTS:
                return self.product(value)
            case _:
                return value

    def product(self, value: Call) -> Expr:
        """A product with its weight computed from codes."""
        weight, op = value.args[1], value.op
        if weight in self._views:
            view = self._views[weight]
            weight = view.weight
            op = Linear(op.out_dtype) if view.turned and isinstance(op, Matmul) else op
        if weight not in self._parts:
            return value
        scheme, axis, kind, parts = self._parts[weight]
        program = GlobalVar(self.program(scheme, kind, axis))
        call = Call(CallTIR(), (program, Tuple(parts)), (kind,), span=value.span)
        name = weight.name if isinstance(weight, Var) else "weight"
        floats = self.emit(call, name, kind)
        x = self.activations(value.args[0]) if scheme.bits == 4 else value.args[0]
        return dataclasses.replace(value, op=op, args=(x, floats, *value.args[2:]))

    def activations(self, x: Expr) -> Expr:
        """The activations, or what they are after quantisation."""
        group = self.step.activations
        kind = deduce(x, self.mod)
        if group is None or not isinstance(kind, TensorType) or not kind.dims or not kind.dtype:
            return x
        depth = kind.dims[-1].value
        if depth is None or depth % group:
            return x
        key = len(kind.dims), depth, str(kind.dtype)
        if key not in self._activations:
            rows = [SymVar(f"d{n}").dim for n in range(len(kind.dims) - 1)]
            own = TensorType((*rows, depth), kind.dtype)
            programs = quantize_activations(own, group), dequantize_activations(own, group)
            names = [self._program_names.fresh(f"{name}_activations") for name in _ACTIVATIONS]
            self.programs |= dict(zip(names, programs, strict=True))
            self._activations[key] = names[0], names[1]
        quantize, dequantize = self._activations[key]
        parts = activation_types(kind, group)
        call = Call(CallTIR(), (GlobalVar(quantize), Tuple((x,))), parts, span=self.span)
        pair = self.emit(call, "quantized", TupleType(parts))
        fields = [
            self.emit(TupleGetItem(pair, n), name) for n, name in enumerate(("codes", "scale"))
        ]
        back = Call(
            CallTIR(), (GlobalVar(dequantize), Tuple(tuple(fields))), (kind,), span=self.span
        )
        return self.emit(back, "rounded", kind)

    def row_program(self, scheme: WeightScheme, rank: int, depth: int) -> str:
        """The name of the program that computes rows of a table, of which `rank` dimensions of indices were read."""
        key = scheme, rank, depth
        if key not in self._row_programs:
            rows = [SymVar(f"d{n}").dim for n in range(rank)]
            name = self._program_names.fresh("dequantize_rows")
            self.programs[name] = scheme.program((*rows, depth), rank)
            self._row_programs[key] = name
        return self._row_programs[key]

    def quantizer(self, scheme: WeightScheme, kind: TensorType, axis: int) -> str:
        """The name of the program that quantises a weight of this type."""
        key = scheme, kind, axis
        if key not in self._quantizers:
            name = self._program_names.fresh("quantize")
            self.programs[name] = scheme.quantizer(_sizes(kind), axis, str(kind.dtype))
            self._quantizers[key] = name
        return self._quantizers[key]

    def program(self, scheme: WeightScheme, kind: TensorType, axis: int) -> str:
        """The name of the program that computes a weight of this type."""
        key = scheme, kind, axis
        if key not in self._known:
            name = self._program_names.fresh("dequantize")
            self.programs[name] = scheme.program(_sizes(kind), axis, str(kind.dtype))
            self._known[key] = name
        return self._known[key]


@dataclass(frozen=True)
class _View:
    """A value that has the elements of a weight, converted, transposed, or both."""

    weight: Var | Constant
    turned: bool = False


class _Uses(Visitor):
    """Collects the factors of products, tables, and everything that is read in another way."""

    def __init__(self, lookups: bool = False) -> None:
        self.lookups = lookups
        self.factors: dict[Expr, set[tuple[int, str]]] = {}
        """The axes of the depth along which a weight is read, and the dtypes in which."""
        self.others: set[Expr] = set()
        self.views: dict[Expr, _View] = {}
        self.tables: dict[Var, Var | Constant] = {}
        """The rows that are read of tables, and the table of each."""

    def visit_VarBinding(self, node: VarBinding) -> None:
        match node.value:
            case Call(
                op=Take(axis=0 | -2, mode=mode), args=((Var() | Constant()) as table, Var() as at)
            ) if self.lookups and mode in _MODES and _is_known(node.var) and _is_known(at):
                view = self.views.get(table, _View(table))
                if not view.turned:
                    self.tables[node.var] = view.weight
                    self.visit(at)
                    return
            case (
                Call(
                    op=PermuteDims(axes=None | (1, 0)) | Astype(),
                    args=((Var() | Constant()) as read, *_),
                ) as call
            ):
                own, turns = self.views.get(read, _View(read)), isinstance(call.op, PermuteDims)
                if not (turns and own.turned):
                    self.views[node.var] = _View(own.weight, own.turned or turns)
                    return
            case _:
                pass
        self.visit(node.value)

    def visit_Call(self, node: Call) -> None:
        rest = list(node.args)
        own = _PRODUCTS.get(type(node.op)) if isinstance(node.op, Op) else None
        if own is not None and isinstance(node.args[1], (Var, Constant)):
            read = node.args[1]
            view = self.views.get(read)
            axis, kind = own, _type_or_none(read)
            if kind is not None and not (axis and view is not None and view.turned):
                if view is not None:
                    read, axis = view.weight, int(axis or view.turned)
                del rest[1]
                self.factors.setdefault(read, set()).add((axis, str(kind.dtype)))
        for arg in rest:
            self.visit(arg)

    def visit_Var(self, node: Var) -> None:
        view = self.views.get(node)
        self.others.add(node if view is None else view.weight)

    def visit_Constant(self, node: Constant) -> None:
        self.others.add(node)


def _computed(weight: Var | Constant, uses: _Uses) -> TensorType:
    """The type of a weight in the dtype in which products read it."""
    dtypes = [DType(dtype) for _, dtype in uses.factors.get(weight, ())]
    return dataclasses.replace(_type(weight), dtype=dtypes[0]) if dtypes else _type(weight)


def _uses(function: Function, lookups: bool) -> _Uses:
    uses = _Uses(lookups)
    uses.visit(function.body)
    return uses


def _is_known(var: Var) -> bool:
    """Is a value a tensor of known rank?"""
    return isinstance(var.annotation, TensorType) and var.annotation.dims is not None


def _factors(function: Function, lookups: bool) -> dict[Var | Constant, int]:
    """The weights of a function that only products read, along one axis, or lookups, too."""
    uses = _uses(function, lookups)
    params = set(trailing_weights(function))
    tables = {table: {(1, str(_type(table).dtype))} for table in uses.tables.values()}
    found = {weight: sorted(own) for weight, own in {**tables, **uses.factors}.items()}
    return {
        weight: axis
        for weight, ((axis, dtype), *more) in found.items()
        if not more
        and dtype in _FLOATS
        and (weight not in tables or axis == 1)
        and weight not in uses.others
        and (isinstance(weight, Constant) or (isinstance(weight, Var) and weight in params))
        and _has_sizes(_type_or_none(weight), 3 if axis == 2 else 2)
    }


def _has_sizes(kind: TensorType | None, ndim: int) -> bool:
    """Has this tensor floats, and so many dimensions, of known sizes?"""
    return (
        kind is not None
        and kind.dtype is not None
        and str(kind.dtype) in _FLOATS
        and len(_sizes(kind)) == ndim
    )


def _type_or_none(weight: Var | Constant) -> TensorType | None:
    if isinstance(weight, Constant):
        return TensorType(weight.data.shape, str(weight.data.dtype))
    return weight.annotation if isinstance(weight.annotation, TensorType) else None


def _type(weight: Var | Constant) -> TensorType:
    kind = _type_or_none(weight)
    assert kind is not None, "only matrices are weights"
    return kind


def _name(weight: Var | Constant) -> str:
    return weight.name if isinstance(weight, Var) else "constant"


def _sizes(kind: TensorType) -> tuple[int, ...]:
    """The sizes of a tensor; empty if one is not known."""
    sizes = [dim.value for dim in kind.dims or ()]
    return tuple(size for size in sizes if size is not None) if None not in sizes else ()
