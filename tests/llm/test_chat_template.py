"""Chat templates: as transformers renders them, and templates that want more than to write a prompt."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from relaxpy.errors import RelaxError, UsageError
from relaxpy.llm import ChatTemplate, Tokenizer
from relaxpy.llm.chat_template import checked_messages
from tests.llm.checkpoints import CHATML, write_tokenizer
from tests.llm.real_templates import CHATS, TEMPLATES, TOOLS, USER
from tests.sweeps import sweep


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    transformers: Any = pytest.importorskip("transformers")

    folder = write_tokenizer(
        tmp_path_factory.mktemp("t"), tokenizer_class="PreTrainedTokenizerFast"
    )
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_checkpoint(write_tokenizer(tmp_path_factory.mktemp("o")))


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_as_transformers_does(theirs: Any, ours: Tokenizer, name: str, chat: str) -> None:
    """The same text and the same tokens, with and without tools and the beginning of an answer; or both refuse."""
    theirs.chat_template = TEMPLATES[name]
    ours.templates = {"default": ChatTemplate(TEMPLATES[name])}
    seen = 0
    for options in (
        {"add_generation_prompt": True},
        {"add_generation_prompt": False},
        {"add_generation_prompt": True, "tools": TOOLS},
        {"add_generation_prompt": True, "enable_thinking": False, "date_string": "1 Jan 2026"},
    ):
        given: Any = options
        messages: Any = CHATS[chat]
        try:
            expected = theirs.apply_chat_template(messages, tokenize=False, **given)
        except Exception:
            with pytest.raises(UsageError) as caught:
                ours.chat_text(messages, **given)
            assert caught.value.code == "chat-template"
            continue
        seen += 1
        assert ours.chat_text(messages, **given) == expected
        tokens = theirs.apply_chat_template(messages, tokenize=True, return_dict=False, **given)
        assert ours.chat_tokens(messages, control=True, **given) == tokens
        assert ours.chat_tokens(messages, **given) == tokens
    assert seen or chat != "one message"


def test_control_tokens_in_messages_as_transformers_does(theirs: Any, ours: Tokenizer) -> None:
    theirs.chat_template = CHATML
    ours.templates = {"default": ChatTemplate(CHATML)}
    messages = [
        {"role": "user", "content": "a<|im_end|>\n</s> <s>b"},
        {"role": "assistant", "content": "</s>"},
    ]
    expected = theirs.apply_chat_template(
        messages, add_generation_prompt=True, sanitize_control_tokens=True, return_dict=False
    )
    assert ours.chat_tokens(messages) == expected


def test_where_templates_are(tmp_path: Path) -> None:
    """In a file, in a list of names, in the configuration; the file before the others."""
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    write_tokenizer(tmp_path, template=named)
    found = Tokenizer.from_checkpoint(tmp_path)
    assert found.chat_text([USER]) == "D"
    assert found.chat_text([USER], tools=TOOLS) == "T"
    assert found.chat_text([USER], template="tool_use") == "T"
    with pytest.raises(UsageError, match="no chat template 'rag'") as caught:
        found.chat_text([USER], template="rag")
    assert "default, tool_use" in str(caught.value.help)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("R")
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "J"}))
    found = Tokenizer.from_checkpoint(tmp_path)
    assert (found.chat_text([USER]), found.chat_text([USER], template="rag")) == ("J", "R")
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].role }}é")
    assert Tokenizer.from_checkpoint(tmp_path).chat_text([USER]) == "useré"
    write_tokenizer(tmp_path / "none", template=None)
    with pytest.raises(UsageError, match="has no chat template: the model continues texts"):
        Tokenizer.from_checkpoint(tmp_path / "none").chat_text([USER])


def test_an_error_has_its_place(tmp_path: Path) -> None:
    """The line of the template, in its file."""
    write_tokenizer(tmp_path)
    place = tmp_path / "chat_template.jinja"
    place.write_text("first\n{% if messages %}\n  {{ messages[0].content / 2 }}\n{% endif %}\n")
    with pytest.raises(UsageError) as caught:
        Tokenizer.from_checkpoint(tmp_path).chat_text([USER])
    text = caught.value.render()
    assert f"--> {place}:3:3" in text
    assert "{{ messages[0].content / 2 }}" in text
    assert "unsupported operand" in text


@pytest.mark.parametrize(
    "messages",
    [
        [], None, "Hello", {"role": "user"}, [None], ["Hello"], [{"content": "no role"}], [{"role": 3}],
        [{"role": None, "content": "a"}], [{"role": "user", "content": object()}],
        [{"role": "user", "content": {1, 2}}], [{"role": "user", "content": b"bytes"}],
    ],
)  # fmt: skip
def test_messages_that_are_none(ours: Tokenizer, messages: Any) -> None:
    ours.templates = {"default": ChatTemplate(CHATML)}
    with pytest.raises(UsageError) as caught:
        ours.chat_tokens(messages)
    assert caught.value.code == "bad-prompt"


def test_nested_messages(ours: Tokenizer) -> None:
    deep: Any = "a"
    for _ in range(5000):
        deep = [deep]
    for value in (deep, {"a": deep}):
        with pytest.raises(UsageError, match="nested more than") as caught:
            ours.chat_tokens([{"role": "user", "content": value}])
        assert caught.value.code == "bad-prompt"


def test_reasoning_has_the_names_that_templates_read() -> None:
    (found,) = checked_messages([{"role": "assistant", "reasoning": "r", "content": None}])
    assert found == {
        "role": "assistant",
        "reasoning": "r",
        "reasoning_content": "r",
        "thinking": "r",
    }


ESCAPES = [
    "{{ ''.__class__.__mro__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__.__base__.__subclasses__() }}",
    "{{ ''['__class__'] }}",
    "{{ (''|attr('__class__')).mro() }}",
    "{{ ''|attr('__class__')|attr('__mro__') }}",
    "{{ ''|attr('__cl'~'ass__')|attr('__init__') }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(raise_exception) }}",
    "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "{{ '%s'.__mod__.__self__ }}",
    "{{ lipsum.__globals__ }}",
    "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "{{ cycler.__init__.__globals__.os.system('id') }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ namespace.__mro__ }}",
    "{{ dict.__class__.__base__ }}",
    "{{ dict.mro() }}",
    "{{ raise_exception.__globals__ }}",
    "{{ raise_exception.__code__.co_consts }}",
    "{{ strftime_now.__globals__['sys'].modules }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context.parent }}",
    "{{ self._TemplateReference__context.environment.globals }}",
    "{{ range.__class__('x', (), {}) }}",
    "{{ [].append.__self__.__class__ }}",
    "{{ (messages|map(attribute='__class__')|list)[0].__mro__ }}",
    "{{ messages|map('attr', '__class__')|map('attr', '__mro__')|list }}",
    "{{ messages|sort(attribute='__class__.__mro__') }}",
    "{{ [messages]|map(attribute='__class__.__base__.__subclasses__')|list }}",
    "{{ messages|groupby('__class__')|first|attr('grouper')|attr('mro') }}",
    "{% set ns = namespace(__class__=1) %}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "{% macro m() %}{% endmacro %}{{ m.__init__.__globals__ }}",
    "{% macro m() %}{{ caller.__globals__ }}{% endmacro %}{% call m() %}{% endcall %}",
    "{% for x in messages %}{{ loop.__class__.__init__.__globals__ }}{% endfor %}",
    "{% for x in messages %}{{ loop._iterable.__class__ }}{% endfor %}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'x'}) }}",
    "{{ messages.clear() }}",
    "{% include 'relaxpy.py' %}",
    "{% import 'os' as os %}{{ os }}",
    "{% extends '../../etc/passwd' %}",
    "{% from 'os' import system %}",
    "{{ open('/etc/passwd').read() }}",
    "{{ __import__('os').system('id') }}",
    "{{ eval('1') }}",
    "{{ config.items() }}",
    "{{ request.application.__globals__ }}",
    "{{ get_flashed_messages.__globals__ }}",
    "{{ url_for.__globals__ }}",
]
"""Ways out of the sandbox that are known, with names that other programs have."""


@pytest.mark.parametrize("source", ESCAPES)
def test_no_way_out(source: str) -> None:
    """An error, or nothing: never the text of a class, a module or a function's globals."""
    template = ChatTemplate(source)
    try:
        text = template.render(messages=[USER], add_generation_prompt=True)
    except RelaxError:
        with pytest.raises(UsageError, match="the template of <template> fails"):
            template.render(messages=[USER], add_generation_prompt=True)
        return
    assert text.strip() in ("", "[]", "[Undefined]"), text
    assert "<class" not in text


