"""Explains an executable: its kernels, launches, images and memory. Of an executable from a file the build is not
known, so there are no passes and no fusion decisions.

    page(explain_executable(relaxpy.load("model.rxe", any_cpu=True), {"n": 2048}, title="model.rxe"))
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from contextlib import suppress

from relaxpy.errors import ExecutableError, RelaxError
from relaxpy.explain.explanation import ExplainedKernel, Explanation
from relaxpy.explain.grid import grid_of
from relaxpy.runtime.bytecode import KernelInfo
from relaxpy.runtime.executable import Executable
from relaxpy.runtime.inspect.image_choices import image_choices
from relaxpy.runtime.inspect.launches import launches
from relaxpy.runtime.inspect.memory_plan import plan_of


def explain_executable(
    exe: Executable,
    sizes: Mapping[str, int] | None = None,
    *,
    title: str = "executable",
    without_features: Collection[str] = (),
) -> Explanation:
    """The explanation of an executable. `sizes` are values of symbolic variables as in a memory plan. Features in
    `without_features` count as missing, as for a `VirtualMachine`.

    The text of source lines is not shown, since only the build can know that a file is the one that was compiled.
    """
    target = exe.target
    text = str(target.get("text") or target.get("kind", "unknown"))
    result = Explanation(title, text, sizes=dict(sizes or {}))
    add_executable(result, exe, without_features)
    calls = call_counts(result)
    for same in equal_kernels(exe):
        name = same[0].name
        result.kernels.append(
            ExplainedKernel(
                name,
                tuple(info.name for info in same),
                sum(calls.get(info.name, 0) for info in same),
                "",
                "",
                exe.sources.get(name, ""),
                "",
                object_size(exe, same[0]),
                digest(exe, same[0]),
                grid=grid_of(exe, same[0]),
            )
        )
    result.kernels.sort(key=lambda kernel: -kernel.size)
    return result


def add_executable(
    result: Explanation, exe: Executable, without_features: Collection[str] = ()
) -> None:
    """Records what an executable says about itself: launches, libraries, images, and memory at the sizes of `result`.
    Sizes that no function has are reported as `plan_error`."""
    result.executable = exe
    kernels = exe.kernels
    with suppress(ExecutableError):  # then it is explained for another machine
        kernels = exe.images_here(without=without_features)
    found = launches(exe.functions, kernels, exe.libraries, exe.packed, result.sizes)
    result.launches = tuple(found)
    result.images = image_choices(exe, without_features)
    weights = sum(array.nbytes for array in exe.constants)
    try:
        result.plan = plan_of(exe.functions, weights, result.sizes, kernels)
    except RelaxError as error:
        result.plan_error = error
    for launch in result.launches:
        if launch.kind == "library":
            result.libraries[launch.name] = result.libraries.get(launch.name, 0) + 1


def call_counts(result: Explanation) -> dict[str, int]:
    """Kernel → the number of its call sites."""
    found: dict[str, int] = {}
    for launch in result.launches:
        if launch.kind == "kernel":
            found[launch.name] = found.get(launch.name, 0) + 1
    return found


def equal_kernels(exe: Executable) -> list[list[KernelInfo]]:
    """The kernels of an executable, those with the same code together, in order of first use."""
    found: dict[tuple[object, ...], list[KernelInfo]] = {}
    for info in exe.kernels:
        found.setdefault((info.slot, info.params, info.images), []).append(info)
    return list(found.values())


def object_size(exe: Executable, info: KernelInfo) -> int:
    """The bytes of a kernel's objects, over all images."""
    return sum(len(exe.objects[number]) for number in {image.object for image in info.images})


def digest(exe: Executable, info: KernelInfo) -> str:
    """A digest of a kernel's code, over all images: equal for equal code."""
    sha = hashlib.sha256()
    for image in info.images:
        needs = exe.requirements[image.needs] if image.needs >= 0 else None
        sha.update(repr((needs, image.launch)).encode())
        sha.update(hashlib.sha256(exe.objects[image.object]).digest())
    return sha.hexdigest()
