"""Serving of language models: what runs many requests at once. It loads no compiler and no web framework."""

from relaxpy.serve.beams import Beams
from relaxpy.serve.engine import Engine
from relaxpy.serve.pages import Batch, Content, PageBook
from relaxpy.serve.pictures import Picture, PictureShape, Placed
from relaxpy.serve.request import Features, Piece, Request
from relaxpy.serve.sampling import Draw, Sampling, sampling_arguments
from relaxpy.serve.scheduler import Limits, Scheduler
from relaxpy.serve.sources import SourceBook, SourceShape
from relaxpy.serve.timestamp_rules import TimestampRules

__all__ = [
    "Batch", "Beams", "Content", "Draw", "Engine", "Features", "Limits", "PageBook", "Picture", "PictureShape",
    "Piece", "Placed", "Request", "Sampling", "Scheduler", "SourceBook", "SourceShape", "TimestampRules",
    "sampling_arguments",
]  # fmt: skip
