"""Programs for the writer of ONNX files: sequences, attention, loops, and the models of `relaxpy.models`."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from relaxpy import nn
from relaxpy.ir.dim import dim_op
from relaxpy.models import bert, mobilenet, resnet
from relaxpy.models.decoder import Decoder, spec
from relaxpy.models.families import config_from
from relaxpy.nn import op
from tests.models.family_checkpoints import SIZES
from tests.onnx.written import F, Program, floats, ids, ints, of_module, program

# Recurrent networks


@program
def lstm() -> Program:
    net = nn.LSTM(3, 4, 2, bidirectional=True)
    return of_module(net, {"x": F(("l", "b", 3))}, [floats(5, 2, 3)], [floats(9, 1, 3)])


@program
def lstm_with_lengths() -> Program:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.cells = nn.LSTM(3, 5, batch_first=True)

        def forward(self, x: Any, lengths: Any) -> Any:
            found, (h, c) = self.cells(x, None, lengths)
            return found, h, c

    return of_module(
        Net(), {"x": F(("b", "l", 3)), "lengths": ints("b")},
        [floats(2, 5, 3), np.array([5, 2])], [floats(3, 4, 3), np.array([1, 4, 3])],
    )  # fmt: skip


@program
def gru() -> Program:
    return of_module(nn.GRU(3, 4), {"x": F(("l", "b", 3))}, [floats(5, 2, 3)], [floats(2, 3, 3)])


@program
def gru_of_both_directions() -> Program:
    net = nn.GRU(3, 4, 2, batch_first=True, bidirectional=True)
    return of_module(net, {"x": F(("b", "l", 3))}, [floats(2, 7, 3)], [floats(1, 1, 3)])


@program
def rnn() -> Program:
    net = nn.RNN(3, 4, 2, nonlinearity="relu", bidirectional=True)
    return of_module(net, {"x": F(("l", "b", 3))}, [floats(5, 2, 3)], [floats(3, 1, 3)])


@program
def cells() -> Program:
    class Step(nn.Module):
        def __init__(self) -> None:
            self.lstm, self.gru, self.rnn = nn.LSTMCell(3, 4), nn.GRUCell(4, 5), nn.RNNCell(5, 2)

        def forward(self, x: Any, h: Any, c: Any, g: Any, r: Any) -> Any:
            h, c = self.lstm(x, (h, c))
            g = self.gru(h, g)
            return h, c, g, self.rnn(g, r)

    spec = {
        "x": F(("b", 3)),
        "h": F(("b", 4)),
        "c": F(("b", 4)),
        "g": F(("b", 5)),
        "r": F(("b", 2)),
    }
    calls = [[floats(b, n, scale=n / 4) for n in (3, 4, 4, 5, 2)] for b in (1, 3)]
    return of_module(Step(), spec, *calls)


@program
def cell_in_a_loop() -> Program:
    """A cell for as many steps as an argument says: each reads what the last one gave."""

    class Generated(nn.Module):
        def __init__(self) -> None:
            self.cell, self.out = nn.GRUCell(3, 6), nn.Linear(6, 3)

        def forward(self, x: Any, steps: Any) -> Any:
            def body(i: Any, x: Any, h: Any, rows: Any) -> Any:
                h = self.cell(x, h)
                x = op.tanh(self.out(h))
                return i + 1, x, h, op.concat([rows, op.expand_dims(x, (1,))], axis=1)

            first = op.zeros((x.shape[0], 6), "float32")
            start = (0, x, first, op.expand_dims(x, (1,)))
            return op.while_loop(lambda i, *_: dim_op("lt", i, steps), body, start)[1:]

    spec = {"x": F(("b", 3)), "steps": nn.spec.Int()}
    return of_module(Generated(), spec, [floats(2, 3), 4], [floats(1, 3), 0], [floats(3, 3), 1])


@program
def sequence_to_sequence() -> Program:
    """An encoder, and a decoder that attends to it."""

    class Seq2Seq(nn.Module):
        def __init__(self) -> None:
            self.source, self.target = nn.Embedding(13, 6), nn.Embedding(11, 6)
            self.encoder, self.decoder = (
                nn.GRU(6, 8, batch_first=True),
                nn.GRU(6, 8, batch_first=True),
            )
            self.head = nn.Linear(16, 11)

        def forward(self, source: Any, target: Any) -> Any:
            memory, state = self.encoder(self.source(source))
            found, _ = self.decoder(self.target(target), state)
            scores = op.matmul(found, op.permute_dims(memory, (0, 2, 1)))
            context = op.matmul(op.nn.softmax(scores), memory)
            return op.nn.log_softmax(self.head(op.concat([found, context], axis=2)))

    spec = {"source": ints("b", "s"), "target": ints("b", "t")}
    calls = [[ids(b, s, below=13), ids(b, t, below=11)] for b, s, t in ((2, 5, 3), (1, 2, 7))]
    return of_module(Seq2Seq(), spec, *calls)


@program
def state_space() -> Program:
    """A linear recurrence with gates, step by step, as Mamba's."""

    class StateSpace(nn.Module):
        def __init__(self) -> None:
            self.project, self.out = nn.Linear(4, 12), nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            batch, length, width = x.shape
            u, step, gate = op.split(self.project(x), 3, axis=2)
            decay = op.exp(-op.nn.softplus(step))

            def row(y: Any, i: Any) -> Any:
                return op.squeeze(
                    op.strided_slice(y, (1,), (i,), (i + 1,), assume_inbound=True), (1,)
                )

            def body(i: Any, h: Any, rows: Any) -> Any:
                h = h * row(decay, i) + row(u, i)
                return i + 1, h, op.concat([rows, op.expand_dims(h, (1,))], axis=1)

            start = (0, op.zeros((batch, width), "float32"), op.zeros((batch, 1, width), "float32"))
            _, last, rows = op.while_loop(lambda i, *_: dim_op("lt", i, length), body, start)
            found = op.match_cast(
                op.strided_slice(rows, (1,), (1,), (length + 1,)), (batch, length, width)
            )
            return self.out(found * op.nn.silu(gate)), last

    return of_module(
        StateSpace(), {"x": F(("b", "l", 4))}, [floats(2, 5, 4)], [floats(1, 1, 4)], unchecked="match_cast"
    )  # fmt: skip


