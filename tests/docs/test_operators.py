"""docs/operators.md is derived from the operators; `make stubs` writes it."""

from __future__ import annotations

import inspect
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from relaxpy.errors import DeduceError
from relaxpy.ir.dtype import DType
from relaxpy.op import OPS, Op
from relaxpy.op.deduce import deduce
from relaxpy.testing.op_samples import FLOATS, INTS, apply, arrays_of, kinds_of, samples, with_dtype
from tests.e2e.test_operators_beside_jax import FILES, oracle

PAGE = Path(__file__).parents[2] / "docs/operators.md"

HEADER = """\
# Operators

Written from the classes in `relaxpy/op` by `make stubs`. In script each is `R.NAME(…)`:
arguments first, then attributes (with their defaults), by position or by keyword.
[Adding an operator](add_an_operator.md) says what a class has to say, [Edge cases](edges.md) what happens where
arithmetic ends.

Generated tests (`tests/op`) hold every operator to its samples: the deduced annotation is that of the reference's
result, with static, symbolic and unknown shapes; the compiled kernel computes what the numpy reference does, in every
dtype that deduction takes, with dimensions 0 and 1, with NaN, infinities, -0.0 and the limits of integers; the
reference is jax's where jax has the operator; a call prints and parses; each wrong sample is refused with its code and
its place.
"""

OTHER_NAMES = {
    "builtin.alloc_tensor": "read as `R.memory.alloc_tensor`",
    "memory.ensure_zero_offset": "read as its argument: storage begins at 0 here",
    "memory.kill_storage": "read as `R.memory.kill`",
    "memory.kill_tensor": "read as `R.memory.kill`",
    "vm.alloc_storage": "read as `R.memory.alloc_storage`",
    "vm.alloc_tensor": "read as `R.memory.alloc_tensor`",
    "vm.call_tir_dyn": "read as `R.vm.call_dps`",
    "vm.kill_object": "read as `R.memory.kill`",
    "make_closure": "read as `R.vm.make_closure`",
    "invoke_closure": "`R.invoke_closure`, a form of call",
    "invoke_pure_closure": "`R.invoke_pure_closure`, a form of call",
    "call_builtin_with_ctx": "`R.call_builtin_with_ctx`, a form of call",
    "null_value": '`R.null_value`, read as `R.call_pure_packed("vm.builtin.null_value")`',
    "call_tir": "`R.call_tir`, a form of call (`relaxpy/op/call.py`)",
    "call_tir_inplace": "`R.call_tir_inplace`, a form of call",
    "call_tir_with_grad": "`R.call_tir_with_grad`, a form of call",
    "call_dps_packed": "`R.call_dps_library`, a form of call; `R.call_dps_packed` is read too",
    "call_pure_packed": "`R.call_pure_packed`, a form of call",
    "call_inplace_packed": "`R.call_inplace_packed`, a form of call",
}
"""TVM's operators that are something other than an operator here."""

REASONS = {
    "call_py_func": "calls a Python function of the module's own class: register it with "
    "`relaxpy.register_function` and call it with `R.call_pure_packed`",
    "ccl.*": "communication between several devices: one process runs on one device",
    "dist.*": "sharding annotations for several devices: one process runs on one device",
}
"""TVM's operators (patterns of names) that we have not, and why."""


def subject(op: type) -> str:
    """The file that an operator stands in."""
    return op.__module__.split(".")[-1]


def own_operators() -> list[type]:
    return [op for op in OPS.values() if op.__module__.startswith("relaxpy.op.")]


def tvm_names() -> set[str]:
    """What TVM's registry lists, without the prefix."""
    tvm = pytest.importorskip("tvm")
    names = map(str, tvm.ir.Op.list_op_names())
    return {name.removeprefix("relax.") for name in names if name.startswith("relax.")}


def dtypes(op: type[Op]) -> str:
    """What deduction takes of the samples in other dtypes."""
    taken: set[str] = set()
    for s in (s for s in samples(op.name) if not s.code):
        if kinds_of(s) == {"bool"}:
            taken.add("bool")
        kind = "float" if "float" in kinds_of(s) else "int"
        for dtype in (*FLOATS, *INTS, "bool"):
            try:
                deduce(apply(with_dtype(s, kind, dtype), False).call)
            except DeduceError:
                continue
            taken.add(dtype)
        taken |= {str(DType(a.dtype)) for a in arrays_of(s)}
    floats = [d for d in FLOATS if d in taken]
    ints = [d for d in INTS if d in taken]
    parts = ["floats" if len(floats) == len(FLOATS) else " ".join(floats)]
    parts += ["integers" if len(ints) == len(INTS) else " ".join(ints)]
    parts += ["bool"] if "bool" in taken else []
    return ", ".join(part for part in parts if part) or "–"


