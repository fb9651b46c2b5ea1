"""Responses that follow each other, by the client of OpenAI."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.running import ASKED, SCHEMA

pytest.importorskip("fastapi")
openai: Any = pytest.importorskip("openai")


def test_responses_follow_each_other(client: Any) -> None:
    given = {"model": "relaxpy", "max_output_tokens": 24, "temperature": 0}
    first = client.responses.create(**given, input="What is a tuple?")
    chat = client.chat.completions.create(
        model="relaxpy", messages=ASKED, max_tokens=24, temperature=0
    )
    assert first.output_text == chat.choices[0].message.content
    second = client.responses.create(**given, input="And a list?", previous_response_id=first.id)
    turns = [
        *ASKED,
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And a list?"},
    ]
    whole = client.responses.create(**given, input=turns)
    assert second.output_text == whole.output_text
    assert second.usage.input_tokens == whole.usage.input_tokens
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    for ask in (
        lambda: client.responses.retrieve(first.id),
        lambda: client.responses.create(**given, input="?", previous_response_id=first.id),
    ):
        with pytest.raises(openai.NotFoundError):
            ask()
    kept = client.responses.create(**given, input="?", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(kept.id)


def test_responses_are_streamed(client: Any) -> None:
    given = {
        "model": "relaxpy",
        "max_output_tokens": 24,
        "temperature": 0,
        "input": "What is a tuple?",
    }
    whole = client.responses.create(**given)
    with client.responses.stream(**given) as stream:
        events = [*stream]
        last = stream.get_final_response() if whole.status == "completed" else events[-1].response
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert (
        "".join(e.delta for e in events if e.type == "response.output_text.delta")
        == whole.output_text
    )
    assert last.output_text == whole.output_text
    assert events[0].type == "response.created"
    assert events[-1].type == f"response.{whole.status}"
    form = {"format": {"type": "json_schema", "name": "city", "schema": {**SCHEMA, "additionalProperties": False,
            "properties": {"city": {"type": "string", "maxLength": 9}}}}}  # fmt: skip
    found = client.responses.create(**{**given, "max_output_tokens": 90}, text=form)
    assert set(json.loads(found.output_text)) == {"city"}


def test_tools_of_responses_over_turns(scripted: str) -> None:
    tools = [{"type": "function", "name": "weather", "parameters": SCHEMA}]
    with openai.OpenAI(base_url=f"{scripted}/v1", api_key="none") as client:
        found = client.responses.create(model="m0", input="?", tools=tools)
        kinds = [item.type for item in found.output]
        assert kinds == ["reasoning", "message", "function_call", "function_call"]
        assert found.usage.output_tokens_details.reasoning_tokens > 0
        calls = found.output[2:]
        assert [json.loads(call.arguments) for call in calls] == [{"city": "Bern"}] * 2
        results = [
            {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}
            for call in calls
        ]
        stored = client.responses.create(
            model="m0", input=results, tools=tools, previous_response_id=found.id
        )
        sent = [{"role": "user", "content": "?"}, *(i.model_dump() for i in found.output), *results]
        whole = client.responses.create(model="m0", input=sent, tools=tools)
        assert whole.usage.input_tokens == stored.usage.input_tokens
        events = [*client.responses.create(model="m0", input="?", tools=tools, stream=True)]
        done = [e for e in events if e.type == "response.function_call_arguments.done"]
        assert [json.loads(each.arguments) for each in done] == [{"city": "Bern"}] * 2
