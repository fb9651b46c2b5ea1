"""The rules of the house that a machine can check: layers, names, error codes.

Each is a rule that reviewers would otherwise repeat; docs/decisions says why it is there.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import relaxpy
from relaxpy import errors
from relaxpy.build.kernels import _KERNEL_SOURCES

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "relaxpy"
SOURCES = sorted(PACKAGE.rglob("*.py"))
MODEL_SOURCES = sorted((ROOT / "models").rglob("*.py"))

LAYERS = ("ir", "tir", "shape", "op", "analysis", "transform", "backend", "build")
"""Each may import those before it (and `errors`, `version`)."""

PRODUCERS = ("script", "nn", "frontend")
"""Packages that make IR: may import what comes before `analysis`, and analysis to check it."""

ALLOWED = {
    **{layer: {*LAYERS[:i], layer} for i, layer in enumerate(LAYERS)},
    "script": {*LAYERS[: LAYERS.index("transform")], "script"},
    "nn": {*LAYERS[: LAYERS.index("transform")], "nn"},
    "frontend": {*LAYERS[: LAYERS.index("transform")], "frontend"},
    "runtime": {"runtime"},
    "checkpoints": {"runtime", "checkpoints"},
    "serve": {"runtime", "serve"},
    "llm": {"checkpoints", "runtime", "serve", "vision", "llm"},
    "speech": {"checkpoints", "runtime", "serve", "llm", "onnx", "speech"},
    "vision": {"checkpoints", "runtime", "vision"},
    "server": {"checkpoints", "runtime", "serve", "llm", "speech", "vision", "server"},
    "web": {"runtime", "web"},
    "torch": {*LAYERS, "frontend", "runtime", "torch"},
    "jax": {*LAYERS, "frontend", "runtime", "jax"},
    "onnx": {*LAYERS, "frontend", "runtime", "onnx"},
    "train": {*LAYERS, "runtime", "train"},
    "explain": {*LAYERS, *PRODUCERS, "runtime", "explain"},
    "testing": {*LAYERS, *PRODUCERS, "runtime", "testing"},
}
"""Package → packages of relaxpy that it may import. `cli` is on top and may import all."""
ALLOWED["backend"] |= {"runtime"}  # an executable's record of a kernel is what a backend makes
ALLOWED["build"] |= {
    "runtime"
}  # bytecode is what code generation makes, Executable what `build` returns

RUNTIME_ALLOWED = {
    "numpy",
    "ml_dtypes",
    "tvm_ffi",
    "tvm_ffi_orcjit",
    "relaxpy",
    "pyopencl",
    "wgpu",
    "Metal",
    "objc",
}
"""What `relaxpy/runtime` may import besides the standard library."""


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file, parsed once."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file's tree: to walk it takes longer than to look at them."""
    return tuple(ast.walk(tree_of(path)))


@cache
def imports(path: Path) -> tuple[tuple[str, int], ...]:
    """Modules that a file imports when it runs, with lines; those for type checkers only are left out."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    hidden = {
        id(inner)
        for node in nodes_of(path)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for stmt in node.body
        for inner in ast.walk(stmt)
    }
    for node in nodes_of(path):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            module = node.module or ""
            for alias in node.names:
                inner = ROOT.joinpath(*module.split("."), alias.name)
                is_module = inner.with_suffix(".py").exists() or inner.is_dir()
                # `from relaxpy import ir` imports a module, `from relaxpy.ir import Dim` a name of one
                yield (
                    (f"{module}.{alias.name}" if is_module or module == "relaxpy" else module),
                    node.lineno,
                )


def package_of(path: Path) -> str:
    """The package of relaxpy that a file belongs to; "" for the files at its top."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


