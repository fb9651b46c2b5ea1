"""Tracing: a module of torch as an exported program, in operators that the table knows."""

from __future__ import annotations

import copy
import inspect
import logging
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

from relaxpy.errors import UsageError, caller_span
from relaxpy.frontend.spans import is_users, raised_in
from relaxpy.frontend.torch.arguments import all_sizes, has_names, unnamed
from relaxpy.frontend.torch.comparisons import Comparison, comparisons
from relaxpy.frontend.torch.guards import sizes_of
from relaxpy.frontend.torch.kept_sizes import kept_sizes
from relaxpy.frontend.torch.recurrent import whole_layers
from relaxpy.frontend.torch.refused import REFUSED
from relaxpy.frontend.torch.replaced import replaced
from relaxpy.frontend.torch.table import OPERATORS, READERS
from relaxpy.ir import IRModule

INVENTED = 2
"""The least size that torch assumes of every dynamic one: a trace at larger sizes says nothing of 0 and 1."""


@dataclass(frozen=True)
class Traced:
    """An exported program, and how it was traced."""

    program: Any
    shapes: Any = None
    """Its `dynamic_shapes`."""
    comparisons: Sequence[Comparison] = ()
    least: int = 0
    """The least value of sizes that vary, as torch took them: 2 where it cannot trace for all."""


def exported(module: Any, args: Any, kwargs: Mapping[str, Any] | None, dynamic_shapes: Any) -> Any:
    """The exported program of a module or function, traced without gradients; an exported program is itself."""
    import torch

    if isinstance(module, torch.export.ExportedProgram):
        if args is not None or kwargs or dynamic_shapes is not None:
            raise UsageError(
                "torch-export",
                "an ExportedProgram has its arguments and sizes already",
                span=caller_span(),
                help="call relaxpy.from_torch(program), or pass the module itself",
            )
        return Traced(module)
    if args is not None and not isinstance(args, (tuple, list)):
        args = (args,)
    register_caches()
    args, kwargs = distinct((tuple(args or ()), dict(kwargs or {})))
    given = (as_module(module), args, kwargs)
    if isinstance(dynamic_shapes, str):
        if dynamic_shapes != "auto":
            raise UsageError(
                "torch-export",
                f"dynamic_shapes is {dynamic_shapes!r}",
                span=caller_span(),
                help='write {"x": {0: "batch"}} for each tensor, or "auto" for all sizes that can vary',
            )
        dynamic_shapes = all_sizes(*given)
    try:
        return trace(*given, dynamic_shapes)
    except Exception as error:
        if has_names(dynamic_shapes):
            with suppress(Exception):
                return trace(*given, unnamed(dynamic_shapes))
        if "data-dependent" in str(error) and dynamic_shapes is not None:
            with suppress(Exception):
                return trace(*given, unnamed(dynamic_shapes), least=INVENTED)
        raise UsageError(
            "torch-export",
            f"torch.export refuses {type(module).__name__}: {_first_lines(error)}",
            span=raised_in(error) or caller_span(),
            help="a size that cannot vary has no entry in dynamic_shapes; "
            "torch.export.export(module, args, dynamic_shapes=…, strict=False) shows where it stops",
        ) from error


def distinct(tree: Any) -> Any:
    """The arguments with a copy of each tensor that is there twice: torch would take the two to be one always."""
    import torch
    from torch.utils import _pytree as pytree

    seen: set[int] = set()

    def once(value: Any) -> Any:
        if id(value) in seen and isinstance(value, torch.Tensor):
            return value.detach().clone()
        seen.add(id(value))
        return value

    return pytree.tree_map(once, tree)


def trace(module: Any, args: Any, kwargs: Any, shapes: Any, least: int = 0) -> Traced:
    """The exported program of a module, for sizes from `least` on: 0, or what torch takes by itself. Raises what torch
    raises."""
    import torch

    with (
        torch.no_grad(),
        quiet(),
        users_lines(),
        whole_layers(),
        kept_sizes(),
        _oblivious() if least == 0 else nullcontext(),
        comparisons() as found,
    ):
        program = torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=False)
    return Traced(program, shapes, found, least)


def _oblivious() -> Any:
    """Otherwise torch takes each size that varies to be at least 2, and leaves no guard where the program asks."""
    from torch.fx.experimental import _config

    return getattr(_config, "patch")(backed_size_oblivious=True)  # noqa: B009


def decomposed(traced: Traced) -> tuple[Any, list[Any]]:
    """The program in core operators, and in those that the table knows as a whole; and the conditions, in sympy's
    terms, that torch took for true on the way. Raises: UsageError (`torch-export`) where torch's own checks fail."""
    import torch

    from relaxpy.frontend.torch.operators import load_operators

    load_operators()
    table = torch.export.default_decompositions()
    for overload in list(table):
        if str(overload) in OPERATORS or str(overload) in REFUSED:
            table.pop(overload)
    program = traced.program
    env = sizes_of(program)
    before = 0 if env is None else len(env.guards)
    try:
        with torch.no_grad(), quiet(), _oblivious() if traced.least == 0 else nullcontext():
            found = flat(program).run_decompositions(table)
    except AssertionError as error:
        raise UsageError(
            "torch-export",
            f"torch cannot write the program in its core operators: {_first_lines(error)}",
            span=caller_span(),
            help="does it change a parameter or buffer that has two names? Give each name a tensor of its own",
        ) from error
    _keep_reads(program.graph, found.graph)
    return found, [] if env is None else [env.replace(g.expr) for g in env.guards[before:]]


