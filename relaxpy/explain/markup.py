"""Pieces of HTML that the sections of the page share. Everything that comes from a program is escaped here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

from relaxpy.runtime.function_listing import printable

_HIDDEN = re.compile(r"[^\n\t -~]")
HUES = (210, 25, 130, 280, 50, 340, 170, 90, 235, 5)
"""Hues of groups and kernels. Neighbours have different colours."""


def text(value: object) -> str:
    """A value on one line. Characters that do not print, or change the direction of text, are shown as escapes."""
    return escape(printable(str(value)))


def lines(value: str) -> str:
    """A text of several lines. Characters that do not print, except tabs, are shown as escapes."""
    return escape(_HIDDEN.sub(lambda found: printable(found[0]), value))


def shortened(value: str, most: int) -> str:
    """A value on one line of at most `most` characters, not escaped for HTML."""
    flat = printable(value)
    return flat if len(flat) <= most else flat[: most - 1] + "…"


def code(value: str) -> str:
    """A block of code. It can be scrolled with the keyboard, and the page's script adds a button that copies it."""
    return f'<pre class="code" tabindex="0">{lines(value)}</pre>'


def folded(summary: str, body: str, *, open: bool = False, id: str = "") -> str:
    """A part that unfolds; `summary` is HTML."""
    anchor = f' id="{id}"' if id else ""
    return f"<details{anchor}{' open' if open else ''}><summary>{summary}</summary>{body}</details>"


def name(value: object) -> str:
    """A name from a program. Text that runs from right to left does not reorder what follows it, and a long name may be
    broken after "_"."""
    return f"<bdi>{text(value).replace('_', '_<wbr>')}</bdi>"


def link(target: str, label: object) -> str:
    """A link to the part of the page with this id; the label alone if `target` is ""."""
    return f'<a href="#{target}">{name(label)}</a>' if target else name(label)


def several(links: Sequence[str], most: int = 6) -> str:
    """Links with commas; those after the first few are folded."""
    if len(links) <= most:
        return ", ".join(links)
    rest = ", ".join(links[most:])
    more = f"<details class='more'><summary>and {len(links) - most} more</summary>{rest}</details>"
    return ", ".join(links[:most]) + " " + more


def table(head: Sequence[str], rows: Iterable[str], kind: str = "") -> str:
    """A table from its column titles and its rows, in HTML. A wide one scrolls inside of its own box."""
    titles = "".join(f'<th scope="col">{title}</th>' for title in head)
    marked = f' class="{kind}"' if kind else ""
    return (
        f'<div class="wide" tabindex="0"><table{marked}><thead><tr>{titles}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def hue(number: int) -> int:
    """The hue of a group or kernel."""
    return HUES[number % len(HUES)]


def percent(share: float) -> str:
    """A share in words."""
    if share and share < 0.001:
        return "<0.1 %"
    return f"{share:.1%}".replace("%", " %")


def diff(changes: Iterable[str]) -> str:
    """The lines of a diff (`relaxpy.explain.difference.changed_lines`)."""
    shown: list[str] = []
    for line in changes:
        kind = {"+": "plus", "-": "minus", "@": "hunk"}.get(line[:1], "")
        body = "⋯" if kind == "hunk" else lines(line)
        shown.append(f'<span class="{kind}">{body}\n</span>' if kind else f"{body}\n")
    return f'<pre class="diff" tabindex="0">{"".join(shown)}</pre>'