def test_imports_point_one_way() -> None:
    """A package imports only those below it."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {package} imports {module}"
        for path in SOURCES
        if (package := package_of(path)) in ALLOWED
        for module, line in imports(path)
        if module.startswith("relaxpy.")
        and (target := module.split(".")[1]) in ALLOWED
        and target not in ALLOWED[package]
    ]
    assert not wrong, "\n".join(wrong)


def test_the_map_of_layers_is_that_of_the_rules() -> None:
    """The table in the decision on layers says what the rules above say."""
    page = (ROOT / "docs" / "decisions" / "0001-layers.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \|[^|]*\| (.*?) \|$", page, re.MULTILINE))
    found = {package: set(re.findall(r"`(\w+)`", allowed)) for package, allowed in rows.items()}
    packages = {package_of(path) for path in SOURCES}
    expected = {name: (ALLOWED[name] - {name}) & packages for name in ALLOWED if name in packages}
    assert found == expected


def test_packages_form_no_circle() -> None:
    """Imports between packages, those inside functions as well, form no circle. (`relaxpy` itself, the public interface,
    names modules and loads them when they are used.)"""
    graph: dict[str, set[str]] = {}
    for path in SOURCES:
        node = path.relative_to(PACKAGE).with_suffix("").parts[0]
        targets = {m.split(".")[1] for m, _ in imports(path) if m.startswith("relaxpy.")}
        graph.setdefault(node, set()).update(targets - {node})
    list(TopologicalSorter(graph).static_order())  # CycleError says which


NOT_IN_THE_KEY = {
    "op": "operators make tensor programs, whose text is in the key",
    "transform": "passes, likewise",
    "build/build_cache.py": "stores the entries",
    "build/tuning.py": "finds the choices, which are in the key",
    "runtime/tuned.py": "likewise",
    "runtime/devices/cpu": "measures what the machine can do",
    "runtime/host": "likewise",
    "runtime/ffi.py": "likewise",
    "runtime/library.py": "tells passes where libraries run",
    "runtime/patterns.py": "compares arguments when a kernel is called",
    "runtime/tensor.py": "likewise",
}
"""Imports of code generation that have no influence on a kernel's code or its entry in the build cache."""


def test_the_key_of_a_kernel_has_what_code_generation_imports() -> None:
    """A source that is missing there may leave kernels of an older compiler in use."""
    in_key = [PACKAGE / part for part in _KERNEL_SOURCES]
    excused = [PACKAGE / part for part in NOT_IN_THE_KEY]
    wrong, used = [], set()
    for part in in_key:
        assert part.exists(), part
        for path in sorted(part.rglob("*.py")) if part.is_dir() else [part]:
            for module, line in imports(path):
                file = ROOT.joinpath(*module.split("."))
                places = {file, file.with_suffix(".py"), *file.with_suffix(".py").parents} - set(
                    PACKAGE.parents
                )
                if not module.startswith("relaxpy.") or not places.isdisjoint(in_key):
                    continue
                found = places.intersection(excused)
                used |= found
                if not found:
                    wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    assert not wrong, "not among _KERNEL_SOURCES:\n" + "\n".join(wrong)
    assert used == set(excused)


TIR = PACKAGE / "tir"
TIR_LAYERS = ({"", "tree"}, {"numerics", "programs", "recognise"}, {"lowering"})
"""Parts of relaxpy/tir ("": its own files, the boundary to TVM). Each may import those beside and before it; files of the
second row form no circle."""
TIR_PRIVATE = ("extents", "printer", "tree")
"""What only relaxpy/tir imports."""
RAW_TVM = ("tir", "backend", "analysis")
"""Packages that handle TVM's own objects."""


@cache
def imported_modules(path: Path) -> frozenset[str]:
    """The modules of relaxpy that a file imports, in functions too; for a name of a module, that module."""
    found: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = ROOT.joinpath(*node.module.split("."), alias.name)
                is_module = inner.with_suffix(".py").exists() or inner.is_dir()
                found.add(f"{node.module}.{alias.name}" if is_module else node.module)
    return frozenset(name for name in found if name.startswith("relaxpy."))


