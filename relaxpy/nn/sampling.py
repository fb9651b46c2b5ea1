"""Sampling of next tokens from logits, with options of its own for every row.

    class Model(nn.Module):
        def sample(self, **arguments):
            return nn.sample(**arguments)

    spec = {"sample": nn.sampling_spec(vocab)}

`relaxpy.serve.sampling_arguments` makes the arguments from the options of requests, which are described there. They
apply in this order, as the logits processors of transformers do:

    bias, penalties, mask of the allowed tokens, temperature, top-k, top-p, min-p

`process_logits` does the first three, `sample_from_logits` the others and the draw: the first token, by descending
logits, at which the running sum of the probabilities exceeds a random number. That number is a function of the row's
seed, request and position (`random_uniform`), and a row is computed alone: a token does not depend on the other rows.
"""

from __future__ import annotations

from typing import Any

from relaxpy.nn import op, spec
from relaxpy.nn.construction import mistake
from relaxpy.nn.tensor import Tensor, Value
from relaxpy.op.sampling import MASK_BITS


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
    x = op.process_logits(
        plain, bias_tokens, biases, histories, prompts, repetition_penalties, presence_penalties,
        frequency_penalties, masks,
    )  # fmt: skip
    numbers = op.random_uniform(seeds, requests, positions, dtype="int64")
    token = op.sample_from_logits(x, temperatures, top_ks, top_ps, min_ps, numbers)
    place = op.expand_dims(op.maximum(token, 0), 1)
    found = op.gather_elements(plain, place, axis=1) - _log_sum(plain)
    is_any = op.greater_equal(token, 0)
    return token, op.where(is_any, op.squeeze(found, 1), float("nan"))


def top_logprobs(logits: Value, count: int) -> tuple[Tensor, Tensor]:
    """The `count` most probable tokens of each row of logits (rows, vocab), int64, and their log-probabilities,
    float32, each (rows, count). Of equal logits the first token comes first."""
    plain = op.astype(logits, "float32")
    values, tokens = op.topk(plain, k=count, axis=-1, dtype="int64")
    return tokens, values - _log_sum(plain)


def _log_sum(x: Tensor) -> Tensor:
    """The logarithm of the sum of the exponentials of each row, (rows, 1)."""
    largest = op.max(x, axis=-1, keepdims=True)
    return largest + op.log(op.sum(op.exp(x - largest), axis=-1, keepdims=True))
