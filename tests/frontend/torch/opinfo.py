"""Torch's own samples of its operators (`OpInfo`), imported, run, and compared with eager torch.

    python -m tests.frontend.torch.opinfo add cumsum        # these operators, and what is not equal
    python -m tests.frontend.torch.opinfo --interpret --log build/opinfo.jsonl  # all, by the interpreter

A sample is equal, wrong, or refused with a code. All samples of an operator and dtype are one program.
"""

from __future__ import annotations

import argparse
import random
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.utils import _pytree as pytree

import relaxpy
from relaxpy.errors import RelaxError
from relaxpy.frontend.torch import from_torch
from relaxpy.testing.interpret import interpret
from tests.logged import Record
from tests.logged import run as run_logged

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
UNKNOWN = frozenset(
    [
        "bernoulli", "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
        "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout.with_train", "new_empty",
    ]
)  # fmt: skip
"""Results that are random, or whatever was in memory: compared in shape and dtype. test_operators_random.py looks at
distributions."""
MOST = 20
"""Samples of an operator and dtype."""
LIST = Path(__file__).with_name("core_operators.txt")
"""The operators whose trace is core ATen: made by `core_names`."""


@cache
def operators() -> dict[str, Any]:
    """Name, with the variant → OpInfo. To import them takes seconds, which a run without them need not wait."""
    with warnings.catch_warnings():  # of packages that torch would like to have
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_methods_invocations as invocations

    return {full_name(info): info for info in invocations.op_db}


def full_name(info: Any) -> str:
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name


def listed() -> list[str]:
    return LIST.read_text().split()


@dataclass
class Case:
    """One sample: a call of an operator."""

    name: str
    dtype: torch.dtype
    number: int
    call: Any
    """The function of the tensors."""
    tensors: list[torch.Tensor]
    rest: Any
    """What else the call has, to compare calls."""
    want: list[Any]
    random: bool = False
    """Does it draw random numbers?"""

    @property
    def label(self) -> str:
        return f"{self.name}[{str(self.dtype)[6:]}, {self.number}]"


@dataclass
class Outcome:
    case: Case
    kind: str
    """"equal", "rounded", "order", "wrong", "refused", or "crashed"."""
    reason: str = ""


def leaves(tree: Any) -> list[Any]:
    return pytree.tree_leaves(tree)


def case_of(name: str, dtype: torch.dtype, number: int, sample: Any) -> Case | None:
    """The call of a sample. None where eager torch itself refuses it."""
    info = operators()[name]
    flat, spec = pytree.tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
    places = [i for i, leaf in enumerate(flat) if isinstance(leaf, torch.Tensor)]
    fixed = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in flat]

    def call(*tensors: torch.Tensor, wide: torch.dtype = torch.bfloat16) -> Any:
        values = [wide if leaf is torch.bfloat16 else leaf for leaf in fixed]
        for place, tensor in zip(places, tensors, strict=True):
            values[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(values, spec)
        return info.op(first, *args, **kwargs)

    tensors = [copied(flat[i]) for i in places]
    try:
        want = eager(call, tensors)
    except Exception:
        return None
    return Case(name, dtype, number, call, tensors, (repr(fixed), repr(spec)), want)


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """With memory of its own, of the same strides: samples to come are made in the memory of others (`masked`)."""
    memory = tensor.detach().untyped_storage().clone()
    place = tensor.storage_offset(), tensor.size(), tensor.stride()
    return torch.empty(0, dtype=tensor.dtype).set_(memory, *place)


def eager(call: Any, tensors: Sequence[torch.Tensor]) -> list[Any]:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return leaves(call(*(tensor.clone() for tensor in tensors)))


def cases(name: str, dtype: torch.dtype, most: int = MOST) -> Iterator[Case]:
    """The samples of an operator in a dtype; none if it does not take the dtype."""
    info = operators()[name]
    if dtype not in info.supported_dtypes("cpu"):
        return
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = info.sample_inputs("cpu", dtype, requires_grad=False)
        for number, sample in zip(range(most), samples):
            found = case_of(name, dtype, number, sample)
            if found is not None:
                yield found


class Program(torch.nn.Module):
    """Calls of several cases."""

    def __init__(self, calls: Sequence[Any]) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, inputs: Any) -> Any:
        # A number or a size is a constant of the program.
        with warnings.catch_warnings():  # of what is deprecated, at the caller's line
            warnings.simplefilter("ignore")
            return [
                [leaf for leaf in leaves(call(*tensors)) if isinstance(leaf, torch.Tensor)]
                for call, tensors in zip(self.calls, inputs, strict=True)
            ]