def part_of_tir(module: str) -> str:
    """The package inside of relaxpy/tir that a module is in; "" for the boundary's own files."""
    parts = module.split(".")[2:]
    return parts[0] if parts and (TIR / parts[0]).is_dir() else ""


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_tir_has_layers() -> None:
    """The boundary knows nothing of what is built on it; recognisers and writers nothing of lowering."""
    wrong: list[str] = []
    for path in TIR.rglob("*.py"):
        part = part_of_tir(module_of(path))
        row = next(i for i, parts in enumerate(TIR_LAYERS) if part in parts)
        allowed = set[str]().union(*TIR_LAYERS[: row + 1])
        wrong += [
            f"{path.relative_to(ROOT)}: {part or 'the boundary'} imports {module}"
            for module in sorted(imported_modules(path))
            if module.startswith("relaxpy.tir") and part_of_tir(module) not in allowed
        ]
    assert not wrong, "\n".join(wrong)


def test_numerics_programs_and_recognise_form_no_circle() -> None:
    graph = {
        module_of(path): {m for m in imported_modules(path) if part_of_tir(m) in TIR_LAYERS[1]}
        for part in TIR_LAYERS[1]
        for path in (TIR / part).glob("*.py")
    }
    list(TopologicalSorter(graph).static_order())  # raises CycleError, which names the files


def test_private_modules_of_tir_stay_inside() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {module}"
        for path in SOURCES
        if package_of(path) not in ("tir", "")
        for module in sorted(imported_modules(path))
        if module.startswith("relaxpy.tir.") and module.split(".")[2] in TIR_PRIVATE
    ]
    wrong += [
        f"{path.relative_to(ROOT)}: TVM's own objects"
        for path in SOURCES
        if package_of(path) not in RAW_TVM and "relaxpy.tir.tvm" in imported_modules(path)
    ]
    assert not wrong, "\n".join(wrong)


def test_private_names_stay_in_their_files() -> None:
    """What begins with an underscore is imported by nobody."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.module}.{alias.name}"
        for path in [*SOURCES, *MODEL_SOURCES]
        for node in nodes_of(path)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("relaxpy")
        for alias in node.names
        if alias.name.startswith("_") and not alias.name.startswith("__")
    ]
    assert not wrong, "\n".join(wrong)


SHARED_BACKENDS = {"cuda": {"gpu"}, "metal": {"gpu"}, "opencl": {"gpu"}, "webgpu": {"gpu"}}
"""Backend → folders of others that it is made of."""


def test_backends_are_named_by_themselves_only() -> None:
    """Whoever compiles asks `Backend`; a folder of relaxpy/backend is imported by files of that folder."""
    folders = {path.parent.name for path in (PACKAGE / "backend").glob("*/__init__.py")}
    wrong: list[str] = []
    for path in [*SOURCES, *MODEL_SOURCES]:
        module = module_of(path).split(".")
        own = module[2] if module[:2] == ["relaxpy", "backend"] and len(module) > 2 else ""
        allowed = {own, *SHARED_BACKENDS.get(own, ())}
        wrong += [
            f"{path.relative_to(ROOT)}: {name}"
            for name in sorted(imported_modules(path))
            if name.startswith("relaxpy.backend.")
            and (folder := name.split(".")[2]) in folders
            and folder not in allowed
        ]
    assert not wrong, "\n".join(wrong)


def test_devices_are_named_by_their_backends_only() -> None:
    """Whoever runs kernels asks `relaxpy.runtime.devices.registry`, or the runtime's public names: a folder of
    relaxpy/runtime/devices is imported in relaxpy/runtime, and by the backend of its name."""
    folders = {path.parent.name for path in (PACKAGE / "runtime/devices").glob("*/__init__.py")}
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in [*SOURCES, *MODEL_SOURCES]
        if module_of(path).split(".")[:2] != ["relaxpy", "runtime"]
        for name in sorted(imported_modules(path))
        if name.startswith("relaxpy.runtime.devices.")
        and (folder := name.split(".")[3]) in folders
        and module_of(path).split(".")[:3] != ["relaxpy", "backend", folder]
    ]
    assert not wrong, "\n".join(wrong)


def test_the_top_of_the_runtime_names_no_device() -> None:
    """Devices are found by their registry (docs/decisions/0001-layers.md): a folder of relaxpy/runtime/devices is
    imported by files of that folder, and by those of another device that is made of it."""
    devices = PACKAGE / "runtime/devices"
    folders = {path.parent.name for path in devices.glob("*/__init__.py")}
    made_of = {"vulkan": {"webgpu"}}
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((PACKAGE / "runtime").rglob("*.py"))
        for name in sorted(imported_modules(path))
        if name.startswith("relaxpy.runtime.devices.")
        and (folder := name.split(".")[3]) in folders
        and (own := path.parent.name if path.parent.parent == devices else "") != folder
        and folder not in made_of.get(own, ())
    ]
    assert not wrong, "\n".join(wrong)


def test_near_names_are_found_at_one_place() -> None:
    """A message asks by `relaxpy.errors.did_you_mean`: all do it in one way."""
    wrong = [
        str(path.relative_to(ROOT))
        for path in [*SOURCES, *MODEL_SOURCES]
        if path != PACKAGE / "errors.py" and "get_close_matches" in path.read_text(encoding="utf-8")
    ]
    assert not wrong, wrong


def test_only_tir_imports_tvm() -> None:
    """The compiler comes in through relaxpy/tir, and nowhere else."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in [*SOURCES, *MODEL_SOURCES]
        if path.is_relative_to(ROOT / "models") or package_of(path) != "tir"
        for module, line in imports(path)
        if module.split(".")[0] == "tvm"
    ]
    assert not wrong, "\n".join(wrong)


