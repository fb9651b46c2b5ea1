"""The sections of `gpu.py`: items, each a name and what measures it, over the files that `gpu_prepare` wrote. Nothing
here needs the compiler; the peers need torch with CUDA.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from statistics import median
from typing import Any, TypeAlias

import numpy as np

import relaxpy.testing.random_libraries  # noqa: F401
from benchmarks.gpu_calls import ExpectedCall, load_calls
from benchmarks.gpu_models import DECODER_SCHEMES
from benchmarks.gpu_plan import (
    LAUNCHES,
    MATMUL_DTYPES,
    Prepared,
    decoder_name,
    encoder_name,
    matmul_name,
    memory_name,
    memory_shape,
)
from benchmarks.llm_peers import SCHEMES as ALL_SCHEMES
from benchmarks.llm_peers import Cell, Shape, recorded, step_arguments, transformers, work
from relaxpy.errors import ExecutableError, RelaxError
from relaxpy.runtime import VirtualMachine, load
from relaxpy.runtime.inspect.random_tensors import Weight, on_device

Result: TypeAlias = dict[str, Any]
Item: TypeAlias = tuple[str, Callable[[], Result]]
Section: TypeAlias = "tuple[float, Callable[[Bench], Iterator[Item]]]"
"""A share of the time, and items. Time that a section leaves is the others'."""
PEERS = "eager", "graph", "torch.compile"
"""How transformers runs."""
TORCH_DTYPES = {"fp16": "float16", "bf16": "bfloat16"}
_WARM = 3
_MOST = 200
"""Calls of a measurement."""
_AT_ONCE = 4


class Skipped(Exception):
    """An item cannot run here; the text says why."""


