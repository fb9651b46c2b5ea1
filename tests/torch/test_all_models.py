"""Whole models of transformers, tiny by one rule, beside themselves at three shapes from one build.

    python -m tests.torch.test_all_models --log build/models.jsonl         # types that models.txt lacks, which takes hours
    python -m tests.torch.test_all_models bert vit                         # these
    python -m tests.torch.test_all_models --log build/models.jsonl --table # writes models.txt of what the log has

A type that the rule does not make, or torch does not export, is no failure; the log says why. It has a line for each type,
and what it has is not run again. `RELAXPY_SWEEPS=full python -m pytest tests/torch/test_all_models.py` does the same.
"""

from __future__ import annotations

import argparse
import random
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import relaxpy
from relaxpy.build import default_pipeline
from relaxpy.errors import RelaxError
from relaxpy.frontend.torch import from_torch, import_program
from relaxpy.frontend.torch.importer import Imported
from relaxpy.torch.compiled import CompiledModule
from relaxpy.transform.base import PassContext
from tests import logged
from tests.sweeps import FULL, full
from tests.torch.tiny_models import Tiny, kinds, tiny_model

SHAPES = ((3, 11), (2, 7), (1, 5))
"""Batch and length of the calls; the first is traced."""
QUICK = ("bert", "llama", "vit") if FULL else ("llama",)
SECONDS = 300
"""Of a processor, for a type: some look at pictures of 1008 by 1008 only."""


TABLE = Path(__file__).with_name("models.txt")
"""Each type, its outcome, and the cause: of the log that was run last."""

OTHER_BRANCH = "another branch at a size of 1"
"""The trace is not the model's there, which is told with its line."""


RANDOM = "random numbers"
"""Eager gives other results at each call."""


class NotExported(Exception):
    """The rule makes no such model, or torch exports none."""


@cache
def imported(kind: str) -> tuple[Tiny, Imported]:
    """The tiny model of a type, and its program. Raises NotExported, RelaxError."""
    try:
        tiny = tiny_model(kind)
    except Exception as error:
        raise NotExported(f"not made: {_line(error)}") from None
    why = ""
    for prepared in (nullcontext, transformers_patches):
        try:
            with prepared(tiny):
                return tiny, import_program(tiny.model, (), dict(tiny.inputs), dict(tiny.sizes))
        except RelaxError as error:
            if error.code != "torch-export":
                raise
            why = _line(error)
    raise NotExported(f"not exported: {why}")


@contextmanager
def transformers_patches(tiny: Tiny) -> Iterator[None]:
    """What transformers itself replaces of a model before torch.export: loops over pictures, and `**kwargs`."""
    from transformers.exporters import exporter_dynamo, utils

    with (
        utils.apply_patches("dynamo"),
        exporter_dynamo.patch_forward_signature(tiny.model, dict(tiny.inputs)),
    ):
        yield


def differences(kind: str) -> list[str]:
    """What differs from eager at each shape, from one build. Raises NotExported, RelaxError."""
    tiny, found = imported(kind)
    with torch.no_grad():
        wanted = [(call := tiny.call(*shape), tiny.model(**call)) for shape in SHAPES]
    exe = relaxpy.build(found.mod, params=found.params, target="llvm -opt-level=0")
    compiled = CompiledModule(exe, found.signature, found.state, {})
    texts: list[str] = []
    for (batch, length), (call, want) in zip(SHAPES, wanted, strict=True):
        try:
            texts.append(_difference(compiled(**call), want))
        except RelaxError as error:
            if error.code != "check" or 1 not in (batch, length):
                raise
            texts.append(f"{OTHER_BRANCH}: {_line(error)}")
    return [text for text in texts if text]


def draws(kind: str) -> bool:
    """Does the model differ from itself at a second call?"""
    tiny, _ = imported(kind)
    call = tiny.call(*SHAPES[0])
    with torch.no_grad():
        return _difference(tiny.model(**call), tiny.model(**call)) != ""


def _difference(found: Any, want: Any) -> str:
    """Where the results differ by more than the sums of a few layers; "" if they do not."""
    pairs = zip(pytree.tree_leaves(found), pytree.tree_leaves(want), strict=True)
    for one, other in pairs:
        if isinstance(other, torch.Tensor):
            scale = float(other.float().abs().max()) if other.numel() else 1.0
            try:
                torch.testing.assert_close(
                    one, other, rtol=1e-3, atol=1e-3 * max(1.0, scale), equal_nan=True
                )
            except AssertionError as error:
                return str(error)
    return ""


def _line(error: BaseException) -> str:
    message = getattr(error, "message", str(error)).strip()
    return f"{type(error).__name__}: {' '.join(message.split())[:300]}"


def outcome(kind: str) -> dict[str, Any]:
    """The record of a type: "equal", "wrong", "refused", "not made" or "not exported", and why."""
    try:
        texts = differences(kind)
        wrong = [text for text in texts if not text.startswith(OTHER_BRANCH)]
        if wrong and draws(kind):
            return {"outcome": RANDOM, "text": "eager differs from itself"}
        outcome = "wrong" if wrong else OTHER_BRANCH if texts else "equal"
        return {"outcome": outcome, "text": "; ".join(wrong or texts)[:1000]}
    except NotExported as reason:
        return {"outcome": str(reason).split(":")[0], "text": str(reason)}
    except RelaxError as error:
        names = re.findall(r"((?:aten|operator|higher_order|\w+)\.[\w.]+) \(", str(error))
        return {"outcome": "refused", "text": str(error)[:1500], "operators": names}


