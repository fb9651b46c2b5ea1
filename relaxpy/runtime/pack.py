"""Packing of weights: from a checkpoint's tensors to the arguments of a program, one tensor after the other.

An executable that was built with `pack` lists its weights (`Executable.weight_params`) and has a function for each
kind, the packer. `pack_weights` maps the checkpoint, runs the packers, and keeps the result on disk
(`relaxpy.runtime.weight_cache`), where the next process maps it. Memory: at most the packed weights, or, if they are
kept, the largest of them, beside the sources and results of one packer.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from relaxpy.errors import RuntimeCheckError, UsageError, wrong_weights
from relaxpy.files import kept_folder
from relaxpy.runtime import dtype as dtypes
from relaxpy.runtime.packed_tensor import PackedTensor
from relaxpy.runtime.patterns import explain, fits
from relaxpy.runtime.safetensors import Decoded, Source, Tensors, map_tensors, weight_files
from relaxpy.runtime.tensor import Tensor, from_any, tensor_at
from relaxpy.runtime.terms import Pattern, TensorPattern, WeightParam
from relaxpy.runtime.weight_cache import digest_of, kept_file, map_kept

if TYPE_CHECKING:
    from relaxpy.runtime.vm import VirtualMachine

Place: TypeAlias = "str | os.PathLike[str]"


class PackedWeights(Mapping[str, tuple[Any, ...]]):
    """The weights of each function of a program, as its arguments after the inputs: `vm["main"](x, *weights["main"])`.
    Functions share the weights that they pack alike."""

    def __init__(self, arguments: Mapping[str, Mapping[str, Any]], kept: Path | None) -> None:
        self._arguments = arguments
        self.kept = kept
        """The file that the packed weights are mapped from; None if they are in memory."""

    def __getitem__(self, function: str) -> tuple[Any, ...]:
        """The weights of a function. Raises: UsageError (`function-name`)."""
        return tuple(self.named(function).values())

    def __iter__(self) -> Iterator[str]:
        return iter(self._arguments)

    def __len__(self) -> int:
        return len(self._arguments)

    def named(self, function: str) -> Mapping[str, Any]:
        """The weights of a function by parameter."""
        found = self._arguments.get(function)
        if found is None:
            raise UsageError(
                "function-name",
                f"no weights were packed for a function {function!r}",
                help=f"there are: {', '.join(self._arguments) or 'none'}",
            )
        return found

    @property
    def nbytes(self) -> int:
        """The size of all weights in bytes, each counted once."""
        values = {id(v): v for found in self._arguments.values() for v in found.values()}
        return sum(value.nbytes for value in values.values())

    def __repr__(self) -> str:
        where = f" in {self.kept}" if self.kept else ""
        return f"<packed weights of {', '.join(self)}: {self.nbytes} bytes{where}>"


@dataclass(frozen=True, slots=True)
class _Job:
    """One weight to make: a packer and the tensors that it takes."""

    packer: str
    """The name of the function; "": the tensor is passed as it is."""
    sources: tuple[Source, ...]
    fields: tuple[tuple[int, str], ...] = ()
    """The fields of the function's result that are wanted, and their layouts; -1: the result itself."""


def pack_weights(
    vm: VirtualMachine,
    source: Place | Sequence[Place] | Mapping[str, Any],
    names: Mapping[str, str | Source] | None = None,
    keep: bool = True,
    unused: Collection[str] | None = None,
) -> PackedWeights:
    """The implementation of `VirtualMachine.pack`."""
    exe = vm.executable
    if not exe.weight_params:
        raise UsageError(
            "pack",
            "the executable has no weights to pack",
            help="build it with pack=True, or pass the weights as they are",
        )
    tensors = _tensors(source)
    jobs, owners = _jobs(exe.weight_params, vm, _Names(tensors, names or {}))
    wanted = {name for job in jobs for source in job.sources for name in source.names}
    unexpected = [] if unused is None else [n for n in tensors if n not in {*wanted, *unused}]
    arrays = _checked(owners, vm, tensors, unexpected)
    kept_tensors = tensors if isinstance(tensors, Tensors) and tensors.files else None
    folder = kept_folder("weights") if keep and kept_tensors is not None else None
    packed, kept = _made(vm, jobs, arrays, folder, kept_tensors)
    arguments: dict[str, dict[str, Any]] = {}
    for weight in exe.weight_params:
        code = exe.functions[weight.function]
        made = packed[owners[weight], weight.field]
        arguments.setdefault(code.name, {})[code.params[weight.param].name] = made
    return PackedWeights(arguments, kept)


