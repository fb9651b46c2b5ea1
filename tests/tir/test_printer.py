"""Tensor programs as text: the text parses back to an equal program."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import relaxpy
from relaxpy import op as _operators  # noqa: F401  (fills OPS)
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.dim import SymVar, minimum
from relaxpy.ir.nesting import parse_any_depth
from relaxpy.op.base import OPS, Op
from relaxpy.op.deduce import deduce
from relaxpy.op.deduction import Deduction
from relaxpy.tir import te
from relaxpy.tir.numerics.scalar import floor_mod
from relaxpy.tir.parse import parse_prim_func
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.printer import print_prim_func
from relaxpy.tir.programs.te_call import legal_program
from tests.sweeps import part, sweep

n, m = SymVar("n"), SymVar("m")


def tensor(shape: Sequence[Any], dtype: str = "float32", name: str = "x") -> te.Tensor:
    return te.placeholder(shape, dtype, name)


def program(
    inputs: Sequence[te.Tensor], *outputs: te.Tensor, scalars: Sequence[SymVar] = ()
) -> PrimFunc:
    return PrimFunc.from_te(inputs, outputs, scalars)


def parse(text: str) -> PrimFunc:
    (node,) = parse_any_depth(text).body
    assert isinstance(node, ast.FunctionDef)
    return parse_prim_func(node, text, "printed.py", {})


def _unary(function: Callable[..., Any]) -> Callable[[], PrimFunc]:
    def make() -> PrimFunc:
        x = tensor((n, 4))
        return program([x], function(x))

    return make


def _two() -> PrimFunc:
    x, y = tensor((n, 4)), tensor((m, 4))
    return program([x, y], te.topi.concatenate([x, y], axis=0))


def _matmul() -> PrimFunc:
    x, w = tensor((n, 4)), tensor((4, m), name="w")
    return program([x, w], te.topi.matmul(x, w))


def _scalar() -> PrimFunc:
    x = tensor((n, 4))
    return program(
        [x], te.compute((n, 4), lambda i, j: x[i, j] * te.dim(m).astype("float32")), scalars=[m]
    )


def _compound() -> PrimFunc:
    x = tensor((n.dim * 4 + 1,), "int32", "q")
    return program([x], te.compute((minimum(n.dim, 7),), lambda i: x[i] + 1))


def _outputs() -> PrimFunc:
    x = tensor((n, 4))
    return program([x], te.compute((n,), lambda i: x[i, 0]), te.compute((n,), lambda i: x[i, 3]))


def _integers() -> PrimFunc:
    x = tensor((n,), "int64")
    return program(
        [x], te.compute((n,), lambda i: te.select(x[i] < i, x[i] * te.dim(3), te.dim(-5)))
    )


def _guarded() -> PrimFunc:
    """Division that cannot trap: comparisons of int64, joined by `or`."""
    x = tensor((n,), "int64")
    return program([x], te.compute((n,), lambda i: floor_mod(x[i], x[i])))


PROGRAMS: dict[str, Callable[[], PrimFunc]] = {
    "matmul": _matmul,
    "concatenate": _two,
    "scalar": _scalar,
    "compound dimensions": _compound,
    "two outputs": _outputs,
    "integers": _integers,
    "guarded division": _guarded,
    "softmax": _unary(te.topi.nn.softmax),
    "argmax": _unary(lambda x: te.topi.argmax(x, axis=1)),
    "sum": _unary(lambda x: te.topi.sum(x, axis=1)),
    "transpose": _unary(lambda x: te.topi.transpose(x, [1, 0])),
    "split": _unary(lambda x: te.topi.split(x, 2, axis=1)[1]),
    "sort": _unary(te.topi.sort),
    "zero rank": lambda: program([], te.compute((), lambda: te.const(3.5, "float32"))),
    "special floats": lambda: program(
        [],
        te.compute(
            (2,),
            lambda i: te.select(
                i < 1, te.const(float("inf"), "float32"), te.const(float("nan"), "float32")
            ),
        ),
    ),
    **{
        name: _unary(getattr(te.topi, name))
        for name in (
            "exp",
            "tanh",
            "erf",
            "sigmoid",
            "sqrt",
            "rsqrt",
            "log",
            "abs",
            "sign",
            "negative",
            "floor",
        )
    },
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_round_trip(name: str) -> None:
    """print → parse gives an equal program, whose text is the same again."""
    func = PROGRAMS[name]()
    text = func.script("kernel")
    back = parse(text)
    assert back.structural_equal(func)
    assert back.script("kernel") == text


OPERATORS = sorted(
    name for name, cls in OPS.items() if issubclass(cls, Op) and cls.legalize is not None
)


@sweep(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", part(OPERATORS, 3))
def test_operators(name: str) -> None:
    """The program of every operator comes back from its text, and its work is known."""
    sample = next(s for s in OPS[name].samples() if not s.code)
    call = sample.op.make(*sample.inputs, **vars(sample.op))
    deduction = Deduction(call.op, call, deduce, exact=True)
    func, _ = legal_program(call.op, deduction.arguments(), deduction.run())
    assert parse(func.script()).structural_equal(func)
    assert func.work is not None


def test_text() -> None:
    """Dimensions in quotes, int64 literals bare, the given name, no header."""
    x = tensor((n, 4))
    func = program(
        [x], te.compute((n.dim * 2, 4), lambda i, j: x[te.topi.floordiv(i, te.dim(2)), j], "out")
    )
    lines = print_prim_func(func.func, "twice").splitlines()
    assert lines[:2] == [
        "@T.prim_func",
        'def twice(x: T.Buffer(("n", 4), "float32"), out: T.Buffer(("n * 2", 4), "float32")):',
    ]
    assert "T.int64" not in "\n".join(lines)


def test_explicit_where_bare_literals_are_read_otherwise() -> None:
    """Where short text would not come back, dtypes are written: arguments of a call are no indices."""
    text = PROGRAMS["sort"]().script()
    assert "T.int64(" in text
    assert parse(text).structural_equal(PROGRAMS["sort"]())


def test_more_brackets_than_python_reads() -> None:
    value = "v"
    for _ in range(230):
        value = f"T.min({value} + 1, n - 1)"
    found = relaxpy.parse(f"""
