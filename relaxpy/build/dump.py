"""Dumps the module after every pass to files: an instrument for builds.

    relaxpy.build(mod, instruments=[DumpPasses("passes")])

`passes/00-written.py` is the source program, and `passes/14-legalize-ops.py` the module after the fourteenth pass.
Passes that change nothing write no file. Each file is a complete script, which `relaxpy.parse`, `relaxpy show`,
`compile` and `bisect` accept.
"""

from __future__ import annotations

import os
from pathlib import Path

from relaxpy.files import write_text
from relaxpy.ir.module import IRModule
from relaxpy.transform.base import Pass


class DumpPasses:
    """Writes one file per pass into a folder, which is created. Large constants go to one `.npz` file beside each
    script."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.written: list[Path] = []

    def __call__(self, number: int, step: Pass, before: IRModule, after: IRModule) -> None:
        if number == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write("00-written", before)
        if after is not before:
            self._write(f"{number + 1:02}-{step.name}", after)

    def _write(self, name: str, mod: IRModule) -> None:
        path = self.folder / f"{name}.py"
        write_text(path, mod.script(constants=path.with_suffix(".npz")))
        self.written.append(path)