class Bench:
    """A prepared folder on a device."""

    def __init__(self, prepared: Prepared, device: str) -> None:
        self.prepared = prepared
        self.plan = prepared.plan
        self.device = device
        self._machines: dict[str, VirtualMachine] = {}
        self._weights: dict[str, list[Any]] = {}

    def machine(self, program: str) -> VirtualMachine:
        """The machine of a program. Those of other programs, and their memory, are given up."""
        if program not in self._machines:
            self._machines.clear()
            self._weights.clear()
            exe = load(self.prepared.file(program))
            self._machines[program] = VirtualMachine(exe, device=self.device)
        return self._machines[program]

    def machine_of(self, program: str) -> VirtualMachine:
        """The machine of a program that may call a library. Raises: Skipped where the package, or the program, is not
        here."""
        if not self.prepared.file(program).exists():
            raise Skipped(f"{self.prepared.target} has no such library")
        try:
            return self.machine(program)
        except ExecutableError as error:
            if error.code != "library-missing":
                raise
            raise Skipped(error.message) from error

    def weights(self, program: str) -> list[Any]:
        """Its weights on the device."""
        vm = self.machine(program)
        if program not in self._weights:
            self._weights[program] = on_device(vm, self.prepared.weights[program])
        return self._weights[program]

    def seconds(self, call: Callable[[], Any], wait: Callable[[], Any]) -> tuple[float, int]:
        """The median time of a call until its work is done, and how many calls were timed."""
        for _ in range(_WARM):
            call()
        wait()
        times: list[float] = []
        end = time.perf_counter() + self.plan.seconds
        while not times or (time.perf_counter() < end and len(times) < _MOST):
            start = time.perf_counter()
            call()
            wait()
            times.append(time.perf_counter() - start)
        return median(times), len(times)

    # The device

    def about(self) -> Iterator[Item]:
        """The device, and the rate of its memory."""
        yield "device", self._facts
        yield "copy", self._copy

    def _facts(self) -> Result:
        vm = self.machine(encoder_name())
        runtime = next(iter(vm.queues.values())).runtime
        facts = dict(runtime.facts())
        clock = int(facts.get("memory_clock_rate_khz", 0)) * 1000
        wide = int(facts.get("memory_bus_width_bits", 0)) / 8
        names = runtime.devices()
        return {
            "name": names[runtime.index] if runtime.index < len(names) else "",
            "facts": facts,
            # Memory of GPUs moves data twice a clock.
            "bytes_per_second": 2 * clock * wide or None,
        }

    def _copy(self) -> Result:
        vm = self.machine(encoder_name())
        queue = next(iter(vm.queues.values()))
        source, target = (queue.new((self.plan.copied,), "uint8") for _ in range(2))
        copy = queue.runtime.copy
        places = source.buffer.handle, source.offset, target.buffer.handle, target.offset
        seconds, calls = self.seconds(
            lambda: copy(queue.raw, *places, self.plan.copied), queue.synchronise
        )
        return {"bytes_per_second": 2 * self.plan.copied / seconds, "calls": calls}

    # Correctness

    def operators(self) -> Iterator[Item]:
        """Samples of each operator beside its reference."""
        for program in self.prepared.programs("operators"):
            yield program, lambda program=program: self._checked(program)

    def programs(self) -> Iterator[Item]:
        """Random programs beside the interpreter."""
        for program in self.prepared.programs("programs"):
            yield program, lambda program=program: self._checked(program)

    def _checked(self, program: str) -> Result:
        vm = self.machine(program)
        calls = load_calls(self.prepared.calls(program))
        found = [call for call in calls if isinstance(call, ExpectedCall)]
        wrong = [f"{call.label}: {text}" for call in found if (text := _wrong(vm, call))]
        skipped = [call for call in calls if isinstance(call, str)]
        return {"calls": len(found), "wrong": wrong, "skipped": skipped}

    # The encoder

    def encoder(self) -> Iterator[Item]:
        """The encoder with graphs and without, beside the processor's results."""
        for variant in ("all", "without graphs", "cublas"):
            yield from self._encoder(variant, check=True)

    def _encoder(self, variant: str, check: bool = False) -> Iterator[Item]:
        for number, (batch, length) in enumerate(self.plan.encoder_shapes):
            yield (
                f"encoder {batch} × {length}, {variant}",
                lambda number=number: self._embed(variant, number, check),
            )

    def _embed(self, variant: str, number: int, check: bool) -> Result:
        program = encoder_name(variant)
        vm, weights = self.machine_of(program), self.weights(program)
        call = load_calls(self.prepared.calls(encoder_name()))[number]
        assert isinstance(call, ExpectedCall)
        given = [vm.upload(arg) for arg in call.args]
        wrong = call.wrong(lambda *_: vm["embed"](*given, *weights)) if check else ""
        before = vm.graphs
        seconds, calls = self.seconds(lambda: vm["embed"](*given, *weights), vm.synchronise)
        replays = vm.graphs.replays - before.replays
        return {"ms": seconds * 1e3, "calls": calls, "replays": replays, "wrong": wrong}

    # Decoders

    def decoders(self) -> Iterator[Item]:
        """A step of each decoder, beside transformers."""
        cells = [Cell(batch=batch, context=self.plan.context) for batch in self.plan.batches]
        for title, shape in self.plan.decoders.items():
            for scheme, library in [
                *((scheme, "") for scheme in self.plan.schemes),
                (self.plan.schemes[0], "cublas"),
            ]:
                program = decoder_name(title, scheme, library or "all")
                how = f"{scheme} with cuBLASLt" if library else scheme
                for cell in [*cells, Cell(tokens=self.plan.prompt)]:
                    yield (
                        f"{title}, {how}: {cell.name}",
                        lambda p=program, s=shape, own=scheme, c=cell: self._step(p, s, own, c),
                    )

    def peers(self) -> Iterator[Item]:
        """Transformers: eager, eager in a CUDA graph, and by torch.compile, which takes long to compile: the first
        decoder's first step only."""
        encoder = self.plan.encoder
        for how in PEERS[:2]:
            yield f"encoder, transformers {how}", lambda h=how: self._bert(encoder, h)
        steps = [Cell(batch=batch, context=self.plan.context) for batch in self.plan.batches]
        for number, how in enumerate(PEERS):
            titles = [*self.plan.decoders.items()][: None if number < 2 else 1]
            cells = ([*steps, Cell(tokens=self.plan.prompt)], steps, steps[:1])[number]
            for title, shape in titles:
                for scheme, dtype in [*TORCH_DTYPES.items()][: None if number < 2 else 1]:
                    yield (
                        f"{title}, {scheme}, transformers {how}",
                        lambda s=shape, d=dtype, h=how, c=cells: self._transformers(s, d, h, c),
                    )

    def _step(self, program: str, shape: Shape, scheme: str, cell: Cell) -> Result:
        vm = self.machine_of(program)
        start = time.perf_counter()
        weights = self.weights(program)
        vm.synchronise()
        loaded = time.perf_counter() - start
        given, pages = step_arguments(cell, shape.vocab, np.random.default_rng(0))
        given = tuple(vm.upload(each) for each in given)
        caches = vm["alloc_pages"](pages)
        before = vm.graphs
        seconds, calls = self.seconds(lambda: vm["step"](*given, caches, *weights), vm.synchronise)
        nbytes, operations = work(shape, ALL_SCHEMES[DECODER_SCHEMES[scheme]], cell)
        return {
            "ms": seconds * 1e3,
            "tokens_per_second": cell.computed / seconds,
            "bytes_per_second": nbytes / seconds,
            "operations_per_second": operations / seconds,
            "calls": calls,
            "replays": vm.graphs.replays - before.replays,
            "weights_seconds": loaded,
        }

    def _transformers(self, shape: Shape, dtype: str, how: str, cells: list[Cell]) -> Result:
        need_torch("transformers")
        service = transformers(shape, dtype, 1, "cuda", how)
        found: Result = {}
        for cell in cells:
            seconds, calls = self.seconds(service.prepare(cell), lambda: None)
            found[cell.name] = {"ms": seconds * 1e3, "calls": calls}
        return found

    def _bert(self, sizes: Mapping[str, int], how: str) -> Result:
        torch = need_torch("transformers")
        from transformers import BertConfig, BertModel

        with torch.device("cuda"):
            model = BertModel(BertConfig(**sizes), add_pooling_layer=False).eval()
        found: Result = {}
        for batch, length in self.plan.encoder_shapes:
            ids = torch.randint(sizes.get("vocab_size", 1000), (batch, length), device="cuda")
            mask = torch.ones_like(ids)

            def run(ids: Any = ids, mask: Any = mask) -> Any:
                with torch.inference_mode():
                    return model(input_ids=ids, attention_mask=mask)

            call = run if how == PEERS[0] else recorded(torch, run).replay
            seconds, calls = self.seconds(call, torch.cuda.synchronize)
            found[f"encoder {batch} × {length}"] = {"ms": seconds * 1e3, "calls": calls}
        return found

    # Products

    def matmul(self) -> Iterator[Item]:
        """Linear layers beside cuBLAS: the launches of a call as one graph, ours and torch's."""
        for dtype in MATMUL_DTYPES:
            for number, (inner, outer) in enumerate(self.plan.matmul):
                for rows in self.plan.rows:
                    size = f"{rows} × {inner} × {outer}, {dtype}"
                    sizes = rows, inner, outer
                    for library, how in (("", size), ("cublas", f"{size}, by cuBLASLt")):
                        program = matmul_name(dtype, library)
                        yield (
                            how,
                            lambda p=program, n=number, d=dtype, s=sizes: self._product(
                                p, n, d, *s
                            ),
                        )
                    yield f"{size}, cuBLAS", lambda d=dtype, s=sizes: self._cublas(d, *s)

    def _product(
        self, program: str, number: int, dtype: str, rows: int, inner: int, outer: int
    ) -> Result:
        vm = self.machine_of(program)
        left, right = Weight((rows, inner), dtype, 1.0), Weight((outer, inner), dtype, inner**-0.5)
        given = on_device(vm, [*[left] * LAUNCHES, *[right] * LAUNCHES])
        before = vm.graphs
        found = self._rate(lambda: vm[f"f{number}"](*given), vm.synchronise, rows, inner, outer)
        return found | {"replays": vm.graphs.replays - before.replays}

    def _cublas(self, dtype: str, rows: int, inner: int, outer: int) -> Result:
        torch = need_torch()
        made = {"dtype": getattr(torch, dtype), "device": "cuda"}
        pairs = [
            (torch.randn(rows, inner, **made), torch.randn(outer, inner, **made).T)
            for _ in range(LAUNCHES)
        ]
        graph = recorded(torch, lambda: [torch.matmul(x, w) for x, w in pairs])
        return self._rate(graph.replay, torch.cuda.synchronize, rows, inner, outer)

    def _rate(
        self, call: Callable[[], Any], wait: Callable[[], Any], rows: int, inner: int, outer: int
    ) -> Result:
        """The rate of one of the products of a call. Several calls are made before the work of the first is waited for,
        so that the host's time is not in it."""

        def several() -> None:
            for _ in range(_AT_ONCE):
                call()

        seconds, calls = self.seconds(several, wait)
        seconds /= LAUNCHES * _AT_ONCE
        nbytes = 2 * (rows * inner + inner * outer + rows * outer)
        return {
            "us": seconds * 1e6,
            "tflops": 2 * rows * inner * outer / seconds / 1e12,
            "bytes_per_second": nbytes / seconds,
            "calls": calls,
        }

    # What each optimisation is worth

    def ablation(self) -> Iterator[Item]:
        """The encoder, and a step of the first decoder, without some of the optimisations."""
        title, shape = next(iter(self.plan.decoders.items()))
        for variant in self.plan.variants:
            yield from self._encoder(variant)
            program = decoder_name(title, self.plan.schemes[0], variant)
            for batch in self.plan.batches:
                cell = Cell(batch=batch, context=self.plan.context)
                yield (
                    f"{title}, {self.plan.schemes[0]}: {cell.name}, {variant}",
                    lambda p=program, c=cell: self._step(p, shape, self.plan.schemes[0], c),
                )

    # Memory

    def memory(self) -> Iterator[Item]:
        """What successive prompts, and steps of more and more sequences, take, with a plan and without."""
        prompts = [Cell(tokens=count) for count in self.plan.memory_prompts]
        steps = [Cell(batch=batch, context=self.plan.context) for batch in self.plan.batches]
        for variant in ("all", "without a memory plan"):
            for name, cells in (("prompts", prompts), ("steps", steps)):
                yield (
                    f"{name}, {variant}",
                    lambda v=variant, c=cells: self._used(memory_name(v), c),
                )

    def _used(self, program: str, cells: list[Cell]) -> Result:
        self._machines.clear()  # a machine keeps the memory of its calls
        vm, weights = self.machine(program), self.weights(program)
        shape = memory_shape(self.plan)
        random = np.random.default_rng(0)
        most = max(step_arguments(cell, shape.vocab, random)[1] for cell in cells)
        caches = vm["alloc_pages"](most)
        before = vm.memory
        for cell in cells:
            given, _ = step_arguments(cell, shape.vocab, random)
            vm["step"](*given, caches, *weights)
            vm.synchronise()
        after = vm.memory
        return {"bytes": after.total - before.total, "use": asdict(after)}


