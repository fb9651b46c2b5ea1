"""Operators of torch beyond its own samples: NaN, empty tensors, ties, limits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import relaxpy
from relaxpy.errors import RelaxError
from relaxpy.testing.interpret import interpret
from tests.sweeps import full, part, sweep

NAN, INF = float("nan"), float("inf")
SPECIAL = torch.tensor(
    [[1.0, NAN, -0.0, INF, 0.0, -INF, -2.5], [3.0, 3.0, -3.0, 2.0, 3.0, -3.0, 0.5]]
)
BOOLS = SPECIAL > 0

FLOATS = {
    "extrema": lambda x: [x.amax(1), x.amin(1), *x.max(1), *x.min(1), x.argmax(), x.argmin(1)],
    "clamp": lambda x: [x.clamp(-1, 2), x.clamp(min=x[0]), x.clamp(2, -1), F.hardtanh(x), F.relu6(x)],
    "binary": lambda x: [torch.maximum(x, x[0]), torch.minimum(x, x[0]), x.fmod(2), x % -2, x // 0.5],
    "sorted": lambda x: [*x.sort(dim=1, stable=True), *x.sort(dim=0, descending=True, stable=True), x.topk(7)[0]],
    "running": lambda x: [*x.cummax(1), *x.cummin(0), x.cumsum(1), x.cumprod(1)],
    "signs": lambda x: [x.sign(), x.sgn(), x.signbit(), torch.copysign(x, x[0]), torch.hypot(x, x[0])],
    "logarithms": lambda x: [x.log1p(), x.expm1(), x.log2(), x.log10(), x.exp2(), x.erfinv()],
    "activations": lambda x: [F.elu(x), F.selu(x), F.celu(x, 2.0), F.hardswish(x), F.mish(x), F.silu(x)],
    "questions": lambda x: [x.isnan(), x.isinf(), x.isfinite(), x == x, x.bool(), x.any(1), x.all()],
    "rounded": lambda x: [x.round(decimals=1), x.div(2, rounding_mode="trunc"), x.trunc(), x.frac()],
    "masks": lambda x: [x.nan_to_num(), x.masked_fill(x > 0, -1.0), torch.where(x > 0, x, 2.0)],
    "spread": lambda x: [x.var(1), x.std(), x[:, :2].var(1, correction=1.5), x.logsumexp(1)],
}  # fmt: skip


def check(function, *args, sizes=None) -> None:
    """One build at the sizes of `args`, or for all sizes at the sizes of other arguments."""
    mod, params = relaxpy.from_torch(function, args, dynamic_shapes=sizes and sizes[0])
    exe = relaxpy.build(mod, params=params, target="llvm -opt-level=0")
    vm = relaxpy.VirtualMachine(exe)
    for given in (args, *(sizes[1] if sizes else ())):
        found, wanted = vm["main"](*given), function(*given)
        found = found if isinstance(found, tuple) else (found,)
        for got, want in zip(found, wanted, strict=True):
            torch.testing.assert_close(torch.from_dlpack(got), want, equal_nan=True)


@sweep(2)
@sweep
@pytest.mark.parametrize("name", part([*FLOATS], 3))
def test_special_numbers(name: str) -> None:
    """NaN, infinities and zeros of both signs, as in torch."""
    check(FLOATS[name], SPECIAL)


def test_bools() -> None:
    def function(x):
        return [
            x + x[0], x * x[0], x | x[0], x ^ x[0], ~x, x < x[0], x >= x[0], torch.maximum(x, x[0]), x.sum(1),
            x.cumsum(0), x.any(0), x.all(1), x.amax(1), x.float().mean(1), x.logical_xor(x[0]), x.int().argmax(1), x.sort(1)[0],
            x.clamp(max=x[0]), x + 1, x * 2.5, -x.long(), x.prod(1),
        ]  # fmt: skip

    check(function, BOOLS)


def test_integers() -> None:
    x = torch.tensor([[7, -7, 2**62, -(2**63)], [3, -3, 5, 2**63 - 1]])

    def function(x):
        y = torch.tensor([[2], [-2]])
        return [
            x // y, x % y, x.fmod(y), x.div(y, rounding_mode="trunc"), x.div(y, rounding_mode="floor"), x << 1, x >> 1,
            x & 6, x | 1, ~x, x.abs(), x.sign(), x.sum(1), x.prod(0), x.clamp(-5, 6), x.int(), x == 7, (x % 100) / 3, x.amax(1),
            (x % 5) ** 3, x.max(1)[1], x.cumsum(1), x.float(),
        ]  # fmt: skip

    check(function, x)


DIVISIONS = {
    "floor": lambda x, y: x // y,
    "a part": lambda x, y: torch.div(x, y, rounding_mode="trunc") + 1,
    "remainder": lambda x, y: x % y,
    "fmod": lambda x, y: x.fmod(y),
    "a number": lambda x, y: 7 // y + x,
    "narrow": lambda x, y: x.to(torch.uint8) % y.to(torch.uint8),
    "rows": lambda x, y: x[:, None] // y,
    "a size": lambda x, y: x[0] // (y.shape[0] - 3),
    "in place": lambda x, y: x.clone().remainder_(y),
}


@sweep(9)
@pytest.mark.parametrize("name", DIVISIONS)
def test_integers_are_not_divided_by_0(name: str) -> None:
    """A divisor of nothing may be 0, as in torch."""
    function = DIVISIONS[name]
    mod, _ = relaxpy.from_torch(
        function, (torch.arange(5), torch.arange(1, 6)), dynamic_shapes="auto"
    )
    main = relaxpy.VirtualMachine(relaxpy.build(mod, target="llvm -opt-level=0"))["main"]
    rejected = taken = 0
    for size in (5, 3, 1, 0):
        for first in (1, 0):
            x, y = torch.arange(size) + 5, torch.arange(size) + first
            try:
                want = function(x, y)
            except (RuntimeError, IndexError):
                rejected += 1
                with pytest.raises(RelaxError):
                    main(x, y)
            else:
                taken += 1
                assert torch.equal(torch.from_dlpack(main(x, y)), want)
    assert rejected
    assert taken
    with pytest.raises(RuntimeError):
        torch.arange(4) // 0
    with pytest.raises(RelaxError, match="the divisor is not 0"):
        relaxpy.from_torch(lambda x: x // 0, (torch.arange(4),))


def test_dtypes_are_promoted_as_by_torch() -> None:
    half, number = torch.tensor([1.5, 2.5], dtype=torch.bfloat16), torch.tensor(3.14159)

    def function(h, n, i):
        return [
            h * n,
            h + i,
            i / 2,
            i * 0.5,
            i + True,
            h * 2,
            n + i,
            i // 2.0,
            h == n,
            torch.where(h > 2, h, n),
        ]

    check(function, half, number, torch.tensor([3, -4], dtype=torch.int32))


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_one_build_for_empty_tensors_and_single_rows() -> None:
    def function(x):
        y = x.reshape(-1, 3)
        return [
            x.sum(0), x.mean(0), x.var(0, correction=0), x.cumsum(0), x.sort(0)[0], x.flip(0), y.prod(1), x.repeat(2, 2),
            x.any(0), F.softmax(x, 0), torch.cat([x, x]), x.diagonal(0, 1, 2) if x.ndim > 2 else x.T, F.pad(x, (1, 2, 0, 1)),
            x.roll(1, 0), x.tril(), x[1:], x.std(0), F.layer_norm(x, (3,)), x.masked_fill(x > 0, 0.0).nansum(0),
        ]  # fmt: skip

    others = [(torch.randn(n, 3),) for n in (1, 0, 5, 2)]
    check(function, torch.randn(7, 3), sizes=(({0: "n"},), others))


def test_histogram() -> None:
    x = torch.tensor([0.0, 1.0, 1.5, 4.0, 3.999, -1.0, 9.0, 2.0])
    check(lambda x: [torch.histc(x, 4, 0, 4), torch.histc(x, 5), torch.histc(x * 0 + 2, 3)], x)


def test_pooling_with_indices() -> None:
    """The first of equal elements; what torch's inverse takes."""

    def function(x):
        y, i = F.max_pool2d(x, 3, 2, 1, return_indices=True)
        z, j = F.max_pool3d(x[:, None], 2, return_indices=True)
        w, k = F.max_pool1d(x[0], 2, return_indices=True)
        return y, i, z, j, w, k, F.max_unpool1d(w, k, 2)

    check(function, torch.randint(0, 4, (2, 3, 8, 6)).float())


