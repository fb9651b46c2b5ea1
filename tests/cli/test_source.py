"""Reading programs: what is none is told as what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

import relaxpy
from relaxpy.cli.source import is_executable, read_module, read_text
from relaxpy.errors import UsageError

PROGRAM = """
@R.function
def main(x: R.Tensor(("n",), dtype="float32")):
    y = R.exp(x)
    return y
"""


def test_a_compiled_program_is_told_as_such(tmp_path: Path) -> None:
    file = tmp_path / "program.rxe"
    relaxpy.build(relaxpy.parse(PROGRAM)).save(file)
    assert is_executable(str(file))
    with pytest.raises(UsageError, match="is an executable") as caught:
        read_module(str(file))
    assert caught.value.code == "not-a-script"
    assert "relaxpy run" in (caught.value.help or "")


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\0\1ELF", "NUL bytes"), (b"\xff\xfeA", r"byte 0: invalid start byte")],
)
def test_other_binary_files(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "program.py"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read_module(str(file))


def test_lines_end_as_in_files(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_bytes(PROGRAM.replace("\n", "\r\n").encode())
    assert read_text(str(file)) == PROGRAM
    assert list(read_module(str(file))) == ["main"]
