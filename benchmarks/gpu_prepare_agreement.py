"""What `gpu_agreement` runs: the programs, as text, and their results on the processor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import relaxpy
from benchmarks.gpu_agreement import steps_of
from benchmarks.gpu_calls import ExpectedCall
from benchmarks.gpu_plan import Plan
from benchmarks.llm_peers import SCHEMES, Scheme, Shape, decoder_modules, weight_params
from relaxpy.runtime.dtype import to_numpy
from relaxpy.runtime.inspect.random_tensors import Weight, random_weight

_UNIT = 3**0.5
"""The scale of random numbers whose variance is 1."""


def agreeing_decoder(
    shape: Shape, scheme: str, plan: Plan
) -> tuple[Any, list[Weight], list[ExpectedCall]]:
    """A decoder, its weights, and the calls of its steps with the processor's results."""
    own = SCHEMES[scheme]
    before, mod = decoder_modules(shape, own)
    plain = {param.name for param in weight_params(before["step"])}
    weights = [*_weights(mod["step"], plain, own)]
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, plan.host))
    values = [array_of(weight) for weight in weights]
    calls: list[ExpectedCall] = []
    for prompts in plan.prompts:
        steps = steps_of(prompts, shape.vocab)
        caches = vm["alloc_pages"](steps.pages)
        for number, given in enumerate(steps.given):
            wanted = vm["step"](*given, caches, *values).numpy()
            label = f"{len(prompts)} prompts, step {number}"
            calls.append(_call(label, "step", given, wanted, plan.agreeing_schemes[scheme]))
    return mod, weights, calls


def _weights(function: Any, plain: set[str], scheme: Scheme) -> Iterator[Weight]:
    """Weights with which numbers stay near 1."""
    for param in weight_params(function):
        shape = tuple(dim.value for dim in param.annotation.dims)
        scale = _UNIT / (shape[-1] ** 0.5 if len(shape) > 1 else 1)
        if param.name not in plain:  # codes, and the scales of their groups
            scale = 1 / (2 ** (scheme.bits or 0)) / _UNIT
        yield Weight(shape, str(param.annotation.dtype), scale)


def array_of(weight: Weight) -> np.ndarray:
    """A weight for the processor."""
    found = random_weight(weight)
    return found.view(to_numpy("bfloat16")) if weight.dtype == "bfloat16" else found


def _call(
    label: str, function: str, given: Sequence[np.ndarray], wanted: np.ndarray, share: float
) -> ExpectedCall:
    """A call whose result may differ by a share of its largest number."""
    allowed = np.full(wanted.shape, share * np.abs(wanted.astype(np.float64)).max())
    return ExpectedCall(label, function, tuple(given), wanted, allowed)


# Libraries

_PRODUCTS = {
    "linear": "R.linear(x, w)",
    "bias": "R.add(R.linear(x, w), b)",
    "bias, relu": "R.nn.relu(R.add(R.linear(x, w), b))",
    "bias, gelu": "R.nn.gelu_tanh(R.add(R.linear(x, w), b))",
    "residual": "R.add(R.linear(x, w), r)",
    "bias, residual": "R.add(R.add(R.linear(x, w), b), r)",
}
_CONVOLVED = "R.nn.conv2d(x, k, padding=1, strides={strides}{layout})"
_CONVOLUTIONS = {
    "conv2d": "{conv}",
    "bias": "R.add({conv}, b)",
    "bias, relu": "R.nn.relu(R.add({conv}, b))",
    "bias, residual": "R.add(R.add({conv}, b), r)",
    "bias, residual, relu": "R.nn.relu(R.add(R.add({conv}, b), r))",
}
_LAYOUTS = {"NCHW": "", "NHWC": ', data_layout="NHWC", kernel_layout="OHWI"'}


def library_programs(library: str, dtype: str, plan: Plan) -> tuple[Any, list[ExpectedCall]]:
    """The functions that a library computes, with the results of float32 on the processor."""
    made = [*(_products if library == "cublas" else _convolutions)(plan.library)]
    share = plan.library_dtypes[dtype]
    random = np.random.default_rng(0)
    own, wide = (_module(made, kind) for kind in (dtype, "float32"))
    host = relaxpy.VirtualMachine(relaxpy.build(wide, plan.host))
    kind = to_numpy(dtype)
    calls: list[ExpectedCall] = []
    for number, (label, _, params, scales) in enumerate(made):
        given = [
            (random.standard_normal(shape, np.float32) * np.float32(scales.get(name, 1))).astype(
                kind
            )
            for name, shape in params.items()
        ]
        wanted = host[f"f{number}"](*(each.astype(np.float32) for each in given)).numpy()
        calls.append(_call(label, f"f{number}", given, wanted.astype(kind), share))
    return own, calls


