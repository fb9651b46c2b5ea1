"""A checkpoint, ready to write.

    model = relaxpy.llm.load("folder of a checkpoint")
    for piece in model.generate("Once upon a time"):
        print(piece, end="", flush=True)
    for piece in model.chat([{"role": "user", "content": "Hello"}]):
        print(piece, end="", flush=True)

A model has one paged cache for the keys and values of all its texts. Several may be written at once, from several
threads too; the steps run one after the other. A text that begins as an earlier one, such as the next turn of a chat,
finds the keys and values of its beginning in the cache.
"""

from __future__ import annotations

import os
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from operator import index
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NoReturn, Unpack

import numpy as np

from relaxpy.checkpoints.config_file import config_of
from relaxpy.checkpoints.hub import checkpoint_name, local_checkpoint
from relaxpy.embedded import embedded_model
from relaxpy.errors import UsageError
from relaxpy.llm.chat_template import ChatTemplate
from relaxpy.llm.generation import Generation
from relaxpy.llm.generation_config import Recommended, recommended
from relaxpy.llm.loops import LoopDetector
from relaxpy.llm.own_engine import own_engine
from relaxpy.llm.pictures import Eyes, Seen, refused, taken
from relaxpy.llm.stop_strings import StopStrings
from relaxpy.llm.tokenizer import Tokenizer
from relaxpy.llm.written_text import WrittenText
from relaxpy.models.loaded import LoadedDecoder, Scheme, load_decoder
from relaxpy.narrow import is_mapping
from relaxpy.serve import Beams, PageBook, Piece, Request
from relaxpy.serve.engine_settings import CONTEXT
from relaxpy.serve.pictures import Picture, Placed
from relaxpy.serve.request import Features
from relaxpy.serve.sampling import SamplingOptions
from relaxpy.services import load_transcriber

if TYPE_CHECKING:
    from relaxpy.vision.picture import Picture as PictureFile

PREFILL = 512
"""The most tokens of a prompt in a step."""
SPEECH = ("whisper", "moonshine", "wav2vec2", "hubert", "parakeet_ctc")
"""Types of models that hear."""
_DEFAULTS = Recommended()


def load(
    place: str | os.PathLike[str] | None = None,
    *,
    scheme: Scheme | None = None,
    context: int | None = None,
    batch: int = 1,
    chat_template: str | None = None,
    tokenizer: Tokenizer | None = None,
    target: str = "llvm",
    keep: bool = True,
    mmproj: str | os.PathLike[str] | None = None,
) -> LanguageModel:
    """The language model of a checkpoint: of a directory with `config.json`, weights and `tokenizer.json`, of a GGUF
    file, or of a name on the Hugging Face hub (`relaxpy.checkpoints.hub`), a str. The first start compiles and packs
    it; what it makes is kept for the next ones unless `keep=False` (`relaxpy.models.loaded`). Without a place it is the
    small model that ships with relaxpy (`relaxpy.embedded`).

    `scheme` says how weights are quantised (None: in 4 bits, or with the codes of a checkpoint that is quantised).
    `context` is the largest number of tokens of a text, prompt included (None: that of the model, at most 4096), and
    memory is taken for `batch` texts of this length. `chat_template` replaces the checkpoint's own template, and
    `tokenizer` its tokenizer. `mmproj` is the second file of a GGUF model that sees pictures; the one `mmproj*.gguf` in
    the folder of the first is found without it.

    For a model of speech it is a transcriber (`relaxpy.speech.load_transcriber`), whose method is `transcribe`.

    Raises: UsageError: `bad-checkpoint`, `bad-config` or `bad-weights` for a checkpoint that cannot be read,
    `bad-length` for a context that the model does not have; those of `local_checkpoint` for a name.
    """
    if place is None:
        place = embedded_model()
    folder = local_checkpoint(place)
    config = config_of(folder) or {}
    if config.get("model_type") in SPEECH:
        given = {
            "context": context, "chat_template": chat_template, "tokenizer": tokenizer, "mmproj": mmproj,
        }  # fmt: skip
        if wrong := [name for name, value in given.items() if value is not None]:
            raise UsageError("bad-arguments", f"a model of speech takes no {wrong[0]}")
        speech: Any = load_transcriber(folder, scheme=scheme, batch=batch, target=target, keep=keep)
        return speech
    texts = config["text_config"] if is_mapping(config.get("text_config")) else config
    positions = texts.get("max_position_embeddings", texts.get("n_positions"))
    if isinstance(positions, int) and context is not None:  # before it is compiled
        _check_context(context, positions)
    tokenizer = tokenizer or Tokenizer.from_checkpoint(folder, mmproj)
    if chat_template is not None:
        tokenizer.templates = {"default": ChatTemplate(chat_template)}
    decoder = load_decoder(folder, scheme, target=target, keep=keep, mmproj=mmproj)
    shape = decoder.pictures
    return LanguageModel(
        decoder,
        tokenizer,
        context=context,
        batch=batch,
        defaults=_defaults(folder, None if decoder.source is None else config),
        name=checkpoint_name(folder),
        eyes=None if shape is None else Eyes.from_checkpoint(folder, shape, mmproj),
    )


