"""Builds what `gpu.py` runs: executables, and calls with the results that they must have. Needs the compiler and the
tests' folder, but no GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import relaxpy
from benchmarks.gpu_calls import ExpectedCall, save_calls
from benchmarks.gpu_models import DECODER_SCHEMES
from benchmarks.gpu_plan import (
    CONVOLUTION_DTYPES,
    LAUNCHES,
    LIBRARIES,
    MATMUL_DTYPES,
    VARIANTS,
    Plan,
    Prepared,
    agreeing_name,
    convolution_name,
    decoder_name,
    encoder_name,
    library_name,
    matmul_name,
    memory_name,
    memory_shape,
)
from benchmarks.gpu_prepare_agreement import (
    agreeing_decoder,
    convolution_program,
    library_programs,
    matmul_program,
)
from benchmarks.llm_peers import SCHEMES as ALL_SCHEMES
from benchmarks.llm_peers import Scheme, Shape, decoder_modules, weight_params
from relaxpy.build.pipeline import default_pipeline
from relaxpy.errors import RelaxError
from relaxpy.ir.annotation import TupleType
from relaxpy.op.deduce import deduce
from relaxpy.runtime.inspect.random_tensors import Weight, random_weight
from relaxpy.testing.agreement import allowance
from relaxpy.testing.fuzz import calls_of
from relaxpy.testing.op_samples import apply, reference_arrays
from relaxpy.testing.random_program import random_program
from relaxpy.testing.replay import plain
from tests.e2e.devices import all_samples, first_samples, module_of

EMBEDDING_TOLERANCE = 2e-5
"""Of the elements of vectors of length 1."""


def prepare(folder: Path, plan: Plan, target: str, cache: bool | str = True) -> Prepared:
    """Write everything into a folder. `cache` is that of `relaxpy.build`."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Prepared(folder, target, plan)
    maker = _Maker(made, cache)
    for step in (
        maker.operators, maker.programs, maker.encoder, maker.agreeing, maker.libraries,
        maker.decoders, maker.matmul, maker.convolutions,
    ):  # fmt: skip
        step()
    made.save()
    return made


