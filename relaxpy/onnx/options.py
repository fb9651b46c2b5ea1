"""Options of sessions under ONNX Runtime's names. Those that change speed only are taken, and have no effect."""

from __future__ import annotations

import enum
from typing import Any

from relaxpy.errors import UsageError

PROVIDER = "CPUExecutionProvider"


class GraphOptimizationLevel(enum.IntEnum):
    """How much a graph is optimised: here always fully."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    """Whether operators run beside one another: here each runs on all threads."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class SessionOptions:
    """Options of a session. Threads are the process's: `relaxpy.set_num_threads`."""

    def __init__(self) -> None:
        self.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.execution_mode = ExecutionMode.ORT_SEQUENTIAL
        self.intra_op_num_threads = 0
        self.inter_op_num_threads = 0
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.enable_cpu_mem_arena = True
        self.enable_mem_pattern = True
        self.enable_mem_reuse = True
        self.use_deterministic_compute = False
        self.enable_profiling = False
        self.optimized_model_filepath = ""
        self._entries: dict[str, str] = {}

    def add_session_config_entry(self, key: str, value: str) -> None:
        self._entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        return self._entries[key]

    def check(self) -> None:
        """Refuse options that ask for something that is not done here."""
        if self.enable_profiling:
            raise _refused("enable_profiling", "profile with relaxpy: vm.profile(…)")
        if self.optimized_model_filepath:
            raise _refused(
                "optimized_model_filepath", "save the executable: relaxpy.build(mod).save(…)"
            )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _refused(name, None)


class RunOptions:
    """Options of a call: none has an effect."""

    def __init__(self) -> None:
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.terminate = False

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Take an entry."""


def get_available_providers() -> list[str]:
    """The providers that there are."""
    return [PROVIDER]


get_all_providers = get_available_providers


def get_device() -> str:
    """The kind of device that sessions run on."""
    return "CPU"


def _nothing(*_: Any) -> None:
    """Taken, since programs call it; there is no telemetry, and no log of this kind."""


disable_telemetry_events = enable_telemetry_events = _nothing
set_default_logger_severity = set_default_logger_verbosity = _nothing


def _refused(name: str, help: str | None) -> UsageError:
    return UsageError("onnx-session", f"the session option {name} is not supported", help=help)
