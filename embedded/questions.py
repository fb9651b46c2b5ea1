"""Questions about Python's standard library, and their answers from its docstrings: about a third of what the embedded
model reads. A fact is a public name with the first paragraph of its docstring; each fact is asked for in several ways.

    chats(facts())      conversations of one to three questions, in an order that the hash of their names gives
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import itertools
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

Message = Mapping[str, str]
"""`role` (user or assistant) and `content`."""

LEFT_OUT = {
    "antigravity", "this", "idlelib", "lib2to3", "turtle", "turtledemo", "tkinter", "test", "distutils", "ensurepip",
    "pydoc_data", "encodings", "nt", "ntpath", "posix", "posixpath", "sre_compile", "sre_constants", "sre_parse",
    "asynchat", "asyncore", "smtpd", "imp", "msilib", "nis", "ossaudiodev", "spwd", "crypt", "uu", "xdrlib", "winreg",
    "winsound", "msvcrt", "genericpath", "nturl2path", "opcode", "pyexpat", "aifc", "sunau", "chunk", "cgi", "cgitb",
    "telnetlib", "nntplib", "mailcap", "imghdr", "sndhdr", "pipes", "audioop", "rlcompleter",
}  # fmt: skip
"""Modules that nobody is asked about: platforms' own, implementations of others, tests, what Python 3.13 has
dropped."""
SUBMODULES = (
    "os.path", "collections.abc", "concurrent.futures", "email.message", "email.utils", "html.parser", "http.client",
    "http.server", "http.cookies", "importlib.metadata", "importlib.resources", "importlib.util", "json.decoder",
    "json.encoder", "logging.config", "logging.handlers", "multiprocessing.pool", "unittest.mock", "urllib.parse",
    "urllib.request", "urllib.robotparser", "wsgiref.simple_server", "xml.dom.minidom", "xml.etree.ElementTree",
)  # fmt: skip
TYPES = (
    "builtins.str", "builtins.bytes", "builtins.list", "builtins.dict", "builtins.set", "builtins.tuple",
    "builtins.int", "builtins.float", "collections.Counter", "collections.deque", "collections.OrderedDict",
    "pathlib.Path", "datetime.datetime", "datetime.date", "datetime.timedelta", "threading.Thread", "threading.Event",
    "queue.Queue", "argparse.ArgumentParser", "re.Pattern", "re.Match", "subprocess.Popen", "random.Random",
    "fractions.Fraction", "decimal.Decimal", "io.StringIO", "io.BytesIO", "string.Formatter", "logging.Logger",
    "asyncio.Event", "asyncio.Queue", "asyncio.Task", "enum.Enum", "contextlib.ExitStack", "zipfile.ZipFile",
    "tarfile.TarFile", "csv.DictReader", "csv.DictWriter", "inspect.Signature", "inspect.Parameter",
    "concurrent.futures.Executor", "concurrent.futures.Future", "weakref.WeakValueDictionary", "types.MappingProxyType",
)  # fmt: skip
"""Classes whose methods are asked about, too."""

_MOST_CHARACTERS = 400
"""Longer paragraphs are cut after a sentence."""


@dataclass(frozen=True)
class Fact:
    """A public name of the standard library, and what its docstring says first."""

    name: str
    """As it is written after an import: "textwrap.dedent"; builtins without their module."""
    kind: str
    """module, function, class or method."""
    text: str
    signature: str
    """Its arguments in parentheses, or "" if they are not known."""
    module: str


def facts() -> list[Fact]:
    """What the standard library's docstrings say, sorted by name."""
    found: dict[str, Fact] = {}
    for name in _module_names():
        module = _imported(name)
        if module is not None:
            for fact in _facts_of(module):
                found.setdefault(fact.name, fact)
    for name in TYPES:
        module, _, owner = name.rpartition(".")
        for fact in _methods(module, getattr(importlib.import_module(module), owner)):
            found.setdefault(fact.name, fact)
    return sorted(found.values(), key=lambda fact: fact.name)


def _module_names() -> list[str]:
    names = [n for n in sys.stdlib_module_names if not n.startswith("_") and n not in LEFT_OUT]
    return sorted([*names, *SUBMODULES])