class _Maker:
    def __init__(self, made: Prepared, cache: bool | str) -> None:
        self.made = made
        self.plan = made.plan
        self.cache = cache

    def build(self, name: str, mod: Any, without: Sequence[str] = (), library: str = "") -> None:
        """Build a program into its file, for a library if one is named."""
        text = f"{self.made.target} -libs={library}" if library else self.made.target
        target = relaxpy.Target.parse(text)
        known = {step.name for step in default_pipeline(target).passes}
        pipeline = default_pipeline(target, without=[each for each in without if each in known])
        exe = relaxpy.build(mod, target, pipeline=pipeline, cache=self.cache)
        exe.save(self.made.file(name))

    def operators(self) -> None:
        """All samples of each operator, or the first, a file for each group. A group with a sample that the target
        refuses is built without it."""
        groups, parts = self.plan.operators
        for group in range(groups):
            chosen = (
                all_samples(group, parts) if self.plan.every_sample else first_samples(group, parts)
            )
            applied = [apply(sample, bool(sample.dims)) for sample in chosen]
            kept = [*range(len(chosen))]
            try:
                mod, given = module_of(applied)
                self.build(f"operators-{group}", mod)
            except RelaxError:
                kept = [n for n in kept if self.compiles(str(chosen[n].op), applied[n])]
                mod, given = module_of([applied[n] for n in kept])
                self.build(f"operators-{group}", mod)
            calls: list[ExpectedCall] = []
            for number, (n, args) in enumerate(zip(kept, given, strict=True)):
                sample = chosen[n]
                wanted = reference_arrays(sample)
                allowed = [allowance(each, (), sample.atol, sample.rtol) for each in wanted]
                several = isinstance(deduce(applied[n].call), TupleType)
                calls.append(
                    ExpectedCall(
                        str(sample.op), f"f{number}", tuple(args),
                        tuple(wanted) if several else wanted[0],
                        tuple(allowed) if several else allowed[0],
                    )
                )  # fmt: skip
            save_calls(self.made.calls(f"operators-{group}"), calls)

    def compiles(self, name: str, applied: Any) -> bool:
        """Does the target take a sample?"""
        try:
            relaxpy.build(module_of([applied])[0], self.made.target, cache=self.cache)
        except RelaxError as error:
            self.made.left_out[name] = error.message
            return False
        return True

    def programs(self) -> None:
        """Random programs beside the interpreter. Those that the target refuses, and calls that end with an error, are
        left out."""
        for seed in range(self.plan.programs):
            program = random_program(seed)
            try:
                self.build(f"programs-{seed}", program.mod)
            except RelaxError as error:
                self.made.left_out[f"programs-{seed}"] = error.message
                continue
            calls: list[ExpectedCall] = []
            for call in calls_of(program):
                wanted = plain(call.expected)
                if not _is_data(wanted) or not all(map(_is_data, call.args)):
                    continue
                others = [plain(other) for other in call.others()]
                allowed = _allowances(wanted, others)
                calls.append(ExpectedCall(call.label, call.name, tuple(call.args), wanted, allowed))
            save_calls(self.made.calls(f"programs-{seed}"), calls)

    def encoder(self) -> None:
        """The encoder in all variants, and its results on the processor."""
        from relaxpy.models.bert import SPEC, BertConfig, BertEncoder

        config = BertConfig(**self.plan.encoder)
        mod, _ = BertEncoder(config).export({"embed": SPEC["embed"]})
        weights = [*_weights(mod["embed"], None, Scheme())]
        for variant in self.plan.variants:
            self.made.weights[encoder_name(variant)] = weights
            self.build(encoder_name(variant), mod, VARIANTS[variant])
        if self.has_libraries:
            self.made.weights[encoder_name("cublas")] = weights
            self.build(encoder_name("cublas"), mod, library="cublas")
        host = relaxpy.VirtualMachine(relaxpy.build(mod, self.plan.host))
        values = [random_weight(weight) for weight in weights]
        calls: list[ExpectedCall] = []
        for batch, length in self.plan.encoder_shapes:
            ids = np.random.default_rng(length).integers(0, config.vocab_size, (batch, length))
            mask = np.ones_like(ids)
            mask[0, length // 2 + 1 :] = 0
            wanted = host["embed"](ids, mask, *values).numpy()
            allowed = np.full(wanted.shape, EMBEDDING_TOLERANCE)
            label = f"{batch} × {length}"
            calls.append(ExpectedCall(label, "embed", (ids, mask), wanted, allowed))
        save_calls(self.made.calls(encoder_name()), calls)

    def decoders(self) -> None:
        """Each shape in each scheme, the first in all variants, and what memory is measured of."""
        for number, (title, shape) in enumerate(self.plan.decoders.items()):
            for scheme in self.plan.schemes:
                self.decoder(decoder_name(title, scheme), shape, scheme, ())
                if self.has_libraries and scheme == self.plan.schemes[0]:
                    self.decoder(decoder_name(title, scheme, "cublas"), shape, scheme, (), "cublas")
            for variant in self.plan.variants:
                if number == 0 and VARIANTS[variant]:
                    self.decoder(
                        decoder_name(title, self.plan.schemes[0], variant),
                        shape,
                        self.plan.schemes[0],
                        VARIANTS[variant],
                    )
        for variant in ("all", "without a memory plan"):
            shape = memory_shape(self.plan)
            self.decoder(memory_name(variant), shape, self.plan.schemes[0], VARIANTS[variant])

    def decoder(
        self, name: str, shape: Shape, scheme: str, without: Sequence[str], library: str = ""
    ) -> None:
        own = ALL_SCHEMES[DECODER_SCHEMES[scheme]]
        before, mod = decoder_modules(shape, own)
        names = {param.name for param in weight_params(before["step"])}
        self.made.weights[name] = [*_weights(mod["step"], names, own)]
        self.build(name, mod, without, library)

    def agreeing(self) -> None:
        """Small decoders, and what they give on the processor."""
        for title, shape in self.plan.agreeing.items():
            for scheme in self.plan.agreeing_schemes:
                name = agreeing_name(title, scheme)
                mod, self.made.weights[name], calls = agreeing_decoder(shape, scheme, self.plan)
                self.build(name, mod)
                save_calls(self.made.calls(name), calls)

    @property
    def has_libraries(self) -> bool:
        return self.made.target.startswith("cuda")

    def libraries(self) -> None:
        """What libraries compute, and what it is on the processor."""
        for library in LIBRARIES if self.has_libraries else ():
            for dtype in self.plan.library_dtypes:
                name = library_name(library, dtype)
                mod, calls = library_programs(library, dtype, self.plan)
                self.build(name, mod, library=library)
                save_calls(self.made.calls(name), calls)

    def matmul(self) -> None:
        """Linear layers of any number of rows, ours and cuBLASLt's."""
        for dtype in MATMUL_DTYPES:
            mod = matmul_program(dtype, self.plan.matmul, LAUNCHES)
            for library in ("", "cublas") if self.has_libraries else ("",):
                self.build(matmul_name(dtype, library), mod, library=library)

    def convolutions(self) -> None:
        """Convolutions of any number of images, ours and cuDNN's."""
        for dtype in CONVOLUTION_DTYPES:
            mod = convolution_program(dtype, self.plan.convolutions)
            for library in ("", "cudnn") if self.has_libraries else ("",):
                self.build(convolution_name(dtype, library), mod, library=library)


def _weights(function: Any, plain_names: set[str] | None, scheme: Scheme) -> Iterator[Weight]:
    """The weights of a function. `plain_names` are those that are no codes or scales of quantised ones; None: all."""
    for param in weight_params(function):
        shape = tuple(dim.value for dim in param.annotation.dims)
        scale = 1 / shape[-1] ** 0.5
        if plain_names is not None and param.name not in plain_names:
            scale /= 2 ** (scheme.bits or 0)
        yield Weight(shape, str(param.annotation.dtype), scale)


def _is_data(value: Any) -> bool:
    """Is it an array, a number, or a tuple of these?"""
    if isinstance(value, tuple):
        return all(map(_is_data, value))
    return isinstance(value, (np.ndarray, np.generic, int, float))


def _allowances(wanted: Any, others: Sequence[Any]) -> Any:
    if isinstance(wanted, tuple):
        fields = [
            [other[i] if isinstance(other, tuple) and i < len(other) else other for other in others]
            for i in range(len(wanted))
        ]
        return tuple(map(_allowances, wanted, fields))
    return allowance(wanted, others, atol=1e-6, rtol=1e-5)


def sizes(folder: Path) -> Mapping[str, int]:
    """The bytes of the files of a folder."""
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
