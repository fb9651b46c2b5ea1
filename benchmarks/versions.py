"""Two versions of relaxpy beside one another: nothing may get slower unseen.

    python benchmarks/versions.py REF                      the last commit here beside REF
    python benchmarks/versions.py REF --with OTHER         OTHER beside REF
    python benchmarks/versions.py REF --only ops embed     some of it

Each version is checked out into a folder of its own and measured in processes of its own, which take turns. What lasts
less than a call of a model does is timed inside processes that stay (`turns.py`); builds are timed in fresh ones. A row
that seems slower by more than a twentieth is measured again in fresh processes, and the median of all of them counts;
of builds and *language*, which have a process for each measurement, the smallest.

*embed*: all-MiniLM-L6-v2 at five sizes. *ops*: the cases of `make bench-ops`. *overhead*: what a call and a kernel
cost. *compile*: cold builds of all-MiniLM-L6-v2, of a decoder, and of programs of 500 operators. *language*: parse,
print, verify, deduce, compare, build, import. *memory*: planned bytes (table 2 of the Relax paper), without turns.
*calls*: function calls of the same work (`call_counts.py`), which have no noise. *lines*: of Python, by package.

Results go to benchmarks/results/versions.json and into docs/benchmarks.md; groups that were not measured this time keep
the rows that they have there, if those are beside the same commit.
"""

from __future__ import annotations

import argparse
import compileall
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.drawn_cases import SEED  # noqa: E402
from benchmarks.ops import case_module, named_cases  # noqa: E402
from benchmarks.report import markdown_table, replace_section, save, saved  # noqa: E402
from benchmarks.turns import Peer, Service, rotated_times  # noqa: E402

SECTION = "This version beside an earlier one"
"""The heading in docs/benchmarks.md."""
SLOWER = 1.05
"""A row above it is measured again."""
FRESH = 4
"""Further processes of each version that measure such a row again."""
EMBED = ((1, 16), (1, 128), (8, 64), (32, 128), (1, 512))
"""Batch and tokens."""
CHAIN = 200
"""Kernels of the chain of *overhead*."""
SHAPES = ("layers", "residuals", "rows", "functions", "symbols", "branches", "concat of values")
"""Beginnings of the names of programs (`program_shapes.py`) whose builds are timed."""
OPERATORS = 500


@dataclass
class Row:
    """One figure of both versions."""

    group: str
    name: str
    unit: str
    before: float
    after: float

    @property
    def ratio(self) -> float:
        return self.after / self.before if self.before else float("nan")

    @property
    def worse(self) -> bool:
        """More than noise."""
        return self.group != "lines" and self.ratio > SLOWER


# In the process of a version


def served(tree: str, threads: int, cache: str) -> Service:
    """A version; requests are a kind and its arguments. Nothing of relaxpy may be imported before."""
    sys.path.insert(0, tree)
    os.environ |= {"RELAXPY_NUM_THREADS": str(threads), "RELAXPY_CACHE_DIR": cache}
    import relaxpy

    if not str(relaxpy.__file__).startswith(tree):
        raise RuntimeError(f"relaxpy came from {relaxpy.__file__}, not from {tree}")
    kinds: dict[str, Callable[..., Callable[[], Any]]] = {
        "embed": embedding,
        "ops": operator,
        "chain": chain,
        "layer": layer,
    }

    @lru_cache(maxsize=2)
    def prepared(request: tuple[Any, ...]) -> Callable[[], Any]:
        return kinds[request[0]](*request[1:])

    return Service(prepared, lambda _: None)


def embedding(batch: int, tokens: int) -> Callable[[], Any]:
    """A call of the sentence encoder."""
    ids = np.random.default_rng(0).integers(1000, 20000, (batch, tokens))
    return partial(embedder().embed_tokens, ids, np.ones_like(ids))


@lru_cache
def embedder() -> Any:
    try:
        models = importlib.import_module("relaxpy.models.sentence_embedding")
    except ImportError:  # versions before models were a part of the package
        models = importlib.import_module("models.sentence_embedding")
    return models.SentenceEmbedder.from_checkpoint(models.default_checkpoint())


def operator(key: str) -> Callable[[], Any]:
    """A call of one of the operators' cases."""
    import relaxpy
    from relaxpy.runtime.tensor import from_numpy

    case = named_cases(SEED)[key]
    arrays = case.arrays()
    mod, params = case_module(case, arrays)
    run = relaxpy.VirtualMachine(relaxpy.build(mod, params=params))["run"]
    given = zip(case.inputs, arrays, strict=True)
    return partial(run, *(from_numpy(array) for each, array in given if each.dims))


