"""Formats of checkpoints: their tensors by transformers' names, mapped and decoded when they are read."""

from __future__ import annotations

from relaxpy.checkpoints.gguf_tokenizer import GgufTokenizer, gguf_tokenizer
from relaxpy.checkpoints.open import open_checkpoint
from relaxpy.checkpoints.stored import Checkpoint, Stored

__all__ = ["Checkpoint", "GgufTokenizer", "Stored", "gguf_tokenizer", "open_checkpoint"]