def results(found: Any) -> list[Any]:
    return list(found) if isinstance(found, (tuple, list)) else [found]


def run(found: Sequence[Case], interpreted: bool, target: str) -> list[Any]:
    """The results of cases as one program."""
    inputs = [case.tensors for case in found]
    mod, params = from_torch(Program([case.call for case in found]), (inputs,))
    given = [tensor for case in found for tensor in case.tensors]
    if main_draws(mod, given):
        given.append(torch.tensor(7))
    if interpreted:
        kept = [params[p.name] for p in mod["main"].params if p.name in params]
        return results(interpret(mod, "main", *(array(t) for t in given), *kept))
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, params=params, target=target))
    return [torch.from_dlpack(value) for value in results(vm["main"](*given))]


def main_draws(mod: Any, given: Sequence[Any]) -> bool:
    """Does `main` take a seed after these?"""
    return mod["main"].attrs["num_input"] > len(given)


def array(tensor: torch.Tensor) -> Any:
    from relaxpy.frontend.torch.arrays import array_of

    return array_of(tensor)


def tensor_of(value: Any) -> torch.Tensor:
    """An array of the interpreter as a tensor."""
    import ml_dtypes
    import numpy as np

    if isinstance(value, torch.Tensor):
        return value
    value = np.ascontiguousarray(value).reshape(np.shape(value))
    if value.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(value)


def compared(case: Case, got: Sequence[Any]) -> str:
    """What differs from eager torch, or ""."""
    want = [leaf for leaf in case.want if isinstance(leaf, torch.Tensor)]
    if len(want) != len(got):
        return f"{len(got)} results, not {len(want)}"
    for one, other in zip(want, got):
        if case.name in UNKNOWN or case.random:
            other = tensor_of(other)
            if (one.shape, one.dtype) != (other.shape, other.dtype):
                return f"{other.dtype} {other.shape}, not {one.dtype} {one.shape}"
            continue
        try:
            torch.testing.assert_close(
                tensor_of(other), one.detach(), equal_nan=True, check_stride=False,
                **tolerance(case.name, one.dtype),
            )  # fmt: skip
        except AssertionError as error:
            return " ".join(str(error).split())[:300]
    return ""


@cache
def tolerance(name: str, dtype: torch.dtype) -> dict[str, float]:
    """The tolerance of torch's own tests of an operator: that of the dtype, or what the operator's entry overrides."""
    entry = operators()[name]
    from torch.testing._internal.common_device_type import toleranceOverride

    most = {"atol": 0.0, "rtol": 0.0}
    for decorator in entry.decorators:
        for each in getattr(decorator, "decorators", [decorator]):
            override = each.d.get(dtype) if isinstance(each, toleranceOverride) else None
            if override is not None:
                most = {key: max(most[key], getattr(override, key)) for key in most}
    if dtype not in _DEFAULTS:
        return {}
    default = dict(zip(("rtol", "atol"), _DEFAULTS[dtype], strict=True))
    return {key: max(value, most[key]) for key, value in default.items()}


_DEFAULTS = {
    torch.float32: (1.3e-6, 1e-5), torch.bfloat16: (1.6e-2, 1e-5), torch.float16: (1e-3, 1e-5),
    torch.float64: (1e-7, 1e-7),
}  # fmt: skip


def outcomes(
    found: Sequence[Case], interpreted: bool = False, target: str = "llvm -opt-level=0"
) -> list[Outcome]:
    """Each case's outcome: of all at once, or one by one if something is refused."""
    if not found:
        return []
    try:
        got = iter(run(found, interpreted, target))
    except Exception as error:
        if len(found) > 1:
            half = len(found) // 2
            return outcomes(found[:half], interpreted, target) + outcomes(
                found[half:], interpreted, target
            )
        kind = "refused" if isinstance(error, RelaxError) else "crashed"
        code = getattr(error, "code", type(error).__name__)
        return [Outcome(found[0], kind, f"{code}: {' '.join(str(error).split())[:400]}")]
    listed: list[Outcome] = []
    for case in found:
        count = sum(isinstance(leaf, torch.Tensor) for leaf in case.want)
        listed.append(judged(case, [next(got) for _ in range(count)]))
    return listed


def judged(case: Case, got: Sequence[Any]) -> Outcome:
    """A difference of narrow floats is "rounded" if the result is that of the same call in float32, which eager torch's
    own kernel is not, since it rounds sums or products in between; or if it is as near to that of float64 as eager
    torch's is, where both kernels round in between (on a processor with products of bfloat16)."""
    difference = compared(case, got)
    if difference and not case.random and draws(case):
        return judged(replace(case, random=True), got)
    if not difference:
        return Outcome(case, "equal")
    if case.name in ("topk", "sort", "argsort") and same_but_for_order(case, got):
        return Outcome(case, "order", difference)
    if case.dtype == torch.bfloat16 and (not compared(exact(case), got) or as_near(case, got)):
        return Outcome(case, "rounded", difference)
    return Outcome(case, "wrong", difference)


