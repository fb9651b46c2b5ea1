"""Symbolic variables between brackets, as TVM prints them on Python 3.12 and later; here on any Python."""

from __future__ import annotations

import ast

import pytest

import relaxpy
from relaxpy.errors import RelaxError, Source
from relaxpy.script.dialects.type_params import blanked, declared_symbols, put_back

TEXT = '''\
from tvm.script import ir as I
from tvm.script import tirx as T
from tvm.script import relax as R

@I.ir_module(s_tir=True)
class Module:
    @T.prim_func(private=True, s_tir=True)
    def add[n, m: int](x: T.Buffer((n, m), "float32"), y: T.Buffer((n, m), "float32")):
        for i, j in T.grid(n, m):
            with T.sblock("add"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = x[vi, vj] + T.float32(1)

    @R.function
    def main[n](x: R.Tensor((n, 4), dtype="float32")) -> R.Tensor((n, 4), dtype="float32"):
        """def other[n](x): is text."""
        cls = Module
        gv = R.call_tir(cls.add, (x,), out_ty=R.Tensor((n, 4), dtype="float32"))
        return gv
'''


def test_read_as_quoted_names() -> None:
    quoted = TEXT.replace("[n, m: int]", "").replace("[n](x: R", "(x: R")
    quoted = quoted.replace("(n, m), ", '("n", "m"), ').replace(
        "x: R.Tensor((n", 'x: R.Tensor(("n"'
    )
    relaxpy.assert_structural_equal(relaxpy.parse(TEXT), relaxpy.parse(quoted))


def test_printed_without_brackets() -> None:
    """The text does not depend on the Python that prints it."""
    printed = relaxpy.parse(TEXT).script()
    assert "def add(x" in printed
    relaxpy.assert_structural_equal(relaxpy.parse(TEXT), relaxpy.parse(printed))


def test_places_stay() -> None:
    """The caret of an error after the brackets, with names beyond ASCII between them."""
    with pytest.raises(RelaxError) as caught:
        relaxpy.parse(
            TEXT.replace("main[n]", "main[größe, n]").replace("x: R.Tensor((n", "x: R.Tensor((k")
        )
    assert caught.value.code == "unknown-name"
    line = TEXT.splitlines()[14].replace("main[n]", "main[größe, n]")
    assert caught.value.span is not None
    assert (caught.value.span.line, caught.value.span.column) == (15, line.index("((n") + 2)


@pytest.mark.parametrize("params", ["*n", "**n", "n: str", "n, (m)", "n = int", ""])
def test_refused(params: str) -> None:
    with pytest.raises(RelaxError) as caught:
        relaxpy.parse(TEXT.replace("main[n]", f"main[{params}]"))
    assert caught.value.code in ("python-syntax", "unsupported-syntax")
    assert caught.value.span is not None
    assert caught.value.span.line == 15


def test_blanked() -> None:
    """Only brackets of definitions; places in bytes."""
    text = "def f[ä, b : int](x): return x[0]\ns = 'def g[n](x)'\n"
    plain, (header,) = blanked(text)
    assert plain == "def f             (x): return x[0]\ns = 'def g[n](x)'\n"
    tree = ast.parse(plain)
    put_back(tree, [header])
    (node, _) = tree.body
    assert isinstance(node, ast.FunctionDef)
    assert declared_symbols(node, Source(text, "text.py")) == ["ä", "b"]
    assert [(p.col_offset, p.end_col_offset) for p in header.params] == [(6, 8), (10, 11)]
