"""The package `relaxpy-web`, and a model's package in a Vite application: types, the development server, the build.

Vite and TypeScript are not among the test requirements. `npm ci --prefix tests/web/vite` installs them, once
`python -m tests.web.vite.model` has written the model's package; without them these tests are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from relaxpy.version import __version__
from tests.server.chromium import browser
from tests.web.support import needs_chromium, served
from tests.web.vite.model import HERE, WEIGHT, write

BIN = HERE / "node_modules/.bin"
needs_vite = pytest.mark.skipif(
    not (BIN / "vite").exists(), reason="Vite is not installed: npm ci --prefix tests/web/vite"
)
JS = Path(str(files("relaxpy.web").joinpath("js")))


@pytest.fixture(scope="module", autouse=True)
def model() -> None:
    if (BIN / "vite").exists():
        write()


def run(*command: str | Path, folder: Path = HERE) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def shown(url: str, folder: Path) -> str:
    """What the page shows when it is done. Its browser has no WebGPU."""
    with browser(folder) as page:
        page.open(url)
        page.until("/wasm:|\\[/.test(document.getElementById('out')?.textContent)")
        assert not page.mistakes()
        return page.run("document.getElementById('out').textContent")


def expected() -> str:
    power = np.exp(np.array([1, 2, 3, 4], np.float32) @ WEIGHT)
    return "wasm: 1 × 4: " + ", ".join(f"{value:.3f}" for value in power / power.sum())


@needs_vite
@needs_chromium
def test_the_build(tmp_path: Path) -> None:
    """`load()` without an address finds the files where the bundler has put them."""
    run(BIN / "vite", "build", "--outDir", tmp_path / "dist")
    with served(tmp_path / "dist") as site:
        assert shown(site.url, tmp_path / "profile") == expected()


@contextmanager
def developing() -> Iterator[str]:
    """The address of Vite's development server."""
    command = [BIN / "vite", "--host", "127.0.0.1", "--port", "0", "--clearScreen", "false"]
    process = subprocess.Popen(
        command, cwd=HERE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield next(line.split()[-1] for line in process.stdout if "http://" in line)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)
        process.stdout.close()


@needs_vite
@needs_chromium
def test_the_development_server(tmp_path: Path) -> None:
    with developing() as url:
        assert shown(url, tmp_path / "profile") == expected()


RIGHT = """
import { RelaxError, Tensor, Tokenizer, clearStorage, load } from "%s";
const vm = await load("./model/", { target: "wasm", stalled: 5, signal: AbortSignal.timeout(1000), keep: false });
const target: "webgpu" | "wasm" = vm.target;
const [y, shape] = await vm.main([[1, 2, 3, 4]]);
const values: Float32Array = await y.array();
const dims: readonly (number | bigint)[] = shape.dims;
const again: Tensor<"float32"> = (await vm.main({ x: new Float32Array(4) }))[0];
await vm.main(vm.upload(new Float32Array(4), "float32"));
await vm.main({ data: new Float32Array(8), shape: [2, 4] });
const facts: unknown = await vm.json("page.json");
const other = await load<{ f(x: number): Promise<Tensor> }>("./other/");
const tensor: Tensor = await other.f(3);
const ids: number[] = new Tokenizer(facts).encode("text");
"""
WRONG = (
    "vm.main()", 'vm.main("text")', "vm.main([[1]], [[2]])", "vm.main(new Int32Array(4))", "vm.man([[1]])",
    "vm.main({ y: [[1]] })", "(await vm.main([[1]]))[2]", 'load("./model/", { target: "cpu" })',
    'vm.upload([1], "float99")', "new Tensor()", "other.main([[1]])",
    "const integers: BigInt64Array = await y.array()",
)  # fmt: skip


@needs_vite
@pytest.mark.parametrize("package", ["model", "relaxpy-web"])
def test_types(package: str, tmp_path: Path) -> None:
    """tsc accepts right uses of a model's functions, and refuses each wrong one. The package without a model takes any
    function."""
    place = (HERE / "model" if package == "model" else JS) / "relaxpy.js"
    if package == "model":
        right = RIGHT % place.as_posix()
        wrong = "\n".join(f"// @ts-expect-error\n{each};" for each in WRONG)
    else:
        right = f'import {{ load }} from "{place.as_posix()}";\nconst vm = await load("./model/");\nconst y = await vm.main([[1]]);\n'
        wrong = "// @ts-expect-error\nvm.main(Symbol());\n// @ts-expect-error\nvm.target = 3;"
    (tmp_path / "use.ts").write_text(f"{right}\n{wrong}\nexport {{}};\n")
    (tmp_path / "tsconfig.json").write_text(
        (HERE / "tsconfig.json").read_text().replace('"src"', '"use.ts"')
    )
    run(BIN / "tsc", "--project", tmp_path)
    if package == "model":
        run(BIN / "tsc")  # the example


def test_the_lock_file_is_whole() -> None:
    """`npm ci`, as docs/browser.md says, refuses a lock file that lacks what one of its packages asks for, optional or
    not."""
    packages = json.loads((HERE / "package-lock.json").read_text())["packages"]
    there = {name.rpartition("node_modules/")[2] for name in packages}
    asked = {
        each
        for package in packages.values()
        for kind in ("dependencies", "devDependencies", "optionalDependencies")
        for each in package.get(kind, ())
    }
    assert asked
    assert asked <= there


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_the_package_without_a_model() -> None:
    """`npm pack` takes the machine, its types, and nothing of the pages."""
    facts = json.loads((JS / "package.json").read_text(encoding="utf-8"))
    assert (facts["name"], facts["version"]) == ("relaxpy-web", __version__)
    (packed,) = json.loads(run("npm", "pack", "--dry-run", "--json", "--offline", folder=JS))
    names = {each["path"] for each in packed["files"]}
    ours = {each.name for each in JS.iterdir() if each.suffix in (".js", ".ts", ".json")}
    assert names == ours - {"page.js", "sw.js"}
