"""Annotate: put pairs of quantize and dequantize on the arguments of products."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import numpy as np

from relaxpy.analysis.weights import trailing_weights
from relaxpy.errors import UsageError, did_you_mean
from relaxpy.ir.accessors import known_dims, known_dtype
from relaxpy.ir.annotation import TensorType, TupleType
from relaxpy.ir.dim import product
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import (
    Binding,
    Call,
    Constant,
    Expr,
    Function,
    SeqExpr,
    ShapeExpr,
    Tuple,
    Var,
    VarBinding,
)
from relaxpy.ir.module import IRModule
from relaxpy.ir.visitor import used_vars
from relaxpy.op.base import OPS, Op
from relaxpy.op.binary import Add, Divide, Maximum, Minimum, Multiply, Power, Subtract
from relaxpy.op.datatype import Astype
from relaxpy.op.deduce import deduce
from relaxpy.op.linear_algebra import Linear, Matmul
from relaxpy.op.manipulate import ExpandDims
from relaxpy.op.pair import ROW, Pair
from relaxpy.op.quantization import Dequantize, Quantize
from relaxpy.op.reduce import Max, Min
from relaxpy.op.row_major import Reshape
from relaxpy.op.unary import Abs, Clip, Round
from relaxpy.transform.base import Pass, PassContext
from relaxpy.transform.dataflow_vars import with_outputs
from relaxpy.transform.rebuild import Rebuilder

TINY = 1e-30
"""The least scale: that of a range of 0."""

Pairs = Mapping[str, Pair]
"""By name of the argument."""
Rule = Pairs | Callable[[Op], Pairs] | None
"""How the arguments of a call are quantised: as it says, or as a function of the operator says; None: not at all."""


@dataclass(frozen=True)
class Place:
    """The outcome of a pass for one call: plain data for a report."""

    function: str
    layer: str
    """The name of its weight without its ending, or else of the value."""
    operator: str
    reason: str = ""
    """Why it stays a computation of floats; empty: it does not."""


@dataclass(frozen=True)
class Scales:
    """The constant scale and zero point of one argument: one number each, or one for each index of the pair's axis."""

    scale: np.ndarray
    zero_point: np.ndarray


@dataclass(frozen=True)
class Annotate(Pass):
    """Put a `quantize` and a `dequantize` on arguments, as the operator says (`Op.pairs`): the program computes floats
    as before, without what integers lose. `Realize` then makes integers of it.

    Weights of matrix products have a scale for each output, which is computed of the weight: when the program is built,
    if the weight is a constant, or where it is packed. What they multiply has a scale for each row, which is computed
    in each call; no data is needed. Convolutions have one scale for all of their data, which must come from data
    (`Calibrate` finds `scales`): without it they stay as they are.

    `rules` are the user's, by the name of an operator, of a layer, or a pattern of such names (`"layers.*.up"`), which
    come before those of the operators; of several, that of the layer, then the last pattern, then that of the operator:

        Annotate(rules={
            "nn.conv2d": lambda op: op.pairs() | {"data": Pair("uint8", static=True)},
            "layers.0.*": None,
        })

    A layer is named as its weight is, without the ending `weight`; one whose weight has no name, as its value is. What
    is not annotated is listed with the reason by `annotated`.

    `smooth` evens out columns of data before they are quantised (Xiao et al., 2023, SmoothQuant): they are divided by
    s = largest(x) ** strength / largest(w) ** (1 - strength), and those of the weight multiplied by it. Raises
    UsageError (`quantization`) for a rule that matches nothing, or that names an argument that the operator does not
    have.

    Before:
        @R.function
        def main(
            x: R.Tensor(("n", 4), dtype="float32"), w: R.Tensor((3, 4), dtype="float32")
        ) -> R.Tensor(("n", 3), dtype="float32"):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                y = R.linear(x, w)
                R.output(y)
            return y
    After:
        @R.function
        def main(
            x: R.Tensor(("n", 4), dtype="float32"), w: R.Tensor((3, 4), dtype="float32")
        ) -> R.Tensor(("n", 3), dtype="float32"):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                lv = R.abs(x)
                lv1 = R.max(lv, axis=(1,))
                lv2 = R.divide(lv1, R.const(127.0, "float32"))
                lv3 = R.maximum(lv2, R.const(1e-30, "float32"))
                lv4 = R.quantize(x, lv3, R.const(0, "int8"), axis=0, narrow_range=True)
                lv5 = R.dequantize(lv4, lv3, R.const(0, "int8"), axis=0)
                lv6 = R.abs(w)
                lv7 = R.max(lv6, axis=(1,))
                lv8 = R.divide(lv7, R.const(127.0, "float32"))
                lv9 = R.maximum(lv8, R.const(1e-30, "float32"))
                lv10 = R.quantize(w, lv9, R.const(0, "int8"), axis=0, narrow_range=True)
                lv11 = R.dequantize(lv10, lv9, R.const(0, "int8"), axis=0)
                y = R.linear(lv5, lv11)
                R.output(y)
            return y
    """

    name: ClassVar[str] = "annotate"
    rules: Mapping[str, Rule] = field(default_factory=dict[str, Rule])
    scales: Mapping[tuple[str, str], Scales] = field(default_factory=dict[tuple[str, str], Scales])
    """By layer and argument: what `Calibrate` found for the pairs that are static."""
    smooth: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    """By layer, for matrix products: the largest magnitude of each column of the data."""
    strength: float = 0.5
    """How much of a column's magnitude moves to the weight, from 0 to 1 (SmoothQuant's alpha)."""
    shifts: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    """By layer: what is added to its result, such as the mean of what codes lose of it (bias correction)."""

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        return self.annotated(mod)[0]

    def annotated(self, mod: IRModule) -> tuple[IRModule, list[Place]]:
        """The module after the pass, and all calls of operators that have pairs."""
        annotator = Annotator(mod, self)
        result = annotator.run()
        annotator.check_rules()
        return result, annotator.places


