"""A run's weights as a checkpoint of transformers, with its card, its log and the curve of its training.

    python -m embedded.export RUN [DIRECTORY]

takes the finished weights, or those of the constant phase if none are finished. Without a directory they become what
ships: `relaxpy/embedded` gets the checkpoint and the card, and this folder `held_out.jsonl` (some of the held-out
files), `figures.json` and `log.jsonl` (thinned); `docs/embedded.svg` is the curve, and the conversations at the end of
`docs/embedded.md` are held anew.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import relaxpy.llm
from embedded import questions, transcript
from embedded import tokenizer as own_tokenizer
from embedded.answers import right_answers
from embedded.bits import (
    SAMPLE,
    bits_per_byte,
    byte_count,
    read_documents,
    tokenizer_of,
    xz_bits_per_byte,
)
from embedded.card import card
from embedded.curve import curve
from embedded.decoder import Config
from embedded.sources import Document
from relaxpy.models.loaded import Scheme

HERE = Path(__file__).parent
SHIPPED = HERE.parent / "relaxpy/embedded"
"""Where the model that ships is."""
_QUESTIONS = 100
"""Number of questions that are asked for the card."""
_SAMPLE_BYTES = 48_000
_LONGEST = 12_000
"""Most bytes of the sample, and of a file in it."""


def best_state(run: Path) -> dict[str, Any]:
    """The finished state of a run, else that of the constant phase."""
    finished, constant = run / "finish.pt", run / "constant.pt"
    return torch.load(
        finished if finished.exists() else constant, map_location="cpu", weights_only=True
    )


def export(run: Path, directory: Path) -> dict[str, Any]:
    """Write the checkpoint. Returns the state that it is from."""
    state = best_state(run)
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"model.{name}": value.to(torch.bfloat16).contiguous()
        for name, value in state["model"].items()
    }
    beside = directory / ".model.safetensors.new"
    save_file(tensors, beside, {"format": "pt"})
    beside.chmod(0o644)
    os.replace(beside, directory / "model.safetensors")
    config = Config(**state["recipe"]["config"])
    own_tokenizer.save(tokenizer_of(run), directory, config.max_position_embeddings)
    _write(directory / "config.json", config_fields(config))
    _write(directory / "generation_config.json", _special() | {"do_sample": False})
    return state


def config_fields(config: Config) -> dict[str, Any]:
    """`config.json`."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **asdict(config),
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        **_special(),
    }


def _special() -> dict[str, int]:
    return {
        "bos_token_id": own_tokenizer.BOS,
        "eos_token_id": own_tokenizer.END,
        "pad_token_id": own_tokenizer.PAD,
    }


def sample(found: Sequence[Document]) -> list[Document]:
    """Some of the held-out files, for the repository."""
    taken: list[Document] = []
    for each in found:
        if byte_count([each]) <= _LONGEST and byte_count([*taken, each]) <= _SAMPLE_BYTES:
            taken.append(each)
    return taken


def figures(run: Path, directory: Path, state: Mapping[str, Any]) -> dict[str, Any]:
    """What the card says of the weights, measured on the checkpoint as relaxpy runs it in float32."""
    model = relaxpy.llm.load(directory, scheme=Scheme(bits=None, activations=None))
    made = tokenizer_of(directory)
    texts = {"held_out": read_documents(run / "held_out.jsonl"), "sample": read_documents(SAMPLE)}
    measured = {
        name: {
            "files": len(found),
            "bytes": byte_count(found),
            "bits_per_byte": round(bits_per_byte(model.decoder, made, found), 4),
            "xz_bits_per_byte": round(xz_bits_per_byte(found), 4),
        }
        for name, found in texts.items()
    }
    return {
        "parameters": sum(value.numel() for value in state["model"].values()),
        "bytes": (directory / "model.safetensors").stat().st_size,
        "tokens": state["tokens"],
        "finish_tokens": state["phase_tokens"] if state["finish"] else 0,
        "cpu_seconds": round(state["cpu_seconds"]),
        "recipe": state["recipe"],
        **measured,
        "questions": _QUESTIONS,
        "right_answers": right_answers(model, questions.facts(), _QUESTIONS),
        "corpus": json.loads((run / "corpus.json").read_text()),
    }


def log_of(state: Mapping[str, Any], lines: Sequence[str]) -> list[str]:
    """The lines of a log that led to a state: the first phase may have gone on after a finish began."""
    begun = state["tokens"] - state["phase_tokens"] if state["finish"] else state["tokens"]
    most = {"constant": begun, "finish": state["tokens"] if state["finish"] else 0}
    known = [(json.loads(line), line) for line in lines]
    kept = [(each["tokens"], line) for each, line in known if each["tokens"] <= most[each["phase"]]]
    return [line for _, line in sorted(kept)]


def thinned(lines: Sequence[str], most: int = 400) -> list[str]:
    """Lines of a log that have held-out figures, and some of the others."""
    step = len(lines) // most + 1
    return [line for i, line in enumerate(lines) if i % step == 0 or "held_out" in line]


def _write(path: Path, fields: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(fields, indent=2) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Make a checkpoint of a run's weights.")
    parser.add_argument("run", type=Path, help="the folder that embedded.train_embedded trained in")
    parser.add_argument(
        "directory",
        type=Path,
        nargs="?",
        help="for the checkpoint alone; by default it becomes what ships",
    )
    given = parser.parse_args(arguments)
    if given.directory is not None:
        export(given.run, given.directory)
        return
    run, directory = given.run, SHIPPED
    state = export(run, directory)
    chosen = sample(read_documents(run / "held_out.jsonl"))
    SAMPLE.write_text("".join(json.dumps(asdict(each)) + "\n" for each in chosen), encoding="utf-8")
    known = figures(run, directory, state)
    _write(HERE / "figures.json", known)
    log = thinned(log_of(state, (run / "log.jsonl").read_text().splitlines(keepends=True)))
    (HERE / "log.jsonl").write_text("".join(log))
    (HERE.parent / "docs/embedded.svg").write_text(
        curve([json.loads(line) for line in log], known["held_out"]["xz_bits_per_byte"])
    )
    (directory / "README.md").write_text(card(known))
    transcript.main()


if __name__ == "__main__":
    main()
