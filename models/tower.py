"""Towers: encoders that make a vector of a picture or of a text. ViT, DINOv2, CLIP and SigLIP are configurations of
them (`relaxpy.models.tower_config`); their layers are those of `relaxpy.models.encoder_decoder`.

    vectors = vm["embed_pictures"](pixels)     (batch, 3, height, width) float32 → (batch, numbers), of length 1
    vectors = vm["embed_texts"](input_ids)     (batch, seq) int64 → the same: near is what belongs together
    logits = vm["classify"](pixels)            → (batch, labels), of models with a head

One executable serves every batch size, and every size of pictures where the family has positions in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from relaxpy import nn
from relaxpy.models.bert import unit_length
from relaxpy.models.checkpoint import gather
from relaxpy.models.decoder import FeedForward
from relaxpy.models.encoder_decoder import SourceAttention, SourceLayer
from relaxpy.models.tower_config import (
    PictureModelConfig,
    PictureTowerConfig,
    TextTowerConfig,
    TowerConfig,
)
from relaxpy.nn import op


def _norm(config: TowerConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, config.rms_norm_eps, config.dtype)


class ScaledLayer(SourceLayer):
    """A layer, of which attention and the feed-forward network are scaled, number by number (Touvron et al., 2021)."""

    def __init__(self, config: PictureTowerConfig) -> None:
        super().__init__(config)
        self.first_scale = nn.Parameter((config.hidden_size,), config.dtype)
        self.second_scale = nn.Parameter((config.hidden_size,), config.dtype)

    def forward(self, x: nn.Tensor, bias: nn.Tensor | None = None) -> nn.Tensor:
        """(batch, positions, hidden) → the same shape."""
        x = x + self.attention(self.attention_norm(x), bias) * self.first_scale
        return x + self.feed_forward(self.norm(x)) * self.second_scale


class Patches(nn.Module):
    """The patches of pictures as vectors, with their positions, and one vector before them that stands for the
    picture."""

    def __init__(self, config: PictureTowerConfig) -> None:
        self.config = config
        hidden, dtype = config.hidden_size, config.dtype
        self.patch = nn.Conv2d(
            3, hidden, config.patch_size, config.patch_size, bias=config.patch_bias, dtype=dtype
        )
        self.whole = nn.Parameter(config.class_shape, dtype) if config.class_shape else None
        rows, columns = config.grid
        self.count = rows * columns + len(config.class_shape[:1])
        self.positions = nn.Parameter((*config.positions_lead, self.count, hidden), dtype)

    def forward(self, pixels: nn.Tensor) -> nn.Tensor:
        """(batch, 3, height, width) → (batch, positions, hidden)."""
        hidden = self.config.hidden_size
        x = self.patch(op.astype(pixels, self.config.dtype))
        batch, _, rows, columns = x.shape
        x = op.permute_dims(op.reshape(x, (batch, hidden, rows * columns)), (0, 2, 1))
        if self.whole is not None:
            first = op.broadcast_to(op.reshape(self.whole, (1, 1, hidden)), (batch, 1, hidden))
            x = op.concat((first, x), axis=1)
        table = op.reshape(self.positions, (self.count, hidden))
        return x + (self._between(table, rows, columns) if self.config.interpolates else table)

    def _between(self, table: nn.Tensor, rows: Any, columns: Any) -> nn.Tensor:
        """The positions of a grid of another size, by cubic interpolation."""
        hidden, (down, across) = self.config.hidden_size, self.config.grid
        first, rest = op.split(table, [1], axis=0)
        picture = op.reshape(op.permute_dims(rest, (1, 0)), (1, hidden, down, across))
        picture = op.image.resize2d(
            op.astype(picture, "float32"), (rows, columns), layout="NCHW", method="cubic",
            coordinate_transformation_mode="half_pixel", cubic_alpha=-0.75,
        )  # fmt: skip
        found = op.permute_dims(op.reshape(picture, (hidden, rows * columns)), (1, 0))
        return op.concat((first, op.astype(found, table.dtype)), axis=0)


class Probe(nn.Module):
    """SigLIP's head: attention of one learned vector to the patches, then a feed-forward network."""

    def __init__(self, config: PictureTowerConfig) -> None:
        self.probe = nn.Parameter((1, 1, config.hidden_size), config.dtype)
        self.attention = SourceAttention(config)
        self.norm = _norm(config)
        self.feed_forward = FeedForward(config)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        """(batch, positions, hidden) → (batch, hidden)."""
        batch, _, hidden = x.shape
        x = self.attention(x, reading=op.broadcast_to(self.probe, (batch, 1, hidden)))
        return op.squeeze(x + self.feed_forward(self.norm(x)), 1)


class PictureEncoder(nn.Module):
    """The layers of a tower of pictures."""

    def __init__(self, config: PictureTowerConfig) -> None:
        self.config = config
        self.patches = Patches(config)
        self.first_norm = _norm(config) if config.first_norm else None
        layer = ScaledLayer if config.layer_scale else SourceLayer
        self.layers = nn.ModuleList([layer(config) for _ in range(config.num_hidden_layers)])

    def encode(self, pixels: nn.Tensor) -> nn.Tensor:
        """(batch, 3, height, width) → what the layers give (batch, positions, hidden)."""
        x = self.patches(pixels)
        x = x if self.first_norm is None else self.first_norm(x)
        for layer in self.layers:
            x = layer(x)
        return x


