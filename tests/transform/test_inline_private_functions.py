"""InlinePrivateFunctions: what is inlined, and what stays a call."""

from __future__ import annotations

from time import process_time

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.ir.module import IRModule
from relaxpy.target import Target
from relaxpy.testing.before_after import check_example
from relaxpy.testing.differential import Call, Ways, check
from relaxpy.testing.pass_check import check_pass
from relaxpy.transform import InlinePrivateFunctions, Normalize


def module(main: str, others: str, params: str = 'x: R.Tensor(("n", 4), "float32")') -> IRModule:
    """A module with a function `main`, and private functions."""
    text = f"@I.ir_module\nclass Module:\n    @R.function\n    def main({params}):\n"
    text += "        n = T.int64()\n        cls = Module\n" + _indented(main, 8)
    for other in others.split("\n\n"):
        text += "\n    @R.function(private=True)\n" + _indented(other, 4)
    return Normalize()(relaxpy.parse(text))


def _indented(text: str, by: int) -> str:
    return "".join(f"{' ' * by}{line}\n" for line in text.strip().splitlines())


def inlined(mod: IRModule, n: int = 3) -> str:
    """The script afterwards, after the numbers were compared."""
    after = InlinePrivateFunctions()(mod)
    check_well_formed(after)
    for rows in (n, 0):
        call = Call(mod, "main", [np.random.default_rng(rows).random((rows, 4), np.float32)])
        assert call.disagreement(call.run(after)) == ""
    return after.script()


TWICE = """
def twice(x: R.Tensor(("m", "k"), "float32")) -> R.Tensor(("m", "k"), "float32"):
    y = R.add(x, x)
    return y
"""


def test_example() -> None:
    check_example(InlinePrivateFunctions())


def test_called_twice_with_other_sizes() -> None:
    """Each copy has names and sizes of its own."""
    text = inlined(
        module("a = cls.twice(x)\nb = R.permute_dims(a)\nc = cls.twice(b)\nreturn c", TWICE)
    )
    assert "twice" not in text
    assert text.count("R.add(") == 2
    assert 'y: R.Tensor((n, 4), dtype="float32") = R.add(x, x)' in text
    assert 'y1: R.Tensor((4, n), dtype="float32") = R.add(b, b)' in text


def test_functions_that_call_functions() -> None:
    other = """
def four_times(x: R.Tensor(("n", 4), "float32")):
    cls = Module
    a = cls.twice(x)
    b = cls.twice(a)
    return b
"""
    text = inlined(module("return cls.four_times(x)", f"{TWICE.strip()}\n\n{other.strip()}"))
    assert text.count("R.add(") == 2
    assert "def " not in text.split("def main", 1)[1]


def test_a_symbol_defined_inside() -> None:
    """What a match_cast defines in each of two copies are two symbols."""
    other = """
def positive(x: R.Tensor(("n", 4), "float32")):
    n = T.int64()
    found = T.int64()
    a = R.nonzero(x)
    b = R.match_cast(a, R.Tensor((2, found), "int64"))
    c = R.add(b, b)
    return c
"""
    text = inlined(
        module("a = cls.positive(x)\nb = cls.positive(R.negative(x))\nreturn (a, b)", other)
    )
    assert "(2, found1)" in text


def test_long_functions_are_inlined_where_they_are_called_once() -> None:
    lines = "\n".join(f"    v{i + 1} = R.exp(v{i})" for i in range(20))
    other = f'def long(v0: R.Tensor(("n", 4), "float32")):\n{lines}\n    return v20'
    assert "cls.long" not in inlined(module("return cls.long(R.multiply(x, R.const(-1.0)))", other))
    twice = "a = cls.long(R.multiply(x, R.const(-1.0)))\nb = cls.long(a)\nreturn b"
    assert "cls.long" in inlined(module(twice, other))


