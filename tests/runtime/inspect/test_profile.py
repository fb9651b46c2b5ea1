"""`vm.profile`: what ran, how often, with how many bytes; results and errors stay what they are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import RuntimeCheckError, UsageError
from relaxpy.runtime import limits
from relaxpy.runtime.inspect.profile import MACHINE, Event, Profile
from relaxpy.runtime.limits import copy_bandwidth, peak_flops, peak_is_measured_by

MOD = relaxpy.parse(
    """
@I.ir_module
class Module:
    @R.function
    def helper(y: R.Tensor(("n", 8), dtype="float32")) -> R.Tensor(("n",), dtype="float32"):
        z = R.sum(y, axis=[1])
        return z

    @R.function
    def main(x: R.Tensor(("n", 8), dtype="float32"), w: R.Tensor((8, 8), dtype="float32"), again: R.Prim("bool")):
        cls = Module
        a = R.matmul(x, w)
        s = cls.helper(a)
        if again:
            t = cls.helper(x)
            r = R.add(s, t)
        else:
            r = s
        u = R.unique(r)
        return u
""",
    filename="sums.py",
)
X, W = np.ones((3, 8), np.float32), np.eye(8, dtype=np.float32)


@pytest.fixture(scope="module")
def vm() -> relaxpy.VirtualMachine:
    from relaxpy.build.pipeline import default_pipeline

    return relaxpy.VirtualMachine(
        relaxpy.build(MOD, pipeline=default_pipeline(without=["inline-private-functions"]))
    )


def test_kernels_calls_and_bytes(vm: relaxpy.VirtualMachine) -> None:
    found = vm.profile("main", X, W, True, repeat=3)
    rows = {row.name: row for row in found.by_kernel()}
    assert rows["matmul"].calls == 1
    assert rows["matmul"].nbytes == 4 * (3 * 8 + 8 * 8 + 3 * 8)
    assert rows["matmul"].flops == 2 * 3 * 8 * 8
    assert rows["matmul"].gigaflops == pytest.approx(384e-9 / rows["matmul"].seconds)
    assert rows["relaxpy.unique"].flops == 0
    assert rows["sum"].flops == 2 * 3 * 8
    assert rows["sum"].calls == 2
    assert rows["sum"].nbytes == 2 * 4 * (3 * 8 + 3)
    assert rows["relaxpy.unique"].calls == 1
    assert len(found.events) == 3 * len([e for e in found.events if e.turn == 0])
    assert sum(row.seconds for row in rows.values()) == pytest.approx(found.seconds, rel=0.5)
    assert rows[MACHINE].seconds >= 0
    fewer = vm.profile("main", X, W, again=False, repeat=1)
    assert {row.name: row.calls for row in fewer.by_kernel()}["sum"] == 1


def test_the_tables_say_kernels_and_lines(vm: relaxpy.VirtualMachine) -> None:
    found = vm.profile("main", X, W, True, repeat=2)
    text = str(found)
    assert "matmul" in text
    assert "GB/s" in text
    assert MACHINE in text
    assert "sums.py:6" in found.by_line()  # the sum, in both calls of the helper
    assert copy_bandwidth() > 1e8


def test_reads_from_the_cache_have_no_share() -> None:
    """A kernel faster than memory is copied has no share above 100 %: its bytes come from the cache, and that is said."""
    near, far = int(copy_bandwidth() * 0.5e-3), int(copy_bandwidth() * 2.58e-3)
    events = (
        Event("near", "kernel", "main", "m.py:1", 0.0, 1e-3, near, 0, 0),
        Event("far", "kernel", "main", "m.py:2", 1e-3, 1e-3, far, 0, 0),
    )
    title, word, _, *rows = str(Profile("main", 2e-3, 1, events)).splitlines()
    assert "copying memory reaches" in title
    assert word.startswith("cache: faster than memory is copied")
    shares = {row.split()[0]: row.split()[-1] for row in rows}
    assert (shares["near"], shares["far"]) == ("50%", "cache")
    assert "cache" not in str(Profile("main", 1e-3, 1, events[:1]))


def test_the_peak_of_arithmetic(
    vm: relaxpy.VirtualMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured where a compiler is, once for each number of threads; where none is it is not told."""
    assert peak_flops() > 1e8
    found = vm.profile("main", X, W, True, repeat=1)
    assert "of peak" in str(found)
    asked: list[float] = []
    monkeypatch.setattr(limits, "_measures", [])
    assert peak_flops() == 0.0
    assert "GFLOP/s" in str(found)
    assert "of peak" not in str(found)
    peak_is_measured_by(lambda: asked.append(1.0) or 2e9)
    assert (peak_flops(), peak_flops(), asked) == (2e9, 2e9, [1.0])
    limits._measured_peak.cache_clear()


