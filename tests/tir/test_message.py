"""Errors of TVM's parser and compiler in the words of the script: no class, condition or file of C++."""

from __future__ import annotations

import re
import textwrap

import pytest

import relaxpy
from relaxpy.errors import BuildError, RelaxError
from relaxpy.tir.message import informative, type_in_words

X, Y = 'X: T.Buffer((4, 4), "float32")', 'Y: T.Buffer((4, 4), "float32")'
COPY = "for i, j in T.grid(4, 4):\n    Y[i, j] = X[i, j]"


def part(match: str) -> tuple[str, str]:
    """A program with a match of a part of a buffer."""
    return (
        f"{X}, {Y}",
        f'for i in T.serial(4):\n    with T.sblock("b"):\n        v = T.axis.spatial(4, i)\n'
        f"        A = T.match_buffer(X[v, 0:4], {match})\n        Y[v, 0] = T.Cast(\"float32\", A[0])",
    )  # fmt: skip


def of(text: str) -> tuple[str, str]:
    """A program that stores this value in each place."""
    return f"{X}, {Y}", f"for i, j in T.grid(4, 4):\n    Y[i, j] = {text}"


PROGRAMS: dict[str, tuple[tuple[str, str], str]] = {
    "a keyword": ((f'{X[:-1]}, buffer_type="auto"), {Y}', COPY), "T.Buffer has no argument buffer_type"),
    "strides: count": ((f"{X[:-1]}, strides=(8,)), {Y}", COPY), "the buffer X has 1 strides for 2 dimensions"),
    "strides: text": ((f'{X[:-1]}, strides=["a", "b", "c"]), {Y}', COPY), "the buffer X has 3 strides for 2 dimensions"),
    "strides: floats": ((f"{X[:-1]}, strides=(4.0, 1.0)), {Y}", COPY), "a stride of X must be an integer, got float32"),
    "match: size": (part('(5,), "float32"'), "4 elements along an axis where the match has 5"),
    "match: rank": (part('(1, 1, 1, 4), "float32"'), "the part of the buffer has 2 dimensions, and the match 4"),
    "match: dtype": (part('(4,), "int32"'), "the match is of int32, and the buffer of float32"),
    "match: scope": (part('(4,), "float32", scope="local"'), "the match is in local, and the buffer in global"),
    "a missing argument": (of("T.max(X[i, j])"), "T.max needs b"),
    "too many arguments": (of("T.max(X[i, j], X[i, j], X[i, j])"), "T.max takes at most 2 arguments, got 3"),
    "an argument of no name": (of("T.max(X[i, j], b=X[i, j], foo=1)"), "T.max has no argument foo"),
    "a class": (of("T.Select"), "a scalar is expected, got a function"),
    "a dtype": (of("T.Cast(1, X[i, j])"), "a dtype is expected, got an integer"),
    "a dict": (of("T.exp({})"), "a scalar is expected, got a dict"),
    "a slice": (of("X[0:2, j]"), "got a part of a buffer (is an index missing?)"),
    "too many indices": ((f"{X}, {Y}", "Y[0, 0, 0] = X[0, 0]"), "Y has 2 dimensions, and 3 indices are given"),
    "an element of a number": (of("T.float32(1)[0]"), "only buffers can be indexed"),
    "a call of a number": (of("(1)(X[i, j])"), "an integer cannot be called"),
    "shifts of floats": (of("X[i, j] << 1"), "<< is of integers, got float32"),
    "not of a float": (of('T.Cast("float32", not X[i, j])'), "bools are expected here"),
    "a condition": (
        (f"{X}, {Y}", "for i, j in T.grid(4, 4):\n    if X[i, j]:\n        Y[i, j] = X[i, j]"),
        "a condition cannot be of float32",
    ),
    "kinds of axes": (
        (f"{X}, {Y}", 'for i in T.serial(4):\n    with T.sblock("b"):\n        v, w = T.axis.remap("SR", [i])\n        Y[v, w] = X[v, w]'),
        "2 kinds of axes are given 1 loops",
    ),
    "a buffer of a buffer's data": (
        (f"{X}, {Y}", 'A = T.Buffer((4,), "float32", data=X.data)\nY[0, 0] = A[0]'), "the buffer A is used, and not declared",
    ),
}  # fmt: skip

INTERNAL = re.compile(
    r"Check failed|tvm|tirx|s_tir|ffi|\bir\.|Error:|::|\.cc|0x|kDL|PrimExpr|IntImm|FloatImm|BufferVar|BufferProxy"
)


@pytest.mark.parametrize("what", PROGRAMS)
def test_a_wrong_program(what: str) -> None:
    (params, body), told = PROGRAMS[what]
    text = f"@T.prim_func\ndef f({params}):\n{textwrap.indent(body, '    ')}\n"
    with pytest.raises(RelaxError) as caught:
        relaxpy.parse(text)
    assert told in caught.value.message
    assert caught.value.span is not None
    assert INTERNAL.search(caught.value.message) is None


COMPILED = {
    'T.Cast("float32", (X[i, j] > T.float32(0)) + (X[i, j] > T.float32(1)))': "a number is expected here: cast the value",
    'T.exp(T.Cast("int32", X[i, j]))': "exp is not defined for this dtype: cast the value",
    'T.fmod(T.Cast("int32", X[i, j]), T.int32(2))': "fmod is not defined for this dtype: cast the value",
}


@pytest.mark.parametrize("text", COMPILED)
def test_a_program_that_does_not_compile(text: str) -> None:
    params, body = of(f'T.Cast("float32", {text})')
    program = f"@T.prim_func\ndef f({params}):\n{textwrap.indent(body, '    ')}\n"
    mod = relaxpy.parse(
        f"@I.ir_module\nclass M:\n{textwrap.indent(program, '    ')}\n"
        '    @R.function\n    def main(x: R.Tensor((4, 4), "float32")):\n        cls = M\n'
        '        return R.call_tir(cls.f, (x,), out_ty=R.Tensor((4, 4), "float32"))\n'
    )
    with pytest.raises(BuildError) as caught:
        relaxpy.build(mod, "llvm -mcpu=x86-64", cache=False)
    assert COMPILED[text] in caught.value.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ir.Expr", "a scalar"),
        ("Optional<Array<ir.Expr>>", "a tuple, each item a scalar,"),
        ("Variant<ir.Expr, Array<ir.Expr>>", "a scalar"),
        ("Array[index 1: ffi.Map]", "a tuple with a dict in it"),
        ("script.ir_builder.tirx.ForFrame", "a loop"),
        ("ffi.Something", "T.Something"),
    ],
)
def test_types(text: str, words: str) -> None:
    assert type_in_words(text) == words


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('File "a.cc", line 3\nCheck failed: (x > 0) is false: too small\n   ^^^^^^', "too small"),
        ("Check failed: (arg.ty() == value.ty()) is false:", "this is not valid here"),
        (
            "%4 = load i32, ptr %3, align 4, !dbg !39",
            "an operation is not defined for its dtype (is a condition no comparison?)",
        ),
        (
            "too small\n\nError in pass: relaxpy.Lower\nNote: …\n    y[0] = x[0]\n    ^^^^^^^^^^^",
            "too small",
        ),
        (
            "Check failed: (t.MatchesCode(DLDataTypeCode::kDLFloat)) is false: ",
            "a number is expected here: cast the value",
        ),
        ("^^^^^", "Exception"),
        ("expected <class 'tvm.tirx.expr.Foo'>, at <function f at 0x7f00>", "expected T.Foo, at f"),
    ],
)
def test_what_is_left_out(text: str, told: str) -> None:
    assert informative(Exception(text)) == told
