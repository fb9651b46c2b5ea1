"""The peers of `llm.py`: services (`turns.py`) that make a decoder with random weights, and prepare its calls.

A request is a `Cell`, `Kernels` or `MEMORY`. A prompt is computed into an empty cache; a decoding step computes one
more token of each sequence after so many. Caches hold numbers that nobody computed where a library lets us make them:
time does not depend on them. Every matrix has memory of its own, as in a real model.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.turns import Service

MEMORY = "memory"
"""The request for the largest number of bytes that the process has held so far."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a Llama; those of TinyLlama-1.1B."""

    layers: int = 22
    hidden: int = 2048
    inner: int = 5632
    heads: int = 32
    key_heads: int = 4
    vocab: int = 32000

    @property
    def head(self) -> int:
        """The width of a head."""
        return self.hidden // self.heads

    @property
    def layer_weights(self) -> int:
        """Elements of the matrices of a layer."""
        own = 2 * self.hidden * self.hidden + 2 * self.hidden * self.key_heads * self.head
        return own + 3 * self.hidden * self.inner

    @property
    def head_weights(self) -> int:
        return self.hidden * self.vocab


@dataclass(frozen=True)
class Cell:
    """A prompt of `tokens`, or where that is 0 a step of `batch` sequences that have `context` tokens each."""

    tokens: int = 0
    batch: int = 1
    context: int = 0

    @property
    def name(self) -> str:
        if self.tokens:
            return f"prefill {self.tokens}"
        return f"decode {self.batch} × {self.context}"

    @property
    def computed(self) -> int:
        """Tokens of a call."""
        return self.tokens or self.batch


@dataclass(frozen=True)
class Kernels:
    """The request for the kernels of a cell that take longest: a list of (name, calls, milliseconds, share of the
    time, GB/s, GOP/s)."""

    cell: Cell
    count: int = 4


@dataclass(frozen=True)
class Scheme:
    """How relaxpy keeps weights and computes."""

    bits: int | None = None
    """Of a weight; None: of the dtype."""
    dtype: str = "float32"
    activations: int | None = None
    """Neighbours that share a scale of int8 activations; None: products of `dtype`."""
    arithmetic: str = "float32"
    """The limit of its products: a dtype of `Limits.peak`, or `codes`: bytes by codes of 4 bits."""

    @property
    def item(self) -> int:
        """Bytes of an element of the dtype."""
        return 4 if self.dtype == "float32" else 2

    @property
    def weight_bytes(self) -> float:
        """Of an element, with its share of a scale."""
        if self.bits is None:
            return self.item
        return self.bits / 8 + 2 / GROUP


GROUP = 32
SCHEMES = {
    "int4 (W4A8)": Scheme(4, activations=GROUP, arithmetic="codes"),
    "int4 (W4A16)": Scheme(4, "bfloat16", arithmetic="bfloat16"),
    "int4 (W4A32)": Scheme(4),
    "int8 (W8A32)": Scheme(8),
    "bf16": Scheme(None, "bfloat16", arithmetic="bfloat16"),
    "fp16": Scheme(None, "float16"),
    "fp32": Scheme(),
}
PAGE = 32


def work(shape: Shape, scheme: Scheme, cell: Cell) -> tuple[float, float]:
    """Bytes read, and operations: the matrices once, and the keys and values of the context. The head is computed for
    the last token of each sequence."""
    rows = cell.tokens or cell.batch
    heads = 1 if cell.tokens else cell.batch
    weights = shape.layers * shape.layer_weights
    wide = 2 * shape.layers * shape.heads * shape.head
    pairs = cell.tokens * (cell.tokens + 1) / 2 if cell.tokens else cell.batch * (cell.context + 1)
    cached = 0 if cell.tokens else cell.batch * cell.context
    cache_bytes = 2 * shape.layers * shape.key_heads * shape.head * scheme.item * cached
    operations = 2 * (rows * weights + heads * shape.head_weights) + 2 * wide * pairs
    return scheme.weight_bytes * (weights + shape.head_weights) + cache_bytes, operations


