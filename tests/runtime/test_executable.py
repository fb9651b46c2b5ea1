from __future__ import annotations

import ctypes
import json
import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import relaxpy
from relaxpy.errors import ExecutableError, UsageError
from relaxpy.runtime import Executable, VirtualMachine, load
from relaxpy.runtime.bytecode import Alloc, Const, Heap, Kernel, MakeTuple, Reg, Requirement, Return
from relaxpy.runtime.container import open_container, write_container
from tests.runtime.support import ADD1, BF16_COPY, executable, f32, floats, function, times


def sample(**fields: object) -> Executable:
    """`main(x) = (x + 1 + 1, a bfloat16 constant through a kernel)`."""
    main = function(
        "main",
        [("x", f32(Heap(0)))],
        [
            Alloc(1, 1, 0, 1, "float32", 0),
            Kernel(1, ADD1, (Reg(0), Reg(1)), Heap(0)),
            Alloc(2, 2, 0, 1, "float32", -1),
            Kernel(2, ADD1, (Reg(1), Reg(2)), Heap(0)),
            Const(3, 3, 0),
            Alloc(3, 4, 1, 1, "bfloat16", -1),
            Kernel(3, BF16_COPY, (Reg(3), Reg(4)), 5),
            MakeTuple(4, 5, (2, 4)),
            Return(4, 5),
        ],
        heap=(0, 5),
        storages=[times(0, 4)],
    )
    constants = (
        np.arange(5).astype(ml_dtypes.bfloat16),
        np.zeros((0, 3), np.int8),
        np.array(7, np.int64),
    )
    return executable(main, constants=constants, sources={"add1": "def add1(): ..."}, **fields)


def check(exe: Executable) -> None:
    total, constant = VirtualMachine(exe)["main"](floats(1, 2, 3))
    np.testing.assert_array_equal(total.numpy(), [3, 4, 5])
    np.testing.assert_array_equal(constant.numpy().astype(np.float32), np.arange(5))


@pytest.mark.parametrize("weights", ["inside", "beside"])
def test_save_and_load(tmp_path: Path, weights: str) -> None:
    exe = sample()
    check(exe)
    exe.save(tmp_path / "m.rx", weights=weights)  # type: ignore[arg-type]
    back = load(tmp_path / "m.rx")
    check(back)
    assert back.functions == exe.functions
    assert back.kernels == exe.kernels
    assert back.target == exe.target
    assert back.sources == exe.sources
    for mine, given in zip(back.constants, exe.constants, strict=True):
        assert mine.dtype == given.dtype
        assert mine.shape == given.shape
        assert not mine.flags.writeable or mine.size == 0


def test_same_executable_same_bytes(tmp_path: Path) -> None:
    sample().save(tmp_path / "a.rx")
    sample().save(tmp_path / "b.rx")
    assert (tmp_path / "a.rx").read_bytes() == (tmp_path / "b.rx").read_bytes()


def test_constants_are_mapped(tmp_path: Path) -> None:
    exe = replace(
        sample(), constants=(np.arange(5).astype(ml_dtypes.bfloat16), np.ones(1000, np.float32))
    )
    exe.save(tmp_path / "m.rx")
    array = load(tmp_path / "m.rx").constants[1]
    assert array.__array_interface__["data"][0] % 64 == 0
    base = array
    while base.base is not None and not isinstance(base, np.memmap):
        base = base.base  # type: ignore[assignment]
    assert isinstance(base, np.memmap)


def test_weights_beside(tmp_path: Path) -> None:
    file = tmp_path / "m.rx"
    sample().save(file, weights="beside")
    weights = tmp_path / "m.rx.weights"
    good = weights.read_bytes()
    weights.unlink()
    with pytest.raises(ExecutableError) as caught:
        load(file)
    assert caught.value.code == "weights-missing"
    replace(sample(), constants=(np.ones(5, ml_dtypes.bfloat16),)).save(
        tmp_path / "o.rx", weights="beside"
    )
    (tmp_path / "o.rx.weights").rename(weights)
    with pytest.raises(ExecutableError) as caught:
        load(file)
    assert caught.value.code == "weights-mismatch"
    weights.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(ExecutableError) as caught:
        load(file)
    assert caught.value.code == "file-damaged"
    # The pair may be renamed together.
    weights.write_bytes(good)
    weights.rename(tmp_path / "new.rx.weights")
    check(load(file.rename(tmp_path / "new.rx")))
    with pytest.raises(UsageError):
        sample().save(file, weights="elsewhere")  # type: ignore[arg-type]