def test_as_json(vm: relaxpy.VirtualMachine) -> None:
    found = vm.profile("main", X, W, True, repeat=2)
    data = json.loads(json.dumps(found.as_json()))
    assert data["function"] == "main"
    assert data["limits"]["copy_bytes"] > 1e8
    by_name = {row["name"]: row for row in data["kernels"]}
    assert by_name["matmul"]["flops"] == 384
    assert sum(row["flops"] for row in data["lines"]) == sum(r["flops"] for r in data["kernels"])


def test_kernels_without_floats_have_no_rate() -> None:
    mod = relaxpy.parse("""
@R.function
def main(x: R.Tensor(("n",), dtype="int32")) -> R.Tensor(("n",), dtype="int32"):
    y = R.add(x, x)
    return y
""")
    found = relaxpy.VirtualMachine(relaxpy.build(mod)).profile("main", np.ones(3, np.int32))
    assert "GFLOP/s" not in str(found).partition("\n")[2]


def test_long_and_short_calls() -> None:
    """The unit is what people read; names that are long are cut, columns stay under their headings."""
    event = Event("k" * 99, "kernel", "main", "a.py:1", 0.0, 0.0, 2_000_000, 0, 0)
    for seconds, unit in ((0.5, "500.00 ms"), (5e-6, "5.00 µs")):
        text = str(Profile("main", seconds, 1, (replace(event, seconds=seconds),)))
        title, *_, heading, row, _ = text.splitlines()
        assert title.startswith(f"main: {unit} a call")
        assert "k" * 59 + "…" in row
        assert row.index("100.0%") + len("100.0%") == heading.index("share") + len("share")


def test_a_trace(vm: relaxpy.VirtualMachine, tmp_path: Path) -> None:
    found = vm.profile("main", X, W, True, repeat=2)
    found.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    calls = [event for event in events if event["cat"] == "call"]
    assert len(calls) == 2
    assert {e["args"]["flops"] for e in events if e["name"] == "matmul"} == {384}
    for event in events:
        assert event["ph"] == "X"
        inside = [
            c
            for c in calls
            if c["ts"] <= event["ts"] + 1e-3
            and event["ts"] + event["dur"] <= c["ts"] + c["dur"] + 1e-3
        ]
        assert len(inside) == 1  # no event lies in two calls, none outside


def test_results_and_the_machine_stay_as_they_are(vm: relaxpy.VirtualMachine) -> None:
    before = vm["main"](X, W, True).numpy()
    source = vm["main"].source
    vm.profile("main", X, W, True, repeat=1)
    assert vm["main"].source == source
    assert "clock" not in source
    np.testing.assert_array_equal(vm["main"](X, W, True).numpy(), before)


def test_what_a_call_gets_wrong(vm: relaxpy.VirtualMachine) -> None:
    with pytest.raises(UsageError, match="no function 'nain'"):
        vm.profile("nain", X)
    with pytest.raises(UsageError):
        vm.profile("main", X)
    with pytest.raises(RuntimeCheckError, match="dimension 1 is 7"):
        vm.profile("main", np.ones((3, 7), np.float32), W, True)
    with pytest.raises(UsageError, match="repeat"):
        vm.profile("main", X, W, True, repeat=0)


def test_recursion_and_function_values() -> None:
    mod = relaxpy.parse("""
@I.ir_module
class Module:
    @R.function
    def down(x: R.Tensor(("n",), dtype="float32"), k: R.Tensor((), dtype="int64")) -> R.Tensor(("n",), dtype="float32"):
        cls = Module
        stop = R.less_equal(k, R.const(0, "int64"))
        if stop:
            r = x
        else:
            y = R.exp(x)
            less = R.subtract(k, R.const(1, "int64"))
            r = cls.down(y, less)
        return r

    @R.function
    def main(x: R.Tensor(("n",), dtype="float32"), k: R.Tensor((), dtype="int64")) -> R.Tensor(("n",), dtype="float32"):
        cls = Module
        r = cls.down(x, k)
        return r
""")
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    found = vm.profile("main", np.zeros(4, np.float32), np.int64(5), repeat=1)
    assert {row.name: row.calls for row in found.by_kernel()}["exp"] == 5
