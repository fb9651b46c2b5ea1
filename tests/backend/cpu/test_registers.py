"""Vacated registers: the sums of a product stay in registers, whatever is computed after it."""

from __future__ import annotations

import pytest

from relaxpy.backend.cpu.registers import vacate, with_vacant
from relaxpy.backend.cpu.target import CpuTarget
from relaxpy.tir.programs.loops import Program
from relaxpy.tir.tvm import tirx


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("llvm -mcpu=x86-64", "~{xmm15}"),
        ("llvm -mcpu=znver4", "~{xmm31}"),
        ("llvm -mcpu=neoverse-n1 -mtriple=aarch64-unknown-linux-gnu", "~{v31}"),
    ],
)
def test_all_registers_are_said_to_change(text: str, last: str) -> None:
    target = CpuTarget.read(text)
    p = Program()
    vacate(p, target)
    body = with_vacant(p.body(), target)
    assert isinstance(body, tirx.AttrStmt)
    assert f'{last}"()' in str(body.value.value)


def test_other_processors_have_no_such_instruction() -> None:
    target = CpuTarget.read("llvm -mcpu=generic-rv64 -mtriple=riscv64-unknown-linux-gnu")
    p = Program()
    vacate(p, target)
    body = p.body()
    assert with_vacant(body, target) is body
