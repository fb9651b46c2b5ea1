"""Which image of each kernel runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from relaxpy.errors import ExecutableError, UsageError
from relaxpy.runtime import VirtualMachine, load
from relaxpy.runtime.bytecode import HOST_SLOT, KernelImage, KernelInfo, Requirement, Slot
from relaxpy.runtime.container import write_container
from relaxpy.runtime.executable import Executable
from relaxpy.runtime.host.features import host_features, missing_here
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
    with pytest.raises(ExecutableError, match="features that the device lacks: big, small"):
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
    others = {"avx512f", "sve"}.difference(exe.requirements[0].features)
    VirtualMachine(exe, without_features=sorted(others))
    with pytest.raises(UsageError, match="there is no feature 'avx512_f'") as caught:
        VirtualMachine(exe, without_features=["avx2", "avx512_f"])
    assert caught.value.help.startswith("did you mean 'avx512f'? known are ")
    with pytest.raises(UsageError, match="there is no feature 3"):
        VirtualMachine(exe, without_features=[3])
    with pytest.raises(UsageError, match="a list of names"):
        VirtualMachine(exe, without_features="avx512f")


HOSTILE = {
    "a line": Requirement("x\nreturn r0", ""),
    "a terminal's command": Requirement("\x1b[2J", ""),
    "NUL": Requirement("a\0b", ""),
    "a lone surrogate": Requirement("\ud800", ""),
    "a name of a megabyte": Requirement("x" * (1 << 20), ""),
    "an architecture of two words": Requirement("", "x86 64"),
    "an architecture that is a path": Requirement("", "../../x"),
    "a feature of no letters": Requirement("", "", ("",)),
    "a feature with a quote": Requirement("", "", ("a'b",)),
    "a feature beyond ASCII": Requirement("", "", ("avx２",)),
    "a feature of a megabyte": Requirement("", "", ("x" * (1 << 20),)),
    "a feature twice": Requirement("", "", ("avx", "sse", "avx")),
}


@pytest.mark.parametrize("requirement", HOSTILE.values(), ids=HOSTILE)
def test_requirements_that_no_compiler_writes(requirement: Requirement, tmp_path: Path) -> None:
    exe = two()
    file = tmp_path / "two.rxe"
    replace(exe, requirements=(exe.requirements[0], requirement)).save(file)
    for any_cpu in (False, True):
        with pytest.raises(ExecutableError) as caught:
            load(file, any_cpu=any_cpu)
        assert caught.value.code in ("bytecode", "file-damaged")
        assert len(str(caught.value)) < 1000
        assert str(file) in caught.value.message


@pytest.mark.parametrize(
    "change",
    [
        {"requirements": []},
        {"requirements": None},
        {"requirements": {}},
        {"requirements": [{"Requirement": ["a", "b"]}]},
        {"requirements": [{"Requirement": ["a", "b", "avx"]}]},
        {"requirements": [{"Requirement": ["a", "b", [1]]}]},
        {"requirements": [{"Requirement": [0, "b", []]}]},
        {"requirements": [{"Slot": ["a", "b", 0]}]},
        {"requirements": [[[[]]]]},
        {"requirements": [None]},
    ],
)
def test_tables_of_something_else(change: dict[str, object], tmp_path: Path) -> None:
    exe = two()
    sections = exe.sections()
    sections["meta"] = json.dumps({**json.loads(sections["meta"]), **change}).encode()
    file = tmp_path / "two.rxe"
    write_container(file, sections)
    with pytest.raises(ExecutableError) as caught:
        load(file)
    assert caught.value.code in ("bytecode", "file-damaged")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("needs", [-2, 2, 1 << 40])
def test_an_image_of_a_requirement_that_is_not_there(needs: int, tmp_path: Path) -> None:
    exe = two()
    first = exe.kernels[0]
    changed = replace(first, images=(replace(first.images[0], needs=needs), *first.images[1:]))
    file = tmp_path / "two.rxe"
    replace(exe, kernels=(changed, *exe.kernels[1:])).save(file)
    with pytest.raises(ExecutableError):
        load(file)


def test_many_requirements(tmp_path: Path) -> None:
    """Of a machine of the future each: no error lists them all, and those that are equal are no trouble."""
    exe = two()
    here = exe.requirements[0]
    many = tuple(Requirement(f"future{i}", here.arch, (f"avx{i}", "avx9999")) for i in range(5000))
    first = exe.kernels[0]
    images = tuple(replace(first.image, needs=1 + i) for i in range(len(many)))
    file = tmp_path / "many.rxe"
    replace(
        exe, requirements=(here, *many), kernels=(replace(first, images=images), *exe.kernels[1:])
    ).save(file)
    with pytest.raises(ExecutableError, match="and 4968 more") as caught:
        load(file)
    assert len(str(caught.value)) < 10_000
    same = (here,) * 5000
    replace(exe, requirements=same).save(file)
    assert VirtualMachine(load(file)).images == (here.name,)
