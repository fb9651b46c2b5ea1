"""The steps of a recurrent layer: what is left when the products of its inputs are made, for all steps at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from relaxpy.ir.annotation import Annotation, TensorType, TupleType
from relaxpy.ir.cell import ACTIVATIONS, DEFAULTS, DIRECTIONS, GATES, PANEL, Activation, Cell
from relaxpy.ir.dim import Dim
from relaxpy.ir.dtype import DType
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.precision import narrowed, widened
from relaxpy.op.recurrent_gradient import steps_as_calls
from relaxpy.op.rule import Cotangent, Rule


@define_op
class RecurrentSteps(Op):
    """The steps of an LSTM, a GRU or a simple recurrent layer, in D = 1 or 2 directions. `inputs` is (length, batch, D
    * gates * hidden): the products of the inputs with their weights, biases included, in a dtype of the state's or
    float32 where that is narrower. `weight` is that of the state, (D, gates * hidden, state) packed by
    `nn.recurrent_panels`, and `initial_h` (D, batch, state) the state before the first step; an LSTM has `initial_c`
    (D, batch, hidden) too. The gates are in torch's order. `bias` (D, hidden) is added to the state's product for the
    new gate of a GRU with `reset_after`. `peepholes` (D, 3, hidden) are factors of an LSTM's cell state for the input,
    forget and output gate. `projection` (D, state, hidden), packed likewise, maps the output of an LSTM; without,
    `state` is `hidden`. `lengths` (batch,) says how many steps each sequence has, from 0 to the length: after them
    outputs are 0, the last state is that after the last one, and backward directions begin there. The result is a
    tuple: outputs (length, batch, D * state), the last h, and of an LSTM the last c. The state is rounded to its dtype
    after each step."""

    name = "nn.recurrent_steps"
    cell: str
    """lstm, gru or rnn."""
    direction: str = "forward"
    """forward, reverse or bidirectional."""
    batch_first: bool = False
    """Are `inputs` and outputs (batch, length, …)?"""
    activations: tuple[str, ...] = ()
    """Names of the activations, perhaps with numbers (`leaky_relu(0.2)`), of a direction or of both; (): the cell's
    own."""
    clip: float | None = None
    """Bound of the absolute values that the gates' activations take, but not that of the cell's state; None: none."""
    input_forget: bool = False
    """Is the forget gate of an LSTM 1 minus the input gate?"""
    reset_after: bool = True
    """Is the reset gate of a GRU multiplied with the state's product, not with the state before it?"""

    @property
    def steps(self) -> Cell:
        """What a step computes."""
        return Cell(
            self.cell,
            self.direction,
            self.activations,
            self.clip,
            self.input_forget,
            self.reset_after,
        )

    def deduce(
        self, d: Deduction, inputs: KnownTensor, weight: KnownTensor, initial_h: KnownTensor,
        initial_c: KnownTensor | None = None, bias: KnownTensor | None = None,
        peepholes: KnownTensor | None = None, projection: KnownTensor | None = None,
        lengths: KnownTensor | None = None,
    ) -> TupleType:  # fmt: skip
        need_cell(d, self.cell, self.direction, self.activations, self.clip)
        ranks = {
            "inputs": (inputs, "length, batch, gates"),
            "weight": (weight, "directions, panels, state, gates, lanes"),
            "initial_h": (initial_h, "directions, batch, state"),
            "initial_c": (initial_c, "directions, batch, hidden"),
            "bias": (bias, "directions, hidden"),
            "peepholes": (peepholes, "directions, 3, hidden"),
            "projection": (projection, "directions, panels, hidden, 1, lanes"),
            "lengths": (lengths, "batch"),
        }
        need_ranks(d, ranks)
        dtype = d.need_float(weight, "weight")
        for x in (initial_h, initial_c, bias, peepholes, projection):
            if x is not None:
                d.same_dtype(weight, x)
        wide = DType("float32") if dtype.is_narrow else dtype
        d.require(
            inputs.dtype in (dtype, wide),
            f"inputs must be {dtype}{f' or {wide}' if wide != dtype else ''}, got {inputs.dtype}",
            arg="inputs", code="op-dtype",
        )  # fmt: skip
        self._need_arguments(d, initial_c, bias, peepholes, projection)
        count, gates = len(DIRECTIONS[self.direction]), len(GATES[self.cell])
        batch = inputs.dims[0 if self.batch_first else 1]
        directions, state = weight.dims[0], weight.dims[2]
        hidden = state if initial_c is None else initial_c.dims[2]
        lanes = Dim.of(PANEL)
        wanted = {
            "weight": (weight, (Dim.of(count), panels(hidden), state, Dim.of(gates), lanes)),
            "inputs": (inputs, (*inputs.dims[:2], hidden * (gates * count))),
            "initial_h": (initial_h, (directions, batch, state)),
            "initial_c": (initial_c, (directions, batch, hidden)),
            "bias": (bias, (directions, hidden)),
            "peepholes": (peepholes, (directions, Dim.of(3), hidden)),
            "projection": (projection, (directions, panels(state), hidden, Dim.of(1), lanes)),
            "lengths": (lengths, (batch,)),
        }
        if self.cell == "lstm" and projection is None:
            d.same_dim(state, hidden, "without a projection, h and c differ", arg="initial_c")
        need_sizes(d, wanted)
        if lengths is not None:
            d.need_int(lengths, "lengths")
        outputs = TensorType((*inputs.dims[:2], state * count), dtype)
        last = [initial_h] if initial_c is None else [initial_h, initial_c]
        return TupleType((outputs, *(TensorType(x.dims, dtype) for x in last)))

    def _need_arguments(
        self, d: Deduction, initial_c: KnownTensor | None, bias: KnownTensor | None,
        peepholes: KnownTensor | None, projection: KnownTensor | None,
    ) -> None:  # fmt: skip
        """Require the arguments that the cell has, and no others."""
        is_lstm = self.cell == "lstm"
        d.require(initial_c is not None or not is_lstm, "an lstm needs initial_c", arg="cell")
        d.require(initial_c is None or is_lstm, f"a {self.cell} has no initial_c", arg="initial_c")
        own = {"peepholes": (peepholes, is_lstm), "projection": (projection, is_lstm)}
        own["bias"] = bias, self.cell == "gru" and self.reset_after
        for name, (x, is_taken) in own.items():
            d.require(x is None or is_taken, f"this {self.cell} takes no {name}", arg=name)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        dtype = next(
            (x.dtype for x in args[1:3] if isinstance(x, TensorType) and x.dtype is not None), None
        )
        return TupleType(TensorType(None, dtype, 3) for _ in range(2 + (self.cell == "lstm")))

    def legalize(
        self, out: Any, inputs: te.Tensor, weight: te.Tensor, initial_h: te.Tensor,
        initial_c: te.Tensor | None = None, bias: te.Tensor | None = None,
        peepholes: te.Tensor | None = None, projection: te.Tensor | None = None,
        lengths: te.Tensor | None = None,
    ) -> Sequence[te.Tensor]:  # fmt: skip
        from relaxpy.tir.programs import recurrent as program

        operands = program.Operands(
            inputs, weight, initial_h, initial_c, bias, peepholes, projection, lengths
        )
        return program.recurrent(self.steps, operands, self.batch_first)

    def reference(
        self, inputs: np.ndarray, weight: np.ndarray, initial_h: np.ndarray,
        initial_c: np.ndarray | None = None, bias: np.ndarray | None = None,
        peepholes: np.ndarray | None = None, projection: np.ndarray | None = None,
        lengths: np.ndarray | None = None,
    ) -> tuple[np.ndarray, ...]:  # fmt: skip
        x = widened(np.swapaxes(inputs, 0, 1) if self.batch_first else inputs)
        length, batch, _ = x.shape
        hidden = (initial_h if initial_c is None else initial_c).shape[2]
        count, state = len(weight), initial_h.shape[2]
        weight = unpacked(weight, hidden)
        projection = None if projection is None else unpacked(projection, state)
        counts = np.full(batch, length) if lengths is None else lengths.astype(np.int64)
        y = np.zeros((length, batch, count, state), weight.dtype)
        h, c = initial_h.copy(), None if initial_c is None else initial_c.copy()
        x = x.reshape(length, batch, count, hidden * self.steps.gates)
        for d, is_backward in enumerate(self.steps.backward):
            fixed = _Weights(
                *(
                    None if a is None else widened(a[d])
                    for a in (weight, bias, peepholes, projection)
                )
            )
            for b, steps in enumerate(np.clip(counts, 0, length)):
                for t in reversed(range(steps)) if is_backward else range(steps):
                    before = h[d, b], None if c is None else c[d, b]
                    after = _step(self.steps, d, x[t, b, d], fixed, *map(_wide, before))
                    y[t, b, d] = h[d, b] = narrowed(after[0], h)
                    if c is not None:
                        c[d, b] = narrowed(after[1], c)
        y = y.reshape(length, batch, count * state)
        y = np.ascontiguousarray(np.swapaxes(y, 0, 1)) if self.batch_first else y
        return (y, h) if c is None else (y, h, c)

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        computed = partial(steps_as_calls, b, self.steps, self.batch_first)
        return b.through(computed, args, ct)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        near = partial(sample, rtol=2e-5, atol=1e-5)
        lstm = rand(5, 2, 12), packed(4, 1, 12, 3), rand(1, 2, 3)
        c = rand(1, 2, 3, low=-1, high=1)
        dims = "t b 12, 1 1 3 4 16, 1 b 3, 1 b 3"
        yield near(cls("lstm"), *lstm, c, dims=dims)
        some = "t b 4*h, 1 p h 4 16, 1 b h, 1 b h"
        yield near(cls("lstm"), *lstm, c, dims=some)
        turned = cls("lstm", "reverse", batch_first=True)
        states = rand(1, 5, 3), rand(1, 5, 3)
        yield near(turned, *lstm[:2], *states, dims="b t 12, 1 1 3 4 16, 1 b 3, 1 b 3")
        large = rand(3, 5, 76), packed(4, 1, 76, 19), rand(1, 5, 19), rand(1, 5, 19)
        wide = "t b 76, 1 2 19 4 16, 1 b 19, 1 b 19"
        yield near(cls("lstm"), *large, dims=wide, rtol=1e-4, atol=1e-4)
        lengths = np.array([3, 5], np.int64)
        both = rand(5, 2, 24), packed(4, 2, 12, 3), rand(2, 2, 3), rand(2, 2, 3)
        two = "t b 24, 2 1 3 4 16, 2 b 3, 2 b 3, b"
        yield near(cls("lstm", "bidirectional"), *both, (), (), (), lengths, dims=two)
        projected = rand(4, 3, 20), packed(4, 1, 20, 2), rand(1, 3, 2), rand(1, 3, 5)
        yield near(
            cls("lstm"),
            *projected,
            (),
            (),
            packed(1, 1, 2, 5),
            dims="t b 20, 1 1 2 4 16, 1 b 2, 1 b 5, 1 1 5 1 16",
        )
        bounded = cls("lstm", clip=0.5, input_forget=True)
        beyond = (), rand(1, 3, 3), (), np.array([9, -1])
        yield near(bounded, *lstm, c, *beyond, dims=f"{dims}, 1 3 3, b")
        odd = ("hard_sigmoid(0.3, 0.4)", "softsign", "elu")
        yield near(cls("lstm", "reverse", activations=odd), *lstm, c, dims=dims)
        gru = rand(5, 2, 9), packed(3, 1, 9, 3), rand(1, 2, 3), ()
        yield near(cls("gru"), *gru, rand(1, 3), dims="t b 9, 1 1 3 3 16, 1 b 3, 1 3")
        yield near(cls("gru"), *gru, rand(1, 3), dims="t b 3*h, 1 p h 3 16, 1 b h, 1 h")
        yield near(cls("gru", reset_after=False), *gru[:3], dims="t b 9, 1 1 3 3 16, 1 b 3")
        pairs = ("sigmoid", "softplus", "scaled_tanh(1.5, 0.5)", "thresholded_relu(0.25)")
        two = rand(5, 2, 18), packed(3, 2, 9, 3), rand(2, 2, 3)
        either = cls("gru", "bidirectional", activations=pairs)
        yield near(either, *two, dims="t b 18, 2 1 3 3 16, 2 b 3")
        rnn = rand(6, 2, 3), packed(1, 1, 3, 3), rand(1, 2, 3)
        yield near(cls("rnn"), *rnn, dims="t b 3, 1 1 3 1 16, 1 b 3")
        few = rand(6, 2, 3), packed(1, 1, 3, 3) * np.float32(0.25), rand(1, 2, 3)
        yield near(cls("rnn", activations=("relu",)), *few, dims="t b h, 1 p h 1 16, 1 b h")
        yield near(cls("rnn", activations=("affine(0.5, 0.1)",), clip=2.0), *rnn)
        yield near(cls("rnn", activations=("leaky_relu",)), *few)
        half = [a.astype(np.float16) for a in (*lstm[1:], c)]
        close = partial(sample, rtol=4e-3, atol=4e-3)
        yield close(cls("lstm"), lstm[0], *half, dims=dims)
        yield close(cls("lstm"), lstm[0].astype(np.float16), *half, dims=dims)
        yield wrong(cls("lstm"), *lstm, code="op-arguments", match="needs initial_c")
        yield wrong(cls("rnn"), *rnn, rand(1, 2, 3), code="op-arguments", match="no initial_c")
        yield wrong(
            cls("gru", reset_after=False), *gru, rand(1, 3), code="op-arguments", match="no bias"
        )
        yield wrong(cls("cnn"), *rnn, code="op-arguments", match="lstm, gru, rnn")
        yield wrong(cls("rnn", "up"), *rnn, code="op-arguments", match="reverse")
        yield wrong(cls("rnn", activations=("gelu",)), *rnn, code="op-arguments", match="gelu")
        yield wrong(cls("rnn", clip=-1.0), *rnn, code="op-arguments", match="clip")
        yield wrong(cls("rnn"), rand(6, 2, 4), *rnn[1:], code="shape-mismatch", match="inputs")
        yield wrong(cls("rnn", "bidirectional"), *rnn, code="shape-mismatch", match="weight")
        yield wrong(cls("rnn"), *rnn[:2], rand(1, 3, 3), code="shape-mismatch", match="initial_h")
        yield wrong(cls("rnn"), *rnn[:2], rand(2, 3), code="op-rank", match="initial_h")
        yield wrong(
            cls("rnn"), rnn[0].astype(np.float64), *rnn[1:], code="op-dtype", match="inputs"
        )
        yield wrong(cls("rnn"), *rnn, (), (), (), (), rand(2), code="op-dtype", match="lengths")