def chain() -> Callable[[], Any]:
    """Calls of a chain of tiny kernels, each with another size than the one before."""
    import relaxpy
    from benchmarks.overhead import SIZES, script
    from relaxpy.build.pipeline import default_pipeline

    exe = relaxpy.build(
        relaxpy.parse(script(CHAIN)), pipeline=default_pipeline(without=["fuse-ops"])
    )
    run = relaxpy.VirtualMachine(exe)["main"]
    vectors = [np.ones(size, "float32") for size in range(1, SIZES + 1)]

    def call() -> None:
        for vector in vectors:
            run(vector)

    return call


def layer() -> Callable[[], Any]:
    """A hundred calls of a function of one small layer."""
    import relaxpy

    text = """
@R.function
def main(x: R.Tensor(("n", 16), "float32"), w: R.Tensor((16, 16), "float32")):
    return R.nn.relu(R.matmul(x, w))
"""
    run = relaxpy.VirtualMachine(relaxpy.build(relaxpy.parse(text)))["main"]
    x, w = np.ones((4, 16), "float32"), np.ones((16, 16), "float32")

    def call() -> None:
        for _ in range(100):
            run(x, w)

    return call


# Groups of rows


@dataclass(frozen=True)
class Versions:
    """Both versions, by name: `before` and `after`."""

    trees: Mapping[str, Path]
    threads: int
    cache: str
    rounds: int
    """Turns of each, at least."""
    rows: str = ""
    """A regular expression: the rows of *embed* and *ops* that are measured."""

    @contextmanager
    def served(self) -> Iterator[dict[str, Peer]]:
        """A process of each. RuntimeError with the reason where one cannot run."""
        peers: dict[str, Peer] = {}
        try:
            for name, tree in self.trees.items():
                cache = str(Path(self.cache, name))
                peer = Peer.start(name, served, str(tree), self.threads, cache)
                if isinstance(peer, str):
                    raise RuntimeError(f"{name} cannot run here: {peer}")
                peers[name] = peer
            yield peers
        finally:
            for peer in peers.values():
                peer.stop()


Request = tuple[Any, ...]


def timed_rows(
    versions: Versions, group: str, requests: Mapping[str, Request], unit: str, scale: float
) -> Iterator[Row]:
    """Rows of what is timed in processes that stay; `scale` units are a second."""
    requests = {name: each for name, each in requests.items() if re.search(versions.rows, name)}
    slow: list[tuple[str, list[dict[str, float]]]] = []
    with versions.served() as peers:
        for name, request in requests.items():
            found = measured(peers, request, versions.rounds)
            row = Row(group, name, unit, *(found[each] * scale for each in peers))
            if row.worse:
                slow.append((name, [found]))
            else:
                yield row
    for _ in range(FRESH):  # a process keeps its memory, and where that lies decides about a tenth
        with versions.served() as peers:
            for name, medians in slow:
                medians.append(measured(peers, requests[name], versions.rounds))
    for name, medians in slow:
        both = (median(each[version] for each in medians) * scale for version in versions.trees)
        yield Row(group, name, unit, *both)


def measured(peers: Mapping[str, Peer], request: Request, rounds: int) -> dict[str, float]:
    """The median of each version, seconds."""
    times = rotated_times(peers, request, rounds, 5, 0.1)
    return {name: median(each) for name, each in times.items()}


def embed_rows(versions: Versions) -> Iterator[Row]:
    requests = {f"{batch} × {tokens}": ("embed", batch, tokens) for batch, tokens in EMBED}
    yield from timed_rows(versions, "embed", requests, "ms", 1e3)


def op_rows(versions: Versions) -> Iterator[Row]:
    requests = {key: ("ops", key) for key in named_cases(SEED)}
    yield from timed_rows(versions, "ops", requests, "ms", 1e3)


def overhead_rows(versions: Versions) -> Iterator[Row]:
    per_kernel = {f"a kernel, in a chain of {CHAIN}": ("chain",)}
    yield from timed_rows(versions, "overhead", per_kernel, "µs", 1e6 / CHAIN / 64)
    yield from timed_rows(versions, "overhead", {"a call of one layer": ("layer",)}, "µs", 1e4)


def compile_rows(versions: Versions) -> Iterator[Row]:
    from benchmarks.program_shapes import shapes

    def build(model: str, tree: Path) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as cache:
            figures = worker(tree, "relaxpy", model, 4, cache)
        return {f"{model}: {part}": figures[part] for part in ("seconds", "graph", "kernels")}

    def shape(name: str, tree: Path) -> dict[str, float]:
        return {f"{name}, {OPERATORS} operators": worker(tree, "shape", name, OPERATORS)["seconds"]}

    for model in ("minilm", "llama"):
        yield from process_rows(versions, "compile", partial(build, model), "s")
    for name in shapes():
        if name.startswith(SHAPES):
            yield from process_rows(versions, "compile", partial(shape, name), "s")


