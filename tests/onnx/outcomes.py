"""Damaged and hostile ONNX files, each opened and called in a process of its own with little time and memory: it must end in
a located error, or in the right numbers.

    python -m tests.onnx.outcomes build/onnx-files.jsonl [EVERY]

`make test-onnx-files` runs all cases; `tests/onnx/test_all_files.py` a part of them. What a session gives is compared with ONNX
Runtime, in another process, and, where that refuses the file, with the standard's reference and with the model before the
damage.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import parser

from relaxpy.errors import OUR_DEFECT, RelaxError
from relaxpy.onnx import InferenceSession
from tests import logged
from tests.onnx import damaged, hostile

SECONDS = 5
"""Of a processor, for a case."""
MEMORY = 500 << 20
"""Bytes beyond those of a process that has imported relaxpy."""
MOST_ELEMENTS = 1 << 20
"""An input that is larger is not given."""
GOOD = ("error", "equal", "not called")
TARGET = {"target": "llvm -opt-level=0"}


def cases() -> Mapping[str, damaged.Write]:
    return {**damaged.cases(), **hostile.cases()}


def opened(folder: Path, item: str) -> dict[str, Any]:
    """Write a case's files, open the model, and call it: what it ends in. Its inputs and results are left in `folder`."""
    path = cases()[item](_empty(folder, item))
    start = time.process_time()
    resident = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    limit = _status("VmSize") + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = _outcome(path, folder / f"{item}.results")
    used = (_status("VmHWM") - resident) >> 20
    return {**found, "mebibytes": used, "took": round(time.process_time() - start, 2)}


def _outcome(path: Path, results: Path) -> dict[str, Any]:
    try:
        session = InferenceSession(str(path), **TARGET)
        feed = drawn(session.get_inputs())
        if feed is None:
            return {"outcome": "not called"}
        found = session.run(None, feed)
    except RelaxError as error:
        text = str(error)
        is_located = error.span is not None or path.name in text or "onnx-session" in text
        is_ours = OUR_DEFECT not in text
        kind = "error" if is_located and is_ours else "defect" if is_located else "no place"
        return {"outcome": kind, "text": text, "code": error.code}
    except MemoryError:
        return {"outcome": "memory"}
    results.write_bytes(pickle.dumps((feed, found)))
    return {"outcome": "numbers"}


def drawn(infos: Any) -> dict[str, np.ndarray] | None:
    """Inputs for a model: sizes with names are 3. None: they are too large."""
    rng = np.random.default_rng(0)
    feed: dict[str, np.ndarray] = {}
    for info in infos:
        shape = [each if isinstance(each, int) else 3 for each in info.shape]
        if np.prod([float(each) for each in shape]) > MOST_ELEMENTS:
            return None
        kind = info.type.removeprefix("tensor(").removesuffix(")")
        kind = {"float": "float32", "double": "float64"}.get(kind, kind)
        if kind.startswith("float"):
            feed[info.name] = rng.standard_normal(shape).astype(kind)
        else:
            feed[info.name] = rng.integers(0, 2 if kind == "bool" else 5, shape).astype(kind)
    return feed


def compared(folder: Path, item: str) -> dict[str, Any]:
    """Compare the numbers that a case gave: "equal", "wrong", or "taken" if nobody else takes the file."""
    from onnx.reference import ReferenceEvaluator

    path = cases()[item](_empty(folder, item))
    feed, found = pickle.loads((folder / f"{item}.results").read_bytes())
    oracles: list[Callable[[], Any]] = [
        lambda: _onnxruntime(path).run(None, feed),
        lambda: ReferenceEvaluator(_loaded(path)).run(None, feed),
    ]
    if item in damaged.cases():
        undamaged = damaged.undamaged(item).SerializeToString()
        oracles.append(lambda: _onnxruntime(undamaged).run(None, feed))
    kind, texts = "taken", list[str]()
    for number, oracle in enumerate(oracles):
        if number == 2 and kind == "wrong":
            break  # ONNX Runtime says what the damaged model gives
        try:
            wanted = oracle()
        except Exception as error:
            texts.append(str(error))
            continue
        difference = _difference(found, wanted)
        if difference is None:
            return {"outcome": "equal"}
        kind = "wrong" if number == 0 else kind
        texts.append(difference)
    return {"outcome": kind, "text": "\n".join(texts)}


def _onnxruntime(model: Any) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if isinstance(model, Path) and model.read_bytes().lstrip().startswith(b"<"):
        model = _loaded(model).SerializeToString()
    source = str(model) if isinstance(model, Path) else model
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def _loaded(path: Path) -> Any:
    data = path.read_bytes()
    return parser.parse_model(data.decode()) if data.lstrip().startswith(b"<") else onnx.load(path)


def _difference(found: Any, wanted: Any) -> str | None:
    for k, (a, b) in enumerate(zip(found, wanted, strict=True)):
        try:
            assert (a.dtype, a.shape) == (b.dtype, b.shape), (
                f"{a.dtype} {a.shape}, not {b.dtype} {b.shape}"
            )
            np.testing.assert_allclose(
                a.astype(np.float64), b.astype(np.float64), rtol=1e-3, atol=1e-4
            )
        except AssertionError as error:
            return f"output {k}: {error}"
    return None


def _empty(folder: Path, item: str) -> Path:
    """An empty folder for a case's files, at the same place each time."""
    import shutil

    place = folder / "cases" / item.replace("/", "_")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    return place


def _status(name: str) -> int:
    """A number of bytes that the system says of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    raise KeyError(name)


def _load() -> None:
    """Import all that a session needs, which is no part of a case."""
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g (float[a] x) => (float[a] y) { y = Relu(x) }'
    )
    InferenceSession(model, **TARGET)
    with contextlib.suppress(ImportError):
        import onnxruntime as _  # noqa: F401


def main(log: Path, every: int = 1) -> int:
    """Run the cases that the log has not, and give how many are bad."""
    _load()
    items = list(cases())[::every]
    with tempfile.TemporaryDirectory(prefix="relaxpy-files-") as name:
        folder = Path(name)
        records = logged.run(log, items, partial(opened, folder), SECONDS)
        numbers = [each["item"] for each in records if each["outcome"] == "numbers"]
        compare = log.with_name(f"{log.stem}-compared{log.suffix}")
        again = [each for each in numbers if (folder / f"{each}.results").exists()]
        others = logged.run(compare, again, partial(compared, folder), 60)
    ended = {each["item"]: each for each in [*records, *others]}
    bad = [each for each in ended.values() if each["outcome"] not in GOOD]
    print(f"{len(ended)} cases: {logged.table(list(ended.values()))}")  # noqa: T201
    largest = max(records, key=lambda each: each.get("mebibytes", 0))
    print(f"at most {max(each['seconds'] for each in records)} s, {largest.get('mebibytes')} MiB")  # noqa: T201
    for each in bad:
        print(f"\n{each['item']}: {each['outcome']}\n{each.get('text', '')}")  # noqa: T201
    return len(bad)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(bool(main(Path(sys.argv[1]), *map(int, sys.argv[2:]))))
