"""Recurrent networks: layers of LSTM, GRU and simple cells over whole sequences.

The weights are a tuple, in torch's order: for each layer, for each of its directions, that of the input (gates *
hidden, input), that of the state (gates * hidden, state), `biases` biases (gates * hidden,), and what an LSTM may have
more. The products of the inputs with their weights are one matrix product for all steps and directions; the steps are
`nn.recurrent_steps`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from relaxpy.ir.annotation import Annotation, TensorType, TupleType
from relaxpy.ir.cell import DIRECTIONS, GATES
from relaxpy.ir.dim import Dim
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Expr, PrimValue, ShapeExpr, Tuple, TupleGetItem, Var
from relaxpy.ir.known import KnownTensor
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.binary import Add
from relaxpy.op.create import Zeros
from relaxpy.op.datatype import Astype
from relaxpy.op.deduce import known_tensor
from relaxpy.op.deduction import Deduction
from relaxpy.op.join import Concat, Split, Stack
from relaxpy.op.linear_algebra import Linear
from relaxpy.op.manipulate import ExpandDims
from relaxpy.op.precision import widened
from relaxpy.op.recurrent_steps import (
    RecurrentPanels,
    RecurrentSteps,
    need_cell,
    need_ranks,
    need_sizes,
)
from relaxpy.op.rule import Cotangent, Rule
from relaxpy.op.slice import StridedSlice

Emit = Callable[..., Var]


@dataclass(frozen=True)
class Recurrent(Op):
    """Base of the recurrent networks."""

    legalize = None
    cell: ClassVar[str]

    num_layers: int = 1
    """Layers, each of which takes the outputs of the one before."""
    direction: str = "forward"
    """forward, reverse (from the end of each sequence to its start) or bidirectional (both, outputs side by side)."""
    biases: int = 2
    """Biases of each direction: 2 (of the input and of the state, as torch has them), 1 (their sum) or 0."""
    batch_first: bool = False
    """Are `x` and the outputs (batch, length, …)? The states are (…, batch, …) either way."""
    gates: str = ""
    """The order of the gates in weights and biases, a letter each."""
    activations: tuple[str, ...] = ()
    """The activations of a direction, or of both one after the other: affine, elu, hard_sigmoid, leaky_relu, relu,
    scaled_tanh, sigmoid, softplus, softsign, tanh, thresholded_relu, perhaps with numbers: `leaky_relu(0.2)`."""
    clip: float | None = None
    """Bound of the absolute values that the gates' activations take, but not that of the cell's state; None: none."""

    def has(self, name: str) -> bool:
        """An option that only some cells have."""
        return bool(getattr(self, name, False))

    @property
    def directions(self) -> int:
        return len(DIRECTIONS[self.direction])

    @property
    def steps(self) -> RecurrentSteps:
        """The steps of a layer."""
        return RecurrentSteps(
            self.cell, self.direction, self.batch_first, self.activations, self.clip,
            self.has("input_forget"), getattr(self, "reset_after", True),
        )  # fmt: skip

    def parts(self) -> list[str]:
        """What the weights of a direction are, in their order."""
        extra = [name for name in ("projection", "peepholes") if self.has(name)]
        return ["input weight", "state weight", *["bias"] * self.biases, *extra]

    def of_layers(self, weights: Sequence[Any]) -> list[list[_Direction]]:
        """The weights of each direction of each layer."""
        parts, made = self.parts(), []
        for start in range(0, len(weights), len(parts)):
            own = dict(zip(parts, weights[start:], strict=False))
            biases = weights[start + 2 : start + 2 + self.biases]
            made.append(
                _Direction(
                    weights[start], weights[start + 1], tuple(biases), own.get("projection"),
                    own.get("peepholes"),
                )
            )  # fmt: skip
        count = self.directions
        return [made[i : i + count] for i in range(0, len(made), count)]

    # Deduction

    def _deduced(
        self, d: Deduction, x: KnownTensor, weights: TupleType, initial: dict[str, KnownTensor | None],
        lengths: KnownTensor | None,
    ) -> TupleType:  # fmt: skip
        need_cell(d, self.cell, self.direction, self.activations, self.clip)
        d.require(
            self.num_layers > 0,
            f"num_layers must be positive, got {self.num_layers}",
            arg="num_layers",
        )
        d.require(self.biases in (0, 1, 2), f"biases must be 0, 1 or 2, got {self.biases}", arg="biases")  # fmt: skip
        own = GATES[self.cell]
        d.require(
            not self.gates or sorted(self.gates) == sorted(own),
            f"gates must be the letters {own} in some order, got {self.gates!r}", arg="gates",
        )  # fmt: skip
        given = [field for field in weights.fields if isinstance(field, KnownTensor)]
        each = self.parts()
        count = self.num_layers * self.directions
        d.require(
            len(given) == len(weights.fields) == count * len(each),
            f"weights must be {count * len(each)} tensors: for each layer and direction {', '.join(each)}; got "
            f"{len(weights.fields)}",
            arg="weights",
        )  # fmt: skip
        need_ranks(d, {
            "x": (x, "batch, length, input" if self.batch_first else "length, batch, input"),
            **{name: (h, "layers * directions, batch, hidden") for name, h in initial.items()},
            "lengths": (lengths, "batch"),
        })  # fmt: skip
        dtype = d.need_float(x, "x")
        d.same_dtype(x, *given, *(h for h in initial.values() if h is not None))
        if lengths is not None:
            d.need_int(lengths, "lengths")
        batch = x.dims[0 if self.batch_first else 1]
        hidden, state = self._sizes(d, x, given)
        sizes = dict(zip(initial, (state, hidden), strict=False))
        layers = Dim.of(count)
        need_sizes(d, {
            **{name: (h, (layers, batch, sizes[name])) for name, h in initial.items()},
            "lengths": (lengths, (batch,)),
        })  # fmt: skip
        outputs = TensorType((*x.dims[:2], state * self.directions), dtype)
        last = [TensorType((layers, batch, sizes[name]), dtype) for name in initial]
        return TupleType((outputs, *last))

    def _sizes(
        self, d: Deduction, x: KnownTensor, weights: Sequence[KnownTensor]
    ) -> tuple[Dim, Dim]:
        """The sizes of an LSTM's cell and of the state, after checking those of all weights."""
        ranks = {"bias": 1, "peepholes": 1}
        parts = self.parts()
        for number, weight in enumerate(weights):
            part = parts[number % len(parts)]
            wanted = ranks.get(part, 2)
            if weight.ndim != wanted:
                d.fail(
                    f"weight {number}, {_article(part)} {part}, must have {wanted} dimensions, got {weight.ndim}",
                    arg="weights", code="op-rank",
                )  # fmt: skip
        gates = len(GATES[self.cell])
        first = self.of_layers(weights)[0][0]
        state = first.state.dims[1]
        hidden = state if first.projection is None else first.projection.dims[1]
        width = x.dims[2]
        for layer, own in enumerate(self.of_layers(weights)):
            for number, each in enumerate(own):
                wanted = {
                    "input weight": (each.input, (hidden * gates, width)),
                    "state weight": (each.state, (hidden * gates, state)),
                    "projection": (each.projection, (state, hidden)),
                    "peepholes": (each.peepholes, (hidden * 3,)),
                }
                names = ("bias", "second bias")
                wanted |= {
                    n: (b, (hidden * gates,)) for n, b in zip(names, each.biases, strict=False)
                }
                where = f"layer {layer}" + (f", direction {number}" if len(own) > 1 else "")
                for name, (weight, dims) in wanted.items():
                    for axis, size in enumerate(dims if weight is not None else ()):
                        assert weight is not None
                        d.same_dim(
                            weight.dims[axis], size,
                            f"size {axis} of the {name} of {where} does not fit", arg="weights",
                        )  # fmt: skip
            width = state * self.directions
        return hidden, state

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        x = args[0]
        dtype = x.dtype if isinstance(x, TensorType) else None
        return TupleType(TensorType(None, dtype, 3) for _ in range(2 + (self.cell == "lstm")))

    # As calls of other operators

    def _decomposed(
        self, emit: Emit, x: Expr, weights: Sequence[Expr], first: Sequence[Expr | None], lengths: Expr | None
    ) -> Expr:  # fmt: skip
        layers = self.of_layers(weights)
        last: list[Sequence[Expr]] = []
        for number, own in enumerate(layers):
            joined = _joined(self, emit, own)
            inputs = self._inputs(emit, x, joined)
            states = self._states(emit, inputs, joined, first, number)
            given: list[Expr] = [inputs, joined.state, *states]
            given += [Tuple(())] * (4 - len(given))
            more = (
                joined.biases[0] if joined.biases else None,
                joined.peepholes,
                joined.projection,
                lengths,
            )
            given += [Tuple(()) if each is None else each for each in more]
            while isinstance(given[-1], Tuple):
                given.pop()
            done = emit(self.steps(*given), "steps")
            x, *ends = (
                emit(TupleGetItem(done, i), "last" if i else "outputs")
                for i in range(1 + len(states))
            )
            last.append(ends)
        ends = (
            own[0] if len(own) == 1 else emit(Concat(0)(Tuple(own)), "last")
            for own in map(tuple, zip(*last, strict=True))
        )
        return Tuple((x, *ends))

    def _inputs(self, emit: Emit, x: Expr, joined: _Direction) -> Var:
        """The products of the inputs of all steps, in float32 for narrower types."""
        dtype = known_tensor(joined.input).dtype
        wide = DType("float32") if dtype.is_narrow else None
        inputs = emit(Linear(wide)(x, joined.input), "inputs")
        if not joined.input_bias:
            return inputs
        (bias,) = joined.input_bias
        bias = bias if wide is None else emit(Astype(wide)(bias), "bias")
        return emit(Add()(inputs, bias), "inputs")

    def _states(
        self, emit: Emit, inputs: Expr, joined: _Direction, first: Sequence[Expr | None], layer: int
    ) -> list[Expr]:
        """The states of a layer before its first step."""
        count = self.directions
        weight = known_tensor(joined.state)
        sizes = [weight.dims[2], weight.dims[2]]
        if joined.projection is not None:
            sizes[1] = known_tensor(joined.projection).dims[2]
        batch = known_tensor(inputs).dims[0 if self.batch_first else 1]
        found: list[Expr] = []
        for given, size in zip(first, sizes, strict=False):
            if given is None:
                shape = (Dim.of(count), batch, size)
                found.append(emit(Zeros(weight.dtype)(ShapeExpr(shape)), "zeros"))
            elif self.num_layers == 1:
                found.append(given)
            else:
                axis, *ends = ((place,) for place in (0, count * layer, count * (layer + 1)))
                part = StridedSlice()(given, *map(ShapeExpr, (axis, *ends)))
                found.append(emit(part, "first"))
        return found

    def vjp(self, b: Rule, args: Sequence[Any], out: Any, ct: Any) -> Sequence[Cotangent]:
        emit: Any = lambda value, _: b.emit(value)  # noqa: E731
        decompose: Any = self.decompose
        return b.through(lambda *given: decompose(emit, *given), args, ct)

    # On numpy

    def _computed(
        self, x: np.ndarray, weights: Sequence[np.ndarray], first: Sequence[np.ndarray | None], lengths: Any
    ) -> tuple[np.ndarray, ...]:  # fmt: skip
        count = self.directions
        batch = x.shape[0 if self.batch_first else 1]
        last: list[Sequence[np.ndarray]] = []
        order = [(self.gates or GATES[self.cell]).index(gate) for gate in GATES[self.cell]]
        for number, own in enumerate(self.of_layers(weights)):
            inputs, own_bias = [], []
            for each in own:
                biases = [_ordered(widened(b), order) for b in each.biases]
                total = widened(x) @ _ordered(widened(each.input), order).T
                if self.cell == "gru" and self.steps.reset_after and len(biases) == 2:
                    new = slice(len(biases[1]) // 3 * 2, None)
                    own_bias.append(biases[1][new].astype(x.dtype))
                    biases[1] = biases[1].copy()
                    biases[1][new] = 0
                inputs.append(sum(biases, total))
            stacked = np.stack([_ordered(each.state, order) for each in own])
            hidden = [stacked.shape[2]] * 2
            panels = RecurrentPanels(len(order)).reference(stacked)
            projection = peepholes = None
            if own[0].projection is not None:
                projection = np.stack([each.projection for each in own])
                hidden[1] = projection.shape[2]
                projection = RecurrentPanels(1).reference(projection)
            if own[0].peepholes is not None:
                places = [(self.gates or "ifgo").replace("g", "").index(gate) for gate in "ifo"]
                peepholes = np.stack([each.peepholes.reshape(3, -1)[places] for each in own])
            part = slice(number * count, (number + 1) * count)
            states = [
                np.zeros((count, batch, size), x.dtype) if given is None else given[part]
                for given, size in zip(first, hidden, strict=False)
            ]
            states += [None] * (2 - len(states))
            x, *ends = self.steps.reference(
                np.concatenate(inputs, -1), panels, *states,
                np.stack(own_bias) if own_bias else None, peepholes, projection, lengths,
            )  # fmt: skip
            last.append(ends)
        return x, *(np.concatenate(each) for each in zip(*last, strict=True))


@define_op
class Lstm(Recurrent):
    """Layers of long short-term memory (Hochreiter and Schmidhuber, 1997), as `torch.nn.LSTM` and ONNX's `LSTM`. `x` is
    (length, batch, input). `weights` is a tuple: for each layer, for each of its D = 1 or 2 directions, the weight of
    the input (4 * hidden, input), that of the state (4 * hidden, state), `biases` biases (4 * hidden,), with
    `projection` the weight (state, hidden) that maps outputs to states, and with `peepholes` the factors (3 * hidden,)
    of the cell for all gates but g; without a projection `state` is `hidden`. The first states, `initial_h` (layers *
    D, batch, state) and `initial_c` (layers * D, batch, hidden), are zeros if left out. `lengths` (batch,) says how
    many steps each sequence has: outputs after them are 0, the last states are those after the last of them, and
    backward directions begin there. The result is a tuple: outputs (length, batch, D * state), the last h and the last
    c."""

    name = "nn.lstm"
    cell = "lstm"
    gates: str = "ifgo"
    """The order of the gates in weights and biases: input, forget, cell (g), output. ONNX's is `iofg`. That of
    peepholes is the same, without g."""
    projection: bool = False
    """Has each direction a weight that maps outputs to states?"""
    peepholes: bool = False
    """Has each direction factors of the cell for the gates?"""
    input_forget: bool = False
    """Is the forget gate 1 minus the input gate?"""

    def deduce(
        self, d: Deduction, x: KnownTensor, weights: TupleType, initial_h: KnownTensor | None = None,
        initial_c: KnownTensor | None = None, lengths: KnownTensor | None = None,
    ) -> TupleType:  # fmt: skip
        initial = {"initial_h": initial_h, "initial_c": initial_c}
        return self._deduced(d, x, weights, initial, lengths)

    def decompose(
        self, emit: Emit, x: Expr, weights: Sequence[Expr], initial_h: Expr | None = None,
        initial_c: Expr | None = None, lengths: Expr | None = None,
    ) -> Expr:  # fmt: skip
        return self._decomposed(emit, x, weights, (initial_h, initial_c), lengths)

    def reference(
        self, x: np.ndarray, weights: Sequence[np.ndarray], initial_h: np.ndarray | None = None,
        initial_c: np.ndarray | None = None, lengths: np.ndarray | None = None,
    ) -> tuple[np.ndarray, ...]:  # fmt: skip
        return self._computed(x, weights, (initial_h, initial_c), lengths)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        near = partial(sample, rtol=2e-5, atol=1e-5)
        own = rand(12, 4), rand(12, 3), rand(12), rand(12, low=-1, high=1)
        dims = "t b 4, 12 4, 12 3, 12, 12"
        x = rand(5, 2, 4)
        yield near(cls(), x, own, dims=dims)
        yield near(cls(biases=0), x, own[:2], dims="t b i, 4*h i, 4*h h")
        states = rand(1, 2, 3), rand(1, 2, 3, low=-1, high=1)
        rest = f"b t{dims[3:]}, 1 b 3, 1 b 3, b"
        lengths = np.array([4, 6])
        yield near(cls(batch_first=True), rand(2, 6, 4), own, *states, lengths, dims=rest)
        second = rand(12, 6), rand(12, 3), rand(12), rand(12, low=-1, high=1)
        both = cls(num_layers=2, direction="bidirectional")
        last = rand(4, 2, 3), rand(4, 2, 3)
        several = (*own, *own, *second, *second)
        dims = f"{dims}, 12 4, 12 3, 12, 12" + ", 12 6, 12 3, 12, 12" * 2
        yield near(both, x, several, *last, dims=f"{dims}, 4 b 3, 4 b 3")
        yield near(both, x, several, (), (), np.array([1, 5]), dims=f"{dims}, b")
        projected = rand(20, 4), rand(20, 2), rand(20), rand(2, 5)
        yield near(cls(biases=1, projection=True), x, projected, dims="t b 4, 20 4, 20 2, 20, 2 5")
        onnx = cls(
            direction="reverse",
            gates="iofg",
            peepholes=True,
            clip=0.7,
            activations=("sigmoid", "relu", "tanh"),
        )
        yield near(onnx, x, (*own, rand(9)), *states)
        yield wrong(cls(), x, own[:3], code="op-arguments", match="4 tensors")
        yield wrong(cls(num_layers=0), x, (), code="op-arguments", match="num_layers")
        yield wrong(cls(biases=3), x, own, code="op-arguments", match="biases")
        yield wrong(cls(gates="ifg"), x, own, code="op-arguments", match="gates")
        yield wrong(cls(), rand(5, 4), own, code="op-rank", match="x must have 3")
        yield wrong(cls(), x, (*own[:3], rand(12, 1)), code="op-rank", match="weight 3, a bias")
        yield wrong(
            cls(), rand(5, 2, 5), own, code="shape-mismatch", match="input weight of layer 0"
        )
        yield wrong(cls(), x, own, rand(2, 2, 3), code="shape-mismatch", match="initial_h")
        yield wrong(cls(), x, own, (), (), np.array([3]), code="shape-mismatch", match="lengths")
        yield wrong(cls(), x, own, (), (), rand(2), code="op-dtype", match="lengths")
        yield wrong(cls(), x.astype(np.float64), own, code="op-dtype", match="float64")


class OneState(Recurrent):
    """Base of the layers whose state is h alone."""

    def deduce(
        self, d: Deduction, x: KnownTensor, weights: TupleType, initial_h: KnownTensor | None = None,
        lengths: KnownTensor | None = None,
    ) -> TupleType:  # fmt: skip
        return self._deduced(d, x, weights, {"initial_h": initial_h}, lengths)

    def decompose(
        self, emit: Emit, x: Expr, weights: Sequence[Expr], initial_h: Expr | None = None,
        lengths: Expr | None = None,
    ) -> Expr:  # fmt: skip
        return self._decomposed(emit, x, weights, (initial_h,), lengths)

    def reference(
        self, x: np.ndarray, weights: Sequence[np.ndarray], initial_h: np.ndarray | None = None,
        lengths: np.ndarray | None = None,
    ) -> tuple[np.ndarray, ...]:  # fmt: skip
        return self._computed(x, weights, (initial_h,), lengths)


@define_op
class Gru(OneState):
    """Layers of gated recurrent units (Cho et al., 2014), as `torch.nn.GRU` and ONNX's `GRU`. `x` is (length, batch,
    input). `weights` is a tuple: for each layer, for each of its D = 1 or 2 directions, the weight of the input (3 *
    hidden, input), that of the state (3 * hidden, hidden), and `biases` biases (3 * hidden,). The first state,
    `initial_h` (layers * D, batch, hidden), is zeros if left out. `lengths` (batch,) says how many steps each sequence
    has: outputs after them are 0, the last state is that after the last of them, and backward directions begin there.
    The result is a tuple: outputs (length, batch, D * hidden), and the last h."""

    name = "nn.gru"
    cell = "gru"
    gates: str = "rzn"
    """The order of the gates in weights and biases: reset, update, new. ONNX's is `zrn`."""
    reset_after: bool = True
    """Is the reset gate multiplied with the product of state and weight, bias included (torch; ONNX's
    linear_before_reset=1), or with the state before the product?"""

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        near = partial(sample, rtol=2e-5, atol=1e-5)
        own = rand(9, 4), rand(9, 3), rand(9), rand(9, low=-1, high=1)
        dims = "t b 4, 9 4, 9 3, 9, 9"
        x = rand(5, 2, 4)
        yield near(cls(), x, own, dims=dims)
        yield near(cls(biases=0), x, own[:2], dims="t b i, 3*h i, 3*h h")
        yield near(cls(reset_after=False), x, own, rand(1, 2, 3), dims=f"{dims}, 1 b 3")
        second = rand(9, 6), rand(9, 3), rand(9), rand(9, low=-1, high=1)
        both = cls(num_layers=2, direction="bidirectional", gates="zrn")
        lengths = np.array([2, 5], np.int32)
        yield near(both, x, (*own, *own, *second, *second), rand(4, 2, 3), lengths)
        yield near(cls(direction="reverse", biases=1), x, own[:3], dims="t b 4, 9 4, 9 3, 9")
        yield wrong(cls(gates="ifgo"), x, own, code="op-arguments", match="rzn")
        wide = *own[:1], rand(9, 4), *own[2:]
        yield wrong(cls(), x, wide, code="shape-mismatch", match="input weight")


@define_op
class Rnn(OneState):
    """Layers of simple recurrent cells (Elman, 1990), as `torch.nn.RNN` and ONNX's `RNN`: h = tanh(W x + U h + b). `x`
    is (length, batch, input). `weights` is a tuple: for each layer, for each of its D = 1 or 2 directions, the weight
    of the input (hidden, input), that of the state (hidden, hidden), and `biases` biases (hidden,). The first state,
    `initial_h` (layers * D, batch, hidden), is zeros if left out. `lengths` (batch,) says how many steps each sequence
    has: outputs after them are 0, the last state is that after the last of them, and backward directions begin there.
    The result is a tuple: outputs (length, batch, D * hidden), and the last h."""

    name = "nn.rnn"
    cell = "rnn"
    gates: str = "h"
    """The order of the gates: there is only one."""

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        near = partial(sample, rtol=2e-5, atol=1e-5)
        own = rand(3, 4), rand(3, 3), rand(3), rand(3, low=-1, high=1)
        x = rand(5, 2, 4)
        yield near(cls(), x, own, dims="t b 4, 3 4, 3 3, 3, 3")
        relu = cls(activations=("relu",), direction="bidirectional", biases=0)
        few = rand(3, 4), rand(3, 3, low=-0.4, high=0.4)
        yield near(relu, x, few * 2, rand(2, 2, 3), dims="t b i, h i, h h, h i, h h, 2 b h")
        yield near(cls(biases=1), x, own[:3], (), np.array([0, 4]), dims="t b 4, 3 4, 3 3, 3, b")
        yield wrong(cls(), x, own[:2], code="op-arguments", match="4 tensors")
        yield wrong(
            cls(activations=("tanh",) * 3), x, own, code="op-arguments", match="1 activations"
        )


@dataclass(frozen=True)
class _Direction:
    """The weights of a direction of a layer; or those of its directions, joined."""

    input: Any
    state: Any
    biases: tuple[Any, ...]
    projection: Any = None
    peepholes: Any = None
    input_bias: tuple[Any, ...] = ()


def _joined(op: Recurrent, emit: Emit, own: Sequence[_Direction]) -> _Direction:
    """The weights of all directions of a layer as `nn.recurrent_steps` takes them. `biases` is then that of the state
    for the new gate of a GRU, `input_bias` the sum of all others."""
    own = [_in_order(op, emit, each) for each in own]
    input_biases = [each.input_bias[0] for each in own if each.input_bias]
    biases = [each.biases[0] for each in own if each.biases]

    def stacked(parts: Sequence[Any]) -> Any:
        if any(part is None for part in parts) or not parts:
            return None
        if len(parts) == 1:
            return emit(ExpandDims((0,))(parts[0]), "weight")
        return emit(Stack(0)(Tuple(tuple(parts))), "weight")

    def packed(parts: Sequence[Any], gates: int) -> Any:
        made = stacked(parts)
        return None if made is None else emit(RecurrentPanels(gates)(made), "panels")

    def joined(parts: Sequence[Any]) -> Any:
        return parts[0] if len(parts) == 1 else emit(Concat(0)(Tuple(tuple(parts))), "weight")

    return _Direction(
        joined([each.input for each in own]),
        packed([each.state for each in own], len(GATES[op.cell])),
        (stacked(biases),) if biases else (),
        packed([each.projection for each in own], 1),
        stacked([each.peepholes for each in own]),
        (joined(input_biases),) if input_biases else (),
    )


def _in_order(op: Recurrent, emit: Emit, each: _Direction) -> _Direction:
    """The weights of a direction with the gates in torch's order, and their biases added."""
    letters = GATES[op.cell]
    order = [(op.gates or letters).index(gate) for gate in letters]

    def parts(weight: Any, count: int) -> list[Expr]:
        found = emit(Split(0)(weight, PrimValue(count)), "gates")
        return [emit(TupleGetItem(found, i), "gate") for i in range(count)]

    def ordered(weight: Any) -> Any:
        if order == sorted(order):
            return weight
        own = parts(weight, len(order))
        return emit(Concat(0)(Tuple(tuple(own[i] for i in order))), "weight")

    first, *second = (ordered(bias) for bias in each.biases) if each.biases else (None,)
    biases: tuple[Any, ...] = ()
    if second and op.cell == "gru" and op.steps.reset_after:
        *gates, new = parts(second[0], 3)
        biases, kind = (new,), known_tensor(new)
        none = emit(Zeros(kind.dtype)(ShapeExpr(kind.dims)), "zeros")
        second = [emit(Concat(0)(Tuple((*gates, none))), "bias")]
    if second:
        first = emit(Add()(first, second[0]), "bias")
    peepholes = each.peepholes
    if peepholes is not None:
        own = parts(peepholes, 3)
        places = [(op.gates or letters).replace("g", "").index(gate) for gate in "ifo"]
        peepholes = emit(Stack(0)(Tuple(tuple(own[i] for i in places))), "peepholes")
    return _Direction(
        ordered(each.input), ordered(each.state), biases, each.projection, peepholes,
        () if first is None else (first,),
    )  # fmt: skip


def _ordered(weight: np.ndarray, order: Sequence[int]) -> np.ndarray:
    """A weight or bias with its gates in another order."""
    parts = np.split(weight, len(order))
    return np.concatenate([parts[i] for i in order])


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"
