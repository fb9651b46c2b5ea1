"""What is not taken of torch, and what to write: the beginning of an operator's name → what to write instead.

docs/from_torch.md shows this table (tests/docs/test_not_taken.py writes it there).
"""

from __future__ import annotations

_COMPLEX = "complex numbers: keep the real and the imaginary part in two tensors"
_FACTORS = "a factorisation or a solver: compute it outside, and pass its results"
_RANDOM = "random numbers: draw them outside, and pass them as an argument"
_FROZEN = (
    "torch.export froze the length of a recurrent layer: pass the module itself to relaxpy.from_torch, which keeps "
    "it"
)
_PACKED = "a packed sequence: pass padded sequences, and mask the results"

REFUSED: dict[str, str] = {
    "aten._fft_": _COMPLEX,
    "aten.polar": _COMPLEX,
    "aten.complex": _COMPLEX,
    "aten.view_as_complex": _COMPLEX,
    "aten.view_as_real": _COMPLEX,
    "aten._conj": _COMPLEX,
    "aten.linalg_": _FACTORS,
    "aten._linalg_": _FACTORS,
    "aten.cholesky": _FACTORS,
    "aten.triangular_solve": _FACTORS,
    "aten.geqrf": _FACTORS,
    "aten.ormqr": _FACTORS,
    "aten.poisson": _RANDOM,
    "aten.binomial": _RANDOM,
    "aten._standard_gamma": _RANDOM,
    "aten._sample_dirichlet": _RANDOM,
    "aten.cauchy": _RANDOM,
    "aten.geometric": _RANDOM,
    "aten.log_normal": _RANDOM,
    "aten.fractional_max_pool": _RANDOM,
    "aten.lstm.input": _FROZEN,
    "aten.gru.input": _FROZEN,
    "aten.rnn_tanh.input": _FROZEN,
    "aten.rnn_relu.input": _FROZEN,
    "aten.lstm.data": _PACKED,
    "aten.gru.data": _PACKED,
    "aten.rnn_tanh.data": _PACKED,
    "aten.rnn_relu.data": _PACKED,
    "aten._pack_padded_sequence": _PACKED,
    "aten._to_sparse": "sparse tensors: write the product with dense ones, or gather and scatter",
    "aten._sparse": "sparse tensors: write the product with dense ones, or gather and scatter",
    "aten.sparse": "sparse tensors: write the product with dense ones, or gather and scatter",
    "higher_order.auto_functionalized": "your own operator that writes to its arguments: use torch's operators",
    "higher_order.invoke_quant": "a region of InvokeQuant: call its function itself",
    "higher_order.while_loop_stack_output": "torch.while_loop for the last values, or scan for those of each step",
    "higher_order.flex_attention": "torch.nn.functional.scaled_dot_product_attention with a mask",
    "higher_order.triton_kernel": "a Triton kernel: write it with torch's operators, or as an @T.prim_func",
    "torchvision.": "an operator of torchvision: write it with torch's operators (NMS and RoI align are R.vision)",
    "quantized.": "torch's quantised operators: import the float model, and quantise it with relaxpy quantize",
}
"""The most special name first, where one begins another."""
