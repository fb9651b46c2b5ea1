"""Models in a headless Chromium: numbers beside the processor's, files that are kept, and what goes wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, count
from typing import Any

import numpy as np
import pytest

import relaxpy
from relaxpy import nn
from relaxpy.models import bert, llama
from relaxpy.testing.differential import outcome_of
from relaxpy.testing.fuzz import calls_of
from relaxpy.testing.on_device import REFUSALS
from relaxpy.testing.random_program import random_program
from relaxpy.web.export import export
from tests.e2e.devices import machine
from tests.server.chromium import Page, browser
from tests.sweeps import full, quick_target
from tests.web.browser_machine import FILES, BrowserMachine
from tests.web.support import Handler, Site, needs_chromium, served

pytestmark = needs_chromium

WEIGHT = np.arange(16, dtype=np.float32).reshape(4, 4) / 16
TEXT = """
@R.function
def main(x: R.Tensor(("n", 4), "float32"), i: R.Tensor(("n",), "int64"), w: R.Tensor((4, 4), "float32")):
    n = T.int64()
    y = R.nn.softmax(R.matmul(x, w))
    z = R.multiply(i, R.const(4294967311, "int64"))
    return (y, z, R.shape_of(x))
"""
"""A product with a constant, a reduction, int64 beyond 2**53, a shape."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    export(relaxpy.build(relaxpy.parse(TEXT), "webgpu", {"w": WEIGHT}), folder, shard=16)
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    with served(folder) as found:
        yield found


