"""The tokenizer in a GGUF file, as one of the package tokenizers.

    tokenizer.ggml.model          gpt2: byte pairs of bytes, with merges; llama: SentencePiece, with scores
    tokenizer.ggml.pre            how gpt2 splits a text before merging, by the name of a model that does so
    tokenizer.ggml.tokens, token_type, scores, merges, …_token_id, add_bos_token, add_space_prefix
    tokenizer.chat_template       and tokenizer.chat_template.NAME

The patterns are those of the models' own `tokenizer.json`. Other names are refused: a wrong split gives other tokens
without an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relaxpy.checkpoints.gguf import read_gguf
from relaxpy.checkpoints.tokenizer_file import tokenizers_package
from relaxpy.checkpoints.unread import unknown_fields, warn_unread
from relaxpy.errors import UsageError

_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
"""The types of tokens."""
_MOST_TOKENS = 1 << 24
_MARK = "\u2581"
"""Of SentencePiece, for a space."""

_ENDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_ENDS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_ENDS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SLASHED = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _cased(ending: str, digits: str) -> str:
    """The pattern of models that split words where their case changes."""
    words = (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}{rest}{ending}" for rest in (f"*{_LOWER}+", f"+{_LOWER}*")
    )
    return f"{'|'.join(words)}|{digits}|{_SLASHED}"


def _split(*patterns: str) -> list[dict[str, Any]]:
    return [
        {"type": "Split", "pattern": {"Regex": each}, "behavior": "Isolated", "invert": False}
        for each in patterns
    ]


def byte_steps(use_regex: bool) -> dict[str, Any]:
    """The step that makes characters of bytes, and back."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


_DIGITS = {"type": "Digits", "individual_digits": True}
_GPT2 = [byte_steps(True)]
_LLAMA3_STEPS = [*_split(_LLAMA3), byte_steps(False)]
_QWEN2_STEPS = [*_split(_QWEN2), byte_steps(False)]
_CODE_STEPS = [_DIGITS, byte_steps(True)]
_GPT4O_STEPS = [*_split(_cased(f"{_ENDS}?", r"\p{N}{1,3}")), byte_steps(False)]
_DEEPSEEK_V3 = _split(
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
)
PRE: Mapping[str, list[dict[str, Any]]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "mpt", "jais", "trillion"), _GPT2),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "smaug-bpe", "dbrx"), _LLAMA3_STEPS
    ),
    **dict.fromkeys(("qwen2", "stablelm2", "deepseek-r1-qwen", "megrez", "hunyuan"), _QWEN2_STEPS),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), _CODE_STEPS
    ),
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O_STEPS),
    "tekken": [*_split(_cased("", r"\p{N}")), byte_steps(False)],
    "deepseek-v3": [*_DEEPSEEK_V3, byte_steps(False)],
}
"""By `tokenizer.ggml.pre`: the steps before merging."""
_WITH_BOS = ("llama-bpe", "llama3", "llama-v3", "tekken")
"""Those whose texts begin with a token unless the file says otherwise."""
_COMPOSED = ("qwen2", "deepseek-r1-qwen")
"""Those that compose characters (NFC) first."""
_WHOLE = ("llama-bpe", "llama3", "llama-v3", "tekken", "gpt-4o", "llama4")
"""Those whose words that are tokens are not merged."""


@dataclass(frozen=True, eq=False)
class GgufTokenizer:
    """A tokenizer, and what a file says beside."""

    backend: Any
    """A `tokenizers.Tokenizer`."""
    special: Mapping[str, str]
    """The texts of special tokens by transformers' names: bos_token, eos_token, unk_token, pad_token."""
    end_tokens: tuple[int, ...]
    """The tokens that end a text or a turn."""
    chat_templates: Mapping[str, str] = field(default_factory=dict[str, str])
    """Templates in Jinja; that without a name is "default"."""


def gguf_tokenizer(path: Path) -> GgufTokenizer:
    """The tokenizer of a GGUF file.

    Raises: UsageError: `bad-checkpoint` for a file that cannot be read, or whose tokenizer is absent, damaged, or not
    supported; `extra-missing` without the package tokenizers.
    """
    package = tokenizers_package()
    reader = _Reader(Path(path), read_gguf(Path(path)).fields)
    text = json.dumps(reader.fields_of_json())
    try:
        backend = package.Tokenizer.from_str(text)
    except BaseException as error:  # its panics are no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit | MemoryError):
            raise
        raise reader.bad(f"its tokenizer is damaged: {str(error)[:200]}") from None
    warn_unread(Path(path), reader.unread())
    return GgufTokenizer(backend, reader.special(), reader.ends(), reader.templates())


