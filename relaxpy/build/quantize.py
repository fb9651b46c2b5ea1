"""The integer flow from a model to a module of integers: calibration, what each layer loses, layers left in floats.

    calibration = calibrate(mod, params, data)
    module, report = quantize(mod, params, data, keep_accuracy=0.99)
    executable = relaxpy.build(module, params=params)

`relaxpy.transform` has the passes: `Annotate`, `Calibrate`, `MeasureErrors`, `Realize`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from relaxpy.build.build import build
from relaxpy.errors import RelaxError, UsageError
from relaxpy.ir.module import IRModule
from relaxpy.narrow import arrays_in, is_mapping, is_sequence
from relaxpy.op.pair import Pair
from relaxpy.op.ranges import Seen, merged_all, scale_of
from relaxpy.runtime import VirtualMachine
from relaxpy.transform.annotate import Annotate, Rule, Scales
from relaxpy.transform.calibrate import Calibrate, Site
from relaxpy.transform.measure_errors import MeasureErrors
from relaxpy.transform.realize import Realize

Arguments = Mapping[str, Any] | Sequence[Any]
"""The inputs of one call, by name or in order."""


@dataclass(frozen=True)
class Calibration:
    """Statistics of data: for each layer, by argument. Plain data, which may be saved, edited and merged."""

    seen: Mapping[str, Mapping[str, Seen]] = field(default_factory=dict[str, Mapping[str, Seen]])

    def merged(self, other: Calibration) -> Calibration:
        """The statistics of both."""
        return Calibration(merged_all(self.seen, other.seen))

    def to_json(self) -> str:
        """As text."""
        found = {
            layer: {name: seen.to_json() for name, seen in own.items()}
            for layer, own in self.seen.items()
        }
        return json.dumps(found, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Calibration:
        """The inverse of `to_json`. Raises UsageError (`quantization`) for other text."""
        try:
            layers = {layer: dict(own) for layer, own in json.loads(text).items()}
        except (ValueError, AttributeError, TypeError) as error:
            raise UsageError("quantization", f"this is no calibration: {error}") from None
        return cls(
            {
                layer: {name: Seen.from_json(each) for name, each in own.items()}
                for layer, own in layers.items()
            }
        )

    def scales(
        self, sites: Iterable[Site], method: str = "min_max", percentile: float = 99.99
    ) -> dict[tuple[str, str], Scales]:
        """The scales of these arguments, by layer and argument, for `Annotate`. Raises UsageError (`quantization`) for
        one that was not seen, or whose numbers were all 0."""
        found: dict[tuple[str, str], Scales] = {}
        for site in sites:
            seen = self.seen.get(site.layer, {}).get(site.argument)
            if seen is None:
                raise UsageError(
                    "quantization", f"the calibration does not have {site.argument} of {site.layer}"
                )
            try:
                found[site.layer, site.argument] = Scales(
                    *scale_of(seen, site.pair, method, percentile)
                )
            except UsageError as error:
                message = f"{site.argument} of {site.layer}: {error.message}"
                raise UsageError("quantization", message, help=error.help) from None
        return found


@dataclass(frozen=True)
class LayerReport:
    """One layer of a report."""

    function: str
    layer: str
    operator: str
    kind: str
    """`integers` or `floats`."""
    reason: str = ""
    """Why it is one of floats."""
    error: float | None = None
    """The error of its result by codes alone, over the size of its result (both as roots of sums of squares)."""
    low: float | None = None
    high: float | None = None
    """The range that was seen of the argument whose scale comes from data."""
    clipped: float | None = None
    """The share of its numbers outside of the range of the codes."""


@dataclass(frozen=True)
class Report:
    """The layers of a quantised module, and its accuracy."""

    layers: Sequence[LayerReport]
    accuracy: float | None = None
    """The least cosine of a result of integers to that of floats, over the data."""

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"accuracy": self.accuracy, "layers": [asdict(layer) for layer in self.layers]}

    def __str__(self) -> str:
        """A table, the layers that lose most first."""
        order = sorted(self.layers, key=lambda each: -(each.error or 0))
        wide = max([5, *(len(each.layer) for each in order)])
        lines = [f"{'layer':{wide}}  operator    kind      error   clipped  range"]
        for each in order:
            error = "" if each.error is None else f"{each.error:.2%}"
            clipped = "" if each.clipped is None else f"{each.clipped:.3%}"
            seen = "" if each.low is None else f"{each.low:.4g} … {each.high:.4g}"
            row = f"{each.layer:{wide}}  {each.operator:10}  {each.kind:8}  {error:>6}  {clipped:>7}  {seen}"
            lines.append(f"{row}{each.reason}".rstrip())
        if self.accuracy is not None:
            lines.append(f"least cosine to floats: {self.accuracy:.5f}")
        return "\n".join(lines)


def calibrate(
    mod: IRModule,
    params: Mapping[str, Any],
    data: Iterable[Arguments],
    *,
    function: str = "main",
    rules: Mapping[str, Rule] | None = None,
    target: str = "llvm",
) -> Calibration:
    """Stream data through a function and count what layers read: one sample is in memory at a time.

    Raises: UsageError (`quantization`) for no data, or a sample with a NaN or an infinity in what a layer reads; the
    errors of a call for a sample of another shape, with its number.
    """
    observed, sites = Calibrate(rules or {}).observed(mod)
    own = [site for site in sites if site.function == function]
    if not own:
        return Calibration()
    seen: dict[str, dict[str, Seen]] = {}
    vm = VirtualMachine(build(observed, target, params))
    number = -1
    for number, found in enumerate(_called(vm, function, data)):
        for site, (low, high, counts) in zip(own, found, strict=True):
            each = Seen(*(np.array(part) for part in (low, high, counts)))
            if not (np.isfinite(each.low).all() and np.isfinite(each.high).all()):
                raise UsageError(
                    "quantization",
                    f"sample {number}: {site.argument} of {site.layer} has a NaN or an infinity",
                )
            seen = merged_all(seen, {site.layer: {site.argument: each}})
    if number < 0:
        raise _no_data()
    return Calibration(seen)


def quantize(
    mod: IRModule,
    params: Mapping[str, Any],
    data: Iterable[Arguments] | None = None,
    *,
    function: str = "main",
    rules: Mapping[str, Rule] | None = None,
    calibration: Calibration | None = None,
    method: str = "min_max",
    percentile: float = 99.99,
    keep_accuracy: float | None = None,
    smooth: float | None = None,
    correct_bias: bool = False,
    sums: str = "int32",
    target: str = "llvm",
) -> tuple[IRModule, Report]:
    """The module with products of integers, and what became of each layer. It takes the same parameters as before.

    Without data, layers are quantised whose scales need none. `method` makes scales of what was seen
    (`relaxpy.op.ranges.METHODS`). `smooth`, such as 0.5, moves that part of the magnitude of columns of activations to
    the weights of matrix products; `correct_bias` adds to each layer's result the mean that its channels lose on the
    data. Both need data. `sums` is the dtype that sums of products are declared in (`Realize`). With `keep_accuracy` (a
    cosine, such as 0.99) the layers that lose most are left in floats, one after the other, until the results on the
    data are so near.

    Raises: UsageError (`quantization`) as `Annotate` and `calibrate` do, or if data that is needed is missing.
    """
    chosen: dict[str, Rule] = dict(rules or {})
    if keep_accuracy is not None and not 0 < keep_accuracy <= 1:
        raise UsageError(
            "quantization", f"an accuracy is above 0 and at most 1, got {keep_accuracy}"
        )
    if data is None and keep_accuracy is not None:
        raise UsageError(
            "quantization", "an accuracy cannot be kept without data", help="give data"
        )
    if data is None and (smooth is not None or correct_bias):
        raise UsageError("quantization", "corrections are measured on data", help="give data")
    if smooth is not None and not 0 <= smooth <= 1:
        raise UsageError("quantization", f"smooth is from 0 to 1, got {smooth}")
    if data is not None and iter(data) is data:
        raise UsageError(
            "quantization",
            "data is read several times, and an iterator only once",
            help="give a list, or an object that makes a new iterator each time",
        )
    if data is not None and calibration is None:
        calibration = calibrate(mod, params, data, function=function, rules=chosen, target=target)
    columns: dict[str, np.ndarray] = {}
    if smooth is not None and data is not None:
        columns = _columns(mod, params, data, chosen, function, target)
    shifts: dict[str, np.ndarray] = {}
    floats: VirtualMachine | None = None
    errors: dict[str, float] | None = None
    while True:
        sites = [s for s in Calibrate(chosen).observed(mod)[1] if s.function == function]
        known = calibration or Calibration()
        scales = known.scales(sites, method, percentile) if calibration is not None else {}
        even = {layer: each for layer, each in columns.items() if chosen.get(layer, 0) is not None}
        annotate = Annotate(chosen, scales, even, 0.5 if smooth is None else smooth)
        if errors is None and data is not None:
            # A layer's loss is that of its codes alone, whatever the others are.
            errors, means = _errors(mod, params, data, annotate, function, target)
            if correct_bias:
                shifts = means
                corrected = replace(annotate, shifts=shifts)
                errors, _ = _errors(mod, params, data, corrected, function, target)
        kept = {layer: each for layer, each in shifts.items() if chosen.get(layer, 0) is not None}
        annotate = replace(annotate, shifts=kept)
        errors = errors or {}
        annotated, places = annotate.annotated(mod)
        module, realized = Realize(sums).realized(annotated)
        stays = {(p.function, p.layer): p.reason for p in [*realized, *places] if p.reason}
        layers = [
            LayerReport(
                place.function, place.layer, place.operator,
                "floats" if (place.function, place.layer) in stays else "integers",
                stays.get((place.function, place.layer), ""),
                None if place.reason else errors.get(place.layer), *_range(known, scales, sites, place.layer),
            )
            for place in places
        ]  # fmt: skip
        if data is None:
            return module, Report(layers)
        floats = floats or VirtualMachine(build(mod, target, params))
        integers = VirtualMachine(build(module, target, params))
        accuracy = _accuracy((floats, integers), data, function)
        if keep_accuracy is None or accuracy >= keep_accuracy:
            return module, Report(layers, accuracy)
        left = [each for each in layers if each.kind == "integers" and each.error is not None]
        if not left:
            return module, Report(layers, accuracy)
        worst = max(left, key=lambda each: each.error or 0)
        chosen[worst.layer] = None


def _range(
    known: Calibration, scales: Mapping[tuple[str, str], Scales], sites: Sequence[Site], layer: str
) -> tuple[float | None, float | None, float | None]:
    """The range that was seen of a layer's argument, and the share that its codes clip."""
    for site in sites:
        seen = known.seen.get(layer, {}).get(site.argument)
        if site.layer != layer or seen is None or (layer, site.argument) not in scales:
            continue
        own = scales[layer, site.argument]
        ends = [(code - own.zero_point.astype(float)) * own.scale for code in site.pair.limits]
        clipped = seen.clipped(float(np.min(ends[0])), float(np.max(ends[1])))
        return float(seen.low.min()), float(seen.high.max()), clipped
    return None, None, None


