"""Bodies of requests: bounds that come before work, and mistakes that are told in the client's words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

pytest.importorskip("fastapi")
from relaxpy.server.app import ROUTES
from relaxpy.server.body_reader import MOST_GROUPS, MOST_VALUES, parsed
from relaxpy.server.chat_completions import ChatBody
from relaxpy.server.completions import CompletionBody
from relaxpy.server.errors import ApiError
from relaxpy.server.messages import MessagesBody
from relaxpy.server.responses import ResponseBody


def refused(data: str | bytes, kind: Any = ChatBody) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parsed(bytearray(data.encode() if isinstance(data, str) else data), kind)
    assert caught.value.status == 400
    return caught.value


def said(text: str) -> str:
    return '{"messages": [{"role": "user", "content": ' + text + "}]}"


@pytest.mark.parametrize("unit", ["0", '""', '"ab"', "null", "1.5", '"\\""'])
def test_values_are_counted_before_they_are_read(unit: str) -> None:
    count = MOST_VALUES + 13
    error = refused(said("[" + ",".join([unit] * count) + "]"))
    assert f"at most {MOST_VALUES} values" in error.message


@pytest.mark.parametrize("unit", ["{}", "[]", "[[]]", '{"type":"text"}'])
def test_lists_and_objects_are_counted_before_they_are_read(unit: str) -> None:
    error = refused(said("[" + ",".join([unit] * (MOST_GROUPS + 1)) + "]"))
    assert f"at most {MOST_GROUPS} lists and objects" in error.message


@pytest.mark.parametrize("text", ["[1, 2],", '\\"[,{', "\\\\", 'a\\\\\\", [', ", {\\n"])
def test_what_is_in_a_text_is_not_counted(text: str) -> None:
    body = parsed(bytearray(said('"' + text * MOST_VALUES + '"').encode()), ChatBody)
    assert body.messages[0].content == json.loads(f'"{text}"') * MOST_VALUES


def test_an_object_of_many_fields() -> None:
    fields = ",".join(f'"{n}": 1' for n in range(5000))
    assert "at most 4096 fields" in refused('{"logit_bias": {' + fields + "}}").message


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"a": NaN}', "not JSON"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a": [{"b": ' + b"9" * 400 + b".5}]}", "too large"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"a": "\xff"}', "not JSON"),
        (b'{"a": "\xed\xa0\x80"}', "not JSON"),
        (b'{"a": "\\ud800"}', "not JSON"),
        (b'{"\\udc00": 1}', "not JSON"),
        (b'{"a": ' + b"[" * 100_000, "lists and objects"),
        (b'{"a": ' + b"[" * 5000, "not JSON"),
        ('{"a": 1}'.encode("utf-16"), "not JSON"),
    ],
)
def test_what_is_no_json(data: bytes, message: str) -> None:
    """Half of a surrogate pair is none, wherever it is."""
    assert message in refused(data).message


def test_a_mark_of_the_byte_order_is_left_out() -> None:
    data = bytearray(b"\xef\xbb\xbf" + said('"a"').encode())
    assert parsed(data, ChatBody).messages[0].content == "a"
    assert not data  # the bytes are let go


CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]}


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (ChatBody, {}, "messages: the field is required"),
        (ChatBody, {"messages": 5}, "messages: should be a valid list"),
        (ChatBody, {"messages": [3]}, "messages.0: should be an object"),
        (ChatBody, {"messages": [{"role": "user", "content": 5}]}, "messages.0.content: should be a valid string or a valid list"),
        (ChatBody, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages.0.content.0.image_url.url: the field is required"),
        (ChatBody, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:", "detail": "low"}}]}]}, "messages.0.content.0.image_url.detail: should be 'auto'"),
        (ChatBody, {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]}, "messages.0.content.0.type: should be 'text' or 'refusal' or 'image_url': models here read texts, and pictures in messages of the user; no sounds, videos or files"),
        (MessagesBody, {"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}], "max_tokens": 3}, "messages.0.content.0: tag 'document' found using 'type' does not match any of the expected tags: 'text', 'image', 'thinking', 'tool_use', 'tool_result': models here read texts"),
        (ChatBody, {**CHAT, "stop": 5}, "stop: should be a valid string or a valid list"),
        (ChatBody, {**CHAT, "stop": ["a", ""]}, "stop.1: should have at least 1 character"),
        (ChatBody, {**CHAT, "tool_choice": {"type": "function"}}, "tool_choice.function: the field is required"),
        (CompletionBody, {"prompt": [1, "a"]}, "prompt.1: should be a valid integer"),
        (MessagesBody, {**CHAT, "stop_sequences": ["a" * 1001]}, "stop_sequences.0: should have at most 1000 characters"),
        (ResponseBody, {"input": [{"type": "function_call", "call_id": "a"}]}, "input.0.name: the field is required"),
        (ResponseBody, {"input": [{"role": "x"}]}, "input.0.role: should be 'user'"),
    ],
)  # fmt: skip
def test_mistakes_are_at_a_place_of_the_body(kind: Any, fields: Any, message: str) -> None:
    """Not at a name of a type, and in the form of a field that fits best."""
    error = refused(json.dumps(fields), kind)
    assert error.message.startswith(message), error.message
    assert error.param == message.partition(":")[0]


def lists_and_texts(schema: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(schema, dict):
        if schema.get("type") in ("array", "string") and not {"enum", "const"} & schema.keys():
            yield schema
        for each in schema.values():
            yield from lists_and_texts(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from lists_and_texts(each)


@pytest.mark.parametrize("kind", [*dict.fromkeys(kind for *_, kind in ROUTES if kind is not None)])
def test_all_lists_and_texts_have_an_end(kind: Any) -> None:
    found = [*lists_and_texts(kind.model_json_schema())]
    assert found
    for each in found:
        assert each.get("maxItems" if each["type"] == "array" else "maxLength"), each


def test_the_first_mistake_of_a_list_is_enough() -> None:
    """Otherwise the mistakes take a hundred times the memory of the body."""
    from pydantic import ValidationError

    wrong = {"messages": [{"role": "user", "content": [0] * 4000}], "guided_choice": [0] * 4000}
    with pytest.raises(ValidationError) as caught:
        ChatBody.model_validate(wrong)
    assert caught.value.error_count() < 10
