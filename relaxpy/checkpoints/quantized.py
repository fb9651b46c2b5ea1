"""Quantised checkpoints in safetensors: what `quantization_config` in `config.json` says of them, and the tensors that
make the weights of linear maps.

    awq                   X.qweight, X.qzeros, X.scales
    gptq                  the same, with X.g_idx: the group of each place of the depth
    compressed-tensors    X.weight_packed or X.weight, X.weight_scale, X.weight_zero_point, X.weight_shape; and, as
                          `relaxpy quantize` writes them, those of all experts, and matrices that are `transposed`
    fp8                   X.weight in float8, X.weight_scale_inv for blocks of it (DeepSeek, Qwen)
    mxfp4                 X_blocks, X_scales (gpt-oss)

Each becomes one tensor, `X.weight` (or `X`), whose codes are kept where codes with scales (`relaxpy.codes`) hold them
exactly. All that is not understood is refused by name: no checkpoint is read in a wrong way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from relaxpy.checkpoints.config_file import CONFIG_FILE
from relaxpy.checkpoints.gguf_blocks import E2M1, halved_exponent
from relaxpy.checkpoints.packed_ints import (
    AWQ_ORDER,
    ByteRows,
    Numbers,
    PackedRows,
    StackedNumbers,
    each_plus_one,
)
from relaxpy.checkpoints.stored import Coded, Floats, Stored, row_count
from relaxpy.checkpoints.unread import unknown_fields, warn_unread
from relaxpy.codes import Codes
from relaxpy.errors import UsageError
from relaxpy.narrow import is_mapping
from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.tensor import Array

Arrays = Mapping[str, Array]
_FLOATS = ("float16", "float32", "bfloat16")
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True)
class Folder:
    """The input of a format's reader: options that are checked, and errors that name the place."""

    place: Path
    options: Mapping[str, Any]
    """The fields of `quantization_config`."""
    arrays: Arrays

    def bad(self, reason: str) -> UsageError:
        return UsageError("bad-checkpoint", f"{self.place} cannot be read: {reason}")

    def option(self, name: str, default: Any, *allowed: Any) -> Any:
        """An option that has one of the allowed values. Raises: UsageError (`bad-checkpoint`)."""
        value = self.options.get(name)
        value = default if value is None else value
        if not any(type(value) is type(each) and value == each for each in allowed):
            known = ", ".join(str(each) for each in allowed)
            raise self.bad(f"quantization_config has {name} {value!r}; supported are {known}")
        return value

    def group(self, name: str = "group_size") -> int | None:
        """The size of groups; None: one for the whole depth."""
        value = self.options.get(name, -1)
        if type(value) is not int or (value != -1 and not 1 <= value <= 1 << 20):
            raise self.bad(f"quantization_config has {name} {value!r}")
        return None if value == -1 else value

    def need(self, name: str, *types: str, rank: int = 2) -> Array:
        """A tensor of one of these dtypes and this rank."""
        found = self.arrays.get(name)
        if found is None:
            raise self.bad(f"it has no tensor {name}")
        dtype = dtypes.from_numpy(found.dtype)
        if dtype not in types or found.ndim != rank:
            raise self.bad(
                f"{name} is {dtype} of rank {found.ndim}, not {' or '.join(types)} of rank {rank}"
            )
        return found

    def same(self, name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
        """Raises: UsageError (`bad-checkpoint`) if a shape is another one."""
        if tuple(found) != tuple(wanted):
            raise self.bad(f"{name} has shape {tuple(found)}, where {tuple(wanted)} is expected")


Reader = Callable[[Folder], tuple[dict[str, Stored], set[str]]]
"""Makes tensors, and says which tensors of the file it made them of."""


def quantized_tensors(
    place: Path, options: Mapping[str, Any], arrays: Arrays
) -> tuple[dict[str, Stored], str]:
    """The tensors of a quantised checkpoint, and the name of its format.

    Raises: UsageError (`bad-checkpoint`) for a method, an option or a tensor that is not supported.
    """
    folder = Folder(place, options, arrays)
    method = options.get("quant_method")
    reader = READERS.get(method) if isinstance(method, str) else None
    if reader is None:
        raise UsageError(
            "bad-checkpoint",
            f"{place} is quantised by {method!r}, which is not supported",
            help=f"supported are {', '.join(READERS)}, and GGUF files",
        )
    _check_options(folder, str(method))
    made, used = reader(folder)
    found: dict[str, Stored] = {
        name: Floats.of(array) for name, array in arrays.items() if name not in used
    }
    if both := found.keys() & made.keys():
        raise folder.bad(f"it has {sorted(both)[0]}, and codes of it")
    return found | made, str(method)


_KNOWN: Mapping[str, frozenset[str]] = {
    method: frozenset(names.split())
    for method, names in {
        "awq": "bits w_bit group_size q_group_size zero_point version backend do_fuse modules_to_fuse fuse_max_seq_len "
        "exllama_config",
        "gptq": "bits group_size desc_act sym checkpoint_format format true_sequential static_groups damp_percent "
        "damp_auto_increment lm_head meta dynamic dataset tokenizer model_seqlen block_name_to_quantize "
        "module_name_preceding_first_block batch_size use_cuda_fp16 use_exllama exllama_config max_input_length "
        "cache_block_outputs model_name_or_path model_file_base_name backend quantizer mse act_group_aware",
        "compressed-tensors": "format config_groups ignore quantization_status global_compression_ratio version "
        "sparsity_config transposed quant_format",
        "fp8": "fmt weight_block_size activation_scheme ignored_layers scale_fmt",
        "mxfp4": "",
    }.items()
}
"""The options of each method that are read, and those that change no weight: how it was quantised, what others do to
compute with it, and names of modules, of which the tensors' names tell as much."""
_OF_ALL = frozenset(
    {"quant_method", "modules_to_not_convert", "modules_in_block_to_quantize", "dequantize"}
)
_REFUSED = (
    "transform_config", "rotation", "adapter", "is_marlin_format", "kv_cache_scheme", "pack_dtype",
)  # fmt: skip
"""Options that change what is computed from the weights, and are not supported."""
_PLAIN: Mapping[str, Any] = {"pack_dtype": "int32", "transform_config": {"config_groups": {}}}
"""Values of them that ask for nothing."""


def _check_options(folder: Folder, method: str) -> None:
    """Warn of options that nobody knows. Raises: UsageError (`bad-checkpoint`) for those that change numbers."""
    asked = unknown_fields(folder.options, _KNOWN[method] | _OF_ALL, _PLAIN)
    if wrong := [each for each in asked if each.split(" = ")[0] in _REFUSED]:
        raise folder.bad(f"quantization_config has {wrong[0]}, which is not supported")
    warn_unread(folder.place / CONFIG_FILE, (f"quantization_config: {each}" for each in asked))


def _words(array: Array) -> Array:
    return array.view(np.uint32)


def _modules(folder: Folder, ending: str) -> list[str]:
    """The names of the modules that have a tensor of this name."""
    found = [n.removesuffix(f".{ending}") for n in folder.arrays if n.endswith(f".{ending}")]
    if not found:
        raise folder.bad(f"quantization_config says so, but no tensor is named *.{ending}")
    return found


def _grouped(folder: Folder, name: str, depth: int, groups: int, group: int | None) -> None:
    size = group or depth
    if groups != -(-depth // max(size, 1)):
        raise folder.bad(f"{name} has {groups} groups, and a depth of {depth} in groups of {size}")


def _scale_dtype(scales: Array) -> str:
    return "float16" if scales.dtype == np.float16 else "float32"


def _awq(folder: Folder) -> tuple[dict[str, Stored], set[str]]:
    bits = folder.option("bits", folder.options.get("w_bit"), 4)
    folder.option("version", "gemm", "gemm", "GEMM")
    folder.option("zero_point", True, True)
    group = folder.group("group_size" if "group_size" in folder.options else "q_group_size")
    made: dict[str, Stored] = {}
    used: set[str] = set()
    for module in _modules(folder, "qweight"):
        names = [f"{module}.{part}" for part in ("qweight", "qzeros", "scales")]
        weight, zeros = (folder.need(name, "int32") for name in names[:2])
        scales = folder.need(names[2], *_FLOATS)
        depth, out = weight.shape[0], weight.shape[1] * 8
        _grouped(folder, names[2], depth, len(scales), group)
        folder.same(names[1], zeros.shape, (len(scales), out // 8))
        folder.same(names[2], scales.shape, (len(scales), out))
        rows = PackedRows(
            Numbers(_words(weight), bits, AWQ_ORDER), True, depth, scales.T,
            Numbers(_words(zeros), bits, AWQ_ORDER),
        )  # fmt: skip
        form = Codes(bits, group, "zero_point", _scale_dtype(scales))
        nbytes = weight.nbytes + zeros.nbytes + scales.nbytes
        made[f"{module}.weight"] = Coded(
            (out, depth), "AWQ", nbytes, rows=rows, form=form, codes=form
        )
        used |= {*names}
    return made, used


def _gptq(folder: Folder) -> tuple[dict[str, Stored], set[str]]:
    bits = folder.option("bits", None, 2, 3, 4, 8)
    named = folder.option("format", "gptq", "gptq", "gptq_v2")
    version = folder.option("checkpoint_format", named, "gptq", "gptq_v2")
    folder.option("desc_act", False, False, True)
    group = folder.group()
    made: dict[str, Stored] = {}
    used: set[str] = set()
    for module in _modules(folder, "qweight"):
        names = [f"{module}.{part}" for part in ("qweight", "qzeros", "scales", "g_idx")]
        weight, zeros = (folder.need(name, "int32") for name in names[:2])
        scales = folder.need(names[2], *_FLOATS)
        depth, out = weight.shape[0] * 32 // bits, weight.shape[1]
        own = None
        if names[3] in folder.arrays:
            own = _order(folder, names[3], depth, len(scales), group)
        else:
            _grouped(folder, names[2], depth, len(scales), group)
        folder.same(names[1], zeros.shape, (len(scales), out * bits // 32))
        folder.same(names[2], scales.shape, (len(scales), out))
        # The first version has them less 1.
        points = _words(zeros) if version == "gptq_v2" else each_plus_one(_words(zeros), bits)
        rows = PackedRows(
            Numbers(_words(weight).T, bits, stream=True), False, depth, scales.T,
            Numbers(points, bits, stream=True),
        )  # fmt: skip
        form = Codes(max(bits, 3), group, "zero_point", _scale_dtype(scales))
        parts = [folder.arrays[name] for name in names if name in folder.arrays]
        made[f"{module}.weight"] = Coded(
            (out, depth), f"GPTQ {bits}", sum(each.nbytes for each in parts), rows=rows, form=form,
            codes=form if own is None else None, groups=own,
        )  # fmt: skip
        used |= {*names}
    return made, used


def _order(folder: Folder, name: str, depth: int, groups: int, group: int | None) -> Array | None:
    """The group of each place of the depth, unless neighbours share one."""
    found = folder.need(name, "int32", "int64", rank=1)
    folder.same(name, found.shape, (depth,))
    if depth and not 0 <= found.min() <= found.max() < groups:
        raise folder.bad(
            f"{name} has groups from {found.min()} to {found.max()}, and there are {groups}"
        )
    size = group or depth
    plain = groups == -(-depth // max(size, 1)) and np.array_equal(found, np.arange(depth) // size)
    return None if plain else found.astype(np.int64)


def _fields(value: Any) -> Mapping[str, Any]:
    """The fields of a JSON object; none of anything else."""
    return value if is_mapping(value) else {}


_KINDS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")


def _compressed(folder: Folder) -> tuple[dict[str, Stored], set[str]]:
    groups = [_fields(each) for each in _fields(folder.options.get("config_groups")).values()]
    if not groups:
        raise folder.bad("quantization_config has no config_groups")
    sparsity = _fields(folder.options.get("sparsity_config")).get("format", "dense")
    if sparsity != "dense":
        raise folder.bad(f"its weights are sparse ({sparsity}), which is not supported")
    schemes = [_fields(each.get("weights")) for each in groups]
    kinds = [(each.get("type", "int"), each.get("num_bits")) for each in schemes]
    if not all(schemes) or any(each != kinds[0] for each in kinds):
        raise folder.bad("quantization_config has weights of several types, or of none")
    kind, bits = cast("tuple[str, int]", kinds[0])
    if (kind, bits) not in (("int", 4), ("int", 8), ("int", 3), ("float", 8)):
        raise folder.bad(
            f"its weights are {kind} of {bits} bits; int of 3, 4 and 8 and float of 8 are supported"
        )
    form = folder.options.get("format")
    for each in (form, *(group.get("format") for group in groups)):
        if each is not None and each not in _KINDS:
            raise folder.bad(
                f"quantization_config has format {each!r}; supported are {', '.join(_KINDS)}"
            )
    transposed: list[Any] | None = folder.options.get("transposed", [])
    if not isinstance(transposed, list) or not all(isinstance(each, str) for each in transposed):
        raise folder.bad("quantization_config has transposed, which is no list of names")
    made: dict[str, Stored] = {}
    used: set[str] = set()
    for module in _modules(folder, "weight_scale"):
        names = [
            f"{module}.{part}"
            for part in (
                "weight_packed", "weight", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx",
                "input_scale", "input_zero_point", "output_scale",
            )
        ]  # fmt: skip
        there = {name for name in names if name in folder.arrays}
        packed = names[0] in there
        if packed == (names[1] in there):
            raise folder.bad(f"it has neither or both of {names[0]} and {names[1]}")
        tensor = (
            _compressed_ints(folder, module, bits)
            if packed
            else _compressed_bytes(folder, module, kind)
        )
        if module in transposed:
            *outer, rows, columns = tensor.shape
            tensor = replace(tensor, turned=True, shape=(*outer, columns, rows))
        made[module if len(tensor.shape) == 3 else f"{module}.weight"] = tensor
        used |= there
    return made, used


def _compressed_ints(folder: Folder, module: str, bits: int) -> Stored:
    """A weight of packed integers."""
    name = f"{module}.weight_packed"
    shape = folder.need(f"{module}.weight_shape", "int64", "int32", rank=1)
    *outer, depth = (int(n) for n in shape) if len(shape) in (2, 3) else (-1, -1)
    weight = folder.need(name, "int32", rank=len(outer) + 1)
    scales = folder.need(f"{module}.weight_scale", *_FLOATS, rank=len(outer) + 1)
    stream = _is_stream(folder, name, weight.shape, (*outer, depth), bits)
    folder.same(f"{module}.weight_scale", scales.shape[:-1], tuple(outer))
    out = row_count(weight.shape)
    weight, scales = (x.reshape(out, x.shape[-1]) for x in (weight, scales))
    group = _group_of(folder, f"{module}.weight_scale", scales, out, depth)
    own = None
    if f"{module}.weight_g_idx" in folder.arrays:
        own = _order(folder, f"{module}.weight_g_idx", depth, scales.shape[1], group)
    zeros: StackedNumbers | None = None
    if (own_name := f"{module}.weight_zero_point") in folder.arrays:
        given = folder.need(own_name, "int32", rank=len(outer) + 1).swapaxes(-1, -2)
        wanted = (*outer[:-1], scales.shape[1], outer[-1])
        along = _is_stream(folder, own_name, given.shape, wanted, bits)
        parts = given if given.ndim == 3 else given[None]
        found = (Numbers(_words(each), bits, stream=along) for each in parts)
        zeros = StackedNumbers(tuple(found), outer[-1])
    packed = Numbers(_words(weight), bits, stream=stream)
    rows = PackedRows(packed, False, depth, scales, zeros)
    zero = "symmetric" if zeros is None else "zero_point"
    form = Codes(bits, group, zero, _scale_dtype(scales))
    return Coded(
        (*outer, depth), f"int{bits}", weight.nbytes + scales.nbytes, rows=rows, form=form,
        codes=form if own is None else None, groups=own,
    )  # fmt: skip


def _is_stream(
    folder: Folder, name: str, found: tuple[int, ...], wanted: tuple[int, ...], bits: int
) -> bool:
    """Do numbers of 3 bits, packed along the last axis, go from one word to the next? Earlier versions of the format
    had ten in a word."""
    *outer, count = wanted
    dense, old = -(-count * bits // 32), -(-count // (32 // bits))
    if found[-1] != old:
        folder.same(name, found, (*outer, dense))
    folder.same(name, found[:-1], tuple(outer))
    return found[-1] == dense


def _compressed_bytes(folder: Folder, module: str, kind: str) -> Stored:
    """A weight of int8 or float8."""
    name = f"{module}.weight"
    weight = folder.need(name, *(("int8",) if kind == "int" else _FLOAT8))
    scales = folder.arrays[f"{module}.weight_scale"]
    out, depth = weight.shape
    if scales.ndim < 2:
        scales = scales.reshape(-1, 1) if scales.size in (1, out) else scales
    if dtypes.from_numpy(scales.dtype) not in _FLOATS or scales.ndim != 2:
        raise folder.bad(f"{module}.weight_scale has shape {scales.shape}")
    if kind == "float":
        return _scaled(folder, name, weight, scales, None)
    if f"{module}.weight_zero_point" in folder.arrays and np.any(
        folder.arrays[f"{module}.weight_zero_point"]
    ):
        raise folder.bad(
            f"{module}.weight_zero_point of integers that are not packed is not supported"
        )
    scales = np.broadcast_to(scales, (out, scales.shape[1])) if len(scales) == 1 else scales
    group = _group_of(folder, f"{module}.weight_scale", scales, out, depth)
    form = Codes(8, group, "symmetric", _scale_dtype(scales))
    rows = ByteRows(weight, scales)
    return Coded(
        (out, depth), "int8", weight.nbytes + scales.nbytes, rows=rows, form=form, codes=form
    )


def _group_of(folder: Folder, name: str, scales: Array, out: int, depth: int) -> int | None:
    """The size of groups by the number of scales."""
    count = scales.shape[1]
    if len(scales) != out or not count or depth % count:
        raise folder.bad(f"{name} has shape {scales.shape}, and the weight ({out}, {depth})")
    return None if count == 1 else depth // count


@dataclass(frozen=True, eq=False)
class Scaled(Stored):
    """A matrix of float8 with a scale for each block of it."""

    weight: Array
    scales: Array
    block: tuple[int, int]

    def _floats(self) -> Array:
        rows, columns = self.block
        found = np.empty(self.weight.shape, np.float32)
        own = np.floor_divide(np.arange(int(self.weight.shape[1])), columns)
        for at, scales in enumerate(self.scales):  # a row of blocks at a time
            place = slice(at * rows, (at + 1) * rows)
            with np.errstate(all="ignore"):  # a file may have any scale
                found[place] = (
                    self.weight[place].astype(np.float32) * scales.astype(np.float32)[own]
                )
        return found


def _scaled(
    folder: Folder, name: str, weight: Array, scales: Array, block: tuple[int, int] | None
) -> Stored:
    """A matrix of float8; the blocks are those of this size, or of the number of scales."""
    out, depth = weight.shape
    if block is None:
        block = -(-out // max(len(scales), 1)), -(-depth // max(scales.shape[1], 1))
    wanted = -(-out // max(block[0], 1)), -(-depth // max(block[1], 1))
    folder.same(f"{name}: its scales", scales.shape, wanted)
    kind = dtypes.from_numpy(weight.dtype)
    return Scaled(weight.shape, kind, weight.nbytes + scales.nbytes, weight, scales, block)


def _fp8(folder: Folder) -> tuple[dict[str, Stored], set[str]]:
    folder.option("fmt", "e4m3", "e4m3", "float8_e4m3fn")
    given = folder.options.get("weight_block_size")
    block: tuple[int, int] | None = None
    match given:
        case None:
            pass
        case [rows, columns] if all(type(n) is int and 1 <= n <= 1 << 20 for n in (rows, columns)):
            block = rows, columns
        case _:
            raise folder.bad(f"quantization_config has weight_block_size {given!r}")
    made: dict[str, Stored] = {}
    used: set[str] = set()
    for module in _modules(folder, "weight_scale_inv"):
        name = f"{module}.weight_scale_inv"
        weight = folder.need(f"{module}.weight", "float8_e4m3fn")
        scales = folder.arrays[name]
        if dtypes.from_numpy(scales.dtype) not in _FLOATS or scales.ndim not in (0, 2):
            raise folder.bad(f"{name} has shape {scales.shape}")
        one = scales.reshape(1, 1) if scales.ndim == 0 else scales
        own = None if scales.ndim == 0 else block
        made[f"{module}.weight"] = _scaled(folder, f"{module}.weight", weight, one, own)
        used |= {name, f"{module}.weight", f"{module}.activation_scale"}
    return made, used


@dataclass(frozen=True, eq=False)
class Mxfp4Rows:
    """Floats of 4 bits, two in a byte, with a power of two for each 32 of them."""

    blocks: Array
    """(rows, groups, 16)."""
    exponents: Array
    """(rows, groups)."""

    def codes(self, rows: Any) -> Array:
        data = self.blocks[rows]
        numbers = np.stack([data & 15, data >> 4], axis=-1).reshape(len(data), -1)
        return E2M1.view(np.uint8)[numbers] ^ np.uint8(128)

    def scale(self, rows: Any) -> Array:
        return halved_exponent(self.exponents[rows])

    def offset(self, rows: Any) -> Array:
        raise NotImplementedError


def _mxfp4(folder: Folder) -> tuple[dict[str, Stored], set[str]]:
    made: dict[str, Stored] = {}
    used: set[str] = set()
    form = Codes(8, 32, "symmetric", "float32")
    for key in [n for n in folder.arrays if n.endswith("_blocks")]:
        name = key.removesuffix("_blocks")
        blocks = folder.arrays[key]
        rank = blocks.ndim
        if rank not in (3, 4):
            raise folder.bad(f"{key} has rank {rank}, not 3 or 4")
        blocks = folder.need(key, "uint8", rank=rank)
        exponents = folder.need(f"{name}_scales", "uint8", rank=rank - 1)
        folder.same(key, blocks.shape, (*exponents.shape, 16))
        *outer, rows, groups = exponents.shape
        count = row_count(exponents.shape)
        reader = Mxfp4Rows(blocks.reshape(count, groups, 16), exponents.reshape(count, groups))
        made[name] = Coded(
            (*outer, groups * 32, rows), "MXFP4", blocks.nbytes + exponents.nbytes, rows=reader, form=form,
            codes=form, turned=True,
        )  # fmt: skip
        used |= {key, f"{name}_scales"}
    if not made:
        raise folder.bad("quantization_config says so, but no tensor is named *_blocks")
    return made, used


READERS: Mapping[str, Reader] = {
    "awq": _awq,
    "gptq": _gptq,
    "compressed-tensors": _compressed,
    "fp8": _fp8,
    "mxfp4": _mxfp4,
}
"""By `quant_method`."""
