"""The language model that ships with relaxpy: a Llama of four million parameters that recites Python's documentation
and code. README.md in this folder is its card; the folder embedded/ of the repository is how it was made.

    from relaxpy.embedded import embedded_model
    from relaxpy.models.loaded import load_decoder

    decoder = load_decoder(embedded_model())
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["embedded_model"]


def embedded_model() -> Path:
    """The directory of the checkpoint: `config.json`, `model.safetensors`, `tokenizer.json` and the chat template, as
    transformers saves them."""
    return Path(__file__).resolve().parent
