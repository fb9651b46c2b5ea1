"""Whole models of transformers, tiny by one rule, beside themselves at three shapes from one build.

`RELAXPY_SWEEPS=full python -m pytest tests/torch/test_all_models.py` runs every type of the installed transformers; a type that
the rule does not make, or torch does not export, is skipped with the reason. `python -m tests.torch.test_all_models`
prints a line for each.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import relaxpy
from relaxpy.errors import RelaxError
from relaxpy.frontend.torch import import_program
from relaxpy.torch.compiled import CompiledModule
from tests.sweeps import FULL, sweep
from tests.torch.tiny_models import kinds, tiny_model

SHAPES = ((3, 11), (2, 7), (1, 5))
"""Batch and length of the calls; the first is traced."""
QUICK = ("bert", "llama", "vit")


class NotExported(Exception):
    """The rule makes no such model, or torch exports none."""


def differences(kind: str) -> list[str]:
    """What differs from eager at each shape, from one build. Raises NotExported, RelaxError."""
    try:
        tiny = tiny_model(kind)
        with torch.no_grad():
            wanted = [(call := tiny.call(*shape), tiny.model(**call)) for shape in SHAPES]
    except Exception as error:
        raise NotExported(f"not made: {_line(error)}") from None
    try:
        found = import_program(tiny.model, (), dict(tiny.inputs), dict(tiny.sizes))
    except RelaxError as error:
        if error.code == "torch-export":
            raise NotExported(f"not exported: {_line(error)}") from None
        raise
    exe = relaxpy.build(found.mod, params=found.params, target="llvm -opt-level=0")
    compiled = CompiledModule(exe, found.signature, found.state, {})
    return [text for call, want in wanted if (text := _difference(compiled(**call), want))]


def _difference(found: Any, want: Any) -> str:
    """Where the results differ by more than the sums of a few layers; "" if they do not."""
    pairs = zip(pytree.tree_leaves(found), pytree.tree_leaves(want), strict=True)
    for one, other in pairs:
        if isinstance(other, torch.Tensor):
            scale = float(other.float().abs().max()) if other.numel() else 1.0
            try:
                torch.testing.assert_close(
                    one, other, rtol=1e-3, atol=1e-3 * max(1.0, scale), equal_nan=True
                )
            except AssertionError as error:
                return str(error)
    return ""


def _line(error: BaseException) -> str:
    message = getattr(error, "message", str(error))
    return f"{type(error).__name__}: {message.strip().splitlines()[0][:200] if message.strip() else ''}"


@sweep
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", kinds() if FULL else QUICK)
def test_a_model_is_right_at_every_shape(kind: str) -> None:
    try:
        assert differences(kind) == []
    except NotExported as reason:
        if kind in QUICK:
            raise
        pytest.skip(str(reason))


def main() -> None:
    counts: Counter[str] = Counter()
    for kind in sys.argv[1:] or kinds():
        try:
            text = "; ".join(differences(kind))
            outcome = "wrong" if text else "right"
        except NotExported as reason:
            outcome, text = str(reason).split(":")[0], str(reason)
        except Exception as error:
            names = re.findall(r"((?:aten|operator|higher_order|\w+)\.[\w.]+) \(", str(error))
            outcome, text = "refused", f"{_line(error)} {' '.join(names)}"
        counts[outcome] += 1
        print(f"{kind}: {outcome} {text}", flush=True)  # noqa: T201
    print(dict(counts))  # noqa: T201


if __name__ == "__main__":
    main()
