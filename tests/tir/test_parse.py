"""T.prim_func in Python syntax: what is read, what is refused, and where the error is said to be."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import ScriptError
from relaxpy.ir.dim import SymVar
from relaxpy.ir.module import BufferParam, ScalarParam
from relaxpy.target import Target
from relaxpy.testing.interpret import run_program
from relaxpy.testing.kernels import Kernels
from relaxpy.tir.numerics.defined import with_defined_results
from relaxpy.tir.parse import parse_prim_func
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.tir.tvm import tirx, tvm


def parse(text: str, **values: Any) -> PrimFunc:
    """The one function of a text, with values for names that it does not define."""
    text = textwrap.dedent(text)
    node = next(n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef))
    return parse_prim_func(node, text, "program.py", values)


HEAD = """\
@T.prim_func
def f(x: T.Buffer(("n", 4), "float32"), k: T.Buffer((8,), "int32"), y: T.Buffer(("n", 4), "float32"),
      h: T.Buffer((8,), "float16")):
"""


def body(store: str) -> str:
    """A program whose one store, in a block over (n, 4), is `store`."""
    return HEAD + textwrap.indent(
        'for i, j in T.grid(n, 4):\n    with T.sblock("b"):\n        vi, vj = T.axis.remap("SS", [i, j])\n'
        f"        {store}\n",
        "    ",
    )


def refused(text: str, **values: Any) -> tuple[str, str]:
    """(code, source from where the error is said to be to the end of its span)."""
    with pytest.raises(ScriptError) as caught:
        parse(text, **values)
    span = caught.value.span
    assert span is not None
    assert span.file == "program.py"
    line = span.source_line()
    assert line is not None
    end = span.end_column if span.end_line == span.line else len(line)
    return caught.value.code, line[span.column : end]


MATMUL = """
@T.prim_func
def mm(x: T.Buffer(("n", 128), "float32"), w: T.Buffer((128, 256), "float32"), y: T.Buffer(("n", 256), "float32")):
    for i, j, k in T.grid(n, 256, 128):
        with T.sblock("mm"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                y[vi, vj] = T.float32(0)
            y[vi, vj] = y[vi, vj] + x[vi, vk] * w[vk, vj]
"""


def run(func: PrimFunc, *args: np.ndarray) -> None:
    """Compile for this machine and call."""
    kernel = tvm.compile(func.func.with_attr("global_symbol", "main"), target="llvm")
    kernel(*(tvm.runtime.from_dlpack(a) for a in args))


def aligned(values: np.ndarray) -> np.ndarray:
    """A copy at an address that TVM's default kernels accept."""
    memory = np.zeros(values.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy


def test_parameters() -> None:
    """Quoted dimensions are symbols; equal names are one."""
    x, w, y = parse(MATMUL).params
    assert isinstance(x, BufferParam)
    assert isinstance(y, BufferParam)
    assert (x.name, x.dtype, w.name) == ("x", "float32", "w")
    assert x.shape[0] is y.shape[0]
    assert str(x.shape[0]) == "n"
    assert x.shape[1] == 128


def test_matmul_computes() -> None:
    """The program of the paper's figure, compiled, multiplies matrices."""
    rng = np.random.default_rng(0)
    x, w = rng.random((3, 128), np.float32), rng.random((128, 256), np.float32)
    y = aligned(np.zeros((3, 256), np.float32))
    run(parse(MATMUL), aligned(x), aligned(w), y)
    np.testing.assert_allclose(y, x @ w, rtol=1e-5)


def test_all_indices_are_int64() -> None:
    """Literals in extents and subscripts become int64, so that loops of one program have one type."""
    found: set[str] = set()
    func = parse(body("y[vi, 0] = x[vi, vj]")).func
    from relaxpy.tir.tvm import tvm_ffi

    tvm_ffi.structural_walk(
        func.body, (tirx.IntImm, lambda literal: found.add(str(literal.ty.dtype)))
    )
    assert found <= {"int64", "bool"}


OLDER = {
    "block": MATMUL.replace("T.sblock", "T.block"),
    "decorator arguments": MATMUL.replace(
        "T.prim_func", "T.prim_func(private=True, check_well_formed=False)"
    ),
    "declared symbol": MATMUL.replace("    for i, j", "    n = T.int64()\n    for i, j", 1),
    "size variable": MATMUL.replace(
        "    for i, j", "    n = T.int64(is_size_var=True)\n    for i, j", 1
    ),
    "return annotation": MATMUL.replace('256), "float32")):', '256), "float32")) -> None:'),
    "handles": """
        @T.prim_func
        def mm(a: T.handle, b: T.handle, c: T.handle):
            n = T.int64()
            x = T.match_buffer(a, (n, 128), "float32")
            w = T.match_buffer(b, (128, 256), "float32")
            y = T.match_buffer(c, (n, 256), "float32")
        """.rstrip(" ")
    + textwrap.indent(MATMUL[MATMUL.index("    for") :], " " * 8),
    "another name of T": MATMUL.replace("T.", "tir."),
    "subscripted buffer": MATMUL.replace(
        'T.Buffer((128, 256), "float32")', 'T.Buffer[(128, 256), "float32"]'
    ),
    "one decimal for every literal": MATMUL.replace("T.float32(0)", "0.0"),
    "given size": MATMUL.replace("256", "WIDTH"),
}


@pytest.mark.parametrize("name", OLDER)
def test_spellings(name: str) -> None:
    """Every way to write the same program gives the same program."""
    assert parse(OLDER[name], WIDTH=256).structural_equal(parse(MATMUL))


def test_symbolic_value_from_outside() -> None:
    """A symbolic variable of Python is the program's symbol of that name."""
    text = MATMUL.replace('"n"', "n")
    assert parse(text, n=SymVar("n")).structural_equal(parse(MATMUL))


def test_scalar_parameter() -> None:
    """An integer parameter is a scalar, also where a dimension mentions it before."""
    func = parse("""
        @T.prim_func
        def f(x: T.Buffer(("n * k",), "float32"), n: T.int64, k: T.int64):
            for i in range(n * k):
                x[i] = T.Cast("float32", k)
        """)
    x, n, k = func.params
    assert isinstance(x, BufferParam)
    assert isinstance(n, ScalarParam)
    assert isinstance(k, ScalarParam)
    assert x.shape[0] == n.var.dim * k.var.dim


def test_buffers_of_blocks() -> None:
    """`T.alloc_buffer` beside blocks is the function's block's own buffer, as it was before TVM 0.27."""
    text = """
        @T.prim_func
        def f(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
            z = T.{}((4,), "float32")
            for i in range(4):
                with T.sblock("a"):
                    vi = T.axis.spatial(4, i)
                    z[vi] = x[vi] + 1.0
            for i in range(4):
                with T.sblock("b"):
                    vi = T.axis.S(4, i)
                    y[vi] = z[vi]
        """
    assert parse(text.format("alloc_buffer")).structural_equal(
        parse(text.format("sblock_alloc_buffer"))
    )


REFUSED = {
    "float index": (body("y[vi, vj] = x[vi, 1.5]"), "tir-index", "1.5"),
    "index of a float tensor": (body("y[vi, vj] = x[vi, x[vi, vj]]"), "tir-index", "x[vi, vj]"),
    "too few indices": (body("y[vi] = x[vi, vj]"), "tir-script", "y[vi] = x[vi, vj]"),
    "mixed floats": (body("y[vi, vj] = x[vi, vj] + h[vj]"), "tir-dtype", "x[vi, vj] + h[vj]"),
    "float and integer": (body("y[vi, vj] = x[vi, vj] * k[vj]"), "tir-dtype", "x[vi, vj] * k[vj]"),
    "comparison of dtypes": (
        body("y[vi, vj] = T.Select(x[vi, vj] < h[vj], 0.0, 1.0)"),
        "tir-dtype",
        "x[vi, vj] < h[vj]",
    ),
    "stored float": (body("k[vj] = x[vi, vj]"), "tir-dtype", "x[vi, vj]"),
    "stored literal": (body("k[vj] = 1.5"), "tir-dtype", "1.5"),
    "integer division": (body("k[vj] = k[vj] / k[0]"), "tir-dtype", "k[vj] / k[0]"),
    "added in place": (body("k[vj] += x[vi, vj]"), "tir-dtype", "k[vj] += x[vi, vj]"),
    "called axis": (body("q = T.axis.spatial(4, j)(3)"), "tir-script", "T.axis.spatial(4, j)(3)"),
    "undefined name": (body("y[vi, vj] = z[vi, vj]"), "unknown-name", "z"),
    "undefined symbol": (
        HEAD + "    for i in range(m):\n        y[0, i] = 1.0\n",
        "unknown-name",
        "m",
    ),
    "no such function": (body("y[vi, vj] = T.exq(x[vi, vj])"), "tir-script", "T.exq"),
    "wrong axes": (
        body('T.reads(x[vi, vj])\n        q = T.axis.remap("SQ", [i, j])'),
        "tir-script",
        'T.axis.remap("SQ", [i, j])',
    ),
    "negative extent": (
        HEAD + "    for i in range(-3):\n        y[0, i] = 1.0\n",
        "tir-extent",
        "for i in range(-3):",
    ),
    "negative grid": (
        HEAD + "    for i, j in T.grid(n, -3):\n        y[i, j] = 1.0\n",
        "tir-extent",
        "-3",
    ),
    "float extent": (
        HEAD + "    for i in range(3.5):\n        y[0, i] = 1.0\n",
        "tir-index",
        "3.5",
    ),
    "negative buffer": (
        HEAD + '    z = T.alloc_buffer((-4,), "float32")\n    z[0] = 1.0\n',
        "tir-extent",
        "-4",
    ),
    "unknown dtype": (
        HEAD + '    z = T.alloc_buffer((4,), "float33")\n    z[0] = 1.0\n',
        "tir-dtype",
        'T.alloc_buffer((4,), "float33")',
    ),
    "return": (HEAD + "    return x\n", "tir-script", "return x"),
    "bad dimension": (
        HEAD.replace('"n"', '"n +"', 1) + "    y[0, 0] = 1.0\n",
        "tir-script",
        '"n +"',
    ),
    "no annotation": ("@T.prim_func\ndef f(x):\n    x[0] = 1.0\n", "tir-script", "x"),
    "default": (
        "@T.prim_func\ndef f(x: T.int64 = 3):\n    pass\n",
        "tir-script",
        "def f(x: T.int64 = 3):",
    ),
    "effects": (body('y[vi, vj] = __import__("os").system("true")'), "unknown-name", "__import__"),
    "private attributes": (body("y[vi, vj] = T.__dict__"), "tir-script", "T.__dict__"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    """A wrong program is refused with its code, and the carets are under the mistake."""
    text, code, place = REFUSED[name]
    found, source = refused(text)
    assert found == code
    assert source.startswith(place)


NONE = {
    "extent": HEAD + "    for i, j in T.grid(n, None):\n        y[i, j] = 1.0\n",
    "operand": HEAD + "    for i in range(n // None):\n        y[i, 0] = 1.0\n",
    "given": HEAD + "    for i in range(n // NOTHING):\n        y[i, 0] = 1.0\n",
    "attribute": HEAD + "    for i in range(n // HOLDER.nothing):\n        y[i, 0] = 1.0\n",
    "item": HEAD + "    for i in range(n // LIST[0]):\n        y[i, 0] = 1.0\n",
    "call": HEAD + "    for i in range(n // CALL()):\n        y[i, 0] = 1.0\n",
    "statement": HEAD + "    for i in range(n // T.evaluate(0)):\n        y[i, 0] = 1.0\n",
    "argument": body("y[vi, vj] = T.max(None, x[vi, vj])"),
    "list": body("T.reads([None])"),
    "index": body("y[vi, None] = 1.0"),
    "negated": body("y[vi, vj] = -None"),
    "compared": body("y[vi, vj] = T.Select(vi < None, 0.0, 1.0)"),
    "stored": body("y[vi, vj] = None"),
    "axis": body('q = T.axis.remap("S", [None])'),
    "dimension": HEAD + '    z = T.alloc_buffer((None, 4), "float32")\n    z[0, 0] = 1.0\n',
    "given dimension": HEAD
    + '    z = T.alloc_buffer((NOTHING, 4), "float32")\n    z[0, 0] = 1.0\n',
    "either": body("y[vi, vj] = 1.0 + (None if True else 1.0)"),
}


class _Holder:
    nothing = None


@pytest.mark.parametrize("name", NONE)
def test_none_is_refused(name: str) -> None:
    """None never reaches C++: TVM would end the process."""
    assert (
        refused(NONE[name], NOTHING=None, LIST=[None], CALL=lambda: None, HOLDER=_Holder)[0]
        == "tir-none"
    )


@pytest.mark.slow
def test_none_ends_no_process() -> None:
    """The two programs that end TVM's parser, in a process of their own."""
    code = textwrap.dedent("""
        import ast
        from relaxpy.errors import ScriptError
        from relaxpy.tir.parse import parse_prim_func
        for loop in ("T.grid(n, None)", "T.grid(n // None, 4)"):
            body = f"    for i, j in {loop}:\\n        y[i, j] = 1.0\\n"
            text = '@T.prim_func\\ndef f(y: T.Buffer(("n", 4), "float32")):\\n' + body
            try:
                parse_prim_func(ast.parse(text).body[0], text, "f.py", {})
            except ScriptError as error:
                print(error.code)
        """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["tir-none", "tir-none"]


def test_messages() -> None:
    """TVM's errors in the words of the script."""
    messages = {
        "y[vi, vj] = x[vi]": "a scalar is expected, got a part of a buffer (is an index missing?)",
        'y[vi, vj] = "a"': "a scalar is expected, got a string",
        "y[vi] = 1.0": "y has 2 dimensions, and 1 indices are given",
        "y[vi, vj] = T.exq(1.0)": "the namespace T has no exq",
        "y[vi, vj] = T.if_then_else(x[0, 0], 1.0, 0.0)": "if_then_else only accept the condition to be boolean type.",
    }
    for store, message in messages.items():
        with pytest.raises(ScriptError) as caught:
            parse(body(store))
        assert caught.value.message == message


@pytest.mark.parametrize(
    "text",
    [
        HEAD.replace("h: T.Buffer((8,)", "h: T.Buffer(x[0]") + "    y[0, 0] = 1.0\n",
        body("y[vi, vj] = T.max(*vi)"),
        body("T.reads([x[0, a] for a in vi])"),
        body("T.reads(*list(vi))"),
    ],
)
def test_going_through_an_expression(text: str) -> None:
    """TVM's expressions have an element for every index: reading all of them would never end."""
    assert refused(text)[0] == "tir-script"


def test_shape_that_is_no_tuple() -> None:
    text = '@T.prim_func\ndef f(x: T.Buffer({}, "float32")):\n    x[0] = 1.0\n'
    assert parse(text.format("4")).structural_equal(parse(text.format("(4,)")))
    assert parse(text.format("SHAPE"), SHAPE=(4,)).structural_equal(parse(text.format("(4,)")))
    assert parse(text.format('"n"')).structural_equal(parse(text.format('("n",)')))


def test_added_in_place() -> None:
    assert parse(body("y[vi, vj] += 1.0")).structural_equal(
        parse(body("y[vi, vj] = y[vi, vj] + 1.0"))
    )


def test_error_after_an_error() -> None:
    """A refused program leaves nothing behind: the next one is read."""
    refused(body("y[vi, vj] = T.exq(x[vi, vj])"))
    assert parse(MATMUL).structural_equal(parse(MATMUL))


def test_place_in_a_file() -> None:
    """Lines count from the start of the file, columns from that of the line, also inside a class."""
    text = "\n\nclass Module:\n" + textwrap.indent(body("y[vi, vj] = z[vi, vj]"), "    ")
    node = next(n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef))
    with pytest.raises(ScriptError) as caught:
        parse_prim_func(node, text, "module.py", {})
    span = caught.value.span
    assert span is not None
    line = text.splitlines().index("                y[vi, vj] = z[vi, vj]") + 1
    assert (span.line, span.column) == (line, 28)


WIDE = HEAD.replace('"float16"', '"{0}"') + "    h[0] = T.{0}({1})\n"


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("uint64", 2**64 - 1), ("uint64", 2**63), ("int64", -(2**63)), ("int8", -128)],
)
def test_integers_of_every_dtype(dtype: str, value: int) -> None:
    """TVM's own `T.uint64` ends at int64."""
    parsed = parse(WIDE.format(dtype, value))
    assert int(parsed.func.body.value.value) == value
    assert f"{value}" in parsed.script()


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("uint64", 2**64), ("uint8", -1), ("int32", 2**31), ("int32", 1.5), ("int8", "'3'")],
)
def test_integers_beyond_their_dtype(dtype: str, value: object) -> None:
    with pytest.raises(ScriptError) as caught:
        parse(WIDE.format(dtype, value))
    assert caught.value.code == "tir-dtype"


