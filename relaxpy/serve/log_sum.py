"""The sum of probabilities by their logarithms."""

from __future__ import annotations

import numpy as np


def log_sum(logits: np.ndarray) -> float:
    """The logarithm of the sum of exponentials."""
    largest = logits.max()
    return largest + np.log(np.exp(logits - largest).sum())
