"""The command group and its error handling.

Every failure prints one readable message to stderr and sets an exit code: 1 for a mistake in the input, 2 for wrong
usage, 70 for a bug in relaxpy, 130 after Ctrl-C. With `RELAXPY_DEBUG=1` the exception propagates with its traceback.
"""

from __future__ import annotations

import importlib
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from relaxpy.cli.completion import COMPLETE_VARIABLE
from relaxpy.errors import RelaxError, did_you_mean, short_warnings
from relaxpy.version import __version__


@dataclass(frozen=True)
class Entry:
    """The location of a command, and its line in `relaxpy --help`."""

    summary: str
    module: str = ""
    """The default is the module of the same name in this package."""
    function: str = ""
    """The default is the name of the command."""


COMMANDS = {
    "show": Entry("Parse, check and print a program."),
    "compile": Entry("Compile a program, once for all shapes.", function="compile_command"),
    "export": Entry("Write a program as an ONNX model."),
    "run": Entry("Run a compiled function."),
    "chat": Entry("Talk with a language model."),
    "generate": Entry("Continue a text with a language model."),
    "transcribe": Entry("Write what is spoken in recordings."),
    "translate": Entry("Translate texts."),
    "serve": Entry("Answer requests to language models over HTTP."),
    "bench-serve": Entry(
        "Measure a server under load.",
        module="relaxpy.cli.bench_serve",
        function="bench_serve",
    ),
    "download": Entry("Download a model of the Hugging Face hub."),
    "web": Entry("Write a model as a site that runs it with WebGPU."),
    "quantize": Entry("Write a quantised copy of a checkpoint, or an executable of integers."),
    "finetune": Entry("Train adapters of a language model on examples."),
    "embed": Entry("Compute embeddings of sentences and pictures with a transformer."),
    "classify": Entry("Tell what pictures show."),
    "plan": Entry("Show the memory that a program needs."),
    "profile": Entry("Measure the time of a call by kernel."),
    "explain": Entry("Write an HTML page about a build."),
    "tune": Entry("Find the fastest schedules on this machine."),
    "bisect": Entry("Find the pass that gives wrong results."),
    "fuzz": Entry("Test random programs against the interpreter."),
    "ops": Entry("List the operators."),
    "passes": Entry("List the passes of a build, in order."),
    "targets": Entry("List the targets, and the devices of this machine."),
    "devices": Entry("List the devices of this machine with their limits."),
    "cache": Entry("Show, verify or clear the cache of builds and kernels."),
    "doctor": Entry("Check the installation and the targets."),
    "completion": Entry("Print the completion script of bash, zsh or fish."),
}
"""The commands in the order of `relaxpy --help`. The module of a command is imported on demand, and imports the
compiler only when the command runs: help and completion take a tenth of a second, the compiler more."""


_FAMILIAR = {
    "build": "compile", "exec": "run", "execute": "run", "print": "show", "parse": "show", "check": "show",
    "info": "doctor", "version": "--version", "help": "--help", "bench": "profile", "memory": "plan",
    "pull": "download", "get": "download", "complete": "generate", "ask": "chat", "repl": "chat",
    "whisper": "transcribe", "train": "finetune", "lora": "finetune",
}  # fmt: skip
"""Command names of other programs → the corresponding command here."""


class LazyGroup(click.Group):
    """A group whose commands are imported on demand and listed in the order of `COMMANDS`."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        with _quiet_about_pipes():  # --help prints here
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _quiet_about_pipes():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            familiar = _FAMILIAR.get(cmd_name)
            known = [familiar] if familiar else COMMANDS
            hint = (
                did_you_mean(familiar or cmd_name, known, str) or f"there are {', '.join(COMMANDS)}"
            )
            raise click.UsageError(f"no command {cmd_name!r}: {hint}", ctx=ctx)
        entry = COMMANDS[cmd_name]
        module = importlib.import_module(entry.module or f"relaxpy.cli.{cmd_name}")
        return getattr(module, entry.function or cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [name for name in COMMANDS if name.startswith(incomplete)]
        items = [CompletionItem(name, help=COMMANDS[name].summary) for name in names]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]


READER_GONE = 141
"""The exit code after a closed pipe, by the shell's convention: 128 plus SIGPIPE."""


@contextmanager
def _quiet_about_pipes() -> Iterator[None]:
    """Exits quietly if the reader of a pipe has closed it (`relaxpy ops | head`)."""
    try:
        yield
    except BrokenPipeError:
        raise click.exceptions.Exit(READER_GONE) from None