_Function = tuple[str, str, Mapping[str, tuple[int, ...]], Mapping[str, float]]
"""A label, an expression, the shapes of its parameters, and the scales of some."""


def _products(sizes: Mapping[str, int]) -> Iterator[_Function]:
    rows, depth, columns = sizes["rows"], sizes["depth"], sizes["columns"]
    more = {"b": (columns,), "r": (rows, columns)}
    scales = {"w": depth**-0.5}
    for label, expression in _PRODUCTS.items():
        used = {name: shape for name, shape in more.items() if f", {name})" in expression}
        yield label, expression, {"x": (rows, depth), "w": (columns, depth), **used}, scales
    yield "matmul", "R.matmul(x, w)", {"x": (rows, depth), "w": (depth, columns)}, scales


def _convolutions(sizes: Mapping[str, int]) -> Iterator[_Function]:
    batch, channels, filters, size = (
        sizes[name] for name in ("batch", "channels", "filters", "size")
    )
    scales = {"k": (9 * channels) ** -0.5}
    for layout, options in _LAYOUTS.items():

        def stored(*nchw: int, layout: str = layout) -> tuple[int, ...]:
            return nchw if layout == "NCHW" else (nchw[0], *nchw[2:], nchw[1])

        for strides in (1, 2):
            out = (size - 1) // strides + 1
            shapes = {
                "x": stored(batch, channels, size, size),
                "k": stored(filters, channels, 3, 3),
                "b": (filters, 1, 1) if layout == "NCHW" else (filters,),
                "r": stored(batch, filters, out, out),
            }
            conv = _CONVOLVED.format(strides=strides, layout=options)
            for label, text in _CONVOLUTIONS.items():
                used = {n: s for n, s in shapes.items() if n in "xk" or f", {n})" in text}
                yield f"{layout}, strides {strides}: {label}", text.format(conv=conv), used, scales


def _module(functions: Sequence[_Function], dtype: str) -> Any:
    """Functions `f0`, `f1`, … of any number of rows, or images."""
    texts: list[str] = []
    for number, (_, expression, params, _) in enumerate(functions):
        first = params["x"][0]
        given = ", ".join(
            f'{name}: R.Tensor(({", ".join(_extents(name, shape, first))},), "{dtype}")'
            for name, shape in params.items()
        )
        texts.append(f"    @R.function\n    def f{number}({given}):\n        return {expression}\n")
    return relaxpy.parse("@I.ir_module\nclass Library:\n" + "\n".join(texts))


def _extents(name: str, shape: Sequence[int], first: int) -> Iterator[str]:
    """The extents of a parameter as text: those of data and residual begin with a symbol."""
    for axis, extent in enumerate(shape):
        is_batch = axis == 0 and name in "xr" and extent == first
        yield '"n"' if is_batch else str(extent)


def matmul_program(dtype: str, sizes: Sequence[tuple[int, int]], launches: int) -> Any:
    """Linear layers of any number of rows: so many in a function, each with an input and a weight of its own."""
    texts: list[str] = []
    for number, (inner, outer) in enumerate(sizes):
        inputs = [f'x{i}: R.Tensor(("n", {inner}), "{dtype}")' for i in range(launches)]
        weights = [f'w{i}: R.Tensor(({outer}, {inner}), "{dtype}")' for i in range(launches)]
        results = ", ".join(f"R.linear(x{i}, w{i})" for i in range(launches))
        texts.append(
            f"    @R.function\n    def f{number}({', '.join([*inputs, *weights])}):\n"
            f"        return ({results},)\n"
        )
    return relaxpy.parse("@I.ir_module\nclass Products:\n" + "\n".join(texts))


def convolution_program(dtype: str, sizes: Sequence[tuple[int, int, int, int]]) -> Any:
    """Convolutions of any number of images, with a bias and relu."""
    texts = [
        f'    @R.function\n    def f{number}(x: R.Tensor(("n", {channels}, {size}, {size}), "{dtype}"), '
        f'k: R.Tensor(({channels}, {channels}, {extent}, {extent}), "{dtype}"), '
        f'b: R.Tensor(({channels}, 1, 1), "{dtype}")):\n'
        f"        return R.nn.relu(R.add(R.nn.conv2d(x, k, padding={extent // 2}), b))\n"
        for number, (_, channels, size, extent) in enumerate(sizes)
    ]
    return relaxpy.parse("@I.ir_module\nclass Convolutions:\n" + "\n".join(texts))
