"""`tokenizer.json` of a checkpoint, read by the package tokenizers.

The file is the work of strangers: those that would take all memory are refused before the package sees them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from relaxpy.checkpoints.config_file import CONFIG_FILE
from relaxpy.errors import UsageError
from relaxpy.narrow import is_list, is_mapping
from relaxpy.runtime.safetensors import parse_json, read_text

LLM_HELP = "pip install 'relaxpy[llm]'"
"""The command that installs what language models read: safetensors, tokenizers, jinja2 and huggingface_hub."""
TOKENIZER_FILE = "tokenizer.json"
_OTHER_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.txt")
"""Files from which transformers makes `tokenizer.json`."""
_MOST_BYTES = 256 << 20
"""The largest tokenizer.json that is read."""
_MOST_TOKENS = 1 << 24
"""The largest number of a token."""
_MOST_GROWTH = 64
"""The most characters that the steps before and after the vocabulary may make of one."""
_PRECOMPILED_GROWTH = 8
"""The same of one table of replacements of SentencePiece, about."""


def _byte_characters() -> list[str]:
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


BYTE_CHARACTERS = _byte_characters()
"""The characters by which byte-level vocabularies write bytes: printable ones as they are, others from U+0100 on."""


def tokenizers_package() -> Any:
    """The package tokenizers. Raises: UsageError (`extra-missing`)."""
    try:
        import tokenizers
    except ImportError:
        raise UsageError(
            "extra-missing",
            "reading text needs the package tokenizers",
            help=LLM_HELP,
        ) from None
    return tokenizers


def read_tokenizer(folder: Path) -> Any:
    """The checkpoint's `tokenizer.json`, a `tokenizers.Tokenizer` that neither pads nor truncates. Raises: UsageError
    (`bad-checkpoint`; `extra-missing` without the package tokenizers)."""
    package = tokenizers_package()
    path = folder / TOKENIZER_FILE
    if not path.exists():
        pieces = [name for name in _OTHER_FILES if (folder / name).is_file()]
        raise UsageError(
            "bad-checkpoint",
            f"{folder} has no {TOKENIZER_FILE}" + (f", but {pieces[0]}" if pieces else ""),
            help=f"transformers writes it: AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained(…)"
            if pieces
            else f"a checkpoint has {CONFIG_FILE}, weights and {TOKENIZER_FILE}",
        )
    text = read_text(path, _MOST_BYTES)
    _check_numbers_and_growth(path, parse_json(text, path))
    try:
        backend = package.Tokenizer.from_str(text)
        backend.no_padding()
        backend.no_truncation()
        backend.get_added_tokens_decoder()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            raise
        raise UsageError(
            "bad-checkpoint", f"{path} is not a tokenizer: {one_line(error)}"
        ) from None
    return backend


def unread_options(backend: Any, config: Mapping[str, Any]) -> list[str]:
    """The options of a `tokenizer_config.json` that ask for other tokens than `tokenizer.json` gives, with their
    values. transformers changes the tokenizer by them."""
    plain = "A" if backend.normalizer is None else backend.normalizer.normalize_str("A")
    tokens = backend.encode("a", add_special_tokens=False).tokens
    does = {
        "do_lower_case": plain.strip("\u2581") == "a",
        "add_prefix_space": bool(tokens) and tokens[0][:1] in ("\u0120", "\u2581"),
        "split_special_tokens": False,
    }
    return [
        f"{name} = {config[name]}"
        for name, is_so in does.items()
        if isinstance(config.get(name), bool) and config[name] != is_so
    ]


def _check_numbers_and_growth(path: Path, fields: Any) -> None:
    """Refuse a tokenizer whose file is small, and which takes all memory: its tokens have large numbers, for which
    tables are made, or its replacements, one after the other, make many characters of each."""
    if not is_mapping(fields):
        raise UsageError(
            "bad-checkpoint", f"{path} is not a tokenizer: it is a {type(fields).__name__}"
        )
    model, added = fields.get("model"), fields.get("added_tokens")
    vocab = model.get("vocab") if is_mapping(model) else None
    numbers = [*(vocab.values() if is_mapping(vocab) else ())]
    numbers += [each.get("id") for each in (added if is_list(added) else ()) if is_mapping(each)]
    largest = max((each for each in numbers if isinstance(each, int)), default=0)
    if largest > _MOST_TOKENS:
        raise UsageError("bad-checkpoint", f"{path} has a token of number {largest}")
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        growth = 1.0
        for step in _steps(fields.get(part)):
            pattern = step.get("pattern")
            content = step.get("content") or step.get("replacement")
            if isinstance(content, str) and is_mapping(pattern):
                growth *= max(len(content), 1)
            elif step.get("type") == "Precompiled":
                growth *= _PRECOMPILED_GROWTH
            if growth > _MOST_GROWTH:
                raise UsageError(
                    "bad-checkpoint",
                    f"{path} is not read: its {part} makes more than {_MOST_GROWTH} characters of one",
                )


def _steps(part: Any) -> Iterator[Mapping[str, Any]]:
    if is_mapping(part):
        yield part
        for inner in part.values():
            yield from _steps(inner)
    elif is_list(part):
        for inner in part:
            yield from _steps(inner)


def one_line(error: BaseException) -> str:
    """The message of an exception in one line, or its type."""
    return " ".join(str(error).split())[:300] or type(error).__name__