EPILOG = """
\b
Examples:
  relaxpy doctor                                   check the installation
  relaxpy show mlp.py                              parse, check and print a program
  relaxpy compile mlp.py --target llvm -o mlp.rxe  compile it, once for all shapes
  relaxpy run mlp.rxe main --input 'x=f32[4,64]'   run it on random arrays
  relaxpy chat                                     talk with a language model
  relaxpy transcribe talk.mp3                      write what is spoken in a recording
  relaxpy serve                                    serve it to clients of OpenAI's interface
  relaxpy embed "A sentence." "Another one."       sentence embeddings
  relaxpy ops softmax                              operators by name

`relaxpy COMMAND --help` explains a command. Commands that list something print JSON with `--json`.
RELAXPY_DEBUG=1 shows tracebacks of errors, NO_COLOR=1 disables colours.
"""


@click.command(
    cls=LazyGroup,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="relaxpy")
def cli() -> None:
    """Compile programs with symbolic shapes, once for every batch size and sequence length, and run them."""


_OTHER_OPTIONS = {
    "--output": "--save", "--out": "--output --save", "--device": "--target", "--backend": "--target",
    "--size": "--at --bound --input", "--shape": "--size --input", "--max-new-tokens": "--max-tokens",
    "--n-predict": "--max-tokens", "--ctx-size": "--context", "--max-model-len": "--context", "--temp": "--temperature",
    "--quantization": "--bits", "--system-prompt": "--system", "--dtype": "--precision", "--precision": "--dtype",
}  # fmt: skip
"""Options of other programs, or of other commands → those that a command may have for them."""


def _wrong_usage(error: click.UsageError) -> str:
    """The message of wrong usage, with what to write where that is known."""
    message, ctx = error.format_message(), error.ctx
    known = (
        [] if ctx is None else [name for each in ctx.command.get_params(ctx) for name in each.opts]
    )
    if isinstance(error, click.NoSuchOption):
        given, message = error.option_name, f"No such option {error.option_name!r}"
        if given == "-m" and "--target" in known:
            return (
                f'{message}: options of a target are part of it, in quotes: --target "llvm -mcpu=…"'
            )
        other = next(
            (each for each in _OTHER_OPTIONS.get(given, "").split() if each in known), None
        )
        long = [each for each in known if each.startswith("--")]
        near = did_you_mean(other or given, [other] if other else long, str)
        return f"{message}: {near}" if near else f"{message}."
    extra = re.fullmatch(r"Got unexpected extra arguments? \((.*)\)", message)
    if extra and "--input" in known:
        return f"{message}: arguments of the function are options, write --input NAME={extra[1].split()[0]}"
    return message


def describe(error: BaseException) -> tuple[str, int]:
    """The message for the user, and the exit code."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error.format_message(), 2
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx is not None else "relaxpy"
        return f"error: {_wrong_usage(error)}\n('{path} --help' explains)", 2
    if isinstance(error, click.ClickException):
        return f"error: {error.format_message()}", error.exit_code
    if isinstance(error, RelaxError):
        return error.render(), 1
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        return "interrupted", 130
    if isinstance(error, UnicodeDecodeError):
        return f"error: not a text file in UTF-8 (byte {error.start}: {error.reason})", 1
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename is not None else ""
        return f"error: {where}{error.strerror or error}", 1
    if isinstance(error, MemoryError):
        return f"error: out of memory: {error}".rstrip(": "), 1
    text = " ".join(str(error).split()) or "no message"
    return (
        f"internal error: {type(error).__name__}: {text}\n"
        "This is a defect of relaxpy; RELAXPY_DEBUG=1 shows where it comes from.",
        70,
    )


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and exits."""
    # Python has None for streams that were closed when it started.
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    short_warnings()
    # Characters that the terminal cannot show are escaped instead of raising an error. Input is UTF-8, like files.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdin, io.TextIOWrapper):
        # typeshed gives the class a parameter, which `isinstance` leaves unknown.
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")  # pyright: ignore[reportUnknownMemberType]
    # https://no-color.org; rich reads it itself.
    color = False if os.environ.get("NO_COLOR") else None
    try:
        code = cli.main(
            args=None if argv is None else list(argv),
            prog_name="relaxpy",
            complete_var=COMPLETE_VARIABLE,
            standalone_mode=False,
            color=color,
        )
        sys.stdout.flush()
    except BrokenPipeError:  # `relaxpy show ... | head` closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(READER_GONE)
    except Exception as error:
        if os.environ.get("RELAXPY_DEBUG") == "1" and not isinstance(
            error, (click.ClickException, click.Abort)
        ):
            raise
        message, code = describe(error)
        message = click.style(message, fg="red") if code == 70 else message
        click.echo(message, err=True, color=color)
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        code = 130
    sys.exit(code if isinstance(code, int) else 0)
