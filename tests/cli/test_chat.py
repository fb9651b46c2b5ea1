"""`relaxpy chat`: a conversation, its commands, from a pipe and on a terminal with Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from relaxpy.cli.chat import Conversation, chat, history_path, next_message, show_parts
from relaxpy.errors import RelaxError, UsageError
from relaxpy.llm import LanguageModel, Thoughts, load
from relaxpy.models.loaded import Scheme
from relaxpy.serve import Piece
from tests.llm.checkpoints import CHATML, write_model
from tests.models import llava_checkpoints

ROOT = Path(__file__).parents[2]
EXACT = Scheme(bits=None, activations=None)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture(scope="module")
def model(place: str) -> LanguageModel:
    return load(place, scheme=EXACT)


@pytest.fixture
def talk(model: LanguageModel, capsys: pytest.CaptureFixture[str]) -> Iterator[Conversation]:
    yield Conversation(model, {"max_tokens": 6})
    capsys.readouterr()


def run(place: str, *args: str, text: str = "") -> Result:
    return CliRunner().invoke(chat, [place, "-n", "6", "--bits", "none", *args], input=text)


def answer(model: LanguageModel, messages: list[dict[str, Any]]) -> str:
    return "".join(model.chat(messages, max_tokens=6))


def test_from_a_pipe(place: str, model: LanguageModel) -> None:
    """A line is a message; answers come one below the other; earlier ones are part of the conversation."""
    result = run(place, text="Hello\n\nAgain\n")
    first = answer(model, [{"role": "user", "content": "Hello"}])
    second = answer(
        model,
        [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": first},
            {"role": "user", "content": "Again"},
        ],
    )
    assert result.exit_code == 0, result.exception
    assert result.stdout.split() == f"{first} {second}".split()


def test_options(place: str) -> None:
    result = run(place, "--timings", "--system", "Be brief.", text="Hello\n/stats\n/quit\nnever\n")
    assert result.exit_code == 0, result.exception
    assert result.stderr.count("tokens/s), ") == 2


def test_the_conversation(talk: Conversation, tmp_path: Path) -> None:
    talk.take("/system Be brief.")
    talk.take("Hello")
    talk.take("Again")
    roles = [each["role"] for each in talk.messages]
    assert roles == ["user", "assistant"] * 2
    assert talk.last is not None
    prompt = talk.model.tokenizer.decode(talk.last.prompt, special=True)
    assert prompt.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello")
    before = talk.messages[-1]
    talk.take("/retry")
    assert talk.messages[-1] == before  # the most probable tokens
    talk.take(f"/save {tmp_path / 'chat.json'}")
    saved = json.loads((tmp_path / "chat.json").read_text())
    assert [each["role"] for each in saved] == ["system", *roles]
    talk.take("/reset")
    assert talk.messages == []
    talk.take("/system")
    assert talk.system is None
    talk.take(f"/load {tmp_path / 'chat.json'}")
    assert [talk.system, *(each["content"] for each in talk.messages)] == [
        each["content"] for each in saved
    ]
    talk.take("/quit")
    assert talk.is_over


def test_one_message(place: str, model: LanguageModel) -> None:
    """As an argument: its answer, and the end; the lines of stdin are not read."""
    result = run(place, "Hello", text="never read\n")
    assert result.exit_code == 0, result.exception
    assert (
        result.stdout == answer(model, [{"role": "user", "content": "Hello"}]).rstrip("\n") + "\n"
    )


def test_json(place: str, model: LanguageModel) -> None:
    """An object for each line, and nothing else."""
    result = run(place, "--json", text="Hello\nAgain\n")
    first, second = map(json.loads, result.stdout.splitlines())
    assert first["text"] == answer(model, [{"role": "user", "content": "Hello"}])
    assert (first["finish_reason"], first["reasoning"]) == ("length", None)
    assert second["usage"]["prompt_tokens"] > first["usage"]["prompt_tokens"]
    assert result.stderr == ""


def test_options_that_are_set(talk: Conversation, capsys: pytest.CaptureFixture[str]) -> None:
    talk.take("/set temperature 1.5")
    talk.take("/set max_tokens 3")
    talk.take("Hello")
    assert talk.last is not None
    assert (talk.last.sampling.temperature, talk.last.max_tokens) == (1.5, 3)
    talk.take("/set temperature")
    assert talk.sampling == {"max_tokens": 3}
    capsys.readouterr()
    talk.take("/set")
    lines = capsys.readouterr().err.split("\n")
    assert {"max_tokens 3", "temperature 0", "repetition_penalty 1.0"} <= {*lines}


def test_why_an_answer_ended(
    talk: Conversation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit, a full context, and a loop are told."""
    talk.take("Hello")
    assert "(cut off after 6 tokens: --max-tokens)" in capsys.readouterr().err
    letter = talk.model.tokenizer.encode("C", special=False)[0]
    turns = iter(range(1000))
    monkeypatch.setattr(
        talk.model._engine.model,
        "sample",
        lambda *_: (np.array([letter + next(turns) % 2]), np.zeros(1)),
    )
    talk.take("/set max_tokens")
    talk.take("/clear")
    talk.take("Hello")
    assert "(stopped: the answer repeats itself" in capsys.readouterr().err
    assert len(talk.messages[-1]["content"]) == 202
    talk.take("/clear")
    talk.take("/set max_tokens 1000")  # asked for
    talk.take("Hello")
    assert "the context of 256 tokens is full)" in capsys.readouterr().err