STAYS = {
    "recursive": (
        "return cls.f(x)",
        'def f(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):\n'
        "    cls = Module\n    if R.const(True):\n        y = x\n    else:\n        y = cls.f(x)\n    return y",
    ),
    "with attributes": (
        "return cls.f(x)",
        'def f(x: R.Tensor(("n", 4), "float32")):\n    R.func_attr({"mine": 1})\n    y = R.exp(x)\n    return y',
    ),
    "a value": (
        "g = cls.f\nreturn g(x)",
        'def f(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):\n    y = R.exp(x)\n    return y',
    ),
    "an argument that is checked": (
        "a = R.nonzero(x)\nb = cls.f(a)\nreturn b",
        'def f(x: R.Tensor((2, "m"), "int64")):\n    y = R.add(x, x)\n    return y',
    ),
    "a constant, each time anew": (
        "a = cls.f(x)\nb = cls.f(x)\nreturn (a, b)",
        'def f(x: R.Tensor(("n", 4), "float32")):\n    return R.const([1.0, 2.0], "float32")',
    ),
    "a branch, called in a dataflow block": (
        "with R.dataflow():\n    a = cls.f(x)\n    R.output(a)\nreturn a",
        'def f(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):\n'
        "    if R.const(True):\n        y = x\n    else:\n        y = R.exp(x)\n    return y",
    ),
}


@pytest.mark.parametrize("case", STAYS)
def test_what_stays_a_call(case: str) -> None:
    mod = module(*STAYS[case])
    assert InlinePrivateFunctions()(mod) is mod


def test_an_error_of_the_running_program_stays_one() -> None:
    """Inlined, the sum of 3 and 4 elements would be refused while compiling."""
    other = """
def f(a: R.Tensor(("n",), "float32"), b: R.Tensor(("m",), "float32")):
    c = R.add(a, b)
    return c
"""
    main = 'a = R.zeros((3,), "float32")\nb = R.zeros((4,), "float32")\nreturn cls.f(a, b)'
    mod = module(main, other)
    assert InlinePrivateFunctions()(mod) is mod


def test_arguments_that_are_no_variables() -> None:
    other = """
def f(s: R.Shape(["a", "b"]), t: R.Tuple(R.Tensor(("a", "b"), "float32"), R.Tensor((), "float32"))):
    a, b = T.int64(), T.int64()
    u = t[0]
    v = t[1]
    w = R.reshape(R.multiply(u, v), (b, a))
    return w
"""
    text = inlined(module("return cls.f(R.shape([n, 4]), (x, R.const(2.0)))", other))
    assert "R.shape([4, n])" in text


def test_a_nested_function() -> None:
    other = """
def f(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
    n = T.int64()

    @R.function
    def inner(y: R.Tensor((n, 4), "float32")) -> R.Tensor((n, 4), "float32"):
        with R.dataflow():
            a = R.add(y, x)
            b = R.exp(a)
            R.output(b)
        return b

    z = inner(x)
    return z
"""
    text = inlined(
        module("return R.negative(cls.f(R.negative(x)))", other.strip().replace("\n\n", "\n"))
    )
    assert "cls.f" not in text


def function(name: str, *lines: str) -> str:
    """A function of three bindings or more; `lines` come before its last."""
    body = "".join(f"    {line}\n" for line in ("y = R.exp(x)", *lines, "y = R.negative(y)"))
    return f'def {name}(x: R.Tensor(("n", 4), "float32")):\n    cls = Module\n{body}    return y'


def test_a_chain_of_calls(modules_round_trip: list[IRModule]) -> None:
    """In time linear in the functions, each of which is called once (it took 9 s)."""
    count = 600
    chain = [function(f"f{i}", f"y = cls.f{i + 1}(y)") for i in range(count)]
    mod = module("return cls.f0(x)", "\n\n".join([*chain, function(f"f{count}")]))
    start = process_time()
    after = InlinePrivateFunctions()(mod)
    assert process_time() - start < 6
    assert list(after.functions) == ["main"]
    assert after.script().count("R.exp") == count + 1
    modules_round_trip.clear()  # one a function, each with all that were read before it


def test_what_has_grown_long_stays() -> None:
    """Each calls the next twice: written out, 2 ** 30 calls."""
    twice = [function(f"f{i}", *[f"y = cls.f{i + 1}(y)"] * 2) for i in range(30)]
    mod = module("return cls.f29(x)", "\n\n".join([*twice, function("f30")]))
    text = inlined(mod)
    assert "cls.f29" not in text
    text = inlined(
        module("return cls.f0(x)", "\n\n".join([*twice, function("f30")][24:]).replace("f24", "f0"))
    )
    assert 2 < text.count("def ") < 7


