"""Pictures in the bodies of requests."""

from __future__ import annotations

import base64
import binascii

from relaxpy.server.errors import ApiError


def picture_in(text: str, place: str) -> bytes:
    """The file of a picture in a data URI, or in base64 alone. Raises: ApiError, also for an address, from which
    nothing is fetched."""
    if text.startswith("data:"):
        kind, _, text = text.partition(",")
        if not kind.endswith(";base64"):
            raise ApiError(f"{place}: a data URI of a picture has ;base64", param=place)
    elif ":" in text[:40]:
        raise ApiError(
            f"{place}: pictures are data URIs, data:image/png;base64,…; nothing is fetched from an address",
            param=place,
        )
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ApiError(f"{place}: it is not base64", param=place) from None