def test_tvm_comes_in_at_one_place() -> None:
    """In relaxpy/tir, `tvm.py` imports tvm: it puts back what that import changes in the process."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in SOURCES
        if path != PACKAGE / "tir/tvm.py"
        for module, line in imports(path)
        if module.split(".")[0] == "tvm"
    ]
    assert not wrong, "\n".join(wrong)


def test_tvm_relax_is_not_used() -> None:
    """`tvm.relax` is the peer that we measure against: no code of ours names it (comments and docstrings may)."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in [*SOURCES, *MODEL_SOURCES]
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute)
        and node.attr == "relax"
        and ast.unparse(node) == "tvm.relax"
    ] + [
        f"{path.relative_to(ROOT)}:{line}"
        for path in [*SOURCES, *MODEL_SOURCES]
        for module, line in imports(path)
        if module == "tvm.relax" or module.startswith("tvm.relax.")
    ]
    assert not wrong, "\n".join(wrong)


def test_runtime_stands_alone() -> None:
    """The runtime needs numpy and tvm_ffi, and of relaxpy only itself, the errors, how files are written, and how
    elements share bytes."""
    allowed = RUNTIME_ALLOWED | set(sys.stdlib_module_names)
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {module}"
        for path in SOURCES
        if package_of(path) == "runtime"
        for module, line in imports(path)
        if module.split(".")[0] not in allowed
        or (
            module.split(".")[0] == "relaxpy"
            and module.split(".")[1:2]
            not in (["runtime"], ["errors"], ["files"], ["version"], ["half_bytes"])
        )
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", sorted(relaxpy._PUBLIC))
def test_public_names_exist(name: str) -> None:
    """Every name of the public interface can be had, and is what its module calls so."""
    assert getattr(relaxpy, name).__name__ == name


def public(names: list[str]) -> set[str]:
    return {name for name in names if not name.startswith("__")}


