"""CheckCalls: what only may fit a tensor program, a storage or a view is checked when the program runs."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.well_formed import well_formed
from relaxpy.build.pipeline import default_pipeline
from relaxpy.errors import PassError, RuntimeCheckError, VerifyError
from relaxpy.ir import IRModule
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.testing.round_trip import check_round_trip
from relaxpy.transform import CheckCalls
from tests.sweeps import sweep

PROGRAMS = """
    @T.prim_func(private=True)
    def add(
        x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32"), z: T.Buffer(("n",), "float32")
    ):
        n = T.int64()
        for i in range(n):
            with T.sblock("add"):
                vi = T.axis.spatial(n, i)
                z[vi] = x[vi] + y[vi]

    @T.prim_func(private=True)
    def grow(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("grow"):
                vi = T.axis.spatial(n, i)
                x[vi] = x[vi] + y[vi]

    @T.prim_func(private=True)
    def next(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in range(n):
            with T.sblock("next"):
                vi = T.axis.spatial(n, i)
                y[vi] = x[vi] + T.float32(1)

    @T.prim_func(private=True)
    def both(
        x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32"), z: T.Buffer(("n * 2",), "float32")
    ):
        n = T.int64()
        for i in range(n):
            with T.sblock("both"):
                vi = T.axis.spatial(n, i)
                y[vi] = x[vi]
                z[vi] = x[vi]
                z[vi + n] = x[vi]

    @T.prim_func(private=True)
    def first(x: T.Buffer(("m",), "float32"), y: T.Buffer(("k",), "float32"), k: T.int64):
        m = T.int64()
        for i in range(k):
            with T.sblock("first"):
                vi = T.axis.spatial(k, i)
                y[vi] = x[vi]
"""
X = 'x: R.Tensor(("n",), "float32")'
XY = f'{X}, y: R.Tensor(("m",), "float32")'


def module(params: str, body: str) -> IRModule:
    """A module of the tensor programs and of main."""
    main = f"@R.function\ndef main({params}):\n    cls = Module\n" + textwrap.indent(
        textwrap.dedent(body).strip(), "    "
    )
    return relaxpy.parse(
        "@I.ir_module\nclass Module:\n" + PROGRAMS + "\n" + textwrap.indent(main, "    ")
    )


def floats(size: int) -> np.ndarray:
    return np.arange(size, dtype="float32")


def outcomes(mod: IRModule, *args: Any) -> list[Any]:
    """What the interpreter and the virtual machine, with and without its checks of memory, give: numbers, or the code
    and text of the error, and whether it has a place."""
    exe = relaxpy.build(mod)
    runs = (
        lambda: interpret(mod, "main", *args),
        lambda: relaxpy.VirtualMachine(exe)["main"](*args),
        lambda: relaxpy.VirtualMachine(exe, check_memory=True)["main"](*args),
    )
    found: list[Any] = []
    for run in runs:
        try:
            result = run()
        except RuntimeCheckError as error:
            found.append((error.code, error.message, error.span is not None))
        else:
            found.append(_numbers(result))
    return found


def _numbers(value: Any) -> Any:
    return list(map(_numbers, value)) if isinstance(value, tuple) else np.asarray(value).tolist()


def test_example() -> None:
    check_example(CheckCalls())


IN_A_STORAGE = """
s = R.memory.alloc_storage(k)
r = R.memory.alloc_tensor(R.shape([n]), s, dtype="float32")
_ = R.vm.call_dps(cls.next, x, r)
return r
"""

UNDECIDED = {
    "in a storage of a size that comes in": (
        f"{X}, k: R.Shape(ndim=2)",
        IN_A_STORAGE,
        (floats(5), (4, 4)),
        "a tensor exceeds its storage: n * 4 of k_0 * k_1 bytes",
    ),
    "in a storage of a number that comes in": (
        f'{X}, k: R.Prim("int64")',
        IN_A_STORAGE,
        (floats(5), 16),
        "a tensor exceeds its storage: n * 4 of k bytes",
    ),
    "a smaller output": (
        X,
        'r = R.call_tir(cls.next, (x,), out_ty=R.Tensor((n // 2,), "float32"))\nreturn r',
        (floats(10_000),),
        "match_cast r: dimension 0 (n // 2) must be 5000, got 10000",
    ),
    "an output of one element": (
        X,
        'r = R.call_tir(cls.next, (x,), out_ty=R.Tensor((1,), "float32"))\nreturn r',
        (floats(10_000),),
        "match_cast r: dimension 0 is 10000, not 1",
    ),
    "a larger output": (
        X,
        'r = R.call_tir(cls.next, (x,), out_ty=R.Tensor((n * 2,), "float32"))\nreturn r',
        (floats(8),),
        "match_cast r: dimension 0 (n * 2) must be 16, got 8",
    ),
    "two arguments of one size": (
        XY,
        'r = R.call_tir(cls.add, (x, y), out_ty=R.Tensor((n,), "float32"))\nreturn r',
        (floats(10_000), floats(3)),
        "match_cast y_for_add: dimension 0 (n) must be 10000, got 3",
    ),
    "an argument of unknown size": (
        'x: R.Tensor("float32", ndim=1), y: R.Tensor("float32", ndim=1)',
        'r = R.call_tir(cls.add, (x, y), out_ty=R.Tensor((4,), "float32"))\nreturn r',
        (floats(4), floats(3)),
        "must be 4, got 3",
    ),
    "an argument of unknown rank": (
        'x: R.Tensor("float32"), y: R.Tensor("float32")',
        'r = R.call_tir(cls.add, (x, y), out_ty=R.Tensor((4,), "float32"))\nreturn r',
        (floats(4), floats(4).reshape(2, 2)),
        "match_cast y_for_add: it has 2 dimensions, not 1",
    ),
    "an argument of unknown dtype": (
        'x: R.Tensor(("n",)), y: R.Tensor(("n",))',
        'r = R.call_tir(cls.add, (x, y), out_ty=R.Tensor((n,), "float32"))\nreturn r',
        (floats(4), floats(4).astype("int8")),
        "match_cast y_for_add: the dtype is int8, not float32",
    ),
    "an argument of which nothing is known": (
        "x: R.Object, y: R.Object",
        'r = R.call_tir(cls.add, (x, y), out_ty=R.Tensor((4,), "float32"))\nreturn r',
        (floats(4), floats(3)),
        "must be 4, got 3",
    ),
    "no tensor at all": (
        "x: R.Object, y: R.Object",
        'r = R.call_tir(cls.add, (x, y), out_ty=R.Tensor((4,), "float32"))\nreturn r',
        (floats(4), "text"),
        "match_cast y_for_add: expected a tensor, got the str 'text'",
    ),
    "in place": (
        XY,
        'r = R.call_tir_inplace(cls.grow, (x, y), inplace_indices=[0], out_ty=R.Tensor((n,), "float32"))\nreturn r',
        (floats(10_000), floats(3)),
        "match_cast y_for_grow: dimension 0 (n) must be 10000, got 3",
    ),
    "the argument that is updated": (
        XY,
        'r = R.call_tir_inplace(cls.grow, (y, x), inplace_indices=[0], out_ty=R.Tensor((m,), "float32"))\nreturn r',
        (floats(10_000), floats(3)),
        "match_cast x_for_grow: dimension 0 (m) must be 3, got 10000",
    ),
    "several outputs": (
        X,
        'r = R.call_tir(cls.both, (x,), out_ty=[R.Tensor((n,), "float32"), R.Tensor((n + 6,), "float32")])\nreturn r',
        (floats(5),),
        "match_cast r: dimension 0 of field 1 (n + 6) must be 11, got 10",
    ),
    "a scalar": (
        f'{X}, s: R.Shape(["k"])',
        "k = T.int64()\n"
        'r = R.call_tir(cls.first, (x,), out_ty=R.Tensor((3,), "float32"), tir_vars=R.shape([k]))\nreturn r',
        (floats(5), (4,)),
        "match_cast r: dimension 0 is 4, not 3",
    ),
    "a scalar that is a parameter": (
        f'{X}, k: R.Prim("int64")',
        'r = R.call_tir(cls.first, (x, k), out_ty=R.Tensor((3,), "float32"))\nreturn r',
        (floats(5), 4),
        "match_cast r: dimension 0 is 4, not 3",
    ),
    "a scalar of unknown value": (
        f'{X}, t: R.Tuple(R.Prim("int64"))',
        'k = t[0]\nr = R.call_tir(cls.first, (x, k), out_ty=R.Tensor((3,), "float32"))\nreturn r',
        (floats(5), (4,)),
        "match_cast r: dimension 0 is 4, not 3",
    ),
    "lowered": (
        X,
        'r = R.memory.alloc_tensor(R.shape([n // 2]), dtype="float32")\n'
        "_ = R.vm.call_dps(cls.next, x, r)\nreturn r",
        (floats(10_000),),
        "match_cast r_for_next: dimension 0 (n) must be 10000, got 5000",
    ),
    "in a storage": (
        X,
        "s = R.memory.alloc_storage(R.prim_value(16))\n"
        'r = R.memory.alloc_tensor(R.shape([n]), s, dtype="float32")\n_ = R.vm.call_dps(cls.next, x, r)\n'
        'q = R.memory.alloc_tensor(R.shape([n]), dtype="float32")\n_1 = R.vm.call_dps(cls.next, r, q)\nreturn q',
        (floats(10_000),),
        "a tensor exceeds its storage: n * 4 of 16 bytes",
    ),
    "behind the start of a storage": (
        X,
        "s = R.memory.alloc_storage(R.prim_value(16))\n"
        'r = R.memory.alloc_tensor(R.shape([n]), s, dtype="float32", offset=8)\n'
        "_ = R.vm.call_dps(cls.next, x, r)\n"
        'q = R.memory.alloc_tensor(R.shape([n]), dtype="float32")\n_1 = R.vm.call_dps(cls.next, r, q)\nreturn q',
        (floats(3),),
        "a tensor exceeds its storage: n * 4 + 8 of 16 bytes",
    ),
    "a view": (
        f'{X}, s: R.Shape(["k"])',
        'k = T.int64()\nr = R.memory.view(x, R.shape([k]), dtype="float32")\nq = R.exp(r)\nreturn q',
        (floats(4), (1_000_000,)),
        "a view is larger than its tensor: k * 4 of n * 4 bytes",
    ),
    "fused": (
        XY,
        """
        with R.dataflow():
            r = R.call_tir(cls.add, (x, y), out_ty=R.Tensor((n,), "float32"))
            q = R.call_tir(cls.next, (r,), out_ty=R.Tensor((n,), "float32"))
            R.output(q)
        return q
        """,
        (floats(10_000), floats(3)),
        "match_cast y_for_add: dimension 0 (n) must be 10000, got 3",
    ),
    "of no use": (
        XY,
        """
        with R.dataflow():
            r = R.call_tir(cls.add, (x, y), out_ty=R.Tensor((n,), "float32"))
            q = R.call_tir(cls.next, (x,), out_ty=R.Tensor((n,), "float32"))
            R.output(q)
        return q
        """,
        (floats(10), floats(3)),
        "match_cast y_for_add: dimension 0 (n) must be 10, got 3",
    ),
    "in a branch": (
        f'c: R.Tensor((), "bool"), {XY}',
        """
        if c:
            r = R.call_tir(cls.add, (x, y), out_ty=R.Tensor((n,), "float32"))
        else:
            r = R.call_tir(cls.next, (x,), out_ty=R.Tensor((n,), "float32"))
        return r
        """,
        (np.array(True), floats(10_000), floats(3)),
        "match_cast y_for_add: dimension 0 (n) must be 10000, got 3",
    ),
    "in a closure": (
        XY,
        """
        @R.function
        def inner(z: R.Tensor(("k",), "float32")):
            k = T.int64()
            r = R.call_tir(cls.add, (x, z), out_ty=R.Tensor((k,), "float32"))
            return r
        q = inner(y)
        return q
        """,
        (floats(10_000), floats(3)),
        "match_cast z_for_add: dimension 0 (n) must be 10000, got 3",
    ),
}


@sweep(2)
@pytest.mark.parametrize("name", UNDECIDED)
def test_what_only_may_fit_is_checked(name: str) -> None:
    params, body, args, problem = UNDECIDED[name]
    symbols = "".join(f"{s} = T.int64()\n" for s in "nm" if f'"{s}"' in params)
    mod = module(params, symbols + textwrap.dedent(body).strip())
    found = outcomes(mod, *args)
    for code, message, located in found:
        assert code == "check"
        assert located
        assert problem in message
    assert found[0] == found[1] == found[2]
    checked = CheckCalls()(mod)
    well_formed(checked)
    check_round_trip(checked)
    assert CheckCalls()(checked) is checked


@pytest.mark.parametrize("name", ["fused", "of no use", "a smaller output", "in a closure"])
@pytest.mark.parametrize("without", ["check-calls", "fuse-ops", "dead-code-elimination"])
def test_in_any_pipeline(name: str, without: str) -> None:
    params, body, args, problem = UNDECIDED[name]
    mod = module(params, "n = T.int64()\n" + textwrap.dedent(body).strip())
    exe = relaxpy.build(mod, pipeline=default_pipeline(without=[without]))
    with pytest.raises(RuntimeCheckError, match=problem.partition(":")[0]):
        relaxpy.VirtualMachine(exe)["main"](*args)


FITTING = {
    "half": (X, 'r = R.call_tir(cls.next, (x,), out_ty=R.Tensor((n // 2,), "float32"))\nreturn r', (floats(0),)),
    "two": (
        XY,
        'r = R.call_tir(cls.add, (x, y), out_ty=R.Tensor((m,), "float32"))\nreturn r',
        (floats(5), floats(5)),
    ),
    "nothing known": (
        "x: R.Object, y: R.Tensor",
        'r = R.call_tir(cls.add, (x, y), out_ty=R.Tensor((4,), "float32"))\nreturn r',
        (floats(4), floats(4)),
    ),
    "several": (
        X,
        'r = R.call_tir(cls.both, (x,), out_ty=[R.Tensor((n,), "float32"), R.Tensor((n + 6,), "float32")])\nreturn r',
        (floats(6),),
    ),
    "in place": (
        XY,
        'r = R.call_tir_inplace(cls.grow, (x, y), inplace_indices=[0], out_ty=R.Tensor((n,), "float32"))\nreturn r',
        (floats(5), floats(5)),
    ),
    "a scalar": (
        f'{X}, t: R.Tuple(R.Prim("int64"))',
        'k = t[0]\nr = R.call_tir(cls.first, (x, k), out_ty=R.Tensor((3,), "float32"))\nreturn r',
        (floats(5), (3,)),
    ),
    "in a storage under another name": (
        X,
        's = R.memory.alloc_storage(R.prim_value(n * 4))\nq = s\n'
        'r = R.memory.alloc_tensor(R.shape([n]), q, dtype="float32")\n_ = R.vm.call_dps(cls.next, x, r)\nreturn r',
        (floats(5),),
    ),
    "in a storage of a size that comes in": (f"{X}, k: R.Shape(ndim=2)", IN_A_STORAGE, (floats(5), (5, 4))),
    "in a storage of a number that comes in": (f'{X}, k: R.Prim("int64")', IN_A_STORAGE, (floats(5), 20)),
}  # fmt: skip


@pytest.mark.parametrize("name", FITTING)
def test_what_fits_runs(name: str) -> None:
    params, body, args = FITTING[name]
    symbols = "".join(f"{s} = T.int64()\n" for s in "nm" if f'"{s}"' in params)
    first, *others = outcomes(module(params, symbols + body), *args)
    assert not (isinstance(first, tuple) and first[0] == "check")
    assert all(other == first for other in others)


def test_what_is_proved_costs_nothing() -> None:
    mod = module(
        X,
        """
        n = T.int64()
        r = R.call_tir(cls.next, (x,), out_ty=R.Tensor((n,), "float32"))
        q = R.call_tir(cls.both, (r,), out_ty=[R.Tensor((n,), "float32"), R.Tensor((n * 2,), "float32")])
        s = R.call_tir(cls.first, (x,), out_ty=R.Tensor((n // 2,), "float32"), tir_vars=R.shape([n // 2]))
        return (q, s)
        """,
    )
    assert CheckCalls()(mod) is mod


def test_a_symbol_that_no_value_gives_is_refused() -> None:
    with pytest.raises(VerifyError, match="the value of n in twice cannot be determined") as caught:
        relaxpy.parse("""
@I.ir_module
class Module:
    @T.prim_func
    def twice(x: T.Buffer(("n * 2",), "float32"), y: T.Buffer(("n * 2",), "float32")):
        n = T.int64()
        for i in range(n * 2):
            with T.sblock("twice"):
                vi = T.axis.spatial(n * 2, i)
                y[vi] = x[vi]

    @R.function
    def main(x: R.Tensor(("m",), "float32")):
        m = T.int64()
        cls = Module
        y = R.call_tir(cls.twice, (x,), out_ty=R.Tensor((m,), "float32"))
        return y
""")
    assert "tir_vars" in str(caught.value)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('r = R.memory.view(x, R.shape([n + 1]), dtype="float32")', "larger than its tensor"),
        (
            's = R.memory.alloc_storage(R.prim_value(n * 4))\n'
            'r = R.memory.alloc_tensor(R.shape([n]), s, dtype="float32", offset=4)',
            "exceeds its storage",
        ),
        (
            'r = R.memory.alloc_tensor(R.shape([n]), o, dtype="float32")',
            "must be allocated in the function",
        ),
        (
            's = R.memory.alloc_storage(R.prim_value(n * 8))\n'
            'r = R.memory.alloc_tensor(R.shape([n]), s, dtype="float32", offset=-4)',
            "non-negative multiple of the size of float32, got -4",
        ),
        (
            's = R.memory.alloc_storage(R.prim_value(n * 8))\n'
            'r = R.memory.alloc_tensor(R.shape([n]), s, dtype="float32", offset=2)',
            "non-negative multiple of the size of float32, got 2",
        ),
        ('r = R.memory.view(x, R.shape([n]), dtype="float32", offset=4)', "larger than its tensor"),
        (
            'r = R.memory.view(x, R.shape([n // 2]), dtype="float16", offset=1)',
            "non-negative multiple of the size of float16, got 1",
        ),
    ],
)  # fmt: skip
def test_what_never_fits_is_refused(body: str, problem: str) -> None:
    mod = module(f"{X}, o: R.Object", f"n = T.int64()\n{body}\nq = R.exp(r)\nreturn q")
    with pytest.raises(PassError, match=problem):
        relaxpy.build(mod)


def test_an_instruction_with_too_few_arguments_is_refused() -> None:
    with pytest.raises(VerifyError, match="takes 3 tensors, outputs included, got 2"):
        module(X, "n = T.int64()\n_ = R.vm.call_dps(cls.add, x, x)\nreturn x")


WRITES = {
    "its input, then its output": """
        for i in range(n):
            with T.sblock("b"):
                v = T.axis.spatial(n, i)
                x[v] = T.float32(5)
                y[v] = x[v]
""",
    "its input in another order": """
        for i in range(n):
            x[i] = x[i] + T.float32(1)
        for i in range(n):
            y[i] = x[n - 1 - i]
""",
    "its input through a view": """
        for i in range(n):
            with T.sblock("b"):
                v = T.axis.spatial(n, i)
                w = T.match_buffer(x[v], (), offset_factor=1)
                w[()] = T.float32(7)
                y[v] = w[()]
""",
    "only its input": """
        for i in range(n):
            x[i] = T.float32(1)
""",
    "some of its output": """
        for i in range(n):
            if x[i] > T.float32(2):
                y[i] = x[i]
""",
    "all but one of its output": """
        for i in range(n - 1):
            y[i + 1] = x[i]
""",
    "its output, after it has perhaps read it": """
        for i in range(n):
            y[i] = T.if_then_else(x[i] > T.float32(2), y[i], x[i])
""",
    "its output, of itself": """
        y[0] = x[0]
        for i in range(n - 1):
            y[i + 1] = y[i] + x[i + 1]
""",
}
CALLS = {
    "a value": "a = R.exp(x)",
    "an argument": "a = x",
    "a constant": "a = R.arange(R.prim_value(5), dtype='float32')\n        a = R.match_cast(a, R.Tensor((n,), 'float32'))",
}


@sweep(3)
@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("given", CALLS)
@pytest.mark.parametrize("name", WRITES)
def test_values_stay_as_they_are(name: str, given: str, pure: bool) -> None:
    """A call changes no array of the caller and no value, and gives the same whatever was in memory before."""
    mod = relaxpy.parse(f"""
@I.ir_module
class Module:
    @T.prim_func
    def f(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32")):
        n = T.int64()
{WRITES[name]}
    @R.function(pure={pure})
    def main(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        cls = Module
        {CALLS[given]}
        y = R.call_tir(cls.f, (a,), out_ty=R.Tensor((n,), "float32"))
        z = R.call_tir(cls.f, (a,), out_ty=R.Tensor((n,), "float32"))
        return R.add(a, y), a, y, z
""")
    check_round_trip(mod)
    exe = relaxpy.build(mod, target="llvm -opt-level=0")
    runs = [lambda x: interpret(mod, "main", x)]
    for vm in (relaxpy.VirtualMachine(exe), relaxpy.VirtualMachine(exe, check_memory=True)):
        runs += [lambda x, vm=vm: vm["main"](x)] * 2
    x = np.array([0, 3, 1, 5, 2], "float32")
    found = [[np.array(part) for part in run(x)] for run in runs]
    np.testing.assert_array_equal(x, [0, 3, 1, 5, 2])
    value = {"a value": np.exp(x), "an argument": x, "a constant": np.arange(5, dtype="float32")}
    for total, a, y, z in found:
        np.testing.assert_allclose(a, value[given], rtol=1e-6)
        np.testing.assert_array_equal(y, z)
        np.testing.assert_array_equal(total, a + y)
        np.testing.assert_allclose(y, found[0][2], rtol=1e-6)


def test_inputs_beside_those_that_are_declared_to_be_updated() -> None:
    mod = relaxpy.parse("""
@I.ir_module
class Module:
    @T.prim_func
    def f(x: T.Buffer((3,), "float32"), w: T.Buffer((3,), "float32"), y: T.Buffer((3,), "float32")):
        for i in range(3):
            x[i] = x[i] + w[i]
            w[i] = T.float32(0)
            y[i] = x[i] * T.float32(2)
    @R.function
    def main(x: R.Tensor((3,), "float32"), w: R.Tensor((3,), "float32")):
        cls = Module
        both = R.call_tir_inplace(cls.f, (x, w), inplace_indices=[0, -1], out_ty=[R.Tensor((3,), "float32"), R.Tensor((3,), "float32")])
        return both, x, w
""")
    x, w = np.ones(3, "float32"), np.full(3, 4, "float32")
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    for (updated, y), old, weight in (interpret(mod, "main", x, w), vm["main"](x, w)):
        for value, expected in ((updated, 5), (y, 10), (old, 1), (weight, 4), (x, 1), (w, 4)):
            np.testing.assert_array_equal(np.asarray(value), [expected] * 3)


def test_an_output_that_is_read_first_is_refused() -> None:
    text = """
@I.ir_module
class Module:
    @T.prim_func
    def f(x: T.Buffer((3,), "float32"), y: T.Buffer((3,), "float32")):
        for i in range(3):
            with T.sblock("y"):
                v = T.axis.spatial(3, i)
                y[v] = y[v] + x[v]
    @R.function
    def main(x: R.Tensor((3,), "float32")):
        cls = Module
        return R.call_tir{call}, out_ty=R.Tensor((3,), "float32"))
"""
    with pytest.raises(VerifyError, match="f reads its output y before it writes to it") as caught:
        relaxpy.parse(text.replace("{call}", "(cls.f, (x,)"))
    assert caught.value.span is not None
    assert caught.value.span.line == 13
    updating = "_inplace(cls.f, (x, R.exp(x)), inplace_indices=[1]"
    mod = relaxpy.parse(text.replace("{call}", updating))
    x = np.zeros(3, "float32")
    np.testing.assert_array_equal(interpret(mod, "main", x), [1, 1, 1])