@program
def linear_recurrence() -> Program:
    """The same recurrence in one go: by logarithms of products."""

    class Recurrence(nn.Module):
        def __init__(self) -> None:
            self.project = nn.Linear(5, 10)

        def forward(self, x: Any) -> Any:
            u, step = op.split(self.project(x), 2, axis=2)
            total = op.cumsum(-op.nn.softplus(step), axis=1)
            return op.cumsum(u * op.exp(-total), axis=1) * op.exp(total), op.cummax(u, axis=1)

    return of_module(Recurrence(), {"x": F(("b", "l", 5))}, [floats(2, 6, 5)], [floats(1, 1, 5)])


# Attention


@program
def multihead_attention() -> Program:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True, kdim=6, vdim=5)

        def forward(self, q: Any, k: Any, v: Any, padding: Any) -> Any:
            return self.attention(q, k, v, key_padding_mask=padding)

    spec = {
        "q": F(("b", "l", 8)),
        "k": F(("b", "s", 6)),
        "v": F(("b", "s", 5)),
        "padding": F(("b", "s"), "bool"),
    }
    calls: list[Any] = []
    for b, l, s in ((2, 3, 5), (1, 4, 2)):
        padding = np.arange(s)[None] > np.array([[s - 1], [1]])[:b]
        calls.append([floats(b, l, 8), floats(b, s, 6), floats(b, s, 5), padding])
    return of_module(Net(), spec, *calls)


@program
def encoder_layer() -> Program:
    net = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
    return of_module(net, {"src": F(("b", "l", 8))}, [floats(2, 5, 8)], [floats(1, 3, 8)])


@program
def encoder() -> Program:
    layer = nn.TransformerEncoderLayer(
        8, 4, 12, activation="gelu", batch_first=True, norm_first=True
    )
    net = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8))
    spec = {"src": F(("b", "l", 8)), "mask": F(("l", "l"))}
    calls = [
        [floats(b, l, 8), np.triu(np.full((l, l), -np.inf, np.float32), 1)]
        for b, l in ((2, 5), (1, 3))
    ]
    return of_module(net, spec, *calls)


