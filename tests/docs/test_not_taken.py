"""The tables of what is not taken of torch, JAX and ONNX are those of the importers. `python -m tests.docs.test_not_taken`
writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from relaxpy.frontend.jax.refused import REFUSED as JAX
from relaxpy.frontend.onnx.refused import REFUSED as ONNX
from relaxpy.frontend.torch.refused import REFUSED as TORCH
from tests.docs.markdown_pages import ROOT

PAGES: dict[str, Mapping[str, str]] = {
    "from_torch.md": TORCH,
    "from_jax.md": JAX,
    "from_onnx.md": ONNX,
}
TABLE = re.compile(r"(?<= \| what to write \|\n\|---\|---\|\n)(\|.*\n)*")


def rows(refused: Mapping[str, str]) -> str:
    """A row for each advice, with all operators that it is for."""
    names: dict[str, list[str]] = {}
    for name, text in refused.items():
        names.setdefault(text, []).append(name)
    return "".join(
        f"| {', '.join(f'`{name}…`' for name in each)} | {text} |\n" for text, each in names.items()
    )


def with_table(text: str, refused: Mapping[str, str]) -> str:
    return TABLE.sub(lambda _: rows(refused), text, count=1)


@pytest.mark.parametrize("page", PAGES)
def test_the_page_has_the_table(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert TABLE.search(text)
    assert with_table(text, PAGES[page]) == text, "run: python -m tests.docs.test_not_taken"


if __name__ == "__main__":
    for name, refused in PAGES.items():
        file = ROOT / "docs" / name
        file.write_text(with_table(file.read_text(encoding="utf-8"), refused), encoding="utf-8")
