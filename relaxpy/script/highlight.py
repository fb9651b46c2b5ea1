"""Printing script on a terminal, with colours and line numbers."""

from __future__ import annotations

import sys
from html import escape


def is_terminal() -> bool:
    """Is stdout a terminal?"""
    return sys.stdout.isatty()


def show(text: str, language: str = "python", plain: bool = False) -> None:
    """Print `text`, highlighted and with line numbers if stdout is a terminal and `plain` is not set.

    Elsewhere (a file, a pipe, a notebook's capture) the plain text is printed, so that it can be parsed again.
    """
    text = text.rstrip("\n")
    if plain or not is_terminal():
        sys.stdout.write(text + "\n")
        return
    # Imported only if needed: it would take a quarter of the command's start-up time.
    from rich.console import Console
    from rich.syntax import Syntax

    Console().print(Syntax(text, language, line_numbers=True, theme="ansi_dark", word_wrap=True))


def html(text: str) -> str:
    """Script as highlighted HTML, for notebooks; plain if the highlighter is not installed."""
    try:
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import PythonLexer
    except ImportError:
        return f"<pre>{escape(text)}</pre>"
    return highlight(text, PythonLexer(), HtmlFormatter(noclasses=True, nobackground=True))
