"""The key of a build: the same for the same, another for anything that the executable depends on, none for what cannot
be told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.build.build_key import build_key
from relaxpy.build.pipeline import default_pipeline
from relaxpy.ir import IRModule
from relaxpy.ir.expr import Constant
from relaxpy.shape.declare import with_bounds
from relaxpy.target import Target
from relaxpy.transform import FuseOps, SimplifyExpr
from relaxpy.transform.base import module_pass

PROGRAM = """
@I.ir_module
class Module:
    @T.prim_func
    def double(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("double"):
                vi = T.axis.spatial(n, i)
                y[vi] = x[vi] * T.float32(2)

    @R.function
    def main(x: R.Tensor(("n", "m"), "float32"), y: R.Tensor(("n * 2",), "float32"), c: R.Prim("bool")):
        cls = Module
        n, m = T.int64(), T.int64()
        with R.dataflow():
            a = R.sum(x, axis=1)
            b = R.call_tir(cls.double, (a,), out_ty=R.Tensor((n,), "float32"))
            d = R.concat((b, R.const([1.0, 2.5], "float32")))
            R.output(d)
        if c:
            e = R.exp(d)
        else:
            e = R.negative(d)
        f = R.match_cast(e, R.Tensor(("k",), "float32"))
        return (f, R.shape([n + m, 3]))
"""

MOST = 1 << 20


def key(*parts: Any) -> bytes | None:
    return build_key(*parts, most_bytes=MOST)


def test_the_same_program_has_the_same_key() -> None:
    """Read twice: all variables and symbols are other objects."""
    first, second = relaxpy.parse(PROGRAM), relaxpy.parse(PROGRAM)
    assert key(first) is not None
    assert key(first) == key(second)
    assert key(first, default_pipeline()) == key(second, default_pipeline())


def test_in_another_process() -> None:
    code = (
        "import sys, relaxpy; from relaxpy.build.build_key import build_key; "
        "print(build_key(relaxpy.parse(sys.stdin.read()), most_bytes=1 << 20).hex())"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        input=PROGRAM,
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "1", "PYTHONPATH": ":".join(sys.path)},
    ).stdout.strip()
    mine = key(relaxpy.parse(PROGRAM))
    assert mine is not None
    assert found == mine.hex()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("axis=1", "axis=0"),
        ("R.exp", "R.abs"),
        ("T.float32(2)", "T.float32(3)"),
        ("2.5", "2.25"),
        ("a = R.sum", "a2 = R.sum"),  # names are in the executable
        ('"n * 2"', '"n * 3"'),
        ('"m"', '"p"'),
        ("n + m, 3", "n + m, 4"),
        ("    with R.dataflow", "\n        with R.dataflow"),  # and so are lines
        ("def main", "def other"),
        ("@R.function", "@R.function(private=True)"),
    ],
)
def test_whatever_is_changed_is_another_key(old: str, new: str) -> None:
    assert old in PROGRAM
    changed = PROGRAM.replace(old, new)
    if old == "a = R.sum":
        changed = changed.replace("(a,)", "(a2,)")
    if old == '"m"':
        changed = changed.replace("n, m = ", "n, p = ").replace("n + m", "n + p")
    before, after = key(relaxpy.parse(PROGRAM)), key(relaxpy.parse(changed))
    assert before is not None
    assert after is not None
    assert before != after


@pytest.mark.parametrize(
    "change",
    [
        lambda mod: (with_bounds(mod, {"n": 8}), default_pipeline()),
        lambda mod: (mod, default_pipeline(without=["fuse-ops"])),
        lambda mod: (mod, default_pipeline().before("fuse-ops", FuseOps())),
        lambda mod: (mod, default_pipeline(), Target.parse("llvm -mcpu=x86-64-v3")),
        lambda mod: (mod, default_pipeline(), {"w": Constant(np.zeros(3, np.float32))}),
        lambda mod: (mod, default_pipeline(), {"w": Constant(np.ones(3, np.float32))}),
        lambda mod: (mod, default_pipeline(), {"w": Constant(np.ones((3, 1), np.float32))}),
        lambda mod: (mod, default_pipeline(), {"w": Constant(np.ones(3, np.int32))}),
    ],
)
def test_options_count(change: Callable[[IRModule], tuple[Any, ...]]) -> None:
    mod = relaxpy.parse(PROGRAM)
    others = [key(mod, default_pipeline())]
    others += [
        key(mod, default_pipeline(), {"w": Constant(np.full(3, 2, np.float32))}),
        key(mod, default_pipeline(), Target.parse("llvm -mcpu=x86-64-v2")),
    ]
    found = key(*change(mod))
    assert found is not None
    assert found not in others


def test_the_same_shape_of_other_symbols() -> None:
    """`(n, m)` and `(n, n)`, `n` of one function and of another: symbols are told by identity."""
    text = "@R.function\ndef main(x: R.Tensor(({}), 'float32')):\n    return x\n"
    keys = {key(relaxpy.parse(text.format(dims))) for dims in ('"n", "m"', '"n", "n"', '"m", "n"')}
    assert len(keys) == 3


@dataclass(frozen=True)
class _Mine:
    """A class that is not relaxpy's."""

    value: int = 1


@dataclass(frozen=True)
class _Holder:
    function: Callable[[], int] = field(default=lambda: 1)


@pytest.mark.parametrize(
    "value",
    [
        _Mine(),
        _Holder(),
        lambda: 1,
        object(),
        np.array([object()]),
        default_pipeline().before("fuse-ops", module_pass("mine")(lambda mod, ctx: mod)),
        {"a": [(1, _Mine())]},
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_told_has_no_key(value: Any) -> None:
    assert key(1, value) is None


def test_a_table_that_is_a_default_is_like_any_other() -> None:
    """The text of a default is kept: a copy of it has the same key, one formula less another."""
    formulas = SimplifyExpr().formulas
    copied = tuple((str(a), str(b), str(c)) for a, b, c in formulas)
    assert copied is not formulas
    assert key(SimplifyExpr()) == key(SimplifyExpr(copied)) != key(SimplifyExpr(formulas[1:]))


def test_large_arrays_have_no_key() -> None:
    data = np.zeros(MOST // 4, np.float32)
    assert key(data) is not None
    assert key(data, data) is not None  # one array, told once
    assert key(data, data.copy()) is None


def test_values_of_different_types_differ() -> None:
    values = [
        0,
        0.0,
        -0.0,
        False,
        None,
        "",
        b"",
        "0",
        (),
        [],
        {},
        (0,),
        ((),),
        np.float32(0),
        np.int64(0),
    ]
    keys = [key(value) for value in values]
    assert None not in keys
    # Lists and tuples of a module's fields are told alike.
    assert len(set(keys)) == len(values) - 1
