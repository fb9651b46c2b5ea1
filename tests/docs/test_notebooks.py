"""The notebooks run, and show what they give.

`make test` has the one on the language, and a full run that on language models, too.

A notebook is executed in a kernel of its own, in an empty directory. The outputs of a cell are those that are stored, but
for cells with the tag `measured`, which show times: of them only the kinds of output are compared. With
`--update-golden` the outputs are stored anew.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_snippets import ROOT
from tests.sweeps import part, sweep

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))


def executed(notebook: Any, folder: Path) -> Any:
    """The notebook with the outputs of a run. Raises CellExecutionError where a cell fails."""
    client = nbclient.NotebookClient(
        nbformat.from_dict(notebook),
        timeout=120,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    found = client.execute(
        env={**os.environ, "PYTHONPATH": str(ROOT), "RELAXPY_NUM_THREADS": "2"}, cleanup_kc=True
    )
    for cell in found.cells:
        cell.metadata.pop("execution", None)  # when it ran
    return found


def whole_streams(outputs: list[Any]) -> list[Any]:
    """The outputs, with consecutive pieces of one stream as one: a kernel cuts printed text where its timer ends."""
    joined: list[Any] = []
    for output in outputs:
        before = joined[-1] if joined else None
        if before is not None and output.get("name", "") and output.name == before.get("name"):
            joined[-1] = nbformat.from_dict({**before, "text": before.text + output.text})
        else:
            joined.append(output)
    return joined


def shown(cell: Any) -> list[dict[str, Any]]:
    """The outputs of a cell, without counters; of measured ones the kinds only."""
    outputs = whole_streams(cell.outputs)
    kinds = [
        {
            "output_type": o.output_type,
            "stream": o.get("name"),
            "mime": sorted(o.get("data", ())),
        }
        for o in outputs
    ]
    if "measured" in cell.metadata.get("tags", ()):
        return kinds
    return [{**k, "text": o.get("text"), "data": o.get("data")} for k, o in zip(kinds, outputs)]


def test_a_stream_in_pieces_is_one_output() -> None:
    def stream(name: str, text: str) -> Any:
        return nbformat.v4.new_output("stream", name=name, text=text)

    whole = nbformat.v4.new_code_cell(outputs=[stream("stdout", "a|b\n"), stream("stderr", "c")])
    cut = nbformat.v4.new_code_cell(
        outputs=[stream("stdout", "a"), stream("stdout", "|b\n"), stream("stderr", "c")]
    )
    assert shown(cut) == shown(whole)
    assert shown(whole) != shown(nbformat.v4.new_code_cell(outputs=[stream("stdout", "a|b\nc")]))


@sweep
@pytest.mark.parametrize("path", part(NOTEBOOKS[::-1], 3), ids=lambda path: path.stem)
def test_outputs_are_those_stored(
    path: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    stored = nbformat.read(path, as_version=4)
    found = executed(stored, tmp_path)
    if request.config.getoption("--update-golden"):
        for cell in found.cells:
            if cell.cell_type == "code":
                cell.outputs = whole_streams(cell.outputs)
        path.write_text(nbformat.writes(found) + "\n", encoding="utf-8")
        return
    for cell, again in zip(stored.cells, found.cells, strict=True):
        if cell.cell_type == "code":
            assert cell.execution_count == again.execution_count, f"{cell.source}: not run in order"
            assert shown(again) == shown(cell), cell.source


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS
