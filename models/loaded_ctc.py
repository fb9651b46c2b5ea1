"""Encoders of sound from checkpoints, compiled once for a configuration and a scheme, then started without the
compiler, as decoders are (`relaxpy.models.loaded`).

    encoder = load_ctc("facebook/wav2vec2-base-960h")
    logits = encoder.logits(samples[None], np.array([len(samples)]))           (1, frames, vocabulary)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np

from relaxpy.checkpoints import Checkpoint, open_checkpoint
from relaxpy.errors import UsageError
from relaxpy.models.loaded import Scheme, identity_of, kept_or_built, source_of
from relaxpy.runtime import Executable, PackedWeights, VirtualMachine
from relaxpy.runtime.safetensors import Tensors

_FLOATS = Scheme(bits=None)
_NARROW = ("bfloat16", "float16")
"""Dtypes of weights that are converted when they are packed."""


@dataclass(frozen=True, eq=False)
class LoadedCtc:
    """An encoder of sound that is ready to run. Safe to use from several threads."""

    vm: VirtualMachine
    packed: PackedWeights
    vocab_size: int
    blank: int
    """The token of the blank."""
    hop: int
    """Samples from one frame to the next."""
    reach: int
    """The fewest samples that have a frame."""
    has_features: bool
    """Whether the encoder reads features of samples, and not samples."""
    config: Mapping[str, Any]
    """The fields of `config.json`."""

    def logits(self, samples: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The logits (batch, frames, vocabulary) float32 of samples (batch, samples) float32 at 16 kHz, row b of which
        has lengths[b], int64, and zeros after them."""
        x: Any = samples
        if self.has_features:
            x = self.vm["features"](x, lengths)
        return self.vm["logits"](x, lengths, *self.packed["logits"]).numpy()


def load_ctc(
    place: str | os.PathLike[str],
    scheme: Scheme | None = None,
    *,
    target: str = "llvm",
    keep: bool = True,
) -> LoadedCtc:
    """The encoder of a checkpoint's folder. Weights are floats unless `scheme` has bits.

    Raises: UsageError: `bad-checkpoint` for files that cannot be read, `bad-config` for a family or a setting that is
    not supported, `bad-weights` for tensors that do not fit (all of them at once).
    """
    checkpoint = open_checkpoint(place)
    scheme = _checked(scheme or _FLOATS, checkpoint)
    vm, facts = kept_or_built(checkpoint, scheme, target, keep, _built)
    identity = identity_of(checkpoint) if keep else None
    arrays = {name: stored.decoded() for name, stored in checkpoint.tensors.items()}
    packed = vm.pack(
        Tensors(arrays, checkpoint.files, identity or ""),
        names={name: source_of(fields) for name, fields in facts["sources"].items()},
        keep=identity is not None,
        unused=facts["unused"],
    )
    names = ("vocab_size", "blank", "hop", "reach", "has_features")
    numbers = {name: facts[name] for name in names}
    return LoadedCtc(vm, packed, config=checkpoint.config, **numbers)


def _checked(scheme: Scheme, checkpoint: Checkpoint) -> Scheme:
    """Raises: UsageError (`bad-arguments`) for what an encoder has none of."""
    own = ("bits", "group", "zero", "activations", "embeddings", "decode")
    weights = {name: getattr(scheme, name) for name in own}
    other = astuple(replace(_FLOATS, **weights))
    for name, value, given in zip(Scheme.__dataclass_fields__, other, astuple(scheme), strict=True):
        if value != given:
            raise UsageError(
                "bad-arguments",
                f"{checkpoint.place} is an encoder of sound, which is computed in float32 and takes no {name}",
            )
    return scheme


def _built(
    checkpoint: Checkpoint, scheme: Scheme, target: str, keep: bool
) -> tuple[Executable, dict[str, Any]]:
    """The executable, and what is known of it beside."""
    from relaxpy.build import build  # loads the compiler
    from relaxpy.models.families import ctc_config
    from relaxpy.op.weight_scheme import WeightScheme
    from relaxpy.transform import CastWeights, QuantizeWeights

    scheme = scheme.on(target)
    config = ctc_config(checkpoint.config, str(checkpoint.place))
    if config.num_hidden_layers > len(checkpoint.tensors):  # before so many layers are made
        raise UsageError(
            "bad-config",
            f"{checkpoint.place} says {config.num_hidden_layers} layers, and has {len(checkpoint.tensors)} tensors",
        )
    sources = config.sources(checkpoint.tensors)
    mod, _ = config.module().export(config.spec())
    stored = {
        name.replace(".", "_"): checkpoint.tensors[source.name].dtype
        for name, source in sources.items()
        if source.name in checkpoint.tensors
    }
    mod = CastWeights("float32", others={n: d for n, d in stored.items() if d in _NARROW})(mod)
    if scheme.bits is not None:
        activations = scheme.activations if scheme.bits == 4 else None
        assert activations != "target", "Scheme.on(target) decides"
        mod = QuantizeWeights(
            WeightScheme(scheme.bits, scheme.group, scheme.zero),
            activations=activations,
            on_load=True,
        )(mod)
    facts = {
        "sources": {name: astuple(each) for name, each in sources.items()},
        "unused": sorted(config.unused()),
        "vocab_size": config.vocab_size,
        "blank": config.pad_token_id,
        "hop": config.hop,
        "reach": config.reach,
        "has_features": "features" in config.spec(),
    }
    return build(mod, target, pack=True, cache=keep), facts
