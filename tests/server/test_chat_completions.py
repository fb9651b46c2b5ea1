"""`relaxpy serve` with the client of OpenAI: chats, streamed and whole, and what sampling they take."""

from __future__ import annotations

import json
from typing import Any

import pytest

from relaxpy import llm
from tests.server.running import Running
from tests.sweeps import sweep

openai: Any = pytest.importorskip("openai")
ASKED = [{"role": "user", "content": "What is a tuple?"}]


def ask(client: Any, **options: Any) -> Any:
    given = {"model": "relaxpy", "messages": ASKED, "temperature": 0, "max_tokens": 24, **options}
    return client.chat.completions.create(**given)


def test_an_answer_is_that_of_the_library(client: Any) -> None:
    """And a stream has the same text, with its usage at the end."""
    alone = llm.load().chat(ASKED, max_tokens=24)
    expected = "".join(alone)
    found = ask(client)
    assert found.choices[0].message.content == expected
    assert found.choices[0].finish_reason == alone.finish_reason
    assert found.usage.prompt_tokens == alone.usage.prompt_tokens
    assert found.usage.completion_tokens == alone.usage.completion_tokens
    chunks = [*ask(client, stream=True, stream_options={"include_usage": True})]
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
    assert text == expected
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == alone.finish_reason
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == found.usage.completion_tokens
    assert chunks[-1].model_extra["timings"]["predicted_per_second"] > 0
    assert len({each.id for each in chunks}) == 1


def test_a_prompt_that_was_there_is_cached(client: Any) -> None:
    long = [{"role": "user", "content": "Tell me of lists and dictionaries. " * 12}]
    for _ in range(2):
        usage = ask(client, messages=long, max_tokens=1).usage
    assert usage.prompt_tokens_details.cached_tokens > usage.prompt_tokens // 2
    salted = ask(client, messages=long, max_tokens=1, extra_body={"cache_salt": "other"}).usage
    assert salted.prompt_tokens_details.cached_tokens == 0


def test_choices_seeds_and_options_of_sampling(client: Any) -> None:
    asked = [{"role": "user", "content": "Explain itertools.chain."}]  # a long answer
    given = {
        "messages": asked,
        "temperature": 1.5,
        "n": 3,
        "seed": 11,
        "extra_body": {"top_k": 50, "min_p": 0.01},
    }
    texts = [[c.message.content for c in ask(client, **given).choices] for _ in range(2)]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 1
    streamed = ["", "", ""]
    for chunk in ask(client, stream=True, **given):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts[0]
    greedy = ask(client, messages=asked).choices[0].message.content
    top_1 = ask(client, messages=asked, temperature=2, extra_body={"top_k": 1})
    assert top_1.choices[0].message.content == greedy
    plain = ask(client, messages=asked, max_tokens=60)
    punished = ask(client, messages=asked, frequency_penalty=2, presence_penalty=2, max_tokens=60)
    assert punished.choices[0].message.content != plain.choices[0].message.content


def test_a_text_ends_before_a_stop_string(client: Any) -> None:
    whole = ask(client).choices[0].message.content
    stop = whole[9:13]
    found = ask(client, stop=[stop, "never here"])
    assert found.choices[0].message.content == whole[: whole.index(stop)]
    assert found.choices[0].finish_reason == "stop"
    text = "".join(c.choices[0].delta.content or "" for c in ask(client, stop=stop, stream=True))
    assert text == whole[: whole.index(stop)]


def test_log_probabilities(client: Any) -> None:
    found = ask(client, logprobs=True, top_logprobs=3, max_tokens=6).choices[0]
    content = found.logprobs.content
    assert len(content) == 6
    assert b"".join(bytes(each.bytes) for each in content).decode() == found.message.content
    for each in content:
        assert each.logprob <= 0
        assert len(each.top_logprobs) == 3
        assert each.token == each.top_logprobs[0].token  # the most probable one was taken
        assert each.logprob == pytest.approx(each.top_logprobs[0].logprob, abs=1e-3)
    streamed = [
        one
        for chunk in ask(client, logprobs=True, top_logprobs=3, max_tokens=6, stream=True)
        for one in (chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else ())
    ]
    assert [each.token for each in streamed] == [each.token for each in content]


def test_biased_tokens(client: Any, running: Running) -> None:
    first = ask(client, logprobs=True, max_tokens=1).choices[0].logprobs.content[0].token
    number = post(running, "/tokenize", {"prompt": first, "add_special_tokens": False})["tokens"][0]
    other = ask(client, logprobs=True, max_tokens=1, logit_bias={str(number): -100})
    assert other.choices[0].logprobs.content[0].token != first


