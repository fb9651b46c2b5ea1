"""Scripts with words changed, removed and added: a clean error or a valid module, never anything else."""

from __future__ import annotations

import random
import re
import warnings
from collections import Counter

import pytest

import relaxpy
from relaxpy.errors import RelaxError

PROGRAMS = (
    """@I.ir_module
class M:
    @R.function
    def a(x: R.Tensor(("n",), "float32"), k: R.Prim("int64")) -> R.Tensor(("n * 2",), "float32"):
        n = T.int64()
        lv = R.concat((x, x), axis=0)
        y = R.reshape(lv, R.shape([n * 2]))
        return M.b(y)

    @R.function
    def b(y: R.Tensor(("m",), "float32")):
        z, w = (y, R.const([1, 2], "float32"))
        return R.sum(z * 2 + 1, axis=[0], keepdims=True)
""",
    """@R.function
def f(s: R.Shape(["n", "m"]), t: R.Tuple(R.Tensor(("n", "m")), R.Object), g: R.Callable((R.Tensor(("k",)),), R.Tensor)):
    x = t[0]
    n, m = T.int64(), T.int64()
    y = R.match_cast(t[1], R.Tensor((n, T.max(m, 4), "q"), "float32"))
    z = R.call_pure_packed("f", y, ty_args=R.Tensor((n,), "float32"))
    return g(z)
""",
    """@R.function(pure=False)
def f(c: R.Tensor((), "bool"), x: R.Tensor((2, 3), "float32")):
    R.func_attr({"a": [1, {"b": None}]})
    @R.function
    def inner(y: R.Tensor(("k", 3), "float32")) -> R.Tensor(("k", 3), "float32"):
        return R.add(x, y)
    x += 1.0
    u = R.call_packed("g", x, R.str("s"), R.dtype("int32"), R.prim_value(3))
    with R.dataflow():
        v = R.nn.softmax(x, axis=-1)
        w = R.permute_dims(v, axes=[1, 0])
        R.output(w)
    if c:
        y = R.exp(w)
    else:
        y = R.strided_slice(w, axes=[0], begin=[0], end=[1])
    return (y, u, inner(x))
""",
)
WORDS = """None 3 -1 "n" "n * 2" x n R T R.Tensor ( ) , [ ] . = : + 1.5 True R.add cls "float32" * ** {} ... "" 0 if else
return lambda:0 M.b R.output R.dataflow() T.int64() @""".split()


def mutated(program: str, rng: random.Random) -> str:
    words = re.findall(r"\w+|\s+|[^\w\s]", program)
    for _ in range(rng.randrange(1, 4)):
        at, form = rng.randrange(len(words)), rng.random()
        if form < 0.4:
            words[at] = rng.choice(WORDS)
        elif form < 0.6:
            del words[at]
        elif form < 0.8:
            words.insert(at, rng.choice(WORDS))
        else:
            words[at] = rng.choice(words)
    return "".join(words)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_mutations(seed: int) -> None:
    rng = random.Random(seed)
    outcome: Counter[str] = Counter()
    for _ in range(400 if seed == 0 else 5000):
        text = mutated(rng.choice(PROGRAMS), rng)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", SyntaxWarning
                )  # Python's remarks on the mutated text
                mod = relaxpy.parse(text)
        except RelaxError as error:
            outcome[error.render()[:6]] += 1
            continue
        except Exception as error:
            pytest.fail(f"{type(error).__name__}: {error}\n{text}")
        relaxpy.assert_structural_equal(mod, relaxpy.parse(mod.script()))
        outcome["accepted"] += 1
    assert set(outcome) == {"error[", "accepted"}
    assert outcome["accepted"] > 10