class PictureTower(PictureEncoder):
    """An encoder of pictures, and what makes one vector of its states."""

    def __init__(self, config: PictureTowerConfig, pooling: str) -> None:
        super().__init__(config)
        self.pooling = pooling
        self.norm = _norm(config)
        self.head = Probe(config) if pooling == "head" else None

    def forward(self, pixels: nn.Tensor) -> nn.Tensor:
        """(batch, 3, height, width) → (batch, hidden)."""
        x = self.encode(pixels)
        if self.pooling == "norm":
            return self.norm(first_of(x))
        x = self.norm(x)
        if self.head is not None:
            return self.head(x)
        return first_of(x) if self.pooling == "cls" else mean_of_patches(x)


def first_of(x: nn.Tensor) -> nn.Tensor:
    """(batch, positions, hidden) → the first position (batch, hidden)."""
    return op.squeeze(op.strided_slice(x, (1,), (0,), (1,)), 1)


def mean_of_patches(x: nn.Tensor) -> nn.Tensor:
    """(batch, positions, hidden) → the mean of all but the first position (batch, hidden)."""
    _, patches = op.split(x, [1], axis=1)
    return op.mean(patches, axis=1)


class TextTower(nn.Module):
    """An encoder of texts."""

    def __init__(self, config: TextTowerConfig) -> None:
        self.config = config
        hidden, dtype = config.hidden_size, config.dtype
        self.embedding = nn.Embedding(config.vocab_size, hidden, dtype)
        self.positions = nn.Parameter((config.max_position_embeddings, hidden), dtype)
        self.layers = nn.ModuleList(
            [SourceLayer(config, config.causal) for _ in range(config.num_hidden_layers)]
        )
        self.norm = _norm(config)

    def forward(self, input_ids: nn.Tensor) -> nn.Tensor:
        """Token ids (batch, seq) → (batch, hidden)."""
        batch, seq = input_ids.shape
        hidden = self.config.hidden_size
        positions = op.strided_slice(self.positions, (0,), (0,), (seq,))
        # fewer rows where the model has no more positions
        x = self.embedding(input_ids) + op.match_cast(positions, (seq, hidden))
        for layer in self.layers:
            x = layer(x)
        at = self._place(input_ids) + op.arange(batch) * seq
        return self.norm(op.take(op.reshape(x, (batch * seq, hidden)), at, axis=0))

    def _place(self, input_ids: nn.Tensor) -> Any:
        """Where each text is read."""
        end = self.config.end
        if end is None:
            return input_ids.shape[1] - 1
        if end == 2:  # an old mistake of configurations: it is the largest token
            return op.argmax(input_ids, axis=1)
        return op.argmax(op.astype(op.equal(input_ids, end), "int32"), axis=1)


class PictureModel(nn.Module):
    """A model of pictures, or of pictures and texts."""

    def __init__(self, config: PictureModelConfig) -> None:
        self.config = config
        towers, labels = config.pictures, len(config.labels)
        hidden, dtype = towers.hidden_size, towers.dtype
        self.pictures = PictureTower(towers, config.pooling)
        self.projection = (
            nn.Linear(hidden, config.projection, False, dtype) if config.projection else None
        )
        width = hidden * (2 if config.reads_mean else 1)
        self.classifier = nn.Linear(width, labels, dtype=dtype) if labels else None
        texts = config.texts
        self.texts = TextTower(texts) if texts is not None else None
        self.text_projection = None
        if texts is not None:
            wide = config.projection or hidden
            self.text_projection = nn.Linear(
                texts.hidden_size, wide, not config.projection, texts.dtype
            )

    def encode(self, pixels: nn.Tensor) -> nn.Tensor:
        """The states of pictures (batch, 3, height, width) after all layers (batch, positions, hidden), float32."""
        return op.astype(self.pictures.encode(pixels), "float32")

    def embed_pictures(self, pixels: nn.Tensor) -> nn.Tensor:
        """Vectors of length 1 (batch, numbers) float32, of pictures (batch, 3, height, width)."""
        found = self.pictures(pixels)
        found = found if self.projection is None else self.projection(found)
        return unit_length(op.astype(found, "float32"))

    def embed_texts(self, input_ids: nn.Tensor) -> nn.Tensor:
        """The same of token ids (batch, seq)."""
        assert self.texts is not None, "spec has it where there are texts"
        assert self.text_projection is not None, "made with texts"
        return unit_length(op.astype(self.text_projection(self.texts(input_ids)), "float32"))

    def classify(self, pixels: nn.Tensor) -> nn.Tensor:
        """Logits of the labels (batch, labels) float32, of pictures (batch, 3, height, width)."""
        assert self.classifier is not None, "spec has it where there are labels"
        x = self.pictures.norm(self.pictures.encode(pixels))
        read = first_of(x)
        if self.config.reads_mean:
            read = op.concat((read, mean_of_patches(x)), axis=1)
        return op.astype(self.classifier(read), "float32")


def spec(config: PictureModelConfig, size: tuple[int, int] | None = None) -> dict[str, Any]:
    """The arguments of the exported functions: symbolic batch size and length; pictures of a (height, width), None: of
    any, if the family interpolates positions, else of those that the configuration says."""
    if size is None and not config.pictures.interpolates:
        size = config.pictures.image_size
    pixels = nn.spec.Tensor(("batch", 3, *(size or ("height", "width"))), "float32")
    found: dict[str, Any] = {"embed_pictures": {"pixels": pixels}}
    if config.texts is not None:
        found["embed_texts"] = {"input_ids": nn.spec.Tensor(("batch", "seq"), "int64")}
    if config.labels:
        found["classify"] = {"pixels": pixels}
    return found


def load_weights(model: PictureModel, tensors: Mapping[str, np.ndarray]) -> None:
    """Load the model's weights from a checkpoint's tensors, strictly, in the dtype of its configuration. Raises:
    UsageError (`bad-weights`)."""
    config = model.config
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    sources = config.sources_in(tensors)
    model.load(gather(tensors, sources, shapes, config.ignored(), config.pictures.dtype))