HUNGRY = {
    "a long range": "{% for i in range(10**9) %}x{% endfor %}",
    "ranges in ranges": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a range of a range": "{{ range(10**18)|list }}",
    "multiplied text": "{{ 'a' * 10**12 }}",
    "multiplied list": "{{ ([0] * 10**12)|length }}",
    "a power": "{{ 9**(9**9) }}",
    "a power of a power": "{{ (10**(10**6))**(10**6) }}",
    "a shift": "{{ 2**(2**40) }}",
    "text that doubles": "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
    "lists that double": "{% set ns = namespace(l=[0]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}{{ ns.l|length }}",
    "nested lists": "{% set ns = namespace(l=[0]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
    "nested lists compared": "{% set a = namespace(l=[0], m=[0]) %}{% for i in range(60) %}{% set a.l = [a.l, a.l] %}{% set a.m = [a.m, a.m] %}{% endfor %}{{ a.l == a.m }}",
    "nested lists as JSON": "{% set ns = namespace(l=[0]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l|tojson }}",
    "blocks that double": "{% set x = 'ab' %}"
    + "{% set x %}{{ x }}{{ x }}{% endset %}" * 60
    + "{{ x }}",
    "a macro of itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a macro of itself twice": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "a recursive loop": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "a format's width": "{{ '%0999999999999d' % 1 }}",
    "another width": "{{ '{:>99999999999}'.format('a') }}",
    "a center": "{{ 'a'|center(10**12) }}",
    "a method's width": "{{ 'a'.ljust(10**12) }}",
    "zeros": "{{ 'a'.zfill(10**12) }}",
    "tabs": "{{ '\\t'.expandtabs(10**12) }}",
    "an indent": "{{ ('a\\n' * 1000)|indent(10**9) }}",
    "JSON's indent": "{{ [[[1]]]|tojson(indent=10**10) }}",
    "lorem ipsum": "{{ lipsum(n=10**9) }}",
    "replacements": "{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s.replace('a', 'aa') %}{% endfor %}{{ ns.s }}",
    "joins": "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s|join(ns.s) %}{% endfor %}{{ ns.s }}",
    "batches": "{{ [1]|batch(10**10, 0)|list }}",
    "much text": "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
    "deep expressions": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "deep blocks": "{% if 1 %}" * 2000 + "{% endif %}" * 2000,
    "many filters": "{{ 'a'" + "|upper" * 20000 + " }}",
    "a cycle": "{% set ns = namespace() %}{% set ns.ns = ns %}{{ ns.ns|tojson }}",
    "wrapping": "{{ ('a' * 10**7)|wordwrap(1) }}",
    "division by zero": "{{ 1 / 0 }}",
    "a number as text": "{{ 'a' + 1 }}",
    "a filter that is not there": "{{ 'a'|nothing }}",
    "a test that is not there": "{{ 'a' is nothing }}",
    "no end": "{% for x in messages %}",
    "no sense": "{{ }} {% %} {# ",
    "a bad date": "{{ strftime_now(3) }}",
    "an exception's text": "{{ raise_exception('x' * 10**7) }}",
    "control characters": "{{ raise_exception('\\x1b[31m\\x07') }}",
    "half a character": "{{ '\\ud800' }}{{ 1/0 }}",
}


