"""Compiled modules of torch: calls, structure, state, files, memory."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import relaxpy
from relaxpy.errors import ExecutableError, RelaxError
from relaxpy.torch.tensors import argument, left_apart
from tests.sweeps import full, part, sweep


class Nested(nn.Module):
    """Nested results with constants and sizes, a keyword, a buffer that changes, in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 5)
        self.register_buffer("calls", torch.zeros(2, dtype=torch.bfloat16))

    def forward(self, x, y=None, *, scale=2):
        self.calls.add_(1)
        more = None if y is None else y + 1
        return {"a": self.linear(x) * scale, "b": (x.sum(), more, 3, x.shape[0])}


def compiled_nested() -> tuple[Nested, relaxpy.torch.CompiledModule]:
    torch.manual_seed(0)
    module = Nested().eval()
    example = torch.randn(3, 4), torch.ones(3)
    return module, relaxpy.compile(module, *example, kwargs={"scale": 3})


def assert_same(module: nn.Module, compiled, *args, **kwargs) -> None:
    with torch.no_grad():
        want = module(*args, **kwargs)
    torch.testing.assert_close(compiled(*args, **kwargs), want)


def test_one_build_serves_every_size() -> None:
    """Sizes 0 and 1, arguments by position and by name, strided ones; the buffer is the module's own."""
    module, compiled = compiled_nested()
    for rows, length in ((2, 3), (1, 0), (0, 1), (7, 5)):
        module.calls.zero_()
        found = compiled(torch.ones(rows, 4), torch.ones(length), scale=3)
        assert module.calls.tolist() == [1, 1]
        with torch.no_grad():
            torch.testing.assert_close(
                found, module(torch.ones(rows, 4), torch.ones(length), scale=3)
            )
    assert_same(module, compiled, torch.randn(4, 6).t()[:, ::1], y=torch.ones(4)[::2], scale=3)


@sweep
@pytest.mark.parametrize("dtype", part(["float32", "bfloat16", "bool", "uint8"], 4))
@pytest.mark.parametrize("rows", [0, 1, 300])
def test_results_leave_in_the_memory_that_the_call_allocated(dtype: str, rows: int) -> None:
    """Small and large ones; the same result twice, and an argument, are copied."""
    compiled = relaxpy.compile(lambda x: x[:, 1:] & x[:, 1:] if x.dtype == torch.bool else x[:, 1:] * x[:, 1:],
                               torch.ones(3, 100).to(getattr(torch, dtype)))  # fmt: skip
    x = torch.randint(0, 2, (rows, 100)).to(getattr(torch, dtype))
    given = argument(x)
    result = compiled.vm["main"](given)
    found, again, copied = left_apart([result, result, given])
    assert (found.data_ptr() if rows else 0) == (result.pointer if rows else 0)
    assert len({each.data_ptr() for each in (x, found, again, copied)}) == (4 if rows else 1)
    assert torch.equal(found, x[:, 1:])
    assert torch.equal(again, found)
    assert torch.equal(copied, x)


@full
def test_numbers_are_computed_of_sizes() -> None:
    """Floats of sizes in the program, quotients that are sizes, and numbers that are results."""

    def program(x: torch.Tensor) -> object:
        n = x.shape[0]
        scaled = torch.add(x * (n / 2) ** 0.5, x, alpha=(n - 1) / 3).clamp(max=n / 4)
        part = x[: math.ceil(n / 3)], x[: math.floor(n / 3)]
        return scaled, part, n / 2, n > 4, x.sum().item(), (x > 0).any().item()

    compiled = relaxpy.compile(program, torch.arange(14.0).reshape(7, 2))
    for rows in (7, 3, 2, 1, 0):
        x = torch.arange(2.0 * rows).reshape(rows, 2)
        assert str(compiled(x)) == str(program(x))
    with pytest.raises(RelaxError, match="does not hold"):
        relaxpy.compile(lambda x: x / (1 / x.shape[0]), torch.ones(3))(torch.ones(0))
    with pytest.raises(RelaxError, match="negative_slope is computed in the program"):
        relaxpy.compile(lambda x: F.leaky_relu(x, 1 / x.shape[0]), torch.ones(3))


def test_other_arguments_than_the_program_was_traced_for_are_refused() -> None:
    _, compiled = compiled_nested()
    x, y = torch.ones(2, 4), torch.ones(3)
    wrong = [
        ((x,), {}, "arguments"), ((x, y), {"scale": 4}, "arguments"), ((x, y), {"scale": 3.0}, "arguments"),
        ((torch.ones(2, 5), y), {"scale": 3}, "check"), ((x.double(), y), {"scale": 3}, "check"),
    ]  # fmt: skip
    for args, kwargs, code in wrong:
        with pytest.raises(RelaxError) as caught:
            compiled(*args, **kwargs)
        assert caught.value.code == code, (args, kwargs)


def test_a_saved_module_comes_back_without_the_compiler(tmp_path: Path) -> None:
    """The same numbers and structure, and a state of its own that goes on; no code is pickled."""
    _, compiled = compiled_nested()
    x, y = torch.ones(2, 4), torch.ones(3)
    want = compiled(x, y, scale=3)
    path = tmp_path / "nested.rxe"
    compiled.save(path)
    code = (
        "import sys, torch, relaxpy\n"
        f"loaded = relaxpy.torch.load({str(path)!r})\n"
        "x, y = torch.ones(2, 4), torch.ones(3)\n"
        "r = loaded(x, y, scale=3)\n"
        "print(r['a'].tolist(), r['b'][2:], loaded.state['calls'].tolist())\n"
        "print([m for m in ('tvm', 'sympy', 'relaxpy.op') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{want['a'].tolist()} (3, 2) [2.0, 2.0]", "[]"]
    assert relaxpy.load(path).function("main").public


