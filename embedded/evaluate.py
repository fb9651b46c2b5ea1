"""What the embedded model can do, as relaxpy runs it: bits per byte on held-out texts beside xz, and answers.

    python -m embedded.evaluate [MODEL] [--held-out FILE] [--bits N] [--answers N]

MODEL is a directory, by default the model that ships. FILE has held-out texts in JSON lines: by default the sample in
the repository; `held_out.jsonl` of a run's folder has all of them. The answers are the most probable ones.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import relaxpy.llm
from embedded.answers import answer
from embedded.bits import (
    SAMPLE,
    bits_per_byte,
    byte_count,
    read_documents,
    tokenizer_of,
    xz_bits_per_byte,
)
from relaxpy.embedded import embedded_model
from relaxpy.models.loaded import Scheme

QUESTIONS = (
    "What does textwrap.dedent do?", "What does len do?", "What is the json module?", "What does os.path.join do?",
    "How do I import functools.lru_cache?", "What is the signature of shutil.copytree?", "What does str.split do?",
    "What does random.randint do?", "Explain itertools.chain.", "What is pathlib.Path?", "What does heapq.heappush do?",
    "What does subprocess.run do?", "Who are you?", "What is the capital of France?", "Why is the sky blue?",
    "How do I sort a list?",
)  # fmt: skip
"""Questions that the model was taught, and at the end two that it was not."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Evaluate the embedded model.")
    parser.add_argument("model", nargs="?", type=Path, default=embedded_model())
    parser.add_argument("--held-out", type=Path, default=SAMPLE)
    parser.add_argument("--bits", type=int, help="quantise the weights to 3, 4 or 8 bits")
    parser.add_argument("--answers", type=int, default=len(QUESTIONS), help="number of questions")
    given = parser.parse_args(arguments)
    model = relaxpy.llm.load(given.model, scheme=Scheme(bits=given.bits, activations=None))
    found = read_documents(given.held_out)
    start = time.perf_counter()
    own = bits_per_byte(model.decoder, tokenizer_of(given.model), found)
    print(f"{len(found)} held-out files, {byte_count(found)} bytes: {own:.3f} bits per byte")
    print(f"xz on the same: {xz_bits_per_byte(found):.3f}   ({time.perf_counter() - start:.1f} s)")
    for question in QUESTIONS[: given.answers]:
        print(f"\n> {question}\n{answer(model, question)}")


if __name__ == "__main__":
    main()