def _tensors(source: Place | Sequence[Place] | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(source, Mapping):
        return source
    places = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    files = [file for place in places for file in weight_files(place)]
    return Tensors(map_tensors(files), files)


def _source(given: str | Source) -> Source:
    return given if isinstance(given, Source) else Source(given)


class _Names:
    """The tensor of each weight: the one that the caller names, of the same name, or of the name with dots for which
    `nn` writes underscores."""

    def __init__(self, tensors: Mapping[str, Any], names: Mapping[str, str | Source]) -> None:
        self.tensors = tensors
        self.names = names
        self.dotted = {key.replace(".", "_"): name for key, name in names.items() if "." in key}
        """`names` by parameters of `nn`, which have underscores for dots."""
        self.written: dict[str, list[str]] = {}
        for name in tensors:
            self.written.setdefault(name.replace(".", "_"), []).append(name)

    def of(self, function: str, weight: str) -> Source:
        own = f"{function}.{weight}", weight
        for given in map(self.names.get, own):
            if given is not None:
                return _source(given)
        for key in own:
            if key in self.tensors:
                return Source(key)
        given = self.dotted.get(weight)
        if given is not None:
            return _source(given)
        found = self.written.get(weight, ())
        return Source(found[0] if len(found) == 1 else weight)


def _jobs(
    weights: Sequence[WeightParam], vm: VirtualMachine, names: _Names
) -> tuple[list[_Job], dict[WeightParam, _Job]]:
    """The distinct jobs, in order, and that of each weight."""
    functions = vm.executable.functions
    wanted: dict[tuple[str, tuple[Source, ...]], dict[int, str]] = {}
    keys: dict[WeightParam, tuple[str, tuple[Source, ...]]] = {}
    for weight in weights:
        owner = functions[weight.function].name
        sources = tuple(names.of(owner, name) for name in weight.sources)
        keys[weight] = functions[weight.packer].name if weight.packer >= 0 else "", sources
        wanted.setdefault(keys[weight], {})[weight.field] = weight.layout
    jobs = {key: _Job(*key, tuple(sorted(fields.items()))) for key, fields in wanted.items()}
    return [*jobs.values()], {weight: jobs[key] for weight, key in keys.items()}


def _checked(
    owners: Mapping[WeightParam, _Job],
    vm: VirtualMachine,
    tensors: Mapping[str, Any],
    unexpected: Sequence[str],
) -> dict[Source, Any]:
    """The arrays of all sources. Raises: UsageError (`bad-weights`) that lists what is missing, of another type, or
    unexpected."""
    problems: dict[str, None] = {}
    arrays: dict[Source, Any] = {}
    for weight, job in owners.items():
        if job.packer:
            patterns = vm[job.packer].linked.patterns
        else:
            owner = vm.executable.functions[weight.function].name
            patterns = (vm[owner].linked.patterns[weight.param],)
        for source, pattern in zip(job.sources, patterns, strict=True):
            if missing := [name for name in source.names if name not in tensors]:
                wanted = "" if source.parts else _wanted(pattern)
                problems |= dict.fromkeys(f"missing: {name}{wanted}" for name in missing)
                continue
            if source not in arrays:
                arrays[source] = source.joined([_array(tensors[n]) for n in source.names])
            if not fits(_described(arrays[source]), pattern):
                reason = explain(_described(arrays[source]), pattern)
                problems[f"{source.name}: {reason}{_wanted(pattern)}"] = None
    problems |= dict.fromkeys(f"unexpected: {name}" for name in unexpected)
    if problems:
        casts = "there are no implicit casts; names={parameter: tensor} maps parameters to tensors"
        raise wrong_weights("program", problems, casts)
    return arrays


def _array(value: Any) -> Any:
    return value.numpy() if isinstance(value, Tensor) else value


def _read(value: Any) -> Any:
    return value.read() if isinstance(value, Decoded) else value


def _described(value: Any) -> Any:
    """A tensor without memory that has the shape and type of an array; any other value as a tensor."""
    if isinstance(value, Decoded):
        return tensor_at(0, value.shape, value.dtype, None)
    if isinstance(value, np.ndarray):
        return tensor_at(0, value.shape, dtypes.from_numpy(value.dtype), None)
    return from_any(value)


def _wanted(pattern: Pattern) -> str:
    if not isinstance(pattern, TensorPattern) or pattern.shape is None:
        return ""
    sizes = ", ".join(str(n) if isinstance(n, int) else "n" for n in pattern.shape)
    return f"; {pattern.dtype or 'any type'} ({sizes}) is expected"


def _made(
    vm: VirtualMachine,
    jobs: Sequence[_Job],
    arrays: Mapping[Source, Any],
    folder: Path | None,
    checkpoint: Tensors | None,
) -> tuple[dict[tuple[_Job, int], Any], Path | None]:
    """The results of each job, by field, and the file that they are mapped from."""
    made: dict[tuple[_Job, int], Any] = {}
    for job in jobs:
        if not job.packer:
            tensor = from_any(_read(arrays[job.sources[0]]))
            assert tensor is not None  # as it was checked
            made[job, -1] = tensor
    own = [job for job in jobs if job.packer]
    kept = None
    if folder is not None and checkpoint is not None and own:
        kept, tensors = _kept(vm, own, arrays, folder, checkpoint)
    else:
        tensors = None
    if tensors is None:
        kept, tensors = None, [each for job in own for each in _run(vm, job, arrays)]
        vm.release_memory()
    places = [(job, field, layout) for job in own for field, layout in job.fields]
    for (job, field, layout), tensor in zip(places, tensors, strict=True):
        names = tuple(source.name for source in job.sources)
        made[job, field] = PackedTensor(tensor, layout, names)
    return made, kept


def _kept(
    vm: VirtualMachine,
    jobs: Sequence[_Job],
    arrays: Mapping[Source, Any],
    folder: Path,
    checkpoint: Tensors,
) -> tuple[Path | None, list[Tensor] | None]:
    """The tensors mapped from a file, which is written if it is not there; None if that fails."""
    try:
        facts = [
            (
                [layout for _, layout in job.fields],
                job.sources,
            )
            for job in jobs
        ]
        made_from = digest_of(folder, checkpoint.files), checkpoint.identity, facts
        digest = hashlib.sha256(repr(made_from).encode())
        path = folder / digest.hexdigest()
        tensors = map_kept(path)
        if tensors is None or len(tensors) != sum(len(job.fields) for job in jobs):
            with kept_file(path, sum(arrays[s].nbytes for job in jobs for s in job.sources)) as out:
                for job in jobs:
                    results = _run(vm, job, arrays)
                    while results:
                        out.write(results.pop(0).numpy())
            vm.release_memory()
            tensors = map_kept(path)
    except OSError:  # a full disk, a folder that cannot be written: no error of the program
        return None, None
    return path, tensors


def pack_one(vm: VirtualMachine, weight: WeightParam, arrays: Sequence[Any]) -> PackedTensor:
    """One weight of an executable, made by its packer from the arrays of its sources.

    Raises: RuntimeCheckError for arrays of other shapes or types.
    """
    packer = vm.executable.functions[weight.packer].name
    sources = tuple(map(Source, weight.sources))
    job = _Job(packer, sources, ((weight.field, weight.layout),))
    (tensor,) = _run(vm, job, dict(zip(sources, arrays, strict=True)))
    return PackedTensor(tensor, weight.layout, weight.sources)


def _run(vm: VirtualMachine, job: _Job, arrays: Mapping[Source, Any]) -> list[Tensor]:
    """The results of a packer that are wanted, in the order of their fields."""
    try:
        result = vm[job.packer](*(_read(arrays[source]) for source in job.sources))
    except RuntimeCheckError as error:
        error.notes = (*error.notes, f"while {_names_of(job)} was packed")
        raise
    found: list[Tensor] = []
    for field, _ in job.fields:
        known = field < 0 or (isinstance(result, tuple) and field < len(result))
        tensor = (result if field < 0 else result[field]) if known else None
        if not isinstance(tensor, Tensor):  # a file may say anything
            what = "result" if field < 0 else f"result {field}"
            raise RuntimeCheckError("check", f"{job.packer} is no packer: its {what} is no tensor")
        if field >= 0:
            _check_scale(job, tensor)
        found.append(tensor)
    return found


def _check_scale(job: _Job, part: Tensor) -> None:
    """Raises: UsageError (`weight-values`) if a part of a quantised weight has floats that are not finite."""
    if part.dtype in ("float16", "float32") and not np.isfinite(part.numpy()).all():
        raise UsageError(
            "weight-values",
            f"{_names_of(job)} cannot be quantised: its weights, and the scales of its groups in {part.dtype}, must be "
            "finite",
            help="look for NaN and infinity in the checkpoint; scale_dtype='float32' is for very large weights",
        )


def _names_of(job: _Job) -> str:
    return ", ".join(source.name for source in job.sources)
