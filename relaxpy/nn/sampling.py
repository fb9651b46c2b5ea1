"""Sampling of next tokens from logits, with options of its own for every row.

    class Model(nn.Module):
        def sample(self, **arguments):
            return nn.sample(**arguments)

    spec = {"sample": nn.sampling_spec(vocab)}

`relaxpy.serve.sampling_arguments` makes the arguments from the options of requests, which are described there. They
apply in this order, as the logits processors of transformers do:

    bias, penalties, mask of the allowed tokens, temperature, top-k, top-p, min-p

The tokens that remain are the first ones by logit, so the rest is arithmetic on sorted rows: a running sum, and the
place at which it exceeds a random number. That number is a function of the row's seed, request and position
(`random_uniform`), and a row is computed alone: a token does not depend on the other rows.
"""

from __future__ import annotations

from typing import Any

from relaxpy.nn import op, spec
from relaxpy.nn.construction import mistake
from relaxpy.nn.tensor import Tensor, Value

MASK_BITS = 32
"""Tokens of a word of a mask."""
_NOWHERE = (1 << 31) - 1
"""An index that is in no vocabulary: scattering skips it."""


def sampling_spec(vocab: int) -> dict[str, spec.Tensor]:
    """The specs of the arguments of `sample`, symbolic in the numbers of rows, biases and tokens so far."""
    row = spec.Tensor(("rows",), "float32")
    integer = spec.Tensor(("rows",), "int64")
    return {
        "logits": spec.Tensor(("rows", vocab), "float32"),
        "temperatures": row,
        "top_ks": integer,
        "top_ps": row,
        "min_ps": row,
        "repetition_penalties": row,
        "presence_penalties": row,
        "frequency_penalties": row,
        "bias_tokens": spec.Tensor(("rows", "biases"), "int32"),
        "biases": spec.Tensor(("rows", "biases"), "float32"),
        "masks": spec.Tensor(("rows", -(-vocab // MASK_BITS)), "int32"),
        "histories": spec.Tensor(("rows", "history"), "int32"),
        "prompts": integer,
        "seeds": integer,
        "requests": integer,
        "positions": integer,
    }


def sample(
    logits: Value,
    temperatures: Value,
    top_ks: Value,
    top_ps: Value,
    min_ps: Value,
    repetition_penalties: Value,
    presence_penalties: Value,
    frequency_penalties: Value,
    bias_tokens: Value,
    biases: Value,
    masks: Value,
    histories: Value,
    prompts: Value,
    seeds: Value,
    requests: Value,
    positions: Value,
) -> tuple[Tensor, Tensor]:
    """A token (rows,) int64 of each row of logits (rows, vocab), and its log-probability by the logits as they came,
    (rows,) float32. -1, with NaN, is the token of a row whose mask allows none, or whose logits are not numbers.

    A temperature of 0 takes the most probable token; of equal logits the first counts as greater. A `top_ks` of 0 or
    less keeps all. Tokens below 0 in `bias_tokens` and `histories` are padding. The first `prompts` tokens of a history
    are those of the prompt, to which presence and frequency penalties do not apply. Bit t % 32 of word t // 32 of a
    mask is set if token t is allowed. Options are not checked here: `relaxpy.serve.Sampling` does."""
    if len(logits.shape) != 2:
        raise mistake("shape-mismatch", f"logits must be (rows, vocab), got {logits.shape}")
    plain: Any = op.astype(logits, "float32")
    x = op.scatter_elements(plain, _places(bias_tokens), biases, axis=1, reduction="add")
    penalties = repetition_penalties, presence_penalties, frequency_penalties
    x = _penalised(x, histories, prompts, *map(_column, penalties))
    x = op.where(_allowed(masks, x), x, float("-inf"))
    numbers = op.random_uniform(seeds, requests, positions, dtype="float64")
    options = map(_column, (temperatures, top_ks, top_ps, min_ps, numbers))
    token, found = _drawn(x, *options)
    place = op.where(found, token, 0)
    probability = op.gather_elements(op.nn.log_softmax(plain, axis=-1), place, axis=1)
    token, probability = op.where(found, token, -1), op.where(found, probability, float("nan"))
    return op.astype(op.squeeze(token, 1), "int64"), op.squeeze(probability, 1)


def top_logprobs(logits: Value, count: int) -> tuple[Tensor, Tensor]:
    """The `count` most probable tokens of each row of logits (rows, vocab), int64, and their log-probabilities,
    float32, each (rows, count)."""
    probabilities = op.nn.log_softmax(op.astype(logits, "float32"), axis=-1)
    values, tokens = op.topk(probabilities, k=count, axis=-1, dtype="int64")
    return tokens, values


def _column(x: Value) -> Tensor:
    return op.expand_dims(x, 1)


def _places(tokens: Value) -> Tensor:
    """Indices to scatter at, where padding is skipped."""
    return op.where(op.less(tokens, 0), _NOWHERE, tokens)


def _penalised(
    x: Tensor,
    histories: Value,
    prompts: Value,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> Tensor:
    """The logits after the penalties of the tokens so far."""
    places, none = _places(histories), op.zeros_like(x)
    number = op.arange(histories.shape[1], dtype="int64")
    is_new = op.astype(op.greater_equal(number, _column(prompts)), "float32")
    counts = op.scatter_elements(none, places, is_new, axis=1, reduction="add")
    ones = op.ones_like(is_new)
    seen = op.scatter_elements(none, places, ones, axis=1, reduction="update")
    repeated = op.where(op.less(x, 0.0), x * repetition, x / repetition)
    x = op.where(op.greater(seen, 0.0), repeated, x)
    return x - counts * frequency - op.where(op.greater(counts, 0.0), presence, 0.0)


def _allowed(masks: Value, x: Tensor) -> Tensor:
    """Which tokens (rows, vocab) the words of the masks allow."""
    token = op.arange(x.shape[1], dtype="int32")
    words = op.take(masks, op.right_shift(token, 5), axis=1)
    bits = op.right_shift(words, op.bitwise_and(token, MASK_BITS - 1))
    return op.not_equal(op.bitwise_and(bits, 1), 0)


def _drawn(
    x: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, number: Tensor
) -> tuple[Tensor, Tensor]:
    """A token (rows, 1) int32 of each row, and whether the row has one. What top-k, top-p and min-p keep are the first
    tokens of the sorted row, the first one always."""
    values, order = op.topk(x, k=0, axis=-1, dtype="int32")
    largest = op.max(x, axis=-1, keepdims=True)
    place = op.arange(x.shape[1], dtype="int64")
    is_first = op.equal(place, 0)
    powers = op.exp((values - largest) / op.maximum(temperature, 1e-30))
    inside = op.logical_or(op.less_equal(top_k, 0), op.less(place, top_k))
    powers = op.where(inside, powers, 0.0)
    wide = op.astype(powers, "float64")
    sums = op.cumsum(wide, axis=1)
    total = op.max(sums, axis=-1, keepdims=True)
    inside = op.logical_and(inside, op.less(sums - wide, op.astype(top_p, "float64") * total))
    inside = op.logical_and(inside, op.greater_equal(powers, min_p))
    inside = op.logical_and(inside, op.greater(temperature, 0.0))
    inside = op.logical_or(inside, is_first)
    last = op.sum(op.astype(inside, "int64"), axis=-1, keepdims=True) - 1
    bound = op.gather_elements(sums, last, axis=1) * number
    passed = op.sum(op.astype(op.less_equal(sums, bound), "int64"), axis=-1, keepdims=True)
    token = op.gather_elements(order, op.minimum(passed, last), axis=1)
    return token, op.isfinite(largest)
