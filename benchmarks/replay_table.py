"""What each kernel of `replay_cases` compiles to for each target, a line of JSON a kernel. `replay.py` compares two.

    python benchmarks/replay_table.py [--target TEXT] [--only TEXT] [--quick] [--objects FOLDER]

A module goes through the default pipeline, and every tensor program that results is scheduled and compiled, without a
cache. A line has three digests: of the program as its rule meets it, of the schedule, and of the code. None of them
sees names. Programs are alike by their structural hash. Of an object the loaded sections count, and the functions
that its relocations name; of a source its text with identifiers numbered in order of occurrence, but those that are
called.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.replay_cases import Case, kernels, models
from relaxpy.analysis.called_functions import called_functions
from relaxpy.backend.base import CompileOptions
from relaxpy.backend.registry import backend_of
from relaxpy.build.pipeline import default_pipeline
from relaxpy.runtime.codec import encode
from relaxpy.target import Target
from relaxpy.tir.prim_func import PrimFunc
from relaxpy.transform.base import PassContext

PROCESSORS = ("x86-64", "haswell", "x86-64-v4", "znver4", "emeraldrapids")
TARGETS = (
    *(f"llvm -mtriple=x86_64-unknown-linux-gnu -mcpu={each}" for each in PROCESSORS),
    "llvm -mtriple=aarch64-unknown-linux-gnu -mcpu=neoverse-n1",
    *("cuda -arch=sm_80", "cuda -arch=sm_90", "opencl", "metal", "webgpu"),
)
SYMBOL = "kernel"
LOADED = 2
"""The flag of sections that a loader copies (SHF_ALLOC)."""
REFUSED = "refused"
"""The rule of a case that a target does not take."""


@dataclass(frozen=True)
class Line:
    """A kernel for a target; its digests are empty where it is refused."""

    target: str
    case: str
    kernel: str
    rule: str
    program: str = ""
    schedule: str = ""
    code: str = ""
    """Empty if nothing was compiled, too."""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.target, self.case, self.kernel


def table(
    cases: list[Case], target: Target, *, quick: bool, objects: Path | None
) -> Iterator[Line]:
    """The kernels of all cases; their objects go into the folder if one is given."""
    for case in cases:
        try:
            yield from _lines(case, target, quick=quick, objects=objects)
        except Exception as error:  # that a target refuses a case is a fact of the table
            first = (str(error).splitlines() or [""])[0]
            yield Line(str(target), case.name, f"{type(error).__name__}: {first[:90]}", REFUSED)


def _lines(case: Case, target: Target, *, quick: bool, objects: Path | None) -> Iterator[Line]:
    lowered = default_pipeline(target).run(case.mod, PassContext(target))
    backend, called = backend_of(target), called_functions(lowered)
    for name, program in sorted(lowered.prim_funcs.items()):
        if not isinstance(program, PrimFunc) or name not in called:
            continue
        scheduled = backend.schedule(program.func, target, {})
        variants = [PrimFunc(func) for func in (scheduled.parallel, scheduled.serial)]
        code = ""
        if not quick:
            made = backend.compile({SYMBOL: scheduled}, target, CompileOptions())
            code = digest(b"\n".join(map(without_names, made.objects)))
            if objects is not None:
                stem = objects / digest(f"{case.name} {name}".encode())
                for number, data in enumerate(made.objects):
                    stem.with_suffix(f".{number}.o").write_bytes(data)
                stem.with_suffix(".json").write_text(json.dumps(encode(made.kernels[SYMBOL])))
        yield Line(
            str(target), case.name, name, scheduled.rule, structure(program), "-".join(map(structure, variants)), code,
        )  # fmt: skip


def structure(program: PrimFunc) -> str:
    return f"{program.structural_hash() % 2**64:016x}"


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


CALLED = re.compile(rb"[A-Za-z_]\w*(?P<call>\s*\()?")
"""An identifier, and whether it is called."""


def without_names(data: bytes) -> bytes:
    """What counts of an object, or of a source."""
    if data[:4] == b"\x7fELF":
        return _loaded(data)
    numbers: dict[bytes, bytes] = {}

    def numbered(match: re.Match[bytes]) -> bytes:
        if match["call"]:
            return match[0]
        return numbers.setdefault(match[0], b"%d" % len(numbers))

    return CALLED.sub(numbered, data)


def _loaded(data: bytes) -> bytes:
    """The sections of an object that a loader copies, and what their relocations point to. Names of its own functions
    do not count, those of others do."""
    from elftools.elf.elffile import ELFFile
    from elftools.elf.relocation import RelocationSection

    file: Any = ELFFile(io.BytesIO(data))
    sections = list(file.iter_sections())
    found = b""
    for section in sections:
        if section["sh_flags"] & LOADED and section["sh_type"] == "SHT_PROGBITS":
            found += section.data()
        if (
            isinstance(section, RelocationSection)
            and sections[section["sh_info"]]["sh_flags"] & LOADED
        ):
            symbols: Any = file.get_section(section["sh_link"])
            for each in section.iter_relocations():
                symbol = symbols.get_symbol(each["r_info_sym"])
                name = symbol.name if symbol["st_shndx"] == "SHN_UNDEF" else ""
                addend = each["r_addend"] if each.is_RELA() else 0
                found += f"{each['r_offset']} {each['r_info_type']} {addend} {name}\n".encode()
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="", help="targets with this in their text")
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument(
        "--quick", action="store_true", help="leave the code out, which takes most of the time"
    )
    parser.add_argument("--objects", type=Path, help="a folder for the kernels of a single target")
    options = parser.parse_args()
    cases = [case for part in (kernels(), models()) for case in part if options.only in case.name]
    chosen = [each for each in TARGETS if options.target in each] or [options.target]
    for each in chosen:
        for line in table(cases, Target.parse(each), quick=options.quick, objects=options.objects):
            print(json.dumps(asdict(line)), flush=True)


if __name__ == "__main__":
    main()
