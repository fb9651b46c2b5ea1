"""What templates read, by what they write of probes."""

from __future__ import annotations

from pathlib import Path

import pytest

from relaxpy.llm import Tokenizer
from relaxpy.llm.chat_template import ChatTemplate
from relaxpy.llm.template_probes import abilities
from tests.llm.checkpoints import write_tokenizer
from tests.llm.real_templates import TEMPLATES

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
PARTS = "{% for m in messages %}<|{{ m.role }}|>{% for c in m.content %}{{ c.text }}{% endfor %}{% endfor %}"
MADE = {
    "a word in a comment": "{# tools #}{% for m in messages %}{{ m.content }}{% endfor %}",
    "a word that is not written": "{% if tools %}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}",
    "parts": PARTS,
    "texts or parts": "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{{ m.content[0].text }}"
    "{% endif %}{% endfor %}",
    "nothing": "Hello.",
    "fails": "{{ raise_exception('never') }}",
    "tools by another name": "{% set t = tools %}{{ t }}{% for m in messages %}{{ m }}{% endfor %}",
}


@pytest.mark.parametrize(
    ("name", "parts", "tools", "calls"),
    [
        ("chatml", False, False, False),
        ("llama-2", False, False, False),
        ("llama-3", False, False, False),
        ("llama-3.1", False, True, True),
        ("mistral", False, False, False),
        ("mistral with tools", False, True, True),
        ("gemma", False, False, False),
        ("gemma-3", False, False, False),
        ("phi-3", False, False, False),
        ("zephyr", False, False, False),
        ("qwen3", False, True, True),
        ("a word in a comment", False, False, False),
        ("a word that is not written", False, False, False),
        ("parts", True, False, False),
        ("texts or parts", False, False, False),
        ("nothing", False, False, False),
        ("fails", False, False, False),
        ("tools by another name", False, True, True),
    ],
)
def test_abilities(name: str, parts: bool, tools: bool, calls: bool) -> None:
    found = abilities(ChatTemplate({**TEMPLATES, **MADE}[name]), SPECIAL)
    assert (found.parts, found.tools, found.calls) == (parts, tools, calls)


def test_contents_are_what_the_template_reads(tmp_path: Path) -> None:
    """A text for a template that reads parts, in prompts and where the end of an answer is looked for."""
    own = "{% for m in messages %}<|im_start|>{% for c in m.content %}{{ c.text }}{% endfor %}<|im_end|>{% endfor %}"
    tokenizer = Tokenizer.from_checkpoint(write_tokenizer(tmp_path, template=own))
    messages = [{"role": "user", "content": "Hello <|im_end|>"}]
    tokens = tokenizer.chat_tokens(messages)
    assert tokenizer.decode(tokens, special=True) == "<|im_start|>Hello <|im_end|><|im_end|>"
    assert tokens.count(tokenizer.number("<|im_end|>") or 0) == 1
    assert tokenizer.answer_ends() == tokenizer.end_tokens | {tokenizer.number("<|im_end|>")}
    blind = Tokenizer.from_checkpoint(
        write_tokenizer(tmp_path / "blind", template="<|im_start|>{{ messages[0].role }}")
    )
    assert blind.answer_ends() == blind.end_tokens