def post(running: Running, path: str, body: Any) -> Any:
    import httpx

    from tests.server.running import KEY

    head = {"Authorization": f"Bearer {KEY}"}
    return httpx.post(running.url + path, json=body, headers=head).json()


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "size": {"enum": [1, 2, 3]},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "size", "tags"],
    "additionalProperties": False,
}


def test_answers_of_a_schema(client: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    form = {
        "type": "json_schema",
        "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True},
    }
    found = ask(client, response_format=form, max_tokens=200, temperature=1, seed=3, n=2)
    for choice in found.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), SCHEMA)
    streamed = ask(client, response_format=form, max_tokens=200, stream=True, n=1)
    text = "".join(each.choices[0].delta.content or "" for each in streamed)
    jsonschema.validate(json.loads(text), SCHEMA)
    chosen = ask(client, extra_body={"guided_choice": ["yes, it is", "no"]})
    assert chosen.choices[0].message.content in ("yes, it is", "no")


def test_calls_that_must_come(client: Any) -> None:
    """Though the model's template knows of no tools."""
    tool = {"type": "function", "function": {"name": "store", "parameters": SCHEMA}}
    other = {"type": "function", "function": {"name": "now"}}
    found = ask(
        client, tools=[tool, other], max_tokens=200,
        tool_choice={"type": "function", "function": {"name": "store"}},
    ).choices[0]  # fmt: skip
    assert found.finish_reason == "tool_calls"
    (call,) = found.message.tool_calls
    assert call.function.name == "store"
    assert set(json.loads(call.function.arguments)) == {"name", "size", "tags"}
    turns = [
        *ASKED,
        found.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "stored"},
    ]
    assert ask(client, messages=turns, tools=[tool]).choices[0].message.content is not None
    several = ask(
        client, tools=[tool], tool_choice="required", max_tokens=300, temperature=1, seed=1
    )
    assert {each.function.name for each in several.choices[0].message.tool_calls} == {"store"}


def test_calls_or_an_answer_of_a_form(client: Any) -> None:
    """Beside tools that may be called, a form is that of the text only. What comes is one or the other, whole and in a
    stream."""
    tool = {"type": "function", "function": {"name": "store", "parameters": SCHEMA}}
    form = {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"answer": {"enum": ["yes", "no"]}},
                                                "required": ["answer"], "additionalProperties": False}},
    }  # fmt: skip
    given = {
        "tools": [tool],
        "response_format": form,
        "max_tokens": 900,
        "temperature": 2,
        "seed": 5,
    }
    kinds = set[str]()
    for several in (True, False):
        found = ask(client, n=4, parallel_tool_calls=several, **given)
        for choice in found.choices:
            if choice.message.tool_calls:
                kinds.add("call")
                assert choice.finish_reason == "tool_calls"
                assert not choice.message.content
                assert several or len(choice.message.tool_calls) == 1
                for call in choice.message.tool_calls:
                    assert {*json.loads(call.function.arguments)} == {"name", "size", "tags"}
            else:
                kinds.add("text")
                assert json.loads(choice.message.content)["answer"] in ("yes", "no")
    forced = ask(client, tool_choice="required", **given).choices[0].message
    assert forced.tool_calls
    none = ask(client, tool_choice="none", **given).choices[0].message
    assert json.loads(none.content)["answer"] in ("yes", "no")
    assert "text" in kinds
    text = "".join(
        each.choices[0].delta.content or ""
        for each in ask(client, stream=True, **{**given, "tool_choice": "none"})
    )
    assert text == none.content


def test_allowed_tools(client: Any) -> None:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": SCHEMA}}
        for name in ("store", "load")
    ]

    def choice(mode: str, *names: str) -> dict[str, Any]:
        own = [{"type": "function", "function": {"name": name}} for name in names]
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": own}}

    given = {"tools": tools, "max_tokens": 300, "temperature": 1, "seed": 1}
    found = ask(client, tool_choice=choice("required", "load"), **given).choices[0].message
    assert {each.function.name for each in found.tool_calls} == {"load"}
    both = ask(client, tool_choice=choice("auto", "load", "store"), **given).usage.prompt_tokens
    one = ask(client, tool_choice=choice("auto", "load"), **given).usage.prompt_tokens
    assert one < both == ask(client, **given).usage.prompt_tokens
    for wrong, text in (
        (choice("auto", "drop"), "none of the tools"),
        (choice("required"), "no tools"),
    ):
        with pytest.raises(openai.BadRequestError, match=text):
            ask(client, tool_choice=wrong, **given)