def test_room_for_an_answer(talk: Conversation, capsys: pytest.CaptureFixture[str]) -> None:
    """Old messages are left out before an answer has no room."""
    talk.take("0 " * 90)
    talk.take("/set max_tokens 150")
    talk.take("1 " * 20)
    assert talk.last is not None
    assert "its first 2 messages are left out" in capsys.readouterr().err
    assert len(talk.last.prompt) + 64 <= talk.model.context


def test_thoughts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Dim on a terminal, without colours as they are; elsewhere left out."""
    parts = [(True, "hm"), (True, " so\x1b"), (False, "Yes"), (False, ".")]
    show_parts(iter(parts))
    assert capsys.readouterr().out == "Yes.\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    show_parts(iter(parts))
    assert capsys.readouterr().out == "\x1b[2mhm so�\n\n\x1b[22mYes.\n"
    show_parts(iter(parts[:2]))
    assert capsys.readouterr().out == "\x1b[2mhm so�\n\x1b[22m"
    monkeypatch.setenv("NO_COLOR", "1")
    show_parts(iter(parts))
    assert capsys.readouterr().out == "hm so�\n\nYes.\n"


def test_thoughts_are_kept_beside_the_answer(
    talk: Conversation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Thoughts, "of", lambda *_: Thoughts(begun=True))
    talk.take("Hello")
    whole = talk.last.text if talk.last else ""
    assert talk.messages[-1] == {
        "role": "assistant",
        "content": "",
        "reasoning_content": whole.strip(),
    }
    talk.take(f"/save {tmp_path / 'chat.json'}")
    kept = [*talk.messages]
    talk.take("/clear")
    talk.take(f"/load {tmp_path / 'chat.json'}")
    assert talk.messages == kept


def test_where_typed_lines_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELAXPY_CHAT_HISTORY", raising=False)
    monkeypatch.setenv("RELAXPY_CACHE_DIR", "/a/cache")
    assert history_path() == Path("/a/cache/chat_history")
    monkeypatch.setenv("RELAXPY_CHAT_HISTORY", "")
    assert history_path() is None
    monkeypatch.setenv("RELAXPY_CHAT_HISTORY", "/a/file")
    assert history_path() == Path("/a/file")


def test_a_second_turn_is_cheap(talk: Conversation) -> None:
    """The keys and values of the first turn are in the cache."""
    talk.take("Compile once, and run it for every shape. " * 2)
    talk.take("Again")
    assert talk.last is not None
    assert talk.last.usage.cached_tokens >= 32


def test_a_conversation_longer_than_the_context(
    talk: Conversation, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(5):
        talk.take(f"{number} " * 35)
    assert "its first 2 messages are left out" in capsys.readouterr().err
    assert len(talk.messages) == 10
    with pytest.raises(UsageError) as caught:
        talk.take("too long " * 200)
    assert caught.value.code == "bad-length"
    assert len(talk.messages) == 10


def test_an_interrupted_answer(
    talk: Conversation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was said stays in the conversation; an interrupt before the first token takes the message back."""
    every, step = talk.model.book.available(), talk.model.step
    for after, count in ((3, 2), (0, 2)):
        calls = iter(range(100))

        def interrupted(
            *args: Any, after: int = after, calls: Iterator[int] = calls
        ) -> list[Piece]:
            if next(calls) == after:
                raise KeyboardInterrupt
            return step(*args)

        monkeypatch.setattr(talk.model, "step", interrupted)
        try:
            talk.take("Hello")
            assert "(stopped)" in capsys.readouterr().err
        except KeyboardInterrupt:
            assert after == 0
        assert len(talk.messages) == count
        assert talk.model.book.available() == every


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("/retry", "no answer yet"), ("/stats", "no answer yet"), ("/save", "/save needs a file"),
        ("/nothing", "no command /nothing"), ("/set heat 1", "there is no option heat"), ("/set top_k x", "top_k is a number"),
        ("/set top_p 7", "top_p"), ("/set max_tokens 0", "max_tokens is at least 1"), ("/load no/such/file", "cannot be read"),
        ("/load", "cannot be read"),
    ],
)  # fmt: skip
def test_mistakes(talk: Conversation, line: str, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        talk.take(line)


@pytest.mark.parametrize(
    "text", ["{", "{}", "[1]", '[{"role": "user", "content": "a"}]', "[" * 9999]
)
def test_files_that_are_no_conversation(talk: Conversation, tmp_path: Path, text: str) -> None:
    (tmp_path / "chat.json").write_text(text)
    with pytest.raises(UsageError, match=r"is not JSON|is no conversation"):
        talk.take(f"/load {tmp_path / 'chat.json'}")


@pytest.mark.parametrize(
    ("lines", "messages"),
    [
        (["a", "b"], ["a", "b"]),
        (["a\\", "b", "c"], ["a\nb", "c"]),
        (['"""', "a", "", "/b", '"""', "c"], ["a\n\n/b", "c"]),
        (['"""', "a"], ["a"]),
        (["a\\"], ["a"]),
        (['"""a', '  b"""', "c"], ["a\n  b", "c"]),
        (['  """a b"""', '"""', "", 'x"""'], ["a b", "\nx"]),
        (['""""""', "c"], ["", "c"]),
        ([], []),
    ],
)
def test_messages_of_several_lines(lines: list[str], messages: list[str]) -> None:
    rest = iter(lines)

    def read(_: str) -> str:
        found = next(rest, None)
        if found is None:
            raise EOFError
        return found

    assert [*iter(lambda: next_message(read), None)] == messages


def test_a_checkpoint_without_a_template(place: str, tmp_path: Path) -> None:
    config = Path(place) / "tokenizer_config.json"
    old = config.read_text()
    try:
        config.write_text('{"eos_token": "</s>"}')
        failed = run(place, text="Hello\n")
        assert isinstance(failed.exception, RelaxError)
        assert failed.exception.code == "chat-template"
        (tmp_path / "own.jinja").write_text(CHATML)
        assert run(place, "--template", str(tmp_path / "own.jinja"), text="Hello\n").exit_code == 0
    finally:
        config.write_text(old)


def test_a_template_that_refuses(place: str, tmp_path: Path) -> None:
    """From a pipe a mistake ends the conversation."""
    own = tmp_path / "own.jinja"
    own.write_text("{{ raise_exception('only odd days') }}")
    failed = run(place, "--template", str(own), text="Hello\n")
    assert isinstance(failed.exception, RelaxError)
    assert (
        f"the template of {own} refuses these messages: only odd days" in failed.exception.render()
    )


def test_what_is_refused_before_the_model_is_compiled(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A template that fails, and a context that the model does not have: nobody waits for that."""
    monkeypatch.setattr("relaxpy.llm.language_model.load_decoder", None)
    own = tmp_path / "own.jinja"
    own.write_text(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    )
    for options, text in (
        (["--template", str(own), "--system", "Be brief."], "refuses these messages: no system"),
        (["--context", "257"], "context is 257, but the model has 256 positions"),
    ):
        failed = run(place, *options, text="Hello\n")
        assert isinstance(failed.exception, RelaxError)
        assert text in failed.exception.render()


def on_a_terminal(history: Path, *args: str) -> Any:
    """A process of Python with these arguments, a conversation on a terminal, after its first prompt."""
    pexpect: Any = pytest.importorskip("pexpect")

    child = pexpect.spawn(
        sys.executable, [*args],
        cwd=ROOT, timeout=120, encoding="utf-8", codec_errors="replace", dimensions=(40, 200),
        env={**os.environ, "TERM": "dumb", "PYTHONPATH": str(ROOT), "RELAXPY_CHAT_HISTORY": str(history)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )  # fmt: skip
    child.expect("Ctrl-D ends")
    child.expect("> ")
    return child


def test_on_a_terminal(place: str, tmp_path: Path) -> None:
    """Keys, Ctrl-C in an answer and at the prompt, mistakes that are told, Ctrl-D."""
    pexpect: Any = pytest.importorskip("pexpect")
    options = "--bits", "none", "--temperature", "2"
    child = on_a_terminal(tmp_path / "typed", "-m", "relaxpy", "chat", place, *options)
    child.sendline("/nothing")
    child.expect("no command /nothing")
    child.expect("\n> ")
    child.sendintr()
    child.send("\r")  # an interrupt just before Python waits for keys is seen with the next key
    child.expect("/quit or Ctrl-D ends")
    child.expect("> ")
    child.sendline("Hello")
    child.expect("Hello\r\n")
    child.expect(re.compile(".{3}", re.DOTALL))
    child.sendintr()  # the terminal forgets the output that nobody read: perhaps the prompt, too
    child.sendline("/again")
    child.expect("no command /again")
    child.expect("\n> ")
    child.send("/stats\x1b[A\x1b[B\r")  # keys of the line editor: up, and down again
    child.expect("tokens/s")
    child.expect("> ")
    child.sendeof()
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    assert (tmp_path / "typed").read_text().split("\n")[:2] == ["/nothing", "Hello"]
    assert (tmp_path / "typed").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(
    sys.platform != "linux",
    reason="elsewhere readline may be libedit, with which this was not tried",
)
def test_an_interrupt_before_a_line(place: str, tmp_path: Path) -> None:
    """Interrupted after the prompt is shown and before Python waits for keys: the line that comes then is taken."""
    pexpect: Any = pytest.importorskip("pexpect")

    code = f"""
import ctypes, functools, readline, signal
from relaxpy.cli.main import main
# as the hook ends, readline waits; a C function, because Python would raise the interrupt in the hook
readline.set_pre_input_hook(functools.partial(ctypes.CDLL(None)["raise"], int(signal.SIGINT)))
main(["chat", {place!r}, "--bits", "none"])
"""
    child = on_a_terminal(tmp_path / "typed", "-c", code)
    child.sendline("/nothing")
    child.expect("no command /nothing")
    child.expect("\n> ")
    child.send("\r")
    child.expect("/quit or Ctrl-D ends")
    child.expect("> ")
    child.sendline("/quit")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


# Pictures


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    pytest.importorskip("transformers")
    place = tmp_path_factory.mktemp("llava")
    llava_checkpoints.write("llava", place)
    llava_checkpoints.write_tokenizer(place)
    return load(place, scheme=llava_checkpoints.SCHEME, target=llava_checkpoints.TARGET)


@pytest.fixture
def picture(tmp_path: Path) -> str:
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "a picture.png"
    image.fromarray(np.random.default_rng(1).integers(0, 256, (30, 40, 3), np.uint8)).save(path)
    return str(path)


def test_a_picture_in_a_conversation(
    seeing: LanguageModel, picture: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is part of the next message, which is saved with its file, and read again."""
    talk = Conversation(seeing, {"max_tokens": 6, "temperature": 0}, images=[picture])
    talk.take("What is it?")
    talk.take("Sure?")
    talk.take(f"/image {picture}")
    talk.take("And this?")
    contents = [each["content"] for each in talk.messages if each["role"] == "user"]
    part = {"type": "image", "image": picture}
    assert contents[0] == [part, {"type": "text", "text": "What is it?"}]
    assert contents[1] == "Sure?"
    assert contents[2][0] == part
    said = answer(seeing, talk.messages[:1])
    assert talk.messages[1]["content"] == said
    path = tmp_path / "chat.json"
    talk.take(f"/save {path}")
    again = Conversation(seeing, {"max_tokens": 6, "temperature": 0})
    again.take(f"/load {path}")
    assert again.messages == talk.messages
    again.take("/retry")
    assert again.messages == talk.messages
    talk.take(f"/image {picture}")
    talk.take("/clear")
    talk.take("Hello")
    assert talk.messages[0]["content"] == "Hello"
    capsys.readouterr()


@pytest.mark.parametrize("path", ["", "nowhere.png", __file__])
def test_pictures_that_are_none(seeing: LanguageModel, path: str) -> None:
    talk = Conversation(seeing, {"max_tokens": 6})
    with pytest.raises(UsageError):
        talk.take(f"/image {path}")
    assert not talk.images


def test_a_model_that_reads_texts(talk: Conversation, place: str, picture: str) -> None:
    """It refuses pictures before it is compiled, and in a conversation."""
    with pytest.raises(UsageError, match="tiny reads texts alone"):
        talk.take(f"/image {picture}")
    result = run(place, "--image", picture, "What is it?")
    assert isinstance(result.exception, UsageError)
    assert "tiny reads texts alone" in str(result.exception)
