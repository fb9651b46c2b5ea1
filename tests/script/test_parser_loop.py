"""Loops of the language: what they compute, what they carry, what is refused and where."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.well_formed import well_formed
from relaxpy.errors import RelaxError
from relaxpy.ir.module import IRModule
from relaxpy.testing.differential import Call, check
from relaxpy.testing.interpret import interpret
from tests.sweeps import sweep

X = np.array([3, -1, 4, 1.5, 9], np.float32)


def program(body: str, params: str = 'x: R.Tensor(("n",), "float32")') -> str:
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return f"@R.function\ndef main({params}):\n{lines}\n"


def parsed(body: str, *params: str) -> IRModule:
    mod = relaxpy.parse(program(body, *params))
    assert well_formed(mod) == []
    return mod


COUNTS = {
    "range(4)": range(4),
    "range(0)": range(0),
    "range(-3)": range(-3),
    "range(2, 5)": range(2, 5),
    "range(5, 2)": range(5, 2),
    "range(1, 9, 3)": range(1, 9, 3),
    "range(7, -2, -3)": range(7, -2, -3),
    "range(n)": range(5),
    "range(n - 1, -1, -1)": range(4, -1, -1),
    "range(n, 2 * n)": range(5, 10),
    "range(k)": range(3),
    "range(k, n, 1)": range(3, 5),
    "range(t)": range(2),
    "range(t + 1, k * n)": range(3, 15),
}


@sweep(2)
@pytest.mark.parametrize("given", COUNTS)
def test_for_counts_as_python_does(given: str) -> None:
    mod = parsed(
        f"""
n = T.int64()
s = R.const(7, "int64")
for i in {given}:
    s = s * 10 + i
return s
""",
        'x: R.Tensor(("n",), "float32"), k: R.Prim("int64"), t: R.Tensor((), "int64")',
    )
    wanted = 7
    for i in COUNTS[given]:
        wanted = wanted * 10 + i
    args = [X, 3, np.array(2)]
    assert interpret(mod, "main", *args) == np.array(wanted).astype(np.int64)
    assert relaxpy.VirtualMachine(relaxpy.build(mod))["main"](*args).numpy() == interpret(
        mod, "main", *args
    )


PROGRAMS: dict[str, tuple[str, Any]] = {
    "while, on numbers of a tensor": (
        """
steps = 0
while R.sum(x) > 1:
    x = x / 2
    steps = steps + 1
return (x, steps)
""",
        (X / 32, 5),
    ),
    "a condition of dimensions": (
        """
n = T.int64()
i = n
while i > 1:
    x = x + i
    i = i // 2
return (x, i)
""",
        (X + 7, 1),
    ),
    "no step": (
        """
y = x
while R.max(x) < R.min(x):
    y = y + y
return y
""",
        X,
    ),
    "break and continue": (
        """
n = T.int64()
s = R.const(0, "float32")
seen = 0
for i in range(n):
    v = x[i]
    if v < 0:
        continue
    if v > 5:
        s = s + 100
        break
    else:
        s = s + v
    seen = seen + 1
return (s, seen)
""",
        (np.float32(108.5), 3),
    ),
    "break in an inner branch": (
        """
i = 0
while True:
    i = i + 1
    if R.sum(x) > 10:
        if R.sum(x) > 60:
            break
        x = x * 2
    x = x + 1
return (x, i)
""",
        (((X * 2 + 1) * 2 + 1), 3),
    ),
    "one loop in another": (
        """
n = T.int64()
s = R.const(0, "int64")
for i in range(n):
    for j in range(i):
        if s > 500:
            break
        s = s + i * 10 + j
    s = s + 1
return s
""",
        np.array(315),
    ),
    "a size that grows": (
        """
n = T.int64()
y = R.zeros((0, 2), "float32")
for i in range(n):
    y = R.concat([y, R.reshape(x, (n, 1))[i : i + 1] * R.ones((1, 2), "float32")])
return R.concat([y, y])
""",
        np.concatenate([np.stack([X, X], 1)] * 2),
    ),
    "a size that depends on the data": (
        """
while R.sum(x) > 0:
    x = R.unique(x[1:])
return x
""",
        None,
    ),
    "values that change places": (
        """
y = x * 2
for i in range(3):
    z = x
    x = y
    y = z
return (x, y)
""",
        (X * 2, X),
    ),
    "a tuple": (
        """
pair = (x, R.const(0, "int64"))
for i in range(3):
    pair = (pair[0] + 1, pair[1] + i)
return pair
""",
        (X + 3, np.array(3)),
    ),
    "a block of data flow in a step": (
        """
for i in range(3):
    with R.dataflow():
        y = R.exp(x)
        x = R.log(y * y)
        R.output(x)
return x
""",
        X * 8,
    ),
    "booleans and floats of Python": (
        """
scale = 1.0
done = False
while R.logical_not(done):
    scale = scale * 2
    done = scale > 30
return x * scale
""",
        X * 32,
    ),
    "what is bound only in a step": (
        """
for i in range(2):
    y = x + 1
    x = y * 2
y = x
return y
""",
        (X + 1) * 4 + 2,
    ),
    "after a loop, another": (
        """
n = T.int64()
k = 0
for i in range(n):
    k = k + i
for i in range(k):
    x = x + 1
