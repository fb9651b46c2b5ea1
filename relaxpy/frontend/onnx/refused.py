"""Operators of ONNX that are not taken: the beginning of a name → the text that says how to do without.

docs/from_onnx.md shows this table (tests/docs/test_not_taken.py writes it there).
"""

from __future__ import annotations

_STRINGS = "texts: prepare them in Python, and pass numbers"
_TRAINING = "a step of training: import the model for inference"

REFUSED: dict[str, str] = {
    "String": _STRINGS,
    "RegexFullMatch": _STRINGS,
    "TfIdfVectorizer": _STRINGS,
    "ImageDecoder": "a picture's file: read it in Python (Pillow, cv2), and pass its pixels",
    "ai.onnx.preview.training.": _TRAINING,
    "ai.onnx.training.": _TRAINING,
    "ai.onnx.ml.": "classical machine learning: run it with ONNX Runtime, or as a function of numpy",
}
"""The most special name first, where one begins another."""
