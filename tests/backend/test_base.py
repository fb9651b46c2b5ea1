"""A target of a package of its own, from its text to numbers: tests/backend/abacus, which docs/add_a_target.md explains."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import relaxpy
from relaxpy.backend.registry import backend_of
from relaxpy.build import default_pipeline
from relaxpy.build.kernels import compiler_id
from relaxpy.cli import doctor, probe
from relaxpy.cli.probe import Finding
from relaxpy.errors import BuildError, RelaxError, RuntimeCheckError, UsageError
from relaxpy.target import Target
from tests.sweeps import full

ROOT = Path(__file__).parents[2]
ABACUS = Path(__file__).parent / "abacus"
LAYER = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 6), "float32"), w: R.Tensor((6, 5), "float32")) -> R.Tensor(("n", 5), "float32"):
        y = R.nn.softmax(R.nn.relu(R.matmul(x, w)))
        return y
"""


@pytest.fixture(autouse=True)
def abacus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if the package were installed."""
    monkeypatch.syspath_prepend(ABACUS)
    compiler_id.cache_clear()
    yield
    compiler_id.cache_clear()


def run(code: str, **more: str) -> str:
    """What a process with the package on its path prints."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ABACUS}", **more}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def layer() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x, w = rng.random((3, 6), np.float32), rng.random((6, 5), np.float32)
    power = np.exp(np.maximum(x @ w, 0))
    return x, w, power / power.sum(1, keepdims=True)


@pytest.mark.parametrize("bound", [False, True])
def test_a_layer_runs(bound: bool) -> None:
    x, w, want = layer()
    exe = relaxpy.build(relaxpy.parse(LAYER), "abacus", {"w": w} if bound else None)
    assert exe.target == {"kind": "abacus", "text": "abacus -rods=13"}
    got = relaxpy.VirtualMachine(exe)["main"](*([x] if bound else [x, w]))
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5)


def test_control_flow_and_calls_run() -> None:
    mod = relaxpy.parse("""
@I.ir_module
class Module:
    @R.function
    def double(x: R.Tensor(("n",), "int32"), left: R.Tensor((), "int32")) -> R.Tensor(("n",), "int32"):
        cls = Module
        if R.greater(left, R.const(0, "int32")):
            y = cls.double(R.add(x, x), R.subtract(left, R.const(1, "int32")))
        else:
            y = x
        return y

    @R.function
    def main(x: R.Tensor(("n",), "int32")):
        cls = Module
        y = cls.double(x, R.const(5, "int32"))
        z = R.concat((y, R.sort(R.negative(y))), axis=0)
        return z
""")
    x = np.array([3, 1, 2], np.int32)
    got = relaxpy.VirtualMachine(relaxpy.build(mod, "abacus"))["main"](x).numpy()
    np.testing.assert_array_equal(got, [96, 32, 64, -96, -64, -32])


def test_a_file_is_run_without_the_compiler(tmp_path: Path) -> None:
    x, w, want = layer()
    relaxpy.build(relaxpy.parse(LAYER), "abacus").save(tmp_path / "m.rxe")
    np.savez(tmp_path / "arrays.npz", x=x, w=w)
    out = run(f"""
import sys, numpy, relaxpy
arrays = numpy.load({str(tmp_path / "arrays.npz")!r})
vm = relaxpy.VirtualMachine(relaxpy.load({str(tmp_path / "m.rxe")!r}))
print(vm["main"](arrays["x"], arrays["w"]).numpy().tolist())
print("tvm" in sys.modules, "relaxpy_abacus.backend" in sys.modules)
""")
    numbers, loaded = out.splitlines()
    np.testing.assert_allclose(eval(numbers), want, rtol=1e-5)
    assert loaded == "False False"


def test_everything_is_on_the_device() -> None:
    """Kernels, intermediate values and results; a result is an argument again without a copy to the host."""
    exe = relaxpy.build(relaxpy.parse(LAYER), "abacus")
    assert [slot.kind for slot in exe.slots] == ["cpu", "abacus"]
    assert {kernel.slot for kernel in exe.kernels} == {1}
    vm = relaxpy.VirtualMachine(exe)
    x, w, want = layer()
    for each in (w, vm.upload(w)):
        result = vm["main"](x, each)
        assert str(result.device) == "abacus:0"
        np.testing.assert_allclose(result.numpy(), want, rtol=1e-5)


