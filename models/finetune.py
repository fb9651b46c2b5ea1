"""Decoders from checkpoints with adapters to train: the counterpart of `relaxpy.models.loaded` for
`relaxpy finetune`.

    tuned = load_tuned("TinyLlama-1.1B-Chat-v1.0", AdamW(2e-4), Lora(rank=16))
    weights, state = tuned.model.initial(), tuned.step.start(())
    loss, weights, state = tuned.step(weights, state, input_ids, labels, packed=tuned.packed["step"])
    tuned.save("adapter", weights)

The whole step (the decoder's loss, the gradients of the adapters, the optimiser) is one executable for all batch sizes
and lengths. The decoder's own weights stay as the checkpoint, or a scheme, has them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from relaxpy.checkpoints import open_checkpoint
from relaxpy.errors import UsageError
from relaxpy.models.adapters import save_adapter
from relaxpy.models.encoder_decoder import EncoderDecoderConfig
from relaxpy.models.loaded import Scheme, as_stored, source_facts, stored_tensors
from relaxpy.models.lora import EVERY, LoraDecoder, adapted_modules, target_modules
from relaxpy.runtime import PackedWeights, VirtualMachine
from relaxpy.target import Target
from relaxpy.train import Optimizer, Step


@dataclass(frozen=True)
class Lora:
    """Which adapters are trained."""

    rank: int = 8
    alpha: float = 16.0
    """What adapters add is multiplied by alpha / rank."""
    targets: tuple[str, ...] = (EVERY,)
    """The linear maps that have one (`relaxpy.models.lora.adapted_modules`)."""


@dataclass(frozen=True, eq=False)
class Tuned:
    """A decoder whose adapters can be trained."""

    model: LoraDecoder
    step: Step
    packed: PackedWeights
    """The decoder's weights, the last arguments of a step."""
    lora: Lora
    place: str
    """The checkpoint."""

    def save(self, directory: str | os.PathLike[str], adapters: Sequence[Any]) -> None:
        """Write the adapters as PEFT does. Raises: UsageError without the package safetensors."""
        model, sources = self.model, self.model.config.linear_sources()
        save_adapter(
            Path(directory),
            model.tensors(adapters),
            rank=model.rank,
            alpha=self.lora.alpha,
            target_modules=target_modules(model.config, model.modules_with),
            base=self.place,
            fan_in_fan_out=any(source.transpose for source in sources.values()),
        )


def load_tuned(
    place: str | os.PathLike[str],
    optimizer: Optimizer,
    lora: Lora | None = None,
    scheme: Scheme | None = None,
    *,
    schedule: Callable[[int], float] | None = None,
    clip_norm: float | None = 1.0,
    target: str | Target = "llvm",
    keep: bool = True,
    check_numbers: bool = False,
    accumulate: bool = False,
) -> Tuned:
    """The decoder of a checkpoint, a folder or a GGUF file, ready to train its adapters. Without a scheme its weights
    are as the checkpoint has them, and computed in float32. `keep` as in `load_decoder`, `check_numbers` and
    `accumulate` as in `Step`.

    Raises: UsageError as `load_decoder` does, and (`bad-config`) for a model with an encoder or a tower, a rank
    below 1, or targets that are none.
    """
    lora = lora or Lora()
    if lora.rank < 1 or not lora.alpha > 0:
        raise UsageError(
            "bad-config",
            f"rank and alpha of adapters are positive, got {lora.rank} and {lora.alpha}",
        )
    checkpoint = open_checkpoint(place)
    # products of bytes have no gradient
    scheme = replace(scheme or Scheme(bits=None), activations=None)
    config = scheme.applied(checkpoint)
    if isinstance(config, EncoderDecoderConfig):
        raise UsageError(
            "bad-config", f"{checkpoint.place} has an encoder, and adapters are of decoders"
        )
    if config.vision is not None:
        raise UsageError(
            "bad-config",
            f"{checkpoint.place} reads pictures, and adapters are of models that read texts alone",
        )
    model = LoraDecoder(config, adapted_modules(config, lora.targets), lora.rank, lora.alpha)
    mod, _ = model.export({"loss": model.loss_spec()})
    before = len(model.loss_spec())
    mod, in_codes = as_stored(mod, checkpoint, config, scheme)
    frozen = [param.name for param in mod.graph_function("loss").params[before:]]
    step = Step(
        mod.loss,
        optimizer,
        range(2, before),
        schedule=schedule,
        clip_norm=clip_norm,
        packed=frozen,
        check_numbers=check_numbers,
        accumulate=accumulate,
    )
    facts = source_facts(checkpoint, config, in_codes)
    vm = VirtualMachine(step.build(target, cache=keep))
    step.use(vm)
    tensors, names = stored_tensors(checkpoint, facts)
    keep = keep and facts["identity"] is not None
    packed = vm.pack(tensors, names=names, keep=keep, unused=facts["unused"])
    return Tuned(model, step, packed, lora, str(checkpoint.place))