def _defaults(folder: Path, config: Mapping[str, Any] | None) -> Recommended:
    """What the checkpoint recommends; `config` is that of a model with an encoder. Raises: UsageError
    (`bad-checkpoint`)."""
    found = recommended(folder, config)
    if config is not None and not found.begin:
        raise UsageError(
            "bad-checkpoint",
            f"{folder}: nothing says which token begins texts",
            help="generation_config.json has it as decoder_start_token_id",
        )
    return found


class LanguageModel:
    """A decoder with its tokenizer and its cache."""

    def __init__(
        self,
        decoder: LoadedDecoder,
        tokenizer: Tokenizer,
        *,
        context: int | None = None,
        batch: int = 1,
        defaults: Recommended = _DEFAULTS,
        name: str = "model",
        eyes: Eyes | None = None,
    ) -> None:
        """`load` makes one from a checkpoint. `defaults` are those of `generate`."""
        most = decoder.positions
        self.context = _whole("context", min(most, CONTEXT) if context is None else context)
        """The most tokens of a text, prompt included."""
        _check_context(self.context, most)
        self.decoder, self.tokenizer = decoder, tokenizer
        self.defaults, self.name, self.eyes = defaults, name, eyes
        self.batch = _whole("batch", batch)
        _, self._engine = own_engine(decoder, tokens=self.context, batch=self.batch)
        self._lock, self._ended = Lock(), deque[int]()
        self._numbers = count()
        self._answer_ends: dict[str | None, frozenset[int]] = {}

    @property
    def book(self) -> PageBook:
        """Which pages of the cache hold what."""
        return self._engine.book

    def __repr__(self) -> str:
        kind = self.decoder.config.get("model_type", "decoder")
        size = self.decoder.packed.nbytes / 1e6
        return (
            f"<language model {self.name}: {kind}, weights {size:.1f} MB, "
            f"vocabulary of {self.decoder.vocab_size}, context of {self.context} tokens>"
        )

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        end_tokens: Sequence[int] | None = None,
        special: bool = False,
        begins: bool = False,
        stop_loops: bool = False,
        prefill: int = PREFILL,
        beams: Beams | None = None,
        images: Sequence[PictureFile | Picture | Seen] = (),
        **sampling: Unpack[SamplingOptions],
    ) -> Generation:
        """Continue a prompt, a text or tokens: an iterator of pieces of text, each given as soon as it is certain. A
        model with an encoder (BART) reads the prompt, and writes a text of its own: a summary.

        `max_tokens` are generated at most (None: as many as the checkpoint says, or until the context is full). Options
        of `sampling` are those of `relaxpy.serve.Sampling`: `temperature`, `top_k`, `top_p`, `min_p`,
        `repetition_penalty`, `presence_penalty`, `frequency_penalty`, `bias`, `seed`, `min_tokens` and others; those
        that are not given, or None, are the checkpoint's own, and without any the most probable token is taken. Equal
        seeds give equal texts; without one it is drawn (`generation.sampling.seed`). The text ends before a `stop`
        string, or at a token of `end_tokens`, but not before it has `min_tokens` (None: the checkpoint's own;
        `stop=()`: before none). `special` shows special tokens. With `begins` the text is one of its own, as an answer
        in a chat is, not the continuation of the prompt's: its first word has no space before it. `stop_loops` ends a
        text that repeats itself without end (`relaxpy.llm.loops`). Prompts are computed in parts of `prefill` tokens.
        With `beams` (`relaxpy.serve.Beams`) the text is searched, and comes as one piece when the search is over; the
        cache needs room for all beams (`load(…, batch=…)`). `images` are pictures for a model that sees, as
        `relaxpy.vision.read_picture` takes them: the prompt has its placeholder (`<image>`) for each, in their order.

        Raises: UsageError, before anything is computed: `bad-prompt`, `bad-length` for a prompt that does not fit the
        context, `sampling`. While it runs: `cache-full` if several texts need more pages than there are.
        """
        if isinstance(prompt, str):
            tokens = self.tokenizer.encode(prompt)
            first = self.tokenizer.first_token
            tokens = tokens or ([] if first is None else [first])
        else:
            if isinstance(prompt, (bytes, bytearray, memoryview)):
                raise UsageError(
                    "bad-prompt",
                    "a prompt is a text, or numbers of tokens, got bytes",
                    help='decode them: prompt.decode("utf-8")',
                )
            tokens = _tokens("a prompt is a text, or numbers of tokens", prompt)
        if not tokens:
            raise UsageError(
                "bad-prompt",
                "the prompt has no tokens",
                help="a prompt has at least one token, since the model continues it",
            )
        tokens, pictures = self._placed(tokens, images)
        features = None
        if (
            self.decoder.source is not None
        ):  # the encoder reads the prompt, and what is written begins anew
            features, tokens = Features(np.array(tokens)), [*self.defaults.begin]
        if len(tokens) >= self.context:
            raise UsageError(
                "bad-length",
                f"the prompt has {len(tokens)} tokens, and the context {self.context}: no room is left for an answer",
                help=f"shorten the prompt, or choose a longer context: {min(2 * len(tokens), self.decoder.positions)}"
                if len(tokens) < self.decoder.positions
                else "shorten the prompt",
            )
        # A model may have more logits than its tokenizer has tokens, and the other way round.
        if wrong := [token for token in tokens if token >= self.decoder.vocab_size]:
            raise UsageError(
                "bad-prompt",
                f"token {wrong[0]} is none of the model's, whose vocabulary has {self.decoder.vocab_size}",
            )
        room = self.context - len(tokens)
        if max_tokens is None:
            most = self.defaults.most_tokens(len(tokens), room)
        else:
            most = min(_whole("max_tokens", max_tokens), room)
        if self.defaults.last is not None:
            most = max(1, most - 1)
        given = {name: value for name, value in sampling.items() if value is not None}
        options: dict[str, Any] = {"seed": secrets.randbits(62), **given}
        chosen = replace(self.defaults.sampling_after(len(tokens)), **options)
        chosen.check_vocabulary(self.decoder.vocab_size)
        ends = self.tokenizer.end_tokens
        if end_tokens is not None:
            ends = frozenset(_tokens("end_tokens are numbers of tokens", end_tokens))
        if beams is not None:
            beams = replace(beams, num_return_sequences=1)
        request = Request(
            0, tuple(tokens), most, chosen, ends, features=features, pictures=pictures, beams=beams
        )
        begins = begins or self.tokenizer.special_tokens.issuperset(tokens)
        text = WrittenText(
            self.tokenizer.detokenizer(special, begins=begins or features is not None),
            StopStrings(self.defaults.stop if stop is None else stop),
            ends,
            min_tokens=chosen.min_tokens,
            loops=LoopDetector() if stop_loops else None,
        )
        return Generation(self, request, text, prefill=_whole("prefill", prefill))

    def complete(self, prompt: str | Sequence[int], **options: Any) -> str:
        """The whole text by which the model continues a prompt. Options are those of `generate`."""
        return "".join(self.generate(prompt, **options))

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: str | None = None,
        variables: Mapping[str, Any] | None = None,
        control: bool = False,
        **options: Any,
    ) -> Generation:
        """The answer to messages, `{"role": "user", "content": "Hello"}` and so on, by the checkpoint's chat template
        (`template` names another one of its templates, `variables` are variables of it). Control tokens written in
        messages are text unless `control`. A model that sees has pictures in contents: `[{"type": "image", "image":
        "cat.png"}, {"type": "text", "text": "What is it?"}]`, a path, bytes, an array or a Pillow image. Other options
        are those of `generate`.

        Raises: UsageError: like `generate`; `chat-template` if there is no template, or it fails.
        """
        messages, found = taken(messages)
        prompt = self.tokenizer.chat_tokens(
            messages, tools=tools, template=template, control=control, **(variables or {})
        )
        ends = self._answer_ends.get(template)
        if ends is None:
            ends = self._answer_ends[template] = self.tokenizer.answer_ends(template)
        images = [self.read_picture(each.picture, each.name) for each in found]
        given: dict[str, Any] = {"end_tokens": ends, "begins": True, "images": images, **options}
        return self.generate(prompt, **given)

    def read_picture(self, picture: PictureFile, name: str = "") -> Picture | Seen:
        """A picture as the tower reads it; `name` is what errors call it. Raises: UsageError: `bad-picture`, and
        `bad-prompt` for a model that reads texts alone."""
        if self.eyes is None:
            raise refused(self.name, 1)
        return self.eyes.read(picture, name)

    def _placed(
        self, tokens: list[int], images: Sequence[PictureFile | Picture | Seen]
    ) -> tuple[list[int], tuple[Placed, ...]]:
        """A prompt with room for pictures, and where they are. A placeholder alone is a token as others are."""
        if not images:
            return tokens, ()
        if self.eyes is None:
            raise refused(self.name, len(images))
        found = [
            each
            if isinstance(each, Picture | Seen)
            else self.read_picture(each, f"picture {number}")
            for number, each in enumerate(images, 1)
        ]
        return self.eyes.placed(tokens, found, self.tokenizer)

    def transcribe(self, *_: Any, **__: Any) -> NoReturn:
        """Raises: UsageError: the model reads text. That of a checkpoint of Whisper (`relaxpy.speech.Transcriber`)
        hears."""
        raise UsageError(
            "bad-arguments",
            f"{self.name} reads text, and no sound",
            help="load a Whisper: relaxpy.llm.load('openai/whisper-base').transcribe(path)",
        )

    # For generations

    def begin(self, request: Request) -> int:
        """Let the engine take on a request. Returns its number."""
        number = next(self._numbers)
        with self._lock:
            self._engine.submit(replace(request, number=number))
        return number

    def step(self, number: int, most: int) -> list[Piece]:
        """Run one step of the engine for request `number` alone, with at most `most` tokens of its prompt. Returns the
        tokens that it added."""
        with self._lock:
            self._free()
            return self._engine.step_of(number, most)

    def end(self, number: int) -> None:
        """Forget a request, if it is not at its end, now or before the next step: the collector of garbage may ask for
        it at any time, also in the middle of one."""
        self._ended.append(number)
        if self._lock.acquire(blocking=False):
            try:
                self._free()
            finally:
                self._lock.release()

    def _free(self) -> None:
        while self._ended:
            self._engine.cancel(self._ended.popleft())


def _tokens(expected: str, values: Any) -> list[int]:
    """Numbers of tokens. Raises: UsageError (`bad-prompt`) with what is expected."""
    wrong: Any = values
    try:
        found: list[int] = []
        for wrong in values:
            found.append(index(wrong))
            if found[-1] < 0:
                raise TypeError
    except TypeError:
        raise UsageError("bad-prompt", f"{expected}, got {wrong!r}") from None
    return found


def _check_context(context: int, positions: int) -> None:
    if context > positions:
        raise UsageError(
            "bad-length", f"context is {context}, but the model has {positions} positions"
        )


def _whole(name: str, value: Any) -> int:
    """A positive number. Raises: UsageError (`bad-length`)."""
    try:
        number = index(value)
    except TypeError:
        number = 0
    if number < 1 or isinstance(value, bool):
        raise UsageError("bad-length", f"{name} is an integer of at least 1, got {value!r}")
    return number
