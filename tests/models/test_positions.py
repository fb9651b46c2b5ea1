"""Positions that are computed are no weights."""

from __future__ import annotations

from pathlib import Path

from relaxpy.checkpoints import open_checkpoint
from relaxpy.ir.expr import Constant
from relaxpy.models.loaded import Scheme, decoder_program, quantization
from tests.models.seq2seq_checkpoints import seq2seq


def test_computed_positions_are_not_quantised(tmp_path: Path) -> None:
    """Sines in 4 bits would tell few positions apart."""
    seq2seq("marian", tmp_path)
    checkpoint, scheme = open_checkpoint(tmp_path), Scheme(4, activations=None)
    config = scheme.applied(checkpoint)
    mod, _ = decoder_program(checkpoint, config, Scheme(None, activations=None))
    step = quantization(config, scheme)
    weights = {each for f in mod.graph_functions.values() for each in step.weights(f)}
    assert len(weights) > 10
    assert not [each for each in weights if isinstance(each, Constant)]
