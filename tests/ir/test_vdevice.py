"""Names of virtual devices: what they mean in a module's table, and which are refused."""

from __future__ import annotations

import pytest

from relaxpy.errors import UsageError
from relaxpy.ir.annotation import TensorType
from relaxpy.ir.vdevice import VDevice, complete_name, find, vdevice_of

LLVM, CUDA, ARCH = VDevice("llvm"), VDevice("cuda", 1), VDevice("cuda -arch=sm_80")
TEXTURE = VDevice("opencl -device=adreno", 0, "global.texture-weight")
TABLE = (LLVM, CUDA, ARCH, VDevice("opencl"), TEXTURE)


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("llvm", LLVM),
        ("llvm:0", LLVM),
        ("llvm:0:global", LLVM),
        ("vdevice:0", LLVM),
        ("vdevice:2", ARCH),
        ("vdevice:4:global", TEXTURE),
        ("cuda", CUDA),
        ("cuda:0", CUDA),  # the first of its kind, as TVM counts them
        ("cuda:1:global", CUDA),  # its complete name
        (str(ARCH), ARCH),
        ("opencl:1", TEXTURE),
        (str(TEXTURE), TEXTURE),
        ("metal:3", VDevice("metal", 3)),
        ("cuda:7", VDevice("cuda", 7)),
    ],
)
def test_what_a_name_means(name: str, device: VDevice) -> None:
    assert find(name, TABLE) == device


def test_names_are_those_of_the_devices() -> None:
    """Every device of a table is found by its own name, whatever else the table lists."""
    table = (
        VDevice("cuda", 1),
        VDevice("cuda", 0),
        VDevice('{"kind": "cuda", "max": "a:1"}'),
        *TABLE,
    )
    for device in table:
        assert find(str(device), table) == device
        assert vdevice_of(str(device)) == device
    assert table[2].kind == "cuda"


def test_a_device_by_its_number_where_it_is_the_only_one() -> None:
    assert find("cuda:2", (VDevice("cuda", 2),)) == VDevice("cuda", 2)
    assert find("cuda:0", (VDevice("cuda", 2),)) == VDevice("cuda", 2)


@pytest.mark.parametrize(
    "name", ["", " ", ":0", "cuda:", "cuda:x", "cuda:-1", "cuda:0:", "cuda:0:global:x", "cuda:0: ", "cuda:9999999999"]
)  # fmt: skip
def test_texts_that_name_no_device(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        find(name, TABLE)
    assert caught.value.code == "device-name"


@pytest.mark.parametrize(("table", "shown"), [((), "none"), ((LLVM,), "llvm:0:global")])
def test_an_entry_that_is_not_there(table: tuple[VDevice, ...], shown: str) -> None:
    with pytest.raises(UsageError, match=f"there is no virtual device 5: the module lists {shown}"):
        find("vdevice:5", table)


def test_annotations_have_complete_names() -> None:
    assert TensorType((4,), vdevice="opencl").vdevice == "opencl:0:global"
    assert TensorType((4,), vdevice="opencl:0") == TensorType((4,), vdevice="opencl:0:global")
    with pytest.raises(UsageError, match="not known here"):
        complete_name("vdevice:0")
