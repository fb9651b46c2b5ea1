"""Programs on devices other than the processor, for the tests of each of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

import relaxpy
from relaxpy.errors import BuildError
from relaxpy.ir.annotation import PrimType
from relaxpy.ir.expr import Var
from relaxpy.ir.module import IRModule
from relaxpy.ir.visitor import free_sym_vars, free_vars
from relaxpy.op.base import Op, Sample
from relaxpy.op.block_builder import BlockBuilder
from relaxpy.op.deduce import deduce
from relaxpy.target import Target
from relaxpy.testing.fuzz import outcomes_on
from relaxpy.testing.on_device import Where
from relaxpy.testing.op_samples import Applied, apply, assert_close, reference_arrays, samples
from tests.op.support import COMPILED


def machine(
    mod: IRModule, target: str, params: Any = None, **options: Any
) -> relaxpy.VirtualMachine:
    """A machine with these options for a module."""
    is_emulated = target.startswith("cuda")  # a kernel's body is made when it is compiled
    exe = relaxpy.build(mod, target, params, cache=not is_emulated)
    return relaxpy.VirtualMachine(exe, **options)


NUMBERS = (
    ("int8", -3), ("uint8", 255), ("bool", True), ("float16", 1.5), ("int16", -32768), ("uint16", 65535),
    ("int32", -5), ("uint64", 1 << 63), ("float32", -1e30), ("float64", 0.1),
)  # fmt: skip
"""A number of each dtype, for `number_program`."""


def number_program(dtype: str) -> str:
    """A module whose tensor program adds a number of this dtype to each element."""
    return f"""
@I.ir_module
class Numbers:
    @T.prim_func
    def k(x: T.Buffer(("n",), "float32"), s: T.{dtype}, z: T.Buffer(("n",), "float32")):
        n = T.int64()
        for i in T.serial(n):
            with T.sblock("z"):
                vi = T.axis.spatial(n, i)
                z[vi] = x[vi] + T.Cast("float32", s)

    @R.function
    def main(x: R.Tensor(("n",), "float32"), s: R.Prim("{dtype}")):
        n = T.int64()
        cls = Numbers
        z = R.call_tir(cls.k, (x, s), out_ty=R.Tensor((n,), "float32"))
        return z
"""


GROUPS = 16
"""Of operators: a driver compiles the kernels of a module at once."""


def first_samples(group: int, groups: int = GROUPS) -> list[Sample]:
    """The first sample of each operator of a group."""
    chosen: Sequence[type[Op]] = COMPILED[group::groups]
    return [next(s for s in samples(cls.name) if not s.code) for cls in chosen]


def all_samples(group: int, groups: int = GROUPS) -> list[Sample]:
    """All samples of each operator of a group."""
    chosen: Sequence[type[Op]] = COMPILED[group::groups]
    return [s for cls in chosen for s in samples(cls.name) if not s.code]


def module_of(found: Sequence[Applied]) -> tuple[IRModule, list[list[Any]]]:
    """A function for each call, and its arguments."""
    bb = BlockBuilder()
    given: list[list[Any]] = []
    for number, each in enumerate(found):
        params = [var for var in free_vars(each.call) if isinstance(var, Var)]
        values: list[Any] = list(each.arrays)
        symbols = dict.fromkeys(v for arg in each.call.args for v in free_sym_vars([deduce(arg)]))
        defined = {d.symbol for p in params for d in getattr(p.annotation, "dims", None) or ()}
        missing = [v for v in symbols if v not in defined]
        params += [Var(v.name, PrimType("int64", v.dim)) for v in missing]
        values += [each.bound[v] for v in missing]
        with bb.function(f"f{number}", params, pure=each.call.op.pure):  # type: ignore[union-attr]
            bb.emit_func_output(bb.emit(each.call))
        given.append(values)
    return bb.get(), given


def leaves(value: Any) -> list[np.ndarray]:
    """The tensors of a result, one or several."""
    items = value if isinstance(value, tuple) else (value,)
    return [np.asarray(getattr(item, "numpy", lambda item=item: item)()) for item in items]


def wrong_samples(
    chosen: Sequence[Sample], target: str, refused: Collection[str] = ()
) -> list[str]:
    """The samples whose results are not those of their references, built together. Those whose key is in `refused`
    must be refused when they are built, each alone."""
    wrong: list[str] = []
    built = [s for s in chosen if sample_key(s) not in refused]
    mod, given = module_of([apply(s, bool(s.dims)) for s in built])
    vm = machine(mod, target)
    for number, (sample, values) in enumerate(zip(built, given, strict=True)):
        try:
            got = leaves(vm[f"f{number}"](*values))
            for one, want in zip(got, reference_arrays(sample), strict=True):
                assert_close(one, want, sample, str(sample.op))
        except (relaxpy.RelaxError, AssertionError) as error:
            wrong.append(f"{sample.op}: {error}")
    for sample in (s for s in chosen if sample_key(s) in refused):
        mod, _ = module_of([apply(sample, bool(sample.dims))])
        try:
            relaxpy.build(mod, target)
        except BuildError as error:
            if error.code != "device-dtype" or error.span is None:
                wrong.append(f"{sample.op}: {error}")
        else:
            wrong.append(f"{sample.op} compiles, and is in the list of those that do not")
    return wrong


def wrong_programs(seeds: Sequence[int], target: str) -> tuple[list[str], list[str]]:
    """The random programs of these seeds whose results differ from the interpreter's, and those that cannot be
    compiled, each with the reason."""
    wrong: list[str] = []
    refused: list[str] = []
    for outcome in outcomes_on(seeds, Where(Target.parse(target))):
        if outcome.failure is not None:
            wrong.append(f"seed {outcome.seed}: {outcome.failure}\n{outcome.program}")
        elif outcome.refused:
            refused.append(f"seed {outcome.seed}: {outcome.refused}")
    return wrong, refused


def sample_key(sample: Sample) -> str:
    """An operator with the dtype of its first input, or of its result where it has no input."""
    dtypes = [str(value.dtype) for value in sample.inputs if isinstance(value, np.ndarray)]
    dtypes += [str(own) for own in [getattr(sample.op, "dtype", None)] if own is not None]
    return " ".join([sample.op.name, *dtypes[:1]])


def same(text: str, target: str, *args: np.ndarray, rtol: float = 2e-5) -> Any:
    """Run a program on both; the results are the same. Gives the device's."""
    mod = relaxpy.parse(text)
    want = relaxpy.VirtualMachine(relaxpy.build(mod))["main"](*args)
    got = machine(mod, target)["main"](*args)
    for one, other in zip(leaves(got), leaves(want), strict=True):
        np.testing.assert_allclose(one.astype("f8"), other.astype("f8"), rtol=rtol, atol=rtol)
    return got
