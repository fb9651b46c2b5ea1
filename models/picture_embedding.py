"""Pictures, and texts beside them, as vectors and labels: what a checkpoint says of pictures, one compiled model, and
batches. All of `relaxpy.models.sentence_embedding` is here, too, where the model has texts.

    embedder = PictureEmbedder.from_checkpoint("openai/clip-vit-base-patch32")
    pictures = embedder.embed_pictures(["cat.jpg", "dog.jpg"])      # (2, numbers), rows of length 1
    texts = embedder.embed(["a cat", "a dog"]).vectors
    pictures @ texts.T                                              # how near they are
    embedder.classify(["cat.jpg"], ["cat", "dog"])[0][0]            # Label(name="cat", probability=0.98)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

import numpy as np

import relaxpy
from relaxpy.checkpoints.config_file import config_of
from relaxpy.checkpoints.config_keys import unread_fields
from relaxpy.checkpoints.hub import local_checkpoint
from relaxpy.checkpoints.tokenizer_file import read_tokenizer, unread_options
from relaxpy.checkpoints.unread import warn_unread
from relaxpy.errors import UsageError
from relaxpy.models.checkpoint import CONFIG_FILE
from relaxpy.models.families import PICTURES, SEEING, family_of
from relaxpy.models.sentence_embedding import (
    BATCH_TOKENS,
    SentenceEmbedder,
    build_encoder,
    cache_key,
    check_length,
    check_precision,
    checkpoint_weights,
    kept_encoder,
)
from relaxpy.models.sentence_settings import TOKENIZER_OPTIONS, tokenizer_options
from relaxpy.models.tower_config import POOLINGS, PictureModelConfig, label_names
from relaxpy.vision.picture import MOST_PIXELS
from relaxpy.vision.processor import PictureProcessor

if TYPE_CHECKING:
    from relaxpy.vision.picture import Picture

PRECISIONS = ("float32", "bfloat16", "int8")
"""What products with weights are computed in."""
TEMPLATE = "This is a photo of {}."
"""What is said of a label where a model compares pictures with texts, as transformers says it."""


class Label(NamedTuple):
    """What a picture may be."""

    name: str
    probability: float


class PictureEmbedder(SentenceEmbedder):
    """Vectors and labels of pictures, and vectors of texts where the model has them."""

    def __init__(
        self,
        executable: relaxpy.Executable,
        config: PictureModelConfig,
        processor: PictureProcessor,
        facts: dict[str, Any],
        tokenizer: Any,
        max_tokens: int,
        pad: int,
    ) -> None:
        """Used by `from_checkpoint`. `facts` are those of `_compiled`."""
        positions = 0 if config.texts is None else config.texts.max_position_embeddings
        super().__init__(executable, tokenizer, max_tokens, positions, pad)
        self.config, self.processor, self.facts = config, processor, facts
        rows, columns = config.pictures.grid
        self.patches = rows * columns

    @property
    def labels(self) -> tuple[str, ...]:
        """What the model's own head tells apart; () without one."""
        return tuple(self.facts["labels"])

    @property
    def has_texts(self) -> bool:
        """Does it make vectors of texts, too?"""
        return self.config.texts is not None

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
        pooling: str | None = None,
    ) -> Self:
        """An embedder for a ViT, DINOv2, CLIP or SigLIP in `directory`, or of this name on the Hugging Face hub.

        Of models without texts, `pooling` is one of `POOLINGS` (None: `cls`, the state of the first position). The
        other arguments are those of `SentenceEmbedder.from_checkpoint`, `precision` is one of `PRECISIONS`. Raises:
        UsageError if the checkpoint cannot be read or is not supported.
        """
        if directory is None:
            raise UsageError(
                "bad-arguments", "there is no model of pictures without a folder or name"
            )
        directory = local_checkpoint(directory)
        check_precision(precision, PRECISIONS)
        fields = config_of(directory) or {}
        place = str(directory / CONFIG_FILE)
        lack = "which reads no pictures"
        if fields.get("model_type") in SEEING:
            lack = "which talks about pictures (relaxpy chat --image), and gives no vectors of them"
        family = family_of(fields, PICTURES, place, lack, "bad-checkpoint")
        dtype = "bfloat16" if precision == "bfloat16" else "float32"
        config = family.from_dict(fields, dtype)
        if pooling is not None:
            config = _pooled(config, pooling)
        warn_unread(directory / CONFIG_FILE, unread_fields(fields))
        processor = PictureProcessor.from_checkpoint(directory, config.model_type)
        _check_size(directory, config, processor)
        texts = config.texts
        tokenizer, pad = (None, 0) if texts is None else _text_side(directory, fields)
        positions = 0 if texts is None else texts.max_position_embeddings
        if texts is not None:
            check_length(max_tokens or positions, positions)
        executable, facts = kept_encoder(
            lambda: cache_key(directory, target, config.pooling, precision, str(processor.result)),
            lambda: _compiled(directory, config, fields, target, precision, processor.result),
            cache,
            on_compile,
        )
        return cls(executable, config, processor, facts, tokenizer, max_tokens or positions, pad)

    def embed_pictures(
        self,
        pictures: Sequence[Picture],
        *,
        most_pixels: int = MOST_PIXELS,
        progress: Callable[[int], None] | None = None,
    ) -> np.ndarray:
        """Vectors (pictures, numbers) float32 of length 1. A picture is what `relaxpy.vision.read_picture` takes.
        `progress` is called after each batch with the number of pictures in it. Raises: UsageError (`bad-picture`)."""
        return self._computed("embed_pictures", pictures, most_pixels, progress)

    def embed_files(
        self, files: Mapping[str, bytes], *, most_pixels: int = MOST_PIXELS
    ) -> np.ndarray:
        """The same of files' contents, by the names that errors call them."""
        return self._computed("embed_pictures", [*files.values()], most_pixels, names=[*files])

    def classify(
        self,
        pictures: Sequence[Picture],
        texts: Sequence[str] | None = None,
        *,
        template: str = TEMPLATE,
        most_pixels: int = MOST_PIXELS,
    ) -> list[list[Label]]:
        """What each picture may be, the most probable label first. `texts` are the labels of a model that compares
        pictures with texts, each in place of {} in the template; None: those of the model's own head. The probabilities
        of a SigLIP are each for itself; others add up to 1."""
        if texts is None:
            if not self.labels:
                raise UsageError(
                    "bad-arguments",
                    f"this {self.config.model_type} has no head that classifies",
                    help="say what pictures may be: classify(pictures, texts)"
                    if self.has_texts
                    else "take a checkpoint with a head, or compare vectors (embed_pictures)",
                )
            logits = self._computed("classify", pictures, most_pixels)
            return _labelled(self.labels, _softmax(logits))
        if not texts:
            raise UsageError("bad-arguments", "there are no labels to choose from")
        if "{}" not in template:
            raise UsageError(
                "bad-arguments", f"the template {template!r} has no {{}} for the label"
            )
        said = self.embed([template.replace("{}", each) for each in texts]).vectors
        cosines = self.embed_pictures(pictures, most_pixels=most_pixels) @ said.T
        return _labelled(texts, self.probabilities(cosines))

    def probabilities(self, cosines: np.ndarray) -> np.ndarray:
        """Of cosines of pictures (rows) and texts (columns), float32 of the same shape: that the text is right, for a
        SigLIP; else that it is the right one of all."""
        logits = cosines * np.float32(self.facts["scale"]) + np.float32(self.facts["bias"])
        if not self.config.sigmoid:
            return _softmax(logits)
        return (1 / (1 + np.exp(-logits))).astype(np.float32)

    def tokenize(self, sentences: Sequence[str]) -> tuple[list[np.ndarray], tuple[int, ...]]:
        """As `SentenceEmbedder` has it. Raises: UsageError for a model without texts."""
        if self.tokenizer is None:
            raise UsageError(
                "bad-arguments",
                f"a {self.config.model_type} reads pictures, and no texts",
                help="CLIP and SigLIP read both",
            )
        return super().tokenize(sentences)

    def embed_tokens(self, input_ids: np.ndarray, attention_mask: np.ndarray) -> np.ndarray:
        """Vectors (batch, numbers) float32 of token ids (batch, seq) int64. Padding, at the ends of rows, changes
        nothing: the mask is not read."""
        texts, (_, count) = self.config.texts, input_ids.shape
        if texts is not None and texts.end is None and count < self.max_positions:
            rest = (0, self.max_positions - count)
            input_ids = np.pad(input_ids, ((0, 0), rest), constant_values=self.pad)
        return self.vm["embed_texts"](input_ids).numpy()

    def _computed(
        self,
        function: str,
        pictures: Sequence[Picture],
        most_pixels: int,
        progress: Callable[[int], None] | None = None,
        names: Sequence[str] = (),
    ) -> np.ndarray:
        """What a function gives for pictures, in batches of one shape."""
        if not len(pictures):
            raise UsageError("bad-arguments", "there are no pictures")
        names = names or [_name(each, number) for number, each in enumerate(pictures, 1)]
        found: list[np.ndarray] = []
        batch = max(1, BATCH_TOKENS // self.patches)
        for start in range(0, len(pictures), batch):
            part = pictures[start : start + batch]
            pixels = [
                self.processor(each, name, most_pixels=most_pixels)
                for each, name in zip(part, names[start:], strict=False)
            ]
            for _, group in groupby(pixels, key=lambda each: each.shape):
                found.append(self.vm[function](np.stack([*group])).numpy())
            if progress is not None:
                progress(len(part))
        return np.concatenate(found)


def _pooled(config: PictureModelConfig, pooling: str) -> PictureModelConfig:
    if config.texts is not None:
        raise UsageError(
            "bad-arguments", f"a {config.model_type} says itself how a picture becomes a vector"
        )
    if pooling not in POOLINGS:
        raise UsageError(
            "bad-arguments", f"pooling is one of {', '.join(POOLINGS)}, got {pooling!r}"
        )
    return replace(config, pooling=cast("Any", pooling))


def _check_size(directory: Path, config: PictureModelConfig, processor: PictureProcessor) -> None:
    """Do pictures get a size that the model reads?"""
    towers, given = config.pictures, processor.result
    reads = " × ".join(map(str, towers.image_size))
    if towers.interpolates:
        if given is not None and (
            given[0] < towers.patch_size[0] or given[1] < towers.patch_size[1]
        ):
            raise UsageError(
                "bad-config", f"{directory}: pictures of {given[0]} × {given[1]} have no patch"
            )
    elif given is None:
        raise UsageError(
            "bad-config",
            f"{directory}: pictures keep sizes of their own, and the model reads {reads}",
        )
    elif given != towers.image_size:
        raise UsageError(
            "bad-config",
            f"{directory}: pictures get the size {given[0]} × {given[1]}, and the model reads {reads}",
            help=f"check that preprocessor_config.json belongs to {CONFIG_FILE}; positions in between are DINOv2's",
        )


def _text_side(directory: Path, fields: dict[str, Any]) -> tuple[Any, int]:
    """The tokenizer, and the token that texts are padded with."""
    tokenizer = read_tokenizer(directory)
    options = tokenizer_options(directory)
    warn_unread(directory / TOKENIZER_OPTIONS, unread_options(tokenizer, options))
    token = options.get("pad_token")
    token = token.get("content") if isinstance(token, dict) else token
    found = tokenizer.token_to_id(token) if isinstance(token, str) else None
    if found is None:
        found = (fields.get("text_config") or {}).get("pad_token_id", 1)
    return tokenizer, found if isinstance(found, int) and found >= 0 else 0


def _compiled(
    directory: Path,
    config: PictureModelConfig,
    fields: dict[str, Any],
    target: str,
    precision: str,
    size: tuple[int, int] | None,
) -> tuple[relaxpy.Executable, dict[str, Any]]:
    """The executable; the labels of the head, and the scale and bias of cosines."""
    from relaxpy.models.tower import PictureModel, load_weights, spec

    tensors = checkpoint_weights(directory)
    config = config.with_head(tensors, label_names(fields))
    model = PictureModel(config)
    load_weights(model, tensors)
    executable = build_encoder(*model.export(spec(config, size)), target, precision)

    def number(name: str) -> float:
        return float(np.ravel(tensors[name])[0]) if name in tensors else 0.0

    scale, bias = math.exp(number("logit_scale")), number("logit_bias")
    return executable, {"labels": [*config.labels], "scale": scale, "bias": bias}


def _name(given: object, number: int) -> str:
    """What errors call a picture."""
    return str(given) if isinstance(given, str | Path) else f"picture {number}"


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)


def _labelled(names: Sequence[str], probabilities: np.ndarray) -> list[list[Label]]:
    return [
        [Label(names[int(k)], float(row[k])) for k in np.argsort(-row, kind="stable")]
        for row in probabilities
    ]
