"""The options `precision` and `check_numbers` of a build: the float dtype of products, and where it does not do."""

from __future__ import annotations

from relaxpy.backend.registry import backend_of
from relaxpy.errors import RelaxError, UsageError
from relaxpy.ir.dtype import DType
from relaxpy.target import Target
from relaxpy.transform.base import Pass
from relaxpy.transform.check_numbers import CheckNumbers
from relaxpy.transform.mixed_precision import NARROW, MixedPrecision
from relaxpy.transform.phases import Pipeline

AUTO = "auto"
_WIDE = "float32"


def chosen_precision(precision: str | None, target: Target) -> DType | None:
    """The dtype of products: that of the option, or the fastest of the target for `auto`. None without the option.

    Raises: UsageError (`mixed-precision`) for another word.
    """
    if precision is None:
        return None
    if precision == AUTO:
        return DType(backend_of(target).fastest_float(target))
    try:
        found = DType(precision)
    except RelaxError:
        found = None
    if found not in (_WIDE, *NARROW):
        raise UsageError(
            "mixed-precision",
            f"precision is {_WIDE}, {', '.join(NARROW)} or {AUTO}, got {precision!r}",
        )
    return found


def with_precision(passes: Pass, dtype: DType | None) -> Pass:
    """The pipeline with `MixedPrecision`, for a narrow dtype.

    Raises: UsageError (`mixed-precision`) for a pipeline that has no place for it, or the pass already.
    """
    if dtype is None or dtype == _WIDE:
        return passes
    return _inserted(passes, "lift-packers", MixedPrecision(dtype))  # weights are not yet packed


def with_checks(passes: Pass) -> Pass:
    """The pipeline with `CheckNumbers`. Raises as `with_precision`."""
    return _inserted(passes, "legalize-ops", CheckNumbers())


def _inserted(passes: Pass, place: str, step: Pass) -> Pass:
    names = [each.name for each in passes.passes] if isinstance(passes, Pipeline) else []
    if isinstance(passes, Pipeline) and place in names and step.name not in names:
        return passes.before(place, step)
    problem = f"{step.name} already" if step.name in names else f"no {place}"
    raise UsageError(
        "mixed-precision",
        f"the option inserts {step.name} before {place}, but the pipeline has {problem}",
        help=f'leave it out, and insert the pass yourself: pipeline.before("…", {type(step).__name__}(…))',
    )
