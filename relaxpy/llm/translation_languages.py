"""The languages of models that translate, as their checkpoints name them.

    languages = Languages({"deu_Latn": 256042, "eng_Latn": 256047})
    languages.code("de")                     "deu_Latn"

Models name them by tokens: `deu_Latn` (NLLB), `de_DE` (mBART), `__de__` (M2M-100), `>>deu<<` (Opus-MT). A language is
given by its code in the checkpoint, by the beginning of one (`deu`), by two letters (ISO 639-1), or by its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from relaxpy.checkpoints.whisper_languages import LANGUAGES
from relaxpy.errors import UsageError

_TOKENS = (
    re.compile(r"__(?P<code>[a-z]{2,3})__"),
    re.compile(r">>(?P<code>[A-Za-z_-]{2,20})<<"),
    re.compile(r"(?P<code>[a-z]{2}_[A-Z]{2})"),
    re.compile(r"(?P<code>[a-z]{3}_[A-Z][a-z]{3})"),
)
_PAIRS = (
    "af:afr am:amh ar:arb as:asm az:azj ba:bak be:bel bg:bul bn:ben bo:bod bs:bos ca:cat cs:ces cy:cym da:dan "
    "de:deu el:ell en:eng es:spa et:est eu:eus fa:pes fi:fin fo:fao fr:fra gl:glg gu:guj ha:hau he:heb hi:hin "
    "hr:hrv ht:hat hu:hun hy:hye id:ind is:isl it:ita ja:jpn jw:jav ka:kat kk:kaz km:khm kn:kan ko:kor lb:ltz "
    "ln:lin lo:lao lt:lit lv:lvs mg:plt mi:mri mk:mkd ml:mal mn:khk mr:mar ms:zsm mt:mlt my:mya ne:npi nl:nld "
    "nn:nno no:nob oc:oci pa:pan pl:pol ps:pbt pt:por ro:ron ru:rus sa:san sd:snd si:sin sk:slk sl:slv sn:sna "
    "so:som sq:als sr:srp su:sun sv:swe sw:swh ta:tam te:tel tg:tgk th:tha tk:tuk tl:tgl tr:tur tt:tat uk:ukr "
    "ur:urd uz:uzn vi:vie yi:ydd yo:yor yue:yue zh:zho"
).split()
_THREE = {pair.partition(":")[0]: pair.partition(":")[2] for pair in _PAIRS}
"""Codes of two letters, and those of three letters that NLLB and Opus-MT have for the language."""
_MOST_LISTED = 250


def language_tokens(tokens: Iterable[tuple[str, int]]) -> dict[str, int]:
    """The languages that tokens name: code → number."""
    found: dict[str, int] = {}
    for text, number in tokens:
        for pattern in _TOKENS:
            if match := pattern.fullmatch(text):
                found[match["code"]] = number
    return found


@dataclass(frozen=True)
class Languages:
    """The languages that a model knows."""

    numbers: Mapping[str, int]
    """Code → token."""

    def code(self, given: str) -> str:
        """The code of a language. Raises: UsageError (`bad-arguments`) for one that the model does not know, or of
        which it knows several kinds."""
        name = given.strip()
        if name in self.numbers:
            return name
        short = short_code(name)
        for wanted in dict.fromkeys((short, _THREE.get(short, short))):
            found = [code for code in self.numbers if re.split("[_-]", code)[0].lower() == wanted]
            if len(found) == 1:
                return found[0]
            if found:
                raise UsageError(
                    "bad-arguments",
                    f"the model knows {given!r} in several kinds: {', '.join(found)}",
                    help="name one of them",
                )
        raise UsageError(
            "bad-arguments",
            f"the model does not know the language {given!r}",
            help=f"it knows {', '.join(sorted(self.numbers)[:_MOST_LISTED])}",
        )


def short_code(given: str) -> str:
    """The code of two letters of a language that is given by its name; else what is given."""
    name = given.strip().lower()
    return next((code for code, full in LANGUAGES.items() if full == name), name)


def is_same(one: str, other: str) -> bool:
    """Are two codes, of two or three letters, with a script or without, those of one language?"""
    first, second = (re.split("[_-]", each.strip())[0].lower() for each in (one, other))
    return _THREE.get(first, first) == _THREE.get(second, second)