def relaxpy(shape: Shape, scheme: Scheme, threads: int, cache_dtype: str) -> Service:
    """`Llama.step` over a paged cache, or `prefill` and `decode` where the model has none."""
    os.environ["RELAXPY_NUM_THREADS"] = str(threads)
    import relaxpy as rx

    before, mod = decoder_modules(shape, scheme, cache_dtype)
    paged = "step" in mod.functions
    main: Any = mod["step" if paged else "decode"]
    arrays = _weights(
        main, {p.name for p in weight_params(before["step" if paged else "decode"])}, scheme
    )
    vm = rx.VirtualMachine(rx.build(mod, pack=True))
    packed = vm.pack(arrays, keep=False)
    del arrays
    random = np.random.default_rng(0)

    def step(cell: Cell, run: Callable[..., Any] | None = None) -> Callable[[], Any]:
        given, pages = step_arguments(cell, shape.vocab, random)
        caches = vm["alloc_pages"](pages)
        return lambda: (run or vm["step"])(*given, caches, *packed["step"])

    def call(cell: Cell, run: Callable[..., Any] | None = None) -> Callable[[], Any]:
        if cell.tokens:
            prompt = random.integers(0, shape.vocab, (1, cell.tokens))
            return lambda: (run or vm["prefill"])(prompt, *packed["prefill"])
        import ml_dtypes

        kind = ml_dtypes.bfloat16 if scheme.dtype == "bfloat16" else np.float32
        past = np.zeros((cell.batch, cell.context, shape.key_heads, shape.head), kind)
        cache = tuple((past.copy(), past.copy()) for _ in range(shape.layers))
        ids = random.integers(0, shape.vocab, (cell.batch, 1))
        return lambda: (run or vm["decode"])(ids, cache, *packed["decode"])

    prepare, main_name = (step, "step") if paged else (call, "")

    def kernels(request: Kernels) -> Callable[[], Any]:
        cell = request.cell
        name = main_name or ("prefill" if cell.tokens else "decode")
        arguments = _Arguments(vm[name])
        prepare(cell, arguments)()

        def found() -> list[tuple[Any, ...]]:
            repeat = 1 if cell.tokens > 128 else 3
            rows = vm.profile(name, *arguments.given, repeat=repeat).by_kernel()
            whole = sum(row.seconds for row in rows)
            rows = sorted(rows, key=lambda row: -row.seconds)[: request.count]
            return [
                (row.name, row.calls, row.seconds * 1e3, row.seconds / whole,
                 row.gigabytes, row.gigaflops)
                for row in rows
            ]  # fmt: skip

        return found

    return _service(prepare, kernels)


def decoder_modules(shape: Shape, scheme: Scheme, cache_dtype: str = "") -> tuple[Any, Any]:
    """The model of a shape without the values of its weights, before and after they are quantised: `step` and what
    makes its pages, or `prefill` and `decode` where the model has no `step`."""
    from relaxpy.models import llama
    from relaxpy.op.weight_scheme import WeightScheme
    from relaxpy.transform import QuantizeWeights

    sizes: dict[str, Any] = {
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_heads,
        "vocab_size": shape.vocab,
        "max_position_embeddings": 1 << 14,
        "dtype": scheme.dtype,
    }
    paged = hasattr(llama, "step_spec")
    if paged and cache_dtype:
        sizes["cache_dtype"] = cache_dtype
    config = llama.LlamaConfig(**sizes)
    spec = llama.step_spec(config) if paged else llama.spec(config)
    spec.pop("logits", None)
    before, _ = llama.Llama(config).export(spec)
    if scheme.bits is None:
        return before, before
    weights = WeightScheme(scheme.bits, GROUP)
    return before, QuantizeWeights(weights, activations=scheme.activations)(before)


