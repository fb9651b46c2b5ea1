"""The backend of `torch.compile`: `torch.compile(model, backend="relaxpy")`.

torch traces a function and hands its graphs over, with weights as inputs; `aot_autograd` makes them functional, and
splits those that need gradients: the forward is compiled, with the values that the backward needs as further results;
the backward is run by torch. A graph that cannot be compiled is run by torch as a whole, and said (`report`).
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from time import perf_counter
from typing import TYPE_CHECKING, Any

from relaxpy.errors import UsageError
from relaxpy.frontend.spans import is_users
from relaxpy.runtime import VirtualMachine
from relaxpy.target import Target
from relaxpy.torch.graph_call import Boxed, graph_call
from relaxpy.torch.report import Built, add_break, add_built, add_fallback, place_of

if TYPE_CHECKING:
    from relaxpy.frontend.torch.graph import ImportedGraph

OPTIONS = ("target", "cache", "jobs", "tuning")
"""Options of `relaxpy.build` that `torch.compile(…, options={…})` takes."""


def backend(
    graph: Any,
    examples: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """The backend `relaxpy` of `torch.compile`, which calls it with a graph and its inputs. `options` are `target`,
    `cache`, `jobs` and `tuning` of `relaxpy.build`.

    Raises: UsageError (`arguments`) for a mode, and for another option or a target that is no CPU.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    given = _checked(mode, options or {})
    place = _place(graph)
    reason = getattr(graph, "compile_subgraph_reason", None)
    if reason is not None and reason.graph_break:
        add_break(place, reason.reason)
    names = [node.name for node in graph.graph.find_nodes(op="placeholder")]

    def compiled(kind: str) -> Any:
        def compile_graph(inner: Any, inputs: Sequence[Any]) -> Boxed:
            return _compiled(inner, inputs, names, kind, place, given)

        return compile_graph

    return aot_autograd(
        fw_compiler=compiled("training"),
        inference_compiler=compiled("inference"),
        bw_compiler=run_by_torch,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=_decompositions(),
    )(graph, examples)


def run_by_torch(graph: Any, *_: Any) -> Boxed:
    """A graph as torch runs it, operator after operator."""
    from functorch.compile import make_boxed_func

    return make_boxed_func(graph.forward)


def _compiled(
    graph: Any,
    examples: Sequence[Any],
    names: Sequence[str],
    kind: str,
    place: str,
    options: Mapping[str, Any],
) -> Boxed:
    """A graph of `aot_autograd` as a function."""
    from relaxpy.build import build
    from relaxpy.frontend.torch.graph import import_graph

    begin = perf_counter()
    try:
        _require_cpu(examples)
        found = import_graph(graph, _weights(), names, _will_vary())
        if found.mod is None:
            return graph_call(found, None, examples)
        executable = build(found.mod, pack=list(found.weights), **options)
        call = graph_call(found, VirtualMachine(executable), examples)
    except Exception as error:
        add_fallback(place, error)
        return run_by_torch(graph, examples)
    report = executable.build_report
    kernels = () if report is None else report.kernels
    add_built(
        Built(
            place,
            sum(node.op == "call_function" for node in graph.graph.nodes),
            kind,
            tuple(_vary(found)),
            perf_counter() - begin,
            len(kernels),
            sum(kernel.cached for kernel in kernels),
        )
    )
    return call


def _vary(found: ImportedGraph) -> list[str]:
    """The names of the sizes that vary."""
    from relaxpy.ir.visitor import used_symbols

    assert found.mod is not None
    main = found.mod.graph_functions["main"]
    return [symbol.name for symbol in used_symbols(*main.params)]


def _checked(mode: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the build."""
    if mode not in (None, "default"):
        raise UsageError(
            "arguments",
            f"torch.compile: mode={mode!r} is not known to relaxpy",
            help=f"omit it; options={{…}} takes {', '.join(OPTIONS)}",
        )
    unknown = [name for name in options if name not in OPTIONS]
    if unknown:
        raise UsageError(
            "arguments",
            f"torch.compile: relaxpy has no option {unknown[0]!r}",
            help=f"options are {', '.join(OPTIONS)}",
        )
    target = Target.parse(options.get("target", "llvm"))
    if target.kind != "llvm":
        raise UsageError(
            "arguments",
            f'torch.compile: the target is "{target.kind}", but torch\'s tensors are on the CPU',
            help="relaxpy.compile(model, x, target=…, devices=…) builds for devices",
        )
    return dict(options)


def _require_cpu(examples: Sequence[Any]) -> None:
    import torch

    for each in examples:
        if isinstance(each, torch.Tensor) and each.device.type != "cpu":
            raise UsageError(
                "device",
                f"an input of the graph is on the device {each.device}",
                help="move the model and its inputs to the CPU; relaxpy.compile builds for devices",
            )


def _weights() -> Collection[int]:
    """The inputs of the graph under construction that are parameters and buffers which it does not change."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    facts = None if context is None else context.fw_metadata
    if facts is None:
        return ()
    return set(facts.static_input_indices) - set(facts.mutated_inp_runtime_indices)


def _will_vary() -> bool:
    """Will torch trace the function again, for all sizes, when another one comes? It does by default, not with
    `dynamic=True` or `dynamic=False`."""
    from torch._dynamo import config

    return config.automatic_dynamic_shapes and config.assume_static_by_default


def _place(graph: Any) -> str:
    """The user's function that a graph is of, at the line where the graph ends; or the kind of a module of torch, such
    as `nn.Sequential`, at the line that calls it."""
    reason = getattr(graph, "compile_subgraph_reason", None)
    frames = [] if reason is None else reason.user_stack
    own = [(f.name, f.filename, f.lineno) for f in frames if is_users(f.filename)]
    if own:
        return place_of(*own[-1])
    caller = sys._getframe()
    while caller is not None and not is_users(caller.f_code.co_filename):
        caller = caller.f_back
    if caller is None:
        return _outermost(graph)
    return place_of(_outermost(graph), caller.f_code.co_filename, caller.f_lineno)


def _outermost(graph: Any) -> str:
    """The class of the module that a graph is of."""
    for node in graph.graph.nodes:
        for _, kind in (node.meta.get("nn_module_stack") or {}).values():
            return getattr(kind, "__name__", str(kind).rpartition(".")[2])
    return "a function of torch"


@cache
def _decompositions() -> dict[Any, Any]:
    """Torch's decompositions of operators that the table does not have, those of gradients apart."""
    from torch._decomp import core_aten_decompositions

    from relaxpy.frontend.torch.operators import load_operators
    from relaxpy.frontend.torch.refused import REFUSED
    from relaxpy.frontend.torch.table import OPERATORS

    load_operators()
    found = dict(core_aten_decompositions())
    for overload in list(found):
        name = str(overload)
        if name in OPERATORS or name in REFUSED or "backward" in name:
            found.pop(overload)
    return found
