"""What all tests share: the number of threads, set before any library is loaded."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from relaxpy.ir.module import IRModule

# Tests run in two processes on two cores: more threads would only stand in each other's way. XLA and
# torch read their own variables.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Kernels that many tests compile are compiled once: all processes of a run share a cache of its own. The user's is not
# touched.
if "RELAXPY_TESTS_CACHE" not in os.environ:
    os.environ["RELAXPY_TESTS_CACHE"] = tempfile.mkdtemp(prefix="relaxpy-tests-")
    atexit.register(shutil.rmtree, os.environ["RELAXPY_TESTS_CACHE"], ignore_errors=True)
os.environ["RELAXPY_CACHE_DIR"] = os.environ["RELAXPY_TESTS_CACHE"]
os.environ.pop("RELAXPY_CACHE_SIZE", None)
# Tests start many processes: each would compile our sources to bytecode anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Nothing of what is imported and collected is garbage: see `pytest_collection_finish`.
gc.disable()


WHOLE_PROGRAMS = (
    *("cli", "docs", "e2e", "fuzz", "models", "op", "backend", "build", "hostile", "testing", "explain", "device_emulation"),
    *("benchmarks", "embedded", "llm", "nn", "serve", "server", "tir/lowering", "tir/numerics", "tir/programs"),
)  # fmt: skip
"""Folders of tests that build and run whole programs, or many kernels: all of them count as slow."""

LONG = (
    *("script/test_nesting.py", "test_services.py", "test_wheel.py", "analysis/test_relayout.py", "tir/test_allowed.py"),
    *("runtime/test_updates.py", "runtime/test_weights.py", "runtime/test_sizes.py"),
    *("runtime/devices/cpu/test_lines.py", "runtime/host/test_threads.py", "runtime/devices/opencl/test_device.py"),
    *("transform/test_check_calls.py", "transform/test_fuse_tensor_ir.py", "transform/test_launches.py"),
    *("transform/test_quantize_weights.py", "transform/test_update_in_place.py"),
    *("transform/test_fuse_ops.py", "transform/test_plan_memory.py", "transform/test_inline_private_functions.py"),
    *("transform/test_check_tensor_programs.py", "transform/test_lift_transform_params.py"),
    *("transform/test_cast_weights.py", "transform/test_combine_parallel.py", "transform/test_winograd.py"),
    *("analysis/test_index_checks.py", "tir/test_parse.py", "runtime/test_link.py"),
    *("runtime/devices/cuda/test_cublas.py", "runtime/devices/cuda/test_cudnn.py", "runtime/inspect/test_measure.py"),
    *("checkpoints/test_gguf_models.py", "checkpoints/test_quantized.py", "checkpoints/test_quantize.py"),
    *("runtime/test_tuned.py", "tir/lowering/test_definitions.py"),
)  # fmt: skip
"""Other files that take several seconds."""

RANDOM = "test_random_programs"
"""Tests of this name, wherever they are, count as slow, too."""


HALVES = (
    "backend/cpu/rules", "backend/gpu", "e2e", "frontend/onnx", "hostile", "models", "nn", "onnx", "op", "speech", "tir",
    "transform",
)  # fmt: skip
"""Folders whose tests have tables of cases, sizes and dtypes: of a test that says nothing of sweeps, every second one."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark these tests as slow, and sweeps."""
    root = Path(__file__).parent
    slow = tuple(f"{folder}/" for folder in WHOLE_PROGRAMS) + LONG
    halves = tuple(f"{folder}/" for folder in HALVES)
    whole = os.environ.get("RELAXPY_SWEEPS") == "full"
    for item in items:
        path = item.path.relative_to(root).as_posix()
        # Of one that says how many, the part is as quick as other tests.
        sweep = any(whole or not mark.args for mark in item.iter_markers("sweep"))
        full = item.get_closest_marker("full")
        if path.startswith(halves) and item.get_closest_marker("sweep") is None:
            item.add_marker(pytest.mark.sweep(2))
        if path.startswith(slow) or item.name.startswith(RANDOM) or sweep or full is not None:
            item.add_marker(pytest.mark.slow)
        if full is not None and not whole:
            command = full.args[0] if full.args else "make test-slow"
            item.add_marker(pytest.mark.skip(reason=f"takes long: {command}"))
    if not whole and not any("[" in each for each in config.args):
        from tests.sweeps import drawn_items

        kept = drawn_items(items)
        if len(kept) < len(items):
            left = {item.nodeid for item in items} - {item.nodeid for item in kept}
            config.hook.pytest_deselected(items=[each for each in items if each.nodeid in left])
            items[:] = kept


def pytest_collection_finish() -> None:
    """What is imported and collected by now stays: Python's collector need not look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before its fixtures build anything: does LLVM optimise the kernels of this test?"""
    from tests.sweeps import FULL, set_optimised

    set_optimised(FULL or item.get_closest_marker("optimised") is not None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """What a file has left when its fixtures are gone stays as well: modules, what functions have cached. Tests that ask
    for a collection would look at all of it, up to three seconds each at the end of a run."""
    yield
    _, young, old = gc.get_count()
    if (nextitem is None or nextitem.path != item.path) and young + 20 * old >= 4:
        gc.collect()
        gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden`: write the expected texts of golden tests anew, to be read as a difference."""
    parser.addoption("--update-golden", action="store_true", help="write golden files anew")


@pytest.fixture(autouse=True)
def modules_round_trip(request: pytest.FixtureRequest) -> Iterator[list[IRModule]]:
    """Whatever module a test makes, by whatever way: its script parses back to an equal one. Gives the modules so far;
    those that are taken out are not looked at.

    In tests of the printer, the parser and the IR all are looked at. Elsewhere builds make one after each pass: of
    these, some are (`some_modules`), and all in a full sweep.
    """
    from relaxpy.testing.round_trip import check_all, modules_made
    from tests.sweeps import some_modules

    with modules_made() as made:
        yield made
    all_of_them = request.path.parent.name in ("script", "ir")
    check_all(made if all_of_them else some_modules(made, request.node.nodeid))
