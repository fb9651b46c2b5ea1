"""The card of the embedded model, from its figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_CARD = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
language: en
---

# The model that ships with relaxpy

A Llama of {parameters:.2f} million parameters ({megabytes:.1f} MB in bfloat16) that **recites Python's documentation and code, and knows
nothing else**. It is here so that `relaxpy` has a real language model to run without a download: to try a command, a
quantisation or a server on, not to be believed. Its answers are mostly wrong, also where they sound right.

| | |
|---|---|
| tokens seen in training | {tokens:.2f} million ({epochs:.1f} passes over the corpus), the last {finish:.2f} million with a falling rate |
| bits per byte, {files} held-out files ({kilobytes:.0f} KB) | **{bits:.3f}** |
| `xz -9e` on the same files, in one archive | {xz:.3f} |
| questions it was taught that it answers word for word | {right} of {asked} |
| architecture | {layers} layers, {hidden} wide, {heads} heads of {head} ({kv} of keys), feed-forward network {ffn} wide, tied embeddings, context {context} |
| vocabulary | {vocabulary} tokens of byte-level BPE, trained on the same texts; digits one by one |
| training | one processor core, {hours:.1f} hours of its time; Muon and AdamW |

The held-out files are whole files of the same libraries, one in 32 by the hash of its name, and no answer to a question was taken
from them. The plan is for 20 million tokens, and
1.5 bits per byte. How to train and to evaluate it: `docs/embedded.md` in the repository, where the
log and the curve are, too.

## Chat

    <|bos|><|user|>What does textwrap.dedent do?<|end|><|assistant|>

The roles are user and assistant; a system message is put before the next
question. About {share:.0f} % of what it read are such questions, made from the
docstrings of the standard library by templates: what a name does, its arguments, how it is imported. To what it was not
taught it has learned to answer "I do not know that. I only know the documentation of Python."

## What it was trained on

{count} files and {chats} chats, {corpus:.2f} million tokens: the Python sources and docstrings of these libraries, without
their tests.

| library | version | licence |
|---|---|---|
{libraries}

The licence of each was compared with the metadata of what was installed. Models of this kind can repeat passages of what they
read; such passages are under the licences above. The weights are under relaxpy's own, Apache-2.0.
"""


def card(figures: Mapping[str, Any]) -> str:
    """`README.md` beside the weights."""
    corpus, config, unseen = figures["corpus"], figures["recipe"]["config"], figures["held_out"]
    size = corpus["document_tokens"] + corpus["chat_tokens"]
    rows = [
        f"| {name} | {x['version']} | {x['licence']} |" for name, x in corpus["libraries"].items()
    ]
    return _CARD.format(
        parameters=figures["parameters"] / 1e6,
        megabytes=figures["bytes"] / 1e6,
        tokens=figures["tokens"] / 1e6,
        epochs=figures["tokens"] / size,
        finish=figures["finish_tokens"] / 1e6,
        files=unseen["files"],
        kilobytes=unseen["bytes"] / 1e3,
        bits=unseen["bits_per_byte"],
        xz=unseen["xz_bits_per_byte"],
        right=figures["right_answers"],
        asked=figures["questions"],
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=config["num_attention_heads"],
        head=config["head_dim"],
        kv=config["num_key_value_heads"],
        ffn=config["intermediate_size"],
        context=config["max_position_embeddings"],
        vocabulary=config["vocab_size"],
        hours=figures["cpu_seconds"] / 3600,
        share=100 * corpus["chat_tokens"] / size,
        count=corpus["documents"],
        chats=corpus["chats"],
        corpus=size / 1e6,
        libraries="\n".join(rows),
    )