def test_dir_has_what_is_public() -> None:
    """What `dir` lists is the public interface, nothing that files import for themselves, and all of it can be had."""
    packages = {*relaxpy._PACKAGES}
    assert public(dir(relaxpy)) == public(relaxpy.__all__) | packages
    assert "__doc__" in dir(relaxpy)
    for name in ("ir", "op", "runtime", "script", "transform", "analysis", "nn", "explain"):
        package = importlib.import_module(f"relaxpy.{name}")
        assert public(dir(package)) == public(package.__all__), name
        assert all(getattr(package, each) is not None for each in dir(package)), name


def test_public_names_have_docstrings() -> None:
    """Each public class and function of these packages says what it is."""
    owners = [relaxpy, *(importlib.import_module(f"relaxpy.{name}") for name in relaxpy._PACKAGES)]
    missing = [
        f"{owner.__name__}.{name}"
        for owner in owners
        for name in public(dir(owner))
        if (inspect.isclass(value := getattr(owner, name)) or inspect.isroutine(value))
        and not (value.__doc__ or "").strip()
    ]
    assert not missing, sorted(missing)


def test_build_stays_the_function() -> None:
    """Importing the package `relaxpy.build` does not put it in the function's place."""
    importlib.import_module("relaxpy.build")
    assert callable(relaxpy.build)


@pytest.mark.parametrize("name", ["relaxpy", "relaxpy.errors", "relaxpy.cli.main"])
def test_import_is_light(name: str) -> None:
    """`import relaxpy` loads neither the compiler nor the foreign function library, nor numpy."""
    code = f"import {name}, sys; print([m for m in ('tvm', 'tvm_ffi', 'sympy', 'numpy', 'torch') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def test_runtime_loads_without_the_compiler() -> None:
    """A process that only runs never imports `tvm`."""
    code = "import relaxpy, sys; relaxpy.VirtualMachine; relaxpy.load; print('tvm' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "False"


def test_parsing_needs_no_compiler() -> None:
    """A graph program is read, verified and printed without `tvm`, whose import takes most of a second."""
    text = "@R.function\ndef main(x: R.Tensor(('n',), 'float32')):\n    return x + x\n"
    code = f"import relaxpy, sys; relaxpy.parse({text!r}).script(); print('tvm' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "False"


def test_no_module_is_a_drawer() -> None:
    """Files are named after the one concept in them, so none is called utils, common or helpers."""
    drawers = {"utils", "util", "common", "helpers", "helper", "misc", "tools"}
    wrong = [
        str(path.relative_to(ROOT))
        for path in [*SOURCES, *MODEL_SOURCES]
        if drawers & {part.removesuffix(".py") for part in path.relative_to(ROOT).parts}
    ]
    assert not wrong, wrong


def pass_classes(path: Path) -> list[ast.ClassDef]:
    """Classes of a file that derive from Pass directly."""
    tree = tree_of(path)
    return [
        node
        for node in tree.body
        if isinstance(node, ast.ClassDef) and "Pass" in {ast.unparse(base) for base in node.bases}
    ]


def pass_files() -> list[Path]:
    """Files that define passes: what `transform` has besides the machinery of passes itself."""
    return [path for path in (PACKAGE / "transform").glob("*.py") if pass_classes(path)]


def test_one_pass_one_file() -> None:
    """File fuse_ops.py ⇔ class FuseOps ⇔ name "fuse-ops" ⇔ tests/transform/test_fuse_ops.py."""
    wrong = []
    for path in pass_files():
        if path.stem in ("base", "phases"):
            continue
        classes = [node.name for node in pass_classes(path)]
        expected = "".join(word.capitalize() for word in path.stem.split("_"))
        if [name.lower() for name in classes] != [expected.lower()]:
            wrong.append(f"{path.name} defines {classes}, not just {expected}")
        name = path.stem.replace("_", "-")
        if f'name = "{name}"' not in re.sub(r"name: .*? =", "name =", path.read_text("utf-8")):
            wrong.append(f"{path.name}: the pass is not named {name!r}")
        if not (ROOT / "tests/transform" / f"test_{path.stem}.py").exists():
            wrong.append(f"{path.name} has no tests/transform/test_{path.stem}.py")
    assert not wrong, "\n".join(wrong)