@T.prim_func
def f(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
    n = T.int64()
    for v in range(n):
        y[v] = x[{value}]
""")["f"]
    assert isinstance(found, PrimFunc)
    assert parse(found.script()).structural_equal(found)


def test_indentation() -> None:
    """The text parses at any depth: a module's functions stand inside a class."""
    text = PROGRAMS["matmul"]().script("mm")
    indented = "class Module:\n" + "".join(f"    {line}\n" for line in text.splitlines())
    node = next(n for n in ast.walk(ast.parse(indented)) if isinstance(n, ast.FunctionDef))
    assert parse_prim_func(node, indented, "m.py", {}).structural_equal(PROGRAMS["matmul"]())


def test_text_beyond_ascii() -> None:
    """TVM prints its bytes; they come back as the characters that they were."""
    mod = relaxpy.parse("""
@T.prim_func
def f(x: T.Buffer((8,), "int32"), y: T.Buffer((8,), "int32")):
    T.func_attr({"größe": "日本"})
    y[0] = x[0]
""")
    assert '"größe": "日本"' in mod.script()
    relaxpy.assert_structural_equal(mod, relaxpy.parse(mod.script()))


def test_extents_of_what_a_serial_program_writes() -> None:
    """They are as the parser makes them of their text, whatever the dimensions are."""
    size = n.dim
    x = TensorType([size + 1, size], "float32")
    func, _ = legal_program(OPS["cumprod"](), [x], TensorType([(size + 1) * size], "float32"))
    assert parse(func.script()).structural_equal(func)


def test_extents_of_loops() -> None:
    """They stay as they are, in loops of one axis, too."""
    text = """@T.prim_func
def main(m: T.int64, n: T.int64, y: T.Buffer(("m + n * 5",), "float32")):
    for j in range((m + n) * n):
        y[j] = T.float32(0)
    for i in range(m + n * 5 + -5):
        y[i] = T.float32(1)
"""
    func = parse(text)
    printed = func.script()
    assert "range(m + n * 5 + -5)" in printed
    assert "range((m + n) * n)" in printed
    assert parse(printed).structural_equal(func)


TEXTS = [
    "a\nb", "\n" * 3, " \n ", "\r\n", "a\\nb\n", 'q"\n\'"""\n', "nul\0nul\n", "é😀\n", "\x85\x1c\x0b\x0c\u2028\n", "\x7f\x1b[31m\n",
    'metadata["ffi.String"][0]', 'metadata["ffi.String"][0]\n', "\\x80\\xc3\\xa9\n", '")\n""")\n', "# text\n@T.prim_func\n", "x" * 5000 + "\n",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_strings_of_several_lines(text: str) -> None:
    """TVM prints them as entries of a table that the text does not have."""
    source = f"""
@I.ir_module
class Module:
    I.module_attrs({{"note": {text!r}}})

    @T.prim_func
    def f(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        T.func_attr({{"note": {text!r}, "other": "metadata", "list": [{text!r}, "a\\nb"]}})
        for i in T.serial(8, annotations={{"pragma": {text!r}}}):
            with T.sblock("copy"):
                vi = T.axis.spatial(8, i)
                T.sblock_attr({{"text": {text!r}}})
                y[vi] = x[vi]

    @R.function
    def main(x: R.Tensor((8,), "float32")) -> R.Tensor((8,), "float32"):
        R.func_attr({{"note": {text!r}}})
        return x
"""
    mod = relaxpy.parse(source)
    again = relaxpy.parse(mod.script())
    assert relaxpy.structural_equal(again, mod)
    for each in (mod, again):
        program = each["f"]
        assert isinstance(program, PrimFunc)
        assert [program.attrs["note"], *program.attrs["list"]] == [text, text, "a\nb"]
        assert (each.attrs["note"], each["main"].attrs["note"]) == (text, text)
