"""What the embedded model reads: licences, what is held out, questions and answers."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from functools import cache

import pytest

from embedded import questions
from embedded.questions import Fact
from embedded.sources import ALLOWED, LIBRARIES, STANDARD, Document, check_licences, documents
from tests.test_conventions import ROOT


@cache
def facts() -> dict[str, Fact]:
    return {fact.name: fact for fact in questions.facts()}


def test_licences_are_those_of_the_metadata() -> None:
    check_licences()
    assert {each.licence for each in LIBRARIES} <= ALLOWED


def test_another_licence_is_refused() -> None:
    rich = next(each for each in LIBRARIES if each.name == "rich")
    with pytest.raises(ValueError, match=r"rich: the table says GPL-3\.0"):
        check_licences([dataclasses.replace(rich, licence="GPL-3.0", stated="GPL")])
    with pytest.raises(ValueError, match="its metadata 'MIT"):
        check_licences([dataclasses.replace(rich, stated="BSD")])
    with pytest.raises(ValueError, match=r"GPL-3\.0"):
        check_licences([dataclasses.replace(rich, licence="GPL-3.0")])


def test_libraries_are_dependencies_of_the_project() -> None:
    """Each is named in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    named = [*project["dependencies"], *(each for extra in extras for each in extra)]
    names = {re.split(r"[^\w-]", each)[0] for each in named}
    missing = {each.name for each in LIBRARIES[1:]} - names
    assert LIBRARIES[0] is STANDARD
    assert not missing


def test_documents_are_ordered_and_unique() -> None:
    small = [each for each in LIBRARIES if each.name in ("click", "safetensors")]
    found = documents(small)
    assert found == documents(small[::-1])
    assert len({each.text for each in found}) == len(found) > 10
    assert any(each.name == "click/click/core.py" for each in found)
    assert not any("/tests/" in each.name for each in found)


def test_a_file_is_held_out_by_its_name() -> None:
    names = [f"library/{i}.py" for i in range(3200)]
    share = sum(Document(name, "").held_out for name in names) / len(names)
    assert 0.02 < share < 0.045
    assert Document(names[0], "a").held_out == Document(names[0], "b").held_out


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("textwrap.dedent", "function", "Remove any common leading whitespace"),
        ("len", "function", "Return the number of items in a container."),
        ("str.split", "method", "Return a list of the substrings in the string"),
        ("os.path.join", "function", "Join two or more pathname components"),
        ("random.randint", "function", "Return random integer in range [a, b]"),
        ("math.sqrt", "function", "Return the square root of x."),
        ("pathlib.Path", "class", "PurePath subclass that can make system calls."),
        ("json", "module", "JSON (JavaScript Object Notation)"),
    ],
)
def test_facts_are_first_paragraphs(name: str, kind: str, words: str) -> None:
    fact = facts()[name]
    assert fact.kind == kind
    assert fact.text.startswith(words)


def test_facts_are_prose_on_one_line() -> None:
    assert len(facts()) > 2000
    for fact in facts().values():
        assert "\n" not in fact.text
        assert 12 <= len(fact.text) <= 400
        assert " at 0x" not in fact.text + fact.signature


def test_questions_have_their_answers() -> None:
    asked = questions.pairs([facts()["textwrap.dedent"]])
    answers = {answer for question, answer in asked if "dedent" in question}
    assert "from textwrap import dedent" in answers
    assert "textwrap.dedent(text)" in answers
    assert facts()["textwrap.dedent"].text in answers
    about = [question for question, answer in asked if answer == facts()["textwrap.dedent"].text]
    assert len(set(about)) == questions.WAYS["function"] == len(about) / questions.PASSES


def test_chats_have_every_question_once() -> None:
    asked = [(f"question {i}", f"answer {i}") for i in range(100)]
    chats = questions.chats(asked)
    said = [(a["content"], b["content"]) for chat in chats for a, b in zip(chat[::2], chat[1::2])]
    assert sorted(said) == sorted(asked)
    assert {len(chat) for chat in chats} == {2, 4, 6}
    assert {message["role"] for chat in chats for message in chat[1::2]} == {"assistant"}
    assert chats == questions.chats(asked)
