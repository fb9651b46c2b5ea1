"""Random programs with symbolic dimensions, for tests of the whole compiler. They use all features of the language,
have valid annotations, run at any size, and have comparable results.

    program = random_program(seed)
    for sizes in program.bindings():
        args = program.arguments(sizes)
        interpret(program.mod, "main", *args)

The same seed gives the same program, as long as the operators and their samples stay the same.
`relaxpy.testing.agreement` compares results: perturbed runs of the interpreter distinguish bugs from rounding errors
that a program magnifies, or that decide a comparison. So the generator need not keep values small or functions
continuous.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from relaxpy.errors import DeduceError
from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, ObjectType, PrimType, ShapeType, TensorType
from relaxpy.ir.dim import Dim, SymVar
from relaxpy.ir.expr import Function, Tuple, Var
from relaxpy.ir.module import IRModule
from relaxpy.op.block_builder import BlockBuilder
from relaxpy.testing import (
    random_control,
    random_levels,
    random_loops,
    random_operators,
    random_shapes,
    random_widths,
)
from relaxpy.testing.random_arguments import argument_of
from relaxpy.testing.random_body import Body, Rule
from relaxpy.testing.values import Value

SIZES = (0, 1, 2, 3, 5, 7)
"""The values of sizes."""
PLACES = (-(2**63), -9, -2, -1, 0, 1, 2, 3, 9, 2**63 - 1)
"""The values of indices, which may be negative or out of range."""
DTYPES = ("float32",) * 6 + (
    "int64", "int64", "int32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8",
)  # fmt: skip
"""Dtypes of parameters. Samples of operators contribute others."""

RULES: Mapping[Rule, int] = {
    **random_operators.RULES,
    **random_shapes.RULES,
    **random_control.RULES,
    **random_levels.RULES,
    **random_widths.RULES,
    **random_loops.RULES,
}
"""The rules that create the next binding, with their weights."""
GRAPH_RULES: Mapping[Rule, int] = {
    rule: weight
    for rule, weight in RULES.items()
    if rule not in random_levels.RULES
    and rule not in (random_control.closure, random_control.function_value)
}
"""Those of programs of operators and functions alone, which other formats can say: without tensor programs, libraries,
and functions as values."""


@dataclass(frozen=True)
class Program:
    """A function of a module, and how to call it."""

    mod: IRModule
    name: str
    seed: int
    symbols: tuple[SymVar, ...]
    ranges: Mapping[Var, tuple[float, float]] = field(
        default_factory=dict[Var, tuple[float, float]]
    )
    """The value ranges of parameters, if they are not the default."""
    places: tuple[SymVar, ...] = ()
    """Scalars that may be any integer."""

    @property
    def params(self) -> tuple[Var, ...]:
        """The function's parameters."""
        function = expect(Function, self.mod[self.name])
        return function.params

    def bindings(self, count: int = 4) -> list[dict[SymVar, int]]:
        """Values of the symbols: typical ones, then some with 0 and 1."""
        rng = random.Random(self.seed + 1)
        different = rng.sample(SIZES[2:], len(self.symbols))
        found: list[dict[SymVar, int]] = [dict(zip(self.symbols, different, strict=True))]
        found += [{s: rng.choice(SIZES) for s in self.symbols} for _ in range(max(0, count - 3))]
        found += [{s: rng.choice((1, *SIZES)) for s in self.symbols}]
        found += [{s: rng.choice(SIZES[:2]) for s in self.symbols}]
        anywhere = random.Random(self.seed + 2)  # its own generator: places do not change the sizes
        return [{**at, **{s: anywhere.choice(PLACES) for s in self.places}} for at in found[:count]]

    def arguments(self, sizes: Mapping[SymVar, int]) -> list[Value]:
        """Values of the parameters at these sizes."""
        return [
            argument_of(p.annotation, sizes, (self.seed, i), self.ranges.get(p))
            for i, p in enumerate(self.params)
        ]


def random_program(seed: int, length: int = 10) -> Program:
    """A module with a function `main` of about `length` bindings."""
    return random_module([seed], length)[1][0]


