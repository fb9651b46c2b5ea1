"""Generation defaults of a checkpoint: `generation_config.json`, as transformers writes it.

Every field of transformers' GenerationConfig is in one of the tables below: it is read, it changes nothing here, or it
is not followed, which a warning says if it has another value than the neutral one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from relaxpy.checkpoints.unread import unknown_fields, warn_unread
from relaxpy.errors import UsageError
from relaxpy.llm.checkpoint_files import optional_json
from relaxpy.llm.stop_strings import StopStrings
from relaxpy.narrow import is_sequence
from relaxpy.serve.beams import Beams
from relaxpy.serve.sampling import Sampling

GENERATION_CONFIG_FILE = "generation_config.json"

_ALWAYS = (
    "repetition_penalty", "no_repeat_ngram_size", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens",
    "sequence_bias",
)  # fmt: skip
"""Fields that are options of `Sampling` by the same name."""
_SAMPLED = "temperature", "top_k", "top_p", "min_p"
"""The same, of texts that are sampled."""
_TOP_K = 50
"""The number of tokens that transformers samples from, if a checkpoint does not say it."""
_LENGTHS = "max_length", "max_new_tokens", "min_length", "min_new_tokens"
_TOKENS = "bos_token_id", "eos_token_id"
"""Read by the tokenizer."""
READ: frozenset[str] = frozenset(
    {*_ALWAYS, *_SAMPLED, *_LENGTHS, *_TOKENS, "do_sample", "stop_strings"}
)
"""The fields that are followed."""
HARMLESS: frozenset[str] = frozenset(
    {
        # What is computed is the same.
        "use_cache", "cache_implementation", "cache_config", "max_cache_len", "compile_config", "disable_compile",
        "continuous_batching_config", "low_memory", "prefill_chunk_size", "renormalize_logits",
        # Drafts change no text.
        "use_mtp", "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule",
        "assistant_confidence_threshold", "prompt_lookup_num_tokens", "max_matching_ngram_size", "assistant_early_exit",
        "assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight", "speculation_type",
        # What `generate` returns beside the text.
        "output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate",
        # Of searches with several beams, which `num_beams` asks for; of encoder-decoders; of padding.
        "early_stopping", "length_penalty", "diversity_penalty", "decoder_start_token_id", "pad_token_id",
        "transformers_version", "_from_model_config", "_commit_hash",
    }
)  # fmt: skip
"""The fields that change nothing here."""
NEUTRAL: Mapping[str, Any] = {
    "num_beams": 1, "num_beam_groups": 1, "num_return_sequences": 1, "penalty_alpha": 0, "dola_layers": None,
    "constraints": None, "force_words_ids": None, "encoder_repetition_penalty": 1, "encoder_no_repeat_ngram_size": 0,
    "forced_bos_token_id": None, "forced_eos_token_id": None, "remove_invalid_values": False,
    "exponential_decay_length_penalty": None, "token_healing": False, "guidance_scale": 1, "watermarking_config": None,
    "max_time": None, "typical_p": 1, "top_h": None, "epsilon_cutoff": 0, "eta_cutoff": 0,
}  # fmt: skip
"""The fields that are not followed, each with the value at which it changes nothing."""
_OF_SAMPLES: frozenset[str] = frozenset({"typical_p", "top_h", "epsilon_cutoff", "eta_cutoff"})
"""Those of texts that are sampled."""


@dataclass(frozen=True)
class Recommended:
    """Generation defaults, which hold where a request says nothing else."""

    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0))
    max_tokens: int | None = None
    """The most tokens of an answer."""
    max_length: int | None = None
    """The most tokens of a text, prompt included; `max_tokens` goes first."""
    min_length: int = 0
    """The least, prompt included."""
    stop: tuple[str, ...] = ()
    beams: Beams | None = None
    """The search, where the caller follows one; None: each token is the most probable one, or drawn."""
    ends: frozenset[int] = frozenset()
    """The tokens that end texts. What follows is of models with an encoder."""
    start: int | None = None
    """The token before a text: the prompt, where none is given."""
    first: int | None = None
    """The token that comes first after a prompt of one token."""
    last: int | None = None
    """The token that comes last in a text of the greatest length."""

    @property
    def begin(self) -> tuple[int, ...]:
        """The tokens that a text of a model with an encoder begins with."""
        return tuple(token for token in (self.start, self.first) if token is not None)

    def sampling_after(self, prompt: int) -> Sampling:
        """The options of sampling after a prompt of so many tokens."""
        least = max(self.sampling.min_tokens, self.min_length - prompt)
        return self.sampling if least <= 0 else replace(self.sampling, min_tokens=least)

    def most_tokens(self, prompt: int, room: int) -> int:
        """The most tokens of the answer, for which there is room for so many. Raises: UsageError (`bad-length`)."""
        if self.max_tokens is not None:
            return min(self.max_tokens, room)
        if self.max_length is None:
            return room
        if self.max_length <= prompt:
            raise UsageError(
                "bad-length",
                f"the prompt has {prompt} tokens, and the checkpoint's {GENERATION_CONFIG_FILE} says that a text "
                f"has at most {self.max_length}, prompt included (max_length)",
                help="say max_tokens, which goes first",
            )
        return min(self.max_length - prompt, room)


_OF_CONFIGS = (
    "num_beams", "length_penalty", "early_stopping", "no_repeat_ngram_size", "max_length", "min_length",
    "forced_bos_token_id", "forced_eos_token_id", "decoder_start_token_id", "bos_token_id", "eos_token_id",
    "bad_words_ids", "num_return_sequences", "repetition_penalty", "suppress_tokens", "begin_suppress_tokens",
)  # fmt: skip
"""Fields that older versions of transformers wrote into config.json."""
SEARCH = "num_beams", "length_penalty", "early_stopping", "num_return_sequences"
"""Options of `Beams` by the same names."""
_OF_ENCODERS = "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id"


def recommended(
    folder: Path | None, config: Mapping[str, Any] | None = None, followed: Collection[str] = ()
) -> Recommended:
    """The generation defaults of the checkpoint in a folder. `config` is the config.json of a model with an encoder:
    where there is no generation_config.json, older versions of transformers wrote the fields there, and where there is
    one it says all, as in transformers. `followed` are those of `SEARCH` that the caller follows.

    Warns of fields that are not followed (`UnreadWarning`). Raises: UsageError (`bad-checkpoint`).
    """
    path = (folder or Path()) / GENERATION_CONFIG_FILE
    if config is not None and (folder is None or not path.is_file()):
        fields: Mapping[str, Any] = {name: config[name] for name in _OF_CONFIGS if name in config}
    else:
        fields = optional_json(path)
    given = {name: value for name, value in fields.items() if value is not None}
    if given.get("do_sample"):
        followed = ()
    try:
        found = _recommended(given)
        search = {name: given[name] for name in followed if name in given}
        if search.get("num_beams", 1) != 1:
            found = replace(found, beams=Beams(**search))
        if config is not None:
            found = replace(found, **_of_encoder(given))
            followed = (*followed, *_OF_ENCODERS)
    except UsageError as error:
        raise UsageError("bad-checkpoint", f"{path}: {error.message}") from None
    warn_unread(path, _not_followed({n: x for n, x in given.items() if n not in followed}))
    return found


def _of_encoder(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tokens of a model with an encoder. Where none is said to begin texts, transformers takes
    `bos_token_id`."""
    start, first, last = (_token(name, given.get(name)) for name in _OF_ENCODERS)
    ends: Any = given.get("eos_token_id", ())
    ends = ends if is_sequence(ends) else (ends,)
    own = frozenset(each for n in ends if (each := _token("eos_token_id", n)) is not None)
    start = _token("bos_token_id", given.get("bos_token_id")) if start is None else start
    return {"start": start, "first": first, "last": last, "ends": own}