@pytest.mark.parametrize(
    "value",
    [-1.7976931348623157e308, 1.7976931348623157e308, 1e39, 5e-324, 0.1, -0.0, 10**300, 'float("inf")', '"-inf"'],
)  # fmt: skip
def test_numbers_of_float64(value: object) -> None:
    """TVM's own `T.float64` ends at float32. What is printed is read again as the same number."""
    parsed = parse(WIDE.format("float64", value))
    again = parse(parsed.script())
    wanted = eval(str(value)) if isinstance(value, str) else value
    for each in (parsed, again):
        assert str(each.func.body.value.ty.dtype) == "float64"
        assert float(each.func.body.value.value).hex() == float(wanted).hex()


def test_an_integer_beyond_float64() -> None:
    assert refused(WIDE.format("float64", 10**400))[0] == "tir-dtype"


def test_attributes_are_int64() -> None:
    """TVM prints larger ones as `metadata["ffi.BigInt"][0]`, which no text holds."""
    with pytest.raises(ScriptError, match="the value of big must be a number"):
        parse(HEAD + '    T.func_attr({"big": 10 ** 30})\n')


def test_a_program_read_before() -> None:
    """The same tree is read once, but stands where it stands; given values are part of its meaning."""
    text = HEAD.replace("4", "size") + "    T.evaluate(0)\n"
    first, second = parse(text.replace("size", "4")), parse("\n" + text.replace("size", "4"))
    assert first.func.same_as(second.func)
    assert first.span is not None
    assert second.span is not None
    assert second.span.line == first.span.line + 1
    sizes = [parse(text, size=size).params[0] for size in (3, 5)]
    assert [p.shape[1] for p in sizes if isinstance(p, BufferParam)] == [3, 5]


