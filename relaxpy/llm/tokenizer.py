"""The tokenizer of a checkpoint: text to tokens and back, and messages to the prompt of a chat.

    tokenizer.json                the vocabulary and its algorithm, read by the package tokenizers
    tokenizer_config.json         names of special tokens, and mostly the chat template
    special_tokens_map.json       those names in older checkpoints
    generation_config.json        the tokens that begin and end a text, and options of sampling
    config.json                   the tokens that begin and end a text, in older checkpoints
    chat_template.jinja, additional_chat_templates/*.jinja, chat_template.json     templates in files of their own

Only the first is needed. A message of a chat is text: control tokens that somebody writes into it do not control.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from relaxpy.checkpoints import gguf_tokenizer
from relaxpy.checkpoints.ggml import is_ggml
from relaxpy.checkpoints.ggml_tokenizer import ggml_tokenizer
from relaxpy.checkpoints.gguf_projector import Projector, projector_of
from relaxpy.checkpoints.tokenizer_file import one_line, read_tokenizer, unread_options
from relaxpy.checkpoints.unread import warn_unread
from relaxpy.errors import UsageError
from relaxpy.llm.chat_template import ChatTemplate, checked_messages, plain, read_templates
from relaxpy.llm.checkpoint_files import optional_json
from relaxpy.llm.detokenizer import (
    Detokenizer,
    byte_level_bytes,
    decoder_kinds,
    fallback_byte,
)
from relaxpy.llm.generation_config import GENERATION_CONFIG_FILE
from relaxpy.llm.seeing_template import seeing_templates
from relaxpy.llm.template_probes import Abilities, abilities
from relaxpy.models.checkpoint import CONFIG_FILE
from relaxpy.narrow import is_list, is_mapping, is_sequence

TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
_MARK, _MARK_END = "\ufdd0", "\ufdd1"
"""Noncharacters of Unicode, between which a template is given the number of a control token in a message."""
_MARKED = re.compile(f"{_MARK}([0-9]+){_MARK_END}")


class Tokenizer:
    """Text to tokens and back, as a checkpoint says."""

    def __init__(
        self,
        backend: Any,
        *,
        special: Mapping[str, str] | None = None,
        end_tokens: Sequence[int] = (),
        first_token: int | None = None,
        templates: Mapping[str, ChatTemplate] | None = None,
        place: str | os.PathLike[str] = "",
    ) -> None:
        """`backend` is a `tokenizers.Tokenizer`; `special` has texts of special tokens by their names (`bos_token`)."""
        self.backend = backend
        self.special = dict(special or {})
        self.templates = dict(templates or {})
        self.place = Path(place)
        added: Mapping[int, Any] = backend.get_added_tokens_decoder()
        self.added: dict[int, str] = {number: each.content for number, each in added.items()}
        """Tokens that are found in a text before its vocabulary is used, by number."""
        self.special_tokens = frozenset(n for n, each in added.items() if each.special)
        """Tokens that control and are no text."""
        ends = {*end_tokens, self.number(self.special.get("eos_token", ""))} - {None}
        self.end_tokens: frozenset[int] = frozenset(n for n in ends if n is not None)
        """Tokens that end a text."""
        bos = self.number(self.special.get("bos_token", ""))
        self.first_token = bos if first_token is None else first_token
        """The token that begins a text of which nothing is there yet; None: there is none."""

    @classmethod
    def from_checkpoint(
        cls, place: str | os.PathLike[str], mmproj: str | os.PathLike[str] | None = None
    ) -> Self:
        """The tokenizer of a checkpoint's directory, or of a GGUF file or one of whisper.cpp. That of a pair of GGUF
        files (with `mmproj`, or found: `projector_of`) has the placeholder of pictures, and templates that write it.

        Raises: UsageError (`bad-checkpoint`) for a file that is missing or damaged.
        """
        folder = Path(place)
        if folder.is_file():
            return cls._from_file(folder, projector_of(folder, mmproj))
        backend = read_tokenizer(folder)
        config = optional_json(folder / TOKENIZER_CONFIG_FILE)
        special = {
            **_special(optional_json(folder / "special_tokens_map.json")),
            **_special(config),
        }
        _set_ends(backend, config, special, folder / TOKENIZER_CONFIG_FILE)
        warn_unread(folder / TOKENIZER_CONFIG_FILE, unread_options(backend, config))
        both = [folder / name for name in (GENERATION_CONFIG_FILE, CONFIG_FILE)]
        firsts = [number for path in both for number in _tokens_of(path, "bos_token_id")]
        return cls(
            backend,
            special=special,
            end_tokens=[number for path in both for number in _tokens_of(path, "eos_token_id")],
            first_token=firsts[0] if firsts else None,
            templates=read_templates(folder, config),
            place=folder,
        )

    @classmethod
    def _from_file(cls, path: Path, projector: Projector | None) -> Self:
        found = ggml_tokenizer(path) if is_ggml(path) else gguf_tokenizer(path)
        templates = {
            name: ChatTemplate(text, str(path)) for name, text in found.chat_templates.items()
        }
        if projector is not None:
            found.backend.add_special_tokens([mark := projector.placeholder])
            templates = seeing_templates(templates, mark, found.special, str(path))
        ends = found.end_tokens
        return cls(
            found.backend, special=found.special, end_tokens=ends, templates=templates, place=path
        )

    def __len__(self) -> int:
        """The number of tokens."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    def __repr__(self) -> str:
        chat = f", chat template {', '.join(self.templates)}" if self.templates else ""
        return f"<tokenizer of {self.place.name or 'a checkpoint'}: {len(self)} tokens{chat}>"

    def number(self, text: str) -> int | None:
        """The number of a token; None if there is no such token."""
        return self.backend.token_to_id(text) if text else None

    def token_text(self, token: int) -> str | None:
        """A token as the vocabulary writes it; None if there is no such token."""
        return self.backend.id_to_token(token) if 0 <= token < 1 << 32 else None

    @cached_property
    def thinks_in_channels(self) -> bool:
        """Whether answers have channels, one of them for thoughts (gpt-oss)."""
        return all(
            self.number(mark) in self.special_tokens for mark in ("<|channel|>", "<|message|>")
        )

    # Text

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The tokens of a text, with those that the checkpoint puts around each text if `special`. Control tokens in
        the text are tokens. Raises: UsageError (`bad-prompt`)."""
        return self._encoded(self.backend, text, special)

    def encode_literally(self, text: str) -> list[int]:
        """The tokens of a text in which nothing is a control token."""
        if not text:
            return []
        tokens = self._encoded(self._without_added, text, special=False)
        if self.added.keys().isdisjoint(tokens):
            return tokens
        if len(text) == 1:
            return [token for token in tokens if token not in self.added]
        # The vocabulary itself has control tokens: they are not found in their parts.
        middle = len(text) // 2
        return self.encode_literally(text[:middle]) + self.encode_literally(text[middle:])

    def decode(self, tokens: Sequence[int], special: bool = False) -> str:
        """The text of tokens, without the special ones unless `special`. Numbers of no token have no text."""
        known = [token for token in tokens if 0 <= token < 1 << 32]
        try:
            return self.backend.decode(known, skip_special_tokens=not special)
        except BaseException as error:
            raise _failed("decode", error) from None

    def detokenizer(
        self, special: bool = False, shown: Iterable[int] = (), begins: bool = True
    ) -> Detokenizer:
        """For tokens that come one by one. `shown` are special tokens that are text even so; without `begins` the text
        continues another one, such as a prompt."""
        return Detokenizer(self, special, shown, begins)

    def token_bytes(self, token: int, first: bool = False) -> bytes:
        """The bytes that a token adds to a text; as the `first` one of a text it may have no space before it. Those of
        the tokens of a text, joined, are the text. A number of no token has none."""
        text = self.token_text(token)
        if text is None:
            return b""
        if "ByteLevel" in self._decoders:
            return byte_level_bytes(text)
        byte = fallback_byte(text) if "ByteFallback" in self._decoders else None
        if byte is not None:
            return byte
        before = [] if first or self.plain_token is None else [self.plain_token]
        lead = self.decode(before, special=True)
        return self.decode([*before, token], special=True)[len(lead) :].encode("utf-8", "replace")

    @cached_property
    def plain_token(self) -> int | None:
        """A token of letters, after which the text of any other one is as in the middle of a text."""
        for token in range(len(self)):
            if token not in self.added and (self.token_text(token) or "").isalpha():
                text = self.decode([token], special=True)
                if text.isalpha() and self.decode([token, token], special=True).startswith(text):
                    return token
        return None

    @cached_property
    def _decoders(self) -> list[str]:
        return decoder_kinds(self.backend)

    def _encoded(self, backend: Any, text: str, special: bool) -> list[int]:
        if not isinstance(text, str):
            raise UsageError("bad-prompt", f"a text is a string, got {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                "bad-prompt",
                f"character {error.start} of the text is half of a surrogate pair, {text[error.start]!r}",
                help="decode the text from its bytes with errors='replace'",
            ) from None
        try:
            return backend.encode(text, add_special_tokens=special).ids
        except BaseException as error:
            raise _failed("encode", error) from None

    @cached_property
    def _without_added(self) -> Any:
        """The same vocabulary, in which no added token is looked for."""
        from tokenizers import Tokenizer as Backend

        fields = json.loads(self.backend.to_str())
        text = json.dumps({**fields, "added_tokens": [], "post_processor": None})
        try:
            return Backend.from_str(text)
        except BaseException as error:
            raise _failed("encode", error) from None

    # Chats

    def template(self, name: str | None = None, tools: bool = False) -> ChatTemplate:
        """The chat template of a name; None: that for `tools` if there is one, else the default.

        Raises: UsageError (`chat-template`) if there is none.
        """
        if name is None:
            name = "tool_use" if tools and "tool_use" in self.templates else "default"
        found = self.templates.get(name)
        if found is None:
            raise UsageError(
                "chat-template",
                f"{self.place} has no chat template {name!r}"
                if self.templates
                else f"{self.place} has no chat template: the model continues texts",
                help=f"there are {', '.join(self.templates)}"
                if self.templates
                else "use generate, or give a template: chat --template FILE, load(place, chat_template=text)",
            )
        return found

    def chat_text(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: str | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The messages as the template writes them, like `apply_chat_template(…, tokenize=False)` of transformers.
        `variables` are variables of the template (`enable_thinking=False`).

        Raises: UsageError: `bad-prompt` for messages that are none, `chat-template` if the template fails.
        """
        found = self.template(template, tools=tools is not None)
        return found.render(
            messages=checked_messages(messages),
            tools=tools,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **{**self.special, **variables},
        )

    def abilities(self, template: ChatTemplate) -> Abilities:
        """The abilities of a chat template."""
        return abilities(template, self.special)

    def chat_tokens(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: str | None = None,
        control: bool = False,
        **variables: Any,
    ) -> list[int]:
        """The prompt of a chat. Control tokens written in a message or a tool are text, unless `control`. A content
        that is a text is one part for a template that reads parts only, unless `control`."""
        if control:
            text = self.chat_text(messages, tools=tools, template=template, **variables)
            return self.encode(text, special=False)
        found = self.template(template, tools=tools is not None)
        marks = _Marks(self._control(found))
        shaped = self.abilities(found).shaped(checked_messages(messages))
        text = self.chat_text(
            [marks.marked(each) for each in shaped],
            tools=None if tools is None else marks.marked(plain(tools)),
            template=template,
            **variables,
        )
        tokens: list[int] = []
        for part, is_literal in marks.parts(text):
            tokens += (
                self.encode_literally(part) if is_literal else self.encode(part, special=False)
            )
        return tokens

    def answer_ends(self, template: str | None = None) -> frozenset[int]:
        """The tokens that end an answer in a chat: those that end a text, and the one that the template writes after an
        answer, unless each channel of an answer is a message that ends."""
        if self.thinks_in_channels:
            return self.end_tokens
        answer = "an-answer"
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": answer}]
        try:
            shaped = self.abilities(self.template(template)).shaped(messages)
            text = self.chat_text(shaped, template=template, add_generation_prompt=False)
        except UsageError:
            return self.end_tokens  # a template that refuses these messages
        if answer not in text:
            return self.end_tokens
        after = text.rpartition(answer)[2].lstrip()
        found = [n for n, own in self.added.items() if own.strip() and after.startswith(own)]
        return (
            self.end_tokens | {max(found, key=lambda n: len(self.added[n]))}
            if found
            else self.end_tokens
        )

    def _control(self, template: ChatTemplate) -> list[str]:
        """The tokens that control a chat: special ones, and those that the template writes."""
        return [
            text
            for number, text in self.added.items()
            if text
            and (number in self.special_tokens or (text in template.source and not text.isspace()))
        ]


