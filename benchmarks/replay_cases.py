"""Small modules of one kernel each, which together meet every rule of every backend; and models of the kinds that are
served. `replay.py` says of each what it compiles to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import ml_dtypes
import numpy as np

import relaxpy
from relaxpy.build.pack_option import with_packed_params
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.module import IRModule
from relaxpy.op.weight_scheme import WeightScheme
from relaxpy.transform import QuantizeWeights

Sizes = Mapping[str, int]
"""The numbers that the names of a case's dimensions stand for."""


@dataclass(frozen=True)
class Case:
    """A module whose `main` is compiled; with sizes, it is run and timed, too."""

    name: str
    mod: IRModule
    sizes: tuple[Sizes, ...] = ()
    given: Callable[[Sizes], list[np.ndarray]] | None = None
    """The arguments of `main`; None: random numbers."""

    def arguments(self, sizes: Sizes) -> list[np.ndarray]:
        """The same numbers in every process."""
        if self.given is not None:
            return self.given(sizes)
        rng = np.random.default_rng(0)
        found: list[np.ndarray] = []
        for param in self.mod.graph_functions["main"].params:
            annotation = param.annotation
            assert isinstance(annotation, TensorType)
            assert annotation.dims is not None
            values = {var: sizes[var.name] for dim in annotation.dims for var in dim.vars}
            shape = [dim.evaluate(values) for dim in annotation.dims]
            found.append(drawn(rng, shape, str(annotation.dtype)))
        return found


def drawn(rng: np.random.Generator, shape: list[int] | tuple[int, ...], dtype: str) -> np.ndarray:
    """Random numbers: of floats normal, of integers all codes."""
    numpy = np.dtype(getattr(ml_dtypes, dtype, dtype))
    if numpy.kind in "iu":
        info = np.iinfo(numpy)
        return rng.integers(info.min, info.max, shape, numpy, endpoint=True)
    return (rng.standard_normal(shape, np.float32) * 0.1).astype(numpy)


def attention(
    heads: int, groups: int, width: int, dtype: str = "float32", options: str = "", s: str = '"s"', t: str = '"t"'
) -> str:  # fmt: skip
    """Queries of heads that share groups of keys; lengths are unknown unless given."""
    q, k = f'("b", {s}, {heads}, {width})', f'("b", {t}, {groups}, {width})'
    return f"""
@R.function
def main(q: R.Tensor({q}, "{dtype}"), k: R.Tensor({k}, "{dtype}"), v: R.Tensor({k}, "{dtype}")):
    y = R.nn.attention(q, k, v{options})
    return y
"""


def paged(heads: int, groups: int, width: int, pages: str, page: int = 32) -> str:
    """Attention over pages."""
    dtype = "bfloat16" if pages == "bfloat16" else "float32"
    params = {
        "query": f'("t", {heads}, {width}), "{dtype}"',
        "keys": f'("n", {groups}, {width}, {page}), "{pages}"',
        "values": f'("n", {groups}, {page}, {width}), "{pages}"',
        "starts": '("c",), "int32"',
        "tables": '("b", "w"), "int32"',
        "lengths": '("b",), "int32"',
    }
    scales = ""
    if pages == "int8":
        params |= {name: f'("n", {groups}, {page}), "float32"' for name in ("ks", "vs")}
        scales = ", key_scales=ks, value_scales=vs"
    listed = ", ".join(f"{name}: R.Tensor({of})" for name, of in params.items())
    return f"""
@R.function
def main({listed}):
    y = R.nn.paged_attention(query, keys, values, starts, tables, lengths{scales})
    return y
"""


