"""`torch.compile(…, backend="relaxpy")`: numbers, builds, state, memory, strides, what runs in torch."""

from __future__ import annotations

import copy
import gc
import sys
import threading
import tomllib
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import relaxpy
from relaxpy.errors import RelaxError
from relaxpy.torch.kept_weights import _shared
from relaxpy.torch.report import Built, GraphWarning
from tests.sweeps import full, part, sweep

longer = full("make test-torch-compile")


OPTIONS = {"target": "llvm -opt-level=0"}
"""The loops are the same without LLVM's optimisations, which take most of the time of a build."""


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is compiled or said yet."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    monkeypatch.setattr(
        sys.modules["relaxpy.torch.report"], "_log", sys.modules["relaxpy.torch.report"]._Log()
    )
    yield
    torch._dynamo.reset()


def fast(model: Any, dynamic: bool | None = True) -> Any:
    return torch.compile(model, backend=relaxpy.torch.backend, dynamic=dynamic, options=OPTIONS)


def built() -> tuple[Built, ...]:
    """What was compiled. Nothing may have been refused."""
    found = relaxpy.torch.report()
    assert not found.fallbacks
    return found.built


def assert_same(found: Any, want: Any) -> None:
    """Equal numbers, dtypes, shapes and strides."""
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5, check_stride=True)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).eval()


def test_the_backend_has_a_name() -> None:
    """torch finds it by the entry point of the package."""
    project = Path(relaxpy.__file__).parent.parent / "pyproject.toml"
    entries = tomllib.loads(project.read_text())["project"]["entry-points"]
    assert entries["torch_dynamo_backends"] == {"relaxpy": "relaxpy.torch:backend"}


@longer
def test_one_build_for_all_sizes_and_one_each_for_0_and_1() -> None:
    model = network()
    compiled = fast(model)
    with torch.no_grad():
        for rows in (3, 7, 2, 0, 1, 5, 1, 0):
            x = torch.randn(rows, 8)
            assert_same(compiled(x), model(x))
    assert [len(each.sizes) for each in built()] == [1, 0, 0]


class Attention(nn.Module):
    """Tokens, positions, heads, a causal mask: numbers in a graph that may be sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(50, 16), nn.Embedding(64, 16)
        self.project = nn.Linear(16, 48)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows, length = ids.shape
        x = self.embed(ids) + self.places(torch.arange(length))
        q, k, v = (
            each.view(rows, length, 2, 8).transpose(1, 2)
            for each in self.project(x).chunk(3, dim=-1)
        )
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return x + y.transpose(1, 2).reshape(x.shape)


@sweep
@pytest.mark.parametrize("gradients", part([True, False], 2))
@longer
def test_by_default_later_builds_are_there_already(gradients: bool) -> None:
    """torch traces for one size, and again for others: the program of the first build has sizes that vary."""
    model = Attention().eval()
    calls = [
        (torch.randint(0, 50, shape),) for shape in ((3, 9), (3, 11), (4, 12), (7, 13), (2, 5))
    ]
    with torch.set_grad_enabled(gradients):
        wanted = asked(model, calls, dynamic=None)
        compiled = fast(model, dynamic=None)
        for args in calls:
            assert_same(compiled(*args), model(*args))
    assert len(built()) == wanted == 3
    for later in built()[1:]:
        assert later.reused == later.kernels


@sweep
@pytest.mark.parametrize("sizes", part([(2, 8), (2, 2), (4, 2), (8, 16), (16, 2)], 5))
@longer
def test_numbers_that_only_look_like_sizes_do_no_harm(sizes: tuple[int, int]) -> None:
    """Batches and lengths that are also numbers of heads and channels."""
    model = Attention().eval()
    compiled = fast(model, dynamic=None)
    with torch.no_grad():
        for rows, length in (sizes, (3, 5)):
            ids = torch.randint(0, 50, (rows, length))
            assert_same(compiled(ids), model(ids))
    assert len(built()) == 2


def test_the_first_call_of_a_model_needs_no_no_grad() -> None:
    """The forward of a training graph is compiled; the gradients are torch's."""
    model = network()
    other = copy.deepcopy(model)
    compiled = fast(model)
    for rows in (3, 5):
        x = torch.randn(rows, 8)
        found, want = compiled(x), other(x)
        assert_same(found, want)
        found.square().sum().backward()
        want.square().sum().backward()
    (graph,) = built()
    assert graph.kind == "training"
    assert graph.name.startswith("Sequential (")  # torch's own, at the line that calls it
    assert f"{Path(__file__).name}:" in graph.name
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert_same(one.grad, two.grad)


