"""The corpus as tokens in a folder: what `embedded.train_embedded` reads.

    python -m embedded.corpus RUN

writes `tokenizer.json`, `tokens.npy` (all training documents, one after the other), `starts.npy` (where each begins),
`held_out.jsonl` (name and text of the files that are held out), `held_out.npy` with `held_out_starts.npy`, and
`corpus.json`: the libraries with their versions and licences, and counts. The same Python and the same versions give
the same files.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embedded import questions, tokenizer
from embedded.sources import LIBRARIES, Document, check_licences, documents, versions


@dataclass(frozen=True)
class Corpus:
    """The texts, before they are tokens."""

    training: Sequence[Document]
    chats: Sequence[Sequence[questions.Message]]
    held_out: Sequence[Document]


def collect() -> Corpus:
    """Read the sources. An answer that is in a file that is held out is left out of the chats."""
    found = documents()
    held_out = [each for each in found if each.held_out]
    unseen = _words("\n".join(each.text for each in held_out))
    known = [fact for fact in questions.facts() if _words(fact.text) not in unseen]
    chats = questions.chats(questions.pairs(known))
    return Corpus([each for each in found if not each.held_out], chats, held_out)


def write(corpus: Corpus, folder: Path) -> dict[str, Any]:
    """Write the folder. Returns the facts of `corpus.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = [each.text for each in corpus.training]
    spoken = [message["content"] for chat in corpus.chats for message in chat]
    made = tokenizer.train([*texts, *spoken])
    made.save(str(folder / "tokenizer.json"))
    read = tokenizer.encode_texts(made, texts)
    asked = tokenizer.encode_chats(made, corpus.chats)
    unseen = tokenizer.encode_texts(made, [each.text for each in corpus.held_out])
    _save(folder, "tokens", "starts", [*read, *asked])
    _save(folder, "held_out", "held_out_starts", unseen)
    (folder / "held_out.jsonl").write_text(
        "".join(json.dumps(asdict(each)) + "\n" for each in corpus.held_out), encoding="utf-8"
    )
    facts = {
        "libraries": {
            each.name: {"version": versions()[each.name], "licence": each.licence}
            for each in LIBRARIES
        },
        "documents": len(texts),
        "chats": len(asked),
        "document_tokens": sum(map(len, read)),
        "chat_tokens": sum(map(len, asked)),
        "document_bytes": _bytes(texts),
        "chat_bytes": _bytes(spoken),
        "held_out_files": [each.name for each in corpus.held_out],
        "held_out_bytes": _bytes([each.text for each in corpus.held_out]),
        "held_out_tokens": sum(map(len, unseen)),
        "sha256": hashlib.sha256((folder / "tokens.npy").read_bytes()).hexdigest(),
    }
    (folder / "corpus.json").write_text(json.dumps(facts, indent=2) + "\n")
    return facts


def _save(folder: Path, name: str, starts: str, encoded: Sequence[Sequence[int]]) -> None:
    lengths = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    np.save(folder / f"{starts}.npy", lengths)
    np.save(folder / f"{name}.npy", np.concatenate([np.array(each, np.uint16) for each in encoded]))


def _bytes(texts: Sequence[str]) -> int:
    return sum(len(text.encode()) for text in texts)


def _words(text: str) -> str:
    return re.sub(r"[\s\\#\"']+", " ", text)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write the corpus of the embedded model.")
    parser.add_argument("run", type=Path, help="the folder to write")
    given = parser.parse_args(arguments)
    check_licences()
    facts = write(collect(), given.run)
    print(
        json.dumps(
            {name: value for name, value in facts.items() if name != "held_out_files"}, indent=2
        )
    )


if __name__ == "__main__":
    main()