def random_module(
    seeds: Sequence[int], length: int = 10, rules: Mapping[Rule, int] = RULES
) -> tuple[IRModule, list[Program]]:
    """Several programs in one module, to be compiled together: the function `main` for one seed, else `p<seed>`."""
    builder = BlockBuilder()
    made = []
    for seed in seeds:
        name = "main" if len(seeds) == 1 else f"p{seed}"
        made.append(_main(random.Random(seed), builder, name, length, rules))
    mod = builder.get()
    return mod, [
        Program(mod, body.name, seed, tuple(body.symbols), dict(body.ranges), tuple(body.places))
        for body, seed in zip(made, seeds, strict=True)
    ]


def _main(
    rng: random.Random, builder: BlockBuilder, name: str, length: int, rules: Mapping[Rule, int]
) -> Body:
    """Builds a function and the private functions that it calls."""
    body = Body(rng, builder, name, rules)
    if rng.random() < 0.3:
        random_control.helper(body)
    if rng.random() < 0.2:
        random_control.recursive_helper(body)
    if random_levels.tensor_program in rules:
        random_levels.tensor_programs(body)
    body.symbols += [SymVar(letter) for letter in ("n", "m", "k")[: rng.choice((1, 2, 2, 3))]]
    body.pure = rng.random() < 0.8
    _parameters(body)
    with builder.function(name, body.params, pure=body.pure, ret=None):
        random_levels.first_calls(body)
        for _ in range(rng.choice((1, 1, 2, 3))):
            if rng.random() < 0.55:
                _dataflow(body, length // 2)
            else:
                body.steps(length // 2)
        results = _results(body)
        builder.emit_func_output(results[0] if len(results) == 1 else Tuple(tuple(results)))
    if rng.random() < 0.25:
        _coarser_result(body)
    return body


def _dataflow(body: Body, length: int) -> None:
    """A dataflow block with its outputs."""
    before = list(body.pool)
    with body.builder.dataflow():
        body.dataflow = True
        body.steps(length)
        inside = [v for v in body.pool if v not in before and v not in body.params]
        picked = inside[-1:] + body.rng.sample(inside[:-1], min(2, len(inside[:-1])))
        outputs = [body.builder.emit_output(v) for v in picked]
    body.dataflow = False
    body.pool[:] = [*before, *(p for p in body.params if p not in before), *outputs]


def _parameters(body: Body) -> None:
    """Tensors that determine every symbol, some with dimensions that are expressions of symbols, and other values."""
    rng, symbols = body.rng, [Dim.of(s) for s in body.symbols]
    first = symbols if len(symbols) > 1 else [symbols[0], Dim.of(4)]
    body.param(TensorType(first, "float32"))
    for _ in range(rng.randint(0, 3)):
        shape = [body.dimension() for _ in range(rng.choice((0, 1, 2, 2, 3)))]
        body.param(TensorType(shape, rng.choice(DTYPES)))
    others: list[Annotation] = [
        ShapeType([body.dimension() for _ in range(rng.choice((1, 2, 2)))]),
        PrimType("int64", rng.choice(body.symbols)),
        TensorType((), "bool"),
        PrimType("bool"),
        PrimType("float32"),
        PrimType("int64"),
        PrimType("int32"),
    ]
    for annotation in others:
        if rng.random() < 0.15:
            body.param(annotation)
    if rng.random() < 0.25:
        for letter in ("p", "q")[: rng.choice((1, 2))]:
            body.places.append(SymVar(letter, signed=True))
            body.param(PrimType("int64", body.places[-1]))


def _results(body: Body) -> list[Var]:
    """The last value and perhaps some others, of types that can be compared."""
    fit = [v for v in body.pool if body.comparable(v)]
    others = [v for v in fit if v not in body.params] or fit
    picked = [others[-1], *body.rng.sample(others, min(len(others), body.rng.randint(0, 4)))]
    return list(dict.fromkeys(picked))


def _coarser_result(body: Body) -> None:
    """Declares a less precise result annotation."""
    function = expect(Function, body.builder.get()[body.name])
    ret = body.coarser(function.ret)
    if body.rng.random() < 0.2:
        ret = ObjectType()
    try:
        changed = Function(function.params, function.body, ret, function.pure, function.attrs)
        body.builder.update_func(body.name, changed)
    except DeduceError:
        return