def _errors(
    mod: IRModule,
    params: Mapping[str, Any],
    data: Iterable[Arguments],
    annotate: Annotate,
    function: str,
    target: str,
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """By layer, what its result loses, and the mean of that for each channel."""
    measured, calls = MeasureErrors(annotate).measured(mod)
    layers = [layer for name, layer in calls if name == function]
    if not layers:
        return {}, {}
    sums, means, count = np.zeros((len(layers), 2)), dict[str, np.ndarray](), 0
    for found in _called(VirtualMachine(build(measured, target, params)), function, data):
        sums += np.array([[float(part) for part in each[:2]] for each in found])
        for layer, (*_, mean) in zip(layers, found, strict=True):
            means[layer] = means.get(layer, 0) + mean.astype(np.float64)
        count += 1
    errors = {
        layer: float(np.sqrt(lost / size)) if size else 0.0
        for layer, (lost, size) in zip(layers, sums, strict=True)
    }
    return errors, {layer: (each / count).astype(np.float32) for layer, each in means.items()}


def _columns(
    mod: IRModule,
    params: Mapping[str, Any],
    data: Iterable[Arguments],
    rules: Mapping[str, Rule],
    function: str,
    target: str,
) -> dict[str, np.ndarray]:
    """By layer that is a matrix product: the largest magnitude of each column of its data."""
    pairs = {"data": Pair(axis=-1, static=True)}
    own = {"linear": {"data": pairs["data"]}, "matmul": {"x1": pairs["data"]}}
    present = {place.operator for place in Annotate().annotated(mod)[1]}
    wanted = {name: pair for name, pair in own.items() if name in present}
    off = {name: None for name in ("nn.conv1d", "nn.conv2d", "nn.conv3d") if name in present}
    left = {name: rule for name, rule in rules.items() if rule is None}
    seen = calibrate(
        mod, params, data, function=function, rules={**wanted, **off, **left}, target=target
    )
    return {
        layer: np.maximum(-found.low, found.high)
        for layer, arguments in seen.seen.items()
        for found in arguments.values()
    }


def _accuracy(
    machines: Sequence[VirtualMachine], data: Iterable[Arguments], function: str
) -> float:
    """The least cosine of results of the second machine to those of the first."""
    least, is_empty = 1.0, True
    for one, other in zip(*(_called(vm, function, data) for vm in machines), strict=True):
        is_empty = False
        for a, b in zip(arrays_in(one), arrays_in(other), strict=True):
            a, b = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
            size = float(np.sqrt((a @ a) * (b @ b)))
            least = min(least, float(a @ b) / size if size else float(np.array_equal(a, b)))
    if is_empty:
        raise _no_data()
    return least


def _called(vm: VirtualMachine, function: str, data: Iterable[Arguments]) -> Iterator[Any]:
    """The results of a function for each sample, as arrays."""
    if function not in vm:
        raise UsageError(
            "quantization",
            f"the module has no function {function!r}",
            help=f"it has {', '.join(vm)}",
        )
    for number, sample in enumerate(data):
        try:
            called = vm[function]
            result = called(**sample) if is_mapping(sample) else called(*sample)
        except RelaxError as error:
            raise error.show(f"this is sample {number} of the data", None) from None
        yield _arrays(result)


def _arrays(value: Any) -> Any:
    if is_sequence(value):
        return tuple(map(_arrays, value))
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)


def _no_data() -> UsageError:
    return UsageError("quantization", "there is no data", help="give at least one sample")
