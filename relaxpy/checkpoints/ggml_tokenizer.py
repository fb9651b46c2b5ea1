"""The tokenizer of whisper.cpp's files, as one of the package tokenizers.

A file has the bytes of each token, and no merges: those are found again from the order of the tokens, which is that in
which they were merged. Tokens that control have no names in it; they are openai-whisper's, in its order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from relaxpy.checkpoints.ggml import GgmlFile, read_ggml
from relaxpy.checkpoints.gguf_tokenizer import GgufTokenizer, byte_steps
from relaxpy.checkpoints.tokenizer_file import BYTE_CHARACTERS, one_line, tokenizers_package
from relaxpy.checkpoints.whisper_languages import LANGUAGES
from relaxpy.errors import UsageError

_BEFORE = ("endoftext", "startoftranscript")
_AFTER = ("translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps")


def ggml_tokenizer(path: Path) -> GgufTokenizer:
    """The tokenizer of a file. Raises: UsageError: `bad-checkpoint`; `extra-missing` without the package tokenizers."""
    package = tokenizers_package()
    file = read_ggml(path)
    texts = file.tokens[: file.texts]
    numbers = {token: number for number, token in enumerate(texts)}
    controls = control_tokens(file)
    fields = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [
            {"id": len(texts) + n, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": not text[2].isdigit()}
            for n, text in enumerate(controls)
        ],
        "pre_tokenizer": byte_steps(True),
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {shown(token): number for token, number in numbers.items()},
            "merges": [[shown(a), shown(b)] for a, b in merges(numbers)],
        },
        "decoder": byte_steps(True),
    }  # fmt: skip
    try:
        backend = package.Tokenizer.from_str(json.dumps(fields))
    except BaseException as error:  # its panics are no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit | MemoryError):
            raise
        raise UsageError(
            "bad-checkpoint", f"{path}: its tokenizer is damaged: {one_line(error)}"
        ) from None
    return GgufTokenizer(backend, {"eos_token": controls[0]}, (len(texts),))


def control_tokens(file: GgmlFile) -> list[str]:
    """The names of the tokens after those of text. Raises: UsageError (`bad-checkpoint`) if there are too many or too
    few of them."""
    times = file.sizes["max_source_positions"] + 1
    languages = file.sizes["vocab_size"] - file.texts - len(_BEFORE) - len(_AFTER) - times
    if not 0 < languages <= len(LANGUAGES):
        raise UsageError(
            "bad-checkpoint",
            f"{file.path}: of {file.sizes['vocab_size']} tokens {file.texts} are text and {times} times, which leaves "
            f"{languages} for languages: Whisper knows from 1 to {len(LANGUAGES)}",
        )
    names = (*_BEFORE, *[*LANGUAGES][:languages], *_AFTER)
    return [f"<|{name}|>" for name in names] + [f"<|{n * 0.02:.2f}|>" for n in range(times)]


def merges(numbers: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """The pairs that were merged, in order: a token is what is left of its bytes when all tokens before it were
    merged."""
    found: list[tuple[bytes, bytes]] = []
    for token, number in numbers.items():
        if len(token) > 1 and len(parts := _merged(token, numbers, number)) == 2:
            found.append((parts[0], parts[1]))
    return found


def _merged(token: bytes, numbers: Mapping[bytes, int], below: int) -> Sequence[bytes]:
    """The parts of a token by the merges of tokens before it."""
    parts = [token[k : k + 1] for k in range(len(token))]
    while len(parts) > 2:
        ranks = [numbers.get(a + b, below) for a, b in pairwise(parts)]
        best = min(ranks)
        if best >= below:
            break
        at = ranks.index(best)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def shown(token: bytes) -> str:
    """Bytes as vocabularies of bytes write them: a character each (GPT-2)."""
    return "".join(BYTE_CHARACTERS[byte] for byte in token)
