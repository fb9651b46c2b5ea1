"""The memory that a decoder needs, before anything of it is loaded: from its configuration alone.

    plan = plan_decoder("TinyLlama-1.1B-Chat-v1.0", context=2048)
    print(plan)

The model's program is made and lowered as for a start, without kernels, and for a few layers, since the others repeat
them: the sizes of packed weights, of pages, and of what a step keeps meanwhile are those of the program.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, replace
from typing import Any

from relaxpy.checkpoints import Checkpoint, open_checkpoint
from relaxpy.checkpoints.gguf_projector import projector_of
from relaxpy.errors import UsageError
from relaxpy.machine_memory import MachineMemory, machine_memory
from relaxpy.models.decoder_config import DecoderConfig
from relaxpy.models.encoder_decoder import EncoderDecoderConfig
from relaxpy.models.loaded import Scheme, decoder_program
from relaxpy.runtime.inspect.memory_plan import MemoryPlan
from relaxpy.runtime.inspect.units import shown
from relaxpy.serve.pictures import STORED

PROCESS = 96 << 20
"""Memory of the process itself, about, in bytes: Python, numpy, the runtime, the tokenizer."""
_LAYER = re.compile(r"layers_(\d+)_")
_OTHER, _TOWER = -1, -2
"""Numbers of parts of a model that are no layers of the decoder."""


@dataclass(frozen=True)
class DecoderPlan:
    """Sizes in bytes."""

    model_type: str
    stored: int
    """The checkpoint's files."""
    weights: int
    """Packed, as the program reads them."""
    page: int
    """A page of all layers: keys and values of `page_size` tokens."""
    page_size: int
    context: int
    """The most tokens of a text."""
    batch: int
    """The number of texts of that length at once."""
    positions: int
    """The largest context that the model has."""
    step: int
    """The most tokens of a step."""
    activations: int
    """Memory that a step needs while it runs, with its logits and sampling."""
    process: int = PROCESS
    machine: MachineMemory | None = None
    """None where the platform does not tell."""
    source_page: int = 0
    """Of a model with an encoder, a page of all layers for the keys and values of its output."""
    source_pages: int = 0
    """The number of these pages: an input of the greatest length for each text."""
    tower: int = 0
    """Of a model that sees pictures, the part of the weights that is the tower's and the projector's."""
    picture_tokens: int = 0
    """The most tokens of a picture."""
    picture: int = 0
    """What the tower makes of such a picture."""
    rows: int = 0
    """The most that is kept of what the tower has made of pictures."""

    @property
    def pages(self) -> int:
        """The number of pages."""
        return math.ceil(self.context / self.page_size) * self.batch

    @property
    def cache(self) -> int:
        """All pages."""
        return self.pages * self.page

    @property
    def sources(self) -> int:
        """All pages of outputs of an encoder."""
        return self.source_pages * self.source_page

    @property
    def total(self) -> int:
        parts = self.weights, self.cache, self.sources, self.rows, self.activations, self.process
        return sum(parts)

    @property
    def fits(self) -> bool | None:
        """Does it fit the memory that is free on this machine? None: unknown."""
        return None if self.machine is None else self.total <= self.machine.available

    @property
    def largest_context(self) -> int | None:
        """The largest context that fits, with this number of texts; 0 if none does; None: unknown."""
        if self.machine is None:
            return None
        left = self.machine.available - (self.total - self.cache)
        pages = max(left, 0) // (self.page * self.batch)
        return min(pages * self.page_size, self.positions)

    def as_data(self) -> dict[str, Any]:
        """The plan as JSON data; sizes in bytes."""
        machine = self.machine
        return {
            "model_type": self.model_type,
            "stored": self.stored,
            "weights": self.weights,
            "cache": self.cache,
            "pages": self.pages,
            "page": self.page,
            "page_size": self.page_size,
            "sources": self.sources,
            "source_pages": self.source_pages,
            "source_page": self.source_page,
            "tower": self.tower,
            "picture_tokens": self.picture_tokens,
            "picture": self.picture,
            "rows": self.rows,
            "context": self.context,
            "batch": self.batch,
            "activations": self.activations,
            "step": self.step,
            "process": self.process,
            "total": self.total,
            "available": None if machine is None else machine.available,
            "fits": self.fits,
            "largest_context": self.largest_context,
            "positions": self.positions,
        }

    def __str__(self) -> str:
        texts = "a text" if self.batch == 1 else f"{self.batch} texts"
        per_token = self.page // self.page_size
        inputs = f"{self.source_pages} pages, for an input of each text"
        tower = f"; {shown(self.tower)} are the tower's" if self.tower else ""
        kept = (
            f"at most, of what the tower makes of pictures: of one {shown(self.picture)}, "
            f"{self.picture_tokens} tokens"
        )
        rows = [
            ("weights", self.weights, f"packed, of {shown(self.stored)} in the checkpoint{tower}"),
            (
                "pages",
                self.cache,
                f"{self.pages}, for {texts} of {self.context} tokens, {shown(per_token)} a token",
            ),
            *([("sources", self.sources, inputs)] if self.source_pages else []),
            *([("pictures", self.rows, kept)] if self.rows else []),
            (
                "activations",
                self.activations,
                "of an input" if self.source_pages else f"of a step of {self.step} tokens",
            ),
            ("process", self.process, "about: Python, the runtime, the tokenizer"),
            ("together", self.total, ""),
        ]
        width = max(len(shown(size)) for _, size, _ in rows)
        lines = [f"{name:12}{shown(size):>{width}}  {note}".rstrip() for name, size, note in rows]
        return "\n".join([*lines, "", *self._verdict()])

    def _verdict(self) -> list[str]:
        machine = self.machine
        if machine is None:
            return ["the memory of this machine is unknown"]
        has = f"{shown(machine.available)} of {shown(machine.total)} are free ({machine.limit})"
        fits = "it fits" if self.fits else "it does not fit"
        largest = self.largest_context
        if not largest:
            return [f"{fits}: {has}", "no context fits: fewer bits, or a smaller model"]
        whole = ", all that the model has" if largest == self.positions else ""
        return [f"{fits}: {has}", f"the largest context that fits: {largest} tokens{whole}"]


