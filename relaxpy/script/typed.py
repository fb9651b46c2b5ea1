"""The text of Python code that is in no file: typed at a prompt, or given with `python -c`.

Python itself keeps this text from 3.13 on. Before, it is looked for where it may be: in the frame of the console that
runs it, among the arguments of the process, in standard input, in the history of the prompt. A text that is found
counts only if it compiles to the very code that runs, with its lines and columns: a history may be cut, or of another
session.
"""

from __future__ import annotations
import __future__

import code
import itertools
import linecache
import os
import re
import stat
import sys
import textwrap
import warnings
from collections.abc import Iterator
from types import CodeType, FrameType

PROMPTS = ("<stdin>", "<console>")
"""The files that code typed at a prompt is said to be in."""
LONGEST = 1000
"""The most lines of a statement that is looked for in a history."""
TRIED = 3000
"""The most texts of a history that are compared."""


def typed_text(wanted: CodeType, line: int, frame: FrameType) -> str:
    """The text that holds this code, of which Python says that it is in no file; "" if nobody has kept it. `line`:
    where the definition begins in it. `frame`: runs now."""
    # Private, since 3.13.1; inspect.getsource calls it for this purpose.
    registered = getattr(linecache, "_getlines_from_code", None)
    if registered and (lines := registered(wanted)):
        return "".join(lines)
    found = itertools.chain(_of_consoles(frame), _of_process())
    if wanted.co_filename in PROMPTS:
        found = itertools.chain(found, itertools.islice(_statements(_history(), line), TRIED))
    return next((text for text in found if _holds(text, wanted)), "")


def why_lost(wanted: CodeType) -> str:
    """Why there is no text of this code, in words."""
    version = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    match wanted.co_filename:
        case "<string>":
            return "Python keeps no text of a string that exec runs"
        case "<stdin>" if not _is_prompt():
            return f"{version} keeps no text of what comes through a pipe"
        case file if file in PROMPTS and "readline" in sys.modules:
            return (
                f"{version} keeps no text of what is typed, and the history of its prompt has this not as it was typed "
                "(of equal lines one after the other it has one, and no empty ones)"
            )
        case file if file in PROMPTS:
            return f"{version} keeps no text of what is typed, and without the module readline there is no history"
        case file:
            return f"it was defined in {file}, which is no file that can be read"


def _is_prompt() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _of_consoles(frame: FrameType | None) -> Iterator[str]:
    """The sources that consoles among the callers run now (`code.InteractiveConsole`, and its subclasses)."""
    while frame is not None:
        if frame.f_code is code.InteractiveInterpreter.runsource.__code__:
            yield frame.f_locals["source"]
        frame = frame.f_back


def _of_process() -> Iterator[str]:
    """The text of `python -c`, and standard input if it is a file (`python < model.py`): a pipe's is gone."""
    for option, text in itertools.pairwise(sys.orig_argv):
        if re.fullmatch("-[A-Za-z]*c", option):
            yield text
            yield textwrap.dedent(text)  # as Python does from 3.14 on
    try:
        found = os.fstat(0)
        if stat.S_ISREG(found.st_mode) and hasattr(os, "pread"):
            yield os.pread(0, found.st_size, 0).decode()
    except (OSError, UnicodeDecodeError):
        return


def _history() -> list[str]:
    """The last lines that were typed; none without `readline`."""
    readline = sys.modules.get("readline")
    if readline is None:
        return []
    count = readline.get_current_history_length()
    first = max(1, count - 10 * LONGEST)
    items = (readline.get_history_item(n) or "" for n in range(first, count + 1))
    return [line for item in items for line in item.split("\n")]


def _statements(lines: list[str], line: int) -> Iterator[str]:
    """The texts that may be the statement, the last ones first: a definition begins in its line `line`, and each begins
    with, and ends before, a line that is not indented."""
    for start in range(len(lines) - line, -1, -1):
        if lines[start][:1].isspace() or not re.match(
            r"\s*(@|def\b|class\b)", lines[start + line - 1]
        ):
            continue
        for end in range(start + line + 1, min(start + LONGEST, len(lines)) + 1):
            if end == len(lines) or not lines[end][:1].isspace():
                yield "\n".join(lines[start:end]) + "\n"


def _holds(text: str, wanted: CodeType) -> bool:
    """Whether a text compiles to a code that is, or holds, this one."""
    flags = wanted.co_flags & __future__.annotations.compiler_flag
    for mode in ("single", "exec"):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compiled = compile(text, wanted.co_filename, mode, flags, dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        if _is_or_holds(compiled, wanted):
            return True
    return False


def _is_or_holds(outer: CodeType, wanted: CodeType) -> bool:
    return outer == wanted or any(
        _is_or_holds(each, wanted) for each in outer.co_consts if isinstance(each, CodeType)
    )