def shapes(op: type[Op]) -> str:
    """What the samples cover: symbols, and dimensions of 0."""
    good = [s for s in samples(op.name) if not s.code]
    parts = ["static, unknown"]
    parts += ["symbolic"] if any(s.dims for s in good) else []
    empty = any(s.dims for s in good) or any(0 in a.shape for s in good for a in arrays_of(s))
    return ", ".join(parts + (["0 and 1"] if empty else []))


def status(op: type) -> str:
    """How it runs."""
    if not issubclass(op, Op):
        return "instruction"
    if op.legalize is not None:
        return "kernel"
    return f"runtime's `{op.packed}`" if op.packed else "lowered by a pass"


def render() -> str:
    """The page: a table a file, operators by name; then where they stand beside TVM's."""
    own, theirs = own_operators(), tvm_names()
    jax = {name for file in FILES for name in oracle(file)}
    return "".join([HEADER, listing(own), coverage(own, theirs, jax), missing(own, theirs)])


def listing(own: list[type]) -> str:
    """A table for each file, of its operators by name."""
    parts: list[str] = []
    for name, ops in groupby(sorted(own, key=lambda op: (subject(op), op.name)), subject):
        parts.append(f"\n## `relaxpy/op/{name}.py`\n\n| operator | |\n|---|---|\n")
        for op in ops:
            text = inspect.cleandoc(op.__doc__ or "").split("\n\n")[0]
            summary = " ".join(text.split()).replace("|", "\\|")
            usage = op._usage().partition("R.")[2] if issubclass(op, Op) else op.name
            parts.append(f"| `R.{usage}` | {summary} |\n")
    return "".join(parts)


def coverage(own: list[type], theirs: set[str], jax: set[str]) -> str:
    """The table of what each operator has been held to."""
    real = [op for op in own if issubclass(op, Op)]
    kinds = [status(op) for op in own]
    counts = [
        f"{len(own)} operators: {kinds.count('kernel')} with a kernel, "
        f"{sum(k.startswith('runtime') for k in kinds)} by the runtime's functions, "
        f"{kinds.count('lowered by a pass')} lowered by passes, {kinds.count('instruction')} instructions of lowered "
        f"programs. {sum(op.name in theirs for op in own)} have TVM's name. "
        f"{len(real)} have a numpy reference, {sum(op.name in jax for op in real)} of them are compared with jax too. "
        f"{sum(not s.code for op in real for s in samples(op.name))} right and "
        f"{sum(bool(s.code) for op in real for s in samples(op.name))} wrong samples."
    ]
    rows = [
        f"| `{op.name}` | {f'`relax.{op.name}`' if op.name in theirs else 'ours'} | {dtypes(op)} | {shapes(op)} "
        f"| {'numpy, jax' if op.name in jax else 'numpy'} | {status(op)} |\n"
        for op in sorted(real, key=lambda op: op.name)
    ]
    return (
        f"\n## What they are held to\n\n{counts[0]}\n\n"
        "| operator | TVM | dtypes | shapes | oracle | runs as |\n|---|---|---|---|---|---|\n"
        + "".join(rows)
    )


def missing(own: list[type], theirs: set[str]) -> str:
    """TVM's operators that we have not under their name."""
    left = sorted(theirs - {op.name for op in own})
    rows = [f"| `relax.{name}` | {explanation(name)} |\n" for name in left]
    return (
        f"\n## TVM's names that are not here\n\nOf the {len(theirs)} names in TVM's registry, {len(left)}.\n\n"
        "| TVM | here |\n|---|---|\n" + "".join(rows)
    )


def explanation(name: str) -> str:
    """Our name for one of TVM's operators, or why there is none."""
    if name in OTHER_NAMES:
        return OTHER_NAMES[name]
    return next((why for pattern, why in REASONS.items() if fnmatch(name, pattern)), "")


@pytest.mark.slow
def test_the_page_is_up_to_date() -> None:
    """Every operator is on the page as it is in the source."""
    with np.errstate(all="ignore"):
        text = render()
    assert PAGE.read_text(encoding="utf-8") == text, "run: make stubs"


def test_no_operator_of_tvm_is_missing_without_a_reason() -> None:
    left = tvm_names() - {op.name for op in own_operators()}
    assert not [name for name in left if not explanation(name)]


def test_nothing_is_explained_that_is_here() -> None:
    """The tables above name nothing that has become an operator, and nothing that TVM has not."""
    left = tvm_names() - {op.name for op in own_operators()}
    assert OTHER_NAMES.keys() <= left
    assert all(any(fnmatch(name, pattern) for name in left) for pattern in REASONS)


if __name__ == "__main__":
    with np.errstate(all="ignore"):
        PAGE.write_text(render(), encoding="utf-8")
