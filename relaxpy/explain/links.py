"""Which parts of the page belong together: kernels, fusion groups, source lines and storages, by their ids."""

from __future__ import annotations

from collections.abc import Sequence

from relaxpy.explain.explanation import Explanation, SourceLine
from relaxpy.explain.flow import Flow
from relaxpy.explain.markup import link
from relaxpy.runtime.bytecode import Alloc

Group = tuple[int, int]
"""A fusion group: its block and its first node."""
Storage = tuple[int, int]
"""A storage: the index of its function in the memory plan, and its number there."""


class Links:
    """The relations between the parts of an explanation. Each list is in order of execution, without repeats."""

    def __init__(self, explanation: Explanation, flows: Sequence[Flow]) -> None:
        self.explanation = explanation
        self._kernels = {
            name: n for n, kernel in enumerate(explanation.kernels) for name in kernel.names
        }
        self.lines: dict[SourceLine, int] = {}
        """Source line → its number on the page."""
        self.groups_of_kernel: dict[int, dict[Group, None]] = {}
        self.lines_of_kernel: dict[int, dict[SourceLine, None]] = {}
        self.storages_of_kernel: dict[int, dict[Storage, None]] = {}
        self.kernels_of_group: dict[Group, dict[int, None]] = {}
        self.kernels_of_line: dict[SourceLine, dict[int, None]] = {}
        self.writers: dict[tuple[str, int], dict[str, None]] = {}
        """Function and tensor (its `Alloc` instruction) → what writes it, by name."""
        self.storage_of: dict[tuple[str, int], Storage] = {}
        self._place_storages()
        for flow in flows:
            self._add(flow)

    def kernel(self, name: str) -> str:
        """The id of the kernel with this name; "" if there is none."""
        return f"kernel-{self._kernels[name]}" if name in self._kernels else ""

    def line(self, line: SourceLine | None) -> str:
        """The id of a source line; "" if it is not on the page."""
        return f"line-{self.lines[line]}" if line is not None and line in self.lines else ""

    @staticmethod
    def node(block: int, node: int) -> str:
        """The id of a binding in the picture of fusion."""
        return f"node-{block}-{node}"

    @staticmethod
    def storage(storage: Storage) -> str:
        """The id of a storage in the section about memory."""
        return f"storage-{storage[0]}-{storage[1]}"

    def kernel_links(self, kernels: Sequence[int]) -> list[str]:
        """Links to kernels, by their numbers."""
        return [link(f"kernel-{n}", self.explanation.kernels[n].name) for n in kernels]

    def line_links(self, lines: Sequence[SourceLine]) -> list[str]:
        """Links to source lines."""
        return [link(self.line(line), line) for line in lines]

    def storage_links(self, storages: Sequence[Storage]) -> list[str]:
        """Links to storages."""
        plan = self.explanation.plan
        names = [] if plan is None else [function.name for function in plan.functions]
        several = len(names) > 1
        return [
            link(self.storage(each), f"{names[each[0]]} {each[1]}" if several else str(each[1]))
            for each in storages
        ]

    def _place_storages(self) -> None:
        exe, plan = self.explanation.executable, self.explanation.plan
        if exe is None or plan is None:
            return
        codes = {code.name: code for code in exe.functions}
        for index, function in enumerate(plan.functions):
            for at, instr in enumerate(codes[function.name].code):
                if isinstance(instr, Alloc) and instr.storage >= 0:
                    self.storage_of[function.name, at] = (index, instr.storage)

    def _add(self, flow: Flow) -> None:
        for timed in flow.launches:
            launch = timed.launch
            kernel = self._kernels.get(launch.name)
            for at in launch.writes:
                self.writers.setdefault((launch.function, at), {})[launch.name] = None
            for part in timed.parts:
                if part.source is not None:
                    self.lines.setdefault(part.source, len(self.lines))
            if kernel is None:
                continue
            if timed.group is not None:
                self.groups_of_kernel.setdefault(kernel, {})[timed.group] = None
                self.kernels_of_group.setdefault(timed.group, {})[kernel] = None
            for part in timed.parts:
                if part.source is not None:
                    self.lines_of_kernel.setdefault(kernel, {})[part.source] = None
                    self.kernels_of_line.setdefault(part.source, {})[kernel] = None
            for at in launch.writes:
                storage = self.storage_of.get((launch.function, at))
                if storage is not None:
                    self.storages_of_kernel.setdefault(kernel, {})[storage] = None
