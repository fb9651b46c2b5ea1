"""`relaxpy chat`: a conversation with a language model."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from relaxpy.cli.language_model import (
    IMAGE_OPTION,
    MMPROJ_OPTION,
    MODEL_OPTIONS,
    SAMPLING,
    SAMPLING_OPTIONS,
    as_data,
    check_images,
    load_model,
    model_and_text,
    on_this_machine,
    options,
    read_file,
    show_pieces,
    summary,
    take_sampling,
)
from relaxpy.errors import RelaxError, UsageError
from relaxpy.files import cache_folder, open_regular, write_text
from relaxpy.narrow import is_list, is_mapping

if TYPE_CHECKING:
    from relaxpy.llm import Generation, LanguageModel, Tokenizer

QUOTES = '"""'
"""Around a message of several lines."""
HISTORY = "RELAXPY_CHAT_HISTORY"
"""The variable with the file of the lines that were typed; empty: none."""
_MOST_LINES = 1000
_THOUGHT, _ANSWER = "\x1b[2m", "\x1b[22m"
"""Dim letters begin and end."""


@click.command(
    epilog="""
\b
In the conversation:
  /help            the commands                  /system TEXT      a new system message
  /clear           forget the conversation       /retry            another answer to the last message
  /save FILE.json  write the messages            /load FILE        read them
  /stats           times of the last answer      /set NAME VALUE   an option of sampling; /set alone: all
  /image PATH      a picture, for models that see: the next message is about it
  /quit            end, like Ctrl-D

Ctrl-C stops an answer; what was said of it stays in the conversation. A line that ends with a backslash goes on, and so
does a message that begins with three quotes, until three quotes end it. From a pipe each line is a message. The lines
that you type are kept for the next time, in the file of RELAXPY_CHAT_HISTORY (empty: nowhere), by default in the cache.

Thoughts of models that think are dim on a terminal, and are left out elsewhere. Where the conversation is longer than
the context, its oldest messages are. An answer that repeats itself without end is stopped; with --max-tokens it is not.

\b
Examples:
  relaxpy chat                                       the model that ships with relaxpy
  relaxpy chat "What does textwrap.dedent do?"       one answer
  relaxpy chat ./TinyLlama --system "Be brief." --temperature 0.7
  relaxpy chat Qwen/Qwen2.5-0.5B-Instruct            a model of the Hugging Face hub, downloaded once
  relaxpy chat ./TinyLlama --json < questions.txt    a JSON object for each line
  relaxpy chat ./llava --image cat.png "What is it?"    a model that sees
  relaxpy chat model.gguf --mmproj mmproj.gguf --image cat.png    one in two GGUF files
"""
)
@click.argument("arguments", nargs=-1, metavar="[MODEL] [MESSAGE]")
@click.option("--system", metavar="TEXT", help="The system message.")
@click.option(
    "--template",
    type=click.Path(exists=True, dir_okay=False),
    help="A file with a chat template (Jinja), instead of the checkpoint's.",
)
@click.option("--timings", is_flag=True, help="Show the times of each answer.")
@options(IMAGE_OPTION, MMPROJ_OPTION, *SAMPLING_OPTIONS, *MODEL_OPTIONS)
@click.option(
    "--json", "as_json", is_flag=True, help="Print each answer as a JSON object in a line."
)
def chat(
    arguments: tuple[str, ...],
    system: str | None,
    template: str | None,
    timings: bool,
    images: tuple[str, ...],
    mmproj: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Talk with MODEL: the folder of a checkpoint with a chat template, a GGUF file, or a name on the Hugging Face hub;
    without MODEL, with the small one that ships with relaxpy. With MESSAGE, answer it, and end. The first message is
    about the pictures of --image."""
    place, message = model_and_text(
        arguments, 'relaxpy chat MODEL "Why is the sky blue?"', words=False
    )
    place = place and on_this_machine(place)
    check_images(place, images, mmproj)
    sampling = take_sampling(given)
    tokenizer = read_tokenizer(place, template, mmproj)
    start = [] if system is None else [{"role": "system", "content": system}]
    tokenizer.chat_text(
        [*start, {"role": "user", "content": message or "Hello"}]
    )  # before it is compiled
    loaded = load_model(place, mmproj=mmproj, tokenizer=tokenizer, quiet=as_json, **given)
    conversation = Conversation(loaded, sampling, system, timings, as_json, images)
    if message is not None:
        conversation.ask(message)
    elif sys.stdin.isatty() and sys.stdout.isatty() and not as_json:
        click.echo(f"{loaded.name}: /help lists commands, Ctrl-D ends", err=True)
        with _edited_lines():
            conversation.run(_typed, interactive=True)
    else:
        conversation.run(_piped, interactive=False)


def _content(given: Any) -> Any:
    """What a file has for a content: a text, or parts with pictures."""
    return given if is_list(given) else str(given)


def read_tokenizer(place: str | None, template: str | None, mmproj: str | None = None) -> Tokenizer:
    """The tokenizer of a checkpoint, with the chat template in a file if there is one. Raises: UsageError."""
    from relaxpy.checkpoints.config_file import config_of
    from relaxpy.embedded import embedded_model
    from relaxpy.llm import ChatTemplate, Tokenizer

    folder = Path(place or embedded_model())
    config_of(folder)
    found = Tokenizer.from_checkpoint(folder, mmproj)
    if template is not None:
        found.templates = {"default": ChatTemplate(read_file(template), template)}
    elif not found.templates and folder.is_dir():
        from relaxpy.models.families import decoder_config

        decoder_config(folder)  # an encoder has no template, and the error says that it is one
    return found


class Conversation:
    """Messages, and what is done with a line that somebody writes."""

    def __init__(
        self,
        model: LanguageModel,
        sampling: dict[str, Any],
        system: str | None = None,
        timings: bool = False,
        as_json: bool = False,
        images: Sequence[str] = (),
    ) -> None:
        self.model, self.sampling = model, sampling
        self.images = [*images]
        """The pictures that the next message is about."""
        self.timings, self.as_json = timings, as_json
        self.system = system
        self.messages: list[dict[str, Any]] = []
        """Those of the user and the model, in turn."""
        self.last: Generation | None = None
        self.is_over = False

    def run(self, read: Callable[[str], str], interactive: bool) -> None:
        """Answer messages until they end. Interactively, a mistake is told and an interrupt goes back to the prompt;
        else they end the conversation."""
        while not self.is_over:
            try:
                message = next_message(read)
                if message is None:
                    return
                self.take(message)
            except KeyboardInterrupt:
                if not interactive:
                    raise
                click.echo("(/quit or Ctrl-D ends)", err=True)
            except RelaxError as error:
                if not interactive:
                    raise
                click.echo(error.render(), err=True)

    def take(self, line: str) -> None:
        """A message, or a command if it begins with a slash."""
        if not line.strip():
            return
        if line.startswith("/"):
            self._command(line)
        else:
            self.ask(line)

    def ask(self, text: str) -> None:
        """Answer a message. If that fails, the message is not part of the conversation."""
        content: Any = text
        if self.images:
            pictures = [{"type": "image", "image": each} for each in self.images]
            content = [*pictures, {"type": "text", "text": text}]
        self.messages.append({"role": "user", "content": content})
        try:
            answer = self._answered()
        except BaseException:
            self.messages.pop()
            raise
        self.messages.append(answer)
        self.images = []

    def _answered(self) -> dict[str, str]:
        """The answer to the messages so far, which is shown. Ctrl-C ends it."""
        pieces = self._begun()
        self.last = pieces
        parts: list[tuple[bool, str]] = []
        try:
            shown = _parts(self.model, pieces, parts)
            if self.as_json:
                for _ in shown:
                    pass
            else:
                show_parts(shown)
        except KeyboardInterrupt:
            pieces.close()
            if not pieces.tokens or self.as_json:
                raise
            click.echo("(stopped)", err=True)
        thought = "".join(text for is_thought, text in parts if is_thought)
        answer = {
            "role": "assistant",
            "content": "".join(t for is_thought, t in parts if not is_thought),
        }
        answer |= {"reasoning_content": thought.rstrip()} if thought.strip() else {}
        if self.as_json:
            data = {
                **as_data(pieces),
                "text": answer["content"],
                "reasoning": thought.rstrip() or None,
            }
            click.echo(json.dumps(data, ensure_ascii=False))
        else:
            self._tell_end(pieces)
        if self.timings:
            click.echo(summary(pieces), err=True)
        return answer

    def _tell_end(self, pieces: Generation) -> None:
        """A note, where an answer has another end than people expect."""
        if pieces.finish_reason == "repetition":
            click.echo(
                "(stopped: the answer repeats itself; a repetition penalty of 1.1 may help)",
                err=True,
            )
        elif pieces.finish_reason == "length":
            full = len(pieces.prompt) + len(pieces.tokens) >= self.model.context
            limit = (
                f"the context of {self.model.context} tokens is full" if full else "--max-tokens"
            )
            click.echo(f"(cut off after {len(pieces.tokens)} tokens: {limit})", err=True)

    def _begun(self) -> Generation:
        """The answer, not yet written. Where the messages leave no room for an answer, the oldest are left out."""
        context, start = self.model.context, 0
        room = min(self.sampling.get("max_tokens", context), context // 4)
        options: dict[str, Any] = {
            "stop_loops": "max_tokens" not in self.sampling,
            "special": self.model.tokenizer.thinks_in_channels,
            **self.sampling,
        }
        while True:
            is_last = start + 2 >= len(self.messages)
            try:
                found = self.model.chat([*self._system(), *self.messages[start:]], **options)
                if is_last or len(found.prompt) + room <= context:
                    break
            except UsageError as error:
                if error.code != "bad-length" or is_last:
                    raise
            start += 2
        if start:
            click.echo(
                f"note: the conversation is longer than the context: its first {start} messages are left out",
                err=True,
            )
        return found

    def _system(self) -> list[dict[str, str]]:
        return [] if self.system is None else [{"role": "system", "content": self.system}]

    # Commands

    def _command(self, line: str) -> None:
        name, _, argument = line.partition(" ")
        commands: dict[str, Callable[[str], None]] = {
            "/help": self._help,
            "/?": self._help,
            "/clear": self._clear,
            "/reset": self._clear,
            "/system": self._set_system,
            "/retry": self._retry,
            "/save": self._save,
            "/load": self._load,
            "/stats": self._stats,
            "/set": self._set,
            "/image": self._image,
            **dict.fromkeys(("/quit", "/exit", "/bye"), self._quit),
        }
        if name not in commands:
            raise UsageError(
                "bad-arguments",
                f"there is no command {name}",
                help=f"there are {', '.join(commands)}; a message may begin with a space",
            )
        commands[name](argument.strip())

    def _help(self, _: str) -> None:
        context = click.get_current_context(silent=True)
        epilog = chat.epilog or ""
        text = epilog.partition("\b\n")[2].partition("\b\n")[0].replace("\b\n", "")
        click.echo(text.strip(), err=True, color=None if context is None else context.color)

    def _image(self, path: str) -> None:
        if not path:
            raise UsageError("bad-arguments", "/image needs a file", help="/image cat.png")
        self.model.read_picture(path, path)
        self.images.append(path)
        click.echo("(the next message is about the picture)", err=True)

    def _clear(self, _: str) -> None:
        self.messages.clear()
        self.images.clear()
        click.echo("(the conversation is forgotten)", err=True)

    def _set_system(self, text: str) -> None:
        self.system = text or None
        click.echo(
            "(there is no system message)" if not text else "(the system message is set)", err=True
        )

    def _retry(self, _: str) -> None:
        if len(self.messages) < 2:
            raise UsageError("bad-arguments", "there is no answer yet")
        old = self.messages.pop()
        try:
            self.messages.append(self._answered())
        except BaseException:
            self.messages.append(old)
            raise

    def _save(self, path: str) -> None:
        if not path:
            raise UsageError("bad-output", "/save needs a file", help="/save chat.json")
        text = json.dumps([*self._system(), *self.messages], ensure_ascii=False, indent=1)
        write_text(path, f"{text}\n")
        click.echo(f"saved {path}", err=True)

    def _load(self, path: str) -> None:
        try:
            found = json.loads(read_file(path))
        except (ValueError, RecursionError) as error:
            raise UsageError("bad-arguments", f"{path} is not JSON: {error}") from None
        given = found if is_list(found) else [None]
        kept = "role", "content", "reasoning_content"
        messages = [
            {name: _content(each[name]) for name in kept if name in each}
            for each in given
            if is_mapping(each) and {"role", "content"} <= each.keys()
        ]
        systems = [str(each["content"]) for each in messages if each["role"] == "system"]
        turns = [each for each in messages if each["role"] != "system"]
        roles = [each["role"] for each in turns]
        alternate = ["user", "assistant"] * (len(turns) // 2)
        if len(messages) < len(given) or roles != alternate:
            raise UsageError(
                "bad-arguments",
                f"{path} is no conversation: messages of user and assistant in turn",
            )
        self.messages, self.system = turns, systems[0] if systems else None
        click.echo(f"({len(turns)} messages)", err=True)

    def _stats(self, _: str) -> None:
        if self.last is None:
            raise UsageError("bad-arguments", "there is no answer yet")
        click.echo(summary(self.last), err=True)

    def _set(self, text: str) -> None:
        """An option of sampling: `temperature 0.7`, or `temperature` for the checkpoint's own choice; all, if none is
        named."""
        name, _, value = text.partition(" ")
        if not name:
            default = self.model.defaults.sampling
            for each in SAMPLING:
                own = self.sampling.get(each, getattr(default, each, None))
                click.echo(f"{each} {'-' if own is None else own}", err=True)
            return
        kind = SAMPLING.get(name)
        if kind is None:
            raise UsageError(
                "bad-arguments",
                f"there is no option {name}",
                help=f"there are {', '.join(SAMPLING)}",
            )
        rest = {each: own for each, own in self.sampling.items() if each != name}
        if value:
            try:
                rest[name] = kind(value)
            except ValueError:
                raise UsageError(
                    "bad-arguments", f"{name} is a number, got {value!r}", help=f"/set {name} 1"
                ) from None
        if rest.get("max_tokens", 1) < 1:
            raise UsageError("bad-arguments", f"max_tokens is at least 1, got {value}")
        replace(
            self.model.defaults.sampling,
            **{n: rest[n] for n in rest if n not in ("max_tokens", "stop")},
        )
        self.sampling = rest

    def _quit(self, _: str) -> None:
        self.is_over = True


def next_message(read: Callable[[str], str]) -> str | None:
    """The next message of a reader of lines, which takes a prompt and raises EOFError at the end; None at the end.
    Lines are joined where one ends with a backslash, and from three quotes to three quotes."""
    try:
        line = read("> ")
    except EOFError:
        return None
    lines: list[str] = []
    is_quoted = line.lstrip().startswith(QUOTES)
    with suppress(EOFError):  # then it is what there is of it
        if is_quoted:
            line = line.lstrip().removeprefix(QUOTES)
            while not line.rstrip().endswith(QUOTES):
                lines.append(line)
                line = read("… ")
            line = line.rstrip().removesuffix(QUOTES)
        else:
            while line.endswith("\\"):
                lines.append(line[:-1])
                line = read("… ")
        lines.append(line)
    if is_quoted:  # the quotes may have lines of their own
        lines = lines[1:] if not lines[0] else lines
        lines = lines[:-1] if lines and not lines[-1] else lines
    return "\n".join(lines)


def show_parts(parts: Iterator[tuple[bool, str]]) -> None:
    """Write an answer to stdout, piece by piece. Thoughts are dim on a terminal, and left out elsewhere."""
    is_terminal = sys.stdout.isatty()
    has_colour = is_terminal and not os.environ.get("NO_COLOR")
    was_thought, last = False, ""

    def pieces() -> Iterator[str]:
        nonlocal was_thought, last
        for is_thought, text in parts:
            if is_thought and not is_terminal:
                continue
            if is_thought is not was_thought:
                if was_thought:
                    yield "\n" if last.endswith("\n") else "\n\n"
                _colour((_THOUGHT if is_thought else _ANSWER) if has_colour else "")
                was_thought = is_thought
            yield text
            last = text

    try:
        show_pieces(pieces())
    finally:
        _colour(_ANSWER if was_thought and has_colour else "")


def _colour(code: str) -> None:
    sys.stdout.write(code)
    sys.stdout.flush()


def _parts(
    model: LanguageModel, pieces: Generation, seen: list[tuple[bool, str]]
) -> Iterator[tuple[bool, str]]:
    """The parts of an answer: is it a thought, and its text. They are added to those that were seen."""
    from relaxpy.llm import Thoughts

    thoughts = Thoughts.of(model.tokenizer, pieces.prompt)
    for piece in pieces:
        for part in [(False, piece)] if thoughts is None else thoughts.feed(piece):
            seen.append(part)
            yield part
    for part in [] if thoughts is None else thoughts.finish():
        seen.append(part)
        yield part


@contextmanager
def _edited_lines() -> Iterator[None]:
    """Lines are edited as in a shell, and kept for the next time."""
    try:
        readline: Any = importlib.import_module("readline")  # `input` uses it
    except ImportError:
        yield
        return
    path = history_path()
    if path is not None:
        with suppress(OSError, UnicodeError):
            open_regular(path).close()  # a pipe would block
            readline.read_history_file(path)
    readline.set_history_length(_MOST_LINES)
    try:
        yield
    finally:
        if path is not None:
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch(mode=0o600)
                open_regular(path).close()
                readline.write_history_file(path)


def history_path() -> Path | None:
    """The file of the lines that were typed; None: they are not kept."""
    named = os.environ.get(HISTORY)
    if named is not None:
        return Path(named).expanduser() if named else None
    folder = cache_folder()
    return Path(folder) / "chat_history" if folder else None


def _typed(prompt: str) -> str:
    """A line that somebody types. Python raises an interrupt from just before it waits for keys once the line is typed:
    the line, which the history has by then, is newer than the interrupt, and is taken."""
    readline: Any = sys.modules.get("readline")
    before = readline and readline.get_current_history_length()
    try:
        return input(prompt)
    except EOFError:
        click.echo()
        raise
    except KeyboardInterrupt:
        if readline and (count := readline.get_current_history_length()) > before:
            return readline.get_history_item(count)
        raise


def _piped(_: str) -> str:
    """A line of stdin."""
    try:
        line = sys.stdin.readline()
    except UnicodeDecodeError as error:
        raise UsageError(
            "unreadable-file", f"stdin is not text in UTF-8 (byte {error.start})"
        ) from None
    if not line:
        raise EOFError
    return line.removesuffix("\n")