def paged_arguments(
    heads: int, groups: int, width: int, pages: str, page: int, sizes: Sizes
) -> list[np.ndarray]:
    """Sequences of `b`, each of `keys` tokens, of which the last `new` ask."""
    b, new, keys = sizes["b"], sizes["new"], sizes["keys"]
    of_one = -(-keys // page)
    rng = np.random.default_rng(0)
    dtype = "bfloat16" if pages == "bfloat16" else "float32"
    found = [
        drawn(rng, (b * new, heads, width), dtype),
        drawn(rng, (b * of_one, groups, width, page), pages),
        drawn(rng, (b * of_one, groups, page, width), pages),
        np.arange(b + 1, dtype=np.int32) * np.int32(new),
        rng.permutation(b * of_one).astype(np.int32).reshape(b, of_one),
        np.full(b, keys, np.int32),
    ]
    if pages == "int8":
        found += [drawn(rng, (b * of_one, groups, page), "float32") for _ in range(2)]
    return found


def linear(rows: str, depth: int, columns: int, dtype: str = "float32", rest: str = "") -> str:
    """A layer, with what follows it."""
    return f"""
@R.function
def main(x: R.Tensor(({rows}, {depth}), "{dtype}"), w: R.Tensor(({columns}, {depth}), "{dtype}")):
    R.func_attr({{"num_input": 1}})
    with R.dataflow():
        y = R.linear(x, w)
{rest}        R.output(y)
    return y
"""


def convolution(channels: int, out: int, size: int, kernel: int, groups: int = 1) -> str:
    """A convolution of images, and what follows it."""
    weight = f"({out}, {channels // groups}, {kernel}, {kernel})"
    return f"""
@R.function
def main(x: R.Tensor(("n", {channels}, {size}, {size}), "float32"), w: R.Tensor({weight}, "float32")):
    R.func_attr({{"num_input": 1}})
    with R.dataflow():
        y = R.nn.conv2d(x, w, padding={kernel // 2}, groups={groups})
        z = R.nn.relu(y)
        R.output(z)
    return z
"""


def of_rows(params: str, call: str) -> str:
    """One operator."""
    return f"@R.function\ndef main({params}):\n    y = {call}\n    return y\n"


CAUSAL = ', causal_mask="BottomRight"'
GELU = "        y = R.nn.gelu(y)\n"
LENGTHS = ({"b": 1, "s": 1, "t": 517}, {"b": 1, "s": 16, "t": 16}, {"b": 2, "s": 131, "t": 131})
"""Of queries and keys: one query, a few, and a prompt."""
ROWS: tuple[Sizes, ...] = ({"n": 1}, {"n": 67})
KNOWN: tuple[Sizes, ...] = ({},)
"""Of a case whose sizes are all known."""
IMAGES = ({"n": 1}, {"n": 3})
TOKENS = (
    {"b": 1, "new": 1, "keys": 517},
    {"b": 5, "new": 1, "keys": 131},
    {"b": 1, "new": 67, "keys": 131},
)


def kernels() -> Iterator[Case]:
    """All cases of one operator."""
    for heads, groups, width in ((12, 12, 32), (32, 4, 64), (8, 1, 128)):
        for dtype in ("float32", "bfloat16"):
            for options in ("", CAUSAL):
                text = attention(heads, groups, width, dtype, options)
                name = f"attention {heads}/{groups} × {width} {dtype}{' causal' * bool(options)}"
                yield Case(name, relaxpy.parse(text), LENGTHS)
    for name, text, sizes in (
        ("attention float16", attention(4, 4, 64, "float16"), LENGTHS),
        ("attention, one query", attention(8, 8, 64, s="1"), ({"b": 2, "t": 517},)),
        ("attention 128 × 128", attention(8, 8, 64, s="128", t="128"), ({"b": 1},)),
        ("attention 2/2 × 19", attention(2, 2, 19), LENGTHS),
        ("attention, a window", attention(4, 2, 32, options=CAUSAL + ", window_size=16"), LENGTHS),
    ):
        yield Case(name, relaxpy.parse(text), sizes)
    for heads, groups, width in ((32, 4, 64), (8, 8, 128)):
        for pages in ("float32", "bfloat16", "int8"):
            given = partial(paged_arguments, heads, groups, width, pages, 32)
            mod = relaxpy.parse(paged(heads, groups, width, pages))
            yield Case(f"paged attention {heads}/{groups} × {width} {pages}", mod, TOKENS, given)
    yield from layers()
    for name, text in (
        ("convolution 3 × 3", convolution(64, 64, 28, 3)),
        ("convolution 1 × 1", convolution(64, 128, 28, 1)),
        ("convolution of each channel", convolution(32, 32, 28, 3, 32)),
        ("convolution 7 × 7", convolution(3, 64, 64, 7)),
    ):
        yield Case(name, relaxpy.parse(text), IMAGES)
    table = 'x: R.Tensor(("n", "m"), "float32")'
    norm = 'x: R.Tensor(("n", 384), "float32"), g: R.Tensor((384,), "float32"), b: R.Tensor((384,), "float32")'
    for name, params, call in (
        ("softmax", table, "R.nn.softmax(x)"),
        ("layer normalisation", norm, "R.nn.layer_norm(x, g, b, axes=-1)"),
        ("sum of columns", table, "R.sum(x, axis=0)"),
        ("sum of rows", table, "R.sum(x, axis=1)"),
        ("transpose", table, "R.permute_dims(x)"),
        ("gelu", table, "R.nn.gelu(x)"),
    ):
        yield Case(name, relaxpy.parse(of_rows(params, call)), ({"n": 257, "m": 383},))


def layers() -> Iterator[Case]:
    """Products with weights: of floats, packed, and of few bits."""
    for rows, sizes in (('"n"', ROWS), ("1", KNOWN), ("64", KNOWN)):
        for dtype in ("float32", "bfloat16"):
            mod = relaxpy.parse(linear(rows, 256, 512, dtype))
            yield Case(f"linear {rows} {dtype}", mod, sizes)
    yield Case("linear and gelu", relaxpy.parse(linear('"n"', 256, 512, rest=GELU)), ROWS)
    yield Case("linear 100 × 77", relaxpy.parse(linear('"n"', 100, 77)), ROWS)
    for dtype in ("float32", "bfloat16"):
        mod = with_packed_params(relaxpy.parse(linear('"n"', 256, 512, dtype)), True)
        yield Case(f"linear packed {dtype}", mod)
    for bits in (4, 8):
        scheme = WeightScheme(bits, 32)
        for rows, sizes in (('"n"', ROWS), ("1", KNOWN)):
            plain = relaxpy.parse(linear(rows, 256, 512))
            mod = QuantizeWeights(scheme)(plain)
            yield Case(f"linear {rows} of {bits} bits", mod, sizes)
            yield Case(f"linear {rows} of {bits} bits packed", with_packed_params(mod, True))
            if bits == 4:
                mod = QuantizeWeights(scheme, activations=32)(plain)
                yield Case(f"linear {rows} of 4 bits by bytes", mod, sizes)
                yield Case(
                    f"linear {rows} of 4 bits by bytes packed", with_packed_params(mod, True)
                )


def models() -> Iterator[Case]:
    """Small models, their weights parameters: a Llama whole and by steps in three schemes, MiniLM, a ResNet."""
    from relaxpy.models import bert, llama, resnet

    for dtype in ("float32", "bfloat16"):
        config = replace(llama.TINY, dtype=dtype, hidden_size=64, intermediate_size=128)
        for name, spec in (("whole", llama.spec(config)), ("step", llama.step_spec(config))):
            mod, _ = llama.Llama(config).export(spec)
            yield Case(f"Llama, {name}, {dtype}", mod)
            if name == "step" and dtype == "float32":
                made = QuantizeWeights(WeightScheme(4, 32), activations=32)(mod)
                yield Case("Llama, step, 4 bits by bytes", with_packed_params(made, True))
    encoder = bert.BertConfig(
        hidden_size=384, num_hidden_layers=1, num_attention_heads=12, intermediate_size=1536, vocab_size=997
    )  # fmt: skip
    mod, _ = bert.BertEncoder(encoder).export({"embed": bert.SPEC["embed"]})
    yield Case("MiniLM", mod)
    network = resnet.ResNetConfig(
        hidden_sizes=(64, 128), depths=(1, 1), layer_type="basic", num_labels=10
    )
    mod, _ = resnet.ResNet(network).export(resnet.spec(network))
    yield Case("ResNet", mod)
