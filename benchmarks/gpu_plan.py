"""What `gpu.py` runs: its sizes, and the files that `--prepare` writes for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.gpu_models import DECODER_SCHEMES, SHAPES
from benchmarks.llm_peers import Shape
from relaxpy.runtime.inspect.random_tensors import Weight

PLAN = "plan.json"


@dataclass(frozen=True)
class Plan:
    """Sizes, the same for all sections."""

    name: str
    host: str
    """The target that computes the processor's numbers."""
    operators: tuple[int, int]
    """How many groups of operators, and of how many."""
    every_sample: bool
    """Are all samples of an operator run, or the first one?"""
    programs: int
    agreeing: Mapping[str, Shape]
    """Small decoders whose numbers are compared with the processor's."""
    agreeing_schemes: Mapping[str, float]
    """Scheme of `llm_peers.SCHEMES` → the largest difference of logits, in parts of the largest logit."""
    prompts: Sequence[Sequence[int]]
    """Tokens of the prompts of each batch that they compute."""
    library_dtypes: Mapping[str, float]
    """Dtype → the largest difference of a library's result, in parts of its largest number."""
    library: Mapping[str, int]
    """Sizes of what is compared with the processor's numbers where NVIDIA's libraries compute it: `rows`, `depth` and
    `columns` of products; `batch`, `channels`, `filters` and `size` of convolutions."""
    convolutions: Sequence[tuple[int, int, int, int]]
    """(batch, channels, width and height, extent of the filter) of each convolution that is timed."""
    encoder: Mapping[str, int]
    """Sizes of the encoder by the names of `BertConfig`."""
    encoder_shapes: Sequence[tuple[int, int]]
    decoders: Mapping[str, Shape]
    schemes: tuple[str, ...]
    """Those of `DECODER_SCHEMES` that decoders are built in; variants are of the first."""
    variants: Sequence[str]
    """Those of `VARIANTS` that are timed."""
    batches: Sequence[int]
    context: int
    prompt: int
    matmul: Sequence[tuple[int, int]]
    """(in, out) of each product."""
    rows: Sequence[int]
    memory_prompts: Sequence[int]
    copied: int
    """Bytes of the copy whose rate is the memory's."""
    seconds: float
    """Each call is repeated so long."""


VARIANTS: Mapping[str, tuple[str, ...]] = {
    "all": (),
    "without graphs": ("lift-graphs",),
    "without fusion": ("fuse-ops", "fuse-tensor-ir"),
    "without a memory plan": ("plan-memory",),
    "none": ("lift-graphs", "fuse-ops", "fuse-tensor-ir", "plan-memory"),
}
"""Optimisations that are switched off → their passes."""

FULL = Plan(
    name="full",
    host="llvm",
    operators=(48, 48),
    every_sample=True,
    programs=100,
    agreeing={
        "heads of 64": Shape(layers=2, hidden=512, inner=1024, heads=8, key_heads=2, vocab=1000),
        "heads of 128": Shape(layers=2, hidden=512, inner=1024, heads=4, key_heads=2, vocab=1000),
    },
    agreeing_schemes={"fp32": 1e-4, "fp16": 1e-2, "bf16": 5e-2, "int4 (W4A16)": 5e-2},
    prompts=((5, 70, 33), (300,), tuple(range(3, 27))),
    library_dtypes={"float32": 1e-4, "float16": 5e-3, "bfloat16": 4e-2},
    library={
        "rows": 150, "depth": 256, "columns": 192,
        "batch": 2, "channels": 64, "filters": 64, "size": 20,
    },
    convolutions=(
        (1, 64, 56, 3), (32, 64, 56, 3), (1, 256, 14, 3), (32, 256, 14, 3), (32, 256, 14, 1),
    ),
    encoder={
        "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
        "intermediate_size": 1536,
    },
    encoder_shapes=((1, 16), (1, 128), (8, 64), (32, 128), (1, 512)),
    decoders=SHAPES,
    schemes=tuple(DECODER_SCHEMES),
    variants=tuple(VARIANTS),
    batches=(1, 4, 16, 64),
    context=1024,
    prompt=512,
    matmul=((4096, 4096), (4096, 14336), (14336, 4096)),
    rows=(1, 16, 512, 4096),
    memory_prompts=(128, 256, 512, 1024),
    copied=1 << 30,
    seconds=0.5,
)  # fmt: skip
TINY = Shape(layers=1, hidden=32, inner=32, heads=4, key_heads=2, vocab=64)
"""Its matrices are of few sizes, and so of few kernels."""
QUICK = Plan(
    name="quick",
    host="llvm -opt-level=0",
    operators=(1, 64),
    every_sample=False,
    programs=2,
    agreeing={"tiny": TINY},
    agreeing_schemes={"fp16": 1e-2},
    prompts=((3, 9),),
    library_dtypes={"float16": 5e-3},
    library={
        "rows": 70, "depth": 32, "columns": 16,
        "batch": 1, "channels": 16, "filters": 16, "size": 8,
    },
    convolutions=((1, 16, 8, 3),),
    encoder={
        "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
        "intermediate_size": 32, "vocab_size": 101, "max_position_embeddings": 40,
    },
    encoder_shapes=((1, 4), (2, 7)),
    decoders={"tiny": TINY},
    schemes=("fp16", "int4"),
    variants=("all", "without graphs", "none"),
    batches=(1, 2),
    context=40,
    prompt=8,
    matmul=((32, 16),),
    rows=(1, 5),
    memory_prompts=(4, 8),
    copied=1 << 20,
    seconds=0.01,
)  # fmt: skip
MATMUL_DTYPES = ("float16", "bfloat16")
LAUNCHES = 8
"""Products of a call, each with a weight of its own: one weight would be read from the cache after the first time."""
DECODED = 4
"""Steps of one token a sequence behind each batch of prompts."""
LIBRARIES = "cublas", "cudnn"
CONVOLUTION_DTYPES = ("float32", "float16")


