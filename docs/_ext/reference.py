"""The API reference: which public names are documented on which page, and the directives that document them.

A page under `docs/api` says what it documents in fenced blocks:

    ```{api} relaxpy.ir
    Expr Var Call
    ```

documents these names of a module, or without names all that its `__all__` has. A name that several modules export has
one place: the block that comes first, in the order of `docs/api/index.md`. `{operators}` stands for the functions of
all operators by subject, `{commands}` for the commands of `relaxpy`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from abc import ABC
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Generic

import click

from docs._ext.docstrings import inline, summary, to_rst
from docs._ext.navigation import DOCS, pages_below

API = DOCS / "api" / "index.md"
BLOCK = re.compile(
    r"^```\{(?P<kind>api|operators|commands)\} *(?P<module>[\w.]*)\n(?P<names>.*?)^```$",
    re.M | re.S,
)


@dataclass(frozen=True)
class Entry:
    """A public name, and the object that it means."""

    module: str
    name: str

    @property
    def full(self) -> str:
        """The name as users write it: `relaxpy.ir.Call`."""
        return f"{self.module}.{self.name}"

    @property
    def value(self) -> Any:
        """The object."""
        return getattr(module_of(self.module), self.name)

    @property
    def key(self) -> tuple[str, str] | int:
        """What two names of the same object have in common."""
        value = self.value
        if inspect.isclass(value) or inspect.isroutine(value):
            return (value.__module__, value.__qualname__)
        return id(value)


def module_of(name: str) -> Any:
    """The module of this name. (`relaxpy.build` as an attribute is the function, not the package.)"""
    importlib.import_module(name)
    return sys.modules[name]


def exported(block: re.Match[str]) -> list[Entry]:
    """The names that an `{api}` block lists, in its order; without names, all that no other block of the page lists."""
    module = block["module"]
    names = block["names"].split()
    if not names:
        elsewhere = {
            name
            for other in BLOCK.finditer(block.string)
            if other["module"] == module
            for name in other["names"].split()
        }
        names = [
            n for n in module_of(module).__all__ if n not in elsewhere and not n.startswith("__")
        ]
    return [
        Entry(module, name)
        for name in names
        if not inspect.ismodule(getattr(module_of(module), name))
    ]


def blocks_of(page: Path) -> Iterator[re.Match[str]]:
    """The blocks of a page that are made into entries."""
    yield from BLOCK.finditer(page.read_text(encoding="utf-8"))


@cache
def owners() -> dict[tuple[str, str] | int, Entry]:
    """Object → the entry that documents it."""
    found: dict[tuple[str, str] | int, Entry] = {}
    for page in pages_below(API):
        for block in blocks_of(page):
            if block["kind"] == "api":
                for entry in exported(block):
                    found.setdefault(entry.key, entry)
    return found


@cache
def known_names() -> dict[str, str]:
    """What a docstring may write between backticks → the full name that it means: full names, and short ones of classes
    where no two classes share them."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for key, entry in owners().items():
        found[entry.full] = entry.full
        if isinstance(key, tuple):
            found[".".join(key)] = entry.full
        if entry.name[0].isupper() and entry.name in found:
            taken.add(entry.name)
        elif entry.name[0].isupper():
            found[entry.name] = entry.full
    for page in pages_below(API):
        for block in blocks_of(page):  # the other names of an object that is documented elsewhere
            for entry in exported(block) if block["kind"] == "api" else ():
                found.setdefault(entry.full, owners()[entry.key].full)
    for name in taken:
        del found[name]
    return found


def expanded(text: str) -> str:
    """A page with its blocks replaced by directives."""
    kinds = {"api": _entries, "operators": _operators, "commands": _commands}
    return BLOCK.sub(lambda block: kinds[block["kind"]](block), text)


def _rst(lines: list[str]) -> str:
    return "\n".join(["````{eval-rst}", *lines, "````"])


def _entries(block: re.Match[str]) -> str:
    """A table of the names with their summaries, then an entry for each that is documented here."""
    entries = exported(block)
    here = [entry for entry in entries if owners()[entry.key] == entry]
    lines = _table([(entry, owners()[entry.key].full) for entry in entries])
    lines += ["", f".. py:currentmodule:: {block['module']}", ""]
    for entry in here:
        lines += _entry(entry)
    return _rst(lines)