def layer_of(weight: Expr | None, value: str) -> str:
    """The name of the layer with this weight and this value."""
    if not isinstance(weight, Var):
        return value
    for ending in (".weight", "_weight"):
        if weight.name.endswith(ending) and weight.name != ending:
            return weight.name.removesuffix(ending)
    return weight.name


class Sources:
    """The weights that values are computed from, in one function."""

    def __init__(self) -> None:
        self._from: dict[Var, Var | None] = {}
        """By variable: the first weight that it is computed from; None: constants alone."""

    def start(self, function: Function) -> None:
        """Begin with the parameters of a function that are weights."""
        self._from.update((param, param) for param in trailing_weights(function))

    def learn(self, binding: Binding) -> None:
        """Look at a binding."""
        used = used_vars(binding.value)
        if isinstance(binding, VarBinding) and all(var in self._from for var in used):
            named = (self._from[var] for var in used)
            self._from[binding.var] = next(filter(None, named), None)

    def is_weight(self, expr: Expr) -> bool:
        """Is it known when the program is built, or packed?"""
        return isinstance(expr, Constant) or expr in self._from

    def weight(self, expr: Expr) -> Var | None:
        """The weight that a value is computed from."""
        return self._from.get(expr) if isinstance(expr, Var) else None


class Annotator(Rebuilder):
    """Finds the calls that are annotated. A subclass says in `with_pairs` what becomes of one."""

    def __init__(self, mod: IRModule, step: Annotate) -> None:
        super().__init__(mod)
        self.step = step
        self.places: list[Place] = []
        self.sources = Sources()
        self.matched: set[str] = set()
        """The rules that matched a call."""
        self.layers: list[str] = []
        """The names of all layers, in order."""
        self.function_name = self.value_name = ""

    def run(self) -> IRModule:
        def change(name: str, function: Function) -> Function:
            self.function_name = name
            return self.function(function)

        return self.mod.map_graph_functions(change)

    def start(self, function: Function) -> None:
        self.sources.start(function)

    def binding(self, binding: Binding) -> None:
        self.value_name = binding.var.name
        super().binding(binding)
        self.sources.learn(self.bindings[-1])

    def emit(self, value: Expr, name: str = "lv", annotation: Any = None) -> Var:
        var = super().emit(value, name, annotation)
        self.sources.learn(self.bindings[-1])
        return var

    def value(self, value: Expr) -> Expr:
        match value:
            case Call(op=Op() as op) if op.pairs() or op.name in self.step.rules:
                pass
            case _:
                return value
        given = {spec.name: arg for spec, arg in zip(op.args, value.args, strict=False)}
        weight = next((given[name] for name, pair in op.pairs().items() if pair.weight), None)
        layer = layer_of(
            self.sources.weight(weight) if weight is not None else None, self.value_name
        )
        self.layers.append(layer)
        pairs = self.rule(op, layer, given)
        reason = "its rule says so" if not pairs else self.refusal(op, given, pairs, layer)
        self.places.append(Place(self.function_name, layer, op.name, reason))
        return value if reason else self.with_pairs(value, given, pairs, layer)

    def needs_scales(self, layer: str, name: str) -> bool:
        """Are there no scales for an argument that takes them from data?"""
        return (layer, name) not in self.step.scales

    def rule(self, op: Op, layer: str, given: Mapping[str, Expr]) -> Pairs:
        """The pairs of a call."""
        rules = self.step.rules
        patterns = [key for key in rules if key not in OPS and fnmatchcase(layer, key)]
        if layer in patterns:  # the name itself
            patterns.append(layer)
        chosen = [*([op.name] if op.name in rules else []), *patterns]
        self.matched.update(chosen)
        found: Rule = rules[chosen[-1]] if chosen else op.pairs()
        pairs = found(op) if callable(found) else found or {}
        for name in pairs:
            if name not in given:
                raise UsageError(
                    "quantization",
                    f"the rule {chosen[-1]!r} has a pair for {name}, which {op.name} does not have",
                    help=f"its arguments are {', '.join(given)}",
                )
        return pairs

    def check_rules(self) -> None:
        """Refuse rules and scales for what is not there."""
        for key in self.step.rules:
            if key in self.matched:
                continue
            known = list(dict.fromkeys(self.layers))
            raise UsageError(
                "quantization",
                f"the rule {key!r} matches no layer and no operator of the module",
                help=did_you_mean(key, known) or f"layers are {', '.join(known) or 'none'}",
            )
        for layer, name in self.step.scales:
            if layer not in self.layers:
                raise UsageError(
                    "quantization",
                    f"there are scales for {name} of the layer {layer!r}, which the module does not have",
                    help=did_you_mean(layer, self.layers)
                    or "calibrate the module that you annotate",
                )
        for layer in (*self.step.smooth, *self.step.shifts):
            if layer not in self.layers:
                raise UsageError(
                    "quantization",
                    f"there are corrections for the layer {layer!r}, which the module does not have",
                    help=did_you_mean(layer, self.layers) or "measure the module that you annotate",
                )

    def refusal(self, op: Op, given: Mapping[str, Expr], pairs: Pairs, layer: str) -> str:
        """Why a call cannot be annotated; empty if it can."""
        for name, pair in pairs.items():
            kind = deduce(given[name], self.mod)
            if not isinstance(kind, TensorType) or kind.dims is None or kind.dtype is None:
                return f"the shape of {name} is not known"
            if not kind.dtype.is_float:
                return f"{name} is of {kind.dtype}"
            if pair.weight and not self.sources.is_weight(given[name]):
                return f"{name} is no weight"
            if pair.static and self.needs_scales(layer, name):
                return f"the scale of {name} comes from data: calibrate"
            count = len(kind.dims)
            if isinstance(pair.axis, int) and not -count <= pair.axis < count:
                return f"{name} has no axis {pair.axis}"
            if pair.weight and isinstance(op, (Linear, Matmul)) and count != 2:
                return f"{name} is no matrix"
            if pair.axis == ROW and not isinstance(op, (Linear, Matmul)):
                return f"{op.name} has no rows"
        return ""

    def with_pairs(self, call: Call, given: Mapping[str, Expr], pairs: Pairs, layer: str) -> Expr:
        args = list(call.args)
        if layer in self.step.smooth:
            args[:2] = self.smoothed(call, self.step.smooth[layer])
        for place, name in enumerate(given):
            if name in pairs:
                scales = self.step.scales.get((layer, name))
                args[place] = self.of_argument(args[place], pairs[name], scales)
        result = replace(call, args=tuple(args))
        shift = self.step.shifts.get(layer)
        return result if shift is None else Add()(self.emit(result), Constant(shift))

    def smoothed(self, call: Call, largest: np.ndarray) -> tuple[Expr, Expr]:
        """The factors of a product with a matrix, after magnitude has moved from columns of the data to the weight."""
        data, weight = call.args[:2]
        axis, alpha = (0 if isinstance(call.op, Linear) else 1), self.step.strength
        dtype = known_dtype(deduce(weight, self.mod)).numpy

        def const(value: Any) -> Constant:
            return Constant(np.asarray(value, dtype))

        own = self.emit(Maximum()(self.emit(Max((axis,))(self.emit(Abs()(weight)))), const(TINY)))
        given = const(np.maximum(largest, TINY).astype(np.float64) ** alpha)
        step = self.emit(Divide()(given, self.emit(Power()(own, const(1 - alpha)))))
        # A column without data, or without weights, stays as it is.
        step = self.emit(Clip(2.0**-20, 2.0**20)(step))
        by = step if axis == 0 else self.emit(ExpandDims((1,))(step))
        return self.emit(Divide()(data, step)), self.emit(Multiply()(weight, by))

    def of_argument(self, x: Expr, pair: Pair, scales: Scales | None) -> Expr:
        """An argument, quantised and dequantised: as a matrix, if each row has a scale."""
        dims = known_dims(deduce(x, self.mod))
        if pair.axis != ROW:
            return self.paired(x, pair, scales)
        pair = replace(pair, axis=0)
        if len(dims) == 2:
            return self.paired(x, pair, scales)
        rows = ShapeExpr((product(dims[:-1]), dims[-1]))
        made = self.paired(self.emit(Reshape()(x, rows)), pair, scales)
        return self.emit(Reshape()(made, ShapeExpr(dims)))

    def paired(self, x: Expr, pair: Pair, scales: Scales | None) -> Expr:
        """The tensor, quantised and dequantised."""
        kind = deduce(x, self.mod)
        dims, dtype = known_dims(kind), known_dtype(kind)
        axis = pair.axis if isinstance(pair.axis, int) else -1
        axis = axis % len(dims) if dims else -1
        if scales is not None:
            scale, zero = Constant(scales.scale), Constant(scales.zero_point)
        else:
            over = tuple(a for a in range(len(dims)) if pair.axis is None or a != axis)
            scale, zero = self.range_of(x, pair, over, str(dtype))
        quantize = Quantize(axis, DType(pair.dtype), pair.rounding, pair.seed, pair.is_symmetric)
        codes = self.emit(quantize(x, scale, zero))
        if pair.bits is not None:
            codes = self.emit(Clip(*map(float, pair.limits))(codes))
        return self.emit(Dequantize(axis, dtype)(codes, scale, zero))

    def range_of(self, x: Expr, pair: Pair, over: Sequence[int], dtype: str) -> tuple[Expr, Expr]:
        """The scale and the zero point of a tensor, reduced over these axes, from its values."""

        def const(value: float) -> Constant:
            return Constant(np.array(value, DType(dtype).numpy))

        low_code, high_code = pair.limits
        axes = tuple(over)
        if pair.is_symmetric:
            most = self.emit(Max(axes)(self.emit(Abs()(x))))
            scale = self.emit(Divide()(most, const(high_code)))
            zero = Constant(np.array(0, pair.dtype))
            return self.emit(Maximum()(scale, const(TINY))), zero
        low = self.emit(Minimum()(self.emit(Min(axes)(x)), const(0.0)))
        high = self.emit(Maximum()(self.emit(Max(axes)(x)), const(0.0)))
        width = self.emit(Subtract()(high, low))
        scale = self.emit(Divide()(width, const(high_code - low_code)))
        scale = self.emit(Maximum()(scale, const(TINY)))
        steps = self.emit(Round()(self.emit(Divide()(low, scale))))
        shift = self.emit(Subtract()(const(low_code), steps))
        zero = self.emit(Astype(DType(pair.dtype))(shift))
        return scale, zero


class Observer(Annotator):
    """Makes functions return, instead of their results, what was seen of the calls that are annotated."""

    def __init__(self, mod: IRModule, step: Annotate) -> None:
        super().__init__(mod, step)
        self.found: list[Expr] = []
        """The results of the current function."""
        self._depth = 0

    @property
    def is_inside(self) -> bool:
        """Is this a branch, or a function of a function, from which nothing can be returned?"""
        return self._depth > 1

    def function(self, function: Function) -> Function:
        outer, self.found = self.found, []
        made = super().function(function)
        found, self.found = self.found, outer
        if not found:
            return made
        body = SeqExpr(made.body.blocks, Tuple(tuple(found)), span=made.body.span)
        ret = TupleType(tuple(deduce(each, self.mod) for each in found))
        return with_outputs(replace(made, body=body, ret=ret))

    def seq(self, seq: SeqExpr, function: Function | None = None) -> SeqExpr:
        self._depth += 1
        try:
            return super().seq(seq, function)
        finally:
            self._depth -= 1