def test_in_a_build() -> None:
    mod = module("a = cls.twice(x)\nb = R.exp(a)\nreturn b", TWICE)
    calls = [Call(mod, "main", [np.ones((n, 4), np.float32)]) for n in (0, 1, 5)]
    assert check(calls, Ways(Target.parse("llvm -opt-level=0"), fresh_process=False)) == []


def test_random_programs() -> None:
    assert check_pass(InlinePrivateFunctions(), range(60), before=Normalize()) > 1


BY_TURNS = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((3,), "float32"), times: R.Tensor((), "int64")) -> R.Tensor((3,), "float32"):
        cls = Module
        return cls.first(times, x)

    @R.function(private=True)
    def first(i: R.Tensor((), "int64"), x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
        cls = Module
        if i == 0:
            r = x
        else:
            r = cls.second(i - R.const(1, "int64"), R.negative(x))
        return r

    @R.function(private=True)
    def second(i: R.Tensor((), "int64"), x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
        cls = Module
        if i == 0:
            r = R.add(x, x)
        else:
            r = cls.third(i - R.const(1, "int64"), R.add(x, R.const(1, "float32")))
        return r

    @R.function(private=True)
    def third(i: R.Tensor((), "int64"), x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):
        cls = Module
        if i == 0:
            r = R.exp(x)
        else:
            r = cls.first(i - R.const(1, "int64"), R.multiply(x, R.const(0.5, "float32")))
        return r
"""


def test_a_loop_by_turns_becomes_a_loop_of_one_function() -> None:
    mod = relaxpy.parse(BY_TURNS)
    after = InlinePrivateFunctions()(Normalize()(mod))
    check_well_formed(after)
    assert len(after.functions) == 2
    (loop,) = after.functions.keys() - {"main"}
    assert after.script().count(f"cls.{loop}(") == 2  # from main, and from itself
    x = np.array([1, -2, 3], np.float32)
    assert not check([Call(mod, "main", [x, np.array(times)]) for times in range(5)])


def test_a_function_that_two_long_ones_call_stays() -> None:
    """It is neither short nor called once, and without it the cycle goes on."""
    more = "\n        ".join(f'x = R.add(x, R.const({i}, "float32"))' for i in range(9))
    text = BY_TURNS
    for name in ("first", "second", "third"):
        text = text.replace(
            f'    def {name}(i: R.Tensor((), "int64"), x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):\n        cls = Module',
            f'    def {name}(i: R.Tensor((), "int64"), x: R.Tensor((3,), "float32")) -> R.Tensor((3,), "float32"):\n        cls = Module\n        {more}',
        )
    text = text.replace(
        "return cls.first(times, x)",
        "y = cls.second(times, cls.third(times, x))\n        return cls.first(times, y)",
    )
    mod = relaxpy.parse(text)
    assert len(InlinePrivateFunctions()(Normalize()(mod)).functions) == 4


LONG = (
    "def long(x: R.Tensor(('m', 4), 'float32')):\n"
    + "{attr}"
    + "".join(f"    y{i} = R.exp({f'y{i - 1}' if i else 'x'})\n" for i in range(9))
    + "    return y8"
)


@pytest.mark.parametrize(("value", "inlines"), [("True", True), ("False", False), (None, False)])
def test_the_attribute_inline(value: str | None, inlines: bool) -> None:
    """Long functions with several calls are inlined if their attribute says so."""
    attr = "" if value is None else f"    R.func_attr({{'inline': {value}}})\n"
    text = inlined(module("a = cls.long(x)\nb = cls.long(a)\nreturn b", LONG.format(attr=attr)))
    assert ("long" in text) is not inlines


def test_a_short_function_may_forbid_it() -> None:
    short = TWICE.replace("    y =", "    R.func_attr({'inline': False})\n    y =", 1)
    assert "twice" in inlined(module("a = cls.twice(x)\nreturn a", short))


def test_the_attribute_is_a_bool() -> None:
    wrong = TWICE.replace("    y =", "    R.func_attr({'inline': 1})\n    y =", 1)
    with pytest.raises(relaxpy.errors.RelaxError, match="must be True or False"):
        check_well_formed(module("a = cls.twice(x)\nreturn a", wrong))
