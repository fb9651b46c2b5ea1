"""What random programs are made of."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import cache

import pytest

from relaxpy.analysis.prim_func_call import is_program_call, needed_types
from relaxpy.ir import Call, Constant, Function, Operator, TensorType
from relaxpy.ir.visitor import Visitor
from relaxpy.op import OPS
from relaxpy.testing.random_operators import operator_names
from relaxpy.testing.random_program import PLACES, random_module, random_program
from tests.sweeps import full


@pytest.fixture(autouse=True)
def modules_round_trip() -> None:
    """tests/fuzz prints and parses random programs; the modules on the way to them are thousands."""


class Counted(Visitor):
    """Counts kinds of nodes, operators, and dtypes."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()

    def visit(self, node: object) -> None:
        self.found[type(node).__name__] += 1
        if isinstance(node, Call):
            self.found[
                node.op.name if isinstance(node.op, Operator) else type(node.op).__name__
            ] += 1
        super().visit(node)  # type: ignore[arg-type]


drawn = cache(random_program)
"""Programs that several tests look at."""


@full
def test_variety() -> None:
    """A hundred and fifty programs have all kinds of nodes, most common operators, sizes 0 and 1."""
    counted = Counted()
    sizes: Counter[int] = Counter()
    dtypes: Counter[str] = Counter()
    for seed in range(150):
        program = drawn(seed)
        for binding in program.bindings():
            sizes.update(binding.values())
        for function in program.mod.graph_functions.values():
            counted.visit(function)
            for param in function.params:
                if isinstance(param.annotation, TensorType):
                    dtypes[str(param.annotation.dtype)] += 1
    wanted = {
        "If", "Function", "MatchCast", "Tuple", "TupleGetItem", "ShapeExpr", "PrimValue", "DataflowBlock",
        "call_tir", "call_dps_library", "call_pure_packed", "unique", "matmul", "reshape", "take", "nn.softmax",
        "split", "concat", "shape_of", "GlobalVar", "Var",
    }  # fmt: skip
    assert wanted <= set(counted.found), wanted - set(counted.found)
    assert len(set(counted.found) & set(OPS)) > 60
    assert {"float32", "float64", "float16", "bfloat16", "int8", "int32", "int64"} <= set(dtypes)
    assert sizes[0] > 20
    assert sizes[1] > 20


def test_operators_join_by_themselves() -> None:
    """Those that compute and have samples take part; those with effects do not."""
    names = set(operator_names())
    assert {"add", "unique", "nn.layer_norm"} <= names
    assert not {"print", "assert_op"} & names


def test_several_in_one_module() -> None:
    """Programs of one module are those of their seeds."""
    mod, programs = random_module([3, 4])
    assert [p.name for p in programs] == ["p3", "p4"]
    assert {"p3", "p4"} <= set(mod.graph_functions)
    alone = random_program(3)
    assert [str(p.annotation) for p in programs[0].params] == [
        str(p.annotation) for p in alone.params
    ]


def test_narrow_comparisons_and_axes_of_one() -> None:
    """Random programs compare bfloat16, and reduce tensors whose last axis has one place."""
    narrow, columns = 0, 0

    class Found(Visitor):
        def visit_Call(self, node: Call) -> None:
            nonlocal narrow, columns
            kinds = [getattr(arg, "annotation", None) for arg in node.args]
            kind = kinds[0] if kinds else None
            if isinstance(node.op, Operator) and isinstance(kind, TensorType):
                narrow += node.op.name in COMPARISONS and str(kind.dtype) == "bfloat16"
                last = kind.dims[-1] if kind.dims else None
                columns += node.op.name in REDUCTIONS and last is not None and last == 1
            super().visit_Call(node)

    for seed in range(80):
        for function in drawn(seed).mod.graph_functions.values():
            Found().visit(function)
    assert narrow > 5
    assert columns > 5


COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
REDUCTIONS = ("sum", "max", "min", "mean", "nn.softmax", "argmax", "cumsum")


@full
def test_what_may_not_fit() -> None:
    """Some programs call a tensor program with sizes that may differ, or with what they know less of; some slice at
    places of any value; some have sizes that may be negative."""
    undecided = anywhere = 0
    for seed in range(250):
        program = drawn(seed)
        text = program.mod.script()
        for function in program.mod.graph_functions.values():
            for binding in function.body.bindings:
                value = binding.value
                if isinstance(value, Call) and is_program_call(value):
                    undecided += needed_types(value, program.mod) is not None
        if program.places and "strided_slice" in text:
            anywhere += 1
            values = {at[place] for at in program.bindings() for place in program.places}
            assert values <= set(PLACES)
    assert undecided > 2
    assert anywhere > 5


