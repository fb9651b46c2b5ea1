"""Where the time of a build went, as text."""

from __future__ import annotations

from relaxpy.runtime.inspect.build_report import BuildReport, KernelTime


def test_the_table() -> None:
    report = BuildReport(
        (("legalize-ops", 0.25), ("kernels", 1.5)),
        (
            KernelTime("small", "elementwise", 0.125, 2048, cached=True),
            KernelTime("large", "matmul", 1.25, 4096, cached=False),
        ),
        jobs=2,
    )
    assert report.seconds == 1.75
    assert report.hits == 1
    assert str(report) == (
        "step                                ms\n"
        "legalize-ops                     250.0\n"
        "kernels                         1500.0\n"
        "in all                          1750.0\n"
        "\n"
        "2 kernels, 1 from the cache, 6 KiB, 2 at a time\n"
        "  large  matmul         1250.0 ms     4.0 KiB\n"
        "  small  elementwise     125.0 ms     2.0 KiB  (from the cache)"
    )


def test_only_the_slowest_kernels_are_listed() -> None:
    kernels = tuple(KernelTime(f"k{i}", "none", float(i), 0, False) for i in range(20))
    text = str(BuildReport((), kernels, 1))
    assert "k19" in text
    assert "k7 " not in text
    assert text.endswith("… and 8 that took less")