class _Marks:
    """Control tokens in messages, hidden from the template and the tokenizer behind marks."""

    def __init__(self, control: Sequence[str]) -> None:
        longest_first = sorted({*control, _MARK}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))
        self._hidden: list[str] = []

    def marked(self, value: Any) -> Any:
        """The value with marks in its strings."""
        if isinstance(value, str):
            return self._pattern.sub(self._mark, value)
        if is_mapping(value):
            return {key: self.marked(item) for key, item in value.items()}
        if is_sequence(value):
            return [self.marked(item) for item in value]
        return value

    def _mark(self, match: re.Match[str]) -> str:
        self._hidden.append(match[0])
        return f"{_MARK}{len(self._hidden) - 1}{_MARK_END}"

    def parts(self, text: str) -> Iterator[tuple[str, bool]]:
        """The parts of a rendered text, and whether each is one that was hidden."""
        for n, part in enumerate(_MARKED.split(text)):
            if n % 2 == 0:
                if part:
                    yield part, False
            elif int(part[:9]) < len(self._hidden):
                yield self._hidden[int(part[:9])], True


def _failed(what: str, error: BaseException) -> BaseException:
    """The error for an exception of the package tokenizers; its panics are no `Exception`."""
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit | MemoryError | UsageError):
        return error
    return UsageError(
        "bad-checkpoint", f"the tokenizer of the checkpoint cannot {what}: {one_line(error)}"
    )


