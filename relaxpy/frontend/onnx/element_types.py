"""ONNX's element types: numbers and names."""

from __future__ import annotations

NAMES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16",
    17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz", 21: "uint4", 22: "int4",
    23: "float4_e2m1fn", 24: "float8_e8m0fnu", 25: "uint2", 26: "int2",
}  # fmt: skip
"""ONNX's number of an element type → its name."""

NUMBERS = {name: number for number, name in NAMES.items()}

PACKED = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2}
"""Integers that share bytes, the first one in the lowest bits → their bits."""

STORED = ("int4", "uint4")
"""Those that are stored so here, too; others are in bytes of their own."""
