"""The steps of a build and their times: `Executable.build_report`.

Plain data that the compiler creates. It is defined here because an executable carries it. It is not stored in files, so
that the same module gives the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

_LISTED = 12
"""How many kernels `str` lists, slowest first."""


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One kernel of a build."""

    name: str
    rule: str
    """The schedule rule that matched it (`matmul`, `elementwise`, …)."""
    seconds: float
    """Time to schedule and compile it, on its thread. For a kernel from the cache, the time when it was compiled."""
    size: int
    """Size of its object code in bytes."""
    cached: bool
    """Whether it came from the cache."""
    record: str = ""
    """The tuning record whose schedule it has; "" if that is the rule's own."""


@dataclass(frozen=True, slots=True)
class BuildReport:
    """The time of each step of a build, in order, and of each kernel. `str` gives a table."""

    steps: tuple[tuple[str, float], ...]
    """Step → seconds: each pass, `codegen`, `kernels` (schedule and compile, several at a time)."""
    kernels: tuple[KernelTime, ...]
    """The distinct kernels. Several names of equal programs are listed once."""
    jobs: int
    """The number of compiling threads."""
    whole: bool = False
    """Whether the whole executable came from the cache, and no pass ran."""
    precision: str = ""
    """The dtype of products, if the build was given `precision`."""

    @property
    def seconds(self) -> float:
        """The time of the whole build."""
        return sum(seconds for _, seconds in self.steps)

    @property
    def hits(self) -> int:
        """The number of kernels that came from the cache."""
        return sum(kernel.cached for kernel in self.kernels)

    def __str__(self) -> str:
        lines = [f"{'step':<28} {'ms':>9}"]
        lines += [f"{name:<28} {seconds * 1e3:>9.1f}" for name, seconds in self.steps]
        lines.append(f"{'in all':<28} {self.seconds * 1e3:>9.1f}")
        if self.precision:
            lines += ["", f"products in {self.precision}"]
        count = len(self.kernels)
        kernels = f"{count} kernel{'' if count == 1 else 's'}"
        size = f"{sum(kernel.size for kernel in self.kernels) / 1024:,.0f} KiB"
        if self.whole:
            lines += ["", f"all of it from the cache; {kernels}, {size}, once took:"]
        else:
            lines += ["", f"{kernels}, {self.hits} from the cache, {size}, {self.jobs} at a time"]
        slowest = sorted(self.kernels, key=lambda kernel: -kernel.seconds)[:_LISTED]
        width = max((len(kernel.name) for kernel in slowest), default=0)
        for kernel in slowest:
            note = "  (from the cache)" if kernel.cached and not self.whole else ""
            name = f"{kernel.name:<{width}}  {kernel.rule:<12}"
            lines.append(
                f"  {name} {kernel.seconds * 1e3:>8.1f} ms {kernel.size / 1024:>7.1f} KiB{note}"
            )
        if count > len(slowest):
            lines.append(f"  … and {count - len(slowest)} that took less")
        return "\n".join(lines)
