"""Printing script on a terminal, with colours and line numbers."""

from __future__ import annotations

import sys


def is_terminal() -> bool:
    """Does a person read stdout?"""
    return sys.stdout.isatty()


def show(text: str, language: str = "python", plain: bool = False) -> None:
    """Print `text`: highlighted and with line numbers if stdout is a terminal and `plain` is not asked for.

    Elsewhere (a file, a pipe, a notebook's capture) it is the text itself, so that it can be read back.
    """
    text = text.rstrip("\n")
    if plain or not is_terminal():
        sys.stdout.write(text + "\n")
        return
    # Loaded only where it is needed: a quarter of the command's start-up time would go into it.
    from rich.console import Console
    from rich.syntax import Syntax

    Console().print(Syntax(text, language, line_numbers=True, theme="ansi_dark", word_wrap=True))