READ_AS = "read_as"
"""What a node that reads a value out of a tensor was before the program was decomposed, in its `meta`."""


def _keep_reads(original: Any, graph: Any) -> None:
    """Torch takes a value for `2 * n`, say, and forgets it when it traces the program again."""
    before, after = (
        [node for node in each.nodes if str(node.target) in READERS] for each in (original, graph)
    )
    if len(before) == len(after):
        for old, new in zip(before, after, strict=True):
            new.meta[READ_AS] = old.meta["val"]


def flat(program: Any) -> Any:
    """The program with the leaves of its arguments and results in tuples: torch traces again what makes a class of its
    leaves, and transformers' caches make tensors there."""
    from torch.utils import _pytree as pytree

    entry = program.module_call_graph[0]
    if entry.signature is None or program.example_inputs is None:
        return program
    given = pytree.tree_leaves(program.example_inputs)
    made = range(entry.signature.out_spec.num_leaves)
    signature = replace(
        entry.signature,
        in_spec=pytree.tree_structure((tuple(given), {})),
        out_spec=pytree.tree_structure(tuple(made)),
        forward_arg_names=None,
    )
    found = copy.copy(program)
    found._module_call_graph = [replace(entry, signature=signature), *program.module_call_graph[1:]]
    found._example_inputs = (tuple(given), {})
    found._guards_code = []  # which speak of the arguments as they were
    return found


@contextmanager
def users_lines() -> Iterator[None]:
    """Let torch keep the lines of all functions that the user calls: it keeps those of methods `forward` only."""
    from torch.fx.proxy import TracerBase

    own = TracerBase._filter_traceback_frames

    def lines(tracer: Any, frames: Any) -> traceback.StackSummary:
        first = next((i for i, frame in enumerate(frames) if frame.name == "forward"), len(frames))
        return traceback.StackSummary.from_list(
            [frame for frame in frames[first:] if is_users(frame.filename)]
        ) or own(tracer, frames)

    with replaced(TracerBase, own.__name__, lines):
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Keep warnings that torch gives of its own code from the user, and what it logs of guards that it tries and of
    calls that fail: the errors say it, and after some of them another way is tried."""
    loggers = {
        logging.getLogger("torch.fx.experimental.symbolic_shapes"): logging.ERROR,
        logging.getLogger("torch._subclasses.fake_tensor"): logging.CRITICAL,
    }
    levels = {logger: logger.level for logger in loggers}
    for logger, level in loggers.items():
        logger.setLevel(level)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        # The list of weights of a recurrent layer, which are its parameters, too.
        warnings.filterwarnings(
            "ignore", r"The tensor attributes? self\S*\._flat_weights", UserWarning
        )
        try:
            yield
        finally:
            for logger, level in levels.items():
                logger.setLevel(level)


def as_module(module: Any) -> Any:
    import torch

    if isinstance(module, torch.nn.Module):
        return module
    if not callable(module) or isinstance(module, IRModule) or _is_of_nn(module):
        raise UsageError(
            "torch-export",
            f"a torch module is expected, got {type(module).__name__}",
            span=caller_span(),
            help="compile IR with relaxpy.build(module)"
            if isinstance(module, IRModule)
            else "it is one of relaxpy.nn: mod, params = model.export(spec), then relaxpy.build(mod)"
            if _is_of_nn(module)
            else "pass a torch.nn.Module, a function of tensors, or an ExportedProgram",
        )

    def forward(*args: Any, **kwargs: Any) -> Any:  # torch keeps the lines of what `forward` calls
        return module(*args, **kwargs)

    made = torch.nn.Module()
    made.forward = wraps(module)(forward) if _has_names(module) else forward
    return made


def _is_of_nn(module: Any) -> bool:
    """Is it a module of `relaxpy.nn`, which this package does not import?"""
    return any(base.__module__ == "relaxpy.nn.module" for base in type(module).__mro__)


def _has_names(function: Any) -> bool:
    """Does its signature name its inputs? torch's own functions have none."""
    try:
        inspect.signature(function)
    except ValueError:
        return False
    return True


def register_caches() -> None:
    """Make transformers' caches trees of tensors for torch, if transformers is loaded."""
    if "transformers" not in sys.modules:
        return
    from transformers.integrations.executorch import register_dynamic_cache_export_support

    register_dynamic_cache_export_support()


def _first_lines(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return "\n".join(lines[:12]) or type(error).__name__
