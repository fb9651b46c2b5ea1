"""Plans of decoders, beside what is allocated and what a process takes."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from relaxpy.cli.main import cli
from relaxpy.errors import RelaxError, UsageError
from relaxpy.ir.module import IRModule
from relaxpy.machine_memory import MachineMemory
from relaxpy.models.decoder_plan import plan_decoder
from relaxpy.models.loaded import Scheme, load_decoder
from tests.llm.checkpoints import write_model
from tests.models.test_families import checkpoint
from tests.sweeps import FULL, full, part, quick_target, sweep


@sweep
@pytest.mark.parametrize(
    ("name", "scheme"),
    part(
        [
            ("llama", Scheme()), ("llama", Scheme(None, activations=None)),
            ("gpt2", Scheme(8, activations=None, cache_dtype="int8")), ("gemma3", Scheme(8, activations=None)),
        ],
        4,
    ),
)  # fmt: skip
def test_weights_and_pages_are_those_of_the_model(
    tmp_path: Path, name: str, scheme: Scheme, modules_round_trip: list[IRModule]
) -> None:
    """To the byte; of the last layers, too, which the plan has not looked at."""
    checkpoint(name, tmp_path, **({"num_hidden_layers": 5} if name == "llama" else {}))
    plan = plan_decoder(tmp_path, scheme, context=100, batch=3)
    loaded = load_decoder(tmp_path, scheme, target=str(quick_target()))
    assert plan.weights == loaded.packed.nbytes
    caches = loaded.vm["alloc_pages"](plan.pages)
    held = sum(tensor.nbytes for pages in caches for tensor in flat(pages))
    assert plan.cache == held
    assert plan.pages == 3 * -(-100 // loaded.page_size)
    assert plan.step == 300
    assert plan.activations > 300 * 32 * 4
    if not FULL:
        modules_round_trip.clear()  # tests/models/test_families.py has them


def flat(value: Any) -> list[Any]:
    return [value] if hasattr(value, "dtype") else [each for part in value for each in flat(part)]


def test_what_fits() -> None:
    from relaxpy.models.decoder_plan import DecoderPlan

    plan = DecoderPlan(
        "llama", 900, 500, 10, 32, 64, 2, 4096, 64, 100, 50, MachineMemory(2000, 1000)
    )
    assert (plan.pages, plan.cache, plan.total, plan.fits) == (4, 40, 690, True)
    assert plan.largest_context == (1000 - 650) // 20 * 32
    assert "it fits" in str(plan)
    assert "the largest context that fits: 544 tokens" in str(plan)
    small = dataclasses.replace(plan, machine=MachineMemory(2000, 600))
    assert (small.fits, small.largest_context) == (False, 0)
    assert "no context fits" in str(small)
    large = dataclasses.replace(plan, machine=MachineMemory(1 << 30, 1 << 30))
    assert large.largest_context == 4096
    assert "all that the model has" in str(large)
    assert "is unknown" in str(dataclasses.replace(plan, machine=None))


CODE = r"""
import re, sys
from relaxpy import llm
from relaxpy.models.loaded import Scheme
model = llm.load(sys.argv[1], scheme=Scheme(None, activations=None), context=512, batch=4, target=sys.argv[2])
texts = [model.generate([5 + n] * 500, max_tokens=12, end_tokens=()) for n in range(int(sys.argv[3]))]
for each in texts:
    next(each, None)
# The peak of ru_maxrss may be that of the parent.
print(int(re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())[1]) << 10)
"""


@full
def test_a_process_takes_what_was_planned(tmp_path: Path) -> None:
    """The peak of a process that starts from what is kept and fills its cache, within a tenth."""
    sizes = {
        "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 16,
        "num_key_value_heads": 16, "head_dim": 64, "max_position_embeddings": 512, "vocab_size": 4_000,
    }  # fmt: skip
    place = write_model(tmp_path / "model", **sizes)
    plan = plan_decoder(place, Scheme(None, activations=None), context=512, batch=4)
    assert plan.cache > 90e6
    assert plan.weights > 9e6
    for texts in (0, 4):  # the first start compiles and packs
        done = subprocess.run(
            [sys.executable, "-c", CODE, str(place), str(quick_target()), str(texts)],
            capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == pytest.approx(plan.total, rel=0.1)


@full
def test_the_command(tmp_path: Path) -> None:
    place = write_model(tmp_path / "model")
    (program := tmp_path / "program.py").write_text("")

    def run(*args: str) -> Any:
        return CliRunner().invoke(cli, ["plan", *args])

    result = run(str(place), "--context", "128", "--batch", "2", "--bits", "8")
    assert result.exit_code == 0, result.exception
    for word in ("weights", "pages", "activations", "a token", "it fits", "largest context"):
        assert word in result.output
    found = json.loads(run(str(place), "--json").output)
    assert (found["context"], found["batch"], found["positions"]) == (256, 1, 256)
    assert found["fits"] is True
    for args, match in (
        ([str(place), "--context", "999"], "the model has 256 positions"),
        ([str(place), "--size", "n=1"], "with a language model"),
        ([str(place / "config.json"), "--batch", "2"], "is neither a folder with config.json"),
        ([str(program), "--batch", "2"], "is a program"),
        ([str(tmp_path)], "has no"),
    ):
        error = run(*args).exception
        assert isinstance(error, RelaxError)
        assert match in error.render()


def test_mistakes(tmp_path: Path) -> None:
    place = write_model(tmp_path / "model")
    with pytest.raises(UsageError, match="batch and step are at least 1"):
        plan_decoder(place, batch=0)