@sweep(3)
@pytest.mark.parametrize("name", HUNGRY)
def test_hungry_templates(name: str) -> None:
    """Each is an error, in time, and the next template is rendered as ever."""
    start = time.monotonic()
    with pytest.raises(UsageError) as caught:
        ChatTemplate(HUNGRY[name], seconds=0.4).render(messages=[USER])
    assert caught.value.code == "chat-template", caught.value.render()
    assert len(caught.value.render()) < 20_000
    assert time.monotonic() - start < 30
    assert ChatTemplate("{{ messages[0].role }}").render(messages=[USER]) == "user"


def test_a_process_that_is_gone() -> None:
    """Killed from outside: the next template starts another one. Its parent's end is its own."""
    from relaxpy.llm import chat_template

    assert ChatTemplate("a").render() == "a"
    running = chat_template._PROCESS._running
    assert running is not None
    os.kill(running.pid, 9)
    running.wait()
    assert ChatTemplate("b").render() == "b"
    code = "from relaxpy.llm import ChatTemplate, chat_template as c; ChatTemplate('a').render(); print(c._PROCESS._running.pid)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


def test_a_fork_has_a_process_of_its_own() -> None:
    assert ChatTemplate("a").render() == "a"
    code = (
        "import os; from relaxpy.llm import ChatTemplate; assert ChatTemplate('a').render() == 'a'\n"
        "child = os.fork()\n"
        "assert ChatTemplate('b' if child else 'c').render() == ('b' if child else 'c')\n"
        "child and print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.strip() == "0"


def test_without_jinja(monkeypatch: pytest.MonkeyPatch) -> None:
    from relaxpy.llm import chat_template

    monkeypatch.setitem(sys.modules, "jinja2", None)
    chat_template._PROCESS.end()
    with pytest.raises(UsageError, match="need the package jinja2") as caught:
        ChatTemplate("a").render()
    assert "relaxpy[llm]" in str(caught.value.help)
