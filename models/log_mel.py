"""Log-mel features of sound, as Whisper reads them, as a program for any number of samples.

The short-time Fourier transform of 400 samples every 160 is a product of matrices. Sines and cosines of 400 samples
have four symmetries: n and 400 - n have equal cosines and opposite sines, and so have n and 200 - n but for the sign of
even frequencies. So frames are folded four times, to 101 numbers a symmetry, before they are multiplied: a quarter of
the products. Sums are of float64, in which the quietest bins of a loud frame are exact, too: torch's transform in
float32, which transformers takes where torch is installed, is 6e-5 off in speech.

    samples (n,) float32  →  fold  →  product  →  power  →  product with the mel filters  →  log10    (frames, mels)
"""

from __future__ import annotations

import ast
from typing import Any

import numpy as np

from relaxpy import nn
from relaxpy.ir.module import TensorProgram
from relaxpy.nn import op

RATE = 16_000
"""Samples a second."""
HOP = 160
"""Samples from one frame to the next: a hundred frames are a second."""
WINDOW = 400
"""Samples of a frame."""
FOLDED = WINDOW // 4 + 1
FLOOR = 1e-10
"""Powers below it count as it."""


_FOLD = """
@T.prim_func(private=True)
def fold(
    x: T.Buffer(("samples",), "float32"),
    window: T.Buffer((201,), "float64"),
    y: T.Buffer((4, "frames", 101), "float64"),
):
    samples, frames = T.int64(), T.int64()
    for f, t, n in T.grid(4, frames, 101):
        with T.sblock("fold"):
            vf, vt, vn = T.axis.remap("SSS", [f, t, n])
            y[vf, vt, vn] = T.Select(
                vf < 2,
                window[vn]
                * (T.Cast("float64", x[vt * 160 + vn]) + T.Cast("float64", x[vt * 160 + 400 - vn]))
                + T.Select(vf == 0, T.float64(1), T.float64(-1))
                * window[200 - vn]
                * (T.Cast("float64", x[vt * 160 + 200 - vn]) + T.Cast("float64", x[vt * 160 + 200 + vn])),
                window[vn]
                * (T.Cast("float64", x[vt * 160 + vn]) - T.Cast("float64", x[vt * 160 + 400 - vn]))
                + T.Select(vf == 3, T.float64(1), T.float64(-1))
                * window[200 - vn]
                * (T.Cast("float64", x[vt * 160 + 200 - vn]) - T.Cast("float64", x[vt * 160 + 200 + vn])),
            )
"""
"""Frames times the window, folded at its middle and at its quarters: sums for cosines (0 and 1) and differences for
sines (2 and 3), of even (0 and 2) and odd (1 and 3) frequencies."""
_POWER = """
@T.prim_func(private=True)
def power(z: T.Buffer((4, "frames", 101), "float64"), y: T.Buffer(("frames", 202), "float64")):
    frames = T.int64()
    for t, f, n in T.grid(frames, 2, 101):
        with T.sblock("power"):
            vt, vf, vn = T.axis.remap("SSS", [t, f, n])
            y[vt, vf * 101 + vn] = z[vf, vt, vn] * z[vf, vt, vn] + z[vf + 2, vt, vn] * z[vf + 2, vt, vn]
"""
"""The squared magnitudes of even frequencies, then of odd ones."""


def _program(source: str) -> TensorProgram:
    from relaxpy.tir.parse import parse_prim_func  # loads TVM

    node: Any = ast.parse(source).body[0]
    return parse_prim_func(node, source, f"<{node.name}>", {})


class LogMel(nn.Module):
    """Samples to the decimal logarithms of the powers of mel bands."""

    def __init__(self, mels: int) -> None:
        self.window = nn.Parameter((WINDOW // 2 + 1,), "float64")
        self.basis = nn.Parameter((4, FOLDED, FOLDED), "float64")
        self.filters = nn.Parameter((2 * FOLDED, mels), "float64")

    def log_mel(self, x: nn.Tensor) -> nn.Tensor:
        """(frames * 160 + 320,) float32 → (frames, mels) float32. Frame t is that of samples 160 t to 160 t + 400."""
        frames = x.shape[0] // HOP - 2
        folded = op.call_tir(
            _program(_FOLD),
            (x, self.window),
            nn.spec.Tensor((4, frames, FOLDED), "float64"),
            name="fold",
        )
        spectrum = op.matmul(folded, self.basis)
        powers = op.call_tir(
            _program(_POWER),
            (spectrum,),
            nn.spec.Tensor((frames, 2 * FOLDED), "float64"),
            name="power",
        )
        mel = op.astype(op.matmul(powers, self.filters), "float32")
        return op.log10(op.maximum(mel, FLOOR))


SPEC = {"log_mel": {"x": nn.spec.Tensor(("samples",))}}


def weights(mels: int) -> dict[str, np.ndarray]:
    """The parameters of `LogMel`."""
    n, even, odd = np.arange(FOLDED), np.arange(0, 201, 2), np.arange(1, 200, 2)
    basis = np.zeros((4, FOLDED, FOLDED))
    for k, wave, frequencies in (
        (0, np.cos, even),
        (1, np.cos, odd),
        (2, np.sin, even),
        (3, np.sin, odd),
    ):
        basis[k, :, : len(frequencies)] = wave(2 * np.pi / WINDOW * np.outer(n, frequencies))
    # What is folded onto itself was added twice: the middle of a frame, and its quarters.
    basis[:, 0] /= 2
    basis[(0, 3), -1] /= 2
    basis[(1, 2), -1] = 0
    bank = mel_filters(mels)
    filters = np.zeros((2 * FOLDED, mels))
    filters[:FOLDED], filters[FOLDED:-1] = bank[0::2], bank[1::2]
    window = np.sin(np.pi / WINDOW * np.arange(WINDOW // 2 + 1)) ** 2
    return {"window": window, "basis": basis, "filters": filters}


def mel_filters(
    mels: int, rate: int = RATE, most: float = 8000.0, bins: int = WINDOW // 2 + 1
) -> np.ndarray:
    """Triangles (bins, mels) that are even on Slaney's mel scale from 0 to `most` hertz, each of area 1 (Slaney,
    Auditory Toolbox, 1998): a mel is 200/3 Hz up to 1000 Hz, and from there 27 are a factor of 6.4."""
    step = 200 / 3
    log_step = np.log(6.4) / 27
    top = 1000 / step + np.log(most / 1000) / log_step
    marks = np.linspace(0, top, mels + 2)
    edges = np.where(marks < 15, marks * step, 1000 * np.exp(log_step * (marks - 15)))
    frequencies = np.linspace(0, rate / 2, bins)[:, None]
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    rising = (frequencies - low) / (middle - low)
    falling = (high - frequencies) / (high - middle)
    return np.maximum(0, np.minimum(rising, falling)) * (2 / (high - low))