@define_op
class RecurrentPanels(Op):
    """A weight (D, gates * units, depth) in the order in which `nn.recurrent_steps` multiplies it: (D, panels, depth,
    gates, 16), where panel p has units 16 * p to 16 * p + 15 of each gate. Units beyond the last one are zeros."""

    name = "nn.recurrent_panels"
    packs: ClassVar[bool] = True
    gates: int

    def deduce(self, d: Deduction, weight: KnownTensor) -> TensorType:
        need_ranks(d, {"weight": (weight, "directions, gates * units, depth")})
        d.require(self.gates > 0, f"gates must be positive, got {self.gates}", arg="gates")
        directions, rows, depth = weight.dims
        units = rows // self.gates
        d.same_dim(units * self.gates, rows, f"there are not {self.gates} gates", arg="weight")
        return TensorType((directions, panels(units), depth, self.gates, PANEL), weight.dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        (weight,) = args
        return TensorType(None, weight.dtype if isinstance(weight, TensorType) else None, 5)

    def legalize(self, out: KnownTensor, weight: te.Tensor) -> te.Tensor:
        units = te.dim(te.dims(weight)[1] // self.gates)

        def element(d: Any, panel: Any, k: Any, gate: Any, lane: Any) -> Any:
            unit = panel * te.dim(PANEL) + lane
            none = te.const(0, str(out.dtype))
            return te.if_then_else(
                unit < units, te.element(weight(d, gate * units + unit, k)), none
            )

        return te.compute(out.dims, element, "panels")

    def reference(self, weight: np.ndarray) -> np.ndarray:
        directions, rows, depth = weight.shape
        units = rows // self.gates
        split = weight.reshape(directions, self.gates, units, depth)
        padded = np.pad(split, ((0, 0), (0, 0), (0, -units % PANEL), (0, 0)))
        split = padded.reshape(directions, self.gates, -(-units // PANEL), PANEL, depth)
        return np.ascontiguousarray(split.transpose(0, 2, 4, 1, 3))

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        directions, rows, depth = b.dims(args[0])
        units, count = rows // self.gates, b.dims(ct)[1]
        found = b.permute_dims(ct, (0, 3, 1, 4, 2))
        found = b.reshape(found, (directions, self.gates, count * PANEL, depth))
        found = b.strided_slice(found, (2,), (Dim.of(0),), (units,))
        return [b.reshape(found, (directions, rows, depth))]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(4), rand(2, 12, 5), dims="d 4*h k")
        yield sample(cls(1), rand(1, 35, 3), dims="1 h 3")
        yield sample(cls(3), rand(2, 48, 2), dims="2 48 k")
        yield sample(cls(2), rand(1, 0, 3), dims="1 2*h 3")
        yield sample(cls(2), rand(1, 66, 3, dtype="int8"), dims="1 2*h 3")
        yield wrong(cls(4), rand(1, 10, 3), code="shape-mismatch", match="4 gates")
        yield wrong(cls(0), rand(1, 10, 3), code="op-arguments", match="positive")
        yield wrong(cls(1), rand(10, 3), code="op-rank", match="weight must have 3")


def panels(units: Dim) -> Dim:
    """The number of panels of so many units."""
    return (units + (PANEL - 1)) // PANEL


def packed(gates: int, *shape: int) -> np.ndarray:
    """Test values for a packed weight."""
    return RecurrentPanels(gates).reference(rand(*shape))


def unpacked(weight: np.ndarray, units: int) -> np.ndarray:
    """The weight (D, gates * units, depth) that was packed."""
    directions, count, depth, gates, lanes = weight.shape
    rows = weight.transpose(0, 3, 1, 4, 2).reshape(directions, gates, count * lanes, depth)
    return rows[:, :, :units].reshape(directions, gates * units, depth)


def need_cell(
    d: Deduction, cell: str, direction: str, activations: Sequence[str], clip: float | None
) -> None:
    """Require a cell, a direction, activations of this cell, and a bound that there are."""
    d.require(cell in GATES, f"cell {cell!r} is none of {', '.join(GATES)}", arg="cell")
    d.require(
        direction in DIRECTIONS,
        f"direction {direction!r} is none of {', '.join(DIRECTIONS)}",
        arg="direction",
    )
    d.require(clip is None or clip > 0, f"clip must be positive, got {clip}", arg="clip")
    count, several = len(DEFAULTS[cell]), len(DEFAULTS[cell]) * len(DIRECTIONS[direction])
    d.require(
        len(activations) in (0, count, several),
        f"{direction} {cell} has {count} activations for each direction, got {len(activations)}",
        arg="activations",
    )
    for text in activations:
        try:
            Activation.read(text)
        except ValueError as error:
            d.fail(f"activation {error}", arg="activations")


def need_ranks(d: Deduction, given: Mapping[str, tuple[KnownTensor | None, str]]) -> None:
    """Require the number of dimensions of each argument that there is, which are named."""
    for name, (x, axes) in given.items():
        wanted = axes.count(",") + 1
        if x is not None and x.ndim != wanted:
            plural = "s" if wanted > 1 else ""
            d.fail(
                f"{name} must have {wanted} dimension{plural} ({axes}), got {x.ndim}",
                arg=name, code="op-rank",
            )  # fmt: skip


def need_sizes(
    d: Deduction, given: Mapping[str, tuple[KnownTensor | None, tuple[Dim, ...]]]
) -> None:
    """Require the dimensions of each argument that there is."""
    for name, (x, wanted) in given.items():
        for axis, size in enumerate(wanted if x is not None else ()):
            assert x is not None
            d.same_dim(x.dims[axis], size, f"size {axis} of {name} does not fit", arg=name)


# The step, on numpy


class _Weights(NamedTuple):
    """The weights of a direction."""

    weight: Any
    bias: Any
    peepholes: Any
    projection: Any


def _wide(x: np.ndarray | None) -> Any:
    return None if x is None else widened(x)


def _step(cell: Cell, d: int, x: Any, w: _Weights, h: Any, c: Any) -> tuple[Any, Any]:
    """The state (h, c) after a step of direction `d`, given the products of its input."""
    clips = (cell.clip, cell.clip, None)  # as ONNX Runtime: not before the cell's own
    f, *others = map(_function, cell.functions(d), clips)
    hidden = len(x) // cell.gates
    x = x.reshape(cell.gates, hidden)
    weight = w.weight.reshape(cell.gates, hidden, len(h))
    products = weight @ h
    if cell.kind == "rnn":
        return f(x[0] + products[0]), None
    if cell.kind == "gru":
        r, z = f(x[0] + products[0]), f(x[1] + products[1])
        if cell.reset_after:
            new = products[2] if w.bias is None else products[2] + w.bias
            n = others[0](x[2] + r * new)
        else:
            n = others[0](x[2] + weight[2] @ (r * h))
        return (1 - z) * n + z * h, None
    g, last = others
    p = np.zeros((3, hidden), x.dtype) if w.peepholes is None else w.peepholes
    i = f(x[0] + products[0] + p[0] * c)
    forget = 1 - i if cell.input_forget else f(x[1] + products[1] + p[1] * c)
    c = forget * c + i * g(x[2] + products[2])
    o = f(x[3] + products[3] + p[2] * c)
    h = o * last(c)
    return h if w.projection is None else w.projection @ h, c


def _function(activation: Activation, clip: float | None) -> Any:
    """An activation as a function of an array, which is clipped before."""
    a, b = (*activation.numbers, 0.0, 0.0)[:2]
    made: dict[str, Any] = {
        "affine": lambda x: a * x + b,
        "elu": lambda x: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x),
        "hard_sigmoid": lambda x: np.clip(a * x + b, 0, 1),
        "leaky_relu": lambda x: np.where(x < 0, a * x, x),
        "relu": lambda x: np.maximum(x, 0),
        "scaled_tanh": lambda x: a * np.tanh(b * x),
        "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "softplus": lambda x: np.logaddexp(x, 0),
        "softsign": lambda x: x / (1 + np.abs(x)),
        "tanh": np.tanh,
        "thresholded_relu": lambda x: np.where(x < a, 0, x),
    }
    assert made.keys() == ACTIVATIONS.keys()
    function = made[activation.name]
    if clip is None:
        return lambda x: function(x).astype(x.dtype)
    return lambda x: function(np.clip(x, -clip, clip)).astype(x.dtype)
