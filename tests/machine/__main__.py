"""Writes the suite, or runs it."""

from __future__ import annotations

import argparse
import json
import sys
from itertools import chain
from pathlib import Path

from tests.machine.machine import (
    check_builtins,
    check_formulas,
    check_instructions,
)
from tests.machine.suite import FOLDER, write_suite


def main() -> int:
    """The command-line entry point."""
    parser = argparse.ArgumentParser(prog="python -m tests.machine", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the files anew")
    parser.add_argument("--folder", type=Path, default=Path(FOLDER), help="where they are")
    args = parser.parse_args()
    if args.write:
        write_suite(args.folder)
        return 0
    suite = {path.stem: json.loads(path.read_text("utf-8")) for path in args.folder.glob("*.json")}
    problems = list(
        chain(
            check_formulas(suite["formulas"]),
            check_instructions(suite["instructions"]),
            check_builtins(suite["builtins"]),
        )
    )
    for problem in problems:
        print(f"{problem.case}: {problem.text}")  # noqa: T201  (a command)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
