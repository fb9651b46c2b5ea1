"""Sampling: from distributions and from the logits of language models, with random numbers given by the caller."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from relaxpy.ir.accessors import expect
from relaxpy.ir.annotation import Annotation, TensorType
from relaxpy.ir.dim import Dim, dim_op
from relaxpy.ir.dtype import DType
from relaxpy.ir.known import KnownTensor
from relaxpy.op import te
from relaxpy.op.base import Op, Sample, define_op, rand, sample, wrong
from relaxpy.op.deduction import Deduction
from relaxpy.op.linear_algebra import wide_dtype
from relaxpy.op.rule import INTEGERS


@define_op
class MultinomialFromUniform(Op):
    """Sample from categorical distributions by inverse transform: for each number u of `uniform_sample` (n, 1), the
    first index at which the running sum of a row of `prob` (batch, size) exceeds u. For u uniform in [0, 1) the index
    has the probabilities of the row. `sample_indices` (n, 1) selects the row; a row out of range is clamped (0 if there
    is no row). If u is not below the sum of the row, the last index with a probability above 0 is returned."""

    name = "multinomial_from_uniform"
    no_vjp = "it samples"
    dtype: DType = DType("int64")
    """Dtype of the result."""

    def deduce(
        self, d: Deduction, prob: KnownTensor, uniform_sample: KnownTensor,
        sample_indices: KnownTensor,
    ) -> TensorType:  # fmt: skip
        d.need_float(prob, "prob")
        d.need_float(uniform_sample, "uniform_sample")
        d.need_int(sample_indices, "sample_indices")
        d.require(
            self.dtype.is_int, f"indices must be integers, got {self.dtype}", arg="dtype",
            code="op-dtype",
        )  # fmt: skip
        tensors = {
            "prob": prob, "uniform_sample": uniform_sample, "sample_indices": sample_indices,
        }  # fmt: skip
        for name, x in tensors.items():
            d.require(
                x.ndim == 2,
                f"{name} must have 2 dimensions, got {x.ndim}",
                arg=name,
                code="op-rank",
            )
        columns = {"uniform_sample": uniform_sample.dims, "sample_indices": sample_indices.dims}
        for name, dims in columns.items():
            d.same_dim(dims[1], Dim.of(1), f"{name} must be one column", arg=name)
        count = d.same_dim(
            uniform_sample.dims[0], sample_indices.dims[0], "numbers of samples differ",
            arg="sample_indices",
        )  # fmt: skip
        d.ensure(dim_op("le", 1, prob.dims[1]), "prob must have at least one class", arg="prob")
        return TensorType((count, 1), self.dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        return TensorType(None, self.dtype, 2)

    def legalize(
        self,
        out: KnownTensor,
        prob: te.Tensor,
        uniform_sample: te.Tensor,
        sample_indices: te.Tensor,
    ) -> te.Tensor:
        from relaxpy.tir.programs.scan import scan

        batch, size = te.dims(prob)
        wide = wide_dtype(DType(str(prob.dtype)))
        number = _number_dtype(str(prob.dtype), str(uniform_sample.dtype))
        sums = scan(prob, (batch, size), 1, wide, operator.add, -0.0)
        k = te.reduce_axis(size)

        def row(i: Any) -> Any:
            last = te.dim(batch) - te.dim(1)
            index = te.cast(sample_indices(i, te.dim(0)), DType("int64"))
            return te.maximum(te.minimum(index, last), te.dim(0))

        def total(i: Any, place: Any) -> Any:
            """A running sum of the row of sample i; 0 if there are no rows."""
            read = te.element(sums(row(i), place))
            if batch.value:
                return te.cast(read, number)
            inside = te.greater(te.dim(batch), te.dim(0))
            return te.cast(te.if_then_else(inside, read, te.literal(0, read)), number)

        def counted(below: Any) -> te.Tensor:
            def element(i: Any) -> Any:
                return te.sum(te.cast(below(i), DType("int64")), k)

            return te.compute(out.dims[:1], element, "counted")  # type: ignore[index]

        def passed(i: Any) -> Any:
            u = te.cast(uniform_sample(i, te.dim(0)), number)
            return te.less_equal(total(i, k), u)

        totals = te.compute(out.dims[:1], lambda i: total(i, te.dim(size) - te.dim(1)), "total")

        def incomplete(i: Any) -> Any:
            return te.less(total(i, k), totals(i))

        first, last = counted(passed), counted(incomplete)
        return te.compute(
            out.dims, lambda i, _: te.cast(te.minimum(first(i), last(i)), self.dtype), "drawn"
        )

    def reference(
        self, prob: np.ndarray, uniform_sample: np.ndarray, sample_indices: np.ndarray
    ) -> np.ndarray:
        if len(prob) == 0:
            return np.zeros(uniform_sample.shape, self.dtype.numpy)
        wide = wide_dtype(DType(prob.dtype)).numpy
        number = DType(_number_dtype(str(prob.dtype), str(uniform_sample.dtype))).numpy
        sums = np.cumsum(prob.astype(wide), axis=1, dtype=wide).astype(number)
        rows = sums[np.clip(sample_indices[:, 0].astype(np.int64), 0, len(prob) - 1)]
        first = np.sum(rows <= uniform_sample.astype(number), axis=1)
        last = np.sum(rows < rows[:, -1:], axis=1)
        return np.minimum(first, last)[:, None].astype(self.dtype.numpy)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        prob = np.array([[0.25, 0.25, 0.5], [0.5, 0.0, 0.5]], np.float32)
        u = np.array([[0.3], [0.5], [0.0], [0.25], [1.0]], np.float32)
        rows = np.array([[0], [1], [1], [0], [1]], np.int64)
        dims = "b v, n 1, n 1"
        yield sample(cls(), prob, u, rows, dims=dims)
        yield sample(cls(DType("int32")), prob, u, rows.astype(np.int32), dims="2 3, n 1, n 1")
        yield sample(cls(), prob.astype(np.float16), u, rows, dims=dims)
        yield sample(cls(), np.array([[0.5, 0.25, 0.0]]), u, rows - 9, dims=dims)
        yield sample(cls(), prob[:0], u, rows, dims=dims)
        yield sample(cls(), prob, u[:0], rows[:0], dims=dims)
        yield wrong(cls(), prob[0], u, rows, code="op-rank", match="prob")
        yield wrong(cls(), prob, u, rows[:4], code="shape-mismatch", match="5 and 4")
        yield wrong(cls(), prob, rand(5, 2), rows, code="shape-mismatch", match="one column")
        yield wrong(cls(), prob, u, u, code="op-dtype", match="integers")
        yield wrong(cls(), prob[:, :0], u, rows, code="shape-mismatch", match="at least one class")


def _number_dtype(prob: str, uniform: str) -> DType:
    """The dtype in which probabilities and samples are compared."""
    return DType("float64" if "float64" in (prob, uniform) else "float32")


UNIT_BITS = 40
"""The sums of `sample_from_logits` are of units of 2 to this power, negative."""
FRACTION_BITS = 53
"""The bits of a random number: as many as a float64 has."""
MASK_BITS = 32
"""Tokens of a word of a mask."""
_MOST = 1 << 22
"""The largest vocabulary: the sums of more weights might not fit into 64 bits."""


@define_op
class ProcessLogits(Op):
    """Logits (rows, vocab), float32 or narrower, as float32 after biases, penalties and masks, in this order, every row
    by its own options. `bias_tokens` and `biases` (rows, biases): what is added to which token. `histories` (rows,
    length) are the tokens so far, of which the first `prompts` (rows,) were given, not generated. A token in the
    history has its logit divided by the repetition penalty (multiplied if negative); one that was generated has the
    presence penalty subtracted, and the frequency penalty for each time. Bit t % 32 of word t // 32 of `masks` (rows,
    words), int32, is set if token t is allowed; the others get minus infinity. Tokens out of range in `bias_tokens` and
    `histories` are skipped, as padding is."""

    name = "process_logits"
    no_vjp = "it prepares sampling"

    def deduce(
        self, d: Deduction, logits: KnownTensor, bias_tokens: KnownTensor, biases: KnownTensor,
        histories: KnownTensor, prompts: KnownTensor, repetition_penalties: KnownTensor,
        presence_penalties: KnownTensor, frequency_penalties: KnownTensor, masks: KnownTensor,
    ) -> TensorType:  # fmt: skip
        _need_logits(d, logits)
        row = {
            "repetition_penalties": repetition_penalties, "presence_penalties": presence_penalties,
            "frequency_penalties": frequency_penalties,
        }  # fmt: skip
        for name, x in {"biases": biases, **row}.items():
            d.need_float(x, name)
        tables = {"bias_tokens": bias_tokens, "histories": histories}
        for name, x in {**tables, "prompts": prompts}.items():
            d.need_int(x, name)
        d.require(
            masks.dtype == "int32",
            f"masks must be int32, got {masks.dtype}",
            arg="masks",
            code="op-dtype",
        )
        _need_rows(d, logits, 1, **row, prompts=prompts)
        _need_rows(d, logits, 2, **tables, biases=biases, masks=masks)
        d.same_dim(bias_tokens.dims[1], biases.dims[1], "numbers of biases differ", arg="biases")
        words = dim_op("floordiv", logits.dims[1] + (MASK_BITS - 1), MASK_BITS)
        d.same_dim(masks.dims[1], words, "masks have not a bit for each token", arg="masks")
        return TensorType(logits.dims, "float32")

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        return TensorType(None, DType("float32"), 2)

    def legalize(self, out: KnownTensor, *given: te.Tensor) -> te.Tensor:
        from relaxpy.tir.programs.sampling import process_logits

        logits, tokens, biases, histories, prompts, *penalties, masks = given
        return process_logits(
            logits, tokens, biases, histories, prompts, penalties, masks, out.dims, MASK_BITS
        )

    def reference(self, *given: np.ndarray) -> np.ndarray:
        logits, tokens, biases, histories, prompts, *penalties, masks = given
        out = logits.astype(np.float32)
        one = np.float32(1)
        for row, x in enumerate(out):
            repetition, presence, frequency = (np.float32(each[row]) for each in penalties)
            for token, bias in zip(tokens[row].tolist(), biases[row], strict=True):
                if 0 <= token < len(x):
                    x[token] += np.float32(bias)
            history = histories[row].tolist()
            new = history[max(int(prompts[row]), 0) :]
            for token in {t for t in history if 0 <= t < len(x)}:
                count = np.float32(new.count(token))
                x[token] = x[token] * repetition if x[token] < 0 else x[token] / repetition
                x[token] -= count * frequency
                x[token] -= np.minimum(count, one) * presence
            place = np.arange(len(x))
            x[(masks[row][place // MASK_BITS] >> (place % MASK_BITS)) & 1 == 0] = -np.inf
        return out

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        logits = rand(3, 40)
        tokens = np.array([[3, -1], [39, 3], [40, 3]], np.int32)
        biases = np.array([[1.5, 9], [-2, 0.5], [7, -np.inf]], np.float32)
        histories = np.array([[1, 5, 1, 1], [3, -1, 39, 3], [40, 1 << 30, 0, 0]], np.int32)
        prompts = np.array([1, 0, 9])
        penalties = [np.array(x, np.float32) for x in ([1.5, 1, 2], [0.5, 0, 1], [0.25, 0.5, 1])]
        masks = np.array([[-1, -1], [0x55555555, 3], [-1, 0]], np.int32)
        call = [logits, tokens, biases, histories, prompts, *penalties, masks]
        dims = "r 40, r b, r b, r h, r, r, r, r, r w"
        yield sample(cls(), *call, dims=dims)
        yield sample(
            cls(), logits.astype(np.float16), *call[1:], dims="r v, r b, r b, r h, r, r, r, r, r w"
        )
        yield sample(cls(), logits[:, :33], *call[1:], dims="r 33, r b, r b, r h, r, r, r, r, r w")
        none = [x[:, :0] for x in (tokens, biases, histories)]
        yield sample(cls(), logits, *none, *call[4:], dims=dims)
        yield sample(cls(), *(x[:0] for x in call), dims=dims)
        yield wrong(cls(), logits.astype(np.float64), *call[1:], code="op-dtype", match="float64")
        yield wrong(cls(), *call[:-1], masks[:, :1], code="shape-mismatch", match="bit for each")
        yield wrong(cls(), *call[:-1], rand(3, 2), code="op-dtype", match="masks must be int32")
        yield wrong(
            cls(), *call[:2], biases[:, :1], *call[3:], code="shape-mismatch", match="biases"
        )
        yield wrong(
            cls(), *call[:4], prompts[:2], *call[5:], code="shape-mismatch", match="prompts"
        )
        yield wrong(cls(), *call[:3], histories[0], *call[4:], code="op-rank", match="histories")


@define_op
class SampleFromLogits(Op):
    """Draw a token of each row of logits (rows, vocab), float32 or narrower, with options of its own: the first in
    descending order, of equal logits the first token, at which the running sum of the probabilities exceeds a number in
    [0, 1) (`uniform_samples`; of int64, in units of 2^-53) of all that is kept. The probabilities are the softmax of
    the logits divided by `temperatures`. `top_ks` keeps so many first tokens (0 or less: all), `top_ps` the first ones
    whose probabilities together reach it, `min_ps` those at least so probable, relative to the most probable token; the
    first token is always kept. A temperature of 0 takes the first token. Result: (rows,) int64; -1 for a row whose
    greatest logit is not finite. All options are (rows,). A row's token does not depend on the other rows. A
    probability below 2^-40 of the greatest counts as 0."""

    name = "sample_from_logits"
    no_vjp = "it samples"

    def deduce(
        self, d: Deduction, logits: KnownTensor, temperatures: KnownTensor, top_ks: KnownTensor,
        top_ps: KnownTensor, min_ps: KnownTensor, uniform_samples: KnownTensor,
    ) -> TensorType:  # fmt: skip
        _need_logits(d, logits)
        floats = {"temperatures": temperatures, "top_ps": top_ps, "min_ps": min_ps}
        for name, x in floats.items():
            d.need_float(x, name)
        if uniform_samples.dtype != "int64":
            d.need_float(uniform_samples, "uniform_samples")
        d.need_int(top_ks, "top_ks")
        _need_rows(d, logits, 1, **floats, top_ks=top_ks, uniform_samples=uniform_samples)
        d.ensure(
            dim_op("le", logits.dims[1], _MOST),
            f"logits must have at most {_MOST} tokens",
            arg="logits",
        )
        return TensorType(logits.dims[:1], "int64")

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        return TensorType(None, DType("int64"), 1)

    def legalize(self, out: KnownTensor, logits: te.Tensor, *options: te.Tensor) -> te.Tensor:
        from relaxpy.tir.programs.sampling import sample_from_logits

        return sample_from_logits(logits, options, te.dims(logits), UNIT_BITS, FRACTION_BITS)

    def reference(
        self, logits: np.ndarray, temperatures: np.ndarray, top_ks: np.ndarray, top_ps: np.ndarray,
        min_ps: np.ndarray, uniform_samples: np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        tokens = np.full(len(logits), -1, np.int64)
        for row, given in enumerate(logits.astype(np.float32)):
            if not len(given) or not np.isfinite(given.max()):
                continue
            order = np.argsort(-given, kind="stable")
            if not temperatures[row] > 0:
                tokens[row] = order[0]
                continue
            x, scale = given[order], np.maximum(np.float32(temperatures[row]), np.float32(1e-30))
            with np.errstate(all="ignore"):
                powers = np.exp((x - x[0]) / scale, dtype=np.float32)
            powers[np.isnan(powers)] = 0
            weights = (powers * np.float32(2.0**UNIT_BITS)).astype(np.int64)
            k = int(top_ks[row])
            sums = np.cumsum(weights)
            within = int(sums[k - 1] if 0 < k < len(x) else sums[-1])
            kept = min(within, int(weights[powers >= np.float32(min_ps[row])].sum()))
            if top_ps[row] < 1:
                bound = max(_fraction(np.float32(top_ps[row])) * within - 1, 0) >> FRACTION_BITS
                kept = min(kept, int(sums[np.argmax(sums > bound)]))
            bound = _fraction(uniform_samples[row]) * kept >> FRACTION_BITS
            tokens[row] = order[np.argmax(sums > min(bound, max(kept - 1, 0)))]
        return tokens

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        logits = rand(6, 50) * 3
        logits[4, 3:30] = logits[4].max()
        logits[5, 2], logits[5, 3] = 0.0, -0.0

        def floats(*values: float) -> np.ndarray:
            return np.array(values, np.float32)

        options = [
            floats(1, 0.7, 0, 2, 1, 1), np.array([0, 5, 3, 60, 9, -1]), floats(1, 0.9, 0.5, 0.6, 1, 1),
            floats(0, 0.1, 0, 0.05, 0, 0.001), np.array([0.3, 0.9, 0.5, 0.999, 0.7, 0.0]),
        ]  # fmt: skip
        dims = "r v, r, r, r, r, r"
        yield sample(cls(), logits, *options, dims=dims)
        yield sample(cls(), logits.astype(np.float16), *options, dims="r 50, r, r, r, r, r")
        bits = (options[-1] * 2.0**FRACTION_BITS).astype(np.int64)
        bits[1], bits[2] = -7, 1 << 60
        yield sample(cls(), logits, *options[:-1], bits, dims=dims)
        bad = logits.copy()
        bad[0, 7], bad[1, 0], bad[3], bad[4, 5:] = np.nan, np.inf, -np.inf, -np.inf
        yield sample(cls(), bad, *options[:-1], options[-1].astype(np.float32), dims=dims)
        yield sample(cls(), logits[:0], *(x[:0] for x in options), dims=dims)
        yield wrong(cls(), logits[0], *options, code="op-rank", match="logits")
        yield wrong(cls(), logits.astype(np.float64), *options, code="op-dtype", match="float64")
        yield wrong(
            cls(), logits, options[0][1:], *options[1:], code="shape-mismatch", match="temp"
        )
        yield wrong(
            cls(), logits, options[0], options[0], *options[2:], code="op-dtype", match="top_ks"
        )
        short = [x[None] for x in options]
        yield wrong(cls(), logits, *short, code="op-rank", match="must have 1 dimension")


def _fraction(number: Any) -> int:
    """A number in [0, 1) in units of 2 to the power of `-FRACTION_BITS`."""
    if isinstance(number, np.integer):
        return min(max(int(number), 0), 1 << FRACTION_BITS)
    return int(min(max(float(number), 0.0), 1.0) * 2**FRACTION_BITS) if number == number else 0


def _need_logits(d: Deduction, logits: KnownTensor) -> None:
    d.need_float(logits, "logits")
    d.require(
        logits.dtype != "float64", "logits must be float32 or narrower, got float64", arg="logits",
        code="op-dtype", help='convert them: astype(logits, "float32")',
    )  # fmt: skip
    d.require(
        logits.ndim == 2, f"logits must be (rows, vocab), got {logits.ndim} dimensions", arg="logits",
        code="op-rank",
    )  # fmt: skip


def _need_rows(d: Deduction, logits: KnownTensor, ndim: int, **tensors: KnownTensor) -> None:
    """Tensors of this rank with a row for each of the logits."""
    for name, x in tensors.items():
        d.require(
            x.ndim == ndim, f"{name} must have {ndim} dimension{'s'[: ndim - 1]}, got {x.ndim}", arg=name,
            code="op-rank",
        )  # fmt: skip
        d.same_dim(
            logits.dims[0], x.dims[0], f"numbers of rows of logits and {name} differ", arg=name
        )


@define_op
class RandomUniform(Op):
    """Random numbers, uniform in [0, 1): each is a function of its seed, stream and position alone (integers, int64 or
    narrower, all of one shape), by Philox4x32-10 with the seed as the key. Numbers of different seeds, streams or
    positions are independent of each other; equal ones give equal numbers, in any batch and on any device. float32
    numbers have 24 random bits, float64 ones 53; int64 ones are these, in units of 2^-53."""

    name = "random_uniform"
    no_vjp = INTEGERS
    dtype: DType = DType("float32")
    """Dtype of the result: float32, float64 or int64."""

    def deduce(
        self, d: Deduction, seeds: KnownTensor, streams: KnownTensor, positions: KnownTensor
    ) -> TensorType:
        d.require(
            self.dtype in ("float32", "float64", "int64"),
            f"random numbers are float32, float64 or int64, got {self.dtype}", arg="dtype", code="op-dtype",
        )  # fmt: skip
        d.need_int(seeds, "seeds")
        for name, x in (("streams", streams), ("positions", positions)):
            d.need_int(x, name)
            d.require(
                x.ndim == seeds.ndim,
                f"{name} must have {seeds.ndim} dimensions as seeds, got {x.ndim}", arg=name,
                code="op-rank",
            )  # fmt: skip
            for size, other in zip(seeds.dims, x.dims, strict=True):
                d.same_dim(size, other, f"sizes of seeds and {name} differ", arg=name)
        return TensorType(seeds.dims, self.dtype)

    def deduce_unranked(self, d: Deduction, args: Sequence[Annotation | None]) -> Annotation:
        seeds = expect(TensorType, args[0])
        return TensorType(seeds.dims, self.dtype, seeds.ndim)

    def legalize(
        self, out: KnownTensor, seeds: te.Tensor, streams: te.Tensor, positions: te.Tensor
    ) -> te.Tensor:
        from relaxpy.tir.programs.random import random_uniform

        return random_uniform(seeds, streams, positions, out.dims, self.dtype)

    def reference(
        self, seeds: np.ndarray, streams: np.ndarray, positions: np.ndarray
    ) -> np.ndarray:
        first, second, *_ = philox(
            [*_halves(positions), *_halves(streams)], _halves(seeds)
        )  # fmt: skip
        if self.dtype != "float32":
            bits = (first >> 5) * np.uint64(1 << 26) + (second >> 6)
            return bits.astype(np.int64) if self.dtype.is_int else bits * 2.0**-FRACTION_BITS
        return (first >> 8).astype(np.float32) * np.float32(2.0**-24)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        seeds = np.array([0, 7, -1, 1 << 40, 7], np.int64)
        streams = np.array([0, 1, 2, -(1 << 63), 1], np.int64)
        positions = np.array([0, 5, 5, (1 << 63) - 1, 6], np.int64)
        exact = {"rtol": 0.0, "atol": 0.0}
        yield sample(cls(), seeds, streams, positions, dims="n, n, n", **exact)
        for dtype in ("float64", "int64"):
            yield sample(cls(DType(dtype)), seeds, streams, positions, dims="n, n, n", **exact)
        narrow = [x.astype(np.int32).reshape(5, 1) for x in (seeds, streams, positions)]
        yield sample(cls(), *narrow, dims="n m, n m, n m", **exact)
        yield sample(cls(), seeds[:0], streams[:0], positions[:0], dims="n, n, n")
        yield wrong(cls(), seeds, streams[1:], positions, code="shape-mismatch", match="streams")
        yield wrong(cls(), seeds, streams, positions[None], code="op-rank", match="positions")
        yield wrong(cls(), rand(5), streams, positions, code="op-dtype", match="seeds")
        half = cls(DType("float16"))
        yield wrong(half, seeds, streams, positions, code="op-dtype", match="float16")


def _halves(x: np.ndarray) -> list[np.ndarray]:
    """The low and the high words of integers, as uint64."""
    whole = x.astype(np.int64).view(np.uint64)
    return [whole & np.uint64(0xFFFFFFFF), whole >> np.uint64(32)]


def philox(counter: Sequence[np.ndarray], key: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Philox4x32-10 on arrays of words, as uint64: four random words for a counter of four and a key of two."""
    word, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    a, b, c, d = counter
    k, m = key
    for _ in range(10):
        first, second = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (
            (second >> shift) ^ b ^ k,
            second & word,
            (first >> shift) ^ d ^ m,
            first & word,
        )
        k, m = (k + np.uint64(0x9E3779B9)) & word, (m + np.uint64(0xBB67AE85)) & word
    return [a, b, c, d]
