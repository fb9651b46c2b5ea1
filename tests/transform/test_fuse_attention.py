"""FuseAttention: what is attention, what is not, and that the numbers stay."""

from __future__ import annotations

import numpy as np
import pytest

import relaxpy
from relaxpy.analysis.well_formed import check_well_formed
from relaxpy.ir.expr import Call, Function
from relaxpy.ir.module import IRModule
from relaxpy.models import bert
from relaxpy.testing.before_after import check_example
from relaxpy.testing.interpret import interpret
from relaxpy.testing.pass_check import check_pass
from relaxpy.transform.base import PassContext
from relaxpy.transform.bind_params import BindParams
from relaxpy.transform.fuse_attention import FuseAttention
from relaxpy.transform.normalize import Normalize

Shape = tuple[int | str, ...]
RNG = np.random.default_rng(0)
BY_HEAD = (
    'x: R.Tensor(("b", "s", 4, 8), "float32"), y: R.Tensor(("b", "t", 4, 8), "float32"), '
    'z: R.Tensor(("b", "t", 4, 6), "float32")'
)
BY_BATCH = BY_HEAD.replace('"s", 4', '4, "s"').replace('"t", 4', '4, "t"')
SHARED = BY_HEAD.replace('"t", 4', '"t", 2')


def module(body: str, params: str = BY_HEAD, header: str = "") -> IRModule:
    lines = "".join(f"            {line.strip()}\n" for line in body.strip().splitlines())
    text = (
        f"@I.ir_module\nclass Module:\n    @R.function\n    def main({params}):\n        {header}\n"
    )
    text += f"        with R.dataflow():\n{lines}            R.output(gv)\n        return gv\n"
    return Normalize()(relaxpy.parse(text))


def operators(mod: IRModule, name: str = "main") -> list[str]:
    function = mod[name]
    assert isinstance(function, Function)
    calls = [b.value for b in function.body.bindings]
    return [getattr(c.op, "name", "") for c in calls if isinstance(c, Call)]


def check(before: IRModule, *shapes: Shape) -> IRModule:
    """The module after the pass, its numbers compared with those before."""
    after = FuseAttention()(before)
    check_well_formed(after)
    assert FuseAttention()(after) is after
    for b, s, t in ((2, 3, 5), (1, 1, 1), (1, 2, 0)):
        sizes = {"b": b, "s": s, "t": t}
        args = [
            RNG.standard_normal(
                [d if isinstance(d, int) else sizes[d] for d in shape], dtype=np.float32
            )
            for shape in shapes
        ]
        want, got = interpret(before, "main", *args), interpret(after, "main", *args)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    return after


X, Y, Z = ("b", "s", 4, 8), ("b", "t", 4, 8), ("b", "t", 4, 6)
HEADS_FIRST = ("b", 4, "s", 8), ("b", 4, "t", 8), ("b", 4, "t", 6)
Q = "q = R.permute_dims(x, (0, 2, 1, 3))\n"
K = "k = R.permute_dims(y, (0, 2, 3, 1))\n"
V = "v = R.permute_dims(z, (0, 2, 1, 3))\n"
BACK = "gv = R.permute_dims(o, (0, 2, 1, 3))\n"
WEIGHTS = "w = R.nn.softmax(s, axis=-1)\no = R.matmul(w, v)\n"


def test_the_example_of_the_docstring() -> None:
    check_example(FuseAttention())


@pytest.mark.parametrize(
    ("scores", "scale"),
    [
        ("s = R.matmul(q, k)", 1.0),
        ('s = R.multiply(R.matmul(q, k), R.const(0.5, "float32"))', 0.5),
        ('s = R.multiply(R.const(0.5, "float32"), R.matmul(q, k))', 0.5),
        ('s = R.divide(R.matmul(q, k), R.const(4.0, "float32"))', 0.25),
    ],
)
def test_scales(scores: str, scale: float) -> None:
    after = check(module(Q + K + V + scores + "\n" + WEIGHTS + BACK), X, Y, Z)
    assert operators(after) == ["nn.attention"]
    assert f"scale={scale}" in after.script()


SPLIT = "h = R.reshape({}, R.shape([b, s, 4, 8]))\n" + Q.replace("(x", "(h")