@pytest.fixture(scope="module")
def page(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile"), webgpu=True) as found:
        found.open(site.url + "test.html")
        found.until("document.body && document.body.dataset.state === 'ready'")
        if not found.run("navigator.gpu.requestAdapter().then(Boolean)"):
            pytest.skip("this Chromium has no WebGPU adapter")
        yield found


def caught(page: Page, script: str) -> tuple[str, str]:
    """The code and the message of the error of an expression."""
    found = page.run(f"caught(() => {script})")
    assert "code" in found, found
    return found["code"], found["message"]


def test_a_call(page: Page, site: Site) -> None:
    """One executable for all sizes, none among them; int64 is exact; errors say what was expected, and where."""
    vm = BrowserMachine(page, "./model/")
    for rows in (1, 5, 0):
        x = np.linspace(-1, 1, rows * 4, dtype=np.float32).reshape(rows, 4)
        i = np.arange(rows) * 2**30 - 7
        y, z, shape = vm["main"](x, i)
        power = np.exp(x @ WEIGHT)
        np.testing.assert_allclose(y, power / power.sum(1, keepdims=True), rtol=1e-5)
        np.testing.assert_array_equal(z, i * 4294967311)
        assert tuple(shape) == (rows, 4)
    by_name = "vm.main({i: [1, 2], x: [[0, 0, 0, 0], [0, 0, 0, 0]]}).then(async ([y]) => y.list())"
    assert page.run(by_name) == [[0.25] * 4] * 2
    for script, code, expected in [
        ("vm.main([[1, 2]], [1])", "check", "main: parameter x: dimension 1 is 2, not 4"),
        (
            "vm.main([[1, 2, 3, 4]], [1, 2])",
            "check",
            "parameter i: dimension 0 (n) must be 1, got 2",
        ),
        ("vm.main(new Int32Array(4), [1])", "check", "the dtype is int32, not float32"),
        ("vm.main([[1, 2, 3, 4]])", "arguments", "main takes 2 arguments, got 1"),
        ("vm.main({x: [[1, 2, 3, 4]], k: 1})", "arguments", "main has no parameter k; lacks i"),
        ("vm.call('main2')", "function-name", "there are: main"),
    ]:
        assert caught(page, script)[0] == code
        assert expected in caught(page, script)[1]
    assert "<text>:3" in caught(page, "vm.main([[1, 2]], [1])")[1]


def test_without_webgpu(page: Page, site: Site) -> None:
    """A folder for both targets: a browser without WebGPU, or whose device is too small, runs WebAssembly with the same
    results; what is asked for and is not there is named."""
    mod = relaxpy.parse(TEXT)
    exes = [relaxpy.build(mod, target, {"w": WEIGHT}) for target in ("webgpu", "wasm")]
    export(exes, site.folder / "both")
    call = "vm.main([[1, 2, 3, 4]], [7]).then(async ([y, z]) => [vm.target, await y.list(), await z.list()])"
    page.run("load('./both/model/')")
    assert page.run("vm.target") == "webgpu"
    (wanted, *first) = page.run(call)
    page.run("load('./both/model/', {adapter: {limits: {maxStorageBuffersPerShaderStage: 1}}})")
    target, *second = page.run(call)
    assert (wanted, target) == ("webgpu", "wasm")
    np.testing.assert_allclose(second[0], first[0], rtol=1e-6)
    assert second[1] == first[1] == [7 * 4294967311]
    assert page.run("load('./both/model/', {target: 'wasm'}).then(() => vm.target)") == "wasm"
    code, message = caught(page, "load('./model/', {target: 'wasm'})")
    assert code == "device"
    assert "has no code for wasm, but for webgpu" in message
    assert "relaxpy web --target wasm" in message
    code, message = caught(
        page,
        "(async () => { const {validate} = WebAssembly; WebAssembly.validate = () => false;"
        " try { return await load('./both/model/', {target: 'wasm'}); } finally { WebAssembly.validate = validate; } })()",
    )
    assert code == "device-features"
    assert "no vectors" in message


def test_files_are_kept(page: Page, site: Site) -> None:
    """Weights come in shards, with progress; a second visit downloads the manifest alone."""
    page.run("relaxpy.clearStorage()")
    progress = page.run(
        "(async () => { const seen = []; await load('./model/', {keep: true, progress: (p) => seen.push(p)}); return seen; })()"
    )
    loaded = [each["loaded"] for each in progress]
    assert loaded == sorted(loaded)
    assert loaded[-1] == progress[-1]["total"]
    manifest = json.loads((site.folder / "model/model.json").read_text())
    (model,) = manifest["models"]
    count = 2 + len(model["weights"])
    assert page.run("vm.filesKept") < count - 2  # shards with equal bytes are one file
    site.asked.clear()
    page.run("load('./model/', {keep: true})")
    assert site.asked == ["/model/model.json"]
    assert page.run("vm.filesKept") == count
    assert page.run("vm.main([[0, 0, 0, 0]], [1]).then(([y]) => y.list())") == [[0.25] * 4]
    page.run("relaxpy.clearStorage()")


def short(handler: Handler) -> bool:
    """Sends half of a shard."""
    if not handler.path.endswith("weights-00001.bin"):
        return False
    handler.send_response(200)
    handler.send_header("Content-Length", "16")
    handler.end_headers()
    handler.wfile.write(bytes(8))
    handler.close_connection = True
    return True


def changed(handler: Handler) -> bool:
    """Sends other bytes."""
    if not handler.path.endswith("weights-00001.bin"):
        return False
    handler.send_response(200)
    handler.send_header("Content-Length", "16")
    handler.end_headers()
    handler.wfile.write(b"x" * 16)
    return True


def gone(handler: Handler) -> bool:
    if not handler.path.endswith("weights-00001.bin"):
        return False
    handler.send_error(404)
    return True


@pytest.mark.parametrize(
    ("answer", "code", "expected"),
    [
        (short, "file-truncated", "webgpu/weights-00001.bin ended after"),
        (changed, "file-damaged", "weights-00001.bin is damaged: its checksum is"),
        (gone, "file-read", "weights-00001.bin: 404"),
    ],
)
def test_downloads_that_fail(page: Page, site: Site, answer: Any, code: str, expected: str) -> None:
    """They are tried again where that may help, and then say which file it was."""
    site.asked.clear()
    site.answers.append(answer)
    try:
        found = caught(page, "load('./model/', {retries: 1})")
        tries = site.asked.count("/model/webgpu/weights-00001.bin")
    finally:
        site.answers.clear()
    assert found[0] == code, found
    assert expected in found[1]
    assert tries >= (1 if answer is gone else 2)
    once = iter([True])
    site.answers.append(lambda handler: next(once, False) if answer(handler) else False)
    page.run("caught(() => load('./model/'))")  # the next attempt gets the file
    site.answers.clear()
    page.run("load('./model/')")


def test_models_that_do_not_load(page: Page, site: Site) -> None:
    """No WebGPU, a device that is too small, another version, another file: each says so."""
    page.run("globalThis.small = {limits: {maxStorageBuffersPerShaderStage: 1}}")
    assert caught(page, "load('./model/', {adapter: small})")[0] == "device-features"
    assert (
        "needs maxStorageBuffersPerShaderStage of"
        in caught(page, "load('./model/', {adapter: small})")[1]
    )
    hidden = "(async () => { Object.defineProperty(navigator, 'gpu', {value: undefined, configurable: true}); try { return await %s } finally { delete navigator.gpu } })()"
    assert (
        "this browser has no WebGPU"
        in page.run(hidden % "caught(() => load('./model/'))")["message"]
    )
    nobody = "(async () => { Object.defineProperty(navigator, 'gpu', {value: {requestAdapter: async () => null}, configurable: true}); try { return await %s } finally { delete navigator.gpu } })()"
    assert "but no adapter" in page.run(nobody % "caught(() => load('./model/'))")["message"]
    assert caught(page, "load('./nowhere/')")[0] == "file-read"
    assert caught(page, "load('./test.html?')")[0] in ("file-read", "file-format")
    manifest = site.folder / "model/model.json"
    before = manifest.read_bytes()
    try:
        manifest.write_text(json.dumps({**json.loads(before), "format": 99}))
        assert caught(page, "load('./model/')")[0] == "file-version"
        manifest.write_text("<html>")
        assert caught(page, "load('./model/')")[0] == "file-format"
    finally:
        manifest.write_bytes(before)
    assert caught(page, "load('./model/', {signal: AbortSignal.abort()})")[0] == "file-read"


def initialised(model: nn.Module) -> nn.Module:
    rng = np.random.default_rng(0)
    for _, parameter in model.named_parameters():
        parameter.data = (rng.standard_normal(parameter.shape) * 0.2).astype(np.float32)
    return model


@full("make test-devices")
def test_models(page: Page, site: Site) -> None:
    """An encoder and a decoder at four shapes, one token of one sentence among them, by WebGPU and by WebAssembly: the
    processor's numbers, and equal texts."""
    from tests.e2e.test_devices import decoder, encoder

    config = replace(llama.TINY, num_hidden_layers=2)
    functions = llama.spec(config)
    del functions["logits"]
    for model, spec, run in [
        (
            bert.BertEncoder(replace(bert.TINY, num_hidden_layers=2)),
            {"embed": bert.SPEC["embed"]},
            encoder,
        ),
        (llama.Llama(config), functions, decoder),
    ]:
        mod, params = initialised(model).export(spec)
        export(
            [relaxpy.build(mod, each, params) for each in ("webgpu", "wasm")], site.folder / "other"
        )
        host = machine(mod, str(quick_target()), params)
        for target in ("webgpu", "wasm"):
            vm: Any = BrowserMachine(page, "./other/model/", target)
            for got, want in zip(run(vm), run(host), strict=True):
                np.testing.assert_allclose(got, want, rtol=0, atol=2e-5)


@full("make test-devices")
@pytest.mark.parametrize("first", range(0, 50, 10))
def test_random_programs(first: int, page: Page, site: Site) -> None:
    """The same as the interpreter, at all sizes of a program; at most one in twenty is refused by the compiler.
    Programs that call functions in Python are not for a browser: others take their places."""
    wrong: list[str] = []
    refused: list[str] = []
    done = 0
    for seed in chain(range(first, first + 10), count(50 + first)):
        if done == 10:
            break
        program = random_program(seed)
        try:
            export(relaxpy.build(program.mod, "webgpu"), site.folder / "random")
        except relaxpy.RelaxError as error:
            if error.code == "web-export" and "relaxpy.testing." in error.message:
                continue
            done += 1
            (refused if error.code in REFUSALS else wrong).append(f"seed {seed}: {error.message}")
            continue
        done += 1
        vm: Any = BrowserMachine(page, "./random/model/")
        for call in calls_of(program):
            problem = call.disagreement(outcome_of(vm, call))
            if problem:
                wrong.append(f"{call.label}: {problem}")
    assert not wrong, "\n".join(wrong)
    assert len(refused) <= 2, refused
