"""PlanMemory: storage shared by tensors that live one after the other; what leaves a call is not planned."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.live_ranges import LiveRange, liveness
from relaxpy.errors import RuntimeCheckError
from relaxpy.ir import Call, Function, IRModule
from relaxpy.ir.expr import Expr
from relaxpy.op.memory import AllocStorage, AllocTensor
from relaxpy.shape.prove import prove
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.transform import LegalizeOps, LowerCallTIR, PlanMemory, Sequential, plan_memory


def plan(text: str) -> str:
    steps = Sequential((LegalizeOps(), LowerCallTIR(), PlanMemory()))
    mod: IRModule = steps(relaxpy.parse(text))
    return mod.script()


def test_example() -> None:
    check_example(PlanMemory())


def test_figure_10_needs_two_storages() -> None:
    """Four allocations of (2, n), (n, 2), (n, 2), (n + 2, 2): 2 * n = n * 2 shares, the last leaves the call."""
    text = plan("""
@R.function
def main(x: R.Tensor((2, "n"), dtype="float32")) -> R.Tensor(("n + n", 1), dtype="float32"):
    n = T.int64()
    a = R.exp(x)
    b = R.permute_dims(a, axes=[1, 0])
    c = R.nn.relu(b)
    d = R.reshape(c, (n * 2, 1))
    e = R.exp(d)
    return e
""")
    assert text.count("R.memory.alloc_storage(") == 2
    assert text.count("R.memory.alloc_tensor(") == 5


def test_what_is_returned_in_a_tuple_is_not_planned() -> None:
    text = plan("""
@R.function
def main(x: R.Tensor(("n",), dtype="float32")) -> R.Tuple(R.Tensor(("n",), dtype="float32"), R.Tensor(("n",), dtype="float32")):
    a = R.exp(x)
    b = R.exp(a)
    both = (a, b)
    return both
""")
    assert "alloc_storage" not in text


def test_what_is_handed_to_a_function_is_not_planned() -> None:
    text = plan("""
@R.function(pure=False)
def main(x: R.Tensor(("n",), dtype="float32")) -> R.Object:
    a = R.exp(x)
    b = R.call_packed("keep", a)
    return b
""")
    assert "alloc_storage" not in text


def test_the_arms_of_a_branch_share_storage() -> None:
    """It is allocated before the branch."""
    text = plan("""
