"""What a checkpoint of sentence-transformers says beside the encoder: how the states of a row become a vector, and what
is done to a sentence before.

    modules.json                            the modules: Transformer, Pooling, Normalize
    1_Pooling/config.json                   the way of pooling
    sentence_bert_config.json               the most tokens, and whether letters become small ones
    config_sentence_transformers.json       texts that are put before each sentence

Fields that nobody reads are named in a warning (`relaxpy.checkpoints.unread`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relaxpy.checkpoints.unread import unknown_fields, warn_unread
from relaxpy.errors import UsageError
from relaxpy.models.checkpoint import CONFIG_FILE, flag, whole
from relaxpy.narrow import is_list, is_mapping
from relaxpy.runtime.safetensors import read_json

TOKENIZER_OPTIONS = "tokenizer_config.json"
_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean",  # the same vector once it has length 1
    "cls": "cls",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean",
}
"""sentence-transformers' ways of pooling, as flags and, in its newer versions, as names → those of `bert.POOLINGS`."""
_OF_POOLING = frozenset({"pooling_mode", "word_embedding_dimension", "embedding_dimension"})
_OF_TRANSFORMER = frozenset(
    {"max_seq_length", "do_lower_case", "model_args", "tokenizer_args", "config_args"}
)
_OF_TEXTS = frozenset(
    {"__version__", "model_type", "prompts", "default_prompt_name", "similarity_fn_name"}
)


@dataclass(frozen=True)
class SentenceSettings:
    """How sentences are embedded."""

    pooling: str = "mean"
    """One of `bert.POOLINGS`."""
    max_tokens: int = 512
    lower: bool = False
    """Whether letters become small ones before the tokenizer sees them."""
    prompt: str = ""
    """Put before each sentence."""

    def text(self, sentence: str) -> str:
        """What is tokenized."""
        text = self.prompt + sentence
        return text.lower() if self.lower else text


def sentence_settings(directory: Path, positions: int) -> SentenceSettings:
    """The settings of a checkpoint whose model has so many positions. Warns of what is not followed
    (`relaxpy.checkpoints.unread.UnreadWarning`). Raises: UsageError: `bad-config` for what is not supported,
    `bad-checkpoint` for a file that cannot be read."""
    path = directory / "sentence_bert_config.json"
    fields = _optional(path)
    warn_unread(path, unknown_fields(fields, _OF_TRANSFORMER, {"query_prompt": ""}))
    longest = whole(fields, "max_seq_length", least=0) or _tokenizer_length(directory) or positions
    texts = directory / "config_sentence_transformers.json"
    other = _optional(texts)
    warn_unread(texts, unknown_fields(other, _OF_TEXTS))
    return SentenceSettings(
        _pooling(directory),
        min(longest, positions),
        flag(fields, "do_lower_case"),
        _prompt(texts, other),
    )


def _optional(path: Path) -> Mapping[str, Any]:
    """The fields of a file that need not be there."""
    if not path.is_file():
        return {}
    fields = read_json(path)
    if not is_mapping(fields):
        raise UsageError("bad-config", f"{path} has no fields: it is a {type(fields).__name__}")
    return fields


def tokenizer_options(directory: Path) -> Mapping[str, Any]:
    """The fields of `tokenizer_config.json`, if it is there."""
    return _optional(directory / TOKENIZER_OPTIONS)


def _tokenizer_length(directory: Path) -> int | None:
    """The most tokens that the tokenizer's configuration says; it may say a very large number, for none."""
    found = tokenizer_options(directory).get("model_max_length")
    return found if isinstance(found, int) and 2 < found < 1 << 31 else None


def _prompt(path: Path, fields: Mapping[str, Any]) -> str:
    name, prompts = fields.get("default_prompt_name"), fields.get("prompts") or {}
    if name is None:
        return ""
    prompt = prompts.get(name) if is_mapping(prompts) else None
    if not isinstance(prompt, str):
        raise UsageError("bad-config", f"{path} has no prompt {name!r}, its default_prompt_name")
    return prompt


def _pooling(directory: Path) -> str:
    """How sentence-transformers makes one vector of a row: by the module Pooling that `modules.json` names; the mean
    without that file."""
    modules = directory / "modules.json"
    if not modules.is_file():
        return "mean"
    listed = read_json(modules)
    entries = [each for each in listed if is_mapping(each)] if is_list(listed) else []
    kinds = {str(each.get("type", "")).rpartition(".")[2]: each.get("path") for each in entries}
    if unknown := sorted(kinds.keys() - {"Transformer", "Pooling", "Normalize"}):
        raise UsageError(
            "bad-config", f"{modules} has the module {unknown[0]!r}, which is not supported"
        )
    folder = kinds.get("Pooling")
    if folder is None:
        raise UsageError("bad-config", f"{modules} names no module Pooling")
    if not isinstance(folder, str) or Path(folder).name != folder or "\0" in folder:
        raise UsageError("bad-config", f"{modules} names {folder!r}, which is no folder beside it")
    path = directory / folder / CONFIG_FILE
    fields = read_json(path)
    if not is_mapping(fields):
        raise UsageError("bad-config", f"{path} has no fields: it is a {type(fields).__name__}")
    given = fields.get("pooling_mode")
    flags = [name for name in fields if name.startswith("pooling_mode_")]
    modes = [given] if given else [name for name in flags if fields[name] is True]
    found = [_POOLINGS.get(str(mode)) for mode in modes]
    if len(found) != 1 or found[0] is None:
        raise UsageError(
            "bad-config",
            f"{path} pools by {', '.join(map(str, modes)) or 'nothing'}, which is not supported",
            help="supported are the mean of the tokens and the first token (cls), one of them",
        )
    warn_unread(path, unknown_fields(fields, {*_OF_POOLING, *flags}, {"include_prompt": True}))
    if "Normalize" not in kinds:
        what = "it has no module Normalize, and vectors have length 1 here"
        warn_unread(modules, [what])
    return found[0]