@dataclass
class Prepared:
    """A folder of executables and of what they are called with."""

    folder: Path
    target: str
    plan: Plan
    weights: dict[str, list[Weight]] = field(default_factory=dict)
    """Program → the weights of its main function, its last parameters."""
    left_out: dict[str, str] = field(default_factory=dict)
    """What the target refuses, and why."""

    def file(self, program: str) -> Path:
        """The executable of a program."""
        return self.folder / f"{_file_name(program)}.rxe"

    def calls(self, program: str) -> Path:
        """The calls of a program with their results."""
        return self.folder / f"{_file_name(program)}.calls"

    def programs(self, kind: str) -> list[str]:
        """The programs of a kind that have calls: `operators`, `programs`."""
        found = [path.stem for path in self.folder.glob(f"{kind}-*.calls")]
        return sorted(found, key=lambda name: int(name.rpartition("-")[2]))

    def save(self) -> None:
        """Write what is not a program."""
        facts = {
            "target": self.target,
            "left_out": self.left_out,
            "plan": asdict(self.plan),
            "weights": {name: [asdict(w) for w in own] for name, own in self.weights.items()},
        }
        (self.folder / PLAN).write_text(json.dumps(facts) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Prepared:
        """Read a folder that `save` wrote."""
        facts: dict[str, Any] = json.loads((folder / PLAN).read_text())
        plan = facts["plan"]
        for key in ("decoders", "agreeing"):
            plan[key] = {name: Shape(**shape) for name, shape in plan[key].items()}
        weights = {
            name: [Weight(tuple(w["shape"]), w["dtype"], w["scale"]) for w in own]
            for name, own in facts["weights"].items()
        }
        return cls(folder, facts["target"], Plan(**plan), weights, facts["left_out"])


def decoder_name(shape: str, scheme: str, variant: str = "all") -> str:
    """The program of a decoder."""
    return f"{shape}, {scheme}, {variant}"


def encoder_name(variant: str = "all") -> str:
    """The program of the encoder."""
    return f"encoder, {variant}"


def memory_name(variant: str) -> str:
    """The program of a decoder of two layers whose memory is measured."""
    return f"memory, {variant}"


def memory_shape(plan: Plan) -> Shape:
    """The largest decoder with two layers, since the memory of a call does not depend on their number."""
    return replace([*plan.decoders.values()][-1], layers=2)


def agreeing_name(shape: str, scheme: str) -> str:
    """A small decoder whose numbers are compared."""
    return f"agreeing, {shape}, {scheme}"


def library_name(library: str, dtype: str) -> str:
    """What a library computes, and is compared."""
    return f"{library}, {dtype}"


def matmul_name(dtype: str, library: str = "") -> str:
    """The products that are timed, ours or a library's."""
    return f"matmul, {dtype}" + (f", {library}" if library else "")


def convolution_name(dtype: str, library: str = "") -> str:
    """The convolutions that are timed, ours or a library's."""
    return f"convolutions, {dtype}" + (f", {library}" if library else "")


def _file_name(program: str) -> str:
    return program.replace(", ", "-").replace(" ", "_")