@pytest.mark.parametrize(
    ("queries", "shape", "scale"),
    [
        (Q.replace("x", 'R.multiply(x, R.const(0.5, "float32"))'), X, 0.5),
        (
            'p = R.permute_dims(x, (0, 2, 1, 3))\nq = R.divide(p, R.const(4.0, "float32"))\n',
            X,
            0.25,
        ),
        (SPLIT.format('R.multiply(R.const(0.5, "float32"), x)'), ("b", "s", 32), 0.5),
    ],
    ids=["before heads move", "after heads moved", "before heads are split"],
)
def test_scaled_queries(queries: str, shape: Shape, scale: float) -> None:
    """A number that queries are multiplied by is one of the scores."""
    scores = 's = R.multiply(R.matmul(q, k), R.const(2.0, "float32"))\n'
    params = BY_HEAD.replace('"s", 4, 8', '"s", 32') if len(shape) == 3 else BY_HEAD
    header = "b = T.int64()\n        s = T.int64()" if len(shape) == 3 else ""
    after = check(module(queries + K + V + scores + WEIGHTS + BACK, params, header), shape, Y, Z)
    assert [name for name in operators(after) if name != "reshape"] == ["nn.attention"]
    assert f"scale={2 * scale}" in after.script()


@pytest.mark.parametrize(
    "factor", ['R.const(float("inf"), "float32")', "R.sum(x)", 'R.const([[[[2.0]]]], "float32")']
)
def test_factors_of_queries_that_stay(factor: str) -> None:
    queries = Q.replace("x", f"R.multiply(x, {factor})")
    body = queries + K + V + "s = R.matmul(q, k)\n" + WEIGHTS + BACK
    after = FuseAttention()(module(body))
    assert "scale=1.0" in after.script()
    assert "multiply" in operators(after)


def test_scales_that_float32_does_not_hold() -> None:
    """A product of two factors stays two; the inverse of a number below the normal ones is no scale."""
    scores = 's = R.multiply(R.matmul(q, k), R.const(100.0, "float32"))\n'
    queries = Q.replace("x", 'R.multiply(x, R.const(3e38, "float32"))')
    after = FuseAttention()(module(queries + K + V + scores + WEIGHTS + BACK))
    assert "scale=100.0" in after.script()
    assert "multiply" in operators(after)
    tiny = 's = R.divide(R.matmul(q, k), R.const(1e-40, "float32"))\n'
    assert "nn.attention" not in operators(
        FuseAttention()(module(Q + K + V + tiny + WEIGHTS + BACK))
    )


def test_scaled_queries_that_others_use() -> None:
    queries = 'h = R.multiply(x, R.const(0.5, "float32"))\n' + Q.replace("(x", "(h")
    body = queries + K + V + "s = R.matmul(q, k)\n" + WEIGHTS + BACK.replace("gv", "c")
    after = check(module(body + "gv = R.sum(R.add(R.sum(h), R.sum(c)))\n"), X, Y, Z)
    assert "multiply" in operators(after)
    assert "scale=0.5" in after.script()


def test_permutations_are_composed() -> None:
    """Keys brought to their place in two steps."""
    body = Q + "k1 = R.permute_dims(y, (0, 2, 1, 3))\nk = R.permute_dims(k1, (0, 1, 3, 2))\n" + V
    after = check(module(body + "s = R.matmul(q, k)\n" + WEIGHTS + BACK), X, Y, Z)
    assert operators(after) == ["nn.attention"]


def test_heads_in_front_are_moved() -> None:
    """Where nothing brought them there: permutations are what it costs."""
    body = "k = R.permute_dims(y, (0, 1, 3, 2))\ns = R.matmul(x, k)\n"
    body += "w = R.nn.softmax(s)\ngv = R.matmul(w, z)\n"
    after = check(module(body, BY_BATCH), *HEADS_FIRST)
    assert operators(after) == [*["permute_dims"] * 3, "nn.attention", "permute_dims"]


def test_a_result_with_other_users_stays() -> None:
    body = Q + K + V + "s = R.matmul(q, k)\n" + WEIGHTS + "e = R.exp(o)\np = R.negative(o)\n"
    after = check(module(body + "gv = R.add(e, p)"), X, Y, Z)
    assert operators(after) == ["nn.attention", "permute_dims", "exp", "negative", "add"]


def test_what_others_use_stays() -> None:
    """A permuted query that is the result as well."""
    text = Q + K + V + "s = R.matmul(q, k)\n" + WEIGHTS + BACK.replace("gv", "m") + "gv = (m, q)"
    after = FuseAttention()(module(text))
    assert operators(after) == ["permute_dims", "nn.attention"]


