"""PlanMemory: storage shared by tensors that live one after the other; what leaves a call is not planned."""

from __future__ import annotations

import relaxpy
from relaxpy.ir import IRModule
from relaxpy.testing.before_after import check_example
from relaxpy.transform import LegalizeOps, LowerCallTIR, PlanMemory, Sequential


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
