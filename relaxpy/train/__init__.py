"""Training: optimisers as programs, and one whole step (gradients and optimiser) as one executable for all sizes.

step = relaxpy.train.Step(loss, relaxpy.train.AdamW(1e-3), params=(0, 1))
weights, state = [w, b], step.start([w, b])
for x, y in batches:
value, weights, state = step(weights, state, x, y)
"""

from __future__ import annotations

from relaxpy.train.curve import curve
from relaxpy.train.loop import Report, Trained, early_stop, fit
from relaxpy.train.optimizers import EMA, SGD, Adam, AdamW, Lion, MasterWeights, Muon, Optimizer
from relaxpy.train.program import LossScale
from relaxpy.train.schedules import constant, cosine, linear
from relaxpy.train.step import Step

__all__ = [
    "EMA",
    "SGD",
    "Adam",
    "AdamW",
    "Lion",
    "LossScale",
    "MasterWeights",
    "Muon",
    "Optimizer",
    "Report",
    "Step",
    "Trained",
    "constant",
    "cosine",
    "curve",
    "early_stop",
    "fit",
    "linear",
]
