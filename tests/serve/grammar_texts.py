"""Which texts a grammar admits, byte by byte."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from relaxpy.serve.grammar import Matchers

END = "<end>"


@cache
def _bytes() -> tuple[Any, Matchers, int]:
    tokenizers: Any = pytest.importorskip("tokenizers")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE({text: number for number, text in enumerate([END, *letters])}, [])
    )
    made.add_special_tokens([tokenizers.AddedToken(END, normalized=False)])
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    end = made.token_to_id(END)
    return made, Matchers(made.to_str(), made.get_vocab_size(), [end]), end


def admits(grammar: str, text: str) -> bool:
    """Whether exactly this text may be written."""
    made, matchers, end = _bytes()
    matcher = matchers(grammar)
    for token in [*made.encode(text).ids, end]:
        if not matcher.mask()[token // 32] >> (token % 32) & 1:
            return False
        if token != end:
            matcher.accept(token)
    return True