def _table(rows: list[tuple[Entry, str]]) -> list[str]:
    lines = [".. list-table::", "   :class: names", "   :widths: auto", ""]
    for entry, target in rows:
        lines.append(f"   * - :py:obj:`{entry.name} <{target}>`")
        lines.append(f"     - {inline(summary(docstring_of(entry)), known_names())}")
    return lines


def docstring_of(entry: Entry) -> str:
    """The docstring of an object; of data, the one of its own or the text under its assignment."""
    value = entry.value
    if inspect.isclass(value) or inspect.isroutine(value):
        return inspect.getdoc(value) or ""
    own = getattr(value, "__dict__", {}).get("__doc__")
    return own or _text_below(entry.module, entry.name)


def _text_below(module: str, name: str) -> str:
    """The string under the assignment of a name, in the module that assigns it; "" if there is none."""
    body = ast.parse(inspect.getsource(module_of(module))).body
    for node, following in zip(body, [*body[1:], None]):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _text_below(node.module, alias.name)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        assigned = any(isinstance(target, ast.Name) and target.id == name for target in targets)
        if (
            assigned
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            return inspect.cleandoc(str(following.value.value))
    return ""


def _entry(entry: Entry) -> list[str]:
    value = entry.value
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
        options = ["   :members:", "   :undoc-members:"]
        if any(base not in (object, ABC, Generic) for base in value.__bases__):
            options.append("   :show-inheritance:")
    elif inspect.isroutine(value):
        kind, options = "autofunction", []
    else:
        text = to_rst(docstring_of(entry).splitlines(), known_names())
        return [f".. py:data:: {entry.name}", "", *(f"   {line}".rstrip() for line in text), ""]
    return [f".. {kind}:: {entry.module}::{entry.name}", *options, ""]


def _operators(_: re.Match[str]) -> str:
    """A section for each file of operators."""
    from relaxpy.op import OPS, Op

    classes = sorted(
        (
            cls
            for cls in OPS.values()
            if issubclass(cls, Op) and cls.__module__.startswith("relaxpy.op.")
        ),
        key=lambda cls: (cls.__module__, cls.name),
    )
    parts: list[str] = []
    for module, group in groupby(classes, lambda cls: cls.__module__):
        heading = module.split(".")[-1].replace("_", " ").capitalize()
        lines: list[str] = []
        for cls in group:
            lines += [f".. autofunction:: relaxpy.op::{cls.name}", ""]
        parts += [f"## {heading}\n", f"`{module.replace('.', '/')}.py`\n", _rst(lines), ""]
    return "\n".join(parts)


def _commands(_: re.Match[str]) -> str:
    """A section for each command: usage, help, arguments, options, examples."""
    from relaxpy.cli.main import COMMANDS, cli

    context = click.Context(cli, info_name="relaxpy")
    parts: list[str] = []
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        parts += [
            f"## relaxpy {name}\n",
            _rst(_command(command, click.Context(command, context, name))),
            "",
        ]
    return "\n".join(parts)


def _command(command: click.Command, context: click.Context) -> list[str]:
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [".. code-block:: text", "", f"   {context.command_path} {usage}", ""]
    lines += [*to_rst(inspect.cleandoc(command.help or "").splitlines(), known_names()), ""]
    lines += [f".. program:: {context.command_path}", ""]
    for option in command.params:
        record = option.get_help_record(context) if isinstance(option, click.Option) else None
        if record is not None:
            names, text = record
            lines += [f".. option:: {_option_names(names)}", "", f"   {inline(text)}", ""]
    epilog = (command.epilog or "").replace("\b", "").strip("\n")
    for paragraph in filter(None, epilog.split("\n\n")):
        head, _, rest = paragraph.partition("\n")
        if rest.startswith("  "):
            lines += [inline(head), "", ".. code-block:: text", ""]
            lines += [f"   {line[2:]}".rstrip() for line in rest.splitlines()] + [""]
        else:
            lines += [*to_rst(inspect.cleandoc(paragraph).splitlines()), ""]
    return lines


def _option_names(names: str) -> str:
    """`-o, --output FILE` as the `option` directive reads it."""
    return re.sub(r"\s+(?=[A-Z\[<])", " ", names)
