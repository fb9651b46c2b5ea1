"""Fields of other interfaces: each is followed, ignored since it changes nothing, or refused by its name; null is none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import pytest

pytest.importorskip("fastapi")

from relaxpy.server.app import ROUTES
from relaxpy.server.audio import SpeechBody
from relaxpy.server.bodies import Body
from relaxpy.server.body_reader import parsed
from relaxpy.server.chat_completions import ChatBody, MessageBody, StreamOptions, TextPart, ToolBody
from relaxpy.server.completions import CompletionBody
from relaxpy.server.embeddings import EmbeddingsBody
from relaxpy.server.errors import ApiError
from relaxpy.server.messages import MessagesBody
from relaxpy.server.responses import ResponseBody
from relaxpy.server.texts import DetokenizeBody, TokenizeBody

USER = [{"role": "user", "content": "Hi"}]
LEAST: dict[type[Body], dict[str, Any]] = {
    ChatBody: {"messages": USER},
    CompletionBody: {"prompt": "Hi"},
    MessagesBody: {"messages": USER, "max_tokens": 1},
    ResponseBody: {"input": "Hi"},
    EmbeddingsBody: {"input": "Hi"},
    SpeechBody: {"file": "RIFF"},
    TokenizeBody: {"prompt": "Hi"},
    DetokenizeBody: {"tokens": [1]},
}
"""The least body of each kind."""


def read(kind: type[Body], **fields: Any) -> Body:
    return parsed(bytearray(json.dumps({**LEAST[kind], **fields}).encode()), kind)


def refused(kind: type[Body], **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(kind, **fields)
    return caught.value


def own(kind: type[Body]) -> set[str]:
    return {field.alias or name for name, field in kind.model_fields.items()}


def test_bodies_of_all_routes_are_here() -> None:
    assert {body for *_, body in ROUTES if body is not None} == {*LEAST}


# The interfaces

SDKS: list[tuple[Any, str]] = [
    (ChatBody, "openai.types.chat.completion_create_params.CompletionCreateParamsStreaming"),
    (CompletionBody, "openai.types.completion_create_params.CompletionCreateParamsStreaming"),
    (ResponseBody, "openai.types.responses.response_create_params.ResponseCreateParamsStreaming"),
    (EmbeddingsBody, "openai.types.embedding_create_params.EmbeddingCreateParams"),
    (SpeechBody, "openai.types.audio.transcription_create_params.TranscriptionCreateParamsBase"),
    (SpeechBody, "openai.types.audio.transcription_create_params.TranscriptionCreateParamsStreaming"),
    (SpeechBody, "openai.types.audio.translation_create_params.TranslationCreateParams"),
    (MessagesBody, "anthropic.types.message_create_params.MessageCreateParamsStreaming"),
    (MessagesBody, "anthropic.types.message_count_tokens_params.MessageCountTokensParams"),
    (MessagesBody, "anthropic.types.beta.message_create_params.MessageCreateParamsStreaming"),
    (StreamOptions, "openai.types.chat.chat_completion_stream_options_param.ChatCompletionStreamOptionsParam"),
    (ToolBody, "openai.types.chat.chat_completion_function_tool_param.ChatCompletionFunctionToolParam"),
    ("chat_completions._Function", "openai.types.shared_params.function_definition.FunctionDefinition"),
    (TextPart, "openai.types.chat.chat_completion_content_part_text_param.ChatCompletionContentPartTextParam"),
    (TextPart, "openai.types.chat.chat_completion_content_part_refusal_param.ChatCompletionContentPartRefusalParam"),
    (MessageBody, "openai.types.chat.chat_completion_assistant_message_param.ChatCompletionAssistantMessageParam"),
    (MessageBody, "openai.types.chat.chat_completion_tool_message_param.ChatCompletionToolMessageParam"),
    ("bodies._JsonSchema", "openai.types.shared_params.response_format_json_schema.JSONSchema"),
    ("responses._Message", "openai.types.responses.easy_input_message_param.EasyInputMessageParam"),
    ("responses._Message", "openai.types.responses.response_output_message_param.ResponseOutputMessageParam"),
    ("responses._Called", "openai.types.responses.response_function_tool_call_param.ResponseFunctionToolCallParam"),
    ("responses._Output", "openai.types.responses.response_input_item_param.FunctionCallOutput"),
    ("responses._Reasoning", "openai.types.responses.response_reasoning_item_param.ResponseReasoningItemParam"),
    ("responses._Tool", "openai.types.responses.function_tool_param.FunctionToolParam"),
    ("responses._Content", "openai.types.responses.response_input_text_param.ResponseInputTextParam"),
    ("responses._Content", "openai.types.responses.response_output_text_param.ResponseOutputTextParam"),
    ("responses._Format", "openai.types.responses.response_format_text_json_schema_config_param.ResponseFormatTextJSONSchemaConfigParam"),
    ("responses._TextOption", "openai.types.responses.response_text_config_param.ResponseTextConfigParam"),
    ("responses._ReasoningOption", "openai.types.shared_params.reasoning.Reasoning"),
    ("messages._Text", "anthropic.types.text_block_param.TextBlockParam"),
    ("messages._Thinking", "anthropic.types.thinking_block_param.ThinkingBlockParam"),
    ("messages._Use", "anthropic.types.tool_use_block_param.ToolUseBlockParam"),
    ("messages._Result", "anthropic.types.tool_result_block_param.ToolResultBlockParam"),
    ("messages._Tool", "anthropic.types.tool_param.ToolParam"),
    ("messages._Choice", "anthropic.types.tool_choice_tool_param.ToolChoiceToolParam"),
    ("messages._ThinkingOption", "anthropic.types.thinking_config_enabled_param.ThinkingConfigEnabledParam"),
    ("messages._OutputConfig", "anthropic.types.output_config_param.OutputConfigParam"),
    ("messages._OutputFormat", "anthropic.types.json_output_format_param.JSONOutputFormatParam"),
]  # fmt: skip
"""Objects of the clients of OpenAI and Anthropic, and ours."""


@pytest.mark.parametrize(("kind", "theirs"), SDKS, ids=lambda value: str(value).rpartition(".")[2])
def test_fields_of_the_clients_are_known(kind: Any, theirs: str) -> None:
    pytest.importorskip(theirs.partition(".")[0])
    if isinstance(kind, str):
        module, _, name = kind.partition(".")
        kind = getattr(import_module(f"relaxpy.server.{module}"), name)
    module, _, name = theirs.rpartition(".")
    try:
        given = getattr(import_module(module), name)
    except ImportError:
        pytest.skip(f"{theirs} is not in this version")
    names: set[str] = set()
    for each in (given, *getattr(given, "__orig_bases__", ())):
        names |= getattr(each, "__annotations__", {}).keys()
    assert names
    assert names - own(kind) - kind.others.keys() == set()


OTHERS: dict[type[Body], tuple[str, ...]] = {
    ChatBody: (
        "use_beam_search early_stopping top_k min_p repetition_penalty watermarking length_penalty stop_token_ids include_stop_str_in_output "
        "ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens truncation_side "
        "prompt_logprobs logprob_token_ids allowed_token_ids bad_words echo add_generation_prompt continue_final_message "
        "add_special_tokens documents chat_template chat_template_kwargs media_io_kwargs mm_processor_kwargs structured_outputs "
        "priority request_id session_id return_tokens_as_token_ids return_token_ids routed_experts_prompt_start "
        "return_token_offsets return_prompt_text return_mm_kwargs cache_salt kv_transfer_params ec_transfer_params vllm_xargs "
        "repetition_detection stream_interval thinking_token_budget include_reasoning guided_json guided_regex guided_choice "
        "guided_grammar guided_decoding_backend guided_whitespace_pattern best_of logits_processors",
        "return_hidden_states return_routed_experts routed_experts_start_len return_cached_tokens_details "
        "return_prompt_token_ids return_meta_info task regex ebnf stop_regex no_stop_trim lora_path session_params "
        "separate_reasoning stream_reasoning max_dynamic_patch min_dynamic_patch use_audio_in_video images_config "
        "custom_logit_processor custom_params input_ids rid extra_key ngram_corpus_id bootstrap_host bootstrap_port "
        "bootstrap_room routed_dp_rank disagg_prefill_dp_rank data_parallel_rank",
        "grammar json_schema cache_prompt id_slot timings_per_token n_predict n_keep n_discard n_indent n_probs min_keep "
        "t_max_predict_ms repeat_penalty repeat_last_n mirostat mirostat_tau mirostat_eta typical_p top_n_sigma xtc_probability "
        "xtc_threshold dynatemp_range dynatemp_exponent dry_multiplier dry_base dry_allowed_length dry_penalty_last_n "
        "dry_sequence_breakers samplers lora post_sampling_probs response_fields reasoning_format thinking_forced_open "
        "parse_tool_calls",
        "format options keep_alive think raw images template",
    ),
    CompletionBody: (
        "prompt_embeds add_special_tokens response_format structured_outputs min_tokens stop_token_ids prompt_logprobs "
        "truncate_prompt_tokens bad_words return_token_ids logprob_token_ids",
        "regex ebnf json_schema custom_labels lora_path",
        "n_predict input_prefix input_suffix input_extra grammar return_tokens",
        "format options keep_alive raw images",
    ),
    EmbeddingsBody: (
        "truncate_prompt_tokens truncation_side add_special_tokens priority request_id normalize embed_dtype endianness "
        "mm_processor_kwargs messages chat_template use_activation",
        "rid",
        "",
        "truncate options keep_alive",
    ),
    SpeechBody: (
        "response_format include timestamp_granularities stream stream_include_usage stream_continuous_usage_stats vllm_xargs "
        "use_beam_search n length_penalty top_p top_k min_p seed frequency_penalty repetition_penalty presence_penalty "
        "to_language hotwords max_completion_tokens",
        "rid",
        "temperature_inc translate vad diarize tinydiarize",
        "",
    ),
}  # fmt: skip
"""Fields of vLLM, SGLang, llama.cpp and Ollama."""


@pytest.mark.parametrize("kind", OTHERS)
def test_fields_of_servers_are_known(kind: type[Body]) -> None:
    names = {name for each in OTHERS[kind] for name in each.split()} - {"best_of"}
    assert names - own(kind) - kind.others.keys() == set()


# What becomes of them


@pytest.mark.parametrize("kind", LEAST)
def test_each_field_is_ignored_or_refused(kind: type[Body]) -> None:
    plain = read(kind)
    assert not own(kind) & kind.others.keys()
    for name, field in kind.others.items():
        given = {"a-value": [1, {"b": 2}]}
        if field.harmless is None:
            assert read(kind, **{name: given}) == plain, name
            continue
        error = refused(kind, **{name: given})
        assert error.status == 400
        assert error.param == name
        assert error.message.startswith(f"{name}: is not offered")
        assert field.text in error.message
        for value in field.harmless:
            assert read(kind, **{name: value}) == plain, (name, value)


@pytest.mark.parametrize("kind", LEAST)
def test_fields_that_nobody_knows(kind: type[Body]) -> None:
    error = refused(kind, nobody_knows_it=1)
    assert (error.status, error.param) == (400, "nobody_knows_it")
    assert "no field of this request" in error.message
    assert read(kind, nobody_knows_it=None) == read(kind)


def test_a_misspelt_field_is_told() -> None:
    assert "write temperature" in refused(ChatBody, temprature=0.5).message
    error = refused(ChatBody, messages=[{"role": "user", "content": "a", "contents": "b"}])
    assert error.param == "messages.0.contents"
    error = refused(
        ResponseBody, input=[{"role": "user", "content": [{"type": "input_text", "txt": "b"}]}]
    )
    assert error.param == "input.0.content.0.txt"


def test_harmless_values_are_of_their_type() -> None:
    """True is not 1, and 0 not false."""
    refused(ChatBody, mirostat=False)
    refused(ChatBody, use_beam_search=0)
    assert read(ChatBody, length_penalty=1.0) == read(ChatBody, length_penalty=1)


@pytest.mark.parametrize(
    ("kind", "fields", "text"),
    [
        (ResponseBody, {"tools": [{"type": "web_search"}]}, "tools.0.type: should be 'function'"),
        (MessagesBody, {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0.type: should be 'custom'"),
        (ChatBody, {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]}, "content.0.type"),
        (ResponseBody, {"input": [{"type": "item_reference", "id": "x"}]}, "input.0: should be an object whose type is"),
        (ChatBody, {"max_tokens": 0}, "max_tokens: should be at least 1, or -1"),
        (ResponseBody, {"max_output_tokens": 0}, "max_output_tokens: should be"),
        (ChatBody, {"guided_json": "{"}, "guided_json: is not JSON"),
        (ChatBody, {"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag: is not offered"),
        (MessagesBody, {"thinking": {"type": "adaptive", "display": "omitted"}}, "thinking.display: is not offered"),
    ],
)  # fmt: skip
def test_mistakes_inside_of_fields(kind: type[Body], fields: dict[str, Any], text: str) -> None:
    assert text in refused(kind, **fields).message


# Null

VALUES: dict[type[Body], dict[str, Any]] = {
    ChatBody: {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a", "refusal": ""}], "name": "b"},
            {"role": "assistant", "content": "", "tool_calls": [{"id": "", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "content": "c", "tool_call_id": ""},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "description": "", "parameters": {}, "strict": True}}],
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}, "strict": True}},
        "stream_options": {"include_usage": False},
    },
    MessagesBody: {
        "system": [{"type": "text", "text": "a"}],
        "tools": [{"name": "f", "description": "", "input_schema": {}}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": False, "name": ""},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}},
    },
    ResponseBody: {
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}],
        "text": {"format": {"type": "json_schema", "schema": {}, "name": "a"}, "verbosity": "medium"},
        "reasoning": {"effort": "low", "summary": "auto"},
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", LEAST)
def test_null_is_not_given(kind: type[Body]) -> None:
    """Of each field, also of those that are not ours, and inside of objects."""
    plain = read(kind)
    for name in own(kind) | kind.others.keys():
        if name in LEAST[kind] and kind.model_fields[name].is_required():
            assert "required" in refused(kind, **{name: None}).message
        elif name not in LEAST[kind]:
            assert read(kind, **{name: None}) == plain, name


@pytest.mark.parametrize("kind", VALUES)
def test_null_inside_of_objects(kind: type[Body]) -> None:
    """A field that is null is as if it were left out, wherever that is; where it is needed, it is missing both times."""
    for body in (VALUES[kind], {**LEAST[kind], **VALUES[kind]}):
        for path in paths(body):
            with_null, without = changed(body, path, None), changed(body, path, ...)
            assert outcome(kind, with_null) == outcome(kind, without), path


def outcome(kind: type[Body], fields: Any) -> Any:
    try:
        return parsed(bytearray(json.dumps(fields).encode()), kind)
    except ApiError as error:
        return error.message


SCHEMAS = {"parameters", "input_schema", "schema"}
"""Objects that are not ours: null is a value of theirs."""


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all fields in objects."""
    found: list[tuple[Any, ...]] = []
    if isinstance(value, Mapping):
        for name, each in value.items():
            found += [(*at, name), *([] if name in SCHEMAS else paths(each, (*at, name)))]
    elif isinstance(value, list):
        for number, each in enumerate(value):
            found += paths(each, (*at, number))
    return found


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The value with another one at a place; ...: with none."""
    first, *rest = path
    if isinstance(value, list):
        return [
            changed(each, tuple(rest), new) if n == first else each for n, each in enumerate(value)
        ]
    found = dict(value)
    if rest:
        found[first] = changed(found[first], tuple(rest), new)
    elif new is ...:
        del found[first]
    else:
        found[first] = new
    return found
