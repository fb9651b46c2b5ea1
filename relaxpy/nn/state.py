"""Loading of a `state_dict` into the tensors of a module: everything is checked before anything is set.

A tensor that is shared (tied) has several names. Files may hold all of them or only one, as those of `safetensors` do;
if several come, they must be equal.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from relaxpy.errors import UsageError, shortened
from relaxpy.nn.construction import mistake
from relaxpy.nn.parameter import Parameter

SHOWN = 20
"""The number of problems in an error."""


class LoadedKeys(NamedTuple):
    """The names that `load_state_dict(strict=False)` left out."""

    missing_keys: list[str]
    """Names of the module's tensors that the state lacks."""
    unexpected_keys: list[str]
    """Names of the state that the module lacks."""


def checked_state(state: Any) -> Mapping[str, Any]:
    """The state, which must be a dict. Raises UsageError (`bad-weights`) that says what to write."""
    if isinstance(state, Mapping):
        return state  # pyright: ignore[reportUnknownVariableType]
    raise mistake(
        "bad-weights",
        f"weights must be a dict of arrays by name, got {type(state).__name__}",
        help=_advice(state),
    )


def _advice(state: Any) -> str:
    if hasattr(state, "state_dict"):
        return "pass its state: model.load_state_dict(theirs.state_dict())"
    path = str(state) if isinstance(state, (str, os.PathLike)) else ""
    if path.endswith((".pt", ".pth", ".bin", ".ckpt")):
        return f'read the file first, with torch: torch.load({path!r}, map_location="cpu")'
    if path.endswith(".safetensors"):
        return f"read the file first: safetensors.numpy.load_file({path!r})"
    return "read the file first: numpy.load(path), safetensors.numpy.load_file(path), or torch.load(path)"


def _prefix_advice(missing: Sequence[str], unexpected: Sequence[str]) -> str | None:
    """What to do if names differ by a common prefix, such as that of torch's DataParallel."""
    for longer, shorter, isin in ((unexpected, missing, "state"), (missing, unexpected, "model")):
        known = set(shorter)
        for name in longer[:1] if known else ():
            ends = [n for n in known if name.endswith(f".{n}")]
            prefix = name.removesuffix(max(ends, key=len)) if ends else ""
            if prefix and {n.removeprefix(prefix) for n in longer} >= known:
                if isin == "state":
                    changed = f"name.removeprefix({prefix!r})"
                else:
                    changed = f"{prefix!r} + name"
                return f"the names differ by {prefix!r}: {{{changed}: value for name, value in state.items()}}"
    return None


def _within(state: Mapping[str, Any], unexpected: Sequence[str]) -> str | None:
    """What to pass where the weights are an entry of a larger dict, as training loops save them."""
    for name in unexpected:
        if isinstance(state[name], Mapping):
            return f"the weights are within: pass state[{name!r}]"
    return None


def load_state(
    tensors: Mapping[str, Parameter],
    state: Mapping[str, Any],
    strict: bool,
    ignored: Iterable[str],
    hidden: Sequence[tuple[str, str]],
) -> LoadedKeys:
    """Set the values of `tensors` (every name of each) from `state`. `ignored` are names that the module's layers
    accept and do not need; `hidden` are places of modules in plain lists, each with advice. Raises UsageError
    (`bad-weights`) with all problems."""
    names: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        names.setdefault(id(tensor), []).append(name)
    ignored = set(ignored)
    given = {id(tensors[each[0]]): [n for n in each if n in state] for each in names.values()}
    missing = [each[0] for key, each in names.items() if not given[key]]
    unexpected = [name for name in state if name not in tensors and name not in ignored]
    problems: list[str] = []
    if strict or (unexpected and hidden):
        problems += [f"missing: {name}" for name in missing]
        problems += [f"unexpected: {name}" for name in unexpected]
    values: list[tuple[Parameter, np.ndarray]] = []
    for each in names.values():
        tensor = tensors[each[0]]
        try:
            found = [(name, tensor.fitting(state[name])) for name in given[id(tensor)]]
        except UsageError:
            problems += [p for name in given[id(tensor)] if (p := _problem(tensor, name, state))]
            continue
        values += [(tensor, array) for _, array in found[:1]]
        problems += [
            f"{name}: is tied to {found[0][0]} here, but its values differ"
            for name, array in found[1:]
            if not _same(found[0][1], array)
        ]
    if problems:
        advice = [f"{place}: {help}" for place, help in hidden]
        notes = [*shortened(problems, SHOWN), *advice]
        raise mistake(
            "bad-weights",
            "the weights do not match the parameters of the module",
            _within(state, unexpected) or _prefix_advice(missing, unexpected),
            notes,
        )
    for tensor, array in values:
        tensor.data = array
    return LoadedKeys(missing, unexpected)


def _problem(tensor: Parameter, name: str, state: Mapping[str, Any]) -> str | None:
    try:
        tensor.fitting(state[name])
    except UsageError as error:
        return f"{name}: {error.message}" + (f" ({error.help})" if error.help else "")
    return None


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays are equal, to the bit."""
    if a.ctypes.data == b.ctypes.data and a.strides == b.strides:
        return True
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()