@pytest.mark.parametrize(
    ("shape", "sum_", "found"),
    [
        (("b", 1, 1, "t"), "R.add(p, m)", ["nn.attention"]),
        (("b", 4, "s", "t"), "R.add(m, p)", ["nn.attention"]),
        (("s", "t"), "R.add(p, m)", ["expand_dims", "nn.attention"]),
        (("t",), "R.add(p, m)", ["expand_dims", "nn.attention"]),
    ],
)
def test_biases(shape: Shape, sum_: str, found: list[str]) -> None:
    dims = ", ".join(f'"{d}"' if isinstance(d, str) else str(d) for d in shape)
    params = BY_HEAD + f', m: R.Tensor(({dims},), "float32")'
    body = Q + K + V + f"p = R.matmul(q, k)\ns = {sum_}\n" + WEIGHTS + BACK
    after = check(module(body, params), X, Y, Z, shape)
    assert operators(after) == found


def test_shared_heads() -> None:
    """Key heads repeated for their neighbours are not."""
    body = Q + "r = R.repeat(y, 2, axis=2)\nk = R.permute_dims(r, (0, 2, 3, 1))\n"
    body += "v1 = R.permute_dims(z, (0, 2, 1, 3))\nv = R.repeat(v1, 2, axis=1)\n"
    body += "s = R.matmul(q, k)\n" + WEIGHTS + BACK
    after = check(module(body, SHARED), X, ("b", "t", 2, 8), ("b", "t", 2, 6))
    assert operators(after) == ["nn.attention"]


def test_one_key_head_for_all() -> None:
    params = BY_HEAD.replace('"t", 4', '"t", 1')
    after = check(
        module(Q + K + V + "s = R.matmul(q, k)\n" + WEIGHTS + BACK, params),
        X, ("b", "t", 1, 8), ("b", "t", 1, 6),
    )  # fmt: skip
    assert operators(after) == ["nn.attention"]


def test_softmax_in_float32() -> None:
    """As models of narrower floats write it."""
    body = Q + K + V + 'p = R.matmul(q, k)\ns = R.astype(p, "float32")\n'
    body += 'w32 = R.nn.softmax(s)\nw = R.astype(w32, "float16")\no = R.matmul(w, v)\n' + BACK
    after = FuseAttention()(module(body, BY_HEAD.replace("float32", "float16")))
    assert operators(after) == ["nn.attention"]


@pytest.mark.parametrize(
    ("least", "count"), [('float("-inf")', 1), ("-3.4e38", 1), ("-1e9", 0)], ids=str
)
def test_masks_that_replace_scores(least: str, count: int) -> None:
    """Flax's way. In -1e9 scores are not lost: where all are hidden, they differ by their last digits."""
    body = Q + K + V + 'p = R.matmul(q, k)\nseen = R.greater(m, R.const(-1.0, "float32"))\n'
    body += (
        f'least = R.full((b, 4, s, t), R.const({least}, "float32"))\ns = R.where(seen, p, least)\n'
    )
    params = BY_HEAD + ', m: R.Tensor(("b", 1, 1, "t"), "float32")'
    header = "b, s, t = T.int64(), T.int64(), T.int64()"
    after = check(module(body + WEIGHTS + BACK, params, header), X, Y, Z, ("b", 1, 1, "t"))
    assert operators(after).count("nn.attention") == count


@pytest.mark.parametrize(
    ("body", "params"),
    [
        (Q + K + V + "s = R.matmul(q, k)\nw = R.nn.softmax(s, axis=2)\no = R.matmul(w, v)\n", BY_HEAD),
        (Q + K + V + "s = R.matmul(q, k)\n" + WEIGHTS + "n = R.matmul(w, v)\n", BY_HEAD),
        (Q + K + V + "s = R.matmul(q, k)\n" + WEIGHTS, BY_HEAD.replace("float32", "float64")),
        (Q + K + V + "s = R.matmul(q, k)\n" + WEIGHTS, BY_HEAD.replace('4, 8', '"h", 8').replace('4, 6', '"h", 6')),
        (Q + K + V + "s = R.multiply(R.matmul(q, k), m)\n" + WEIGHTS, BY_HEAD + ', m: R.Tensor(("t",), "float32")'),
        (Q + K + V + "s = R.add(R.matmul(q, k), m)\n" + WEIGHTS,
         BY_HEAD.replace('("b", "s"', '(1, "s"').replace('("b", "t"', '(1, "t"') + ', m: R.Tensor(("b", 1, 1, 1), "float32")'),
    ],
    ids=["axis", "weights used twice", "float64", "unknown heads", "scale by key", "bias larger"],
)  # fmt: skip
def test_what_is_no_attention(body: str, params: str) -> None:
    uses = "gv = R.permute_dims(o, (0, 2, 1, 3))\n" if "n = R" not in body else "gv = R.add(o, n)\n"
    before = module(body + uses, params)
    assert FuseAttention()(before) is before


