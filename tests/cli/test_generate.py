"""`relaxpy generate`: where model and prompt come from, what is printed, and mistakes."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from relaxpy.checkpoints.quantize import quantize_checkpoint
from relaxpy.cli.generate import generate, model_and_prompt, note_on_chats
from relaxpy.cli.language_model import is_place, model_and_text, printable, scheme_of
from relaxpy.codes import Codes
from relaxpy.errors import RelaxError, UsageError
from relaxpy.llm import load
from relaxpy.models.loaded import Scheme
from tests.llm.checkpoints import write_model
from tests.models import llava_checkpoints

EXACT = ("--bits", "none")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture(scope="module")
def expected(place: str) -> str:
    return load(place, scheme=Scheme(bits=None, activations=None)).complete("Compile", max_tokens=9)


@pytest.fixture
def run(place: str) -> Callable[..., Result]:
    def invoke(*args: str, text: str | None = None) -> Result:
        return CliRunner().invoke(generate, [*args, "-n", "9", *EXACT], input=text)

    return invoke


def test_fields_that_nobody_reads_are_one_line(place: str, tmp_path: Path) -> None:
    """Without the line of relaxpy that warns, which a user of the command line did not write."""
    copy = Path(shutil.copytree(place, tmp_path / "tiny"))
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "logit_scale": 0.25}))
    done = subprocess.run(
        [sys.executable, "-m", "relaxpy", "generate", str(copy), "a", "-n", "1", *EXACT],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    named = f"warning: {copy / 'config.json'}: not followed: logit_scale = 0.25"
    assert done.stderr.splitlines().count(named) == 1
    assert "UnreadWarning" not in done.stderr


def test_a_prompt_from_everywhere(
    run: Callable[..., Result], place: str, expected: str, tmp_path: Path
) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("Compile")
    for result in (
        run(place, "Compile"), run(place, text="Compile"), run(place, "-", text="Compile"),
        run(place, "--file", str(file)), run(place, "-f", "-", text="Compile"),
    ):  # fmt: skip
        assert result.exit_code == 0, result.exception
        assert result.stdout.rstrip("\n") == expected.rstrip("\n")
        assert re.search(
            r"prompt 4 tokens.*answer \d tokens in .* tokens/s\), ended", result.stderr
        )


def test_json(run: Callable[..., Result], place: str, expected: str) -> None:
    result = run(place, "Compile", "--json", "--stop", expected[3:6])
    found = json.loads(result.stdout)
    assert found["text"] == expected[: expected.find(expected[3:6])]
    assert (found["finish_reason"], found["stop"]) == ("stop", expected[3:6])
    assert found["usage"]["completion_tokens"] == len(found["tokens"])
    assert result.stderr == ""


def test_options_reach_the_sampler(run: Callable[..., Result], place: str) -> None:
    one, two, other = (
        run(place, "Compile", "--temperature", "1.5", "--seed", seed, "--top-k", "50").stdout
        for seed in ("1", "1", "2")
    )
    assert one == two != other
    failed = run(place, "Compile", "--top-p", "7")
    assert isinstance(failed.exception, RelaxError)
    assert failed.exception.code == "sampling"


def test_options_say_how_weights_are_kept(place: str, tmp_path: Path) -> None:
    assert scheme_of(place, None, None, None) is None
    assert (
        scheme_of(place, "4", "float32", None)
        == scheme_of(place, None, "float32", None)
        == Scheme()
    )
    assert scheme_of(place, "8", "bfloat16", "int8") == Scheme(
        8, dtype="bfloat16", cache_dtype="int8"
    )
    quantised = tmp_path / "quantised"
    quantize_checkpoint(Path(place), quantised, Codes(8, 32))
    assert scheme_of(str(quantised), None, "bfloat16", None) == Scheme(None, dtype="bfloat16")


def test_which_argument_is_the_model(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_place(place)
    assert is_place("./not/there")
    assert is_place("model.gguf")
    assert is_place("meta-llama/Llama-3.2-1B")
    assert not is_place("and/or, either")
    assert not is_place("1/2")
    assert not is_place("")
    assert not is_place("Once upon a time")
    assert not is_place("/ a division")
    assert not is_place("x" * 5000)
    assert model_and_prompt(("a",), None) == (None, "a")
    assert model_and_prompt(("a", "b"), None) == ("a", "b")
    assert model_and_text(("llama3",), "") == (None, "llama3")
    (tmp_path / "llama3").mkdir()
    assert model_and_text(("llama3",), "", words=False) == ("llama3", None)
    with pytest.raises(UsageError, match="no folder or file it's here") as caught:
        model_and_text(("it's",), "", words=False)
    assert str(caught.value.help).endswith("""echo 'it'"'"'s' | relaxpy chat""")
    assert model_and_text(("Why not?",), "", words=False) == (None, "Why not?")
    with pytest.raises(UsageError, match="the model comes before the text"):
        model_and_text(("Why not?", place), "…")


@pytest.mark.parametrize(
    ("args", "file", "match"),
    [
        (("a", "b", "c"), None, "got 3 arguments"),
        (("a",), "b", "both as an argument and with --file"),
        ((), "no/such/file", "cannot be read"),
    ],
)
def test_mistakes(args: tuple[str, ...], file: str | None, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        model_and_prompt(args, file)


def test_no_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal: Any = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", terminal)
    with pytest.raises(UsageError, match="there is no prompt"):
        model_and_prompt((), None)


def test_a_model_that_is_not_there(run: Callable[..., Result]) -> None:
    failed = run("./nowhere", "Compile")
    assert isinstance(failed.exception, UsageError)
    assert "there is no checkpoint at nowhere" in failed.exception.render()


@pytest.fixture(scope="module")
def silent(place: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, which ends each of its texts at the token that is the most probable after "Compile"."""
    first = load(place, scheme=Scheme(bits=None, activations=None)).generate(
        "Compile", max_tokens=1
    )
    list(first)
    copy = Path(shutil.copytree(place, tmp_path_factory.mktemp("silent") / "tiny"))
    (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": first.tokens}))
    return copy


def test_a_chat_model_that_says_nothing(
    run: Callable[..., Result], place: str, silent: Path, tmp_path: Path
) -> None:
    """The first try of those who know tools that ask a model by its template: the command that does so is named."""
    found = run(str(silent), "Compile")
    assert (found.exit_code, found.stdout.strip()) == (0, "")
    assert found.stderr.splitlines()[-1].endswith(
        f"for chats, which answers: relaxpy chat {silent} Compile"
    )
    assert "for chats" not in run(str(silent), "Compile", "--json").stderr
    assert "for chats" not in run(place, "Compile").stderr
    without = Path(shutil.copytree(silent, tmp_path / "tiny"))
    (without / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((without / "tokenizer_config.json").read_text())
    (without / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": None}))
    assert "for chats" not in run(str(without), "Compile").stderr


def test_the_command_that_a_note_names(silent: Path) -> None:
    model = load(silent, scheme=Scheme(bits=None, activations=None))
    pieces = model.generate("Compile")
    list(pieces)
    for place, prompt, command in (
        (None, "What's that?", "relaxpy chat 'What'\"'\"'s that?'"),
        (None, "Hello", "echo Hello | relaxpy chat"),
        ("my models/a", "Hello", "relaxpy chat 'my models/a' Hello"),
        ("a/b", "two\nlines", 'relaxpy chat a/b "…"'),
        ("a/b", "x" * 99, 'relaxpy chat a/b "…"'),
    ):
        assert (note_on_chats(model, pieces, place, prompt) or "").endswith(f"answers: {command}")


def test_text_cannot_change_the_terminal() -> None:
    assert printable("a\x1b[31mb\r\n\tü\x07\x9b") == "a�[31mb�\n\tü��"


def test_a_picture(tmp_path: Path) -> None:
    """Where the placeholder is, or first; what is no picture is found before the model is compiled."""
    pytest.importorskip("transformers")
    image = pytest.importorskip("PIL.Image")
    llava_checkpoints.write("llava", tmp_path)
    llava_checkpoints.write_tokenizer(tmp_path)
    picture, target = str(tmp_path / "a.png"), llava_checkpoints.TARGET
    image.new("RGB", (30, 40), (200, 10, 20)).save(picture)

    def run(*args: str) -> Result:
        return CliRunner().invoke(
            generate, [str(tmp_path), *args, "-n", "5", *EXACT, "--json", "--target", target]
        )

    prompts = "Compile <image> once", "Compile once"
    found = [run(prompt, "--image", picture) for prompt in prompts]
    assert [each.exit_code for each in found] == [0, 0]
    model = load(tmp_path, scheme=llava_checkpoints.SCHEME, target=target)
    for result, prompt in zip(found, (prompts[0], f"<image>\n{prompts[1]}"), strict=True):
        expected = model.complete(prompt, images=[picture], max_tokens=5)
        data = json.loads(result.stdout)
        assert data["text"] == expected
        assert data["usage"]["prompt_tokens"] > 9
    for wrong, message in ((__file__, "is no picture"), ("nowhere.png", "cannot read nowhere.png")):
        result = run("a", "--image", wrong)
        assert message in str(result.exception)
    result = run("<image> and <image>", "--image", picture)
    assert "2 places for pictures, and there are 1 pictures" in str(result.exception)
    result = run("<image> What is it?")
    assert "has 1 of <image>, the place of a picture, and there is no picture" in str(
        result.exception
    )