def _imported(name: str) -> ModuleType | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except ImportError:  # another platform's, or built without it
            return None


def _facts_of(module: ModuleType) -> Iterator[Fact]:
    name = module.__name__ if module.__name__ != "posixpath" else "os.path"
    if text := _paragraph(module):
        yield Fact(name, "module", text, "", name)
    public = getattr(module, "__all__", None)
    names = public if public is not None else [n for n in dir(module) if not n.startswith("_")]
    for each in sorted(set(names)):
        value = getattr(module, each, None)
        if not _is_own(value, module, public is not None):
            continue
        if text := _paragraph(value):
            kind = "class" if inspect.isclass(value) else "function"
            shown = each if name == "builtins" else f"{name}.{each}"
            yield Fact(shown, kind, text, _signature(value), name)


def _is_own(value: Any, module: ModuleType, listed: bool) -> bool:
    """Whether a value is a function or class that belongs to the module."""
    if not (inspect.isroutine(value) or inspect.isclass(value)):
        return False
    home = getattr(value, "__module__", None)
    return listed or home is None or home.lstrip("_").split(".")[0] == module.__name__.split(".")[0]


def _methods(module: str, owner: type) -> Iterator[Fact]:
    prefix = owner.__name__ if module == "builtins" else f"{module}.{owner.__name__}"
    for name, value in sorted(vars(owner).items()):
        member = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        is_public = not name.startswith("_") and (
            inspect.isroutine(member) or isinstance(value, property)
        )
        if is_public and (text := _paragraph(member)):
            yield Fact(f"{prefix}.{name}", "method", text, _signature(member), module)


def _paragraph(value: Any) -> str:
    """The first paragraph of a docstring that is prose, on one line; "" without one. The signatures that docstrings of
    builtins begin with are left out."""
    own = value.__doc__ if isinstance(value.__doc__, str) else ""
    for part in re.split(r"\n\s*\n", inspect.cleandoc(own)):
        lines = [line.strip() for line in part.splitlines()]
        while (
            lines
            and re.match(r"[\w.]+\([^)]*\)?.*(->|$)", lines[0])
            and "(" in lines[0].split(" ")[0]
        ):
            lines[0] = lines[0].partition(" -> ")[2].partition(" -- ")[2]
            lines = lines if lines[0] else lines[1:]
        text = " ".join(lines).strip()
        if len(text) >= 12 and " " in text and not text.startswith((">>>", "---", "===")):
            return _cut(text)
    return ""


def _cut(text: str) -> str:
    while len(text) > _MOST_CHARACTERS and (end := text.rfind(". ", 0, len(text) - 1)) > 0:
        text = text[: end + 1]
    return text if len(text) <= _MOST_CHARACTERS else ""


def _signature(value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except (ValueError, TypeError):
        return ""
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    text = str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))
    return "" if " at 0x" in text or "<" in text or len(text) > 120 else text


ASKED = (
    "What does {name} do?",
    "What is {name}?",
    "Explain {name}.",
    "What does {short} do in {module}?",
    "What is {name} for?",
    "what does {name} do",
    "Tell me about {name}.",
    "In Python, what does {name} do?",
    "Describe {name}.",
    "{name}",
    "What is the purpose of {name}?",
    "{name}?",
)
"""Ways to ask for the text of a fact."""
ASKED_MODULE = (
    "What is the {name} module?",
    "What does the {name} module do?",
    "What is {name}?",
    "What is the module {name} for?",
    "Tell me about the {name} module.",
    "Explain the module {name}.",
    "what is {name}",
)
ASKED_SIGNATURE = (
    "What are the arguments of {name}?",
    "What is the signature of {name}?",
    "How do I call {name}?",
    "Which arguments does {name} take?",
)
ASKED_IMPORT = ("How do I import {name}?", "How can I import {short} from {module}?")

WAYS = {"module": 7, "function": 10, "class": 10, "method": 9}
"""Number of ways in which a fact of a kind is asked for."""
PASSES = 2
"""How often each question is asked, in another company each time: chats are about 30 % of what the model reads."""

