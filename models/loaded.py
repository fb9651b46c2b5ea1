"""Decoders from checkpoints (`relaxpy.checkpoints`): compiled once for a configuration and a scheme, then started
without the compiler.

    decoder = load_decoder("TinyLlama-1.1B-Chat-v1.0")
    caches = decoder.vm["alloc_pages"](1024)
    logits = decoder.vm["step"](*batch.arguments, caches, *decoder.weights)

The first start compiles the model's functions and packs the checkpoint, which is quantised on the way. Both results are
kept (`relaxpy.runtime.executable_cache`, `relaxpy.runtime.weight_cache`): the next start maps them, and imports neither
the compiler nor the model. Another checkpoint of the same configuration is packed by the same executable.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from relaxpy.checkpoints import Checkpoint, open_checkpoint
from relaxpy.checkpoints.config_file import read_fields
from relaxpy.checkpoints.gguf_projector import projector_of
from relaxpy.codes import Codes
from relaxpy.errors import UsageError
from relaxpy.files import tuning_path
from relaxpy.identity import sources_digest
from relaxpy.narrow import is_sequence
from relaxpy.runtime import Executable, PackedWeights, VirtualMachine, host_features
from relaxpy.runtime.executable_cache import kept_or_made
from relaxpy.runtime.safetensors import Decoded, Source, Tensors
from relaxpy.runtime.tensor import Array
from relaxpy.serve.pictures import PictureShape, picture_shape_of
from relaxpy.serve.sources import SourceShape

if TYPE_CHECKING:
    import numpy as np

    from relaxpy.ir.module import IRModule
    from relaxpy.models.decoder_config import DecoderConfig
    from relaxpy.transform import QuantizeWeights


@dataclass(frozen=True)
class Scheme:
    """How a decoder keeps its weights, and computes. The defaults are W4A8, the least memory to read for a token, or
    W4A32 where the target has no products of bytes."""

    bits: int | None = 4
    """Bits of a weight in matrix products: 3, 4 or 8; None: as the checkpoint stores it, with the codes, groups and
    scales that it has, or as floats."""
    group: int | None = 32
    """Neighbours along the depth that share a scale; None: all of them."""
    zero: Literal["symmetric", "zero_point", "minimum"] = "symmetric"
    """The value of code 0 (`relaxpy.op.weight_scheme`)."""
    activations: int | Literal["target"] | None = "target"
    """Quantise what is multiplied to int8, with a scale for so many neighbours, where weights have 4 bits; None: it
    stays a float. "target": 32, or None where the target has no instructions for products of bytes, such as processors
    of aarch64 (`relaxpy.Target.has_byte_products`)."""
    embeddings: int | None = 8
    """Bits of the table of embeddings, and of the head where it is the same table, if matrices are quantised: in groups
    of 32, symmetric. Fewer bits of it cost more than those of other matrices. None: it is as the checkpoint has it."""
    decode: bool = False
    """With `bits=None`, compute floats from the codes of a quantised checkpoint, when it is packed. (With `bits` this
    is what is quantised anew.)"""
    dtype: str = "float32"
    """Dtype of the computation, and of the weights if they are not quantised."""
    cache_dtype: str = ""
    """Dtype of the paged cache: "" for `dtype`, or int8."""
    source_dtype: str = ""
    """Dtype of the keys and values of an encoder's output: "" for `dtype`, bfloat16, or int8."""
    adapters: tuple[str, ...] = ()
    """The linear maps that take low-rank adapters in a step."""
    context: int = 0
    """The longest sequence that is served, which chooses the factors of LongRoPE (Phi-3); 0: as long as the model
    allows."""
    check_numbers: bool = False
    """Check after each layer that there are no NaNs and no infinities, and name the first layer that has some. It takes
    time: for a model that fails with `not-a-number`."""

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Scheme:
        """The default for a checkpoint: its own codes if it is quantised."""
        return cls(bits=None) if checkpoint.has_codes else cls()

    def on(self, target: str) -> Scheme:
        """The scheme with what the target decides."""
        if self.activations != "target":
            return self
        from relaxpy.target import Target

        found = 32 if Target.parse(target).has_byte_products else None
        return replace(self, activations=found)

    def described(self) -> str:
        """In words: "weights in 4 bits, activations in 8"."""
        if self.bits is None:
            return f"weights as the checkpoint has them, computed in {self.dtype}"
        return f"weights in {self.bits} bits" + (
            ", activations in 8" if self.activations is not None and self.bits == 4 else ""
        )

    def applied(self, checkpoint: Checkpoint) -> DecoderConfig:
        """The configuration of a checkpoint's decoder with this scheme. Raises: UsageError (`bad-config`)."""
        from relaxpy.models.encoder_decoder import EncoderDecoderConfig
        from relaxpy.models.families import config_from

        own = config_from(checkpoint.config, self.dtype, str(checkpoint.place))
        layers, tensors = own.num_hidden_layers, len(checkpoint.tensors)
        if layers > tensors:  # before so many layers are made
            raise UsageError(
                "bad-config", f"{checkpoint.place} says {layers} layers, and has {tensors} tensors"
            )
        if isinstance(own, EncoderDecoderConfig):
            own = own.fitted(checkpoint.tensors)
            heads = _alignment_heads(checkpoint) if own.times_words else ()
            if heads is None:
                every = range(own.num_attention_heads)
                heads = tuple((n, head) for n in range(layers // 2, layers) for head in every)
            own = replace(own, source_dtype=self.source_dtype, alignment_heads=heads)
        elif self.source_dtype:
            raise UsageError(
                "bad-config",
                f"source_dtype is that of an encoder's output, and {checkpoint.place} has no encoder",
            )
        return replace(
            own,
            cache_dtype=self.cache_dtype,
            adapters=self.adapters,
            context=self.context,
            check_numbers=self.check_numbers,
        )


@dataclass(frozen=True, eq=False)
class LoadedDecoder:
    """A model that is ready to run."""

    vm: VirtualMachine
    """Its functions: `step`, `alloc_pages`, `copy_pages`, `sample`; with an encoder also `encode`, `alloc_sources` and
    `align`; with a tower `encode_picture`."""
    packed: PackedWeights
    vocab_size: int
    page_size: int
    positions: int
    """The most tokens of a sequence."""
    windows: tuple[int, ...]
    """The window of each group of pages, for `relaxpy.serve.PageBook`."""
    config: Mapping[str, Any]
    """The fields of `config.json`."""
    scheme: Scheme
    source: SourceShape | None = None
    """What its encoder reads; None: it has none."""
    alignment_heads: tuple[tuple[int, int], ...] = ()
    """(layer, head) of those whose attention `align` gives: `alignment_heads` of generation_config.json; without one,
    as OpenAI has it, all of the upper half of the layers."""
    pictures: PictureShape | None = None
    """What its tower makes of pictures; None: it sees none."""

    @property
    def weights(self) -> tuple[Any, ...]:
        """The last arguments of `step`."""
        return self.packed["step"]

    def weights_of(self, function: str) -> tuple[Any, ...]:
        """The last arguments of a function."""
        return self.packed[function]


def load_decoder(
    place: str | os.PathLike[str],
    scheme: Scheme | None = None,
    *,
    target: str = "llvm",
    keep: bool = True,
    mmproj: str | os.PathLike[str] | None = None,
) -> LoadedDecoder:
    """The decoder of a checkpoint: of a folder, or of a GGUF file. Without a scheme, a checkpoint that is quantised
    keeps its codes, `Scheme(bits=None)`, and others are quantised, `Scheme()`. With `keep=False` nothing is read from
    the caches of executables and of packed weights, nor written to them. `mmproj` is the second file of a GGUF model
    that sees (None: the one beside it, `relaxpy.checkpoints.gguf_projector`).

    Raises: UsageError: `bad-checkpoint` for files that cannot be read; `bad-config` for a family
    (`relaxpy.models.families`) or a setting that is not supported; `bad-weights` for tensors that are missing,
    unexpected or of another shape or type (all of them at once).
    """
    checkpoint = open_checkpoint(place, projector_of(place, mmproj))
    scheme = scheme or Scheme.of(checkpoint)
    vm, facts = kept_or_built(checkpoint, scheme, target, keep, _built)
    tensors, names = stored_tensors(checkpoint, facts)
    keep = keep and facts["identity"] is not None
    packed = vm.pack(tensors, names=names, keep=keep, unused=facts["unused"])
    return LoadedDecoder(
        vm,
        packed,
        facts["vocab_size"],
        facts["page_size"],
        facts["positions"],
        tuple(facts["windows"]),
        checkpoint.config,
        replace(scheme, activations=facts["activations"]),
        None if facts["source"] is None else SourceShape(**facts["source"]),
        tuple((layer, head) for layer, head in facts["alignment_heads"]),
        picture_shape_of(facts["pictures"]),
    )


def kept_or_built(
    checkpoint: Checkpoint,
    scheme: Scheme,
    target: str,
    keep: bool,
    build: Callable[[Checkpoint, Scheme, str, bool], tuple[Executable, dict[str, Any]]],
) -> tuple[VirtualMachine, dict[str, Any]]:
    """A model's executable and what is known of it beside: with `keep` those that are kept, if they are, and else kept
    from now on."""
    key = kept_key(checkpoint, scheme, target) if keep else None
    return kept_or_made(key, lambda: build(checkpoint, scheme, target, keep))


def load_adapters(
    place: str | os.PathLike[str], scheme: Scheme | None, folders: Sequence[str]
) -> tuple[tuple[tuple[np.ndarray, np.ndarray], ...], ...]:
    """The argument `adapters` of a decoder's `step`: those of folders as PEFT writes them. The scheme names the linear
    maps that they adapt. Raises: UsageError (`bad-weights`)."""
    from relaxpy.models.adapters import load_adapter
    from relaxpy.models.decoder import stack_adapters

    checkpoint = open_checkpoint(place)
    config = (scheme or Scheme.of(checkpoint)).applied(checkpoint)
    return stack_adapters(config, [load_adapter(each) for each in folders])


def stored_tensors(
    checkpoint: Checkpoint, facts: Mapping[str, Any]
) -> tuple[Tensors, dict[str, str | Source]]:
    """The tensors of a checkpoint as the executable takes them, and those of each parameter. The codes of a quantised
    tensor `x` are `x:codes`, its scales `x:scale`."""
    in_codes = {*facts["in_codes"]}
    names: dict[str, str | Source] = {}
    tensors: dict[str, Array | Decoded] = {}
    as_floats: set[str] = set()
    for parameter, fields in facts["sources"].items():
        source = source_of(fields)
        if parameter not in in_codes or any(n not in checkpoint.tensors for n in source.names):
            names[parameter] = source
            as_floats |= {*source.names}
            continue
        for name in source.names:
            parts = checkpoint.tensors[name].parts()
            tensors |= {f"{name}:{part}": decoded for part, decoded in parts.items()}
        for part in checkpoint.tensors[source.names[0]].parts():
            names[f"{parameter.replace('.', '_')}_{part}"] = replace(
                source,
                name=f"{source.name}:{part}",
                transpose=False,
                parts=tuple(f"{name}:{part}" for name in source.parts),
            )
    taken = {name.rsplit(":", 1)[0] for name in tensors} - as_floats
    for name, stored in checkpoint.tensors.items():
        if name not in taken:
            tensors[name] = stored.decoded()
    return Tensors(tensors, checkpoint.files, facts["identity"] or ""), names


def _built(
    checkpoint: Checkpoint, scheme: Scheme, target: str, keep: bool
) -> tuple[Executable, dict[str, Any]]:
    """The executable, and what is known of it beside."""
    from relaxpy.build import build  # loads the compiler

    scheme = scheme.on(target)
    config = scheme.applied(checkpoint)
    mod, in_codes = decoder_program(checkpoint, config, scheme)
    facts = {
        **source_facts(checkpoint, config, in_codes),
        "vocab_size": config.vocab_size,
        "page_size": config.page_size,
        "positions": config.max_position_embeddings,
        "windows": config.windows,
        "activations": scheme.activations,
        **_encoder_facts(config),
        "pictures": _picture_facts(config),
    }
    return build(mod, target, pack=True, cache=keep), facts


def source_facts(
    checkpoint: Checkpoint, config: DecoderConfig, in_codes: Sequence[str]
) -> dict[str, Any]:
    """What `stored_tensors` reads of a program's weights, and what packing them needs."""
    sources = config.sources_in(checkpoint.tensors)
    return {
        "sources": {name: astuple(each) for name, each in sources.items()},
        "in_codes": list(in_codes),
        "identity": identity_of(checkpoint),
        "unused": sorted(config.ignored()),
    }


def _encoder_facts(config: DecoderConfig) -> dict[str, Any]:
    from relaxpy.models.encoder_decoder import EncoderDecoderConfig

    if not isinstance(config, EncoderDecoderConfig):
        return {"source": None, "alignment_heads": ()}
    vocab = 0 if config.mels else config.vocab_size
    shape = SourceShape(config.source_positions, config.stride, config.mels, vocab, config.reach)
    return {"source": asdict(shape), "alignment_heads": config.alignment_heads}


def _picture_facts(config: DecoderConfig) -> dict[str, Any] | None:
    return None if config.vision is None else asdict(config.vision.shape(config.hidden_size))


def _alignment_heads(checkpoint: Checkpoint) -> tuple[tuple[int, int], ...] | None:
    """The field `alignment_heads` of a checkpoint's generation_config.json; None without one. Raises: UsageError
    (`bad-checkpoint`)."""
    path = Path(checkpoint.place) / "generation_config.json"
    if not path.is_file():
        return None
    fields = read_fields(path, "a checkpoint")
    given: Any = fields.get("alignment_heads")
    if given is None:
        return None
    if not is_sequence(given) or not all(
        is_sequence(pair) and len(pair) == 2 and all(type(n) is int and n >= 0 for n in pair)
        for pair in given
    ):
        raise UsageError(
            "bad-checkpoint",
            f"{path}: alignment_heads must be pairs of a layer and a head, got {str(given)[:100]}",
        )
    return tuple((layer, head) for layer, head in given) or None


def decoder_program(
    checkpoint: Checkpoint, config: DecoderConfig, scheme: Scheme
) -> tuple[IRModule, list[str]]:
    """The functions of a decoder, before they are lowered, and the parameters that keep the codes of the checkpoint.
    `config` may have fewer layers than the checkpoint; the scheme is that of a target (`Scheme.on`)."""
    from relaxpy import nn
    from relaxpy.models.decoder import Decoder, step_spec
    from relaxpy.models.encoder_decoder import (
        EncoderDecoder,
        EncoderDecoderConfig,
        encoder_decoder_spec,
    )

    model: nn.Module
    if isinstance(config, EncoderDecoderConfig):
        model, functions = EncoderDecoder(config), encoder_decoder_spec(config)
    else:
        model, functions = Decoder(config), step_spec(config)
    mod, _ = model.export({**functions, "sample": nn.sampling_spec(config.vocab_size)})
    return as_stored(mod, checkpoint, config, scheme)


def as_stored(
    mod: IRModule, checkpoint: Checkpoint, config: DecoderConfig, scheme: Scheme
) -> tuple[IRModule, list[str]]:
    """The functions of a decoder on weights as a checkpoint has them, or a scheme quantises them, and the parameters
    that keep the codes of the checkpoint."""
    from relaxpy.ir.expr import Var
    from relaxpy.op.weight_scheme import WeightScheme
    from relaxpy.transform import CastWeights, QuantizeWeights

    sources = config.sources_in(checkpoint.tensors)
    stored = {
        parameter.replace(".", "_"): (parameter, checkpoint.tensors[source.names[0]])
        for parameter, source in sources.items()
        if source.names[0] in checkpoint.tensors
    }
    main = checkpoint.config.get("dtype") or checkpoint.config.get("torch_dtype") or "float32"
    dtypes = {
        name: tensor.dtype
        for name, (_, tensor) in stored.items()
        if tensor.dtype in ("float32", "bfloat16", "float16") and tensor.dtype != main
    }
    mod = CastWeights(str(main), others=dtypes)(mod)
    in_codes: list[str] = []
    if scheme.bits is None and not scheme.decode:
        codes = {
            name: _codes(checkpoint, sources[parameter]) for name, (parameter, _) in stored.items()
        }
        schemes = {
            name: WeightScheme(*astuple(each)) for name, each in codes.items() if each is not None
        }
        step = QuantizeWeights(
            schemes=schemes,
            choose=lambda name, _: name in schemes,
            activations=_group(scheme),
            lookups=True,
        )
        chosen = {w for f in mod.graph_functions.values() for w in step.weights(f)}
        in_codes = sorted({stored[w.name][0] for w in chosen if isinstance(w, Var)})
        mod = step(mod) if in_codes else mod
    if scheme.bits is not None:
        mod = quantization(config, scheme)(mod)
    return mod, in_codes


def quantization(config: DecoderConfig, scheme: Scheme) -> QuantizeWeights:
    """The pass that quantises the weights of a decoder anew, when they are loaded. Positions are few, and stay floats:
    learned ones, and those that are computed, which are constants."""
    from relaxpy.op.weight_scheme import WeightScheme
    from relaxpy.transform import QuantizeWeights

    assert scheme.bits is not None, "weights are quantised"
    kept = config.kept_whole() | {"positions_weight", "encoder_positions", "constant"}
    own: dict[str, WeightScheme] = {}
    if scheme.embeddings is None:
        kept.add("embedding_weight")
    else:
        own["embedding_weight"] = WeightScheme(scheme.embeddings)
    return QuantizeWeights(
        WeightScheme(scheme.bits, scheme.group, scheme.zero),
        own,
        choose=lambda name, _: name not in kept,
        activations=_group(scheme) if scheme.bits == 4 else None,
        on_load=True,
        lookups=True,
    )


def _group(scheme: Scheme) -> int | None:
    assert scheme.activations != "target", "Scheme.on(target) decides"
    return scheme.activations


def _codes(checkpoint: Checkpoint, source: Source) -> Codes | None:
    """The codes of all tensors of a source, if a parameter can be kept in them."""
    tensors = [checkpoint.tensors.get(name) for name in source.names]
    kinds = {each.codes if each and each.turned == source.transpose else None for each in tensors}
    return kinds.pop() if len(kinds) == 1 else None


def source_of(fields: Sequence[Any]) -> Source:
    """A source from its fields, which went through JSON."""
    values: list[Any] = [tuple(cast(list[Any], v)) if isinstance(v, list) else v for v in fields]
    return Source(*values)


def identity_of(checkpoint: Checkpoint) -> str | None:
    """All that the tensors of a checkpoint depend on beside its files; None if the running code is not that of the
    files."""
    decoders = sources_digest(["checkpoints", "codes.py"])
    if decoders is None:
        return None
    found = sorted(checkpoint.formats.items()), decoders if checkpoint.quantization else ""
    return hashlib.sha256(repr(found).encode()).hexdigest()


def kept_key(checkpoint: Checkpoint, scheme: Scheme, target: str) -> str | None:
    """A digest of all that the executable is made from; None if the running code is not that of the files."""
    compiler = sources_digest(
        [".", "models"]
    )  # in a checkout models is a link, not a folder of "."
    if compiler is None:
        return None
    tuning = tuning_path()
    records = tuning.read_bytes() if tuning is not None and tuning.is_file() else b""
    machine = platform.machine(), sorted(host_features())
    digest = hashlib.sha256(records).hexdigest()
    stored = checkpoint.config, checkpoint.formats
    heads = _alignment_heads(checkpoint)
    facts = compiler, stored, asdict(scheme), target, machine, digest, heads
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