def draws(case: Case) -> bool:
    """Does its program draw random numbers? Torch's samples set the seed of its generator."""
    mod, _ = from_torch(Program([case.call]), ([case.tensors],))
    return main_draws(mod, case.tensors)


def same_but_for_order(case: Case, got: Sequence[Any]) -> bool:
    """Are the elements at the indices eager torch's? Of equal elements torch takes any."""
    data, indices, wanted = case.tensors[0], tensor_of(got[-1]), case.want[-1]
    return indices.shape == wanted.shape and any(
        torch.equal(data.gather(axis, indices), data.gather(axis, wanted))
        for axis in range(data.ndim)
        if int(max(indices.amax(), wanted.amax())) < data.shape[axis]
        and all(a == axis or i <= d for a, (i, d) in enumerate(zip(indices.shape, data.shape)))
    )


def exact(case: Case) -> Case:
    """The case with the results of the call in float32, rounded once."""
    try:
        found = in_wide(case, torch.float32)
    except Exception:
        return case
    want = [
        new.to(old.dtype) if isinstance(new, torch.Tensor) else new
        for new, old in zip(found, case.want, strict=True)
    ]
    return replace(case, want=want)


def in_wide(case: Case, dtype: torch.dtype) -> list[Any]:
    """The results of the call in a wider dtype."""
    wide = [t.to(dtype) if t.dtype == torch.bfloat16 else t for t in case.tensors]
    return eager(partial(case.call, wide=dtype), wide)


def as_near(case: Case, got: Sequence[Any]) -> bool:
    """Are the errors of results, beside those in float64, in the mean and at most eager torch's (and a tenth)?"""
    try:
        best = in_wide(case, torch.float64)
    except Exception:
        return False
    want = [leaf for leaf in case.want if isinstance(leaf, torch.Tensor)]
    exactly = [leaf for leaf in best if isinstance(leaf, torch.Tensor)]
    for mine, other, true in zip(map(tensor_of, got), want, exactly, strict=True):
        if mine.shape != true.shape or not (mine.is_floating_point() and mine.isfinite().all()):
            return False
        ours, theirs = ((each.double() - true).abs() for each in (mine, other))
        if mine.numel() and not (
            ours.mean() <= 1.1 * theirs.mean() and ours.max() <= 1.1 * theirs.max()
        ):
            return False
    return True


def resized(case: Case) -> Case | None:
    """The call at other sizes: each size of at least 2 is three more. None where eager torch refuses that."""
    torch.manual_seed(1)
    tensors = []
    for tensor in case.tensors:
        shape = [size + 3 if size > 1 else size for size in tensor.shape]
        source = tensor.reshape(-1)
        if not source.numel():
            tensors.append(tensor.new_zeros(shape))
            continue
        count = torch.Size(shape).numel()
        drawn = torch.randint(0, source.numel(), (count,))
        tensors.append(source[drawn].reshape(shape))
    try:
        want = eager(case.call, tensors)
    except Exception:
        return None
    return Case(case.name, case.dtype, case.number, case.call, tensors, case.rest, want)


def symbolic(
    case: Case, interpreted: bool = False, target: str = "llvm -opt-level=0"
) -> list[Outcome]:
    """The outcomes of one build with all sizes symbolic: at the sample's own sizes, and at others. A condition of the
    trace that does not hold is told, and no outcome."""
    from torch.export import Dim

    if not case.tensors:
        return []
    dims = [{i: Dim.AUTO for i in range(tensor.ndim)} for tensor in case.tensors]
    program = Program([case.call])
    try:
        mod, params = from_torch(program, ([case.tensors],), dynamic_shapes={"inputs": [dims]})
        kept = [params[p.name] for p in mod["main"].params if p.name in params]
        seeds = [torch.tensor(7)] if main_draws(mod, case.tensors) else []
        if interpreted:
            call = lambda tensors: results(
                interpret(mod, "main", *(array(t) for t in [*tensors, *seeds]), *kept)
            )
        else:
            vm = relaxpy.VirtualMachine(relaxpy.build(mod, params=params, target=target))
            call = lambda tensors: [
                torch.from_dlpack(v) for v in results(vm["main"](*tensors, *seeds))
            ]
        listed = []
        for each in (case, resized(case)):
            if each is None:
                continue
            try:
                got = call(each.tensors)
            except RelaxError as error:
                if each is not case and error.code == "check":
                    continue
                raise
            # What the call writes to its arguments comes after its results.
            count = sum(isinstance(leaf, torch.Tensor) for leaf in each.want)
            listed.append(judged(each, got[:count]))
        return listed
    except Exception as error:
        kind = "refused" if isinstance(error, RelaxError) else "crashed"
        code = getattr(error, "code", type(error).__name__)
        return [Outcome(case, kind, f"{code}: {' '.join(str(error).split())[:400]}")]


