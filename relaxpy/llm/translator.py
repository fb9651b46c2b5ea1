"""Translations by models with an encoder of text: Opus-MT (Marian), mBART, M2M-100, NLLB and T5.

    translator = load_translator("Helsinki-NLP/opus-mt-en-de")
    for text in translator.translate(["How are you?", "Fine."], to="de"):
        print(text)

Texts are translated line by line, several in the same steps; a line that is too long for the model is cut between
sentences. Languages are those that the checkpoint names (`relaxpy.llm.translation_languages`); a T5 is told by words
before the text, which its `config.json` has for each translation that it has learned (`task_specific_params`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from relaxpy.checkpoints.config_file import CONFIG_FILE, config_of
from relaxpy.checkpoints.hub import checkpoint_name, local_checkpoint
from relaxpy.checkpoints.sentencepiece import MARK, read_sentencepiece
from relaxpy.checkpoints.tokenizer_file import TOKENIZER_FILE
from relaxpy.errors import UsageError
from relaxpy.llm.checkpoint_files import optional_json
from relaxpy.llm.generation_config import GENERATION_CONFIG_FILE, SEARCH, Recommended, recommended
from relaxpy.llm.seq2seq import Seq2SeqModel, load_seq2seq
from relaxpy.llm.tokenizer import TOKENIZER_CONFIG_FILE, Tokenizer
from relaxpy.llm.translation_languages import Languages, is_same, language_tokens, short_code
from relaxpy.models.loaded import Scheme
from relaxpy.narrow import is_list, is_mapping
from relaxpy.serve import Request
from relaxpy.serve.beams import Beams
from relaxpy.serve.request import Features

_BY_WORDS = ("t5", "mt5", "umt5")
TYPES = ("marian", "mbart", "m2m_100", *_BY_WORDS)
"""The `model_type` of models that translate."""
_M2M_LANGUAGES = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu "
    "hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt "
    "ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
).split()
"""M2M-100's languages, whose tokens come after those of `vocab.json` in this order."""
_TASK = re.compile(r"translation_(?P<source>\w+?)_to_(?P<target>\w+)")
_SENTENCES = re.compile(r"(?<=[.!?。！？…])\s+|(?<=[。！？])")


class Codec(Protocol):
    """Text to the tokens of a model and back, without those that control."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...


class _FileCodec:
    """By `tokenizer.json`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode_literally(text)

    def decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(tokens).strip()


class _PieceCodec:
    """By a model of SentencePiece, and `vocab.json` with the numbers of its pieces."""

    def __init__(self, path: Path, vocab: dict[str, int]) -> None:
        self.backend, self.vocab = read_sentencepiece(path).backend(), vocab
        self.unknown = vocab["<unk>"]
        self.pieces = {number: text for text, number in vocab.items()}

    def encode(self, text: str) -> list[int]:
        found = self.backend.encode(text, add_special_tokens=False).tokens
        return [self.vocab.get(piece, self.unknown) for piece in found]

    def decode(self, tokens: Sequence[int]) -> str:
        texts = (self.pieces.get(token, "") for token in tokens)
        text = "".join(text for text in texts if text not in ("<unk>", "<pad>", "<s>", "</s>"))
        return text.replace(MARK, " ").strip()


@dataclass(frozen=True)
class _Task:
    """A translation that a model is told by words before the text."""

    source: str
    target: str
    words: str
    """"translate English to German: ", say."""
    defaults: Recommended
    beams: Beams | None


@dataclass(frozen=True)
class _Form:
    """How a model is told the languages."""

    languages: Languages
    target: str = ""
    """The language that all texts are translated to, of a model that knows one; "": it is a token, or not known."""
    source: str = ""
    """The same of what it reads."""
    names_source: bool = True
    """Whether the language of a text is a token of it."""
    source_last: bool = False
    """Whether this token is the last, after the end; else it is the first."""
    starts: bool = True
    """Whether a translation begins with `decoder_start_token_id`, before the token of its language."""
    tasks: tuple[_Task, ...] = ()
    """The translations that words before the text ask for; (): nothing does."""


