"""Declarations of a model's functions for TypeScript."""

from __future__ import annotations

import relaxpy
from relaxpy.web.typescript import declarations

TEXT = """
@I.ir_module
class Module:
    @R.function
    def first(x: R.Tensor(("n", 4), "float32"), s: R.Shape(["n", "m"]), k: R.Prim("int64"), scale: R.Prim("float32")):
        return (x, (s, R.shape_of(x)))

    @R.function
    def default(new: R.Tensor((), "int64"), any: R.Tensor, t: R.Tuple(R.Tensor((2,), "bool"), R.Object)):
        return new

    @R.function
    def upload(x: R.Tensor((1,), "float32")):
        return x

    @R.function
    def none():
        return R.prim_value(True)

    @R.function(private=True)
    def hidden(x: R.Tensor((1,), "float32")):
        return x
"""


def test_the_text() -> None:
    """Each kind of annotation has a type, as an argument and as a result; words of TypeScript are no names; private
    functions and names of the machine's methods are left out."""
    exe = relaxpy.build(relaxpy.parse(TEXT), "wasm")
    lines = declarations(exe, frozenset({"upload"})).splitlines()
    found = [line.strip() for line in lines if "Promise" in line]
    first = 'Promise<[Tensor<"float32">, [Shape, Shape]]>'
    given = 'TensorLike<"bool">, Argument'
    assert found == [
        f'first(x: TensorLike<"float32">, s: Shape | readonly Integer[], k: Integer, scale: number): {first};',
        f'first(given: {{ "x": TensorLike<"float32">; "s": Shape | readonly Integer[]; "k": Integer; "scale": number }}): {first};',
        f'default(new_: TensorLike<"int64"> | Integer | boolean, any: TensorLike, t: readonly [{given}]): Promise<Tensor<"int64">>;',
        f'default(given: {{ "new": TensorLike<"int64"> | Integer | boolean; "any": TensorLike; "t": readonly [{given}] }}): Promise<Tensor<"int64">>;',
        "none(): Promise<boolean>;",
    ]
    assert "first(x: R.Tensor((n, 4)" in "\n".join(lines)
