"""Runs recorded calls of a saved executable and compares the results bit by bit.

`python -m relaxpy.testing.replay EXECUTABLE CALLS`, where CALLS is a pickled list of `Recorded`. It prints one line for
each difference (the call's number, then a description), and exits with 1 if there is one. It imports only the runtime.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relaxpy.errors import RelaxError
from relaxpy.runtime.executable import load
from relaxpy.runtime.tensor import Shape, Tensor
from relaxpy.runtime.vm import VirtualMachine
from relaxpy.testing import random_libraries as _libraries  # noqa: F401  (registers them)


@dataclass(frozen=True)
class Recorded:
    """A call and its outcome: a plain value, or the text of an error."""

    name: str
    args: tuple[Any, ...]
    outcome: Any


def plain(value: Any) -> Any:
    """A result with arrays in place of tensors."""
    if isinstance(value, Tensor):
        return value.numpy()
    if isinstance(value, tuple) and not isinstance(value, Shape):
        return tuple(map(plain, value))
    return value


def recordable(outcome: Any) -> Any:
    """An outcome in its recorded form: errors as texts, functions as a fixed word."""
    if isinstance(outcome, tuple) and not isinstance(outcome, Shape):
        return tuple(map(recordable, outcome))
    if isinstance(outcome, Exception):
        return str(outcome)
    return "a function" if callable(outcome) else outcome


def same(a: Any, b: Any) -> bool:
    """Whether two plain values are bitwise equal."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    return type(a) is type(b) and a == b


def main(arguments: Sequence[str]) -> int:
    """Runs the calls. Returns 1 if some results differ."""
    machine = VirtualMachine(load(arguments[0]))
    calls: list[Recorded] = pickle.loads(Path(arguments[1]).read_bytes())
    wrong = 0
    for number, call in enumerate(calls):
        try:
            got = recordable(plain(machine[call.name](*call.args)))
        except RelaxError as error:
            got = recordable(error)
        if not same(got, call.outcome):
            wrong = 1
            text = f"{got!r} where {call.outcome!r} came before".replace("\n", " ")
            sys.stdout.write(f"{number} {text[:600]}\n")
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
