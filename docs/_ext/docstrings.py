"""Docstrings as reStructuredText, for Sphinx.

Docstrings of relaxpy are plain text in the manner of Markdown: `code` between single backticks, lists with `*`, `-` or
`1.`, and code as lines that are indented by four spaces more than the text before them. Names of the public interface
become links.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

_CODE = re.compile(r"``(?P<double>[^`]+)``|`(?P<single>[^`]+)`")
_ITEM = re.compile(r"(?P<indent> *)(?P<mark>[*-]|\d+\.) (?P<text>.*)")
_CALL = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?:\(.*\))?")


def to_rst(lines: Sequence[str], names: Mapping[str, str] | None = None) -> list[str]:
    """The lines of a docstring as reStructuredText. `names` maps what stands between backticks to the full name of the
    object that it means."""
    return list(_blocks(lines, names or {}))


def summary(docstring: str) -> str:
    """The first sentence of a docstring, on one line."""
    first = " ".join(docstring.strip().split("\n\n")[0].split())
    ends = [
        m.start() for m in re.finditer(r"[.:](?= |$)", _CODE.sub(lambda m: "x" * len(m[0]), first))
    ]
    return first[: ends[0]] + "." if ends else first


def inline(text: str, names: Mapping[str, str] | None = None) -> str:
    """A line of prose as reStructuredText: code in literals or links, what is special elsewhere escaped."""
    parts: list[str] = []
    end = 0
    for match in _CODE.finditer(text):
        parts += [_escaped(text[end : match.start()]), _literal(match, text, names or {})]
        end = match.end()
    return "".join([*parts, _escaped(text[end:])])


def _literal(match: re.Match[str], text: str, names: Mapping[str, str]) -> str:
    code = (match["double"] or match["single"]).strip()
    before, after = text[: match.start()][-1:], text[match.end() :][:1]
    left = "" if not before or before in " ([{\"'-/–—" else "\\ "
    right = "" if not after or after in " )]}.,:;!?\"'-/–—" else "\\ "
    called = _CALL.fullmatch(code)
    target = names.get(called["name"]) if called else None
    body = f":py:obj:`{_escaped(code)} <{target}>`" if target else f"``{code}``"
    return f"{left}{body}{right}"


def _escaped(text: str) -> str:
    return re.sub(r"([\\*_`|])", r"\\\1", text)


def _blocks(lines: Sequence[str], names: Mapping[str, str]) -> Iterator[str]:
    """Text, lists and code, each followed by a blank line."""
    margin = 0  # of the text around: code is indented by four more
    before = ""  # the line before
    number = 0
    while number < len(lines):
        line = lines[number]
        indent = len(line) - len(line.lstrip())
        item = _ITEM.fullmatch(line)
        if not line.strip():
            yield ""
            if number + 1 < len(lines) and not lines[number + 1].startswith(" "):
                margin = 0
        elif indent >= margin + 4 and (not before.strip() or before.rstrip().endswith(":")):
            code = _indented(lines[number:], indent)
            yield from _code(code, indent, margin)
            number += len(code)
            before = ""
            continue
        elif item:
            if before.strip() and not _ITEM.fullmatch(before) and not before.startswith(" "):
                yield ""
            margin = len(item["indent"]) + len(item["mark"]) + 1
            mark = item["mark"] if item["mark"] != "*" else "-"
            yield f"{item['indent']}{mark} {inline(item['text'], names)}"
        else:
            if indent < margin:
                if before.strip():
                    yield ""
                margin = indent
            yield " " * indent + inline(line.strip(), names)
        before = line
        number += 1


def _indented(lines: Sequence[str], indent: int) -> list[str]:
    """The lines up to the first that is indented less, without blank ones at the end."""
    found: list[str] = []
    for line in lines:
        if line.strip() and len(line) - len(line.lstrip()) < indent:
            break
        found.append(line)
    while not found[-1].strip():
        found.pop()
    return found


def _code(code: Sequence[str], indent: int, margin: int) -> Iterator[str]:
    left = " " * margin
    yield ""
    yield f"{left}.. code-block:: python"
    yield ""
    for line in code:
        yield f"{left}   {line[indent:]}".rstrip()
    yield ""