def test_tests_mirror_the_sources() -> None:
    """tests/X/test_y.py tests relaxpy/X/y.py, or y.js in a folder js: a test file without such a source is misnamed."""
    wrong = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        parts = path.relative_to(ROOT / "tests").parts
        if len(parts) < 2 or parts[0] in (
            "accelerator",
            "docs",
            "models",
            "e2e",
            "fuzz",
            "errors",
            "device_emulation",
            "benchmarks",
            "embedded",
            "hostile",
            "machine",
        ):
            continue
        source = PACKAGE.joinpath(*parts[:-1])
        stem = path.stem.removeprefix("test_")
        if not source.is_dir():
            wrong.append(f"{path.relative_to(ROOT)}: there is no {source.relative_to(ROOT)}")
        elif (
            not (source / f"{stem}.py").exists()
            and not (source / "js" / f"{stem}.js").exists()
            and not (source / stem).is_dir()
            and not stem.startswith("all_")
        ):
            wrong.append(
                f"{path.relative_to(ROOT)}: there is no {stem}.py in {source.relative_to(ROOT)}"
            )
    assert not wrong, "\n".join(wrong)


CODE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
FAMILIES = {
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.RelaxError)
}

RAISERS = {"fail", "report"}
"""Private functions that raise the error whose code is their first argument."""


def error_codes() -> dict[str, str]:
    """Code → where it is raised: literal codes given to a family of RelaxError, to a raiser, or as `code=`."""
    found: dict[str, str] = {}
    for path in [*SOURCES, *MODEL_SOURCES]:
        for node in nodes_of(path):
            if not isinstance(node, ast.Call):
                continue
            given = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            function = ast.unparse(node.func).split(".")[-1]
            if function in FAMILIES:
                given += node.args[:1]
            elif function.strip("_") in RAISERS:  # whose first argument may also be a message
                given += [a for a in node.args[:1] if "-" in ast.unparse(a)]
            for value in given:
                if (
                    isinstance(value, ast.Constant)
                    and isinstance(value.value, str)
                    and CODE.fullmatch(value.value)
                ):
                    found.setdefault(value.value, f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


def documented_codes() -> list[str]:
    """Codes that have a section in docs/errors.md."""
    text = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    return re.findall(r"^### `([\w-]+)`", text, re.MULTILINE)


def test_every_folder_of_tests_is_collected(request: pytest.FixtureRequest) -> None:
    """Pytest skips folders of some names, unless it is told not to: tests/build was one."""
    skipped = request.config.getini("norecursedirs")
    tests = ROOT / "tests"
    for file in tests.rglob("test_*.py"):
        for part in file.parent.relative_to(tests).parts:
            assert not any(fnmatch(part, pattern) for pattern in skipped), file


def test_every_error_code_is_documented() -> None:
    """Each code that the source raises has a section in docs/errors.md, and one only."""
    documented = documented_codes()
    missing = {code: place for code, place in error_codes().items() if code not in documented}
    assert not missing, "\n".join(f"{code}: {place}" for code, place in sorted(missing.items()))
    assert len(set(documented)) == len(documented)


def test_no_section_for_an_error_that_is_gone() -> None:
    """A documented code stands in the source (as a literal: some are passed through functions)."""
    literals = {
        node.value
        for path in [*SOURCES, *MODEL_SOURCES]
        for node in nodes_of(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert not [code for code in documented_codes() if code not in literals]


def test_no_place_of_this_machine() -> None:
    """Project files name no path of the machine that they were written on."""
    listed = subprocess.run(
        ["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    pattern = re.compile("|".join(["/" + "work/", "/" + "opt/", "/" + "root/", "/" + "tmp/"]))
    wrong = []
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.suffix in (".py", ".md", ".toml", "") and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            wrong += [f"{name}: {match[0]}" for match in pattern.finditer(text)]
    assert not wrong, "\n".join(wrong)