def with_weights_at(tmp_path: Path, name: str) -> Path:
    """An executable that says that its weights are elsewhere, with right checksums."""
    file = tmp_path / "m.rx"
    sample().save(file, weights="beside")
    container = open_container(file)
    sections = {each: container.read(each) for each in container.sections}
    meta = json.loads(sections["meta"])
    meta["weights"]["file"] = name
    (tmp_path / "m.rx.weights").rename(tmp_path / "real")
    write_container(file, {**sections, "meta": json.dumps(meta).encode()})
    return file


@pytest.mark.parametrize(
    "name",
    ["../real", "/etc/passwd", "/dev/zero", "a/b", "", ".", "..", "x\0y", "~/real", "x/../real"],
)
def test_weights_that_are_elsewhere(name: str, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    file = with_weights_at(tmp_path / "inner", name)
    (tmp_path / "inner" / "real").rename(tmp_path / "real")
    with pytest.raises(ExecutableError) as caught:
        load(file)
    assert caught.value.code == "weights-place"
    assert str(file) in caught.value.message


@pytest.mark.parametrize(
    "kind", ["link out", "link to itself", "link to a device", "pipe", "folder"]
)
def test_weights_that_are_no_file(kind: str, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    file = with_weights_at(tmp_path / "inner", "m.rx.weights")
    weights, real = tmp_path / "inner" / "m.rx.weights", tmp_path / "inner" / "real"
    match kind:
        case "link out":
            weights.symlink_to(real.rename(tmp_path / "real"))
        case "link to itself":
            weights.symlink_to(weights)
        case "link to a device":
            weights.symlink_to("/dev/zero")
        case "pipe":
            os.mkfifo(weights)
        case _:
            weights.mkdir()
    with pytest.raises(ExecutableError) as caught:
        load(file)
    assert caught.value.code == (
        "file-read" if kind in ("link to itself", "pipe", "folder") else "weights-place"
    )


def test_weights_behind_a_link_in_the_folder(tmp_path: Path) -> None:
    """As model caches keep files: both names are links into one folder, or the link stays inside."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "names").mkdir()
    file = with_weights_at(tmp_path / "blobs", "m.rx.weights")
    (tmp_path / "blobs" / "m.rx.weights").symlink_to("real")
    check(load(file))
    for name in ("m.rx", "m.rx.weights"):
        (tmp_path / "names" / name).symlink_to(tmp_path / "blobs" / name)
    check(load(tmp_path / "names" / "m.rx"))


def test_200_corruptions_are_200_clear_errors(tmp_path: Path) -> None:
    file = tmp_path / "m.rx"
    sample().save(file)
    good = file.read_bytes()
    for seed in range(200):
        pick = random.Random(seed)
        bad = bytearray(good)
        match seed % 4:
            case 0:
                del bad[pick.randrange(len(bad)) :]
            case 1:
                bad[pick.randrange(len(bad))] ^= 1 << pick.randrange(8)
            case 2:
                at = pick.randrange(len(bad))
                bad[at : at + 64] = pick.randbytes(64)
            case _:
                at = pick.randrange(len(bad))
                bad[at:at] = pick.randbytes(pick.randrange(1, 32))
        file.write_bytes(bad)
        with pytest.raises(ExecutableError) as caught:
            load(file)
        assert caught.value.code.startswith("file-")
        assert str(file) in caught.value.message


def test_another_cpu_is_refused(tmp_path: Path) -> None:
    needs = Requirement("future", "", ("avx2", "avx1024f"))
    kernels = tuple(
        replace(info, images=(replace(info.image, needs=0),)) for info in sample().kernels
    )
    exe = replace(sample(), kernels=kernels, requirements=(needs,))
    exe.save(tmp_path / "m.rx")
    with pytest.raises(ExecutableError, match="avx1024f") as caught:
        load(tmp_path / "m.rx")
    assert caught.value.code == "cpu-features"
    with pytest.raises(ExecutableError):
        VirtualMachine(exe)
    assert "add1" in load(tmp_path / "m.rx", any_cpu=True).as_text()


def test_another_machine_is_refused() -> None:
    exe = sample()
    other = bytearray(exe.objects[0])
    other[18:20] = (183 if other[18] != 183 else 62).to_bytes(2, "little")
    with pytest.raises(ExecutableError, match="kernels are for") as caught:
        VirtualMachine(replace(exe, objects=(bytes(other),)))
    assert caught.value.code == "cpu-features"


def test_a_broken_object_is_refused() -> None:
    for code in (b"\x7fELF", b"not an object"):
        with pytest.raises(ExecutableError) as caught:
            VirtualMachine(replace(sample(), objects=(code,), target={}))
        assert caught.value.code == "object-code"


def test_signature_and_names() -> None:
    exe = sample()
    assert exe.signature("main") == "main(x: annotation of x) -> R.Object"
    assert re.fullmatch(r"<relaxpy Executable for \w+( \w+)?: main.*; \d+ kernels?>", repr(exe))
    with pytest.raises(UsageError, match="there are: main"):
        exe.function("mian")


@pytest.mark.parametrize(
    "meta",
    [
        b'{"functions": [{"Nonsense": []}]}', b"[]", b"3", b"null", b"", b"{", b"\xff", b"[" * 100_000, b"1" * 9999,
        b'{"weights": 3}', b'{"weights": {}}', b'{"functions": ' + b'{"IntOp":["add",[' * 5000,
    ],
)  # fmt: skip
def test_foreign_content_with_right_checksums(meta: bytes, tmp_path: Path) -> None:
    write_container(tmp_path / "m.rx", {"meta": meta})
    with pytest.raises(ExecutableError, match="is damaged") as caught:
        load(tmp_path / "m.rx")
    assert caught.value.code == "file-damaged"
    assert str(tmp_path / "m.rx") in caught.value.message


@pytest.mark.parametrize(
    ("part", "value", "problem"),
    [
        ("functions", 3, "functions: expected a list, got 3"),
        ("kernels", [{"Heap": [0]}], r"kernels\[0\]: expected KernelInfo"),
        ("libraries", [3], r"libraries\[0\]: expected a text"),
        ("target", {"text": ("llvm",)}, "its kind"),
        ("requirements", 3, "requirements: expected a list, got 3"),
        ("requirements", [{"Requirement": ["a", "", [3]]}], r"expected a text"),
        ("target", {"kind": 3}, "its kind"),
        ("target", [], "target: expected an object"),
        ("objects", [-1], r"objects\[0\]: -1 is none of"),
        ("objects", [1], "the objects have 1 bytes"),
        ("constants", [{"dtype": "float32"}], r"constants\[0\]: a dtype, a shape and an offset"),
        ("constants", [{"dtype": "float32", "shape": [99], "offset": 0}], r"bytes 0 to 396 of"),
        ("constants", [{"dtype": "float32", "shape": [1 << 30] * 9, "offset": 0}], "bytes 0 to"),
        ("constants", [{"dtype": "float32", "shape": [], "offset": 3}], "bytes 3 to 7"),
        ("constants", [{"dtype": "nothing", "shape": [], "offset": 0}], "does not support the dtype"),
    ],
)  # fmt: skip
def test_parts_of_another_type(part: str, value: object, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "m.rx"
    sample().save(file)
    container = open_container(file)
    sections = {each: container.read(each) for each in container.sections}
    meta = json.loads(sections["meta"])
    meta[part] = value
    write_container(file, {**sections, "meta": json.dumps(meta).encode()})
    with pytest.raises(ExecutableError, match=problem) as caught:
        load(file)
    assert caught.value.code == "file-damaged"
    del meta[part]
    write_container(file, {**sections, "meta": json.dumps(meta).encode()})
    with pytest.raises(ExecutableError, match=f"'meta' has no '{part}'"):
        load(file)


FRESH = """
import os, sys, time
start = time.perf_counter()
import numpy as np
import relaxpy.runtime as rt
exe = rt.load(sys.argv[1])
vm = rt.VirtualMachine(exe)
total, _ = vm["main"](np.zeros(4, np.float32))
assert total.numpy().tolist() == [2, 2, 2, 2]
banned = [n for n in ("tvm", "torch", "relaxpy.tir", "sympy") if n in sys.modules]
assert not banned, banned
"""


def test_a_fresh_process_needs_neither_compiler_nor_path(tmp_path: Path) -> None:
    sample().save(tmp_path / "m.rx")
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", FRESH, str(tmp_path / "m.rx")],
        env={"PATH": "", "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


OTHER_ALLOCATOR = "libc_malloc_debug.so.0"
"""glibc's own: with MALLOC_CHECK_ it ends the process where memory is freed that it did not give."""


AGAIN = """
import sys
import numpy as np
import relaxpy.runtime as rt
kept = []
for _ in range(8):
    kept.append(vm := rt.VirtualMachine(rt.load(sys.argv[1])))
    assert vm["main"](np.zeros(4, np.float32)).numpy().tolist() == [1, 1, 1, 1]
"""


def test_another_allocator_is_preloaded(tmp_path: Path) -> None:
    """As servers do (jemalloc, tcmalloc). Without optimisation: objects have constructors then, if empty ones."""
    try:
        ctypes.CDLL(OTHER_ALLOCATOR)
    except OSError:
        pytest.skip("a system without another allocator")
    function = """
@R.function
def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
    y = R.exp(x)
    return y
"""
    relaxpy.build(relaxpy.parse(function), target="llvm -opt-level=0").save(tmp_path / "m.rx")
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", AGAIN, str(tmp_path / "m.rx")],
        env={"PYTHONPATH": str(root), "LD_PRELOAD": OTHER_ALLOCATOR, "MALLOC_CHECK_": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