def test_weights_of_a_large_model_are_packed_after_the_build(tmp_path: Path) -> None:
    """They are in the file as they are, beside those of convolutions, which the build folds."""
    torch.manual_seed(0)
    parts = [
        nn.Conv1d(3, 5, 3),
        nn.BatchNorm1d(5),
        nn.Linear(8, 4099),
        nn.ReLU(),
        nn.Linear(4099, 4099),
    ]
    module = nn.Sequential(*parts).eval()
    compiled = relaxpy.compile(module, torch.randn(2, 3, 10))
    assert sorted(compiled.weights) == ["_2_weight", "_4_weight"]
    compiled.save(tmp_path / "large.rxe")
    for each in (compiled, relaxpy.torch.load(tmp_path / "large.rxe")):
        assert_same(module, each, torch.randn(3, 3, 10))


@dataclass
class Pair:
    """A class of containers without a name for files."""

    x: torch.Tensor
    y: torch.Tensor


torch.export.register_dataclass(Pair)


def test_classes_that_torch_knows_go_in_and_out(tmp_path: Path) -> None:
    compiled = relaxpy.compile(
        lambda p: Pair(p.x + 1, p.y * 2), Pair(torch.randn(3), torch.randn(2))
    )
    compiled.save(tmp_path / "pair.rxe")
    for each in (compiled, relaxpy.torch.load(tmp_path / "pair.rxe")):
        found = each(Pair(torch.ones(4), torch.ones(1)))
        assert (found.x.tolist(), found.y.tolist()) == ([2.0] * 4, [2.0])


class Split(NamedTuple):
    """A named tuple, which torch has no name of for files."""

    first: torch.Tensor
    rest: tuple[torch.Tensor, int]


def test_named_tuples_go_in_and_out(tmp_path: Path) -> None:
    """A process that loads the file has them when it has imported their module."""
    compiled = relaxpy.compile(
        lambda p: Split(p.first + 1, (p.rest[0] * 2, 3)), Split(torch.ones(3), (torch.ones(2), 4))
    )
    path = tmp_path / "split.rxe"
    compiled.save(path)
    given = Split(torch.ones(5), (torch.ones(1), 4))
    for each in (compiled, relaxpy.torch.load(path)):
        found = each(given)
        assert str(found) == "Split(first=tensor([2., 2., 2., 2., 2.]), rest=(tensor([2.]), 3))"
    code = f"""
import relaxpy
try:
    relaxpy.torch.load({str(path)!r})(1)
except relaxpy.errors.RelaxError as error:
    print(error.code)
import torch
from tests.torch.test_compiled import Split
print(relaxpy.torch.load({str(path)!r})(Split(torch.ones(1), (torch.ones(1), 4))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "torch-tree",
        "Split(first=tensor([2.]), rest=(tensor([2.]), 3))",
    ]


def test_an_argument_that_a_call_changes_is_changed() -> None:
    def program(x):
        x.add_(1)
        return x * 2

    x = torch.zeros(2)
    assert relaxpy.compile(program, torch.zeros(3))(x).tolist() == [2, 2]
    assert x.tolist() == [1, 1]


def test_copies_are_in_memory_of_their_own() -> None:
    """Of an argument, of a result; what is done to a result changes nothing else."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return x.clone(), y, y.clone()

    x = torch.ones(4)
    found = relaxpy.compile(program, torch.ones(3))(x)
    found[0].add_(1)
    found[1].add_(5)
    assert x.tolist() == [1] * 4
    assert [each[0].item() for each in found] == [2, 7, 2]


def test_random_numbers_follow_the_seed_of_torch() -> None:
    """Each call draws others, and the same after the same seed."""
    compiled = relaxpy.compile(lambda x: x + torch.rand_like(x), torch.zeros(50, 40))
    torch.manual_seed(3)
    first, second = compiled(torch.zeros(50, 40)), compiled(torch.zeros(50, 40))
    torch.manual_seed(3)
    assert torch.equal(first, compiled(torch.zeros(50, 40)))
    assert not torch.equal(first, second)
    assert abs(first.mean() - 0.5) < 0.03
    assert 0 <= first.min() < first.max() < 1


def test_an_executable_is_no_compiled_module(tmp_path: Path) -> None:
    _, compiled = compiled_nested()
    compiled.executable.save(tmp_path / "plain.rxe")
    with pytest.raises(ExecutableError, match=r"relaxpy\.load"):
        relaxpy.torch.load(tmp_path / "plain.rxe")


MEMORY = """
import resource, torch, relaxpy
from torch import nn

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def network(width):
    wide = [nn.Linear(width, width, bias) for bias in (True, False)]
    return nn.Sequential(nn.Embedding(1024, width), wide[0], nn.GELU(), wide[1], nn.Linear(width, 64)).eval()

x = torch.ones(4, 6, dtype=torch.long)

relaxpy.compile(network(32), x, cache=False)(x[:, :3])
model = network(5000)
weights = sum(p.nbytes for p in model.parameters())
before = peak()
relaxpy.compile(model, x, cache=False)(x[:, :3])
print((peak() - before) / weights)
"""


@full  # test_weights_of_a_large_model_are_packed_after_the_build looks at when they are packed
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB there")
def test_import_and_build_take_little_more_than_the_weights() -> None:
    """Parameters are torch's memory; what kernels read is packed once."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) <= 1.2
