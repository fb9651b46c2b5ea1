"""Chat templates for models of GGUF pairs, whose language model may have one that knows no pictures, or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from relaxpy.errors import UsageError
from relaxpy.llm.chat_template import ChatTemplate

_LLAVA = (
    "{% for message in messages %}{% if message['role'] == 'system' %}{{ message['content'] + ' ' }}"
    "{% elif message['role'] == 'user' %}{{ 'USER: ' + message['content'] + ' ' }}"
    "{% else %}{{ 'ASSISTANT: ' + message['content'] + eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
"""Vicuna's, of which LLaVA 1.5 is made."""
_FLAT = """\
{%- set flat = namespace(messages=[]) -%}
{%- for message in messages -%}
{%- if message.content is sequence and message.content is not string -%}
{%- set own = namespace(pictures='', text='') -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}{%- set own.pictures = own.pictures + 'PLACEHOLDER\\n' -%}
{%- else -%}{%- set own.text = own.text + part.text -%}{%- endif -%}
{%- endfor -%}
{%- set flat.messages = flat.messages + [dict(message, content=own.pictures + own.text)] -%}
{%- else -%}{%- set flat.messages = flat.messages + [message] -%}{%- endif -%}
{%- endfor -%}
{%- set messages = flat.messages -%}
"""
"""What comes before a template that reads texts: pictures come first in a message, as LLaVA's own template has them."""
_TEXT = "probe-of-a-text"
_PROBE = [
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": _TEXT}]},
]


def seeing_templates(
    templates: Mapping[str, ChatTemplate], placeholder: str, special: Mapping[str, str], place: str
) -> dict[str, ChatTemplate]:
    """Templates that write a placeholder for each picture: those that do so already, others on messages whose pictures
    are placeholders in their texts, and Vicuna's, if there is none. `special` are their variables. Raises: UsageError
    (`extra-missing`) without jinja2."""
    own = {"eos_token": "", **special}
    found = dict(templates) or {"default": ChatTemplate(_LLAVA, place)}
    before = _FLAT.replace("PLACEHOLDER", placeholder.replace("\\", "\\\\").replace("'", "\\'"))
    return {
        name: each if _sees(each, placeholder, own) else replace(each, source=before + each.source)
        for name, each in found.items()
    }


def _sees(template: ChatTemplate, placeholder: str, special: Mapping[str, str]) -> bool:
    """Does a template write a place for a picture, and the text beside it?"""
    try:
        text = template.render(messages=_PROBE, add_generation_prompt=True, **special)
    except UsageError as error:
        if error.code == "extra-missing":
            raise
        return False
    return text.count(placeholder) == 1 and _TEXT in text
