"""Scripts with words, lines, characters and pieces of their tree changed; and what reading them ends in.

`python -m tests.fuzz.mutation FIRST COUNT DIRECTORY` reads the mutations of COUNT seeds, in one process. Each is
written to `DIRECTORY/current.py` before it is read, so that what ends the process can be told; outcomes are printed as
JSON. An outcome is the code of the error, or "accepted"; then the module was also printed, parsed and compared.
"""

from __future__ import annotations

import ast
import json
import random
import re
import resource
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import relaxpy
from relaxpy.errors import ErrorGroup, RelaxError

SECONDS = 120
"""A mutation that takes longer has hung."""
MEMORY = 12 << 30
"""Bytes of address space: a mutation must not take the machine down."""

PROGRAMS = tuple(
    path.read_text("utf-8") for path in sorted(Path(__file__).with_name("scripts").glob("*.txt"))
)

WORDS = """None 3 -1 0 1.5 "n" "n * 2" "m" x n R T R.Tensor R.Shape R.Tuple R.Object R.Callable R.Prim ( ) , [ ] . = : + - *
/ // % ** @ < == & | ~ not and in is True False R.add R.nn.softmax R.match_cast cls M {} ... "" "float32" "int64" "bool" if
else for while return def lambda:0 with pass import del yield await M.b R.output R.dataflow() T.int64() T.grid T.sblock
T.float32 T.Buffer T.axis T.init R.call_tir R.func_attr float("nan") 1e400 # \\ ' \""" """.split()
NUMBERS = (0, 1, -1, 2, 3, 7, 255, 2**31, 2**63, -(2**63), 10**40, 1.5, 1e308)
CHARACTERS = "\0\ufeff\r\n\t\f\v\x1b\xa0\u2028\u200b日本é😀\ud800`$?!\\\"'#"

Mutation = Callable[[str, random.Random], str]


def _words(text: str, rng: random.Random) -> str:
    """A word removed, doubled, replaced, added, or put elsewhere."""
    words = re.findall(r"\w+|\s+|[^\w\s]", text)
    at, other = rng.randrange(len(words)), rng.randrange(len(words))
    match rng.randrange(6):
        case 0:
            del words[at]
        case 1:
            words.insert(at, words[at])
        case 2:
            words[at], words[other] = words[other], words[at]
        case 3:
            words[at] = words[other]
        case 4:
            words.insert(at, rng.choice(WORDS))
        case _:
            words[at] = rng.choice(WORDS)
    return "".join(words)


def _number(text: str, rng: random.Random) -> str:
    """A number changed, None among others."""
    found = list(re.finditer(r"\b\d+\b", text))
    if not found:
        return text
    place = rng.choice(found)
    new = "None" if rng.random() < 0.2 else repr(rng.choice(NUMBERS))
    return text[: place.start()] + new + text[place.end() :]


def _lines(text: str, rng: random.Random) -> str:
    """A line removed, doubled, moved, or indented otherwise."""
    lines = text.split("\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(5):
        case 0:
            del lines[at]
        case 1:
            lines.insert(other, lines[at])
        case 2:
            lines.insert(other, lines.pop(at) if len(lines) > 1 else "")
        case 3:
            lines[at] = rng.choice((" ", "    ", "\t")) + lines[at]
        case _:
            lines[at] = lines[at].removeprefix(rng.choice((" ", "    ")))
    return "\n".join(lines)


def _character(text: str, rng: random.Random) -> str:
    """A character added or removed; or other ends of lines."""
    at = rng.randrange(len(text))
    match rng.randrange(5):
        case 0:
            return text[:at] + text[at + 1 :]
        case 1:
            return text.replace("\n", rng.choice(("\r\n", "\r", "\n\f")))
        case 2:
            return "\ufeff" + text
        case _:
            return text[:at] + rng.choice(CHARACTERS) + text[at:]


def _tree(text: str, rng: random.Random) -> str:
    """Pieces of the syntax tree exchanged, removed or replaced; the text itself where it is no Python any more."""
    if not _is_python(text):
        return text
    module = ast.parse(text)
    nodes = [node for node in ast.walk(module) if isinstance(node, ast.expr)]
    statements = [
        s for s in ast.walk(module) if isinstance(getattr(s, "body", None), list) and s.body
    ]
    match rng.randrange(4):
        case 0:
            _exchange(rng.choice(nodes), rng.choice(nodes), module)
        case 1:
            value: object = rng.choice((None, "n", b"x", *NUMBERS))
            _exchange(rng.choice(nodes), ast.Constant(value), module)
        case 2:
            call = rng.choice([node for node in nodes if isinstance(node, ast.Call)] or nodes)
            rng.shuffle(getattr(call, "args", []))
        case _:
            body: list[ast.stmt] = rng.choice(statements).body  # type: ignore[attr-defined]
            rng.choice((rng.shuffle, lambda b: b.append(b[0]), lambda b: b.__delitem__(0)))(body)
    try:
        return ast.unparse(ast.fix_missing_locations(module))
    except (AttributeError, TypeError, ValueError, RecursionError):
        return text  # a tree that no text has


def _exchange(old: ast.expr, new: ast.expr, module: ast.Module) -> None:
    """`new` in the place of `old`."""
    for parent in ast.walk(module):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
                return
            if isinstance(value, list) and old in value:
                value[value.index(old)] = new
                return


MUTATIONS: tuple[Mutation, ...] = (
    _words,
    _words,
    _words,
    _number,
    _lines,
    _character,
    _tree,
    _tree,
)


def mutated(seed: int) -> str:
    """The mutation of this seed: one of the programs with one to three changes. Most are still Python."""
    rng = random.Random(seed)
    while True:
        text = rng.choice(PROGRAMS)
        for _ in range(rng.randrange(1, 4)):
            if text:
                text = rng.choice(MUTATIONS)(text, rng)
        if rng.random() < 0.1 or _is_python(text):
            return text


def _is_python(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def outcome(text: str) -> str:
    """The code of the error that reading the text ends in, or "accepted". Raises what should never come."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # Python's remarks on the mutated text
            mod = relaxpy.parse(text)
    except RelaxError as error:
        for single in error.errors if isinstance(error, ErrorGroup) else (error,):
            check_message(single)
        return error.code
    relaxpy.assert_structural_equal(mod, relaxpy.parse(mod.script()))
    return "accepted"


def check_message(error: RelaxError) -> None:
    """A message is one line of words, with a place; not the text of a program in C++ or Python."""
    shown = error.render()
    assert error.message, shown
    assert error.span is not None or error.code == "not-a-module", shown
    for foreign in (
        "Traceback",
        "0x",
        ".cc:",
        "TVMError",
        "InternalError",
        "tvm::",
        "object at",
        "__relaxpy",
    ):
        assert foreign not in shown.replace(str(error.span and error.span.source_line()), ""), shown


def main(first: int, count: int, directory: Path) -> None:
    signal.alarm(0)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.RLIM_INFINITY))
    counts: Counter[str] = Counter()
    for seed in range(first, first + count):
        text = mutated(seed)
        current = directory / "current.py"
        current.write_bytes(f"# seed {seed}\n{text}".encode(errors="surrogatepass"))
        signal.alarm(SECONDS)  # ends the process
        counts[outcome(text)] += 1
        signal.alarm(0)
    sys.stdout.write(json.dumps(counts) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
