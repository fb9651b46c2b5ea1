"""The layers of the Transformer (Vaswani et al., 2017), with the parameters of torch's.

Masks are boolean, true for what is left out, or are added to the scores, as in `MultiheadAttention`. `dropout` is
accepted: nothing is dropped at inference.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import ClassVar

from relaxpy.nn import op
from relaxpy.nn.attention import MultiheadAttention
from relaxpy.nn.construction import mistake
from relaxpy.nn.containers import ModuleList
from relaxpy.nn.describe import options
from relaxpy.nn.linear import Linear
from relaxpy.nn.module import Module
from relaxpy.nn.norm import LayerNorm
from relaxpy.nn.tensor import Tensor

Activation = str | Callable[[Tensor], Tensor]
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": op.nn.relu, "gelu": op.nn.gelu}


class _Layer(Module):
    """Attention of the sequence to itself and a feed-forward network, the parts that both kinds of layers have."""

    attentions: ClassVar[tuple[str, ...]] = ("self_attn",)
    """The names of the attentions; each has a layer norm, and so has the feed-forward network."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        dtype: str = "float32",
    ) -> None:
        if isinstance(activation, str) and activation not in _ACTIVATIONS:
            raise mistake(
                "bad-spec", f'activation must be "relu", "gelu" or a function, got {activation!r}'
            )
        self.d_model, self.nhead, self.norm_first = d_model, nhead, norm_first
        self.activation = activation
        for name in self.attentions:
            attention = MultiheadAttention(
                d_model, nhead, dropout, bias, batch_first=batch_first, dtype=dtype
            )
            self.__setattr__(name, attention)
        self.linear1 = Linear(d_model, dim_feedforward, bias, dtype)
        self.linear2 = Linear(dim_feedforward, d_model, bias, dtype)
        for i in range(len(self.attentions) + 1):
            norm = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
            self.__setattr__(f"norm{i + 1}", norm)

    def extra_repr(self) -> str:
        return options(d_model=self.d_model, nhead=self.nhead, norm_first=self.norm_first)

    def _around(self, norm: LayerNorm, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        """The input and a part of it, with the norm before the part or after the sum."""
        return x + part(norm(x)) if self.norm_first else norm(x + part(x))

    def _attended(
        self, attention: MultiheadAttention, x: Tensor, memory: Tensor, padding: Tensor | None, mask: Tensor | None,
        is_causal: bool,
    ) -> Tensor:  # fmt: skip
        """Attention of x to `memory`. `is_causal` says what the mask is, or stands in place of one."""
        causal = is_causal and mask is None
        return attention(x, memory, memory, padding, False, mask, is_causal=causal)[0]

    def _feed_forward(self, x: Tensor) -> Tensor:
        activation = self.activation
        apply = _ACTIVATIONS[activation] if isinstance(activation, str) else activation
        return self.linear2(apply(self.linear1(x)))


class TransformerEncoderLayer(_Layer):
    """Attention of the sequence to itself, and a feed-forward network, each with a residual and a layer norm."""

    self_attn: MultiheadAttention
    norm1: LayerNorm
    norm2: LayerNorm

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """(length, batch, d_model), with `batch_first` (batch, length, d_model), or (length, d_model): a tensor of this
        shape. `src_mask` (length, length), `src_key_padding_mask` (batch, length)."""

        def attended(x: Tensor) -> Tensor:
            return self._attended(self.self_attn, x, x, src_key_padding_mask, src_mask, is_causal)

        x = self._around(self.norm1, src, attended)
        return self._around(self.norm2, x, self._feed_forward)


class TransformerDecoderLayer(_Layer):
    """As an encoder's layer, with attention to the encoder's result between the two parts."""

    attentions = ("self_attn", "multihead_attn")
    self_attn: MultiheadAttention
    multihead_attn: MultiheadAttention
    norm1: LayerNorm
    norm2: LayerNorm
    norm3: LayerNorm

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """`tgt` like the input of an encoder's layer, `memory` the encoder's result: a tensor like `tgt`."""

        def attended(x: Tensor) -> Tensor:
            return self._attended(
                self.self_attn, x, x, tgt_key_padding_mask, tgt_mask, tgt_is_causal
            )

        def crossed(x: Tensor) -> Tensor:
            return self._attended(
                self.multihead_attn,
                x,
                memory,
                memory_key_padding_mask,
                memory_mask,
                memory_is_causal,
            )

        x = self._around(self.norm1, tgt, attended)
        x = self._around(self.norm2, x, crossed)
        return self._around(self.norm3, x, self._feed_forward)


class TransformerEncoder(Module):
    """Layers like `encoder_layer`, one after the other, each with weights of its own, and a norm after them."""

    def __init__(
        self,
        encoder_layer: TransformerEncoderLayer,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        del enable_nested_tensor, mask_check  # of torch's fast path
        self.layers = ModuleList(deepcopy(encoder_layer) for _ in range(num_layers))
        self.norm = norm

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """As of a layer."""
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, is_causal)
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(Module):
    """Layers like `decoder_layer`, one after the other, each with weights of its own, and a norm after them."""

    def __init__(
        self, decoder_layer: TransformerDecoderLayer, num_layers: int, norm: Module | None = None
    ) -> None:
        self.layers = ModuleList(deepcopy(decoder_layer) for _ in range(num_layers))
        self.norm = norm

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """As of a layer."""
        for layer in self.layers:
            tgt = layer(
                tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask,
                tgt_is_causal, memory_is_causal,
            )  # fmt: skip
        return tgt if self.norm is None else self.norm(tgt)