def worker(tree: Path, *args: object) -> dict[str, Any]:
    """The measurements of a version's `benchmarks/compile.py` in a process."""
    text = ran(tree, "benchmarks/compile.py", "--worker", *map(str, args))
    return json.loads(text.splitlines()[-1])


def language_rows(versions: Versions) -> Iterator[Row]:
    def measure(tree: Path) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "language.json")
            ran(tree, "benchmarks/language.py", "--no-peer", "--sizes", "1000", "--json", str(path))
            found = json.loads(path.read_text(encoding="utf-8"))
        times = {
            f"{stage}, 1000 bindings": s * 1e3 for stage, s in found["seconds"]["1000"].items()
        }
        return times | {f"import {k}": ms for k, ms in found["import_milliseconds"].items()}

    yield from process_rows(versions, "language", measure, "ms")


def process_rows(
    versions: Versions, group: str, measure: Callable[[Path], dict[str, float]], unit: str
) -> Iterator[Row]:
    """Rows of what fresh processes measure: the smallest figure of each version, since whatever else the machine does
    can only add to it, and where a process lies in memory decides about a fifth."""
    found: dict[str, dict[str, list[float]]] = {}
    for turn in range(3 * versions.rounds):
        if turn == versions.rounds and not any(row.worse for row in smallest(group, unit, found)):
            break
        for version in sorted(versions.trees, reverse=bool(turn % 2)):
            for name, figure in measure(versions.trees[version]).items():
                found.setdefault(name, {}).setdefault(version, []).append(figure)
    yield from smallest(group, unit, found)


def smallest(
    group: str, unit: str, found: Mapping[str, Mapping[str, Sequence[float]]]
) -> list[Row]:
    """Rows of what both versions have."""
    return [
        Row(group, name, unit, min(times["before"]), min(times["after"]))
        for name, times in found.items()
        if len(times) == 2
    ]


def memory_rows(versions: Versions) -> Iterator[Row]:
    plans: dict[str, dict[str, float]] = {}
    for version, tree in versions.trees.items():
        ran(tree, "benchmarks/memory.py", "--only", "table2")
        path = tree / "benchmarks" / "results" / "memory.json"
        for step, figures in json.loads(path.read_text(encoding="utf-8"))["table2"].items():
            plans.setdefault(f"table 2, {step}, planned", {})[version] = figures["planned"]
    for name, figures in plans.items():
        yield Row("memory", name, "MiB", figures["before"], figures["after"])


def call_rows(versions: Versions) -> Iterator[Row]:
    counts = {
        version: json.loads(ran(tree, str(ROOT / "benchmarks" / "call_counts.py")))
        for version, tree in versions.trees.items()
    }
    for name, before in counts["before"].items():
        unit = "modules" if name.startswith("modules") else "calls"
        yield Row("calls", name, unit, before, counts["after"][name])


def line_rows(versions: Versions) -> Iterator[Row]:
    counts = {version: lines_of(tree) for version, tree in versions.trees.items()}
    for package in sorted(counts["before"] | counts["after"]):
        both = (float(counts[version].get(package, 0)) for version in ("before", "after"))
        yield Row("lines", package, "lines", *both)


def lines_of(tree: Path) -> dict[str, int]:
    """Package of relaxpy → lines of its Python files; of the backends and devices, each is a package."""
    found: dict[str, int] = {}
    for path in (tree / "relaxpy").rglob("*.py"):
        parts = path.relative_to(tree / "relaxpy").parts[:-1]
        depth = 3 if parts[:2] == ("runtime", "devices") else 2 if parts[:1] == ("backend",) else 1
        package = ".".join(("relaxpy", *parts[:depth]))
        found[package] = found.get(package, 0) + len(path.read_text(encoding="utf-8").splitlines())
    return found


GROUPS: dict[str, Callable[[Versions], Iterator[Row]]] = {
    "embed": embed_rows,
    "ops": op_rows,
    "overhead": overhead_rows,
    "compile": compile_rows,
    "language": language_rows,
    "memory": memory_rows,
    "calls": call_rows,
    "lines": line_rows,
}

# The run


