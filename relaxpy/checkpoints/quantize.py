"""Quantised copies of checkpoints: a folder of compressed-tensors (pack-quantized), which transformers, vLLM and
relaxpy load.

The matrices of linear maps inside layers become codes; embeddings, heads, routers and norms stay as they are. One
matrix is in memory at a time. The folder appears when it is complete, and not at all if something fails.

compressed-tensors knows linear maps of (out, in). Two families have others, whose copies relaxpy alone loads: the
matrices of GPT-2 are (in, out), and gpt-oss has those of all experts in one tensor (experts, in, out). They are written
turned, packed along `in`, and `transposed` in `quantization_config` names them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from relaxpy.checkpoints.config_file import CONFIG_FILE
from relaxpy.checkpoints.gguf_tokenizer import gguf_tokenizer
from relaxpy.checkpoints.open import open_checkpoint
from relaxpy.checkpoints.packed_ints import Numbers, packed_words
from relaxpy.checkpoints.stored import Checkpoint, Stored
from relaxpy.codes import Codes
from relaxpy.errors import UsageError
from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.safetensors import WEIGHTS_FILE
from relaxpy.runtime.tensor import Array

_LINEAR = re.compile(
    r".*\.(\w+_proj|dense|query_key_value|dense_h_to_4h|dense_4h_to_h|w[123])\.weight"
)
_STACKED = re.compile(r".*\.experts\.(gate_up_proj|down_proj)")
_TRANSPOSED = {
    "gpt2": re.compile(r".*\.(c_attn|c_proj|c_fc)\.weight"),
    "gpt_oss": _STACKED,
}
"""By `model_type`: the matrices whose last axis is not their depth."""
_BESIDE = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.model", "vocab.json",
    "merges.txt", "added_tokens.json", "generation_config.json", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
"""The files that are copied."""
_CHUNK = 1 << 20
"""Weights that are quantised at a time."""
_NAMES = {
    "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int32": "I32", "int64": "I64", "uint8": "U8",
    "int8": "I8", "float64": "F64", "uint32": "U32", "bool": "BOOL", "int16": "I16",
}  # fmt: skip


@dataclass(frozen=True)
class Report:
    """Sizes and errors of a quantised copy."""

    bytes_before: int
    bytes_after: int
    drift: dict[str, float]
    """Of each matrix that was quantised: the size of its error over its own (both the root of the sum of squares)."""
    is_own: bool = False
    """Does relaxpy alone load it?"""


def quantize_checkpoint(
    source: Path,
    target: Path,
    codes: Codes,
    overwrite: bool = False,
    progress: Callable[[str, int], None] = lambda _name, _size: None,
) -> Report:
    """Writes a quantised copy of a checkpoint of any format. `progress` is called with each tensor and its size in the
    source.

    Raises: UsageError: `bad-checkpoint` for a source that cannot be read, or in which no matrix can be quantised so;
    `file-write` for a target that exists, unless `overwrite`, or cannot be written; `weight-scheme` for minimums, which
    the format does not have.
    """
    if codes.zero == "minimum":
        raise UsageError(
            "weight-scheme",
            "compressed-tensors has no minimums",
            help="zero points do nearly the same: --zero zero_point",
        )
    checkpoint = open_checkpoint(source)
    matrices = {name: _matrix(name, each, checkpoint) for name, each in checkpoint.tensors.items()}
    chosen = {
        name: each
        for name, each in matrices.items()
        if each is not None and each.size and each.depth % codes.group_size(each.depth) == 0
    }
    if not chosen:
        raise UsageError(
            "bad-checkpoint",
            f"{source} has no matrix whose depth groups of {codes.group} divide",
            help="choose another --group",
        )
    drift: dict[str, float] = {}
    with _new_folder(target, overwrite) as folder:
        with (folder / WEIGHTS_FILE).open("xb") as file:
            _write_header(file, checkpoint, chosen, codes)
            for name, stored in checkpoint.tensors.items():
                if name in chosen:
                    try:
                        drift[name] = _write_codes(file, chosen[name], codes)
                    except UsageError as error:
                        error.notes = (*error.notes, f"while {name} was quantised")
                        raise
                else:
                    file.write(_bytes(stored.read()))
                progress(name, stored.nbytes)
            file.flush()
            os.fsync(file.fileno())
        _write_beside(folder, checkpoint, chosen, codes)
        size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    before = sum(file.stat().st_size for file in checkpoint.files)
    is_own = any(each.is_transposed or len(each.shape) > 2 for each in chosen.values())
    return Report(before, size, drift, is_own)


@dataclass(frozen=True)
class _Matrix:
    """A matrix that becomes codes, or those of all experts."""

    stored: Stored
    module: str
    """The name that its parts' begin with."""
    is_transposed: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape with the depth as the last axis."""
        *outer, a, b = self.stored.shape
        return (*outer, b, a) if self.is_transposed else self.stored.shape

    @property
    def depth(self) -> int:
        """Its last axis."""
        return self.shape[-1]

    @property
    def size(self) -> int:
        """The number of its weights."""
        return self.stored.size

    def read(self) -> Array:
        """Its rows (rows, depth)."""
        found = self.stored.read()
        found = found.swapaxes(-1, -2) if self.is_transposed else found
        return found.reshape(-1, self.depth)

    def parts(self, codes: Codes) -> dict[str, tuple[tuple[int, ...], str]]:
        """The tensors that it becomes, by their last names, in the order in which they are written."""
        *outer, depth = self.shape
        bits, groups = codes.bits, depth // codes.group_size(depth)
        found: dict[str, tuple[tuple[int, ...], str]] = {
            "weight_packed": ((*outer, -(-depth * bits // 32)), "int32"),
            "weight_scale": ((*outer, groups), codes.scale_dtype),
            "weight_shape": ((len(self.shape),), "int64"),
        }
        if codes.zero == "zero_point":
            words = -(-outer[-1] * bits // 32)
            found["weight_zero_point"] = (*outer[:-1], words, groups), "int32"
        return found


def _matrix(name: str, stored: Stored, checkpoint: Checkpoint) -> _Matrix | None:
    """The matrix of a linear map of a layer; None for other tensors."""
    others = _TRANSPOSED.get(str(checkpoint.config.get("model_type")))
    is_transposed = others is not None and others.fullmatch(name) is not None
    is_stack = _STACKED.fullmatch(name) is not None
    if len(stored.shape) != (3 if is_stack else 2):
        return None
    if not (is_stack or is_transposed or _LINEAR.fullmatch(name)):
        return None
    return _Matrix(stored, name.removesuffix(".weight"), is_transposed)


def _write_header(
    file: BinaryIO, checkpoint: Checkpoint, chosen: Mapping[str, _Matrix], codes: Codes
) -> None:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, stored in checkpoint.tensors.items():
        parts = {name: (stored.shape, stored.dtype)}
        if name in chosen:
            matrix = chosen[name]
            parts = {f"{matrix.module}.{n}": each for n, each in matrix.parts(codes).items()}
        for own, (shape, dtype) in parts.items():
            if dtype not in _NAMES:
                raise UsageError(
                    "bad-checkpoint", f"{checkpoint.place}: {name} is {dtype}, which is not copied"
                )
            begin, end = (
                end,
                end + int(np.prod(shape, dtype=np.int64)) * dtypes.info(dtype).itemsize,
            )
            entries[own] = {
                "dtype": _NAMES[dtype],
                "shape": list(shape),
                "data_offsets": [begin, end],
            }
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    file.write(len(header).to_bytes(8, "little") + header)


def _write_codes(file: BinaryIO, matrix: _Matrix, codes: Codes) -> float:
    """Writes the tensors of a matrix. Returns its drift."""
    weight = matrix.read()
    (out, depth), step = weight.shape, max(1, _CHUNK // weight.shape[1])
    scales: list[Array] = []
    zeros: list[Array] = []
    error, size = 0.0, 0.0
    for at in range(0, out, step):
        rows = np.asarray(weight[at : at + step], np.float32)
        parts = codes.quantize(rows, 1)
        error += float(np.square(codes.dequantize(parts, 1, depth) - rows, dtype=np.float64).sum())
        size += float(np.square(rows, dtype=np.float64).sum())
        words: Array = parts["codes"]
        if codes.bits == 8:  # four to a word
            words = np.pad(words, ((0, 0), (0, -depth % 4))).view(np.uint32)
        if codes.bits == 3:  # ten to a word here, and there without a gap
            words = packed_words(Numbers(words, 3).columns(np.arange(int(depth))), 3)
        file.write(_bytes(words))
        scales.append(parts["scale"])
        if codes.zero == "zero_point":
            zeros.append(parts["zero"])
    file.write(_bytes(np.concatenate(scales)))
    file.write(_bytes(np.array(matrix.shape, np.int64)))
    if zeros:
        whole = np.concatenate(zeros)
        for own in np.split(whole, len(whole) // matrix.shape[-2]):  # packed along out
            file.write(_bytes(packed_words(own.T, codes.bits).T))
    return (error / size) ** 0.5 if size else 0.0


def _bytes(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _write_beside(
    folder: Path, checkpoint: Checkpoint, chosen: Mapping[str, _Matrix], codes: Codes
) -> None:
    """The configuration and the tokenizer."""
    modules = {
        n.removesuffix(".weight")
        for n, each in checkpoint.tensors.items()
        if n.endswith(".weight") and len(each.shape) == 2 and n not in chosen
    }
    weights = {
        "num_bits": codes.bits, "type": "int", "symmetric": codes.zero == "symmetric",
        "strategy": "channel" if codes.group is None else "group", "group_size": codes.group, "dynamic": False,
    }  # fmt: skip
    config = {n: v for n, v in checkpoint.config.items() if n != "compression_config"}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
        "ignore": sorted(modules | {"lm_head"}),
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations":
            None}, },
    }  # fmt: skip
    if transposed := sorted(each.module for each in chosen.values() if each.is_transposed):
        config["quantization_config"]["transposed"] = transposed
    _write_json(folder / CONFIG_FILE, config)
    if checkpoint.place.is_dir():
        for name in _BESIDE:
            if (checkpoint.place / name).is_file():
                shutil.copyfile(checkpoint.place / name, folder / name)
        return
    try:
        found = gguf_tokenizer(checkpoint.place)
    except UsageError:  # a file without a tokenizer that can be written
        return
    found.backend.save(str(folder / "tokenizer.json"))
    templates = [{"name": n, "template": text} for n, text in found.chat_templates.items()]
    fields: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **found.special}
    _write_json(
        folder / "tokenizer_config.json",
        fields | ({"chat_template": templates} if templates else {}),
    )
    if found.end_tokens:
        _write_json(folder / "generation_config.json", {"eos_token_id": [*found.end_tokens]})


def _write_json(path: Path, fields: dict[str, Any]) -> None:
    path.write_text(json.dumps(fields, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def _new_folder(target: Path, overwrite: bool) -> Iterator[Path]:
    """A folder beside the target that takes its place if the block succeeds, and is removed otherwise.

    Raises: UsageError (`file-write`).
    """
    place = target.absolute()
    if os.path.lexists(place) and not overwrite:
        raise UsageError("file-write", f"{target} exists", help="--overwrite replaces it")
    if os.path.lexists(place) and not (place / CONFIG_FILE).is_file():
        raise UsageError("file-write", f"{target} exists, and is no checkpoint: it is not replaced")
    beside = place.with_name(f".relaxpy-{os.urandom(8).hex()}")
    old = place.with_name(f".relaxpy-{os.urandom(8).hex()}")
    try:
        beside.mkdir(parents=True)
        yield beside
        if os.path.lexists(place):
            os.replace(place, old)
        os.replace(beside, place)
    except OSError as error:
        raise UsageError(
            "file-write", f"cannot write {target}: {error.strerror or error}"
        ) from error
    finally:
        if os.path.lexists(old) and not os.path.lexists(place):
            os.replace(old, place)
        shutil.rmtree(beside, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
