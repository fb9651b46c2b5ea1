"""What every product of rows with a weight keeps to, on every target: the data of `tests/e2e/test_products.py`.

The numbers are those of the weight that the codes mean, in every column; and a row has the same bits whatever rows are
beside it. Kernels cut columns into vectors, panels, tiles and tasks, and rows into tiles: widths and rows of all
remainders are looked at, of every kind of weight and every way to give it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np

import relaxpy
from relaxpy.ir.module import IRModule
from relaxpy.op.weight_scheme import WeightScheme
from relaxpy.target import Target
from relaxpy.transform import BindParams, QuantizeWeights
from relaxpy.transform.base import PassContext

ROWS = 40
EVERY_ROW = range(1, ROWS + 1)
MANY_COLUMNS_ROWS = (1, 2, 9, 17)
MANY_ROWS = 197
"""More than a task has, for one of three widths."""
FEW_ROWS = (1, 2, 9, 33)
EXPERTS, CHOICES = 3, 2

WIDTHS = range(1, 401)
VOCABULARIES = (
    *(32000, 32001, 32002, 32016, 32064, 49152, 50257, 50280, 50304, 51200, 65024, 100352, 102400, 128256),
    *(131072, 151936, 152064, 200064, 201088, 256000, 262144),
)  # fmt: skip
"""Sizes of the vocabularies of published models."""

WAYS = ("constant", "packed", "given")
"""The weight is known when the program is built; packed when it is loaded; an argument."""
OPEN = "open"
"""An argument of any width: one kernel for all. Codes have known widths."""


@dataclass(frozen=True)
class Family:
    """A kind of product."""

    dtype: str = "float32"
    """Of the rows."""
    weight: str = ""
    """The dtype of the weight; that of the rows if empty."""
    scheme: WeightScheme | None = None
    """The codes of the weight."""
    activations: int | None = None
    """Neighbours of a row that share a scale, where rows are multiplied as int8."""
    experts: bool = False
    """Is the weight one of several, chosen for each row?"""
    turned: bool = True
    """Is the weight (columns, depth)?"""
    depths: tuple[int, ...] = (32, 96, 64)
    """Each width takes one of them."""
    within: float = 1e-5
    """The error of a row or a column of results, relative to the length of that of the magnitudes' products."""

    @property
    def is_integer(self) -> bool:
        return "int" in self.dtype


_BFLOAT16 = Family("bfloat16", within=1e-2)
_4, _8, _3 = WeightScheme(4, 32), WeightScheme(8, 32), WeightScheme(3, 40, "minimum")

FAMILIES: Mapping[str, Family] = {
    "float32": Family(depths=(33, 64, 7)),
    "float32, plain": Family(depths=(64, 33, 1), turned=False),
    "float64": Family("float64", depths=(33, 64, 7), within=1e-12),
    "bfloat16": _BFLOAT16,
    "bfloat16, odd depths": Family("bfloat16", depths=(33, 7), turned=False, within=1e-2),
    "float16": Family("float16", within=2e-3),
    "int8": Family("int8", turned=False, depths=(64, 128, 61), within=0),
    "uint8 by int8": Family("uint8", "int8", turned=False, depths=(64, 128, 61), within=0),
    "int8 by uint8": Family("int8", "uint8", turned=False, depths=(64, 128, 61), within=0),
    "4 bits": Family(scheme=_4),
    "4 bits, zero points": Family(scheme=WeightScheme(4, 32, "zero_point"), turned=False),
    "4 bits, one scale": Family(scheme=WeightScheme(4, None, "minimum"), depths=(40, 23)),
    "8 bits": Family(scheme=_8, depths=(96, 43, 64)),
    "3 bits": Family(scheme=_3, depths=(90, 40, 37)),
    "bfloat16 by 4 bits": Family("bfloat16", scheme=_4, within=1e-2),
    "bfloat16 by 8 bits": Family("bfloat16", scheme=_8, within=1e-2),
    "int8 by 4 bits": Family(scheme=_4, activations=32, within=2e-2),
    "int8 by 4 bits, minimums": Family(
        scheme=WeightScheme(4, 64, "minimum"), activations=64, depths=(64, 128), within=2e-2
    ),
    "int8 by 4 bits, zero points": Family(
        scheme=WeightScheme(4, None, "zero_point"), activations=32, turned=False, within=2e-2
    ),
    "experts": Family(experts=True, depths=(33, 64, 7)),
    "experts, bfloat16": Family("bfloat16", experts=True, within=1e-2),
    "experts, 4 bits": Family(scheme=_4, experts=True),
    "experts, 8 bits": Family(scheme=_8, experts=True),
    "experts, 3 bits": Family(scheme=_3, experts=True, depths=(40, 37)),
    "experts, int8 by 4 bits": Family(scheme=_4, activations=32, experts=True, within=2e-2),
}


