"""Which image of each kernel runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from relaxpy.errors import ExecutableError, UsageError
from relaxpy.runtime import VirtualMachine, load
from relaxpy.runtime.bytecode import HOST_SLOT, KernelImage, KernelInfo, Requirement, Slot
from relaxpy.runtime.devices.cpu.features import host_features, missing_here
from relaxpy.runtime.executable import Executable
from relaxpy.runtime.images import choose_images
from relaxpy.target import Target
from tests.runtime.support import executable

WIDE, SMALL = Requirement("wide", "", ("big", "small")), Requirement("narrow", "", ("small",))
SLOTS = (HOST_SLOT, Slot("board", "toy"))
IMAGES = (KernelImage("a", "a", needs=0), KernelImage("b", "b", 1, needs=1))
KERNELS = (KernelInfo("first", IMAGES), KernelInfo("second", (KernelImage("c", "c"),), slot=1))


def names(*present: str, without: Sequence[str] = ()) -> list[str]:
    def missing(requirement: Requirement) -> list[str]:
        return [each for each in requirement.features if each not in present]

    asked = {0: missing, 1: missing}
    chosen = choose_images(KERNELS, (WIDE, SMALL), SLOTS, asked, without)
    assert [len(info.images) for info in chosen] == [1, 1]
    return [info.image.symbol for info in chosen]


def test_the_first_whose_requirement_is_met() -> None:
    assert names("big", "small") == ["a", "c"]
    assert names("small") == ["b", "c"]
    assert names("big", "small", without=["big"]) == ["b", "c"]


def test_where_none_fits_all_are_told() -> None:
    with pytest.raises(ExecutableError) as caught:
        names("big")
    assert caught.value.code == "cpu-features"
    assert "images for wide, narrow" in caught.value.message
    wide, narrow = caught.value.notes
    assert "wide needs big, small; not there: small" in wide
    assert "narrow needs small; not there: small" in narrow


def test_a_device_that_lacks_something() -> None:
    kernels = (replace(KERNELS[0], slot=1),)
    with pytest.raises(ExecutableError, match="slot 'board' runs none of them") as caught:
        choose_images(kernels, (WIDE, SMALL), SLOTS, {1: lambda needs: needs.features})
    assert caught.value.code == "device-features"
    one = (replace(kernels[0], images=IMAGES[:1]),)
    with pytest.raises(ExecutableError, match="what the device lacks: big, small"):
        choose_images(one, (WIDE, SMALL), SLOTS, {1: lambda needs: needs.features})


def test_kernels_of_devices_that_are_not_known_keep_all() -> None:
    kernels = (replace(KERNELS[0], slot=1),)
    assert choose_images(kernels, (WIDE, SMALL), SLOTS, {}) == kernels


def test_this_machine() -> None:
    name, arch, features = Target.host().requirement()
    assert missing_here(Requirement(name, arch, features)) == ()
    assert missing_here(Requirement("", "sparc")) == ("a processor of the architecture sparc",)
    assert missing_here(Requirement("", arch, ("avx9999",))) == ("avx9999",)


def two() -> Executable:
    """Kernels twice, in one object: for a machine of the future, and for this one."""
    exe = executable()
    here = exe.requirements[0]
    kernels = tuple(
        replace(info, images=(replace(info.image, needs=1), replace(info.image, needs=0)))
        for info in exe.kernels
    )
    future = Requirement("future", here.arch, ("avx9999",))
    return replace(exe, kernels=kernels, requirements=(here, future))


def test_a_file(tmp_path: Path) -> None:
    exe = two()
    exe.save(tmp_path / "two.rxe")
    found = load(tmp_path / "two.rxe")
    assert (found.kernels, found.requirements) == (exe.kernels, exe.requirements)
    assert VirtualMachine(found).images == (exe.requirements[0].name,)
    assert "6 images for future" in found.as_text()


def test_an_error_names_the_file(tmp_path: Path) -> None:
    exe = two()
    other = replace(exe.requirements[0], features=("avx8888",))
    replace(exe, requirements=(other, exe.requirements[1])).save(tmp_path / "two.rxe")
    with pytest.raises(ExecutableError) as caught:
        load(tmp_path / "two.rxe")
    assert str(tmp_path / "two.rxe") in caught.value.message
    assert any("avx8888" in note for note in caught.value.notes)
    load(tmp_path / "two.rxe", any_cpu=True)


def test_features_that_are_not_to_be_used() -> None:
    exe = two()
    some = next(each for each in exe.requirements[0].features or host_features())
    if some in exe.requirements[0].features:
        with pytest.raises(ExecutableError, match="images for future"):
            VirtualMachine(exe, without_features=[some])
    VirtualMachine(exe, without_features=["no-feature"])
    with pytest.raises(UsageError, match="a list of names"):
        VirtualMachine(exe, without_features="avx512f")