class Trained(nn.Module):
    """Buffers that a call changes, an embedding, and dropout that keeps all."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.norm = nn.BatchNorm1d(8)
        self.out = nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids).mean(1)
        return self.out(torch.relu(nn.functional.dropout(self.norm(x), 0.0, self.training)))


def test_training_is_eager_training() -> None:
    """Losses, weights and statistics after some steps, of batches of two sizes."""
    model = Trained().train()
    other = copy.deepcopy(model)
    steps = [(torch.randint(0, 20, (n, 5)), torch.randint(0, 3, (n,))) for n in (4, 6, 4, 6)]

    def losses(run: Any, own: nn.Module) -> list[float]:
        optimiser = torch.optim.AdamW(own.parameters(), 0.05)
        found: list[float] = []
        for ids, labels in steps:
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(run(ids), labels)
            loss.backward()
            optimiser.step()
            found.append(loss.detach().item())
        return found

    assert losses(fast(model), model) == pytest.approx(losses(other, other), rel=1e-4)
    assert len(built()) == 1
    for name, value in other.state_dict().items():
        assert_same(model.state_dict()[name], value)


def test_changed_weights_are_packed_again() -> None:
    """By operators, load_state_dict and other data; by `p.data` with `refresh`."""
    model = nn.Linear(8, 16).eval()
    compiled, x = fast(model), torch.randn(3, 8)
    with torch.no_grad():

        def check() -> None:
            assert_same(compiled(x), model(x))

        check()
        model.weight.mul_(2)
        check()
        model.load_state_dict(nn.Linear(8, 16).state_dict())
        check()
        model.weight.data = torch.randn(16, 8)
        check()
        model.weight.data.add_(1)
        relaxpy.torch.refresh(model)
        check()
        model.weight = nn.Parameter(torch.randn(16, 8))
        check()


def test_packed_weights_are_shared_and_freed() -> None:
    """Graphs of other sizes share them; copies of the model have their own; nothing is left of a model that is gone."""
    gc.collect()
    before = len(_shared)
    model = nn.Linear(8, 16).eval()
    compiled = fast(model)
    with torch.no_grad():
        for rows in (3, 1, 0):
            compiled(torch.randn(rows, 8))
        assert len(_shared) == before + 1
        copied = copy.deepcopy(model)
        copied.weight.mul_(3)
        again, x = fast(copied), torch.randn(3, 8)
        assert_same(again(x), copied(x))
        assert_same(compiled(x), model(x))
    assert len(_shared) == before + 2
    gone = weakref.ref(model)
    del model, compiled
    gc.collect()
    assert gone() is None
    assert len(_shared) == before + 1


def test_weights_made_in_inference_mode_have_no_version() -> None:
    with torch.inference_mode():
        model = nn.Linear(8, 4)
        compiled, x = fast(model), torch.randn(3, 8)
        assert_same(compiled(x), model(x))
        model.weight.add_(1)
        assert_same(compiled(x), model(x))


def asked(
    program: Callable[..., Any], calls: Sequence[tuple[Any, ...]], dynamic: bool | None = True
) -> int:
    """How many graphs torch hands to a backend for these calls."""
    from functorch.compile import nop
    from torch._dynamo.backends.common import aot_autograd

    graphs: list[Any] = []

    def count(graph: Any, examples: Any) -> Any:
        graphs.append(graph)
        return nop(graph, examples)

    backend = aot_autograd(fw_compiler=count, bw_compiler=nop)
    compiled = torch.compile(program, backend=backend, dynamic=dynamic)
    for args in copy.deepcopy(calls):
        compiled(*args)
    torch._dynamo.reset()
    return len(graphs)


def call_all(program: Callable[..., Any], *calls: tuple[Any, ...]) -> None:
    """Compare results and changed arguments of calls; there are as many builds as torch asks for."""
    before, wanted = len(built()), asked(program, calls)
    compiled = fast(program)
    for args in calls:
        mine, theirs = copy.deepcopy(args), copy.deepcopy(args)
        assert_same(compiled(*mine), program(*theirs))
        assert_same(mine, theirs)
    assert len(built()) - before == wanted


@longer
def test_strides_of_results_are_eager_ones() -> None:
    def program(x: torch.Tensor, image: torch.Tensor) -> Any:
        y = x * 2
        turned = torch.relu(image).permute(0, 2, 1, 3)
        return y.T, y.T.exp(), (x + 1)[:, ::2], (y[:1] - 1).expand(4, -1), turned, image.abs()

    def images(batch: int, rows: int) -> torch.Tensor:
        return torch.randn(batch, 4, rows, 6).to(memory_format=torch.channels_last)

    call_all(program, (torch.randn(3, 5), images(2, 7)), (torch.randn(7, 9), images(3, 8)))
    x = torch.randn(3, 5)
    assert fast(lambda x: (x * 2).T)(x).T.view(-1).shape == (15,)


@longer
def test_inputs_are_strided_sliced_and_permuted() -> None:
    base = torch.randn(8, 12)
    call_all(lambda x: x @ x.T + 1, (base[::2, 2::2],), (base[1:4, 2:10:2],))
    call_all(lambda x: x.sum(1) * 2, (base.T,), (base[:5].T,))


def shared_memory(values: Sequence[Any]) -> list[int]:
    """For each tensor, the first one whose memory it has."""
    begins = [each.untyped_storage().data_ptr() for each in torch.utils._pytree.tree_leaves(values)]
    return [begins.index(each) for each in begins]


VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "a value and its views": lambda y: (y, y.T, y[1:], y.reshape(-1), y.T.reshape(-1), y.detach()),
    "views without the value": lambda y: (y.T, y[:, ::2]),
    "views of views": lambda y: (y.T[1:], y.unsqueeze(0).expand(3, -1, -1), y.view(torch.int32)),
    "parts": lambda y: (y.chunk(2, 1), y.split([1, 3], 1), y.unbind(1), y.tensor_split(2, 1)),
    "parts without the value": lambda y: y.unbind(1),
    "diagonals and windows": lambda y: (y.diagonal(), y.unfold(1, 2, 1), y.select(0, 1), y.mT),
    "sizes of another value": lambda y: (y, y.view((y + 1).shape[0] * 2, -1)),
}


@sweep
@pytest.mark.parametrize("name", part(list(VIEWS), len(VIEWS)))
@pytest.mark.parametrize("gradients", [False, True])
def test_views_of_one_value_share_its_memory(name: str, gradients: bool) -> None:
    """As eager's results do: what is written to one of them is seen in the others."""

    def program(x: torch.Tensor) -> Any:
        return x.T, VIEWS[name](x * 2), VIEWS[name](x.to(torch.float32))

    compiled = fast(program)
    for rows in (3, 5):
        x = torch.randn(rows, 4, requires_grad=gradients)
        found, want = compiled(x), program(x)
        assert_same(found, want)
        assert shared_memory((x, found)) == shared_memory((x, want))
    assert len(built()) == 1