SECTIONS: dict[str, Section] = {
    "device": (0.02, Bench.about),
    "operators": (0.1, Bench.operators),
    "programs": (0.1, Bench.programs),
    "encoder": (0.08, Bench.encoder),
    "decoders": (0.25, Bench.decoders),
    "transformers": (0.25, Bench.peers),
    "matmul": (0.1, Bench.matmul),
    "ablation": (0.12, Bench.ablation),
    "memory": (0.05, Bench.memory),
}
"""By their names."""


def _wrong(vm: VirtualMachine, call: ExpectedCall) -> str:
    """How a call's result differs, or the error that it ends with."""
    try:
        return call.wrong(vm[call.function])
    except RelaxError as error:
        if error.code == "device-failed":
            raise  # the device is of no use to this process any more
        if error.code != "update-lost":
            return error.message
    function = vm[call.function]
    try:  # arguments that are updated in place must be on the device
        return call.wrong(
            lambda *args: function(
                *(vm.upload(arg) if isinstance(arg, np.ndarray) else arg for arg in args)
            )
        )
    except RelaxError as error:
        return error.message


def need_torch(*others: str) -> Any:
    """The module torch. Raises: Skipped where it, a GPU for it, or another package is not here."""
    for name in ("torch", *others):
        if importlib.util.find_spec(name) is None:
            raise Skipped(f"{name} is not installed")
    import torch

    if not torch.cuda.is_available():
        raise Skipped("torch finds no GPU")
    return torch