def test_a_let_of_an_index_has_the_type_of_indices() -> None:
    """TVM's lowered programs say int32, which indices are not here."""
    program = relaxpy.parse(
        """from relaxpy.script import tir as T
@T.prim_func
def k(x: T.Buffer((32,), "float32")):
    for i, j in T.grid(4, 8):
        at: T.let[T.int32] = i * 8 + j
        x[at] = T.float32(0)
"""
    )
    assert relaxpy.structural_equal(relaxpy.parse(program.script()), program)


def test_memory_of_a_size_that_its_block_decides() -> None:
    """TVM defines the axes of a block behind its memory."""
    text = """
@T.prim_func
def f(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.sblock("outer"):
            vi = T.axis.spatial(8, i)
            own = T.sblock_alloc_buffer((2, vi + 1), "float32")
            own[0, 0] = x[vi]
            y[vi] = own[0, 0]
"""
    with pytest.raises(
        ScriptError, match="the size of own depends on vi, an axis of the block"
    ) as caught:
        relaxpy.parse(text)
    assert caught.value.code == "tir-extent"
    assert caught.value.span is not None
    assert (caught.value.span.line, caught.value.span.column) == (7, 12)


LITERALS = {
    "T.abs(T.int8(-128))": -128,
    "T.abs(T.int8(-127))": 127,
    "T.abs(T.int32(-2147483648))": -(2**31),
    "T.abs(T.int64(-9223372036854775808))": -(2**63),
    "-T.int8(-128)": -128,
    "-T.uint8(3)": 253,
    "-T.uint16(0)": 0,
    "-T.uint64(1)": 2**64 - 1,
    "T.uint8(0) - T.uint8(3)": 253,
    "T.uint8(1) - T.uint8(3)": 254,
    "T.uint64(0) - T.uint64(1)": 2**64 - 1,
    "T.int8(-128) - T.int8(1)": 127,
}


