"""The same module and target give the same bytes: all-MiniLM-L6-v2 built in two processes.

    python benchmarks/reproducible.py

Prints the SHA-256 of both files; exits with 1 where they differ.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

BUILD = """
import sys
import relaxpy
from relaxpy.models.bert import SPEC, BertConfig, BertEncoder, load_weights
from relaxpy.models.checkpoint import read_weights
from relaxpy.models.sentence_embedding import default_checkpoint
model = BertEncoder(BertConfig.from_checkpoint(default_checkpoint()))
load_weights(model, read_weights(default_checkpoint()))
mod, params = model.export({"embed": SPEC["embed"]})
relaxpy.build(mod, params=params).save(sys.argv[1])
"""
ROOT = Path(__file__).resolve().parent.parent


def digest(folder: Path, seed: str) -> str:
    """SHA-256 of the model, built in a process with this hash seed."""
    file = folder / f"{seed}.rxe"
    environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT), "PATH": ""}
    subprocess.run([sys.executable, "-c", BUILD, str(file)], check=True, env=environment)
    return hashlib.sha256(file.read_bytes()).hexdigest()


def main() -> int:
    """Build twice, compare."""
    with tempfile.TemporaryDirectory() as folder:
        digests = [digest(Path(folder), seed) for seed in ("1", "2")]
    for each in digests:
        print(each)
    print("the same bytes" if len(set(digests)) == 1 else "the bytes differ")
    return len(set(digests)) - 1


if __name__ == "__main__":
    sys.exit(main())