CAUSES = (
    (r"requires the (\w+) library", r"the package \1"),
    (r"Could not find|has no attribute|no inputs", "transformers has no such model by itself"),
    (r"ValueError: not tiny$|: not tiny$", "not tiny"),
    (r"validate_architecture", "an inconsistent configuration"),
    (r"^not made", "an input that the rule does not make, or an inconsistent configuration"),
    (r"data-dependent expression|\.item\(\)|\.tolist\(\)", "a branch by a value"),
    (r"[Cc]onstraints violated|specialized|Not all values", "a size that torch fixes"),
    (r"^not exported: \w+: torch\.export refuses \w+: ([^:.]{3,60})", r"\1"),
    (r"^(?:error\[([\w-]+)\])", r"\1"),
)
"""What the text of a record has → its cause; the first that fits."""


def cause(record: logged.Record) -> str:
    text = " ".join(str(record.get("text", "")).split())
    if record.get("operators"):
        return ", ".join(record["operators"])
    for pattern, meaning in CAUSES:
        if record["outcome"] != "equal" and (found := re.search(pattern, text)):
            return found.expand(meaning)
    return ""


def write_table(log: Path) -> None:
    """Write what the log has into the table, which keeps the other types as they are."""
    lines = table_lines()
    for record in logged.read(log):
        why = cause(record)
        lines[record["item"]] = record["outcome"] + (f": {why}" if why else "")
    found = Counter(lines.values())
    outcomes = Counter(line.partition(":")[0] for line in lines.values())
    heads = [
        "Types of transformers and their outcomes, by: python -m tests.torch.test_all_models --table",
        f"{len(kinds())} types, {len(lines)} run: "
        + ", ".join(f"{count} {name}" for name, count in outcomes.most_common()),
        *(f"{count} {name}" for name, count in sorted(found.items(), key=lambda x: (-x[1], x[0]))),
    ]
    rows = [f"{kind}: {lines[kind]}" for kind in sorted(lines)]
    TABLE.write_text("\n".join([*(f"# {head}" for head in heads), *rows]) + "\n")


def table_lines() -> dict[str, str]:
    """Type → outcome and cause, of the table."""
    lines = TABLE.read_text().splitlines() if TABLE.exists() else []
    return dict(line.split(": ", 1) for line in lines if not line.startswith("#"))


def test_the_table_has_no_wrong_numbers() -> None:
    outcomes = {line.partition(":")[0] for line in table_lines().values()}
    assert "equal" in outcomes
    assert "wrong" not in outcomes


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", QUICK)
def test_a_model_is_right_at_every_shape(kind: str) -> None:
    assert differences(kind) == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ("llama", "qwen2", "mistral", "gemma") if FULL else ("llama",))
def test_decoders_have_causal_attention_of_shared_heads(kind: str) -> None:
    """No mask of all pairs, and no key head twice, though the trace has both."""
    tiny, found = imported(kind)
    context = PassContext(target=relaxpy.Target.parse("llvm"))
    mod = found.mod
    for phase in default_pipeline().phases[:4]:
        for step in phase.passes:
            mod = step.run(mod, context)
    calls = [line for line in mod.script().splitlines() if "nn.attention(" in line]
    assert len(calls) == 2
    heads = tiny.config.num_key_value_heads
    keys = f", {heads}, {tiny.config.hidden_size // tiny.config.num_attention_heads})"
    for line in calls:
        _, key, value, bias = line.partition("nn.attention(")[2].split(", ")[:4]
        assert 'causal_mask="TopLeft"' in line
        for name, size in ((key, keys), (value, keys), (bias, "(batch, 1, 1, length)")):
            (made,) = (each for each in mod.script().splitlines() if f" {name}: " in each)
            assert size in made.partition("=")[0]


@full("make test-torch-models")
def test_every_model_is_right() -> None:
    """At least 95 % of what torch exports, and no wrong numbers."""
    records = swept(kinds(), Path("build/models.jsonl"))
    exported = [r for r in records if r["outcome"] not in ("not made", "not exported", RANDOM)]
    assert [r for r in exported if r["outcome"] == "wrong"] == []
    right = [r for r in exported if r["outcome"] in ("equal", OTHER_BRANCH)]
    assert len(right) >= 0.95 * len(exported)


def swept(names: list[str], log: Path, seconds: int = SECONDS) -> list[logged.Record]:
    torch.set_num_threads(1)  # there are no threads in a copy of a process
    first = tiny_model(QUICK[0])  # imports what each process needs
    mod, params = from_torch(first.model, (), first.inputs, first.sizes)
    relaxpy.build(mod, params=params, target="llvm -opt-level=0", cache=False)
    return logged.run(log, names, outcome, seconds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*")
    parser.add_argument("--log", type=Path, help="goes on with this file")
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="of a processor, a type")
    parser.add_argument("--table", action="store_true", help="only writes the table, of the log")
    options = parser.parse_args()
    if options.table:
        write_table(options.log)
        return
    index, parts = map(int, options.part.split("/"))
    listed = table_lines()
    left = [kind for kind in random.Random(0).sample(kinds(), len(kinds())) if kind not in listed]
    names = options.kinds or left[index::parts]
    with TemporaryDirectory() as folder:
        log = options.log or Path(folder, "models.jsonl")
        records = swept(names, log, options.seconds)
    print(logged.table(records))  # noqa: T201


if __name__ == "__main__":
    main()