def test_an_answer_that_is_begun(client: Any) -> None:
    """It goes on where it was, as if the model had written the beginning."""
    whole = ask(client, max_tokens=30).choices[0].message.content
    cut = whole.index(" ")
    begun = [*ASKED, {"role": "assistant", "content": whole[:cut]}]
    go_on = {"continue_final_message": True, "add_generation_prompt": False}
    found = ask(client, messages=begun, max_tokens=30, extra_body=go_on)
    assert (whole[:cut] + found.choices[0].message.content)[: len(whole)] == whole
    again = ask(client, messages=begun, max_tokens=1, extra_body={"add_generation_prompt": False})
    new = ask(client, messages=begun, max_tokens=1)
    assert new.usage.prompt_tokens == again.usage.prompt_tokens + 1
    for wrong in ({"continue_final_message": True, "add_generation_prompt": True},):
        with pytest.raises(openai.BadRequestError, match="write one of them"):
            ask(client, messages=begun, extra_body=wrong)
    with pytest.raises(openai.BadRequestError, match="text of the assistant"):
        ask(client, extra_body=go_on)


@sweep(3)
@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"regex": "[ab]{3}"}},
        {"structured_outputs": {"choice": ["aba"]}},
        {"structured_outputs": {"json": {"enum": ["aba"]}}},
        {"structured_outputs": {"grammar": 'root ::= "aba"'}},
        {"regex": "[ab]{3}"},
        {"ebnf": 'root ::= "aba"'},
        {"format": {"enum": ["aba"]}},
        {"guided_json": '{"enum": ["aba"]}'},
        {"response_format": {"type": "json_object", "schema": {"enum": ["aba"]}}},
        {"response_format": {"type": "json_schema", "schema": {"enum": ["aba"]}}},
        {"response_format": {"type": "regex", "pattern": "[ab]{3}"}},
    ],
    ids=str,
)
def test_forms_by_all_names(running: Running, fields: dict[str, Any]) -> None:
    """On each route; beside another one, each is refused."""
    for path, body in (
        ("/v1/chat/completions", {"messages": ASKED}),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/responses", {"input": "a", "store": False}),
        ("/v1/messages", {"messages": ASKED}),
    ):
        found = post(running, path, {**body, "max_tokens": 8, "model": "relaxpy", **fields})
        text = (
            found["choices"][0].get("text") or found["choices"][0]["message"]["content"]
            if "choices" in found
            else (found.get("content") or found["output"][0]["content"])[0]["text"]
        )
        assert set(text.strip('"')) <= {"a", "b"}, text
        assert len(text.strip('"')) == 3
        for other in ({"grammar": 'start: "x"'}, {"guided_regex": "x"}):
            wrong = post(
                running, path, {**body, "max_tokens": 8, "model": "relaxpy", **fields, **other}
            )
            assert "one at a time" in wrong["error"]["message"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": 1e400}, "JSON"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 1000}, "n: "),
        ({"stop": [""]}, "stop"),
        ({"logit_bias": {"99999": 1}}, "has tokens 0 to 4095"),
        ({"top_logprobs": 2}, "needs logprobs"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "cat", "content": "m"}]}, "role"),
        ({"messages": [{"role": "system", "content": "m"}]}, "user and assistant"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "content"),
        ({"messages": [{"role": "user", "content": "many words " * 2000}]}, "context"),
        ({"tool_choice": "required"}, "no tools"),
        ({"response_format": {"type": "json_schema"}}, "json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
            "not",
        ),
        (
            {"response_format": {"type": "json_object", "json_schema": {"schema": {}}}},
            "has no field json_schema",
        ),
        ({"response_format": {"type": "text", "pattern": "a"}}, "has no field pattern"),
        ({"extra_body": {"structured_outputs": {}}}, "write one"),
        (
            {"extra_body": {"structured_outputs": {"regex": "a", "choice": ["a"]}}},
            "regex and choice",
        ),
        ({"functions": [{"name": "f"}]}, "functions: is not offered.*write tools"),
        ({"extra_body": {"guided_regex": "("}}, "regex"),
        ({"extra_body": {"guided_regex": "a", "grammar": "b"}}, "one at a time"),
        ({"extra_body": {"chat_template_kwargs": {"messages": []}}}, "may not set messages"),
        ({"seed": 1 << 70}, "seed"),
    ],
)
def test_mistakes_are_named(client: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises((openai.BadRequestError, ValueError), match=text) as caught:
        ask(client, **options)
    if isinstance(caught.value, openai.BadRequestError):
        assert caught.value.body["type"] == "invalid_request_error"
