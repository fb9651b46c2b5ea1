"""From where to where tensors are in use, which may leave a call, which parameters a function keeps."""

from __future__ import annotations

import relaxpy
from relaxpy.analysis.live_ranges import Liveness, liveness
from relaxpy.ir import IRModule

TEXT = """
@I.ir_module
class Module:
    @R.function
    def main(c: R.Tensor((), "bool"), x: R.Tensor(("n",), "float32")) -> R.Object:
        n = T.int64()
        k = T.int64()
        a = R.memory.alloc_tensor(R.shape([n]), dtype="float32")
        _a = R.vm.call_dps("f", x, a)
        v = R.memory.view(a, R.shape([n]), dtype="int32")
        b = R.memory.alloc_tensor(R.shape([n, 2]), dtype="float16")
        _b = R.vm.call_dps("f", v, b)
        if c:
            d = R.memory.alloc_tensor(R.shape([n]), dtype="float32")
            _d = R.vm.call_dps("f", b, d)
            e = d
        else:
            e = a
        t = (e, b)
        g = t[0]
        h = R.match_cast(g, R.Tensor((k,), "float32"))
        out = R.memory.alloc_tensor(R.shape([k]), dtype="float32")
        _out = R.vm.call_dps("f", h, out)
        return (out, x)
"""


def live(text: str, name: str = "main") -> Liveness:
    mod = relaxpy.parse(text)
    return liveness(mod)[name]


def test_ranges() -> None:
    """Positions: 1 a, 2 its call, 3 v, 4 b, 5 its call, 6 the branch, 7 d, 8 its call, 9 the first arm's value, 10 the
    second's, 11 the branch's, 12 t, 13 g, 14 h, 15 out, 16 its call, 17 the result."""
    found = {var.name: r for var, r in live(TEXT).ranges.items()}
    assert {name: (r.begin, r.first_use, r.end) for name, r in found.items()} == {
        "a": (1, 2, 16),  # as e, g and h
        "b": (4, 5, 12),  # g is the other field
        "d": (7, 8, 16),
        "out": (15, 16, 17),
    }
    assert {name: str(r.size) for name, r in found.items()} == {
        "a": "n * 4", "b": "n * 4", "d": "n * 4", "out": "k * 4"
    }  # fmt: skip
    assert [name for name, r in found.items() if r.escapes] == ["out"]
    assert found["a"].path == ()
    assert found["d"].path == (12,)


def test_symbols_that_a_cast_defines() -> None:
    assert {s.name: at for s, at in live(TEXT).symbols.items()} == {"k": (14, ())}


def test_what_others_may_keep_escapes() -> None:
    kept = {
        "returned": "return a",
        "in a tuple": "return (a, x)",
        "Python's": 'y = R.call_packed("keep", a, sinfo_args=R.Object); return y',
        "a closure's": "y = R.make_closure(cls.other, (a,)); return y",
    }
    for how, rest in kept.items():
        lines = "\n        ".join(rest.split("; "))
        text = f"""
@I.ir_module
class Module:
    @R.function(pure=False)
    def main(x: R.Tensor(("n",), "float32")) -> R.Object:
        n = T.int64()
        cls = Module
        a = R.memory.alloc_tensor(R.shape([n]), dtype="float32")
        _a = R.vm.call_dps("f", x, a)
        {lines}

    @R.function(private=True)
    def other(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        return x
"""
        (found,) = live(text).ranges.values()
        assert found.escapes, how


def test_parameters_that_outlive_a_call() -> None:
    """Through calls, and through a recursion."""
    mod: IRModule = relaxpy.parse("""
@I.ir_module
class Module:
    @R.function(private=True)
    def reads(x: R.Tensor(("n",), "float32"), y: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        return y

    @R.function(private=True)
    def calls(x: R.Tensor(("n",), "float32"), y: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        cls = Module
        return cls.reads(y, x)

    @R.function(private=True)
    def again(c: R.Tensor((), "bool"), x: R.Tensor(("n",), "float32"), y: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        cls = Module
        if c:
            z = cls.again(c, y, x)
        else:
            z = y
        return z
""")
    # what `calls` gets from `reads` is new to it; that `x` goes where it is kept, it knows
    found = {name: live.leaked_parameters() for name, live in liveness(mod).items()}
    assert found == {"reads": {1}, "calls": {0}, "again": {1, 2}}


def test_what_callees_keep_is_known_whatever_the_order() -> None:
    """A caller that is looked at before its callees: through two calls."""
    functions = """
    @R.function(private=True)
    def outer(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        cls = Module
        return cls.middle(x)

    @R.function(private=True)
    def middle(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        cls = Module
        return cls.inner(x)

    @R.function(private=True)
    def inner(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        return x
"""
    forward = relaxpy.parse("@I.ir_module\nclass Module:" + functions)
    parts = functions.split("\n    @R")[1:]
    backward = relaxpy.parse(
        "@I.ir_module\nclass Module:\n" + "".join(f"\n    @R{part}" for part in reversed(parts))
    )
    for mod in (forward, backward):
        assert all(live.leaked_parameters() == {0} for live in liveness(mod).values())
