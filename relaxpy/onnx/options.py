"""Options of sessions under ONNX Runtime's names. Those that change speed only are taken, and have no effect; others
are refused by name."""

from __future__ import annotations

import enum
import random
from typing import Any

from relaxpy.errors import UsageError
from relaxpy.onnx import errors

PROVIDER = "CPUExecutionProvider"

__version__ = "1.32.0"
"""The version of ONNX Runtime whose names these are."""

_CHANGING = (
    "session.set_denormal_as_zero",
    "session.load_model_format",
    "session.save_model_format",
    "session.model_external_initializers_file_folder_path",
    "ep.",
)
"""The beginnings of entries that say more than how fast a session is."""


class _Named(enum.IntEnum):
    """Numbers that show their names."""

    __str__ = enum.Enum.__str__


class GraphOptimizationLevel(_Named):
    """How much a graph is optimised: here always fully."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(_Named):
    """Whether operators run beside one another: here each runs on all threads."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(_Named):
    """The order of operators: here that of the model."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class _Options:
    """Values by name: those of ONNX Runtime that have no effect here. Others are neither read nor written."""

    _kind = "option"
    _values: dict[str, Any]
    _entries: dict[str, str]

    def __init__(self, **values: Any) -> None:
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_entries", {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._values:
            raise self._refused(name)
        return self._values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._values:
            raise self._refused(name)
        self._values[name] = value

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *self._values})

    def _add(self, key: str, value: str) -> None:
        if key.startswith(_CHANGING) and value not in ("", "0"):
            raise self._refused(key)
        self._entries[key] = value

    def _get(self, key: str) -> str:
        if key not in self._entries:
            raise errors.Fail("onnx-session", f"the {self._kind} {key!r} was not set")
        return self._entries[key]

    def _refused(self, name: str, help: str | None = None) -> UsageError:
        return errors.Unsupported(f"the {self._kind} {name}", help)


class SessionOptions(_Options):
    """Options of a session. Threads are the process's: `relaxpy.set_num_threads`."""

    _kind = "session option"

    def __init__(self) -> None:
        super().__init__(
            graph_optimization_level=GraphOptimizationLevel.ORT_ENABLE_ALL,
            execution_mode=ExecutionMode.ORT_SEQUENTIAL,
            execution_order=ExecutionOrder.DEFAULT,
            intra_op_num_threads=0,
            inter_op_num_threads=0,
            log_severity_level=-1,
            log_verbosity_level=0,
            logid="",
            enable_cpu_mem_arena=True,
            enable_mem_pattern=True,
            enable_mem_reuse=True,
            use_deterministic_compute=False,
            use_per_session_threads=True,
            enable_profiling=False,
            profile_file_prefix="onnxruntime_profile_",
            optimized_model_filepath="",
        )

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Take an entry. Raises UsageError (`onnx-session`) for one that changes more than the speed."""
        self._add(key, value)

    def get_session_config_entry(self, key: str) -> str:
        """An entry. Raises Fail if there is none."""
        return self._get(key)

    def check(self) -> None:
        """Refuse options that ask for something that is not done here."""
        if self.enable_profiling:
            raise self._refused("enable_profiling", "profile with relaxpy: vm.profile(…)")
        if self.optimized_model_filepath:
            raise self._refused(
                "optimized_model_filepath", "save the executable: relaxpy.build(mod).save(…)"
            )


class RunOptions(_Options):
    """Options of a call. Only `terminate` has an effect: a call that it is set for fails at once."""

    _kind = "option of a run"

    def __init__(self) -> None:
        super().__init__(
            log_severity_level=-1,
            log_verbosity_level=0,
            logid="",
            terminate=False,
            only_execute_path_to_fetches=False,
        )

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Take an entry. Raises UsageError (`onnx-session`) for one that changes more than the speed."""
        self._add(key, value)

    def get_run_config_entry(self, key: str) -> str:
        """An entry. Raises Fail if there is none."""
        return self._get(key)


def get_available_providers() -> list[str]:
    """The providers that there are."""
    return [PROVIDER]


def get_all_providers() -> list[str]:
    """The providers that there may be: the only one."""
    return [PROVIDER]


def get_device() -> str:
    """The kind of device that sessions run on."""
    return "CPU"


_seeds: random.Random = random.SystemRandom()


def set_seed(seed: int) -> None:
    """Calls of models that draw random numbers draw by this seed from now on, and no longer by the system's."""
    global _seeds
    _seeds = random.Random(seed)


def next_seed() -> int:
    """The seed of a call."""
    return _seeds.getrandbits(62)


def set_default_logger_severity(severity: int) -> None:
    """Nothing is logged here."""


def set_default_logger_verbosity(verbosity: int) -> None:
    """Nothing is logged here."""


def enable_telemetry_events() -> None:
    """Nothing is sent here."""


def disable_telemetry_events() -> None:
    """Nothing is sent here."""
