"""The languages of Whisper: what they are called."""

from __future__ import annotations

from relaxpy.checkpoints.whisper_languages import LANGUAGES
from relaxpy.errors import UsageError, did_you_mean

__all__ = ["LANGUAGES", "UNSPACED", "language_code"]

_OTHER_NAMES = {
    "burmese": "my", "valencian": "ca", "flemish": "nl", "haitian": "ht", "letzeburgesch": "lb", "pushto": "ps",
    "panjabi": "pa", "moldavian": "ro", "moldovan": "ro", "sinhalese": "si", "castilian": "es", "mandarin": "zh",
}  # fmt: skip
UNSPACED = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Languages that write no spaces between words."""


def language_code(given: str) -> str:
    """The code of a language by its code or name. Raises: UsageError (`bad-arguments`)."""
    text = given.strip().lower()
    by_name = {name: code for code, name in LANGUAGES.items()} | _OTHER_NAMES
    found = text if text in LANGUAGES else by_name.get(text)
    if found is None:
        raise UsageError(
            "bad-arguments",
            f"there is no language {given!r}",
            help=did_you_mean(text, [*LANGUAGES, *by_name])
            or "languages are en, de, french, and so on",
        )
    return found