@R.function
def main(c: R.Tensor((), dtype="bool"), x: R.Tensor(("n",), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
    if c:
        a = R.exp(x)
        y = R.negative(a)
    else:
        b = R.sqrt(x)
        y = R.exp(b)
    return y
""")
    assert text.count("R.memory.alloc_storage(") == 1
    assert text.index("R.memory.alloc_storage(") < text.index("if c:")


# Lifetimes


CASES = {
    # program → storages without bounds
    "views keep what they view": (
        """
    a = R.exp(x)
    b = R.memory.view(a, R.shape([n * 4]), dtype="float32")
    c = R.cumsum(x, axis=0)
    d = R.cumsum(c, axis=0)
    e = R.cumsum(b, axis=0)
    y = R.add(d, R.reshape(e, (n, 4)))""",
        3,
    ),
    "fields of tuples": (
        """
    a = R.exp(x)
    t = (a, x)
    b = R.cumsum(x, axis=0)
    c = R.cumsum(b, axis=0)
    f = t[0]
    y = R.add(f, c)""",
        3,
    ),
    "a result of either arm": (
        """
    a = R.cumsum(x, axis=0)
    if c0:
        b = R.cumsum(a, axis=0)
    else:
        b = R.exp(x)
    d = R.cumsum(x, axis=1)
    y = R.add(b, d)""",
        3,
    ),
    "what one arm needs the other may overwrite": (
        """
    a = R.cumsum(x, axis=0)
    if c0:
        y = R.cumsum(a, axis=1)
    else:
        b = R.cumsum(x, axis=1)
        y = R.cumsum(b, axis=0)""",
        1,
    ),
    "casts": (
        """
    a = R.cumsum(x, axis=0)
    b = R.match_cast(a, R.Tensor((n, 4), "float32"))
    c = R.cumsum(x, axis=1)
    d = R.cumsum(c, axis=1)
    y = R.add(b, d)""",
        3,
    ),
    "a larger storage": (
        """
    a = R.concat((x, x), axis=0)
    b = R.cumsum(a, axis=0)
    c = R.sum(b, axis=0)
    d = R.cumsum(c, axis=0)
    y = R.add(x, d)""",
        3,
    ),
    "a size that depends on the data": (
        """
    k = T.int64()
    a = R.cumsum(x, axis=0)
    u = R.unique(R.reshape(a, (n * 4,)))
    v = R.match_cast(u, R.Tensor((k,), "float32"))
    b = R.cumsum(v, axis=0)
    w = R.cumsum(b, axis=0)
    y = R.add(x, R.sum(w))""",
        4,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_lifetimes(name: str) -> None:
    """As many storages as are needed, and the right numbers in the checking mode, with a bound and without."""
    body, count = CASES[name]
    text = f"""
@R.function
def main(x: R.Tensor(("n", 4), "float32"), c0: R.Tensor((), "bool")) -> R.Object:
    n = T.int64(){body}
    return y
"""
    assert plan(text).count("R.memory.alloc_storage(") == count
    mod = relaxpy.parse(text)
    machines = [
        relaxpy.VirtualMachine(relaxpy.build(mod, bounds=bounds), check_memory=True)
        for bounds in (None, {"n": 17})
    ]
    for n in (0, 1, 2, 17):
        x = np.linspace(-1, 1, n * 4, dtype=np.float32).reshape(n, 4)
        for cond in (True, False):
            args = x, np.array(cond)
            expected = interpret(mod, "main", *args)
            for vm in machines:
                np.testing.assert_allclose(
                    vm["main"](*args).numpy(), expected, rtol=1e-4, atol=1e-4
                )


def test_an_argument_of_a_function_that_does_not_keep_it_is_planned() -> None:
    """f reads its argument, g returns it, and h hands it to g."""
    text = """
@I.ir_module
class Module:
    @R.function
    def f(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        return R.exp(x)

    @R.function
    def g(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        return x

    @R.function
    def h(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        cls = Module
        y = cls.g(x)
        return y

    @R.function
    def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        cls = Module
        a = R.cumsum(x)
        b = cls.CALLEE(a)
        return b
"""
    counts = {
        name: plan(text.replace("CALLEE", name)).count("R.memory.alloc_storage(") for name in "fgh"
    }
    assert counts == {"f": 1, "g": 0, "h": 0}
    mod = relaxpy.parse(text.replace("CALLEE", "f"))
    vm = relaxpy.VirtualMachine(relaxpy.build(mod), check_memory=True)
    x = np.linspace(0, 1, 9, dtype=np.float32)
    np.testing.assert_allclose(vm["main"](x).numpy(), np.exp(np.cumsum(x)), rtol=1e-5)


# Static plans


BOUNDED = """
@R.function
def main(x: R.Tensor(("n", 4), "float32"), z: R.Tensor(("m",), "float32")) -> R.Object:
    R.func_attr({ATTRS})
    a = R.cumsum(x, axis=0)
    b = R.concat((a, a), axis=0)
    c = R.cumsum(b, axis=0)
    d = R.cumsum(z)
    e = R.cumsum(d)
    y = R.add(R.sum(c), R.sum(e))
    return y
"""


@pytest.mark.parametrize(
    ("attrs", "static", "dynamic"),
    [
        # a, b and c: 4, 8 and 8 n floats; d and e: m floats; two scalars of 4 bytes, in a cache line each
        ({"tir_var_upper_bound": {"n": 16}}, 1, 2),
        ({"tir_var_upper_bound": {"n": 16, "m": 8}}, 1, 0),
        ({"tir_var_lower_bound": {"n": 1, "m": 1}}, 1, 4),
        ({}, 1, 4),
    ],
    ids=str,
)
def test_bounded_sizes_are_laid_out_together(
    attrs: dict[str, object], static: int, dynamic: int
) -> None:
    """A variable that has only a lower bound is not bounded."""
    text = plan(BOUNDED.replace("ATTRS", repr(attrs)[1:-1]))
    sizes = re.findall(r"alloc_storage\(R.prim_value\((.*)\)\)", text)
    assert sum(size.isdigit() for size in sizes) == static
    assert sum(not size.isdigit() for size in sizes) == dynamic
    if "tir_var_upper_bound" in attrs:
        assert max(int(size) for size in sizes if size.isdigit()) == 16 * 16 * 4
        assert "offset=" in text


def test_the_end_of_a_slice_is_no_bound_of_its_size() -> None:
    """It may be far beyond any axis, and is not what is allocated."""
    text = plan("""
@R.function
def main(x: R.Tensor(("n", 3), "float32")) -> R.Tensor:
    a = R.strided_slice(x, [0], [0], [1_000_000_000])
    b = R.cumsum(a, axis=0)
    y = R.sum(b)
    return y
""")
    sizes = re.findall(r"alloc_storage\(R.prim_value\((.*)\)\)", text)
    assert sizes == ["T.min(n, 1000000000) * 12"] * 2


def test_without_the_option_nothing_is_static() -> None:
    text = BOUNDED.replace("ATTRS", '"tir_var_upper_bound": {"n": 16, "m": 8}')
    mod = Sequential((LegalizeOps(), LowerCallTIR(), PlanMemory(static=False)))(relaxpy.parse(text))
    assert "offset=" not in mod.script()
    assert "R.prim_value(n * 32)" in mod.script()


@pytest.mark.parametrize("seed", range(6))
def test_the_first_storage_that_is_free_is_taken(seed: int) -> None:
    """Of many tensors, some alive to the end, each of one size lies where looking at all storages in turn puts it."""
    rng = random.Random(seed)
    names, lines = ["x"], list[str]()
    for i in range(40):
        a, b = rng.choice(names[-4:]), rng.choice(names if rng.random() < 0.3 else names[-2:])
        lines.append(f"    v{i} = R.add({a}, {b})")
        names.append(f"v{i}")
    body = "\n".join(lines)
    lowered: IRModule = Sequential((LegalizeOps(), LowerCallTIR()))(
        relaxpy.parse(f"""
@R.function
def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
{body}
    return v39
""")
    )
    ranges = [r for r in liveness(lowered)["main"].ranges.values() if not r.escapes]
    taken: list[list[LiveRange]] = []
    expected: dict[str, int] = {}
    for tensor in sorted(ranges, key=lambda r: r.begin):
        free = (
            i
            for i, others in enumerate(taken)
            if all(o.end < tensor.begin or tensor.end < o.begin for o in others)
        )
        at = next(free, len(taken))
        taken += [[]] if at == len(taken) else []
        taken[at].append(tensor)
        expected[tensor.var.name] = at
    planned = PlanMemory()(lowered)["main"]
    assert isinstance(planned, Function)
    storages: dict[Expr, int] = {}
    found: dict[str, int] = {}
    for binding in planned.body.bindings:
        match binding.value:
            case Call(op=AllocStorage()):
                storages[binding.var] = len(storages)
            case Call(op=AllocTensor(), args=(_, storage)):
                found[binding.var.name] = storages[storage]
            case _:
                pass
    assert found == expected


def test_sizes_that_nothing_orders_are_not_proved_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A chain of products, each of a size of its own: what proofs are asked for grows with the chain, not with its
    square."""
    asked: list[object] = []
    monkeypatch.setattr(plan_memory, "prove", lambda claim: asked.append(claim) or prove(claim))
    count = 60
    params = ", ".join(f'w{i}: R.Tensor(("n{i}", "n{i + 1}"), "float32")' for i in range(count))
    products = "\n".join(f"    x = R.matmul(x, w{i})" for i in range(count))
    mod = relaxpy.parse(f"""
@R.function
def main(x: R.Tensor(("m", "n0"), "float32"), {params}) -> R.Tensor(("m", "n{count}"), "float32"):
{products}
    return x
""")
    text = Sequential((LegalizeOps(), LowerCallTIR(), PlanMemory()))(mod).script()
    assert text.count("alloc_storage") == count - 1
    assert len(asked) < count


def test_a_negative_dimension_is_reported_and_not_the_size_of_its_storage() -> None:
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n", 4), "float32")):
    n = T.int64()
    a = R.zeros((n - 1, 2), "float32")
    b = R.exp(a)
    return b
""")
    planned = Sequential((LegalizeOps(), LowerCallTIR(), PlanMemory()))(mod)
    assert "alloc_storage(R.prim_value(n * 8 - 8))" in planned.script()
    for each in (mod, planned):
        with pytest.raises(RuntimeCheckError, match="main: the dimension n - 1 is negative"):
            interpret(each, "main", np.zeros((0, 4), "float32"))
