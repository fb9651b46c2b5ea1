"""Checkpoints of every family as people get them, beside transformers: tokens, chats, greedy texts, their ends."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from relaxpy.llm import Tokenizer, load
from relaxpy.models.decoder_plan import plan_decoder
from relaxpy.models.loaded import Scheme
from tests.llm.published import FAMILIES, write
from tests.sweeps import part, quick_target, sweep

TEXTS = (
    "Hello, world", "  two  spaces ", "é 你好 🎉 x", "a\n\n\tb 1234567", "<|im_end|> <s> </s><think>", "", " ",
    "it's I'LL Éa", "\u0000\r\n", "a<|end|>  b [INST] <end_of_turn>\n",
)  # fmt: skip
USER, ANSWER, SYSTEM = (
    {"role": role, "content": content}
    for role, content in (("user", "Hello é"), ("assistant", " Hi "), ("system", "Be brief."))
)
CHATS = {
    "one": [USER],
    "two": [USER, ANSWER, USER],
    "system": [SYSTEM, USER],
    "answered": [USER, ANSWER],
}
NEW = 24


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a family and its model of transformers, made once."""
    root, models = tmp_path_factory.mktemp("published"), dict[str, Any]()

    def one(name: str) -> tuple[Path, Any]:
        if name not in models:
            models[name] = write(name, root / name)
        return root / name, models[name]

    return one


def reference(place: Path) -> Any:
    """The tokenizer of transformers, as `tokenizer.json` says. (The classes LlamaTokenizer and Qwen2Tokenizer of
    transformers 5 build one of their own from the file's vocabulary; up to version 4 they read the file.)"""
    transformers: Any = pytest.importorskip("transformers")

    return transformers.PreTrainedTokenizerFast.from_pretrained(place)


@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_and_chats(made: Any, name: str) -> None:
    place, _ = made(name)
    ours, theirs = Tokenizer.from_checkpoint(place), reference(place)
    for text in TEXTS:
        tokens = theirs(text)["input_ids"]
        assert ours.encode(text) == tokens
        for special in (True, False):
            assert ours.decode(tokens, special) == theirs.decode(
                tokens, skip_special_tokens=not special
            )
    for messages in CHATS.values() if ours.templates else ():
        for add in (True, False):
            try:
                text = theirs.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=add
                )
            except Exception:  # a template that knows no system message
                continue
            assert ours.chat_text(messages, add_generation_prompt=add) == text
            tokens = theirs(text, add_special_tokens=False)["input_ids"]
            assert ours.chat_tokens(messages, add_generation_prompt=add) == tokens
    assert {ours.token_text(n) for n in ours.end_tokens} == {*FAMILIES[name].ends}


@sweep
@pytest.mark.parametrize("name", part(sorted(FAMILIES), 14))
def test_texts(made: Any, tmp_path: Path, name: str) -> None:
    """The most probable tokens of a prompt and of a chat; the end at any token of the list; the plan."""
    torch: Any = pytest.importorskip("torch")

    place, model = made(name)
    shutil.copytree(place, tmp_path / name)
    tokenizer = Tokenizer.from_checkpoint(place)
    prompts = [tokenizer.encode("Compile once, and run it for every shape. " * 3)]
    prompts += [tokenizer.chat_tokens([USER])] if tokenizer.templates else []
    expected = [
        model.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=NEW, eos_token_id=-1, pad_token_id=0,
            temperature=None, top_p=None, top_k=None, repetition_penalty=1.0,
        )[0, len(prompt) :].tolist()
        for prompt in prompts
    ]  # fmt: skip
    last = expected[0][NEW // 2]
    config = tmp_path / name / "generation_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "eos_token_id": [0, last]}))
    ours = load(
        tmp_path / name,
        scheme=Scheme(bits=None, activations=None),
        context=256,
        target=str(quick_target()),
    )
    greedy: dict[str, Any] = {"max_tokens": NEW, "temperature": 0, "repetition_penalty": 1}
    for prompt, tokens in zip(prompts, expected, strict=True):
        found = ours.generate(prompt, end_tokens=(), **greedy)
        text = "".join(found)
        assert found.tokens == tokens
        assert ours.tokenizer.decode(tokens).startswith(text.rstrip("\ufffd")[:-4])
    found = ours.generate(prompts[0], **greedy)
    assert "".join(found) == ours.tokenizer.decode(found.tokens[:-1])
    ends = ours.tokenizer.end_tokens
    assert last in ends
    first = next(n for n, token in enumerate(expected[0]) if token in ends)
    assert found.tokens == expected[0][: first + 1]
    plan = plan_decoder(place, Scheme(bits=None, activations=None), context=256)
    assert plan.weights == ours.decoder.packed.nbytes