@dataclass(frozen=True, eq=False)
class Product:
    """A product of a family, of some width."""

    family: Family
    width: int
    is_open: bool = False
    """Is the function for any width?"""
    many: int = MANY_ROWS

    @property
    def depth(self) -> int:
        depths = self.family.depths
        return depths[self.width % len(depths)]

    @property
    def name(self) -> str:
        return f"f{self.tag}"

    @property
    def tag(self) -> str:
        """Part of the names of the function and its weights."""
        return f"{self.depth}{'b' * self.has_bias}" if self.is_open else str(self.width)

    @property
    def rows(self) -> Sequence[int]:
        """The numbers of rows that are looked at: all, unless it is a vocabulary's."""
        if self.width > max(WIDTHS):
            return MANY_COLUMNS_ROWS
        return (*EVERY_ROW, self.many) if self.width % 3 == 0 else EVERY_ROW

    @property
    def has_bias(self) -> bool:
        """Is something added to the sums, in the same kernel?"""
        return self.width % 2 == 1 and not self.family.is_integer

    def function(self) -> str:
        """The graph function."""
        family, depth, width = self.family, self.depth, self.width
        own, tag = family.weight or family.dtype, self.tag
        columns = '"m"' if self.is_open else str(width)
        shape = f"{columns}, {depth}" if family.turned else f"{depth}, {columns}"
        given = ""
        if family.experts:
            shape = f"{EXPERTS}, {shape}"
            given = f'chosen: R.Tensor(("n", {CHOICES}), "int64"), '
        params = f'w{tag}: R.Tensor(({shape}), "{own}")'
        if self.has_bias:
            params += f', b{tag}: R.Tensor(({columns},), "{family.dtype}")'
        if family.experts:
            value = f"R.nn.expert_linear(x, w{tag}, chosen)"
        elif family.is_integer:
            value = f'R.matmul(x, w{tag}, out_dtype="int32")'
        else:
            value = f"R.linear(x, w{tag})" if family.turned else f"R.matmul(x, w{tag})"
        if self.has_bias:
            value = f"R.nn.relu(R.add({value}, b{tag}))"
        return f"""
@R.function
def {self.name}(x: R.Tensor(("n", {depth}), "{family.dtype}"), {given}{params}):
    R.func_attr({{"num_input": {1 + family.experts}}})
    with R.dataflow():
        y = {value}
        R.output(y)
    return y
"""

    def weights(self) -> dict[str, np.ndarray]:
        """The weight and the bias, by the names of their parameters."""
        family, random = self.family, np.random.default_rng(self.width)
        shape: tuple[int, ...] = (self.width, self.depth)
        shape = shape if family.turned else shape[::-1]
        if family.experts:
            shape = EXPERTS, *shape
        found = {f"w{self.tag}": _numbers(random, shape, family.weight or family.dtype)}
        if self.has_bias:
            found[f"b{self.tag}"] = _numbers(random, (self.width,), family.dtype)
        return found

    def inputs(self) -> list[np.ndarray]:
        """The rows, and the experts that they choose."""
        random = np.random.default_rng(self.width + 1)
        most = max(self.rows)
        found = [_numbers(random, (most, self.depth), self.family.dtype)]
        if self.family.experts:
            found.append(random.integers(0, EXPERTS, (most, CHOICES)))
        return found

    def expected(self, x: np.ndarray, chosen: np.ndarray | None = None) -> list[np.ndarray]:
        """The results of the weight that the codes mean, and those of all magnitudes."""
        b, *added = self._meant
        a = x.astype(b.dtype)

        def total(a: np.ndarray, b: np.ndarray, *added: np.ndarray) -> np.ndarray:
            sums = a @ b if chosen is None else np.einsum("ik,irkj->irj", a, b[chosen])
            return np.maximum(sums + added[0], 0) if added else sums

        with np.errstate(invalid="ignore"):
            return [total(a, b, *added), total(*map(np.abs, (a, b, *added)))]

    @cached_property
    def _meant(self) -> list[np.ndarray]:
        """The weight that the codes mean, depth first, and the bias, in a wide type."""
        family, scheme = self.family, self.family.scheme
        weight, *bias = self.weights().values()
        if scheme is not None:
            axis = weight.ndim - 1 if family.turned else weight.ndim - 2
            parts = scheme.quantize(weight, axis)
            weight = scheme.dequantize(parts, axis, self.depth)
            # The program computes floats of the rows' type.
            weight = weight.astype(_kind(family.dtype))
        wide = np.dtype("int64" if family.is_integer else "float64")
        weight = weight.swapaxes(-1, -2) if family.turned else weight
        return [each.astype(wide) for each in (weight, *bias)]

    def problems(
        self, call: Any, rows: Sequence[int] | None = None, *, invariant: bool = True
    ) -> Iterator[str]:
        """What is wrong with the results of a function of rows (and choices): numbers, NaN that gets lost, and, if the
        target is `invariant`, bits of a row that depend on others."""
        at, inputs = f"{self.width} columns, depth {self.depth}", self.inputs()
        rows, most = self.rows if rows is None else rows, max(self.rows)
        rows = [count for count in rows if count <= most]
        every = call(*inputs)
        want, size = self.expected(*inputs)
        if every.shape != want.shape:
            yield f"{at}: of shape {every.shape}"
            return
        counts = [most] if invariant else [most, *rows]
        for count in counts:
            found = every if count == most else call(*(each[:count] for each in inputs))
            for what in self._far(found, want[:count], size[:count]):
                yield f"{at}, {count} rows: {what} are wrong"
        if not self.family.is_integer:
            yield from (f"{at}: {what}" for what in self._lost(call, inputs, every, invariant))
        if not invariant:
            return
        for count in rows:
            if not _same(call(*(each[:count] for each in inputs)), every[:count]):
                yield f"{at}: the first {count} rows have other bits alone"
        for row in sorted({0, self.width % most, self.width * 7 % most, most - 1}):
            if not _same(call(*(each[row : row + 1] for each in inputs)), every[row : row + 1]):
                yield f"{at}: row {row} has other bits alone"
        if not _same(call(*(each[::-1].copy() for each in inputs)), every[::-1]):
            yield f"{at}: rows in another order have other bits"

    def _far(self, found: np.ndarray, want: np.ndarray, size: np.ndarray) -> Iterator[str]:
        """The columns and the rows of results that are far from what is wanted."""
        error = found.astype(want.dtype) - want
        error, size = (each.astype(np.float64).reshape(-1, self.width) for each in (error, size))
        for axis, which in ((0, "columns"), (1, "results")):
            most = self.family.within * np.linalg.norm(size, axis=axis)
            far = np.flatnonzero(~(np.linalg.norm(error, axis=axis) <= most))
            if far.size:
                yield f"{which} {_short(far)}"

    def _lost(
        self, call: Any, inputs: list[np.ndarray], every: np.ndarray, invariant: bool
    ) -> Iterator[str]:
        """A NaN in a row is in all of its results, and in those of no other; an infinity gives what the weight's numbers
        make of it."""
        most = len(every)
        for value in (np.nan, np.inf):
            for row, count in ((0, 1), (self.width % 7, 7), (self.width % most, most)):
                spoiled = [each[:count].copy() for each in inputs]
                spoiled[0][row, self.width % self.depth] = value
                found = call(*spoiled)
                others = np.arange(count) != row
                with np.errstate(invalid="ignore"):
                    own = found[row].astype(np.float64)
                    want, _ = self.expected(*(each[row : row + 1] for each in spoiled))
                    if self.family.activations is None:
                        # NaN, 0 of relu, or an infinity: one term of the sum is not finite.
                        kept = _same_kinds(own, want[0])
                    else:
                        # The scale of its neighbours is not finite, too.
                        kept = (
                            np.isnan(own).all() if np.isnan(value) else not np.isfinite(own).all()
                        )
                    rest = found[others].astype(np.float64)
                if not kept:
                    yield f"{value} in row {row} of {count} is lost"
                if not np.isfinite(rest).all():
                    yield f"{value} in row {row} of {count} is in other rows"
                if invariant and not _same(found[others], every[:count][others]):
                    yield f"{value} in row {row} of {count} changes others"