def _special(fields: Mapping[str, Any]) -> dict[str, str]:
    """The texts of special tokens, by name; entries are strings or objects."""
    found: dict[str, str] = {}
    for name, value in fields.items():
        text = value.get("content") if is_mapping(value) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def _set_ends(
    backend: Any, config: Mapping[str, Any], special: Mapping[str, str], path: Path
) -> None:
    """Put tokens around each text as the configuration asks, if it does."""
    asked = {
        name: config[f"add_{name}"]
        for name in ("bos_token", "eos_token")
        if f"add_{name}" in config and config[f"add_{name}"] is not None
    }
    for name, value in asked.items():
        if not isinstance(value, bool):
            raise UsageError(
                "bad-checkpoint", f"{path}: add_{name} must be true or false, got {value!r}"
            )
    if not asked:
        return
    from tokenizers import processors

    texts = {name: special.get(name, "") for name in asked if asked[name]}
    known = {name: text for name, text in texts.items() if backend.token_to_id(text) is not None}
    first = f"{known['bos_token']}:0 " if "bos_token" in known else ""
    last = f" {known['eos_token']}:0" if "eos_token" in known else ""
    try:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{first}$A:0{last}",
            pair=f"{first}$A:0{last} {first}$B:0{last}",
            special_tokens=[(text, backend.token_to_id(text)) for text in {*known.values()}],
        )
    except ValueError as error:  # a special token with a space or colon
        raise UsageError("bad-checkpoint", f"{path}: {one_line(error)}") from None


def _tokens_of(path: Path, name: str) -> list[int]:
    """A field of a JSON file: none, one or several tokens. Raises: UsageError (`bad-checkpoint`)."""
    value = optional_json(path).get(name)
    tokens = value if is_list(value) else [] if value is None else [value]
    for token in tokens:
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            raise UsageError(
                "bad-checkpoint", f"{path}: {name} must be numbers of tokens, got {value!r}"
            )
    return tokens