RESIZED = {
    "nearest": {"scale_factor": 2.0},
    "nearest-exact": {"size": (9, 4)},
    "bilinear": {"scale_factor": 1.5},
    "bicubic": {"size": (3, 11)},
}


@sweep(2)
@pytest.mark.parametrize("mode", RESIZED)
def test_interpolation_at_all_sizes(mode: str) -> None:
    def function(x):
        return [F.interpolate(x, mode=mode, **RESIZED[mode])]

    others = [(torch.randn(n, 3, h, w),) for n, h, w in ((1, 4, 9), (3, 7, 2))]
    check(function, torch.randn(2, 3, 5, 7), sizes=(({0: "n", 2: "h", 3: "w"},), others))


def test_an_axis_that_may_vary_stays_or_is_refused() -> None:
    """Torch removes an axis of size 1; a build for all sizes has one rank."""
    mod, params = relaxpy.from_torch(
        lambda x: x.squeeze(), (torch.ones(4, 1, 3),), dynamic_shapes=({0: "n"},)
    )
    vm = relaxpy.VirtualMachine(relaxpy.build(mod, params=params, target="llvm -opt-level=0"))
    assert vm["main"](torch.ones(5, 1, 3)).shape == (5, 3)
    with pytest.raises(RelaxError, match=f"{__file__}"):
        vm["main"](torch.ones(1, 1, 3))