def _kind(dtype: str) -> Any:
    return ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)


def _numbers(random: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if "int" in dtype:
        bounds = np.iinfo(dtype)
        return random.integers(bounds.min, bounds.max + 1, shape).astype(dtype)
    return random.standard_normal(shape, dtype=np.float32).astype(_kind(dtype))


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and one.tobytes() == other.tobytes()


def _same_kinds(one: np.ndarray, other: np.ndarray) -> bool:
    """Have the arrays the same infinities, NaN and finite numbers in the same places?"""
    kinds = [np.where(np.isfinite(each), 0, each) for each in (one, other)]
    return np.array_equal(*kinds, equal_nan=True)


def _short(numbers: np.ndarray) -> str:
    few = ", ".join(map(str, numbers[:4]))
    return few if numbers.size <= 4 else f"{few}, … {numbers[-1]} ({numbers.size} of them)"


def module_of(products: Sequence[Product]) -> IRModule:
    """A function for each product."""
    functions = "".join({product.name: product.function() for product in products}.values())
    text = textwrap.indent(functions, "    ")
    return relaxpy.parse(f"@I.ir_module\nclass Products:{text}")


def problems(
    family: Family,
    widths: Sequence[int],
    target: Target | str,
    way: str,
    rows: Sequence[int] | None = None,
    without: Sequence[Sequence[str]] = ((),),
    *,
    invariant: bool = True,
    many: int = MANY_ROWS,
) -> list[str]:
    """What is wrong with the products of these widths, which are built together. They run once for each of `without`:
    features that count as missing. Rows: those of each product, unless given."""
    products = [Product(family, width, way == OPEN, many) for width in widths]
    mod, weights = module_of(products), dict[str, np.ndarray]()
    if way != OPEN:
        for product in products:
            weights |= product.weights()
        if family.scheme is not None:
            step = QuantizeWeights(family.scheme, activations=family.activations)
            mod, weights = step(mod), step.quantized_params(mod, weights)
    if way == "constant":
        mod = BindParams()(mod, PassContext(params=weights))
    exe = relaxpy.build(mod, target, cache=False, pack=way == "packed")
    found: list[str] = []
    for missing in without:
        vm = relaxpy.VirtualMachine(exe, without_features=missing)
        packed = vm.pack(weights, keep=False) if way == "packed" else None
        for product in products:
            function, given = vm[product.name], list[Any]()
            if packed is not None:
                given = list(packed[product.name])
            elif way != "constant":
                own = product.weights() if way == OPEN else weights
                params = mod.graph_functions[product.name].params
                given = [own[param.name] for param in params[1 + family.experts :]]

            def call(*inputs: np.ndarray, of: Any = function, given: Any = given) -> np.ndarray:
                return of(*inputs, *given).numpy()

            found += product.problems(call, rows, invariant=invariant)
    return found
