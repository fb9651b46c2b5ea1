"""Programs of many tensors on the hostile device, which takes eight buffers in a launch: the processor's numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import relaxpy
from relaxpy.errors import BuildError
from tests.hostile.backend import hostile_targets
from tests.hostile.memory import MOST_BUFFERS
from tests.hostile.test_programs import check, f32
from tests.sweeps import full


@pytest.fixture(autouse=True)
def devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with hostile_targets(monkeypatch):
        yield


def function(params: str, body: str, results: str) -> str:
    lines = "\n".join(f"        {line}" for line in body.strip().splitlines())
    return f"""
@R.function
def main({params}):
    n = T.int64()
    with R.dataflow():
{lines}
        R.output({results})
    return ({results})
"""


def tensors(count: int, shape: str = '("n", 6)') -> str:
    return ", ".join(f'x{i}: R.Tensor({shape}, "float32")' for i in range(count))


def most_buffers(machine: relaxpy.VirtualMachine) -> int:
    return max(len(kernel.params) for kernel in machine.executable.kernels)


@full
def test_a_sum_of_forty() -> None:
    """Fusion ends its groups where a launch is full."""
    lines = ["y0 = R.negative(x0)"]
    lines += [f"y{i} = R.add(R.exp(y{i - 1}), x{i})" for i in range(1, 40)]
    text = function(tensors(40), "\n".join(lines), "y39")
    vm = check(text, [tuple(-f32(n, 6, i)[:, :, 0] for i in range(1, 41)) for n in (3, 1)])
    assert most_buffers(vm) == MOST_BUFFERS
    assert len(vm.executable.kernels) == 3  # the five in the middle are the same


@pytest.mark.parametrize("call", ["R.concat(({}), axis=0)", "R.stack([{}], axis=1)"])
def test_thirty_tensors_become_one(call: str) -> None:
    """In groups, and the groups' results."""
    names = ", ".join(f"x{i}" for i in range(30))
    text = function(tensors(30), f"y = R.exp({call.format(names)})", "y")
    vm = check(text, [tuple(f32(n, 6) + i for i in range(30)) for n in (2, 0)])
    assert most_buffers(vm) == MOST_BUFFERS


@full
def test_one_tensor_becomes_thirty() -> None:
    """The program is several, a run of its loops each."""
    parts = ", ".join(f"R.negative(y[{i}])" for i in range(30))
    body = f"y = R.split(R.exp(x), 30, axis=0)\nz = R.concat(({parts}), axis=1)"
    vm = check(function('x: R.Tensor((60, "n"), "float32")', body, "y, z"), [(f32(60, 4),)])
    assert most_buffers(vm) == MOST_BUFFERS


def test_grids() -> None:
    """As many inputs as outputs, each of which needs one."""
    vectors = ", ".join(f'x{i}: R.Tensor(("m{i}",), "float32")' for i in range(6))
    body = f"y = R.meshgrid(({', '.join(f'x{i}' for i in range(6))}))"
    check(function(vectors, body, "y"), [tuple(f32(2 + i % 2) for i in range(6))])


def test_rows_of_many_tuples() -> None:
    """Fields of tuples are tensors like others."""
    pair = 'R.Tuple(R.Tensor(("n", 6), "float32"), R.Tensor((5,), "int64"))'
    params = ", ".join(f"t{i}: {pair}" for i in range(12))
    lines = ["y0 = R.take(t0[0], t0[1], axis=0)"]
    lines += [f"y{i} = R.add(y{i - 1}, R.take(t{i}[0], t{i}[1], axis=0))" for i in range(1, 12)]
    rng = np.random.default_rng(0)
    args = tuple((f32(7, 6) + i, rng.integers(0, 7, 5)) for i in range(12))
    check(function(params, "\n".join(lines), "y11"), [args])


def test_what_is_used_elsewhere_counts() -> None:
    """A chain whose values all are results: each is a buffer of its group."""
    lines = [f"y{i} = R.exp({f'y{i - 1}' if i else 'x'})" for i in range(20)]
    results = ", ".join(f"y{i}" for i in range(20))
    body = "\n".join(lines).replace("R.exp(", "R.tanh(")
    vm = check(function('x: R.Tensor(("n",), "float32")', body, results), [(f32(5),)])
    assert most_buffers(vm) <= MOST_BUFFERS


MANY_STAGES = """
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def many({params}):
        n = T.int64()
        total = T.sblock_alloc_buffer((n,), "float32")
        last = T.sblock_alloc_buffer((n,), "float32")
        for i in range(n):
            with T.sblock("total"):
                v = T.axis.spatial(n, i)
                total[v] = x0[v] + x1[v]
{stages}
        for i in range(n):
            with T.sblock("last"):
                v = T.axis.spatial(n, i)
                last[v] = total[v] * x0[v]
        for i in range(n):
            with T.sblock("out"):
                v = T.axis.spatial(n, i)
                o[v] = last[v] + total[v]

    @R.function
    def main({args}):
        n = T.int64()
        cls = Module
        y = R.call_tir(cls.many, ({names}), out_ty=[{kinds}])
        return y
"""


def many_stages() -> str:
    """A program that takes eleven buffers, in stages of three."""
    buffers = [*(f"x{i}" for i in range(6)), *(f"o{i}" for i in range(2, 6)), "o"]
    stage = """
        for i in range(n):
            with T.sblock("stage{0}"):
                v = T.axis.spatial(n, i)
                o{0}[v] = x{0}[v] + total[v]
"""
    return MANY_STAGES.format(
        params=", ".join(f'{name}: T.Buffer(("n",), "float32")' for name in buffers),
        args=tensors(6, '("n",)'),
        names=", ".join(f"x{i}" for i in range(6)),
        stages="".join(stage.format(i) for i in range(2, 6)),
        kinds=", ".join(['R.Tensor((n,), "float32")'] * 5),
    )


def test_a_program_of_many_stages_is_divided() -> None:
    """At its statements, and what it allocates is handed on where that is needed."""
    vm = check(many_stages(), [tuple(f32(n, 1)[:, 0] + i for i in range(6)) for n in (4, 1)])
    names = [kernel.name for kernel in vm.executable.kernels]
    assert len(names) == 2
    assert most_buffers(vm) <= MOST_BUFFERS


def test_a_program_that_takes_too_many() -> None:
    """One statement of ten tensors: the error says where it is, what it takes and what there is."""
    names = [f"x{i}" for i in range(9)]
    buffers = ", ".join(f'{name}: T.Buffer(("n",), "float32")' for name in [*names, "o"])
    text = f"""
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def ten({buffers}):
        n = T.int64()
        for i in range(n):
            with T.sblock("o"):
                v = T.axis.spatial(n, i)
                o[v] = {" + ".join(f"{name}[v]" for name in names)}

    @R.function
    def main({tensors(9, '("n",)')}):
        n = T.int64()
        cls = Module
        y = R.call_tir(cls.ten, ({", ".join(names)}), out_ty=R.Tensor((n,), "float32"))
        return y
"""
    mod = relaxpy.parse(text, filename="ten.py")
    with pytest.raises(BuildError) as caught:
        relaxpy.build(mod, "hostile")
    assert caught.value.code == "launch-buffers"
    shown = caught.value.render()
    assert (
        'the tensor program "ten" has 10 buffers, but a launch on hostile can have at most 8'
        in shown
    )
    assert "ten.py:" in shown
    relaxpy.build(mod)  # a processor takes any number