_KNOWN = frozenset(
    f"tokenizer.ggml.{name}"
    for name in "model pre tokens token_type scores merges bos_token_id eos_token_id eot_token_id eom_token_id "
    "unknown_token_id padding_token_id add_bos_token add_eos_token add_space_prefix "
    # They change no text: names of tokens for tasks that are not here, and the number of types of BERT.
    "token_type_count seperator_token_id cls_token_id mask_token_id prefix_token_id suffix_token_id middle_token_id "
    "fim_pre_token_id fim_suf_token_id fim_mid_token_id fim_pad_token_id fim_rep_token_id fim_sep_token_id".split()
) | {"tokenizer.chat_templates", "tokenizer.huggingface.json", "tokenizer.rwkv.world"}
"""The fields that are read, and those that change nothing here."""


class _Reader:
    """The fields of a file, as those of a `tokenizer.json`."""

    def __init__(self, path: Path, fields: Mapping[str, Any]) -> None:
        self.path, self.fields = path, fields
        self.model = self.get("model", str, "")
        self.pre = self.get("pre", str, "")
        if fields.get("general.architecture") == "clip":
            raise self.bad(
                "it is the projector of a pair: give it as mmproj, with the model's file"
            )
        if self.model not in ("gpt2", "llama"):
            raise self.bad(
                f"its tokenizer is of the model {self.model!r}; gpt2 and llama are supported"
                if self.model
                else "it has no tokenizer"
            )
        self.tokens: list[str] = self.strings("tokens")
        if not self.tokens or len(self.tokens) > _MOST_TOKENS:
            raise self.bad(f"its tokenizer has {len(self.tokens)} tokens")
        self.types = self.numbers("token_type", int) or [_NORMAL] * len(self.tokens)

    def unread(self) -> list[str]:
        """The fields that may change tokens and are not read, with their values."""
        own = {name: value for name, value in self.fields.items() if name.startswith("tokenizer.")}
        templates = {name for name in own if name.startswith("tokenizer.chat_template")}
        return unknown_fields(own, _KNOWN | templates)

    def fields_of_json(self) -> dict[str, Any]:
        """The `tokenizer.json`."""
        made = self.byte_pairs() if self.model == "gpt2" else self.pieces()
        added = [
            {
                "id": number, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": kind == _CONTROL,
            }
            for number, (text, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind in (_CONTROL, _USER) and text
        ]  # fmt: skip
        return {
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "post_processor": self.around(), **made,
        }  # fmt: skip

    def byte_pairs(self) -> dict[str, Any]:
        """The parts of a model of byte pairs."""
        steps = PRE.get(self.pre)
        if steps is None:
            raise self.bad(
                f"its tokenizer splits texts as {self.pre or 'default'!r}, which is not supported "
                f"(tokenizer.ggml.pre); supported are {', '.join(PRE)}"
            )
        vocab = self.vocab()
        pairs: list[list[str]] = []
        for merge in self.strings("merges"):
            left, space, right = merge.partition(" ")
            if not space or left not in vocab or right not in vocab or left + right not in vocab:
                raise self.bad(f"its tokenizer has the merge {merge!r} of what are no tokens")
            pairs.append([left, right])
        model = {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": self.pre in _WHOLE, "vocab": vocab, "merges": pairs,
        }  # fmt: skip
        return {
            "normalizer": {"type": "NFC"} if self.pre in _COMPOSED else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
            "model": model,
            "decoder": byte_steps(True),
        }

    def pieces(self) -> dict[str, Any]:
        """The parts of a model of SentencePiece: its merges are all pairs of pieces that make a piece, the best
        first."""
        vocab, scores = self.vocab(), self.numbers("scores", float)
        if len(scores) != len(self.tokens):
            raise self.bad(f"its tokenizer has {len(self.tokens)} tokens and {len(scores)} scores")
        found: list[tuple[float, int, int, str, str]] = []
        for number, text in enumerate(self.tokens):
            if self.types[number] not in (_NORMAL, _USER, _UNUSED):
                continue
            for at in range(1, len(text)):
                left, right = text[:at], text[at:]
                if left in vocab and right in vocab:
                    found.append((-scores[number], vocab[left], vocab[right], left, right))
        found.sort()
        unknown = self.token("unknown_token_id")
        has_bytes = any(kind == _BYTE for kind in self.types)
        spaced = self.get("add_space_prefix", bool, True)
        model = {
            "type": "BPE", "dropout": None, "unk_token": unknown, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": has_bytes, "ignore_merges": False,
            "vocab": vocab, "merges": [[left, right] for *_, left, right in found],
        }  # fmt: skip
        replaced = {"type": "Replace", "pattern": {"String": " "}, "content": _MARK}
        before = [{"type": "Prepend", "prepend": _MARK}] if spaced else []
        after = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if spaced else []
        return {
            "normalizer": {"type": "Sequence", "normalizers": [*before, replaced]},
            "pre_tokenizer": None,
            "model": model,
            "decoder": {
                "type": "Sequence",
                "decoders": [
                    {"type": "Replace", "pattern": {"String": _MARK}, "content": " "},
                    {"type": "ByteFallback"},
                    {"type": "Fuse"},
                    *after,
                ],
            },
        }

    def around(self) -> dict[str, Any] | None:
        """The tokens around each text."""
        first = self.get("add_bos_token", bool, self.model == "llama" or self.pre in _WITH_BOS)
        last = self.get("add_eos_token", bool, False)
        begin = self.token("bos_token_id") if first else None
        end = self.token("eos_token_id") if last else None
        if begin is None and end is None:
            return byte_steps(True) if self.model == "gpt2" else None

        def piece(text: str | None, number: int) -> list[dict[str, Any]]:
            return [] if text is None else [{"SpecialToken": {"id": text, "type_id": number}}]

        def whole(name: str, number: int) -> list[dict[str, Any]]:
            own = {"Sequence": {"id": name, "type_id": number}}
            return [*piece(begin, number), own, *piece(end, number)]

        numbers = {text: self.tokens.index(text) for text in (begin, end) if text is not None}
        return {
            "type": "TemplateProcessing",
            "single": whole("A", 0),
            "pair": [*whole("A", 0), *whole("B", 1)],
            "special_tokens": {
                text: {"id": text, "ids": [number], "tokens": [text]}
                for text, number in numbers.items()
            },
        }

    def vocab(self) -> dict[str, int]:
        """The numbers of the tokens."""
        found = {text: number for number, text in enumerate(self.tokens)}
        if len(found) != len(self.tokens):
            raise self.bad("its tokenizer has a token twice")
        return found

    def special(self) -> dict[str, str]:
        """The texts of the special tokens."""
        names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
        found = {f"{ours}_token": self.token(f"{name}_token_id") for ours, name in names.items()}
        return {name: text for name, text in found.items() if text is not None}

    def ends(self) -> tuple[int, ...]:
        """The tokens that end a text or a turn."""
        names = ("eos_token_id", "eot_token_id", "eom_token_id")
        found = [self.get(name, int) for name in names if self.token(name) is not None]
        return tuple(dict.fromkeys(found))

    def templates(self) -> dict[str, str]:
        """The chat templates."""
        key = "tokenizer.chat_template"
        found = {
            "default" if name == key else name.removeprefix(f"{key}."): text
            for name, text in self.fields.items()
            if name == key or name.startswith(f"{key}.")
        }
        for name, text in found.items():
            if not isinstance(text, str):
                raise self.bad(f"its chat template {name} is {text!r:.60}, not a text")
        return found

    def token(self, name: str) -> str | None:
        """The text of a special token; None if there is none."""
        number: int | None = self.get(name, int)
        if number is None or number == 0xFFFFFFFF:  # none, as some files say
            return None
        if not 0 <= number < len(self.tokens):
            raise self.bad(f"tokenizer.ggml.{name} is {number}, of {len(self.tokens)} tokens")
        return self.tokens[number]

    def get(self, name: str, kind: type, default: Any = None) -> Any:
        """A field of this type."""
        value = self.fields.get(f"tokenizer.ggml.{name}")
        if value is None:
            return default
        if type(value) is not kind:
            raise self.bad(f"tokenizer.ggml.{name} is {value!r:.60}, not {kind.__name__}")
        return value

    def strings(self, name: str) -> list[str]:
        """A list of texts."""
        return self._list(name, str)

    def numbers(self, name: str, kind: type) -> list[Any]:
        """A list of numbers, one for each token; [] if it is absent."""
        found = self._list(name, kind)
        if found and len(found) != len(self.tokens):
            raise self.bad(
                f"its tokenizer has {len(self.tokens)} tokens and {len(found)} of {name}"
            )
        if kind is float and any(x != x for x in found):
            raise self.bad(f"tokenizer.ggml.{name} has a NaN")
        return found

    def _list(self, name: str, kind: type) -> list[Any]:
        value: list[Any] | None = self.fields.get(f"tokenizer.ggml.{name}", [])
        if not isinstance(value, list) or (value and type(value[0]) is not kind):
            raise self.bad(f"tokenizer.ggml.{name} is not a list of {kind.__name__}")
        return value

    def bad(self, reason: str) -> UsageError:
        return UsageError("bad-checkpoint", f"{self.path} cannot be read as GGUF: {reason}")
