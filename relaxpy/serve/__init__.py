"""Serving of language models: what a scheduler of requests needs. It loads no compiler."""

from relaxpy.serve.pages import Batch, PageBook
from relaxpy.serve.sampling import Draw, Sampling, sampling_arguments

__all__ = ["Batch", "Draw", "PageBook", "Sampling", "sampling_arguments"]
