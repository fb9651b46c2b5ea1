"""What `python -m tests.where` finds."""

from __future__ import annotations

import pytest

from tests.sweeps import full
from tests.where import ROOT, covering, files_of, module_of, pages_of, sources


@full
def test_a_name_has_its_file_its_tests_and_its_pages() -> None:
    (path,) = files_of("StopStrings")
    assert path == ROOT / "relaxpy/llm/stop_strings.py"
    assert covering(path)[0] == ROOT / "tests/llm/test_stop_strings.py"
    assert ROOT / "tests/llm/test_written_text.py" in covering(path)
    assert pages_of("StopStrings")[0] == ROOT / "docs/api/llm.md"
    assert files_of("NoSuchName") == pages_of("NoSuchName") == []


def test_a_file_that_is_tested_by_others() -> None:
    """The scheduler has no test of its own path."""
    assert ROOT / "tests/serve/test_engine.py" in covering(ROOT / "relaxpy/serve/scheduler.py")
    assert covering(ROOT / "models/mobilenet.py")[0] == ROOT / "tests/models/test_mobilenet.py"


def test_nearly_all_files_have_tests() -> None:
    """The rest is reached through tables, such as operators by their samples."""
    without = [module_of(path) for path in sources() if path.stat().st_size and not covering(path)]
    assert len(without) < len(sources()) / 8, without


@pytest.mark.parametrize("path", ["relaxpy/__init__.py", "models/llama.py"])
def test_modules(path: str) -> None:
    found = module_of(ROOT / path)
    assert found == path.removesuffix(".py").removesuffix("/__init__").replace(
        "models/", "relaxpy.models."
    )
