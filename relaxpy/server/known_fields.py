"""Fields of requests that are no fields of ours, and what becomes of them.

Clients know the interfaces of OpenAI, Anthropic, vLLM, SGLang, llama.cpp and Ollama. Each field of theirs is
implemented (a field of a body in this package), or it is here: one that changes no answer is ignored, and any other is
refused by its name, unless its value asks for nothing. A field that nobody knows is refused as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from relaxpy.errors import nearest


@dataclass(frozen=True)
class Field:
    """A field of another interface."""

    text: str
    """Why it is ignored, or what to write instead."""
    harmless: tuple[Any, ...] | None = None
    """The values that ask for nothing; others are refused. None: it is ignored."""

    def is_refused(self, value: Any) -> bool:
        """Whether a request with this value is refused."""
        return self.harmless is not None and not any(
            value == each and isinstance(value, bool) == isinstance(each, bool)
            for each in self.harmless
        )


def _ignored(names: str, text: str) -> dict[str, Field]:
    return {name: Field(text) for name in names.split()}


def _refused(names: str, text: str, *harmless: Any) -> dict[str, Field]:
    return {name: Field(text, harmless) for name in names.split()}


_RECORDS = "it is for the records of a provider"
_CACHE = "beginnings of prompts are cached by themselves"
_SAMPLER = "this sampler is not offered: use temperature, top_k, top_p, min_p and the penalties"
_PARTS = "models read texts only"
_SPLIT = "prompts are computed where they are written"
_MODEL_ONLY = "it is for models that are not offered"
_TEXT_MODEL = "answers are texts"
_BY_SERVER = "it is an option of the server"
_NOT_SHOWN = "answers do not have it"
_BEAMS = "/v1/completions searches with beams"
_STRICT = "arguments fit their schema when tool_choice asks for the call; others are as the model writes them"

TEXTS: Mapping[str, Field] = {
    # OpenAI
    **_ignored("safety_identifier", _RECORDS),
    **_ignored("service_tier", "there is one tier"),
    **_ignored("prompt_cache_key prompt_cache_retention prompt_cache_options", _CACHE),
    **_ignored("prediction", "it changes the speed only: drafts are looked up in the text"),
    **_refused("moderation", "nothing is moderated"),
    # vLLM
    **_ignored("request_id session_id", "the header x-request-id names a request"),
    **_ignored("guided_decoding_backend", "there is one, and all forms are followed"),
    **_ignored("stream_interval", "an event comes with each step"),
    **_refused("watermarking", "it is not offered: leave it out", False),
    **_refused("use_beam_search early_stopping", _BEAMS, False),
    **_refused("length_penalty", _BEAMS, 1),
    **_refused("include_stop_str_in_output no_stop_trim", "texts end before a stop string", False),
    **_refused("skip_special_tokens", "texts have no special tokens; see logprobs for them", True),
    **_refused("spaces_between_special_tokens", "texts have no special tokens", True),
    **_refused("allowed_token_ids", "write guided_choice, guided_regex or a grammar"),
    **_refused("logits_processors", "programs of clients do not run here", []),
    **_refused("logprob_token_ids", "write top_logprobs, or logprobs in completions"),
    **_refused("thinking_token_budget thinking_budget_tokens reasoning_budget", "write reasoning_effort, or max_tokens",
        -1),
    **_refused("truncation_side", "the first tokens are left out", "left"),
    **_refused("prompt_embeds", "write the prompt as text or tokens"),
    **_refused("return_tokens_as_token_ids return_token_ids return_prompt_text return_token_offsets", "use /tokenize",
        False),
    **_ignored("return_mm_kwargs", _PARTS),
    **_refused("kv_transfer_params ec_transfer_params", _SPLIT),
    **_refused("vllm_xargs custom_params", "extensions are not offered", {}),
    **_refused("repetition_detection", "write repetition_penalty, or max_tokens"),
    **_refused("guided_whitespace_pattern", "texts between the parts of JSON are not chosen: write guided_grammar"),
    **_refused("structural_tag", "write tools, or a grammar"),
    **_refused("media_io_kwargs mm_processor_kwargs", _PARTS, {}),
    # SGLang
    **_ignored("rid extra_key custom_labels", _RECORDS),
    **_refused("lora_path", "an adapter is a model of its own: name it as model"),
    **_refused("session_params", "send the whole prompt: beginnings are cached", {}),
    **_refused("return_hidden_states return_routed_experts return_cached_tokens_details return_prompt_token_ids "
        "return_meta_info", _NOT_SHOWN, False),
    **_refused("routed_experts_start_len routed_experts_prompt_start", _NOT_SHOWN, 0),
    **_refused("stop_regex", "write stop, with texts"),
    **_refused("custom_logit_processor", "programs of clients do not run here"),
    **_refused("images_config max_dynamic_patch min_dynamic_patch", _PARTS),
    **_refused("use_audio_in_video", _PARTS, False),
    **_refused("ngram_corpus_id", _BY_SERVER),
    **_refused("bootstrap_host bootstrap_port bootstrap_room routed_dp_rank disagg_prefill_dp_rank "
        "data_parallel_rank", _SPLIT),
    **_refused("input_ids", "write the prompt in /v1/completions, which takes tokens"),
    # llama.cpp
    **_ignored("cache_prompt n_cache_reuse id_slot slot_id", _CACHE),
    **_ignored("timings_per_token return_progress", "timings come at the end"),
    **_ignored("mirostat_tau mirostat_eta xtc_threshold dynatemp_exponent dry_base dry_allowed_length "
        "dry_penalty_last_n dry_sequence_breakers", "it is for a sampler that is not offered"),
    **_refused("mirostat xtc_probability dynatemp_range dry_multiplier top_a smoothing_factor", _SAMPLER, 0),
    **_refused("typical_p typ_p tfs_z tfs adaptive_decay", _SAMPLER, 1),
    **_refused("top_n_sigma adaptive_target", _SAMPLER, -1, 0),
    **_refused("samplers min_keep", _SAMPLER, [], 0),
    **_refused("repeat_penalty", "write repetition_penalty", 1),
    **_refused("repeat_last_n penalty_last_n", "penalties count the whole text", -1),
    **_refused("penalize_nl", "penalties count all tokens", True),
    **_refused("n_predict num_predict max_new_tokens max_length", "write max_tokens", -1),
    **_refused("n_probs", "write logprobs", 0),
    **_refused("n_keep n_discard", "a text ends with the context", 0),
    **_refused("t_max_predict_ms n_indent", "it is not offered: write max_tokens or stop", 0),
    **_refused("post_sampling_probs return_tokens", _NOT_SHOWN, False),
    **_refused("response_fields", "answers have all their fields", []),
    **_refused("lora", "an adapter is a model of its own: name it as model", []),
    **_refused("grammar_lazy", "a grammar is followed from the beginning", False),
    **_refused("grammar_triggers", "a grammar is followed from the beginning", []),
    **_ignored("parse_tool_calls", "calls are parsed"),
    **_refused("reasoning_format", "reasoning is reasoning_content", "auto", "deepseek"),
    **_refused("thinking_forced_open reasoning_in_content", "reasoning is reasoning_content", False),
    # Ollama, and those that stand before several servers
    **_ignored("keep_alive", "models stay loaded"),
    **_refused("options", "write its fields beside the others: temperature, max_tokens, …", {}),
    **_refused("think", "write reasoning_effort, \"none\" for no reasoning"),
    **_refused("raw", "write the prompt in /v1/completions", False),
    **_refused("images", _PARTS, []),
    **_refused("do_sample", "write temperature, 0 for the most probable tokens"),
    **_ignored("provider route usage", "they are for a service before several servers"),
    **_refused("transforms plugins models", "they are for a service before several servers", []),
}  # fmt: skip
"""Of all requests for texts."""

_CHATS: Mapping[str, Field] = {
    **_refused("chat_template template", "it is an option of the server: --chat-template"),
    **_refused("documents", "write them in a message", []),
    **_refused("separate_reasoning include_reasoning", "reasoning is reasoning_content", True),
    **_ignored("stream_reasoning", "reasoning is streamed like the answer"),
    **_refused("task", _MODEL_ONLY),
    **_refused("mcp_servers", "tools of servers are not called here: write tools", []),
}
CHAT: Mapping[str, Field] = {
    **TEXTS,
    **_ignored("metadata", _RECORDS),
    **_CHATS,
    **_ignored("store", "chats are not kept; /v1/responses keeps them"),
    **_refused("functions", "write tools", []),
    **_refused("function_call", "write tool_choice", "none"),
    **_refused("audio", _TEXT_MODEL),
    **_refused("modalities", _TEXT_MODEL, ["text"]),
    **_refused("verbosity", "write in a message how long the answer is to be", "medium"),
    **_refused("web_search_options", "nothing is searched: write tools"),
    **_refused("echo", "it is for /v1/completions", False),
    **_refused("add_special_tokens", "the chat template writes them", False),
    **_refused("reasoning", "write reasoning_effort"),
    **_refused("thinking enable_thinking", "write reasoning_effort, or chat_template_kwargs"),
}
COMPLETIONS: Mapping[str, Field] = {
    **{name: each for name, each in TEXTS.items() if each.text != _BEAMS},
    **_ignored("metadata", _RECORDS),
    **_refused("suffix", "models continue a prompt; a model for filling in has its own marks", ""),
    **_refused("input_prefix input_suffix input_extra", "models continue a prompt", "", []),
}
RESPONSES: Mapping[str, Field] = {
    **TEXTS,
    **_CHATS,
    **_refused("access_programs", "nothing is decided by them"),
    **_refused("background", "an answer comes with its request", False),
    **_refused("background_options", "an answer comes with its request"),
    **_refused("context_management", "a chat that is too long is refused", []),
    **_refused("conversation", "write previous_response_id, or the messages as input"),
    **_refused("image", _TEXT_MODEL),
    **_refused("include", "reasoning comes as text, and nothing else is kept", [], ["reasoning.encrypted_content"]),
    **_ignored("max_tool_calls", "no tools run here"),
    **_refused("prompt", "prompts are not kept: write instructions and input"),
    **_ignored("stream_options", "events have no padding"),
    **_refused("top_logprobs", "write logprobs in /v1/chat/completions", 0),
    **_refused("truncation", "a chat that is too long is refused", "disabled"),
    **_refused("enable_response_messages", _NOT_SHOWN, False),
}  # fmt: skip
MESSAGES: Mapping[str, Field] = {
    **TEXTS,
    **_ignored("metadata", _RECORDS),
    **_CHATS,
    **_ignored("cache_control diagnostics", _CACHE),
    **_ignored("speed betas user_profile_id workspace_id billing_policy fallbacks fallback_credit_token",
        _RECORDS),
    **_refused("container", "no programs run here"),
    **_refused("context_management compaction", "a chat that is too long is refused", {}, {"edits": []},
        {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
    **_refused("inference_geo", "the answer comes from where this server is", "global", "not_available"),
    **_refused("thread", "send the whole chat: beginnings are cached"),
}  # fmt: skip
EMBEDDINGS: Mapping[str, Field] = {
    **_ignored("user request_id priority rid", _RECORDS),
    **_ignored("keep_alive", "models stay loaded"),
    **_refused("add_special_tokens normalize use_activation", "vectors are those of whole texts, of length 1", True),
    **_refused("embed_dtype", "vectors are float32", "float32"),
    **_refused("endianness", "vectors are little-endian", "native", "little"),
    **_refused("truncate_prompt_tokens truncation_side truncate truncation",
        "a text that is too long is refused: shorten it", False),
    **_refused("input_type prompt_name task instruction", "write it before the text, as the model's card says"),
    **_refused("chat_template", "write input"),
    **_refused("output_dtype", "vectors are float32", "float"),
    **_refused("options mm_processor_kwargs", "it is not offered: leave it out", {}),
}  # fmt: skip
_SPEAKERS = "whisperx and pyannote.audio say who speaks"
_HEARD = "recordings are heard as openai-whisper hears them"
SPEECH: Mapping[str, Field] = {
    # OpenAI
    **_refused("keywords", "write hotwords, a text", []),
    **_refused("languages", "write language, or nothing: it is heard", []),
    **_refused("known_speaker_names known_speaker_references", _SPEAKERS, []),
    **_refused("diarize tinydiarize", _SPEAKERS, False),
    # vLLM, SGLang
    **_ignored("user request_id rid", _RECORDS),
    **_refused("to_language", "a translation is in English", "en"),
    **_refused("use_beam_search", _HEARD, False),
    **_refused("n length_penalty repetition_penalty top_p", _HEARD, 1),
    **_refused("frequency_penalty presence_penalty min_p", _HEARD, 0),
    **_refused("top_k", _HEARD, 0, -1),
    **_refused("max_completion_tokens max_tokens", "a window has as many tokens as the model writes"),
    **_refused("stream_include_usage stream_continuous_usage_stats", "the last event has the usage", False),
    **_refused("vllm_xargs", "extensions are not offered", {}),
    # whisper.cpp, servers of faster-whisper
    **_refused("vad", "write vad_filter", False),
    **_refused("translate", "send it to /v1/audio/translations", False),
    **_refused("temperature_inc", "temperatures rise by 0.2 where a text fails", 0.2),
    **_refused("condition_on_previous_text", "windows know the text before them", True),
}  # fmt: skip
TOKENIZE: Mapping[str, Field] = {
    **_refused("chat_template", "it is an option of the server: --chat-template"),
    **_refused("content", "write prompt"),
    **_refused("add_special", "write add_special_tokens"),
    **_refused("with_pieces", "write return_token_strs", False),
    **_refused("parse_special", "control tokens in a prompt are tokens", True),
    **_refused("media_io_kwargs mm_processor_kwargs", _PARTS, {}),
    **_refused("truncate_prompt_tokens", "all tokens are given: take a part of them"),
    **_refused("return_token_offsets", _NOT_SHOWN, False),
}
DETOKENIZE: Mapping[str, Field] = {
    **_refused("skip_special_tokens", "special tokens are shown", False),
}

# Fields inside of others.

_OF_ANSWERS = "it is a part of answers"
MESSAGE: Mapping[str, Field] = {
    **_ignored("id object created index status annotations logprobs finish_reason provider_specific_fields "
        "reasoning_details thinking_blocks citations metadata executed_tools timestamp", _OF_ANSWERS),
    **_ignored("cache_control", _CACHE),
    **_refused("function_call", "write tool_calls"),
    **_refused("audio", _PARTS),
    **_refused("images", _PARTS, []),
    **_refused("prefix partial", "write continue_final_message", False),
    **_refused("tools", "write tools beside the messages", []),
}  # fmt: skip
PART: Mapping[str, Field] = {
    **_ignored("prompt_cache_breakpoint cache_control", _CACHE),
    **_ignored("annotations logprobs citations id status", _OF_ANSWERS),
}
TOOL: Mapping[str, Field] = {
    **_ignored("cache_control", _CACHE),
    **_ignored("strict", _STRICT),
    **_ignored("eager_input_streaming output_schema", "arguments are streamed, and results are the client's"),
    **_refused("defer_loading async", "all tools are shown to the model, which waits for them", False),
    **_refused("allowed_callers", "the model calls tools, nothing else does", ["direct"]),
    **_refused("input_examples", "write them in the description", []),
}  # fmt: skip
CALL: Mapping[str, Field] = {
    **_ignored("index extra_content provider_specific_fields", _OF_ANSWERS),
}
STREAM: Mapping[str, Field] = {
    **_ignored("include_obfuscation", "events have no padding"),
    **_refused("continuous_usage_stats", "the usage comes at the end", False),
}
ITEM: Mapping[str, Field] = {
    **_ignored("id status phase caller namespace summary encrypted_content created_by agent", _OF_ANSWERS),
    **_ignored("name", "results are found by call_id"),
    **_refused("async", "the model waits for its calls", False),
}  # fmt: skip
FORM: Mapping[str, Field] = {
    **_ignored("name description strict", "all that is written follows the schema"),
    **_refused("verbosity", "write in a message how long the answer is to be", "medium"),
}
STRUCTURED: Mapping[str, Field] = {
    **_ignored("disable_fallback", "all forms are followed"),
    **_refused("disable_any_whitespace disable_additional_properties", "write the schema so, or a grammar", False),
    **_refused("whitespace_pattern", "write a grammar"),
    **_refused("structural_tag", "write tools, or a grammar"),
}  # fmt: skip
REASONING: Mapping[str, Field] = {
    **_ignored("summary generate_summary", "reasoning comes as it is written"),
    **_refused("context", "reasoning of the input is given to the template", "auto"),
    **_refused("mode", "there is one mode", "standard"),
}
THINKING: Mapping[str, Field] = {
    **_ignored("budget_tokens", "it is an aim, not a bound: max_tokens is one"),
    **_refused("display", "reasoning comes as it is written", "summarized"),
}
BLOCK: Mapping[str, Field] = {
    **_ignored("cache_control", _CACHE),
    **_ignored("signature caller toolset_name", _OF_ANSWERS),
    **_refused("citations", "answers have no citations", [], {"enabled": False}),
}

INSIDE: Mapping[str, Mapping[str, Field]] = {
    "messages of chats": MESSAGE,
    "parts of contents": PART,
    "tools": TOOL,
    "calls of tools": CALL,
    "stream_options": STREAM,
    "items of input": ITEM,
    "response_format, text": FORM,
    "structured_outputs": STRUCTURED,
    "reasoning": REASONING,
    "thinking": THINKING,
    "blocks of Anthropic's messages": BLOCK,
}
"""Fields inside of others, by what they are in."""


def refusal(name: str, value: Any, known: Mapping[str, Field], own: Iterable[str]) -> str | None:
    """Why a request with this field is refused, if it is none of the body's `own`; None if it is ignored."""
    found = known.get(name)
    if found is not None:
        if not found.is_refused(value):
            return None
        only = f" (only {' or '.join(map(json.dumps, found.harmless))})" if found.harmless else ""
        return f"is not offered{only}: {found.text}"
    near = nearest(name, own, cutoff=0.8)
    return f"is no field of this request{f': write {near[0]}' if near else ''}"
