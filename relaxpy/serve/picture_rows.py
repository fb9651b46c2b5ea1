"""What a step has of pictures: the rows that stand for its tokens, and where they are turned."""

from __future__ import annotations

import numpy as np

from relaxpy.serve.pages import NONE
from relaxpy.serve.pictures import PictureShape, PictureStore, last_places, turns
from relaxpy.serve.scheduler import Plan


def picture_rows(plan: Plan, store: PictureStore, shape: PictureShape) -> tuple[np.ndarray, ...]:
    """The rows of pictures (rows, hidden) that stand for tokens of a step, and which of them stands for each token,
    (tokens,) int32, -1 for none; the rotary positions of the tokens, if they are not their places; and the last places
    that they attend to, if those of a picture attend to each other."""
    sources = np.full(plan.tokens, NONE, np.int32)
    found, before, first = [np.zeros((0, shape.hidden), np.float32)], 0, 0
    for part in plan.parts:
        for start, picture in part.pictures:
            skipped = max(part.start - start, 0)
            rows = store.rows(picture, part.text.request.salt)
            rows = rows[skipped : part.start + part.count - start]
            place = first + start + skipped - part.start
            sources[place : place + len(rows)] = np.arange(before, before + len(rows))
            before += len(rows)
            found.append(rows)
        first += part.count + len(part.drafts)
    places = [
        (part.text.request.pictures, part.start, part.count + len(part.drafts))
        for part in plan.parts
    ]
    given = [np.concatenate(found), sources]
    if shape.axes:
        given.append(np.concatenate([turns(*each) for each in places], axis=1))
    if shape.spans:
        given.append(np.concatenate([last_places(*each) for each in places]))
    return tuple(given)
