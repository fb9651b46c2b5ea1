"""docs/accelerator.md shows all of the files in tests/accelerator that it is about, which are short."""

from __future__ import annotations

import pytest

from tests.docs.markdown_pages import ROOT

FOLDER = ROOT / "tests" / "accelerator"


@pytest.mark.parametrize("name", ["device.py", "offload.py"])
def test_the_page_shows_the_file(name: str) -> None:
    page = (ROOT / "docs" / "accelerator.md").read_text(encoding="utf-8")
    assert f"```text\n{(FOLDER / name).read_text(encoding='utf-8').rstrip()}\n```" in page


def test_it_is_one_page() -> None:
    """All files together, with the tests."""
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in FOLDER.glob("*.py"))
    assert lines <= 400
