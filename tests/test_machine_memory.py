"""The memory that a process may take, from files as Linux has them."""

from __future__ import annotations

from pathlib import Path

from relaxpy.machine_memory import MachineMemory, machine_memory

GIB = 1 << 30


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = f"MemTotal: {16 << 20} kB\nMemFree: {1 << 20} kB\nMemAvailable: {8 << 20} kB\n"
GROUP = "sys__fs__cgroup__"


def test_a_machine(tmp_path: Path) -> None:
    assert machine_memory(write(tmp_path, proc__meminfo=MEMINFO)) == MachineMemory(
        16 * GIB, 8 * GIB
    )


def test_control_groups(tmp_path: Path) -> None:
    """The tightest of a group and those around it; files in the cache of a group can be given up."""
    root = write(tmp_path, proc__meminfo=MEMINFO, proc__self__cgroup="0::/outer/inner\n")
    for name, text in {
        "outer/memory.max": f"{4 * GIB}\n", "outer/memory.current": f"{3 * GIB}\n",
        "outer/memory.stat": f"anon 5\ninactive_file {GIB}\n",
        "outer/inner/memory.max": "max\n", "outer/inner/memory.current": "5\n",
    }.items():  # fmt: skip
        write(root / "sys/fs/cgroup", **{name.replace("/", "__"): text})
    assert machine_memory(root) == MachineMemory(4 * GIB, 2 * GIB, "the limit of a control group")


def test_the_first_version_of_control_groups(tmp_path: Path) -> None:
    """In a container, whose path is the host's."""
    root = write(
        tmp_path, proc__meminfo=MEMINFO, proc__self__cgroup="4:cpu:/x\n3:memory:/docker/1\n"
    )
    place = root / "sys/fs/cgroup/memory"
    write(place, **{"memory.limit_in_bytes": f"{GIB}", "memory.usage_in_bytes": f"{GIB // 4}"})
    assert machine_memory(root) == MachineMemory(GIB, 3 * GIB // 4, "the limit of a control group")
    (place / "memory.limit_in_bytes").write_text("9223372036854771712")
    assert machine_memory(root) == MachineMemory(16 * GIB, 8 * GIB)


def test_here() -> None:
    found = machine_memory()
    assert found is not None
    assert 0 < found.available <= found.total
