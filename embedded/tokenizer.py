"""The tokenizer of the embedded model: byte-level BPE of 4096 tokens, trained on the model's own texts.

Text is cut as Qwen2 cuts it: a word with the character before it, digits one by one, runs of spaces (which leave one
space to the word that follows), punctuation with the line's end. So an indentation is one token. Every text is
encoded, and decoded to itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from embedded.questions import Message

VOCABULARY = 4096
SPECIAL = ("<|bos|>", "<|end|>", "<|user|>", "<|assistant|>", "<|pad|>")
"""The special tokens; their ids are their places."""
BOS, END, USER, ASSISTANT, PAD = range(len(SPECIAL))

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CHAT_TEMPLATE = """\
{{- bos_token }}
{%- set before = namespace(text="") %}
{%- for message in messages %}
    {%- if message.role == "system" %}
        {%- set before.text = before.text + message.content + "\\n\\n" %}
    {%- elif message.role == "user" %}
        {{- "<|user|>" + before.text + message.content + "<|end|>" }}
        {%- set before.text = "" %}
    {%- elif message.role == "assistant" %}
        {{- "<|assistant|>" + message.content + "<|end|>" }}
    {%- else %}
        {{- raise_exception("this model knows the roles user and assistant, not " + message.role) }}
    {%- endif %}
{%- endfor %}
{%- if before.text %}
    {{- raise_exception("this model knows the roles user and assistant, "
        "not system without a message of the user after it") }}
{%- endif %}
{%- if add_generation_prompt %}
    {{- "<|assistant|>" }}
{%- endif %}
"""
"""Jinja: a message is its role's token, its text and <|end|>; one of the system begins the next question."""


def train(texts: Iterable[str], vocabulary: int = VOCABULARY) -> Any:
    """A `tokenizers.Tokenizer` for the texts."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return made


def encode_texts(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """The tokens of each text, with <|bos|> before and <|end|> after it. What looks like a special token in a text is
    text."""
    plain = type(tokenizer).from_str(tokenizer.to_str())
    plain.encode_special_tokens = True
    found = plain.encode_batch(list(texts), add_special_tokens=False)
    return [[BOS, *each.ids, END] for each in found]


def encode_chats(tokenizer: Any, chats: Sequence[Sequence[Message]]) -> list[list[int]]:
    """The tokens of each conversation, as `CHAT_TEMPLATE` writes it."""
    contents = [message["content"] for chat in chats for message in chat]
    encoded = iter(encode_texts(tokenizer, contents))
    role = {"user": USER, "assistant": ASSISTANT}
    return [
        [BOS, *(token for m in chat for token in (role[m["role"]], *next(encoded)[1:]))]
        for chat in chats
    ]


def save(tokenizer: Any, folder: Path, context: int) -> None:
    """Write `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`. A text that is encoded by itself
    begins with <|bos|>."""
    from tokenizers import Tokenizer, processors

    beginning = processors.TemplateProcessing(
        single="<|bos|> $A", special_tokens=[(SPECIAL[BOS], BOS)]
    )
    whole = Tokenizer.from_str(tokenizer.to_str())
    whole.post_processor = beginning
    whole.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[BOS],
        "eos_token": SPECIAL[END],
        "pad_token": SPECIAL[PAD],
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