def representative(found: Sequence[Case]) -> Case:
    """The case for symbolic sizes: the first that has no size below 2, or else the largest."""
    good = [c for c in found if c.tensors and all(s > 1 for t in c.tensors for s in t.shape)]
    good = [c for c in good if any(t.ndim for t in c.tensors)] or good
    return good[0] if good else max(found, key=lambda c: sum(t.numel() for t in c.tensors))


def core_names() -> list[str]:
    """The operators whose trace has core operators only: functionalised, with core decompositions, symbolic sizes."""
    from torch._decomp import core_aten_decompositions
    from torch.func import functionalize
    from torch.fx.experimental.proxy_tensor import make_fx

    names = []
    table = core_aten_decompositions()
    for name, info in operators().items():
        dtypes = [d for d in DTYPES if d in info.supported_dtypes("cpu")]
        try:
            case = next(c for dtype in dtypes for c in cases(name, dtype, 4))
            graph = make_fx(
                functionalize(case.call), decomposition_table=table, tracing_mode="symbolic",
                _allow_non_fake_inputs=True,
            )(*case.tensors).graph  # fmt: skip
        except Exception:
            continue
        targets = {n.target for n in graph.nodes if n.op == "call_function"}
        overloads = [t for t in targets if isinstance(t, torch._ops.OpOverload)]
        if all(
            torch.Tag.core in t.tags or "sym_" in str(t) or str(t) == "aten.lift_fresh_copy.default"
            for t in overloads
        ):
            names.append(name)
    return names


def swept(name: str, options: argparse.Namespace) -> Record:
    """An operator's outcomes as a record: counts of each kind, of all samples and of one with symbolic sizes."""
    dtypes = [d for d in DTYPES if not options.dtype or str(d)[6:] in options.dtype]
    found = [case for dtype in dtypes for case in cases(name, dtype, options.most)]
    groups: dict[str, list[Outcome]] = {"samples": [], "symbolic": []}
    if not options.symbolic:
        groups["samples"] = outcomes(found, options.interpret)
    if found and not options.static:
        groups["symbolic"] = symbolic(representative(found), options.interpret)
    others = [
        f"{group}: {o.kind} {o.case.label} {o.reason}"
        for group, listed in groups.items()
        for o in listed
        if o.kind != "equal"
    ]
    return {
        "outcome": "other" if others else "equal" if found else "no samples",
        **{group: Counter(o.kind for o in listed) for group, listed in groups.items()},
        "text": "\n".join(others),
    }


def summary(records: Sequence[Record], group: str) -> str:
    counts: Counter[str] = Counter()
    for record in records:
        counts.update(record.get(group, {record["outcome"]: 1}))
    total = counts.total() or 1
    return ", ".join(f"{k} {n} ({100 * n / total:.2f} %)" for k, n in counts.most_common())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--interpret", action="store_true", help="by the interpreter, not built")
    parser.add_argument("--static", action="store_true", help="no symbolic sizes")
    parser.add_argument("--symbolic", action="store_true", help="only symbolic sizes")
    parser.add_argument("--dtype", action="append", default=[])
    parser.add_argument("--write-names", action="store_true")
    parser.add_argument("--most", type=int, default=MOST)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--seconds", type=int, default=600, help="of a processor, an operator")
    parser.add_argument("--log", type=Path, help="goes on with this file")
    options = parser.parse_args()
    if options.write_names:
        LIST.write_text("\n".join(core_names()) + "\n")
        return
    torch.set_num_threads(1)  # there are no threads in a copy of a process
    index, parts = map(int, options.part.split("/"))
    names = options.names or random.Random(0).sample(listed(), len(listed()))[index::parts]
    from_torch(torch.sin, (torch.ones(2),))  # imports what each process needs
    if not options.interpret:
        relaxpy.build(from_torch(torch.sin, (torch.ones(2),))[0], cache=False)
    with TemporaryDirectory() as folder:
        log = options.log or Path(folder, "opinfo.jsonl")
        records = run_logged(log, names, lambda name: swept(name, options), options.seconds)
    for group in ("samples", "symbolic"):
        print(f"{group}: {summary(records, group)}")


if __name__ == "__main__":
    main()