def test_an_index_out_of_range_is_told_late() -> None:
    """The kernel stops where the check is; the error comes with the results."""
    mod = relaxpy.parse("""
@I.ir_module
class Module:
    @T.prim_func
    def pick(x: T.Buffer(("n",), "float32"), i: T.Buffer(("m",), "int32"), y: T.Buffer(("m",), "float32")):
        n, m = T.int64(), T.int64()
        for k in range(m):
            with T.sblock("y"):
                v = T.axis.spatial(m, k)
                y[v] = x[i[v]]

    @R.function
    def main(x: R.Tensor(("n",), "float32"), i: R.Tensor(("m",), "int32")):
        m = T.int64()
        cls = Module
        y = R.call_tir(cls.pick, (x, i), out_ty=R.Tensor((m,), "float32"))
        return y
""")
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, "abacus"))
    x = np.arange(3, dtype=np.float32)
    assert vm["main"](x, np.array([2, 0], np.int32)).numpy().tolist() == [2, 0]
    with pytest.raises(RuntimeCheckError) as error:
        vm["main"](x, np.array([2, 3], np.int32)).numpy()
    assert error.value.code == "device-failed"
    assert "abacus:0: " in error.value.message
    assert "pick" in error.value.message
    assert vm["main"](x, np.array([1, 1], np.int32)).numpy().tolist() == [1, 1]


def test_its_pipeline_is_its_own() -> None:
    names = [phase.name for phase in default_pipeline("abacus").phases]
    assert names[:2] == ["prepare", "abacus"]
    assert "layout" not in names
    assert "layout" in [phase.name for phase in default_pipeline().phases]


def test_a_pass_of_its_own_refuses_with_a_place() -> None:
    text = LAYER.replace("float32", "float64")
    with pytest.raises(BuildError, match="x is float64: 16 digits on 13 rods") as error:
        relaxpy.build(relaxpy.parse(text), "abacus")
    assert error.value.span is not None
    relaxpy.build(relaxpy.parse(text), "abacus -rods=16")


def test_a_pipeline_for_another_target_is_refused() -> None:
    with pytest.raises(UsageError) as error:
        relaxpy.build(relaxpy.parse(LAYER), "abacus", pipeline=default_pipeline())
    assert error.value.code == "pipeline-target"
    assert "the pipeline is for llvm and c" in error.value.message
    assert error.value.help == 'start with default_pipeline("abacus")'
    mine = default_pipeline("abacus").without("fuse")
    assert relaxpy.build(relaxpy.parse(LAYER), "abacus", pipeline=mine)


def test_a_crash_of_a_backend_names_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = backend_of("abacus")

    def compile(*_: object, **__: object) -> None:
        raise KeyError("bead")

    monkeypatch.setattr(type(backend), "compile", compile)
    with pytest.raises(BuildError) as error:
        relaxpy.build(relaxpy.parse(LAYER), "abacus", cache=False)
    assert error.value.code == "kernel-compile"
    assert "does not compile for abacus -rods=13: KeyError: 'bead'" in error.value.message
    assert error.value.help == 'this is a defect of the backend for "abacus"'


def test_doctor_tries_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe.probe_backend("abacus") == Finding(True, "abacus -rods=13")
    monkeypatch.setattr(doctor, "probe", lambda name: Finding(True, f"{name} found"))
    out = CliRunner().invoke(doctor.doctor).output
    assert "yes  abacus   abacus found (relaxpy-abacus 1.0)" in out


BUILD = """
import relaxpy
exe = relaxpy.build(relaxpy.parse(TEXT), "abacus", cache=FOLDER)
print(exe.build_report.whole, [kernel.cached for kernel in exe.build_report.kernels])
"""


@full
@pytest.mark.slow
def test_what_is_kept_depends_on_the_sources_of_the_package(tmp_path: Path) -> None:
    """A build is found again, whole; where the package changed, it is made anew, kernels included."""
    package = tmp_path / "package"
    shutil.copytree(ABACUS, package)
    for path in package.rglob("*.py"):
        os.utime(path, (1, 1))
    code = BUILD.replace("TEXT", repr(LAYER)).replace("FOLDER", repr(str(tmp_path / "cache")))
    path = {"PYTHONPATH": f"{ROOT}{os.pathsep}{package}"}
    assert run(code, **path) == "False [False, False]\n"
    assert run(code, **path) == "True [True, True]\n"
    source = package / "relaxpy_abacus/backend.py"
    source.write_text(source.read_text("utf-8") + "\n# changed\n", encoding="utf-8")
    os.utime(source, (1, 1))
    assert run(code, **path) == "False [False, False]\n"


def test_sources_of_a_backend() -> None:
    names = [path.name for path in backend_of("abacus").sources() or ()]
    assert names == ["__init__.py", "backend.py", "check_rods.py", "device.py"]
    assert backend_of("llvm").sources() == ()


def test_a_backend_without_files_keeps_nothing() -> None:
    """One that a test or a notebook defines, say."""
    here = type("Here", (type(backend_of("abacus")),), {"__module__": "nowhere_at_all"})()
    assert here.sources() is None
    assert compiler_id(backend=here) is None


@pytest.mark.parametrize("text", ["abacus -rods=0", "abacus -rods=x", "abacus -beads=3"])
def test_its_options_are_checked(text: str) -> None:
    with pytest.raises(RelaxError) as error:
        Target.parse(text)
    assert error.value.code == "target-option"