def test_adaptive_max_pooling() -> None:
    """Windows of any lengths, ties, NaN and indices, from one build."""
    at = {"x": {0: "n", 2: "h", 3: "w"}}

    def pooled(x):
        return [*F.adaptive_max_pool2d(x, (3, 2), return_indices=True), F.adaptive_max_pool2d(x, 1)]

    others = [torch.randint(0, 3, shape).float() for shape in ((1, 2, 1, 1), (2, 2, 9, 4))]
    others[1][0, 1, 4, 2] = NAN
    check(pooled, torch.randint(0, 3, (2, 2, 7, 5)).float(), sizes=(at, [(x,) for x in others]))
    check(lambda x: F.adaptive_max_pool1d(x, 3, return_indices=True), torch.randn(2, 8))
    check(
        lambda x: F.adaptive_max_pool3d(x, (2, 3, 1), return_indices=True), torch.randn(2, 3, 4, 2)
    )


@full
def test_convolutions_with_weights_for_each_sample() -> None:
    """Their groups are as many as the batch, at any."""

    def function(x, w, b):
        size = {"stride": (2, 1), "padding": (3, 1), "dilation": (1, 2), "groups": x.shape[0]}
        rows, turned = x.reshape(1, -1, *x.shape[2:]), w.transpose(1, 2).reshape(-1, 3, 2, 2)
        return [
            F.conv2d(rows, w.reshape(-1, 2, 2, 2), b.reshape(-1), **size),
            F.conv_transpose2d(rows, turned, b.reshape(-1), **size, output_padding=(1, 0)),
        ]

    def given(n: int, height: int, width: int) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(0)
        return torch.randn(n, 2, height, width), torch.randn(n, 3, 2, 2, 2), torch.randn(n, 3)

    shapes = [(3, 8, 7), (2, 7, 9), (1, 6, 8)]
    names = ({0: "n", 2: "h", 3: "w"}, {0: "n"}, {0: "n"})
    check(function, *given(*shapes[0]), sizes=(names, [given(*shape) for shape in shapes]))


@full
def test_bilinear() -> None:
    model = torch.nn.Bilinear(3, 4, 5)
    for shape in ((6,), (2, 3)):
        compiled = relaxpy.compile(model, torch.randn(*shape, 3), torch.randn(*shape, 4))
        x, y = torch.randn(*shape, 3), torch.randn(*shape, 4)
        torch.testing.assert_close(compiled(x, y), model(x, y).detach())


RARE = {
    "special": lambda x: [torch.erfc(x), torch.lgamma(x + 0.1), torch.digamma(x.clamp(-3, 3) + 0.3)],
    "numbers of two": lambda x: [torch.fmax(x, x[1]), torch.fmin(x, x[1]), torch.nextafter(x, x.flip(0))],
    "angles": lambda x: [torch.angle(x), torch.angle((x > 0).long() - 1)],
    "bits": lambda x: [x.view(torch.int32), x.view(torch.int32).view(torch.float32)],
    "kthvalue": lambda x: [*torch.kthvalue(x.nan_to_num().cumsum(1), 2), torch.kthvalue(x, 1, 0, True)[0]],
    "logcumsumexp": lambda x: [torch.logcumsumexp(x, 1), torch.logcumsumexp(x * 300, 0)],
    "nanmedian": lambda x: [torch.nanmedian(x), torch.nanmedian(x, 1)[0], x.nanmedian(0, True)[0]],
    "places": lambda x: [torch.searchsorted(x[1].sort().values, 0.7), torch.bucketize(2.5, x[1].sort().values)],
    "products": lambda x: [
        torch.addbmm(x[:, :1], x[None], x[None, :, :1].mT[:, :, :1] * x[None, 0, :, None], beta=0.5, alpha=2),
        torch.addmv(x[:, 0], x, x[0], beta=2),
    ],
    "masked": lambda x: [torch.masked_select(x, x[:, :1] > 2), torch.masked_select(x, x > 0)],
}  # fmt: skip


