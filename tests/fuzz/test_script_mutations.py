"""Wrong scripts of all kinds: a clean error or a valid module, never anything else.

`RELAXPY_MUTATIONS=5000 pytest tests/fuzz/test_script_mutations.py` reads that many mutations, in processes of their own
(a crash then tells which text it was); `RELAXPY_MUTATION_SEED` is the first. `mutation` says what is changed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import relaxpy
from relaxpy.errors import RelaxError
from tests.fuzz.mutation import PROGRAMS, mutated, outcome
from tests.sweeps import FULL, full

ROOT = Path(__file__).parents[2]
FIRST = int(os.environ.get("RELAXPY_MUTATION_SEED", "0"))
COUNT = int(os.environ.get("RELAXPY_MUTATIONS", "250" if FULL else "60"))
BATCH = 500
"""Mutations that one process reads."""


def test_programs_are_right() -> None:
    """What is changed is right before."""
    assert [outcome(program) for program in PROGRAMS] == ["accepted"] * len(PROGRAMS)


def test_a_seed_is_one_mutation() -> None:
    assert mutated(3) == mutated(3)
    assert len({mutated(seed) for seed in range(20)}) > 15


def test_mutations(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    for first in range(FIRST, FIRST + COUNT, BATCH):
        count = min(BATCH, FIRST + COUNT - first)
        words = [sys.executable, "-m", "tests.fuzz.mutation", str(first), str(count), str(tmp_path)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        current = (tmp_path / "current.py").read_text("utf-8", "replace")
        assert done.returncode == 0, f"{current}\n{done.stderr[-4000:]} ({done.returncode})"
        counts.update(json.loads(done.stdout.splitlines()[-1]))
    accepted = counts.pop("accepted")
    assert accepted > COUNT / 20
    assert len(counts) > 10
    print(f"{accepted} accepted, {counts.total()} refused: {dict(counts.most_common())}")  # noqa: T201


FUNCTION = '@R.function\ndef f(x: R.Tensor(("n",), "float32")):\n{}    return y\n'
PRIM_FUNC = """@T.prim_func
def f(x: T.Buffer(({0},), "float32"), n: T.int64):
    for i{2} in {1}:
        x[i] = T.float32(0)