def ran(tree: Path, script: str, *args: str) -> str:
    """The output of a version's script. RuntimeError with its last line where it fails."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(
        [sys.executable, str(tree / script), *args],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{script} of {tree}: {(done.stderr.strip() or '?').splitlines()[-1]}")
    return done.stdout


@contextmanager
def checked_out(references: Mapping[str, str]) -> Iterator[dict[str, Path]]:
    """A folder for each version, gone afterwards."""

    def git(*args: str) -> None:
        subprocess.run(["git", *args], cwd=ROOT, check=True, capture_output=True)

    with tempfile.TemporaryDirectory() as folder:
        trees = {version: Path(folder, version) for version in references}
        try:
            for version, tree in trees.items():
                git("worktree", "add", "--detach", str(tree), references[version])
                compileall.compile_dir(tree / "relaxpy", quiet=1)  # as in an installed package
            yield trees
        finally:
            for tree in trees.values():
                if tree.is_dir():
                    git("worktree", "remove", "--force", str(tree))


COLUMNS = ("group", "", "before", "after", "unit", "ratio")
ALIGNED = "llrrlr"


def cells(row: Row) -> list[str]:
    """A row of the table."""
    digits = ".0f" if row.group in ("calls", "lines") else ".4g"
    ratio = f"{row.ratio:.2f}" if row.before else ""
    return [row.group, row.name, f"{row.before:{digits}}", f"{row.after:{digits}}", row.unit, ratio]


def table(rows: Sequence[Row]) -> Table:
    """For the terminal."""
    view = Table()
    for column in ("group", "", "before", "after", "unit", "ratio"):
        view.add_column(
            column, justify="right" if column in ("before", "after", "ratio") else "left"
        )
    for row in rows:
        view.add_row(*cells(row), style="red" if row.worse else "")
    return view


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """A line a group: the geometric mean of the ratios, and how many are slower."""
    for group in dict.fromkeys(row.group for row in rows if row.group != "lines"):
        ratios = [row.ratio for row in rows if row.group == group]
        slower = sum(row.worse for row in rows if row.group == group)
        yield (
            f"{group}: after / before {geometric_mean(ratios):.3f} (geometric mean of {len(ratios)}), "
            f"{min(ratios):.2f} to {max(ratios):.2f}, {slower} above {SLOWER}"
        )


def publish(rows: Sequence[Row], before: str, after: str) -> None:
    """Merge the groups of these rows into benchmarks/results/versions.json, and write the section of
    docs/benchmarks.md."""
    known = saved("versions")
    groups = known["groups"] if known.get("before") == before else {}
    for group in dict.fromkeys(row.group for row in rows):
        found = [asdict(row) for row in rows if row.group == group]
        groups[group] = {"after": after, "rows": found}
    groups = {name: groups[name] for name in GROUPS if name in groups}
    save("versions", {"before": before, "groups": groups})
    replace_section(SECTION, section(before, groups))


def section(before: str, groups: Mapping[str, Mapping[str, Any]]) -> str:
    """The section of docs/benchmarks.md: a line a group, then all rows."""
    rows = [Row(**row) for found in groups.values() for row in found["rows"]]
    versions = ", ".join(f"{name} at {found['after']}" for name, found in groups.items())
    intro = (
        f"`python benchmarks/versions.py {before}`: both versions in turns on one machine, medians. A ratio below 1 is "
        f"faster or less. A row above {SLOWER} was measured again in fresh processes. Measured: {versions}."
    )
    lines = "\n".join(f"- {line}" for line in summary(rows))
    body = markdown_table(COLUMNS, [cells(row) for row in rows], ALIGNED)
    return f"{intro}\n\n{lines}\n\n{body}"


def commit(reference: str) -> str:
    """The short hash of a commit. Raises CalledProcessError where there is none."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=7", f"{reference}^{{commit}}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("reference", help="a commit: *before*")
    parser.add_argument("--with", dest="other", default="HEAD", help="a commit: *after*")
    parser.add_argument("--only", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    parser.add_argument("--rows", default="", help="of embed and ops those that this finds")
    parser.add_argument("--rounds", type=int, default=4, help="turns of each version")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    try:
        before, after = commit(options.reference), commit(options.other)
    except subprocess.CalledProcessError as error:
        parser.error(f"no commit of this repository: {error.cmd[-1].removesuffix('^{commit}')}")
    rows: list[Row] = []
    failed = False
    with (
        checked_out({"before": before, "after": after}) as trees,
        tempfile.TemporaryDirectory() as cache,
    ):
        versions = Versions(trees, options.threads, cache, options.rounds, options.rows)
        for group in options.only:
            try:
                for row in GROUPS[group](versions):
                    print(f"{row.group}, {row.name}: {row.ratio:.3f}", file=sys.stderr, flush=True)
                    rows.append(row)
            except RuntimeError as error:
                console.print(f"[red]failed:[/] {error}", highlight=False)
                failed = True
    console.print(table(rows))
    for line in summary(rows):
        console.print(line, highlight=False)
    if not options.rows:
        publish(rows, before, after)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