KINDS: dict[str, Callable[[str], bool]] = {
    "an index through a narrow integer": lambda text: bool(
        re.search(r"x\w*\[[^\]]*T.Cast\(.(u?int8|u?int16|int32)", text)
    ),
    "narrow index arithmetic": lambda text: bool(
        re.search(r'T.Cast\("u?int(8|16)", [^"]+\) [-+*]', text)
    ),
    "strides that are variables": lambda text: bool(re.search(r'strides=\([^)]*"s\d', text)),
    "an offset that is a variable": lambda text: 'elem_offset="s' in text,
    "a view of a region": lambda text: "T.match_buffer(" in text,
    "the layout of a view": lambda text: bool(re.search(r"match_buffer\(.*strides=", text)),
    "the remainder of a difference": lambda text: bool(re.search(r"\d\)? - [a-z]\w*\) % ", text)),
    "the quotient of a difference": lambda text: bool(re.search(r" - [^()]+\) // ", text)),
    "differences in several nests": lambda text: (
        len(re.findall(r"^    for ", text, re.MULTILINE)) > 1 and ") % n" in text
    ),
    "an update of few bits": lambda text: (
        bool(re.search(r'y: T.Buffer\(\S+, "u?int(8|16)"', text))
        and bool(re.search(r"(y\[.+?\]) = .*\1", text))
    ),
    "a chain of names": lambda text: text.count("T.let[T.int64]") > 3,
    "a name of a value": lambda text: bool(re.search(r"T.let\[T.(float|uint|int8|int16)", text)),
    "a loop whose range a loop decides": lambda text: bool(
        re.search(r"for \w+ in range\([^:]*\bi\d+", text)
    ),
    "a loop whose range data decide": lambda text: bool(
        re.search(r"for \w+ in range\([^:]*\bd\[", text)
    ),
    "the smallest integer": lambda text: bool(
        re.search(r"T.int(8\(-128|16\(-32768|32\(-2147483648)", text)
    ),
    "a quotient by -1": lambda text: bool(re.search(r"// T.int\d+\(-1\)", text)),
    "a remainder by -1": lambda text: bool(re.search(r"% T.int\d+\(-1\)", text)),
    "a magnitude": lambda text: bool(re.search(r", T.int\d+\(0\) - ", text)),
    "a negative": lambda text: bool(re.search(r"\* T.int\d+\(-1\)", text)),
}
"""What is in the text of some tensor programs."""


class Used(Visitor):
    """Which kinds of calls are in a graph function."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()

    def visit_Call(self, node: Call) -> None:
        kinds = [getattr(arg, "annotation", None) for arg in node.args]
        name = node.op.name if isinstance(node.op, Operator) else ""
        sizes = [
            dim.value for kind in kinds if isinstance(kind, TensorType) for dim in kind.dims or ()
        ]
        is_odd = any(size is not None and size > 6 and size % 2 == 1 for size in sizes)
        first = kinds[0] if kinds else None
        if name in ("matmul", "linear"):
            is_code = isinstance(kinds[1], TensorType) and not isinstance(node.args[1], Constant)
            self.found["a product"] += is_odd
            self.found["a product with codes"] += is_odd and is_code
        elif is_odd:
            self.found["an operator of odd width"] += 1
        if isinstance(first, TensorType):
            is_narrow = str(first.dtype) in ("int8", "uint8", "int16", "uint16")
            self.found["narrow scatter_elements"] += name == "scatter_elements" and is_narrow
        if name in ("floor_divide", "floor_mod", "mod", "abs", "negative"):
            self.found[name] += 1
        if name in ("add", "maximum", "minimum", "subtract") and node.args[0] is node.args[1]:
            self.found["used twice"] += 1
        super().visit_Call(node)


@full
def test_what_they_are_taught() -> None:
    """Every kind of construct that compilers got wrong is in some of the first programs."""
    found: Counter[str] = Counter()
    used = Used()
    for seed in range(250):
        mod = drawn(seed).mod
        for name, function in mod.functions.items():
            if isinstance(function, Function):
                used.visit(function)
            elif "nests" in name:
                text = function.script(name)
                found.update(kind for kind, is_in in KINDS.items() if is_in(text))
    missing = {kind: found[kind] for kind in KINDS if found[kind] < 3}
    assert not missing
    wanted = (
        "a product", "a product with codes", "an operator of odd width", "narrow scatter_elements", "used twice",
        "floor_divide", "floor_mod", "mod", "abs", "negative",
    )  # fmt: skip
    missing = {kind: used.found[kind] for kind in wanted if used.found[kind] < 3}
    assert not missing