def test_results_share_memory_only_where_eager_ones_do() -> None:
    """Copies, the same value twice, views of arguments, arguments themselves, numbers and None."""

    def program(x: torch.Tensor, k: int) -> Any:
        y = x * k
        return x.clone(), y, y.clone(), x.view(-1), x, k + 1, None, x.shape[0]

    compiled = fast(program)
    for rows, k in ((3, 3), (5, 4)):
        x = torch.randn(rows, 4)
        found = compiled(x, k)
        assert_same(found, program(x, k))
        copied, y, again, flat, same, *_ = found
        assert same is x
        assert flat.data_ptr() == x.data_ptr()
        assert len({each.data_ptr() for each in (x, copied, y, again)}) == 4


def test_query_heads_share_key_heads() -> None:
    def program(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        q, k = q.unflatten(2, (4, 8)).transpose(1, 2), k.unflatten(2, (2, 8)).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(q, k, k, enable_gqa=True)

    q, k = torch.randn(2, 5, 32), torch.randn(2, 7, 16)
    assert_same(fast(program)(q, k), program(q, k))
    assert len(built()) == 1


def test_tensors_that_a_function_makes() -> None:
    """They are real ones in torch's graph; an empty cache is such a one."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.tensor([]), x * torch.tensor([2.0, 3.0])])

    x = torch.randn(2)
    assert_same(fast(program)(x), program(x))
    assert len(built()) == 1


def test_arguments_that_a_call_changes_and_numbers() -> None:
    def program(x: torch.Tensor, scale: float, k: int) -> torch.Tensor:
        x.add_(1)
        x[0] = scale
        return x[: k - 1] * scale

    call_all(program, (torch.randn(4, 5), 2.5, 3), (torch.randn(6, 2), -0.5, 5))


def test_sizes_by_a_float() -> None:
    """As scale factors make them, of images that are contiguous."""
    call_all(
        lambda x, factor: nn.functional.interpolate(x, scale_factor=factor),
        (torch.randn(1, 2, 4, 4), 2.0),
        (torch.randn(1, 2, 4, 4), 1.5),
    )


def test_a_divisor_of_0_is_an_error_of_the_call() -> None:
    compiled = fast(lambda x, y: x // y)
    assert compiled(torch.tensor([7, -7]), torch.tensor([2, 2])).tolist() == [3, -4]
    with pytest.raises(RelaxError, match="zero_divisors"):
        compiled(torch.tensor([7, -7]), torch.tensor([2, 0]))


@sweep
@pytest.mark.parametrize("dtype", part([torch.bfloat16, torch.float16, torch.float64], 3))
def test_other_dtypes(dtype: torch.dtype) -> None:
    model = network().to(dtype)
    compiled = fast(model)
    for rows in (3, 5):
        x = torch.randn(rows, 8).to(dtype)
        tolerance = {torch.float64: 1e-9}.get(dtype, 3e-2)
        found = compiled(x)
        torch.testing.assert_close(found, model(x), rtol=tolerance, atol=tolerance)
        assert found.dtype == dtype


def test_dropout_draws_by_torchs_seed() -> None:
    compiled, x = fast(nn.Dropout(0.25).train()), torch.ones(50, 40, requires_grad=True)
    torch.manual_seed(3)
    first, second = compiled(x), compiled(x)
    torch.manual_seed(3)
    assert torch.equal(first, compiled(x))
    assert not torch.equal(first, second)
    assert abs(float((first == 0).float().mean()) - 0.25) < 0.05
    first.sum().backward()
    assert torch.equal(x.grad, first.detach())  # the mask of the backward is that of the forward


def test_threads_call_one_graph() -> None:
    model = network()
    compiled = fast(model)
    calls = [(x := torch.randn(rows, 8), model(x)) for rows in (2, 3, 40, 5)]
    with torch.no_grad():
        compiled(calls[0][0])
    wrong: list[str] = []

    def work(x: torch.Tensor, want: torch.Tensor) -> None:
        with torch.no_grad():
            for _ in range(50):
                if not torch.allclose(compiled(x), want, rtol=1e-4, atol=1e-5):
                    wrong.append(str(x.shape))

    threads = [threading.Thread(target=work, args=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_breaks_are_said_once_with_the_setting_that_helps() -> None:
    """`.item()`, masks, and recurrent layers, of which a backend sees nothing."""

    def item(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + (x * 2).sum().item()

    x = torch.randn(4)
    compiled = fast(item)
    with pytest.warns(GraphWarning, match=r"capture_scalar_outputs = True") as said:
        found = [compiled(each) for each in (x, torch.ones(6))]
    torch.testing.assert_close(found, [item(each) for each in (x, torch.ones(6))])
    assert len(said) == 1
    (found,) = relaxpy.torch.report().breaks
    assert "item" in found.name
    assert f"{Path(__file__).name}:" in found.name
    assert found.advice == "set torch._dynamo.config.capture_scalar_outputs = True"

    layer = nn.LSTM(3, 4)
    torch.testing.assert_close(fast(layer)(torch.ones(2, 3, 3)), layer(torch.ones(2, 3, 3)))
    assert [each.advice for each in relaxpy.torch.report().breaks[1:]] == [
        "set torch._dynamo.config.allow_rnn=True"
    ]
    assert "graph breaks: run by torch:" in str(relaxpy.torch.report())


def test_a_graph_that_is_not_supported_is_run_by_torch_and_said_once() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x + 3 * torch.eye(x.shape[0])) + 1

    compiled = fast(program)
    given = [torch.randn(size, size) for size in (3, 5, 1)]
    with pytest.warns(GraphWarning, match="not supported") as said:
        found = [compiled(x) for x in given]
    torch.testing.assert_close(found, [program(x) for x in given])
    assert len(said) == len(relaxpy.torch.report().fallbacks)
    assert all("linalg_inv" in each.reason for each in relaxpy.torch.report().fallbacks)


def test_wrong_options_are_refused() -> None:
    for options, text in (({"targte": 1}, "targte"), ({"target": "opencl"}, "opencl")):
        compiled = torch.compile(network(), backend=relaxpy.torch.backend, options=options)
        with pytest.raises(Exception, match=text):
            compiled(torch.ones(2, 8))


def test_importing_relaxpy_needs_no_torch() -> None:
    import subprocess

    code = "import sys, relaxpy; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_nothing_global_of_torch_is_changed() -> None:
    from torch._dynamo import config

    before = config.get_config_copy()
    fast(network())(torch.ones(3, 8))
    assert config.get_config_copy() == before