@pytest.mark.parametrize("text", LITERALS)
def test_arithmetic_on_literals_wraps(text: str) -> None:
    """Where TVM's does not, too."""
    dtype = text.rpartition("T.")[2].partition("(")[0]
    program = parse(f'@T.prim_func\ndef f(y: T.Buffer((1,), "{dtype}")):\n    y[0] = {text}\n')
    assert computed(program).tolist() == [LITERALS[text]]


def test_an_unsigned_value_is_negated() -> None:
    program = parse(
        '@T.prim_func\ndef f(y: T.Buffer((4,), "uint8")):\n    for i in range(4):\n        y[i] = -T.Cast("uint8", i)\n'
    )
    assert computed(program).tolist() == [0, 255, 254, 253]


def computed(program: PrimFunc) -> np.ndarray:
    """The one result of a program, interpreted; a kernel gives the same."""
    (param,) = program.func.params
    shape, dtype = [int(size) for size in param.shape], str(param.dtype)
    want, got = np.ones((2, *shape), dtype)
    with np.errstate(over="ignore"):
        run_program(program, [want])
    Kernels({"k": program}, Target.parse("llvm -opt-level=0"), schedule=False).run("k", [], [got])
    np.testing.assert_array_equal(got, want)
    return got


NARROWED = """
@T.prim_func
def f(x: T.Buffer((9,), "float32"), y: T.Buffer((9,), "float32")):
    for i in range(9):
        with T.sblock("y"):
            v = T.axis.spatial(9, i)
            a = T.meta_var(T.Cast("int64", T.uint16(65535)))
            y[v] = x[T.Cast("int64", T.Cast("{dtype}", a * {factor})) % 9] + x[v]
"""


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
@pytest.mark.parametrize("factor", ["9", "-9", "99999"])
def test_a_literal_that_an_index_makes_narrow(dtype: str, factor: str) -> None:
    """TVM's analysis of regions refuses it."""
    program, x = parse(NARROWED.format(dtype=dtype, factor=factor)), np.arange(9, dtype="float32")
    found = np.zeros(9, "float32")
    with np.errstate(over="ignore"):
        run_program(program, [x, found])
    place = np.array([65535 * int(factor)]).astype(dtype)[0] % 9
    np.testing.assert_array_equal(found, x + x[place])
    program = PrimFunc(with_defined_results(program.func))
    Kernels({"k": program}, Target.parse("llvm -opt-level=0")).run("k", [x], [found])
    np.testing.assert_array_equal(found, x + x[place])
