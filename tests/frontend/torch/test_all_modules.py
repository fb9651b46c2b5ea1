"""Torch's own samples of its modules (`module_db`) and of its higher-order operators (`hop_db`), beside themselves.

What is refused is listed with its reason; each reason is a part of the message that the user sees.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import relaxpy
from relaxpy.errors import RelaxError
from tests.sweeps import FULL, part, sweep

MOST = 8 if FULL else 2
"""Samples of a module."""

BY_TORCH = "torch.export refuses"
REFUSED_OPERATORS = {
    "map.simple": BY_TORCH,  # a size of 1 that is broadcast in the mapped function
    "map.nested": BY_TORCH,
    "invoke_quant.simple": BY_TORCH,
    "invoke_quant_packed.simple": "call its function itself",
    "while_loop_stack_output.simple": "torch.while_loop for the last values",
    "auto_functionalize.simple": "your own operator that writes to its arguments",
    "flex_attention.simple": BY_TORCH,  # of functions as arguments
    "flex_attention_backward.simple": BY_TORCH,
    "flex_attention_backward.explicit_buffers": BY_TORCH,
    "local_map_hop.simple": BY_TORCH,
}
"""Higher-order operator and variant → what the message has."""

ON_OTHER_DEVICES = frozenset(["inline_asm_elementwise.simple"])

REFUSED_MODULES = {
    "nn.FractionalMaxPool2d": "random numbers: draw them outside",
    "nn.FractionalMaxPool3d": "random numbers: draw them outside",
    "nn.GaussianNLLLoss": BY_TORCH,  # of a branch by a value
    "nn.CTCLoss": BY_TORCH,  # of lengths that are values
}
"""Module → what the message has, where all its samples are refused."""


@cache
def higher_order() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.hop_db import hop_db
    return {f"{info.name}.{info.variant_test_name}": info for info in hop_db}


@cache
def modules() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_modules import module_db
    return {info.name: info for info in module_db}


def compared(call: Any, args: Any, kwargs: Any) -> None:
    """Compile a call and compare it with itself; both may write to their arguments."""
    own = copy.deepcopy((call, args, kwargs))
    with torch.no_grad():
        want = own[0](*own[1], **own[2])
    compiled = relaxpy.compile(call, *args, kwargs=kwargs, target="llvm -opt-level=0")
    found = compiled(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    torch.testing.assert_close(
        pytree.tree_leaves(found), pytree.tree_leaves(want), equal_nan=True, check_stride=False
    )


def outcome(call: Any, args: Any, kwargs: Any) -> str:
    """ "" if the results are equal, or the message of a refusal, or what differs."""
    try:
        compared(call, args, kwargs)
    except RelaxError as error:
        return str(error)
    except AssertionError as error:
        return f"wrong: {error}"
    return ""


def module_samples(info: Any) -> Iterator[tuple[torch.nn.Module, Any, Any]]:
    """Modules and calls of them, in evaluation."""
    torch.manual_seed(0)
    dtype = torch.float32 if torch.float32 in info.dtypes else info.dtypes[0]
    samples = info.module_inputs_func(info, "cpu", dtype, requires_grad=False, training=False)
    for _, sample in zip(range(MOST), samples):
        made, given = sample.constructor_input, sample.forward_input
        module = info.module_cls(*made.args, **made.kwargs).to(dtype).eval()
        args, kwargs = tuple(given.args), dict(given.kwargs)
        if info.is_lazy:  # the first call makes the weights
            module(*copy.deepcopy(args), **copy.deepcopy(kwargs))
        yield module, args, kwargs


def unexpected(
    names: Sequence[str], samples: Callable[[str], Iterator[Any]], refused: Mapping[str, str]
) -> dict[str, str]:
    """Those with another outcome than the list has, and that."""
    found: dict[str, str] = {}
    for name in names:
        messages = [outcome(*sample) for sample in samples(name)]
        expected = refused.get(name)
        if not messages:
            found[name] = "no samples"
        for message in messages:
            if message if expected is None else expected not in message:
                found[name] = message or "equal"
    return found


@sweep
@pytest.mark.filterwarnings("ignore")
def test_higher_order_operators() -> None:
    def samples(name: str) -> Iterator[Any]:
        info = higher_order()[name]
        for sample in info.sample_inputs("cpu", torch.float32, requires_grad=False):
            yield info.op, (sample.input, *sample.args), dict(sample.kwargs)

    names = sorted(set(higher_order()) - ON_OTHER_DEVICES)
    assert unexpected(part(names, 19), samples, REFUSED_OPERATORS) == {}


@sweep
@pytest.mark.filterwarnings("ignore")
def test_modules() -> None:
    names = part(sorted(modules()), 41)
    assert unexpected(names, lambda name: module_samples(modules()[name]), REFUSED_MODULES) == {}
