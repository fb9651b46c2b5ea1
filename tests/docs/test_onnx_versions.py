"""docs/onnx_versions.md has every version of every operator that onnx knows, with what the importer does with it.
`python -m tests.docs.test_onnx_versions` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
import onnx.defs

from relaxpy.frontend.missing import instead
from relaxpy.frontend.onnx.importer import handling
from relaxpy.frontend.onnx.operators import load_operators
from relaxpy.frontend.onnx.refused import REFUSED
from tests.docs.markdown_pages import ROOT

PAGE = ROOT / "docs" / "onnx_versions.md"

HEADER = """\
# Versions of ONNX's operators

Written by `python -m tests.docs.test_onnx_versions` from the schemas of onnx {version} and the importer's table of operators.

An operator has a version for each opset that changed it; a model's opset says which of them it means. *Read* is by an entry of
the importer's own for this version, *written out* is by the function that the standard has of the operator, and *refused* is with
the text that is here ([ONNX models](from_onnx.md)). `tests/frontend/onnx/test_all_versions.py` runs each version that is called
otherwise than the one before it, beside ONNX Runtime where that runs it, and ONNX's own tests in older versions of the opset.
Calls that an entry does not take (a dtype, a value that must be known) are errors at their node.

"""


def schemas() -> dict[tuple[str, str], list[Any]]:
    """Domain and name → the operator's versions."""
    found: dict[tuple[str, str], list[Any]] = {}
    for each in onnx.defs.get_all_schemas_with_history():
        found.setdefault((each.domain, each.name), []).append(each)
    return {
        key: sorted(versions, key=lambda s: s.since_version)
        for key, versions in sorted(found.items())
    }


def handled(schema: Any) -> str:
    """What becomes of a version: the text of the table."""
    found = handling(schema.domain, schema.name, schema.since_version, schema)
    if found != "refused":
        return found
    title = f"{schema.domain}.{schema.name}" if schema.domain else schema.name
    reason = instead(title, REFUSED)
    assert reason is not None, f"{title} is refused without a reason"
    return f"refused: {reason}"


def rows() -> Iterator[str]:
    """The summary of each domain, then the table."""
    load_operators()
    found = schemas()
    for domain in sorted({domain for domain, _ in found}):
        own = {name: versions for (d, name), versions in found.items() if d == domain}
        texts = [handled(each) for versions in own.values() for each in versions]
        counts = [
            f"{sum(text.startswith(kind) for text in texts)} {kind}"
            for kind in ("read", "written out", "refused")
            if any(text.startswith(kind) for text in texts)
        ]
        yield f"- **{domain or 'ai.onnx'}**: {_count(len(texts), 'version')} of {_count(len(own), 'operator')}: {', '.join(counts)}"
    yield ""
    yield "| operator | versions | |"
    yield "|---|---|---|"
    for (domain, name), versions in found.items():
        parts: dict[str, list[str]] = {}
        for each in versions:
            parts.setdefault(handled(each), []).append(str(each.since_version))
        title = f"{domain}.{name}" if domain else name
        for text, numbers in parts.items():
            yield f"| `{title}` | {', '.join(numbers)} | {text} |"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def page() -> str:
    return HEADER.format(version=onnx.__version__) + "\n".join(rows()) + "\n"


def test_the_page_has_all_versions() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run: python -m tests.docs.test_onnx_versions"
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