def test_weights_that_are_the_result() -> None:
    before = module(Q + K + V + "s = R.matmul(q, k)\n" + WEIGHTS + "gv = (o, w)")
    assert FuseAttention()(before) is before


def test_bert_as_it_is_written() -> None:
    """A call a layer, and nothing of the formula left; the same embeddings, built with the pass and without."""
    model = bert.BertEncoder(bert.TINY)
    model.load(
        {
            name: RNG.standard_normal(p.shape).astype(np.float32) * 0.2
            for name, p in model.named_parameters()
        }
    )
    mod, params = model.export({"embed": bert.SPEC["embed"]})
    fused = FuseAttention()(Normalize()(mod))
    found = operators(fused, "embed")
    assert found.count("nn.attention") == bert.TINY.num_hidden_layers
    assert not {"nn.softmax", "permute_dims"}.intersection(found)
    ids, mask = RNG.integers(0, 101, (3, 7)), np.ones((3, 7), np.int64)
    mask[0, 4:] = mask[2] = 0
    bound = BindParams()(Normalize()(mod), PassContext(params=params))
    want, got = (interpret(m, "embed", ids, mask) for m in (bound, FuseAttention()(bound)))
    np.testing.assert_allclose(got, want, atol=2e-6)


@pytest.mark.slow
def test_random_programs() -> None:
    """None of them has attention; none is changed."""
    assert check_pass(FuseAttention(), range(30), BindParams()) == 0


EXPANDED = """
e{i} = R.expand_dims({x}, axis={axis})
l{i} = R.broadcast_to(e{i}, R.shape([{wide}]))
{y} = R.reshape(l{i}, R.shape([{merged}]))
"""
BY_GROUP = BY_BATCH.replace('4, "t"', '2, "t"')


@pytest.mark.parametrize("order", ["after", "before"])
def test_calls_of_attention_read_shared_heads(order: str) -> None:
    """Key heads that torch's `expand` and `reshape` repeat are those of the call."""
    lines = "h = R.permute_dims(x, (0, 2, 1, 3))\n"
    for i, (x, width) in enumerate((("y", 8), ("z", 6))):
        name = f"m{i}" if order == "after" else f"n{i}"
        lines += EXPANDED.format(
            i=i, x=x, axis=2, wide=f"b, 2, 2, t, {width}", merged=f"b, 4, t, {width}", y=name
        )
        lines += f"n{i} = R.permute_dims({name}, (0, 2, 1, 3))\n" if order == "after" else ""
    call = (
        "n0, n1"
        if order == "after"
        else "R.permute_dims(n0, (0, 2, 1, 3)), R.permute_dims(n1, (0, 2, 1, 3))"
    )
    header = "b = T.int64()\n        t = T.int64()"
    before = module(lines + f"gv = R.nn.attention(h, {call})", BY_GROUP, header)
    after = check(before, ("b", 4, "s", 8), ("b", 2, "t", 8), ("b", 2, "t", 6))
    assert sorted(operators(after)) == ["nn.attention", *["permute_dims"] * 3]


@pytest.mark.parametrize("axis", [1, 3], ids=["heads are tiled", "widths"])
def test_other_repetitions_stay(axis: int) -> None:
    """Only heads that are neighbours are one head; a repeated length is none."""
    wide = {1: "b, 2, 2, t, 8", 3: "b, 2, t, 2, 8"}[axis]
    merged = {1: "b, 4, t, 8", 3: "b, 2, t * 2, 8"}[axis]
    lines = EXPANDED.format(i=0, x="y", axis=axis, wide=wide, merged=merged, y="m")
    lines += "h = R.permute_dims(x, (0, 2, 1, 3))\nn = R.permute_dims(m, (0, 2, 1, 3))\n"
    header = "b = T.int64()\n        t = T.int64()"
    before = module(lines + "gv = R.nn.attention(h, n, n)", BY_GROUP, header)
    after = check(before, ("b", 4, "s", 8), ("b", 2, "t", 8), ("b", 2, "t", 6))
    assert "broadcast_to" in operators(after)
