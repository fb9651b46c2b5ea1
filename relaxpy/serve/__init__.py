"""Serving of language models: what runs many requests at once. It loads no compiler and no web framework."""

from relaxpy.serve.engine import Engine
from relaxpy.serve.pages import Batch, PageBook
from relaxpy.serve.request import Piece, Request
from relaxpy.serve.sampling import Draw, Sampling, sampling_arguments
from relaxpy.serve.scheduler import Limits, Scheduler

__all__ = [
    "Batch", "Draw", "Engine", "Limits", "PageBook", "Piece", "Request", "Sampling", "Scheduler",
    "sampling_arguments",
]  # fmt: skip
