"""Random programs with symbolic dimensions, for tests of the whole compiler: chains of operators
that deduce, run at any size, and whose results can be compared.

    program = random_program(seed)
    for sizes in program.bindings():
        args = program.arguments(sizes)
        interpret(program.mod, "main", *args)

The same seed gives the same program. Values are kept small and functions continuous, so that two
right ways to compute differ by rounding only: `program.tolerance` says how much.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from relaxpy import op
from relaxpy.errors import DeduceError
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.dtype import DType
from relaxpy.ir.expr import Call, Constant, GlobalVar, Tuple, TupleGetItem, Var
from relaxpy.ir.module import IRModule
from relaxpy.op.base import Deduction
from relaxpy.op.base import Op as OpBase
from relaxpy.op.block_builder import BlockBuilder
from relaxpy.op.deduce import deduce

SIZES = (0, 1, 2, 3, 5, 8)
"""What symbols are bound to."""
LARGEST = 1e4
"""No float grows beyond this."""
ELEMENTS = 400.0
"""More than a reduction sums up at these sizes, roughly."""


@dataclass
class Program:
    """One function of a module, and how to call it."""

    mod: IRModule
    name: str
    params: tuple[Var, ...]
    symbols: tuple[SymVar, ...]
    seed: int
    tolerance: float
    """How far apart two right results may be, absolutely."""

    def bindings(self, count: int = 4) -> list[dict[SymVar, int]]:
        """Sizes for the symbols: ordinary ones, then some with 0 and 1."""
        rng = random.Random(self.seed + 1)
        different = rng.sample(SIZES[2:], len(self.symbols))
        found: list[dict[SymVar, int]] = [dict(zip(self.symbols, different, strict=True))]
        found += [{s: rng.choice(SIZES) for s in self.symbols} for _ in range(max(0, count - 3))]
        found += [
            {s: rng.choice(SIZES[1:2] + SIZES) for s in self.symbols},
            {s: rng.choice(SIZES[:2]) for s in self.symbols},
        ]
        return found[:count]

    def arguments(self, sizes: dict[SymVar, int]) -> list[np.ndarray]:
        """Arrays for the parameters at these sizes."""
        rng = np.random.default_rng([self.seed, *sizes.values()])
        arrays = []
        for param in self.params:
            kind = param.annotation
            assert isinstance(kind, TensorType)
            assert kind.dtype is not None
            shape = [dim.evaluate(sizes) for dim in kind.dims or ()]
            if kind.dtype.is_int:
                arrays.append(rng.integers(-4, 9, shape).astype(kind.dtype.numpy))
            else:
                arrays.append(rng.uniform(-1, 1, shape).astype(kind.dtype.numpy))
        return arrays


def random_program(seed: int, length: int = 10) -> Program:
    """A module with one function `main` of about `length` bindings."""
    return random_module([seed], length)[1][0]


def random_module(seeds: Sequence[int], length: int = 10) -> tuple[IRModule, list[Program]]:
    """Several programs in one module, one compile for all: functions `main` for one seed, else
    `p<seed>`."""
    builder = BlockBuilder()
    made = []
    for seed in seeds:
        name = "main" if len(seeds) == 1 else f"p{seed}"
        made.append(_Generator(random.Random(seed), builder, name).function(length))
    mod = builder.get()
    programs = [
        Program(mod, g.name, tuple(g.params), tuple(g.symbols), seed, 1e-5 * g.largest)
        for g, seed in zip(made, seeds, strict=True)
    ]
    return mod, programs


@dataclass
class _Generator:
    rng: random.Random
    builder: BlockBuilder
    name: str
    params: list[Var] = field(default_factory=list)
    symbols: list[SymVar] = field(default_factory=list)
    pool: list[Var] = field(default_factory=list)
    """Tensors that may be used."""
    bounds: dict[Var, float] = field(default_factory=dict)
    """No element of a tensor is larger than this (but infinities, of reductions over nothing)."""
    largest: float = 1.0
    helper: GlobalVar | None = None
    new_symbols: int = 0

    def function(self, length: int) -> _Generator:
        """Build the function into the module."""
        if self.rng.random() < 0.3:
            self.make_helper()
        self.symbols = [
            SymVar(f"{letter}") for letter in ("n", "m", "k")[: self.rng.choice((1, 2, 2, 3))]
        ]
        self.make_params()
        with self.builder.function(self.name, self.params):
            if self.rng.random() < 0.7:
                with self.builder.dataflow():
                    self.steps(length)
                    results = [self.builder.emit_output(v) for v in self.results()]
            else:
                self.steps(length)
                results = self.results()
            one = len(results) == 1
            self.builder.emit_func_output(results[0] if one else Tuple(tuple(results)))
        return self

    def make_helper(self) -> None:
        """Another function of the module, to be called."""
        inner = _Generator(self.rng, self.builder, f"{self.name}_helper")
        a, b = SymVar("a"), SymVar("b")
        x = Var("x", TensorType((a, b), "float32"))
        inner.params, inner.symbols = [x], [a, b]
        inner.add(x, 1.0)
        with self.builder.function(inner.name, [x], private=True):
            inner.steps(3)
            last = inner.pool[-1]
            floats = _type(last).dtype == "float32"
            self.builder.emit_func_output(op.tanh(last) if floats else last)
        self.helper = GlobalVar(inner.name)
        self.largest = inner.largest

    def make_params(self) -> None:
        """Tensors in which every symbol stands alone somewhere, and some with dimensions made of
        symbols."""
        symbols = [Dim.of(s) for s in self.symbols]
        shapes = [symbols if len(symbols) > 1 else [symbols[0], Dim.of(4)]]
        for _ in range(self.rng.randint(1, 3)):
            shapes.append([self.dimension() for _ in range(self.rng.choice((0, 1, 2, 2, 3)))])
        for i, shape in enumerate(shapes):
            dtype = (
                "float32" if i == 0 else self.rng.choice(("float32", "float32", "int64", "int32"))
            )
            param = Var(f"x{i}", TensorType(tuple(shape), dtype))
            self.params.append(param)
            self.add(param, 1.0 if dtype == "float32" else 8.0)

    def dimension(self) -> Dim:
        """A symbol, a small number, or an expression."""
        symbol = Dim.of(self.rng.choice(self.symbols))
        return self.rng.choice(
            [
                symbol,
                symbol,
                symbol,
                Dim.of(self.rng.choice((0, 1, 1, 2, 4, 6))),
                symbol * 2,
                symbol + 1,
            ]
        )

    def results(self) -> list[Var]:
        """The last value and perhaps some others."""
        others = [v for v in self.pool if v not in self.params] or self.pool
        picked = [others[-1], *self.rng.sample(others, min(len(others), self.rng.randint(0, 2)))]
        return list(dict.fromkeys(picked))

    def add(self, var: Var, bound: float) -> None:
        self.pool.append(var)
        self.bounds[var] = bound
        self.largest = max(self.largest, bound)

    def steps(self, length: int) -> None:
        """Bindings; what does not deduce, or is not sure to run, is tried again with something
        else."""
        done = tries = 0
        while done < length and tries < 20 * length:
            tries += 1
            rule = self.rng.choice(RULES)
            try:
                done += rule(self)
            except DeduceError:
                continue

    def emit(self, call: Call, bound: float) -> bool:
        """Bind a call if it is sure to run at all sizes; does it?"""
        if bound > LARGEST:
            return False
        if isinstance(call.op, OpBase):
            deduction = Deduction(call.op, call, deduce)
            found = deduction.run()
            # A few programs may stop with an error at some sizes, and must do so everywhere alike.
            if deduction.requirements and self.rng.random() < 0.97:
                return False
            if isinstance(found, TensorType) and (found.ndim > 4 or _constant_size(found) > 4000):
                return False
        self.add(self.builder.emit(call), bound)
        return True

    # Choosing

    def some(self, dtype: str = "", ndim: int = -1, least: int = 0) -> Var:
        """A tensor of this dtype ("int": any integer), rank, or least rank. DeduceError if there
        is none."""
        fits = [v for v in self.pool if _fits(v, dtype, ndim, least)]
        if not fits:
            raise DeduceError("op-arguments", "nothing fits")
        return self.rng.choice(fits[-4:] if self.rng.random() < 0.6 else fits)

    def axis(self, x: Var) -> int:
        ndim = _type(x).ndim
        return self.rng.randint(-ndim, ndim - 1)

    def dims(self, x: Var) -> tuple[Dim, ...]:
        found = _type(x).dims
        if found is None:
            raise DeduceError("op-arguments", "the shape is not known")
        return found

    def constant(self, shape: Sequence[int]) -> Constant:
        """A small float tensor."""
        rng = np.random.default_rng(self.rng.randrange(1 << 30))
        return Constant(rng.uniform(-1, 1, tuple(shape)).astype(np.float32))


def _type(x: Var) -> TensorType:
    assert isinstance(x.annotation, TensorType)
    return x.annotation


def _fits(x: Var, dtype: str, ndim: int, least: int) -> bool:
    kind = _type(x)
    right = dtype in ("", str(kind.dtype)) or (
        dtype == "int" and kind.dtype is not None and kind.dtype.is_int
    )
    return right and (ndim < 0 or kind.ndim == ndim) and kind.ndim >= least


def _constant_size(kind: TensorType) -> int:
    total = 1
    for dim in kind.dims or ():
        total *= dim.value if dim.value is not None else 3 * len(dim.vars)
    return total


Rule = Callable[[_Generator], bool]
RULES: list[Rule] = []


def rule(weight: int) -> Callable[[Rule], Rule]:
    """A way to make the next binding; taken about `weight` times as often as others."""

    def register(func: Rule) -> Rule:
        RULES.extend([func] * weight)
        return func

    return register


@rule(4)
def _unary(g: _Generator) -> bool:
    x = g.some("float32")
    bound = g.bounds[x]
    name = g.rng.choice(
        (
            "tanh",
            "erf",
            "sigmoid",
            "nn.relu",
            "nn.gelu",
            "nn.gelu_tanh",
            "nn.silu",
            "negative",
            "abs",
            "exp",
        )
    )
    if name == "exp":
        if bound > 4:
            return False
        return g.emit(op.exp(x), 60.0)
    limited = name in ("tanh", "erf", "sigmoid")
    return g.emit(op.OPS[name].make(x), 1.0 if limited else bound)


@rule(1)
def _root(g: _Generator) -> bool:
    x = g.some("float32")
    positive = g.builder.emit(op.add(op.abs(x), 1.0))
    return g.emit(g.rng.choice((op.sqrt, op.rsqrt, op.log))(positive), g.bounds[x] + 1)


@rule(6)
def _binary(g: _Generator) -> bool:
    x = g.some(g.rng.choice(("float32", "float32", "int64", "int32")))
    y = g.some(str(_type(x).dtype)) if g.rng.random() < 0.8 else None
    other = g.rng.choice((2, 1, -3)) if y is None else y
    a, b = g.bounds[x], 3.0 if y is None else g.bounds[y]
    make, bound = g.rng.choice(
        [
            (op.add, a + b),
            (op.subtract, a + b),
            (op.multiply, a * b),
            (op.maximum, max(a, b)),
            (op.minimum, max(a, b)),
        ]
    )
    if str(_type(x).dtype) != "float32" and g.rng.random() < 0.3:
        make, bound = g.rng.choice([(op.floor_divide, a), (op.floor_mod, b)])
    return g.emit(make(x, other), bound)


@rule(1)
def _divide(g: _Generator) -> bool:
    x, y = g.some("float32"), g.some("float32")
    return g.emit(op.divide(x, g.builder.emit(op.add(op.abs(y), 1.0))), g.bounds[x])


@rule(2)
def _choose(g: _Generator) -> bool:
    """A condition on integers is exact; on floats, both choices are the same where they change
    places."""
    if g.rng.random() < 0.5:
        i = g.some("int")
        x, y = g.some("float32"), g.some("float32")
        compare = g.rng.choice((op.less, op.greater_equal, op.equal, op.not_equal))
        condition = g.builder.emit(compare(i, g.rng.choice((0, 1, 2))))
        return g.emit(op.where(condition, x, y), max(g.bounds[x], g.bounds[y]))
    x, y = g.some("float32"), g.some("float32")
    condition = g.builder.emit(op.less(x, y))
    return g.emit(op.where(condition, x, y), max(g.bounds[x], g.bounds[y]))


@rule(3)
def _matmul(g: _Generator) -> bool:
    x = g.some("float32", least=1)
    inner = g.dims(x)[-1]
    if inner.value is not None and g.rng.random() < 0.7:
        columns = g.rng.choice((1, 3, 16))
        return g.emit(
            op.matmul(x, g.constant((inner.value, columns))), g.bounds[x] * max(1, inner.value)
        )
    y = g.some("float32", least=1)
    return g.emit(op.matmul(x, y), g.bounds[x] * g.bounds[y] * 16)


@rule(3)
def _reduce(g: _Generator) -> bool:
    x = g.some(g.rng.choice(("float32", "float32", "int")), least=1)
    names = (
        ("sum", "max", "min") if str(_type(x).dtype) != "float32" else ("sum", "mean", "max", "min")
    )
    name, keepdims = g.rng.choice(names), g.rng.random() < 0.5
    axis = g.axis(x) if g.rng.random() < 0.8 else None
    bound = g.bounds[x] * (ELEMENTS if name == "sum" else 1)
    extreme_of_nothing = name != "sum" and any(d.value in (None, 0) for d in g.dims(x))
    if extreme_of_nothing and _type(x).dtype != "float32":
        return False  # it is the largest number there is: arithmetic on that would overflow
    return g.emit(op.OPS[name].make(x, axis=axis, keepdims=keepdims), bound)


@rule(3)
def _reshape(g: _Generator) -> bool:
    x = g.some(least=1)
    dims, bound = list(g.dims(x)), g.bounds[x]
    choice = g.rng.randrange(4)
    if choice == 0:
        return g.emit(op.flatten(x), bound)
    if choice == 1 and len(dims) > 1:
        i = g.rng.randrange(len(dims) - 1)
        return g.emit(op.reshape(x, (*dims[:i], dims[i] * dims[i + 1], *dims[i + 2 :])), bound)
    if choice == 2:
        for i, dim in enumerate(dims):
            for factor in (2, 3):
                half = dim.divide_exact(factor)
                if half is not None and dim != 0:
                    return g.emit(op.reshape(x, (*dims[:i], factor, half, *dims[i + 1 :])), bound)
    last = dims[-1]
    if last.value != 0:
        return g.emit(
            op.reshape(x, (-1, last) if last.value is not None else tuple(dims[::-1])), bound
        )
    return False


@rule(3)
def _arrange(g: _Generator) -> bool:
    x = g.some(least=1)
    dims, bound = g.dims(x), g.bounds[x]
    order = list(range(len(dims)))
    g.rng.shuffle(order)
    ones = [i for i, dim in enumerate(dims) if dim == 1]
    choices = [
        lambda: op.permute_dims(x, axes=order),
        lambda: op.expand_dims(x, axis=g.rng.randint(-len(dims) - 1, len(dims))),
        lambda: op.concat([x, x], axis=g.axis(x)),
        lambda: op.broadcast_to(x, (g.rng.choice((1, 2)), *dims)),
    ]
    if ones:
        choices.append(lambda: op.squeeze(x, axis=g.rng.choice(ones)))
    return g.emit(g.rng.choice(choices)(), bound)


@rule(1)
def _concat(g: _Generator) -> bool:
    x = g.some(least=1)
    y = g.some(str(_type(x).dtype), ndim=_type(x).ndim)
    return g.emit(op.concat([x, y], axis=g.axis(x)), max(g.bounds[x], g.bounds[y]))


@rule(1)
def _slice(g: _Generator) -> bool:
    x = g.some(least=1)
    axis = g.rng.randrange(_type(x).ndim)
    size = g.dims(x)[axis]
    begin, end = g.rng.choice([(0, 2), (1, size), (-2, 9), (0, size), (2, 1)])
    step = g.rng.choice((1, 1, 2))
    return g.emit(op.strided_slice(x, [axis], [begin], [end], [step]), g.bounds[x])


@rule(2)
def _take(g: _Generator) -> bool:
    x, i = g.some(least=1), g.some("int")
    mode = g.rng.choice(("clip", "wrap"))
    return g.emit(op.take(x, i, axis=g.rng.randrange(_type(x).ndim), mode=mode), g.bounds[x])


@rule(2)
def _nn(g: _Generator) -> bool:
    x = g.some("float32", least=1)
    dims, bound = g.dims(x), g.bounds[x]
    if bound > 50:
        return False
    last = dims[-1].value
    if last is not None and g.rng.random() < 0.6:
        gamma, beta = g.constant((last,)), g.constant((last,))
        if g.rng.random() < 0.5:
            return g.emit(op.nn.layer_norm(x, gamma, beta, epsilon=0.1), 8.0)
        return g.emit(op.nn.rms_norm(x, gamma, epsilon=0.1), 8.0)
    return g.emit(op.nn.softmax(x, axis=g.axis(x)), 1.0)


@rule(2)
def _create(g: _Generator) -> bool:
    x = g.some()
    dims = g.dims(x)
    choice = g.rng.randrange(4)
    if choice == 0 and dims:
        return g.emit(
            op.arange(0, g.rng.choice(dims), dtype=DType(g.rng.choice(("int64", "float32")))), 64.0
        )
    if choice == 1:
        return g.emit(op.full(dims, g.constant(())), 1.0)
    if choice == 2 and _type(x).dtype != "float32" and _type(x).dtype != "bool":
        return g.emit(op.astype(x, DType("float32")), g.bounds[x])
    return g.emit(g.rng.choice((op.zeros, op.ones))(dims, DType("float32")), 1.0)


@rule(1)
def _split(g: _Generator) -> bool:
    x = g.some(least=1)
    for axis, dim in enumerate(g.dims(x)):
        if dim.divide_exact(2) is not None:
            parts = g.builder.emit(op.split(x, indices_or_sections=2, axis=axis))
            return g.emit(
                op.add(*(g.builder.emit(TupleGetItem(parts, i)) for i in (0, 1))), 2 * g.bounds[x]
            )
    return False


@rule(1)
def _tuple(g: _Generator) -> bool:
    x, y = g.some(), g.some()
    pair = g.builder.emit(Tuple((x, Tuple((y, x)))))
    inner = g.builder.emit(TupleGetItem(pair, 1))
    g.add(g.builder.emit(TupleGetItem(inner, 0)), g.bounds[y])
    return True


@rule(2)
def _match_cast(g: _Generator) -> bool:
    """New symbols for a shape, or a shape that is known only when the program runs."""
    choice = g.rng.random()
    g.new_symbols += 1
    if choice < 0.3:
        i = g.some("int")
        found = g.builder.emit(op.unique(i))
        size = SymVar(f"u{g.new_symbols}")
        g.add(g.builder.match_cast(found, TensorType((size,), _type(i).dtype)), g.bounds[i])
        return True
    x = g.some(least=1)
    if choice < 0.6:
        new = [SymVar(f"s{g.new_symbols}_{i}") for i in range(_type(x).ndim)]
        g.add(g.builder.match_cast(x, TensorType(tuple(new), _type(x).dtype)), g.bounds[x])
        return True
    shape = g.builder.emit(op.shape_of(x))
    if choice < 0.8:
        return g.emit(op.shape_to_tensor(shape), 64.0)
    return g.emit(op.reshape(x, shape), g.bounds[x])


@rule(1)
def _call(g: _Generator) -> bool:
    """A call across functions; they are pure, and so may stand in a dataflow block."""
    if g.helper is None:
        return False
    x = g.some("float32", ndim=2)
    result = g.builder.emit(Call(g.helper, (x,)))
    g.add(result, LARGEST if _type(result).dtype != "float32" else 1.0)
    return True
