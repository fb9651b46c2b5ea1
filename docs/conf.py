"""Configuration of Sphinx, which makes the site from the pages of this folder (`make docs`; decision 16)."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.domains.python import PythonDomain

from docs._ext import reference
from docs._ext.docstrings import to_rst
from docs._ext.navigation import toctrees
from relaxpy.op.function import operator_of
from relaxpy.version import __version__

project = "relaxpy"
author = "The relaxpy authors"
copyright = f"2026, {author}"
version = release = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_copybutton"]
exclude_patterns = ["_ext", "_static"]
nitpicky = True
suppress_warnings = [
    "misc.highlighting_failure",  # "…" and "→" in programs that are cut short
    "ref.python",  # a type `Call` without a module: of several the first is meant, that of relaxpy.ir
]

myst_heading_anchors = 4
nb_execution_mode = (
    "off"  # notebooks are kept with their outputs, which tests/docs/test_notebooks.py compares
)

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_use_type_comments = False  # there are none, and to look for them takes a tenth of the time
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = "relaxpy"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {"color-brand-primary": "#0b5cad", "color-brand-content": "#0b5cad"},
    "dark_css_variables": {"color-brand-primary": "#7ab8ff", "color-brand-content": "#7ab8ff"},
}
copybutton_prompt_text = "$ "
copybutton_copy_empty_lines = False
copybutton_exclude = ".linenos, .gp, .go"


def read_page(app: Sphinx, name: str, source: list[str]) -> None:
    """Complete a page before it is parsed: the navigation of an index, the entries of the API reference."""
    page = DOCS / f"{name}.md"
    if not page.exists():
        return
    if page.name == "index.md":
        source[0] += toctrees(page)
    source[0] = reference.expanded(source[0])


def order_pages(app: Sphinx, env: Any, names: list[str]) -> None:
    """Processes take pages in runs: those of the reference, which take longest, are spread over all runs."""
    names[:] = [name for first in range(8) for name in names[first::8]]


def read_docstring(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    lines[:] = to_rst(lines, reference.known_names())
    if what in ("class", "exception", "function") and operator_of(obj) is None:
        module = sys.modules[obj.__module__]
        lines += ["", f"Source: ``{Path(inspect.getfile(module)).relative_to(DOCS.parent)}``", ""]


def read_signature(
    app: Sphinx,
    what: str,
    name: str,
    obj: Any,
    options: Any,
    arguments: str | None,
    result: str | None,
) -> tuple[str | None, str | None]:
    """The signature of an operator's function as it is written: `TensorLike`, not the union behind it."""
    if operator_of(obj) is None:  # what is no Python, "<factory>", would keep types from being read
        return re.sub(r"= <[^<>]*>", "= ...", arguments) if arguments else arguments, result
    parameters = ", ".join(_written(p) for p in inspect.signature(obj).parameters.values())
    return f"({parameters})", "~relaxpy.ir.Call"


def _written(parameter: inspect.Parameter) -> str:
    text = str(parameter.replace(annotation=inspect.Parameter.empty))
    if parameter.annotation is parameter.empty:
        return text
    name, equals, default = text.partition("=")
    annotation = re.sub(
        r"\b(\w+Like|Operand)\b", r"~relaxpy.op.function.\1", str(parameter.annotation)
    )
    return f"{name}: {annotation}" + (f" = {default}" if equals else "")


def skip_member(
    app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out fields without a text: the signature of their class has their names and types."""
    documented = getattr(obj, "__doc__", None)
    if (
        not skip
        and not callable(obj)
        and not isinstance(obj, (property, classmethod, staticmethod))
    ):
        return None if documented else True
    return None


def find_reference(
    app: Sphinx, env: Any, node: addnodes.pending_xref, content: nodes.Node
) -> nodes.Node | None:
    """The public name of an object that is defined elsewhere. What is in no page of the reference has no link: types of
    signatures, and bases that exist. A name that means nothing is left to Sphinx, as an error."""
    if node.get("refdomain") != "py":
        return None
    target = reference.known_names().get(node["reftarget"])
    if target is not None and target != node["reftarget"]:
        domain = env.get_domain("py")
        found = domain.resolve_xref(env, node["refdoc"], app.builder, "obj", target, node, content)
        if found is not None:
            return found
    above: nodes.Node | None = node
    while above is not None and not isinstance(above, addnodes.desc_signature):
        above = above.parent
    return content if above is not None or exists(node["reftarget"]) else None


@cache
def exists(name: str) -> bool:
    """Whether a dotted name means an object that can be imported."""
    module, _, rest = name.partition(".")
    try:
        found = importlib.import_module(module)
        for part in filter(None, rest.split(".")):
            module = f"{module}.{part}"
            found = (
                getattr(found, part) if hasattr(found, part) else importlib.import_module(module)
            )
    except (ImportError, ValueError):
        return False
    return bool(rest)


class Objects(PythonDomain):
    """The domain of Python. A type of a signature is looked up among the objects of its name, not among all of them,
    which took half of the time of a page of the reference."""

    _named: dict[str, dict[str, Any]] | None = None
    _within: dict[str, Any] | None = None

    @property
    def objects(self) -> dict[str, Any]:
        return super().objects if self._within is None else self._within

    def find_obj(self, env: Any, modname: Any, classname: Any, name: str, *rest: Any) -> Any:
        if self._named is None:  # it is asked when all pages are read
            self._named = {}
            for full, entry in self.objects.items():
                self._named.setdefault(full.rpartition(".")[2], {})[full] = entry
        self._within = self._named.get(name.removesuffix("()").rpartition(".")[2], {})
        try:
            return super().find_obj(env, modname, classname, name, *rest)
        finally:
            self._within = None


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_domain(Objects, override=True)
    app.connect("env-before-read-docs", order_pages)
    app.connect("source-read", read_page)
    app.connect("autodoc-process-docstring", read_docstring)
    app.connect("autodoc-process-signature", read_signature)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("missing-reference", find_reference)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
