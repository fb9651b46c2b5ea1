"""The process that renders chat templates: `python template_process.py`, which imports nothing of relaxpy.

A template is a program by a stranger. jinja2's sandbox keeps it from attributes and functions that are not its own, and
this process keeps it from taking all memory and all time: its memory is limited, and whoever started it ends it when it
takes too long. It cannot write files or start processes.

It reads a request a line from stdin, and writes an answer a line to stdout, both JSON:

    {"source": "{{ messages }}", "variables": {"messages": []}, "seconds": 10}    →    {"text": "[]"}
    {"source": "{{ 1 / 0 }}", …}    →    {"error": "division by zero", "kind": "ZeroDivisionError", "line": 1}

Its first line is "ready".

Filters, functions and blocks are those of transformers, so that texts are equal.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from functools import lru_cache
from typing import Any, ClassVar

import jinja2
import jinja2.debug  # what an exception needs, before files cannot be opened
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

LONGEST = 8 << 20
"""The most characters that a template may write."""
MOST_MEMORY = 1 << 30
"""Address space in bytes."""
NAME = "<template>"


class TemplateRefusal(jinja2.TemplateError):
    """The template says that the messages are not as it needs them."""


class _Generation(jinja2.ext.Extension):
    """The block `{% generation %}`, with which some templates mark answers for training: it is its content."""

    tags: ClassVar[set[str]] = {"generation"}

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


class _Namespace(jinja2.utils.Namespace):
    """A namespace without names that begin with an underscore, as transformers has it."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, given = args[0], dict(*args[1:], **kwargs)
        for name in given:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, given)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace has no attribute {name!r}")


class _Dict:
    """The function `dict`, without the attributes of the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)


def _raise_exception(message: object) -> None:
    raise TemplateRefusal(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@lru_cache(maxsize=16)
def compiled(source: str) -> jinja2.Template:
    """A template, with what templates of checkpoints expect."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    functions: dict[str, Any] = environment.globals
    functions["raise_exception"] = _raise_exception
    functions["strftime_now"] = _strftime_now
    functions["dict"] = _Dict()
    functions["namespace"] = _Namespace
    return environment.from_string(source)


def rendered(source: str, variables: dict[str, Any]) -> str:
    """The text that a template writes."""
    parts: list[str] = []
    length = 0
    for part in compiled(source).generate(variables):
        parts.append(part)
        length += len(part)
        if length > LONGEST:
            raise jinja2.TemplateRuntimeError(f"it writes more than {LONGEST} characters")
    return "".join(parts)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The process's answer to a request."""
    try:
        return {"text": rendered(request["source"], request["variables"])}
    except MemoryError:
        return {
            "error": f"it needs more than {MOST_MEMORY >> 20} MiB of memory",
            "kind": "",
            "line": None,
        }
    except RecursionError:
        return {
            "error": "its calls, or its expressions, are nested too deeply",
            "kind": "",
            "line": None,
        }
    except Exception as error:
        line = error.lineno if isinstance(error, jinja2.TemplateSyntaxError) else _line_of(error)
        text = " ".join(str(error)[:2000].split())
        return {"error": text, "kind": type(error).__name__, "line": line}


def _line_of(error: BaseException) -> int | None:
    """The line of the template at which an exception was raised: jinja2 rewrites tracebacks."""
    step, line = error.__traceback__, None
    while step is not None:
        if step.tb_frame.f_code.co_filename == NAME:
            line = step.tb_lineno
        step = step.tb_next
    return line


def _limit(memory: int) -> None:
    """No more memory than that, no files, no processes."""
    try:
        import resource
    except ImportError:  # not a Unix
        return
    limits = {"RLIMIT_AS": memory, "RLIMIT_FSIZE": 0, "RLIMIT_NPROC": 0, "RLIMIT_CORE": 0}
    for name, most in limits.items():
        kind = getattr(resource, name, None)
        if kind is None:
            continue
        try:
            _, hard = resource.getrlimit(kind)
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (most, hard))
        except (ValueError, OSError):  # the platform has another idea of it
            continue


def _limit_time(seconds: float) -> None:
    """No more processor time than that for the next request, in case that whoever asks is gone."""
    try:
        import resource
    except ImportError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    most = int(time.process_time() + seconds) + 2
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_CPU, (most, hard))


def main() -> None:
    """Answer requests until stdin ends."""
    answer(
        {"source": "{{ strftime_now('%c') ~ 1 / 0 }}", "variables": {}}
    )  # imports what is imported late
    _limit(MOST_MEMORY)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        request = json.loads(line)
        _limit_time(float(request.get("seconds", 10)))
        sys.stdout.write(json.dumps(answer(request)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