def _token(name: str, value: Any) -> int | None:
    if value is not None and (type(value) is not int or value < 0):
        raise UsageError("sampling", f"{name} must be a token, got {value!r}")
    return value


def _recommended(given: Mapping[str, Any]) -> Recommended:
    samples = given.get("do_sample", False)
    if not isinstance(samples, bool):
        raise UsageError("sampling", f"do_sample must be true or false, got {samples!r}")
    names = (*_ALWAYS, *_SAMPLED) if samples else _ALWAYS
    options = {name: given[name] for name in names if name in given}
    if samples:
        options.setdefault("top_k", _TOP_K)
    else:
        options["temperature"] = 0
    lengths = {name: _length(name, given[name]) for name in _LENGTHS if name in given}
    for name in ("max_length", "max_new_tokens"):
        if lengths.get(name) == 0:
            raise UsageError("sampling", f"{name} must be at least 1, got 0")
    least = lengths.get("min_new_tokens")
    return Recommended(
        Sampling(**options, min_tokens=least or 0),
        lengths.get("max_new_tokens"),
        lengths.get("max_length"),
        0 if least is not None else lengths.get("min_length", 0),
        StopStrings(given.get("stop_strings", ())).stops,
    )


def _length(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 31:
        raise UsageError("sampling", f"{name} must be a number of tokens, got {value!r}")
    return value


def _not_followed(given: Mapping[str, Any]) -> list[str]:
    """The fields that would change a text, with their values."""
    known: set[str] = {*READ, *HARMLESS}
    if not given.get("do_sample"):
        known |= _OF_SAMPLES
    return unknown_fields(given, known, NEUTRAL)