@program
def decoder_layer() -> Program:
    net = nn.TransformerDecoderLayer(8, 2, 12, batch_first=True)
    return of_module(
        net, {"tgt": F(("b", "l", 8)), "memory": F(("b", "s", 8))},
        [floats(2, 5, 8), floats(2, 4, 8)], [floats(1, 2, 8), floats(1, 7, 8)],
    )  # fmt: skip


@program
def translator() -> Program:
    class Translator(nn.Module):
        def __init__(self) -> None:
            own = {"batch_first": True, "dim_feedforward": 12}
            self.words = nn.Embedding(17, 8)
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, **own), 1)
            self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, **own), 2)
            self.head = nn.Linear(8, 17)

        def forward(self, source: Any, target: Any) -> Any:
            memory = self.encoder(self.words(source))
            found = self.decoder(self.words(target), memory, tgt_is_causal=True)
            return self.head(found)

    spec = {"source": ints("b", "s"), "target": ints("b", "t")}
    calls = [[ids(b, s, below=17), ids(b, t, below=17)] for b, s, t in ((2, 5, 3), (1, 2, 6))]
    return of_module(Translator(), spec, *calls)


class VisionTransformer(nn.Module):
    """Patches, a token for the class, an encoder."""

    def __init__(self, width: int = 8, classes: int = 5) -> None:
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.token = nn.Parameter((1, 1, width), "float32")
        self.positions = nn.Parameter((1, 10, width), "float32")
        layer = nn.TransformerEncoderLayer(
            width, 2, 12, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, image: Any) -> Any:
        batch = image.shape[0]
        x = op.permute_dims(op.reshape(self.patches(image), (batch, -1, 9)), (0, 2, 1))
        first = op.broadcast_to(self.token, (batch, 1, x.shape[2]))
        x = self.norm(self.encoder(op.concat([first, x], axis=1) + self.positions))
        return self.head(op.squeeze(op.strided_slice(x, (1,), (0,), (1,)), (1,)))


@program
def vision_transformer() -> Program:
    return of_module(
        VisionTransformer(), {"image": F(("b", 3, 12, 12))}, [floats(1, 3, 12, 12)], [floats(3, 3, 12, 12)]
    )  # fmt: skip


@program
def clip() -> Program:
    class Clip(nn.Module):
        def __init__(self) -> None:
            self.image = VisionTransformer(8, 6)
            self.words, self.positions = nn.Embedding(23, 8), nn.Parameter((9, 8), "float32")
            self.text = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
            self.project = nn.Linear(8, 6, bias=False)
            self.scale = nn.Parameter((), "float32")

        def forward(self, image: Any, tokens: Any) -> Any:
            n, length = tokens.shape
            own = op.match_cast(
                op.strided_slice(self.positions, (0,), (0,), (length,)), (length, 8)
            )
            text = self.text(self.words(tokens) + own, is_causal=True)
            end = op.argmax(tokens, axis=1)
            at = (op.arange(0, n, dtype="int64"), end)
            pair = [self.image(image), self.project(op.index_tensor(text, at))]
            a, b = (x / op.sqrt(op.sum(x * x, axis=1, keepdims=True)) for x in pair)
            return op.matmul(a, op.permute_dims(b, (1, 0))) * op.exp(self.scale)

    spec = {"image": F(("b", 3, 12, 12)), "tokens": ints("n", "l")}
    calls = [[floats(b, 3, 12, 12), ids(n, l, below=23)] for b, n, l in ((1, 2, 5), (2, 3, 9))]
    return of_module(Clip(), spec, *calls, unchecked="min(l, 9)")


# The models of `relaxpy.models`


def _bert(method: str) -> Program:
    calls: list[Any] = []
    for batch, length in ((1, 4), (3, 9)):
        mask = (np.arange(length) < np.array([[length], [2], [5]])[:batch]).astype("int64")
        calls.append([ids(batch, length, below=101), mask])
    return of_module(
        bert.BertEncoder(bert.TINY),
        bert.SPEC[method],
        *calls,
        method=method,
        unchecked="min(seq, 40)",
    )


