"""Decoders from transformers' checkpoints: compiled once for a configuration and a scheme, then started without the
compiler.

    decoder = load_decoder("TinyLlama-1.1B-Chat-v1.0")
    caches = decoder.vm["alloc_pages"](1024)
    logits = decoder.vm["step"](*batch.arguments, caches, *decoder.weights)

The first start compiles the model's functions and packs the checkpoint, which is quantised on the way. Both results are
kept (`relaxpy.runtime.kept_executables`, `relaxpy.runtime.kept_weights`): the next start maps them, and imports neither
the compiler nor the model. Another checkpoint of the same configuration is packed by the same executable.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from relaxpy.files import tuning_path
from relaxpy.identity import sources_digest
from relaxpy.models.checkpoint import CONFIG_FILE, read_json
from relaxpy.runtime import Executable, PackedWeights, VirtualMachine, host_features
from relaxpy.runtime.checkpoint import Source
from relaxpy.runtime.kept_executables import find_executable, keep_executable


@dataclass(frozen=True)
class Scheme:
    """How a decoder keeps its weights, and computes. The defaults are W4A8: the least memory to read for a token."""

    bits: int | None = 4
    """Bits of a weight in matrix products: 3, 4 or 8; None: as the checkpoint stores it."""
    group: int | None = 32
    """Neighbours along the depth that share a scale; None: all of them."""
    zero: Literal["symmetric", "zero_point", "minimum"] = "symmetric"
    """The value of code 0 (`relaxpy.op.weight_scheme`)."""
    activations: int | None = 32
    """Quantise what is multiplied to int8, with a scale for so many neighbours, where weights have 4 bits; None: it
    stays a float."""
    dtype: str = "float32"
    """Dtype of the computation, and of the weights if they are not quantised."""
    cache_dtype: str = ""
    """Dtype of the paged cache: "" for `dtype`, or int8."""
    adapters: tuple[str, ...] = ()
    """The linear maps that take low-rank adapters in a step."""


@dataclass(frozen=True, eq=False)
class LoadedDecoder:
    """A model that is ready to run."""

    vm: VirtualMachine
    """Its functions: `step`, `alloc_pages`, `copy_pages`, `sample`."""
    packed: PackedWeights
    vocab_size: int
    page_size: int
    windows: tuple[int, ...]
    """The window of each group of pages, for `relaxpy.serve.PageBook`."""
    config: Mapping[str, Any]
    """The fields of `config.json`."""

    @property
    def weights(self) -> tuple[Any, ...]:
        """The last arguments of `step`."""
        return self.packed["step"]


def load_decoder(
    place: str | os.PathLike[str],
    scheme: Scheme = Scheme(),
    *,
    target: str = "llvm",
    keep: bool = True,
) -> LoadedDecoder:
    """The decoder of a checkpoint's directory. With `keep=False` nothing is read from the caches of executables and of
    packed weights, nor written to them.

    Raises: UsageError: `bad-checkpoint` for a directory that cannot be read; `bad-config` for a family
    (`relaxpy.models.families`) or a setting that is not supported; `bad-weights` for tensors that are missing,
    unexpected or of another shape or type (all of them at once).
    """
    fields = read_json(Path(place) / CONFIG_FILE, "a checkpoint")
    key = _key(fields, scheme, target) if keep else None
    found = find_executable(key) if key is not None else None
    if found is None:
        found = exe, facts = _built(place, fields, scheme, target, keep)
        if key is not None:
            keep_executable(key, exe, facts)
    exe, facts = found
    vm = VirtualMachine(exe)
    names = {
        name: Source(tensor, turned, tuple(rows) if rows else None)
        for name, (tensor, turned, rows) in facts["sources"].items()
    }
    packed = vm.pack(place, names=names, keep=keep, unused=facts["unused"])
    return LoadedDecoder(
        vm, packed, facts["vocab_size"], facts["page_size"], tuple(facts["windows"]), fields
    )


def _built(
    place: str | os.PathLike[str],
    fields: Mapping[str, Any],
    scheme: Scheme,
    target: str,
    keep: bool,
) -> tuple[Executable, dict[str, Any]]:
    """The executable, and what is known of it beside."""
    from relaxpy import nn  # loads the compiler
    from relaxpy.build import build
    from relaxpy.models.decoder import Decoder, step_spec
    from relaxpy.models.families import decoder_config
    from relaxpy.op.weight_scheme import WeightScheme
    from relaxpy.transform import CastWeights, QuantizeWeights

    own = decoder_config(place, scheme.dtype)
    config = replace(own, cache_dtype=scheme.cache_dtype, adapters=scheme.adapters)
    functions = {**step_spec(config), "sample": nn.sampling_spec(config.vocab_size)}
    mod, _ = Decoder(config).export(functions)
    mod = CastWeights(fields.get("dtype") or fields.get("torch_dtype") or "float32")(mod)
    if scheme.bits is not None:
        weights = WeightScheme(scheme.bits, scheme.group, scheme.zero)
        mod = QuantizeWeights(weights, activations=scheme.activations, on_load=True)(mod)
    facts = {
        "sources": {
            name: [each.name, each.transpose, each.rows] for name, each in config.sources().items()
        },
        "unused": sorted(config.unused()),
        "vocab_size": config.vocab_size,
        "page_size": config.page_size,
        "windows": config.windows,
    }
    return build(mod, target, pack=True, cache=keep), facts


def _key(fields: Mapping[str, Any], scheme: Scheme, target: str) -> str | None:
    """A digest of all that the executable is made from; None if the running code is not that of the files."""
    compiler = sources_digest(["."])
    if compiler is None:
        return None
    tuning = tuning_path()
    records = tuning.read_bytes() if tuning is not None and tuning.is_file() else b""
    machine = platform.machine(), sorted(host_features())
    facts = compiler, fields, asdict(scheme), target, machine, hashlib.sha256(records).hexdigest()
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