def step_arguments(
    cell: Cell, vocab: int, random: np.random.Generator
) -> tuple[tuple[np.ndarray, ...], int]:
    """The arguments of `step` before its caches, and the pages that these must have."""
    count, sequences = cell.computed, 1 if cell.tokens else cell.batch
    length = cell.tokens or cell.context + 1
    width = -(-length // PAGE)
    pages = sequences * width
    tables = random.permutation(pages).astype(np.int32).reshape(1, sequences, width)
    positions = np.arange(count) if cell.tokens else np.full(count, cell.context)
    ends = np.arange(sequences + 1, dtype=np.int32) * (cell.tokens or 1)
    given = (
        random.integers(0, vocab, count),
        positions.astype(np.int64),
        ends,
        tables,
        np.full(sequences, length, np.int32),
        ends[1:] - np.int32(1),
    )
    return given, pages


class _Arguments:
    """Calls a function, and keeps what it was given."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.given = function, tuple[Any, ...]()

    def __call__(self, *given: Any) -> Any:
        self.given = given
        return self.function(*given)


def weight_params(function: Any) -> list[Any]:
    """The parameters of a function that are weights."""
    return function.params[function.attrs["num_input"] :]


def _weights(function: Any, plain: set[str], scheme: Scheme) -> dict[str, np.ndarray]:
    """Random arrays for the weights of a function: one of each shape, which the packers copy. `plain` has the names of
    weights before they were quantised."""
    import ml_dtypes

    random, made = np.random.default_rng(0), dict[Any, np.ndarray]()
    found: dict[str, np.ndarray] = {}
    for param in weight_params(function):
        size = tuple(dim.value for dim in param.annotation.dims)
        kind = str(param.annotation.dtype)
        key = size, kind, param.name in plain
        if key not in made:
            if kind.startswith("uint"):
                made[key] = random.integers(0, np.iinfo(kind).max, size, kind, endpoint=True)
            elif param.name in plain:
                values = random.standard_normal(size, np.float32) / np.float32(size[-1] ** 0.5)
                made[key] = values.astype(ml_dtypes.bfloat16 if kind == "bfloat16" else kind)
            else:
                by = 2 ** (scheme.bits or 0) * size[-1] ** 0.5
                made[key] = (random.random(size, np.float32) / np.float32(by)).astype(kind)
        found[param.name] = made[key]
    return found


def transformers(
    shape: Shape, dtype: str, threads: int, device: str = "cpu", how: str = "eager"
) -> Service:
    """Transformers' Llama in torch: `eager`, or with a cache of a fixed size as a CUDA `graph` of that, or by
    `torch.compile`."""
    import torch
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache

    torch.set_num_threads(threads)
    torch.set_default_device(device)
    kind = getattr(torch, dtype)
    config = LlamaConfig(
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        vocab_size=shape.vocab,
        max_position_embeddings=1 << 14,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model = model.to(kind).to_empty(device=device).eval()
    for each in itertools.chain(model.parameters(), model.buffers()):
        each.data.fill_(0.01)
    if how == "torch.compile":
        model.forward = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)

    def call(cell: Cell) -> Callable[[], Any]:
        if how != "eager" and not cell.tokens:
            return fixed(cell)
        if cell.tokens:
            prompt = torch.randint(shape.vocab, (1, cell.tokens))
            return lambda: run(prompt, DynamicCache())
        cache = DynamicCache()
        size = cell.batch, shape.key_heads, cell.context, shape.head
        for layer in range(shape.layers):
            cache.update(torch.zeros(size, dtype=kind), torch.zeros(size, dtype=kind), layer)
        ids = torch.randint(shape.vocab, (cell.batch, 1))

        def step() -> None:
            run(ids, cache)
            cache.crop(-1)

        return step

    def fixed(cell: Cell) -> Callable[[], Any]:
        cache = StaticCache(config=config, max_cache_len=cell.context + 1)
        ids = torch.randint(shape.vocab, (cell.batch, 1))
        position = torch.tensor([cell.context])
        if how == "torch.compile":
            return lambda: run(ids, cache, cache_position=position)
        kept = ids, cache, position

        def step() -> None:
            with torch.inference_mode():
                model(
                    ids, past_key_values=cache, use_cache=True, logits_to_keep=1,
                    cache_position=position, position_ids=position[None],
                )  # fmt: skip

        graph = recorded(torch, step)

        def replay() -> None:
            assert kept
            graph.replay()
            torch.cuda.synchronize()

        return replay

    def run(ids: Any, cache: Any, **more: Any) -> None:
        with torch.inference_mode():
            model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1, **more)
        if device != "cpu":
            torch.cuda.synchronize()

    return _service(call)


def recorded(torch: Any, call: Callable[[], Any]) -> Any:
    """A CUDA graph of a call."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        graph.kept = call()  # its memory is the graph's
    return graph


def llama_cpp(shape: Shape, kind: str, threads: int) -> Service:
    """llama.cpp by llama-cpp-python, from a GGUF file of random blocks; kind is q4_0 or q8_0, for the head too."""
    import llama_cpp as lib

    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / "model.gguf"
    _write_gguf(path, shape, kind)
    lib.llama_backend_init()
    silent = lib.llama_log_callback(lambda *_: None)
    lib.llama_log_set(silent, ctypes.c_void_p(0))
    model = lib.llama_model_load_from_file(bytes(path), lib.llama_model_default_params())
    if not model:
        raise RuntimeError("llama.cpp does not load the model")
    contexts: list[Any] = []
    states: dict[tuple[int, int], Any] = {}
    """The cache of a sequence, by its length and the number of sequences of its context: its prompt is computed once,
    and other contexts refuse it."""

    def context(cells: int, sequences: int, length: int) -> Any:
        for old in contexts:
            lib.llama_free(old)
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max = cells, sequences
        params.n_batch = max(length, 512)
        params.n_threads = params.n_threads_batch = threads
        contexts[:] = [lib.llama_init_from_model(model, params)]
        return contexts[0]

    def decode(own: Any, batch: Any) -> None:
        if lib.llama_decode(own, batch):
            raise RuntimeError("llama_decode failed")

    def call(cell: Cell) -> Callable[[], Any]:
        kept = (folder, silent)  # as long as the calls
        sequences, length = (1, cell.tokens) if cell.tokens else (cell.batch, cell.context)
        own = context(sequences * (-(-(length + 1) // 256) * 256), sequences, length)
        memory = lib.llama_get_memory(own)
        prompt = _batch(lib, [(0, at) for at in range(length)])
        if cell.tokens:

            def prefill() -> None:
                assert kept
                lib.llama_memory_clear(memory, False)
                decode(own, prompt)

            return prefill
        key = length, sequences
        if key not in states:
            decode(own, prompt)
            states[key] = (ctypes.c_uint8 * lib.llama_state_seq_get_size(own, 0))()
            lib.llama_state_seq_get_data(own, states[key], len(states[key]), 0)
            lib.llama_memory_clear(memory, False)
        state = states[key]
        for s in range(sequences):
            if not lib.llama_state_seq_set_data(own, state, len(state), s):
                raise RuntimeError("llama.cpp does not restore a sequence")
        one = _batch(lib, [(s, length) for s in range(sequences)], every=True)

        def step() -> None:
            decode(own, one)
            for s in range(sequences):
                lib.llama_memory_seq_rm(memory, s, length, -1)

        return step

    return _service(call)


def _batch(lib: Any, places: list[tuple[int, int]], every: bool = False) -> Any:
    """A batch of tokens at these (sequence, position); logits of the last one, or of all."""
    batch = lib.llama_batch_init(len(places), 0, 1)
    batch.n_tokens = len(places)
    for n, (sequence, position) in enumerate(places):
        batch.token[n], batch.pos[n] = n % 1000, position
        batch.n_seq_id[n], batch.seq_id[n][0] = 1, sequence
        batch.logits[n] = every or n == len(places) - 1
    return batch


def _write_gguf(path: Path, shape: Shape, kind: str) -> None:
    import gguf

    quantised = gguf.GGMLQuantizationType[kind.upper()]
    values = {"q4_0": 16, "q8_0": 32}[kind]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(shape.vocab)
    writer.add_context_length(1 << 14)
    writer.add_block_count(shape.layers)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.key_heads)
    writer.add_rope_dimension_count(shape.head)
    writer.add_layer_norm_rms_eps(1e-5)
    random, made = np.random.default_rng(0), dict[tuple[int, int], np.ndarray]()

    def matrix(name: str, rows: int, columns: int) -> None:
        if (rows, columns) not in made:
            blocks = random.integers(0, 256, (rows, columns // 32, 2 + values), np.uint8)
            blocks[..., :2] = np.frombuffer(np.float16(0.001).tobytes(), np.uint8)
            made[rows, columns] = blocks.reshape(rows, -1)
        writer.add_tensor(name, made[rows, columns], raw_dtype=quantised)

    keys = shape.key_heads * shape.head
    matrix("token_embd.weight", shape.vocab, shape.hidden)
    for n in range(shape.layers):
        block = f"blk.{n}"
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{block}.{name}.weight", np.ones(shape.hidden, np.float32))
        matrix(f"{block}.attn_q.weight", shape.hidden, shape.hidden)
        matrix(f"{block}.attn_k.weight", keys, shape.hidden)
        matrix(f"{block}.attn_v.weight", keys, shape.hidden)
        matrix(f"{block}.attn_output.weight", shape.hidden, shape.hidden)
        matrix(f"{block}.ffn_gate.weight", shape.inner, shape.hidden)
        matrix(f"{block}.ffn_up.weight", shape.inner, shape.hidden)
        matrix(f"{block}.ffn_down.weight", shape.hidden, shape.inner)
    writer.add_tensor("output_norm.weight", np.ones(shape.hidden, np.float32))
    matrix("output.weight", shape.vocab, shape.hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def openvino(shape: Shape, kind: str, threads: int) -> Service:
    """OpenVINO from a graph of its operators, as its tools export a decoder: int4 weights in groups with float16
    scales, keys and values as state. `kind` is the precision of inference (f32, bf16)."""
    import openvino as ov

    core = ov.Core()
    core.set_property("CPU", {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": kind})
    kept: list[np.ndarray] = []
    request = core.compile_model(openvino_model(shape, kept), "CPU").create_infer_request()

    def call(cell: Cell) -> Callable[[], Any]:
        ids = np.ones((cell.batch, cell.tokens or 1), np.int64)
        places = np.arange(cell.context, cell.context + ids.shape[1], dtype=np.float32)
        past = np.zeros((cell.batch, shape.key_heads, cell.context, shape.head), np.float32)

        def run() -> None:
            assert kept
            request.infer({"ids": ids, "positions": places})

        def fresh() -> None:
            request.reset_state()
            run()

        if cell.tokens:
            return fresh
        request.reset_state()
        for state in request.query_state():
            state.state = ov.Tensor(past)
        return run

    return _service(call)


def openvino_model(shape: Shape, kept: list[np.ndarray], *, exported: bool = False) -> Any:
    """Logits of the last token from `ids` (batch, tokens) and `positions` (tokens,). `kept` takes the memory of the
    weights, which the model reads. `exported`: logits of all tokens, with the inputs that optimum-intel gives a model,
    and caches that `beam_idx` orders, which its pipelines look for."""
    import openvino as ov
    from openvino import opset13 as ops
    from openvino.op.util import Variable, VariableInfo

    random = np.random.default_rng(0)
    sinks: list[Any] = []

    def number(*values: float, kind: Any = np.int64) -> Any:
        return ops.constant(np.array(values, kind))

    def linear(x: Any, rows: int, depth: int) -> Any:
        groups = depth // GROUP
        codes = random.integers(0, 256, rows * depth // 2, np.uint8)
        kept.append(codes)
        weight = ops.constant(ov.Tensor(codes, ov.Shape([rows, groups, GROUP]), ov.Type.i4))
        scale = np.full((rows, groups, 1), 0.002, np.float16)
        value = ops.multiply(ops.convert(weight, "f16"), ops.constant(scale))
        whole = ops.convert(ops.reshape(value, number(rows, depth), False), "f32")
        return ops.matmul(x, whole, False, True)

    def norm(x: Any) -> Any:
        square = ops.reduce_mean(ops.power(x, number(2, kind=np.float32)), number(-1), True)
        root = ops.sqrt(ops.add(square, number(1e-5, kind=np.float32)))
        by = ops.divide(number(1, kind=np.float32), root)
        return ops.multiply(
            ops.multiply(x, by), ops.constant(np.ones((1, 1, shape.hidden), np.float32))
        )

    def heads(x: Any, count: int) -> Any:
        split = ops.reshape(x, number(0, 0, count, shape.head), True)
        return ops.transpose(split, number(0, 2, 1, 3))

    def rotate(x: Any) -> Any:
        first, second = ops.split(x, ops.constant(3), 2).outputs()
        turned = ops.concat([ops.multiply(second, number(-1, kind=np.float32)), first], -1)
        return ops.add(ops.multiply(x, cos), ops.multiply(turned, sin))

    def cached(x: Any, name: str) -> Any:
        size = ov.PartialShape([-1, shape.key_heads, -1, shape.head])
        info = VariableInfo()
        info.data_shape, info.data_type, info.variable_id = size, ov.Type.f32, name
        variable = Variable(info)
        batch = ops.gather(ops.shape_of(ids), number(0), ops.constant(0))
        empty = ops.concat([batch, number(shape.key_heads, 0, shape.head)], 0)
        start = ops.broadcast(ops.constant(np.float32(0)), empty)
        past = ops.read_value(start, variable)
        if exported:
            past = ops.gather(past, beams, ops.constant(0))
        together = ops.concat([past, x], 2)
        sinks.append(ops.assign(together, variable))
        return together

    def repeated(x: Any) -> Any:
        every = shape.heads // shape.key_heads
        size = ops.shape_of(x)
        length = ops.gather(size, number(2), ops.constant(0))
        batch = ops.gather(size, number(0), ops.constant(0))
        wide = [batch, number(shape.key_heads, every), length, number(shape.head)]
        spread = ops.broadcast(ops.unsqueeze(x, number(2)), ops.concat(wide, 0), "BIDIRECTIONAL")
        return ops.reshape(spread, number(0, shape.heads, -1, shape.head), True)

    def entry(name: str, kind: Any, rank: int) -> Any:
        found = ops.parameter([-1] * rank, kind, name=name)
        found.output(0).set_names({name})
        return found

    half = np.arange(0, shape.head, 2, dtype=np.float32) / shape.head
    ids = entry("input_ids" if exported else "ids", ov.Type.i64, 2)
    if exported:
        mask, beams = entry("attention_mask", ov.Type.i64, 2), entry("beam_idx", ov.Type.i32, 1)
        inputs = [ids, mask, entry("position_ids", ov.Type.i64, 2), beams]
        places = ops.unsqueeze(ops.convert(inputs[2], "f32"), number(2))
        angles = ops.multiply(places, ops.constant(10000.0 ** -half[None, None]))
    else:
        inputs = [ids, entry("positions", ov.Type.f32, 1)]
        angles = ops.multiply(
            ops.unsqueeze(inputs[1], number(1)), ops.constant(10000.0 ** -half[None])
        )
    angles = ops.concat([angles, angles], -1)
    cos, sin = ops.cos(angles), ops.sin(angles)
    if exported:
        cos, sin = ops.unsqueeze(cos, number(1)), ops.unsqueeze(sin, number(1))
    table = random.standard_normal((shape.vocab, shape.hidden), np.float32).astype(np.float16)
    x = ops.gather(ops.convert(ops.constant(table), "f32"), ids, ops.constant(0))
    keys = shape.key_heads * shape.head
    for n in range(shape.layers):
        y = norm(x)
        query = rotate(heads(linear(y, shape.hidden, shape.hidden), shape.heads))
        key = cached(rotate(heads(linear(y, keys, shape.hidden), shape.key_heads)), f"key{n}")
        value = cached(heads(linear(y, keys, shape.hidden), shape.key_heads), f"value{n}")
        mask = _openvino_mask(ops, query, key, number)
        mixed = ops.scaled_dot_product_attention(query, repeated(key), repeated(value), mask)
        mixed = ops.reshape(ops.transpose(mixed, number(0, 2, 1, 3)), number(0, 0, -1), True)
        x = ops.add(x, linear(mixed, shape.hidden, shape.hidden))
        y = norm(x)
        gate = ops.swish(linear(y, shape.inner, shape.hidden))
        up = linear(y, shape.inner, shape.hidden)
        x = ops.add(x, linear(ops.multiply(gate, up), shape.hidden, shape.inner))
    last = x if exported else ops.gather(x, number(-1), ops.constant(1))
    logits = ops.result(linear(norm(last), shape.vocab, shape.hidden))
    logits.output(0).set_names({"logits"})
    return ov.Model([logits], sinks, inputs, "llama")


def _openvino_mask(ops: Any, query: Any, key: Any, number: Any) -> Any:
    """0 where a token sees a key, -inf where the key is later: (tokens, keys)."""
    tokens, length = (
        ops.squeeze(ops.gather(ops.shape_of(x), number(2), ops.constant(0)), number(0))
        for x in (query, key)
    )
    one, zero = ops.constant(np.int64(1)), ops.constant(np.int64(0))
    columns = ops.unsqueeze(ops.range(zero, length, one, "i64"), number(0))
    rows = ops.unsqueeze(ops.range(ops.subtract(length, tokens), length, one, "i64"), number(1))
    outside = ops.constant(np.float32(-np.inf))
    return ops.select(ops.greater(columns, rows), outside, ops.constant(np.float32(0)))


def _service(
    call: Callable[[Cell], Callable[[], Any]],
    kernels: Callable[[Kernels], Callable[[], Any]] | None = None,
) -> Service:
    def prepare(request: Any) -> Callable[[], Any]:
        if isinstance(request, Kernels):
            return kernels(request) if kernels else list
        return _held if request == MEMORY else call(request)

    return Service(prepare, lambda result: result if isinstance(result, (int, list)) else None)


def _held() -> int:
    """The most bytes of memory that this process has held."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
