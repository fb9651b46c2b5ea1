"""Reading a text evaluates names of the script language and literals, nothing else; and it ends soon, in little memory."""

from __future__ import annotations

import pytest

import relaxpy

GRAPH = '@R.function\ndef f(x: R.Tensor((4,), "float32")):\n    y = {}\n    return x\n'
PROGRAM = """@T.prim_func
def f(A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32")):
    for i in range(4):
        with T.sblock("b"):
            vi = T.axis.spatial(4, i)
            B[vi] = {}
"""
STATEMENT = """@T.prim_func
def f(A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32")):
    {}
    for i in range(4):
        with T.sblock("b"):
            vi = T.axis.spatial(4, i)
            B[vi] = A[vi]
"""
PYTHON = """
__import__("os").getcwd()
open("x")
eval("1")
exec("1")
globals()
getattr(A, "data")
type(A)
print(1)
().__class__.__bases__
"{0.__class__}".format(1)
sorted((3, 1), key=open)
""".strip().split("\n")
BOMBS = """
9 ** 9 ** 9
1 << 10 ** 10
"a" * 10 ** 10
[0] * 10 ** 10
list(range(10 ** 10))
tuple(range(10 ** 9))
f"{1:999999999}"
int("9" * 100000)
""".strip().split("\n")


def refused(text: str) -> str:
    with pytest.raises(relaxpy.RelaxError) as caught:
        relaxpy.parse(text)
    error = caught.value
    assert error.span is not None
    return error.code


@pytest.mark.parametrize("expression", PYTHON)
def test_python_in_a_graph_function(expression: str) -> None:
    assert refused(GRAPH.format(expression)) == "unknown-name"


@pytest.mark.parametrize("expression", PYTHON)
def test_python_in_a_tensor_program(expression: str) -> None:
    assert refused(PROGRAM.format(expression)) in ("unknown-name", "tir-script")


@pytest.mark.parametrize(
    "name",
    "R.typing R.importlib R.find R.operators R.SPELLINGS R.known_names R.Namespace R.annotations R.__builtins__ "
    "R.nn._prefix R.add.__func__ R.Tensor.build R.str.__globals__ I.sys I.json I.__dict__ T.__getattr__".split(),
)
def test_what_the_namespaces_are_made_of(name: str) -> None:
    assert refused(GRAPH.format(name)) in ("unknown-name", "unknown-op")


@pytest.mark.parametrize(
    "name",
    "T.utils T.entry T.ir T.parser.entry T.tirx.frame T.tvm T.call_kernel T.jit T.exp.__globals__ A.__class__".split(),
)
def test_what_the_namespace_of_tensor_programs_is_made_of(name: str) -> None:
    assert refused(PROGRAM.format(name)) == "tir-script"


@pytest.mark.parametrize("expression", BOMBS)
def test_bombs_in_a_graph_function(expression: str) -> None:
    refused(GRAPH.format(expression))


@pytest.mark.parametrize("expression", [*BOMBS, "max(range(10 ** 12))", "sum(range(10 ** 11))"])
def test_bombs_in_a_tensor_program(expression: str) -> None:
    refused(PROGRAM.format(expression))


def test_bombs_of_data() -> None:
    import base64
    import zlib

    assert refused(GRAPH.format("R.const([[1] * 100000] * 100000)")) == "bad-value"
    zeros = base64.b64encode(zlib.compress(bytes(1 << 24))).decode()
    section = f'\nmetadata = I.metadata({{"zeros": "{zeros}"}})\n'
    use = GRAPH.format('R.const_ref("zeros", R.Tensor((4,), dtype="int8"))')
    assert refused(use + section) == "constant-data"
    huge = GRAPH.format(f'R.const_ref("zeros", R.Tensor(({1 << 60},), dtype="int8"))')
    assert refused(huge + section) == "constant-data"


def test_a_dimension_of_thousands_of_terms() -> None:
    dim = " * ".join(["(n + m + k + l + 1)"] * 30)
    text = f'@R.function\ndef f(x: R.Tensor(("n", "m", "k", "l"), "float32"), y: R.Tensor(("{dim}",), "float32")):\n    return x\n'
    assert refused(text) == "dimension-size"


@pytest.mark.parametrize(
    "statement",
    [
        "import os",
        "from os import path",
        "del A",
        "global q",
        "raise ValueError",
        "try:\n        pass\n    except: pass",
        "class C: pass",
        "def g(): pass",
        "async def g(): pass",
        "match 1:\n        case 1: pass",
        "(yield)",
        "(q := 3)",
    ],
)
def test_syntax_that_tensor_programs_do_not_have(statement: str) -> None:
    assert refused(STATEMENT.format(statement)) == "unsupported-syntax"


def test_annotations_are_not_evaluated_by_python() -> None:
    text = '@R.function\ndef f(x: __import__("os")):\n    return x\n'
    assert refused(text) == "unknown-name"
    text = "@T.prim_func\ndef f(A: __import__('os').sep):\n    pass\n"
    assert refused(text) == "unknown-name"
