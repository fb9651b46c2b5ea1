"""Serving of language models: what a scheduler of requests needs. It loads no compiler."""

from relaxpy.serve.pages import Batch, PageBook

__all__ = ["Batch", "PageBook"]
