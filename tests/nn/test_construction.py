"""Which line of whose code an operation is located at."""

from __future__ import annotations

from pathlib import Path

from relaxpy.ir import Function
from relaxpy.models import bert


def test_models_are_callers() -> None:
    """What a model of relaxpy.models computes is located in its file, as for models that users write."""
    mod, _ = bert.BertEncoder(bert.TINY).export({"embed": bert.SPEC["embed"]})
    embed = mod["embed"]
    assert isinstance(embed, Function)
    spans = [binding.value.span for block in embed.body.blocks for binding in block.bindings]
    assert {Path(span.file).name for span in spans if span is not None} == {"bert.py"}
