"""Log-probabilities of the tokens of a text, as each interface writes them, part by part while the text is written."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from relaxpy.serve.request import Score
from relaxpy.server.served_model import Delta, ServedModel, TextRequest

LEAST = -9999.0
"""The log-probability of what is impossible, as OpenAI writes it: JSON has no infinity."""


class _Text:
    """The tokens of a text, one after the other."""

    def __init__(self, model: ServedModel, order: TextRequest, begins: bool) -> None:
        """`begins`: the first token begins a text of its own."""
        self._tokenizer = model.tokenizer
        self._hidden = (model.tokenizer.special_tokens - order.shown) | order.ends
        self._is_first = begins
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self.offset = 0
        """The characters before the next token."""

    def bytes_of(self, token: int) -> bytes | None:
        """What a token would add here; None if it is no part of texts."""
        if token in self._hidden:
            return None
        return self._tokenizer.token_bytes(token, self._is_first)

    def name_of(self, token: int) -> str:
        """A token for people."""
        data = self.bytes_of(token)
        if data is None:
            return self._tokenizer.token_text(token) or ""
        return data.decode("utf-8", "replace")

    def add(self, token: int) -> None:
        """Go on by a token."""
        data = self.bytes_of(token)
        if data is not None:
            self._is_first = False
            self.offset += len(self._utf8.decode(data))


class ChatLogprobs:
    """Those of a chat's answer."""

    def __init__(self, model: ServedModel, order: TextRequest) -> None:
        self._order, self._text = order, _Text(model, order, order.begins)

    def of(self, deltas: Sequence[Delta]) -> dict[str, Any] | None:
        """Those of more tokens, without those that end the text; None for a part without tokens, or if they were not
        asked for."""
        if self._order.top is None:
            return None
        content: list[dict[str, Any]] = []
        for delta in deltas:
            for place, (token, logprob) in enumerate(
                zip(delta.tokens, delta.logprobs, strict=True)
            ):
                if token in self._order.ends:
                    continue
                others = [
                    self._probable(each, value)
                    for top in delta.top[place : place + 1]
                    for each, value in islice(top.items(), self._order.top)
                ]
                content.append({**self._probable(token, logprob), "top_logprobs": others})
                self._text.add(token)
        return {"content": content, "refusal": None} if content or len(deltas) != 1 else None

    def _probable(self, token: int, logprob: float) -> dict[str, Any]:
        data = self._text.bytes_of(token)
        return {
            "token": self._text.name_of(token),
            "logprob": max(logprob, LEAST),
            "bytes": None if data is None else [*data],
        }


class CompletionLogprobs:
    """Those of a text after a prompt, and with `echo` those of the prompt before."""

    def __init__(self, model: ServedModel, order: TextRequest, echo: bool) -> None:
        self._model, self._order = model, order
        self._prompt = [*order.prompt] if echo else []
        self._text = _Text(model, order, echo or order.begins)

    def of(self, deltas: Sequence[Delta], scores: Sequence[Score] = ()) -> dict[str, Any] | None:
        """Those of more tokens, with the one that ends the text; before the first ones come those of the prompt, whose
        scores these are."""
        count = self._order.top
        if count is None:
            return None
        rows: list[tuple[int, float | None, Mapping[int, float]]] = []
        if self._prompt:
            rows.append((self._prompt[0], None, {}))
            rows += [
                (token, each.logprob, dict(islice(each.top.items(), count)))
                for token, each in zip(self._prompt[1:], scores, strict=True)
            ]
            self._prompt = []
        for delta in deltas:
            for place, (token, logprob) in enumerate(
                zip(delta.tokens, delta.logprobs, strict=True)
            ):
                top = delta.top[place] if delta.top else dict[int, float]()
                rows.append((token, logprob, top))
        return self._written(rows, count)

    def _written(
        self, rows: Iterable[tuple[int, float | None, Mapping[int, float]]], count: int
    ) -> dict[str, Any]:
        tokens: list[str] = []
        values: list[float | None] = []
        top: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for token, value, others in rows:
            tokens.append(self._name(token))
            values.append(None if value is None else max(value, LEAST))
            top.append(None if value is None else self._named(token, value, others))
            offsets.append(self._text.offset)
            self._text.add(token)
        return {
            "tokens": tokens, "token_logprobs": values, "top_logprobs": top if count else None,
            "text_offset": offsets,
        }  # fmt: skip

    def _named(self, token: int, value: float, others: Mapping[int, float]) -> dict[str, float]:
        """The most probable tokens and the one that came by their names. Of those of one name, the others than the one
        that came have their numbers."""
        found = {self._name(token): max(value, LEAST)}
        for each, other in others.items():
            if each != token:
                name = self._name(each)
                found[f"token_id:{each}" if name in found else name] = max(other, LEAST)
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def _name(self, token: int) -> str:
        """A token as text; one that is a part of a character by its bytes, as OpenAI writes it."""
        data = self._text.bytes_of(token)
        try:
            return self._text.name_of(token) if data is None else data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data or b"")


def prompt_logprobs(
    model: ServedModel, order: TextRequest, scores: Sequence[Score], count: int
) -> list[dict[str, Any] | None]:
    """The log-probabilities of a prompt as vLLM writes them: for each token its own, and those of so many most probable
    ones, by number."""
    text = _Text(model, order, begins=True)
    found: list[dict[str, Any] | None] = []
    for place, token in enumerate(order.prompt):
        if place:
            score = scores[place - 1]
            ranked = {
                each: (rank, value)
                for rank, (each, value) in enumerate(islice(score.top.items(), count), 1)
            }
            ranked.setdefault(token, (score.rank, score.logprob))
            found.append(
                {
                    str(each): {
                        "logprob": max(value, LEAST),
                        "rank": rank,
                        "decoded_token": text.name_of(each),
                    }
                    for each, (rank, value) in ranked.items()
                }
            )
        else:
            found.append(None)
        text.add(token)
    return found
