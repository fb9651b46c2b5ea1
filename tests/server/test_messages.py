"""Anthropic's client against a running server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.running import ASKED, KEY, SCHEMA, Running

pytest.importorskip("fastapi")


@pytest.fixture(scope="module")
def anthropic() -> Any:
    """The package, which takes seconds to import: not in processes that only collect these tests."""
    return pytest.importorskip("anthropic")


@pytest.fixture(scope="module")
def claude(anthropic: Any, running: Running) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=running.url, api_key=KEY, max_retries=0) as found:
        yield found


def test_messages(claude: Any, client: Any) -> None:
    chat = {"model": "relaxpy", "max_tokens": 24, "temperature": 0}
    given = {"model": "relaxpy", "max_tokens": 24, "extra_body": {"temperature": 0}}
    found = claude.messages.create(**given, messages=ASKED)
    (block,) = found.content
    same = client.chat.completions.create(**chat, messages=ASKED)
    assert block.text == same.choices[0].message.content
    count = claude.messages.count_tokens(model="relaxpy", messages=ASKED).input_tokens
    usage = found.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == count == same.usage.prompt_tokens
    with claude.messages.stream(**given, messages=ASKED) as stream:
        assert "".join(stream.text_stream) == block.text
        last = stream.get_final_message()
    assert last.stop_reason == found.stop_reason
    assert last.usage.output_tokens == usage.output_tokens
    stop = block.text[9:13]
    cut = claude.messages.create(**given, messages=ASKED, stop_sequences=[stop])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)
    begun = [*ASKED, {"role": "assistant", "content": block.text[:12]}]
    rest = claude.messages.create(**given, messages=begun)
    assert not rest.content[0].text.startswith(block.text[:12])


def test_models_as_anthropic_lists_them(claude: Any) -> None:
    found = claude.models.list()
    assert next(iter(found)).id == found.first_id == "relaxpy"
    assert found.data[0].display_name == claude.models.retrieve("relaxpy").id == "relaxpy"
    assert found.data[0].created_at.year >= 2024


def test_mistakes_in_anthropics_shape(anthropic: Any, claude: Any, running: Running) -> None:
    given = {"model": "relaxpy", "max_tokens": 4, "messages": ASKED}
    with pytest.raises(anthropic.NotFoundError) as missing:
        claude.messages.create(**{**given, "model": "claude"})
    assert missing.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        claude.messages.create(**given, extra_body={"temperature": -1})
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        claude.post("/v1/messages", body={"messages": ASKED}, cast_to=object)
    with (
        anthropic.Anthropic(base_url=running.url, api_key="no", max_retries=0) as other,
        pytest.raises(anthropic.AuthenticationError),
    ):
        other.messages.create(**given)


def test_tools_of_messages_over_turns(anthropic: Any, scripted: str) -> None:
    tools = [{"name": "weather", "input_schema": SCHEMA}]
    given = {"model": "m0", "max_tokens": 200, "tools": tools}
    with anthropic.Anthropic(base_url=scripted, api_key="none") as client:
        found = client.messages.create(**given, messages=ASKED)
        with client.messages.stream(**given, messages=ASKED) as stream:
            kinds = [event.type for event in stream]
            streamed = stream.get_final_message()
        for message in (found, streamed):
            thought, text, *calls = message.content
            assert thought.thinking == "Hm."
            assert text.text == "I look."
            assert [(call.name, call.input) for call in calls] == [
                ("weather", {"city": "Bern"})
            ] * 2
            assert message.stop_reason == "tool_use"
        assert kinds.count("content_block_stop") == 4
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": "Rain."} for call in calls
        ]
        turns = [
            *ASKED,
            {"role": "assistant", "content": [each.model_dump() for each in found.content]},
            {"role": "user", "content": results},
        ]
        first = client.messages.count_tokens(model="m0", tools=tools, messages=ASKED)
        longer = client.messages.count_tokens(model="m0", tools=tools, messages=turns)
        assert longer.input_tokens > first.input_tokens + len("I look.Rain.Rain.") // 4
        assert client.messages.create(**given, messages=turns).content
