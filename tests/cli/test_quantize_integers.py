"""`relaxpy quantize MODEL TARGET.rxe`: scripts with data, what is written, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import relaxpy
from relaxpy.cli.quantize import quantize
from relaxpy.errors import RelaxError
from tests.build.test_quantize import NETWORK, WEIGHTS, samples


def run(*args: object) -> Result:
    return CliRunner().invoke(quantize, [str(each) for each in args])


def error_of(result: Result) -> str:
    assert isinstance(result.exception, RelaxError), result.output
    return result.exception.render()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A script, its weights, and a folder of two samples."""
    (tmp_path / "net.py").write_text(NETWORK)
    np.savez(tmp_path / "net.npz", **WEIGHTS)
    (tmp_path / "data").mkdir()
    first, second = (each["x"] for each in samples(2))
    np.savez(tmp_path / "data" / "a.npz", x=first)
    np.save(tmp_path / "data" / "b.npy", second)
    (tmp_path / "data" / "notes.txt").write_text("not a sample")
    return tmp_path


def test_a_script_with_data(place: Path) -> None:
    """Writes the executable, the report and the calibration, which the next run reads."""
    out, report, kept = place / "net.rxe", place / "report.json", place / "seen.json"
    options = (
        place / "net.py", out, "--params", place / "net.npz", "--data", place / "data",
        "--report", report, "--calibration", kept, "--float", "c1",
    )  # fmt: skip
    result = run(*options)
    assert result.exit_code == 0, result.output
    assert "2 of 3 layers in integers" in result.output
    layers = {each["layer"]: each for each in json.loads(report.read_text())["layers"]}
    assert layers["c1"]["reason"] == "its rule says so"
    assert layers["c2"]["error"] > 0
    x = samples(1)[0]["x"]
    assert relaxpy.VirtualMachine(relaxpy.load(out))["main"](x).shape == (1, 4)
    seen = json.loads(kept.read_text())
    assert set(seen) == {"c2"}
    seen["c2"]["data"]["high"] = 1e6  # edited: the scale is so coarse that all codes are 0
    kept.write_text(json.dumps(seen))
    again = run(*options, "--json")
    assert again.exit_code == 0, again.output
    edited = {each["layer"]: each for each in json.loads(again.output)["layers"]}
    assert edited["c2"]["error"] > 0.9


def test_mistakes(place: Path) -> None:
    net, out = place / "net.py", place / "net.rxe"
    weights = ("--params", place / "net.npz")
    (place / "empty").mkdir()
    assert "has no data" in error_of(run(net, out, *weights, "--data", place / "empty"))
    assert "no script, no model of ONNX or torch" in error_of(run(place, out))
    assert "did you mean 'c1'" in error_of(run(net, out, *weights, "--float", "c11"))
    assert "--bits is for a target that is a folder" in error_of(run(net, out, "--bits", "8"))
    folder = run(place, place / "copy", "--float", "c1")
    assert "--float is for a target that is an executable" in error_of(folder)
    np.savez(place / "data" / "c.npz", y=np.zeros(3))
    assert "sample 2 of the data" in error_of(run(net, out, *weights, "--data", place / "data"))
    assert not out.exists()


def test_a_program_of_torch(place: Path) -> None:
    """What `torch.export.save` wrote."""
    torch = pytest.importorskip("torch")

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = torch.nn.Linear(9, 17), torch.nn.Linear(17, 5)

        def forward(self, x: object) -> object:
            return self.down(torch.relu(self.up(x)))

    torch.manual_seed(0)
    model, x = Network().eval(), torch.randn(3, 9)
    torch.export.save(torch.export.export(model, (x,)), place / "net.pt2")
    result = run(place / "net.pt2", place / "net.rxe")
    assert result.exit_code == 0, result.output
    assert "2 of 2 layers in integers" in result.output
    found = relaxpy.VirtualMachine(relaxpy.load(place / "net.rxe"))["main"](x.numpy()).numpy()
    wanted = model(x).detach().numpy()
    assert np.abs(found - wanted).max() < 0.03 * np.abs(wanted).max()
    (place / "bad.pt2").write_bytes(b"no archive")
    assert "is no program of torch.export" in error_of(run(place / "bad.pt2", place / "net.rxe"))