class Translator:
    """A model that translates. Safe to use from several threads."""

    def __init__(
        self,
        model: Seq2SeqModel,
        codec: Codec,
        form: _Form,
        *,
        defaults: Recommended,
        beams: Beams | None,
        name: str = "model",
        batch: int = 8,
    ) -> None:
        """`load_translator` makes one of a checkpoint."""
        self.model, self.codec, self.form, self.name = model, codec, form, name
        self.defaults, self.beams, self.batch = defaults, beams, batch
        config = model.decoder.config
        self.end = _number(config, "eos_token_id", 2)
        self._start = _number(config, "decoder_start_token_id", self.end)

    def __repr__(self) -> str:
        return f"<translator {self.name}: {', '.join(self.languages) or 'one language'}>"

    @property
    def languages(self) -> list[str]:
        """The languages that it translates to; none if the checkpoint does not say it."""
        one = [self.form.target] if self.form.target else []
        by_words = sorted({task.target for task in self.form.tasks})
        return sorted(self.form.languages.numbers) or by_words or one

    def translate(
        self,
        texts: Iterable[str],
        to: str,
        *,
        source: str | None = None,
        max_tokens: int | None = None,
        beams: Beams | None = None,
    ) -> Iterator[str]:
        """The translations of texts, in their order, each when those before it are there. Lines are kept. `source` is
        the language of the texts, which some models need to know. `max_tokens` bounds the translation of a line, or a
        part of one; without `beams` the search is that of the checkpoint.

        Raises: UsageError, before anything is translated: `bad-arguments` for languages that the model does not know,
        or needs to know; `bad-prompt` for a sentence that is too long.
        """
        task = self._task(to, source)
        words, defaults = (task.words, task.defaults) if task else ("", self.defaults)
        begin, prefix, suffix = self._around(to, source)
        room = self.model.source.positions - len(prefix) - len(suffix)
        length = self.model.decoder.positions - len(begin)
        limit = min(max_tokens or length, length)
        if max_tokens is None:
            limit = defaults.most_tokens(len(begin), length)
        if defaults.last is not None:
            limit = max(1, limit - 1)
        asked = Request(
            0, begin, limit, defaults.sampling_after(len(begin)), frozenset({self.end}),
            beams=beams or (task.beams if task else self.beams),
        )  # fmt: skip
        lines = [text.split("\n") for text in texts]
        every = enumerate((line for text in lines for line in text), 1)
        parts = [self._parts(line, room, number, words) for number, line in every]
        requests = [
            replace(asked, features=Features(np.array([*prefix, *part, *suffix])))
            for line in parts
            for part in line
        ]
        return self._joined([len(text) for text in lines], parts, requests)

    def _joined(
        self, lines: Sequence[int], parts: Sequence[list[list[int]]], requests: Sequence[Request]
    ) -> Iterator[str]:
        """The texts, each of so many lines, of which each has its parts."""
        written = self._written(requests)
        numbers = iter(parts)
        for count in lines:
            shown = [" ".join(next(written) for _ in next(numbers)) for _ in range(count)]
            yield "\n".join(shown)

    def _written(self, requests: Sequence[Request]) -> Iterator[str]:
        for at in range(0, len(requests), self.batch):
            for each in self.model.write_all(requests[at : at + self.batch]):
                yield self.codec.decode([token for token in each.tokens if token != self.end])

    def _parts(self, line: str, room: int, number: int, words: str) -> list[list[int]]:
        """The tokens of a line, cut between sentences if it is too long, with the words before each part; none of an
        empty one."""

        def encode(text: str) -> list[int]:
            return self.codec.encode(words + text)

        whole = encode(line) if line.strip() else []
        if len(whole) <= room:
            return [whole] if whole else []
        found: list[list[int]] = []
        waiting = ""
        for sentence in [each for each in _SENTENCES.split(line) if each]:
            longer = f"{waiting} {sentence}" if waiting else sentence
            if waiting and len(encode(longer)) > room:
                found.append(encode(waiting))
                longer = sentence
            waiting = longer
            if (length := len(encode(waiting))) > room:
                raise UsageError(
                    "bad-prompt",
                    f"line {number} has a sentence of {length} tokens, and {self.name} reads {room}: "
                    f"{sentence[:60]!r}…",
                    help="cut it with a full stop, or into lines",
                )
        return [*found, encode(waiting)]

    def _task(self, to: str, source: str | None) -> _Task | None:
        """The translation that words ask for; None if nothing is said by words. Raises: UsageError (`bad-arguments`)
        for one that the model has not learned, or of which there are several."""
        tasks = self.form.tasks
        if not tasks:
            return None
        found = [
            each
            for each in tasks
            if is_same(short_code(to), each.target)
            and (source is None or is_same(short_code(source), each.source))
        ]
        if len(found) == 1:
            return found[0]
        known = ", ".join(f"{each.source} to {each.target}" for each in tasks)
        if not found:
            raise UsageError(
                "bad-arguments",
                f"{self.name} has not learned to translate{f' from {source!r}' if source else ''} to {to!r}",
                help=f"it translates {known}",
            )
        raise UsageError(
            "bad-arguments",
            f"{self.name} translates several languages to {to!r}, and must be told which one",
            help=f"--from CODE, or source=CODE; it translates {known}",
        )

    def _around(self, to: str, source: str | None) -> tuple[tuple[int, ...], list[int], list[int]]:
        """The first tokens of a translation, and those before and after a text."""
        form = self.form
        if form.tasks:
            return (self._start,), [], [self.end]
        if not form.names_source:
            if source is not None and form.source and not is_same(source, form.source):
                raise _unknown(self.name, source, f"it reads {form.source}")
            if form.languages.numbers:
                return (self._start,), [form.languages.numbers[form.languages.code(to)]], [self.end]
            if form.target and not is_same(to, form.target):
                raise _unknown(self.name, to, f"it writes {form.target}")
            return (self._start,), [], [self.end]
        target = form.languages.code(to)
        if source is None:
            raise UsageError(
                "bad-arguments",
                f"{self.name} reads many languages, and must be told which one",
                help=f"--from CODE, or source=CODE; it knows {', '.join(self.languages)}",
            )
        own = form.languages.numbers[form.languages.code(source)]
        begin = form.languages.numbers[target]
        first = (self._start, begin) if form.starts else (begin,)
        return (first, [], [self.end, own]) if form.source_last else (first, [own], [self.end])


