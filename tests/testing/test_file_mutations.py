"""Executables that somebody has changed, with right checksums: none ends the process, hangs, or has its text executed.

`RELAXPY_MUTATIONS` is how many are tried; `relaxpy fuzz --files 20000` has more.
"""

from __future__ import annotations

import builtins
import faulthandler
import multiprocessing
import os
import random
from concurrent.futures import ProcessPoolExecutor

import pytest

from relaxpy.runtime import VirtualMachine, load
from relaxpy.runtime.bytecode import INSTRUCTIONS
from relaxpy.testing import file_mutations
from relaxpy.testing.file_corpus import Sample, write_corpus
from relaxpy.testing.file_mutations import CANARY, Pieces, mutate_files, tally
from tests.sweeps import FULL

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
COUNT = int(os.environ.get("RELAXPY_MUTATIONS", "300" if FULL else "60"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def test_changed_files() -> None:
    """In a process of its own: one that has run other tests is large, and its children are as slow as it is large."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
        found, ends = processes.submit(tally, COUNT).result()
    assert not found
    assert sum(ends.values()) == COUNT
    # Most are refused, but not all: some of what changes makes another program.
    assert ends["refused"] > COUNT // 3
    assert ends["error"] > COUNT // 20


def test_the_corpus_has_every_instruction(corpus: list[Sample]) -> None:
    files = [load(sample.file) for sample in corpus]
    has = {type(instr) for exe in files for code in exe.functions for instr in code.code}
    assert has == set(INSTRUCTIONS)
    assert any(exe.unproved[i] for exe in files for i in range(len(exe.functions)))


@pytest.mark.parametrize(
    ("what", "finding"),
    [
        ("signal", "the process ended with -11"),
        ("exit", "the process ended with 3"),
        ("hang", "no end after 1 s"),
        ("exception", "KeyError"),
        ("canary", "executed"),
        ("program", "executed"),
    ],
)
def test_what_is_found(what: str, finding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tester sees what it looks for."""

    def try_file(*_: object) -> str:
        match what:
            case "signal":
                faulthandler.disable()
                os.kill(os.getpid(), 11)
            case "exit":
                os._exit(3)
            case "hang":
                while True:
                    pass
            case "exception":
                raise KeyError("x")
            case "canary":
                setattr(builtins, CANARY, 1)
            case _:
                os.system("true")
        return "ran"

    monkeypatch.setattr(file_mutations, "try_file", try_file)
    monkeypatch.setattr(file_mutations, "SECONDS", 1.0)
    monkeypatch.setattr(file_mutations, "write_corpus", lambda _: [])
    (found,) = mutate_files(1)
    assert finding in found.what


def test_same_seed_same_file(corpus: list[Sample]) -> None:
    files = [file_mutations._read(sample) for sample in corpus]
    texts: list[Pieces] = []
    for _ in range(2):
        rng = random.Random(7)
        texts.append(file_mutations.changed(rng.choice(files), files, rng))
    assert texts[0] == texts[1]


def test_the_files_run_unchanged(corpus: list[Sample]) -> None:
    for sample in corpus:
        name, args = sample.calls[0]
        VirtualMachine(load(sample.file), check_memory=True)[name](*args)
