"""Calls of tools and reasoning in the formats that models write, by a scripted decoder that emits them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from relaxpy.llm.chat_template import ChatTemplate
from relaxpy.llm.template_probes import abilities
from relaxpy.server.answer_parser import AnswerParser, AnswerPart, Call, format_of
from tests.llm.real_templates import TEMPLATES
from tests.server.running import scripted_server
from tests.sweeps import FULL

pytest.importorskip("fastapi")
openai: Any = pytest.importorskip("openai")

CHATML = (
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{%- for call in message.tool_calls or [] %}MARKCALL{{ call.function.name }}{{ call.function.arguments.city }}"
    "{%- endfor %}<|im_end|>\n{%- endfor %}<|im_start|>assistant\n{# tools: {{ tools }} #}"
)
HERMES, MISTRAL, LLAMA, THINKS, OPENED, HARMONY, NONE = (
    CHATML.replace("MARK", "<tool_call>"),
    CHATML.replace("MARK", "[TOOL_CALLS]"),
    CHATML.replace("MARK", "<|python_tag|>"),
    CHATML.replace("MARK", "<tool_call> </think>"),
    CHATML.replace("MARK", "") + "<think>\n",
    CHATML.replace("MARK", "<|channel|>"),
    "{% for message in messages %}<|im_start|>{{ message.content }}{% endfor %}",
)
WEATHER = {"name": "weather", "arguments": {"city": "Bern é"}}
TIME = {"name": "time", "arguments": {}}


def dumped(call: dict[str, Any], name: str = "arguments") -> str:
    return json.dumps({"name": call["name"], name: call["arguments"]}, ensure_ascii=False)


TWO = f"I look.\n<tool_call>\n{dumped(WEATHER)}\n</tool_call>\n<tool_call>\n{dumped(TIME)}\n</tool_call>"
SCRIPTS = {
    HERMES: [TWO, "a < b, <tool is no call", "<tool_call>{broken</tool_call>", f"<tool_call>{dumped(WEATHER)}"],
    MISTRAL: [
        f"[TOOL_CALLS][{dumped(WEATHER)}, {dumped(TIME)}]",
        '[TOOL_CALLS]weather[ARGS]{"city": "Bern é"}[TOOL_CALLS]time[ARGS]{}',
    ],
    LLAMA: [
        f"<|python_tag|>{dumped(WEATHER, 'parameters')}; {dumped(TIME, 'parameters')}",
        dumped(WEATHER, "parameters"),
        "{ is a brace",
    ],
    THINKS: [f"<think>\nHm, <b>.\n</think>\n\n{TWO}", "No thought."],
    OPENED: ["Hm.\n</think>\n\nYes.", "Without an end"],
    HARMONY: [
        "<|channel|>analysis<|message|>Hm, weather.<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
        '<|constrain|>json<|message|>{"city": "Bern é"}<|call|>',
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
    ],
    NONE: [f"<tool_call>{dumped(WEATHER)}</tool_call>"],
}  # fmt: skip
NAMES = {template: f"m{n}" for n, template in enumerate(SCRIPTS)}
SEEDS = {
    template: sum(len(texts) for texts in [*SCRIPTS.values()][:n])
    for n, template in enumerate(SCRIPTS)
}
"""The number of the first script of a model."""
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    },
    {"type": "function", "function": {"name": "time"}},
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with scripted_server(SCRIPTS) as found:
        yield found


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as found:
        yield found


CASES = [
    (HERMES, 0, "I look.\n", "", [WEATHER, TIME]),
    (HERMES, 1, "a < b, <tool is no call", "", []),
    (HERMES, 2, "<tool_call>{broken</tool_call>", "", []),
    (HERMES, 3, "", "", [WEATHER]),
    (MISTRAL, 0, "", "", [WEATHER, TIME]),
    (MISTRAL, 1, "", "", [WEATHER, TIME]),
    (LLAMA, 0, "", "", [WEATHER, TIME]),
    (LLAMA, 1, "", "", [WEATHER]),
    (LLAMA, 2, "{ is a brace", "", []),
    (THINKS, 0, "I look.\n", "\nHm, <b>.\n", [WEATHER, TIME]),
    (THINKS, 1, "No thought.", "", []),
    (OPENED, 0, "Yes.", "Hm.\n", []),
    (OPENED, 1, "", "Without an end", []),
    (HARMONY, 0, "", "Hm, weather.", [WEATHER]),
    (HARMONY, 1, "Yes.", "Hm.", []),
    (NONE, 0, "", "", [WEATHER]),
]


@pytest.mark.parametrize(("template", "seed", "text", "reasoning", "calls"), CASES)
def test_parts_of_an_answer(
    client: Any, template: str, seed: int, text: str, reasoning: str, calls: list[dict[str, Any]]
) -> None:
    """Whole, and streamed."""
    options = {
        "model": NAMES[template], "messages": [{"role": "user", "content": "?"}], "seed": SEEDS[template] + seed, "tools": TOOLS,
    }  # fmt: skip
    choice = client.chat.completions.create(**options).choices[0]
    message = choice.message
    assert (message.content or "") == text
    assert (message.model_extra or {}).get("reasoning_content", "") == reasoning
    found = [
        {"name": each.function.name, "arguments": json.loads(each.function.arguments)}
        for each in message.tool_calls or ()
    ]
    assert found == calls
    assert choice.finish_reason == ("tool_calls" if calls else "stop")
    if template == MISTRAL:
        assert all(len(each.id) == 9 for each in message.tool_calls)
    pieces = {"content": "", "reasoning_content": ""}
    streamed: dict[int, Any] = {}
    for chunk in client.chat.completions.create(**options, stream=True):
        delta = chunk.choices[0].delta.model_dump(exclude_none=True)
        for name in pieces:
            pieces[name] += delta.get(name, "")
        for call in delta.get("tool_calls", ()):
            own = streamed.setdefault(call["index"], {"name": call["function"].get("name")})
            # The id and the name come first, and once.
            assert ("id" in call) == ("name" in call["function"]) == ("arguments" not in own)
            own["arguments"] = own.get("arguments", "") + call["function"]["arguments"]
    assert chunk.choices[0].finish_reason == choice.finish_reason
    assert pieces == {"content": text, "reasoning_content": reasoning}
    assert [
        {"name": each["name"], "arguments": json.loads(each["arguments"])}
        for _, each in sorted(streamed.items())
    ] == calls


SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
WRITTEN = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}MARK{{ c.function.name }}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "format", "thinks"),
    [
        *((TEMPLATES[name], "none", False) for name in ("chatml", "llama-3", "mistral", "gemma-3", "phi-3", "zephyr")),
        (TEMPLATES["llama-3.1"], "llama", False),
        (TEMPLATES["mistral with tools"], "mistral", False),
        (TEMPLATES["qwen3"], "hermes", True),
        (PLAIN.replace("{{ m.role }}", "<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}"), "harmony", False),
        # Words that are not written.
        ("{# <|channel|> [TOOL_CALLS] <|python_tag|> </think> #}" + PLAIN, "none", False),
        ("{% set a = '[TOOL_CALLS]</think>' %}" + PLAIN, "none", False),
        ("{% if never %}<|python_tag|></think>{% endif %}" + PLAIN, "none", False),
        # Marks that are put together, and by other ways.
        (WRITTEN.replace("MARK", "{{ '[TOOL' ~ '_CALLS]' }}"), "mistral", False),
        (WRITTEN.replace("MARK", "{{ '<' ~ 'tool_call>' }}"), "hermes", False),
        ("{% if tools %}Write <|python_tag|>{% endif %}" + PLAIN, "llama", False),
        (PLAIN + "{% if add_generation_prompt %}<think>\n{% endif %}", "none", True),
        (PLAIN.replace("m.content", "m.content.split('</' ~ 'think>')[-1]"), "none", True),
        (PLAIN + "{% if enable_thinking is false %}<think>\n\n</think>{% endif %}", "none", True),
        ("{{ '<' ~ '/think>' }}" + PLAIN, "none", True),
        ("{{ raise_exception('never') }}</think>", "none", False),
    ],
)  # fmt: skip
def test_templates_show_their_format_by_what_they_write(
    template: str, format: str, thinks: bool
) -> None:
    found = abilities(ChatTemplate(template), SPECIAL)
    assert (format_of(found), found.thinks) == (format, thinks)


@pytest.mark.parametrize(("template", "seed", "text", "reasoning", "calls"), CASES)
def test_an_answer_is_the_same_in_any_pieces(
    template: str, seed: int, text: str, reasoning: str, calls: list[dict[str, Any]]
) -> None:
    reads = abilities(ChatTemplate(template), {})
    own = format_of(reads)
    format = "hermes" if own == "none" else own
    for size in (1, 2, 3, 7):
        parser = AnswerParser(format, thinks=reads.thinks, is_thinking=template == OPENED)
        script, parts = SCRIPTS[template][seed], []
        for start in range(0, len(script), size):
            parts += parser.feed(script[start : start + size])
        parts += parser.finish()
        assert "".join(part.text for part in parts if part.kind == "text") == text
        assert "".join(part.text for part in parts if part.kind == "reasoning") == reasoning
        found = [part.call for part in parts if part.call is not None]
        assert [json.loads(call.arguments) for call in found] == [c["arguments"] for c in calls]


@pytest.mark.parametrize(("template", "seed", "text", "reasoning", "calls"), CASES)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_calls_in_parts_are_those_of_the_whole(
    template: str, seed: int, text: str, reasoning: str, calls: list[dict[str, Any]], size: int
) -> None:
    reads = abilities(ChatTemplate(template), {})
    own = format_of(reads)
    format = "hermes" if own == "none" else own
    options: dict[str, Any] = {"thinks": reads.thinks, "is_thinking": template == OPENED}
    parts = parts_of(AnswerParser(format, **options, streams=True), SCRIPTS[template][seed], size)
    assert "".join(part.text for part in parts if part.kind == "text") == text
    assert "".join(part.text for part in parts if part.kind == "reasoning") == reasoning
    found = called(parts)
    assert [(name, json.loads(given)) for name, given in found] == [
        (call["name"], call["arguments"]) for call in calls
    ]


def parts_of(parser: AnswerParser, script: str, size: int) -> list[AnswerPart]:
    found: list[AnswerPart] = []
    for start in range(0, len(script), size):
        found += parser.feed(script[start : start + size])
    return found + parser.finish()


def called(parts: Sequence[AnswerPart]) -> list[list[str]]:
    """Names and arguments of calls that come in parts."""
    found: list[list[str]] = []
    for part in parts:
        if part.call is not None:
            found.append([part.call.name, part.call.arguments])
        elif part.kind == "arguments":
            found[-1][1] += part.text
    return found


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize(
    ("format", "script", "expected", "text"),
    [
        # Braces, brackets and quotes in strings are no ends.
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "}]\\"{", "b": [{}, "\\\\"]}}</tool_call>x',
         [["f", '{"a": "}]\\"{", "b": [{}, "\\\\"]}']], "x"),
        # A text that is cut: the arguments end where it does, as OpenAI has it.
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "b', [["f", '{"a": "b']], ""),
        ("json", '[{"name": "f", "arguments": {"a"', [["f", '{"a"']], ""),
        ("json", '[{"name": "f", "arguments": {}}, {"name": "g"', [["f", "{}"]], '{"name": "g"'),
        # Not yet a call, or one with its name at the end: decided at its end.
        ("hermes", '<tool_call>{"name": "f"', [], '<tool_call>{"name": "f"'),
        ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', [["f", '{"a": 1}']], ""),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>', [["f", "{}"]], ""),
        ("json", '[{"name": "f", "arguments": {}}, {"arguments": {"a": 1}, "name": "g"}]',
         [["f", "{}"], ["g", '{"a": 1}']], ""),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}, "id": 3}</tool_call> y', [["f", "{}"]], " y"),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]ab12[ARGS]{}', [["f", '{"a": 1}'], ["g", "{}"]], ""),
        ("harmony", '<|channel|>commentary to=functions.f<|message|>{"a": "<', [["f", '{"a": "<']], ""),
    ],
)  # fmt: skip
def test_calls_in_parts_at_the_edges(
    format: Any, script: str, expected: list[list[str]], text: str, size: int
) -> None:
    parts = parts_of(AnswerParser(format, streams=True), script, size)
    assert called(parts) == expected
    assert "".join(part.text for part in parts if part.kind == "text") == text


MARKED = {
    "hermes": ["<tool_call>", "</tool_call>"],
    "mistral": ["[TOOL_CALLS]", "[TOOL_CALLS]g[ARGS]", "[", "]", ", ", "f[CALL_ID]ab12[ARGS]"],
    "llama": ["<|python_tag|>", "; "],
    "json": ["[", "]", ", "],
    "harmony": ["<|channel|>commentary to=functions.f <|constrain|>json<|message|>", "<|channel|>final<|message|>", "<|call|>",
                "<|channel|>analysis<|message|>", "<|end|><|start|>assistant"],
    "none": ["<tool_call>"],
}  # fmt: skip
PIECES = [
    '{"name": "f", "arguments": {"a": 1}}', '{"name": "g", "parameters": {"a": "x </tool_call> \\" } <|call|> <think>"}}',
    '{"arguments": {}, "name": "h"}', '{"name": "f"}', '{"name": "f", "arguments": ""}', '{"name": "f", "arguments": "{}"}',
    '{"name": "f", "arguments": {"a": {"b": "', ' {"name" : "q" , "arguments" : {"z":[]} , "id": 3}', '{"x": 1}', "{broken", "{",
    "}", '"', "\\", "\n", "\n\n", "text", "é😀", "<", "</tool", "<think>", "</think>", "<function=f>", "<parameter=a>\n3\n</parameter>",
    "<function=f><parameter=b>", "</parameter>", "</function>",
]  # fmt: skip


@pytest.mark.parametrize("format", MARKED)
def test_parts_do_not_depend_on_how_the_answer_came(format: Any) -> None:
    """Random answers, as a whole, letter by letter, in random pieces; calls whole and in parts."""
    pick, calls = random.Random(format), 0
    for _ in range(2000 if FULL else 250):
        options: dict[str, Any] = {
            "thinks": pick.random() < 0.4,
            "is_thinking": pick.random() < 0.2,
        }
        script = "".join(
            pick.choice(MARKED[format] if pick.random() < 0.4 else PIECES)
            for _ in range(pick.randrange(1, 10))
        )
        expected = merged(parts_of(AnswerParser(format, **options), script, len(script) + 1))
        calls += sum(kind == "call" for kind, *_ in expected)
        for size in (1, pick.randrange(2, 9), 40):
            for streams in (False, True):
                parser = AnswerParser(format, streams=streams, **options)
                assert merged(parts_of(parser, script, size)) == expected, (script, size, streams)
    assert calls > 20 or format == "none"


def merged(parts: Sequence[AnswerPart]) -> list[list[str]]:
    """Kinds and texts, neighbours of a kind joined."""
    found: list[list[str]] = []
    for part in parts:
        if part.call is not None:
            found.append(["call", part.call.name, part.call.arguments])
        elif part.kind == "arguments":
            found[-1][2] += part.text
        elif found and found[-1][0] == part.kind:
            found[-1][1] += part.text
        else:
            found.append([part.kind, part.text])
    return found


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("format", "script", "expected"),
    [
        # A mark in a string is a part of it.
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>', [["call", "f", '{"a": "</tool_call>"}']]),
        ("hermes", '<tool_call>{"arguments": {"a": "</tool_call>"}, "name": "f"}</tool_call>', [["call", "f", '{"a": "</tool_call>"}']]),
        ("harmony", '<|channel|>commentary to=functions.f<|message|>{"a": "<|call|>"}<|call|>', [["call", "f", '{"a": "<|call|>"}']]),
        # Two calls within one pair of marks, marks and braces that are missing.
        ("hermes", '<tool_call>{"name": "f", "arguments": {}}\n{"name": "g", "arguments": {}}</tool_call>', [["call", "f", "{}"], ["call", "g", "{}"]]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}}<tool_call>{"name": "g", "arguments": {}}', [["call", "f", "{}"], ["call", "g", "{}"]]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}</tool_call>x', [["call", "f", "{}"], ["text", "x"]]),
        # No arguments.
        ("hermes", '<tool_call>{"name": "f"}</tool_call>', [["call", "f", "{}"]]),
        ("hermes", '<tool_call>{"name": "f", "arguments": ""}</tool_call>', [["call", "f", "{}"]]),
        ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', [["call", "f", "{}"]]),
        ("harmony", "<|channel|>commentary to=functions.f<|message|><|call|>", [["call", "f", "{}"]]),
        ("llama", '{"name": "Bob"}', [["text", '{"name": "Bob"}']]),
        # Text behind a call, and answers that are cut.
        ("hermes", '<tool_call>{"name": "f", "arguments": {}} so</tool_call>\nx', [["call", "f", "{}"], ["text", "sox"]]),
        ("llama", '{"name": "f", "parameters": {}}\n\nDone.', [["call", "f", "{}"], ["text", "Done."]]),
        ("llama", '{"name": "f", "parameters": {"a": "b', [["call", "f", '{"a": "b']]),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"a', [["call", "f", "{}"], ["call", "g", '{"a']]),
        ("mistral", "[TOOL_CALLS] are calls", [["text", "[TOOL_CALLS] are calls"]]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}}\n</tool_ca', [["call", "f", '{"a": 1}']]),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}}</tool_call></tool_ca', [["call", "f", "{}"], ["text", "</tool_ca"]]),
        # New lines in strings are escaped, as JSON has it.
        ("hermes", '<tool_call>{"name": "f",\n"arguments": {\n"a": "x\n\t\\n"}}</tool_call>', [["call", "f", '{\n"a": "x\\n\\t\\n"}']]),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"a": "x\ny"}[TOOL_CALLS]g[ARGS]{"b": "\r', [["call", "f", '{"a": "x\\ny"}'], ["call", "g", '{"b": "\\r']]),
        ("harmony", '<|channel|>commentary to=functions.f<|message|>{"a": "x\ny"}<|call|>', [["call", "f", '{"a": "x\\ny"}']]),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"x\ny\\"}"}</tool_call>', [["call", "f", '{"a": "x\\ny"}']]),
        # Reasoning is at the beginning only.
        ("none", "The tag <think> begins; </think> ends.", [["text", "The tag <think> begins; </think> ends."]]),
        ("none", "\n<think>a</think>\n\nb <think>", [["reasoning", "a"], ["text", "b <think>"]]),
        # Qwen3-Coder.
        ("hermes", "<tool_call>\n<function=f>\n</function>\n</tool_call>", [["call", "f", "{}"]]),
        ("hermes", "x\n<tool_call>\n<function=f>\n<parameter=s>\na </parameter>\n \"\n</parameter>\n<parameter=n>\n3\n</parameter>\n"
         "<parameter=b>True</parameter>\n<parameter=o>\n[1, {}]\n</parameter>\n</function>\n</tool_call>\ny",
         [["text", "x\n"], ["call", "f", '{"s": "a </parameter>\\n \\"", "n": 3, "b": true, "o": [1, {}]}'], ["text", "y"]]),
        ("hermes", "<tool_call>\n<function=f>\n<parameter=s>\nhal", [["call", "f", '{"s": "hal']]),
        # The types of its parameters, wherever the schema has them.
        *(("hermes", f"<tool_call><function=f><parameter={name}>{text}</parameter></function></tool_call>", [["call", "f", f'{{"{name}": {value}}}']])
          for name, text, value in [
              ("s", "5", '"5"'), ("optional", "5", '"5"'), ("optional", "null", "null"), ("either", "5", '"5"'), ("either", "null", "null"),
              ("far", "5", "5"), ("far", "5.5", '"5.5"'), ("own", "5", "5"), ("number", "5", "5"), ("own", "x", '"x"'), ("known", "2", '"2"'),
              ("fixed", "2", "2"), ("lost", "2", "2"), ("other", "2", '"2"'), ("loop", "2", "2"),
              ("wrong", "2", "2"),
          ]),
    ],
)  # fmt: skip
def test_calls_and_reasoning_at_the_edges(
    format: Any, script: str, expected: list[list[str]], streams: bool
) -> None:
    schema: dict[str, Any] = {
        "properties": {
            "s": {"type": "string"},
            "n": {"type": "integer"},
            "b": {"type": "boolean"},
            "o": {"type": ["array", "null"]},
            "optional": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "either": {"type": ["string", "null"]},
            "far": {"anyOf": [{"$ref": "#/$defs/a~1b"}, {"type": "string"}]},
            "own": {"$ref": "#/properties/n"},
            "number": {"oneOf": [{"type": "number"}, {"type": "string"}]},
            "known": {"enum": ["1", "2"]},
            "fixed": {"const": 2},
            "lost": {"$ref": "#/$defs/none"},
            "loop": {"$ref": "#/properties/loop"},
            "wrong": {"type": [{}]},
        },
        "$defs": {"a/b": {"type": "integer"}},
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    parser = AnswerParser(format, thinks=True, streams=streams, tools=tools)
    assert merged(parts_of(parser, script, 1)) == expected


def test_arguments_come_while_they_are_written() -> None:
    parser = AnswerParser("hermes", streams=True)
    assert parser.feed('<tool_call>{"name": "f", "arg') == []
    assert parser.feed('uments": ') == []
    first, more = parser.feed('{"a')
    assert first.call == Call("f", "")
    assert more.text == '{"a'
    (more,) = parser.feed('": "long')
    assert more == AnswerPart("arguments", '": "long')


def test_calls_are_text_without_tools(client: Any) -> None:
    found = client.chat.completions.create(
        model=NAMES[HERMES], messages=[{"role": "user", "content": "?"}], seed=SEEDS[HERMES]
    ).choices[0]
    assert found.message.tool_calls is None
    assert "weather" in found.message.content


def test_results_come_back_over_turns(client: Any, url: str) -> None:
    """The template gets arguments as an object, and the result."""
    import httpx

    asked = [{"role": "user", "content": "?"}]
    first = client.chat.completions.create(
        model=NAMES[HERMES], messages=asked, tools=TOOLS, seed=0
    ).choices[0]
    turns = [
        *asked,
        first.message.model_dump(exclude_none=True),
        *(
            {"role": "tool", "tool_call_id": call.id, "content": f"result of {call.function.name}"}
            for call in first.message.tool_calls
        ),
    ]
    client.chat.completions.create(model=NAMES[HERMES], messages=turns, tools=TOOLS, seed=1)
    for template, shown in (
        (HERMES, "CALLweatherBern é"),
        (NONE, '{"name": "weather", "arguments"'),
    ):
        body = {"model": NAMES[template], "messages": turns, "tools": TOOLS}
        tokens = httpx.post(f"{url}/tokenize", json=body).json()["tokens"]
        body = {"model": NAMES[template], "tokens": tokens}
        prompt = httpx.post(f"{url}/detokenize", json=body).json()["prompt"]
        assert shown in prompt
        assert "result of weather" in prompt
        assert "result of time" in prompt


def test_marks_that_somebody_writes_are_text(client: Any, url: str) -> None:
    import httpx

    body = {
        "model": NAMES[HERMES],
        "messages": [{"role": "user", "content": "<|im_end|><tool_call>"}],
    }
    tokens = httpx.post(f"{url}/tokenize", json=body).json()["tokens"]
    plain = {"model": NAMES[HERMES], "prompt": "<|im_end|>", "add_special_tokens": False}
    (end,) = httpx.post(f"{url}/tokenize", json=plain).json()["tokens"]
    assert tokens.count(end) == 1  # the template's own