@sweep(2)
@pytest.mark.parametrize("name", RARE)
def test_few_models_have_them(name: str) -> None:
    """Through the interpreter."""
    mod, _ = relaxpy.from_torch(RARE[name], (SPECIAL,))
    found = interpret(mod, "main", SPECIAL.numpy())
    for got, want in zip(found, RARE[name](SPECIAL), strict=True):
        torch.testing.assert_close(torch.from_numpy(np.array(got)), want, equal_nan=True)


def test_numbers_of_float64() -> None:
    """They are not rounded to float32 on the way."""
    x = SPECIAL.double()

    def function(x):
        return [
            x * 0.1,
            torch.where(x > 0, x, 0.1),
            x.nan_to_num(),
            x.clamp(0.1, 0.7),
            torch.full((2,), 0.1).double(),
        ]

    mod, _ = relaxpy.from_torch(function, (x,))
    for got, want in zip(interpret(mod, "main", x.numpy()), function(x), strict=True):
        torch.testing.assert_close(
            torch.from_numpy(np.array(got)), want, rtol=0, atol=0, equal_nan=True
        )


def test_norms_under_autocast() -> None:
    """A narrow input and float32 factors."""
    layer, group = torch.nn.LayerNorm(7), torch.nn.GroupNorm(2, 4)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = torch.nn.ModuleList([layer, group])

        def forward(self, x):
            return [part(x) for part in self.parts]

    model, x = Model().requires_grad_(False), torch.randn(3, 4, 7).bfloat16()
    mod, params = relaxpy.from_torch(model, (x,))
    found = interpret(mod, "main", _array(x), *(np.asarray(each) for each in params.values()))
    for got, want in zip(found, model(x), strict=True):
        assert str(np.asarray(got).dtype) == "bfloat16"
        np.testing.assert_allclose(np.asarray(got, "float32"), want.float().numpy(), 2e-2, 2e-2)


def _array(x):
    import ml_dtypes

    return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def test_a_view_of_another_width() -> None:
    with pytest.raises(RelaxError, match="of another width"):
        relaxpy.from_torch(lambda x: x.view(torch.int16), (SPECIAL,))


def test_ranges_of_sizes_in_steps_of_floats() -> None:
    """As many as the sizes say, of whole numbers and of floats."""

    def program(x):
        n = x.shape[0]
        down = torch.arange(n, -n, -1.0, dtype=torch.int64)
        return down, torch.arange(n, -n, -0.5), torch.arange(0.5, n + 3, 1.5)

    compiled = relaxpy.compile(program, torch.ones(5))
    for rows in (5, 2, 7, 1):
        torch.testing.assert_close(compiled(torch.ones(rows)), program(torch.ones(rows)))


def test_a_length_filled_up_to_a_multiple_is_one() -> None:
    """As chunked scans have it: what is left of the parts' sizes is a quotient."""

    def program(x):
        return F.pad(x, (0, 0, 0, (4 - x.shape[0] % 4) % 4)).reshape(-1, 4, 3).sum(1)

    mod, _ = relaxpy.from_torch(program, (torch.ones(11, 3),), dynamic_shapes={"x": {0: "n"}})
    assert "% 4" not in mod.script()
    vm = relaxpy.VirtualMachine(relaxpy.build(mod))
    for rows in (11, 7, 5):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(torch.from_dlpack(vm["main"](x)), program(x))


@full
def test_common_divisors() -> None:
    def program(x, y):
        return torch.gcd(x, y), torch.lcm(x, y[:1]), x.gcd(torch.tensor(0)), x.int().gcd(y[:1])

    x, y = torch.tensor([[0], [-12], [17], [2**62]]), torch.tensor([0, 18, -51, 2**40 * 3, 1])
    check(program, x, y)
    check(program, x[:3], y, sizes=({"x": {0: "n"}, "y": {0: "m"}}, [(x[1:2], y[:1]), (x, y[1:4])]))


def test_slopes_are_drawn_in_training_alone() -> None:
    check(lambda x: [F.rrelu(x)], SPECIAL)
    with pytest.raises(RelaxError, match="draws its slopes"):
        relaxpy.from_torch(lambda x: F.rrelu(x, training=True), (SPECIAL,))
