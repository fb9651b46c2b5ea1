"""Wrong programs and what is said of them: each file here is a program, a line of dashes, and the message.

`pytest tests/errors --update-golden` writes the messages anew; read the difference with a user's eyes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import relaxpy
from relaxpy.errors import RelaxError

FILES = sorted(Path(__file__).parent.glob("*.txt"))
LINE = "-" * 80 + "\n"


def test_there_are_many() -> None:
    """The issue asks for at least forty distinct wrong programs."""
    assert len(FILES) >= 40


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_message(path: Path, request: pytest.FixtureRequest) -> None:
    program, _, expected = path.read_text(encoding="utf-8").partition(LINE)
    with pytest.raises(RelaxError) as caught:
        relaxpy.parse(program, filename="program.py")
    message = str(caught.value) + "\n"
    if request.config.getoption("--update-golden"):
        path.write_text(program + LINE + message, encoding="utf-8")
        return
    assert message == expected