"""


def in_function(line: str) -> str:
    return FUNCTION.format(f"    y = {line}\n")


BOMBS: dict[str, str] = {
    "parentheses": in_function("(" * 150 + "x" + ")" * 150),
    "too many parentheses": in_function("(" * 5000 + "x" + ")" * 5000),
    "signs": in_function("-" * 900 + "x"),
    "too many signs": in_function("-" * 50_000 + "x"),
    "a long sum": in_function(" + ".join(["x"] * 1000)),
    "too long a sum": in_function(" + ".join(["x"] * 30_000)),
    "nested calls": in_function("R.exp(" * 150 + "x" + ")" * 150),
    "nested tuples": in_function("(" * 90 + "x" + ",)" * 90),
    "nested lists in an attribute": FUNCTION.format(
        "    R.func_attr({'a': " + "[" * 150 + "]" * 150 + "})\n    y = x\n"
    ),
    "nested dimensions": FUNCTION.format(
        f"    y = R.match_cast(x, R.Tensor(('{'(' * 80}n{' + 1) * 2' * 80}',)))\n"
    ),
    "a long dimension": FUNCTION.format(
        f"    y = R.match_cast(x, R.Tensor(('{' + '.join(['n'] * 3000)}',)))\n"
    ),
    "powers of a dimension": FUNCTION.format(
        f"    n = T.int64()\n    y = R.match_cast(x, R.Tensor(({' * '.join(['(n + 1)'] * 60)},)))\n"
    ),
    "a huge dimension": in_function("R.zeros((10 ** 40,), 'float32')"),
    "a huge integer": in_function("x + " + "9" * 4000),
    "too long an integer": in_function("x + " + "9" * 5000),
    "a huge power": in_function("x + 9 ** 9 ** 9"),
    "a huge shift": in_function("x + (1 << 10 ** 12)"),
    "a huge string": in_function("R.str('a' * 10 ** 12)"),
    "a huge list": in_function("R.const([0] * 10 ** 12)"),
    "a huge range": in_function("R.const(list(range(10 ** 12)))"),
    "a huge width": in_function("R.str(f'{1:1000000000000}')"),
    "an infinite number": in_function("x + 1e999"),
    "no number": in_function("x + float('nan')"),
    "many blocks": FUNCTION.format("    with R.dataflow():\n        y = x\n        R.output(y)\n" * 300),
    "nested branches": "@R.function\ndef f(x: R.Tensor, c: R.Tensor((), 'bool')):\n"
    + "".join(" " * (i + 4) + "if c:\n" for i in range(90))
    + " " * 94 + "y = x\n"
    + "".join(" " * (i + 4) + "else:\n" + " " * (i + 5) + "y = x\n" for i in reversed(range(90)))
    + "    return y\n",
    "nested functions": "".join(
        " " * i + "@R.function\n" + " " * i + f"def f{i}(x: R.Tensor):\n" for i in range(90)
    )
    + " " * 90 + "return x\n"
    + "".join(" " * (i + 1) + f"return f{i + 1}(x)\n" for i in reversed(range(89))),
    "NUL": in_function("x + '\0'"),
    "only NUL": "\0",
    "a byte order mark": "\ufeff" + in_function("x"),
    "CRLF": in_function("R.exp(x)").replace("\n", "\r\n"),
    "CR": in_function("R.exp(x)").replace("\n", "\r"),
    "tabs": in_function("R.exp(x)").replace("    ", "\t"),
    "tabs and spaces": in_function("R.exp(x)").replace("    return", "\treturn"),
    "form feeds": in_function("R.exp(z)").replace("\n", "\n\f"),
    "a line separator": in_function("R.str('\u2028')"),
    "half a character": in_function("R.str('\ud800')"),
    "another spelling of a name": in_function("R.exp(𝐱)"),
    "a backslash at the end": in_function("R.exp(x)") + "\\",
    "nothing": "",
    "a comment": "# nothing",
    "only a decorator": "@R.function",
    "None as an extent": PRIM_FUNC.format("n", "T.grid(None, n)", ", j"),
    "None as a divisor": PRIM_FUNC.format("n // None", "range(n)", ""),
    "None in a quoted dimension": PRIM_FUNC.format("'n // None'", "range(n)", ""),
    "None as a dimension": PRIM_FUNC.format("None", "range(n)", ""),
    "a huge extent": PRIM_FUNC.format("n", "T.serial(10 ** 30)", ""),
    "a huge buffer": PRIM_FUNC.format(10**30, "range(n)", ""),
    "no end of loops": PRIM_FUNC.format("n", "T.grid(" + "n, " * 3000 + ")", ""),
    "a power in a tensor program": PRIM_FUNC.format("n", "range(9 ** 9 ** 9)", ""),
    "a long list in a tensor program": PRIM_FUNC.format("n", "T.grid(*[n] * 10 ** 12)", ""),
    "parentheses in a tensor program": PRIM_FUNC.format("n", "range(" + "(" * 150 + "n" + ")" * 150 + ")", ""),
    "a long sum in a tensor program": PRIM_FUNC.format("n", "range(" + " + ".join(["n"] * 3000) + ")", ""),
}  # fmt: skip


READ_ALL = """
import resource, signal, sys
from pathlib import Path
from tests.fuzz.mutation import MEMORY, SECONDS, outcome

resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
for path in map(Path, sys.argv[1:]):
    sys.stdout.write(path.stem + "\\n")
    sys.stdout.flush()
    signal.alarm(SECONDS)
    outcome(path.read_bytes().decode(errors="surrogatepass"))
"""


@full
def test_bombs(tmp_path: Path) -> None:
    """Depth, size and odd characters: read in a process of its own, in little time and memory."""
    for name, text in BOMBS.items():
        (tmp_path / f"{name}.py").write_bytes(text.encode(errors="surrogatepass"))
    words = [sys.executable, "-c", READ_ALL, *map(str, tmp_path.glob("*.py"))]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    last = done.stdout.splitlines()[-1]
    assert done.returncode == 0, f"{last}: {done.stderr[-3000:]} ({done.returncode})"


def test_lines_are_counted_as_python_does() -> None:
    """A form feed or a separator inside a line does not end it."""
    text = '@R.function\ndef f(x: R.Object):\n    y = R.str("\f\u2028\x1c")\n    return z\n'
    with pytest.raises(RelaxError) as caught:
        relaxpy.parse(text)
    assert caught.value.span is not None
    assert caught.value.span.line == 4
    assert "4 |     return z\n" in caught.value.render()