@program
def bert_encoder() -> Program:
    return _bert("encode")


@program
def sentence_embedding() -> Program:
    return _bert("embed")


@program
def resnet_basic() -> Program:
    return of_module(
        resnet.ResNet(resnet.TINY), resnet.spec(resnet.TINY)["classify"], [floats(1, 3, 32, 32)], [floats(2, 3, 17, 40)],
        method="classify",
    )  # fmt: skip


@program
def resnet_bottleneck() -> Program:
    config = dataclasses.replace(
        resnet.TINY, layer_type="bottleneck", hidden_sizes=(16, 32), downsample_in_first_stage=True
    )
    return of_module(
        resnet.ResNet(config), resnet.spec(config)["classify"], [floats(1, 3, 33, 9)], [floats(2, 3, 16, 16)],
        method="classify",
    )  # fmt: skip


@program
def mobilenet_v3() -> Program:
    return of_module(
        mobilenet.MobileNet(mobilenet.TINY), mobilenet.spec()["classify"], [floats(1, 3, 32, 32)], [floats(2, 3, 17, 40)],
        method="classify",
    )  # fmt: skip


def _decoder(
    family: str, method: str, dtype: str = "float32", tolerance: float = 1e-4, **more: Any
) -> Program:
    """A tiny decoder: its prompt (`logits`, `prefill`), or a step with a cache of tensors (`decode`)."""
    fields = {**SIZES, "num_hidden_layers": 2, "model_type": family, **more}
    config = config_from(fields, dtype)
    calls: list[Any] = []
    for batch, length in ((1, 3), (2, 6)):
        given: list[Any] = [ids(batch, 1 if method == "decode" else length, below=101)]
        if method == "decode":
            one = (batch, length, config.num_key_value_heads, config.head_dim)
            given.append(
                tuple(
                    tuple(
                        floats(*one, scale=i + k / 2 + 0.5).astype(np.dtype(dtype))
                        for k in range(2)
                    )
                    for i in range(2)
                )
            )
        calls.append(given)
    return of_module(
        Decoder(config), spec(config)[method], *calls, method=method, tolerance=tolerance
    )


@program
def llama() -> Program:
    return _decoder("llama", "logits", attention_bias=True, tie_word_embeddings=True)


@program
def llama_prompt() -> Program:
    return _decoder("llama", "prefill")


@program
def llama_step() -> Program:
    return _decoder("llama", "decode")


@program
def llama_step_float16() -> Program:
    return _decoder("llama", "decode", "float16", tolerance=0.1)


@program
def mistral_step() -> Program:
    return _decoder("mistral", "decode", sliding_window=5)


@program
def qwen2() -> Program:
    return _decoder(
        "qwen2", "logits", use_sliding_window=True, sliding_window=4, max_window_layers=1
    )


@program
def qwen3_step() -> Program:
    return _decoder("qwen3", "decode")


@program
def qwen3_experts() -> Program:
    return _decoder(
        "qwen3_moe", "logits", num_experts=6, num_experts_per_tok=3, moe_intermediate_size=20, norm_topk_prob=True
    )  # fmt: skip


@program
def gemma_step() -> Program:
    return _decoder("gemma", "decode")


@program
def gemma3() -> Program:
    far = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    }
    kinds = ["sliding_attention", "full_attention"]
    return _decoder(
        "gemma3_text",
        "logits",
        sliding_window=5,
        rope_parameters=far,
        query_pre_attn_scalar=30,
        layer_types=kinds,
    )


@program
def gpt2() -> Program:
    return _decoder("gpt2", "logits", n_embd=32, n_inner=48, n_layer=2, n_head=4, n_positions=128)


@program
def gpt2_step() -> Program:
    return _decoder("gpt2", "decode", n_embd=32, n_inner=48, n_layer=2, n_head=4, n_positions=128)


@program
def gpt_neox() -> Program:
    return _decoder("gpt_neox", "logits", num_key_value_heads=None, head_dim=None)


@program
def phi3_step() -> Program:
    return _decoder("phi3", "decode", sliding_window=11)