return R.concat([x, R.zeros((k,), "float32")])
""",
        np.concatenate([X + 10, np.zeros(10, np.float32)]),
    ),
}


@sweep(6)
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_loops_compute(name: str) -> None:
    """By the interpreter, after each pass, printed and parsed, and by the machine."""
    body, wanted = PROGRAMS[name]
    mod = parsed(body)
    found = interpret(mod, "main", X)
    pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]
    for value, expected in pairs if wanted is not None else ():
        np.testing.assert_allclose(value, expected, rtol=1e-5)
    assert not check([Call(mod, "main", [X]), Call(mod, "main", [X[:1]])])


def test_a_loop_in_a_function_with_effects(capsys: pytest.CaptureFixture[str]) -> None:
    text = program(
        'n = T.int64()\nfor i in range(n):\n    R.print(R.prim_value(i), format="{}")\nreturn x'
    )
    mod = relaxpy.parse(text.replace("@R.function", "@R.function(pure=False)"))
    relaxpy.VirtualMachine(relaxpy.build(mod))["main"](X)
    assert capsys.readouterr().out.split() == ["0", "1", "2", "3", "4"]
    with pytest.raises(RelaxError) as caught:
        relaxpy.parse(text)
    assert "wf-pure" in str(caught.value)


def test_sizes_keep_their_names() -> None:
    """What does not change in a loop is known after it."""
    mod = parsed("n = T.int64()\ny = x\nfor i in range(n):\n    y = y + x\nreturn y")
    assert str(mod.graph_function("main").ret) == 'R.Tensor((n,), dtype="float32")'
    mod = parsed(
        "n = T.int64()\ny = R.zeros((n, 3), 'float32')\nfor i in range(n):\n    y = R.concat([y, y], axis=0)\nz = y + 1\nreturn z"
    )
    assert ', 3), dtype="float32") = R.add' in mod.script()


REFUSED: dict[str, tuple[str, str, str, str]] = {
    "another rank": ("for i in range(3):\n    x = x[None]", "loop-variable", "x[None]", "number of dimensions"),
    "another type": ("for i in range(3):\n    x = x.astype('int64')", "loop-variable", "x.astype('int64')", "x is R.Tensor"),
    "a tensor for a scalar": (
        'k = 0\nwhile k < 3:\n    k = R.const(1, "int64")', "loop-variable", 'R.const(1, "int64")', 'R.const(0, "int64")'
    ),
    "used after it": ("for i in range(3):\n    y = x\nz = y", "loop-variable", "y", "bind y before the loop"),
    "its counter after it": ("for i in range(3):\n    x = x + i\nz = x * i", "loop-variable", "i", "counter"),
    "in a block of data flow": (
        "with R.dataflow():\n    for i in range(3):\n        x = x + 1\n    R.output(x)", "dataflow-if", "range(3)", "R.output"
    ),
    "return": ("for i in range(3):\n    return x", "return-place", "return x", "break"),
    "else": ("for i in range(3):\n    x = x\nelse:\n    x = x + 1", "unsupported-syntax", "x = x + 1", "after the loop"),
    "over items": ("for row in x:\n    y = row", "unsupported-syntax", "x", "range(stop)"),
    "two names": ("for i, j in range(3):\n    y = x", "unsupported-syntax", "i, j", "one name"),
    "four numbers": ("for i in range(1, 2, 3, 4):\n    y = x", "unsupported-syntax", "range(1, 2, 3, 4)", "range"),
    "step 0": ("for i in range(1, 2, 0):\n    y = x", "bad-value", "0", "not be 0"),
    "an unknown step": ("for i in range(0, 9, n):\n    y = x", "bad-value", "n", "write a number"),
    "a float": ("for i in range(1.5):\n    y = x", "bad-value", "1.5", "int64"),
    "a tensor": ("for i in range(x):\n    y = x", "bad-value", "x", "int64"),
    "a condition of many": ("while x > 1:\n    x = x / 2", "if-condition", "x > 1", "R.where"),
    "no end": ("while True:\n    x = x / 2", "unsupported-syntax", "True", "break"),
    "break alone": ("break", "unsupported-syntax", "break", "belongs into a loop"),
    "break in a block": (
        "while R.sum(x) > 1:\n    with R.dataflow():\n        break", "unsupported-syntax", "break", "branch of an if"
    ),
    "code after break": (
        "while R.sum(x) > 1:\n    if R.sum(x) > 3:\n        break\n        x = x + 1\n    x = x / 2",
        "unsupported-syntax", "x = x + 1", "remove it",
    ),
    "an error in its body": (
        "for i in range(3):\n    x = R.matmul(x, R.ones((n, 3), 'float32'))\n    y = x + unknown", "unknown-name", "unknown", "bind it"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_and_where(name: str) -> None:
    body, code, place, said = REFUSED[name]
    text = program(f"n = T.int64()\n{body}\nreturn x")
    with pytest.raises(RelaxError) as caught:
        relaxpy.parse(text)
    errors = getattr(caught.value, "errors", [caught.value])
    error = next(each for each in errors if each.code == code)
    assert error.span is not None
    line = text.splitlines()[error.span.line - 1]
    assert line[error.span.column : error.span.end_column] == place
    assert said in str(error)


def test_an_error_is_reported_once() -> None:
    """A body is parsed again where sizes change."""
    with pytest.raises(RelaxError) as caught:
        parsed("y = x\nfor i in range(3):\n    y = R.concat([y, x])\n    z = unknown\nreturn y")
    assert str(caught.value).count("error[") == 1