def plan_decoder(
    place: str | os.PathLike[str],
    scheme: Scheme | None = None,
    *,
    context: int | None = None,
    batch: int = 1,
    step: int = 512,
    target: str = "llvm",
) -> DecoderPlan:
    """The plan for a checkpoint, from `config.json` and the headers of its weights: for `batch` texts of `context`
    tokens (None: as many as the model has, at most 4096), in steps of `step` tokens. Compiles no kernel.

    Raises: UsageError: `bad-checkpoint`, `bad-config` like `load_decoder`; `bad-length` for a context that the model
    does not have.
    """
    checkpoint = open_checkpoint(place, projector_of(place))
    scheme = (scheme or Scheme.of(checkpoint)).on(target)
    config = scheme.applied(checkpoint)
    positions = config.max_position_embeddings
    chosen = min(positions, 4096) if context is None else context
    if not 0 < chosen <= positions:
        raise UsageError(
            "bad-length", f"context is {chosen}, but the model has {positions} positions"
        )
    if batch < 1 or step < 1:
        raise UsageError("bad-length", f"batch and step are at least 1, got {batch} and {step}")
    few = _first_layers(config)
    plan, weights = _planned(checkpoint, few, scheme, target, _sizes(config, chosen, batch, step))
    depth, layers = config.num_hidden_layers, few.num_hidden_layers
    # Layers of one kind are as large as each other.
    kinds = [_kind(config, i) for i in range(depth)]
    size_of = {kind: weights[i] for i, kind in reversed([*enumerate(kinds[:layers])])}
    page = plan["alloc_pages"].peak
    functions = ["step", "sample"]
    source_page = source_pages = 0
    if isinstance(config, EncoderDecoderConfig):
        functions.append("encode")
        source_page = plan["alloc_sources"].peak * depth // layers
        source_pages = -(-config.source_positions // config.page_size) * batch
    tokens = 0
    if config.vision is not None:
        functions.append("encode_picture")
        tokens = config.vision.most_tokens
    return DecoderPlan(
        model_type=config.model_type or "decoder",
        stored=sum(file.stat().st_size for file in checkpoint.files),
        weights=weights[_OTHER] + weights.get(_TOWER, 0) + sum(size_of[kind] for kind in kinds),
        page=page * depth // layers,
        page_size=config.page_size,
        context=chosen,
        batch=batch,
        positions=positions,
        step=min(step, chosen * batch),
        activations=max(plan[f].peak for f in functions)
        + max((k.nbytes(plan.threads) for f in functions for k in plan[f].kernels), default=0),
        machine=machine_memory(),
        source_page=source_page,
        source_pages=source_pages,
        tower=weights.get(_TOWER, 0),
        picture_tokens=tokens,
        picture=tokens * config.hidden_size * 4,
        rows=STORED if tokens else 0,
    )


def _kind(config: DecoderConfig, layer: int) -> tuple[Any, ...]:
    return config.window(layer), config.has_experts(layer)


def _first_layers(config: DecoderConfig) -> DecoderConfig:
    """The configuration with as many first layers as there are kinds of layers to see; at least two."""
    kinds = [_kind(config, i) for i in range(config.num_hidden_layers)]
    count = max(2, *(kinds.index(kind) + 1 for kind in kinds))
    count = min(count, config.num_hidden_layers)
    if isinstance(
        config, EncoderDecoderConfig
    ):  # heads of layers that are not seen have no numbers of their own
        config = replace(config, alignment_heads=())
    return replace(
        config,
        num_hidden_layers=count,
        sliding_windows=config.sliding_windows[:count],
        dense_layers=tuple(i for i in config.dense_layers if i < count),
    )


def _sizes(config: DecoderConfig, context: int, batch: int, step: int) -> dict[str, int]:
    """The values of the program's symbolic variables: a step of so many tokens, and one page."""
    width = math.ceil(context / config.page_size)
    few = {
        "copy_pages.copies": 0,
        "copy_pages.pages": 1,
        "alloc_pages.pages": 1,
        "sample.biases": 0,
    }
    if isinstance(config, EncoderDecoderConfig):
        wide = math.ceil(config.source_positions / config.page_size)
        few |= {
            "encode.batch": 1,
            "encode.frames" if config.mels else "encode.source": config.source_positions
            * config.stride
            + config.reach
            - 1,
            "encode.source_width": wide,
            "encode.source_pages": wide * batch,
            "step.source_width": wide,
            "step.source_pages": wide * batch,
            "alloc_sources.pages": 1,
        }
    if config.vision is not None:
        few |= {"step.embedded": min(step, context * batch), **config.vision.largest()}
    return {
        **few,
        "step.count": min(step, context * batch),
        "step.offsets": batch + 1,
        "step.sequences": batch,
        "step.width": width,
        "step.outputs": batch,
        "step.pages": width * batch,
        "sample.rows": batch,
        "sample.history": context,
    }


def _planned(
    checkpoint: Checkpoint,
    config: DecoderConfig,
    scheme: Scheme,
    target: str,
    sizes: dict[str, int],
) -> tuple[MemoryPlan, dict[int, int]]:
    """The plan of the program for these sizes, and the sizes of the packed weights of each layer, of the tower, and
    of the others."""
    from relaxpy.build.plan import memory_plan

    mod, _ = decoder_program(checkpoint, config, scheme)
    plan = memory_plan(mod, target, sizes=sizes, pack=True, inside_kernels=True)
    found: dict[int, int] = {}
    every = {name: size for own in plan.packed.values() for name, size in own.items()}
    for parameter, nbytes in every.items():  # functions share what they pack alike
        layer = _LAYER.match(parameter)
        number = int(layer[1]) if layer else _TOWER if parameter.startswith("vision_") else _OTHER
        found[number] = found.get(number, 0) + nbytes
    return plan, found
