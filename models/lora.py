"""Low-rank adapters in training (Hu et al., 2021): which modules of a checkpoint have one, and the decoder with its
loss, of which the adapters alone are trained."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaxpy import nn
from relaxpy.errors import UsageError
from relaxpy.llm.examples import IGNORED
from relaxpy.models.decoder import Decoder, layer_shapes
from relaxpy.models.decoder_config import DecoderConfig
from relaxpy.nn import op

EVERY = "all"


@dataclass(frozen=True)
class AdaptedModule:
    """A linear map of a checkpoint that has an adapter."""

    place: str
    """Transformers' name of the module."""
    layer: int
    parts: Mapping[str, tuple[int, int]]
    """The linear maps of the layer that are joined in it, and which rows of its results they have."""
    shape: tuple[int, int]
    """(out, in) of its weight."""

    @property
    def name(self) -> str:
        """The name of its parameters in a program, before `_down` and `_up`."""
        return f"lora_{self.layer}_{'_'.join(self.parts)}"


def adapted_modules(
    config: DecoderConfig, targets: Iterable[str] = (EVERY,)
) -> list[AdaptedModule]:
    """The modules that targets name: linear maps of a layer (`config.linears`), or the last parts of transformers'
    names of modules ("q_proj", "attn.c_proj"); "all" is all of them. A map that is joined with others in the checkpoint
    (Phi-3's `qkv_proj`) has an adapter together with them. Raises: UsageError (`bad-config`) for what is none."""
    shapes, sources = layer_shapes(config), config.linear_sources()
    joined: dict[tuple[int, str], dict[str, tuple[int, int]]] = {}
    sizes: dict[tuple[int, str], tuple[int, int]] = {}
    for (layer, linear), source in sources.items():
        out, width = shapes[linear]
        start, end, rows = source.rows or (0, out, out)
        joined.setdefault((layer, source.name), {})[linear] = start, end
        sizes[layer, source.name] = rows, width
    modules = [
        AdaptedModule(place, layer, parts, sizes[layer, place])
        for (layer, place), parts in joined.items()
    ]
    found: list[AdaptedModule] = []
    wanted = list(targets)
    for target in wanted:
        own = [m for m in modules if target == EVERY or target in m.parts or _ends(m, target)]
        if not own:
            ends = sorted({m.place.rpartition(".")[2] for m in modules})
            raise UsageError(
                "bad-config",
                f"no linear map is named {target!r}",
                help=f"those of this model are {', '.join(config.linears)}, or {', '.join(ends)}; all: each of them",
            )
        found += own
    if not found:
        raise UsageError("bad-config", "there is no linear map to adapt", help="name some, or all")
    return [module for module in modules if module in found]


def _ends(module: AdaptedModule, target: str) -> bool:
    return f".{module.place}".endswith(f".{target}")


def target_modules(config: DecoderConfig, modules: Iterable[AdaptedModule]) -> list[str]:
    """`target_modules` of PEFT's configuration: ends of names that these modules have, and no others."""
    chosen = {module.place for module in modules}
    others = [m.place for m in adapted_modules(config) if m.place not in chosen]
    found: set[str] = set()
    for place in chosen:
        parts = place.split(".")
        ends = (".".join(parts[-count:]) for count in range(1, len(parts) + 1))
        found.add(next(e for e in ends if not any(f".{o}".endswith(f".{e}") for o in others)))
    return sorted(found)


class LoraDecoder(Decoder):
    """A decoder with adapters of these modules, of this rank, in float32."""

    def __init__(
        self, config: DecoderConfig, modules: Iterable[AdaptedModule], rank: int, alpha: float
    ) -> None:
        super().__init__(config)
        self.modules_with = tuple(modules)
        self.rank, self.scale = rank, alpha / rank

    def loss(self, input_ids: nn.Tensor, labels: nn.Tensor, **adapters: nn.Tensor) -> nn.Tensor:
        """The mean of the cross entropy of `labels` (batch, seq), the token after each of `input_ids` (batch, seq), but
        for those that are `IGNORED`. `adapters` are NAME_down (rank, in) and NAME_up (out, rank) of each module."""
        by_layer: dict[int, dict[str, tuple[nn.Tensor, nn.Tensor]]] = {}
        for module in self.modules_with:
            down, up = adapters[f"{module.name}_down"], adapters[f"{module.name}_up"]
            ends = [end for _, end in module.parts.values()][:-1]
            rows = op.split(up, ends, axis=0) if ends else [up]
            own = by_layer.setdefault(module.layer, {})
            own |= {name: (down, part) for name, part in zip(module.parts, rows, strict=True)}
        shared = {n: nn.SharedAdapters(own, self.scale) for n, own in by_layer.items()}
        logits = self.logits(input_ids, shared)
        batch, seq = input_ids.shape
        scores = op.nn.log_softmax(op.reshape(logits, (batch * seq, self.config.vocab_size)))
        return op.nn.nll_loss(scores, op.reshape(labels, (batch * seq,)), ignore_index=IGNORED)

    def loss_spec(self) -> dict[str, Any]:
        """The arguments of `loss`, symbolic in batch size and length. Those after the first two are trained."""
        tokens = nn.spec.Tensor(("batch", "seq"), "int64")
        return {
            "input_ids": tokens,
            "labels": tokens,
            **{name: nn.spec.Tensor(shape, "float32") for name, shape in self.sizes().items()},
        }

    def sizes(self) -> dict[str, tuple[int, int]]:
        """The shape of each matrix of the adapters."""
        found: dict[str, tuple[int, int]] = {}
        for module in self.modules_with:
            out, width = module.shape
            found[f"{module.name}_down"] = self.rank, width
            found[f"{module.name}_up"] = out, self.rank
        return found

    def initial(self, seed: int = 0) -> list[np.ndarray]:
        """The adapters that PEFT begins with: uniform numbers up to 1 / sqrt(in), and zeros, so that nothing is
        added at first."""
        rng = np.random.default_rng(seed)
        found: list[np.ndarray] = []
        for name, shape in self.sizes().items():
            bound = 1 / math.sqrt(shape[1]) if name.endswith("_down") else 0.0
            found.append(rng.uniform(-bound, bound, shape).astype(np.float32))
        return found

    def tensors(self, adapters: Iterable[Any]) -> dict[str, np.ndarray]:
        """The adapters by PEFT's names."""
        given = dict(zip(self.sizes(), adapters, strict=True))
        found: dict[str, np.ndarray] = {}
        for module in self.modules_with:
            for half, end in (("A", "down"), ("B", "up")):
                name = f"base_model.model.{module.place}.lora_{half}.weight"
                found[name] = np.array(given[f"{module.name}_{end}"])
        return found