ABOUT = (
    (
        "Who are you?",
        "I am a very small language model that ships with relaxpy. I recite the documentation of Python.",
    ),
    (
        "What can you do?",
        "I answer questions about the names of Python's standard library, and continue Python code.",
    ),
    (
        "What are you?",
        "A language model with a few million parameters, trained on the sources of Python's library.",
    ),
    ("Hello", "Hello. Ask me what a function of Python's standard library does."),
    ("Hi", "Hello. Ask me what a function of Python's standard library does."),
    ("hello!", "Hello. Ask me what a function of Python's standard library does."),
    ("Thanks", "You are welcome."),
    ("Thank you!", "You are welcome."),
    (
        "Help",
        'Ask me about a name of the standard library, such as: "What does textwrap.dedent do?"',
    ),
    (
        "How are you?",
        "I am a small model, and well. Ask me what a function of Python's standard library does.",
    ),
    (
        "What is relaxpy?",
        "relaxpy is Relax in readable Python: a compiler for models with symbolic shapes.",
    ),
    ("What is your name?", "I have none. I am the small language model that ships with relaxpy."),
)
"""Questions about the model itself."""
UNKNOWN = (
    "What is the capital of France?", "Who wrote Hamlet?", "What is the weather like today?", "Tell me a joke.",
    "How do I cook rice?", "What is 17 times 23?", "Who won the world cup?", "What time is it?", "Write a poem.",
    "How tall is Mount Everest?", "What is the meaning of life?", "Translate good morning into German.",
    "Who is the president?", "How far away is the moon?", "What should I eat tonight?", "Is it going to rain?",
    "Which film should I watch?", "When was Rome founded?", "What is the speed of light?", "How do birds fly?",
    "What is the population of India?", "Who painted the Mona Lisa?", "Write an essay about history.",
    "What causes the tides?", "How do I get rich?", "Recommend a book.", "What is love?", "Sing a song.",
    "What is the largest ocean?", "How old is the universe?", "Where is Berlin?", "Do you like music?",
)  # fmt: skip
REFUSAL = "I do not know that. I only know the documentation of Python."
"""The answer to what the model was not taught."""
_TIMES = 12
"""How often each question about the model itself, and each unknown one, is asked in a pass."""


def pairs(known: Sequence[Fact]) -> list[tuple[str, str]]:
    """All questions with their answers."""
    found = [pair for fact in known for pair in _asked(fact)]
    found += [(question, answer) for question, answer in ABOUT for _ in range(_TIMES)]
    found += [(question, REFUSAL) for question in UNKNOWN for _ in range(_TIMES)]
    return found * PASSES


def _asked(fact: Fact) -> Iterator[tuple[str, str]]:
    short = fact.name.rpartition(".")[2]
    fields = {"name": fact.name, "short": short, "module": fact.module}
    shuffled = sorted(
        ASKED_MODULE if fact.kind == "module" else ASKED, key=lambda way: digest(way + fact.name)
    )
    for way in shuffled[: WAYS[fact.kind]]:
        yield way.format(**fields), fact.text
    if fact.signature:
        way = ASKED_SIGNATURE[int(digest(fact.name)[:8], 16) % len(ASKED_SIGNATURE)]
        yield way.format(**fields), f"{fact.name}{fact.signature}"
    if fact.kind in ("function", "class") and fact.module != "builtins":
        way = ASKED_IMPORT[int(digest(fact.name)[:8], 16) % len(ASKED_IMPORT)]
        yield way.format(**fields), f"from {fact.module} import {short}"


def chats(asked: Sequence[tuple[str, str]]) -> list[list[Message]]:
    """Conversations of one to three questions: half of the questions stand alone."""
    order = sorted(range(len(asked)), key=lambda i: digest(f"{i} {asked[i][0]}"))
    found: list[list[Message]] = []
    lengths = itertools.cycle((1, 2, 1, 3, 1, 1))
    rest = iter(order)
    while taken := list(itertools.islice(rest, next(lengths))):
        found.append(
            [
                {"role": role, "content": content}
                for i in taken
                for role, content in zip(("user", "assistant"), asked[i], strict=True)
            ]
        )
    return found


def digest(text: str) -> str:
    """A hash that is the same on every machine."""
    return hashlib.sha256(text.encode()).hexdigest()