def _unknown(name: str, given: str, help: str) -> UsageError:
    return UsageError("bad-arguments", f"{name} does not know the language {given!r}", help=help)


def load_translator(
    place: str | os.PathLike[str],
    *,
    scheme: Scheme | None = None,
    batch: int = 8,
    target: str = "llvm",
    keep: bool = True,
) -> Translator:
    """The translator of a checkpoint, a folder or a name on the Hugging Face hub. Options are those of
    `relaxpy.llm.seq2seq.load_seq2seq`.

    Raises: UsageError: `bad-config` for a model that does not translate, `bad-checkpoint`, `bad-weights`.
    """
    folder = local_checkpoint(place)
    config = config_of(folder) or {}
    kind = config.get("model_type")
    if kind not in TYPES:
        raise UsageError(
            "bad-config",
            f"a model of type {kind!r} does not translate",
            help=f"those that do are of type {', '.join(TYPES)}",
        )
    if kind in _BY_WORDS:
        tasks = _tasks(folder, config)
        codec, form = (
            _FileCodec(Tokenizer.from_checkpoint(folder)),
            _Form(Languages({}), tasks=tasks),
        )
        searches = [task.beams.num_beams for task in tasks if task.beams]
    else:
        codec, form = _codec(folder, str(kind))
        tasks, searches = (), []
    # A text is translated once, into the language that is asked for.
    defaults = recommended(folder, config, followed=SEARCH[:3])
    search = defaults.beams
    searches += [search.num_beams] if search else []
    model = load_seq2seq(
        folder,
        scheme=scheme,
        batch=batch * max(searches, default=1),
        target=target,
        keep=keep,
    )
    name = checkpoint_name(folder)
    return Translator(model, codec, form, defaults=defaults, beams=search, name=name, batch=batch)


def _tasks(folder: Path, config: Mapping[str, Any]) -> tuple[_Task, ...]:
    """The translations of a checkpoint that is told by words, with the search and the lengths of each, as transformers'
    pipeline has them. Raises: UsageError (`bad-config`) without any."""
    given: Any = config.get("task_specific_params")
    own = optional_json(folder / GENERATION_CONFIG_FILE)
    found: list[_Task] = []
    for name, fields in given.items() if is_mapping(given) else ():
        match = _TASK.fullmatch(name) if isinstance(name, str) else None
        words: Any = fields.get("prefix") if is_mapping(fields) else None
        if match is None or not isinstance(words, str):
            continue
        search = recommended(None, {**config, **own, **fields}, followed=SEARCH)
        found.append(_Task(match["source"], match["target"], words, search, search.beams))
    if not found:
        raise UsageError(
            "bad-config",
            f"{folder / CONFIG_FILE} names no translation in task_specific_params: by which words to ask is unknown",
            help="relaxpy generate takes the model, with the words as part of the prompt",
        )
    return tuple(found)


def _codec(folder: Path, kind: str) -> tuple[Codec, _Form]:
    """The tokens of a checkpoint, and how it is told languages. Raises: UsageError (`bad-checkpoint`)."""
    options = optional_json(folder / TOKENIZER_CONFIG_FILE)
    if (folder / TOKENIZER_FILE).is_file():
        tokenizer = Tokenizer.from_checkpoint(folder)
        vocab: dict[str, int] = tokenizer.backend.get_vocab(with_added_tokens=True)
        codec: Codec = _FileCodec(tokenizer)
    else:
        name = "source.spm" if kind == "marian" else "sentencepiece.bpe.model"
        own = optional_json(folder / "vocab.json")
        vocab = {text: number for text, number in own.items() if type(number) is int}
        if "<unk>" not in vocab:
            raise UsageError(
                "bad-checkpoint",
                f"{folder} has neither a {TOKENIZER_FILE} nor a vocab.json with <unk>: the tokens are unknown",
            )
        codec = _PieceCodec(folder / name, vocab)
        if kind == "m2m_100":
            vocab = {**vocab, **{f"__{code}__": len(vocab) + n for n, code in enumerate(_M2M_LANGUAGES)}}  # fmt: skip
    languages = Languages(language_tokens(vocab.items()))
    if kind == "marian":
        source, target = (str(options.get(f"{name}_lang") or "") for name in ("source", "target"))
        return codec, _Form(languages, target, source, names_source=False)
    if not languages.numbers:
        raise UsageError("bad-checkpoint", f"{folder} has no tokens of languages")
    if kind == "mbart":
        is_fifty = "50" in str(options.get("tokenizer_class"))
        return codec, _Form(languages, source_last=not is_fifty, starts=is_fifty)
    return codec, _Form(languages, source_last=options.get("legacy_behaviour") is True)


def _number(config: Any, name: str, default: int) -> int:
    """A token of `config.json`; the first of several."""
    given: Any = config.get(name)
    first: Any = given[0] if is_list(given) and given else given
    return first if isinstance(first, int) else default
